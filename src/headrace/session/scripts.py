"""Several statements in one text: from the first one that writes on they are one transaction, as in PostgreSQL.

What takes effect at once and cannot be taken back (CREATE, ALTER, DROP, FLUSH) first commits what came before it.
BEGIN makes that transaction the client's own, COMMIT and ROLLBACK end it. Queries before the first write each read the
newest snapshot.

The generator must be closed where it is not read to its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from headrace.session import transactions
from headrace.session.execution.handler import InScript
from headrace.session.execution.transacting import commit
from headrace.session.handlers import handler_of
from headrace.session.result import Notice, Result
from headrace.sql import statements as st

if TYPE_CHECKING:
    from headrace.session.session import Session


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
            commit(session, statement)


def _run(session: Session, statement: st.Statement, *, last: bool) -> Result:
    transaction = session.transaction
    if transaction is not None and not transaction.script:
        return session.run(statement)
    does = handler_of(statement).in_script
    if transaction is not None and does is InScript.ENDS:
        result = session.run(statement)
        result.notices.append(Notice("there is no transaction in progress", "WARNING", "25P01"))
        return result
    if does is InScript.COMMITS:
        _commit(session, statement)
    elif transaction is None and does is InScript.OPENS and not last:
        read_only = session.on_standby or session.variables.is_on("default_transaction_read_only")
        session.transaction = transactions.opened(session, read_only=read_only)
        session.transaction.script = True
    return session.run(statement)
