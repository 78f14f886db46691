"""FLUSH, WAIT and pg_promote: what clients ask of the server as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.session.execution.handler import Handler, InScript, Server, not_yet
from headrace.session.execution.rows import having, rows_result
from headrace.session.result import Result
from headrace.sql import statements as st

if TYPE_CHECKING:
    from headrace.session.session import Session

_PROMOTED = (("pg_promote", "boolean"),)


def flush(session: Session, statement: st.Flush) -> Result:
    """FLUSH."""
    session.flush()
    return Result("FLUSH")


def wait(session: Session, statement: st.Wait) -> Result:
    """WAIT."""
    session.flush()
    return Result("WAIT")


def promote(session: Session, statement: st.Promote) -> Result:
    """pg_promote: let this standby take over from the active server."""
    session.rights.require_superuser("let a standby take over")
    done: list[bool] = []
    limit_s = statement.wait_s if statement.wait else 0.0
    session.wait(lambda check: done.append(session.database.coordinator.take_over(limit_s, check)))
    return rows_result("SELECT", _PROMOTED, [[done[0] or not statement.wait]])


HANDLERS: Final = (
    Handler(st.Flush, flush, asks=Server.READY, script=InScript.COMMITS),
    Handler(st.Wait, wait, asks=Server.READY, script=InScript.COMMITS),
    Handler(st.Promote, promote, having(_PROMOTED), script=InScript.COMMITS, audited=True),
    Handler(st.Recover, not_yet, script=InScript.COMMITS),
)
