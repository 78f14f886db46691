"""Functions that users create: in queries and views, kept over restarts, refused where they do not fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import pandas_udf

from headrace.catalog.contents import MaterializedViewContent
from headrace.catalog.edits import Put
from headrace.config import Settings
from headrace.errors import HeadraceError, NotSupported
from headrace.session.database import Database, connect

SETTINGS = Settings(run_fsync=False, catalog_commit_sync=False, barrier_interval_ms=200)

FUNCTIONS = """
CREATE FUNCTION gcd(a int, b int) RETURNS int LANGUAGE python AS $$
def gcd(a, b):
    while b != 0:
        a, b = b, a % b
    return a
$$;
CREATE FUNCTION half(x numeric(10,2)) RETURNS numeric(10,2) LANGUAGE python STRICT AS 'return x / 2';
CREATE FUNCTION shout(s text) RETURNS text LANGUAGE python AS $$
def shout(s):
    return s.str.upper() + "!"
$$ WITH (vectorized = 'pandas');
CREATE FUNCTION parts(s text) RETURNS TABLE (n int, word text) LANGUAGE python AS $$
    for i, word in enumerate((s or "").split()):
        yield i + 1, word
$$;
CREATE FUNCTION upto(n int) RETURNS TABLE (x int) LANGUAGE python AS 'yield from range(n)';
CREATE AGGREGATE weighted(v int, w int) RETURNS double precision LANGUAGE python AS $$
def create_state():
    return 0, 0

def accumulate(state, v, w):
    return state[0] + v * w, state[1] + w

def finish(state):
    return state[0] / state[1] if state[1] else None
$$;
CREATE AGGREGATE mid(v int) RETURNS double precision LANGUAGE python AS $$ return v.median() $$
WITH (vectorized = 'pandas');
"""


@pytest.fixture(scope="module")
def db(spark: SparkSession) -> Iterator[Database]:
    with connect(spark=spark, settings=SETTINGS) as found:
        found.sql(FUNCTIONS)
        found.sql("CREATE TABLE t (id int PRIMARY KEY, k int, v int, s text)")
        found.sql("INSERT INTO t VALUES (1, 1, 4, 'a b'), (2, 1, 6, NULL), (3, 2, 9, 'c')")
        yield found


def test_scalar_functions_in_queries(db: Database) -> None:
    assert db.sql("SELECT gcd(12, 18) AS g, gcd(12, 18) / 4 AS q, half(3.5) AS h, half(NULL) AS n").rows() == [
        (6, 1, pytest.approx(1.75), None)
    ]
    assert db.sql("SELECT shout(s) AS s FROM t WHERE gcd(v, 6) = 2 ORDER BY id").rows() == [("A B!",)]


def test_table_functions_and_aggregates_in_queries(db: Database) -> None:
    found = db.sql("SELECT t.id, p.n, p.word FROM t, LATERAL parts(t.s) AS p ORDER BY 1, 2").rows()
    assert found == [(1, 1, "a"), (1, 2, "b"), (3, 1, "c")]
    assert db.sql("SELECT x FROM upto(3) ORDER BY x").rows() == [(0,), (1,), (2,)]
    found = db.sql(
        "SELECT k, weighted(v, id) AS w, weighted(v, id) FILTER (WHERE v > 4) AS f, mid(v) AS m, count(*) AS n "
        "FROM t GROUP BY k ORDER BY k"
    ).rows()
    assert found == [(1, pytest.approx(16 / 3), 6.0, 5.0, 2), (2, 9.0, 9.0, 9.0, 1)]


def test_functions_in_a_view_follow_changes(db: Database) -> None:
    db.sql("CREATE TABLE u (id int PRIMARY KEY, k int, v int, s text)")
    db.sql(
        "CREATE MATERIALIZED VIEW mu AS SELECT u.k, gcd(u.k, 4) AS g, p.word, weighted(u.v, u.id) AS w, count(*) AS n "
        "FROM u, LATERAL parts(u.s) AS p GROUP BY u.k, p.word"
    )
    try:
        db.sql("INSERT INTO u VALUES (1, 2, 3, 'x y'), (2, 2, 5, 'x')")
        db.flush()
        assert db.sql("SELECT * FROM mu ORDER BY word").rows() == [
            (2, 2, "x", pytest.approx(13 / 3), 2), (2, 2, "y", 3.0, 1),
        ]  # fmt: skip
        db.sql("DELETE FROM u WHERE id = 1; UPDATE u SET s = 'z' WHERE id = 2")
        db.flush()
        assert db.sql("SELECT * FROM mu").rows() == [(2, 2, "z", 5.0, 1)]
        with pytest.raises(HeadraceError, match="cannot drop function gcd") as raised:
            db.sql("DROP FUNCTION gcd")
        assert raised.value.sqlstate == "2BP01"
        with pytest.raises(HeadraceError, match="cannot replace function gcd") as raised:
            db.sql("CREATE OR REPLACE FUNCTION gcd(a int, b int) RETURNS int LANGUAGE python AS 'return 1'")
        assert raised.value.sqlstate == "2BP01"
    finally:
        db.sql("DROP TABLE u CASCADE")


def test_show_and_describe(db: Database) -> None:
    shown = {row[0]: row[1:] for row in db.sql("SHOW FUNCTIONS").rows()}
    assert shown["gcd"] == ("a integer, b integer", "integer", "python", None)
    assert shown["parts"][1] == "TABLE (n integer, word character varying)"
    described = dict(db.sql("DESCRIBE FUNCTION weighted").rows())
    assert described["Kind"] == "aggregate function"
    assert "def accumulate" in described["Body"]
    assert "LANGUAGE python" in db.sql("SHOW CREATE FUNCTION gcd").rows()[0][1]


@pytest.mark.parametrize(
    ("text", "state", "message"),
    [
        ("FUNCTION f(a int) RETURNS int LANGUAGE python AS $$\ndef f(a):\n    return (a\n$$", "42601", "at line 2"),
        ("FUNCTION f(a int) RETURNS int LANGUAGE python AS $$\ndef g(a):\n    return a\n$$", "42P13", "no function f"),
        ("FUNCTION f(a int, b int) RETURNS int LANGUAGE python AS $$\ndef f(a):\n  return a\n$$", "42P13", "line 1"),
        ("FUNCTION f(a int) RETURNS text LANGUAGE python AS $$\ndef f(a) -> int: return a\n$$", "42P13", "annotated"),
        ("FUNCTION f(a int) RETURNS int LANGUAGE python AS $$\nimport nosuchthing\ndef f(a): return a\n$$", "42P13",
         "ModuleNotFoundError.*at line 1"),
        ("FUNCTION f(a nosuchtype) RETURNS int LANGUAGE python AS 'return 1'", "42704", "nosuchtype"),
        ("FUNCTION f(int) RETURNS int LANGUAGE python AS 'return 1'", "42P13", "names"),
        ("FUNCTION f(a int) RETURNS int LANGUAGE javascript AS 'return 1'", "0A000", "javascript"),
        ("FUNCTION f(a int) RETURNS int LANGUAGE python AS f USING LINK 'http://x'", "0A000", "outside the database"),
        ("FUNCTION f(a int) RETURNS int LANGUAGE python AS 'return 1' WITH (color = 'red')", "22023", "color"),
        ("FUNCTION sum(a int) RETURNS int LANGUAGE python AS 'return 1'", "42723", "built in"),
        ("FUNCTION gcd(a int) RETURNS int LANGUAGE python AS 'return 1'", "42723", "already exists"),
        ("FUNCTION t(a int) RETURNS int LANGUAGE python AS 'return 1'", "42723", "table"),
        ("AGGREGATE f(a int) RETURNS int LANGUAGE python AS $$\ndef create_state(): return 0\n$$", "42P13",
         "accumulate"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_at_create(db: Database, text: str, state: str, message: str) -> None:
    with pytest.raises(HeadraceError, match=message) as raised:
        db.sql(f"CREATE {text}")
    assert raised.value.sqlstate == state


@pytest.mark.parametrize(
    ("query", "state", "message"),
    [
        ("SELECT gcd(1) AS x", "42883", "with 1 arguments"),
        ("SELECT upto(3) AS x", "42809", "table function"),
        ("SELECT * FROM gcd(1, 2)", "42809", "no table function"),
        ("SELECT nosuch(1) AS x", "42883", "nosuch"),
        ("DROP FUNCTION nosuch", "42883", "nosuch"),
        ("DESCRIBE FUNCTION nosuch", "42883", "nosuch"),
    ],
)
def test_wrong_calls(db: Database, query: str, state: str, message: str) -> None:
    with pytest.raises(HeadraceError, match=message) as raised:
        db.sql(query)
    assert raised.value.sqlstate == state


def test_volatile_functions_are_refused_in_views(db: Database) -> None:
    db.sql("CREATE OR REPLACE FUNCTION dice(n int) RETURNS int LANGUAGE python VOLATILE AS 'return 4'")
    assert db.sql("SELECT dice(6) AS d").rows() == [(4,)]
    with pytest.raises(NotSupported, match=r"dice.*not declared deterministic"):
        db.sql("CREATE MATERIALIZED VIEW md AS SELECT dice(v) AS d FROM t")
    db.sql("DROP FUNCTION IF EXISTS dice(int)")


def test_a_failing_function_fails_its_own_view_only(db: Database) -> None:
    """PC: the traceback of the user's code is in the error of the view; the view goes on when its input is mended."""
    db.sql(
        """
        CREATE FUNCTION picky(x int) RETURNS int LANGUAGE python AS $$
            def check(y):
                if y < 0:
                    raise ValueError(f"{y} is negative")
            check(x)
            return x + 1
        $$;
        CREATE TABLE w (id int PRIMARY KEY, x int);
        INSERT INTO w VALUES (1, 1);
        CREATE MATERIALIZED VIEW sick AS SELECT id, picky(x) AS y FROM w;
        CREATE MATERIALIZED VIEW healthy AS SELECT count(*) AS n FROM w;
        INSERT INTO w VALUES (2, -5);
        """
    )
    with pytest.raises(HeadraceError, match="ValueError: -5 is negative") as raised:
        db.flush()
    assert raised.value.sqlstate == "38000"
    detail = raised.value.detail or ""
    assert 'File "<function picky>", line 3, in check' in detail
    assert 'raise ValueError(f"{y} is negative")' in detail
    assert "pyspark" not in detail and "headrace" not in detail
    assert db.sql("SELECT n FROM healthy").rows() == [(2,)]
    assert db.sql("SELECT * FROM sick").rows() == [(1, 2)]
    jobs = {row[1]: row for row in db.sql("SHOW JOBS").rows()}
    assert jobs["sick"][2] == "failing" and "<function picky>" in jobs["sick"][5]
    assert jobs["healthy"][4] is None
    events = db.sql("SELECT detail FROM headrace_catalog.events WHERE kind = 'job_failed'").rows()
    assert any("in check" in row[0] for row in events)
    with pytest.raises(HeadraceError, match="-5 is negative") as raised:
        db.sql("SELECT picky(x) AS y FROM w")
    assert raised.value.sqlstate == "38000" and "in check" in (raised.value.detail or "")
    db.sql("UPDATE w SET x = 5 WHERE id = 2")
    db.flush()
    assert db.sql("SELECT * FROM sick ORDER BY id").rows() == [(1, 2), (2, 6)]
    db.sql("DROP TABLE w CASCADE")


def test_python_objects_as_functions(db: Database) -> None:
    @pandas_udf("bigint")
    def twice(x: pd.Series) -> pd.Series:
        return x * 2

    def letters(s: str) -> Iterator[tuple[str]]:
        for letter in s or "":
            yield (letter,)

    db.create_function("twice", twice)
    db.create_function("letters", letters, "letter text")
    assert db.sql("SELECT twice(v) AS d FROM t ORDER BY id").rows() == [(8,), (12,), (18,)]
    assert db.sql("SELECT letter FROM letters('ab') ORDER BY 1").rows() == [("a",), ("b",)]
    with pytest.raises(HeadraceError, match="type of its result"):
        db.create_function("untyped", lambda x: x)
    with pytest.raises(HeadraceError, match="columns of its rows"):
        db.create_function("untyped", letters, "text")


def test_functions_and_dataframe_views_survive_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    @pandas_udf("bigint")
    def thrice(x: pd.Series) -> pd.Series:
        return x * 3

    def longest(group: pd.DataFrame) -> pd.DataFrame:
        return group.sort_values(["v", "id"]).tail(1)[["k", "v"]]

    with connect(tmp_path / "db", spark=spark, settings=SETTINGS) as db:
        db.sql("CREATE FUNCTION inc(x int) RETURNS int LANGUAGE python AS 'return x + 1'")
        db.create_function("less", lambda x: x - 1, "int", args=["int"])
        db.sql("CREATE TABLE t (id int PRIMARY KEY, k int, v int); INSERT INTO t VALUES (1, 1, 5), (2, 1, 7)")
        db.sql("CREATE MATERIALIZED VIEW m AS SELECT id, inc(v) AS i, less(v) AS l FROM t")
        db.create_materialized_view("d", db.relation("t").select("id", thrice("v").alias("x")))
        db.create_materialized_view("g", db.relation("t").groupBy("k").applyInPandas(longest, "k int, v int"))
        db.create_materialized_view("e", db.relation("t").selectExpr("inc(v) AS i"))
        with pytest.raises(HeadraceError, match="other objects depend on it"):
            db.sql("DROP FUNCTION inc")
    with connect(tmp_path / "db", spark=spark, settings=SETTINGS) as db:
        assert {row[2] for row in db.sql("SHOW JOBS").rows()} == {"running"}
        db.sql("INSERT INTO t VALUES (3, 2, 1); DELETE FROM t WHERE id = 2")
        db.flush()
        assert db.sql("SELECT * FROM m ORDER BY id").rows() == [(1, 6, 4), (3, 2, 0)]
        assert db.sql("SELECT * FROM d ORDER BY id").rows() == [(1, 15), (3, 3)]
        assert db.sql("SELECT * FROM g ORDER BY k").rows() == [(1, 5), (2, 1)]
        assert db.sql("SELECT * FROM e ORDER BY i").rows() == [(2,), (6,)]
        assert db.sql("SELECT inc(less(7)) AS x").rows() == [(7,)]
        db.sql("DROP FUNCTION less CASCADE")
        record = next(o for o in db.catalog.state.objects.values() if o.name == "g")
        broken = replace(record, content=replace(record.content_as(MaterializedViewContent), plan="rO0ABXQ="))
        db.catalog.transact([Put(broken)])
        assert "m" not in {row[1] for row in db.sql("SHOW JOBS").rows()}
        assert [row[0] for row in db.sql("SHOW FUNCTIONS").rows()] == ["inc"]
    with connect(tmp_path / "db", spark=spark, settings=SETTINGS) as db:
        jobs = {row[1]: row for row in db.sql("SHOW JOBS").rows()}
        assert jobs["g"][2] == "quarantined" and "stored plan of the DataFrame cannot be read" in jobs["g"][4]
        assert jobs["d"][2] == "running"
        assert db.sql("SELECT * FROM g ORDER BY k").rows() == [(1, 5), (2, 1)]
