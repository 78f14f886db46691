"""COPY to and from files of the server and object stores: headrace's own options, for PostgreSQL has none for those.

    COPY table [(columns)] | (query) TO 'folder' (FORMAT parquet | csv | json, ...)
    COPY table [(columns)] FROM 'path' (...)

Options are a name and a value, with or without a sign between them; a value may be `SECRET name`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from sqlglot.tokenizer_core import Token

from headrace.errors import NotSupported
from headrace.sql import statements as st
from headrace.sql.token_cursor import Cursor
from headrace.sql.with_options import OptionReferences, options

_RENAMED: Final = {"null": "null_string"}
_WORDS: Final = ("format", "compression")


def names_files(cursor: Cursor, tokens: Sequence[Token], operand: int) -> bool:
    """Whether a COPY, whose operand ends before a token, says a place in quotes rather than STDIN or a program."""
    depth = 0
    for i in range(operand, len(tokens) - 1):
        depth += (tokens[i].text == "(") - (tokens[i].text == ")")
        at = Cursor(cursor.sql, tokens[i:])
        if depth == 0 and (at.match("TO") or at.match("FROM")):
            return at.is_string()
    return False


def copy_files(
    cursor: Cursor, tokens: Sequence[Token], closing: int, inner: Callable[[Cursor], st.Statement]
) -> st.Statement:  # fmt: skip
    """Read such a COPY; `closing` is the place of the bracket that ends its query, where it has one."""
    at, query, table = Cursor(cursor.sql, tokens), None, None
    columns: tuple[str, ...] = ()
    at.expect("COPY")
    if at.is_symbol("("):
        found = inner(Cursor(cursor.sql, tokens[2:closing]))
        if not isinstance(found, st.Select):
            raise NotSupported("COPY of anything but a query's rows is not supported", position=found.position)
        query, at.at = found.query, closing + 1
    else:
        table = at.table_name()
        columns = at.names() if at.is_symbol("(") else ()
    out = at.match("TO")
    if not out:
        at.expect("FROM")
    place, named = at.string(), OptionReferences()
    at.match("WITH")
    given = options(at, named, signs=False) if at.is_symbol("(") else {}
    if named.connection is not None:
        at.refuse("a connection in COPY", "Give the options of the store, and its keys as secrets.")
    if at.peek("WHERE"):
        raise NotSupported("WHERE in COPY FROM is not supported", hint="Copy to another table, and INSERT from that.")
    at.expect_end()
    renamed = {_RENAMED.get(name, name): v.lower() if name in _WORDS else v for name, v in given.items()}
    if out:
        return st.CopyToFiles(table, columns, query, place, renamed, named.secrets)
    if table is None:
        raise NotSupported("COPY of a query's rows goes TO a place, not FROM one")
    return st.CopyFromFiles(table, columns, place, renamed, named.secrets)
