"""TRUNCATE, VACUUM, ANALYZE, REINDEX and CLUSTER: what people do to tables as a whole."""

from __future__ import annotations

from functools import partial
from typing import Final

from headrace.sql import statements as st
from headrace.sql.starts import starts
from headrace.sql.token_cursor import Cursor
from headrace.sql.with_options import options

_OPTIONS: Final = {
    "VACUUM": ("full", "freeze", "verbose", "analyze", "disable_page_skipping", "skip_locked", "index_cleanup",
               "process_toast", "truncate", "parallel"),
    "ANALYZE": ("verbose", "skip_locked"), "REINDEX": ("concurrently", "tablespace", "verbose"),
    "CLUSTER": ("verbose",),
}  # fmt: skip
"""What PostgreSQL lets one say of how it is done; it says nothing of what the tables hold."""


def truncate(cursor: Cursor) -> st.Statement:
    """Read a statement after `TRUNCATE`."""
    cursor.match("TABLE")
    names = [_table(cursor)]
    while cursor.match(","):
        names.append(_table(cursor))
    if not cursor.match("CONTINUE", "IDENTITY"):
        cursor.match("RESTART", "IDENTITY")  # there are no sequences
    if not cursor.match("CASCADE"):  # there are no foreign keys
        cursor.match("RESTRICT")
    cursor.expect_end()
    return st.TruncateTables(tuple(dict.fromkeys(names)))


def _table(cursor: Cursor) -> st.TableName:
    """Read a table's name, of which none inherits: `ONLY` and `*` say nothing."""
    cursor.match("ONLY")
    name = cursor.table_name()
    cursor.match("*")
    return name


def maintain(verb: str, cursor: Cursor) -> st.Statement:
    """Read a statement after `VACUUM` or `ANALYZE`."""
    if not _check_options(verb, cursor):
        for word in ("FULL", "FREEZE", "VERBOSE", "ANALYZE"):
            if word.lower() in _OPTIONS[verb]:
                cursor.match(word)
    names: list[st.TableName] = []
    while cursor.token is not None:
        names.append(_table(cursor))
        if cursor.is_symbol("("):
            cursor.names()
        if cursor.token is not None:
            cursor.expect(",")
    return st.Maintain(verb, tuple(names))


def reindex(cursor: Cursor) -> st.Statement:
    """Read a statement after `REINDEX`: indexes are kept in order all the time."""
    _check_options("REINDEX", cursor)
    if cursor.match("SCHEMA"):
        cursor.refuse("REINDEX SCHEMA", "Indexes are kept in order all the time.")
    if cursor.match("DATABASE") or cursor.match("SYSTEM"):
        cursor.match("CONCURRENTLY")
        if cursor.token is not None:
            cursor.identifier()
        cursor.expect_end()
        return st.Maintain("REINDEX", ())
    if not cursor.match("TABLE"):
        cursor.expect("INDEX")
    cursor.match("CONCURRENTLY")
    name = cursor.table_name()
    cursor.expect_end()
    return st.Maintain("REINDEX", (name,))


def cluster(cursor: Cursor) -> st.Statement:
    """Read a statement after `CLUSTER`: rows are stored in the order of their key, whatever index is named."""
    if not _check_options("CLUSTER", cursor):
        cursor.match("VERBOSE")
    if cursor.token is None:
        return st.Maintain("CLUSTER", ())
    name = cursor.table_name()
    if cursor.match("USING"):
        cursor.identifier()
    cursor.expect_end()
    return st.Maintain("CLUSTER", (name,))


def _check_options(verb: str, cursor: Cursor) -> bool:
    """Read options in brackets, if there are any: whether there are. Refuses those that PostgreSQL has not."""
    if not cursor.is_symbol("("):
        return False
    unknown = sorted(set(options(cursor, signs=False)) - set(_OPTIONS[verb]))
    if unknown:
        cursor.refuse(f"{verb} with the option {unknown[0]}")
    return True


STARTS = (
    starts(reindex, "REINDEX"),
    starts(cluster, "CLUSTER"),
    starts(truncate, "TRUNCATE"),
    starts(partial(maintain, "VACUUM"), "VACUUM"),
    starts(partial(maintain, "ANALYZE"), "ANALYZE", "ANALYSE"),
)
