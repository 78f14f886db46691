"""A database in this process: how its parts are put together, and what a server in front of it needs.

`Database` is for programs that embed one, and stands on this.
"""

from __future__ import annotations

import hashlib
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

from pyspark.sql import SparkSession

from headrace.catalog.catalog import Catalog
from headrace.catalog.contents import FunctionContent
from headrace.catalog.edits import DATABASE_KEY
from headrace.catalog.following import Refreshed
from headrace.catalog.records import ObjectRecord, SettingRecord
from headrace.common.clock import Clock, SystemClock
from headrace.common.loggers import get_logger, set_level
from headrace.config import Settings, is_parameter
from headrace.coordinator.coordinator import Coordinator
from headrace.coordinator.ddl.place import follow_catalog, open_catalog
from headrace.coordinator.run.storage import state_root
from headrace.dataflow import class_archive, spark_kernels
from headrace.dataflow.executors import LOOPBACK, driver_host, is_remote
from headrace.dataflow.kept_plans import PlanFiles, programs
from headrace.dataflow.spark import SparkStart
from headrace.errors import ShuttingDown
from headrace.plan.catalyst.answers import UNANSWERED
from headrace.plan.planner import Planner
from headrace.session import created_functions
from headrace.session.access import check_rules
from headrace.session.audit import AuditLog
from headrace.session.context import Context, ReaderStatus, Services
from headrace.session.engine import Engine
from headrace.session.keeper import SparkKeeper
from headrace.session.kernel_plans import KernelPlans
from headrace.session.parameters import Parameters
from headrace.session.session import Session
from headrace.session.startup import requested
from headrace.session.stored_roles import ROOT, Role, all_roles, role_of
from headrace.session.turns import Turns
from headrace.state.proof import asking_for_proof


class Instance:
    """A database that runs: its catalog, its coordinator, its Spark, its sessions. Thread-safe."""

    def __init__(
        self,
        settings: Settings,
        spark: SparkSession | None,
        *,
        start: SparkStart | None,
        scratch: Path | None,
        clock: Clock,
        standby: bool = False,
    ):
        """`start` makes another session if that one is lost; None if the session is the caller's. Without a session
        it brings the first one, too: what needs Spark waits for that.

        A `standby` follows what another server does, serves reads, and takes over from it.
        """
        self.keeper = SparkKeeper(
            spark, None if start is None else start.another, self._renew, first=None if start is None else start.first,
            on_demand=settings.spark_start == "on_demand",
        )  # fmt: skip
        self._start = start
        self._scratch = scratch
        self._clock = clock
        self._lock = threading.RLock()
        self._sessions: set[Session] = set()
        self._closed = False
        self.reading_processes: Callable[[], Sequence[ReaderStatus]] = tuple
        """Tells of the reading processes beside the server; whoever starts them puts it here."""

        def told(message: str) -> None:
            get_logger("headrace").info(message)  # which loads what logs

        self.catalog: Catalog
        self.catalog, settings = follow_catalog(settings, told) if standby else open_catalog(settings, told)
        try:
            self._parameters = Parameters(settings, self.catalog)
            settings = self.settings
            self.turns = Turns(settings.max_concurrent_queries)
            set_level(settings.log_level)
            self.audit = None if settings.audit_log is None else AuditLog(settings.audit_log, self.now_ms)
            root, host = state_root(settings), LOOPBACK
            if spark is not None and is_remote(spark):
                root, host = asking_for_proof(root), driver_host(spark)
            self.planner = Planner()
            self.engine = Engine(root, settings.parallelism)
            self.engine.kept.limit(settings.kept_spark_plans)
            self.kernels = KernelPlans()
            # Of a session that is the caller's it is not known what its plans follow from.
            plans = None if start is None else _plan_files(settings)
            self.coordinator = Coordinator(
                settings, self.catalog, self.planner, clock, root=root, host=host, plans=plans
            )  # fmt: skip
            self.services = Services(
                self.catalog, self.coordinator, self._parameters, clock, self.keeper, self.planner, self.engine,
                self.kernels, self.turns, self,
            )  # fmt: skip
            self.coordinator.on_catalog_change = self._take_in
            if spark is None:
                self.coordinator.expect_spark()
            else:
                self._renew(spark)
            self.coordinator.start()
        except BaseException:
            self.catalog.close()
            raise
        self.main = self.session()
        """A session of its own, for the program itself."""
        self.keeper.watch(self.coordinator)

    @property
    def settings(self) -> Settings:
        """The settings that are in force."""
        return self._parameters.settings

    def alter_system(self, name: str | None, value: str | None) -> None:
        """Set a system parameter, for good; without a value put it back, without a name put all back.

        Raises `UndefinedObject`, `InvalidParameter`.
        """
        if name == "auth_rules" and value is not None:
            check_rules(value, self.settings)
        self._parameters.alter(name, value, self._use)

    def _take_in(self, found: Refreshed | None) -> None:
        """Use what another server has changed in the catalog: functions, and system parameters."""
        changed = self.catalog.image.records() if found is None else found.change.puts
        for record in changed:
            if isinstance(record, ObjectRecord) and isinstance(record.content, FunctionContent):
                self._register(record)
        if (
            found is None
            or found.whole  # which does not say what is gone
            or any(isinstance(r, SettingRecord) and is_parameter(r.name) for r in changed)
            or any(collection == "setting" for collection, _ in found.change.deletes)
        ):
            self._parameters.renew(self._use)

    def _use(self, settings: Settings) -> None:
        self.coordinator.configure(settings)
        self.turns.resize(settings.max_concurrent_queries)
        self.engine.kept.limit(settings.kept_spark_plans)
        set_level(settings.log_level)

    @property
    def spark(self) -> SparkSession:
        """The Spark session that everything is made of, once it is there; another one after Spark was lost."""
        self.main.context.wait_for_spark()
        session = self.keeper.session
        assert session is not None
        return session

    def _renew(self, spark: SparkSession) -> None:
        """Go on in another Spark application, or in the first one."""
        if self._start is not None and self.settings.class_archive:
            class_archive.make_beside()  # now that nobody waits for this Spark any more
        self.planner.renew(spark)
        self.engine.renew(spark)
        self.kernels.renew(spark)
        self._register_functions()

    def _register_functions(self) -> None:
        """Make kernels and the catalog's functions known; a view on one that cannot be loaded is quarantined."""
        spark_kernels.register(self.services.spark_sessions())
        for record in self.catalog.state.objects_of(FunctionContent):
            self._register(record)

    def _register(self, record: ObjectRecord) -> None:
        try:
            created_functions.register(self.services.spark_sessions(), record)
        except Exception as error:
            get_logger("headrace").warning("a function cannot be loaded", function=record.name, error=str(error))

    # ---- roles and sessions

    def role(self, name: str) -> Role | None:
        """Who somebody is that connects under a name; None for nobody."""
        return role_of(self.catalog.image, name, self.now_ms())

    @property
    def mock_key(self) -> bytes:
        """What those are asked by who do not exist: the same for every server of the database, and after a restart."""
        number = self.catalog.image.config.get(DATABASE_KEY, 0)
        return hashlib.sha256(f"headrace roles {number}".encode()).digest()

    @property
    def has_passwords(self) -> bool:
        """Whether any role can prove who it is by a password."""
        return any(role.password for role in all_roles(self.catalog.image).values())

    def session(self, settings: Mapping[str, str] | None = None, *, user: str = ROOT) -> Session:
        """A new session of a role; `settings` are its defaults, for instance `application_name`."""
        self.check()
        self.coordinator.check_lease()
        made = Session(self, {**(settings or {}), "session_authorization": user})
        with self._lock:
            self._sessions.add(made)
        return made

    def client_session(self, parameters: Mapping[str, str]) -> Session:
        """The session of a client that has connected with such a start-up packet.

        Raises `UndefinedObject`, `InvalidParameter`, `NotSupported` for settings that cannot be had.
        """
        return self.session(requested(parameters), user=parameters["user"])

    # ---- life

    def now_ms(self) -> int:
        """Unix time in milliseconds."""
        return self._clock.now_ms()

    def check(self) -> None:
        """Raise what has stopped the database, if anything has."""
        if self._closed:
            raise ShuttingDown("the database is closed")
        failure = self.coordinator.failure
        if failure is not None:
            raise failure

    def contexts(self) -> list[Context]:
        """Those of the sessions that are open, in the order in which they were opened."""
        with self._lock:
            found = [session.context for session in self._sessions]
        return sorted(found, key=lambda context: context.number)

    def forget(self, session: Session) -> None:
        """Forgets a session that has ended."""
        with self._lock:
            self._sessions.discard(session)

    def close(self) -> None:
        """Stop the jobs and let go of everything; harmless when repeated."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            sessions = list(self._sessions)
        for session in sessions:
            session.cancel()
            session.close()
        try:
            self.coordinator.stop()
        finally:
            if self.audit is not None:
                self.audit.close()
            self.catalog.close()
            spark = self.keeper.close()
            if self._start is not None and spark is None:
                self._start.abandon()
            elif self._start is not None and spark is not None:
                with suppress(*UNANSWERED):  # its JVM may have ended before
                    spark.stop()
            if self._scratch is not None:
                shutil.rmtree(self._scratch, ignore_errors=True)


def open_on(start: SparkStart, settings: Settings, scratch: Path | None = None, *, standby: bool = False) -> Instance:
    """Open the database that the settings name, on a Spark that is being started. `scratch` is removed in the end.

    Does not wait for Spark where its tasks run in this machine's processes. Where they run elsewhere it has to be found
    out first how they reach this one, and whether they use the same store.
    """
    try:
        session = None if start.may_come_later else start.first()
        return open_with(settings, session, start, scratch, standby)
    except BaseException:
        start.abandon()
        _remove(scratch)
        raise


def open_with(
    settings: Settings,
    session: SparkSession | None,
    start: SparkStart | None = None,
    scratch: Path | None = None,
    standby: bool = False,
) -> Instance:
    """Open it with a Spark session, or where `start` brings one later. `scratch` is removed in the end."""
    try:
        settings.data_dir.mkdir(parents=True, exist_ok=True)
        return Instance(settings, session, start=start, scratch=scratch, clock=SystemClock(), standby=standby)
    except BaseException:
        _remove(scratch)
        raise


def _plan_files(settings: Settings) -> PlanFiles:
    """Where plans are kept. By which programs they are made is found out beside: no client has to wait for it."""
    found: Future[str] = Future()

    def ask() -> None:
        try:
            found.set_result(programs(settings.spark_conf))
        except Exception as error:
            found.set_exception(error)

    threading.Thread(target=ask, name="headrace-programs", daemon=True).start()
    return PlanFiles(settings.data_dir / "plans", found.result)


def _remove(scratch: Path | None) -> None:
    if scratch is not None:
        shutil.rmtree(scratch, ignore_errors=True)
