"""Subscriptions: the statements, and where a reader of changes begins. The words are RisingWave's."""

from __future__ import annotations

from headrace.errors import InvalidParameter, NotSupported
from headrace.sql import statements as st
from headrace.sql.ddl import if_not_exists
from headrace.sql.intervals import parse_interval
from headrace.sql.starts import starts
from headrace.sql.token_cursor import Cursor
from headrace.sql.with_options import options

LEAST_EPOCH = 10**13
"""A number from here on is an epoch; one below it is Unix time in milliseconds (it would be the year 2286)."""


def create_subscription(cursor: Cursor) -> st.Statement:
    """Read a statement after `CREATE SUBSCRIPTION`."""
    exists, name = if_not_exists(cursor), cursor.table_name()
    cursor.expect("FROM")
    source = cursor.table_name()
    found = options(cursor) if cursor.match("WITH") else {}
    cursor.expect_end()
    return st.CreateSubscription(name, source, found, exists)


def is_declaration(cursor: Cursor) -> bool:
    """Whether `DECLARE name SUBSCRIPTION CURSOR` comes next."""
    return bool(cursor.peek("DECLARE")) and cursor.is_symbol("SUBSCRIPTION", 2) and cursor.is_symbol("CURSOR", 3)


def declare(cursor: Cursor) -> st.Statement:
    """Read `DECLARE name SUBSCRIPTION CURSOR FOR ...`."""
    cursor.expect("DECLARE")
    name = cursor.identifier()
    cursor.expect("SUBSCRIPTION", "CURSOR", "FOR")
    subscription, since = cursor.table_name(), _since(cursor)
    cursor.expect_end()
    return st.DeclareSubscriptionCursor(name, subscription, since)


def subscribe(cursor: Cursor) -> tuple[st.TableName, st.Since, bool, bool]:
    """Read `SUBSCRIBE [TO] relation [SINCE ... | FULL] [UP TO now()] [WITH (progress, snapshot)]`, in brackets of COPY.

    What is read: the relation, where to begin, whether to end with what there is now, and whether to tell of progress.
    """
    cursor.expect("SUBSCRIBE")
    cursor.match("TO")
    target, since = cursor.table_name(), _since(cursor)
    ends = cursor.match("UP", "TO")
    if ends:
        cursor.expect("NOW")
        cursor.expect("(")
        cursor.expect(")")
    given = _modes(cursor) if cursor.match("WITH") else {}
    if given.get("snapshot", since.what == "full") != (since.what == "full"):
        if since.what != "now":
            raise InvalidParameter(
                "snapshot contradicts where SUBSCRIBE is told to begin", hint="leave one of them out"
            )
        since = st.Since("full")
    cursor.expect_end()
    return target, since, ends, given.get("progress", False)


def _modes(cursor: Cursor) -> dict[str, bool]:
    """Read `(progress [= true], snapshot [= true])`, as Materialize has them; snapshot is FULL."""
    found: dict[str, bool] = {}
    cursor.expect("(")
    while True:
        name = cursor.word().lower()
        if name not in ("progress", "snapshot") or name in found:
            raise InvalidParameter(f"option {name} of SUBSCRIBE", hint="progress and snapshot, each once")
        found[name] = not cursor.match("=") or _truth(cursor, name)
        if not cursor.match(","):
            cursor.expect(")")
            return found


def timeout_s(cursor: Cursor) -> float:
    """Read `(timeout = '10s')` behind the `WITH` of FETCH."""
    position = cursor.token.start + 1 if cursor.token else None
    found = options(cursor)
    cursor.expect_end()
    if set(found) != {"timeout"}:
        raise InvalidParameter("FETCH has one option: timeout", position=position)
    return duration_ms("timeout", found["timeout"], position) / 1000


def duration_ms(what: str, text: str, position: int | None = None) -> int:
    """An interval in milliseconds, months being 30 days. Raises `InvalidParameter` where it is negative."""
    months, days, micros = parse_interval(text)
    found = ((months * 30 + days) * 86_400_000_000 + micros) // 1000
    if found < 0:
        raise InvalidParameter(f"{what} cannot be negative: '{text}'", position=position)
    return found


def _truth(cursor: Cursor, name: str) -> bool:
    word = cursor.word().lower()
    if word not in ("true", "false", "on", "off"):
        raise InvalidParameter(f"{name} is true or false")
    return word in ("true", "on")


def _since(cursor: Cursor) -> st.Since:
    if cursor.match("FULL"):
        return st.Since("full")
    if not cursor.match("SINCE"):
        return st.Since()
    if cursor.is_string():
        return st.Since("position", position=cursor.string())
    position = cursor.token.start + 1 if cursor.token else None
    word = cursor.word().lower()
    if word.isascii() and word.isdigit():
        return st.Since("at_ms", at_ms=int(word)) if int(word) < LEAST_EPOCH else st.Since("position", position=word)
    if word not in ("begin", "now", "proctime"):
        raise NotSupported(
            f"SINCE {word}", position=position,
            hint="begin(), now(), proctime(), Unix time in milliseconds, or a position that was shown",
        )  # fmt: skip
    cursor.expect("(")
    cursor.expect(")")
    return st.Since("begin" if word == "begin" else "now")


STARTS = (starts(create_subscription, "CREATE SUBSCRIPTION"),)
