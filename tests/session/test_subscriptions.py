"""Subscriptions as clients use them: cursors, COPY (SUBSCRIBE ...), and `Database.subscribe`."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from clients import connect
from headrace.config import Settings
from headrace.errors import EpochTooOld, HeadraceError, InvalidParameter, QueryCanceled, SnapshotUnavailable
from headrace.server import ServerThread
from headrace.session.database import Database
from headrace.session.database import connect as connect_to
from support import eventually

Row = tuple[Any, ...]


@pytest.fixture
def wire(server: ServerThread) -> Iterator[psycopg.Connection[Any]]:
    with connect(server) as connection:
        yield connection


@pytest.fixture
def items(database: Database) -> Iterator[Database]:
    """A table with a primary key, a view of it, and a subscription to each."""
    database.sql("CREATE TABLE items (id int PRIMARY KEY, kind text, price int)")
    database.sql("CREATE MATERIALIZED VIEW kinds AS SELECT kind, sum(price) AS total FROM items GROUP BY kind")
    database.sql("CREATE SUBSCRIPTION items_log FROM items WITH (retention = '1 day')")
    database.sql("CREATE SUBSCRIPTION kinds_log FROM kinds WITH (retention = '1D')")
    yield database
    database.sql("DROP TABLE items CASCADE")


def fetched(connection: psycopg.Connection[Any], sql: str) -> list[Row]:
    return connection.execute(sql).fetchall()


def without_times(rows: list[Row]) -> list[Row]:
    return [row[:-1] for row in rows]


# ---- cursors


def test_a_cursor_gives_what_changes_from_now_on(items: Database, wire: psycopg.Connection[Any]) -> None:
    items.sql("INSERT INTO items VALUES (1, 'a', 10)")
    wire.execute("DECLARE c SUBSCRIPTION CURSOR FOR items_log")
    assert fetched(wire, "FETCH NEXT FROM c") == []
    items.sql("INSERT INTO items VALUES (2, 'b', 20)")
    items.sql("UPDATE items SET price = 11 WHERE id = 1")
    items.sql("DELETE FROM items WHERE id = 2")
    cursor = wire.execute("FETCH 10 FROM c")
    assert [c.name for c in cursor.description or ()] == ["id", "kind", "price", "op", "rw_timestamp"]
    rows = cursor.fetchall()
    assert without_times(rows) == [
        (2, "b", 20, "Insert"), (1, "a", 10, "UpdateDelete"), (1, "a", 11, "UpdateInsert"), (2, "b", 20, "Delete"),
    ]  # fmt: skip
    times = [row[-1] for row in rows]
    assert times == sorted(times) and times[1] == times[2]
    assert fetched(wire, "FETCH NEXT FROM c") == []
    wire.execute("CLOSE c")
    with pytest.raises(psycopg.Error) as caught:
        wire.execute("FETCH c")
    assert caught.value.sqlstate == "34000"


def test_full_gives_the_rows_first(items: Database, wire: psycopg.Connection[Any]) -> None:
    items.sql("INSERT INTO items VALUES (1, 'a', 10), (2, 'a', 20)")
    wire.execute("DECLARE c SUBSCRIPTION CURSOR FOR items_log FULL")
    items.sql("DELETE FROM items WHERE id = 1")
    first = fetched(wire, "FETCH 1 FROM c") + fetched(wire, "FETCH 1 FROM c")
    assert sorted(first) == [(1, "a", 10, "Insert", None), (2, "a", 20, "Insert", None)]
    assert without_times(fetched(wire, "FETCH ALL c")) == [(1, "a", 10, "Delete")]


def test_a_view_without_a_key_takes_away_before_it_adds(items: Database, wire: psycopg.Connection[Any]) -> None:
    wire.execute("DECLARE c SUBSCRIPTION CURSOR FOR kinds_log")
    items.sql("INSERT INTO items VALUES (1, 'a', 10), (2, 'b', 20)")
    items.flush()
    items.sql("UPDATE items SET price = price + 1")
    items.flush()
    rows = without_times(fetched(wire, "FETCH ALL c"))
    assert sorted(rows[:2]) == [("a", 10, "Insert"), ("b", 20, "Insert")]
    assert sorted(rows[2:4]) == [("a", 10, "Delete"), ("b", 20, "Delete")]
    assert sorted(rows[4:]) == [("a", 11, "Insert"), ("b", 21, "Insert")]


def test_fetch_waits_for_the_first_row(items: Database, wire: psycopg.Connection[Any]) -> None:
    wire.execute("DECLARE c SUBSCRIPTION CURSOR FOR items_log")
    assert fetched(wire, "FETCH 5 FROM c WITH (timeout = '10ms')") == []
    writer = threading.Timer(0.3, lambda: items.sql("INSERT INTO items VALUES (7, 'x', 1)"))
    writer.start()
    rows = fetched(wire, "FETCH 5 FROM c WITH (timeout = '60s')")
    writer.join()
    assert without_times(rows) == [(7, "x", 1, "Insert")]


def test_waiting_is_cancelled(items: Database, wire: psycopg.Connection[Any]) -> None:
    wire.execute("DECLARE c SUBSCRIPTION CURSOR FOR items_log")
    timer = threading.Timer(0.3, wire.cancel_safe)
    timer.start()
    with pytest.raises(psycopg.errors.QueryCanceled):
        wire.execute("FETCH c WITH (timeout = '1 hour')")
    timer.join()
    wire.execute("SET statement_timeout = '100ms'")
    with pytest.raises(psycopg.errors.QueryCanceled):
        wire.execute("FETCH c WITH (timeout = '1 hour')")
    wire.execute("SET statement_timeout = 0")
    items.sql("INSERT INTO items VALUES (1, 'x', 1)")
    assert without_times(fetched(wire, "FETCH c")) == [(1, "x", 1, "Insert")]


def test_a_fetch_that_is_cancelled_leaves_the_cursor_where_it_was(items: Database) -> None:
    session = items.session()
    items.sql("ALTER SYSTEM SET result_batch_rows = 5")
    try:
        assert list(session.execute("DECLARE c SUBSCRIPTION CURSOR FOR items_log"))
        items.sql("INSERT INTO items VALUES " + ", ".join(f"({i}, 'k', {i})" for i in range(20)))
        (found,) = session.execute("FETCH 3 FROM c")
        first = [row[0] for row in found.rows()]
        assert len(first) == 3
        (found,) = session.execute("FETCH ALL FROM c")
        assert found.follows  # what is read ahead of a client that then fails would be lost
        assert next(found.batches).num_rows == 5
        session.cancel()
        with pytest.raises(QueryCanceled):
            next(found.batches)
        assert list(session.execute("BEGIN"))
        (found,) = session.execute("FETCH ALL FROM c")
        session.cancel()
        with pytest.raises(QueryCanceled):
            found.rows()
        assert session.transaction_status == "E" and list(session.execute("ROLLBACK"))
        (found,) = session.execute("FETCH ALL FROM c")
        assert sorted([*first, *(row[0] for row in found.rows())]) == list(range(20))
    finally:
        items.sql("ALTER SYSTEM RESET result_batch_rows")
        session.close()


def test_since(items: Database, wire: psycopg.Connection[Any]) -> None:
    items.sql("INSERT INTO items VALUES (1, 'a', 1)")
    items.sql("INSERT INTO items VALUES (2, 'a', 2)")
    wire.execute("DECLARE c SUBSCRIPTION CURSOR FOR items_log SINCE begin()")
    rows = fetched(wire, "FETCH ALL c")
    assert [row[0] for row in rows] == [1, 2]
    wire.execute(f"DECLARE d SUBSCRIPTION CURSOR FOR items_log SINCE {rows[1][-1]}")
    assert fetched(wire, "FETCH ALL d")[-1] == rows[1]
    wire.execute("DECLARE e SUBSCRIPTION CURSOR FOR items_log SINCE proctime()")
    assert fetched(wire, "FETCH ALL e") == []
    with pytest.raises(psycopg.Error) as caught:
        wire.execute("DECLARE f SUBSCRIPTION CURSOR FOR items_log SINCE 4000000000000")
    assert caught.value.sqlstate == InvalidParameter.sqlstate
    with pytest.raises(psycopg.Error) as caught:
        wire.execute("DECLARE f SUBSCRIPTION CURSOR FOR items_log SINCE 'x'")
    assert caught.value.sqlstate == InvalidParameter.sqlstate


def test_a_position_within_an_epoch_goes_on_there(items: Database, server: ServerThread) -> None:
    with connect(server) as first:
        first.execute("DECLARE c SUBSCRIPTION CURSOR FOR items_log FULL")
        items.sql("INSERT INTO items VALUES " + ", ".join(f"({i}, 'k', {i + 1})" for i in range(20)))
        items.sql("UPDATE items SET price = -price")
        rows = fetched(first, "FETCH 33 FROM c")
        ((name, subscription, position),) = fetched(first, "SHOW SUBSCRIPTION CURSORS")
    assert (name, subscription) == ("c", "items_log")
    with connect(server) as second:
        second.execute(f"DECLARE c SUBSCRIPTION CURSOR FOR items_log SINCE '{position}'")
        rows += fetched(second, "FETCH ALL c")
    assert [row[3] for row in rows] == ["Insert"] * 20 + ["UpdateDelete", "UpdateInsert"] * 20
    assert len(set(rows)) == 60


def test_a_cursor_is_no_part_of_a_transaction(items: Database, wire: psycopg.Connection[Any]) -> None:
    wire.execute("BEGIN")
    wire.execute("DECLARE c SUBSCRIPTION CURSOR FOR items_log")
    wire.execute("ROLLBACK")
    items.sql("INSERT INTO items VALUES (1, 'a', 1)")
    assert without_times(fetched(wire, "FETCH c")) == [(1, "a", 1, "Insert")]
    with pytest.raises(psycopg.Error) as caught:
        wire.execute("DECLARE c SUBSCRIPTION CURSOR FOR items_log")
    assert caught.value.sqlstate == "42P03"
    with pytest.raises(psycopg.Error) as caught:
        wire.execute("FETCH PRIOR c")
    assert caught.value.sqlstate == "55000"
    wire.execute("DISCARD ALL")
    assert fetched(wire, "SHOW SUBSCRIPTION CURSORS") == []


def test_fetch_with_parameters_of_the_protocol(items: Database, server: ServerThread) -> None:
    """Drivers that prepare everything, and want binary values."""
    with connect(server, prepare_threshold=0) as connection, connection.cursor(binary=True) as cursor:
        cursor.execute("DECLARE c SUBSCRIPTION CURSOR FOR items_log")
        items.sql("INSERT INTO items VALUES (1, 'a', 1)")
        assert cursor.execute("FETCH 3 FROM c").fetchall()[0][:4] == (1, "a", 1, "Insert")
        assert cursor.execute("FETCH 3 FROM c").fetchall() == []


# ---- COPY (SUBSCRIBE ...)


def copied(connection: psycopg.Connection[Any], sql: str, rows: int) -> list[tuple[str, ...]]:
    """The first rows of a COPY in text format, which is cancelled then."""
    found: list[tuple[str, ...]] = []
    with pytest.raises(psycopg.errors.QueryCanceled), connection.cursor() as cursor, cursor.copy(sql) as copy:
        for row in copy.rows():
            found.append(tuple(row))
            if len(found) == rows:
                connection.cancel_safe()
    return found


def test_copy_streams_changes(items: Database, wire: psycopg.Connection[Any]) -> None:
    items.sql("INSERT INTO items VALUES (1, 'a', 1)")
    writer = threading.Timer(0.3, lambda: items.sql("UPDATE items SET price = 2"))
    writer.start()
    rows = copied(wire, "COPY (SUBSCRIBE items FULL) TO STDOUT", 3)
    writer.join()
    assert [row[1:] for row in rows] == [
        ("Insert", "1", "a", "1"), ("UpdateDelete", "1", "a", "1"), ("UpdateInsert", "1", "a", "2"),
    ]  # fmt: skip
    items.sql("DELETE FROM items")
    sql = f"COPY (SUBSCRIBE items_log SINCE {rows[0][0]}) TO STDOUT (FORMAT csv, HEADER)"
    with pytest.raises(psycopg.errors.QueryCanceled), wire.cursor() as cursor, cursor.copy(sql) as copy:
        assert bytes(copy.read()) == b"epoch,op,id,kind,price\n"
        assert bytes(copy.read()) == f"{rows[1][0]},UpdateDelete,1,a,1\n".encode()
        wire.cancel_safe()
        while copy.read():
            pass


def test_copy_tells_progress(items: Database, wire: psycopg.Connection[Any]) -> None:
    items.sql("INSERT INTO items VALUES (1, 'a', 1)")
    rows = copied(wire, "COPY (SUBSCRIBE items FULL WITH (progress)) TO STDOUT", 3)
    assert [row[1] for row in rows] == ["Insert", "Progress", "Progress"]
    assert rows[0][0] == rows[1][0] and rows[1][2:] == (None, None, None)
    assert int(rows[2][0]) > int(rows[1][0])


def test_copy_ends_where_it_is_told(items: Database, wire: psycopg.Connection[Any]) -> None:
    items.sql("INSERT INTO items VALUES (1, 'a', 1)")
    items.sql("UPDATE items SET price = 2")
    sql = "COPY (SUBSCRIBE items_log SINCE begin() UP TO now() WITH (progress)) TO STDOUT"
    with wire.cursor() as cursor, cursor.copy(sql) as copy:
        rows = [tuple(row) for row in copy.rows()]
    assert [row[1] for row in rows if row[1] != "Progress"] == ["Insert", "UpdateDelete", "UpdateInsert"]
    assert rows[-1][1] == "Progress"


def test_copy_in_binary(items: Database, wire: psycopg.Connection[Any]) -> None:
    items.sql("INSERT INTO items VALUES (1, 'a', 1)")
    sql = "COPY (SUBSCRIBE items FULL) TO STDOUT (FORMAT binary)"
    with pytest.raises(psycopg.errors.QueryCanceled), wire.cursor() as cursor, cursor.copy(sql) as copy:
        copy.set_types(["int8", "text", "int4", "text", "int4"])
        assert copy.read_row()[1:] == ("Insert", 1, "a", 1)  # type: ignore[index]
        wire.cancel_safe()
        copy.read_row()


def test_a_client_that_goes_leaves_nothing_behind(items: Database, server: ServerThread) -> None:
    pins = items.coordinator._core.storage.pins
    before = len(pins)
    connection = connect(server)
    copying = connection.cursor().copy("COPY (SUBSCRIBE items FULL WITH (progress)) TO STDOUT")
    assert copying.__enter__().read_row() is not None
    assert len(pins) > before
    connection.pgconn.finish()
    eventually(lambda: len(pins) <= before)


def test_what_was_followed_is_dropped(database: Database, wire: psycopg.Connection[Any]) -> None:
    database.sql("CREATE TABLE gone (a int)")
    timer = threading.Timer(0.3, lambda: database.sql("DROP TABLE gone"))
    timer.start()
    sql = "COPY (SUBSCRIBE gone) TO STDOUT"
    with pytest.raises(psycopg.errors.UndefinedTable), wire.cursor() as cursor, cursor.copy(sql) as copy:
        list(copy.rows())
    timer.join()


# ---- Python


def test_subscribe_in_python(items: Database) -> None:
    items.sql("INSERT INTO items VALUES (1, 'a', 1), (2, 'b', 2)")
    with items.subscribe("items", since="full") as changes:
        whole = next(changes)
        assert whole.snapshot and whole.complete and whole.batch.num_rows == 2
        assert whole.batch.schema.names == ["id", "kind", "price", "op"]
        items.sql("UPDATE items SET price = 5 WHERE id = 1")
        items.sql("DELETE FROM items WHERE id = 2")
        update = next(changes)
        position = update.position
        assert update.batch.to_pylist() == [
            {"id": 1, "kind": "a", "price": 1, "op": "UpdateDelete"},
            {"id": 1, "kind": "a", "price": 5, "op": "UpdateInsert"},
        ]
        assert not update.snapshot and update.complete and update.epoch > whole.epoch
        assert next(changes).batch.column("op").to_pylist() == ["Delete"]
        assert changes.poll(0.0) is None
    assert next(changes, None) is None
    with items.subscribe("items_log", since=position) as again:
        assert next(again).batch.column("op").to_pylist() == ["Delete"]
    with items.subscribe("items", since=update.epoch) as again:
        assert next(again).batch.column("op").to_pylist() == ["Delete"]
    with items.subscribe("items", since=update.at) as again:
        assert next(again).epoch == update.epoch


def test_an_empty_relation_is_told_once(items: Database) -> None:
    with items.subscribe("items", since="full") as changes:
        found = next(changes)
        assert found.snapshot and found.complete and found.batch.num_rows == 0
        assert changes.poll(0.0) is None


def test_subscribe_in_asyncio(items: Database) -> None:
    async def follow() -> list[int]:
        found: list[int] = []
        async with items.subscribe("items") as changes:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(anext(changes), 0.2)
            items.sql("INSERT INTO items VALUES (1, 'a', 1)")
            items.sql("INSERT INTO items VALUES (2, 'a', 2)")
            async for change in changes:
                found += change.batch.column("id").to_pylist()
                if len(found) == 2:
                    return found
        return found

    assert asyncio.run(follow()) == [1, 2]


def test_what_a_closed_loop_was_waiting_for_is_not_lost(items: Database) -> None:
    with items.subscribe("items") as changes:

        async def give_up() -> None:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(anext(changes), 0.2)

        async def go_on() -> list[int]:
            return [(await anext(changes)).batch.column("id").to_pylist()[0] for _ in range(2)]

        before = changes.position
        asyncio.run(give_up())
        items.sql("INSERT INTO items VALUES (1, 'a', 1)")
        assert changes.position == before
        items.sql("INSERT INTO items VALUES (2, 'a', 2)")
        assert asyncio.run(go_on()) == [1, 2]
        assert changes.position != before


def test_values_are_those_of_a_query(database: Database, server: ServerThread) -> None:
    database.sql(
        "CREATE TABLE kinds_of_values (i int, b boolean, d double precision, n numeric(10, 2), t text, j jsonb, "
        "p interval, c date, z timestamptz, a int[])"
    )
    database.sql(
        "INSERT INTO kinds_of_values VALUES (1, true, 'NaN', 1.50, 'é', '{\"a\": [1]}', '1 mon 2 days', '2024-02-29', "
        "'2024-02-29 10:00+00', ARRAY[1, NULL]), (NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)"
    )
    database.sql("CREATE SUBSCRIPTION kinds_of_values_log FROM kinds_of_values WITH (retention = '1h')")
    with connect(server) as wire:
        wire.execute("DECLARE c SUBSCRIPTION CURSOR FOR kinds_of_values_log FULL")
        changes = {str(row[:-2]) for row in fetched(wire, "FETCH ALL c")}
        assert changes == {str(row) for row in fetched(wire, "SELECT * FROM kinds_of_values")}
    with database.subscribe("kinds_of_values", since="full") as following:
        found = next(following).batch.drop_columns(["op"]).to_pylist()
    queried = database.sql("SELECT * FROM kinds_of_values").to_arrow().to_pylist()
    assert sorted(map(str, found)) == sorted(map(str, queried))
    database.sql("DROP TABLE kinds_of_values CASCADE")


def test_rows_that_are_there_twice_come_twice(database: Database) -> None:
    database.sql("CREATE TABLE bag (a int)")
    with database.subscribe("bag") as changes:
        database.sql("INSERT INTO bag VALUES (1), (1), (2), (1)")
        found = next(changes)
    assert Counter(found.batch.column("a").to_pylist()) == {1: 3, 2: 1}
    database.sql("DROP TABLE bag")


def test_a_database_in_which_nothing_has_happened(spark: SparkSession) -> None:
    """There is no complete epoch yet."""
    with connect_to(spark=spark, settings=Settings(run_fsync=False, barrier_interval_ms=3_600_000)) as fresh:
        fresh.sql("CREATE TABLE first (a int)")
        fresh.sql("CREATE SUBSCRIPTION s FROM first WITH (retention = '1h')")
        with fresh.subscribe("s") as now, fresh.subscribe("s", since="full") as full:
            assert next(full).batch.num_rows == 0
            fresh.sql("INSERT INTO first VALUES (1)")
            assert next(now).batch.num_rows == next(full).batch.num_rows == 1


def test_a_view_that_is_being_created_is_refused(items: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    core = items.coordinator._core
    monkeypatch.setattr(core.live.graph, "is_filled", lambda relation_id: False)
    for sql in ("CREATE SUBSCRIPTION other FROM kinds WITH (retention = '1h')", "COPY (SUBSCRIBE kinds) TO STDOUT"):
        with pytest.raises(SnapshotUnavailable, match="still being created"):
            items.sql(sql)


# ---- what there is


def test_a_subscription_is_an_object(items: Database, wire: psycopg.Connection[Any]) -> None:
    assert fetched(wire, "SHOW SUBSCRIPTIONS") == [("items_log",), ("kinds_log",)]
    assert fetched(wire, "SHOW CREATE SUBSCRIPTION items_log") == [
        ("items_log", "CREATE SUBSCRIPTION items_log FROM items WITH (retention = '1 day')")
    ]
    shown = fetched(wire, "SELECT name, relation, retention_ms FROM headrace_catalog.subscriptions ORDER BY name")
    assert shown == [("items_log", "items", 86_400_000), ("kinds_log", "kinds", 86_400_000)]
    assert fetched(wire, "SELECT name, retention_seconds FROM rw_catalog.rw_subscriptions ORDER BY name") == [
        ("items_log", 86_400), ("kinds_log", 86_400),
    ]  # fmt: skip
    wire.execute("ALTER SUBSCRIPTION items_log SET (retention = '2 hours')")
    assert fetched(wire, "SELECT retention_ms FROM headrace_catalog.subscriptions WHERE name = 'items_log'") == [
        (7_200_000,)
    ]
    ((_, text),) = fetched(wire, "SHOW CREATE SUBSCRIPTION items_log")
    assert text == """CREATE SUBSCRIPTION "public"."items_log" FROM "public"."items" WITH (retention = '2 hours')"""
    with pytest.raises(psycopg.errors.DependentObjectsStillExist) as caught:
        wire.execute("DROP MATERIALIZED VIEW kinds")
    assert "subscription kinds_log depends on materialized view kinds" in str(caught.value)
    wire.execute("DECLARE c SUBSCRIPTION CURSOR FOR kinds_log")
    wire.execute("DROP SUBSCRIPTION kinds_log")
    with pytest.raises(psycopg.errors.UndefinedObject):
        wire.execute("FETCH c")
    wire.execute("DROP SUBSCRIPTION IF EXISTS kinds_log")
    with pytest.raises(psycopg.errors.UndefinedObject):
        wire.execute("DROP SUBSCRIPTION kinds_log")


@pytest.mark.parametrize(("sql", "sqlstate"), [
    ("CREATE SUBSCRIPTION s FROM nothing WITH (retention = '1d')", "42P01"),
    ("CREATE SUBSCRIPTION s FROM items_log WITH (retention = '1d')", "42809"),
    ("CREATE SUBSCRIPTION s FROM items", "22023"),
    ("CREATE SUBSCRIPTION s FROM items WITH (retention = '0s')", "22023"),
    ("CREATE SUBSCRIPTION s FROM items WITH (retention = '-1d')", "22023"),
    ("CREATE SUBSCRIPTION s FROM items WITH (retention = 'long')", "22007"),
    ("CREATE SUBSCRIPTION s FROM items WITH (retention = '1d', other = 1)", "22023"),
    ("CREATE SUBSCRIPTION items FROM items WITH (retention = '1d')", "42P07"),
    ("CREATE SUBSCRIPTION items_log FROM items WITH (retention = '1d')", "42P07"),
    ("DROP TABLE items_log", "42809"),
    ("SELECT * FROM items_log", "42809"),
    ("DECLARE c SUBSCRIPTION CURSOR FOR items", "42809"),
    ("DECLARE c SUBSCRIPTION CURSOR FOR nothing", "42704"),
    ("COPY (SUBSCRIBE nothing) TO STDOUT", "42P01"),
    ("ALTER SUBSCRIPTION items_log SET (other = '1d')", "22023"),
    ("ALTER SUBSCRIPTION items_log PAUSE", "0A000"),
    ("GRANT SELECT ON SUBSCRIPTION items_log TO PUBLIC", "0A000"),
])  # fmt: skip
def test_what_is_refused(items: Database, wire: psycopg.Connection[Any], sql: str, sqlstate: str) -> None:
    with pytest.raises(psycopg.Error) as caught:
        wire.execute(sql)
    assert caught.value.sqlstate == sqlstate


def test_rights_are_those_of_now(items: Database, server: ServerThread) -> None:
    items.sql("CREATE ROLE follower LOGIN")
    session = items.session(user="follower")

    def run(sql: str) -> list[Row]:
        return [row for result in session.execute(sql) if result.columns is not None for row in result.rows()]

    def refused(sql: str) -> None:
        with pytest.raises(HeadraceError) as caught:
            run(sql)
        assert caught.value.sqlstate == "42501"

    items.sql("GRANT CREATE ON SCHEMA public TO follower")
    refused("CREATE SUBSCRIPTION own FROM items WITH (retention = '1h')")
    refused("DECLARE c SUBSCRIPTION CURSOR FOR items_log")
    refused("COPY (SUBSCRIBE items) TO STDOUT")
    items.sql("GRANT SELECT ON items TO follower")
    run("CREATE SUBSCRIPTION own FROM items WITH (retention = '1h')")
    run("DECLARE c SUBSCRIPTION CURSOR FOR items_log")
    refused("DROP SUBSCRIPTION items_log")
    refused("ALTER SUBSCRIPTION items_log SET (retention = '1s')")
    items.sql("INSERT INTO items VALUES (1, 'a', 1)")
    assert len(run("FETCH c")) == 1
    (copy,) = session.execute("COPY (SUBSCRIBE items FULL) TO STDOUT")
    assert next(copy.batches).num_rows == 1
    items.sql("REVOKE SELECT ON items FROM follower")
    items.sql("INSERT INTO items VALUES (2, 'a', 1)")
    refused("FETCH c")
    with pytest.raises(HeadraceError) as caught:
        next(copy.batches)
    assert caught.value.sqlstate == "42501"
    run("DROP SUBSCRIPTION own")
    session.close()
    items.sql("DROP OWNED BY follower")
    items.sql("DROP ROLE follower")


# ---- what they add up to


def test_changes_add_up_to_the_relation_at_every_epoch(items: Database) -> None:
    dice = random.Random(5)
    items.sql("INSERT INTO items VALUES (1, 'a', 1), (2, 'b', 2), (3, 'a', 3)")
    items.flush()
    with items.subscribe("items", since="full") as table, items.subscribe("kinds", since="full") as view:
        for number in range(24):
            ident, kind = dice.randrange(8), dice.choice("abc")
            items.sql(dice.choice([
                f"INSERT INTO items VALUES ({ident}, '{kind}', {number}), ({ident + 8}, '{kind}', {number})",
                f"UPDATE items SET price = price + 1 WHERE kind = '{kind}'",
                f"UPDATE items SET id = id + 20 WHERE id = {ident} AND NOT EXISTS (SELECT 1 FROM items WHERE id > 19)",
                f"DELETE FROM items WHERE id = {ident}",
            ]))  # fmt: skip
            if number % 6 == 5:
                items.flush()
                items.coordinator.compact()
                items.coordinator.vacuum()
        items.flush()
        for name, changes in (("items", table), ("kinds", view)):
            held: Counter[Row] = Counter()
            epochs = []
            while (change := changes.poll(0.0)) is not None:
                for *row, operation in zip(*(c.to_pylist() for c in change.batch.columns)):
                    held[tuple(row)] += 1 if operation.endswith("Insert") else -1
                if change.complete:
                    epochs.append(change.epoch)
                    then = items.sql(f"SELECT * FROM {name} FOR SYSTEM_TIME AS OF {change.epoch}").rows()
                    assert Counter(then) == +held and min(held.values(), default=0) >= 0
            assert epochs == sorted(set(epochs)) and len(epochs) > 3


# ---- retention


def test_history_is_kept_as_long_as_a_subscription_says(database: Database) -> None:
    database.sql("ALTER SYSTEM SET retention_ms = 0")
    try:
        starts = {}
        for name in ("kept", "lost"):
            database.sql(f"CREATE TABLE {name} (id int PRIMARY KEY, n int)")
            database.sql(f"CREATE SUBSCRIPTION {name}_log FROM {name} WITH (retention = '1 day')")
            with database.subscribe(name) as now:
                starts[name] = now.position
        database.sql("DROP SUBSCRIPTION lost_log")
        for i in range(30):
            database.sql(f"INSERT INTO kept VALUES (1, {i})")
            database.sql(f"INSERT INTO lost VALUES (1, {i})")
        eventually(lambda: database.coordinator.compact() >= 0 and _is_gone(database, "lost", starts["lost"]))
        database.coordinator.vacuum()
        with database.subscribe("kept", since=starts["kept"]) as changes:
            kept = [next(changes) for _ in range(30)]
        assert [c.batch.column("n").to_pylist()[-1] for c in kept] == list(range(30))
    finally:
        database.sql("ALTER SYSTEM RESET retention_ms")
        database.sql("DROP TABLE kept, lost CASCADE")


def _is_gone(database: Database, name: str, position: str) -> bool:
    try:
        database.subscribe(name, since=position).close()
    except EpochTooOld as error:
        assert error.sqlstate == "HR001" and "FULL" in (error.hint or "")
        return True
    return False


def test_an_open_reader_keeps_what_it_has_not_taken(items: Database) -> None:
    items.sql("DROP SUBSCRIPTION items_log")
    items.sql("ALTER SYSTEM SET retention_ms = 0")
    try:
        with items.subscribe("items") as changes:
            for i in range(40):
                items.sql(f"INSERT INTO items VALUES (1, 'a', {i})")
            items.coordinator.compact()
            assert [next(changes).batch.column("price").to_pylist()[-1] for _ in range(40)] == list(range(40))
    finally:
        items.sql("ALTER SYSTEM RESET retention_ms")
