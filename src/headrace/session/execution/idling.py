"""Statements that do nothing: an empty one, and UNLISTEN, since nothing is ever listened to."""

from __future__ import annotations

from typing import Final

from headrace.session.context import Context
from headrace.session.execution.handler import Handler, Needs, always
from headrace.session.result import Result
from headrace.sql import statements as st


def empty(context: Context, statement: st.Empty) -> Result:
    """Nothing between two semicolons."""
    return Result(statement.tag)


def unlisten(context: Context, statement: st.Unlisten) -> Result:
    """UNLISTEN."""
    return Result(statement.tag)


HANDLERS: Final = (
    Handler(st.Empty, empty, in_failed=always, needs=Needs.NOTHING),
    Handler(st.Unlisten, unlisten, needs=Needs.NOTHING),
)
