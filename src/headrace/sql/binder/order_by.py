"""ORDER BY, LIMIT and OFFSET of a query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from postgast import pg_query_pb2 as pb

from headrace.sql.binder import types as t
from headrace.sql.binder.bound_tree import BoundColumn, Constant, Expr, Output, Parameter, SortKey, walk
from headrace.sql.binder.call_binder import sort_key
from headrace.sql.binder.coerce import coerce
from headrace.sql.binder.group_by import numbered
from headrace.sql.binder.parse_tree import Nodes, inner, kind_of, refuse
from headrace.sql.binder.scope import Scope, Wrong

if TYPE_CHECKING:
    from headrace.sql.binder.bind import Binder
    from headrace.sql.binder.expression_binder import Expressions


def order_keys(
    binder: Binder, clause: Nodes, outputs: Sequence[Output], at: Expressions | None, distinct: bool
) -> tuple[SortKey, ...]:  # fmt: skip
    """The keys of an ORDER BY; without `at` only names and numbers of outputs can be meant."""
    found = []
    for item in clause:
        node = inner(item).node
        value, number = _meant(node, outputs, at)
        if number is None and distinct:
            message = "for SELECT DISTINCT, ORDER BY expressions must appear in select list"
            raise Wrong(message, "42P10", inner(item).location)
        if at is None and value.type.name in t.LOOSE and len(clause) > 1:
            refuse(f"an order by {value.type} and more over a set operation", node)
        found.append(sort_key(value, item, number, distinct or at is None))
    return tuple(found)


def _meant(node: pb.Node, outputs: Sequence[Output], at: Expressions | None) -> tuple[Expr, int | None]:
    if kind_of(node) == "A_Const":
        constant = inner(node)
        if constant.WhichOneof("val") != "ival":
            raise Wrong("non-integer constant in ORDER BY", "42601", constant.location)
        number = constant.ival.ival
        return numbered(outputs, number, "ORDER BY", constant.location), number
    if kind_of(node) == "ColumnRef" and len(node.column_ref.fields) == 1:
        column = inner(node)
        name = column.fields[0].string.sval if kind_of(column.fields[0]) == "String" else None
        matches = {o.value: i + 1 for i, o in reversed(list(enumerate(outputs))) if o.name == name}
        if len(matches) > 1:
            raise Wrong(f'ORDER BY "{name}" is ambiguous', "42702", column.location)
        if matches:
            return next(iter(matches.items()))
    if at is None:
        refuse("ORDER BY of an expression over a set operation", node)
    value = at.known(node)
    number = next((i + 1 for i, o in enumerate(outputs) if o.value == value), None)
    return value, number


def bound_limit(binder: Binder, message: pb.SelectStmt) -> tuple[Expr | None, Expr | None]:
    """LIMIT and OFFSET."""
    plain = message.op == pb.SETOP_NONE and not message.values_lists
    if message.limit_option == pb.LIMIT_OPTION_WITH_TIES and not plain:
        refuse("WITH TIES", message)
    limit = _count(binder, message.limit_count, "LIMIT") if message.HasField("limit_count") else None
    offset = _count(binder, message.limit_offset, "OFFSET") if message.HasField("limit_offset") else None
    return limit, offset


def _count(binder: Binder, node: pb.Node, clause: str) -> Expr | None:
    from headrace.sql.binder.expression_binder import Expressions

    found = Expressions(binder, Scope(), clause).bind(node)
    if any(isinstance(part, BoundColumn) for part in walk(found)):
        refuse(f"a column in {clause}", node)
    if isinstance(found, Constant) and found.text is None:
        return None
    value = coerce(found, t.INT8, "assignment")
    if isinstance(value, Constant) and value.text is not None and int(value.text) > 2**31 - 1:
        refuse(f"{clause} of so many rows", node)
    if isinstance(found, Parameter):
        return value
    if not isinstance(found, Constant):
        refuse(f"an expression in {clause}", node)
    if isinstance(value, Constant) and value.text is not None and value.text.startswith("-"):
        raise Wrong(f"{clause} must not be negative", "2201W" if clause == "LIMIT" else "2201X", None)
    return value
