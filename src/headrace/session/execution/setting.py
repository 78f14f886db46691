"""SET, RESET, DISCARD and ALTER SYSTEM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.session.execution import cursors
from headrace.session.execution.handler import Handler, InScript
from headrace.session.execution.transacting import set_transaction
from headrace.session.result import Notice, Result
from headrace.session.variables import Variables
from headrace.sql import statements as st

if TYPE_CHECKING:
    from headrace.session.session import Session


def set_variable(session: Session, statement: st.SetVariable) -> Result:
    """SET."""
    if statement.name == "transaction_read_only" and statement.value is not None:
        value = Variables(transaction_read_only="off")
        value.set(statement.name, statement.value)
        return set_transaction(session, st.SetTransaction(read_only=value.is_on(statement.name)))
    if statement.local and session.transaction is None:
        warning = Notice("SET LOCAL can only be used in transaction blocks", "WARNING", "25P01")
        return Result("SET", notices=[warning])
    session.variables.set(statement.name, statement.value, local=statement.local)
    return Result("SET")


def reset(session: Session, statement: st.ResetVariable) -> Result:
    """RESET."""
    if statement.name is None:
        session.variables.reset()
    else:
        session.variables.set(statement.name, None)
    return Result("RESET")


def alter_system(session: Session, statement: st.AlterSystem) -> Result:
    """ALTER SYSTEM: takes effect at once, and holds over restarts."""
    session.rights.require_superuser("set parameters of the system")
    session.database.alter_system(statement.name, statement.value)
    return Result("ALTER SYSTEM")


def discard(session: Session, statement: st.Discard) -> Result:
    """DISCARD."""
    if statement.what == "all":
        session.become(None, None)
        session.variables.reset()
        session.statements.clear()
        cursors.close_all(session)
    return Result(f"DISCARD {statement.what.upper()}")


HANDLERS: Final = (
    Handler(st.SetVariable, set_variable),
    Handler(st.ResetVariable, reset),
    Handler(st.AlterSystem, alter_system, outside=lambda statement: "ALTER SYSTEM"),
    Handler(
        st.Discard,
        discard,
        script=InScript.COMMITS,
        outside=lambda statement: "DISCARD ALL" if statement.what == "all" else None,
    ),
)
