"""One simulated database: the real coordinator, catalog and state store, beside a plain dictionary of versions."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import threading
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
from state_kernel import CALM, Crash, Durable, FaultyOs, Kernel, MemoryStore, Odds, SwitchingCondition, SwitchingLock

from headrace.catalog.catalog import Catalog
from headrace.catalog.contents import MaterializedViewContent, TableContent
from headrace.catalog.edits import EditRejected, RaiseWatermark
from headrace.catalog.records import ObjectRecord, StateTableRecord
from headrace.common import faults
from headrace.common.clock import ManualClock
from headrace.common.columns import Column, arrow_schema
from headrace.common.epoch import TOLERATED_AHEAD_MS, epoch_ms, from_unix_ms
from headrace.config import Settings
from headrace.coordinator import Coordinator, TableChange
from headrace.coordinator.decide.query_epochs import Monotonic
from headrace.coordinator.reads import ReadOptions
from headrace.coordinator.run import live_state as live_state_module
from headrace.coordinator.run.driver import Driver
from headrace.coordinator.run.live_state import Job
from headrace.coordinator.writes.settling import restore
from headrace.dataflow.epoch_result import EpochResult
from headrace.dataflow.params import EpochParams
from headrace.errors import (
    EpochTooNew,
    EpochTooOld,
    HeadraceError,
    JobFailed,
    SnapshotUnavailable,
    StorageError,
    UndefinedTable,
)
from headrace.plan.tree import Sharable
from headrace.plan.watermark_rules import NO_EVENT_TIME, EventTime
from headrace.state import objects as objects_module
from headrace.state import run as run_module
from headrace.state.arrangement import Arrangement, slice_bounds, slice_of
from headrace.state.kernels import concat, consolidate, int64_values
from headrace.state.run import OPEN_RUNS, RunCache, Section, write_run
from headrace.state.schema import ROWS, RunRef, TableSchema

COLUMNS = (Column("n", "bigint"), Column("v", "bigint"))
WEIGHT = ((pa.field("__w", pa.int64(), nullable=False), "add"),)
SCHEMA = TableSchema((pa.field("n", pa.int64()),), (pa.field("v", pa.int64()),), WEIGHT)
"""Layout of views and of the table with a key."""
EXPIRING = TableSchema(SCHEMA.key, SCHEMA.value, WEIGHT, expires="n")
"""Layout of a view's own state, whose rows expire by `n`."""
STATE = "0/state"
MAY_FAIL = ("table.commit.before", "commit.acked", "commit.before", "backfill.done.before", "compaction.merge.after")
SCRATCH = "/dev/shm" if os.path.isdir("/dev/shm") else None

Row = tuple[int | None, int | None]
Rows = Counter[Row]


@dataclass(frozen=True)
class Plan:
    """A view that is a copy of its input, with one state table beside its rows."""

    upstreams: tuple[int, ...]
    columns: tuple[Column, ...] = COLUMNS
    schema: TableSchema = SCHEMA
    append_only: bool = False
    fingerprint: str = "copy"
    generation: int = 0
    event_time: EventTime = NO_EVENT_TIME
    temporal: bool = False
    lookups: frozenset[int] = frozenset()
    read_only_by_lookup: frozenset[int] = frozenset()
    arrangements: frozenset[int] = frozenset()
    sharable: tuple[Sharable, ...] = ()
    changes_only: frozenset[int] = frozenset()

    def state_tables(self) -> dict[str, TableSchema]:
        return {ROWS: SCHEMA, STATE: EXPIRING}


class Planner:
    generation = 0

    def define(self, relation: Any, columns: Any, name: str) -> None: ...

    def forget(self, relation_id: int) -> None: ...

    def plan(
        self, sql: str, *, on_window_close: bool = False, arrangements: Any = (), on_error: str = "fail"
    ) -> Plan:  # fmt: skip
        return Plan((int(sql),))


def net(rows: Iterable[tuple[Row, int]]) -> Rows:
    total: Rows = Counter()
    for row, weight in rows:
        total[row] += weight
    return Counter({row: weight for row, weight in total.items() if weight})


def unexpired(rows: Rows, watermark: int | None) -> Rows:
    return rows if watermark is None else Counter({r: w for r, w in rows.items() if r[0] is None or r[0] >= watermark})


def as_rows(batches: Iterable[pa.RecordBatch]) -> Rows:
    return net(
        ((n, v), w)
        for b in batches
        for n, v, w in zip(*(b.column(c).to_pylist() for c in ("n", "v", "__w")), strict=True)
    )


class Model:
    """What every state table holds: all changes by epoch, and the two epochs of its version."""

    def __init__(self) -> None:
        self.changes: defaultdict[int, dict[int, Rows]] = defaultdict(dict)
        self.committed: dict[int, int] = {}
        self.safe: dict[int, int] = {}
        self.watermark: dict[int, int] = {}
        self.intents: dict[int, Rows] = {}
        """What a write that is under way will have done, should it commit."""
        self.base: dict[int, int] = {}
        """A view's state table -> the state table of the rows that it copies."""

    def log(self, table: int, after: int, up_to: int) -> Rows:
        changes = self.changes[table].items()
        return net(item for epoch, rows in changes if after < epoch <= up_to for item in rows.items())

    def content(self, table: int, epoch: int) -> Rows:
        return self.log(table, 0, epoch)

    def told(self, records: list[StateTableRecord], written: dict[int, set[int]]) -> None:
        """A transaction is durable."""
        for r in records:
            before, safe = self.committed.get(r.id, 0), self.safe.get(r.id, 0)
            assert r.committed_epoch >= before, f"I6: table {r.id} went back from {before} to {r.committed_epoch}"
            assert r.safe_epoch >= safe, f"I6: the safe epoch of table {r.id} went back from {safe} to {r.safe_epoch}"
            assert r.safe_epoch <= r.committed_epoch
            self.committed[r.id], self.safe[r.id] = r.committed_epoch, r.safe_epoch
            if r.watermark is not None:
                assert r.watermark >= self.watermark.get(r.id, 0), f"FS-19: the watermark of table {r.id} went back"
                self.watermark[r.id] = r.watermark
            if r.committed_epoch > before:
                if r.id in self.base:
                    # One checkpoint may make several epochs visible, each of them under its own number.
                    for epoch in sorted({*written.get(r.id, ()), r.committed_epoch}):
                        now = self.content(self.base[r.id], epoch)
                        self.changes[r.id][epoch] = net(
                            [*now.items(), *((row, -w) for row, w in self.content(r.id, epoch).items())]
                        )
                else:
                    # Without a run it is only taken along by a checkpoint of what is built on it.
                    self.changes[r.id][r.committed_epoch] = self.intents[r.id] if r.id in written else Counter()


class CopyRunner:
    """Runs a view's epoch as a job would: reads the log of its input, checks its own state, writes in slices."""

    def __init__(self, world: World, schemas: dict[int, TableSchema | None]):
        self._world, self._schemas = world, schemas

    def run(self, params: EpochParams, parallelism: int) -> EpochResult:
        try:
            return self._run(params)
        except AssertionError as error:
            self._world.wrong = error  # the driver would only try again
            raise

    def run_with(
        self, params: EpochParams, parallelism: int, others: Sequence[tuple[CopyRunner, EpochParams, int]]
    ) -> list[EpochResult]:
        return [self.run(params, parallelism), *(r.run(p, n) for r, p, n in others)]

    def _run(self, params: EpochParams) -> EpochResult:
        world = self._world
        own = params.state[STATE]
        # Raised by the catalog alone here, without a plan that says why: it is not among the parameters.
        assert own.watermark is None
        watermark = world.model.watermark.get(own.table_id)
        ((upstream, table),) = params.tables.items()
        schema = self._schemas[upstream]
        assert schema is not None
        source = Arrangement(schema, table.refs, params.root, as_of=params.to_epoch, cache=RunCache())
        if params.first:
            found = list(world.slowly(source.scan()))
        else:
            found = list(world.slowly(source.log(params.from_epoch, params.to_epoch)))
        base = world.rows_table(upstream)
        expected = world.model.log(base, 0 if params.first else params.from_epoch, params.to_epoch)
        assert as_rows(found) == expected, f"input of the epoch ({params.from_epoch}, {params.to_epoch}]"
        state = Arrangement(EXPIRING, own.refs, params.root, watermark=watermark, cache=RunCache())
        # It copies its input; what it has of an epoch before this one need not be committed yet.
        content = unexpired(world.model.content(base, params.from_epoch), watermark)
        assert as_rows(world.slowly(state.scan())) == content, "own state"
        return EpochResult(self._write(params, [world.restored(b) for b in found]), rows_in=1, rows_out=1)

    def _write(self, params: EpochParams, found: list[pa.RecordBatch]) -> list[RunRef]:
        rows = consolidate(concat(found, SCHEMA.arrow()), SCHEMA)
        tasks = self._world.rng.randint(1, 2)
        slices = slice_of(int64_values(rows.column(0)), tasks)
        refs: list[RunRef] = []
        for i in range(tasks):
            part = rows.filter(pa.array(slices == i))
            layouts = ((ROWS, SCHEMA), (STATE, EXPIRING))
            sections = [Section(params.state[n].table_id, s, [part], params.to_epoch) for n, s in layouts]
            refs += write_run(params.root, f"{params.prefix}/{i}.run", sections, fsync=params.sync)
        return refs

    def cancel(self, attempt: str) -> None: ...


class World:
    """A database in which things happen, one seed at a time. Raises `AssertionError` as soon as anything is wrong."""

    def __init__(self, seed: int, root: Path):
        rng = self.rng = random.Random(seed)
        self.kernel = Kernel(rng, CALM)
        self.odds = Odds(rng.choice([0, 0.002, 0.01]), rng.choice([0, 0.005, 0.03]), rng.choice([0.05, 0.2, 0.6]))
        self.clock = ManualClock()
        self.os = FaultyOs(self.kernel, self.clock.now_ms, root / "state")
        self.model = Model()
        self.durable = Durable(self.model.told)
        self.sync = rng.random() < 0.5
        self.settings = Settings(
            data_dir=root, parallelism=8, barrier_interval_ms=1000, run_fsync=self.sync,
            compaction_trigger_runs=rng.randint(2, 4), compaction_fan_in=rng.randint(2, 6),
            retention_ms=rng.choice([0, 200, 3000]), vacuum_grace_ms=rng.choice([0, 300, 3000]),
            group_retry_initial_ms=10, group_retry_max_ms=100, max_in_flight_epochs=1 + seed % 3,
        )  # fmt: skip
        # In some, epochs are held until the next checkpoint.
        self.options = {"barrier_interval_ms": "0", "checkpoint_interval_ms": "50"} if seed % 4 == 1 else {}
        self.held: dict[int, tuple[int, int]] = {}
        """Epochs that a reader of this process holds on to: token -> (relation, epoch)."""
        self.writing: set[int] = set()
        self.safe_seen: dict[int, int] = {}
        self.newest_ms = 0
        self.wrong: AssertionError | None = None
        self._checked = (-1, -1)
        self.start()
        self.os.settle()

    # ---- the process

    def start(self) -> None:
        """Open the database, as a server does."""
        self.catalog = Catalog.over(MemoryStore(self.durable, self.kernel), clock=self.clock)
        with mock.patch.object(live_state_module, "Waiters", partial(SwitchingCondition, self.kernel)):
            made: Any = Coordinator(
                self.settings, self.catalog, Planner(), self.clock,  # type: ignore[arg-type]
                make_runner=lambda plan, schemas: CopyRunner(self, dict(schemas)),
            )  # fmt: skip
        self.c: Any = made
        core = self.core = made._core
        core.locks.committing, core.locks.raising = SwitchingLock(self.kernel), SwitchingLock(self.kernel)
        for part, lock in ((core.live.epochs, "_reserving"), (made._parts.vacuum, "_passing")):
            setattr(part, lock, SwitchingLock(self.kernel))
        core.guard.note = self.not_expected
        core.storage.store.prepare()
        made._parts.owner.claim()
        restore(self.catalog, core.storage.root)
        made._parts.life.lanes.launch = self.drive
        self.lanes: set[tuple[str, int | None]] = set()
        made._parts.planning.recover()
        made._parts.planning.define()
        made._parts.planning.plan()  # which lets each job run
        for job in core.live.graph.jobs.values():
            self.note_base(job)

    def not_expected(self, name: str, error: Exception) -> None:
        """What runs in the background fails only as it is built to fail."""
        self.wrong = self.wrong or AssertionError(f"{name} failed: {error!r}")
        raise self.wrong from error

    def restart(self) -> None:
        """The process has died; another one takes its place."""
        power = self.sync and self.rng.random() < 0.5
        self.kernel.note(f"restart{' after a power failure' if power else ''}")
        self.kernel.bury()
        self.os.die(power=power)
        OPEN_RUNS.clear()
        objects_module._durable.clear()
        self.held.clear()
        self.writing.clear()
        self.safe_seen.clear()
        self.start()

    def drive(self, job: Job) -> None:
        """What stands for the thread of a job's lane."""
        key = (job.group, None if job.joined else job.id)
        if key in self.lanes:
            return
        self.lanes.add(key)
        driver = Driver(
            self.core, *key, compact=lambda: None, launch=self.drive, retire=partial(self.lanes.discard, key),
            spawn=partial(self.kernel.spawn, f"commit {job.id}"),
        )  # fmt: skip
        self.kernel.spawn(f"job {job.id}", driver.run, lasting=True)

    # ---- definitions

    def create_table(self, keyed: bool) -> None:
        record = ObjectRecord(
            0, TableContent(), "public", self.name(), COLUMNS, primary_key=("n",) if keyed else ()
        )  # fmt: skip
        self.c.create_relation(record)

    def create_view(self, upstream: int) -> None:
        """A view over a relation; it copies what the table at the bottom has."""
        record = ObjectRecord(
            0, MaterializedViewContent(spark_sql=str(upstream)), "public", self.name(), options=self.options
        )
        job = self.c._parts.life.create_view(record, Plan((upstream,)))
        self.note_base(job)
        self.drive(job)

    def note_base(self, job: Job) -> None:
        """Tell the model what a view's tables are a copy of."""
        upstream = self.rows_table(job.upstreams[0])
        for table in job.tables.values():
            self.model.base[table] = self.model.base.get(upstream, upstream)

    def drop(self, relation: int) -> None:
        """Drop a relation on which nothing is built."""
        job = self.core.live.graph.jobs.get(relation)
        if job is not None:
            job.withdraw()
            with self.core.live.changed:
                self.core.live.changed.notify_all()
            while any(t.name == f"job {relation}" for t in self.kernel.tasks):
                self.kernel.switch()
        try:
            self.c.drop([relation])
        except StorageError:
            if job is not None and not self.c._parts.life.undecided:
                job.reinstate()  # it was stopped here, ahead of time
                self.drive(job)
            raise

    def name(self) -> str:
        return f"r{uuid.uuid4().hex[:8]}"

    def rows_table(self, relation: int) -> int:
        return int(self.core.live.graph.relations[relation].state_table)

    def relations(self, *kinds: str) -> list[int]:
        return sorted(i for i, r in self.core.live.graph.relations.items() if not kinds or r.record.kind in kinds)

    # ---- pieces

    def slowly(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Others may run between two batches."""
        for batch in batches:
            yield batch
            self.kernel.step("reading")

    def think(self) -> None:
        """A reader takes its time."""
        for _ in range(self.rng.choice([0, 0, 20, 40])):
            self.kernel.switch()

    def restored(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows in the layout of the views, whatever the layout of what they are read from."""
        from headrace.state.table_changes import stored_rows

        made = stored_rows(SCHEMA, batch.select(["n", "v"]), 1)
        return made.set_column(made.num_columns - 1, made.schema.field(-1), batch.column("__w"))

    @contextmanager
    def hold(self, relation: int, epoch: int, token: int | None = None) -> Iterator[int]:
        """Tell the checks that a reader needs an epoch."""
        made = self.core.storage.pins.pin([relation], epoch) if token is None else token
        self.held[made] = (relation, epoch)
        try:
            yield made
        finally:
            self.held.pop(made, None)
            if token is None:
                self.core.storage.pins.unpin(made)

    def check_content(
        self,
        table: int,
        refs: Sequence[RunRef],
        epoch: int,
        schema: TableSchema,
        *,
        watermark: int | None = None,
        cache: RunCache | None = None,
    ) -> None:
        """Every way to read the content at an epoch says the same as the model."""
        expected = unexpired(self.model.content(table, epoch), watermark)
        arrangement = Arrangement(
            schema, refs, self.core.storage.root, as_of=epoch, watermark=watermark, cache=cache or RunCache()
        )
        parts = self.rng.randint(1, 2)
        found: list[pa.RecordBatch] = []
        for i in range(parts):
            found += self.slowly(arrangement.scan(*slice_bounds(i, parts), chunk_rows=self.rng.choice([3, 1000])))
        assert as_rows(found) == expected, f"scan of table {table} at {epoch}"
        if found:
            keys = np.unique(np.concatenate([int64_values(b.column(0)) for b in found]))
            assert as_rows([arrangement.fetch(keys)]) == expected, f"fetch from table {table} at {epoch}"

    def check_log(self, table: int, refs: Sequence[RunRef], after: int, up_to: int, schema: TableSchema) -> None:
        """The log of a range, epoch by epoch."""
        arrangement = Arrangement(schema, refs, self.core.storage.root, cache=RunCache())
        found = list(self.slowly(arrangement.log(after, up_to, with_epoch=True)))
        by_epoch: dict[int, list[tuple[Row, int]]] = defaultdict(list)
        for b in found:
            columns = (b.column(c).to_pylist() for c in ("n", "v", "__w", "__e"))
            for n, v, w, e in zip(*columns, strict=True):
                by_epoch[e].append(((n, v), w))
        got = {e: net(rows) for e, rows in by_epoch.items()}
        changes = self.model.changes[table].items()
        expected = {e: rows for e, rows in changes if after < e <= up_to and rows}
        assert {e: r for e, r in got.items() if r} == expected, f"log of table {table} in ({after}, {up_to}]"

    def version(self, table: int) -> list[RunRef]:
        with self.catalog.reading() as state:
            return [r.ref for r in state.runs_of(table)]

    # ---- what holds at all times

    def check(self) -> None:
        """After every step of any task."""
        if self.wrong is not None:
            raise self.wrong
        if self.kernel.dead:
            return
        core, image = self.core, self.catalog.image
        self.newest_ms = max(self.newest_ms, self.clock.now_ms())
        for i, relation in core.live.graph.relations.items():
            if relation.schema is None:
                continue
            safe, committed = relation.safe, self.model.committed.get(relation.state_table, 0)
            assert safe >= self.safe_seen.get(i, 0), f"I6: safe epoch of {i} went back"
            self.safe_seen[i] = safe
            assert safe <= committed, f"safe epoch {safe} of {i} is above {committed}"
            newest_ms = max(self.newest_ms, epoch_ms(core.live.graph.complete) - TOLERATED_AHEAD_MS)
            retention = from_unix_ms(newest_ms - self.settings.retention_ms)
            assert safe <= retention, f"PC-8: safe epoch of {i} passed retention"
            for job in core.live.graph.consumers(i):
                assert not job.committed or safe <= job.committed, f"PC-17: safe epoch of {i} passed reader {job.id}"
        for relation_id, epoch in self.held.values():
            found = core.live.graph.relations.get(relation_id)
            assert found is None or found.safe <= epoch, f"PC-8: safe epoch {found.safe} passed the pin {epoch}"
        for job in core.live.graph.jobs.values():
            for upstream in job.upstreams:
                self._check_order(job, upstream)
        now = (self.durable.config.get("sequence", 0), self.os.deletes)
        if self._checked != now:
            self._checked = now
            for run in image.runs.values():
                try:
                    size = os.stat(os.path.join(core.storage.root, run.ref.path)).st_size
                except FileNotFoundError:
                    raise AssertionError(f"I8: {run.ref.path} is referenced and missing") from None
                assert size >= run.ref.offset + run.ref.length, f"I8: {run.ref.path} is cut off"

    def _check_order(self, job: Job, upstream: int) -> None:
        """PC-16. After a restart a merged run hides where its table did not change: then the model knows it."""
        ahead = self.core.live.graph.frontier(upstream)
        if ahead < job.committed:
            base = self.rows_table(upstream)
            changes = self.model.changes[self.model.base.get(base, base)].items()
            passed = [e for e, rows in changes if ahead < e <= job.committed and rows]
            assert not passed, f"PC-16: {job.id} is at {job.committed}, {upstream} at {ahead}"

    def objects(self) -> set[str]:
        files = (path for path in Path(self.core.storage.root).rglob("*") if path.is_file())
        names = (path.relative_to(self.core.storage.root).as_posix() for path in files)
        return {name for name in names if not name.startswith("owner/")}


@contextmanager
def simulated(seed: int) -> Iterator[World]:
    """A new database on a disk in memory, whose every step follows from the seed."""
    rng = random.Random(seed ^ 0x5EED)
    folder = Path(tempfile.mkdtemp(prefix="headrace-simulation-", dir=SCRATCH))
    world: World | None = None

    ours = threading.get_ident()

    def fault_point(name: str) -> None:
        if threading.get_ident() != ours:
            return  # a thread that another test has left behind
        assert world is not None
        world.kernel.step(name)
        if name in MAY_FAIL and world.kernel.fails(name):
            raise StorageError(f"injected at {name}")

    random.seed(seed)
    try:
        with (
            mock.patch.object(run_module, "RUN_BATCH_ROWS", 8),
            mock.patch.object(run_module, "INDEX_STRIDE", 4),
            mock.patch.object(uuid, "uuid4", lambda: uuid.UUID(int=rng.getrandbits(128))),
            mock.patch.object(
                objects_module, "secrets", SimpleNamespace(token_hex=lambda n: f"{rng.getrandbits(32):08x}")
            ),
            mock.patch.object(faults, "_pass", fault_point),
            mock.patch.object(faults, "_armed", {"simulation": object()}),
        ):
            world = World(seed, folder)
            with mock.patch.object(objects_module, "os", world.os):
                yield world
    finally:
        if world is not None:
            world.kernel.bury()
        OPEN_RUNS.clear()
        shutil.rmtree(folder, ignore_errors=True)


# ---- what happens


def write(world: World, relation: int) -> None:
    """Insert, replace and delete rows; the model says what that does."""
    table = world.rows_table(relation)
    keyed = bool(world.core.live.graph.relations[relation].record.primary_key)
    rng = world.rng

    def some() -> list[Row]:
        return [(rng.randint(0, 6), rng.randint(0, 2)) for _ in range(rng.randint(0, 5))]

    puts, takes = some(), some() if rng.random() < 0.5 else []
    before = world.model.content(table, world.model.committed.get(table, 0))
    after = changed_by_key(before, puts, takes) if keyed else changed_by_count(before, puts, takes)
    world.model.intents[table] = net([*after.items(), *((row, -w) for row, w in before.items())])
    committed = world.model.committed.get(table, 0)
    world.writing.add(relation)
    try:
        done = world.c.write(relation, TableChange(batch(puts), batch(takes)))
        if world.model.intents[table]:
            assert world.model.changes[table].get(done.epoch), "a write that returned is committed"
        world.kernel.note(f"wrote {done.inserted} and took {done.deleted} rows at {done.epoch}")
    except HeadraceError as error:
        world.kernel.note(f"write failed: {error.message}")
        check_injected(error)
        if any(rows for epoch, rows in world.model.changes[table].items() if epoch > committed):
            assert "catalog" in error.message or "no answer" in error.message, "a write that failed is not there"
    finally:
        world.writing.discard(relation)


def changed_by_key(before: Rows, puts: list[Row], takes: list[Row]) -> Rows:
    rows = dict(before.keys())
    for n, _ in takes:
        rows.pop(n, None)
    rows.update(puts)
    return Counter(rows.items())


def changed_by_count(before: Rows, puts: list[Row], takes: list[Row]) -> Rows:
    after = before.copy()
    for row in takes:
        if after[row] > 0:
            after[row] -= 1
    return net([*after.items(), *((row, 1) for row in puts)])


def batch(rows: list[Row]) -> pa.RecordBatch:
    columns = [pa.array([r[i] for r in rows], pa.int64()) for i in range(2)]
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(COLUMNS))


def read(world: World) -> None:
    """A snapshot of some relations at one epoch, inside or outside of what is readable; reads it slowly, twice."""
    rng, core = world.rng, world.core
    ids = rng.sample(world.relations(), rng.randint(1, min(2, len(world.relations()))))
    oldest, complete = max(core.live.graph.relations[i].safe for i in ids), core.live.epochs.complete
    at = rng.choice([None, oldest, oldest - 1, complete, complete + 1, rng.randint(oldest, max(complete, oldest))])
    try:
        monotonic: Monotonic = rng.choice(["strict", "off"])
        snapshot = world.c.snapshot(ids, options=ReadOptions(at=at, timeout_s=0.0, monotonic=monotonic))
    except EpochTooOld:
        assert at is not None and at < oldest, f"{at} lies in [{oldest}, {complete}]"
        return
    except EpochTooNew:
        assert at is not None and at > complete, f"{at} lies in [{oldest}, {complete}]"
        return
    except SnapshotUnavailable:
        assert any(not core.live.graph.relations[i].writable for i in ids), "tables can always be read"
        return
    except StorageError as error:
        check_injected(error)
        return
    assert at is None or oldest <= at <= complete, f"PC-7: a snapshot outside of [{oldest}, {complete}] at {at}"
    with snapshot:
        for i, table in snapshot.tables.items():
            world.held[-id(table)] = (i, snapshot.epoch)
        try:
            for _ in range(rng.randint(1, 2)):
                world.think()
                for i, table in snapshot.tables.items():
                    known = world.model.base
                    state_table = core.live.graph.relations[i].state_table if i in core.live.graph.relations else None
                    if state_table is None:
                        continue
                    world.check_content(state_table, table.refs, snapshot.epoch, table.schema)
                    below = known.get(state_table, state_table)
                    assert world.model.content(below, snapshot.epoch) == world.model.content(
                        state_table, snapshot.epoch
                    ), f"relation {i} is not exact at {snapshot.epoch}"
        except StorageError as error:
            check_injected(error)
        finally:
            for table in snapshot.tables.values():
                world.held.pop(-id(table), None)


def follow(world: World) -> None:
    """A reader of a relation's log that keeps its position pinned, as a subscription does."""
    relation = world.rng.choice(world.relations())
    core, table = world.core, world.rows_table(relation)
    schema = core.live.graph.relations[relation].schema
    with core.live.lock:
        safe, committed = core.live.graph.relations[relation].safe, world.model.committed.get(table, 0)
        position = world.rng.randint(safe, committed)
        token = core.storage.pins.pin([relation], position)
    world.held[token] = (relation, position)
    try:
        for _ in range(world.rng.randint(1, 4)):
            if relation not in core.live.graph.relations:
                return
            with world.catalog.reading() as state:
                refs = [r.ref for r in state.runs_of(table)]
                now = state.state_tables[table].committed_epoch
                core.storage.pins.hold(token, {r.path for r in refs})
            # Of history at or below the position nothing is asked.
            world.check_log(table, refs, position, now, schema)
            with core.live.lock:
                moved = core.storage.pins.pin([relation], now)
                core.storage.pins.unpin(token)
            world.held.pop(token)
            token, position = moved, now
            world.held[token] = (relation, position)
            world.kernel.step("following")
    except StorageError as error:
        check_injected(error)
    finally:
        world.held.pop(token, None)
        core.storage.pins.unpin(token)


def inspect(world: World) -> None:
    """Another process that looks at the catalog and reads what it says, without a pin: for the grace period it can."""
    grace_ms = world.settings.vacuum_grace_ms
    image = Catalog.over(MemoryStore(world.durable, world.kernel), read_only=True).image
    began_ms = world.clock.now_ms()
    world.think()
    for record in image.state_tables.values():
        refs = [r.ref for r in image.runs_of(record.id)]
        try:
            schema, at = record.to_table_schema(), record.committed_epoch
            world.check_content(record.id, refs, at, schema, watermark=record.watermark)
        except StorageError as error:
            lost = "missing" in error.message
            assert not lost or world.clock.now_ms() - began_ms >= grace_ms, f"within the grace period: {error.message}"
            return


def expire(world: World) -> None:
    """Raise the watermark of a view's state; nothing lowers it, whatever is asked for."""
    tables = sorted(t for t, base in world.model.base.items() if t in world.catalog.image.state_tables)
    tables = [t for t in tables if world.catalog.image.state_tables[t].operator == STATE]
    if not tables:
        return
    table, wanted = world.rng.choice(tables), world.rng.randint(0, 5)
    before = world.model.watermark.get(table, 0)
    try:
        world.catalog.transact([RaiseWatermark(table, wanted)])
        assert wanted >= before
        world.kernel.note(f"watermark of {table}: {wanted}")
    except EditRejected:
        assert wanted < before, f"from {before} to {wanted}"
    except StorageError as error:
        check_injected(error)


def compact(world: World) -> None:
    with_errors(world, "compaction", world.c.compact)


def settle(world: World) -> None:
    with_errors(world, "settling", world.c._parts.writer.settling.pass_once)


def vacuum(world: World) -> None:
    for _ in range(world.rng.randint(1, 3)):
        with_errors(world, "vacuum", world.c.vacuum)
        world.kernel.step("vacuum again")


def with_errors(world: World, what: str, work: Callable[[], int]) -> None:
    try:
        count = work()
        if count:
            world.kernel.note(f"{what}: {count}")
    except HeadraceError as error:
        world.kernel.note(f"{what} failed: {error.message}")
        check_injected(error)


def check_injected(error: HeadraceError) -> None:
    """An error that the simulation has caused, not one of a missing or damaged object."""
    assert "injected" in f"{error.message} {error.detail}", repr(error)


def define(world: World) -> None:
    """Create or drop a view, or a table."""
    rng = world.rng
    relations = world.relations()
    with suppress(StorageError, UndefinedTable):
        graph = world.core.live.graph
        idle = [
            i for i in relations
            if not graph.consumers(i) and i not in world.writing and not graph.relations[i].dropped
        ]  # fmt: skip
        if len(relations) > 3 and idle and not world.writing and rng.random() < 0.6:
            victim = rng.choice(idle)
            if graph.relations[victim].writable or len(graph.jobs) > 0:
                world.writing.add(victim)
                world.kernel.note(f"drop {victim}")
                world.drop(victim)
        elif rng.random() < 0.6 and relations:
            world.create_view(rng.choice(relations))
        else:
            world.create_table(rng.random() < 0.5)


__all__ = ["COLUMNS", "Crash", "JobFailed", "World", "simulated"]
