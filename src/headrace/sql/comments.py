"""COMMENT ON: what people write about objects."""

from __future__ import annotations

from typing import Final

from headrace.sql import statements as st
from headrace.sql.starts import starts
from headrace.sql.token_cursor import Cursor

_KINDS: Final = (
    "TABLE", "VIEW", "MATERIALIZED VIEW", "SOURCE", "SINK", "INDEX", "SCHEMA", "FUNCTION", "AGGREGATE", "SECRET",
    "CONNECTION", "SUBSCRIPTION",
)  # fmt: skip


def comment(cursor: Cursor) -> st.Statement:
    """Read a statement after `COMMENT ON`."""
    if cursor.match("ROLE"):
        return st.Comment("role", st.TableName(None, cursor.identifier()), None, _text(cursor))
    if cursor.match("DATABASE"):
        return st.Comment("database", st.TableName(None, cursor.identifier()), None, _text(cursor))
    if cursor.match("COLUMN"):
        name, column = _column(cursor)
        return st.Comment("", name, column, _text(cursor))
    kind = next((k for k in _KINDS if cursor.match(*k.split())), None)
    if kind is None:
        known = ", ".join((*_KINDS, "ROLE", "DATABASE"))
        cursor.refuse("COMMENT ON this kind of object", f"{known} and COLUMN have comments.")
    name = cursor.table_name()
    if kind in ("FUNCTION", "AGGREGATE") and cursor.match("("):
        cursor.until(")")  # there is one function of a name
        cursor.expect(")")
    return st.Comment(kind.lower(), name, None, _text(cursor))


def _column(cursor: Cursor) -> tuple[st.TableName, str]:
    parts = [cursor.identifier()]
    while cursor.match("."):
        parts.append(cursor.identifier())
    if len(parts) not in (2, 3):
        cursor.fail()
    return st.TableName(parts[-3] if len(parts) == 3 else None, parts[-2]), parts[-1]


def _text(cursor: Cursor) -> str | None:
    cursor.expect("IS")
    found = None if cursor.match("NULL") else cursor.string()
    cursor.expect_end()
    return found or None


STARTS = (starts(comment, "COMMENT ON"),)
