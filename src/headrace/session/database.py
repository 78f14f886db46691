"""The database as a Python program uses it."""

from __future__ import annotations

import hashlib
import html
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType
from structlog import get_logger

from headrace.catalog.catalog import Catalog
from headrace.catalog.contents import FunctionContent, MaterializedViewContent
from headrace.catalog.edits import DATABASE_KEY
from headrace.catalog.following import Refreshed
from headrace.catalog.records import ObjectRecord, SettingRecord
from headrace.common.clock import Clock, SystemClock
from headrace.config import Settings, is_parameter
from headrace.coordinator.coordinator import Coordinator
from headrace.coordinator.ddl.place import follow_catalog, open_catalog
from headrace.coordinator.run.core import state_root
from headrace.dataflow import kernels
from headrace.dataflow.executors import LOOPBACK, driver_host, is_remote
from headrace.dataflow.spark import SparkStart, spark_start
from headrace.errors import InvalidParameter, NotSupported, ShuttingDown
from headrace.plan.catalyst.answers import UNANSWERED
from headrace.plan.planner import Planner
from headrace.session import frames, functions
from headrace.session.access import check_rules
from headrace.session.audit import AuditLog
from headrace.session.context import Context, Services
from headrace.session.engine import Engine
from headrace.session.execution import ddl, routines, sharing, views
from headrace.session.following import Following, since_of
from headrace.session.held import HeldFrames
from headrace.session.keeper import SparkKeeper
from headrace.session.kernel_plans import KernelPlans
from headrace.session.logs import set_level
from headrace.session.names import Bound, names_of, table_name
from headrace.session.parameters import Parameters
from headrace.session.pipelines.apply import Plan
from headrace.session.pipelines.definitions import Pipeline
from headrace.session.result import Result, ResultColumn
from headrace.session.roles import ROOT, Role, all_roles, role_of
from headrace.session.session import Session
from headrace.session.startup import requested
from headrace.session.system.functions import localize
from headrace.session.turns import Turns
from headrace.sql.parser import parse_query
from headrace.sql.render import plain_table
from headrace.state.proof import asking_for_proof

if TYPE_CHECKING:
    import pandas as pd

_SHOWN_ROWS = 20


class QueryResult:
    """A statement's rows, held in memory."""

    def __init__(self, tag: str, columns: list[ResultColumn] | None, table: pa.Table, notices: list[str]):
        self.tag = tag
        self.columns = columns or []
        self.notices = notices
        self._table = plain_table(table, [c.type for c in self.columns])

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self.rows())

    def rows(self) -> list[tuple[Any, ...]]:
        """The rows as tuples of Python values."""
        return list(zip(*(c.to_pylist() for c in self._table.columns)))

    def to_arrow(self) -> pa.Table:
        """The rows as an Arrow table."""
        return self._table

    def to_pandas(self) -> pd.DataFrame:
        """The rows as a pandas DataFrame."""
        return self._table.to_pandas()

    def _texts(self) -> list[list[str]]:
        head = self._table.slice(0, _SHOWN_ROWS)
        return [["" if v is None else str(v) for v in row] for row in zip(*(c.to_pylist() for c in head.columns))]

    def _foot(self) -> str:
        more = len(self) - _SHOWN_ROWS
        count = f"({len(self)} row{'' if len(self) == 1 else 's'})"
        return f"... {more} more\n{count}" if more > 0 else count

    def __repr__(self) -> str:
        if not self.columns:
            return self.tag
        names = [c.name for c in self.columns]
        rows = self._texts()
        widths = [max(len(n), *(len(r[i]) for r in rows), 0) for i, n in enumerate(names)]
        lines = [" | ".join(n.center(w) for n, w in zip(names, widths)), "-+-".join("-" * w for w in widths)]
        lines += [" | ".join(text.ljust(w) for text, w in zip(row, widths)) for row in rows]
        return "\n".join(line.rstrip() for line in [*lines, self._foot()])

    def _repr_html_(self) -> str:
        if not self.columns:
            return f"<p>{html.escape(self.tag)}</p>"
        head = "".join(f"<th>{html.escape(c.name)}</th>" for c in self.columns)
        body = "".join("<tr>" + "".join(f"<td>{html.escape(t)}</td>" for t in row) + "</tr>" for row in self._texts())
        foot = html.escape(self._foot())
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{foot}</p>"


class Database:
    """An open database: made by `connect`, closed by `close` or at the end of a `with` block."""

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
            spark, None if start is None else start.another, self._renew, first=None if start is None else start.first
        )
        self._start = start
        self._scratch = scratch
        self._clock = clock
        self._lock = threading.RLock()
        self._sessions: set[Session] = set()
        self._frames = HeldFrames()
        self._closed = False
        told = get_logger("headrace").info
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
            self.kernels = KernelPlans()
            self.coordinator = Coordinator(settings, self.catalog, self.planner, clock, root=root, host=host)
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
        self.pipeline = Pipeline()
        self._main = self.session()
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
        set_level(settings.log_level)

    @property
    def spark(self) -> SparkSession:
        """The Spark session that everything is made of, once it is there; another one after Spark was lost."""
        self._main.context.wait_for_spark()
        session = self.keeper.session
        assert session is not None
        return session

    def _renew(self, spark: SparkSession) -> None:
        """Go on in another Spark application, or in the first one."""
        self.planner.renew(spark)
        self.engine.renew(spark)
        self.kernels.renew(spark)
        self._register_functions()

    def _register_functions(self) -> None:
        """Make kernels and the catalog's functions known; a view on one that cannot be loaded is quarantined."""
        kernels.register(self.services.spark_sessions())
        for record in self.catalog.state.objects_of(FunctionContent):
            self._register(record)

    def _register(self, record: ObjectRecord) -> None:
        try:
            functions.register(self.services.spark_sessions(), record)
        except Exception as error:
            get_logger("headrace").warning("a function cannot be loaded", function=record.name, error=str(error))

    # ---- SQL

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

    def sql(self, text: str) -> QueryResult:
        """Run a script in the database's own session; the result of its last statement, in memory."""
        with self._lock:
            last = Result("")
            table = pa.table({})
            for result in self._main.execute(text):
                if result.sink is not None:
                    raise NotSupported("COPY FROM STDIN needs a connection", hint="Use Database.table().insert().")
                last, table = result, result.table() if result.columns is not None else pa.table({})
            return QueryResult(last.tag, last.columns, table, [n.message for n in last.notices])

    def create_materialized_view(
        self,
        name: str,
        query: str | DataFrame,
        *,
        dialect: Literal["postgres", "spark"] = "postgres",
        options: Mapping[str, str] | None = None,
        on_window_close: bool = False,
    ) -> None:
        """Create a view from SQL, or from a DataFrame over `relation()` or `table()`; waits until it is filled.

        With `on_window_close` its rows come out when the watermark has passed them, as `EMIT ON WINDOW CLOSE` says.
        """
        target, context = table_name(name), self._main.context
        with self._lock:
            if isinstance(query, DataFrame):
                frames.create_view(context, target, query, dict(options or {}), on_window_close)
            elif dialect == "spark":
                text = frames.bound_spark_sql(context, query)
                called = frames.functions_called(context, text)
                content = MaterializedViewContent(spark_sql=text, emit_on_window_close=on_window_close)
                ddl.create_planned(context, target, text, content, query, dict(options or {}), called)
            elif dialect == "postgres":
                bound = Bound(localize(context, parse_query(query)), names_of(context))
                text = ddl.planned_text(bound, None)
                content = MaterializedViewContent(spark_sql=text, emit_on_window_close=on_window_close)
                needed = bound.dependencies()
                ddl.create_planned(context, target, text, content, query, dict(options or {}), needed)
            else:
                raise InvalidParameter(f"unknown dialect {dialect!r}", hint="postgres or spark")

    def create_function(
        self,
        name: str,
        function: Callable[..., Any] | Any,
        returns: str | DataType | None = None,
        *,
        args: Sequence[str] | None = None,
        aggregate: bool = False,
        strict: bool = False,
        replace: bool = False,
    ) -> None:
        """Make a Python function, or a UDF made by PySpark, a function of the database; it survives restarts.

        `returns` and `args` are SQL types. A generator gives a table function; then `returns` are its columns, for
        instance "x int, y text". An aggregate is a class with `create_state`, `accumulate` and, if need be, `finish`.
        Code outside of importable modules is stored by value. The function must be deterministic to be used in views.
        """
        with self._lock:
            routines.create(
                self._main.context, table_name(name),
                lambda: functions.content_of_object(name, function, returns, args, aggregate, strict),
                f"-- Python function {getattr(function, '__qualname__', name)}", or_replace=replace,
            )  # fmt: skip

    register_function = create_function

    def explain(self, query: str | DataFrame) -> str:
        """The operators that would keep a view of this query up to date."""
        context = self._main.context
        if isinstance(query, DataFrame):
            shared = sharing.usable(context, {})
            return "\n".join(context.planner.plan(query, arrangements=shared).explain())
        bound = Bound(localize(context, parse_query(query)), names_of(context))
        return "\n".join(views.incremental_plan(context, bound))

    def flush(self) -> None:
        """Wait until every view has taken in all that was written before."""
        self._main.context.wait_for_views()
        self.coordinator.flush()

    def subscribe(self, name: str, since: Literal["now", "begin", "full"] | str | int | datetime = "now") -> Following:
        """The changes of a table, a view or a subscription as they come, epoch by epoch: iterate over it, and close it.

        `since` says where to begin: with what changes from `now` on, at the `begin`ning of what is kept, with the rows
        that there are (`full`), at a time, or behind a `position` or epoch that came before. Raises `EpochTooOld` for
        what is not kept any more.
        """
        return Following(self.session(), table_name(name), since_of(since))

    # ---- pipelines

    @property
    def materialized_view(self) -> Any:
        """Decorator: see `Pipeline.materialized_view`; `run_pipeline` creates what has been defined."""
        return self.pipeline.materialized_view

    @property
    def view(self) -> Any:
        """Decorator: see `Pipeline.view`."""
        return self.pipeline.view

    @property
    def source(self) -> Any:
        """Decorator: see `Pipeline.source`."""
        return self.pipeline.source

    @property
    def function(self) -> Any:
        """Decorator: see `Pipeline.function`."""
        return self.pipeline.function

    def plan_pipeline(self, pipeline: Pipeline | None = None) -> Plan:
        """What would have to be done so that the database has all that is defined."""
        return Plan(self._main, pipeline or self.pipeline)

    def run_pipeline(self, pipeline: Pipeline | None = None, *, replace: bool = False) -> list[tuple[str, str]]:
        """Create what is defined and missing; names and what became of each: create, unchanged, replace or inline."""
        with self._lock:
            plan = self.plan_pipeline(pipeline)
            plan.run(replace=replace)
            return [(step.node.name, step.state) for step in plan.steps]

    # ---- DataFrames

    def relation(self, name: str) -> DataFrame:
        """A relation as it stands in plans: without rows, to build views from."""
        return frames.relation(self._main.context, name)

    def table(self, name: Any = None, **arguments: Any) -> Any:
        """A relation's rows as of now, as a DataFrame; the snapshot stays readable as long as that lives, or any other
        that is made of it.

        Inside the function of a definition: the relation as it stands in plans. Without a name: the decorator
        `Pipeline.table`.
        """
        if not isinstance(name, str):
            return self.pipeline.table(name, **arguments)
        if self.pipeline.is_reading:
            return self.pipeline.read(name)
        context = self._main.context
        record = names_of(context).get(table_name(name))
        if not record.content.keeps_rows:
            raise NotSupported(f"the rows of a {record.kind} as a DataFrame", hint="query it with sql()")
        snapshot = self.coordinator.snapshot([record.id])
        try:
            table = snapshot.tables[record.id]
            context.wait_for_spark()
            spark = self.engine.session_for(snapshot)
            frame = self.engine.table_leaf(spark, record.id, table, [c.name for c in table.columns])
            self._frames.hold(frame, snapshot.close)
        except BaseException:
            snapshot.close()
            raise
        return frame

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
        # Not under the lock, which `sql` holds for as long as its statement runs: to copy a set is one step.
        return sorted((s.context for s in self._sessions.copy()), key=lambda context: context.number)

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
        self._frames.close()
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

    def __enter__(self) -> Database:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def connect(
    path: str | Path | None = None,
    *,
    spark: SparkSession | None = None,
    master: str | None = None,
    state: str | Path | None = None,
    catalog: str | Path | None = None,
    settings: Settings | None = None,
) -> Database:
    """Open the database in a directory, which is created if need be; without one, in a temporary directory.

    `state` is where the state lives instead of in that directory: another one, or a prefix in an object store such as
    `s3://bucket/prefix`; the same has to be given each time. `catalog` is where the catalog is instead: a URL
    (`sqlite:///`, `postgresql://`, `file:///`, `s3://`); one that is in the directory moves there. Spark is started in
    this process unless a session (classic, not Connect) or a master is given.
    """
    scratch = Path(tempfile.mkdtemp(prefix="headrace-")) if path is None else None
    directory = scratch or Path(path or ".")
    chosen = (settings or Settings()).model_copy(
        update={
            "data_dir": directory,
            **({} if state is None else {"state_url": str(state)}),
            **({} if catalog is None else {"catalog_url": str(catalog)}),
        }
    )
    if spark is not None:
        if chosen.spark_conf:
            raise InvalidParameter("spark_conf is for a Spark that headrace starts", hint="set them on your session")
        return _opened(chosen, spark, None, scratch)
    log_file = None if path is None else Path(chosen.data_dir) / "spark.log"
    return open_on(spark_start(chosen, master, log_file), chosen, scratch)


def open_on(start: SparkStart, settings: Settings, scratch: Path | None = None, *, standby: bool = False) -> Database:
    """Open the database that the settings name, on a Spark that is being started. `scratch` is removed in the end.

    Does not wait for Spark where its tasks run in this machine's processes. Where they run elsewhere it has to be found
    out first how they reach this one, and whether they use the same store.
    """
    try:
        session = None if start.may_come_later else start.first()
        return _opened(settings, session, start, scratch, standby)
    except BaseException:
        start.abandon()
        _remove(scratch)
        raise


def _opened(
    settings: Settings,
    session: SparkSession | None,
    start: SparkStart | None,
    scratch: Path | None,
    standby: bool = False,
) -> Database:
    try:
        settings.data_dir.mkdir(parents=True, exist_ok=True)
        return Database(settings, session, start=start, scratch=scratch, clock=SystemClock(), standby=standby)
    except BaseException:
        _remove(scratch)
        raise


def _remove(scratch: Path | None) -> None:
    if scratch is not None:
        shutil.rmtree(scratch, ignore_errors=True)
