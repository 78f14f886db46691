"""Keys that are encoded otherwise than values, and topics that brokers make."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headrace.common.columns import Column
from headrace.connectors.kafka.plain_keys import key_form
from headrace.connectors.sinks import SinkPosition, open_sink
from headrace.errors import HeadraceError, SinkError
from kafka import Kafka, NoKafka, kafka_server

COLUMNS = [
    Column("id", "bigint"), Column("name", "string"), Column("raw", "binary"), Column("many", "array<bigint>"),
    Column("price", "decimal(10,2)"), Column("day", "date"), Column("x", "double"), Column("yes", "boolean"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value", "written"), [
    ("id", 7, b"7"), ("name", 'a "b"\\', b'a "b"\\'), ("name", "", b""), ("price", Decimal("2.50"), b"2.50"),
    ("day", datetime.date(2026, 3, 14), b"2026-03-14"), ("yes", True, b"true"), ("x", 0.5, b"0.5"),
    ("x", float("nan"), b"nan"), ("name", "1", b"1"),
])  # fmt: skip
def test_a_key_is_its_text(name: str, value: Any, written: bytes) -> None:
    assert key_form("text", "upsert", [name], COLUMNS).key({name: value}) == written


def test_a_key_is_its_bytes_or_an_object() -> None:
    assert key_form("bytes", "plain", ["raw"], COLUMNS).key({"raw": b"\0\xff"}) == b"\0\xff"
    both = key_form("json", "upsert", ["id", "name"], COLUMNS)
    assert json.loads(both.key({"id": 1, "name": "a", "x": 3.0})) == {"id": 1, "name": "a"}


def test_a_null_has_no_text() -> None:
    with pytest.raises(SinkError, match='NULL in "name"'):
        key_form("text", "upsert", ["name"], COLUMNS).key({"name": None})


@pytest.mark.parametrize(("encoding", "format", "names", "message"), [
    ("text", "debezium", ["id"], "FORMAT DEBEZIUM"), ("text", "plain", [], "needs the option primary_key"),
    ("text", "upsert", ["id", "name"], "one column"), ("text", "upsert", ["raw"], "a text, a number"),
    ("text", "upsert", ["many"], "a text, a number"), ("bytes", "upsert", ["name"], "bytea"),
])  # fmt: skip
def test_keys_that_cannot_be(encoding: str, format: str, names: list[str], message: str) -> None:
    with pytest.raises(HeadraceError, match=message):
        key_form(encoding, format, names, COLUMNS)


@pytest.fixture(scope="module")
def willing() -> Iterator[Kafka]:
    """A broker that makes the topics which it is asked for."""
    try:
        with kafka_server({"auto.create.topics.enable": "true"}) as found:
            yield found
    except NoKafka as error:
        pytest.skip(str(error))


def _options(kafka: Kafka, topic: str) -> dict[str, str]:
    return {"connector": "kafka", "topic": topic, "properties.bootstrap.server": kafka.servers, "format": "upsert",
            "encode": "json", "key.encode": "text", "type": "upsert", "primary_key": "id"}  # fmt: skip


def test_a_topic_is_made_where_brokers_do_so(willing: Kafka) -> None:
    sink = open_sink(_options(willing, "asked-for"), [Column("id", "bigint")])
    sink.reach()
    rows = pa.RecordBatch.from_pydict({"id": [7], "__w": [1]})
    sink.write(SinkPosition("made", 0, 10, 0, "a"), iter([rows]))
    assert [(m.key(), m.value()) for m in willing.records("asked-for")] == [(b"7", b'{"id":7}')]


def test_a_topic_that_nobody_makes_is_told(kafka: Kafka) -> None:
    with pytest.raises(HeadraceError, match="Unknown topic") as raised:
        open_sink(_options(kafka, "nobody-makes-it"), [Column("id", "bigint")]).reach()
    assert raised.value.hint == "create it there first"
    assert "nobody-makes-it" not in kafka.admin().list_topics(timeout=10).topics
