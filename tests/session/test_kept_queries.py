"""Plans of queries on Spark that are kept: they answer as fresh ones do, and are kept only where they may be."""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headrace.errors import HeadraceError, InsufficientPrivilege, QueryCanceled, UndefinedTable
from headrace.session.database import Database
from headrace.session.execution.select import compute
from headrace.session.kept_queries import KeptQueries
from headrace.session.names import BoundQuery, names_of
from headrace.session.session import Session
from headrace.sql.parser import parse_query
from support import WAIT_S, eventually

Row = tuple[Any, ...]
JOINED = "SELECT g.name, count(*) AS n, sum(f.v) AS s FROM f JOIN g ON f.k = g.k GROUP BY g.name"


def run(session: Session, sql: str) -> list[Row]:
    """The rows of a text's last statement, in order."""
    return [sorted(result.rows(), key=repr) for result in session.execute(sql)][-1]


def fresh(session: Session, sql: str) -> list[Row]:
    """The rows of a query, planned for this once."""
    bound = BoundQuery(parse_query(sql), names_of(session.context))
    table = compute(session.context, bound, lambda columns, text: text)
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True), key=repr)


@pytest.fixture
def kept(database: Database) -> KeptQueries:
    return database.instance.engine.kept


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    made = database.session()
    run(made, "CREATE TABLE f (id int PRIMARY KEY, k int, v int); CREATE TABLE g (k int PRIMARY KEY, name text)")
    run(made, "INSERT INTO f VALUES (1, 1, 10), (2, 1, 20), (3, 2, 30); INSERT INTO g VALUES (1, 'a'), (2, 'b')")
    yield made
    run(made, "ROLLBACK; RESET ALL; DROP TABLE IF EXISTS f CASCADE; DROP TABLE IF EXISTS g CASCADE")
    made.close()


def is_kept(kept: KeptQueries, ask: Callable[[], object]) -> bool:
    """Whether what is asked for the third time is answered by a plan that is kept."""
    ask(), ask()
    before = kept.found
    ask()
    return kept.found > before


TEMPLATES = (
    "SELECT g.name, count(*) AS n, sum(f.v) AS s FROM f JOIN g ON f.k = g.k WHERE f.v > {0} GROUP BY g.name",
    "SELECT f.id, g.name FROM f LEFT JOIN g ON f.k = g.k AND g.k <> {0} ORDER BY f.id DESC LIMIT 5",
    "SELECT id, row_number() OVER (PARTITION BY k ORDER BY v DESC, id) AS r FROM f WHERE id > {0}",
    "SELECT name FROM g WHERE k >= (SELECT max(k) - {0} FROM f) AND k IN (SELECT k FROM f WHERE v > {0})",
    "SELECT a.id, b.id AS other FROM f a JOIN f b ON a.k = b.k AND a.id < b.id + {0} WHERE a.v + b.v > {0}",
    "SELECT k FROM f WHERE v > {0} UNION SELECT k FROM g EXCEPT SELECT {0}",
    "WITH t AS (SELECT k, sum(v) AS s FROM f GROUP BY k) SELECT x.k, y.s FROM t x JOIN t y ON x.k = y.k + {0}",
    "SELECT f.id FROM f FULL JOIN g ON f.k = g.k WHERE NOT EXISTS (SELECT 1 FROM f h WHERE h.v = f.v + {0})",
)


def change(choice: random.Random) -> str:
    """A statement that changes one of the tables."""
    i, k, v = choice.randrange(12), choice.randrange(4), choice.randrange(40)
    return choice.choice((
        f"DELETE FROM f WHERE id = {i}; INSERT INTO f VALUES ({i}, {k}, {v})",
        f"DELETE FROM f WHERE id > 99; INSERT INTO f SELECT i, i % {k + 2}, i FROM generate_series(100, 140) AS s(i)",
        f"DELETE FROM f WHERE k = {k}", f"UPDATE f SET v = v + {v} WHERE id > {i}",
        f"DELETE FROM g WHERE k = {k}; INSERT INTO g VALUES ({k}, 'n{v}')",
        f"DELETE FROM g WHERE k = {k}",
    ))  # fmt: skip


@pytest.mark.timeout(600)
def test_answers_of_kept_plans_are_those_of_fresh_ones(session: Session, kept: KeptQueries) -> None:
    choice, before = random.Random(1), kept.found
    asked = [template.format(choice.randrange(3)) for template in TEMPLATES]
    for sql in (*asked, *asked):
        run(session, sql)
    for _ in range(4):
        run(session, change(choice))
        for sql in choice.sample(asked, 4):
            assert run(session, sql) == fresh(session, sql), sql
    assert kept.found == before + 16


def test_a_plan_is_kept_from_the_second_time_on(session: Session, kept: KeptQueries) -> None:
    run(session, "ALTER SYSTEM SET kept_spark_plans = 0")  # others' go
    run(session, "ALTER SYSTEM RESET kept_spark_plans")
    found = kept.found
    counts = []
    for _ in range(3):
        assert run(session, JOINED) == [("a", 2, 30), ("b", 1, 30)]
        counts.append((len(kept), kept.found - found))
    assert counts == [(0, 0), (1, 0), (1, 1)]
    run(session, "ALTER SYSTEM SET kept_spark_plans = 0")
    try:
        assert len(kept) == 0 and not is_kept(kept, lambda: run(session, JOINED))
    finally:
        run(session, "ALTER SYSTEM RESET kept_spark_plans")


def test_parameters_are_those_of_each_execution(session: Session, kept: KeptQueries) -> None:
    sql = "SELECT g.name, f.v, $2 AS said FROM f JOIN g ON f.k = g.k WHERE f.v >= $1"
    prepared = session.prepare(sql, ["int", "string"])
    for _ in range(3):
        assert sorted(prepared.execute(["20", "x"]).rows()) == [("a", 20, "x"), ("b", 30, "x")]
        assert sorted(prepared.execute(["30", "x"]).rows()) == [("b", 30, "x")]
        assert sorted(prepared.execute(["30", None]).rows()) == [("b", 30, None)]
    assert is_kept(kept, lambda: prepared.execute(["30", None]).rows())
    other = session.prepare(sql, ["int", "string"])
    before = kept.found
    assert other.execute(["20", "x"]).rows() and kept.found == before + 1


@pytest.mark.timeout(280)
def test_two_snapshots_at_once(database: Database, session: Session, kept: KeptQueries) -> None:
    old, wrong = database.session(), []
    run(old, "BEGIN ISOLATION LEVEL REPEATABLE READ")
    assert is_kept(kept, lambda: run(old, JOINED))
    run(session, "UPDATE f SET v = 1; DELETE FROM g WHERE k = 2")
    assert is_kept(kept, lambda: run(session, JOINED))
    before, gate = kept.found, threading.Barrier(2)

    def ask(who: Session, expected: list[Row]) -> None:
        for _ in range(5):
            gate.wait(WAIT_S)
            found = run(who, JOINED)
            if found != expected:
                wrong.append(found)

    threads = [
        threading.Thread(target=ask, args=given)
        for given in ((old, [("a", 2, 30), ("b", 1, 30)]), (session, [("a", 2, 2)]))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    run(old, "ROLLBACK")
    old.close()
    assert wrong == [] and kept.found == before + 10


def test_a_transaction_sees_what_it_has_written(session: Session, kept: KeptQueries) -> None:
    assert is_kept(kept, lambda: run(session, JOINED))
    found = kept.found
    run(session, "BEGIN; INSERT INTO f VALUES (9, 2, 5)")
    assert run(session, JOINED) == [("a", 2, 30), ("b", 2, 35)]
    run(session, "ROLLBACK")
    assert run(session, JOINED) == [("a", 2, 30), ("b", 1, 30)]
    assert kept.found == found + 2


def test_a_result_that_is_half_read_is_not_disturbed(database: Database, session: Session, kept: KeptQueries) -> None:
    run(session, "INSERT INTO f SELECT i, 1, i FROM generate_series(100, 40100) AS s(i)")
    sql = "SELECT f.id, g.name FROM f JOIN g ON f.k = g.k"
    assert is_kept(kept, lambda: run(session, sql))
    (result,) = session.execute(sql)
    first = next(result.batches)
    run(session, "DELETE FROM f WHERE id > 5")
    assert run(session, JOINED) == [("a", 2, 30), ("b", 1, 30)]
    rest = list(result.batches)
    assert rest and first.num_rows + sum(batch.num_rows for batch in rest) == 40_004


SLOW = """
CREATE FUNCTION held_up(x int) RETURNS int LANGUAGE python AS $$
import os, time
def held_up(x):
    while os.path.exists({gate!r}):
        open({told!r}, "w").close()
        time.sleep(0.01)
    return x
$$
"""


@pytest.mark.timeout(280)
def test_a_kept_plan_is_cancelled_and_goes_on(session: Session, kept: KeptQueries, tmp_path: Path) -> None:
    gate, told = tmp_path / "gate", tmp_path / "told"
    run(session, SLOW.format(gate=str(gate), told=str(told)))
    sql = "SELECT held_up(f.v), g.name FROM f JOIN g ON f.k = g.k"
    assert is_kept(kept, lambda: run(session, sql))
    found = kept.found

    def cancel() -> None:
        eventually(told.exists, "the query to run")
        session.cancel()

    try:
        gate.touch()
        canceller = threading.Thread(target=cancel)
        canceller.start()
        session.begin_request()
        with pytest.raises(QueryCanceled, match="user request"):
            run(session, sql)
        canceller.join(WAIT_S)
        session.begin_request()
        run(session, "SET statement_timeout = '2s'")
        with pytest.raises(QueryCanceled, match="timeout"):
            run(session, sql)
    finally:
        gate.unlink()
        session.begin_request()
        run(session, "RESET statement_timeout")
    assert run(session, sql) == [(10, "a"), (20, "a"), (30, "b")] and kept.found == found + 3
    run(session, "DROP FUNCTION held_up")


def test_what_is_altered_or_dropped_in_between(session: Session, kept: KeptQueries) -> None:
    sql = "SELECT * FROM f JOIN g ON f.k = g.k WHERE f.id = 3"
    assert is_kept(kept, lambda: run(session, sql))
    run(session, "DROP TABLE g")
    with pytest.raises(UndefinedTable):
        run(session, sql)
    run(session, "CREATE TABLE g (k bigint PRIMARY KEY, name text)")
    assert run(session, sql) == []
    run(session, "DROP TABLE g; CREATE TABLE g (k int, more int, name text); INSERT INTO g VALUES (2, 7, 'c')")
    assert run(session, sql) == [(3, 2, 30, 2, 7, "c")]
    assert is_kept(kept, lambda: run(session, sql))
    run(session, "ALTER TABLE g ADD PRIMARY KEY (k)")
    run(session, "UPDATE g SET more = 8")
    assert run(session, sql) == [(3, 2, 30, 2, 8, "c")]


def test_views_and_functions_mean_what_they_mean_now(session: Session, kept: KeptQueries) -> None:
    define = "CREATE OR REPLACE FUNCTION about(x int) RETURNS int LANGUAGE python AS 'def about(x): return x + {0}'"
    run(session, define.format(1))
    run(session, "CREATE VIEW joined AS SELECT about(f.v) AS v, g.name FROM f JOIN g ON f.k = g.k WHERE f.v > 10")
    assert is_kept(kept, lambda: run(session, "SELECT * FROM joined"))
    run(session, "DROP VIEW joined")
    run(session, define.format(2))
    run(session, "CREATE VIEW joined AS SELECT about(f.v) AS v, g.name FROM f JOIN g ON f.k = g.k WHERE f.v > 20")
    assert run(session, "SELECT * FROM joined") == [(32, "b")]
    run(session, "DROP VIEW joined; DROP FUNCTION about")


def test_a_kept_plan_is_no_way_around_rights(database: Database, session: Session, kept: KeptQueries) -> None:
    run(session, "CREATE ROLE kept_reader; GRANT SELECT ON f, g TO kept_reader")
    reader = database.session(user="kept_reader")
    assert is_kept(kept, lambda: run(reader, JOINED)) and is_kept(kept, lambda: run(session, JOINED))
    run(session, "REVOKE SELECT ON g FROM kept_reader")
    with pytest.raises(InsufficientPrivilege):
        run(reader, JOINED)
    who = "SELECT current_user AS u, count(*) AS n FROM f JOIN g ON f.k = g.k"
    run(session, "GRANT SELECT ON g TO kept_reader")
    for _ in range(3):
        assert run(session, who)[0][0] != "kept_reader" and run(reader, who) == [("kept_reader", 3)]
    reader.close()
    run(session, "REVOKE ALL ON f, g FROM kept_reader; DROP ROLE kept_reader")


def test_settings_are_those_of_each_session(session: Session, kept: KeptQueries) -> None:
    sql = "SELECT '2024-07-01 12:00+00'::timestamptz::text AS t, max(g.name) AS n FROM f JOIN g ON f.k = g.k"
    assert is_kept(kept, lambda: run(session, sql))
    before = run(session, sql)
    run(session, "SET TimeZone = 'Asia/Tokyo'")
    assert run(session, sql) == fresh(session, sql) != before
    run(session, "CREATE SCHEMA aside; CREATE TABLE aside.f (id int PRIMARY KEY, k int, v int)")
    run(session, "SET search_path = aside, public")
    assert run(session, JOINED) == []
    run(session, "RESET search_path; DROP TABLE aside.f; DROP SCHEMA aside")


@pytest.mark.parametrize("what", [
    "now()::text", "clock_timestamp()::text", "current_date::text", "random()", "gen_random_uuid()::text",
    "(SELECT random() + count(*) FROM f)", "(SELECT max(v) FROM f WHERE now() > '2020-01-01 00:00+00')",
])  # fmt: skip
def test_what_is_good_for_one_run_is_not_kept(session: Session, kept: KeptQueries, what: str) -> None:
    plans = len(kept)
    assert not is_kept(kept, lambda: run(session, f"SELECT g.name, {what} AS x FROM f JOIN g ON f.k = g.k"))
    assert len(kept) == plans


def test_functions_of_users_are_kept_unless_they_are_volatile(session: Session, kept: KeptQueries) -> None:
    sql = "SELECT g.name, plus(f.v) AS x FROM f JOIN g ON f.k = g.k"
    define = "CREATE OR REPLACE FUNCTION plus(x int) RETURNS int LANGUAGE python {} AS 'def plus(x): return x + 1'"
    for volatility, expected in (("VOLATILE", False), ("IMMUTABLE", True)):
        run(session, define.format(volatility))
        assert is_kept(kept, lambda: run(session, sql)) == expected
    run(session, "DROP FUNCTION plus")


def test_earlier_snapshots_are_read_by_the_same_plan(session: Session, kept: KeptQueries) -> None:
    epoch = session.context.last_write
    assert is_kept(kept, lambda: run(session, JOINED))
    run(session, "UPDATE f SET v = 1")
    before = kept.found
    assert run(session, JOINED) == [("a", 2, 2), ("b", 1, 1)]
    run(session, f"SET query_epoch = {epoch}")
    assert run(session, JOINED) == [("a", 2, 30), ("b", 1, 30)]
    run(session, "RESET query_epoch")
    assert run(session, JOINED) == [("a", 2, 2), ("b", 1, 1)] and kept.found == before + 3


def test_random_values_are_new_each_time(session: Session) -> None:
    sql = "SELECT random() AS x FROM f JOIN g ON f.k = g.k"
    assert len({row for _ in range(4) for row in run(session, sql)}) == 12


def test_what_is_not_only_of_stored_rows_is_not_kept(session: Session, kept: KeptQueries) -> None:
    sql = "SELECT t.name, count(*) AS n FROM rw_catalog.rw_tables t JOIN g ON g.name <> t.name GROUP BY t.name"
    assert not is_kept(kept, lambda: run(session, sql))


def test_a_plan_fits_as_many_rows_as_there_are(session: Session, kept: KeptQueries) -> None:
    """A relation that grows is read by other slices: then it is planned anew."""
    assert is_kept(kept, lambda: run(session, JOINED))
    run(session, "INSERT INTO f SELECT i, 1, 1 FROM generate_series(100, 30099) AS s(i)")
    before = kept.found
    assert run(session, JOINED) == [("a", 30_002, 30_030), ("b", 1, 30)] and kept.found == before
    assert is_kept(kept, lambda: run(session, JOINED))


def test_errors_of_rows_come_from_kept_plans_too(session: Session, kept: KeptQueries) -> None:
    sql = "SELECT g.name, 10 / (f.v - 10) AS q FROM f JOIN g ON f.k = g.k"
    run(session, "UPDATE f SET v = 15")
    assert is_kept(kept, lambda: run(session, sql))
    before = kept.found
    run(session, "UPDATE f SET v = 10 WHERE id = 2")
    for _ in range(2):
        with pytest.raises(HeadraceError) as failed:
            run(session, sql)
        assert failed.value.sqlstate == "22012"
    run(session, "UPDATE f SET v = 20 WHERE id = 2")
    assert ("a", 1) in run(session, sql) and kept.found == before + 3


@pytest.mark.timeout(280)
def test_what_is_not_kept_any_more_is_freed(session: Session, kept: KeptQueries, spark: SparkSession) -> None:
    run(session, "ALTER SYSTEM SET kept_spark_plans = 1")
    try:
        assert is_kept(kept, lambda: run(session, JOINED))
        jvm: Any = spark._jvm
        ((_, query),) = kept._kept._values.items()
        reference = jvm.java.lang.ref.WeakReference(query.plan._plan)
        del query
        assert is_kept(kept, lambda: run(session, "SELECT max(g.name) AS n FROM f JOIN g ON f.k = g.k"))
        assert len(kept) == 1

        def is_gone() -> bool:
            gc.collect()
            jvm.java.lang.System.gc()
            return bool(reference.refersTo(None))

        eventually(is_gone, "Java to collect the plan")
    finally:
        run(session, "ALTER SYSTEM RESET kept_spark_plans")
