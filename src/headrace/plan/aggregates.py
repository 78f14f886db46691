"""The rules for grouping: accumulable aggregates, DISTINCT aggregates, and group recompute for the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.errors import NotSupported
from headrace.plan.alike import Alike
from headrace.plan.catalyst import nodes
from headrace.plan.catalyst.bridge import Bridge
from headrace.plan.catalyst.expressions import Attribute, Expr, Named, named
from headrace.plan.catalyst.kinds import AggregateCall, AggregateFunction
from headrace.plan.catalyst.plans import mapped
from headrace.plan.distinct import plain_arguments, revealed
from headrace.plan.guards import apart, has_guard
from headrace.plan.python import check_aggregates
from headrace.plan.recompute import Regrouped, recompute
from headrace.plan.tree import Accumulator, Aggregate, Attr, DistinctValues, Operator
from headrace.plan.types import arrow_of

if TYPE_CHECKING:
    from headrace.plan.derive import Derivation

_SUMS = ("Sum", "Average")
_SMALL = (pa.int8(), pa.int16(), pa.int32())
_BITWISE = {"BitAndAgg": "bit_and", "BitOrAgg": "bit_or", "BitXorAgg": "bit_xor"}


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
    accumulators = {i: _accumulator(b, f, child.append_only, distincts, same) for i, f in functions.items()}
    if any(a is None for a in accumulators.values()):
        return _recomputed(d, node, groups, results)
    group_attrs = _group_attrs(d, groups)
    rewritten = [
        _result(b, e, groups, group_attrs, {i: a for i, a in accumulators.items() if a is not None}, functions, same)
        for e in results
    ]
    distinct = child.append_only and not functions
    shown = [revealed(b, e).text for e in results]
    text = f"by [{', '.join(g.text for g in groups)}] [{', '.join(shown)}]"
    output = d.attrs([e.attribute for e in results])
    found = [a for a in accumulators.values() if a is not None]
    values = list(distincts.values())
    return Aggregate(output, distinct and bool(groups), [child], groups, group_attrs, found, rewritten, text, values)


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


def _accumulator(
    b: Bridge, call: AggregateCall, append_only: bool, distincts: dict[tuple[int, ...], DistinctValues], same: Alike
) -> Accumulator | None:
    """How an aggregate call accumulates, or None where only a recomputation is exact.

    Adds to `distincts` the values that the call wants counted once, if there is not the like yet.
    """
    function = call.function
    name = function.kind
    if name in ("Min", "Max", "First"):
        return _extremum(b, call, name, append_only)
    arguments = plain_arguments(call)
    if arguments is not None:
        return _over_distinct(b, call, arguments, distincts, same)
    if name == "Count":
        counted = b.filtered(call, b.all_not_null(function.children))
        return _count(b, counted)
    if isinstance(function, AggregateFunction) and name in _SUMS and function.eval_mode == "ANSI":
        return _sum(b, function, b.filtered(call, function.child))
    if name in _BITWISE:
        argument = function.child
        kind, result = arrow_of(argument), _fresh(b, _BITWISE[name], argument)
        return Accumulator(_BITWISE[name], b.filtered(call, argument), kind, result, kind)
    return None


def _over_distinct(
    b: Bridge,
    call: AggregateCall,
    arguments: Sequence[Expr],
    distincts: dict[tuple[int, ...], DistinctValues],
    same: Alike,
) -> Accumulator | None:
    """A DISTINCT aggregate: its value is read from those that are counted once, its filter is theirs."""
    function = call.function
    name = function.kind
    if name == "Count":
        found, given = _count(b, None), arguments
    elif isinstance(function, AggregateFunction) and name in _SUMS and function.eval_mode == "ANSI":
        summed = _sum(b, function, arguments[0])
        if summed is None or summed.argument is None:
            return None
        found, given = summed, [summed.argument]
    else:
        return None
    values = [b.normalized(v) for v in given]
    types = [arrow_of(v) for v in values]
    if any(pa.types.is_null(t) for t in types) or any(v.is_collated for v in values):
        return None
    key = tuple(same.number(v) for v in values)
    wanted = distincts.setdefault(key, DistinctValues(values, types))
    found.argument, found.distinct = None, list(distincts).index(key)
    found.filter = _filter(call, wanted.filters, same)
    return found


def _filter(call: AggregateCall, filters: list[Expr | None], same: Alike) -> int:
    """Where the call's filter is among the others; it is added if it is not there yet."""
    condition = call.filter
    known = [None if f is None else same.number(f) for f in filters]
    wanted = None if condition is None else same.number(condition)
    if wanted not in known:
        filters.append(condition)
        known.append(wanted)
    return known.index(wanted)


def _extremum(b: Bridge, call: AggregateCall, name: str, append_only: bool) -> Accumulator | None:
    """A minimum or maximum; and for the first value that is not null, which may be any, the least."""
    function = call.function
    argument = function.child
    kind = arrow_of(argument)
    if pa.types.is_nested(kind) or pa.types.is_null(kind) or argument.is_collated:
        return None
    if isinstance(function, AggregateFunction) and name == "First" and not function.ignores_nulls:
        return None
    # Among numbers NaN is the greatest in Spark, and booleans have no order in Arrow's kernels.
    accumulates = append_only and not (pa.types.is_floating(kind) or pa.types.is_boolean(kind))
    names = ("min", "max") if accumulates else ("least", "greatest")
    result = _fresh(b, name.lower(), argument)
    return Accumulator(names[name == "Max"], b.filtered(call, argument), kind, result, kind)


def _count(b: Bridge, counted: Expr | None) -> Accumulator:
    return Accumulator("count", counted, pa.bool_(), _fresh(b, "count", b.literal_long(0)), pa.int64())


def _sum(b: Bridge, function: AggregateFunction, value: Expr) -> Accumulator | None:
    kind, average = arrow_of(value), function.kind == "Average"
    count = _fresh(b, "count", b.literal_long(0)) if average else None
    buffer = function.buffers[0]
    if pa.types.is_floating(kind):
        value = b.cast(value, buffer)
        return Accumulator("sum_float", value, pa.float64(), _fresh(b, "sum", buffer), pa.float64(), count)
    if kind in _SMALL:  # read as an integer for averages too: not every sum is a double, and Spark's cast rounds it
        return Accumulator("sum_small", value, kind, _fresh(b, "sum", b.literal_long(0)), pa.int64(), count)
    if kind == pa.int64():
        result_type = pa.float64() if average else pa.int64()
        return Accumulator("sum_wide", value, kind, _fresh(b, "sum", buffer), result_type, count)
    if pa.types.is_decimal(kind):
        raw = pa.decimal128(38, kind.scale)
        attr = _fresh(b, "sum", b.literal_decimal(kind.scale))
        narrow = kind.precision <= 18
        return Accumulator("sum_wide" if narrow else "sum_decimal", value, kind, attr, raw, count)
    return None


def _fresh(b: Bridge, name: str, typed_like: Expr) -> Attr:
    handle = b.alias(typed_like, name).attribute.as_nullable
    return Attr(handle.id, name, handle.type, handle)


def _result(
    b: Bridge,
    expression: Named,
    groups: Sequence[Expr],
    group_attrs: list[Attr],
    accumulators: dict[int, Accumulator],
    functions: Mapping[int, AggregateCall],
    same: Alike,
) -> Named:
    """The result expression over what the operator puts out."""

    def replace(e: Expr) -> Expr | None:
        if e.kind == "AggregateExpression":
            call = same.number(e)
            return _final(b, functions[call].function, accumulators[call])
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


def _final(b: Bridge, function: Expr, a: Accumulator) -> Expr:
    """What Spark's own function makes of its buffer, read from the accumulated sums."""
    if not isinstance(function, AggregateFunction) or function.kind not in _SUMS:
        return a.result.handle
    buffers = function.buffers
    if function.kind == "Sum":
        return b.cast(a.result.handle, function)
    assert a.count is not None
    total = b.cast(a.result.handle, buffers[0])
    return mapped(function.result, {buffers[0].id: total, buffers[1].id: a.count.handle})
