"""Rows that a target refuses: how they are found, what is left out, and what PostgreSQL and receivers say."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from headrace.common.columns import Column
from headrace.connectors.refusals import RowsRefused, found, without
from headrace.connectors.sinks import Sink, SinkPosition, open_sink
from headrace.errors import InvalidParameter, NotSupported, SinkError
from kafka import Kafka
from postgres import HOST, Postgres
from receiver import receiving

COLUMNS = (Column("id", "bigint"), Column("v", "string"))


def batch(*rows: tuple[int | None, str | None, int]) -> pa.RecordBatch:
    arrays = [pa.array([r[i] for r in rows], t) for i, t in enumerate((pa.int64(), pa.string(), pa.int64()))]
    return pa.RecordBatch.from_arrays(arrays, names=["id", "v", "__w"])


@pytest.mark.parametrize("seed", range(20))
def test_each_refused_row_is_found_and_the_others_are_taken_once(seed: int) -> None:
    chance = random.Random(seed)
    rows = chance.randrange(200)
    bad = {i for i in range(rows) if chance.random() < chance.choice([0.01, 0.5])}
    taken: list[int] = []

    def attempt(low: int, high: int) -> str | None:
        if bad.intersection(range(low, high)):
            return "bad"
        taken.extend(range(low, high))
        return None

    assert [place for place, _ in found(rows, attempt, 1000)] == sorted(bad)
    assert taken == [i for i in range(rows) if i not in bad]
    assert len(list(found(rows, attempt, 3))) == min(3, len(bad))


def test_what_is_left_out_is_left_out_as_often_as_it_was_refused() -> None:
    changes = [batch((1, "a", 3), (2, "b", -1)), batch((1, "a", 1), (2, "b", 1), (3, None, 1))]
    left = Counter({("insert", '{"id":1,"v":"a"}'): 2, ("delete", '{"id":2,"v":"b"}'): 1})
    found_rows = [tuple(row.values()) for b in without(changes, 2, left) for row in b.to_pylist()]
    assert found_rows == [(1, "a", 1), (1, "a", 1), (2, "b", 1), (3, None, 1)]


def sink(server: Postgres, table: str, **options: str) -> Sink:
    place = {"host": HOST, "port": str(server.port), "user": "root", "database": server.dbname, "table": table}
    return open_sink({"connector": "postgres", **place, **options}, COLUMNS)


TO_TABLE = {"on_row_error": "dead_letter", "dead_letter_table": "t"}


def refused(made: Sink, *batches: pa.RecordBatch) -> list[tuple[str, str, str]]:
    made.reach()
    with pytest.raises(RowsRefused) as error:
        made.write(SinkPosition("refusals", 0, 10, 0, "a"), iter(batches))
    return [(r.op, r.row, r.error.rpartition("SQLSTATE ")[2][:5]) for r in error.value.refusals]


def test_postgres_tells_every_row_that_it_refuses(postgres: Postgres) -> None:
    postgres.execute("CREATE TABLE strict (id int PRIMARY KEY, v varchar(3) UNIQUE, CHECK (v <> 'no'))")
    postgres.execute("INSERT INTO strict VALUES (1, 'x'), (9, 'old')")
    made = sink(postgres, "strict", type="upsert", primary_key="id", **TO_TABLE)
    changes = [
        batch((1, "x", -1), (1, "yy", 1), (2, "long", 1), (3, "no", 1), (4, "4", 1)),
        batch((1 << 40, "4", 1), (5, "old", 1), (6, None, 1), (1 << 41, "gone", -1)),
    ]
    assert refused(made, *changes) == [
        ("insert", '{"id":2,"v":"long"}', "22001"),
        ("insert", '{"id":3,"v":"no"}', "23514"),
        ("insert", '{"id":1099511627776,"v":"4"}', "22003"),
        ("insert", '{"id":5,"v":"old"}', "23505"),
    ]
    with postgres.connect() as connection:
        assert connection.execute("SELECT * FROM strict ORDER BY 1").fetchall() == [(1, "x"), (9, "old")]
    one = sink(postgres, "strict", type="upsert", primary_key="id")
    assert refused(one, *changes) == [("insert", '{"id":2,"v":"long"}', "22001")]


def test_what_takes_the_place_of_a_row_that_was_never_taken_is_taken(postgres: Postgres) -> None:
    postgres.execute("CREATE TABLE mended (id int PRIMARY KEY, v varchar(3))")
    made = sink(postgres, "mended", type="upsert", primary_key="id", **TO_TABLE)
    made.reach()
    rows = batch((1, "long", -1), (1, "ok", 1), (2, "longer", -1), (1 << 40, "x", -1), (3, "c", 1))
    assert made.write(SinkPosition("mended", 0, 10, 0, "a"), iter([rows])) == 5
    with postgres.connect() as connection:
        assert connection.execute("SELECT * FROM mended ORDER BY 1").fetchall() == [(1, "ok"), (3, "c")]


def test_postgres_tells_rows_that_it_does_not_let_go(postgres: Postgres) -> None:
    postgres.execute("CREATE TABLE parent (id int PRIMARY KEY, v text)")
    postgres.execute("CREATE TABLE child (id int REFERENCES parent DEFERRABLE INITIALLY DEFERRED)")
    postgres.execute("INSERT INTO parent VALUES (1, 'a'), (2, 'b')")
    postgres.execute("INSERT INTO child VALUES (1)")
    made = sink(postgres, "parent", type="upsert", primary_key="id", **TO_TABLE)
    wanted = [("delete", '{"id":1,"v":"a"}', "23503")]
    assert refused(made, batch((1, "a", -1), (2, "b", -1))) == wanted, "a deferred constraint, too"


def test_appended_rows_that_are_refused(postgres: Postgres) -> None:
    postgres.execute("CREATE TABLE added (id int NOT NULL, v text)")
    made = sink(postgres, "added", type="append-only", **TO_TABLE)
    assert (
        refused(made, batch((1, "a", 1), (None, "b", 2), (2, "c", 1)))
        == [("insert", '{"id":null,"v":"b"}', "23502")] * 2
    )


def test_what_is_no_fault_of_a_row_is_no_refusal(postgres: Postgres) -> None:
    postgres.execute("CREATE TABLE full_disk (id int, v text)")
    postgres.execute(
        "CREATE FUNCTION full_up() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$"
    )
    postgres.execute("CREATE TRIGGER f BEFORE INSERT ON full_disk FOR EACH ROW EXECUTE FUNCTION full_up()")
    made = sink(postgres, "full_disk", type="append-only", **TO_TABLE)
    made.reach()
    with pytest.raises(Exception, match=r"could not extend file \(SQLSTATE 53100\)") as error:
        made.write(SinkPosition("full", 0, 10, 0, "a"), iter([batch((1, "a", 1))]))
    assert not isinstance(error.value, RowsRefused)


def topic_sink(kafka: Kafka, topic: str, format: str, **options: str) -> Sink:
    kind = {"type": "append-only"} if format == "plain" else {"primary_key": "id"}
    place = {"connector": "kafka", "topic": topic, "properties.bootstrap.server": kafka.servers}
    return open_sink({**place, **kind, "format": format, **TO_TABLE, **options}, COLUMNS)


def long(sign: str, length: int = 3_000) -> str:
    return "".join(random.Random(f"{sign}{i}").choice("0123456789abcdef") for i in range(length))


def test_a_broker_refuses_records_that_are_too_large(kafka: Kafka) -> None:
    """Too large for the topic, or for the client already; what is only together too large for the topic is taken."""
    topic = kafka.topic("short-records", 2, max_message_bytes="2000")
    made = topic_sink(kafka, topic, "plain", **{"properties.message.max.bytes": "5000"})
    rows = [(i, long(str(i), 500), 1) for i in range(300)]
    rows[7], rows[8], rows[290] = (7, long("a"), 2), (8, long("b", 9_000), 1), (290, long("c"), 1)
    with pytest.raises(RowsRefused) as error:
        made.write(SinkPosition("short", 0, 10, 0, "a"), iter([batch(*rows)]))
    told = Counter((r.op, json.loads(r.row)["id"]) for r in error.value.refusals)
    assert told == Counter({("insert", 7): 2, ("insert", 8): 1, ("insert", 290): 1})
    assert all("too large" in r.error for r in error.value.refusals) and not kafka.records(topic)
    left = Counter((r.op, r.row) for r in error.value.refusals)
    others = list(without([batch(*rows)], 2, left))
    assert made.write(SinkPosition("short", 0, 10, 0, "b"), iter(others)) == 297
    assert sorted(json.loads(m.value())["id"] for m in kafka.records(topic)) == [
        i for i, *_ in rows if i not in (7, 8, 290)
    ]
    assert made.write(SinkPosition("short", 0, 10, 0, "c"), iter(others)) == 0, "it is there"


@pytest.mark.parametrize("format", ["upsert", "debezium"])
def test_a_broker_refuses_a_row_that_takes_the_place_of_another(kafka: Kafka, format: str) -> None:
    topic = kafka.topic(f"short-rows-{format}", 1, max_message_bytes="2000", cleanup_policy="compact")
    made = topic_sink(kafka, topic, format)
    made.write(SinkPosition(f"rows-{format}", 0, 10, 0, "a"), iter([batch((1, "a", 1), (2, "b", 1))]))
    rows = [batch((1, "a", -1), (1, long("a"), 1), (3, "c", 1)), batch((1, long("a"), -1), (1, long("a"), 1))]
    with pytest.raises(RowsRefused) as error:
        made.write(SinkPosition(f"rows-{format}", 10, 20, 0, "a"), iter(rows))
    (only,) = error.value.refusals
    assert (only.op, json.loads(only.row)) == ("insert", {"id": 1, "v": long("a")})
    others = list(without(rows, 2, Counter({(only.op, only.row): 1})))
    made.write(SinkPosition(f"rows-{format}", 10, 20, 0, "b"), iter(others))
    newest = {}
    for message in kafka.records(topic):
        value = None if message.value() is None else json.loads(message.value())
        newest[message.key()] = value["payload"]["after"] if value and format == "debezium" else value
    assert sorted(row["id"] for row in newest.values() if row is not None) == [2, 3]


FAR = (Column("id", "bigint"), Column("at", "timestamp"))


def far(*rows: tuple[int, int, int]) -> pa.RecordBatch:
    """Rows of an id, Unix microseconds and a weight."""
    types = (pa.int64(), pa.timestamp("us", "UTC"), pa.int64())
    arrays = [pa.array([r[i] for r in rows], t) for i, t in enumerate(types)]
    return pa.RecordBatch.from_arrays(arrays, names=["id", "at", "__w"])


@pytest.mark.parametrize("kind", ["plain", "upsert", "http"])
def test_values_that_json_has_not(kind: str, kafka: Kafka) -> None:
    last = 253402300799_000000  # of the year 9999
    rows = far(
        (1, 0, 1), (2, last + 1_000_000, 1), (3, last, 1), *([(4, last + 2_000_000, -1)] if kind != "plain" else [])
    )
    type = {"type": "append-only"} if kind == "plain" else {"type": "upsert", "primary_key": "id"}
    with receiving() as receiver:
        topic = kafka.topic(f"far-{kind}")
        place = {"connector": "kafka", "topic": topic, "properties.bootstrap.server": kafka.servers, "format": kind}
        if kind == "http":
            place = {"connector": "http", "url": receiver.url}
        made = open_sink({**place, **type, **TO_TABLE}, FAR)
        with pytest.raises(RowsRefused) as error:
            made.write(SinkPosition(f"far-{kind}", 0, 10, 0, "a"), iter([rows]))
        wanted = [("insert", '{"id":2,"at":"10000-01-01 00:00:00.000000Z"}'),
                  ("delete", '{"id":4,"at":"10000-01-01 00:00:01.000000Z"}')]  # fmt: skip
        told = [(r.op, r.row) for r in error.value.refusals]
        assert told == wanted[: len(rows) - 2] and error.value.delivered is None
        others = list(without([rows], 2, Counter(told)))
        assert made.write(SinkPosition(f"far-{kind}", 0, 10, 0, "b"), iter(others)) == 2


def test_without_a_table_a_record_that_is_too_large_is_named(kafka: Kafka) -> None:
    topic = kafka.topic("strict-records", 1, max_message_bytes="2000")
    made = open_sink({"connector": "kafka", "topic": topic, "properties.bootstrap.server": kafka.servers,
                      "format": "plain", "type": "append-only"}, COLUMNS)  # fmt: skip
    with pytest.raises(RowsRefused) as error:
        made.write(
            SinkPosition("strict", 0, 10, 0, "a"), iter([batch((1, "a", 1), (2, long("b"), 1), (3, long("c"), 1))])
        )
    assert (
        "refuses a row for good" in error.value.failure().message and '{"id":2,"v":"' in error.value.failure().message
    )


@pytest.mark.parametrize("upserts", [True, False])
def test_a_receiver_takes_the_others(upserts: bool) -> None:
    kind = {"type": "upsert", "primary_key": "id"} if upserts else {"type": "append-only"}
    with receiving() as receiver:
        bad = ({"id": 3, "v": "3"}, {"id": 8, "v": "8"}, {"id": 99})
        receiver.refuses = lambda row: row.get("row", row.get("key", row)) in bad
        made = open_sink({"connector": "http", "url": receiver.url, "batch.rows": "6", **kind, **TO_TABLE}, COLUMNS)
        rows = [batch(*((i, str(i), 1) for i in range(20)), *([(99, "x", -1)] if upserts else []))]
        for _ in range(2):  # the same again, as after a crash
            with pytest.raises(RowsRefused) as error:
                made.write(SinkPosition("refusals", 0, 10, 0, "a"), iter(rows))
            told = [(r.op, r.row) for r in error.value.refusals]
            wanted = [("insert", '{"id":3,"v":"3"}'), ("insert", '{"id":8,"v":"8"}')]
            assert sorted(told) == ([("delete", '{"id":99}')] if upserts else []) + wanted
            assert error.value.delivered == len(rows[0]) - len(told)
            assert "it answered 422" in error.value.refusals[0].error
        taken = Counter((i, str(i)) for i in range(20) if i not in (3, 8))
        assert (receiver.upserted("id") if upserts else receiver.added()) == taken and not receiver.changed
        plain = open_sink({"connector": "http", "url": receiver.url, **kind}, COLUMNS)
        with pytest.raises(SinkError, match="refuses a request: it answered 422"):
            plain.write(SinkPosition("plain", 0, 10, 0, "a"), iter(rows))


@pytest.mark.parametrize("options", [{"on_row_error": "dead_letter"}, {"dead_letter_table": "t"}])
def test_policy_and_table_need_each_other(options: dict[str, Any], postgres: Postgres) -> None:
    with pytest.raises(InvalidParameter, match="need each other"):
        sink(postgres, "x", type="append-only", **options)


def test_where_rows_are_not_refused_there_is_no_policy() -> None:
    with pytest.raises(NotSupported, match="on_row_error = 'dead_letter' of a sink with connector files"):
        open_sink({"connector": "files", "path": "/x", "type": "append-only", **TO_TABLE}, COLUMNS)
