"""SHOW, SET, transactions and the other short statements."""

from __future__ import annotations

import re
from functools import partial
from typing import Final

from sqlglot.tokenizer_core import TokenType

from headrace.sql import grants
from headrace.sql import statements as st
from headrace.sql.ddl import KINDS
from headrace.sql.intervals import zone_of_interval
from headrace.sql.starts import starts
from headrace.sql.token_cursor import Cursor

_BARE: Final = re.compile(r"\s*[+-]?\d+(?:\.\d+)?\s*", re.ASCII)
"""A number without a unit."""
_LISTS = {
    "TABLES": "tables", "SOURCES": "sources", "MATERIALIZED VIEWS": "materialized views", "VIEWS": "views",
    "CHECKPOINTS": "checkpoints", "PARAMETERS": "parameters", "PROGRESS": "progress",
    "JOBS": "jobs", "SCHEMAS": "schemas", "DATABASES": "databases", "SINKS": "sinks", "INDEXES": "indexes",
    "CONNECTIONS": "connections", "SECRETS": "secrets", "SUBSCRIPTIONS": "subscriptions",
    "SUBSCRIPTION CURSORS": "subscription cursors", "FUNCTIONS": "functions",
    "PROCESSLIST": "processlist", "CLUSTER": "cluster", "CURSORS": "cursors",
}  # fmt: skip
_LEVELS = ("SERIALIZABLE", "REPEATABLE READ", "READ COMMITTED", "READ UNCOMMITTED")
MOST_DIGITS = 19
"""Of the number of a session."""


def _pattern(cursor: Cursor) -> str | None:
    return cursor.string() if cursor.match("LIKE") else None


def show(cursor: Cursor) -> st.Statement:
    """Read a statement after `SHOW`."""
    found = _show(cursor)
    cursor.expect_end()
    return found


def _show(cursor: Cursor) -> st.Statement:
    if cursor.match("CREATE"):
        for kind in KINDS:
            if cursor.match(*kind.split()):
                return st.Show("create", name=cursor.table_name(), kind=kind)
        cursor.fail()
    if cursor.match("COLUMNS", "FROM"):
        return st.Show("columns", name=cursor.table_name(), pattern=_pattern(cursor))
    if cursor.match("INDEXES", "FROM"):
        return st.Show("indexes", name=cursor.table_name(), pattern=_pattern(cursor))
    if cursor.match("ALL"):
        return st.Show("all")
    cursor.match("FULL")
    for words, what in _LISTS.items():
        if cursor.match(*words.split()):
            schema = cursor.identifier() if cursor.match("FROM") or cursor.match("IN") else None
            return st.Show(what, schema=schema, pattern=_pattern(cursor))
    if cursor.match("TRANSACTION", "ISOLATION", "LEVEL"):
        return st.Show("setting", setting="transaction_isolation")
    if cursor.match("TIME", "ZONE"):
        return st.Show("setting", setting="timezone")
    return st.Show("setting", setting=setting_name(cursor))


def setting_name(cursor: Cursor) -> str:
    """Read a setting's name, dots included."""
    name = cursor.identifier()
    while cursor.match("."):
        name += "." + cursor.identifier()
    return name.lower()


def describe(cursor: Cursor) -> st.Statement:
    """Read a statement after `DESCRIBE`."""
    kinds = ("materialized view", "table", "view", "source", "sink", "function")
    kind = next((k for k in kinds if cursor.match(*k.split())), None)
    found = st.Describe(cursor.table_name(), "function" if kind == "function" else None)
    cursor.expect_end()
    return found


def _modes(cursor: Cursor) -> tuple[str | None, bool | None]:
    isolation, read_only = None, None
    while cursor.token is not None:
        if cursor.match("ISOLATION", "LEVEL"):
            level = next((level for level in _LEVELS if cursor.match(*level.split())), None)
            if level is None:
                cursor.fail()
            isolation = level.lower()
        elif cursor.match("READ", "ONLY"):
            read_only = True
        elif cursor.match("READ", "WRITE"):
            read_only = False
        elif not (cursor.match("NOT", "DEFERRABLE") or cursor.match("DEFERRABLE")):
            cursor.fail()
        cursor.match(",")
    return isolation, read_only


def begin(cursor: Cursor) -> st.Statement:
    """Read a statement after `BEGIN` or `START TRANSACTION`."""
    if not cursor.match("TRANSACTION"):
        cursor.match("WORK")
    return st.Begin(*_modes(cursor))


def end_of(kind: type[st.Statement], cursor: Cursor) -> st.Statement:
    """Read a statement after `COMMIT`, `END`, `ROLLBACK` or `ABORT`."""
    if cursor.peek("PREPARED"):
        cursor.refuse("two-phase commit")
    if not cursor.match("TRANSACTION"):
        cursor.match("WORK")
    if kind is st.Rollback and cursor.match("TO"):
        return savepoint("rollback", cursor)
    if not cursor.match("AND", "NO", "CHAIN") and cursor.peek("AND", "CHAIN"):
        cursor.refuse("AND CHAIN")
    cursor.expect_end()
    return kind()


def savepoint(action: str, cursor: Cursor) -> st.Statement:
    """Read a statement after `SAVEPOINT`, `RELEASE` or `ROLLBACK TO`."""
    if action != "set":
        cursor.match("SAVEPOINT")
    found = st.Savepoint(action, cursor.identifier())
    cursor.expect_end()
    return found


def set_variable(cursor: Cursor) -> st.Statement:
    """Read a statement after `SET`."""
    local = cursor.match("LOCAL")
    if cursor.match("SESSION", "CHARACTERISTICS", "AS", "TRANSACTION"):
        return st.SetTransaction(*_modes(cursor), session=True)
    role = grants.set_role(cursor, local=local)
    if role is not None:
        return role
    if cursor.match("TRANSACTION"):
        return st.SetTransaction(*_modes(cursor))
    if not local and cursor.peek("SESSION") and not (cursor.is_symbol("=", 1) or cursor.is_symbol("TO", 1)):
        cursor.match("SESSION")
        role = grants.set_role(cursor, local=False)
        if role is not None:
            return role
    if cursor.match("TIME", "ZONE"):
        name, value = "timezone", _zone_value(cursor)
    else:
        name = setting_name(cursor)
        if not cursor.match("TO"):
            cursor.expect("=")
        value = _setting_value(cursor)
    cursor.expect_end()
    return st.SetVariable(name, value, local)


def _zone_value(cursor: Cursor) -> str | None:
    """Read what stands behind `SET TIME ZONE`."""
    if cursor.match("LOCAL"):
        return None
    if not cursor.match("INTERVAL"):
        if cursor.is_symbol("+"):
            cursor.expect("+")
        return _setting_value(cursor)
    text, unit = cursor.string(), ""
    if cursor.match("HOUR"):
        unit = "hour"
        if cursor.match("TO"):
            cursor.expect("MINUTE")
            unit = "minute"
    return zone_of_interval(f"{text} {unit}" if _BARE.fullmatch(text) else text).name


def _setting_value(cursor: Cursor) -> str | None:
    if cursor.match("DEFAULT"):
        return None
    parts = []
    while True:
        if cursor.is_string():
            parts.append(cursor.string())
        else:
            sign = "-" if cursor.match("-") else ""
            token = cursor.token
            if token is None or token.token_type in (TokenType.COMMA, TokenType.EQ):
                cursor.fail()
            cursor.at += 1
            parts.append(sign + token.text)
        if not cursor.match(","):
            return ", ".join(parts)


def alter_system(cursor: Cursor) -> st.Statement:
    """Read a statement after `ALTER SYSTEM`."""
    if cursor.match("RESET"):
        name = None if cursor.match("ALL") else setting_name(cursor)
        cursor.expect_end()
        return st.AlterSystem(name)
    cursor.expect("SET")
    name = setting_name(cursor)
    if not cursor.match("TO"):
        cursor.expect("=")
    value = _setting_value(cursor)
    cursor.expect_end()
    return st.AlterSystem(name, value)


def reset(cursor: Cursor) -> st.Statement:
    """Read a statement after `RESET`."""
    role = grants.reset_role(cursor)
    if role is not None:
        return role
    if cursor.match("ALL"):
        name = None
    elif cursor.match("TIME", "ZONE"):
        name = "timezone"
    else:
        name = setting_name(cursor)
    cursor.expect_end()
    return st.ResetVariable(name)


def cancel(cursor: Cursor) -> st.Statement:
    """Read a statement after `CANCEL`."""
    if not cursor.match("JOBS"):
        cursor.expect("JOB")
    ids: list[int] = []
    while True:
        text = cursor.string() if cursor.is_string() else cursor.word()
        if not text.isdigit():
            cursor.at -= 1
            cursor.fail()
        ids.append(int(text))
        if not cursor.match(","):
            break
    cursor.expect_end()
    return st.CancelJobs(tuple(ids))


def kill(cursor: Cursor) -> st.Statement:
    """Read a statement after `KILL`."""
    text = cursor.string() if cursor.is_string() else cursor.word()
    if not (text.isascii() and text.isdigit() and len(text) < MOST_DIGITS):
        cursor.at -= 1
        cursor.fail()
    cursor.expect_end()
    return st.Kill(int(text))


def discard(cursor: Cursor) -> st.Statement:
    """Read a statement after `DISCARD`."""
    for word in ("ALL", "PLANS", "SEQUENCES", "TEMPORARY", "TEMP"):
        if cursor.match(word):
            cursor.expect_end()
            return st.Discard("temp" if word == "TEMPORARY" else word.lower())
    cursor.fail()


def bare(kind: type[st.Statement], cursor: Cursor) -> st.Statement:
    """Read a statement that is one word."""
    cursor.expect_end()
    return kind()


def promotion(cursor: Cursor) -> st.Statement:
    """Read a statement after `SELECT pg_promote(`, with `wait` and `wait_seconds`."""
    wait, wait_s = True, 60
    if not cursor.is_symbol(")"):
        wait = _flag(cursor, "WAIT")
        if cursor.match(","):
            _named(cursor, "WAIT_SECONDS")
            token = cursor.token
            if token is None or token.token_type != TokenType.NUMBER or not token.text.isdigit() or token.text == "0":
                cursor.fail()
            wait_s = int(cursor.word())
    cursor.expect(")")
    cursor.expect_end()
    return st.Promote(wait, wait_s)


def _named(cursor: Cursor, name: str) -> None:
    """Skip `name =>` and `name :=`."""
    if cursor.match(name) and not cursor.match("=>") and not cursor.match(":="):
        cursor.fail()


def _flag(cursor: Cursor, name: str) -> bool:
    _named(cursor, name)
    if cursor.match("TRUE"):
        return True
    cursor.expect("FALSE")
    return False


def close(cursor: Cursor) -> st.Statement:
    """Read a statement after `CLOSE`."""
    name = None if cursor.match("ALL") else cursor.identifier()
    cursor.expect_end()
    return st.CloseCursor(name)


def unlisten(cursor: Cursor) -> st.Statement:
    """Read a statement after `UNLISTEN`."""
    if not cursor.match("*"):
        cursor.identifier()
    cursor.expect_end()
    return st.Unlisten()


def execute(cursor: Cursor) -> st.Statement:
    """Read a statement after `EXECUTE`."""
    name, values = cursor.identifier(), []
    if cursor.match("("):
        while not cursor.match(")"):
            values.append(_literal(cursor))
            if not cursor.is_symbol(")"):
                cursor.expect(",")
    cursor.expect_end()
    return st.Execute(name, tuple(values))


def _literal(cursor: Cursor) -> str | None:
    """Read a string, a number, TRUE, FALSE or NULL that stands for itself."""
    start, value = cursor.at, None
    if cursor.is_string():
        value = cursor.string()
    elif not cursor.match("NULL"):
        sign = "-" if cursor.match("-") else ""
        token = cursor.token
        if token is None:
            cursor.fail()
        if token.token_type == TokenType.NUMBER or (not sign and token.text.upper() in ("TRUE", "FALSE")):
            value = sign + cursor.word()
    if cursor.token is None:
        cursor.fail()
    if cursor.at == start or not (cursor.is_symbol(",") or cursor.is_symbol(")")):
        cursor.refuse("an expression as a value of EXECUTE", hint="Write a string, a number, TRUE, FALSE or NULL.")
    return value


def deallocate(cursor: Cursor) -> st.Statement:
    """Read a statement after `DEALLOCATE`."""
    cursor.match("PREPARE")
    name = None if cursor.match("ALL") else cursor.identifier()
    cursor.expect_end()
    return st.Deallocate(name)


STARTS = (
    starts(show, "SHOW"),
    starts(describe, "DESCRIBE", "DESC"),
    starts(set_variable, "SET"),
    starts(reset, "RESET"),
    starts(alter_system, "ALTER SYSTEM"),
    starts(begin, "BEGIN", "START TRANSACTION"),
    starts(partial(end_of, st.Commit), "COMMIT", "END"),
    starts(partial(end_of, st.Rollback), "ROLLBACK", "ABORT"),
    starts(partial(savepoint, "set"), "SAVEPOINT"),
    starts(partial(savepoint, "release"), "RELEASE"),
    starts(partial(bare, st.Flush), "FLUSH"),
    starts(partial(bare, st.Wait), "WAIT"),
    starts(partial(bare, st.Recover), "RECOVER"),
    starts(promotion, "SELECT PG_PROMOTE (", "SELECT PG_CATALOG . PG_PROMOTE ("),
    starts(cancel, "CANCEL"),
    starts(kill, "KILL"),
    starts(discard, "DISCARD"),
    starts(close, "CLOSE"),
    starts(unlisten, "UNLISTEN"),
    starts(execute, "EXECUTE"),
    starts(deallocate, "DEALLOCATE"),
)
