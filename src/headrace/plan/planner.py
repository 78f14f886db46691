"""Planning of a view: query in, incremental plan out."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from headrace.common.columns import Column
from headrace.common.lazy_dataclass import dataclass
from headrace.errors import NotSupported, SparkLost
from headrace.plan import tolerance, tree
from headrace.plan.border_types import arrow_of, spark_of
from headrace.plan.catalyst.bridge import Bridge
from headrace.plan.catalyst.nodes import Node
from headrace.plan.derive import Derivation, Path, PlannedRelation
from headrace.plan.distinct import hidden
from headrace.plan.event_time import with_event_time
from headrace.plan.failures import translated
from headrace.plan.python import nondeterministic_call
from headrace.plan.sessions import marked
from headrace.plan.temporal import ClockLiteral
from headrace.plan.watermark_rules import NO_EVENT_TIME, EventTime
from headrace.sql.statements import LOOKUP_SUFFIX
from headrace.state.schema import HANDED, ROWS, TableSchema


@dataclass(frozen=True)
class ViewPlan:
    """All that is known of a planned view."""

    root: tree.Operator
    columns: tuple[Column, ...]
    schema: TableSchema
    """Layout of the view's own rows."""
    upstreams: tuple[int, ...]
    """Ids of the relations it reads."""
    fingerprint: str
    sink: Mapping[str, str] | None = None
    """Options of the sink that takes its changes; None for a view, which keeps its rows itself."""
    letters: TableSchema | None = None
    """The layout of the table for rows that the sink's target refuses; None where there is none."""
    hands_over: bool = False
    """Whether its changes go into a table: they are kept only until that has them."""
    event_time: EventTime = NO_EVENT_TIME
    on_error: str = tolerance.FAIL
    """What becomes of a row on which an expression fails."""
    generation: int = 0
    """Which of the planner's Spark applications it belongs to; in no other one can it be run."""

    @property
    def append_only(self) -> bool:
        """Whether no row of the view is ever taken back."""
        return self.root.append_only

    @property
    def lookups(self) -> frozenset[int]:
        """Ids of the relations in which it looks up rows as they are at each epoch."""
        return frozenset(r.relation for r in self._readings if not r.changes)

    @property
    def read_only_by_lookup(self) -> frozenset[int]:
        """Those of them of which it takes in no changes."""
        return self.lookups - {r.relation for r in self._readings if r.changes}

    @property
    def leaves(self) -> Mapping[str, int | None]:
        """Operators without any below them: id -> the relation that one reads; None for rows of the query itself."""
        found = {op.id: op.reading() for op in tree.walk(self.root) if not op.children}
        return {i: None if reading is None else reading.relation for i, reading in found.items()}

    @property
    def arrangements(self) -> frozenset[int]:
        """Ids of the tables and indexes in whose rows its joins look up what they would else keep."""
        return frozenset(s.relation for op in tree.walk(self.root) for s in op.shared().values())

    @property
    def sharable(self) -> tuple[tree.Sharable, ...]:
        """For each side that its joins keep and could look up in an index instead, the index; sorted."""
        return tuple(sorted(found for op in tree.walk(self.root) for found in op.sharable()))

    @property
    def changes_only(self) -> frozenset[int]:
        """Ids of the relations of which it never reads the content, but only what changes after its first epoch."""
        inputs = [r for r in self._readings if r.changes]
        return frozenset(r.relation for r in inputs) - {r.relation for r in inputs if r.content}

    @property
    def _readings(self) -> list[tree.OwnReading]:
        return tree.readings(self.root)

    @property
    def temporal(self) -> bool:
        """Whether its rows change as time passes, also when its inputs do not."""
        return any(op.by_clock for op in tree.walk(self.root))

    def into(self, sink: Mapping[str, str], letters: TableSchema | None = None) -> ViewPlan:
        """The plan that hands its changes to a sink; `letters` is the layout of the table of rows that it refuses."""
        return replace(self, sink=sink, letters=letters)

    def keyed(self, width: int) -> ViewPlan:
        """The plan whose rows are kept by their first columns: an index."""
        fields = self.schema.key
        return replace(self, schema=TableSchema(fields[:width], fields[width:], self.schema.diffs))

    def into_table(self, width: int) -> ViewPlan:
        """The plan whose changes go into a table with a primary key of so many columns, the first ones; 0 for none."""
        return replace(self.keyed(width) if width else self, hands_over=True)

    def state_tables(self) -> dict[str, TableSchema]:
        """Every state table by name; of a view its own rows (`view/rows`) are one."""
        own = {HANDED if self.hands_over else ROWS: self.schema} if self.sink is None else {}
        if self.letters is not None:
            own = {HANDED: self.letters}
        return {**tree.state_tables(self.root), **own}

    def explain(self) -> list[str]:
        """Lines for `EXPLAIN`."""
        names = ", ".join(f"{c.name} {c.type}" for c in self.columns)
        if self.sink is not None:
            return [f"sink {self.sink.get('connector')}: [{names}]", *tree.render(self.root)]
        if self.hands_over:
            return [f"into table: [{names}]", "    state into/rows: until the table has them", *tree.render(self.root)]
        return [f"materialize: [{names}]", "    state view/rows: all columns by weight", *tree.render(self.root)]


class Planner:
    """Plans views in a Spark session of its own. Safe to use from several threads."""

    def __init__(self, spark: SparkSession | None = None):
        """Without a session it keeps nothing of what is defined until `renew` gives it one."""
        self.generation = 0
        """How often it was given another Spark application."""
        self._lock = threading.RLock()
        self._leaves: dict[int, PlannedRelation] = {}
        self._names: dict[int, str] = {}
        self._earlier: dict[int, set[str]] = {}
        self._bridge: Bridge | None = None
        self._clock: ClockLiteral
        if spark is not None:
            self.renew(spark)

    @property
    def bridge(self) -> Bridge:
        """The way to Catalyst. Raises `SparkLost` before there is a Spark."""
        if self._bridge is None:
            raise SparkLost("Spark has not started yet", hint="run the statement again")
        return self._bridge

    @property
    def has_spark(self) -> bool:
        """Whether it was given a Spark application."""
        return self._bridge is not None

    def renew(self, spark: SparkSession) -> None:
        """Go on in another Spark application: no relation is defined there yet, no plan made before can be run."""
        with self._lock:
            self._bridge = Bridge(spark, self._lock)
            self._clock = ClockLiteral(self._bridge)
            self.generation += 1
            self._leaves.clear()
            self._names.clear()
            self._earlier.clear()

    def define(self, relation: PlannedRelation, columns: Iterable[Column], name: str) -> None:
        """Make a relation known to queries under `name`."""
        with self._lock:
            if not self.has_spark:
                return  # whoever brings one defines all that there is
            schema = StructType([StructField(c.name, self.bridge.spark_type_of(c.type), True) for c in columns])
            self._names[relation.id] = name
            self._define_leaf(schema, relation, name)
            if relation.primary_key:
                own = Path(relation.id, relation.name, relation.primary_key, frozenset(schema.names), True)
                self.define_path(relation, own)

    def define_earlier(self, relation: PlannedRelation, columns: Iterable[Column], name: str) -> None:
        """Make a relation known to queries under one more name, with the columns that it had at some time."""
        with self._lock:
            if self.has_spark:
                schema = StructType([StructField(c.name, self.bridge.spark_type_of(c.type), True) for c in columns])
                self._define_leaf(schema, relation, name)
                self._earlier.setdefault(relation.id, set()).add(name)

    def define_path(self, relation: PlannedRelation | int, path: Path) -> None:
        """Make known how the rows of a relation can be looked up. Of several ways the first that fits is taken."""
        with self._lock:
            if not self.has_spark:
                return
            if isinstance(relation, int):
                relation = next(r for r in self._leaves.values() if r.id == relation and not r.lookup)
            for leaf, known in self._leaves.items():
                if known.lookup and known.id == relation.id:
                    self._leaves[leaf] = replace(known, paths=(*known.paths, path))
                    return
            schema = self.relation_frame(relation.id).schema
            found = replace(relation, lookup=True, paths=(path,))
            self._define_leaf(schema, found, self._names[relation.id] + LOOKUP_SUFFIX)

    def _define_leaf(self, schema: StructType, relation: PlannedRelation, name: str) -> None:
        frame = self.bridge.relation(schema)
        leaf = self.bridge.analyzed(frame).leaf_id
        assert leaf is not None
        self._leaves[leaf] = relation
        frame.createOrReplaceTempView(name)

    def forget(self, relation_id: int) -> None:
        """Undo `define`."""
        with self._lock:
            self._leaves = {
                leaf: replace(r, paths=tuple(p for p in r.paths if p.relation != relation_id))
                for leaf, r in self._leaves.items()
                if r.id != relation_id
            }
            for earlier in self._earlier.pop(relation_id, ()):
                self.bridge.spark.catalog.dropTempView(earlier)
            name = self._names.pop(relation_id, None)
            if name is not None:
                self.bridge.spark.catalog.dropTempView(name)
                self.bridge.spark.catalog.dropTempView(name + LOOKUP_SUFFIX)

    def relation_frame(self, relation_id: int, name: str | None = None) -> DataFrame:
        """The relation as it stands in plans, without rows; or as it stands there under another name."""
        return self.bridge.spark.table(f"`{self._names[relation_id] if name is None else name}`")

    def plan(
        self, query: str | DataFrame, *, on_window_close: bool = False, arrangements: Collection[int] = (),
        on_error: str = tolerance.FAIL,
    ) -> ViewPlan:  # fmt: skip
        """The incremental plan of a Spark SQL query or of a DataFrame over defined relations.

        With `on_window_close` rows come out once the watermark has passed them, and never change. `arrangements` are
        the tables and indexes whose rows its joins may look up instead of keeping them, `on_error` what becomes of
        rows on which an expression fails. Raises `NotSupported` for what cannot be kept up to date, and the errors of
        Spark's own analysis as statement errors.
        """
        with translated():
            return self._now().plan(query, on_window_close, arrangements, on_error)

    def optimized(self, query: str) -> Node:
        """The optimized plan of a query: with all conditions where they are evaluated, and no column too many."""
        with translated():
            now = self._now()
            return now.optimized(now.analyzed(query))

    def columns_of(self, query: str) -> tuple[Column, ...]:
        """Names and types of a query's result, without running it."""
        with translated():
            now = self._now()
            return now.columns(now.analyzed(query))

    def _now(self) -> _Planning:
        with self._lock:
            return _Planning(self.bridge, self._clock, dict(self._leaves), self.generation)

    def relation_of(self, leaf: Node) -> int | None:
        """The id of the relation that a leaf of a plan stands for; None for any other node."""
        relation = self._leaves.get(leaf.leaf_id or -1)
        return None if relation is None else relation.id

    @property
    def lock(self) -> threading.RLock:
        """Held while what is defined changes, and while options of the session are set for a plan."""
        return self._lock


@dataclass(frozen=True)
class _Planning:
    """What one plan is made with: all of the same Spark application, whatever is defined meanwhile."""

    bridge: Bridge
    clock: ClockLiteral
    leaves: Mapping[int, PlannedRelation]
    generation: int

    def plan(
        self, query: str | DataFrame, on_window_close: bool, arrangements: Collection[int], on_error: str
    ) -> ViewPlan:  # fmt: skip
        """See `Planner.plan`."""
        analyzed = self.analyzed(query)
        optimized = self.optimized(marked(self.bridge, analyzed), on_error)
        return replace(self._plan(analyzed, optimized, on_window_close, arrangements), on_error=on_error)

    def analyzed(self, query: str | DataFrame) -> Node:
        """The analyzed plan of a query."""
        frame = self.bridge.spark.sql(query) if isinstance(query, str) else query
        return self.bridge.analyzed(frame)

    def optimized(self, analyzed: Node, on_error: str = tolerance.FAIL) -> Node:
        """The optimized plan, in the shape that the rules expect."""
        self._refuse_nondeterministic(analyzed)
        timed = tolerance.tolerant(self.bridge, self.clock, self.clock.marked(analyzed), on_error)
        return self.bridge.optimized_node(hidden(self.bridge, timed))

    def columns(self, analyzed: Node) -> tuple[Column, ...]:
        """Names and types of what a query gives."""
        return tuple(Column(a.name, spark_of(a).simpleString()) for a in analyzed.output)

    def _plan(
        self, analyzed: Node, optimized: Node, on_window_close: bool, arrangements: Collection[int]
    ) -> ViewPlan:  # fmt: skip
        b = self.bridge
        columns = self.columns(analyzed)
        _check_columns(columns)
        derivation = Derivation(b, self.leaves, self.clock, arrangements)
        handles = optimized.output
        root = derivation.derive(optimized, {h.id for h in handles})
        by_id = {a.id: a for a in root.output}
        root.output = [by_id[h.id] for h in handles]
        watermarks = {r.id: r.watermark for r in self.leaves.values() if r.watermark is not None}
        names = [c.name for c in columns]
        root, event_time = with_event_time(root, watermarks, on_window_close, names)
        tree.number(root)
        key = tuple(pa.field(c.name, arrow_of(h)) for c, h in zip(columns, handles))
        upstreams = dict.fromkeys(r.relation for r in tree.readings(root))
        schema = TableSchema(key=key, value=(), diffs=tree.WEIGHT)
        found, generation = tree.fingerprint(root), self.generation
        return ViewPlan(
            root, columns, schema, tuple(upstreams), found, event_time=event_time, generation=generation
        )  # fmt: skip

    def _refuse_nondeterministic(self, analyzed: Node) -> None:
        b = self.bridge
        for node in _nodes(b, analyzed):
            for expression in node.expressions:
                name = nondeterministic_call(expression)
                if name is not None:
                    raise NotSupported(
                        f"the Python function {name} in a view: it is not declared deterministic",
                        hint="if equal arguments always give equal results, declare it so: asDeterministic() of a "
                        "table function, IMMUTABLE in CREATE FUNCTION; else compute its values when rows are inserted",
                    )
                if not expression.is_deterministic and expression.kind != "LateralSubquery":
                    raise NotSupported(
                        f"the nondeterministic expression {expression.text} in a view",
                        hint="compute such values when rows are inserted, and store them",
                    )


def _nodes(b: Bridge, node: Node) -> Iterator[Node]:
    yield node
    for child in node.children:
        yield from _nodes(b, child)
    for inner in node.subqueries:
        yield from _nodes(b, inner)


def _check_columns(columns: Iterable[Column]) -> None:
    seen: set[str] = set()
    for c in columns:
        if c.name in seen:
            raise NotSupported(f"two columns of the view are named {c.name}", hint="give one of them another alias")
        if c.name.startswith("__"):
            raise NotSupported(f"the column name {c.name}", hint="names that begin with two underscores are reserved")
        seen.add(c.name)


__all__ = ["Path", "Planner", "PlannedRelation", "ViewPlan"]
