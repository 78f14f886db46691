"""Arrays: what `ARRAY[...]` makes, and parts of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.sql.binder import types as t
from headrace.sql.binder.bound_tree import Call, Constant, Expr
from headrace.sql.binder.coerce import common_type
from headrace.sql.binder.parse_tree import Message, refuse
from headrace.sql.binder.scope import Wrong
from headrace.sql.binder.types import Type

if TYPE_CHECKING:
    from postgast import pg_query_pb2 as pb

    from headrace.sql.binder.expression_binder import Expressions


def array(at: Expressions, message: pb.A_ArrayExpr, target: Type | None = None) -> Expr:
    """`ARRAY[...]`, as the type of a cast around it."""
    items = [at.bind(e) for e in message.elements]
    if any(i.type.is_array for i in items):
        refuse("an array of arrays", message)
    if not items and target is None:
        hint = "Explicitly cast to the desired type, for example ARRAY[]::integer[]."
        raise Wrong("cannot determine type of empty array", "42P18", message.location, hint)
    element = target.element if target is not None else common_type(items, "ARRAY")
    assert element is not None
    context: t.Context = "explicit" if target is not None else "implicit"
    values = tuple(at.converted(i, element, message, context) for i in items)
    kind = t.array_of(values[0].type if values and element.name == "numeric" and len(values) == 1 else element)
    holes = ", ".join(f"CAST({{{i}}} AS {element.spark})" if element.name == "numeric" else f"{{{i}}}"
                      for i in range(len(values)))  # fmt: skip
    kind = t.array_of(element)
    return Call(kind, f"CAST(array({holes}) AS {kind.spark})", values)


def part_of(at: Expressions, found: Expr, part: pb.A_Indices, message: Message) -> Expr:
    """`a[low:high]`, each of them left out for the array's own bound."""
    low: Expr = Constant(t.INT4, "1")
    if part.HasField("lidx"):
        low = at.converted(at.bind(part.lidx), t.INT4, message)
    high: Expr = Call(t.INT4, "size({0})", (found,))
    if part.HasField("uidx"):
        high = at.converted(at.bind(part.uidx), t.INT4, message)
    form = (
        "CASE WHEN {1} IS NOT NULL AND {2} IS NOT NULL THEN "
        "slice({0}, greatest({1}, 1), greatest(least({2}, size({0})) - greatest({1}, 1) + 1, 0)) END"
    )
    return Call(found.type, form, (found, low, high))
