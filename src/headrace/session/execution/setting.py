"""SET, RESET, DISCARD and ALTER SYSTEM."""

from __future__ import annotations

from typing import Final

from headrace.session.context import Context
from headrace.session.execution import cursors
from headrace.session.execution.handler import Handler, InScript, Needs
from headrace.session.execution.transacting import set_transaction
from headrace.session.result import Notice, Result
from headrace.session.variables import Variables
from headrace.sql import statements as st


def set_variable(context: Context, statement: st.SetVariable) -> Result:
    """SET."""
    if statement.name == "transaction_read_only" and statement.value is not None:
        value = Variables(transaction_read_only="off")
        value.set(statement.name, statement.value)
        return set_transaction(context, st.SetTransaction(read_only=value.is_on(statement.name)))
    if statement.local and context.transaction is None:
        warning = Notice("SET LOCAL can only be used in transaction blocks", "WARNING", "25P01")
        return Result(statement.tag, notices=[warning])
    context.variables.set(statement.name, statement.value, local=statement.local)
    return Result(statement.tag)


def reset(context: Context, statement: st.ResetVariable) -> Result:
    """RESET."""
    if statement.name is None:
        context.variables.reset()
    else:
        context.variables.set(statement.name, None)
    return Result(statement.tag)


def alter_system(context: Context, statement: st.AlterSystem) -> Result:
    """ALTER SYSTEM: takes effect at once, and holds over restarts."""
    context.rights.require_superuser("set parameters of the system")
    context.system.alter_system(statement.name, statement.value)
    return Result(statement.tag)


def discard(context: Context, statement: st.Discard) -> Result:
    """DISCARD."""
    if statement.what == "all":
        context.become(None, None)
        context.variables.reset()
        context.statements.clear()
        cursors.close_all(context)
    return Result(statement.tag)


HANDLERS: Final = (
    Handler(st.SetVariable, set_variable, needs=Needs.NOTHING),
    Handler(st.ResetVariable, reset, needs=Needs.NOTHING),
    Handler(st.AlterSystem, alter_system, outside=lambda statement: "ALTER SYSTEM", needs=Needs.SUPERUSER),
    Handler(
        st.Discard,
        discard,
        script=InScript.COMMITS,
        outside=lambda statement: "DISCARD ALL" if statement.what == "all" else None,
        needs=Needs.NOTHING,
    ),
)
