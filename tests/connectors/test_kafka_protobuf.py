"""Records in Protobuf: all types, frames, other schemas over time, deletions, and what cannot be read."""

from __future__ import annotations

import json
import struct
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, json_format, message_factory
from hypothesis import given
from hypothesis import strategies as hst
from pyspark import cloudpickle

from headrace.common.columns import Column, arrow_schema
from headrace.connectors.kafka.framed import Unreadable, as_json
from headrace.connectors.kafka.message_rows import RecordShape
from headrace.connectors.kafka.protobuf import ProtobufReader
from headrace.connectors.kafka.protobuf_schemas import ProtobufSchema, compiled
from headrace.connectors.kafka.registry import Registered, Registry
from headrace.connectors.kafka.source import KafkaSource
from headrace.connectors.sources import infer_columns
from headrace.errors import HeadraceError, InvalidParameter, NotSupported, SourceError
from schema_registry import SchemaRegistry, schema_registry

ALL = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
enum Kind { NONE = 0; BIG = 1; }
message All {
  int32 i32 = 1; int64 i64 = 2; uint32 u32 = 3; uint64 u64 = 4; sint32 s32 = 5; sint64 s64 = 6;
  fixed32 f32 = 7; fixed64 f64 = 8; sfixed32 sf32 = 9; sfixed64 sf64 = 10;
  float f = 11; double d = 12; bool b = 13; string s = 14; bytes raw = 15; Kind kind = 16;
  optional int32 maybe = 17;
  repeated string tags = 18;
  map<string, double> more = 19;
  map<int64, Place> places = 20;
  Place place = 21;
  google.protobuf.Timestamp at = 22;
  google.protobuf.Int64Value wrapped = 23;
  google.protobuf.Struct document = 24;
  oneof which { string left = 25; int32 right = 26; }
  message Place { int32 x = 1; repeated Kind kinds = 2; }
}
message Small { int32 a = 1; string b = 2; }
message Outer {
  message First { int32 a = 1; }
  map<string, int32> m = 1;
  message Second { int32 a = 1; }
}
"""
NEXT = 'syntax = "proto3"; package shop; message Small { string b = 2; bool c = 3; }'
SMALL = 'syntax = "proto3"; package shop; message Small { int32 a = 1; string b = 2; }'
TYPES = {
    "i32": "int", "i64": "bigint", "u32": "bigint", "u64": "decimal(20,0)", "s32": "int", "s64": "bigint",
    "f32": "bigint", "f64": "decimal(20,0)", "sf32": "int", "sf64": "bigint", "f": "float", "d": "double",
    "b": "boolean", "s": "string", "raw": "binary", "kind": "string", "maybe": "int", "tags": "array<string>",
    "more": "map<string,double>", "places": "map<string,struct<x:int,kinds:array<string>>>",
    "place": "struct<x:int,kinds:array<string>>", "at": "timestamp", "wrapped": "bigint", "document": "string",
    "left": "string", "right": "int",
}  # fmt: skip
PAIR = (Column("a", "int"), Column("b", "string"))


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with schema_registry() as found:
        yield found


def add(registry: SchemaRegistry, text: str, subject: str = "t-value", **more: Any) -> int:
    return registry.add(subject, text, schemaType="PROTOBUF", **more)


def written(text: str, message: str, values: Mapping[str, Any]) -> bytes:
    """A message as Google's library writes it, from JSON's form of its values."""
    made = message_factory.GetMessageClass(schema_of(text).named(message))()
    json_format.ParseDict(values, made)
    return bytes(made.SerializeToString())


_SCHEMAS: dict[str, ProtobufSchema] = {}


def schema_of(text: str) -> ProtobufSchema:
    if text not in _SCHEMAS:
        _SCHEMAS[text] = compiled(SimpleNamespace(), Registered("PROTOBUF", text, (), "it"))  # type: ignore[arg-type]
    return _SCHEMAS[text]


def framed(number: int, data: bytes, path: bytes = b"\x00") -> bytes:
    return struct.pack(">bI", 0, number) + path + data


def message(value: bytes | None, key: bytes | None = None, offset: int = 0) -> Any:
    return SimpleNamespace(value=lambda: value, key=lambda: key, offset=lambda: offset)


def options(registry: SchemaRegistry, **more: str) -> dict[str, str]:
    place = {"connector": "kafka", "topic": "t", "properties.bootstrap.server": "h:1", "encode": "protobuf"}
    return {**place, "encode.schema.registry": registry.url, **more}


def shape(registry: SchemaRegistry, columns: Sequence[Column], format: str = "plain", **more: str) -> RecordShape:
    return RecordShape.of("t", format, "protobuf", columns, options(registry, **more))


def rows(found: RecordShape, *messages: Any, on_error: str = "fail") -> list[Mapping[str, Any]]:
    return found.rows(messages, 0, on_error).batch.to_pylist()


def test_columns_are_those_of_the_newest_schema(registry: SchemaRegistry) -> None:
    add(registry, SMALL)
    add(registry, ALL)
    assert {c.name: c.type for c in infer_columns(options(registry))} == TYPES
    of_small = infer_columns(options(registry, **{"encode.message": "shop.Small"}))
    assert [(c.name, c.type) for c in of_small] == [(c.name, c.type) for c in PAIR]
    inner = infer_columns(options(registry, **{"encode.message": "All.Place"}))
    assert [(c.name, c.type) for c in inner] == [("x", "int"), ("kinds", "array<string>")]


def test_every_type_of_a_field(registry: SchemaRegistry) -> None:
    values = {
        "i32": -(2**31), "i64": -(2**63), "u32": 2**32 - 1, "u64": 2**64 - 1, "s32": -5, "s64": -6, "f32": 7, "f64": 8,
        "sf32": -9, "sf64": -10, "f": 1.5, "d": -0.1, "b": True, "s": "ü", "raw": "AP8=", "kind": "BIG", "maybe": 0,
        "tags": ["a", ""], "more": {"k": 1.5}, "places": {"7": {"x": 3, "kinds": ["BIG", "NONE"]}}, "place": {"x": 4},
        "at": "1969-12-31T23:59:59.000007Z", "wrapped": "0", "document": {"a": [1, None, "x"]}, "right": 0,
    }  # fmt: skip
    columns = [Column(name, kind) for name, kind in TYPES.items()]
    number = add(registry, ALL)
    [row] = rows(shape(registry, columns), message(framed(number, written(ALL, "All", values))))
    assert row["document"] and json.loads(row["document"]) == {"a": [1, None, "x"]}
    assert {**row, "document": None} == {
        **values, "u64": Decimal(2**64 - 1), "f64": Decimal(8), "raw": b"\x00\xff", "more": [("k", 1.5)],
        "places": [("7", {"x": 3, "kinds": ["BIG", "NONE"]})], "place": {"x": 4, "kinds": []}, "wrapped": 0,
        "at": datetime(1969, 12, 31, 23, 59, 59, 7, UTC), "document": None, "left": None, "right": 0,
    }  # fmt: skip


def test_fields_stand_for_columns_that_they_differ_from_in_capitals_alone(registry: SchemaRegistry) -> None:
    text = 'syntax = "proto3"; message M { int32 userId = 1; string bB = 2; string Bb = 3; }'
    sent = message(framed(add(registry, text), written(text, "M", {"userId": 7, "bB": "x"})))
    (found,) = rows(shape(registry, (Column("userid", "int"),)), sent)
    assert found == {"userid": 7}
    with pytest.raises(SourceError, match="Bb and bB differ from bb in capitals alone"):
        rows(shape(registry, (Column("bb", "string"),)), sent)


def test_what_is_not_written_is_null_where_that_can_be_told(registry: SchemaRegistry) -> None:
    columns = [Column(name, kind) for name, kind in TYPES.items()]
    [row] = rows(shape(registry, columns), message(framed(add(registry, ALL), b"")))
    nothing = {name for name, value in row.items() if value is None}
    assert nothing == {"maybe", "place", "at", "wrapped", "document", "left", "right"}
    assert (row["i32"], row["s"], row["kind"], row["tags"], row["b"]) == (0, "", "NONE", [], False)


def test_a_default_of_the_schema_is_the_value(registry: SchemaRegistry) -> None:
    text = 'syntax = "proto2"; message M { optional int32 a = 1 [default = 7]; optional string b = 2; }'
    assert rows(shape(registry, PAIR), message(framed(add(registry, text), b""))) == [{"a": 7, "b": None}]


def test_a_number_without_a_name_is_its_text(registry: SchemaRegistry) -> None:
    data = framed(add(registry, ALL), b"\x80\x01\x05")  # field 16
    assert rows(shape(registry, [Column("kind", "string")]), message(data)) == [{"kind": "5"}]


def test_each_record_by_the_schema_that_it_names(registry: SchemaRegistry) -> None:
    first, second = add(registry, SMALL), add(registry, NEXT)
    old, new = written(SMALL, "Small", {"a": 1, "b": "x"}), written(NEXT, "Small", {"b": "y", "c": True})
    found = shape(registry, (*PAIR, Column("c", "boolean")))
    asked = len(registry.asked)
    got = rows(found, *(message(framed(*each)) for each in [(first, old), (second, new)] * 400))
    assert got == [{"a": 1, "b": "x", "c": None}, {"a": None, "b": "y", "c": True}] * 400
    assert len(registry.asked) - asked == 2


@pytest.mark.parametrize(
    ("path", "name"), [(b"\x00", "All"), (b"\x02\x02", "Small"), (b"\x04\x04\x00", "Outer.First"), (b"\x02\x00", "All")]
)
def test_a_frame_says_which_message_it_is(registry: SchemaRegistry, path: bytes, name: str) -> None:
    column = Column("x" if name == "All" else "a", "int")
    number = add(registry, ALL)
    data = framed(number, written(ALL, name, {} if name == "All" else {"a": 5}), path)
    expected = None if name == "All" else 5
    assert rows(shape(registry, [column]), message(data)) == [{column.name: expected}]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "does not begin with the id"),
        (b"\x01\x00\x00\x00\x01\x00", "does not begin with the id"),
        (b"\x00\x00\x00\x00\x01", "which message"),
        (b"\x00\x00\x00\x00\x01\x01", "which message"),
        (b"\x00\x00\x00\x00\x01\x02\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80", "which message"),
        (b"\x00\x00\x00\x00\x01\x02\x20", "has no message [16]"),
        (b"\x00\x00\x00\x00\x01\x02\x01", "has no message [-1]"),
        (b"\x00\x00\x00\x00\x01\x04\x04\x04", "behind a map"),
        (b"\x00\x00\x00\x00\x63\x00", "has no schema 99"),
        (b"\x00\x00\x00\x00\x01\x00\x08", "not of the message shop.All"),
        (b"\x00\x00\x00\x00\x01\x00\x72\x01\xff", "not of the message shop.All"),
    ],
)
def test_what_is_none_of_its_schema_is_at_fault(registry: SchemaRegistry, data: bytes, said: str) -> None:
    number = add(registry, ALL)
    found = shape(registry, [Column("i32", "int"), Column("s", "string")])
    good = framed(number, written(ALL, "All", {"i32": 1, "s": "x"}))
    read = found.rows([message(good, offset=0), message(data, offset=1), message(good, offset=2)], 0, "skip")
    assert read.batch.to_pylist() == [{"i32": 1, "s": "x"}] * 2
    [error] = read.errors
    assert said in error.message and error.position == 1


def test_records_of_another_message_are_at_fault_where_one_is_asked_for(registry: SchemaRegistry) -> None:
    number = add(registry, ALL)
    found = shape(registry, PAIR, **{"encode.message": "shop.Small"})
    small = framed(number, written(ALL, "Small", {"a": 1, "b": "x"}), b"\x02\x02")
    other = framed(number, written(ALL, "Outer.First", {"a": 1}), b"\x04\x04\x00")
    read = found.rows([message(small, offset=0), message(other, offset=1)], 0, "skip")
    assert read.batch.to_pylist() == [{"a": 1, "b": "x"}]
    assert [e.message for e in read.errors] == ["it is the message shop.Outer.First, not shop.Small"]


def test_a_key_is_a_message_of_its_own(registry: SchemaRegistry) -> None:
    key = framed(add(registry, 'syntax = "proto3"; message Key { int32 a = 1; }', "t-key"), b"\x08\x07")
    add(registry, SMALL)
    given = {"include.operation": "op", "encode.message": "shop.Small"}
    found = shape(registry, [*PAIR, Column("op", "string")], "upsert", **given)
    assert rows(found, message(None, key)) == [{"a": 7, "b": None, "op": "delete"}]


def test_it_goes_to_workers_whatever_it_has_read(registry: SchemaRegistry) -> None:
    data = framed(add(registry, SMALL), written(SMALL, "Small", {"a": 7, "b": "x"}))
    reader = ProtobufReader(Registry(options(registry)), "Small")
    assert reader.record(data) == cloudpickle.loads(cloudpickle.dumps(reader)).record(data) == {"a": 7, "b": "x"}


@pytest.mark.parametrize("at", [2**40, -(2**40)])
def test_a_value_that_cannot_be_had_is_at_fault(registry: SchemaRegistry, at: int) -> None:
    kind = message_factory.GetMessageClass(schema_of(ALL).named("All"))
    document = kind()
    document.document["x"] = float("nan")
    number = add(registry, ALL)
    found = shape(registry, [Column("at", "timestamp"), Column("document", "string")])
    sent = [document, kind(at={"seconds": at}), kind(i32=1)]
    read = found.rows([message(framed(number, m.SerializeToString()), offset=i) for i, m in enumerate(sent)], 0, "skip")
    assert read.batch.to_pylist() == [{"at": None, "document": None}]
    assert [e.position for e in read.errors] == [0, 1]


def test_a_deletion_takes_the_key(registry: SchemaRegistry) -> None:
    number = add(registry, SMALL)
    found = shape(registry, [*PAIR, Column("op", "string")], "upsert", **{"include.operation": "op"})
    key = framed(number, written(SMALL, "Small", {"a": 7}))
    value = framed(number, written(SMALL, "Small", {"a": 7, "b": "x"}))
    got = rows(found, message(value, key), message(None, key, 1), message(None, b"plain", 2))
    assert [(r["a"], r["b"], r["op"]) for r in got] == [(7, "x", "upsert"), (7, "", "delete"), (None, None, "delete")]


def test_changes_of_debezium(registry: SchemaRegistry) -> None:
    text = SMALL + " message Envelope { Small before = 1; Small after = 2; string op = 3; }"
    number = add(registry, text)
    named = {"encode.message": "shop.Envelope", "format": "debezium"}
    assert [(c.name, c.type) for c in infer_columns(options(registry, **named))] == [("a", "int"), ("b", "string")]
    found = shape(registry, [*PAIR, Column("op", "string")], "debezium", **{"include.operation": "op"})
    changes: list[dict[str, Any]] = [
        {"after": {"a": 1, "b": "x"}, "op": "c"}, {"before": {"a": 1, "b": "x"}, "op": "d"}, {"op": "u"},
    ]  # fmt: skip
    sent = [message(framed(number, written(text, "Envelope", c), b"\x02\x02"), offset=i) for i, c in enumerate(changes)]
    read = found.rows(sent, 0, "skip")
    assert [(r["a"], r["op"]) for r in read.batch.to_pylist()] == [(1, "upsert"), (1, "delete")]
    assert ["without the row after it" in e.message for e in read.errors] == [True]


def test_a_schema_in_parts(registry: SchemaRegistry) -> None:
    add(registry, 'syntax = "proto3"; package deep; message D { int32 x = 1; }', "deep")
    deep = {"references": [{"name": "parts/deep.proto", "subject": "deep", "version": 1}]}
    part = 'syntax = "proto3"; package p; import "parts/deep.proto"; message P { deep.D d = 1; }'
    add(registry, part, "part", **deep)
    whole = 'syntax = "proto3"; import "part.proto"; message W { int32 a = 1; p.P p = 2; }'
    number = add(registry, whole, references=[{"name": "part.proto", "subject": "part", "version": 1}])
    columns = infer_columns(options(registry))
    assert [(c.name, c.type) for c in columns] == [("a", "int"), ("p", "struct<d:struct<x:int>>")]
    data = framed(number, b"\x08\x01\x12\x04\x0a\x02\x08\x09")
    assert rows(shape(registry, columns), message(data)) == [{"a": 1, "p": {"d": {"x": 9}}}]


def test_a_schema_that_a_client_has_registered_as_a_descriptor(registry: SchemaRegistry) -> None:
    part = 'syntax = "proto3"; package p; message P { int32 x = 1; }'
    add(registry, as_descriptor(part), "part")
    whole = 'syntax = "proto3"; import "part.proto"; message W { int32 a = 1; p.P p = 2; }'
    number = add(registry, whole, references=[{"name": "part.proto", "subject": "part", "version": 1}])
    data = framed(number, b"\x08\x01\x12\x02\x08\x09")
    assert rows(shape(registry, infer_columns(options(registry))), message(data)) == [{"a": 1, "p": {"x": 9}}]
    number = add(registry, as_descriptor(ALL))
    data = framed(number, written(ALL, "Small", {"a": 1, "b": "x"}), b"\x02\x02")
    assert rows(shape(registry, PAIR), message(data)) == [{"a": 1, "b": "x"}]


def as_descriptor(text: str) -> str:
    """As Confluent's client in Python registers it."""
    found = descriptor_pb2.FileDescriptorProto()
    schema_of(text).file.CopyToProto(found)
    return b64encode(found.SerializeToString()).decode()


@pytest.mark.parametrize(
    ("text", "more", "said"),
    [
        ("message {", {}, "is not understood"),
        (SMALL, {"references": [{"name": "../../x.proto", "subject": "t-value", "version": 1}]}, "no name of a file"),
        (SMALL, {"references": [{"name": "/x.proto", "subject": "t-value", "version": 1}]}, "no name of a file"),
        (SMALL, {"references": [{"name": "x.proto", "subject": "t-value", "version": 9}]}, "does not have"),
        (SMALL, {"references": [{"name": ".", "subject": "ok", "version": 1}]}, "cannot be compiled"),
        (SMALL, {"references": [{"nome": "x.proto"}]}, "cannot be read"),
    ],
)
def test_a_schema_that_is_not_understood(registry: SchemaRegistry, text: str, more: Any, said: str) -> None:
    add(registry, SMALL, "ok")
    number = add(registry, text, **more)
    with pytest.raises(SourceError, match=said):
        infer_columns(options(registry))
    with pytest.raises(SourceError, match=said):  # of a record, too: no fault of its own
        rows(shape(registry, PAIR), message(framed(number, b"")), on_error="skip")


@pytest.mark.parametrize(
    ("text", "more", "said"),
    [
        ('syntax = "proto3"; message M { M inner = 1; }', {}, "contains itself"),
        ('syntax = "proto3"; message M { N n = 1; } message N {}', {}, "has no fields"),
        ('syntax = "proto3";', {}, "has no message"),
        (SMALL, {"encode.message": "shop.Other"}, "has no message shop.Other"),
        (SMALL, {"format": "debezium"}, "none of Debezium's"),
    ],
)
def test_columns_that_cannot_be_had(registry: SchemaRegistry, text: str, more: Any, said: str) -> None:
    add(registry, text)
    with pytest.raises((NotSupported, InvalidParameter), match=said):
        infer_columns(options(registry, **more))


def test_a_message_in_itself_is_read_into_text(registry: SchemaRegistry) -> None:
    text = 'syntax = "proto3"; message M { int32 a = 1; M b = 2; }'
    data = framed(add(registry, text), b"\x08\x01\x12\x02\x08\x02")
    [row] = rows(shape(registry, PAIR), message(data))
    assert row["a"] == 1 and json.loads(row["b"]) == {"a": 2, "b": None}


def test_another_kind_of_schema(registry: SchemaRegistry) -> None:
    registry.add("t-value", {"type": "record", "name": "R", "fields": []})
    with pytest.raises(NotSupported, match="no Protobuf schema"):
        infer_columns(options(registry))
    add(registry, SMALL)
    with pytest.raises(NotSupported, match="no Avro schema"):
        infer_columns(options(registry, encode="avro"))


def test_options_of_another_encoding() -> None:
    place = {"connector": "kafka", "topic": "t", "properties.bootstrap.server": "h:1"}
    with pytest.raises(InvalidParameter, match="message is for ENCODE PROTOBUF"):
        KafkaSource({**place, "encode": "json", "encode.message": "M"}, PAIR)
    with pytest.raises(InvalidParameter, match=r"needs the option schema\.registry"):
        KafkaSource({**place, "encode": "protobuf"}, PAIR)


@pytest.fixture(scope="module")
def lasting() -> Iterator[SchemaRegistry]:
    with schema_registry() as found:
        yield found


NUMBERS = hst.fixed_dictionaries(
    {},
    optional={
        "i32": hst.integers(-(2**31), 2**31 - 1), "i64": hst.integers(-(2**63), 2**63 - 1),
        "u32": hst.integers(0, 2**32 - 1), "f": hst.floats(width=32), "d": hst.floats(), "b": hst.booleans(),
        "s": hst.text(), "raw": hst.binary(), "kind": hst.integers(-3, 3), "maybe": hst.integers(-5, 5),
        "s64": hst.integers(-(2**63), 2**63 - 1), "left": hst.text(), "right": hst.integers(0, 9),
    },
)  # fmt: skip
COLUMNS = [Column(name, TYPES[name]) for name in (
    "i32", "i64", "u32", "f", "d", "b", "s", "raw", "kind", "maybe", "s64", "left", "right",
)] + [Column("i16", "bigint"), Column("none", "string")]  # fmt: skip


@given(hst.lists(NUMBERS, min_size=1, max_size=8), hst.sets(hst.sampled_from([c.name for c in COLUMNS]), min_size=1))
def test_columns_at_once_are_those_of_records_one_by_one(
    lasting: SchemaRegistry, values: list[dict[str, Any]], wanted: set[str]
) -> None:
    if not lasting.schemas:
        add(lasting, ALL)
    kind = message_factory.GetMessageClass(schema_of(ALL).named("All"))
    data = [framed(1, kind(**each).SerializeToString()) for each in values]
    columns = [c for c in COLUMNS if c.name in wanted]
    reader = _reader_of(lasting)
    schema = pa.schema([pa.field(f.name, f.type) for f in arrow_schema(columns)])
    batch = reader.columns(data, schema)
    found = shape(lasting, columns)
    one_by_one, *_ = found._one_by_one(reader, [message(d) for d in data], columns)[1:]
    if batch is None:
        assert any(not c.valid for c in _validated(reader, data))
    else:
        assert repr(batch.to_pylist()) == repr(one_by_one.to_pylist())


def _validated(reader: ProtobufReader, data: Sequence[bytes]) -> list[Any]:
    found = []
    for each in data:
        try:
            reader.record(each)
            found.append(SimpleNamespace(valid=True))
        except Unreadable:
            found.append(SimpleNamespace(valid=False))
    return found


_READERS: dict[str, ProtobufReader] = {}


def _reader_of(registry: SchemaRegistry) -> ProtobufReader:
    if registry.url not in _READERS:
        _READERS[registry.url] = ProtobufReader(Registry(options(registry)))
    return _READERS[registry.url]


@given(hst.binary(max_size=40))
def test_any_bytes_at_all_are_a_row_or_a_fault(lasting: SchemaRegistry, data: bytes) -> None:
    if not lasting.schemas:
        add(lasting, ALL)
    reader = _reader_of(lasting)
    for each in (data, framed(1, data), framed(1, b"", data)):
        try:
            record = reader.record(each)
        except (Unreadable, HeadraceError):
            continue
        assert {as_json(v, Column("c", "string")) is not ... for v in record.values()} <= {True}
