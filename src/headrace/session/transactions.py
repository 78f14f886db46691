"""Transactions of a session: what one has read and wants to write. `execution/transacting.py` begins and ends them.

Every statement runs in a transaction: the one that BEGIN has opened, or one of its own. All are serializable, whatever
level is asked for: one that has read what another one has changed since is told so (40001), and a single statement
is run again by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from headrace.coordinator.writes.holds import Holds
from headrace.coordinator.writes.requests import WriteResult
from headrace.coordinator.writes.transaction import Mark, WriteTransaction
from headrace.errors import SerializationFailure
from headrace.session.result import Notice

if TYPE_CHECKING:
    from headrace.session.session import Session

_T = TypeVar("_T")


@dataclass
class Transaction:
    """A session's open transaction: its snapshot, its writes, and what it holds."""

    work: WriteTransaction
    held: Holds
    """What it holds until its end."""
    read_only: bool = False
    implicit: bool = False
    """Whether it is that of a single statement which writes."""
    at_least: int = 0
    """The epoch of a write that its snapshot must hold."""
    behind: str | None = None
    """Why its snapshot is older than the tables that it has read, where a view was the reason."""
    script: bool = False
    """Whether it is that of several statements in one text, and ends with these."""
    failed: bool = False
    savepoints: list[tuple[str, Mark]] = field(default_factory=list)
    shown: Mapping[int, int] = field(default_factory=dict)
    """Up to which epochs relations had been shown when it fixed its own."""

    def close(self) -> None:
        """Let go of everything; harmless when repeated."""
        self.held.close()


def opened(
    session: Session, *, read_only: bool = False, implicit: bool = False, gated: frozenset[int] = frozenset()
) -> Transaction:  # fmt: skip
    """A new transaction of a session. Nobody else writes to the tables that are `gated` until it is closed."""
    held = Holds()
    if not gated:
        work = session.database.coordinator.begin()
        held.callback(work.close)
        return Transaction(work, held, read_only, implicit, max(session.last_write, session.conflicted_at))
    try:
        work = held.enter_context(session.database.coordinator.transaction(gated, session.check))
    except BaseException:
        held.close()
        raise
    return Transaction(work, held, read_only, implicit, max(session.last_write, session.conflicted_at))


Written = Callable[[WriteResult], None]
"""Told what the commit of a statement's own transaction came to."""


def run_writing(session: Session, statement: Callable[[Transaction], tuple[_T, Written | None]]) -> _T:
    """Run a statement that writes: in the open transaction, or in one of its own.

    One of its own is run again if another transaction gets in its way, the second time with the tables that it reads
    and writes kept for itself. It must do nothing but through its transaction.
    """
    if session.transaction is not None:
        with session.within(session.transaction):
            return statement(session.transaction)[0]
    gated: frozenset[int] = frozenset()
    while True:
        own = opened(session, implicit=True, gated=gated)
        try:
            with session.within(own):
                result, written = statement(own)
            outcome = own.work.commit(session.check)
        except SerializationFailure:
            wanted = gated | own.work.tables
            if wanted == gated:
                raise
            gated = wanted
            continue
        finally:
            own.close()
        if outcome is not None:
            session.wrote(outcome.epoch)
            if written is not None:
                written(outcome)
        return result


def late_rows(outcome: WriteResult | None) -> list[Notice]:
    """What the client is told of rows that a commit has left out."""
    if outcome is None or not outcome.late:
        return []
    return [Notice(f"{outcome.late} rows were left out: the watermark of the table had passed them")]


def explained(
    session: Session, transaction: Transaction | None, error: SerializationFailure
) -> SerializationFailure:  # fmt: skip
    """The error with which a transaction ends that another one got in the way of.

    The session's next one waits for views to take in what was in its way: else it would meet the same again.
    """
    if transaction is None:
        return error
    session.conflicted_at = max(
        session.conflicted_at, session.database.coordinator.writer.last_change(transaction.work.tables)
    )
    if transaction.behind is None or error.detail is not None:
        return error
    return SerializationFailure(
        error.message,
        detail=f"The transaction reads as of a moment before the last changes of its tables: {transaction.behind}",
        hint="run it again once the view has taken in what its tables hold",
    )


def end(session: Session) -> Transaction | None:
    """End the open transaction, whatever becomes of it; returns it."""
    transaction, session.transaction = session.transaction, None
    if session.cursors:
        for cursor in session.cursors.pop_those(lambda cursor: not cursor.held):
            cursor.close()
    session.variables.end_transaction()
    if transaction is not None:
        transaction.close()
    return transaction
