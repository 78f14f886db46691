"""Several statements in one text: from the first one that writes on they are one transaction, as in PostgreSQL.

What takes effect at once and cannot be taken back (CREATE, ALTER, DROP, FLUSH) first commits what came before it.
BEGIN makes that transaction the client's own, COMMIT and ROLLBACK end it. Queries before the first write each read the
newest snapshot.

The generator must be closed where it is not read to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from headrace.session.context import Context
from headrace.session.execution.handler import InScript
from headrace.session.execution.in_transaction import end, opened
from headrace.session.execution.transacting import commit
from headrace.session.handlers import handler_of
from headrace.session.result import Notice, Result
from headrace.sql import statements as st

Run: TypeAlias = Callable[[st.Statement], Result]


def run_script(context: Context, run: Run, statements: Sequence[st.Statement]) -> Iterator[Result]:
    """Run statements, each by `run`; one result for each, when it is asked for.

    To be closed where it is not read to its end.
    """
    try:
        for i, statement in enumerate(statements):
            last = i == len(statements) - 1
            result = _run(context, run, statement, last=last)
            if last and result.columns is None and result.sink is None:
                _commit(context, statement)
            yield result
        _commit(context, statements[-1])
    except BaseException:
        if _is_open(context):
            end(context)
        raise


def _is_open(context: Context) -> bool:
    """Whether there is a transaction that is only the script's."""
    return context.transaction is not None and context.transaction.script


def _commit(context: Context, statement: st.Statement) -> None:
    if _is_open(context):
        with context.runner.going_on(statement):
            commit(context, statement)


def _run(context: Context, run: Run, statement: st.Statement, *, last: bool) -> Result:
    transaction = context.transaction
    if transaction is not None and not transaction.script:
        return run(statement)
    does = handler_of(statement).in_script
    if transaction is not None and does is InScript.ENDS:
        result = run(statement)
        result.notices.append(Notice("there is no transaction in progress", "WARNING", "25P01"))
        return result
    if does is InScript.COMMITS:
        _commit(context, statement)
    elif transaction is None and does is InScript.OPENS and not last:
        read_only = context.on_standby or context.variables.is_on("default_transaction_read_only")
        with context.runner.going_on(statement):  # it may have to wait for its turn
            context.transaction = opened(context, read_only=read_only)
            context.transaction.script = True
    return run(statement)
