"""Session windows in a plan: how what `SESSION(...)` is written as is found again.

For a query `SESSION` is three nested window functions (`sql.normalize`). Before a view's plan is optimized, while they
are as they were written, they are found by their structure and replaced by a node that Spark's optimizer leaves alone:
a `mapInArrow` that is never run, whose last column notes in its metadata which of its arguments are what. Anything else
that looks like it keeps its window functions, which are right, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from headrace.common.lazy_dataclass import dataclass
from headrace.plan.border_types import arrow_of
from headrace.plan.catalyst.bridge import Bridge
from headrace.plan.catalyst.expressions import Alias, Attribute, Expr, Literal, Named, attribute
from headrace.plan.catalyst.kinds import AggregateCall, WindowCall
from headrace.plan.catalyst.made_nodes import mapped
from headrace.plan.catalyst.nodes import Filter, Node, Project, PythonMap, Window
from headrace.plan.catalyst.typed_nodes import Part
from headrace.plan.mark_rules import TIMES, MarkReader, Marks
from headrace.plan.tree import WEIGHT, Attr, Operator, attr_arrow
from headrace.plan.watermark_rules import Shift
from headrace.state.schema import TableSchema

if TYPE_CHECKING:
    from headrace.plan.derive import Derivation

_NOTE = "headrace.session"
"""Under what the last column's metadata have the gap, and which arguments are the time and the keys."""
P = TypeVar("P", bound=Part)

_END = "window_end"


def headrace_session(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What the mark calls."""
    raise AssertionError("session windows are planned as an operator")


_NEVER_RUN = headrace_session


@dataclass
class Session(Operator):
    """Session windows: each row with the start and the end of its session, the last two columns of the output.

    A session of a key is rows whose times follow each other at less than the gap; it ends a gap after the last.
    """

    keys: Sequence[Expr]
    key_types: list[pa.DataType]
    time: Expr
    """Never null: a timestamp with or without zone."""
    gap_us: int
    values: list[Attr]
    """Columns of the input that are kept beside key and time."""
    columns: list[str]
    """Where in the state each column of the output is, but for the last two."""
    kind = "session"
    TABLE = "rows"

    def detail(self) -> str:
        return f"of {self.time.text} with a gap of {self.gap_us / 1e6:g} s"

    def distribution(self) -> str | None:
        return ", ".join(k.text for k in self.keys) or "(one group)"

    def tables(self) -> dict[str, TableSchema]:
        until = [pa.field("until", pa.int64(), nullable=False)] if self.TABLE in self.expires else []
        values = [pa.field(f"v{i}", attr_arrow(a)) for i, a in enumerate(self.values)]
        return {
            self.TABLE: TableSchema(
                key=tuple(pa.field(f"k{i}", t) for i, t in enumerate(self.key_types)),
                value=(pa.field("t", pa.int64(), nullable=False), *until, *values),
                diffs=WEIGHT,
            )
        }

    def is_idle(self, active: frozenset[int] | None) -> bool:
        # Nothing comes out of it by itself; but joins above it would be planned differently, and the epochs' plans of
        # views that there are stay as they are.
        return False

    def marks(self, below: Sequence[Marks], watermarks: Mapping[int, str]) -> Marks:
        """Rows of a session change with one that is less than the gap before its end: later than the mark.

        So sessions that end at the mark or before are closed. Of a start, and of a row's own time, nothing is known: a
        session may have gone on for long. What changes has the key of the row that changed.
        """
        reader = MarkReader(below[0])
        places = dict(zip(self.columns, self.output))
        found = {f"k{i}": reader.mark(key) for i, key in enumerate(self.keys)}
        marks: Marks = {places[name].id: mark for name, mark in found.items() if mark is not None and name in places}
        mark = reader.mark(self.time)
        if mark is not None:
            self.expire(self.TABLE, "until", mark)
            marks[self.output[-1].id] = mark.then(Shift(1))
        return marks


@dataclass(frozen=True)
class SessionWindows:
    """What a mark says: all over the columns below it."""

    gap_us: int
    time: Attribute
    keys: list[Expr]


@dataclass(frozen=True)
class _Found:
    """Session windows over `child`: its attributes, and the ids of the columns that they add."""

    child: Node
    time: Attribute
    keys: list[Attribute]
    gap_us: int
    start: int
    end: int


def marked(b: Bridge, node: Node) -> Node:
    """The analyzed plan with session windows marked. Those inside subqueries of expressions stay as they are."""
    found = _found(node)
    if found is not None:
        return _mark(b, node, found)
    children = node.children
    changed = [marked(b, c) for c in children]
    same = all(new is old for new, old in zip(changed, children))
    return node if same else node.with_children(changed)


def read(node: Node) -> SessionWindows | None:
    """The session windows that a node stands for; None for any other node."""
    if not isinstance(node, PythonMap) or node.call.name != _NEVER_RUN.__name__:
        return None
    noted = node.output[-1].metadata.get(_NOTE)
    if noted is None:
        return None
    arguments = node.call.children
    time = arguments[noted["time"]]
    assert isinstance(time, Attribute)
    return SessionWindows(noted["gap_us"], time, [arguments[i] for i in noted["keys"]])


def derive_session(d: Derivation, node: PythonMap, found: SessionWindows, needed: set[int]) -> Operator:
    """The operator for a node that stands for session windows."""
    b, time, keys = d.bridge, found.time, found.keys
    *passed, start, end = d.attrs(node.output)
    arguments = [attribute(a) for a in node.call.children]
    if not {start.id, end.id} & needed:
        columns = [b.alias(arg, a.name, a.handle) for a, arg in zip(passed, arguments, strict=True)]
        return d.derive(b.project(columns, node.child), needed)
    wanted = [(a, arg) for a, arg in zip(passed, arguments, strict=True) if a.id in needed]
    child = d.derive(node.child, d.references([time, *keys, *(arg for _, arg in wanted)]))
    normal = [b.normalized(k) for k in keys]
    places = {k.id: f"k{i}" for i, k in enumerate(normal) if isinstance(k, Attribute)}
    places[time.id] = "t"
    values = [a for a in child.output if a.id not in places]
    places |= {a.id: f"v{i}" for i, a in enumerate(values)}
    kept = [places[arg.id] for _, arg in wanted]
    output = [*(a for a, _ in wanted), start, end]
    types = [arrow_of(k) for k in normal]
    return Session(output, False, [child], normal, types, time, found.gap_us, values, kept)


def below_sessions(b: Bridge, condition: Expr, node: Node, found: SessionWindows) -> Node | None:
    """A filter over session windows, with what it says of keys alone said below them.

    None where it says nothing of the kind.
    """
    assert isinstance(node, PythonMap)
    ids, child = {k.id for k in found.keys if isinstance(k, Attribute)}, node.child
    pairs = zip(node.output, node.call.children)
    below = {a.id: arg for a, arg in pairs if isinstance(arg, Attribute) and arg.id in ids}
    parts = condition.conjuncts
    of_keys = [p.references <= set(below) for p in parts]
    if not any(of_keys):
        return None
    early = b.all_of([p for p, so in zip(parts, of_keys) if so])
    lowered = node.with_children([b.filter(mapped(early, below), child)])
    late = [p for p, so in zip(parts, of_keys) if not so]
    return b.filter(b.all_of(late), lowered) if late else lowered


def _mark(b: Bridge, node: Node, found: _Found) -> Node:
    """The mark over what the windows are over, and a projection that gives it their ids."""
    below = found.child.output
    ids = [a.id for a in below]
    note = {"gap_us": found.gap_us, "time": ids.index(found.time.id), "keys": [ids.index(k.id) for k in found.keys]}
    names = _unique([*(a.name for a in below), "window_start", _END])
    types = [*(a.spark_type for a in below), *[found.time.spark_type] * 2]
    fields = [StructField(name, t) for name, t in zip(names, types, strict=True)]
    schema = StructType([*fields[:-1], StructField(fields[-1].name, fields[-1].dataType, metadata={_NOTE: note})])
    leaf = b.local_leaf([a.renamed(name) for a, name in zip(below, names)])
    mark = b.analyzed(b.frame(leaf).mapInArrow(_NEVER_RUN, schema)).with_children([found.child])
    columns = dict(zip([*ids, found.start, found.end], mark.output, strict=True))
    return b.project([b.alias(columns[a.id], a.name, a) for a in node.output], mark)


def _unique(names: list[str]) -> list[str]:
    return [f"{name}_{i}" if name in names[:i] else name for i, name in enumerate(names)]


# ---- what `SESSION` is written as, from the outside in


def _found(node: Node) -> _Found | None:
    """Session windows whose topmost node this is: the projection that leaves out what they need in between."""
    if not isinstance(node, Project) or not any(a.name == _END for a in node.output):
        return None
    inner = node.child
    if _computed(node) or not isinstance(inner, Project):
        return None
    try:
        found = _ends(inner)
    except _Other:
        return None
    known = {a.id for a in found.child.output} | {found.start, found.end}
    return found if {a.id for a in node.output} <= known else None


class _Other(Exception):
    """The plan is something else."""


def _need(condition: bool) -> None:
    if not condition:
        raise _Other


def _a(part: Part, kind: type[P]) -> P:
    """A part of which it is wanted that it is of a kind."""
    if not isinstance(part, kind):
        raise _Other
    return part


def _ends(node: Node) -> _Found:
    """`max(time) OVER (PARTITION BY keys, start) + gap`, over the starts."""
    end, value = _only(node)
    last, gap_us = _plus(value)
    call, parts, orders, below = _window(node.child, last)
    function = _a(call, AggregateCall).function
    _need(function.kind == "Max" and not orders)
    time = _a(function.child, Attribute).id
    _need(len(parts) > 0)
    *keys, start = parts
    first, found_time, below = _starts(below, start, keys)
    _need(found_time == time)
    child, column, lagged_us = _begun(below, first, time, keys)
    _need(lagged_us == gap_us and gap_us > 0 and column.type in TIMES)
    attributes = {a.id: a for a in child.output}
    _need(all(k in attributes and not attributes[k].is_collated for k in keys))
    return _Found(child, column, [attributes[k] for k in keys], gap_us, start, end)


def _starts(node: Node, start: int, keys: list[int]) -> tuple[int, int, Node]:
    """`max(first) OVER (PARTITION BY keys ORDER BY time)`: ids of `first` and of the time, and what it is over."""
    call, parts, orders, below = _window(_below_names(node), start)
    function = _a(call, AggregateCall).function
    _need(parts == keys and function.kind == "Max" and len(orders) == 1)
    return _a(function.child, Attribute).id, orders[0], below


def _begun(node: Node, first: int, time: int, keys: list[int]) -> tuple[Node, Attribute, int]:
    """`CASE WHEN lag(time) OVER (PARTITION BY keys ORDER BY time) + gap > time THEN NULL ELSE time END` as `first`.

    Gives what it is over, its time column, and the gap.
    """
    project = _below_names(node)
    made, value = _only(project)
    parts = value.children
    _need(made == first and value.kind == "CaseWhen" and len(parts) == 3 and parts[0].kind == "GreaterThan")
    later, than = parts[0].children
    before, gap_us = _plus(later)
    _need(_is_null(parts[1]) and _a(than, Attribute).id == time == _a(parts[2], Attribute).id)
    call, found_keys, orders, below = _window(project.child, before)
    _need(call.kind == "Lag" and found_keys == keys and orders == [time])
    lagged, _, default = call.children
    _need(_a(lagged, Attribute).id == time and _is_null(default))
    named = _below_names(below)
    name, found = _only(named)
    column, child = _a(found, Attribute), _a(named.child, Filter)
    _need(name == time and _only_present(child, column))
    return child, column, gap_us


def _only_present(node: Filter, column: Attribute) -> bool:
    """Whether a filter lets rows through in which the column is not null, and no others."""
    condition = node.condition
    inner = condition.child if condition.kind == "Not" else condition
    wanted = "IsNull" if condition.kind == "Not" else "IsNotNull"
    return inner.kind == wanted and column.id in {a.id for a in inner.children if isinstance(a, Attribute)}


def _window(node: Node, made: int) -> tuple[Expr, list[int], list[int], Node]:
    """Of a `Window` node that computes nothing but `made`: the function, partition and order, and what it is over.

    The order ascends, and frames are those that the functions have where none is written.
    """
    node = _a(node, Window)
    functions, orders = node.functions, node.orders
    _need(len(functions) == 1 and functions[0].id == made and not any(o.falls for o in orders))
    call = _a(functions[0].value, WindowCall)
    parts, by = [_a(p, Attribute).id for p in node.partition], [_a(o.child, Attribute).id for o in orders]
    frame = call.spec.frame
    if call.function.kind == "Lag":
        _need(frame.lower.text == "-1" == frame.upper.text)
    else:
        _need(frame.lower.kind == "UnboundedPreceding")
        _need(frame.upper.kind == ("CurrentRow" if orders else "UnboundedFollowing"))
        _need(not orders or frame.unit == "RangeFrame")
    return call.function, parts, by, node.child


def _plus(e: Expr) -> tuple[int, int]:
    """A column and the microseconds added to it."""
    if e.kind == "Cast" and e.type in TIMES:
        e = e.child
    _need(e.kind == "TimestampAddInterval")
    column, interval = e.children
    us = interval.interval_us
    if us is None:
        raise _Other
    return _a(column, Attribute).id, us


def _is_null(e: Expr) -> bool:
    while e.kind == "Cast":
        e = e.child
    return isinstance(e, Literal) and e.value is None


def _computed(node: Project) -> list[Named]:
    """The columns of a projection that are not columns below it."""
    return [e for e in node.named if not isinstance(e, Attribute)]


def _only(node: Node) -> tuple[int, Expr]:
    """The id and the value of the one column that a projection computes."""
    computed = _computed(_a(node, Project))
    _need(len(computed) == 1 and isinstance(computed[0], Alias))
    return computed[0].id, computed[0].value


def _below_names(node: Node) -> Node:
    """The first node below names and projections that compute nothing."""
    while node.kind == "SubqueryAlias" or (isinstance(node, Project) and not _computed(node)):
        node = node.child
    return node
