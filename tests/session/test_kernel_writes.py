"""Writes whose expressions have kernels: the same rows as by Spark, and not one job."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from headrace.errors import DataError, DivisionByZero, NotNullViolation, SerializationFailure
from headrace.session.context import Context
from headrace.session.database import Database
from headrace.session.execution import dml, kernel_queries
from headrace.session.execution.select import compute
from headrace.session.session import Session
from headrace.session.transactions import Transaction
from headrace.sql import statements as st
from headrace.sql.parser import parse_one

SEEDS = 6
STATEMENTS = 4
"""Statements for each seed."""


@contextmanager
def no_jobs(database: Database) -> Iterator[None]:
    """Fail if Spark runs a job inside the block. The database has no views, so that nobody else starts any."""
    scheduler = database.spark.sparkContext._jsc.sc().dagScheduler()
    before = int(scheduler.numTotalJobs())
    yield
    assert int(scheduler.numTotalJobs()) == before


def rows(database: Database | Session, sql: str) -> list[tuple[Any, ...]]:
    if isinstance(database, Database):
        return database.sql(sql).rows()
    (result,) = database.execute(sql)
    return result.rows()


@pytest.fixture
def accounts(database: Database) -> Iterator[Database]:
    database.sql("""
        CREATE TABLE accounts (id int PRIMARY KEY, kind text NOT NULL, v double, at timestamp, n numeric(10,2));
        INSERT INTO accounts VALUES (1, 'a', 8, '2024-01-01 10:00:00', 1.50), (2, 'b', 16, NULL, 2),
            (3, 'a', NULL, '2024-01-03 00:00:00', NULL);
    """)
    yield database
    database.sql("DROP TABLE accounts")


def test_without_a_job(accounts: Database) -> None:
    with no_jobs(accounts):
        accounts.sql("UPDATE accounts SET v = v / 4, kind = upper(kind) || length(kind) WHERE kind = 'a'")
        accounts.sql("UPDATE accounts SET at = at + INTERVAL '1' DAY, n = n * 2 WHERE id = 1")
        accounts.sql("DELETE FROM accounts WHERE at IS NULL AND n >= 2.0")
        accounts.sql("INSERT INTO accounts VALUES (2 + 2, lower('X') || 'y', 1 / 4.0, date_trunc('day', now()), 3)")
        accounts.sql("INSERT INTO accounts (id, kind) VALUES (5, upper('e')), (6, reverse('fg'))")
        returned = rows(accounts, "UPDATE accounts SET n = coalesce(n, 0) + 1 WHERE id > 4 RETURNING id, n")
        found = rows(accounts, "SELECT id, kind, v, n FROM accounts ORDER BY id")
    assert [(i, int(n)) for i, n in sorted(returned)] == [(5, 1), (6, 1)]
    assert [(i, kind, v, None if n is None else float(n)) for i, kind, v, n in found] == [
        (1, "A1", 2.0, 3.0), (3, "A1", None, None), (4, "xy", 0.25, 3.0), (5, "E", None, 1.0), (6, "gf", None, 1.0),
    ]  # fmt: skip
    midnight = "SELECT count(*) FROM accounts WHERE id = 4 AND at = date_trunc('day', at) AND at > '2024-02-01'"
    assert rows(accounts, midnight) == [(1,)]
    assert str(rows(accounts, "SELECT at FROM accounts WHERE id = 1")[0][0]).startswith("2024-01-02 10:00")


def test_spark_gives_the_verdict(accounts: Database) -> None:
    """What a kernel is not sure of, or has no word for, is Spark's to compute and its errors to tell."""
    accounts.sql("UPDATE accounts SET kind = 'É' WHERE id = 2")
    accounts.sql("UPDATE accounts SET kind = lower(kind)")
    assert rows(accounts, "SELECT id, kind FROM accounts ORDER BY id") == [(1, "a"), (2, "é"), (3, "a")]
    accounts.sql("UPDATE accounts SET v = sqrt(v) WHERE md5(kind) <> ''")
    assert rows(accounts, "SELECT v FROM accounts ORDER BY id")[1] == (4.0,)
    with pytest.raises(DivisionByZero):
        accounts.sql("UPDATE accounts SET v = v / (id - 1)")
    accounts.sql("UPDATE accounts SET v = v / (id - 1) WHERE id > 1 AND v / (id - 1) > 1")
    assert rows(accounts, "SELECT v FROM accounts ORDER BY id")[1] == (4.0,)
    with pytest.raises(NotNullViolation):
        accounts.sql("UPDATE accounts SET kind = substring(NULL, 1, 2) WHERE v > 3")


def test_in_a_transaction(accounts: Database) -> None:
    """Its own writes are seen; a row that another one has changed since is a conflict, any other row is not."""
    one, two = accounts.session(), accounts.session()
    for text in ("BEGIN", "UPDATE accounts SET v = v / 2 WHERE kind = 'a'", "UPDATE accounts SET v = v / 2"):
        list(one.execute(text))
    assert rows(one, "SELECT v FROM accounts WHERE id = 1") == [(2.0,)]
    list(two.execute("UPDATE accounts SET v = 1 WHERE id = 2"))
    with pytest.raises(SerializationFailure):
        list(one.execute("COMMIT"))
    by_key = "UPDATE accounts SET v = v / 2 WHERE id = 1 AND v / 2 > 0"
    for text in ("BEGIN", by_key, by_key):
        list(one.execute(text))
    list(two.execute("UPDATE accounts SET v = 3 WHERE id = 2"))  # another key than has been looked up
    list(one.execute("COMMIT"))
    assert rows(accounts, "SELECT id, v FROM accounts ORDER BY id") == [(1, 2.0), (2, 3.0), (3, None)]
    for text in ("BEGIN", by_key):
        list(one.execute(text))
    list(two.execute("UPDATE accounts SET v = 3 WHERE id = 1"))
    with pytest.raises(SerializationFailure):
        list(one.execute("COMMIT"))


def test_the_time_is_that_of_each_statement(accounts: Database) -> None:
    """A plan in which the time has become a constant is not kept."""
    for text in ("now()", "CAST('no' || 'w' AS timestamptz)"):
        update = f"UPDATE accounts SET at = CAST({text} AS timestamp) WHERE kind = 'a'"
        seen = []
        for _ in range(2):
            accounts.sql(update)
            seen.append(rows(accounts, "SELECT at FROM accounts WHERE id = 1")[0][0])
        assert seen[0] < seen[1], text


def test_a_kept_plan_knows_its_table(database: Database) -> None:
    """The same text over another table of that name, or the same table with other columns, is another plan."""
    update = "UPDATE replaced SET a = a / 2 WHERE b = 'x'"
    for kind, expected in (("double", 3.5), ("int", 3)):
        database.sql(f"CREATE TABLE replaced (k int, a {kind}, b text); INSERT INTO replaced VALUES (1, 7, 'x')")
        database.sql(update)
        assert rows(database, "SELECT a FROM replaced") == [(expected,)]
        database.sql("DROP TABLE replaced")


def test_rows_that_are_there_several_times(database: Database) -> None:
    database.sql("CREATE TABLE doubled (a int, b text, l int[])")
    database.sql("INSERT INTO doubled VALUES (1, 'x', ARRAY[1]), (1, 'x', ARRAY[1]), (2, 'y', NULL)")
    with no_jobs(database):
        assert database.sql("UPDATE doubled SET b = b || a WHERE a + 1 = 2").tag == "UPDATE 2"
        assert database.sql("DELETE FROM doubled WHERE a + 1 = 3").tag == "DELETE 1"
    assert rows(database, "SELECT a, b, l FROM doubled") == [(1, "x1", [1])] * 2
    database.sql("DROP TABLE doubled")


def test_a_key_of_a_large_table_is_looked_up(accounts: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its other rows are not read; without a key they are left to Spark's tasks."""
    for module in (dml, kernel_queries):
        monkeypatch.setattr(module, "ROWS_AT_MOST", 2)
    with no_jobs(accounts):
        assert accounts.sql("UPDATE accounts SET v = v / 2 WHERE id = 2 AND v / 2 > 0").tag == "UPDATE 1"
        assert accounts.sql("DELETE FROM accounts WHERE id = 7 AND v / 2 > 0").tag == "DELETE 0"
    large = accounts.sql("UPDATE accounts SET v = v / 2 WHERE kind = 'b'")
    assert large.tag == "UPDATE 1"
    assert rows(accounts, "SELECT v FROM accounts WHERE id = 2") == [(4.0,)]


# ---- the same rows as by Spark

COLUMNS = {
    "id": "int", "a": "int", "b": "bigint", "d": "numeric(10,2)", "f": "double", "p": "boolean", "s": "text",
    "u": "text", "t": "timestamp", "z": "timestamptz", "c": "date",
}  # fmt: skip
FORMS = {
    "int": ["a", "id", "length({text})", "a % 7", "{int} + {int}", "a - {int}", "a * 3", "coalesce(a, {int})", "-a",
            "CASE WHEN {boolean} THEN {int} ELSE {int} END", "extract(year from c)::int", "7", "NULL"],
    "bigint": ["b", "{int}", "b + {int}", "b - b", "nullif(b, {int})", "b % 5"],
    "numeric(10,2)": ["d", "d + 1.25", "{int}", "CASE WHEN {boolean} THEN d END", "{double}"],
    "double": ["f", "f * 2 + {int}", "{int} / 4.0::double", "f / 3::double", "b",
               "CASE WHEN {boolean} THEN f ELSE 0.5 END"],
    "boolean": ["p", "a > {int}", "s = {text}", "{boolean} AND {boolean}", "{boolean} OR {boolean}", "NOT {boolean}",
                "d >= 0.5", "a IN (1, 2, 3)", "s LIKE 'a%'", "f IS NULL", "f < 0.6::double", "t < z::timestamp",
                "b BETWEEN 0 AND 3", "s IS DISTINCT FROM u", "c = DATE '2024-02-29'"],
    "text": ["s", "u", "lower({text})", "upper(s)", "s || {text}", "substring({text}, 2, 3)", "a::text", "'it''s'",
             "replace(s, 'a', 'bb')", "to_char(t, 'YYYY-MM-DD')", "split_part(s, '/', 2)", "concat(s, u)"],
    "timestamp": ["t", "t + INTERVAL '1' DAY", "date_trunc('hour', t)", "c", "TIMESTAMP '2024-02-29 12:00:00'"],
    "timestamptz": ["z", "z - INTERVAL '90' SECOND", "t"],
    "date": ["c", "t::date", "DATE '1999-12-31'"],
}  # fmt: skip
"""Expressions by type, some of which are cast as they are assigned."""
_VALUES = {
    "int": ["0", "1", "-5", "3", "100"], "bigint": ["0", "2", "-3", "1000000"], "double": ["0.5", "-8", "1e10", "0"],
    "numeric(10,2)": ["0.5", "-1.25", "99.99"], "boolean": ["true", "false"], "date": ["'2024-02-29'", "'1970-01-01'"],
    "text": ["''", "'a'", "'apple'", "'a/b'", "'A%'"],
    "timestamp": ["'2024-02-28 23:59:59.5'", "'1969-12-31 00:00:00'"],
    "timestamptz": ["'2024-02-28 23:59:59.5+00'", "'1969-12-31 00:00:00+00'"],
}  # fmt: skip


def expression(draw: random.Random, kind: str, depth: int = 2) -> str:
    forms = FORMS[kind]
    text, *places = draw.choice(forms if depth else [f for f in forms if "{" not in f]).split("{")
    for place in places:
        name, rest = place.split("}", 1)
        text += f"({expression(draw, name, depth - 1)}){rest}"
    return text


def statement(draw: random.Random, table: str) -> str:
    where = "" if draw.random() < 0.1 else f" WHERE {expression(draw, 'boolean')}"
    where += f" AND id = {draw.randint(0, 9)}" if where and draw.random() < 0.25 else ""
    if draw.random() < 0.2:
        return f"DELETE FROM {table}{where}"
    columns = draw.sample([c for c in COLUMNS if c != "id"], 3)
    return f"UPDATE {table} SET {', '.join(f'{c} = {expression(draw, COLUMNS[c])}' for c in columns)}{where}"


def both_ways(session: Session, text: str, monkeypatch: pytest.MonkeyPatch) -> list[list[str] | None]:
    """The rows that a statement changes, old and new values: by kernels, and by Spark; None where these refuse.

    Nothing is written.
    """
    parsed = parse_one(text)
    assert isinstance(parsed, (st.Update, st.Delete))
    found: list[list[str] | None] = []

    class Done(Exception):
        pass

    def affected(
        context: Context, transaction: Transaction, record: Any, wanted: kernel_queries.AssignedQuery, _: Any
    ) -> Any:
        own = kernel_queries.rows_by_kernels(context, wanted)
        found.append(None if own is None else _sorted(own))
        try:
            found.append(_sorted(compute(context, wanted.bound, wanted.wrap)))
        except DataError:  # such as an overflow
            found.append(None)
        raise Done

    with monkeypatch.context() as patch:
        patch.setattr(dml, "_affected", affected)
        patch.setattr(dml, "plan_rows", lambda *_: None)
        with pytest.raises(Done):
            (dml.update if isinstance(parsed, st.Update) else dml.delete)(session.context, parsed)  # type: ignore[arg-type]
    return found


def _sorted(table: Any) -> list[str]:
    return sorted(map(repr, zip(*(column.to_pylist() for column in table.columns))))


def test_the_same_rows_as_by_spark(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    session, known, count = database.session(), 0, 0
    for seed in range(SEEDS):
        draw = random.Random(seed)
        table, keyed = f"random{seed}", seed % 2 == 0
        columns = ", ".join(f"{n} {t}{' PRIMARY KEY' if keyed and n == 'id' else ''}" for n, t in COLUMNS.items())
        database.sql(f"CREATE TABLE {table} ({columns})")
        values = ", ".join(
            "(" + ", ".join([str(i if keyed else i // 2)] + [
                "NULL" if draw.random() < 0.2 else draw.choice(_VALUES[t]) for n, t in COLUMNS.items() if n != "id"
            ]) + ")" for i in range(40)
        )  # fmt: skip
        database.sql(f"INSERT INTO {table} VALUES {values}")
        for _ in range(STATEMENTS):
            text = statement(draw, table)
            own, spark = both_ways(session, text, monkeypatch)
            assert own is None or own == spark, text
            known, count = known + (own is not None), count + 1
        database.sql(f"DROP TABLE {table}")
    assert known > count // 2
