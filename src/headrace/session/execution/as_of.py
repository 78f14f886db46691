"""FOR SYSTEM_TIME AS OF: which epoch a query asks for."""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from sqlglot import exp

from headrace.catalog.records import ObjectRecord
from headrace.common.epoch import epoch_ms, from_unix_ms
from headrace.common.zones import Zone
from headrace.errors import InvalidParameter, NotSupported
from headrace.session.names import BoundQuery
from headrace.sql.dml import literal_of
from headrace.sql.intervals import parse_interval
from headrace.sql.normalize import interval_words
from headrace.sql.parser import parse_expression
from headrace.sql.query import Expression

LEAST_EPOCH = 10**13
"""A number from here on is an epoch; one below it is Unix time in seconds (it would be the year 318857)."""
_FORMS = "give a timestamp, now() - interval '...', Unix time in seconds, or an epoch as in headrace_catalog.epochs"


def as_of_epoch(bound: BoundQuery, now_ms: int) -> int | None:
    """The newest epoch that the query may see, the same for all its relations; None where it does not say.

    Raises `NotSupported` for `PROCTIME()`, for several times in one query, and for what is no constant.
    """
    texts = {text for query in bound.queries() for text in query.as_of().values()}
    if not texts:
        return None
    if any(_is_proctime(parse_expression(text).tree) for text in texts):
        raise NotSupported(
            "FOR SYSTEM_TIME AS OF PROCTIME() in a query",
            hint="that is a temporal join, for materialized views; a query reads one snapshot anyway: leave it out",
        )
    if len(texts) > 1:
        raise NotSupported("different FOR SYSTEM_TIME AS OF in one query", hint="read all relations as of one time")
    text = texts.pop()
    tree = parse_expression(text).tree
    if isinstance(tree, exp.Literal) and not tree.is_string and Decimal(tree.name) >= LEAST_EPOCH:
        return int(Decimal(tree.name))
    moment = _moment(tree, datetime.fromtimestamp(now_ms / 1000, UTC), bound.zone)
    if moment is None:
        raise NotSupported(f"FOR SYSTEM_TIME AS OF {text}", hint=_FORMS)
    return from_unix_ms(_unix_ms(moment) + 1) - 1


def check_as_of(bound: BoundQuery, indexes: Collection[int]) -> None:
    """Refuse a time in a query that is kept up to date, but for `PROCTIME()` of what has a primary key or an index.

    `indexes` are the ids of the relations that have one.
    """
    for query in bound.queries():
        if any(not _is_proctime(parse_expression(text).tree) for text in query.as_of().values()):
            raise NotSupported(
                "FOR SYSTEM_TIME AS OF a fixed time in a materialized view",
                hint="AS OF PROCTIME() joins each new row with another relation as that is then",
            )
    for inner in bound.parts():
        for name in inner.query.looked_up():
            found = inner.targets[name]
            if not isinstance(found, ObjectRecord) or not (found.primary_key or found.id in indexes):
                raise NotSupported(
                    f'FOR SYSTEM_TIME AS OF PROCTIME() of "{name}", which has no primary key and no index',
                    hint="create an index on the columns that it is joined by, or leave the clause out: an ordinary "
                    "join keeps up with both sides",
                )


def within_complete(at: int, now_ms: int, complete: int) -> int:
    """`at`, brought down to the newest complete epoch unless it lies in the future.

    Nothing has been written since: that is how it was at any later time up to now.
    """
    return min(at, complete) if epoch_ms(at) <= now_ms else at


def _is_proctime(tree: exp.Expr) -> bool:
    return isinstance(tree, exp.Anonymous) and tree.name.lower() == "proctime"


def _moment(tree: exp.Expr, now: datetime, zone: Zone) -> datetime | None:
    while isinstance(tree, exp.Paren):
        tree = tree.this
    if isinstance(tree, (exp.CurrentTimestamp, exp.Localtimestamp)):
        return now
    if isinstance(tree, exp.Literal) and not tree.is_string:
        return datetime.fromtimestamp(float(tree.name), UTC)
    if isinstance(tree, (exp.Add, exp.Sub)) and isinstance(tree.expression, (exp.Interval, exp.Literal)):
        start = _moment(tree.this, now, zone)
        inner = tree.expression
        words = interval_words(inner) if isinstance(inner, exp.Interval) else inner.name
        return None if start is None else _moved(start, words, 1 if isinstance(tree, exp.Add) else -1, zone)
    known, value = literal_of(Expression(tree, ""), "timestamp", zone)
    if not known or not isinstance(value, datetime):
        return None
    return value if value.tzinfo is not None else zone.moment(value)


def _moved(moment: datetime, words: str, sign: int, zone: Zone) -> datetime:
    """Months and days by the calendar of the zone."""
    months, days, micros = (sign * part for part in parse_interval(words))
    try:
        if months or days:
            local = zone.local(moment)
            year, month = divmod(local.year * 12 + local.month - 1 + months, 12)
            day = min(local.day, monthrange(year, month + 1)[1])
            moment = zone.moment(local.replace(year=year, month=month + 1, day=day) + timedelta(days=days))
        return moment + timedelta(microseconds=micros)
    except (ValueError, OverflowError):
        raise InvalidParameter(f"interval out of range: {words}", sqlstate="22008") from None


def _unix_ms(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
