"""SHOW, DESCRIBE and EXPLAIN."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from headrace.catalog.contents import (
    ConnectionContent,
    Content,
    IndexContent,
    MaterializedViewContent,
    SchemaContent,
    SecretContent,
    SinkContent,
    SourceContent,
    SubscriptionContent,
    TableContent,
    ViewContent,
)
from headrace.catalog.records import ObjectRecord
from headrace.common.lazy_dataclass import dataclass
from headrace.config import describe_settings
from headrace.coordinator.decide.automatic import is_automatic
from headrace.coordinator.decide.former import table_of
from headrace.coordinator.decide.watermarks import declared, time_column
from headrace.errors import NotSupported
from headrace.session.context import Context
from headrace.session.defined import definition_of
from headrace.session.execution import connections, routines
from headrace.session.execution.handler import Columns, Handler, Needs, Types
from headrace.session.execution.value_results import Heads, Rows, having, result_columns, rows_result
from headrace.session.hidden_views import is_part
from headrace.session.names import label, names_of
from headrace.session.result import Result
from headrace.session.system.headrace import sessions_shown, shown_error, shown_job_error
from headrace.session.system.system_relations import SYSTEM_SCHEMAS
from headrace.sql import statements as st
from headrace.sql.type_names import pg_type_text


def _matcher(pattern: str | None) -> Callable[[str], bool]:
    if pattern is None:
        return lambda name: True
    text = "".join(".*" if c == "%" else "." if c == "_" else re.escape(c) for c in pattern)
    return lambda name: re.fullmatch(text, name, re.DOTALL) is not None


def show(context: Context, statement: st.Show) -> Result:
    """SHOW of lists, definitions and settings."""
    return rows_result(statement.tag, _show_heads(statement), _listing(statement).rows(context, statement))


def _show_heads(statement: st.Show) -> Heads:
    return _listing(statement).heads or ((statement.setting or "", "string"),)


def _describe_show(context: Context, statement: st.Show, types: Types) -> Columns:
    return result_columns(_show_heads(statement))


@dataclass(frozen=True)
class Listing:
    """What a kind of SHOW returns; without heads it is one column that is called like the setting."""

    heads: Heads
    rows: Callable[[Context, st.Show], Rows]


def _listing(statement: st.Show) -> Listing:
    found = _LISTINGS.get(statement.what)
    if found is None:
        raise NotSupported(f"SHOW {statement.what.upper()}")
    return found


def _setting(context: Context, statement: st.Show) -> Rows:
    return [[context.setting(statement.setting or "")]]


def _all(context: Context, statement: st.Show) -> Rows:
    return [[v.name, context.setting(v.name), v.meaning] for v, _ in context.variables.all()]


def _parameters(context: Context, statement: st.Show) -> Rows:
    fits = _matcher(statement.pattern)
    return [
        [s.name, s.value, s.default, "YES" if s.runtime else "NO", s.meaning]
        for s in describe_settings(context.settings)
        if fits(s.name)
    ]


def _create(context: Context, statement: st.Show) -> Rows:
    assert statement.name is not None
    record = names_of(context).get(statement.name)
    return [[label(record), definition_of(record, context.catalog.state)]]


def _schemas(context: Context, statement: st.Show) -> Rows:
    fits = _matcher(statement.pattern)
    names = sorted({"public", *(o.name for o in context.catalog.state.objects_of(SchemaContent))})
    return [[n] for n in [*names, *SYSTEM_SCHEMAS] if fits(n)]


def _functions(context: Context, statement: st.Show) -> Rows:
    return routines.listed(context, _searched(context, statement), _matcher(statement.pattern))


def _relations(kind: type[Content]) -> Callable[[Context, st.Show], Rows]:
    """The names of all relations of a kind."""

    def rows(context: Context, statement: st.Show) -> Rows:
        fits, schemas = _matcher(statement.pattern), _searched(context, statement)
        found = context.catalog.state.objects_of(kind)
        return [[n] for n in sorted(o.name for o in found if o.schema in schemas and fits(o.name) and not is_part(o))]

    return rows


def _connections(context: Context, statement: st.Show) -> Rows:
    fits, schemas = _matcher(statement.pattern), _searched(context, statement)
    there = context.catalog.state.objects_of(ConnectionContent)
    ordered = sorted((o for o in there if o.schema in schemas and fits(o.name)), key=lambda o: o.name)
    return [[o.name, o.content_as(ConnectionContent).type, connections.shown(context, o)] for o in ordered]


def _subscription_cursors(context: Context, statement: st.Show) -> Rows:
    """The session's own, and how far they are: `SINCE '<position>'` goes on there."""
    open_now = sorted(context.subscription_cursors.all(), key=lambda c: c.name)
    return [[c.name, label(c.subscription), c.position] for c in open_now]


def _processes(context: Context, statement: st.Show) -> Rows:
    names = ("id", "user_name", "application_name", "connected", "transaction")
    return [[row.get(n) for n in names] for row in sessions_shown(context)]


def _nothing(context: Context, statement: st.Show) -> Rows:
    return []


def _searched(context: Context, statement: st.Show) -> tuple[str, ...]:
    return (statement.schema,) if statement.schema is not None else tuple(names_of(context).search_path)


def _indexes(context: Context, statement: st.Show) -> Rows:
    """All indexes of the schemas in question, or those of one relation."""
    state, fits = context.catalog.state, _matcher(statement.pattern)
    on = names_of(context).get(statement.name).id if statement.name is not None else None
    schemas = _searched(context, statement)
    rows: list[list[object]] = []
    for o in sorted(context.catalog.state.objects_of(IndexContent), key=lambda o: o.name):
        index = o.content_as(IndexContent)
        relation, key = table_of(state, state.objects[index.on]), index.key
        schema = relation.schema if is_automatic(o) else o.schema
        if fits(o.name) and (relation.id == on if on is not None else schema in schemas):
            include = [c.name for c in o.columns if c.name not in key]
            made = "YES" if is_automatic(o) else "NO"
            rows.append([o.name, label(relation), ", ".join(key), ", ".join(include), made])
    return rows


def _columns_shown(context: Context, statement: st.Show) -> Rows:
    assert statement.name is not None
    return _columns(context, statement.name, _matcher(statement.pattern))


def _columns(context: Context, name: st.TableName, fits: Callable[[str], bool]) -> Rows:
    found = names_of(context).find(name)
    target = found if found is not None and isinstance(found.content, SinkContent) else names_of(context).target(name)
    keys = target.primary_key if isinstance(target, ObjectRecord) else ()
    watermarks = _watermarks(target) if isinstance(target, ObjectRecord) else {}
    return [
        [c.name, pg_type_text(c.type), "NO" if not c.nullable else "YES", "YES" if c.name in keys else "NO",
         watermarks.get(c.name)]
        for c in target.columns
        if fits(c.name)
    ]  # fmt: skip


def _watermarks(record: ObjectRecord) -> dict[str, str]:
    """What is known of the watermark of a relation: its column, and how it follows it."""
    own, column = declared(record), time_column(record)
    if own is not None:
        return {own.column: f"{own.column} - INTERVAL '{own.delay_us / 1e6:g} seconds'"}
    return {} if column is None else {column: "EMIT ON WINDOW CLOSE"}


def _jobs(context: Context, statement: st.Show) -> Rows:
    return [
        [j.id, j.name, j.status, j.lag_ms, shown_job_error(context, j, j.error.message if j.error else None),
         shown_job_error(context, j, j.error.detail if j.error else None), j.rows_in, j.rows_out,
         shown_error(context, j.id, j.waiting_for or None), j.progress or None, j.group, j.row_errors]
        for j in context.coordinator.jobs()
    ]  # fmt: skip


def _checkpoints(context: Context, statement: st.Show) -> Rows:
    names = {o.id: o.name for o in context.catalog.state.objects.values()}
    return [
        [c.group, names.get(c.job_id), c.epoch, datetime.fromtimestamp(c.at_ms / 1000, UTC), c.duration_ms, c.rows_in,
         c.rows_out, c.objects, c.bytes]
        for c in context.coordinator.checkpoints()
    ]  # fmt: skip


def _progress(context: Context, statement: st.Show) -> Rows:
    """One line for each barrier that is under way or stuck."""
    names = {o.id: o.name for o in context.catalog.state.objects.values()}
    return [
        [b.group, names.get(b.job_id), b.epoch, b.state, b.running_ms, f"{b.tasks_done}/{b.tasks_known}", b.rows_in,
         shown_error(context, b.job_id, b.waiting_for or None)]
        for b in context.coordinator.barriers()
    ]  # fmt: skip


def _texts(*names: str) -> Heads:
    return tuple((name, "string") for name in names)


_COLUMN_HEADS: Heads = _texts("Name", "Type", "Nullable", "Primary Key", "Watermark")
_FUNCTION_HEADS: Heads = _texts("Name", "Value")
_JOB_HEADS: Heads = (
    ("Id", "bigint"), ("Name", "string"), ("Status", "string"), ("Lag ms", "bigint"), ("Error", "string"),
    ("Detail", "string"), ("Rows in", "bigint"), ("Rows out", "bigint"), ("Waiting for", "string"),
    ("Progress", "string"), ("Group", "string"), ("Row errors", "bigint"),
)  # fmt: skip
_CHECKPOINT_HEADS: Heads = (
    ("Group", "string"), ("Job", "string"), ("Epoch", "bigint"), ("At", "timestamp"), ("Duration ms", "bigint"),
    ("Rows in", "bigint"), ("Rows out", "bigint"), ("Objects", "int"), ("Bytes", "bigint"),
)  # fmt: skip
_PROGRESS_HEADS: Heads = (
    ("Group", "string"), ("Job", "string"), ("Epoch", "bigint"), ("State", "string"), ("Running ms", "bigint"),
    ("Tasks", "string"), ("Rows in", "bigint"), ("Waiting for", "string"),
)  # fmt: skip
_PLAN_HEADS: Heads = (("QUERY PLAN", "string"),)
_EMPTY = ("cursors", "cluster")
_LISTINGS: dict[str, Listing] = {
    "setting": Listing((), _setting),
    "all": Listing(_texts("name", "setting", "description"), _all),
    "parameters": Listing(_texts("Name", "Value", "Default", "Mutable", "Description"), _parameters),
    "columns": Listing(_COLUMN_HEADS, _columns_shown),
    "create": Listing(_texts("Name", "Create Sql"), _create),
    "indexes": Listing(_texts("Name", "On", "Key", "Include", "Automatic"), _indexes),
    "functions": Listing(tuple(routines.HEADS), _functions),
    "jobs": Listing(_JOB_HEADS, _jobs),
    "checkpoints": Listing(_CHECKPOINT_HEADS, _checkpoints),
    "progress": Listing(_PROGRESS_HEADS, _progress),
    "processlist": Listing((("Id", "bigint"), *_texts("User", "Application", "Connected", "Transaction")), _processes),
    "databases": Listing(_texts("Name"), lambda context, statement: [["dev"]]),
    "schemas": Listing(_texts("Name"), _schemas),
    "tables": Listing(_texts("Name"), _relations(TableContent)),
    "sources": Listing(_texts("Name"), _relations(SourceContent)),
    "materialized views": Listing(_texts("Name"), _relations(MaterializedViewContent)),
    "views": Listing(_texts("Name"), _relations(ViewContent)),
    "sinks": Listing(_texts("Name"), _relations(SinkContent)),
    "secrets": Listing(_texts("Name"), _relations(SecretContent)),
    "connections": Listing(_texts("Name", "Type", "Properties"), _connections),
    "subscriptions": Listing(_texts("Name"), _relations(SubscriptionContent)),
    "subscription cursors": Listing(_texts("Name", "SubscriptionName", "Position"), _subscription_cursors),
    **{what: Listing(_texts("Name"), _nothing) for what in _EMPTY},
}


def describe(context: Context, statement: st.Describe) -> Result:
    """DESCRIBE a relation or a function."""
    if statement.kind == "function":
        rows: Rows = routines.described(context, statement.name)
    else:
        rows = _columns(context, statement.name, lambda name: True)
    return rows_result(statement.tag, _heads_of_described(statement), rows)


def _heads_of_described(statement: st.Describe) -> Heads:
    return _FUNCTION_HEADS if statement.kind == "function" else _COLUMN_HEADS


def _describe_described(context: Context, statement: st.Describe, types: Types) -> Columns:
    return result_columns(_heads_of_described(statement))


def explain(context: Context, statement: st.Explain) -> Result:
    """EXPLAIN of what a handler can explain."""
    inner = statement.statement
    lines = context.runner.explaining(inner)
    if inner.writes or lines is None:
        context.coordinator.refuse_writes(f"EXPLAIN {inner.words}")
        context.coordinator.wait_ready(context.check)
    if lines is None:
        raise NotSupported(
            "EXPLAIN of this statement", hint="EXPLAIN takes a query, CREATE MATERIALIZED VIEW or CREATE SINK."
        )
    return rows_result(statement.tag, _PLAN_HEADS, [[line] for line in lines()])


HANDLERS: Final = (
    Handler(st.Show, show, _describe_show, needs=Needs.NOTHING),
    Handler(st.Describe, describe, _describe_described, needs=Needs.NOTHING),
    Handler(st.Explain, explain, having(_PLAN_HEADS), needs=Needs.READ),
)
