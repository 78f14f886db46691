"""What writes runs in the transaction that is open, or in one of its own; how one is opened and ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from headrace.catalog.records import ObjectRecord
from headrace.coordinator.writes.holds import Holds
from headrace.coordinator.writes.requests import WriteResult
from headrace.errors import SerializationFailure
from headrace.session.context import Context
from headrace.session.result import Notice
from headrace.session.transactions import Transaction
from headrace.state.table_changes import TableChange

_T = TypeVar("_T")
Written = Callable[[WriteResult], None]
"""Told what the commit of a statement's own transaction came to."""


def opened(
    context: Context, *, read_only: bool = False, implicit: bool = False, gated: frozenset[int] = frozenset()
) -> Transaction:  # fmt: skip
    """A new transaction of a session. Nobody else writes to the tables that are `gated` until it is closed."""
    held, began_us = Holds(), context.asked_us
    at_least = max(context.last_write, context.conflicted_at)
    refused_over, context.refused_over = context.refused_over, frozenset()
    if refused_over and not (read_only or implicit):
        held.enter_context(context.coordinator.turn(refused_over, context.check))
    if not gated:
        work = context.coordinator.begin()
        held.callback(work.close)
        settings = None if implicit else context.variables.mark()
        return Transaction(work, held, began_us, read_only, settings, implicit=implicit, at_least=at_least)
    try:
        work = held.enter_context(context.coordinator.transaction(gated, context.check))
    except BaseException:
        held.close()
        raise
    return Transaction(work, held, began_us, read_only, implicit=implicit, at_least=at_least)


def run_writing(context: Context, statement: Callable[[Transaction], tuple[_T, Written | None]]) -> _T:
    """Run a statement that writes: in the open transaction, or in one of its own.

    One of its own is run again if another transaction gets in its way, the second time with the tables that it reads
    and writes kept for itself. It must do nothing but through its transaction.
    """
    if context.transaction is not None:
        with context.within(context.transaction):
            return statement(context.transaction)[0]
    gated: frozenset[int] = frozenset()
    while True:
        own = opened(context, implicit=True, gated=gated)
        try:
            with context.within(own):
                result, written = statement(own)
            outcome = own.work.commit(context.check)
        except SerializationFailure:
            wanted = gated | own.work.tables
            if wanted == gated:
                raise
            gated = wanted
            continue
        finally:
            own.close()
        if outcome is not None:
            context.wrote(outcome.epoch)
            if written is not None:
                written(outcome)
        return result


def write(context: Context, record: ObjectRecord, change: TableChange) -> None:
    """Write to a table: now, or at COMMIT."""
    if change.inserts is None and change.deletes is None:
        return

    def run(transaction: Transaction) -> tuple[None, None]:
        if transaction.implicit:
            transaction.work.defer(record.id, change)
        else:
            transaction.work.change(record.id, change)
        return None, None

    run_writing(context, run)


def late_rows(outcome: WriteResult | None) -> list[Notice]:
    """What the client is told of rows that a commit has left out."""
    if outcome is None or not outcome.late:
        return []
    return [Notice(f"{outcome.late} rows were left out: the watermark of the table had passed them")]


def explained(
    context: Context, transaction: Transaction | None, error: SerializationFailure
) -> SerializationFailure:  # fmt: skip
    """The error with which a transaction ends that another one got in the way of.

    The session's next one waits for views to take in what was in its way: else it would meet the same again.
    """
    if transaction is None:
        return error
    if error.relation is not None:
        context.refused_over |= {error.relation}
    context.conflicted_at = max(context.conflicted_at, context.coordinator.tables.last_change(transaction.work.tables))
    if transaction.behind is None or error.detail is not None:
        return error
    return SerializationFailure(
        error.message,
        detail=f"The transaction reads as of a moment before the last changes of its tables: {transaction.behind}",
        hint="run it again once the view has taken in what its tables hold",
    )


def end(context: Context) -> Transaction | None:
    """End the open transaction, with its cursors and portals, whatever becomes of it; return it.

    Unless it is committed, what was set in it is undone.
    """
    transaction, context.transaction = context.transaction, None
    try:
        context.drop_portals(0)
        if context.cursors:
            for cursor in context.cursors.pop_those(lambda cursor: not cursor.held):
                cursor.close()
    finally:
        if transaction is not None and transaction.settings is not None and not transaction.committed:
            context.variables.go_back(transaction.settings)
        context.variables.end_transaction()
        if transaction is not None:
            transaction.close()
    return transaction
