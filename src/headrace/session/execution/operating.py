"""FLUSH, WAIT and pg_promote: what clients ask of the server as a whole."""

from __future__ import annotations

from typing import Final

from headrace.session.context import Context
from headrace.session.execution.handler import Handler, InScript, Needs, Server, not_yet
from headrace.session.execution.value_results import having, rows_result
from headrace.session.result import Notice, Result
from headrace.sql import statements as st

_PROMOTED = (("pg_promote", "boolean"),)


def flush(context: Context, statement: st.Flush) -> Result:
    """FLUSH."""
    context.flush()
    return Result(statement.tag, notices=_unreadable(context))


def wait(context: Context, statement: st.Wait) -> Result:
    """WAIT."""
    context.flush()
    return Result(statement.tag, notices=_unreadable(context))


def _unreadable(context: Context) -> list[Notice]:
    """A warning for each source of which views do not have what is there by now, since it cannot be read."""
    state, errors = context.catalog.state, context.coordinator.source_errors()
    read = {i for job in context.coordinator.jobs() for i in job.upstreams} if errors else set[int]()
    found = [(record, errors[i][0]) for i in sorted(read & errors.keys()) if (record := state.objects.get(i))]
    return [
        Notice(
            f"{record.in_words} cannot be read" + (f": {error.message}" if context.may_know(record.id) else ""),
            "WARNING", error.sqlstate,
        )
        for record, error in found
    ]  # fmt: skip


def promote(context: Context, statement: st.Promote) -> Result:
    """pg_promote: let this standby take over from the active server."""
    context.rights.require_superuser("let a standby take over")
    done: list[bool] = []
    limit_s = statement.wait_s if statement.wait else 0.0
    context.wait(lambda check: done.append(context.coordinator.take_over(limit_s, check)))
    return rows_result(statement.tag, _PROMOTED, [[done[0] or not statement.wait]])


HANDLERS: Final = (
    Handler(st.Flush, flush, asks=Server.READY, script=InScript.COMMITS, needs=Needs.NOTHING),
    Handler(st.Wait, wait, asks=Server.READY, script=InScript.COMMITS, needs=Needs.NOTHING),
    Handler(st.Promote, promote, having(_PROMOTED), script=InScript.COMMITS, audited=True, needs=Needs.SUPERUSER),
    Handler(st.Recover, not_yet, script=InScript.COMMITS, needs=Needs.NOTHING),
)
