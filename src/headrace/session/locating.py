"""Errors in PostgreSQL's words, with the place in the client's text that they are about."""

from __future__ import annotations

import re

from headrace.errors import DivisionByZero, HeadraceError, UndefinedColumn, UndefinedFunction, UndefinedTable
from headrace.sql import statements as st
from headrace.sql.dialect import tokenize

_SUBJECT = re.compile(r'(?:relation|column|table|view|source|function) "([^"]+)"')
_SPARK_COLUMN = re.compile(
    r"(?:with name|column or function|field) `([^`]+)`(?:\.`([^`]+)`)?.*cannot be resolved", re.DOTALL
)
_SPARK_FUNCTION = re.compile(r"Cannot resolve routine (`\S+`) on search path")
_SUGGESTED = re.compile(r"Did you mean one of the following\? \[(.*?)\]")


def located(error: HeadraceError, statement: st.Statement) -> HeadraceError:
    """The error in PostgreSQL's words where they are known, with its position in the script."""
    if error.position is not None and statement.position > 1 and error.position <= len(statement.text):
        return error
    if isinstance(error, DivisionByZero):
        return DivisionByZero("division by zero", hint=error.hint, detail=error.detail)
    if isinstance(error, UndefinedColumn):
        error = _undefined_column(error)
    if isinstance(error, UndefinedFunction):
        error = _undefined_function(error)
    if error.position is None and isinstance(error, (UndefinedTable, UndefinedColumn, UndefinedFunction)):
        subject = _SUBJECT.search(error.message)
        if subject is not None:
            at = _position(statement.text, subject[1].rsplit(".", 1)[-1])
            error.position = at + statement.position - 1 if at is not None else None
    return error


def _undefined_column(error: UndefinedColumn) -> UndefinedColumn:
    found = _SPARK_COLUMN.search(error.message)
    if found is None:
        return error
    name = ".".join(part for part in found.groups() if part)
    suggested = _SUGGESTED.search(error.message)
    hint = None
    if suggested is not None:
        choices = [part.split(".")[-1].strip(" `") for part in suggested[1].split(",")]
        hint = "Perhaps you meant " + " or ".join(f'"{c}"' for c in dict.fromkeys(choices) if c) + "."
    return UndefinedColumn(f'column "{name}" does not exist', hint=hint)


def _undefined_function(error: UndefinedFunction) -> UndefinedFunction:
    found = _SPARK_FUNCTION.search(error.message)
    if found is None:
        return error
    return UndefinedFunction(f'function "{found[1].replace("`", "")}" does not exist', hint=error.hint)


def _position(text: str, name: str) -> int | None:
    for token in tokenize(text):
        if token.text == name or token.text.lower() == name:
            return int(token.start) + 1
    return None
