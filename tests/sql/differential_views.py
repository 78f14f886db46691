"""Random queries as views over a table that changes, compared after each change with PostgreSQL's answer."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from differential_meant import Answer, difference
from differential_queries import Queries

from headrace.common.zones import zone_of_setting
from headrace.config import Settings
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from differential import Postgres

AT_ONCE = 5
"""Views over one table."""
_CHANGES = (
    "INSERT INTO d SELECT id + 100, i2, i8 % 1000, i8, f4, f8, n, t, b, d, ts, tz, a, tm, iv, j, by, ta FROM d "
    "WHERE id = {a}",
    "UPDATE d SET i4 = i4 % 1000 + {a}, b = NOT b WHERE id <> {b}",
    "UPDATE d SET t = NULL, a = ARRAY[{a}, {b}], d = date '2024-02-28' + {a} WHERE id = {a}",
    "UPDATE d SET b = NULL, i4 = NULL WHERE id = {b}",
    "DELETE FROM d WHERE id = {a}",
    "INSERT INTO d (id, i4, t, b) VALUES (200 + {a}, {b}, 'new', true), (300 + {a}, {b}, NULL, NULL)",
    "UPDATE d SET n = n + {a}, i2 = {b}, ts = ts + interval '{a} hours'",
    "UPDATE d SET iv = iv * {a}, j = '{{\"a\": {b}.0}}', tm = '0{a}:00', by = NULL WHERE id >= {b}",
    "UPDATE d SET j = '1.0', iv = interval '24 hours' * {a}, ta = ARRAY['a', NULL] WHERE id <> {a}",
)


def search_views(
    spark: Any, theirs: Postgres, seed: int, count: int, tally: Counter[str] | None = None, zone: str = "UTC"
) -> list[tuple[str, str]]:
    """What differs among so many views over changing tables, of sessions in a time zone."""
    from headrace.session.database import connect

    tally = Counter() if tally is None else tally
    found = []
    settings = Settings(run_fsync=False, catalog_commit_sync=False, barrier_interval_ms=20)
    with connect(spark=spark, settings=settings) as database:
        for at in range(0, count, AT_ONCE):
            number = min(AT_ONCE, count - at)
            theirs.in_zone(zone)
            found += _round(
                database.session({"timezone": zone_of_setting(zone).name}), theirs, seed * 1000 + at, number, tally
            )
    return found


def _round(session: Any, theirs: Postgres, seed: int, count: int, tally: Counter[str]) -> list[tuple[str, str]]:
    """Some views over one table, and some changes of it."""
    from differential import COLUMNS, POSTGRES_TYPES, filled

    chance = random.Random(seed)
    changes = [c.format(a=chance.randint(1, 5), b=chance.randint(1, 5)) for c in chance.sample(_CHANGES, 4)]
    wanted = _answers(theirs, Queries(seed, lambda sql: theirs.ask(sql).rows is not None), count, changes)
    columns = ", ".join(f"{n} {POSTGRES_TYPES[k]}{' PRIMARY KEY' * (n == 'id')}" for n, k in COLUMNS.items())
    for sql in (f"CREATE TABLE d ({columns})", *filled()):
        _run(session, sql)
    views = {}
    for i, query in enumerate(wanted):
        refused = _refusal(session, f"CREATE MATERIALIZED VIEW v{i} AS {query}")
        tally["created" if refused is None else f"refused: {refused[:60]}"] += 1
        if refused is None:
            views[f"v{i}"] = query
    found = [pair for at in range(len(changes) + 1) for pair in _step(session, views, wanted, changes, at)]
    _run(session, "DROP TABLE d CASCADE")
    return found


def _answers(theirs: Postgres, queries: Queries, count: int, changes: Sequence[str]) -> dict[str, list[Answer]]:
    """Queries that PostgreSQL answers before, between and after the changes."""
    from differential import filled

    asked: list[str] = []
    found: dict[str, list[Answer]] = {}
    while len(found) < count:
        asked = list(dict.fromkeys(queries.query() for _ in range(4 * count)))
        found.update({query: [] for query in asked})
        for change in ("", *changes):
            if change:
                theirs.ask(change)
            for query in list(found):
                answer = theirs.ask(query)
                if answer.rows is None:
                    del found[query]
                else:
                    found[query].append(answer)
        for sql in ("DELETE FROM d", *filled()):
            theirs.ask(sql)
    return dict(list(found.items())[:count])


def _step(
    session: Any, views: dict[str, str], wanted: dict[str, list[Answer]], changes: Sequence[str], at: int
) -> Iterator[tuple[str, str]]:
    """Make the change before a step, and compare."""
    if at:
        _run(session, changes[at - 1])
    try:
        _run(session, "FLUSH")
    except HeadraceError as error:
        yield "FLUSH", f"after {changes[:at]}: {error.message}"
    for name, query in views.items():
        how = difference(query, _rows(session, f"SELECT * FROM {name}").sorted(), wanted[query][at].sorted())
        if how is not None:
            yield f"{query}\n-- as a view, after {changes[:at]}", how


def _rows(session: Any, sql: str) -> Answer:
    from differential import rendered

    try:
        (result,) = list(session.execute(sql))
        return Answer(rendered(result.table(), [c.type for c in result.columns], session.context.zone))
    except HeadraceError as error:
        return Answer(error=error.sqlstate, message=error.message)


def _refusal(session: Any, sql: str) -> str | None:
    try:
        _run(session, sql)
    except HeadraceError as error:
        return f"{error.sqlstate} {error.message}"
    return None


def _run(session: Any, sql: str) -> None:
    for result in session.execute(sql):
        result.table()
