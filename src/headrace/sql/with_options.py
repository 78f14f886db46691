"""Options in brackets: `WITH (name = value, ...)`, and what they name."""

from __future__ import annotations

from dataclasses import field

from headrace.common.lazy_dataclass import dataclass
from headrace.sql import statements as st
from headrace.sql.dialect import token_text
from headrace.sql.token_cursor import Cursor


@dataclass
class OptionReferences:
    """What options name: secrets that are the values of some, and the connection that has others."""

    secrets: dict[str, st.TableName] = field(default_factory=dict)
    connection: st.TableName | None = None


def options(cursor: Cursor, named: OptionReferences | None = None, *, signs: bool = True) -> dict[str, str]:
    """Read `(name = value, a.b = 'c', ...)`; what names an object goes to `named`, and is no such name without.

    Without `signs` the equals sign may be left out, and so may the value of an option that is to be true.
    """
    found: dict[str, str] = {}
    seen: set[str] = set()
    cursor.expect("(")
    while not cursor.match(")"):
        key = cursor.string() if cursor.is_string() else _option_name(cursor)
        while cursor.match("."):
            key += "." + cursor.word().strip('"')
        if not cursor.match("=") and signs:
            cursor.fail()
        key = key.lower()
        if key in seen or (named is not None and key in named.secrets):
            cursor.refuse(f"a second value for the option {key}")
        if not signs and (cursor.is_symbol(",") or cursor.is_symbol(")")):
            found[key] = "true"
        elif key == "connection" and named is not None:
            if named.connection is not None:
                cursor.refuse("a second connection")
            named.connection = cursor.table_name()
        elif cursor.peek("SECRET") and named is not None:
            named.secrets[key] = _secret(cursor)
        else:
            found[key] = option_value(cursor)
        seen.add(key)
        if not cursor.match(","):
            cursor.expect(")")
            break
    return found


def _option_name(cursor: Cursor) -> str:
    """Read a name that may be a reserved word, as `table` is."""
    token = cursor.token
    reserved = token is not None and token_text(cursor.sql, token).isidentifier()
    return cursor.word() if reserved else cursor.identifier()


def option_value(cursor: Cursor) -> str:
    """Read a string, number, boolean or word. Raises `NotSupported` for `SECRET x`."""
    if cursor.is_string():
        return cursor.string()
    if cursor.peek("SECRET"):
        cursor.refuse(
            "a secret as the value of this option", "Secrets are for options of CREATE SOURCE and CREATE SINK."
        )
    sign = "-" if cursor.match("-") else ""
    if cursor.token is None or cursor.is_symbol(")") or cursor.is_symbol(","):
        cursor.fail()
    text = cursor.word()
    return sign + (text.lower() if text.lower() in ("true", "false", "on", "off") else text)


def _secret(cursor: Cursor) -> st.TableName:
    cursor.expect("SECRET")
    name = cursor.table_name()
    if cursor.peek("AS", "FILE"):
        cursor.refuse("SECRET ... AS FILE")
    return name
