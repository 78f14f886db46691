"""The rules for grouping: accumulable aggregates, DISTINCT aggregates, and group recompute for the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.plan.bridge import Bridge, JExpr, JNode
from headrace.plan.tree import Accumulator, Aggregate, Attr, Operator
from headrace.plan.types import arrow_of

if TYPE_CHECKING:
    from headrace.plan.derive import Derivation

_AGGREGATE = frozenset({"AggregateExpression"})
_SMALL = (pa.int8(), pa.int16(), pa.int32())


def derive_aggregate(d: Derivation, node: JNode, needed: set[int]) -> Operator:
    """Grouping by any keys."""
    b = d.bridge
    node = _split_distinct(b, node)
    groups = b.items(node.groupingExpressions())
    results = [e for e in b.items(node.aggregateExpressions()) if b.attribute_id(e) in needed]
    functions = _functions(b, results)
    child_node = b.children(node)[0]
    child = d.derive(child_node, d.references([*groups, *functions.values(), *results]) & _ids(b, child_node))
    accumulators = {text: _accumulator(b, f, child.append_only) for text, f in functions.items()}
    if any(a is None for a in accumulators.values()):
        return _recomputed(d, node, groups, results)
    group_attrs = _group_attrs(d, groups)
    rewritten = [
        _result(b, e, groups, group_attrs, {t: a for t, a in accumulators.items() if a is not None}, functions)
        for e in results
    ]
    distinct = child.append_only and not functions
    text = f"by [{', '.join(str(g.toString()) for g in groups)}] [{', '.join(str(e.toString()) for e in results)}]"
    output = d.attrs([e.toAttribute() for e in results])
    found = [a for a in accumulators.values() if a is not None]
    return Aggregate(output, distinct and bool(groups), [child], groups, group_attrs, found, rewritten, text)


def _ids(b: Bridge, node: JNode) -> set[int]:
    return {b.attribute_id(a) for a in b.output(node)}


def _functions(b: Bridge, results: list[JExpr]) -> dict[str, JExpr]:
    """The aggregate calls in the results, each once, by their canonical text."""
    return {_text(e): e for r in results for e in b.find(r, _AGGREGATE)}


def _text(aggregate: JExpr) -> str:
    return str(aggregate.canonicalized().toString())


def _recomputed(d: Derivation, node: JNode, groups: list[JExpr], results: list[JExpr]) -> Operator:
    from headrace.plan.derive import recompute

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


def _split_distinct(b: Bridge, node: JNode) -> JNode:
    """`f(DISTINCT x) GROUP BY g` as `f(x)` over the distinct (g, x), where all aggregates share one x."""
    calls = [e for r in b.items(node.aggregateExpressions()) for e in b.find(r, _AGGREGATE)]
    if not calls or not all(c.isDistinct() and c.filter().isEmpty() for c in calls):
        return node
    arguments = b.children(calls[0].aggregateFunction())
    if any(not b.is_attribute(a) for a in arguments) or b.kind(calls[0].aggregateFunction()) not in (
        "Count", "Sum", "Average",
    ):  # fmt: skip
        return node
    first = [str(a.canonicalized().toString()) for a in arguments]
    for c in calls[1:]:
        if [str(a.canonicalized().toString()) for a in b.children(c.aggregateFunction())] != first:
            return node
    groups = b.items(node.groupingExpressions())
    if any(not b.is_attribute(g) for g in groups):
        return node
    keys = list({b.attribute_id(e): e for e in [*groups, *arguments]}.values())
    inner = b.aggregate(keys, keys, b.children(node)[0])

    def plain(e: JExpr) -> JExpr | None:
        if b.kind(e) != "AggregateExpression":
            return None
        return b.aggregate_expression(e.aggregateFunction(), e.mode(), False, e.filter(), e.resultId())

    return b.aggregate(groups, [b.rewrite(e, plain) for e in b.items(node.aggregateExpressions())], inner)


def _accumulator(b: Bridge, call: JExpr, append_only: bool) -> Accumulator | None:
    """How an aggregate call accumulates, or None where only a recomputation is exact."""
    function = call.aggregateFunction()
    name = b.kind(function)
    if call.isDistinct() and name not in ("Min", "Max"):
        return None
    arguments = b.children(function)
    if name == "Count":
        present = b.all_not_null(arguments)
        result = _fresh(b, "count", b.literal_long(0))
        return Accumulator("count", b.filtered(call, present), pa.bool_(), result, pa.int64())
    if name in ("Min", "Max"):
        if not append_only or pa.types.is_nested(arrow_of(arguments[0])):
            return None
        kind = arrow_of(arguments[0])
        argument = b.filtered(call, arguments[0])
        if pa.types.is_floating(kind) or pa.types.is_boolean(kind):
            return None  # NaN is the greatest number in Spark, and booleans have no order in Arrow's kernels
        return Accumulator(name.lower(), argument, kind, _fresh(b, name.lower(), arguments[0]), kind)
    if name in ("Sum", "Average") and b.eval_mode(function) == "ANSI":
        return _sum(b, call, function, arguments[0], name == "Average")
    return None


def _sum(b: Bridge, call: JExpr, function: JExpr, argument: JExpr, average: bool) -> Accumulator | None:
    kind = arrow_of(argument)
    count = _fresh(b, "count", b.literal_long(0)) if average else None
    value = b.filtered(call, argument)
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
    accumulators: dict[str, Accumulator],
    functions: dict[str, JExpr],
) -> JExpr:
    """The result expression over what the operator puts out."""

    def replace(e: JExpr) -> JExpr | None:
        if b.kind(e) == "AggregateExpression":
            return _final(b, functions[_text(e)].aggregateFunction(), accumulators[_text(e)])
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
    if b.kind(function) in ("Count", "Min", "Max"):
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
