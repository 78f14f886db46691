"""The system relations of a database that works, through SQL, against what it has really done."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import HeadraceError, NotSupported
from headrace.session.database import Database


def rows(db: Database, sql: str) -> list[tuple[Any, ...]]:
    return db.sql(sql).rows()


@pytest.fixture(scope="module")
def busy(database: Database) -> Database:
    """A chain of two views over one table, the second one paused behind it; and one that fails."""
    database.sql("""
        CREATE TABLE t (id int PRIMARY KEY, n int);
        INSERT INTO t VALUES (1, 10), (2, 20);
        CREATE MATERIALIZED VIEW v AS SELECT id, n + 1 AS n FROM t;
        CREATE MATERIALIZED VIEW w AS SELECT sum(n) AS s FROM v;
        CREATE MATERIALIZED VIEW bad AS SELECT 100 / n AS q FROM t;
        INSERT INTO t VALUES (3, 30);
        FLUSH;
        ALTER MATERIALIZED VIEW w PAUSE;
        INSERT INTO t VALUES (4, 40), (5, 50);
        UPDATE t SET n = 41 WHERE id = 4;
        INSERT INTO t VALUES (6, 0);
    """)
    with pytest.raises(HeadraceError, match='"bad" is failing'):
        database.flush()
    return database


def test_every_relation_can_be_read(busy: Database) -> None:
    for name in ("sessions", "jobs", "barriers", "checkpoint_groups", "checkpoints", "log_stores", "progress", "epochs",
                 "sources", "state_tables", "metrics", "events"):  # fmt: skip
        found = busy.sql(f"SELECT * FROM headrace_catalog.{name}")
        names = ", ".join(c.name for c in found.columns)
        assert busy.sql(f"SELECT {names} FROM headrace_catalog.{name}").columns == found.columns


def test_sessions_tell_what_they_hold(busy: Database) -> None:
    busy.sql("CREATE ROLE looker LOGIN")
    shop, looker = busy.session({"application_name": "shop"}), busy.session(user="looker")
    read = "SELECT user_name, transaction, snapshot_epoch, cursors, prepared_statements FROM headrace_catalog.sessions "
    try:
        assert rows(busy, f"{read} WHERE application_name = 'shop'") == [("root", None, None, 0, 0)]
        for result in shop.execute("PREPARE p AS SELECT 1; BEGIN; DECLARE c CURSOR FOR SELECT 1; SELECT * FROM t"):
            result.table()
        (found,) = rows(busy, f"{read} WHERE application_name = 'shop'")
        assert found[:2] == ("root", "open") and found[2] > 0 and found[3:] == (1, 1)
        listed = {row[0]: row[1:] for row in rows(busy, "SHOW PROCESSLIST")}
        assert listed[shop.number][:2] == ("root", "shop") and listed[shop.number][3] == "open"
        with pytest.raises(HeadraceError):
            list(shop.execute("SELECT nonsense"))
        assert rows(busy, f"{read} WHERE application_name = 'shop'")[0][1] == "failed"
        (result,) = looker.execute("SELECT id, application_name, transaction, connected IS NULL FROM "
                                   "headrace_catalog.sessions")  # fmt: skip
        seen = {row[0]: row[1:] for row in result.rows()}
        assert seen[shop.number] == (None, None, False), "of others there is not more to see than that they are there"
    finally:
        shop.close()
        looker.close()
    assert rows(busy, f"{read} WHERE application_name = 'shop'") == []
    busy.sql("DROP ROLE looker")


def test_as_many_events_are_shown_as_are_asked_for(busy: Database) -> None:
    newest = rows(busy, "SELECT sequence FROM headrace_catalog.events ORDER BY sequence DESC LIMIT 2")
    busy.sql("ALTER SYSTEM SET events_shown = 2")
    try:
        shown = rows(busy, "SELECT sequence FROM headrace_catalog.events")
        assert len(shown) == 2 and min(shown) >= newest[1]
    finally:
        busy.sql("ALTER SYSTEM RESET events_shown")
    assert len(rows(busy, "SELECT sequence FROM headrace_catalog.events")) > 2


def test_metrics_agree_with_the_jobs(busy: Database) -> None:
    metrics = rows(busy, "SELECT name, value, unit, help FROM headrace_catalog.metrics")
    found = {name: value for name, value, *_ in metrics}
    (jobs,) = rows(busy, "SELECT sum(rows_in), sum(rows_out) FROM headrace_catalog.jobs")
    assert (found["rows_in"], found["rows_out"]) == jobs and found["epochs_committed"] >= 3
    assert 0 < found["start_views_seconds"] < found["start_seconds"]
    assert found["runs"] >= found["runs_largest_table"] > 0


def test_log_stores_count_exactly(busy: Database) -> None:
    """LS-26: positions, backlog and rows read are what was written and consumed."""
    found = {
        (up, down): rest
        for up, down, *rest in rows(
            busy, "SELECT upstream, downstream, backlog_epochs, backlog_rows, rows_historical, rows_flushed, "
            "rows_buffered, oldest_unconsumed IS NULL, backlog_bytes > 0, paused_ms > 0 "
            "FROM headrace_catalog.log_stores"
        )
    }  # fmt: skip
    # v has taken in 1 row; then 2, then the update as a delete and an insert, then 1, in one epoch or in several.
    assert found["t", "v"][:3] == [0, 0, 2] and found["t", "v"][4:] == [0, True, False, False]
    # Of row 4, what came and went within one epoch of v is not read.
    assert found["t", "v"][3] in (1 + 3, 1 + 2 + 2 + 1)
    epochs, backlog, historical, flushed, _, done, size, paused = found["v", "w"]
    assert (historical, flushed, done, size, paused) == (2, 1, False, True, True)
    written = rows(
        busy, "SELECT count(*), sum(rows_out) FROM headrace_catalog.checkpoints WHERE name = 'v' AND rows_out > 0 AND "
        "epoch > (SELECT position FROM headrace_catalog.log_stores WHERE downstream = 'w')"
    )  # fmt: skip
    assert written == [(epochs, backlog)]
    assert found["t", "bad"][5] is False


def test_epochs_tell_where_a_relation_is_exact(busy: Database) -> None:
    busy.sql("SELECT * FROM v")
    found = {r[0]: r[1:] for r in rows(busy, "SELECT name, kind, committed_epoch, frontier, safe_epoch, floor, "
                                             "newest_exact, exact FROM headrace_catalog.epochs")}  # fmt: skip
    assert found["t"][0] == "table" and found["t"][1] is None
    kind, committed, frontier, safe, floor, newest, exact = found["v"]
    assert kind == "materialized_view" and safe <= committed <= frontier == newest and floor <= newest
    # A checkpoint at the very epoch of a change lengthens the range before it; any other begins a new one.
    low, high = map(int, exact.split(" [")[-1].strip("[]").split(", "))
    assert low <= committed and high == newest
    assert found["w"][5] < newest, "paused"
    (epoch,) = rows(busy, "SELECT floor FROM headrace_catalog.epochs WHERE name = 'v'")[0]
    assert rows(busy, f"SELECT count(*) FROM v FOR SYSTEM_TIME AS OF {epoch}") == [(6,)]


def test_groups_and_checkpoints(busy: Database) -> None:
    groups = {jobs: rest for jobs, *rest in rows(busy, "SELECT jobs, status, failures > 0, checkpoints FROM "
                                                       "headrace_catalog.checkpoint_groups")}  # fmt: skip
    assert groups["w"][:2] == ["paused", False] and groups["bad"][:2] == ["failing", True]
    for name in ("v", "w", "bad"):
        kept = rows(busy, f"SELECT count(*), min(objects), min(bytes) > 0 FROM headrace_catalog.checkpoints "
                          f"WHERE name = '{name}' AND rows_out > 0")[0]  # fmt: skip
        assert 0 < kept[0] <= groups[name][2] and kept[1:] == (kept[1], True) and kept[1] >= 1


def test_waits_are_shown(busy: Database) -> None:
    """XC-6: what is stuck says why, in the relations and in SHOW."""
    waiting = dict(rows(busy, "SELECT name, waiting_for FROM headrace_catalog.barriers WHERE name IN ('w', 'bad')"))
    assert "paused" in waiting["w"]
    shown = {r[1]: r for r in rows(busy, "SHOW JOBS")}
    assert shown["v"][2] == "running" and shown["bad"][2] == "failing" and "division" in shown["bad"][4].lower()
    assert "RESUME" in shown["w"][8]
    assert {r[1] for r in rows(busy, "SHOW PROGRESS")} >= {"w"}
    assert {r[1] for r in rows(busy, "SHOW CHECKPOINTS")} == {"v", "w", "bad"}
    kinds = {r[0] for r in rows(busy, "SELECT kind FROM headrace_catalog.events")}
    assert {"job_created", "job_failed", "job_paused"} <= kinds
    assert rows(busy, "SELECT upstreams FROM headrace_catalog.jobs WHERE name = 'w'") == [("v",)]


def test_consistency_by_sql(busy: Database) -> None:
    """PC-37: each policy as a setting; notices name who holds back, errors say which setting helps."""
    session = busy.session()

    def run(sql: str) -> tuple[list[Any], list[str]]:
        *_, last = session.execute(sql)
        table = last.table() if last.columns is not None else None
        return table.to_pylist() if table is not None else [], [n.message for n in last.notices]

    both = "SELECT (SELECT s FROM w) AS s, (SELECT count(*) FROM v) AS n"
    found, notices = run(f"SET query_consistency = 'latest'; {both}")
    assert found == [{"s": 63, "n": 6}] and notices == ['materialized view "w" is paused']
    with pytest.raises(HeadraceError, match=r'"w" .* is at epoch') as caught:
        run(f"SET query_consistency = 'snapshot'; {both}")
    assert caught.value.sqlstate == "40001" and "monotonic_reads" in str(caught.value.hint)
    found, notices = run(
        "SET monotonic_reads = off; SET query_consistency = global; SELECT (SELECT s FROM w) AS s, "
        "(SELECT count(*) FROM v) AS n, (SELECT count(*) FROM t) AS m"
    )
    assert found == [{"s": 63, "n": 3, "m": 3}] and any('"bad" is failing' in n for n in notices)
    run("SET query_consistency = snapshot; SET monotonic_reads = strict; SET read_your_writes = on")
    run("INSERT INTO t VALUES (7, 70)")
    assert run("SELECT count(*) AS n FROM v")[0] == [{"n": 7}], "although another view fails"
    run("BEGIN")
    assert run("SELECT count(*) AS n FROM t")[0] == [{"n": 7}]
    busy.sql("INSERT INTO t VALUES (8, 80)")
    assert run("SELECT count(*) AS n FROM t")[0] == [{"n": 7}]
    assert run("SELECT count(*) AS n FROM v")[0] == [{"n": 7}], "at the transaction's epoch"
    run("COMMIT")
    assert run("SELECT count(*) AS n FROM t")[0] == [{"n": 8}]
    for name in ("monotonic_reads", "query_consistency"):
        with pytest.raises(HeadraceError, match="invalid value"):
            run(f"SET {name} = 'whatever'")
    assert session.context.variables.get("headrace.read_your_writes") == "on"
    session.close()


def test_time_travel_by_sql(busy: Database) -> None:
    """PC-37: reads of the past see the past, in every form; a temporal join is none of them."""
    (epoch,) = rows(busy, "SELECT newest_exact FROM headrace_catalog.epochs WHERE name = 't'")[0]
    before = rows(busy, "SELECT count(*) FROM t")
    busy.sql("INSERT INTO t VALUES (9, 90)")
    assert rows(busy, f"SELECT count(*) FROM t FOR SYSTEM_TIME AS OF {epoch}") == before
    assert rows(busy, "SELECT count(*) FROM t FOR SYSTEM_TIME AS OF now()")[0][0] == before[0][0] + 1
    busy.sql(f"SET query_epoch = {epoch}")
    assert rows(busy, "SELECT count(*) FROM t") == before
    busy.sql("RESET query_epoch")
    with pytest.raises(NotSupported, match="PROCTIME"):
        rows(busy, "SELECT * FROM t JOIN v FOR SYSTEM_TIME AS OF PROCTIME() ON t.id = v.id")
    with pytest.raises(NotSupported, match="no primary key"):
        busy.sql("CREATE MATERIALIZED VIEW x AS SELECT t.id FROM t JOIN v FOR SYSTEM_TIME AS OF PROCTIME() ON true")
    with pytest.raises(NotSupported, match="materialized view"):
        busy.sql("CREATE MATERIALIZED VIEW x AS SELECT id FROM t FOR SYSTEM_TIME AS OF now()")
    with pytest.raises(HeadraceError) as caught:
        rows(busy, "SELECT * FROM v FOR SYSTEM_TIME AS OF now() - '5' DAY")
    assert caught.value.sqlstate in ("40001", "HR001"), "before it was created, and by now perhaps merged away"
