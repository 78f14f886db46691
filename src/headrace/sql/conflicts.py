"""`ON CONFLICT` of an INSERT: which rows it is about, and what becomes of those that are there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlglot import exp

from headrace.common.lazy_dataclass import dataclass
from headrace.common.zones import UTC, Zone
from headrace.errors import NotSupported, SyntaxFault
from headrace.sql.binder.row_changes import QueryWanted
from headrace.sql.dialect import Headrace
from headrace.sql.dml import Assignment, assignments_of, target_of
from headrace.sql.law import position_of
from headrace.sql.query import Expression, Query
from headrace.sql.statements import TableName

EXCLUDED = "excluded"
"""What calls the row that was to be inserted."""


@dataclass(frozen=True)
class Conflict:
    """`ON CONFLICT [(columns) | ON CONSTRAINT name] DO NOTHING | DO UPDATE SET ... [WHERE ...]`."""

    columns: tuple[str, ...]
    """The columns that are to be equal; empty where it does not say."""
    constraint: str | None
    updates: bool
    table: TableName
    alias: str | None
    assignments: tuple[Assignment, ...]
    where: Expression | None
    text: str
    """The statement's."""
    offset: int

    @property
    def relation(self) -> str:
        """What calls the row that is there."""
        return self.alias or self.table.name

    def query(self, columns: Sequence[str], defaults: Mapping[str, str], zone: Zone = UTC) -> Query:
        """What the rows that are there become: see `QueryWanted`.

        `columns` are the table's; `defaults` are the SQL texts for `SET c = DEFAULT`, declared in a zone.
        """
        values = [a.value.tree for a in self.assignments if a.value is not None]
        select = exp.Select(expressions=values or [exp.Null()], from_=exp.From(this=target_of(self.table, self.alias)))
        if self.where is not None:
            select.set("where", exp.Where(this=self.where.tree))
        texts = tuple(sorted(defaults.items()))
        change = QueryWanted("conflict", self.text, tuple(columns), defaults=texts, zone=zone)
        return Query(select, self.text, self.offset, change=change)


def conflict_of(
    node: exp.Expr | None, table: TableName, alias: str | None, statement: str, offset: int
) -> Conflict | None:  # fmt: skip
    """The clause of a parsed INSERT, whose text begins at an offset of its script."""
    if node is None:
        return None
    updates = node.args["action"].name.upper() == "DO UPDATE"
    columns, constraint = tuple([_column(key) for key in node.args.get("conflict_keys") or ()]), None
    if node.args.get("constraint") is not None:
        constraint = _name(node.args["constraint"])
    if updates and not columns and constraint is None:
        raise SyntaxFault(
            "ON CONFLICT DO UPDATE requires inference specification or constraint name",
            hint="For example, ON CONFLICT (column_name).",
        )
    where = node.args.get("where")
    _refuse_queries([*node.expressions, *([] if where is None else [where])])
    condition = None if where is None else Expression(where.this.copy(), where.this.sql(dialect=Headrace))
    assignments = assignments_of(node, statement) if updates else ()
    return Conflict(columns, constraint, updates, table, alias, assignments, condition, statement, offset)


def _column(key: exp.Expr) -> str:
    inner = key.this if isinstance(key, exp.Ordered) else key
    plain = isinstance(inner, exp.Column) and isinstance(inner.this, exp.Identifier) and not inner.table
    if not plain or (isinstance(key, exp.Ordered) and key.args.get("desc")):
        raise NotSupported(
            "ON CONFLICT by more than the names of columns is not supported",
            hint="Name the columns of the primary key.", position=position_of(key),
        )  # fmt: skip
    return _name(inner.this)


def _name(identifier: exp.Expr) -> str:
    return str(identifier.name if identifier.args.get("quoted") else identifier.name.lower())


def _refuse_queries(parts: Sequence[exp.Expr]) -> None:
    for part in parts:
        found = part.find(exp.Query)
        if found is not None:
            raise NotSupported(
                "a query in ON CONFLICT DO UPDATE is not supported",
                hint="Compute its value in the SELECT of the INSERT, and name it with EXCLUDED.",
                position=position_of(found),
            )
