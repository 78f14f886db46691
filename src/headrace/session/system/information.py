"""`information_schema`, `rw_catalog` and `headrace_catalog`."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING

from headrace.session.system.postgres import OWNER, display_type, namespaces, relations
from headrace.session.system.relations import Rows, define
from headrace.sql.types import pg_type

if TYPE_CHECKING:
    from headrace.session.session import Session

_TABLE_TYPES = {"table": "BASE TABLE", "view": "VIEW", "materialized_view": "MATERIALIZED VIEW", "source": "FOREIGN"}


def _tables(session: Session) -> Rows:
    for o in relations(session):
        if o.kind in _TABLE_TYPES:
            yield {"table_schema": o.schema, "table_name": o.name, "table_type": _TABLE_TYPES[o.kind],
                   "is_insertable_into": "YES" if o.kind == "table" else "NO"}  # fmt: skip


def _columns(session: Session) -> Rows:
    for o in relations(session):
        for number, column in enumerate(o.columns, 1):
            nullable = column.nullable and column.name not in o.primary_key
            yield {
                "table_schema": o.schema, "table_name": o.name, "column_name": column.name, "ordinal_position": number,
                "column_default": o.payload.get("defaults", {}).get(column.name),
                "is_nullable": "YES" if nullable else "NO", "data_type": display_type(column.type).split("(")[0],
                "udt_name": pg_type(column.type).name,
            }  # fmt: skip


def _schemata(session: Session) -> Rows:
    return [{"schema_name": name} for name in namespaces(session)]


def _views(session: Session) -> Rows:
    for o in relations(session):
        if o.kind == "view":
            yield {"table_schema": o.schema, "table_name": o.name, "view_definition": o.payload.get("query")}


def _constraints(session: Session) -> Rows:
    for o in relations(session):
        if o.primary_key:
            yield {"constraint_schema": o.schema, "constraint_name": f"{o.name}_pkey", "table_schema": o.schema,
                   "table_name": o.name, "constraint_type": "PRIMARY KEY"}  # fmt: skip


def _key_columns(session: Session) -> Rows:
    for o in relations(session):
        for number, name in enumerate(o.primary_key, 1):
            yield {"constraint_schema": o.schema, "constraint_name": f"{o.name}_pkey", "table_schema": o.schema,
                   "table_name": o.name, "column_name": name, "ordinal_position": number}  # fmt: skip


def _moment(unix_ms: int) -> str | None:
    return datetime.fromtimestamp(unix_ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds") if unix_ms else None


def _jobs(session: Session) -> Rows:
    for job in session.database.coordinator.jobs():
        row = {f.name: getattr(job, f.name) for f in dataclasses.fields(job)}
        row["error"] = None if row.get("error") is None else str(row["error"])
        row["progress"] = None if not row.get("progress") else str(row["progress"])
        row["error_since"] = _moment(row.get("error_since_ms") or 0)
        yield row


def _sources(session: Session) -> Rows:
    state = session.database.catalog.state
    for o in state.objects_of("source"):
        newest = state.newest_remap(o.id)
        yield {
            "id": o.id, "name": o.name, "schema_name": o.schema, "connector": o.options.get("connector"),
            "epoch": newest.epoch if newest else None, "offsets": json.dumps(newest.offsets) if newest else None,
        }  # fmt: skip


def _state_tables(session: Session) -> Rows:
    with session.database.catalog.reading() as state:
        rows = []
        for t in state.state_tables.values():
            runs = state.runs_of(t.id)
            rows.append({
                "id": t.id, "job_id": t.job_id, "operator": t.operator, "committed_epoch": t.committed_epoch,
                "safe_epoch": t.safe_epoch, "runs": len(runs), "rows": sum(r.ref.rows for r in runs),
                "bytes": sum(r.ref.length for r in runs),
            })  # fmt: skip
        return rows


def _epochs(session: Session) -> Rows:
    state = session.database.catalog.state
    for job in state.jobs.values():
        yield {"job_id": job.id, "committed_epoch": job.committed_epoch, "frontier": job.frontier,
               "current_epoch": session.database.coordinator.current_epoch()}  # fmt: skip


def _events(session: Session) -> Rows:
    for e in session.database.catalog.state.newest_events(1000):
        yield {"sequence": e.sequence, "at": _moment(e.at_ms), "kind": e.kind, "object_id": e.object_id,
               "message": e.message, "detail": e.detail}  # fmt: skip


def _of_kind(kind: str) -> object:
    def rows(session: Session) -> Rows:
        schemas = namespaces(session)
        return [
            {"id": o.id, "name": o.name, "schema_id": schemas.get(o.schema, 2200), "definition": o.definition,
             "created_at": _moment(o.created_ms)}
            for o in relations(session)
            if o.kind == kind
        ]  # fmt: skip

    return rows


@cache
def load() -> None:
    """Define the relations."""
    define("information_schema", "tables", "table_catalog, table_schema, table_name, table_type, is_insertable_into",
           _tables, table_catalog="dev")  # fmt: skip
    define(
        "information_schema", "columns",
        "table_catalog, table_schema, table_name, column_name, ordinal_position int, column_default, is_nullable, "
        "data_type, character_maximum_length int, numeric_precision int, numeric_scale int, datetime_precision int, "
        "udt_schema, udt_name, is_identity, is_generated",
        _columns, table_catalog="dev", udt_schema="pg_catalog", is_identity="NO", is_generated="NEVER",
    )  # fmt: skip
    define("information_schema", "schemata", "catalog_name, schema_name, schema_owner", _schemata, catalog_name="dev",
           schema_owner=OWNER)  # fmt: skip
    define("information_schema", "views", "table_catalog, table_schema, table_name, view_definition", _views,
           table_catalog="dev")  # fmt: skip
    define(
        "information_schema", "table_constraints",
        "constraint_catalog, constraint_schema, constraint_name, table_catalog, table_schema, table_name, "
        "constraint_type", _constraints, constraint_catalog="dev", table_catalog="dev",
    )  # fmt: skip
    define(
        "information_schema", "key_column_usage",
        "constraint_catalog, constraint_schema, constraint_name, table_catalog, table_schema, table_name, column_name, "
        "ordinal_position int", _key_columns, constraint_catalog="dev", table_catalog="dev",
    )  # fmt: skip
    define(
        "headrace_catalog", "jobs",
        "id bigint, name, kind, group, status, committed_epoch bigint, frontier bigint, lag_ms bigint, rows_in bigint, "
        "rows_out bigint, epochs bigint, last_epoch_ms double, error, error_since timestamp, row_errors bigint, "
        "progress", _jobs,
    )  # fmt: skip
    define("headrace_catalog", "sources", "id bigint, name, schema_name, connector, epoch bigint, offsets", _sources)
    define(
        "headrace_catalog", "state_tables",
        "id bigint, job_id bigint, operator, committed_epoch bigint, safe_epoch bigint, runs int, rows bigint, "
        "bytes bigint", _state_tables,
    )  # fmt: skip
    define("headrace_catalog", "epochs", "job_id bigint, committed_epoch bigint, frontier bigint, current_epoch bigint",
           _epochs)  # fmt: skip
    define("headrace_catalog", "events", "sequence bigint, at timestamp, kind, object_id bigint, message, detail",
           _events)  # fmt: skip
    for name, kind in {"rw_tables": "table", "rw_materialized_views": "materialized_view", "rw_sources": "source",
                       "rw_views": "view", "rw_sinks": "sink"}.items():  # fmt: skip
        define("rw_catalog", name, "id bigint, name, schema_id bigint, owner bigint, definition, created_at timestamp",
               _of_kind(kind), owner=10)  # type: ignore[arg-type]  # fmt: skip
    define("rw_catalog", "rw_schemas", "id bigint, name, owner bigint",
           lambda s: [{"id": i, "name": n} for n, i in namespaces(s).items()], owner=10)  # fmt: skip
