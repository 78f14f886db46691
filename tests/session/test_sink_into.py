"""CREATE SINK ... INTO: changes of a view in a table, each once, and what is refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from clients import refused
from headrace.catalog.contents import IndexContent
from headrace.config import Settings
from headrace.coordinator.writes import handing
from headrace.errors import HeadraceError
from headrace.session.database import Database, connect
from support import eventually


def settings(folder: Path) -> Settings:
    return Settings(data_dir=folder, run_fsync=False, catalog_commit_sync=False, barrier_interval_ms=100)


@pytest.fixture(scope="module")
def database(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    folder = tmp_path_factory.mktemp("into")
    with connect(folder, spark=spark, settings=settings(folder)) as found:
        yield found


@pytest.fixture(autouse=True)
def _nothing_left(database: Database) -> Iterator[None]:
    yield
    for kind in ("SINK", "MATERIALIZED VIEW", "VIEW", "TABLE"):
        for (name,) in database.sql(f"SHOW {kind}S").rows():
            database.sql(f"DROP {kind} IF EXISTS {name} CASCADE")


def rows(database: Database, sql: str) -> list[tuple[object, ...]]:
    return sorted(database.sql(sql).rows(), key=str)


def test_changes_of_a_view_go_into_a_table(database: Database) -> None:
    """Upserted by the table's primary key, in the order of its columns, whatever that of the query; views see them."""
    database.sql("CREATE TABLE orders (id int PRIMARY KEY, customer text, amount int)")
    database.sql("INSERT INTO orders VALUES (1, 'ann', 10), (2, 'bob', 3)")
    database.sql(
        "CREATE MATERIALIZED VIEW spent AS SELECT sum(amount) AS total, customer FROM orders GROUP BY customer"
    )
    database.sql("CREATE TABLE totals (note text, customer text PRIMARY KEY, total bigint)")
    database.sql("INSERT INTO totals VALUES ('kept', 'zoe', 1), ('gone', 'ann', 0)")
    database.sql("CREATE SINK s INTO totals (total, customer) FROM spent")
    database.sql("CREATE MATERIALIZED VIEW all_of_it AS SELECT sum(total) AS n FROM totals")
    database.flush()
    first = [("kept", "zoe", 1), (None, "ann", 10), (None, "bob", 3)]
    eventually(lambda: rows(database, "SELECT * FROM totals") == sorted(first, key=str))
    database.sql("INSERT INTO orders VALUES (3, 'ann', 5); DELETE FROM orders WHERE id = 2")
    eventually(lambda: rows(database, "SELECT customer, total FROM totals") == [("ann", 15), ("zoe", 1)])
    eventually(lambda: rows(database, "SELECT n FROM all_of_it") == [(16,)])
    database.sql("UPDATE totals SET total = 100 WHERE customer = 'zoe'")
    eventually(lambda: rows(database, "SELECT n FROM all_of_it") == [(115,)])
    assert database.sql("SHOW SINKS").rows() == [("s",)]
    assert "INTO totals" in database.sql("SHOW CREATE SINK s").rows()[0][1]
    (job,) = [r for r in database.sql("SHOW JOBS").rows() if r[1] == "s"]
    assert job[2] == "running" or job[2] == "created", job
    said = rows(database, "SELECT message FROM headrace_catalog.events WHERE kind LIKE 'job%'")
    assert ('sink "s" is created',) in said
    assert ('materialized view "spent" is created',) in said
    assert refused(database, "DROP TABLE totals").startswith("2BP01")
    assert refused(database, "SELECT * FROM s").startswith("42809")
    database.sql("DROP SINK s; DROP MATERIALIZED VIEW all_of_it")
    database.sql("INSERT INTO orders VALUES (4, 'cy', 5)")
    database.flush()
    assert rows(database, "SELECT customer FROM totals") == [("ann",), ("zoe",)]


def test_a_table_dropped_with_cascade_takes_its_sinks_along(database: Database) -> None:
    database.sql("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)")
    database.sql("CREATE SINK c INTO b FROM a; DROP TABLE b CASCADE")
    assert database.sql("SHOW SINKS").rows() == []


def test_rows_are_added_to_a_table_without_a_key(database: Database) -> None:
    """Several sinks into one table; equal rows are counted, a table that only grows stays so."""
    database.sql("CREATE TABLE one (a int, b numeric(10,2)) APPEND ONLY; CREATE TABLE two (a smallint) APPEND ONLY")
    database.sql("CREATE TABLE log (a bigint, b double precision) APPEND ONLY")
    database.sql("INSERT INTO one VALUES (1, 1.5), (1, 1.5)")
    database.sql("CREATE SINK from_one INTO log AS SELECT a, b FROM one WITH (type = 'append-only')")
    database.sql("CREATE SINK from_two INTO log AS SELECT a * 10 FROM two WITH (snapshot = false)")
    database.sql("CREATE MATERIALIZED VIEW logged AS SELECT a, count(*) AS n, max(b) AS b FROM log GROUP BY a")
    database.sql("INSERT INTO two VALUES (7)")
    database.sql("INSERT INTO one VALUES (1, 1.5), (2, NULL)")
    eventually(lambda: rows(database, "SELECT * FROM logged") == [(1, 3, 1.5), (2, 1, None), (70, 1, None)])


def test_only_inserted_rows_and_only_later_ones(database: Database) -> None:
    database.sql("CREATE TABLE src (id int PRIMARY KEY, v int); CREATE TABLE dst (id int, v int)")
    database.sql("INSERT INTO src VALUES (1, 1)")
    database.sql("CREATE SINK s INTO dst FROM src WITH (force_append_only = true, snapshot = 'false')")
    database.sql("INSERT INTO src VALUES (2, 2)")
    database.flush()
    database.sql("UPDATE src SET v = 3 WHERE id = 2; DELETE FROM src WHERE id = 1")
    eventually(lambda: rows(database, "SELECT * FROM dst") == [(2, 2), (2, 3)])


def test_a_large_change_is_written_piece_by_piece(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The snapshot of a large view, over rows that are there already, and a large change of it afterwards."""
    monkeypatch.setattr(handing, "HELD_ROWS", 1_000)
    database.sql("CREATE TABLE big (id int PRIMARY KEY, v int); CREATE TABLE copy (id int PRIMARY KEY, v int)")
    database.sql("INSERT INTO copy SELECT i, -1 FROM generate_series(19000, 21000) AS g(i)")
    database.sql("INSERT INTO big SELECT i, i % 7 FROM generate_series(1, 20000) AS g(i)")
    database.sql("CREATE SINK s INTO copy FROM big WITH (max_rows_per_epoch = 3000)")
    difference = "SELECT * FROM big EXCEPT SELECT * FROM copy"
    eventually(lambda: not rows(database, difference))
    assert rows(database, "SELECT count(*), sum(v) FILTER (WHERE id > 20000) FROM copy") == [(21_000, -1_000)]
    database.sql("DELETE FROM big WHERE id % 2 = 0; UPDATE big SET v = v + 1 WHERE id % 3 = 0")
    eventually(lambda: not rows(database, difference))
    eventually(lambda: rows(database, "SELECT count(*) FROM copy WHERE id <= 20000") == [(10_000,)])


def test_a_sink_for_itself_shares_no_index_of_the_sessions_group(database: Database) -> None:
    """It checkpoints alone: an index of another group would have to wait for it, or the other way round."""
    database.sql("CREATE TABLE l (id int PRIMARY KEY, k int); CREATE TABLE r (id int PRIMARY KEY, k int)")
    database.sql("CREATE TABLE both_sides (id int PRIMARY KEY, other int)")
    made = "CREATE SINK s INTO both_sides AS SELECT l.id, r.id AS other FROM l JOIN r ON l.k = r.k"
    database.sql("SET default_checkpoint_group = 'together'")
    try:
        assert "shared once" not in str(database.sql(f"EXPLAIN {made}").rows())
        database.sql(made)
        assert not list(database.catalog.state.objects_of(IndexContent))
        database.sql("INSERT INTO l VALUES (1, 7); INSERT INTO r VALUES (2, 7)")
        eventually(lambda: rows(database, "SELECT * FROM both_sides") == [(1, 2)])
    finally:
        database.sql("RESET default_checkpoint_group")


def test_values_of_every_type_arrive(database: Database) -> None:
    kinds = (
        "boolean", "smallint", "bigint", "real", "double precision", "numeric(10,2)", "text", "varchar", "bytea",
        "date", "timestamp", "timestamptz", "jsonb", "interval", "time", "int[]",
    )  # fmt: skip
    columns = ", ".join(f"c{i} {kind}" for i, kind in enumerate(kinds))
    for table in ("there", "here"):
        database.sql(f"CREATE TABLE {table} (id int PRIMARY KEY, {columns})")
    values = (
        "true, 1, 2, 1.5, 2.5, 3.25, 'a', 'b', '\\x00ff', '2024-01-02', '2024-01-02 03:04:05', '2024-01-02 03:04:05Z', "
        "'{\"a\": [1]}', '1 day 2 hours', '03:04:05', ARRAY[1, NULL]"
    )
    database.sql(f"INSERT INTO there VALUES (1, {values}), (2{', NULL' * len(kinds)})")
    database.sql("CREATE SINK s INTO here FROM there")
    assert database.sql("SELECT count(*) FROM here").rows() == [(2,)]
    names = ", ".join(f"c{i}::text" for i in range(len(kinds)))
    same = [rows(database, f"SELECT id, {names} FROM {t}") for t in ("here", "there")]
    assert same[0] == same[1] and len(same[0]) == 2
    assert str(rows(database, "SELECT * FROM here")) == str(rows(database, "SELECT * FROM there"))
    database.sql("UPDATE there SET c0 = false; DELETE FROM there WHERE id = 2")
    eventually(lambda: rows(database, "SELECT id, c0 FROM here") == [(1, False)])


def test_a_large_change_that_is_refused_is_taken_anew(database: Database) -> None:
    """What was stored of an epoch in steps does not hold on to rows that the table does not take."""
    database.sql("CREATE TABLE pairs (id int PRIMARY KEY, k int); CREATE TABLE by_k (k int PRIMARY KEY)")
    database.sql("CREATE SINK s INTO by_k AS SELECT k FROM pairs WITH (max_rows_per_epoch = 20)")
    database.sql("INSERT INTO pairs SELECT i, i % 150 FROM generate_series(0, 199) AS g(i)")
    eventually(lambda: any(r[1] == "s" and "does not tell" in str(r[4]) for r in database.sql("SHOW JOBS").rows()))
    assert rows(database, "SELECT count(*) FROM by_k") == [(0,)]
    database.sql("DELETE FROM pairs WHERE id >= 150")
    eventually(lambda: rows(database, "SELECT count(*) FROM by_k") == [(150,)])


def test_others_write_to_the_table_meanwhile(database: Database) -> None:
    """Every write of a client and of the sink is there in the end: each has its own keys."""
    database.sql("CREATE TABLE feed (id int PRIMARY KEY, v int); CREATE TABLE merged (id int PRIMARY KEY, v int)")
    database.sql("CREATE SINK s INTO merged FROM feed")
    failed: list[BaseException] = []

    def write(table: str, first: int) -> None:
        session = database.session()
        try:
            for i in range(first, first + 60):
                list(session.execute(f"INSERT INTO {table} VALUES ({i}, 0)"))
                list(session.execute(f"UPDATE {table} SET v = v + 1 WHERE id <= {i} AND id >= {first}"))
        except BaseException as error:
            failed.append(error)
        finally:
            session.close()

    threads = [threading.Thread(target=write, args=(t, n)) for t, n in (("feed", 0), ("merged", 1000))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    wanted = sorted([(i, 60 - i) for i in range(60)] + [(1000 + i, 60 - i) for i in range(60)], key=str)
    eventually(lambda: rows(database, "SELECT id, v FROM merged") == wanted)


def test_sinks_into_tables_do_not_feed_themselves(database: Database) -> None:
    database.sql("CREATE TABLE t1 (id int PRIMARY KEY); CREATE TABLE t2 (id int PRIMARY KEY)")
    database.sql("CREATE VIEW w1 AS SELECT id FROM t1; CREATE MATERIALIZED VIEW v1 AS SELECT id + 1 AS id FROM w1")
    database.sql("CREATE SINK s12 INTO t2 FROM v1; CREATE MATERIALIZED VIEW v2 AS SELECT id FROM t2")
    for sql, way in (
        ("CREATE SINK s INTO t1 FROM t1", '"t1" -> "s" -> "t1"'),
        ("CREATE SINK s INTO t1 FROM w1", '"t1" -> "s" -> "t1"'),
        ("CREATE SINK s INTO t2 FROM v2", '"t2" -> "v2" -> "s" -> "t2"'),
    ):
        with pytest.raises(HeadraceError) as caught:
            database.sql(sql)
        assert caught.value.sqlstate == "42P17" and caught.value.detail == way, (sql, caught.value.detail)
    with pytest.raises(HeadraceError) as caught:
        database.sql("CREATE SINK s INTO t1 AS SELECT id FROM v2 UNION ALL SELECT 1")
    assert str(caught.value.detail).endswith('"v1" -> "s12" -> "t2" -> "v2" -> "s" -> "t1"')
    assert [r[0] for r in database.sql("SHOW SINKS").rows()] == ["s12"]


def test_what_is_refused(database: Database) -> None:
    database.sql("CREATE TABLE k (id int PRIMARY KEY, v int NOT NULL, d int DEFAULT 7); CREATE TABLE n (a int, b int)")
    database.sql("CREATE TABLE f (a int) APPEND ONLY; CREATE TABLE i (a int PRIMARY KEY) ON CONFLICT IGNORE")
    database.sql("CREATE TABLE fk (a int PRIMARY KEY) APPEND ONLY; CREATE VIEW plain AS SELECT 1 AS a")
    database.sql("CREATE MATERIALIZED VIEW mv AS SELECT count(*) AS n FROM n")
    for sql, text in (
        ("CREATE SINK s INTO missing FROM n", "42P01"),
        ("CREATE SINK s INTO mv FROM n", '42809 cannot put the changes into materialized view "mv"'),
        ("CREATE SINK s INTO plain FROM n", "42809"),
        ("CREATE SINK s INTO n FROM k", "42601 the sink's query has more columns"),
        ("CREATE SINK s INTO n (a, b) AS SELECT id FROM k", "42601 the sink's query has fewer columns"),
        ("CREATE SINK s INTO n (a, x) AS SELECT id, v FROM k", '42703 column "x"'),
        ("CREATE SINK s INTO k (v, d) FROM n", '23502 the sink\'s query leaves out the column "id"'),
        ("CREATE SINK s INTO k (id, d) FROM n", '23502 the sink\'s query leaves out the column "v"'),
        ("CREATE SINK s INTO k FROM n", '0A000 a sink that leaves out the column "d", which has a DEFAULT'),
        ("CREATE SINK s INTO n AS SELECT id, v > 1 FROM k", '42804 column "b" is of type int'),
        ("CREATE SINK s INTO n AS SELECT id, v FROM k", '0A000 an append-only sink into "n" of rows that may be'),
        ("CREATE SINK s INTO f AS SELECT id FROM k", '0A000 an append-only sink into "f" of rows that may be'),
        ("CREATE SINK s INTO n FROM f WITH (type = 'upsert')", '22023 a sink of type upsert into "n", which has no'),
        ("CREATE SINK s INTO i AS SELECT a FROM n", '0A000 a sink of type upsert into "i", which is ON CONFLICT'),
        ("CREATE SINK s INTO fk FROM f", '0A000 a sink into "fk", which is APPEND ONLY and has a primary key'),
        ("CREATE SINK s INTO i FROM f WITH (type = 'append-only', primary_key = 'b')", "22023 option primary_key"),
        ("CREATE SINK s INTO i FROM f WITH (type = 'debezium')", "22023 option type must be one of"),
        ("CREATE SINK s INTO n FROM f WITH (connector = 'blackhole')", "22023 unknown option connector"),
        ("CREATE SINK s INTO n FROM f WITH (connection = c)", "22023 a sink into a table has no connector"),
        ("CREATE SINK s INTO n FROM f FORMAT PLAIN ENCODE JSON", "22023 unknown option format"),
        ("CREATE SINK s INTO n FROM f WITH (checkpoint_group = 'g')", "0A000 option checkpoint_group"),
        ("CREATE SINK s INTO n AS SELECT 1", "0A000 a sink of a query that reads nothing"),
    ):  # fmt: skip
        assert refused(database, sql).startswith(text), (sql, refused(database, sql))
    assert database.sql("SHOW SINKS").rows() == []
    plan = [r[0] for r in database.sql("EXPLAIN CREATE SINK s INTO n FROM f").rows()]
    assert plan[:2] == ["into table: [a int, b int]", "    state into/rows: until the table has them"]
    database.sql("CREATE SINK s INTO n FROM f")
    assert refused(database, "ALTER SINK s SET (checkpoint_group = 'g')").startswith("22023")


def test_rows_that_the_table_cannot_take_stop_the_sink(database: Database) -> None:
    """They are told, nothing of their epoch is there, and it goes on when they are mended."""
    database.sql("CREATE TABLE pairs (id int PRIMARY KEY, k int, v int); CREATE TABLE by_k (k int PRIMARY KEY, v int)")
    database.sql("CREATE SINK s INTO by_k AS SELECT k, v FROM pairs")
    database.sql("INSERT INTO pairs VALUES (1, 1, 1)")
    eventually(lambda: rows(database, "SELECT * FROM by_k") == [(1, 1)])

    def said() -> str:
        return str(next(r[4] for r in database.sql("SHOW JOBS").rows() if r[1] == "s"))

    database.sql("INSERT INTO pairs VALUES (2, 2, 1), (3, 2, 2), (4, 4, 4)")
    eventually(lambda: "(k) does not tell the rows of the sink apart: 2 is NULL or stands for several" in said())
    assert rows(database, "SELECT * FROM by_k") == [(1, 1)]
    database.sql("DELETE FROM pairs WHERE id = 2")
    eventually(lambda: rows(database, "SELECT * FROM by_k") == [(1, 1), (2, 2), (4, 4)])
    database.sql("INSERT INTO pairs VALUES (5, NULL, 1)")
    eventually(lambda: 'null value in column "k"' in said())
    database.sql("ALTER SINK s PAUSE; DELETE FROM pairs WHERE id = 5; ALTER SINK s RESUME; UPDATE pairs SET v = 9")
    eventually(lambda: rows(database, "SELECT * FROM by_k") == [(1, 9), (2, 9), (4, 9)])


def test_who_may_write_into_a_table(database: Database) -> None:
    root = database.session()
    for sql in (
        "CREATE ROLE ina LOGIN",
        "CREATE TABLE src (id int PRIMARY KEY)",
        "CREATE TABLE dst (id int PRIMARY KEY)",
        "GRANT CREATE ON SCHEMA public TO ina",
        "GRANT SELECT ON src TO ina",
        "GRANT INSERT ON dst TO ina",
    ):
        list(root.execute(sql))
    ina = database.session(user="ina")
    with pytest.raises(HeadraceError, match="permission denied for table dst"):
        list(ina.execute("CREATE SINK mine INTO dst FROM src"))
    list(root.execute("GRANT UPDATE, DELETE ON dst TO ina"))
    list(ina.execute("CREATE SINK mine INTO dst FROM src"))
    list(ina.execute("DROP SINK mine"))
    for sql in ("DROP OWNED BY ina", "DROP ROLE ina", "DROP TABLE src", "DROP TABLE dst"):
        list(root.execute(sql))
    ina.close()
    root.close()


def test_it_goes_on_after_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    with connect(tmp_path, spark=spark, settings=settings(tmp_path)) as database:
        database.sql("CREATE TABLE a (id int PRIMARY KEY, v int); CREATE TABLE b (v int, id int PRIMARY KEY)")
        database.sql("INSERT INTO a VALUES (1, 1), (2, 2); CREATE SINK s INTO b (id, v) FROM a")
        eventually(lambda: rows(database, "SELECT id, v FROM b") == [(1, 1), (2, 2)])
    with connect(tmp_path, spark=spark, settings=settings(tmp_path)) as database:
        assert rows(database, "SELECT id, v FROM b") == [(1, 1), (2, 2)]
        database.sql("UPDATE a SET v = 5 WHERE id = 1; DELETE FROM a WHERE id = 2")
        eventually(lambda: rows(database, "SELECT id, v FROM b") == [(1, 5)])
