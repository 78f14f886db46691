"""`on_error` of a view, through SQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headrace.config import Settings
from headrace.errors import HeadraceError, InvalidParameter, NotSupported
from headrace.session.database import Database, connect


@pytest.fixture(scope="module")
def db(database: Database) -> Iterator[Database]:
    database.sql("CREATE TABLE t (k int PRIMARY KEY, x int, s text)")
    database.sql("INSERT INTO t VALUES (1, 2, '1'), (2, 5, '2')")
    yield database


def _view(db: Database, name: str, policy: str, query: str = "SELECT k, 10 / x AS d FROM t") -> None:
    db.sql(f"CREATE MATERIALIZED VIEW {name} WITH (on_error = '{policy}') AS {query}")


def test_a_view_goes_on_past_a_row(db: Database) -> None:
    """It follows its input while the row is there, says what failed, and is exact when the row has gone."""
    for policy in ("null", "skip"):
        _view(db, f"v_{policy}", policy)
    db.sql("INSERT INTO t VALUES (3, 0, 'x')")
    db.sql("INSERT INTO t VALUES (4, 10, '4')")
    db.sql("FLUSH")
    rows = [(1, 5), (2, 2), (4, 1)]
    assert sorted(db.sql("SELECT k, d FROM v_skip").rows()) == rows
    assert sorted(db.sql("SELECT k, d FROM v_null").rows()) == [*rows[:2], (3, None), rows[2]]
    jobs = "SELECT name, status, row_errors, error FROM headrace_catalog.jobs WHERE name LIKE 'v_%' ORDER BY name"
    assert db.sql(jobs).rows() == [("v_null", "running", 1, None), ("v_skip", "running", 1, None)]
    shown = db.sql("SHOW JOBS")
    at = [c.name for c in shown.columns].index("Row errors")
    assert {row[1]: row[at] for row in shown.rows()} == {"v_null": 1, "v_skip": 1}
    errors = db.sql(
        "SELECT name, expression, sqlstate, sample, epoch > 0, at IS NOT NULL FROM headrace_catalog.row_errors "
        "WHERE message LIKE '%ivision by zero%' ORDER BY name"
    ).rows()
    assert [(e[0], e[2], e[4], e[5]) for e in errors] == [(n, "22012", True, True) for n in ("v_null", "v_skip")]
    assert all("x" in e[1] and '"k": "3"' in e[3] and '"x": "0"' in e[3] for e in errors), errors
    events = db.sql("SELECT message FROM headrace_catalog.events WHERE kind = 'row_errors'").rows()
    assert any("v_skip" in m and "1 rows on which an expression failed" in m for (m,) in events), events
    db.sql("UPDATE t SET x = 1 WHERE k = 3")
    db.sql("FLUSH")
    whole = [(1, 5), (2, 2), (3, 10), (4, 1)]
    assert sorted(db.sql("SELECT k, d FROM v_skip").rows()) == whole == sorted(db.sql("SELECT k, d FROM v_null").rows())
    db.sql("DROP MATERIALIZED VIEW v_null, v_skip")
    assert not db.sql("SELECT * FROM headrace_catalog.row_errors").rows()


def test_it_is_settled_when_the_view_is_created(db: Database) -> None:
    """A change is refused with the way around it; saying the same again changes nothing."""
    _view(db, "settled", "null")
    for value in ("skip", "fail"):
        with pytest.raises(NotSupported, match="settled") as refused:
            db.sql(f"ALTER MATERIALIZED VIEW settled SET (on_error = '{value}')")
        assert "create another view" in (refused.value.hint or "")
    db.sql("ALTER MATERIALIZED VIEW settled SET (on_error = 'null')")
    with pytest.raises(InvalidParameter):
        db.sql("ALTER MATERIALIZED VIEW settled SET (on_error = 'ignore')")
    with pytest.raises(InvalidParameter):
        _view(db, "nonsense", "ignore")
    plan = "\n".join(r[0] for r in db.sql(
        "EXPLAIN CREATE MATERIALIZED VIEW e WITH (on_error = 'skip') AS SELECT 10 / x AS d FROM t").rows())  # fmt: skip
    assert "tryeval" in plan
    db.sql("DROP MATERIALIZED VIEW settled")


def test_what_is_not_covered_is_refused(db: Database) -> None:
    """Python functions, and joins that are jobs of their own."""
    db.sql("CREATE FUNCTION inverse(x int) RETURNS double precision LANGUAGE python AS 'return 1 / x'")
    with pytest.raises(NotSupported, match="Python"):
        _view(db, "python", "skip", "SELECT k, inverse(x) AS y FROM t")
    with pytest.raises(NotSupported, match="Python"):
        _view(db, "python", "null", "SELECT k FROM t WHERE x > 0 GROUP BY k HAVING inverse(k) > 0")
    db.sql("SET streaming_enable_unaligned_join = on")
    try:
        with pytest.raises(NotSupported, match="on_error"):
            _view(db, "apart", "null", "SELECT a.k FROM t a JOIN t b ON a.k = b.x")
    finally:
        db.sql("RESET streaming_enable_unaligned_join")
    db.sql("DROP FUNCTION inverse")


def test_a_sink_has_the_option_too(db: Database) -> None:
    """A sink counts rows that failed like a view."""
    db.sql("INSERT INTO t VALUES (9, 0, '9')")
    db.sql("CREATE SINK gone AS SELECT k, 10 / x AS d FROM t WITH (connector = 'blackhole', on_error = 'skip')")
    db.sql("FLUSH")
    rows_in, rows_out, errors = db.sql(
        "SELECT rows_in, rows_out, row_errors FROM headrace_catalog.jobs WHERE name = 'gone'"
    ).rows()[0]
    assert (rows_in - rows_out, errors) == (1, 1)
    db.sql("DROP SINK gone")
    with pytest.raises(HeadraceError):
        db.sql("CREATE SINK wrong AS SELECT k FROM t WITH (connector = 'blackhole', on_error = 'ignore')")


def test_event_time_and_now_go_with_it(db: Database) -> None:
    """Guards do not hide what bounds a state by watermarks, nor a condition with the current time."""
    db.sql("CREATE TABLE ev (ts timestamp, v int, WATERMARK FOR ts AS ts - INTERVAL '1 second') APPEND ONLY")
    _view(db, "closed", "skip", "SELECT window_start, sum(10 / v) AS n FROM TUMBLE(ev, ts, INTERVAL '10 seconds') "
                                "GROUP BY window_start EMIT ON WINDOW CLOSE")  # fmt: skip
    _view(db, "recent", "null", "SELECT v, 10 / v AS d FROM ev WHERE ts > now() - INTERVAL '100000 hours'")
    db.sql("INSERT INTO ev VALUES (TIMESTAMP '2024-01-01 00:00:01', 5), (TIMESTAMP '2024-01-01 00:00:02', 0)")
    db.sql("INSERT INTO ev VALUES (TIMESTAMP '2024-01-01 00:01:00', 1)")
    db.sql("FLUSH")
    assert [n for (n,) in db.sql("SELECT n FROM closed").rows()] == [2]
    assert sorted(db.sql("SELECT v, d FROM recent").rows(), key=repr) == [(0, None), (1, 10), (5, 2)]
    db.sql("DROP MATERIALIZED VIEW closed, recent")
    db.sql("DROP TABLE ev")


def test_the_option_survives_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    """The view is planned again by the same policy, and goes on."""
    settings = Settings(run_fsync=False, catalog_commit_sync=False, barrier_interval_ms=200)
    with connect(tmp_path / "db", spark=spark, settings=settings) as first:
        first.sql("CREATE TABLE t (k int PRIMARY KEY, x int); INSERT INTO t VALUES (1, 0), (2, 5)")
        first.sql("CREATE MATERIALIZED VIEW v WITH (on_error = 'null') AS SELECT k, 10 / x AS d FROM t")
    with connect(tmp_path / "db", spark=spark, settings=settings) as second:
        second.sql("INSERT INTO t VALUES (3, 0); DELETE FROM t WHERE k = 1")
        second.flush()
        assert second.sql("SELECT * FROM v ORDER BY k").rows() == [(2, 2), (3, None)]
