"""BEGIN, COMMIT, ROLLBACK, savepoints and SET TRANSACTION: the statements that begin and end transactions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from headrace.coordinator.writes.requests import TransactionCommit
from headrace.errors import NotSupported, SerializationFailure, TransactionError
from headrace.session.context import Context
from headrace.session.execution.handler import Handler, InScript, Needs, always
from headrace.session.execution.in_transaction import end, explained, late_rows, opened
from headrace.session.open_cursors import OpenCursor
from headrace.session.result import Notice, Ready, Result
from headrace.session.transactions import OpenSavepoint
from headrace.sql import statements as st


def begin(context: Context, statement: st.Begin) -> Result:
    """BEGIN. The transaction of a script becomes the client's own."""
    transaction = context.transaction
    if transaction is not None and not transaction.script:
        return Result(statement.tag, notices=[Notice("there is already a transaction in progress", "WARNING", "25001")])
    if context.on_standby and statement.read_only is False:
        raise _cannot_write()
    if transaction is not None:
        transaction.script = False
        if statement.read_only is not None:
            transaction.read_only = statement.read_only
        return Result(statement.tag)
    read_only = statement.read_only
    if read_only is None:
        read_only = context.variables.is_on("default_transaction_read_only")
    if context.on_standby:
        # For as long as it lasts: what was written since its snapshot is not known, should the server take over.
        read_only = True
    context.transaction = opened(context, read_only=read_only)
    return Result(statement.tag)


def _cannot_write() -> NotSupported:
    return NotSupported("cannot set transaction read-write mode during recovery", hint="this server is a standby")


def commit(context: Context, statement: st.Statement) -> Result:
    """COMMIT: all that was written takes effect at once; a failed transaction is rolled back."""
    transaction = context.transaction
    if transaction is None:
        end(context)  # that of a pipeline, which nobody has begun
        return Result(st.Commit.told, notices=[Notice("there is no transaction in progress", "WARNING", "25P01")])
    held: list[OpenCursor] = []
    try:
        if not transaction.failed:
            for cursor in [c for c in context.cursors.all() if c.holds and not c.held]:
                cursor.hold()
                held.append(cursor)
        outcome = None if transaction.failed else transaction.work.commit(context.check)
        transaction.committed = not transaction.failed
    except BaseException as error:
        for cursor in held:
            cursor.held = False  # it goes with the transaction, whose changes it may have read
        if isinstance(error, SerializationFailure):
            raise explained(context, transaction, error) from error
        raise
    finally:
        end(context)
    if outcome is not None:
        context.wrote(outcome.epoch)
    return Result((st.Rollback if transaction.failed else st.Commit).told, notices=late_rows(outcome))


class StartedCommit(NamedTuple):
    """A COMMIT that waits for its turn."""

    context: Context
    statement: st.Statement
    request: TransactionCommit

    @property
    def ready(self) -> Ready:
        """Done when it is committed or has failed."""
        return self.request.done

    def finish(self) -> Result:
        """Its result."""
        return self.context.runner.finish(self.statement, self._result)

    def _result(self) -> Result:
        context, transaction = self.context, self.context.transaction
        try:
            outcome = self.request.done.result()
            if transaction is not None:
                transaction.committed = True
        except SerializationFailure as error:
            raise explained(context, transaction, error) from error
        finally:
            end(context)
        context.wrote(outcome.epoch)
        return Result(st.Commit.told, notices=[n for n in late_rows(outcome) if context.is_shown(n)])


BRACKETS: Final[Mapping[str, st.Statement]] = {
    "BEGIN": st.Begin(text="BEGIN"),
    "START TRANSACTION": st.Begin(text="START TRANSACTION"),
    "COMMIT": st.Commit(text="COMMIT"),
    "END": st.Commit(text="END"),
    "ROLLBACK": st.Rollback(text="ROLLBACK"),
}
"""Statements that are started without waiting for them, by their texts."""
_BRACKET_CHARS = max(map(len, BRACKETS)) + 8


def bracket(sql: str) -> st.Statement | None:
    """The statement of a text, if it is one of these."""
    return BRACKETS.get(sql.strip(" ;\n").upper()) if len(sql) <= _BRACKET_CHARS else None


def start_commit(context: Context, statement: st.Commit) -> Result | StartedCommit:
    """COMMIT without waiting for it."""
    transaction = context.transaction
    try:
        request = None if transaction is None or transaction.failed else transaction.work.submit()
    except BaseException:
        end(context)
        raise
    if request is None:
        return commit(context, statement)
    return StartedCommit(context, statement, request)


def rollback(context: Context, statement: st.Statement) -> Result:
    """ROLLBACK: what was to be written is forgotten."""
    if end(context) is None:
        return Result(st.Rollback.told, notices=[Notice("there is no transaction in progress", "WARNING", "25P01")])
    return Result(st.Rollback.told)


def savepoint(context: Context, statement: st.Savepoint) -> Result:
    """SAVEPOINT, RELEASE and ROLLBACK TO."""
    transaction = context.transaction
    if transaction is None or transaction.script:
        raise TransactionError(f"{statement.tag} can only be used in transaction blocks", sqlstate="25P01")
    if statement.action == "set":
        transaction.savepoints_made += 1
        made = OpenSavepoint(
            statement.name, transaction.work.mark(), transaction.savepoints_made, context.variables.mark()
        )
        transaction.savepoints.append(made)
        return Result(statement.tag)
    at = next((i for i, s in reversed([*enumerate(transaction.savepoints)]) if s.name == statement.name), None)
    if at is None:
        raise TransactionError(f'savepoint "{statement.name}" does not exist', sqlstate="3B001")
    if statement.action == "rollback":
        savepoint = transaction.savepoints[at]
        transaction.work.go_back(savepoint.written)
        context.variables.go_back(savepoint.settings)
        transaction.failed = False
        at += 1
        for cursor in context.cursors.pop_those(lambda cursor: not cursor.held and cursor.since >= savepoint.number):
            cursor.close()
        context.drop_portals(savepoint.number)
    del transaction.savepoints[at:]
    return Result(statement.tag)


def set_transaction(context: Context, statement: st.SetTransaction) -> Result:
    """SET TRANSACTION. Every level is serializable; a transaction that has written cannot become read-only."""
    if statement.session:
        if statement.read_only is not None:
            context.variables.set("default_transaction_read_only", "on" if statement.read_only else "off")
    elif context.transaction is not None and statement.read_only is not None:
        if statement.read_only is False and context.on_standby:
            raise _cannot_write()
        if (
            statement.read_only is False
            and context.transaction.read_only
            and context.transaction.work.epoch is not None
        ):
            raise TransactionError("transaction read-write mode must be set before any query", sqlstate="25001")
        context.transaction.read_only = statement.read_only
    return Result(st.SetTransaction.told)


HANDLERS: Final = (
    Handler(
        st.Begin,
        begin,
        start=begin,
        starts_now=lambda context: not context.refused_over,
        needs=Needs.NOTHING,
    ),
    Handler(st.Commit, commit, start=start_commit, script=InScript.ENDS, in_failed=always, needs=Needs.NOTHING),
    Handler(st.Rollback, rollback, start=rollback, script=InScript.ENDS, in_failed=always, needs=Needs.NOTHING),
    Handler(st.Savepoint, savepoint, in_failed=lambda statement: statement.action == "rollback", needs=Needs.NOTHING),
    Handler(st.SetTransaction, set_transaction, needs=Needs.NOTHING),
)
