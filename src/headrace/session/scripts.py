"""Several statements in one text: from the first one that writes on they are one transaction, as in PostgreSQL.

What takes effect at once and cannot be taken back (CREATE, ALTER, DROP, FLUSH) first commits what came before it.
BEGIN makes that transaction the client's own, COMMIT and ROLLBACK end it. Queries before the first write each read the
newest snapshot.

The generator must be closed where it is not read to its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from headrace.session import transactions
from headrace.session.result import Notice, Result
from headrace.sql import statements as st

if TYPE_CHECKING:
    from headrace.session.session import Session

_ROWS: Final = (st.Insert, st.Update, st.Delete, st.CopyFrom)
_OPENS: Final = (*_ROWS, st.Execute, st.DeclareCursor)
_AT_ONCE: Final = (st.Flush, st.Wait, st.Promote, st.Recover, st.Discard)


def run_script(session: Session, statements: Sequence[st.Statement]) -> Iterator[Result]:
    """Run statements; one result for each, when it is asked for. To be closed where it is not read to its end."""
    try:
        for i, statement in enumerate(statements):
            last = i == len(statements) - 1
            result = _run(session, statement, last=last)
            if last and result.columns is None and result.sink is None:
                _commit(session, statement)
            yield result
        _commit(session, statements[-1])
    except BaseException:
        if _is_open(session):
            transactions.end(session)
        raise


def _is_open(session: Session) -> bool:
    """Whether there is a transaction that is only the script's."""
    return session.transaction is not None and session.transaction.script


def _commit(session: Session, statement: st.Statement) -> None:
    if _is_open(session):
        with session.going_on(statement):
            transactions.commit(session, statement)


def _run(session: Session, statement: st.Statement, *, last: bool) -> Result:
    transaction = session.transaction
    if transaction is not None and not transaction.script:
        return session.run(statement)
    if transaction is not None and isinstance(statement, st.Begin):
        transaction.script = False
        if statement.read_only is not None:
            transaction.read_only = statement.read_only
        return Result("BEGIN")
    if transaction is not None and isinstance(statement, (st.Commit, st.Rollback)):
        result = session.run(statement)
        result.notices.append(Notice("there is no transaction in progress", "WARNING", "25P01"))
        return result
    if isinstance(statement, _AT_ONCE) or (statement.writes and not isinstance(statement, _ROWS)):
        _commit(session, statement)
    elif transaction is None and isinstance(statement, _OPENS) and not last:
        read_only = session.on_standby or session.variables.is_on("default_transaction_read_only")
        session.transaction = transactions.opened(session, read_only=read_only)
        session.transaction.script = True
    return session.run(statement)
