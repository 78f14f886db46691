"""The coordinator's parts, made and connected: what each is given, and who is told of what another has done."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from functools import partial

from headrace.catalog.catalog import Catalog
from headrace.catalog.following import FollowedCatalog, Refreshed
from headrace.common.clock import Clock
from headrace.config import Settings
from headrace.coordinator.ddl.lifecycle import Lifecycle
from headrace.coordinator.ddl.planning import Planning
from headrace.coordinator.ddl.succeeding import Succeeding
from headrace.coordinator.observe.progress_server import ProgressServer
from headrace.coordinator.observe.status import Status
from headrace.coordinator.observe.watchdog import Barriers, Watchdog
from headrace.coordinator.reads import Reads
from headrace.coordinator.run.core import Core
from headrace.coordinator.run.driver import Driver
from headrace.coordinator.run.lanes import Lanes
from headrace.coordinator.run.lease_keeper import LeaseKeeper
from headrace.coordinator.run.live_state import RunnerFactory
from headrace.coordinator.run.operation import Operation
from headrace.coordinator.run.spark_work import SparkWork
from headrace.coordinator.run.ticker import Ticker
from headrace.coordinator.upkeep.compaction import Compactor
from headrace.coordinator.upkeep.leftovers import Leftovers
from headrace.coordinator.upkeep.logs import LogKeeper, UnreadLogs
from headrace.coordinator.upkeep.maintenance import Maintenance
from headrace.coordinator.upkeep.owner import Owner
from headrace.coordinator.upkeep.retention import Retention
from headrace.coordinator.upkeep.vacuum import Vacuum
from headrace.coordinator.writes.handing import Handing
from headrace.coordinator.writes.turn_taking import TurnTaking
from headrace.coordinator.writes.writer import Writer
from headrace.dataflow.kept_plans import PlanFiles
from headrace.plan.planner import Planner
from headrace.state.merge import MergeRunner
from headrace.state.stores import StoreRoot


class Assembly:
    """Makes all parts of one coordinator. It starts none."""

    def __init__(
        self, settings: Settings, catalog: Catalog, planner: Planner, clock: Clock, *,
        make_runner: RunnerFactory | None, merge_runner: MergeRunner | None, root: StoreRoot | None, host: str,
        plans: PlanFiles | None, news: Callable[[Refreshed | None], None],
    ) -> None:  # fmt: skip
        """See `Coordinator`. `news` is told on a standby what has changed in the catalog, None for anything."""
        slots = max(1, settings.parallelism or os.cpu_count() or 1)
        following = isinstance(catalog, FollowedCatalog)
        self.core = core = Core(settings, catalog, clock, slots, root, following=following)
        live, storage, runtime = core.live, core.storage, core.runtime
        retention = Retention(live.graph, catalog, storage.pins, runtime.clock, self._settings)
        unread = UnreadLogs(live.graph, live.lock, catalog, storage.pins)
        self.barriers = Barriers(
            live.graph, live.lock, core.progress, catalog, runtime.clock, self._settings,
            lambda: core.application.suspended,
        )  # fmt: skip
        self._watchdog = Watchdog(
            self.barriers, live.graph, live.lock, catalog, core.sparing, self._settings, lambda: live.epochs.ahead_ms
        )
        self.ticker = Ticker(
            live, storage, runtime, core.guard, core.sparing, vault=core.vault, progress=core.progress, look=self.look
        )
        spark = SparkWork(planner, storage.root, slots)
        self.compactor = Compactor(
            live, storage, runtime, core.locks, core.application, core.capacity, retention, merge_runner or spark.merge
        )
        self.owner = Owner(catalog, storage.store, runtime.clock, self._settings)
        self.vacuum = Vacuum(
            catalog, storage.store, storage.root, storage.pins, self.owner, runtime.clock, self._settings
        )
        self.logs = LogKeeper(
            live, storage, runtime, core.locks, core.sparing, unread=unread, barriers=self.barriers,
            retention=retention,
        )  # fmt: skip
        self.maintenance = Maintenance(
            live, catalog, runtime, core.guard, compactor=self.compactor, logs=self.logs, vacuum=self.vacuum,
            settle=self._settle,
        )  # fmt: skip
        self.leftovers = Leftovers(live, catalog, runtime, core.guard, core.vault)
        self.reads = Reads(live, storage, runtime)
        self.writer = Writer(
            live, storage, runtime, core.capacity.memory, core.accounts.totals, self.maintenance.request
        )
        self.turns = TurnTaking(runtime.clock)
        self.compactor.merged = self.writer.tables.merged
        core.hand_over = Handing(storage, live.epochs, runtime, self.writer).prepared
        self.status = Status(
            live, storage.root, runtime, core.history, core.progress, reads=self.reads, barriers=self.barriers,
            unread=unread,
        )  # fmt: skip
        lanes, ddl = Lanes(live, runtime, partial(Driver, core, compact=self.maintenance.request)), threading.RLock()
        self.planning = Planning(
            live, catalog, runtime, core.locks, core.application, core.vault, planner, make_runner or spark.runner,
            spark.kept_runner, lanes, ddl, self.ticker.lock, self.writer.paused, plans,
        )  # fmt: skip
        self.life = Lifecycle(
            live, storage, runtime, core.locks, core.vault, core.history, self.planning, lanes, self.ticker.lock,
            self.writer.paused, self._forget,
        )  # fmt: skip
        self.succeeding = Succeeding(live, catalog, runtime, core.locks, self.life, self.planning, self.ticker)
        progress_host = host if settings.progress_host is None else settings.progress_host
        self.lease = LeaseKeeper(
            catalog, live.epochs, core.guard, live.changed, runtime.clock, settings=self._settings,
            failed=lambda: runtime.failure is not None,
        )  # fmt: skip
        self.operation = Operation(
            core, planning=self.planning, lanes=lanes, reads=self.reads, writer=self.writer,
            owner=self.owner, lease=self.lease, spark=spark,
            progress=ProgressServer(core.progress, progress_host) if progress_host else None,
            loops={
                "ticker": self.ticker.run, "maintenance": self.maintenance.run, "letting-go": self.leftovers.run,
            },
            news=news, clear=self.life.clear,
        )  # fmt: skip

    def _settings(self) -> Settings:
        """As they are now."""
        return self.core.runtime.settings

    def look(self) -> None:
        """Before each periodic tick. Raises `Fenced`."""
        chore = self.core.guard.chore
        chore("what is left of undecided statements", self.life.settle)
        chore("the watchdog", self._watchdog.look)
        chore("the care for lanes", self.life.lanes.revive)

    def _forget(self, ids: Sequence[int]) -> None:
        for i in ids:
            self.reads.forget(i)
            self.ticker.forget(i)
            self.writer.forget(i)
        with self.core.live.lock:
            groups = {j.group for j in self.core.live.graph.jobs.values()}
        self.core.history.forget(set(ids), groups)

    def _settle(self) -> None:
        self.writer.tidy()
        self.writer.settling.pass_once()
