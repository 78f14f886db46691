"""PREPARE, EXECUTE and DEALLOCATE."""

from __future__ import annotations

from typing import Final

from headrace.errors import SyntaxFault
from headrace.session.context import Context
from headrace.session.execution.handler import Columns, Handler, InScript, Needs, Types
from headrace.session.result import Result, require_same_types
from headrace.sql import statements as st


def prepare(context: Context, statement: st.Prepare) -> Result:
    """PREPARE."""
    context.statements.require_free(statement.name)
    context.statements.put(statement.name, context.runner.prepared(statement.statement, statement.types))
    return Result(statement.tag)


def execute(context: Context, statement: st.Execute) -> Result:
    """EXECUTE."""
    found = context.statements.get(statement.name)
    wanted, given = len(found.parameter_types), len(statement.values)
    if wanted != given:
        raise SyntaxFault(
            f'wrong number of parameters for prepared statement "{statement.name}"',
            detail=f"Expected {wanted} parameters but got {given}.",
        )
    result = found.execute(statement.values)
    require_same_types(found.columns, result.columns)
    return result


def _describe_execute(context: Context, statement: st.Execute, types: Types) -> Columns:
    return context.statements.get(statement.name).columns


def deallocate(context: Context, statement: st.Deallocate) -> Result:
    """DEALLOCATE."""
    if statement.name is None:
        context.statements.clear()
        return Result(statement.tag)
    context.statements.get(statement.name)
    context.statements.pop(statement.name)
    return Result(statement.tag)


HANDLERS: Final = (
    Handler(st.Prepare, prepare, binds=False, needs=Needs.STATEMENT),
    Handler(st.Execute, execute, _describe_execute, script=InScript.OPENS, needs=Needs.STATEMENT),
    Handler(st.Deallocate, deallocate, needs=Needs.NOTHING),
)
