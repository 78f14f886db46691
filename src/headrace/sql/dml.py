"""INSERT, UPDATE and DELETE: their parts, and the queries that compute what they change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from sqlglot import exp

from headrace.common.lazy_dataclass import dataclass
from headrace.common.zones import UTC, Zone
from headrace.errors import NotSupported, SyntaxFault, UndefinedColumn
from headrace.sql.binder.moments import Times
from headrace.sql.binder.row_changes import QueryWanted
from headrace.sql.datatypes import spark_type
from headrace.sql.dialect import Headrace, parse_expression_tokens, parse_statement_tokens, tokenize
from headrace.sql.query import Expression, Query, Rename, Schema
from headrace.sql.statements import Delete, TableName, Update
from headrace.sql.text_values import Untyped, assign, parse_text


class _Default:
    """The type of `DEFAULT`."""

    def __repr__(self) -> str:
        return "DEFAULT"


DEFAULT = _Default()
"""Stands for the column's default in literal rows."""


class _NotLiteral(Exception):
    """An expression that only an engine can compute."""


class InsertedRows:
    """The rows of `INSERT ... VALUES`."""

    def __init__(self, tree: exp.Values, text: str, offset: int | None = None):
        self._tree = tree
        self.text = text
        self._offset = offset

    def __eq__(self, other: object) -> bool:
        return isinstance(other, InsertedRows) and self._tree == other._tree

    def __hash__(self) -> int:
        return hash(self._tree)

    def __len__(self) -> int:
        return len(self._tree.expressions)

    @property
    def width(self) -> int:
        """The number of values in the longest row."""
        return max((len(_cells(row)) for row in self._tree.expressions), default=0)

    def cells(self) -> list[list[exp.Expr | None]]:
        """The expressions of each row; None stands for `DEFAULT`."""
        return [[None if _is_default(cell) else cell.copy() for cell in _cells(row)] for row in self._tree.expressions]

    def literals(self, column_types: Sequence[str], zone: Zone) -> list[list[object]] | None:
        """See `Insert.literal_rows`."""
        rows: list[list[object]] = []
        try:
            for row in self._tree.expressions:
                cells = _cells(row)
                _check_width(len(cells), len(column_types))
                rows.append([_stored(cell, kind, zone) for cell, kind in zip(cells, column_types)])
        except _NotLiteral:
            return None
        return rows

    def query(
        self, column_types: Sequence[str], defaults: Sequence[str | None] | None = None, names: Sequence[str] = (),
        zone: Zone = UTC,
    ) -> Query:  # fmt: skip
        """The rows as a query with columns `column1`, ...; each value is cast to its column's type.

        `defaults` are the SQL texts that take the place of `DEFAULT`, declared in a time zone, `names` those of the
        columns.
        """
        selects: list[exp.Expr] = []
        for row in self._tree.expressions:
            cells = _cells(row)
            _check_width(len(cells), len(column_types))
            items = [self._cell(cell, i, defaults) for i, cell in enumerate(cells)]
            selects.append(exp.Select(expressions=items))
        tree = selects[0]
        for select in selects[1:]:
            tree = exp.Union(this=tree, expression=select, distinct=False)
        if not names:
            return Query(tree, self.text)
        texts = tuple((n, text) for n, text in zip(names, defaults or ()) if text is not None)
        change = QueryWanted("values", self.text, tuple(names), tuple(column_types), texts, zone)
        return Query(tree, self.text, self._offset, change=change)

    def _cell(self, cell: exp.Expr, at: int, defaults: Sequence[str | None] | None) -> exp.Expr:
        value = cell.copy()
        if _is_default(cell):
            text = defaults[at] if defaults else None
            value = parse_expression_tokens(text, tokenize(text)) if text else exp.Null()
        return exp.alias_(value, exp.to_identifier(f"column{at + 1}", quoted=True))


def _check_width(found: int, wanted: int) -> None:
    if found > wanted:
        raise SyntaxFault("INSERT has more expressions than target columns")


def _cells(row: exp.Expr) -> list[exp.Expr]:
    if isinstance(row, exp.Tuple):
        return list(row.expressions)
    return [row.this if isinstance(row, exp.Paren) else row]


def _is_default(node: exp.Expr) -> bool:
    return isinstance(node, exp.Var) and node.name.upper() == "DEFAULT"


def _stored(node: exp.Expr, kind: str, zone: Zone) -> object:
    if _is_default(node):
        return DEFAULT
    return literal_value(node, kind, zone)


def literal_value(node: exp.Expr, kind: str, zone: Zone) -> object:
    """The value of a literal expression as a column of Spark type `kind` stores it, in a time zone.

    Raises a `DataError` or `DatatypeMismatch` where the value does not fit, `_NotLiteral` where it is no literal.
    """
    text = _unknown_text(node)
    if text is not None:
        return parse_text(text, kind, zone)
    return assign(_value(node, zone), kind, zone)


def literal_of(expression: Expression, kind: str, zone: Zone) -> tuple[bool, object]:
    """Whether an expression is a literal, and its value as Spark type `kind` in a time zone."""
    try:
        return True, literal_value(expression.tree, kind, zone)
    except _NotLiteral:
        return False, None


def _unknown_text(node: exp.Expr) -> str | None:
    """The text of a bare string literal, whose type its context decides."""
    while isinstance(node, exp.Paren):
        node = node.this
    if isinstance(node, exp.Literal) and node.is_string:
        return str(node.this)
    if isinstance(node, (exp.ByteString, exp.UnicodeString, exp.Heredoc, exp.RawString, exp.National)):
        return str(node.name)
    return None


def _value(node: exp.Expr, zone: Zone) -> object:
    """The value of a literal by its own type: int, Decimal, str, bool, None, list, tuple, bytes, date, datetime."""
    if isinstance(node, exp.Paren):
        return _value(node.this, zone)
    if isinstance(node, exp.Null):
        return None
    if isinstance(node, exp.Boolean):
        return bool(node.this)
    if isinstance(node, exp.Literal) and not node.is_string:
        return int(node.this) if node.is_int else Decimal(node.this)
    if isinstance(node, exp.Neg):
        inner = _value(node.this, zone)
        if isinstance(inner, (int, float, Decimal)) and not isinstance(inner, bool):
            return -inner
        raise _NotLiteral
    if isinstance(node, exp.Cast) and not isinstance(node, exp.TryCast):
        return _cast_value(node, zone)
    if isinstance(node, exp.Array):
        return [_element(item, zone) for item in node.expressions]
    if isinstance(node, exp.Anonymous) and node.name.lower() == "row":
        return tuple(_element(item, zone) for item in node.expressions)
    text = _unknown_text(node)
    if text is None:
        raise _NotLiteral
    return text


def _element(node: exp.Expr, zone: Zone) -> object:
    text = _unknown_text(node)
    return Untyped(text) if text is not None else _value(node, zone)


def _cast_value(node: exp.Cast, zone: Zone) -> object:
    if node.to.this == exp.DType.INTERVAL:
        raise _NotLiteral
    kind = spark_type(node.to)
    value = literal_value(node.this, kind, zone)
    sizes = node.to.expressions
    if kind == "string" and isinstance(value, str) and sizes and sizes[0].name.isdigit():
        return value[: int(sizes[0].name)]
    return value


@dataclass(frozen=True)
class Assignment:
    """An assignment `column = value` of an UPDATE; None stands for `DEFAULT`."""

    column: str
    value: Expression | None


class Returning:
    """A `RETURNING` list."""

    def __init__(
        self, items: Sequence[exp.Expr], table: TableName, alias: str | None, text: str, statement: str, offset: int
    ):  # fmt: skip
        select = exp.Select(expressions=[item.copy() for item in items], from_=exp.From(this=target_of(table, alias)))
        self._query = Query(select, statement, offset, change=QueryWanted("returning", statement))
        self.text = text
        self.relation = alias or table.name
        """What qualifies its columns."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Returning) and self._query == other._query

    def __hash__(self) -> int:
        return hash(self._query)

    @property
    def query(self) -> Query:
        """The list as a query over the table."""
        return self._query

    def to_spark(self, rename: Rename, schema: Schema, zone: Zone, times: Times | None = None) -> str:
        """A `SELECT` of the list over the changed rows, which `rename` names in place of the table; see `Query`."""
        return self._query.to_spark(rename, schema, zone=zone, times=times)


def target_of(table: TableName, alias: str | None) -> exp.Table:
    """The table that a statement writes to, as a relation of a query."""
    quoted = exp.to_identifier(table.name, quoted=True)
    found = exp.Table(this=quoted, db=exp.to_identifier(table.schema, quoted=True) if table.schema else None)
    found.set("alias", exp.TableAlias(this=exp.to_identifier(alias or table.name, quoted=True)))
    return found


def _changed_rows(
    statement: Update | Delete, columns: Sequence[str], extra: Sequence[exp.Expr], change: QueryWanted
) -> Query:
    relation = statement.alias or statement.table.name
    items: list[exp.Expr] = [
        exp.Column(this=exp.to_identifier(name, quoted=True), table=exp.to_identifier(relation, quoted=True))
        for name in columns
    ]
    select = exp.Select(expressions=[*items, *extra], from_=exp.From(this=target_of(statement.table, statement.alias)))
    if statement.sources:
        others = parse_statement_tokens(*_tokens(f"SELECT 1 FROM {statement.sources}"))
        first = others.args["from_"].this
        select.set(
            "joins", [exp.Join(this=first.copy(), kind="CROSS"), *(j.copy() for j in others.args.get("joins") or [])]
        )
    if statement.where is not None:
        select.set("where", exp.Where(this=statement.where.tree))
    offset = statement.position - 1 if statement.parsed else None
    return Query(select, statement.text, offset, change=change)


def _tokens(text: str) -> tuple[str, list[Any]]:
    return text, list(tokenize(text))


def update_query(
    statement: Update, columns: Sequence[str], defaults: Mapping[str, str] | None = None, zone: Zone = UTC
) -> Query:
    """The rows an `UPDATE` changes: the old columns, then `__new_<column>` for each assignment.

    `columns` are the table's; `defaults` are the SQL texts for `SET c = DEFAULT`, declared in a zone.
    Raises `UndefinedColumn`.
    """
    extra: list[exp.Expr] = []
    for assignment in statement.assignments:
        if assignment.column not in columns:
            raise UndefinedColumn(f'column "{assignment.column}" of relation "{statement.table.name}" does not exist')
        text = (defaults or {}).get(assignment.column)
        if assignment.value is not None:
            value = assignment.value.tree
        else:
            value = parse_expression_tokens(text, tokenize(text)) if text else exp.Null()
        extra.append(exp.alias_(value, exp.to_identifier(f"__new_{assignment.column}", quoted=True)))
    texts = tuple(sorted((defaults or {}).items()))
    change = QueryWanted("update", statement.parsed, tuple(columns), defaults=texts, zone=zone)
    return _changed_rows(statement, columns, extra, change)


def delete_query(statement: Delete, columns: Sequence[str]) -> Query:
    """The rows a `DELETE` removes, with the columns given."""
    return _changed_rows(statement, columns, [], QueryWanted("delete", statement.parsed, tuple(columns)))


def assignments_of(tree: exp.Expr, text: str) -> tuple[Assignment, ...]:
    """The assignments of a parsed `UPDATE` or `DO UPDATE`; `(a, b) = (1, 2)` counts as two."""
    found: list[Assignment] = []
    for item in tree.expressions:
        if not isinstance(item, exp.EQ):
            raise NotSupported("this form of SET in UPDATE is not supported")
        left, right = item.this, item.expression
        if isinstance(left, exp.Paren):
            left, right = exp.Tuple(expressions=[left.this]), exp.Tuple(expressions=[right])
        if isinstance(left, exp.Tuple):
            if not isinstance(right, exp.Tuple) or len(right.expressions) != len(left.expressions):
                raise NotSupported("SET (columns) = needs a list of as many values")
            pairs = list(zip(left.expressions, right.expressions, strict=True))
        else:
            pairs = [(left, right)]
        found += [_assignment(column, value, text) for column, value in pairs]
    return tuple(found)


def _assignment(column: exp.Expr, value: exp.Expr, text: str) -> Assignment:
    identifier = column.this if isinstance(column, exp.Column) else column
    name = identifier.name if identifier.args.get("quoted") else identifier.name.lower()
    is_default = _is_default(value) or (isinstance(value, exp.Column) and value.sql().upper() == "DEFAULT")
    return Assignment(name, None if is_default else Expression(value.copy(), value.sql(dialect=Headrace)))


def returning_of(
    tree: exp.Expr, table: TableName, alias: str | None, statement: str, offset: int
) -> Returning | None:  # fmt: skip
    """The `RETURNING` list of a parsed statement, whose text begins at an offset of its script."""
    node = tree.args.get("returning")
    if node is None:
        return None
    return Returning(node.expressions, table, alias, node.sql(dialect=Headrace), statement, offset)
