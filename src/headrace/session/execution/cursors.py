"""DECLARE, FETCH, MOVE and CLOSE: queries that are read piece by piece."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from headrace.errors import NotSupported, TransactionError
from headrace.session.context import Context
from headrace.session.execution import subscriptions
from headrace.session.execution.handler import Columns, Handler, InScript, Needs, Types
from headrace.session.execution.select import select
from headrace.session.open_cursors import OpenCursor
from headrace.session.result import Result
from headrace.sql import statements as st


def declare_cursor(context: Context, statement: st.DeclareCursor) -> Result:
    """DECLARE."""
    transaction = context.transaction
    if transaction is None and not statement.hold:
        raise TransactionError("DECLARE CURSOR can only be used in transaction blocks", sqlstate="25P01")
    context.cursors.require_free(statement.name)
    context.subscription_cursors.require_free(statement.name)
    result = select(context, statement.query)
    since = 0 if transaction is None else transaction.savepoints_made
    cursor = OpenCursor(statement, result, context.settings.cursor_memory_bytes, since)
    if transaction is None:
        try:
            cursor.hold()
        except BaseException:
            cursor.close()
            raise
    context.cursors.put(statement.name, cursor)
    return Result(statement.tag, notices=result.notices)


def _describe_fetch(context: Context, statement: st.FetchCursor, types: Types) -> Columns:
    """The columns of the cursor of that name, of whatever kind."""
    if statement.moves:
        return None
    if context.subscription_cursors.has(statement.name):
        return context.subscription_cursors.get(statement.name).columns
    return cursor_named(context, statement.name).columns


def cursor_named(context: Context, name: str) -> OpenCursor:
    """The cursor of that name, or the portal. Raises `HeadraceError` (34000)."""
    portal: OpenCursor | None = None if context.cursors.has(name) else context.find_portal(name)
    return context.cursors.get(name) if portal is None else portal


def fetch_cursor(context: Context, statement: st.FetchCursor) -> Result:
    """FETCH and MOVE."""
    if context.subscription_cursors.has(statement.name):
        return subscriptions.fetch(context.subscription_cursors.get(statement.name), statement)
    if statement.timeout_s is not None:
        raise NotSupported(
            "WITH (timeout) in FETCH from a cursor of a query", hint="leave it out: nothing is waited for"
        )
    cursor = cursor_named(context, statement.name)
    rows = cursor.fetch(statement.direction, statement.count)
    try:
        if statement.moves:
            return Result(statement.counted(sum(batch.num_rows for batch in rows)))
        first = next(rows, None)  # so that errors come up now
    except BaseException:
        cursor.stopped()
        raise
    found = _chain(first, rows)
    return Result(statement.tag, cursor.columns, found, binary=cursor.binary, stopped=cursor.stopped)


def _chain(first: pa.RecordBatch | None, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if first is not None:
        yield first
        yield from rest


def close_cursor(context: Context, statement: st.CloseCursor) -> Result:
    """CLOSE."""
    if statement.name is None:
        close_all(context)
        return Result(statement.tag)
    follows = context.subscription_cursors.pop(statement.name)
    if follows is not None:
        follows.close()
        return Result(statement.tag)
    context.cursors.get(statement.name).close()
    context.cursors.pop(statement.name)
    return Result(statement.tag)


def close_all(context: Context) -> None:
    """Close all cursors, of whatever kind."""
    for cursor in context.cursors.clear():
        cursor.close()
    for follows in context.subscription_cursors.clear():
        follows.close()


HANDLERS: Final = (
    Handler(st.DeclareCursor, declare_cursor, script=InScript.OPENS, needs=Needs.READ),
    Handler(st.FetchCursor, fetch_cursor, _describe_fetch, needs=Needs.NOTHING),
    Handler(st.CloseCursor, close_cursor, needs=Needs.NOTHING),
)
