"""The rules for grouping: accumulable aggregates, DISTINCT aggregates, and group recompute for the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.errors import NotSupported
from headrace.plan.alike import Alike
from headrace.plan.catalyst.bridge import Bridge, JExpr, JNode
from headrace.plan.distinct import plain_arguments, revealed
from headrace.plan.python import check_aggregates
from headrace.plan.recompute import recompute
from headrace.plan.tree import Accumulator, Aggregate, Attr, DistinctValues, Operator
from headrace.plan.types import arrow_of

if TYPE_CHECKING:
    from headrace.plan.derive import Derivation

_AGGREGATE = frozenset({"AggregateExpression"})
_SMALL = (pa.int8(), pa.int16(), pa.int32())
_BITWISE = {"BitAndAgg": "bit_and", "BitOrAgg": "bit_or", "BitXorAgg": "bit_xor"}


def derive_aggregate(d: Derivation, node: JNode, needed: set[int]) -> Operator:
    """Grouping by any keys."""
    b = d.bridge
    groups = b.items(node.groupingExpressions())
    if any(b.is_session_window(g) for g in groups):
        raise NotSupported(
            "session_window in a view", hint="group by window_start and window_end of SESSION(relation, time, gap, key)"
        )
    # What guards compute with must be there before: that a sum does not fit its type is no failure of a row.
    if parts := b.apart(node, b.has_guard):
        return d.derive(parts[0], needed)
    results = [e for e in b.items(node.aggregateExpressions()) if b.attribute_id(e) in needed]
    same = Alike()
    functions = _functions(b, results, same)
    check_aggregates(b, [f.aggregateFunction() for f in functions.values()])
    child_node = b.children(node)[0]
    child = d.derive(child_node, d.references([*groups, *functions.values(), *results]) & _ids(b, child_node))
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
    shown = [str(revealed(b, e).toString()) for e in results]
    text = f"by [{', '.join(str(g.toString()) for g in groups)}] [{', '.join(shown)}]"
    output = d.attrs([e.toAttribute() for e in results])
    found = [a for a in accumulators.values() if a is not None]
    values = list(distincts.values())
    return Aggregate(output, distinct and bool(groups), [child], groups, group_attrs, found, rewritten, text, values)


def _ids(b: Bridge, node: JNode) -> set[int]:
    return {b.attribute_id(a) for a in b.output(node)}


def _functions(b: Bridge, results: list[JExpr], same: Alike) -> dict[int, JExpr]:
    """The aggregate calls in the results, each once, by their numbers."""
    return {same.number(e): e for r in results for e in b.find(r, _AGGREGATE)}


def _recomputed(d: Derivation, node: JNode, groups: list[JExpr], results: list[JExpr]) -> Operator:
    results = [revealed(d.bridge, e) for e in results]
    node = d.bridge.aggregate(groups, results, d.bridge.children(node)[0])
    needed = d.references([*groups, *results])
    return recompute(d, node, "Aggregate", groups, needed, d.attrs([e.toAttribute() for e in results]))


def _group_attrs(d: Derivation, groups: list[JExpr]) -> list[Attr]:
    """One attribute for each grouping expression: itself where it is one, and safe to compare as it is."""
    b = d.bridge
    handles = []
    for i, g in enumerate(groups):
        plain = b.is_attribute(g) and b.normalized(g).equals(g)
        handles.append(g if plain else b.alias(b.normalized(g), f"group{i}").toAttribute())
    return d.attrs(handles)


def _accumulator(
    b: Bridge, call: JExpr, append_only: bool, distincts: dict[tuple[int, ...], DistinctValues], same: Alike
) -> Accumulator | None:
    """How an aggregate call accumulates, or None where only a recomputation is exact.

    Adds to `distincts` the values that the call wants counted once, if there is not the like yet.
    """
    function = call.aggregateFunction()
    name = b.kind(function)
    if name in ("Min", "Max", "First"):
        return _extremum(b, call, name, append_only)
    arguments = plain_arguments(b, call)
    if arguments is not None:
        return _over_distinct(b, call, arguments, distincts, same)
    if name == "Count":
        counted = b.filtered(call, b.all_not_null(b.children(function)))
        return _count(b, counted)
    if name in ("Sum", "Average") and b.eval_mode(function) == "ANSI":
        return _sum(b, function, b.filtered(call, b.children(function)[0]))
    if name in _BITWISE:
        argument = b.children(function)[0]
        kind, result = arrow_of(argument), _fresh(b, _BITWISE[name], argument)
        return Accumulator(_BITWISE[name], b.filtered(call, argument), kind, result, kind)
    return None


def _over_distinct(
    b: Bridge, call: JExpr, arguments: list[JExpr], distincts: dict[tuple[int, ...], DistinctValues], same: Alike
) -> Accumulator | None:
    """A DISTINCT aggregate: its value is read from those that are counted once, its filter is theirs."""
    function = call.aggregateFunction()
    name = b.kind(function)
    if name == "Count":
        found, values = _count(b, None), arguments
    elif name in ("Sum", "Average") and b.eval_mode(function) == "ANSI":
        summed = _sum(b, function, arguments[0])
        if summed is None:
            return None
        found, values = summed, [summed.argument]
    else:
        return None
    values = [b.normalized(v) for v in values]
    types = [arrow_of(v) for v in values]
    if any(pa.types.is_null(t) for t in types) or any(b.is_collated(v) for v in values):
        return None
    key = tuple(same.number(v) for v in values)
    wanted = distincts.setdefault(key, DistinctValues(values, types))
    found.argument, found.distinct = None, list(distincts).index(key)
    found.filter = _filter(call, wanted.filters, same)
    return found


def _filter(call: JExpr, filters: list[JExpr | None], same: Alike) -> int:
    """Where the call's filter is among the others; it is added if it is not there yet."""
    condition = None if call.filter().isEmpty() else call.filter().get()
    known = [None if f is None else same.number(f) for f in filters]
    wanted = None if condition is None else same.number(condition)
    if wanted not in known:
        filters.append(condition)
        known.append(wanted)
    return known.index(wanted)


def _extremum(b: Bridge, call: JExpr, name: str, append_only: bool) -> Accumulator | None:
    """A minimum or maximum; and for the first value that is not null, which may be any, the least."""
    function = call.aggregateFunction()
    argument = b.children(function)[0]
    kind = arrow_of(argument)
    if pa.types.is_nested(kind) or pa.types.is_null(kind) or b.is_collated(argument):
        return None
    if name == "First" and not function.ignoreNulls():
        return None
    # Among numbers NaN is the greatest in Spark, and booleans have no order in Arrow's kernels.
    accumulates = append_only and not (pa.types.is_floating(kind) or pa.types.is_boolean(kind))
    names = ("min", "max") if accumulates else ("least", "greatest")
    result = _fresh(b, name.lower(), argument)
    return Accumulator(names[name == "Max"], b.filtered(call, argument), kind, result, kind)


def _count(b: Bridge, counted: JExpr | None) -> Accumulator:
    return Accumulator("count", counted, pa.bool_(), _fresh(b, "count", b.literal_long(0)), pa.int64())


def _sum(b: Bridge, function: JExpr, value: JExpr) -> Accumulator | None:
    kind, average = arrow_of(value), b.kind(function) == "Average"
    count = _fresh(b, "count", b.literal_long(0)) if average else None
    buffer = b.items(function.aggBufferAttributes())[0]
    if pa.types.is_floating(kind):
        value = b.cast(value, buffer.dataType())
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


def _fresh(b: Bridge, name: str, typed_like: JExpr) -> Attr:
    handle = b.alias(typed_like, name).toAttribute().withNullability(True)
    return Attr(b.attribute_id(handle), name, b.simple_type(handle), handle)


def _result(
    b: Bridge,
    expression: JExpr,
    groups: list[JExpr],
    group_attrs: list[Attr],
    accumulators: dict[int, Accumulator],
    functions: dict[int, JExpr],
    same: Alike,
) -> JExpr:
    """The result expression over what the operator puts out."""

    def replace(e: JExpr) -> JExpr | None:
        if b.kind(e) == "AggregateExpression":
            call = same.number(e)
            return _final(b, functions[call].aggregateFunction(), accumulators[call])
        for g, attr in zip(groups, group_attrs):
            if e.semanticEquals(g):
                return attr.handle
        return None

    if b.is_attribute(expression):
        replaced = replace(expression)
        if replaced is None or b.attribute_id(replaced) == b.attribute_id(expression):
            return expression
        return b.alias(replaced, str(expression.name()), expression.exprId())
    return b.rewrite(expression, replace)


def _final(b: Bridge, function: JExpr, a: Accumulator) -> JExpr:
    """What Spark's own function makes of its buffer, read from the accumulated sums."""
    if b.kind(function) in ("Count", "Min", "Max", "First", *_BITWISE):
        return a.result.handle
    buffers = b.items(function.aggBufferAttributes())
    total = b.cast(a.result.handle, buffers[0].dataType())
    if b.kind(function) == "Sum":
        return b.cast(a.result.handle, function.dataType())
    assert a.count is not None
    values = {b.attribute_id(buffers[0]): total, b.attribute_id(buffers[1]): a.count.handle}

    def replace(e: JExpr) -> JExpr | None:
        return values.get(b.attribute_id(e)) if b.is_attribute(e) else None

    return b.rewrite(function.evaluateExpression(), replace)
