"""INSERT, UPDATE and DELETE: the queries that compute what they change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from headrace.errors import DatatypeMismatch
from headrace.sql.binder import types as t
from headrace.sql.binder.bind import Binder, Known, reporting
from headrace.sql.binder.coerce import plain
from headrace.sql.binder.expressions import Expressions
from headrace.sql.binder.reading import NotBound, check, declare, inner, kind_of, refuse
from headrace.sql.binder.relations import Relations
from headrace.sql.binder.scope import Item, Scope, Wrong
from headrace.sql.binder.tree import Expr, Join, Output, Query, Relation, Select
from headrace.sql.binder.types import Type
from headrace.sql.postgres import Parsed

declare("UpdateStmt", "relation target_list where_clause from_clause returning_clause")
declare("DeleteStmt", "relation using_clause where_clause returning_clause")
declare("InsertStmt", "relation cols select_stmt on_conflict_clause returning_clause override")
declare("MultiAssignRef", "source colno ncolumns")


@dataclass(frozen=True)
class Change:
    """Which query of a statement is wanted: the rows to update or to delete, with these columns, or what is inserted.

    `text` is the statement's, with values in the place of parameters.
    """

    kind: Literal["update", "delete", "insert"]
    text: str
    columns: tuple[str, ...] = ()


def bind_change(parsed: Parsed, known: Known, change: Change) -> Query:
    """The query. For an update it has the old columns, then `__new_<column>` for each assignment."""
    binder = Binder(parsed, known)
    with reporting(binder, parsed):
        if change.kind == "insert":
            return binder.query(_statement(parsed, "InsertStmt").select_stmt, None)
        message = _statement(parsed, "UpdateStmt" if change.kind == "update" else "DeleteStmt")
        return _Changed(binder, change).query(message)


def _statement(parsed: Parsed, kind: str) -> Any:
    if kind_of(parsed.tree) != kind:
        raise NotBound("another statement than was expected")
    return inner(parsed.tree)


class _Changed:
    """The rows of a table that a statement changes."""

    def __init__(self, binder: Binder, change: Change):
        self._binder = binder
        self._change = change
        self._scope = Scope()

    def query(self, message: Any) -> Query:
        """The query of a statement."""
        relations = Relations(self._binder, self._scope)
        source, items = relations.table(check(message.relation))
        self._scope.items.extend(items)
        target = items[0]
        updates = self._change.kind == "update"
        others = relations.source(message.from_clause if updates else message.using_clause)
        whole: Relation = source if others is None else Join("CROSS JOIN", source, others, None)
        outputs = [Output(name, self._old(target, name)) for name in self._change.columns]
        if updates:
            outputs += self._assigned(message.target_list, target)
        where = None
        if message.HasField("where_clause"):
            where = Expressions(self._binder, self._scope, "WHERE").condition(message.where_clause, "WHERE")
        names, types = tuple(o.name for o in outputs), tuple(o.value.type for o in outputs)
        return Select(names, types, (), None, None, tuple(outputs), whole, where, (), "", None, False)

    def _old(self, target: Item, name: str) -> Expr:
        found = target.find(name)
        if len(found) != 1:
            raise NotBound(f"the column {name}")
        return found[0]

    def _assigned(self, nodes: Any, target: Item) -> list[Output]:
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

    def _value(self, item: Any, kind: Type) -> Expr:
        node = item.val
        if kind_of(node) == "MultiAssignRef":
            part = inner(node)
            if kind_of(part.source) != "RowExpr":
                refuse("SET (columns) = a query", part)
            node = inner(part.source).args[part.colno - 1]
        at = Expressions(self._binder, self._scope, "UPDATE")
        return stored(at, at.bind(node), kind, item.name, node)


def stored(at: Expressions, value: Expr, kind: Type, name: str, node: Any) -> Expr:
    """A value as an assignment to a column stores it. Raises `DatatypeMismatch`."""
    if kind.category == "?":
        raise NotBound(f"a value of {kind.spark}")
    if not t.can_cast(value.type, kind, "assignment"):
        raise DatatypeMismatch(
            f'column "{name}" is of type {kind} but expression is of type {value.type}',
            hint="You will need to rewrite or cast the expression.",
        )
    found = at.converted(value, kind, node, "assignment")
    return plain(found, kind) if kind.name == "numeric" and found.type != kind else found
