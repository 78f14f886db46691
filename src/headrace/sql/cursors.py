"""DECLARE, FETCH and MOVE: the statements of cursors."""

from __future__ import annotations

from typing import Final, Literal

from postgast import pg_query_pb2 as pb

from headrace.errors import NotSupported, SyntaxFault
from headrace.sql import statements as st
from headrace.sql.postgres import parse_statement
from headrace.sql.starts import Inner, nests, starts
from headrace.sql.subscriptions import declare as declare_subscription
from headrace.sql.subscriptions import is_declaration, timeout_s
from headrace.sql.token_cursor import Cursor

_BINARY, _SCROLL, _NO_SCROLL, _HOLD, _INSENSITIVE, _ASENSITIVE = 1, 2, 4, 32, 8, 16
_ALL: Final = 2**63 - 1
_DIRECTIONS: Final[tuple[Literal["forward", "backward", "absolute", "relative"], ...]] = (
    "forward", "backward", "absolute", "relative",
)  # fmt: skip


def _tree(cursor: Cursor) -> pb.Node:
    """PostgreSQL's tree of what is left, which is not read yet."""
    tokens = cursor.tokens[cursor.at :]
    try:
        return parse_statement(cursor.text_of(tokens)).tree
    except SyntaxFault as error:
        raise SyntaxFault(error.message, position=tokens[0].start + (error.position or 1)) from None


def declare(cursor: Cursor, inner: Inner) -> st.Statement:
    """Read DECLARE; `inner` reads the query."""
    if is_declaration(cursor):
        return declare_subscription(cursor)
    tree = _tree(cursor)
    if tree is None:
        raise NotSupported("a cursor over a query of this size is not supported")
    node = tree.declare_cursor_stmt
    while not cursor.match("FOR"):
        cursor.at += 1
    query = inner(cursor)
    if not isinstance(query, st.Select):
        raise SyntaxFault("a cursor is over a query", position=query.position)
    if node.options & _SCROLL and node.options & _NO_SCROLL:
        raise SyntaxFault("cannot specify both SCROLL and NO SCROLL", sqlstate="42P11")
    if node.options & _INSENSITIVE and node.options & _ASENSITIVE:
        raise SyntaxFault("cannot specify both INSENSITIVE and ASENSITIVE", sqlstate="42P11")
    return st.DeclareCursor(
        node.portalname, query.query, bool(node.options & _SCROLL), bool(node.options & _HOLD),
        bool(node.options & _BINARY),
    )  # fmt: skip


def fetch(cursor: Cursor) -> st.Statement:
    """Read FETCH or MOVE."""
    start = cursor.at
    cursor.until("WITH")
    tree = _tree(Cursor(cursor.sql, cursor.tokens[start : cursor.at]))
    if tree is None:
        cursor.fail()
    node = tree.fetch_stmt
    wait_s = timeout_s(cursor) if cursor.match("WITH") else None
    cursor.expect_end()
    count = None if abs(node.how_many) >= _ALL else node.how_many
    return st.FetchCursor(node.portalname, _DIRECTIONS[node.direction - 1], count, node.ismove, wait_s)


STARTS = (nests(declare, "DECLARE", whole=True), starts(fetch, "FETCH", "MOVE", whole=True))
