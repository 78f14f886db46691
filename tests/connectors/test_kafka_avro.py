"""Records in Avro: logical types, other schemas over time, deletions, and what cannot be read."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from headrace.common.columns import Column, arrow_schema
from headrace.connectors.kafka.avro import AvroForm, columns_of, record_schema
from headrace.connectors.kafka.envelopes import Form, Record, changes, record
from headrace.connectors.kafka.message_rows import RecordShape
from headrace.connectors.kafka.registry import Registry
from headrace.connectors.kafka.source import KafkaSource
from headrace.connectors.sinks import open_sink
from headrace.connectors.sources import infer_columns
from headrace.errors import InvalidParameter, NotSupported, SinkError, SourceError
from schema_registry import SchemaRegistry, framed, schema_registry, unframed

FIELDS: list[dict[str, Any]] = [
    {"name": "id", "type": "long"},
    {"name": "name", "type": ["null", "string"], "default": None},
    {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
    {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "at_us", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
    {"name": "here", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
    {"name": "who", "type": {"type": "string", "logicalType": "uuid"}},
    {"name": "raw", "type": "bytes"},
    {"name": "kind", "type": {"type": "enum", "name": "K", "symbols": ["A", "B"]}},
    {"name": "tags", "type": {"type": "array", "items": ["null", "string"]}},
    {"name": "more", "type": {"type": "map", "values": "double"}},
    {"name": "place", "type": {"type": "record", "name": "P", "fields": [{"name": "x", "type": "int"}]}},
    {"name": "clock", "type": {"type": "long", "logicalType": "time-micros"}},
]
SCHEMA = {"type": "record", "name": "R", "fields": FIELDS}
WHO = uuid.UUID(int=7)
VALUE = {
    "id": 1, "name": None, "price": Decimal("-2.50"), "day": date(2024, 2, 29), "at": datetime(2024, 1, 1, tzinfo=UTC),
    "at_us": datetime(1969, 1, 1, 0, 0, 0, 7, UTC), "here": datetime(2024, 1, 1, 5), "who": WHO, "raw": b"\x00\xff",
    "kind": "B", "tags": ["a", None], "more": {"k": 1.5}, "place": {"x": 3}, "clock": time(1, 2, 3, 4),
}  # fmt: skip
SMALL = {"type": "record", "name": "S", "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": "string"}]}
PAIR = (Column("a", "int"), Column("b", "string"))


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with schema_registry() as found:
        yield found


def message(value: bytes | None, key: bytes | None = None, offset: int = 0) -> Any:
    return SimpleNamespace(value=lambda: value, key=lambda: key, offset=lambda: offset)


def options(registry: SchemaRegistry, **more: str) -> dict[str, str]:
    place = {"connector": "kafka", "topic": "t", "properties.bootstrap.server": "h:1", "encode": "avro"}
    return {**place, "encode.schema.registry": registry.url, **more}


def shape(registry: SchemaRegistry, columns: Sequence[Column], format: str = "plain", **more: str) -> RecordShape:
    return RecordShape.of("t", format, "avro", columns, options(registry, **more))


def rows(found: RecordShape, *messages: Any, on_error: str = "fail") -> list[Mapping[str, Any]]:
    return found.rows(messages, 0, on_error).batch.to_pylist()


def test_every_type_and_the_columns_that_it_is(registry: SchemaRegistry) -> None:
    number = registry.add("t-value", SCHEMA)
    columns = infer_columns(options(registry))
    assert {c.name: c.type for c in columns} == {
        "id": "bigint", "name": "string", "price": "decimal(10,2)", "day": "date", "at": "timestamp",
        "at_us": "timestamp", "here": "timestamp_ntz", "who": "string", "raw": "binary", "kind": "string",
        "tags": "array<string>", "more": "map<string,double>", "place": "struct<x:int>", "clock": "string",
    }  # fmt: skip
    (found,) = rows(shape(registry, columns), message(framed(number, SCHEMA, VALUE)))
    assert found == {**VALUE, "who": str(WHO), "more": [("k", 1.5)], "clock": "01:02:03.000004"}


def test_writers_go_on_to_other_schemas(registry: SchemaRegistry) -> None:
    fields = [{"name": "b", "type": ["null", "string"]}, {"name": "a", "type": "long"}, {"name": "c", "type": "int"}]
    other = {"type": "record", "name": "S", "fields": fields}
    lone = {"type": "record", "name": "S", "fields": [{"name": "b", "type": "string"}]}
    records = [(SMALL, {"a": 1, "b": "x"}), (other, {"a": 2, "b": None, "c": 5}), (lone, {"b": "y"})]
    messages = [message(framed(registry.add("t-value", s), s, v)) for s, v in records]
    wanted = [{"a": 1, "b": "x"}, {"a": 2, "b": None}, {"a": None, "b": "y"}]
    assert rows(shape(registry, PAIR), *messages, *messages) == wanted * 2
    assert len(registry.asked) == 3, "each schema is asked for once"
    nested = {"type": "record", "name": "N", "fields": [{"name": "b", "type": SMALL}]}
    number = registry.add("t-value", nested)
    (found,) = rows(shape(registry, PAIR), message(framed(number, nested, {"b": {"a": 1, "b": "x"}})))
    assert found == {"a": None, "b": '{"a":1,"b":"x"}'}


def test_fields_stand_for_columns_that_they_differ_from_in_capitals_alone(registry: SchemaRegistry) -> None:
    fields = [{"name": "A", "type": "long"}, {"name": "b", "type": "string"}, {"name": "B", "type": "string"}]
    both = {"type": "record", "name": "S", "fields": fields}
    twice = {
        "type": "record",
        "name": "S",
        "fields": [fields[0], fields[2] | {"name": "Bb"}, fields[2] | {"name": "bB"}],
    }
    good = message(framed(registry.add("t-value", both), both, {"A": 1, "b": "x", "B": "y"}))
    assert rows(shape(registry, PAIR), good, good, good) == [{"a": 1, "b": "x"}] * 3
    bad = message(framed(registry.add("t-value", twice), twice, {"A": 1, "Bb": "x", "bB": "y"}))
    with pytest.raises(SourceError, match="Bb and bB differ from bb in capitals alone"):
        rows(shape(registry, (PAIR[0], Column("bb", "string"))), bad)


def test_what_cannot_be_read_is_a_row_at_fault(registry: SchemaRegistry) -> None:
    number = registry.add("t-value", SMALL)
    good = framed(number, SMALL, {"a": 1, "b": "x"})
    text = registry.add("t-value", "string")
    big = {"type": "record", "name": "S", "fields": [{"name": "a", "type": "long"}]}
    for bad, why in (
        (b"", "does not begin with the id"),
        (b'{"a": 1}', "does not begin with the id"),
        (good[:-1], "not of the schema"),
        (good + b"\x00", "1 bytes are left"),
        (framed(99, SMALL, {"a": 1, "b": "x"}), "no schema 99"),
        (framed(text, "string", "x"), "not that of a record"),
        (framed(registry.add("t-value", big), big, {"a": 1 << 40}), "out of range"),
        (None, "without value"),
    ):
        found = shape(registry, PAIR)
        with pytest.raises(SourceError, match=why):
            rows(found, message(good), message(bad))
        assert rows(found, message(good), message(bad), on_error="skip") == [{"a": 1, "b": "x"}]
        assert len(rows(found, message(good), message(bad), on_error="null")) == 2


def test_changes_by_key_and_of_debezium(registry: SchemaRegistry) -> None:
    number, key = registry.add("t-value", SMALL), {**SMALL, "name": "K", "fields": SMALL["fields"][:1]}  # type: ignore[index]
    key_id = registry.add("t-key", key)
    columns, more = (*PAIR, Column("op", "string")), {"include.operation": "op"}
    messages = [
        message(framed(number, SMALL, {"a": 1, "b": "x"}), framed(key_id, key, {"a": 1})),
        message(None, framed(key_id, key, {"a": 1})),
        message(None, b"\x00raw"),
    ]
    found = rows(shape(registry, columns, "upsert", **more), *messages)
    assert [(r["a"], r["b"], r["op"]) for r in found] == [
        (1, "x", "upsert"), (1, None, "delete"), (None, None, "delete"),
    ]  # fmt: skip
    row = {"type": "record", "name": "Value", "fields": SMALL["fields"]}
    envelope = {"type": "record", "name": "Envelope", "fields": [
        {"name": "before", "type": ["null", row]}, {"name": "after", "type": ["null", "Value"]},
        {"name": "op", "type": "string"},
    ]}  # fmt: skip
    number = registry.add("t-value", envelope)
    before, after = {"a": 1, "b": "x"}, {"a": 1, "b": "y"}
    changes = [
        {"before": before, "after": after, "op": "u"}, {"before": after, "after": None, "op": "d"},
        {"before": None, "after": None, "op": "c"},
    ]  # fmt: skip
    messages = [*(message(framed(number, envelope, c)) for c in changes), message(None)]
    found = rows(shape(registry, columns, "debezium", **more), *messages, on_error="skip")
    assert [(r["b"], r["op"]) for r in found] == [("y", "upsert"), ("y", "delete")]
    assert [c.name for c in infer_columns(options(registry, format="debezium"))] == ["a", "b"]


def test_a_registry_that_does_not_answer_is_no_fault_of_a_row(registry: SchemaRegistry) -> None:
    good = message(framed(registry.add("t-value", SMALL), SMALL, {"a": 1, "b": "x"}))
    registry.fails = 503
    found = shape(registry, PAIR)
    for policy in ("skip", "null", "fail"):
        with pytest.raises(SourceError, match="answers 503"):
            rows(found, good, on_error=policy)
    registry.fails = 0
    assert rows(found, good) == [{"a": 1, "b": "x"}]
    gone = options(registry, **{"encode.schema.registry": "http://127.0.0.1:1"})
    with pytest.raises(SourceError, match="does not answer"):
        rows(RecordShape.of("t", "plain", "avro", PAIR, gone), good)


def test_who_asks_and_where(registry: SchemaRegistry) -> None:
    registry.add("t-value", SMALL)
    user = {"encode.schema.registry.username": "u", "encode.schema.registry.password": "p"}
    infer_columns(options(registry, **user))
    assert registry.asked[-1] == ("/subjects/t-value/versions/latest", "Basic dTpw")
    registry.fails = 302
    with pytest.raises(SourceError, match="answers 302"):
        infer_columns(options(registry, **user))
    registry.fails = 0
    assert KafkaSource.takes_secret("encode.schema.registry.password")
    with pytest.raises(InvalidParameter, match="no subject other-value"):
        infer_columns(options(registry, topic="other"))
    for url in ("", "file:///etc/passwd", "http://u:p@h"):
        with pytest.raises(InvalidParameter, match=r"needs the option schema\.registry"):
            KafkaSource(options(registry, **{"encode.schema.registry": url}), PAIR)
    with pytest.raises(InvalidParameter, match=r"schema\.registry is for ENCODE AVRO"):
        KafkaSource(options(registry, encode="json"), PAIR)


def test_schemas_that_are_not_read(registry: SchemaRegistry) -> None:
    registry.add("t-value", SMALL, schemaType="PROTOBUF")
    with pytest.raises(NotSupported, match="no Avro schema"):
        infer_columns(options(registry))
    registry.add("t-value", SMALL, references=[{"name": "x", "subject": "x", "version": 1}])
    with pytest.raises(NotSupported, match="refers to other schemas"):
        infer_columns(options(registry))
    registry.add("t-value", {**SMALL, "fields": [{"name": "a", "type": ["int", "string"]}]})
    with pytest.raises(NotSupported, match="union of several types"):
        infer_columns(options(registry))
    wide = {"type": "bytes", "logicalType": "decimal", "precision": 65, "scale": 2}
    registry.add("t-value", {**SMALL, "fields": [{"name": "a", "type": wide}]})
    with pytest.raises(NotSupported, match="a decimal of 65 digits"):
        infer_columns(options(registry))
    registry.add("t-value", {**SMALL, "fields": [{"name": "a", "type": {"type": "bytes", "logicalType": "decimal"}}]})
    assert [c.type for c in infer_columns(options(registry))] == ["binary"]
    with pytest.raises(InvalidParameter, match="the URL of one registry"):
        infer_columns({**options(registry), "encode.schema.registry": "http://[bad"})


def batches(columns: Sequence[Column], *given: tuple[Mapping[str, Any], int]) -> Iterator[pa.RecordBatch]:
    """Rows with weights."""
    for row, weight in given:
        rows = pa.RecordBatch.from_pylist([dict(row)], schema=arrow_schema(columns))
        yield rows.append_column("__w", pa.array([weight], pa.int64()))


def form(registry: SchemaRegistry, columns: Sequence[Column], format: str) -> AvroForm:
    found = AvroForm(Registry(options(registry), SinkError), "t", columns, ("id",))
    found.register(format)
    return found


def written(format: str, made: Form, rows: Iterable[pa.RecordBatch], names: Sequence[str]) -> list[Record]:
    return [record(format, change, made) for change in changes(format, rows, names, ("id",), made)]


def test_what_the_sink_writes_the_source_reads(registry: SchemaRegistry) -> None:
    columns = [c for c in columns_of(SCHEMA) if c.name != "clock"]
    row = {**{c.name: VALUE[c.name] for c in columns}, "who": str(WHO), "more": [("k", 1.5)]}
    nothing = {**{c.name: None for c in columns}, "id": 2}
    names = [c.name for c in columns]
    made: Form = form(registry, columns, "plain")
    records = written("plain", made, batches(columns, (row, 2), (nothing, 1)), names)
    assert [unframed(registry, key or b"") for key, _ in records] == [{"id": 1}, {"id": 1}, {"id": 2}]
    assert rows(shape(registry, columns), *(message(v, k) for k, v in records)) == [row, row, nothing]
    assert columns_of(record_schema("Row", columns)) == columns
    form(registry, columns, "plain")
    assert {s: len(v) for s, v in registry.subjects.items()} == {"t-value": 1, "t-key": 1}, "registered once"


def test_changes_that_the_sink_writes(registry: SchemaRegistry) -> None:
    columns = (Column("id", "int"), Column("v", "string"))
    some = [
        ({"id": 1, "v": "a"}, -1), ({"id": 1, "v": "b"}, 1), ({"id": 2, "v": None}, 1), ({"id": 3, "v": "c"}, -1),
        ({"id": 4, "v": "d"}, 1), ({"id": 4, "v": "d"}, -1),
    ]  # fmt: skip
    records = written("upsert", form(registry, columns, "upsert"), batches(columns, *some), ["id", "v"])
    assert {
        unframed(registry, k or b"")["id"]: None if v is None else unframed(registry, v)["v"] for k, v in records
    } == {1: "b", 2: None, 3: None}
    assert [v is None for _, v in records] == [False, False, True]
    records = written("debezium", form(registry, columns, "debezium"), batches(columns, *some), ["id", "v"])
    found = [unframed(registry, v or b"") for _, v in records]
    assert [(f["op"], f["before"], f["after"]) for f in found] == [
        ("u", {"id": 1, "v": "a"}, {"id": 1, "v": "b"}), ("c", None, {"id": 2, "v": None}),
        ("d", {"id": 3, "v": "c"}, None),
    ]  # fmt: skip
    more = {"include.operation": "op"}
    back = rows(
        shape(registry, (*columns, Column("op", "string")), "debezium", **more), *(message(v) for _, v in records)
    )
    assert [(r["id"], r["v"], r["op"]) for r in back] == [(1, "b", "upsert"), (2, None, "upsert"), (3, "c", "delete")]
    twice = batches(columns, ({"id": 1, "v": "a"}, 1), ({"id": 1, "v": "b"}, 1))
    with pytest.raises(SinkError, match=r'does not tell the rows of the sink apart: {"id":1}'):
        written("upsert", form(registry, columns, "upsert"), twice, ["id", "v"])


def test_records_in_columns_have_names_of_their_own(registry: SchemaRegistry) -> None:
    columns = (Column("a", "struct<b:struct<x:int>>"), Column("a_b", "struct<x:int>"))
    form(registry, columns, "plain")


def test_sinks_that_cannot_be(registry: SchemaRegistry) -> None:
    def sink(*columns: Column, **more: str) -> None:
        open_sink({**options(registry), "type": "append-only", **more}, columns)

    with pytest.raises(NotSupported, match='the column "a b" in Avro'):
        sink(Column("a b", "int"))
    with pytest.raises(NotSupported, match="in Avro"):
        sink(Column("a", "map<int,int>"))
    with pytest.raises(InvalidParameter, match=r"schema\.registry is for ENCODE AVRO"):
        sink(Column("a", "int"), encode="json")
    registry.fails = 409
    with pytest.raises(SinkError, match="answers 409") as caught:
        form(registry, (Column("id", "int"),), "plain")
    assert "incompatible" in (caught.value.detail or "")
