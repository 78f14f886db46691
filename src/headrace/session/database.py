"""The public Python API: a database as a program uses it that embeds one."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType

from headrace.catalog.contents import MaterializedViewContent
from headrace.config import Settings
from headrace.dataflow.spark import spark_start
from headrace.errors import InvalidParameter, NotSupported
from headrace.session import created_functions, frame_views
from headrace.session.execution import arrangement_choice, ddl, routines, views
from headrace.session.held import HeldFrames
from headrace.session.instance import Instance, open_on, open_with
from headrace.session.names import BoundQuery, names_of, table_name
from headrace.session.pipelines.apply import Plan
from headrace.session.pipelines.definitions import Pipeline
from headrace.session.query_result import QueryResult
from headrace.session.result import Result
from headrace.session.session import Session
from headrace.session.stored_roles import ROOT
from headrace.session.subscribing import Following, since_of
from headrace.session.system.asking_functions import localize
from headrace.sql.parser import parse_query


class Database:
    """An open database: made by `connect`, closed by `close` or at the end of a `with` block."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        """What runs it."""
        self.catalog = instance.catalog
        self.coordinator = instance.coordinator
        self.planner = instance.planner
        self.pipeline = Pipeline()
        self._main = instance.main
        self._lock = threading.RLock()
        """Held as long as a statement of `sql` runs."""
        self._frames = HeldFrames()

    @property
    def settings(self) -> Settings:
        """The settings that are in force."""
        return self.instance.settings

    @property
    def spark(self) -> SparkSession:
        """The Spark session that everything is made of, once it is there; another one after Spark was lost."""
        return self.instance.spark

    # ---- SQL

    def session(self, settings: Mapping[str, str] | None = None, *, user: str = ROOT) -> Session:
        """A new session of a role; `settings` are its defaults, for instance `application_name`."""
        return self.instance.session(settings, user=user)

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
                frame_views.create_view(context, target, query, dict(options or {}), on_window_close)
            elif dialect == "spark":
                text = frame_views.bound_spark_sql(context, query)
                called = frame_views.functions_called(context, text)
                content = MaterializedViewContent(spark_sql=text, emit_on_window_close=on_window_close)
                ddl.create_planned(context, target, text, content, query, dict(options or {}), called)
            elif dialect == "postgres":
                bound = BoundQuery(localize(context, parse_query(query)), names_of(context))
                text = ddl.planned_text(bound, None)
                content = MaterializedViewContent(spark_sql=text, emit_on_window_close=on_window_close)
                needed, check = bound.dependencies(), bound.check_names
                ddl.create_planned(context, target, text, content, query, dict(options or {}), needed, check=check)
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
                lambda: created_functions.content_of_object(name, function, returns, args, aggregate, strict),
                f"-- Python function {getattr(function, '__qualname__', name)}", or_replace=replace,
            )  # fmt: skip

    register_function = create_function

    def explain(self, query: str | DataFrame) -> str:
        """The operators that would keep a view of this query up to date."""
        context = self._main.context
        if isinstance(query, DataFrame):
            shared = arrangement_choice.usable(context, {})
            return "\n".join(context.planner.plan(query, arrangements=shared).explain())
        bound = BoundQuery(localize(context, parse_query(query)), names_of(context))
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
        return frame_views.relation(self._main.context, name)

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
            engine = context.engine
            spark = engine.session_for(snapshot)
            frame = engine.table_leaf(spark, record.id, table, [c.name for c in table.columns])
            self._frames.hold(frame, snapshot.close)
        except BaseException:
            snapshot.close()
            raise
        return frame

    # ---- life

    def check(self) -> None:
        """Raise what has stopped the database, if anything has."""
        self.instance.check()

    def close(self) -> None:
        """Stop the jobs and let go of everything; harmless when repeated."""
        with self._lock:  # what `sql` runs comes to its end first, and nothing begins any more
            self._frames.close()
            self.instance.close()

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
    chosen = (settings or Settings()).replaced(
        data_dir=directory,
        **({} if state is None else {"state_url": str(state)}),
        **({} if catalog is None else {"catalog_url": str(catalog)}),
    )
    if spark is not None:
        if chosen.spark_conf:
            raise InvalidParameter("spark_conf is for a Spark that headrace starts", hint="set them on your session")
        return Database(open_with(chosen, spark, scratch=scratch))
    log_file = None if path is None else Path(chosen.data_dir) / "spark.log"
    return Database(open_on(spark_start(chosen, master, log_file), chosen, scratch))
