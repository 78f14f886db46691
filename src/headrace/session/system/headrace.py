"""`headrace_catalog`: what the coordinator does and why. docs/operations.md says how to read it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from headrace.catalog.contents import ConnectionContent, IndexContent, SecretContent, SourceContent, SubscriptionContent
from headrace.catalog.store import describe_self
from headrace.connectors.sources import of_splits
from headrace.coordinator.decide.former import serves_formers, table_of
from headrace.coordinator.decide.watermarks import declared
from headrace.coordinator.observe.obstacles import HIDDEN
from headrace.coordinator.observe.status import JobStatus
from headrace.session.context import Context
from headrace.session.system.system_relations import Rows, define

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment(unix_ms: int) -> str | None:
    """A time as text for a timestamp column; None for 0."""
    return datetime.fromtimestamp(unix_ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds") if unix_ms else None


def _event_time(us: int | None) -> str | None:
    return None if us is None else (_EPOCH + timedelta(microseconds=us)).isoformat(sep=" ")


def _fields(record: Any) -> dict[str, Any]:
    found = {f.name: getattr(record, f.name) for f in dataclasses.fields(record)}
    if "group" in found:
        found["checkpoint_group"] = found.pop("group")
    return found


def _names(context: Context) -> Mapping[int, str]:
    state = context.catalog.state
    return {o.id: table_of(state, o).name for o in state.objects.values()}


def shown_error(context: Context, object_id: int, text: str | None) -> str | None:
    """What failed, or what is waited for since, which may have values of rows in it, for who may see the object's."""
    return text if text is None or context.may_know(object_id) else HIDDEN


def shown_job_error(context: Context, job: JobStatus, text: str | None) -> str | None:
    """What of a job's error is shown: why a source cannot be read is its owner's to know, that it is so everybody's."""
    if job.unread is None or context.may_know(job.unread.id):
        return shown_error(context, job.id, text)
    return text and f"{job.unread.name}: {HIDDEN}"


def _jobs(context: Context) -> Rows:
    names = _names(context)
    for job in context.coordinator.jobs():
        yield _fields(job) | {
            "error": shown_job_error(context, job, None if job.error is None else str(job.error)),
            "error_since": moment(job.error_since_ms),
            "progress": job.progress or None,
            "waiting_for": shown_error(context, job.id, job.waiting_for or None),
            "upstreams": ", ".join(names.get(i, str(i)) for i in job.upstreams),
        }


def _barriers(context: Context) -> Rows:
    names = _names(context)
    for barrier in context.coordinator.barriers():
        waiting_for = shown_error(context, barrier.job_id, barrier.waiting_for or None)
        yield _fields(barrier) | {"name": names.get(barrier.job_id), "waiting_for": waiting_for}


def _groups(context: Context) -> Rows:
    for group in context.coordinator.groups():
        yield _fields(group) | {"jobs": ", ".join(group.jobs)}


def _checkpoints(context: Context) -> Rows:
    names = _names(context)
    for done in context.coordinator.checkpoints():
        yield _fields(done) | {"name": names.get(done.job_id), "at": moment(done.at_ms)}


def _row_errors(context: Context) -> Rows:
    names = _names(context)
    for error in context.coordinator.row_errors():
        yield _fields(error) | {"name": names.get(error.job_id), "at": moment(error.at_ms)}


def _log_stores(context: Context) -> Rows:
    return [_fields(edge) for edge in context.coordinator.log_stores()]


def _progress(context: Context) -> Rows:
    names = _names(context)
    for attempt in context.coordinator.progress():
        head = {
            "checkpoint_group": attempt.group, "job_id": attempt.job_id, "name": names.get(attempt.job_id),
            "epoch": attempt.epoch, "attempt": attempt.name, "started": moment(attempt.started_ms),
        }  # fmt: skip
        for task in sorted(attempt.tasks.values(), key=lambda t: (t.operator, t.task)):
            yield head | _fields(task) | {"reason": shown_error(context, attempt.job_id, task.reason or None)}


def _epochs(context: Context) -> Rows:
    for found in context.coordinator.epochs():
        yield _fields(found) | {"exact": " ".join(f"[{low}, {high}]" for low, high in found.exact)}


def _sources(context: Context) -> Rows:
    state = context.catalog.state
    errors, left = context.coordinator.source_errors(), context.coordinator.rows_left()
    added, wide = context.coordinator.columns_there(), context.coordinator.row_bytes()
    for o in state.objects_of(SourceContent):
        newest = state.newest_remap(o.id)
        error, since_ms = errors.get(o.id, (None, 0))
        yield {
            "id": o.id, "name": o.name, "schema_name": o.schema, "connector": o.options.get("connector"),
            "epoch": newest.epoch if newest else None, "offsets": json.dumps(newest.offsets) if newest else None,
            "watermark": _event_time(newest.watermark_us) if newest and declared(o) else None,
            "error": shown_error(context, o.id, None if error is None else str(error)),
            "error_since": moment(since_ms), "paused": o.content_as(SourceContent).paused,
            "rows_behind": sum(left[o.id].values()) if o.id in left else None,
            "row_bytes": wide.get(o.id),
            "columns_there": ", ".join(added[o.id]) if o.id in added and not serves_formers(state, o) else None,
        }  # fmt: skip


def _source_splits(context: Context) -> Rows:
    state, left, times = context.catalog.state, context.coordinator.rows_left(), context.coordinator.split_times()
    for o in state.objects_of(SourceContent):
        newest = state.newest_remap(o.id)
        behind, seen = left.get(o.id, {}), times.get(o.id, {})
        for split, position in of_splits(o.options, newest.offsets).items() if newest else ():
            yield {
                "source_id": o.id, "source": o.name, "schema_name": o.schema, "split": split,
                "position": json.dumps(position), "rows_behind": behind.get(split),
                "newest_time": _event_time(seen.get(split)),
            }  # fmt: skip


def _replication_slots(context: Context) -> Rows:
    state = context.catalog.state
    standings, errors = context.coordinator.slot_standings(), context.coordinator.source_errors()
    tables: dict[int | None, list[str]] = {}
    for o in (o for o in state.objects_of(SourceContent) if not serves_formers(state, o)):
        tables.setdefault(o.content_as(SourceContent).origin, []).append(o.content_as(SourceContent).part or o.name)
    for o in state.objects_of(SourceContent):
        if not o.content_as(SourceContent).shared:
            continue
        standing, error = standings.get(o.id), errors.get(o.id)
        yield {
            "source_id": o.id, "source": o.name, "schema_name": o.schema, "slot": o.options["slot.name"],
            "publication": o.options["publication.name"], "tables": ", ".join(sorted(tables.get(o.id, ()))),
            "confirmed_lsn": None if standing is None else standing.confirmed,
            "lag_bytes": None if standing is None else standing.lag_bytes,
            "kept_bytes": None if standing is None else standing.kept_bytes,
            "error": shown_error(context, o.id, None if error is None else str(error[0])),
        }  # fmt: skip


def _dropped_sources(context: Context) -> Rows:
    for left in context.coordinator.leftovers():
        o = left.source
        knows = context.rights.is_member("pg_monitor") or context.rights.owns(o)
        yield {
            "source_id": o.id, "source": o.content_as(SourceContent).part or o.name, "schema_name": o.schema,
            "connector": o.options.get("connector"),
            "slot": o.options.get("slot.name"), "dropped": moment(left.dropped_ms), "failures": left.failures,
            "error": (left.error if knows else HIDDEN) if left.error else None, "retry_in_ms": left.retry_in_ms,
        }  # fmt: skip


def _indexes(context: Context) -> Rows:
    state = context.catalog.state
    for o in state.objects_of(IndexContent):
        index, users = o.content_as(IndexContent), (state.objects[i].name for i in state.dependents(o.id))
        yield {
            "id": o.id, "name": o.name, "relation": table_of(state, state.objects[index.on]).name,
            "key": ", ".join(index.key),
            "include": ", ".join(c.name for c in o.columns if c.name not in index.key), "automatic": index.automatic,
            "checkpoint_group": state.jobs[o.id].group, "used_by": ", ".join(users),
        }  # fmt: skip


def _secrets(context: Context) -> Rows:
    state = context.catalog.state
    for o in state.objects_of(SecretContent):
        users = (state.objects[i].name for i in state.dependents(o.id))
        yield {
            "id": o.id, "name": o.name, "schema_name": o.schema, "created": moment(o.created_ms),
            "key_id": o.content_as(SecretContent).key_id, "used_by": ", ".join(users),
        }  # fmt: skip


def _connections(context: Context) -> Rows:
    state = context.catalog.state
    for o in state.objects_of(ConnectionContent):
        users = (state.objects[i].name for i in state.dependents(o.id))
        yield {
            "id": o.id, "name": o.name, "schema_name": o.schema, "type": o.content_as(ConnectionContent).type,
            "options": ", ".join(sorted({*o.options, *o.secrets})), "created": moment(o.created_ms),
            "used_by": ", ".join(users),
        }  # fmt: skip


def _subscriptions(context: Context) -> Rows:
    state, epochs = context.catalog.state, {e.relation_id: e for e in context.coordinator.epochs()}
    for o in state.objects_of(SubscriptionContent):
        relation, promise = epochs.get(o.depends_on[0]), o.content_as(SubscriptionContent)
        yield {
            "id": o.id, "name": o.name, "schema_name": o.schema, "relation": _names(context).get(o.depends_on[0]),
            "retention_ms": promise.retention_ms, "since_epoch": promise.since, "created": moment(o.created_ms),
            "readable_after": max(relation.safe_epoch, promise.since) if relation else None,
            "frontier": relation.frontier if relation else None,
        }  # fmt: skip


def _state_tables(context: Context) -> Rows:
    with context.catalog.reading() as state:
        rows = []
        for t in state.state_tables.values():
            runs = state.runs_of(t.id)
            rows.append({
                "id": t.id, "job_id": t.job_id, "operator": t.operator, "committed_epoch": t.committed_epoch,
                "safe_epoch": t.safe_epoch, "runs": len(runs), "rows": sum(r.ref.rows for r in runs),
                "bytes": sum(r.ref.length for r in runs),
            })  # fmt: skip
        return rows


def _events(context: Context) -> Rows:
    for e in context.catalog.state.newest_events(context.settings.events_shown):
        yield {"sequence": e.sequence, "at": moment(e.at_ms), "kind": e.kind, "object_id": e.object_id,
               "message": e.message, "detail": e.detail}  # fmt: skip


def _metrics(context: Context) -> Rows:
    return [_fields(metric) for metric in context.coordinator.metrics()]


def sessions_shown(context: Context) -> Rows:
    """What each session is; what it does is for its own user and for those who may monitor."""
    sees_all = context.rights.is_member("pg_monitor")
    for other in context.system.contexts():
        user, transaction = other.variables.look("session_authorization"), other.transaction
        head = {"id": other.number, "user_name": user, "connected": moment(other.began_ms)}
        if not (sees_all or user == context.user):
            yield head
            continue
        yield head | {
            "application_name": other.variables.look("application_name") or None,
            "transaction": None if transaction is None else "failed" if transaction.failed else "open",
            "snapshot_epoch": None if transaction is None else transaction.work.epoch,
            "cursors": len(other.cursors), "prepared_statements": len(other.statements),
        }  # fmt: skip


def _server(context: Context) -> Rows:
    coordinator = context.coordinator
    status, lease = coordinator.standby(), coordinator.lease
    if status is not None:
        yield _fields(status) | {"role": "standby", "error": status.error or None, "address": status.address or None}
        return
    yield {
        "role": "active", "owner": describe_self(), "epoch": coordinator.current_epoch(),
        "address": (lease.address if lease else "") or None, "lease_ms": lease.length_ms if lease else 0,
        "staleness_ms": 0, "silent_ms": 0,
    }  # fmt: skip


_COLUMNS = {
    "server": (
        "role, owner, address, epoch bigint, staleness_ms bigint, lease_ms bigint, silent_ms bigint, error", _server,
    ),
    "sessions": (
        "id bigint, user_name, application_name, connected timestamp, transaction, snapshot_epoch bigint, cursors int, "
        "prepared_statements int", sessions_shown,
    ),
    "read_processes": (
        "number int, pid int, state, epoch bigint, reads bigint, connections int",
        lambda context: [status._asdict() for status in context.system.reading_processes()],
    ),
    "jobs": (
        "id bigint, name, kind, checkpoint_group, status, committed_epoch bigint, frontier bigint, lag_ms bigint, "
        "in_flight_epoch bigint, waiting_for, rows_in bigint, rows_out bigint, epochs bigint, last_epoch_ms double, "
        "error, error_since timestamp, failures int, retry_in_ms bigint, row_errors bigint, late_rows bigint, "
        "progress, upstreams", _jobs,
    ),
    "barriers": (
        "checkpoint_group, job_id bigint, name, epoch bigint, from_epoch bigint, state, waiting_for, "
        "running_ms bigint, tasks_done int, tasks_known int, rows_in bigint, rows_out bigint", _barriers,
    ),
    "checkpoint_groups": (
        "name, jobs, status, committed_epoch bigint, frontier bigint, checkpoint_interval_ms bigint, in_flight int, "
        "checkpoints bigint, rows_in bigint, rows_out bigint, failures bigint", _groups,
    ),
    "checkpoints": (
        "checkpoint_group, job_id bigint, name, epoch bigint, from_epoch bigint, at timestamp, duration_ms bigint, "
        "rows_in bigint, rows_out bigint, objects int, bytes bigint", _checkpoints,
    ),
    "row_errors": (
        "job_id bigint, name, epoch bigint, at timestamp, operator, expression, message, sqlstate, sample", _row_errors,
    ),
    "log_stores": (
        "upstream_id bigint, upstream, downstream_id bigint, downstream, position bigint, oldest_unconsumed bigint, "
        "backlog_epochs bigint, backlog_rows bigint, backlog_bytes bigint, limit_bytes bigint, log_state, "
        "rows_historical bigint, "
        "rows_flushed bigint, rows_buffered bigint, truncated_to bigint, paused_ms bigint", _log_stores,
    ),
    "progress": (
        "checkpoint_group, job_id bigint, name, epoch bigint, attempt, started timestamp, operator, task int, "
        "attempt_number bigint, state, rows_in bigint, rows_out bigint, reason", _progress,
    ),
    "epochs": (
        "relation_id bigint, name, kind, committed_epoch bigint, frontier bigint, safe_epoch bigint, floor bigint, "
        "newest_exact bigint, exact, current_epoch bigint", _epochs,
    ),
    "sources": (
        "id bigint, name, schema_name, connector, epoch bigint, offsets, watermark timestamp, error, "
        "error_since timestamp, paused boolean, rows_behind bigint, row_bytes bigint, columns_there", _sources,
    ),
    "source_splits": (
        "source_id bigint, source, schema_name, split, position, rows_behind bigint, newest_time timestamp",
        _source_splits,
    ),
    "replication_slots": (
        "source_id bigint, source, schema_name, slot, publication, tables, confirmed_lsn, lag_bytes bigint, "
        "kept_bytes bigint, error", _replication_slots,
    ),
    "dropped_sources": (
        "source_id bigint, source, schema_name, connector, slot, dropped timestamp, failures int, error, "
        "retry_in_ms bigint", _dropped_sources,
    ),
    "indexes": (
        "id bigint, name, relation, key, include, automatic boolean, checkpoint_group, used_by", _indexes,
    ),
    "connections": ("id bigint, name, schema_name, type, options, created timestamp, used_by", _connections),
    "secrets": ("id bigint, name, schema_name, created timestamp, key_id, used_by", _secrets),
    "subscriptions": (
        "id bigint, name, schema_name, relation, retention_ms bigint, since_epoch bigint, readable_after bigint, "
        "frontier bigint, created timestamp", _subscriptions,
    ),
    "state_tables": (
        "id bigint, job_id bigint, operator, committed_epoch bigint, safe_epoch bigint, runs int, rows bigint, "
        "bytes bigint", _state_tables,
    ),
    "metrics": ("name, value double, unit, help", _metrics),
    "events": ("sequence bigint, at timestamp, kind, object_id bigint, message, detail", _events),
}  # fmt: skip


@cache
def load() -> None:
    """Define the relations."""
    for name, (columns, rows) in _COLUMNS.items():
        define("headrace_catalog", name, columns, rows)
