"""The total of a grouped query: PostgreSQL has a row for the empty grouping set even if there are no rows at all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from postgast import pg_query_pb2 as pb

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
    SetOperation,
    SortKey,
    walk,
)  # fmt: skip
from headrace.sql.binder.from_clause import unique_names
from headrace.sql.binder.own import GROUPING, put
from headrace.sql.binder.parse_tree import Nodes, kind_of, refuse

if TYPE_CHECKING:
    from headrace.sql.binder.bind import Binder


def has_total(clause: Nodes) -> bool:
    """Whether the empty set is among those that a GROUP BY makes: each of its parts has to have it."""
    count = math.prod(map(_empty_sets, clause)) if clause else 0
    if count > 1:
        refuse("grouping sets with several totals", clause[0])
    return count == 1


def _empty_sets(node: pb.Node) -> int:
    if kind_of(node) != "GroupingSet":
        return 0
    found = node.grouping_set
    if found.kind == pb.GROUPING_SET_SETS:
        return sum(map(_empty_sets, found.content))
    return int(found.kind in (pb.GROUPING_SET_EMPTY, pb.GROUPING_SET_ROLLUP, pb.GROUPING_SET_CUBE))


def with_total(binder: Binder, select: SelectQuery) -> Query:
    """The groups of a query, and the total of no rows where there are none: of that, Spark makes no group."""
    parts = [p for e in (*(o.value for o in select.outputs), *(k.value for k in select.order)) for p in walk(e)]
    if any(isinstance(part, Over) for part in parts):
        refuse("a window function over grouping sets with a total")
    keys = tuple(Output("", key.value) for key in select.order if key.output is None)
    names = unique_names([*select.names, *(f"__k{i}" for i in range(len(keys)))])
    groups = replace(
        select, outputs=(*select.outputs, *keys), names=names, types=(*select.types, *(k.value.type for k in keys)),
        order=(), limit=None, offset=None, distinct=False,
    )  # fmt: skip
    both = SetOperation(names, groups.types, (), None, None, "UNION ALL", groups, _total(groups))
    number = binder.next_id()
    columns = [BoundColumn(k, number, n, n) for n, k in zip(names, groups.types, strict=True)]
    outputs = tuple(Output(n, c) for n, c in zip(select.names, columns, strict=False))
    source = Derived(number, both, names, False)
    return SelectQuery(
        select.names, select.types, _order(select, columns), select.limit, select.offset, outputs, source, None, (), "",
        None, select.distinct,
    )  # fmt: skip


def _order(select: SelectQuery, columns: Sequence[BoundColumn]) -> tuple[SortKey, ...]:
    """The same order by the columns that the keys have become."""
    behind = iter(columns[len(select.names) :])
    return tuple(
        replace(key, value=next(behind)) if key.output is None else replace(key, value=columns[key.output - 1])
        for key in select.order
    )


def _total(select: SelectQuery) -> SelectQuery:
    """The aggregates over all rows, if there are none."""
    found: dict[Expr, Expr] = {group: Constant(group.type, None) for group in select.groups}
    having = () if select.having is None else (select.having,)
    for value in (*(o.value for o in select.outputs), *having):
        for part in walk(value):
            if isinstance(part, BoundAggregate) and GROUPING in part.form:
                found[part] = Constant(t.INT4, str(2 ** len(part.arguments) - 1))
    count = BoundAggregate(t.INT8, "count(1)", (), False, (), None)
    empty: Expr = Call(t.BOOL, "({0} = 0)", (count,))
    if select.having is not None:
        empty = Call(t.BOOL, "({0} AND {1})", (empty, put(select.having, found)))
    outputs = tuple(replace(o, value=put(o.value, found)) for o in select.outputs)
    return replace(select, outputs=outputs, groups=(), grouping="", having=empty)
