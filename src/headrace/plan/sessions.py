"""Session windows in a plan: how what `SESSION(...)` is written as is found again.

For a query `SESSION` is three nested window functions (`sql.normalize`). Before a view's plan is optimized, while they
are as they were written, they are found by their structure and replaced by a node that Spark's optimizer leaves alone:
a `mapInArrow` that is never run, whose function's name says which of its arguments are what. Anything else that looks
like it keeps its window functions, which are right, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from headrace.plan.catalyst.bridge import Bridge, JExpr, JNode
from headrace.plan.tree import Operator, Session
from headrace.plan.types import arrow_of

if TYPE_CHECKING:
    from headrace.plan.derive import Derivation

_MARK = re.compile(r"headrace_session_(\d+)_(\d+)((?:_\d+)*)")
"""The function's name: the gap in microseconds, then which arguments are the time and the keys."""
_END = "window_end"
_TIMES = ("timestamp", "timestamp_ntz")


@dataclass(frozen=True)
class _Found:
    """Session windows over `child`: its attributes, and the ids of the columns that they add."""

    child: JNode
    time: JExpr
    keys: list[JExpr]
    gap_us: int
    start: int
    end: int


def marked(b: Bridge, node: JNode) -> JNode:
    """The analyzed plan with session windows marked. Those inside subqueries of expressions stay as they are."""
    found = _found(b, node)
    if found is not None:
        return _mark(b, node, found)
    children = b.children(node)
    changed = [marked(b, c) for c in children]
    same = all(new is old for new, old in zip(changed, children))
    return node if same else b.with_children(node, changed)


def is_session(b: Bridge, node: JNode) -> bool:
    """Whether a node stands for session windows."""
    return b.kind(node) == "MapInArrow" and _MARK.fullmatch(str(node.functionExpr().name())) is not None


def derive_session(d: Derivation, node: JNode, needed: set[int]) -> Operator:
    """The operator for a node for which `is_session` holds."""
    b = d.bridge
    gap_us, time, keys = _parts(b, node)
    *passed, start, end = d.attrs(b.output(node))
    arguments = b.children(node.functionExpr())
    if not {start.id, end.id} & needed:
        columns = [b.alias(arg, a.name, a.handle.exprId()) for a, arg in zip(passed, arguments, strict=True)]
        return d.derive(b.project(columns, b.children(node)[0]), needed)
    wanted = [(a, arg) for a, arg in zip(passed, arguments, strict=True) if a.id in needed]
    child = d.derive(b.children(node)[0], d.references([time, *keys, *(arg for _, arg in wanted)]))
    normal = [b.normalized(k) for k in keys]
    places = {b.attribute_id(k): f"k{i}" for i, k in enumerate(normal) if b.is_attribute(k)}
    places[b.attribute_id(time)] = "t"
    values = [a for a in child.output if a.id not in places]
    places |= {a.id: f"v{i}" for i, a in enumerate(values)}
    columns = [places[b.attribute_id(arg)] for _, arg in wanted]
    output = [*(a for a, _ in wanted), start, end]
    return Session(output, False, [child], normal, [arrow_of(k) for k in normal], time, gap_us, values, columns)


def below_sessions(b: Bridge, condition: JExpr, node: JNode) -> JNode | None:
    """A filter over a node for which `is_session` holds, with what it says of keys alone said below the sessions.

    None where it says nothing of the kind.
    """
    _, _, keys = _parts(b, node)
    ids, child = {b.attribute_id(k) for k in keys}, b.children(node)[0]
    pairs = zip(b.output(node), b.children(node.functionExpr()))
    below = {b.attribute_id(a): arg for a, arg in pairs if b.attribute_id(arg) in ids}
    parts = b.conjuncts(condition)
    of_keys = [b.references(p) <= set(below) for p in parts]
    if not any(of_keys):
        return None
    early = b.all_of([p for p, so in zip(parts, of_keys) if so])
    moved = b.rewrite(early, lambda e: below.get(b.attribute_id(e)) if b.is_attribute(e) else None)
    lowered = b.with_children(node, [b.filter(moved, child)])
    late = [p for p, so in zip(parts, of_keys) if not so]
    return b.filter(b.all_of(late), lowered) if late else lowered


def _parts(b: Bridge, node: JNode) -> tuple[int, JExpr, list[JExpr]]:
    name = _MARK.fullmatch(str(node.functionExpr().name()))
    assert name is not None
    arguments = b.children(node.functionExpr())
    return int(name[1]), arguments[int(name[2])], [arguments[int(i)] for i in name[3].split("_")[1:]]


def _mark(b: Bridge, node: JNode, found: _Found) -> JNode:
    """The mark over what the windows are over, and a projection that gives it their ids."""
    below = b.output(found.child)
    ids = [b.attribute_id(a) for a in below]
    places = [ids.index(b.attribute_id(a)) for a in (found.time, *found.keys)]

    def never_run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise AssertionError("session windows are planned as an operator")

    never_run.__name__ = "_".join(["headrace_session", str(found.gap_us), *map(str, places)])
    names = _unique([*(str(a.name()) for a in below), "window_start", _END])
    types = [*(b.spark_type(a) for a in below), *[b.spark_type(found.time)] * 2]
    schema = StructType([StructField(name, t) for name, t in zip(names, types, strict=True)])
    leaf = b.local_leaf([a.withName(name) for a, name in zip(below, names)])
    mark = b.with_children(b.analyzed(b.frame(leaf).mapInArrow(never_run, schema)), [found.child])
    columns = dict(zip([*ids, found.start, found.end], b.output(mark), strict=True))
    outputs = [(columns[b.attribute_id(a)], a) for a in b.output(node)]
    return b.project([b.alias(new, str(old.name()), old.exprId()) for new, old in outputs], mark)


def _unique(names: list[str]) -> list[str]:
    return [f"{name}_{i}" if name in names[:i] else name for i, name in enumerate(names)]


# ---- what `SESSION` is written as, from the outside in


def _found(b: Bridge, node: JNode) -> _Found | None:
    """Session windows whose topmost node this is: the projection that leaves out what they need in between."""
    if b.kind(node) != "Project" or not any(str(a.name()) == _END for a in b.output(node)):
        return None
    inner = b.children(node)[0]
    if _computed(b, node) or b.kind(inner) != "Project":
        return None
    try:
        found = _ends(b, inner)
    except _Other:
        return None
    known = {b.attribute_id(a) for a in b.output(found.child)} | {found.start, found.end}
    return found if {b.attribute_id(a) for a in b.output(node)} <= known else None


class _Other(Exception):
    """The plan is something else."""


def _need(condition: bool) -> None:
    if not condition:
        raise _Other


def _ends(b: Bridge, node: JNode) -> _Found:
    """`max(time) OVER (PARTITION BY keys, start) + gap`, over the starts."""
    end, value = _only(b, node)
    last, gap_us = _plus(b, value)
    call, parts, orders, below = _window(b, b.children(node)[0], last)
    _need(b.kind(call) == "AggregateExpression" and b.kind(call.aggregateFunction()) == "Max" and not orders)
    time = _id(b, b.children(call.aggregateFunction())[0])
    _need(len(parts) > 0)
    *keys, start = parts
    first, found_time, below = _starts(b, below, start, keys)
    _need(found_time == time)
    child, column, lagged_us = _begun(b, below, first, time, keys)
    _need(lagged_us == gap_us and gap_us > 0 and b.simple_type(column) in _TIMES)
    attributes = {b.attribute_id(a): a for a in b.output(child)}
    _need(all(k in attributes and not b.is_collated(attributes[k]) for k in keys))
    return _Found(child, column, [attributes[k] for k in keys], gap_us, start, end)


def _starts(b: Bridge, node: JNode, start: int, keys: list[int]) -> tuple[int, int, JNode]:
    """`max(first) OVER (PARTITION BY keys ORDER BY time)`: ids of `first` and of the time, and what it is over."""
    call, parts, orders, below = _window(b, _below_names(b, node), start)
    _need(parts == keys and b.kind(call) == "AggregateExpression" and b.kind(call.aggregateFunction()) == "Max")
    _need(len(orders) == 1)
    return _id(b, b.children(call.aggregateFunction())[0]), orders[0], below


def _begun(b: Bridge, node: JNode, first: int, time: int, keys: list[int]) -> tuple[JNode, JExpr, int]:
    """`CASE WHEN lag(time) OVER (PARTITION BY keys ORDER BY time) + gap > time THEN NULL ELSE time END` as `first`.

    Gives what it is over, its time column, and the gap.
    """
    project = _below_names(b, node)
    made, value = _only(b, project)
    parts = b.children(value)
    _need(made == first and b.kind(value) == "CaseWhen" and len(parts) == 3 and b.kind(parts[0]) == "GreaterThan")
    later, than = b.children(parts[0])
    before, gap_us = _plus(b, later)
    _need(_is_null(b, parts[1]) and _id(b, than) == time and _id(b, parts[2]) == time)
    call, found_keys, orders, below = _window(b, b.children(project)[0], before)
    _need(b.kind(call) == "Lag" and found_keys == keys and orders == [time])
    lagged, _, default = b.children(call)
    _need(_id(b, lagged) == time and _is_null(b, default))
    named = _below_names(b, below)
    name, column = _only(b, named)
    child = b.children(named)[0]
    _need(name == time and b.is_attribute(column) and b.kind(child) == "Filter" and _only_present(b, child, column))
    return child, column, gap_us


def _only_present(b: Bridge, node: JNode, column: JExpr) -> bool:
    """Whether a filter lets rows through in which the column is not null, and no others."""
    condition = node.condition()
    inner = b.children(condition)[0] if b.kind(condition) == "Not" else condition
    wanted = "IsNull" if b.kind(condition) == "Not" else "IsNotNull"
    return b.kind(inner) == wanted and b.attribute_id(column) in {
        b.attribute_id(a) for a in b.children(inner) if b.is_attribute(a)
    }


def _window(b: Bridge, node: JNode, made: int) -> tuple[JExpr, list[int], list[int], JNode]:
    """Of a `Window` node that computes nothing but `made`: the function, partition and order, and what it is over.

    The order ascends, and frames are those that the functions have where none is written.
    """
    _need(b.kind(node) == "Window")
    functions = b.items(node.windowExpressions())
    _need(len(functions) == 1 and b.attribute_id(functions[0]) == made)
    call = b.children(functions[0])[0]
    orders = b.items(node.orderSpec())
    _need(b.kind(call) == "WindowExpression" and not any(b.direction(o)[0] for o in orders))
    parts, by = [_id(b, p) for p in b.items(node.partitionSpec())], [_id(b, b.children(o)[0]) for o in orders]
    frame = call.windowSpec().frameSpecification()
    ends = [str(bound.toString()) for bound in (frame.lower(), frame.upper())]
    if b.kind(call.windowFunction()) == "Lag":
        _need(ends == ["-1", "-1"])
    else:
        _need(b.kind(frame.lower()) == "UnboundedPreceding")
        _need(b.kind(frame.upper()) == ("CurrentRow" if orders else "UnboundedFollowing"))
        _need(not orders or b.kind(frame.frameType()) == "RangeFrame")
    return call.windowFunction(), parts, by, b.children(node)[0]


def _plus(b: Bridge, e: JExpr) -> tuple[int, int]:
    """A column and the microseconds added to it."""
    if b.kind(e) == "Cast" and b.simple_type(e) in _TIMES:
        e = b.children(e)[0]
    _need(b.kind(e) == "TimestampAddInterval")
    column, interval = b.children(e)
    us = b.literal_us(interval)
    if us is None:
        raise _Other
    return _id(b, column), us


def _id(b: Bridge, e: JExpr) -> int:
    _need(b.is_attribute(e))
    return b.attribute_id(e)


def _is_null(b: Bridge, e: JExpr) -> bool:
    while b.kind(e) == "Cast":
        e = b.children(e)[0]
    return b.kind(e) == "Literal" and e.value() is None


def _computed(b: Bridge, node: JNode) -> list[JExpr]:
    """The columns of a projection that are not columns below it."""
    return [e for e in b.items(node.projectList()) if not b.is_attribute(e)]


def _only(b: Bridge, node: JNode) -> tuple[int, JExpr]:
    """The id and the value of the one column that a projection computes."""
    _need(b.kind(node) == "Project")
    computed = _computed(b, node)
    _need(len(computed) == 1 and b.kind(computed[0]) == "Alias")
    return b.attribute_id(computed[0]), b.children(computed[0])[0]


def _below_names(b: Bridge, node: JNode) -> JNode:
    """The first node below names and projections that compute nothing."""
    while b.kind(node) == "SubqueryAlias" or (b.kind(node) == "Project" and not _computed(b, node)):
        node = b.children(node)[0]
    return node
