"""Grouping: accumulable aggregates, DISTINCT aggregates, and group recompute for the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.common.lazy_dataclass import dataclass
from headrace.errors import NotSupported
from headrace.plan.accumulable import RULES, Accumulation
from headrace.plan.alike import Alike
from headrace.plan.border_types import arrow_of
from headrace.plan.catalyst import nodes
from headrace.plan.catalyst.bridge import Bridge
from headrace.plan.catalyst.expressions import Attribute, Expr, Named, named
from headrace.plan.catalyst.kinds import AggregateCall
from headrace.plan.distinct import plain_arguments, revealed
from headrace.plan.guards import apart, has_guard
from headrace.plan.mark_rules import MarkReader, Marks
from headrace.plan.python import check_aggregates
from headrace.plan.recompute import Regrouped, recompute
from headrace.plan.tree import WEIGHT, Attr, Operator, attr_arrow
from headrace.state.schema import Combine, TableSchema

if TYPE_CHECKING:
    from headrace.plan.derive import Derivation


@dataclass
class DistinctValues:
    """Values that are counted once in each group: of one or more columns; where one is NULL, none counts.

    For each aggregate over them those values count that are in a row which passes its filter.
    """

    arguments: Sequence[Expr]
    types: list[pa.DataType]
    filters: list[Expr | None] = field(default_factory=list)
    """The different filters of the aggregates, None for that of those without one."""

    def weight(self, i: int) -> str:
        """The diff column that tells how many rows with a value pass filter `i`; `__w` is of those that pass any."""
        return "__w" if len(self.filters) == 1 or self.filters[i] is None else f"w{i}"

    @property
    def weights(self) -> dict[str, int]:
        """The diff columns of filters that have one beside `__w`, and the filters."""
        return {name: i for i in range(len(self.filters)) if (name := self.weight(i)) != "__w"}


@dataclass
class Aggregate(Operator):
    """Grouping with accumulable aggregates; without aggregates it is DISTINCT. One look-up per changed group."""

    groups: Sequence[Expr]
    group_attrs: list[Attr]
    accumulators: list[Accumulation]
    results: Sequence[Named]
    text: str
    distincts: list[DistinctValues] = field(default_factory=list)
    kind = "aggregate"

    @property
    def is_global(self) -> bool:
        """No GROUP BY: exactly one row, always."""
        return not self.groups

    @property
    def by_value(self) -> bool:
        """Whether values are counted once before groups come together; not where groups keep all their rows' values."""
        return bool(self.distincts) and not any(a.in_order for a in self.accumulators)

    def detail(self) -> str:
        return self.text

    def distribution(self) -> str | None:
        groups = ", ".join(a.name for a in self.group_attrs) or "(one group)"
        return f"distinct values, then {groups}" if self.by_value else groups

    def tables(self) -> dict[str, TableSchema]:
        diffs = list(WEIGHT)
        for i, a in enumerate(self.accumulators):
            diffs += a.accumulator.diffs(f"a{i}")
        key = tuple(pa.field(f"g{i}", attr_arrow(a)) for i, a in enumerate(self.group_attrs))
        tables = {"groups": TableSchema(key=key, value=(), diffs=tuple(diffs))}
        for i, a in enumerate(self.accumulators):
            if a.in_order:
                tables[f"ordered{i}"] = TableSchema(key, (pa.field("v", a.accumulator.argument),), WEIGHT)
        for i, d in enumerate(self.distincts):
            values = tuple(pa.field(f"v{n}", t) for n, t in enumerate(d.types))
            weights: list[tuple[pa.Field, Combine]] = [(pa.field(name, pa.int64()), "add") for name in d.weights]
            tables[f"distinct{i}"] = TableSchema((*key, *values), (), (*WEIGHT, *weights))
        return tables

    def marks(self, below: Sequence[Marks], watermarks: Mapping[int, str]) -> Marks:
        reader = MarkReader(below[0])
        keys: Marks = {}
        for i, (group, attr) in enumerate(zip(self.groups, self.group_attrs, strict=True)):
            found = reader.marks_of(group, attr.id)
            keys |= found
            for place, mark in found.items():
                column = f"g{i}" if isinstance(place, int) else f"g{i}.{attr_arrow(attr).field(place[1]).name}"
                for name in self.state() if not self.expires else ():
                    self.expire(name, column, mark)
        return MarkReader(keys).marks_of_all(self.results)


def derive_aggregate(d: Derivation, node: nodes.Aggregate, needed: set[int]) -> Operator:
    """Grouping by any keys."""
    b = d.bridge
    groups = node.groups
    if any(isinstance(g, Attribute) and g.is_session_window for g in groups):
        raise NotSupported(
            "session_window in a view", hint="group by window_start and window_end of SESSION(relation, time, gap, key)"
        )
    # What guards compute with must be there before: that a sum does not fit its type is no failure of a row.
    if parts := apart(b, node, has_guard):
        return d.derive(parts[0], needed)
    results = [e for e in node.results if e.id in needed]
    same = Alike()
    functions = _functions(results, same)
    check_aggregates([f.function for f in functions.values()])
    child_node = node.child
    child = d.derive(
        child_node, d.references([*groups, *functions.values(), *results]) & {a.id for a in child_node.output}
    )
    distincts: dict[tuple[int, ...], DistinctValues] = {}
    # All are tried before any is given up, so that what is refused does not depend on the order of the columns.
    tried = {i: _accumulation(b, call, child.append_only, distincts, same) for i, call in functions.items()}
    accumulated = {i: found for i, found in tried.items() if found is not None}
    if len(accumulated) < len(tried):
        return _recomputed(d, node, groups, results)
    group_attrs = _group_attrs(d, groups)
    rewritten = [_result(b, e, groups, group_attrs, accumulated, functions, same) for e in results]
    distinct = child.append_only and not functions
    shown = [revealed(b, e).text for e in results]
    text = f"by [{', '.join(g.text for g in groups)}] [{', '.join(shown)}]"
    output = d.attrs([e.attribute for e in results])
    sums, values = list(accumulated.values()), list(distincts.values())
    return Aggregate(output, distinct and bool(groups), [child], groups, group_attrs, sums, rewritten, text, values)


def _functions(results: Sequence[Expr], same: Alike) -> dict[int, AggregateCall]:
    """The aggregate calls in the results, each once, by their numbers."""
    return {same.number(e): e for r in results for e in r.every(AggregateCall)}


def _recomputed(d: Derivation, node: nodes.Aggregate, groups: Sequence[Expr], given: Sequence[Named]) -> Operator:
    results = [named(revealed(d.bridge, e)) for e in given]
    node = d.bridge.aggregate(groups, results, node.child)
    needed = d.references([*groups, *results])
    return recompute(Regrouped, d, node, groups, needed, d.attrs([e.attribute for e in results]))


def _group_attrs(d: Derivation, groups: Sequence[Expr]) -> list[Attr]:
    """One attribute for each grouping expression: itself where it is one, and safe to compare as it is."""
    b = d.bridge
    handles: list[Attribute] = []
    for i, g in enumerate(groups):
        normal = b.normalized(g)
        plain = isinstance(g, Attribute) and normal.equals(g)
        handles.append(g if isinstance(g, Attribute) and plain else b.alias(normal, f"group{i}").attribute)
    return d.attrs(handles)


def _accumulation(
    b: Bridge, call: AggregateCall, append_only: bool, distincts: dict[tuple[int, ...], DistinctValues], same: Alike
) -> Accumulation | None:
    """How an aggregate call accumulates, or None where only a recomputation is exact.

    Adds to `distincts` the values that the call wants counted once, if there is not the like yet.
    """
    rule = RULES.get(call.function.kind)
    if rule is None:
        return None
    arguments = None if rule.ignores_distinct else plain_arguments(call)
    if arguments is None:
        return rule.of_rows(b, call, append_only)
    found = rule.of_values(b, call.function, arguments)
    return None if found is None else _over_distinct(b, call, *found, distincts, same)


def _over_distinct(
    b: Bridge,
    call: AggregateCall,
    found: Accumulation,
    given: Sequence[Expr],
    distincts: dict[tuple[int, ...], DistinctValues],
    same: Alike,
) -> Accumulation | None:
    """A DISTINCT aggregate: its value is read from those that are counted once, its filter is theirs."""
    values = [b.normalized(v) for v in given]
    types = [arrow_of(v) for v in values]
    if any(pa.types.is_null(t) for t in types) or any(v.is_collated for v in values):
        return None
    key = tuple(same.number(v) for v in values)
    wanted = distincts.setdefault(key, DistinctValues(values, types))
    return replace(found, distinct=list(distincts).index(key), filter=_filter(call, wanted.filters, same))


def _filter(call: AggregateCall, filters: list[Expr | None], same: Alike) -> int:
    """Where the call's filter is among the others; it is added if it is not there yet."""
    condition = call.filter
    known = [None if f is None else same.number(f) for f in filters]
    wanted = None if condition is None else same.number(condition)
    if wanted not in known:
        filters.append(condition)
        known.append(wanted)
    return known.index(wanted)


def _result(
    b: Bridge,
    expression: Named,
    groups: Sequence[Expr],
    group_attrs: list[Attr],
    accumulated: Mapping[int, Accumulation],
    functions: Mapping[int, AggregateCall],
    same: Alike,
) -> Named:
    """The result expression over what the operator puts out."""

    def replaced(e: Expr) -> Expr | None:
        if e.kind == "AggregateExpression":
            call = same.number(e)
            function = functions[call].function
            return RULES[function.kind].result(b, function, accumulated[call])
        for g, attr in zip(groups, group_attrs):
            if e.does_as(g):
                return attr.handle
        return None

    if isinstance(expression, Attribute):
        found = replaced(expression)
        if found is None or (isinstance(found, Attribute) and found.id == expression.id):
            return expression
        return b.alias(found, expression.name, expression)
    return named(expression.rewritten(replaced))
