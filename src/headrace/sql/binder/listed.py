"""The rows of a query as one list: `ARRAY(query)`, and comparisons with all of its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.sql.binder import types as t
from headrace.sql.binder.bound_tree import (
    BoundAggregate,
    BoundColumn,
    Call,
    Derived,
    Expr,
    Nested,
    Output,
    Query,
    SelectQuery,
    SortKey,
)
from headrace.sql.binder.parse_tree import NotBound

if TYPE_CHECKING:
    from headrace.sql.binder.bind import Binder


def array_of_query(binder: Binder, query: Query) -> Expr:
    """`ARRAY(query)`: its values in its order, an empty array if there are none."""
    kind = query.types[0]
    if kind.is_array or kind.category == "?":
        raise NotBound("an array of such values")
    ordered, keys = _with_keys(query)
    number = binder.next_id()
    names = ("v", *(f"k{i}" for i in range(len(keys))))
    columns = [BoundColumn(k, number, n, n) for n, k in zip(names, ordered.types, strict=True)]
    order = tuple(SortKey(c, key.descending, key.nulls_first) for c, key in zip(columns[1:], keys, strict=True))
    value = BoundAggregate(t.array_of(kind), "list", (columns[0],), False, order, None)
    return Nested(value.type, "({q})", _selected(value, Derived(number, ordered, names, False)), ())


def over_rows(binder: Binder, query: Query, compare: Callable[[Sequence[Expr]], Expr], any_of: bool) -> Expr:
    """Whether a comparison holds for any row of a query, or for all of them; null where a null leaves it open."""
    first, second = binder.next_id(), binder.next_id()
    names = tuple(f"c{i}" for i in range(len(query.types)))
    columns = [BoundColumn(k, first, n, n) for n, k in zip(names, query.types, strict=True)]
    compared = _selected(compare(columns), Derived(first, query, names, False))
    value = BoundColumn(t.BOOL, second, "v", "v")
    extreme = BoundAggregate(t.BOOL, "bool_or({0})" if any_of else "bool_and({0})", (value,), False, (), None)
    unknown = BoundAggregate(t.INT8, "count_if({0} IS NULL)", (value,), False, (), None)
    decided = "{0}" if any_of else "NOT {0}"
    form = f"CASE WHEN {decided} THEN {any_of} WHEN {{1}} > 0 THEN NULL ELSE {not any_of} END"
    whole = _selected(Call(t.BOOL, form.upper(), (extreme, unknown)), Derived(second, compared, ("v",), False))
    return Nested(t.BOOL, "({q})", whole, ())


def _with_keys(query: Query) -> tuple[Query, tuple[SortKey, ...]]:
    """The query with its sort keys as further columns."""
    if not query.order:
        return query, ()
    if not isinstance(query, SelectQuery) or query.distinct:
        raise NotBound("ARRAY of this ordered query")
    keys = [Output(f"k{i}", key.value) for i, key in enumerate(query.order)]
    return replace(
        query, outputs=(*query.outputs, *keys), names=(*query.names, *(k.name for k in keys)),
        types=(*query.types, *(k.value.type for k in keys)),
    ), query.order  # fmt: skip


def _selected(value: Expr, source: Derived) -> SelectQuery:
    return SelectQuery(("v",), (value.type,), (), None, None, (Output("v", value),), source, None, (), "", None, False)
