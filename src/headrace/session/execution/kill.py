"""KILL: cancels what another session runs; that session goes on."""

from __future__ import annotations

from typing import Final

from headrace.errors import InsufficientPrivilege
from headrace.session.context import Context
from headrace.session.execution.handler import Handler, Needs
from headrace.session.result import Notice, Result
from headrace.sql import statements as st


def kill(context: Context, statement: st.Kill) -> Result:
    """KILL a session's statement. A session that is gone is a notice: it may have ended just now."""
    found = next((s for s in context.system.contexts() if s.number == statement.session), None)
    if found is None:
        return Result(statement.tag, notices=[Notice(f"there is no session {statement.session}", "WARNING", "01000")])
    if not context.rights.superuser and found.variables.look("session_authorization") != context.user:
        raise InsufficientPrivilege(
            f"permission denied to cancel what session {statement.session} runs",
            hint="Only its own user and superusers may.",
        )
    found.cancel()
    return Result(statement.tag)


HANDLERS: Final = (Handler(st.Kill, kill, audited=True, needs=Needs.OWNER),)
