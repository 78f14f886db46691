"""Types that Spark has not: what computes with them, and what stands for a value where values are compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from headrace.common.jsonb import document
from headrace.common.jsonb.column_kernels import spark_name
from headrace.common.time_of_day import FIELD
from headrace.sql.binder import spans
from headrace.sql.binder import types as t
from headrace.sql.binder.bound_tree import (
    BoundAggregate,
    BoundColumn,
    Call,
    Constant,
    Expr,
    Nested,
    Over,
    SelectQuery,
    walk,
)
from headrace.sql.binder.scope import Item
from headrace.sql.binder.types import Type

_SURE: Final = frozenset(
    ("field", "element", "path", "field_text", "element_text", "path_text", "typeof", "pretty", "contains", "has",
     "has_any", "has_all", "concat", "strip_nulls", "canonical", "value", "array")
)  # fmt: skip
"""Kernels that never fail."""
GROUPING: Final = "grouping({0})"
"""What only `GROUPING` has in its form: it is about the expressions that are grouped by, not about values."""


def kernel(result: Type, name: str, arguments: Sequence[Expr]) -> Expr:
    """A call of a kernel; documents are given by their texts."""
    holes = ", ".join(
        f"{{{i}}}.{document.TEXT}" if a.type.name == "jsonb" else f"{{{i}}}" for i, a in enumerate(arguments)
    )
    call = f"{spark_name(result.name)}('{name}', {holes})"
    form = f"{call}.v"
    if name not in _SURE:
        raised = f"CAST(raise_error(`__k`.e) AS {result.spark})"
        form = f"transform(array({call}), `__k` -> CASE WHEN `__k`.e IS NOT NULL THEN {raised} ELSE `__k`.v END)[0]"
    return Call(result, form, tuple(arguments))


def calls_kernel(expr: Expr) -> bool:
    """Whether a kernel is called in it: Spark cannot do so for each element of an array."""
    return any(isinstance(part, Call) and "hr_jsonb_to_" in part.form for part in walk(expr))


def over_both(condition: Expr, items: Sequence[Item]) -> bool:
    """Whether a kernel is called over columns of both sides of a join; `items` are those of one side."""
    side = {
        c.relation for item in items for _, value in item.columns for c in walk(value) if isinstance(c, BoundColumn)
    }
    for part in walk(condition):
        if isinstance(part, Call) and "hr_jsonb_to_" in part.form:
            named = {c.relation in side for c in walk(part) if isinstance(c, BoundColumn)}
            if len(named) > 1:
                return True
    return False


def comparable(expr: Expr) -> Expr:
    """What is compared, and sorted by, in the place of a value."""
    if expr.type.name == "interval":
        return spans.total(expr)
    if expr.type.name == "time":
        return Call(t.INT8, f"{{0}}.{FIELD}", (expr,))
    if expr.type.name != "jsonb":
        return expr
    if isinstance(expr, Constant) and expr.text is not None:
        return Constant(t.BYTEA, "\\x" + document.key(document.read(expr.text)).hex())
    return Call(t.BYTEA, f"{{0}}.{document.KEY}", (expr,))


def sortable(expr: Expr) -> Expr:
    """What sorts for Spark as an array does in PostgreSQL: nulls among its elements are larger than all others."""
    return Call(Type("keys", "?", "?"), "transform({0}, `__o` -> struct(`__o` IS NULL, `__o`))", (expr,))


def canonical(expr: Expr) -> Expr:
    """The one value that stands for all that are equal to it."""
    if expr.type.name == "interval":
        return spans.canonical(expr)
    return kernel(t.JSONB, "canonical", (expr,)) if expr.type.name == "jsonb" else expr


def extreme(function: str, values: Sequence[Expr]) -> Expr:
    """`greatest` or `least` of values that are compared by something else; nulls do not count."""
    keys = [sortable(v) if v.type.is_array else comparable(v) for v in values]
    n = len(values)
    places = [n - i if function == "greatest" else i for i in range(n)]  # the first of equal ones
    pairs = [
        f"CASE WHEN {{{i}}} IS NOT NULL THEN named_struct('k', {{{n + i}}}, 'p', {place}, 'v', {{{i}}}) END"
        for i, place in enumerate(places)
    ]
    return Call(values[0].type, f"{function}({', '.join(pairs)}).v", (*values, *keys))


def one_of_equals(select: SelectQuery) -> SelectQuery:
    """The same query, in which one value stands for all that are equal to it where rows are told apart by it."""
    groups = {g: canonical(g) for g in select.groups if g.type.name in t.LOOSE}
    if groups:
        select = replace(
            select, groups=tuple(groups.get(g, g) for g in select.groups),
            outputs=tuple(replace(o, value=put(o.value, groups)) for o in select.outputs),
            having=None if select.having is None else put(select.having, groups),
            order=tuple(replace(k, value=put(k.value, groups)) for k in select.order),
        )  # fmt: skip
    if select.distinct and any(kind.name in t.LOOSE for kind in select.types):
        select = replace(select, outputs=tuple(replace(o, value=canonical(o.value)) for o in select.outputs))
    return select


def put(expr: Expr, found: Mapping[Expr, Expr]) -> Expr:
    """The expression with others in the place of those found, but not inside of aggregates."""
    if expr in found:
        return found[expr]
    if isinstance(expr, BoundAggregate) and GROUPING in expr.form:
        return replace(expr, arguments=tuple(found.get(a, a) for a in expr.arguments))
    if isinstance(expr, (Call, Nested)):
        return replace(expr, arguments=tuple(put(a, found) for a in expr.arguments))
    if isinstance(expr, Over):
        parts = tuple(put(p, found) for p in expr.partition)
        keys = tuple(replace(k, value=put(k.value, found)) for k in expr.order)
        return replace(expr, partition=parts, order=keys)
    return expr
