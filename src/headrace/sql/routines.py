"""CREATE FUNCTION and CREATE AGGREGATE."""

from __future__ import annotations

from dataclasses import field

from headrace.common.lazy_dataclass import dataclass
from headrace.errors import StatementError, SyntaxFault
from headrace.sql import statements as st
from headrace.sql.datatypes import spark_type
from headrace.sql.dialect import parse_type_tokens
from headrace.sql.token_cursor import Cursor
from headrace.sql.with_options import options

_CLAUSES = ("LANGUAGE", "AS", "IMMUTABLE", "STABLE", "VOLATILE", "STRICT", "CALLED", "RETURNS", "WITH", "USING",
            "PARALLEL", "COST", "ROWS", "RUNTIME", "SECURITY")  # fmt: skip
_EXTERNAL = "Give the code itself: LANGUAGE python AS $$ ... $$."


@dataclass
class _Clauses:
    """What follows the argument list, in any order."""

    returns: str | None = None
    table: tuple[tuple[str, str], ...] | None = None
    language: str | None = None
    body: str | None = None
    volatility: str = "immutable"
    strict: bool = False
    options: dict[str, str] = field(default_factory=dict)


def create_function(cursor: Cursor, replace: bool, aggregate: bool) -> st.Statement:
    """Read a statement after `CREATE [OR REPLACE] FUNCTION | AGGREGATE`."""
    exists, name = cursor.match("IF", "NOT", "EXISTS"), cursor.table_name()
    arguments = _arguments(cursor)
    clauses = _Clauses()
    while cursor.token is not None:
        _clause(cursor, clauses)
    if clauses.language is None or clauses.body is None or (clauses.returns is None and clauses.table is None):
        missing = "LANGUAGE" if clauses.language is None else "AS" if clauses.body is None else "RETURNS"
        raise SyntaxFault(f"the function has no {missing} clause", position=cursor.tokens[0].start + 1)
    if aggregate and clauses.table is not None:
        raise SyntaxFault("an aggregate returns one value, not a table", position=cursor.tokens[0].start + 1)
    return st.CreateFunction(
        name, arguments, clauses.returns, clauses.table, clauses.language, clauses.body, aggregate, clauses.options,
        clauses.volatility, clauses.strict, exists, replace,
    )  # fmt: skip


def _arguments(cursor: Cursor) -> tuple[tuple[str | None, str], ...]:
    found: list[tuple[str | None, str]] = []
    cursor.expect("(")
    while not cursor.match(")"):
        if cursor.peek("OUT") or cursor.peek("INOUT") or cursor.peek("VARIADIC"):
            cursor.refuse(f"the argument mode {cursor.word().upper()}")
        found.append(_argument(cursor))
        if cursor.peek("DEFAULT") or cursor.is_symbol("="):
            cursor.refuse("a default of an argument", "Give the default in the function's body.")
        if not cursor.match(","):
            cursor.expect(")")
            break
    return tuple(found)


def _argument(cursor: Cursor) -> tuple[str | None, str]:
    start = cursor.at
    try:  # a type alone, as in (int, double precision)
        return None, _type(cursor)
    except StatementError:
        cursor.at = start
    return cursor.identifier(), _type(cursor)


def _type(cursor: Cursor) -> str:
    tokens = cursor.until(",", "DEFAULT", "=", *_CLAUSES)
    if not tokens:
        cursor.fail()
    return spark_type(parse_type_tokens(cursor.sql, tokens, cursor.token))


def _clause(cursor: Cursor, found: _Clauses) -> None:
    if cursor.match("RETURNS"):
        _returns(cursor, found)
    elif cursor.match("LANGUAGE"):
        found.language = (cursor.string() if cursor.is_string() else cursor.identifier()).lower()
    elif cursor.match("AS"):
        if not cursor.is_string():
            cursor.refuse("a function outside the database", _EXTERNAL)
        found.body = cursor.string()
        if cursor.match(","):
            cursor.refuse("a function in an object file", _EXTERNAL)
    elif cursor.match("WITH"):
        found.options = options(cursor)
    elif cursor.peek("USING") or cursor.peek("RUNTIME"):
        cursor.refuse(cursor.word().upper(), _EXTERNAL)
    elif cursor.match("STRICT"):
        found.strict = True
    elif cursor.match("CALLED", "ON", "NULL", "INPUT"):
        found.strict = False
    elif cursor.match("PARALLEL"):
        cursor.word()
    else:
        for word in ("IMMUTABLE", "STABLE", "VOLATILE"):
            if cursor.match(word):
                found.volatility = word.lower()
                return
        cursor.fail()


def _returns(cursor: Cursor, found: _Clauses) -> None:
    if cursor.match("NULL", "ON", "NULL", "INPUT"):
        found.strict = True
    elif cursor.match("TABLE"):
        columns: list[tuple[str, str]] = []
        cursor.expect("(")
        while True:
            columns.append((cursor.identifier(), _type(cursor)))
            if not cursor.match(","):
                break
        cursor.expect(")")
        found.table = tuple(columns)
    elif cursor.match("SETOF"):
        found.table = (("value", _type(cursor)),)
    else:
        found.returns = _type(cursor)
