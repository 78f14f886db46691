"""The rules for grouping: accumulable aggregates, DISTINCT aggregates, and group recompute for the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.errors import NotSupported
from headrace.plan.accumulable import RULES
from headrace.plan.alike import Alike
from headrace.plan.catalyst import nodes
from headrace.plan.catalyst.bridge import Bridge
from headrace.plan.catalyst.expressions import Attribute, Expr, Named, named
from headrace.plan.catalyst.kinds import AggregateCall
from headrace.plan.distinct import plain_arguments, revealed
from headrace.plan.guards import apart, has_guard
from headrace.plan.python import check_aggregates
from headrace.plan.recompute import Regrouped, recompute
from headrace.plan.tree import Accumulation, Aggregate, Attr, DistinctValues, Operator
from headrace.plan.types import arrow_of

if TYPE_CHECKING:
    from headrace.plan.derive import Derivation


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
    accumulated: dict[int, Accumulation] = {}
    for i, call in functions.items():
        found = _accumulation(b, call, child.append_only, distincts, same)
        if found is None:
            return _recomputed(d, node, groups, results)
        accumulated[i] = found
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

    def replace(e: Expr) -> Expr | None:
        if e.kind == "AggregateExpression":
            call = same.number(e)
            function = functions[call].function
            return RULES[function.kind].result(b, function, accumulated[call])
        for g, attr in zip(groups, group_attrs):
            if e.does_as(g):
                return attr.handle
        return None

    if isinstance(expression, Attribute):
        replaced = replace(expression)
        if replaced is None or (isinstance(replaced, Attribute) and replaced.id == expression.id):
            return expression
        return b.alias(replaced, expression.name, expression)
    return named(expression.rewritten(replace))
