"""The coordinator: epochs, barriers, checkpoint groups, writes and reads of one database.

Jobs that share a checkpoint group step, commit and fail together; by default each view has a group of its own. A group
has a thread that runs its epochs, commits them, and retries them by itself. Epochs come from one clock; a tick binds
sources, a write to a table has an epoch of its own, and a view runs to an epoch once everything at or below it is
complete.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import NamedTuple, TypeVar

from headrace.catalog.catalog import Catalog
from headrace.catalog.following import Refreshed
from headrace.catalog.records import ObjectRecord, RemapRecord
from headrace.common.clock import Clock, SystemClock
from headrace.common.columns import Column
from headrace.config import Settings
from headrace.connectors.base import SlotStanding
from headrace.connectors.sources import Secrets
from headrace.coordinator.assembly import Assembly
from headrace.coordinator.ddl.renaming import Renamed, rename
from headrace.coordinator.decide.lease import Lease
from headrace.coordinator.observe import arrival
from headrace.coordinator.observe.epoch_history import Checkpoint, RowErrors
from headrace.coordinator.observe.metrics import Metric, collect
from headrace.coordinator.observe.progress import AttemptProgress
from headrace.coordinator.observe.status import EdgeStatus, GroupStatus, JobStatus, RelationEpochs
from headrace.coordinator.observe.watchdog import Barrier
from headrace.coordinator.reads import (
    CHECK_S,
    DEFAULT_WAIT_S,
    NEWEST,
    Beside,
    KnownRuns,
    Later,
    ReadOptions,
    Snapshot,
)
from headrace.coordinator.run.application import SPARK_STARTS
from headrace.coordinator.run.lanes import STOP_WAIT_S
from headrace.coordinator.run.live_state import LiveRelation, RunnerFactory
from headrace.coordinator.run.standby import StandbyStatus
from headrace.coordinator.subscriptions import Feed
from headrace.coordinator.upkeep.leftovers import Leftover
from headrace.coordinator.writes.layout import Key, Row
from headrace.coordinator.writes.requests import Request, TableWrite, WriteResult
from headrace.coordinator.writes.table_rows import TableRows
from headrace.coordinator.writes.transaction import WriteTransaction
from headrace.coordinator.writes.writer import Writer
from headrace.dataflow.kept_plans import PlanFiles
from headrace.errors import (
    Fenced,
    HeadraceError,
    SnapshotUnavailable,
    StatementError,
)
from headrace.plan.planner import Planner, ViewPlan
from headrace.state.memory import MemoryUse
from headrace.state.merge import MergeRunner
from headrace.state.stores import StoreRoot
from headrace.state.table_changes import TableChange

T = TypeVar("T")

_PACES = ("barrier_interval_ms", "checkpoint_interval_ms")
"""Settings that say when a job may run next."""


class _Question(NamedTuple):
    """What a query wants to know of a source: whether there is more than is bound."""

    since_s: float
    """When it came up, by the monotonic clock."""
    binding: RemapRecord | None
    """The newest one then."""


class Coordinator:
    """Runs one database. The catalog is opened, and closed, by the caller. Thread-safe.

    `failed` is set, and `failure` says why, when it has to stop by itself: another process has opened the
    database. After that every call raises.

    With a `FollowedCatalog` it is a standby: it serves reads, refuses all else (`ReadOnlyTransaction`), and becomes the
    active one in place when it takes over.
    """

    def __init__(
        self,
        settings: Settings,
        catalog: Catalog,
        planner: Planner,
        clock: Clock | None = None,
        *,
        make_runner: RunnerFactory | None = None,
        merge_runner: MergeRunner | None = None,
        root: StoreRoot | None = None,
        host: str = "127.0.0.1",
        plans: PlanFiles | None = None,
    ) -> None:
        """`root` is where tasks find the state, by default as the settings say; they reach this process at `host`.

        `plans` is where plans of views are kept for the next start; None where they are not.
        """
        self._parts = Assembly(
            settings, catalog, planner, clock or SystemClock(), make_runner=make_runner, merge_runner=merge_runner,
            root=root, host=host, plans=plans, news=lambda found: self.on_catalog_change(found),
        )  # fmt: skip
        self._core = self._parts.core
        self.on_catalog_change: Callable[[Refreshed | None], None] = lambda found: None
        """On a standby: called with what has changed in the catalog; with None where that may be anything, and before
        views are planned again to take over."""

    @property
    def failure(self) -> BaseException | None:
        """Why the coordinator has stopped by itself."""
        return self._core.runtime.failure

    def read_beside(self, beside: Beside) -> None:
        """Let somebody be told of what becomes visible, before it does, who shows it to others on behalf of this."""
        live, reads = self._core.live, self._parts.reads
        with live.lock:
            beside.begin(live.epochs.complete)
            live.epochs.completing = beside.completing
            self._core.storage.catalog.showing = beside.showing
            reads.shown_beside = beside.shown

    def undisturbed(self, relation_ids: Sequence[int]) -> dict[int, int]:
        """See `Reads.undisturbed`."""
        return self._parts.reads.undisturbed(relation_ids)

    @property
    def root(self) -> StoreRoot:
        """Where the state lives."""
        return self._core.storage.root

    @property
    def failed(self) -> threading.Event:
        """Set when the coordinator has stopped by itself."""
        return self._core.runtime.failed

    # ---- its start, its end, and Spark's

    def start(self) -> None:
        """Recover what the catalog holds, and start all threads.

        Raises `Fenced`, `StorageError`, and `InvalidParameter` if the state is known to be in another place, or to be
        another database's.
        """
        self._parts.operation.start()

    def stop(self, wait_s: float = STOP_WAIT_S) -> None:
        """Stop ticking, let running epochs finish for up to `wait_s`, then cancel them. Harmless when repeated."""
        self._parts.operation.stop(wait_s)

    def abort(self, error: BaseException) -> None:
        """Stop for good because of something outside; every later call fails with it."""
        self._core.runtime.fatal(error)

    def watch_spark(self, is_lost: Callable[[], bool]) -> None:
        """Let `is_lost` be asked when something fails as if Spark had ended. If it has, it calls `suspend`."""
        self._core.application.is_lost = is_lost

    def expect_spark(self) -> None:
        """Before `start`: Spark comes later, by `renew`. All that does without it need not wait for it."""
        self._core.application.suspended = SPARK_STARTS

    def needs_spark(self) -> bool:
        """Whether anything cannot go on without Spark: a job, or a large merge."""
        live = self._core.live
        with live.lock:
            return bool(live.graph.jobs) or self._core.application.merge_waits

    def suspend(self, reason: HeadraceError) -> None:
        """Spark has ended: run no epoch until `renew`. What has been written stays readable. Harmless if repeated."""
        self._parts.operation.suspend(reason)

    def renew(self, begin: Callable[[], None], serve: Callable[[], None] = lambda: None) -> None:
        """There is another Spark application, or the first one: `begin` moves the planner there, then all views are
        planned.

        `serve` is called as soon as all relations are defined there: queries need no plans of views. Every group
        resumes at its own checkpoint. Raises `SparkLost` if that one has ended, too, and `Fenced`.
        """
        self._parts.operation.renew(begin, serve)

    def plan_suspect(self) -> None:
        """Plan a view again that was given up since Spark has ended while it was planned, if it is time for one.

        To be called now and then by who sees to it that Spark runs. Raises `SparkLost` if that ends it another time.
        """
        self._parts.operation.plan_suspect()

    def note_failure(self, what: str, error: Exception) -> None:
        """Tell of a failure of something that runs beside the coordinator, and is begun again."""
        try:
            self._core.guard.note(what, error)
        except Fenced as fenced:
            self._core.runtime.fatal(fenced)

    def configure(self, settings: Settings) -> None:
        """Let changed system parameters take effect, also where somebody waits by what they were."""
        core = self._core
        with core.live.changed:
            before, core.runtime.settings = core.runtime.settings, settings
            now_s, most_s = core.runtime.clock.monotonic_s(), settings.group_retry_max_ms / 1000
            paced = any(getattr(before, name) != getattr(settings, name) for name in _PACES)
            for job in core.live.graph.jobs.values():
                job.retry(min(job.trouble.retry_at_s, now_s + most_s))
                if paced:
                    job.repace()
        core.capacity.resize()
        core.live.notify()

    # ---- standby

    @property
    def is_standby(self) -> bool:
        """Whether it only follows another server."""
        return self._parts.operation.standby is not None

    def standby(self) -> StandbyStatus | None:
        """What this server knows of the active one, if it is a standby; None for the active one."""
        standby = self._parts.operation.standby
        return None if standby is None else standby.status()

    @property
    def lease(self) -> Lease | None:
        """What the active server has last said of itself to those that stand by; None where it keeps no lease."""
        return self._parts.lease.lease

    def check_lease(self) -> None:
        """Raise `ShuttingDown` (57P03) where this server's lease has run out: new clients are to go elsewhere."""
        self._parts.lease.check()

    def announce(self, address: str) -> None:
        """Say where clients reach this server; standbys pass that on."""
        self._parts.lease.announce(address)

    def refuse_writes(self, what: str) -> None:
        """Raise `ReadOnlyTransaction` on a standby; it names the active server."""
        standby = self._parts.operation.standby
        if standby is not None:
            raise standby.refusal(what)

    def wait_planned(self, check: Callable[[], None]) -> None:
        """Return once all views are planned in the Spark that runs, or run without it until it does; at once on a
        standby, which plans none.

        `check` is asked now and then, and raises if nobody waits any more. Raises `OperationalError`, which names the
        view, once planning has failed several times in a row.
        """
        core = self._core
        while self._parts.operation.standby is None:
            self.wait_ready(check)
            if arrival.wait_planned(core.live, core.runtime, core.application, CHECK_S):
                return
            check()
            core.runtime.check()
            core.application.check_planning()

    def runs_all(self) -> bool:
        """Whether no view is still to be planned, or all of them run by what is kept of their plans."""
        return self.is_standby or arrival.runs_all(self._core.live, self._core.application)

    def wait_ready(self, check: Callable[[], None]) -> None:
        """Return once views may be planned: who has just taken over writes to tables before that.

        `check` is asked now and then, and raises if nobody waits any more.
        """
        while not self._parts.operation.ready.wait(CHECK_S):
            check()
            self._core.runtime.check()

    def take_over(self, timeout_s: float, check: Callable[[], None] = lambda: None) -> bool:
        """Let a standby become the active server, whatever the other one does; whether it is one within the time.

        `check` is asked now and then while it waits. Raises `StatementError` on the active server.
        """
        standby, core = self._parts.operation.standby, self._core
        if standby is None:
            raise StatementError("this server is the active one, only a standby takes over", sqlstate="55000")
        standby.tell()
        with core.live.changed:
            core.live.changed.wait_until(
                lambda: self._parts.operation.standby is None or core.runtime.stopping or not standby.was_told,
                timeout_s,
                check,
            )
        core.runtime.check()
        return self._parts.operation.standby is None

    def look_again(self, timeout_s: float) -> None:
        """On a standby: return once it has what is in the catalog now, or the time is over."""
        if self._parts.operation.standby is not None:
            self._parts.operation.standby.look_again(timeout_s)

    # ---- definitions

    def create_relation(self, record: ObjectRecord) -> int:
        """Create a schema, table, source or plain view; durable on return. Returns its id; `record.id` is ignored.

        Raises `DuplicateTable` (`DuplicateObject`) for a name that is taken, `InvalidParameter` for
        options that make no source.
        """
        return self._changing("CREATE", lambda: self._parts.life.create_relation(record))

    def create_secret(self, record: ObjectRecord, value: str) -> int:
        """Create a secret, encrypted; durable on return. Returns its id; `record.id` is ignored.

        Raises `DuplicateObject`, and `InvalidParameter` where there is no key.
        """
        return self._guarded(lambda: self._parts.life.create_secret(record, value))

    def create_subscription(self, record: ObjectRecord) -> int:
        """Create a subscription to the relation that it depends on; durable on return. Returns its id.

        From now on changes stay readable for `retention_ms` of its content. Raises `DuplicateTable`, `UndefinedTable`,
        and `SnapshotUnavailable` for a view that is still being created.
        """
        return self._changing("CREATE", lambda: self._parts.life.create_subscription(record))

    def feed(self, relation_id: int, *, holds: bool = False) -> Feed:
        """The changes of a table or view, from a position on that the reader has; close it after use.

        Raises `UndefinedTable`, and `SnapshotUnavailable` for a view that is still being created.
        """
        if self._parts.operation.standby is not None:
            self._parts.operation.standby.check_readable([relation_id])
        core = self._core
        return self._guarded(lambda: Feed(core.live, core.storage, core.runtime, relation_id, holds=holds))

    def alter_secret(self, secret_id: int, value: str) -> None:
        """Give a secret another value; durable on return. Raises `UndefinedObject`, `InvalidParameter`."""
        self._guarded(lambda: self._parts.life.alter_secret(secret_id, value))

    def alter_objects(
        self, object_ids: Sequence[int], change: Callable[[ObjectRecord], ObjectRecord], done: str
    ) -> None:
        """Change what is stored of objects, and nothing that runs, in one step; `done` says so in an event.

        `change` gets what is stored while no other statement changes it, so that of two at once both hold. Durable on
        return. Raises `UndefinedObject` for one that is gone, `DuplicateObject` if its new name is taken.
        """
        self._guarded(lambda: self._parts.life.alter_objects(object_ids, change, done))

    def alter_sources(
        self, source_ids: Sequence[int], change: Callable[[ObjectRecord], ObjectRecord], done: str
    ) -> None:
        """The same of sources, for the jobs that read them, too: those that fail are tried again at once."""
        self._guarded(lambda: self._parts.life.alter_sources(source_ids, change, done))

    def rename(self, changes: Renamed) -> None:
        """Give an object another name, with all that says its name, in one step.

        `changes` gets the catalog's content while no other statement changes it, and says what is other from then on.
        Durable on return. Raises what it does, and `DuplicateTable` for a name that is taken.
        """
        self._changing("ALTER", lambda: rename(self._core.storage.catalog, self._core.live, self._parts.life, changes))

    def add_columns(self, source_id: int, columns: Sequence[Column], options: Mapping[str, str]) -> None:
        """Give a source columns that it does not have yet, behind all others; what reads it goes on as it is.

        `options` are those by which it finds them. The hidden source of a table loses columns that came before and
        that nobody reads, also if there are none to come. Durable on return. Raises as `alter_objects` does.
        """
        self._guarded(lambda: self._parts.life.add_columns(source_id, columns, options))

    def secrets(self, secrets: Mapping[str, int]) -> Secrets | None:
        """What tells the values of the secrets that options have, as of now; None if there are none."""
        return self._core.vault.of(secrets)

    def create_view(self, record: ObjectRecord, plan: ViewPlan, check: Callable[[], None] = lambda: None) -> int:
        """Create a materialized view or a sink and start its job; durable on return, which does not wait for rows.

        `record.content` has the query that `plan` was made of. `check` is asked while no other statement defines
        anything, and raises if its definition is not what it says any more.
        """

        def create() -> int:
            job = self._parts.life.create_view(record, plan, check)
            # The first epoch is to see what the sources hold now. Where that fails the view exists all the same, and
            # its job waits for the next tick that succeeds.
            self._core.guard.chore("a tick", self._parts.ticker.tick)
            self._parts.life.lanes.launch(job)
            return job.id

        return self._changing("CREATE", create)

    @contextmanager
    def defining(self) -> Iterator[None]:
        """Keep others from creating, altering and dropping anything within the block, which must not wait for them."""
        with self._parts.life.ddl:
            yield

    def may_read(self, group: str, relation_id: int) -> bool:
        """Whether a new job of a checkpoint group (empty: the default) can read a relation: no circle comes of it."""
        return self._parts.life.groups.may_read(group, relation_id)

    def group_named(self, wanted: str | None) -> str:
        """The checkpoint group of a new job with this option; "own" stands for one by itself, empty for the default."""
        return self._parts.life.groups.group_named(wanted)

    def wait_created(
        self, job_id: int, timeout_s: float | None = None, check: Callable[[], None] | None = None
    ) -> None:
        """Wait until a view is readable: it holds what its inputs held, and has caught up with them.

        `check` is asked now and then, and raises if nobody waits any more.

        Raises `JobFailed` with the cause as soon as an attempt fails, `QueryCanceled` after `timeout_s`,
        `UndefinedObject` if it is dropped.
        """
        arrival.wait_created(self._core.live, self._core.runtime, job_id, timeout_s, check)

    def drop(self, ids: Sequence[int]) -> None:
        """Drop objects together; stops their jobs first. Durable on return; the files go with vacuum.

        Automatic indexes that only they use go with them. What sources among them hold where they read is there still.

        Raises `DependentObjectsExist` if anything else is built on one of them, `UndefinedTable`.
        """
        self._changing("DROP", lambda: self._parts.life.drop(ids))

    def let_go(self, ids: Sequence[int]) -> list[str]:
        """Let go of what sources that were dropped held where they read; what to tell of what is there still.

        What does not let go now is asked again in the background, by the next server, too.
        """
        return self._parts.leftovers.let_go(ids)

    def holding(self, options: Mapping[str, str]) -> AbstractContextManager[None]:
        """Within the block, in which a source of such options is made, nobody lets go of what it will hold.

        What is left of a dropped one of the same name goes first, if that can be.
        """
        return self._parts.leftovers.holding(options)

    def leftovers(self) -> list[Leftover]:
        """Dropped sources that hold something still where they read."""
        return self._parts.leftovers.standing()

    def take_place(self, new_id: int, old_id: int, indexes: Mapping[int, int], filled: int) -> None:
        """Drop a table, and give its name, owner, grants and comments to another one, in one step.

        The same of its indexes: `indexes` are the new ones, each with the one whose place it takes. Plain views go on.
        `filled` is the epoch from which on the new table has the rows of the old one, before its indexes were made.
        Durable on return. Raises `DependentObjectsExist` if anything is built on the one that goes, `UndefinedTable`.
        """
        self._changing("ALTER", lambda: self._parts.life.take_place(new_id, old_id, indexes, filled))

    def succeed(self, new_id: int, old_id: int, indexes: Mapping[int, int], check: Callable[[], None]) -> None:
        """Let a table that another one has been filled beside with more columns give it its name, in one step.

        It goes on, hidden, for what is built on it. `indexes` are those of the new table, each with the one of the old
        table whose name it gets. Waits until nobody sees less by that; `check` raises if nobody waits any more.
        Durable on return. Raises `UndefinedTable`, `JobFailed`.
        """
        self._changing("ALTER", lambda: self._parts.succeeding.succeed(new_id, old_id, indexes, check))

    def share(self, source_id: int, origin: ObjectRecord, options: Mapping[str, str]) -> int:
        """Make a source one of the tables of a new source, `origin`, which from now on holds what it has held.

        `options` are those that it has then. Durable on return. Returns the new source's id. Raises `UndefinedTable`.
        """
        return self._changing("ALTER", lambda: self._parts.succeeding.share(source_id, origin, options))

    def alter_job(self, job_id: int, *, paused: bool | None = None, options: Mapping[str, str] | None = None) -> None:
        """Pause or resume a job, and set options of it.

        Options are parallelism, max_rows_per_epoch, checkpoint_interval_ms, barrier_interval_ms, log_limit_mb,
        log_limit_policy, and checkpoint_group, which moves it to another group. Raises `InvalidParameter` for other
        options and where groups would wait for each other.
        """
        self._changing("ALTER", lambda: self._parts.life.alter(job_id, paused, options))

    # ---- writes and reads

    def write(self, table_id: int, change: TableChange) -> WriteResult:
        """Change a table by what is in it; durable, and visible to every later read, on return.

        Raises `WrongObjectType`, `UndefinedTable`, `DiskFull`, `StorageError`; then nothing is written.
        """
        return self.commit(TableWrite(table_id, change))

    def commit(self, request: Request, check: Callable[[], None] = lambda: None) -> WriteResult:
        """Commit what one writer wants, together with what others want; durable, and visible to all, on return.

        `check` is asked while it waits for its turn, and raises if it was cancelled.
        """
        return self._changing("a write", lambda: self._parts.writer.write(request, check))

    @property
    def writer(self) -> Writer:
        """The way of all changes into tables."""
        return self._parts.writer

    @property
    def tables(self) -> TableRows:
        """How rows of tables are laid out, and when they have changed."""
        return self._parts.writer.tables

    def begin(self) -> WriteTransaction:
        """A transaction that reads one snapshot and writes at one epoch; whoever has it closes it."""
        return WriteTransaction(self._core.live, self._core.storage, self._parts.writer)

    def turn(self, tables: Collection[int], check: Callable[[], None]) -> AbstractContextManager[None]:
        """A turn over tables for who was refused over them: waits for those who have asked before, for a while each.

        `check` raises if nobody waits any more.
        """
        return self._parts.turns.turn(tables, check)

    @contextmanager
    def transaction(
        self, gated: Collection[int] = (), check: Callable[[], None] = lambda: None
    ) -> Iterator[WriteTransaction]:  # fmt: skip
        """A transaction that reads one snapshot and writes at one epoch; it is gone, committed or not, after the block.

        Nobody else writes to the tables that are `gated` meanwhile.
        """
        with ExitStack() as held:
            gate = held.enter_context(self._parts.writer.gate(gated, check)) if gated else None
            work = WriteTransaction(self._core.live, self._core.storage, self._parts.writer, gate)
            held.callback(work.close)
            yield work

    def tables_read(self, relation_ids: Collection[int]) -> set[int]:
        """The tables among relations, and those that the views among them are made of."""
        core = self._core
        with core.live.lock:
            found = {i for job in core.live.graph.jobs_above(relation_ids) for i in (job.id, *job.upstreams)} | set(
                relation_ids
            )
            return {i for i in found if i in core.live.graph.relations and core.live.graph.relations[i].writable}

    def snapshot(
        self,
        relation_ids: Sequence[int],
        *,
        at: int | None = None,
        timeout_s: float | None = None,
        options: ReadOptions = NEWEST,
    ) -> Snapshot:
        """One consistent state of tables, views and sources; close it after use.

        `options` say which epochs it may show; the default is the newest epoch at which all of them are exact. No
        relation is shown at an earlier epoch than before: the call waits for that, and raises `SnapshotUnavailable`
        if it cannot come true. `at` (or `options.at`) is time travel: the newest epoch up to it. Raises
        `EpochTooOld`, `EpochTooNew` for one outside of what can be read.
        """
        if at is not None or timeout_s is not None:
            options = replace(options, at=at, timeout_s=timeout_s)

        def read() -> Snapshot:
            standby = self._parts.operation.standby
            if standby is None:
                self._bind_unread(relation_ids, options)
            else:
                standby.check_readable(relation_ids)
            snapshot = self._parts.reads.snapshot(relation_ids, options)
            if standby is not None:
                snapshot.notices += standby.notices()
            return snapshot

        return self._guarded(read)

    def rows_now(self, table_id: int, keys: Sequence[tuple[Key, ReadOptions]]) -> list[Row | Later | None]:
        """Rows of a table by its primary key, each as of the epoch that `snapshot` would read it at, without waiting.

        None where there is none, `LATER` where something has to be waited for.
        """
        return self._guarded(lambda: self._parts.reads.rows_now(self._parts.writer.tables, table_id, keys))

    def shows_now(self, relation_id: int, known: KnownRuns, options: ReadOptions) -> bool:
        """Whether `snapshot` would find just these rows of a relation, without waiting and with nothing to tell."""
        return self._guarded(lambda: self._parts.reads.shows_now(relation_id, known, options))

    def state_snapshot(self, table_ids: Sequence[int]) -> Snapshot:
        """What state tables hold, by their ids, each as of its committed epoch; close it after use.

        Raises `UndefinedTable`.
        """
        return self._guarded(lambda: self._parts.reads.state(table_ids))

    def hold(self, epoch: int) -> Callable[[], None]:
        """Keep what there is readable at an epoch, for reads that follow; what is returned lets go of it."""
        core = self._core
        with core.live.lock:
            pin = core.storage.pins.pin(core.live.graph.relations, epoch)
        return lambda: core.storage.pins.unpin(pin)

    def _bind_unread(self, relation_ids: Sequence[int], options: ReadOptions) -> None:
        """Bind what there is of sources that no job reads: at ticks nobody asks them, and a query is to see it.

        Raises the error of one that cannot be read, and `SnapshotUnavailable` for one that does not answer in time.
        """
        core, check = self._core, options.check or (lambda: None)
        limit_s = DEFAULT_WAIT_S if options.timeout_s is None else options.timeout_s
        settled = options.at is not None or options.exactly is not None
        asked = self._questions([r.id for r in self._unread(relation_ids, ever=settled)])
        while asked:
            check()
            self.wait_ready(check)
            owing, more = self._ask_unread(asked)
            ids = [r.id for r in owing]
            if owing and self._parts.ticker.answered(ids, 0.0):  # it was asked before, or is not asked at present
                with core.live.changed:
                    core.live.changed.doze(CHECK_S)
            while owing:
                check()
                if core.runtime.clock.monotonic_s() >= min(asked[i].since_s for i in ids) + limit_s:
                    raise SnapshotUnavailable(
                        f"{owing[0].record.in_words} has not said within {limit_s:g} s what it holds",
                        hint="read it again once it answers, or with a longer statement_timeout",
                    )
                if self._parts.ticker.answered(ids, CHECK_S):
                    break
            asked = {i: asked[i] for i in ids} | self._questions(more)

    def _questions(self, source_ids: Sequence[int]) -> dict[int, _Question]:
        if not source_ids:  # as for nearly all queries: the catalog is not asked for nothing
            return {}
        state, now_s = self._core.storage.catalog.state, self._core.runtime.clock.monotonic_s()
        return {i: _Question(now_s, state.newest_remap(i)) for i in source_ids}

    def _ask_unread(self, asked: Mapping[int, _Question]) -> tuple[list[LiveRelation], list[int]]:
        """Ask sources for what there is; those that owe an answer still, and others that have more than they said.

        An answer, be it an error, counts if it was asked for after the question has come up. Raises the error of a
        source that cannot be read, and `UndefinedTable` for one that was dropped meanwhile: it will never answer.
        """
        core, ticker = self._core, self._parts.ticker
        with core.live.lock:
            relations = [core.live.graph.relation(i) for i in asked]
        ticker.ask({i: question.since_s for i, question in asked.items()})
        owing = [r for r in relations if not r.bound or ticker.owes(r, asked[r.id].since_s)]
        for relation in relations:
            error = relation.error  # behind `owing`: it is there before the source counts as having answered
            if error is not None and relation.told_s >= asked[relation.id].since_s:
                raise error
        state, owe = core.storage.catalog.state, {r.id for r in owing}
        left = (r.id for r in relations if r.behind or any((r.left or {}).values()))
        more = [i for i in left if state.newest_remap(i) != asked[i].binding]
        return owing, [i for i in more if i not in owe and not ticker.slowed(i)]

    def _unread(self, relation_ids: Sequence[int], *, ever: bool) -> list[LiveRelation]:
        """The sources among relations that no job reads; or that have never been bound, which only those are."""
        with self._core.live.lock:
            graph = self._core.live.graph
            read = {i for job in graph.jobs.values() for i in job.upstreams}
            found = [r for r in map(graph.relation, relation_ids) if r.external]
        return [r for r in found if not r.bound or (r.id not in read and not ever)]

    def tick(self) -> int:
        """Make a tick now; returns its epoch."""
        return self._changing("FLUSH", self._parts.ticker.tick)

    def flush(self, timeout_s: float | None = None, check: Callable[[], None] | None = None) -> int:
        """Make a tick, and wait until every created job has reached it; returns its epoch.

        Jobs that are being created, paused or quarantined, and those that they hold up, are not waited for. When a job
        fails meanwhile, all that it does not hold up are still waited for. What was under way before may have met
        what has been mended since: its failure does not count. What is still to be planned is waited for: only then it
        is known which jobs run. `check` is asked now and then, and raises if nobody waits any more. Raises `JobFailed`
        naming a job, `QueryCanceled` `timeout_s` after that.
        """
        self.refuse_writes("FLUSH")
        self.wait_planned(check or (lambda: None))
        return arrival.wait_all(self._core.live, self._core.runtime, self.tick(), timeout_s, check)

    def current_epoch(self) -> int:
        """The newest complete epoch."""
        return self._core.live.epochs.complete

    # ---- maintenance and status

    def compact(self) -> int:
        """Merge runs now, where that is due; returns the number of merges."""
        return self._changing("compaction", self._parts.compactor.pass_once)

    def check_logs(self) -> None:
        """Look now for logs that have outgrown their limits, and do what `log_limit_policy` says."""
        self._changing("the look at logs", self._parts.logs.look)

    def memory(self) -> MemoryUse:
        """What this process's writes and merges use of the memory budget."""
        return self._core.capacity.memory.use()

    def metrics(self) -> list[Metric]:
        """What has been counted, most of it since the server started. Raises `Fenced`, `StorageError`."""
        core, parts = self._core, self._parts
        return collect(
            core.live, core.storage, core.capacity.memory, jobs=core.accounts.totals, merges=parts.compactor.counts,
            vacuum=parts.vacuum.counts, start_s=parts.operation.start_s, failures=core.guard.failures,
        )  # fmt: skip

    def vacuum(self) -> int:
        """Delete unreferenced objects now, where that is due; returns their number."""
        self._parts.writer.tidy()
        return self._changing("vacuum", self._parts.vacuum.pass_once)

    def jobs(self) -> list[JobStatus]:
        """All jobs of materialized views and sinks, by id."""
        return self._parts.status.jobs()

    def barriers(self) -> list[Barrier]:
        """The epochs under way or stuck, and what each waits for."""
        return self._parts.barriers.all()

    def groups(self) -> list[GroupStatus]:
        """All checkpoint groups, by name."""
        return self._parts.status.groups()

    def checkpoints(self) -> list[Checkpoint]:
        """The newest checkpoints of every group, newest first."""
        return self._core.history.checkpoints()

    def row_errors(self) -> list[RowErrors]:
        """The newest rows that jobs have gone on past although something failed on them, newest first."""
        return self._core.history.row_errors()

    def log_stores(self) -> list[EdgeStatus]:
        """Every edge between a relation and a view that reads it. May read from the store."""
        return self._parts.status.log_stores()

    def epochs(self) -> list[RelationEpochs]:
        """Where every relation is exact, by id."""
        return self._parts.status.epochs()

    def progress(self) -> list[AttemptProgress]:
        """The attempts under way and their tasks, as last reported."""
        return self._core.progress.live()

    def source_errors(self) -> dict[int, tuple[HeadraceError, int]]:
        """Sources that cannot be bound at present: the error, and since when, Unix milliseconds."""
        with self._core.live.lock:
            relations = self._core.live.graph.relations.values()
            return {r.id: (r.error, r.error_since_ms) for r in relations if r.error is not None}

    def rows_left(self) -> dict[int, Mapping[str, int]]:
        """Sources and their splits: how many rows are there that nothing is bound to, as of the last look."""
        with self._core.live.lock:
            relations = self._core.live.graph.relations.values()
            return {r.id: r.left for r in relations if r.left is not None}

    def split_times(self) -> dict[int, Mapping[str, int]]:
        """Return sources and their splits: the newest event times that jobs have read, Unix microseconds."""
        with self._core.live.lock:
            return {r.id: r.times.newest_us for r in self._core.live.graph.relations.values() if r.external}

    def row_bytes(self) -> dict[int, int]:
        """Sources, and about how many bytes a row of theirs has, as it has been read lately."""
        with self._core.live.lock:
            relations = self._core.live.graph.relations.values()
            return {r.id: round(r.size.bytes) for r in relations if r.external and r.size.bytes}

    def columns_there(self) -> dict[int, tuple[str, ...]]:
        """Sources, and columns that have come where they read and that they do not have, as of the last look."""
        with self._core.live.lock:
            relations = self._core.live.graph.relations.values()
            return {r.id: r.added for r in relations if r.added}

    def slot_standings(self) -> dict[int, SlotStanding]:
        """Shared sources, and how far behind lies what they hold where they read, as of the last look."""
        with self._core.live.lock:
            relations = self._core.live.graph.relations.values()
            return {r.id: r.slot for r in relations if r.slot is not None}

    def _changing(self, what: str, action: Callable[[], T]) -> T:
        """The same for something that only the active server does."""
        self.refuse_writes(what)
        return self._guarded(action)

    def _guarded(self, action: Callable[[], T]) -> T:
        """Do something; if it finds out that the database belongs to another process, stop for good."""
        self._core.runtime.check()
        try:
            return action()
        except Fenced as error:
            self._core.runtime.fatal(error)
            raise
