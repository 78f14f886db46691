"""Event time through SQL: declared, closed, late, refused, and there after a restart."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from headrace.common.faults import arm, disarm_all, passages
from headrace.config import Settings
from headrace.coordinator.upkeep.compaction import KEPT_STALE
from headrace.errors import HeadraceError
from headrace.session.database import Database, connect
from support import eventually

SETTINGS = Settings(run_fsync=False, catalog_commit_sync=False, barrier_interval_ms=200)
ORIGIN = datetime(2024, 1, 1)
SESSIONS = "SELECT window_start, count(*) AS n, window_end FROM SESSION(e, t, INTERVAL '7 s') GROUP BY 1, 3"
COUNTS = "SELECT window_start, count(*) AS n FROM TUMBLE({}, t, INTERVAL '10 seconds') GROUP BY window_start"


def at(second: float) -> str:
    return str(ORIGIN + timedelta(seconds=second))


def counted(database: Database, view: str) -> list[tuple[int, int]]:
    rows = database.sql(f"SELECT * FROM {view}").rows()
    return sorted((round((start.replace(tzinfo=None) - ORIGIN).total_seconds()), n) for start, n, *_ in rows)


def test_a_table_with_a_watermark_and_views_that_close(spark: SparkSession, tmp_path: Path) -> None:
    """FS-21: each window once; late rows are left out and said; a restart goes on where it was."""
    with connect(tmp_path / "db", spark=spark, settings=SETTINGS) as database:
        database.sql(
            "CREATE TABLE e (id int, t timestamp, WATERMARK FOR t AS t - INTERVAL '5 seconds') APPEND ONLY; "
            f"CREATE MATERIALIZED VIEW v AS {COUNTS.format('e')} EMIT ON WINDOW CLOSE; "
            f"CREATE MATERIALIZED VIEW s AS {SESSIONS} EMIT ON WINDOW CLOSE; "
            "CREATE MATERIALIZED VIEW w AS SELECT window_start, n FROM v WHERE n > 1 EMIT ON WINDOW CLOSE; "
            f"INSERT INTO e VALUES (1, '{at(1)}'), (2, '{at(9)}'), (3, '{at(14.9)}'), (4, NULL); FLUSH"
        )

        @database.materialized_view(on_window_close=True)
        def odd() -> DataFrame:
            return database.table("e").where("id % 2 = 1").select("t", "id")

        database.run_pipeline()
        assert counted(database, "v") == [] and counted(database, "odd") == counted(database, "s") == [(1, 1)]
        assert database.sql(f"INSERT INTO e VALUES (5, '{at(15)}')").notices == []
        database.flush()
        assert counted(database, "v") == counted(database, "w") == [(0, 2)]
        late = database.sql(f"INSERT INTO e VALUES (6, '{at(9)}'), (7, '{at(36)}')")
        assert late.tag == "INSERT 0 1" and "1 rows were left out" in late.notices[0]
        database.flush()
        assert counted(database, "v") == [(0, 2), (10, 2)]
        assert counted(database, "s") == [(1, 1), (9, 3)]
        assert database.sql("SELECT count(*) FROM e").rows() == [(6,)]
        assert database.sql("SELECT value FROM headrace_catalog.metrics WHERE name = 'late_rows'").rows()[0][0] == 1
        marks = [database.sql(f"DESCRIBE {name}").rows()[i][4] for name, i in (("e", 1), ("v", 0), ("v", 1))]
        assert marks == ["t - INTERVAL '5 seconds'", "EMIT ON WINDOW CLOSE", None]
        assert "WATERMARK FOR t" in database.sql("SHOW CREATE TABLE e").rows()[0][1]
    with connect(tmp_path / "db", spark=spark, settings=SETTINGS) as database:
        assert database.sql(f"INSERT INTO e VALUES (8, '{at(30)}'), (9, '{at(80)}')").tag == "INSERT 0 1"
        database.flush()
        assert counted(database, "v") == [(0, 2), (10, 2), (30, 1)]
        assert counted(database, "w") == [(0, 2), (10, 2)]
        assert counted(database, "s") == [(1, 1), (9, 3), (36, 1)]
        assert counted(database, "odd") == [(1, 1), (15, 3), (15, 5), (36, 7)]


def test_what_is_late_does_not_depend_on_the_view(spark: SparkSession, tmp_path: Path) -> None:
    """A source that cannot tell its times beforehand: read by one view as it comes, by others later, in slices."""
    files = tmp_path / "in"
    files.mkdir()

    def write(name: str, *seconds: int) -> None:
        part = files / f".{name}"
        part.write_text("id,t\n" + "".join(f"{i},{at(s)}\n" for i, s in enumerate(seconds)))
        part.rename(files / name)

    settings = SETTINGS.replaced(backfill_slice_rows=2)
    with connect(tmp_path / "db", spark=spark, settings=settings) as database:
        write("0.csv", 1, 2, 21)
        database.sql(
            "CREATE SOURCE s (id int, t timestamp, WATERMARK FOR t AS t - INTERVAL '1 second') "
            f"WITH (connector = 'files', path = '{files}/*.csv', format = 'csv'); "
            f"CREATE MATERIALIZED VIEW early AS {COUNTS.format('s')} EMIT ON WINDOW CLOSE"
        )

        def until(expected: list[tuple[int, int]]) -> None:
            for _ in range(30):
                database.flush()
                if counted(database, "early") == expected:
                    return
            raise AssertionError(f"{counted(database, 'early')} is not {expected}")

        until([(0, 2), (10, 0)][:1])
        write("1.csv", 5, 19, 22, 35)  # two of them are late: the watermark is at 20
        until([(0, 2), (20, 2)])
        database.sql(
            f"CREATE MATERIALIZED VIEW later AS {COUNTS.format('s')} EMIT ON WINDOW CLOSE; "
            f"CREATE MATERIALIZED VIEW everything AS {COUNTS.format('s')}"
        )
        database.flush()
        assert counted(database, "later") == counted(database, "early")
        assert counted(database, "everything") == [(0, 3), (10, 1), (20, 2), (30, 1)], "nothing needs the watermark"
        late = "SELECT name, late_rows FROM headrace_catalog.jobs ORDER BY name"
        assert database.sql(late).rows() == [("early", 2), ("everything", 0), ("later", 2)]
        shown = database.sql("SELECT watermark FROM headrace_catalog.sources").rows()[0][0]
        assert shown.replace(tzinfo=None) == ORIGIN + timedelta(seconds=34)


def test_a_view_is_filled_while_bindings_are_forgotten(spark: SparkSession, tmp_path: Path) -> None:
    """Its steps are bounded by rows, over a start of the server too; none of the rows is missing or there twice."""
    rows, each = 10 * (KEPT_STALE + 20), 10
    (tmp_path / "in.csv").write_text("id,t\n" + "".join(f"{i},{at(i)}\n" for i in range(rows)))
    settings = SETTINGS.replaced(
        backfill_slice_rows=100, barrier_interval_ms=600_000, compaction_interval_ms=600_000
    )  # fmt: skip
    ids = "CREATE MATERIALIZED VIEW {} AS SELECT id, t FROM s EMIT ON WINDOW CLOSE"
    with connect(tmp_path / "db", spark=spark, settings=settings) as database:
        database.sql(
            "CREATE SOURCE s (id int, t timestamp, WATERMARK FOR t AS t) WITH (connector = 'files', "
            f"path = '{tmp_path}/in.csv', format = 'csv', max_rows_per_epoch = '{each}'); {ids.format('early')}"
        )
        for n in range(rows // each):
            database.coordinator.tick()
            if n % 10 == 0:
                database.flush()
        try:
            arm("backfill.slice.before", "hang", nth=4)
            database.sql("SET background_ddl = true; " + ids.format("later"))
            eventually(lambda: passages("backfill.slice.before") == 4, "three slices are taken")
            database.sql("ALTER SYSTEM SET retention_ms = 0")
            database.coordinator.compact()
            database.sql("ALTER MATERIALIZED VIEW later PAUSE")
        finally:
            disarm_all()
    with connect(tmp_path / "db", spark=spark, settings=settings) as database:
        database.coordinator.compact()
        database.sql("ALTER MATERIALIZED VIEW later RESUME")
        eventually(
            lambda: database.sql("SELECT status FROM headrace_catalog.jobs").rows() == [("running",)] * 2, "it runs"
        )
        database.flush()
        got = [database.sql(f"SELECT id FROM {view} ORDER BY id").rows() for view in ("early", "later")]
        assert got[0] == got[1] == [(i,) for i in range(len(got[0]))] and len(got[0]) >= rows - 1


NEXMARK = (
    "CREATE SOURCE {0} ({1}, date_time timestamp, WATERMARK FOR date_time AS date_time - INTERVAL '4 seconds') WITH "
    "(connector = 'nexmark', table_type = '{0}', rows_per_second = 'unlimited', max_rows_per_epoch = '100000'); "
)


@pytest.mark.soak
def test_state_does_not_grow_over_a_long_stream(spark: SparkSession, tmp_path: Path) -> None:
    """FS-19: 1,500,000 events, 150 seconds of event time: state holds the windows that are open, and no more."""
    settings = Settings(run_fsync=False, catalog_commit_sync=False, barrier_interval_ms=600_000)
    held: list[dict[str, int]] = []
    with connect(tmp_path / "db", spark=spark, settings=settings) as database:
        database.sql(
            NEXMARK.format("bid", "auction bigint, price bigint")
            + NEXMARK.format("auction", "id bigint")
            + "CREATE MATERIALIZED VIEW closed AS SELECT window_start, auction, count(*) AS n FROM TUMBLE(bid, "
            "date_time, INTERVAL '10 seconds') GROUP BY 1, 2 EMIT ON WINDOW CLOSE; "
            "CREATE SINK visits AS SELECT window_end, auction, count(*) AS n FROM SESSION(bid, date_time, "
            "INTERVAL '3 seconds', auction) GROUP BY 1, 2 EMIT ON WINDOW CLOSE WITH (connector = 'blackhole'); "
            "CREATE SINK joined AS SELECT b.price FROM bid b JOIN auction a ON b.auction = a.id AND b.date_time "
            "BETWEEN a.date_time AND a.date_time + INTERVAL '10 seconds' WITH (connector = 'blackhole')"
        )
        for _ in range(15):
            database.flush()
            database.coordinator.compact()
            rows = database.sql("SELECT operator, rows FROM headrace_catalog.state_tables").rows()
            held.append({name: n for name, n in rows if name != "view/rows"})
        seen = database.sql("SELECT min(rows_in) FROM headrace_catalog.jobs").rows()[0][0]
        assert seen > 1_200_000
        closed = database.sql("SELECT count(DISTINCT window_start) FROM closed").rows()[0][0]
        assert closed >= 12
    for name in held[-1]:
        early, late = max(h[name] for h in held[3:9]), max(h[name] for h in held[9:])
        assert late <= 1.5 * early, (name, [h[name] for h in held])


@pytest.mark.parametrize(
    ("statement", "sqlstate", "text"),
    [
        ("CREATE TABLE x (t timestamp, WATERMARK FOR t AS t)", "0A000", "APPEND ONLY"),
        ("CREATE TABLE x (t timestamp, WATERMARK FOR u AS u) APPEND ONLY", "42703", '"u"'),
        ("CREATE TABLE x (t int, WATERMARK FOR t AS t) APPEND ONLY", "42804", '"t"'),
        ("CREATE TABLE x (t timestamp, WATERMARK FOR t AS t - INTERVAL '1 month') APPEND ONLY", "0A000", "month"),
        ("CREATE TABLE x (t timestamp, WATERMARK FOR t AS t + INTERVAL '1 s') APPEND ONLY", "0A000", "INTERVAL"),
        ("CREATE MATERIALIZED VIEW x AS SELECT 1 AS a EMIT ON WINDOW CLOSE", "0A000", "WATERMARK FOR"),
        ("CREATE SOURCE x (t timestamp, WATERMARK FOR u AS u) WITH (connector = 'datagen')", "42703", '"u"'),
        ("SELECT * FROM SESSION(x, t)", "0A000", "SESSION"),
    ],
)
def test_refusals(database: Database, statement: str, sqlstate: str, text: str) -> None:
    with pytest.raises(HeadraceError) as caught:
        database.sql(statement)
    assert caught.value.sqlstate == sqlstate
    assert text in f"{caught.value.message} {caught.value.hint}"


def _sessions(rows: set[tuple[int, int]], gap: int) -> list[tuple[int, int, int, int]]:
    """(key, start, end, count), the plain way."""
    found: list[tuple[int, int, int, int]] = []
    for key, t in sorted(rows):
        if found and found[-1][0] == key and t < found[-1][2]:
            found[-1] = (key, found[-1][1], t + gap, found[-1][3] + 1)
        else:
            found.append((key, t, t + gap, 1))
    return found


def test_session_windows_are_exact_under_changes(database: Database) -> None:
    """Sessions merge when a row comes between them, and fall apart when it goes."""
    database.sql(
        "CREATE TABLE clicks (k int, t timestamp, PRIMARY KEY (k, t)); CREATE MATERIALIZED VIEW visits AS SELECT k, "
        "window_start, window_end, count(*) AS n FROM SESSION(clicks, t, INTERVAL '5 seconds', k) GROUP BY 1, 2, 3"
    )
    choice, rows = random.Random(5), set[tuple[int, int]]()
    for _ in range(2):
        new = {(choice.randrange(3), choice.randrange(60)) for _ in range(20)}
        gone = set(choice.sample(sorted(rows), len(rows) // 3))
        either = " OR ".join(f"(k = {k} AND t = '{at(s)}')" for k, s in gone)
        if gone:
            database.sql(f"DELETE FROM clicks WHERE {either}")
        rows = rows - gone | new
        database.sql("INSERT INTO clicks VALUES " + ", ".join(f"({k}, '{at(s)}')" for k, s in new))
        database.flush()
        got = database.sql("SELECT k, window_start, window_end, n FROM visits").rows()
        assert sorted((k, _second(start), _second(end), n) for k, start, end, n in got) == _sessions(rows, 5)


def _second(moment: Any) -> int:
    return round((moment.replace(tzinfo=None) - ORIGIN).total_seconds())
