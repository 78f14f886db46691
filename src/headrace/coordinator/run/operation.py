"""Starts the coordinator's parts, stops them, and carries them over: to another Spark, or from another server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from headrace.catalog.edits import AddEvent
from headrace.catalog.following import FollowedCatalog, Refreshed
from headrace.common.loggers import get_logger
from headrace.common.ownership import Ownership, is_served
from headrace.coordinator.ddl.location import location_edits
from headrace.coordinator.ddl.planning import Planning
from headrace.coordinator.ddl.replacing import left_behind
from headrace.coordinator.decide.widths import left_wide
from headrace.coordinator.observe.progress_server import ProgressServer
from headrace.coordinator.reads import Reads
from headrace.coordinator.run.application import SPARK_STARTS
from headrace.coordinator.run.core import Core
from headrace.coordinator.run.guard import as_headrace_error
from headrace.coordinator.run.lanes import STOP_WAIT_S, Lanes
from headrace.coordinator.run.lease_keeper import LeaseKeeper
from headrace.coordinator.run.mirror import mirror
from headrace.coordinator.run.spark_work import SparkWork
from headrace.coordinator.run.standby import Standby, Why
from headrace.coordinator.run.start_times import StartTimes
from headrace.coordinator.upkeep.owner import Owner
from headrace.coordinator.writes.settling import restore
from headrace.coordinator.writes.writer import Writer
from headrace.errors import Fenced, HeadraceError, InvalidParameter, SparkLost
from headrace.state.proof import put_proof, remove_proof
from headrace.state.spool import forget_leftovers


class Operation:
    """One server's part in a database, from its start to its end. Thread-safe.

    It owns the threads that are no lanes, and the mark by which the directory is known to be used. `start` and `stop`
    are for one thread at a time; `renew` is for whoever brings Spark, beside anything else; the standby's thread calls
    `_succeed`. What is `suspended` and `stopping`, and the change from standby to active server, the lock of `live`
    guards; what is planned by whom, the lock of definitions (`Planning.ddl`).
    """

    def __init__(
        self, core: Core, *, planning: Planning, lanes: Lanes, reads: Reads, writer: Writer, owner: Owner,
        lease: LeaseKeeper, spark: SparkWork, progress: ProgressServer | None, loops: Mapping[str, Callable[[], None]],
        news: Callable[[Refreshed | None], None], clear: Callable[[Sequence[int]], None],
    ) -> None:  # fmt: skip
        """`loops` are the main functions of the active server's threads by their names.

        `news` is told on a standby what has changed in the catalog, None for anything. `clear` drops what was being
        filled, and what came with it.
        """
        self._live = core.live
        self._storage = core.storage
        self._runtime = core.runtime
        self._application = core.application
        self._capacity = core.capacity
        self._guard = core.guard
        self._history = core.history
        self._planning = planning
        self._lanes = lanes
        self._reads = reads
        self._writer = writer
        self._owner = owner
        self._lease = lease
        self._spark = spark
        self._progress = progress
        self._loops = loops
        self._news = news
        self._clear = clear
        self._times = StartTimes(core.runtime.clock, core.storage.catalog)
        self._threads: list[threading.Thread] = []
        self._ownership: Ownership | None = None
        self.standby: Standby | None = None
        """What follows the active server, until this one takes over."""
        self.ready = threading.Event()
        """Set but while a server that takes over plans its views."""
        core.runtime.on_fatal = self._halt
        catalog = core.storage.catalog
        if isinstance(catalog, FollowedCatalog):
            self.standby = Standby(
                core.live, catalog, core.storage.root, core.runtime, core.guard, take_over=self._succeed, news=news
            )
        else:
            self.ready.set()

    @property
    def start_s(self) -> Mapping[str, float]:
        """Seconds of each step of the start."""
        return self._times.steps

    def start(self) -> None:
        """Recover what the catalog holds, and start all threads.

        Raises `Fenced`, `StorageError`, and `InvalidParameter` if the state is known to be in another place, or to be
        another database's.
        """
        try:
            if self.standby is not None:
                self._follow(self.standby)
            else:
                self._lead()
        except BaseException:
            # A lease that went on being renewed would keep every standby from taking over.
            self._tell_to_stop()
            self._lease.end(STOP_WAIT_S)
            self._end_threads(STOP_WAIT_S)
            raise

    def _follow(self, standby: Standby) -> None:
        """Begin as a standby. Whatever writes waits until it takes over."""
        runtime = self._runtime
        if is_served(runtime.settings.data_dir):
            raise InvalidParameter(
                f"another server uses the directory {runtime.settings.data_dir}",
                hint="give each server a --data of its own, and both the same --state and --catalog",
            )
        location_edits(runtime.settings, self._storage.catalog.state)  # refuses another place for the state
        self._owner.check()
        standby.begin()
        self._use_host()
        self._launch("standby", standby.run)

    def _lead(self, writable: Callable[[], None] = lambda: None) -> None:
        """Become the active server; `writable` is called as soon as tables can be written to."""
        if self._lease.take():
            self._lease.start()
        self._times.step("storage", self._prepare)
        left = left_behind(self._storage.catalog.state)  # before anybody can begin to make another one
        self._writer.tables.recover()
        writable()
        self._times.step("relations", self._planning.recover)
        self._times.step("reads", self._reads.recover)
        state = self._storage.catalog.state
        if left or left_wide(state):
            self._guard.chore("dropping what a server that ended was filling", lambda: self._clear(left))
        if self._progress is not None:
            self._progress.start(self._guard.forever)
        for job in list(self._live.graph.jobs.values()):
            self._history.paused(job.id, job.paused, self._runtime.clock.monotonic_s())
        if self._application.suspended is None:
            self._plan_views()
        elif self._application.starts:
            self._launch("kept plans", self._use_kept)
        for name, target in self._loops.items():
            self._launch(name, target)
        self.ready.set()

    def _plan_views(self) -> None:
        """Plan all views at the start, where Spark runs; should it end meanwhile, whoever brings another one does."""
        with suppress(SparkLost), self._planning.ddl:
            self._planning.define()
            self._times.step("views", self._planning.plan)
            self._times.tell_if_slow()

    def _use_kept(self) -> None:
        """Let views run that need no Spark for it. What fails here leaves them to Spark."""
        with suppress(Fenced):  # which whoever writes next finds out, too
            self._guard.chore("taking up kept plans", self._planning.take_kept)

    def _launch(self, name: str, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, name=f"headrace-{name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _succeed(self, why: Why) -> None:
        """The catalog is this server's now: become the active one. Called by the standby's thread."""
        runtime, live, standby = self._runtime, self._live, self.standby
        assert standby is not None
        before, since_s = standby.status(), runtime.clock.monotonic_s()

        def writable() -> None:
            # What is read and written needs no plans of views; who needs them waits.
            self._reads.recover()
            with live.changed:
                self.standby = None
                live.changed.notify_all()
            took = f"it took writes {runtime.clock.monotonic_s() - since_s:.1f} s after its fence"
            text = f"this server has taken over from {before.owner}, since {why}; {took}"
            get_logger("headrace").info(text)
            self._say("took_over", text)
            self._guard.chore("taking in what another server has changed", lambda: self._news(None))

        try:
            with self._planning.ddl:
                with self._storage.catalog.reading() as state, live.changed:
                    mirror(live.graph, state)
                    live.mirrored = None
                    live.epochs.lead(state)
                self._lead(writable)
        except BaseException as error:
            runtime.fatal(error)
            if not isinstance(error, Exception):
                raise

    def _prepare(self) -> None:
        runtime, storage = self._runtime, self._storage
        edits = location_edits(runtime.settings, storage.catalog.state)
        storage.store.prepare()
        self._owner.claim()
        storage.catalog.transact(edits)
        restored = restore(storage.catalog, storage.root)
        if restored:
            text = f"{restored} objects of the last writes were made again from the catalog"
            storage.catalog.transact([AddEvent("objects_restored", None, text)])
        forget_leftovers(runtime.settings.spool_location)
        if self._ownership is None:
            self._use_host()

    def _use_host(self) -> None:
        """Make sure of what this server needs of its host, and of those of Spark's tasks."""
        storage = self._storage
        if storage.root.proof:
            put_proof(storage.root)
            self._spark.prove()
        self._ownership = Ownership(self._runtime.settings.data_dir)

    def stop(self, wait_s: float = STOP_WAIT_S) -> None:
        """Stop ticking, let running epochs finish for up to `wait_s`, then cancel them. Harmless when repeated."""
        runtime, storage = self._runtime, self._storage
        again = self._tell_to_stop()
        # What is left of a failed server must not run on: none of it may commit.
        self._lanes.halt_all(wait_s if runtime.failure is None else 0.0)
        self._end_threads(wait_s)
        self._spark.end_processes()
        if self._progress is not None:
            self._progress.stop()
        self._lease.end(wait_s)
        if storage.root.proof and not again:
            remove_proof(storage.root)
        if not again and runtime.failure is None and self.standby is None:
            with suppress(HeadraceError):
                self._live.epochs.settle()
                self._lease.release()
        if self._ownership is not None:
            self._ownership.release()

    def _tell_to_stop(self) -> bool:
        """Let all threads know that they are to end; whether they had been told before."""
        live, runtime = self._live, self._runtime
        with live.changed:
            again, runtime.stopping = runtime.stopping, True
        live.notify()
        self._capacity.memory.wake()
        return again

    def _end_threads(self, wait_s: float) -> None:
        """Wait for the threads of this object, which have been told to stop."""
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(wait_s)
        self._threads.clear()

    def _halt(self) -> None:
        """Cancel all that runs, without waiting for it: this process has lost the database."""
        with suppress(RuntimeError):  # The process has no thread left. Nothing of what goes on running can commit.
            threading.Thread(target=self._cancel_all, name="headrace-halt", daemon=True).start()

    def _cancel_all(self) -> None:
        self._spark.cancel()
        self._spark.end_processes()
        self._lanes.halt_all(0.0)

    def suspend(self, reason: HeadraceError) -> None:
        """Spark has ended: run no epoch until `renew`. What has been written stays readable. Harmless if repeated."""
        live, application = self._live, self._application
        with live.changed:
            news, application.suspended = application.suspended in (None, SPARK_STARTS), reason
        live.notify()
        if news and not self._runtime.stopping:
            self._say("spark_lost", f"{reason.message}; every group goes on from its checkpoint with another one")

    def renew(self, begin: Callable[[], None], serve: Callable[[], None] = lambda: None) -> None:
        """There is another Spark application, or the first one: `begin` moves the planner there, then all views are
        planned.

        `serve` is called as soon as all relations are defined there: queries need no plans of views. Every group
        resumes at its own checkpoint. Raises `SparkLost` if that one has ended, too, and `Fenced`.
        """
        try:
            self._renew(begin, serve)
        except Fenced as error:
            self._runtime.fatal(error)
            raise
        except Exception as error:
            with self._live.changed:
                self._application.planning_failed(as_headrace_error(error))
                self._live.changed.notify_all()
            raise
        self._application.planned()

    def plan_suspect(self) -> None:
        """Plan a view again that was given up since Spark has ended while it was planned, if it is time for one.

        Raises `SparkLost` if that ends it another time.
        """
        if self.standby is None and self._application.suspended is None:
            self._planning.plan_suspect()

    def _renew(self, begin: Callable[[], None], serve: Callable[[], None]) -> None:
        runtime = self._runtime
        since_s = runtime.clock.monotonic_s()
        with self._planning.ddl:
            begin()
            self._spark.moved()
            first, leads = self._application.suspended is SPARK_STARTS, self.standby is None
            if leads:
                self._planning.define()
            self._spark.end_processes()
            serve()
            if first or not leads:  # nothing runs before it is planned; who takes over plans it
                self._resume()
        if leads:
            if first:
                self._times.step("views", self._planning.plan)
            else:
                self._planning.plan()
            self._resume()
        took = f"{len(self._live.graph.jobs)} views were planned in {runtime.clock.monotonic_s() - since_s:.1f} s"
        if not first:
            self._say("spark_restarted", f"Spark runs again; {took}")
            return
        get_logger("headrace").info(f"Spark runs; {took}")
        if leads:
            self._times.tell_if_slow()

    def _resume(self) -> None:
        live = self._live
        with live.changed:
            self._application.suspended = None
            live.changed.notify_all()

    def _say(self, kind: str, text: str) -> None:
        try:
            self._storage.catalog.transact([AddEvent(kind, None, text)])
        except Fenced as error:
            self._runtime.fatal(error)
        except HeadraceError:
            pass  # an event less: what it tells of goes on
