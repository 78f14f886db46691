"""Statements that Python computes row by row give what Spark gives: rows, tags, RETURNING, errors."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from datetime import UTC as UTC_TIME
from datetime import datetime
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from headrace.common.zones import UTC
from headrace.errors import HeadraceError
from headrace.session.database import Database
from headrace.session.execution import dml, row_writes
from headrace.session.result import Result
from headrace.session.session import Session
from headrace.sql.parser import parse_query
from headrace.sql.scalar import NotScalar, RowScope

COLUMNS = {"s": "smallint", "i": "int", "b": "bigint", "t": "string", "o": "boolean", "d": "date", "m": "timestamp"}
SQL_TYPES = {"s": "smallint", "i": "int", "b": "bigint", "t": "text", "o": "boolean", "d": "date", "m": "timestamptz"}
VALUES: dict[str, list[str | None]] = {
    "s": ["0", "1", "-1", "32767", "-32768", None], "i": ["0", "7", "-1", "2147483647", "-2147483648", None],
    "b": ["0", "5", "-1", "9223372036854775807", "-9223372036854775808", None],
    "t": ["''", "'a'", "'B '", "'ä'", "'é'", "'😀'", "'\uffff'", "'10'", None], "o": ["true", "false", None],
    "d": ["'2024-02-29'", "'0001-01-01'", "'9999-12-31'", None],
    "m": ["'2024-02-29 12:00:00+01'", "'0001-01-01 00:00:00+00'", "'9999-12-31 23:59:59.999999+00'", None],
}  # fmt: skip
WHOLE = ("s", "i", "b")


def random_row(pick: random.Random) -> dict[str, str | None]:
    return {name: pick.choice(values) for name, values in VALUES.items()}


def number(pick: random.Random, depth: int) -> str:
    if depth == 0 or pick.random() < 0.25:
        return pick.choice([*WHOLE, *WHOLE, "1", "-1", "0", "2147483647", "3000000000", "-2147483648", "-(2147483648)"])
    kind = pick.random()
    if kind < 0.15:
        return f"- {number(pick, depth - 1)}" if pick.random() < 0.5 else f"-({number(pick, depth - 1)})"
    if kind < 0.3:
        return f"({number(pick, depth - 1)})::{pick.choice(['smallint', 'int', 'bigint'])}"
    return f"({number(pick, depth - 1)}) {pick.choice('+-*')} ({number(pick, depth - 1)})"


def text(pick: random.Random, depth: int) -> str:
    if depth == 0 or pick.random() < 0.3:
        return pick.choice(["t", "t", "'x'", "''", "'ä '"])
    return f"{text(pick, depth - 1)} || {text(pick, depth - 1)}"


def condition(pick: random.Random, depth: int) -> str:
    kind = pick.random()
    if depth == 0 or kind < 0.5:
        sign = pick.choice(["=", "<>", "<", "<=", ">", ">=", "!="])
        which = pick.randrange(7)
        if which < 2:
            return f"{number(pick, 1)} {sign} {number(pick, 1)}"
        if which == 2:
            return f"{text(pick, 1)} {sign} {text(pick, 1)}"
        if which == 3:
            return pick.choice(["o", "o = true", "o <> false", "o < true", "true", "false"])
        if which == 4:
            return f"d {sign} {pick.choice(['d', chr(39) + '2024-02-29' + chr(39)])}"
        if which == 5:
            return f"m {sign} {pick.choice(['m', chr(39) + '2024-02-29 11:00:00Z' + chr(39)])}"
        return f"{pick.choice([*COLUMNS])} IS {pick.choice(['', 'NOT '])}NULL"
    if kind < 0.6:
        return f"NOT ({condition(pick, depth - 1)})"
    return f"({condition(pick, depth - 1)}) {pick.choice(['AND', 'OR'])} ({condition(pick, depth - 1)})"


def expressions(pick: random.Random, count: int) -> list[tuple[str, Any]]:
    """Expressions and what they are compiled to, of those that are understood."""
    found: list[tuple[str, Any]] = []
    while len(found) < count:
        make: Callable[[random.Random, int], str] = pick.choice([number, text, condition])
        sql = make(pick, 2)
        scope = RowScope({name: (i, kind) for i, (name, kind) in enumerate(COLUMNS.items())}, [], UTC)
        try:
            compiled = scope.compile(parse_query(f"SELECT {sql}").tree.expressions[0].unalias())
        except (NotScalar, HeadraceError):
            continue
        if compiled.kind is not None:
            found.append((sql, compiled))
    return found


@pytest.fixture(scope="module")
def session(database: Database) -> Iterator[Session]:
    made = database.session()
    yield made
    made.close()


def rows(session: Session, sql: str) -> list[tuple[Any, ...]]:
    *_, last = session.execute(sql)
    return list_of(last)


def list_of(result: Result) -> list[tuple[Any, ...]]:
    """Its rows; dates as numbers, since they may be beyond those that Python has."""
    table = result.table()
    for i, field in enumerate(table.schema):
        if field.type == pa.date32():
            table = table.set_column(i, field.name, table.column(i).cast(pa.int32()))
    return [tuple(row.values()) for row in table.to_pylist()]


def outcome(run: Callable[[], Any]) -> Any:
    try:
        return run()
    except HeadraceError as error:
        return error.sqlstate


def test_expressions_give_what_spark_gives(database: Database, session: Session) -> None:
    """Many at once; where one of them fails in Spark, each by itself."""
    pick = random.Random(20)
    columns = ", ".join(f"{name} {kind}" for name, kind in SQL_TYPES.items())
    database.sql(f"CREATE TABLE scalars (id int PRIMARY KEY, {columns})")
    given = [random_row(pick) for _ in range(60)]
    values = ", ".join(f"({i}, {', '.join(str(v or 'NULL') for v in row.values())})" for i, row in enumerate(given))
    database.sql(f"INSERT INTO scalars VALUES {values}")
    *_, all_rows = session.execute("SELECT * FROM scalars")
    stored = {row["id"]: tuple(row.values())[1:] for row in all_rows.table().to_pylist()}
    cases: list[tuple[str, Any, int]] = [(sql, c, pick.randrange(60)) for sql, c in expressions(pick, 400)]
    good, bad = [], []
    for sql, compiled, at in cases:
        result = outcome(partial(compiled.run, stored[at], ()))
        (bad if result == "22003" else good).append((sql, compiled, at, result))
    assert len(good) > 150 and len(bad) > 20
    for start in range(0, len(good), 50):
        part = good[start : start + 50]
        union = " UNION ALL ".join(
            f"SELECT {i} AS n, ({sql})::text AS v FROM scalars WHERE id = {at}"
            for i, (sql, _, at, _) in enumerate(part)
        )
        found = dict(rows(session, union))
        for i, (sql, compiled, at, result) in enumerate(part):
            assert found[i] == as_text(result), (sql, compiled.kind, given[at])
    # Spark's optimizer leaves out what a factor of zero makes idle, overflow included; PostgreSQL does not.
    for sql, _, at, _ in [case for case in bad if not re.search(r"(?<![\d.])0(?![\d.])", case[0])][:12]:
        assert outcome(partial(rows, session, f"SELECT {sql} AS v FROM scalars WHERE id = {at}")) == "22003", sql


def as_text(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return None if value is None else str(value)


# ---- both ways of a statement

SETUP = """
    DROP TABLE IF EXISTS {t};
    CREATE TABLE {t} (id int PRIMARY KEY, s smallint, n bigint DEFAULT 7, t text NOT NULL, f real, x float8,
        p numeric(10,2), o boolean DEFAULT true, d date);
    INSERT INTO {t} VALUES (1, 1, 10, 'one', 0.1, 0.1, 1.25, true, '2024-01-01'), (2, NULL, NULL, '', 0, -0.0, NULL,
        NULL, NULL), (3, 32767, 9223372036854775807, 'three', 1e30, 1e300, 99999999.99, false, '9999-12-31');
"""
SHOW = "SELECT * FROM ways"
STATEMENTS = """
INSERT INTO {t} VALUES (4, 1, 2, 'x', 0.1, 0.1, 1.005, false, '2024-02-29') RETURNING *
INSERT INTO {t} (id, t) VALUES (4, 'x'), (5, DEFAULT), (6, 'y') RETURNING id, n, o
INSERT INTO {t} (id, t) VALUES (4, 'x'), (4, 'y'), (1, 'z')
INSERT INTO {t} (id, t) VALUES (4, 'x'), (4, 'y'), (1, 'z') ON CONFLICT DO NOTHING
INSERT INTO {t} (id, t) VALUES (4, 'x'), (1, 'z') ON CONFLICT DO NOTHING RETURNING id, t
INSERT INTO {t} (id, t) VALUES (4, 'x'), (1, 'z') RETURNING t AS u
INSERT INTO {t} (id, t) VALUES (NULL, 'x')
INSERT INTO {t} (id) VALUES (4)
INSERT INTO {t} (id, t, s) VALUES (4, 'x', 32768)
INSERT INTO {t} (id, t, s) VALUES (4, 'x', 32767 + 1)
INSERT INTO {t} (id, t) VALUES (2147483647 + 1, 'x')
INSERT INTO {t} (id, t) VALUES (4, 'x' || 'y' || 'z')
INSERT INTO {t} (id, t, x) VALUES (4, 'x', 3)
INSERT INTO {t} (id, t, p) VALUES (4, 'x', 123456789)
INSERT INTO {t} (id, t, p) VALUES (4, 'x', '1.005')
INSERT INTO {t} (id, t, o) VALUES (4, 'x', 1)
INSERT INTO {t} (id, t, d) VALUES (4, 'x', 'nonsense')
INSERT INTO {t} (id, t, f) VALUES (4, 'x', '1e40')
UPDATE {t} SET n = n + 1 WHERE id = 1 RETURNING id, n
UPDATE {t} SET n = n + 1 WHERE id = 2 RETURNING n
UPDATE {t} SET n = n + 1 WHERE id = 3
UPDATE {t} SET s = s + 1 WHERE id = 3
UPDATE {t} SET s = n WHERE id = 1
UPDATE {t} SET s = n WHERE id = 3
UPDATE {t} SET t = NULL WHERE id = 1
UPDATE {t} SET t = NULL WHERE id = 9
UPDATE {t} SET x = f, f = 0.25 WHERE id = 1
UPDATE {t} SET p = f WHERE id = 1
UPDATE {t} SET f = x WHERE id = 3
UPDATE {t} SET n = x WHERE id = 1
UPDATE {t} SET n = x WHERE id = 3
UPDATE {t} SET s = p WHERE id = 1
UPDATE {t} SET x = '-0.0' WHERE id = 2
UPDATE {t} SET f = '-0.0' WHERE id = 2 RETURNING f
UPDATE {t} SET x = 'NaN', f = 'Infinity' WHERE id = 1
UPDATE {t} SET n = DEFAULT, o = DEFAULT WHERE id = 3
UPDATE {t} SET n = s, s = n WHERE id = 1 AND t = 'one' AND o
UPDATE {t} SET n = 0 WHERE id = 2 AND o
UPDATE {t} SET n = 0 WHERE 1 = id AND (s > 0 OR NOT o) AND d < '2025-01-01'
UPDATE {t} SET n = 0 WHERE id = 5000000000
UPDATE {t} SET n = 0 WHERE id = NULL
UPDATE {t} SET n = 0 WHERE id = '1'
UPDATE {t} SET n = 0 WHERE id = 1 AND id = 2
UPDATE {t} SET n = 0 WHERE id = 'one'
UPDATE {t} u SET n = u.n - u.s WHERE u.id = 1
UPDATE {t} SET d = '10000-01-01' WHERE id = 1
UPDATE {t} SET t = t || '!' || t WHERE id = 1 AND n IS NOT NULL RETURNING t
DELETE FROM {t} WHERE id = 1 RETURNING *
DELETE FROM {t} WHERE id = 2 AND s IS NULL
DELETE FROM {t} WHERE id = 9
DELETE FROM {t} WHERE id = 3 AND s + 1 > 0
DELETE FROM {t} WHERE id = 2147483647 + 1
DELETE FROM {t} WHERE id = 1 OR id = 2
""".strip().splitlines()


def result_of(session: Session, sql: str) -> Any:
    def run() -> Any:
        *_, last = session.execute(sql)
        shown = [] if last.columns is None else sorted(map(repr, list_of(last)))
        return last.tag, [(c.name, c.type) for c in last.columns or ()], shown

    return outcome(run)


@pytest.mark.timeout(600)
def test_both_ways_of_a_statement_agree(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """By rows in a statement of its own and in a transaction, and by Spark."""
    differing = []
    planned: list[str] = []

    def by_rows(*arguments: Any) -> Any:
        planned.append(way)
        return row_writes.run_plan(*arguments)

    first: list[str] = []
    for sql in STATEMENTS:
        found = []
        if not first or sorted(map(repr, rows(session, SHOW))) != first:
            first = sorted(map(repr, rows(session, SETUP.format(t="ways") + SHOW)))
        for way in ("engine", "transaction", "rows"):
            begin, end = ("", "") if way == "rows" else ("BEGIN", "ROLLBACK")
            with monkeypatch.context() as patched:
                patched.setattr(dml, "run_plan", by_rows)
                if way == "engine":
                    patched.setattr(dml, "plan_rows", lambda *_: None)
                list(session.execute(begin))
                result = result_of(session, sql.format(t="ways"))
                after = None if session.transaction_status == "E" else sorted(map(repr, rows(session, SHOW)))
                list(session.execute(end))
            found.append((result, after if isinstance(result, tuple) else None))
        if len(set(map(repr, found))) > 1:
            print(sql, *found, sep="\n   ")
            differing.append(sql)
        assert isinstance(result, tuple) or sorted(map(repr, rows(session, SHOW))) == first
    assert not differing
    assert planned.count("rows") > 30 and planned.count("transaction") > 30


TIMED = (
    "CREATE TABLE timed (k int PRIMARY KEY, at timestamptz DEFAULT now(), local timestamp DEFAULT localtimestamp, "
    "day date DEFAULT current_date, changed timestamptz, shown timestamp, said date)"
)


def test_the_time_of_a_statement(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is one for all rows and columns, shown by the clocks of the zone; rows are written without Spark."""
    list(session.execute(f"SET TIME ZONE 'Asia/Tokyo'; DROP TABLE IF EXISTS timed; {TIMED}"))

    def refused(*arguments: object) -> None:
        raise AssertionError("by rows alone")

    monkeypatch.setattr(dml, "run_writing", refused)
    before = datetime.now(UTC_TIME)
    list(session.execute("INSERT INTO timed (k, changed, shown, said) VALUES (1, now(), now(), CURRENT_TIMESTAMP), "
                         "(2, CURRENT_TIMESTAMP, localtimestamp, current_date), (3, NULL, NULL, NULL)"))  # fmt: skip
    between = datetime.now(UTC_TIME)
    list(session.execute("UPDATE timed SET changed = now(), shown = now(), said = now() WHERE k = 2 AND at <= now()"))
    after = datetime.now(UTC_TIME)
    *_, shown = session.execute("SELECT * FROM timed ORDER BY k")
    found = shown.rows()
    tokyo = ZoneInfo("Asia/Tokyo")
    ((_, at, local, day, *first), second, third) = found
    assert before <= at <= between
    # Defaults are meant in the zone in which they were declared: that of the session.
    here = at.astimezone(tokyo).replace(tzinfo=None)
    assert (local, day) == (here, here.date()) and first == [at, here, here.date()]
    assert second[1:4] == third[1:4] == (at, local, day) and third[4:] == (None, None, None)
    assert between <= second[4] <= after
    again = second[4].astimezone(tokyo).replace(tzinfo=None)
    assert second[5:] == (again, again.date())
    assert rows(session, "DELETE FROM timed WHERE k = 1 AND at > now(); SELECT count(*) FROM timed") == [(3,)]
