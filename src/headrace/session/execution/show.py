"""SHOW, DESCRIBE and EXPLAIN."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.catalog.records import ObjectRecord
from headrace.common.columns import arrow_type
from headrace.coordinator.automatic import is_automatic
from headrace.coordinator.watermarks import declared, time_column
from headrace.errors import NotSupported
from headrace.session.execution import routines, sharing, unaligned
from headrace.session.execution.ddl import planned_text, sink_query
from headrace.session.execution.select import frame_of, open_snapshot
from headrace.session.names import Bound, label
from headrace.session.parts import is_part
from headrace.session.result import Result, ResultColumn
from headrace.sql import statements as st
from headrace.sql.types import pg_type_text

if TYPE_CHECKING:
    from headrace.session.session import Session

_KINDS = {
    "tables": "table", "sources": "source", "materialized views": "materialized_view", "views": "view",
    "sinks": "sink",
}  # fmt: skip


def rows_result(tag: str, columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[object]]) -> Result:
    """A result of Python values."""
    arrays = [pa.array([row[i] for row in rows], arrow_type(kind)) for i, (_, kind) in enumerate(columns)]
    batch = pa.RecordBatch.from_arrays(arrays, names=[name for name, _ in columns])
    return Result(tag, [ResultColumn(name, kind) for name, kind in columns], iter([batch]))


def _matcher(pattern: str | None) -> Callable[[str], bool]:
    if pattern is None:
        return lambda name: True
    text = "".join(".*" if c == "%" else "." if c == "_" else re.escape(c) for c in pattern)
    return lambda name: re.fullmatch(text, name, re.DOTALL) is not None


def show(session: Session, statement: st.Show) -> Result:
    """SHOW of lists, definitions and settings."""
    what, fits = statement.what, _matcher(statement.pattern)
    if what == "setting":
        name = statement.setting or ""
        return rows_result("SHOW", [(name, "string")], [[session.variables.get(name)]])
    if what == "all":
        rows = [[v.name, value, v.meaning] for v, value in session.variables.all()]
        return rows_result("SHOW", [("name", "string"), ("setting", "string"), ("description", "string")], rows)
    if what == "columns" and statement.name is not None:
        return _columns(session, statement.name, fits)
    if what == "create" and statement.name is not None:
        record = session.names().get(statement.name)
        return rows_result("SHOW", [("Name", "string"), ("Create Sql", "string")], [[label(record), record.definition]])
    if what == "indexes":
        return _indexes(session, statement, fits)
    if what in _OF_COORDINATOR:
        return _OF_COORDINATOR[what](session)
    if what == "databases":
        return rows_result("SHOW", [("Name", "string")], [["dev"]])
    if what == "schemas":
        names = sorted({"public", *(o.name for o in session.database.catalog.state.objects_of("schema"))})
        names += session.system_schemas
        return rows_result("SHOW", [("Name", "string")], [[n] for n in names if fits(n)])
    return _list(session, what, statement.schema, fits)


def _list(session: Session, what: str, schema: str | None, fits: Callable[[str], bool]) -> Result:
    if what == "functions":
        schemas = (schema,) if schema is not None else session.names().search_path
        return rows_result("SHOW", routines.HEADS, routines.listed(session, tuple(schemas), fits))
    if what not in _KINDS:
        if what in ("connections", "secrets", "subscriptions", "cursors", "processlist", "cluster"):
            return rows_result("SHOW", [("Name", "string")], [])
        raise NotSupported(f"SHOW {what.upper()}")
    schemas = (schema,) if schema is not None else session.names().search_path
    found = session.database.catalog.state.objects_of(_KINDS[what])
    names = sorted(o.name for o in found if o.schema in schemas and fits(o.name) and not is_part(o))
    return rows_result("SHOW", [("Name", "string")], [[n] for n in names])


def _indexes(session: Session, statement: st.Show, fits: Callable[[str], bool]) -> Result:
    """All indexes of the schemas in question, or those of one relation."""
    objects = session.database.catalog.state.objects
    on = session.names().get(statement.name).id if statement.name is not None else None
    schemas = (statement.schema,) if statement.schema is not None else session.names().search_path
    rows = []
    for o in sorted(session.database.catalog.state.objects_of("index"), key=lambda o: o.name):
        relation, key = objects[o.payload["on"]], o.payload["key"]
        schema = relation.schema if is_automatic(o) else o.schema
        if fits(o.name) and (relation.id == on if on is not None else schema in schemas):
            include = [c.name for c in o.columns if c.name not in key]
            made = "YES" if is_automatic(o) else "NO"
            rows.append([o.name, label(relation), ", ".join(key), ", ".join(include), made])
    return rows_result("SHOW", [(h, "string") for h in ("Name", "On", "Key", "Include", "Automatic")], rows)


def _columns(session: Session, name: st.TableName, fits: Callable[[str], bool]) -> Result:
    found = session.names().find(name)
    target = found if found is not None and found.kind == "sink" else session.names().target(name)
    keys = target.primary_key if isinstance(target, ObjectRecord) else ()
    watermarks = _watermarks(target) if isinstance(target, ObjectRecord) else {}
    rows = [
        [c.name, pg_type_text(c.type), "NO" if not c.nullable else "YES", "YES" if c.name in keys else "NO",
         watermarks.get(c.name)]
        for c in target.columns
        if fits(c.name)
    ]  # fmt: skip
    heads = [(h, "string") for h in ("Name", "Type", "Nullable", "Primary Key", "Watermark")]
    return rows_result("SHOW", heads, rows)


def _watermarks(record: ObjectRecord) -> dict[str, str]:
    """What is known of the watermark of a relation: its column, and how it follows it."""
    own, column = declared(record), time_column(record)
    if own is not None:
        return {own.column: f"{own.column} - INTERVAL '{own.delay_us / 1e6:g} seconds'"}
    return {} if column is None else {column: "EMIT ON WINDOW CLOSE"}


def _jobs(session: Session) -> Result:
    heads = [
        ("Id", "bigint"), ("Name", "string"), ("Status", "string"), ("Lag ms", "bigint"), ("Error", "string"),
        ("Detail", "string"), ("Rows in", "bigint"), ("Rows out", "bigint"), ("Waiting for", "string"),
        ("Progress", "string"), ("Group", "string"),
    ]  # fmt: skip
    rows = [
        [j.id, j.name, j.status, j.lag_ms, j.error.message if j.error else None,
         j.error.detail if j.error else None, j.rows_in, j.rows_out, j.waiting_for or None,
         j.progress or None, j.group]
        for j in session.database.coordinator.jobs()
    ]  # fmt: skip
    return rows_result("SHOW", heads, rows)


def _checkpoints(session: Session) -> Result:
    heads = [
        ("Group", "string"), ("Job", "string"), ("Epoch", "bigint"), ("At", "timestamp"), ("Duration ms", "bigint"),
        ("Rows in", "bigint"), ("Rows out", "bigint"), ("Objects", "int"), ("Bytes", "bigint"),
    ]  # fmt: skip
    names = {o.id: o.name for o in session.database.catalog.state.objects.values()}
    rows = [
        [c.group, names.get(c.job_id), c.epoch, datetime.fromtimestamp(c.at_ms / 1000, UTC), c.duration_ms, c.rows_in,
         c.rows_out, c.objects, c.bytes]
        for c in session.database.coordinator.checkpoints()
    ]  # fmt: skip
    return rows_result("SHOW", heads, rows)


def _progress(session: Session) -> Result:
    """One line for each barrier that is under way or stuck."""
    heads = [
        ("Group", "string"), ("Job", "string"), ("Epoch", "bigint"), ("State", "string"), ("Running ms", "bigint"),
        ("Tasks", "string"), ("Rows in", "bigint"), ("Waiting for", "string"),
    ]  # fmt: skip
    names = {o.id: o.name for o in session.database.catalog.state.objects.values()}
    rows = [
        [b.group, names.get(b.job_id), b.epoch, b.state, b.running_ms, f"{b.tasks_done}/{b.tasks_known}", b.rows_in,
         b.waiting_for]
        for b in session.database.coordinator.barriers()
    ]  # fmt: skip
    return rows_result("SHOW", heads, rows)


def describe(session: Session, statement: st.Describe) -> Result:
    """DESCRIBE a relation or a function."""
    if statement.kind == "function":
        return rows_result(
            "DESCRIBE", [("Name", "string"), ("Value", "string")], routines.described(session, statement.name)
        )
    result = _columns(session, statement.name, lambda name: True)
    result.tag = "DESCRIBE"
    return result


_OF_COORDINATOR = {"jobs": _jobs, "checkpoints": _checkpoints, "progress": _progress}


def explain(session: Session, statement: st.Explain) -> Result:
    """EXPLAIN of a query, of CREATE MATERIALIZED VIEW or of CREATE SINK."""
    inner = statement.statement
    if isinstance(inner, st.CreateMaterializedView):
        bound = Bound(session.localized(inner.query), session.names())
        lines = incremental_plan(session, bound, inner.columns, inner.emit_on_window_close, inner.options)
    elif isinstance(inner, st.CreateSink):
        lines = sink_plan(session, inner)
    elif isinstance(inner, st.Select):
        lines = query_plan(session, Bound(session.localized(inner.query), session.names()))
    else:
        raise NotSupported(
            "EXPLAIN of this statement", hint="EXPLAIN takes a query, CREATE MATERIALIZED VIEW or CREATE SINK."
        )
    return rows_result("EXPLAIN", [("QUERY PLAN", "string")], [[line] for line in lines])


def incremental_plan(
    session: Session, bound: Bound, columns: Sequence[str] | None = None, on_window_close: bool = False,
    options: Mapping[str, str] | None = None,
) -> list[str]:  # fmt: skip
    """The operators that would keep a view of this query up to date."""
    text = planned_text(bound, columns)
    apart = session.variables.is_on(unaligned.SETTING) and not on_window_close
    joins = unaligned.explained(session, text) if apart else []
    given = options or {}
    plan = session.planner.plan(text, on_window_close=on_window_close, arrangements=sharing.usable(session, given))
    return [*plan.explain(), *sharing.explained(session, plan, given), *joins]


def sink_plan(session: Session, statement: st.CreateSink) -> list[str]:
    """The operators that would feed a sink."""
    text = planned_text(sink_query(session, statement), None)
    shared, options = sharing.usable(session, statement.options), statement.options
    plan = session.planner.plan(text, on_window_close=statement.emit_on_window_close, arrangements=shared)
    return [*plan.into(options).explain(), *sharing.explained(session, plan, options)]


def query_plan(session: Session, bound: Bound) -> list[str]:
    """Spark's physical plan."""
    with ExitStack() as stack:
        frame = frame_of(session, bound, open_snapshot(session, bound, stack))
        with session.jobs.running("EXPLAIN"):
            plan = str(frame._jdf.queryExecution().executedPlan().treeString())
    return [line for line in plan.splitlines() if line.strip()]
