"""DISTINCT ON and WITH TIES: the rows that come first, found by their rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.sql.binder import types as t
from headrace.sql.binder.bound_tree import (
    BoundAggregate,
    BoundColumn,
    Call,
    Constant,
    Derived,
    Expr,
    Output,
    Over,
    Query,
    SelectQuery,
    SortKey,
)  # fmt: skip
from headrace.sql.binder.from_clause import unique_names
from headrace.sql.binder.parse_tree import refuse

if TYPE_CHECKING:
    from headrace.sql.binder.bind import Binder


def first_of_each(binder: Binder, select: SelectQuery, keys: Sequence[Expr]) -> Query:
    """`DISTINCT ON (keys)`: the first row of each, in the order given."""
    order = select.order or tuple(SortKey(key, False, False) for key in keys)
    first = _over("row_number", tuple(keys), order)
    return _ranked(binder, select, first, Constant(t.INT4, "1"))


def with_ties(binder: Binder, select: Query) -> Query:
    """`FETCH FIRST n ROWS WITH TIES`."""
    if not isinstance(select, SelectQuery) or select.distinct or select.offset is not None or select.limit is None:
        refuse("WITH TIES here")
    return _ranked(binder, replace(select, limit=None), _over("rank", (), select.order), _whole(select.limit))


def _whole(limit: Expr) -> Expr:
    assert isinstance(limit, Constant)
    return Constant(t.INT4, limit.text)


def _over(function: str, partition: tuple[Expr, ...], order: tuple[SortKey, ...]) -> Expr:
    return Over(t.INT4, BoundAggregate(t.INT4, f"{function}() {{w}}", (), False, (), None), partition, order, "")


def _ranked(binder: Binder, select: SelectQuery, rank: Expr, most: Expr) -> Query:
    """The rows of a query whose rank is at most so much; its order, limit and offset come after."""
    names = unique_names([*select.names, "__rank", *(f"__k{i}" for i in range(len(select.order)))])
    count = len(select.names)
    keys = [Output("", key.value) for key in select.order]
    inner = replace(
        select, outputs=(*select.outputs, Output("", rank), *keys), names=names, order=(), limit=None, offset=None,
        types=(*select.types, rank.type, *(k.value.type for k in keys)),
    )  # fmt: skip
    number = binder.next_id()
    columns = [BoundColumn(k, number, n, n) for k, n in zip(inner.types, names, strict=True)]
    order = tuple(replace(key, value=columns[count + 1 + i], output=None) for i, key in enumerate(select.order))
    first = isinstance(most, Constant) and most.text == "1"
    where = Call(t.BOOL, "({0} = {1})" if first else "({0} <= {1})", (columns[count], most))
    outputs = tuple(Output(n, c) for n, c in zip(select.names, columns, strict=False))
    return SelectQuery(
        select.names, select.types, order, select.limit, select.offset, outputs, Derived(number, inner, names, False),
        where, (), "", None, False,
    )  # fmt: skip
