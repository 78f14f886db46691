"""INSERT, UPDATE and DELETE: the queries that compute what they change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from postgast import pg_query_pb2 as pb

from headrace.common.lazy_dataclass import dataclass
from headrace.common.zones import UTC, Zone
from headrace.errors import DatatypeMismatch, HeadraceError
from headrace.sql.binder import types as t
from headrace.sql.binder import zone_times
from headrace.sql.binder.bind import Binder, BindingContext, reporting
from headrace.sql.binder.bound_tree import (
    BoundColumn,
    Constant,
    Expr,
    JoinedRelation,
    Output,
    Query,
    Relation,
    Scan,
    SelectQuery,
    SetOperation,
    renamed,
)
from headrace.sql.binder.coerce import plain
from headrace.sql.binder.expression_binder import Expressions
from headrace.sql.binder.from_clause import Relations
from headrace.sql.binder.parse_tree import Nodes, NotBound, check, declare, inner, kind_of, refuse
from headrace.sql.binder.scope import Item, Scope, Wrong
from headrace.sql.binder.types import Type
from headrace.sql.postgres import ParsedStatement, parse_statement

declare("UpdateStmt", "relation target_list where_clause from_clause returning_clause")
declare("DeleteStmt", "relation using_clause where_clause returning_clause")
declare("InsertStmt", "relation cols select_stmt on_conflict_clause returning_clause override with_clause")
declare("OnConflictClause", "action infer target_list where_clause")
declare("MultiAssignRef", "source colno ncolumns")
declare("SetToDefault", "")
declare("ReturningClause", "exprs")


@dataclass(frozen=True)
class QueryWanted:
    """Which query of a statement is wanted.

    The rows to update or to delete, with these columns; what is inserted: a query's rows, or those of VALUES as these
    columns store them; what RETURNING shows of changed rows; or what rows become that an INSERT finds there.

    `text` is the statement's, with values in the place of parameters.
    """

    kind: Literal["update", "delete", "insert", "values", "returning", "conflict"]
    text: str
    columns: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    """Spark's types of the columns that rows of values, and parameters among what is inserted, are stored in."""
    defaults: tuple[tuple[str, str], ...] = ()
    """What `DEFAULT` stands for, by column."""
    zone: Zone = UTC
    """The zone in which these were declared."""


def bind_change(parsed: ParsedStatement, known: BindingContext, change: QueryWanted) -> Query:
    """The query. For an update it has the old columns, then `__new_<column>` for each assignment."""
    binder = Binder(parsed, known)
    with reporting(binder, parsed):
        return changed(binder, parsed, change)


def changed(binder: Binder, parsed: ParsedStatement, change: QueryWanted) -> Query:
    """The same by a binder, which then knows the types of the statement's parameters."""
    if change.kind == "insert":
        return _inserted(binder, parsed, change)
    if change.kind == "values":
        return _Rows(binder, change).query(_statement(parsed, "InsertStmt"))
    if change.kind == "conflict":
        return _Conflicting(binder, change).query(_statement(parsed, "InsertStmt"))
    if change.kind == "returning":
        return _returned(binder, _statement(parsed, "InsertStmt", "UpdateStmt", "DeleteStmt"))
    message = _statement(parsed, "UpdateStmt" if change.kind == "update" else "DeleteStmt")
    return _Changed(binder, change).query(message)


def _statement(parsed: ParsedStatement, *kinds: str) -> Any:
    if kind_of(parsed.tree) not in kinds:
        refuse("this statement")
    return inner(parsed.tree)


def _inserted(binder: Binder, parsed: ParsedStatement, change: QueryWanted) -> Query:
    message = _statement(parsed, "InsertStmt")
    scope = Scope()
    for target, spark in zip(inner(message.select_stmt).target_list, change.types, strict=False):
        if kind_of(inner(target).val) == "ParamRef":  # a parameter by itself is what its column is
            binder.parameters.setdefault(inner(target).val.param_ref.number, _kind(spark))
    if message.HasField("with_clause"):
        binder.with_clause(message.with_clause, scope)
    return binder.query(message.select_stmt, scope)


def _returned(binder: Binder, message: pb.InsertStmt | pb.UpdateStmt | pb.DeleteStmt) -> Query:
    """The rows of the table as RETURNING shows them."""
    scope = Scope()
    source, items = Relations(binder, scope).table(check(message.relation))
    scope.items.extend(items)
    outputs = tuple(binder.outputs(inner(message.returning_clause).exprs, Expressions(binder, scope, "RETURNING")))
    names, types = tuple(o.name for o in outputs), tuple(o.value.type for o in outputs)
    return SelectQuery(names, types, (), None, None, outputs, source, None, (), "", None, False)


class _Rows:
    """The rows of `INSERT ... VALUES`, as the columns store them."""

    def __init__(self, binder: Binder, change: QueryWanted):
        self._at = Expressions(binder, Scope(), "VALUES")
        self._binder = binder
        self._change = change
        self._kinds = [_kind(spark) for spark in change.types]

    def query(self, message: pb.InsertStmt) -> Query:
        """All rows."""
        rows = inner(message.select_stmt).values_lists
        return self._united([self._row(inner(row).items) for row in rows])

    def _row(self, cells: Nodes) -> SelectQuery:
        if len(cells) > len(self._kinds):
            raise Wrong("INSERT has more expressions than target columns", "42601", None)
        outputs = tuple(Output(f"column{i + 1}", self._cell(cell, i)) for i, cell in enumerate(cells))
        types = tuple(o.value.type for o in outputs)
        return SelectQuery(
            tuple(o.name for o in outputs), types, (), None, None, outputs, None, None, (), "", None, False
        )

    def _cell(self, node: pb.Node, at: int) -> Expr:
        name, kind = self._change.columns[at], self._kinds[at]
        if kind_of(node) == "SetToDefault":
            return default_of(self._binder, dict(self._change.defaults).get(name), kind, name, self._change.zone)
        return stored(self._at, self._at.bind(node), kind, name, node)

    def _united(self, rows: list[SelectQuery]) -> Query:
        """All of them, as a tree that is not deep."""
        if len(rows) == 1:
            return rows[0]
        if len({len(row.names) for row in rows}) > 1:
            raise Wrong("VALUES lists must all be the same length", "42601", None)
        left, right = self._united(rows[: len(rows) // 2]), self._united(rows[len(rows) // 2 :])
        return SetOperation(left.names, left.types, (), None, None, "UNION ALL", left, right)


def _kind(spark: str) -> Type:
    return t.of_spark(spark) or Type("?", spark, "?")


def default_of(binder: Binder, text: str | None, kind: Type, name: str, zone: Zone) -> Expr:
    """What DEFAULT stands for: the expression that a column was declared with, in the zone of who did."""
    if text is None:
        return Constant(kind, None)
    found = parse_statement(f"SELECT {text}").tree
    if len(found.select_stmt.target_list) != 1:
        raise NotBound("this DEFAULT")
    node = inner(inner(found).target_list[0]).val
    at = Expressions(binder, Scope(), "DEFAULT expressions")
    try:
        with zone_times.within(zone):
            return stored(at, at.bind(node), kind, name, node)
    except HeadraceError as error:
        error.position = None  # it is one in another text
        raise
    except NotBound as unknown:
        raise NotBound(unknown.what) from None


class _Changed:
    """The rows of a table that a statement changes."""

    def __init__(self, binder: Binder, change: QueryWanted):
        self._binder = binder
        self._change = change
        self._scope = Scope()

    def query(self, message: pb.UpdateStmt | pb.DeleteStmt) -> Query:
        """The query of a statement."""
        relations = Relations(self._binder, self._scope)
        source, items = relations.table(check(message.relation))
        self._scope.items.extend(items)
        target = items[0]
        others = relations.source(message.from_clause if isinstance(message, pb.UpdateStmt) else message.using_clause)
        whole: Relation = source if others is None else JoinedRelation("CROSS JOIN", source, others, None)
        outputs = [Output(name, self._old(target, name)) for name in self._change.columns]
        if isinstance(message, pb.UpdateStmt):
            outputs += self._assigned(message.target_list, target)
        where = None
        if message.HasField("where_clause"):
            where = Expressions(self._binder, self._scope, "WHERE").condition(message.where_clause, "WHERE")
        names, types = tuple(o.name for o in outputs), tuple(o.value.type for o in outputs)
        return SelectQuery(names, types, (), None, None, tuple(outputs), whole, where, (), "", None, False)

    def _old(self, target: Item, name: str) -> Expr:
        found = target.find(name)
        if len(found) != 1:
            raise NotBound(f"the column {name}")
        return found[0]

    def _assigned(self, nodes: Nodes, target: Item) -> list[Output]:
        outputs: list[Output] = []
        for node in nodes:
            item = inner(node)
            found = target.find(item.name)
            if not found:
                raise Wrong(f'column "{item.name}" of relation "{target.name}" does not exist', "42703", item.location)
            if any(o.name == f"__new_{item.name}" for o in outputs):
                raise Wrong(f'multiple assignments to same column "{item.name}"', "42601", item.location)
            outputs.append(Output(f"__new_{item.name}", self._value(item, found[0].type)))
        return outputs

    def _value(self, item: pb.ResTarget, kind: Type) -> Expr:
        node = item.val
        if kind_of(node) == "MultiAssignRef":
            part = inner(node)
            if kind_of(part.source) != "RowExpr":
                refuse("SET (columns) = a query", part)
            node = inner(part.source).args[part.colno - 1]
        if kind_of(node) == "SetToDefault":
            text = dict(self._change.defaults).get(item.name)
            return default_of(self._binder, text, kind, item.name, self._change.zone)
        at = Expressions(self._binder, self._scope, "UPDATE")
        return stored(at, at.bind(node), kind, item.name, node)


class _Conflicting(_Changed):
    """What the rows become that an INSERT finds there: for those that WHERE lets through, their number, then the values
    that are assigned.

    They come as pairs of the row that is there, in columns `o0`, `o1`, ..., and the one that was to be inserted, `e0`,
    ..., with a number `n`, under the name of the table.
    """

    def query(self, message: pb.InsertStmt) -> Query:
        clause = message.on_conflict_clause
        source, (item,) = Relations(self._binder, self._scope).table(check(message.relation))
        assert isinstance(source, Scan)
        if item.name == "excluded":
            raise Wrong('table name "excluded" specified more than once', "42712", message.relation.location)
        target = replace(item, columns=_numbered(item, "o"))
        excluded = Item("excluded", None, _numbered(item, "e"))
        self._scope.items.extend((target, excluded))
        number = BoundColumn(t.INT8, source.id, "n", "n")
        outputs = [Output("n", number), *self._assigned(clause.target_list, target)]
        where = None
        if clause.HasField("where_clause"):
            where = Expressions(self._binder, self._scope, "WHERE").condition(clause.where_clause, "WHERE")
        names, types = tuple(o.name for o in outputs), tuple(o.value.type for o in outputs)
        return SelectQuery(names, types, (), None, None, tuple(outputs), source, where, (), "", None, False)


def _numbered(item: Item, letter: str) -> tuple[tuple[str, Expr], ...]:
    """The columns of a relation, called by their numbers."""
    return tuple((name, renamed(column, f"{letter}{i}")) for i, (name, column) in enumerate(item.columns))


def stored(at: Expressions, value: Expr, kind: Type, name: str, node: pb.Node) -> Expr:
    """A value as an assignment to a column stores it. Raises `DatatypeMismatch`."""
    if kind.category == "?" or kind.name == "record":
        if value.type.spark == kind.spark:
            return value
        raise NotBound(f"a value for a column of {kind.spark}")
    if not t.can_cast(value.type, kind, "assignment"):
        raise DatatypeMismatch(
            f'column "{name}" is of type {kind} but expression is of type {value.type}',
            hint="You will need to rewrite or cast the expression.",
        )
    found = at.converted(value, kind, node, "assignment")
    return plain(found, kind) if kind.name == "numeric" and found.type != kind else found
