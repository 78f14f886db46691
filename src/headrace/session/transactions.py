"""Transactions of a session: what one has read and wants to write, and the statements that begin and end it.

Every statement runs in a transaction: the one that BEGIN has opened, or one of its own. All are serializable, whatever
level is asked for: one that has read what another one has changed since is told so (40001), and a single statement
is run again by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from headrace.coordinator.writes.holds import Holds
from headrace.coordinator.writes.requests import TransactionCommit, WriteResult
from headrace.coordinator.writes.transaction import Mark, WriteTransaction
from headrace.errors import NotSupported, SerializationFailure, TransactionError
from headrace.session.result import Notice, Ready, Result
from headrace.sql import statements as st

if TYPE_CHECKING:
    from headrace.session.session import Session

_SAVEPOINT_TAGS = {"set": "SAVEPOINT", "release": "RELEASE", "rollback": "ROLLBACK"}
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


def begin(session: Session, statement: st.Begin) -> Result:
    """BEGIN."""
    if session.transaction is not None:
        return Result("BEGIN", notices=[Notice("there is already a transaction in progress", "WARNING", "25001")])
    read_only = statement.read_only
    if read_only is None:
        read_only = session.variables.is_on("default_transaction_read_only")
    if session.on_standby:
        if statement.read_only is False:
            raise _cannot_write()
        # For as long as it lasts: what was written since its snapshot is not known, should the server take over.
        read_only = True
    session.transaction = opened(session, read_only=read_only)
    return Result("BEGIN")


def _cannot_write() -> NotSupported:
    return NotSupported("cannot set transaction read-write mode during recovery", hint="this server is a standby")


def commit(session: Session, statement: st.Statement) -> Result:
    """COMMIT: all that was written takes effect at once; a failed transaction is rolled back."""
    transaction = session.transaction
    if transaction is None:
        return Result("COMMIT", notices=[Notice("there is no transaction in progress", "WARNING", "25P01")])
    try:
        if not transaction.failed:
            for cursor in session.cursors.all():
                if cursor.holds and not cursor.held:
                    cursor.hold()
        outcome = None if transaction.failed else transaction.work.commit(session.check)
    except SerializationFailure as error:
        raise explained(session, transaction, error) from error
    finally:
        end(session)
    if outcome is not None:
        session.wrote(outcome.epoch)
    return Result("ROLLBACK" if transaction.failed else "COMMIT", notices=late_rows(outcome))


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


class StartedCommit(NamedTuple):
    """A COMMIT that waits for its turn."""

    session: Session
    statement: st.Statement
    request: TransactionCommit

    @property
    def ready(self) -> Ready:
        """Done when it is committed or has failed."""
        return self.request.done

    def finish(self) -> Result:
        """Its result."""
        return self.session.finish(self.statement, self._result)

    def _result(self) -> Result:
        session, transaction = self.session, self.session.transaction
        try:
            outcome = self.request.done.result()
        except SerializationFailure as error:
            raise explained(session, transaction, error) from error
        finally:
            end(session)
        session.wrote(outcome.epoch)
        return Result("COMMIT", notices=[n for n in late_rows(outcome) if session.is_shown(n)])


BRACKETS: Final[Mapping[str, st.Statement]] = {
    "BEGIN": st.Begin(text="BEGIN"),
    "START TRANSACTION": st.Begin(text="START TRANSACTION"),
    "COMMIT": st.Commit(text="COMMIT"),
    "END": st.Commit(text="END"),
    "ROLLBACK": st.Rollback(text="ROLLBACK"),
}
"""The statements that `start` takes, by their texts."""


_BRACKET_CHARS = max(map(len, BRACKETS)) + 8


def bracket(sql: str) -> st.Statement | None:
    """The statement of a text, if it is one of these."""
    return BRACKETS.get(sql.strip(" ;\n").upper()) if len(sql) <= _BRACKET_CHARS else None


def start(session: Session, statement: st.Statement) -> Result | StartedCommit:
    """Begin or end a transaction without waiting for the commit."""
    if isinstance(statement, st.Begin):
        return begin(session, statement)
    if isinstance(statement, st.Rollback):
        return rollback(session, statement)
    transaction = session.transaction
    try:
        request = None if transaction is None or transaction.failed else transaction.work.submit()
    except BaseException:
        end(session)
        raise
    if request is None:
        return commit(session, statement)
    return StartedCommit(session, statement, request)


def end(session: Session) -> Transaction | None:
    """End the open transaction, whatever becomes of it; returns it."""
    transaction, session.transaction = session.transaction, None
    for cursor in session.cursors.pop_those(lambda cursor: not cursor.held):
        cursor.close()
    session.variables.end_transaction()
    if transaction is not None:
        transaction.close()
    return transaction


def rollback(session: Session, statement: st.Statement) -> Result:
    """ROLLBACK: what was to be written is forgotten."""
    if end(session) is None:
        return Result("ROLLBACK", notices=[Notice("there is no transaction in progress", "WARNING", "25P01")])
    return Result("ROLLBACK")


def savepoint(session: Session, statement: st.Savepoint) -> Result:
    """SAVEPOINT, RELEASE and ROLLBACK TO."""
    transaction, tag = session.transaction, _SAVEPOINT_TAGS[statement.action]
    if transaction is None or transaction.script:
        raise TransactionError(f"{tag} can only be used in transaction blocks", sqlstate="25P01")
    if statement.action == "set":
        transaction.savepoints.append((statement.name, transaction.work.mark()))
        return Result(tag)
    at = next((i for i, s in reversed([*enumerate(transaction.savepoints)]) if s[0] == statement.name), None)
    if at is None:
        raise TransactionError(f'savepoint "{statement.name}" does not exist', sqlstate="3B001")
    if statement.action == "rollback":
        transaction.work.go_back(transaction.savepoints[at][1])
        transaction.failed = False
        at += 1
        for cursor in session.cursors.pop_those(lambda cursor: not cursor.held and cursor.depth >= at):
            cursor.close()
    del transaction.savepoints[at:]
    return Result(tag)


def set_transaction(session: Session, statement: st.SetTransaction) -> Result:
    """SET TRANSACTION. Every level is serializable; a transaction that has written cannot become read-only."""
    if statement.session:
        if statement.read_only is not None:
            session.variables.set("default_transaction_read_only", "on" if statement.read_only else "off")
    elif session.transaction is not None and statement.read_only is not None:
        if statement.read_only is False and session.on_standby:
            raise _cannot_write()
        if (
            statement.read_only is False
            and session.transaction.read_only
            and session.transaction.work.epoch is not None
        ):
            raise TransactionError("transaction read-write mode must be set before any query", sqlstate="25001")
        session.transaction.read_only = statement.read_only
    return Result("SET")
