"""Who is connected, as PostgreSQL's `pg_stat_activity` shows it, and the database's own counts.

What a session does is for its own user and for those who may monitor, as in PostgreSQL. Which statement it runs is not
kept, so only the session that asks is known to be active.
"""

from __future__ import annotations

from headrace.session.context import Context
from headrace.session.stored_roles import all_roles
from headrace.session.system.headrace import moment
from headrace.session.system.system_relations import Rows, define


def _sessions(context: Context) -> Rows:
    sees_all = context.rights.is_member("pg_monitor")
    oids = {role.name: oid for oid, role in all_roles(context.catalog.state).items()}
    for other in context.system.contexts():
        user, transaction = other.variables.look("session_authorization"), other.transaction
        head = {"pid": other.number, "usename": user, "usesysid": oids.get(user)}
        if not (sees_all or user == context.user):
            yield {**head, "query": "<insufficient privilege>"}
            continue
        if other is context:
            state: str | None = "active"
        elif transaction is None:
            state = None
        else:
            state = "idle in transaction (aborted)" if transaction.failed else "idle in transaction"
        yield {
            **head, "state": state, "application_name": other.variables.look("application_name"),
            "client_addr": other.client or None, "backend_start": moment(other.began_ms),
            "backend_type": "client backend",
        }  # fmt: skip


def _database(context: Context) -> Rows:
    return [{"numbackends": len(context.system.contexts())}]


def load() -> None:
    """Define the relations."""
    define(
        "pg_catalog", "pg_stat_activity",
        "datid oid, datname name, pid int, leader_pid int, usesysid oid, usename name, application_name, client_addr, "
        "client_hostname, client_port int, backend_start timestamp, xact_start timestamp, query_start timestamp, "
        "state_change timestamp, wait_event_type, wait_event, state, backend_xid xid, backend_xmin xid, "
        "query_id bigint, query, backend_type", _sessions, datid=1, datname="dev", query="",
    )  # fmt: skip
    counts = (
        "xact_commit", "xact_rollback", "blks_read", "blks_hit", "tup_returned", "tup_fetched", "tup_inserted",
        "tup_updated", "tup_deleted", "conflicts", "temp_files", "temp_bytes", "deadlocks",
    )  # fmt: skip
    define(
        "pg_catalog", "pg_stat_database",
        f"datid oid, datname name, numbackends int, {', '.join(f'{name} bigint' for name in counts)}, "
        "stats_reset timestamp", _database, datid=1, datname="dev",
    )  # fmt: skip
