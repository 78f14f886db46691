"""Records without a value, and what is made of a value as a whole and of headers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from headrace.common.columns import Column
from headrace.connectors.kafka.message_rows import RecordShape
from headrace.connectors.kafka.packed import PackedMessages, PackedValues
from headrace.errors import NotSupported, SourceError

COLUMNS = [Column("a", "int"), Column("op", "string")]


def message(value: bytes | None, key: bytes | None = None, *headers: tuple[str, bytes | None]) -> Any:
    return SimpleNamespace(value=lambda: value, key=lambda: key, offset=lambda: 0, headers=lambda: [*headers])


def test_a_record_without_value() -> None:
    messages = [message(b'{"a": 1}'), message(None, b'{"a": 1}')]
    plain = RecordShape.of("t", "plain", "json", COLUMNS[:1], {})
    with pytest.raises(SourceError, match="without value"):
        plain.rows(messages, 0, "fail")
    found = plain.rows(messages, 0, "skip")
    assert (found.batch.to_pylist(), found.error_count) == ([{"a": 1}], 1)
    upsert = RecordShape.of("t", "upsert", "json", COLUMNS, {"include.operation": "op"})
    rows = upsert.rows(messages, 0, "fail").batch.to_pylist()
    assert rows == [{"a": 1, "op": "upsert"}, {"a": 1, "op": "delete"}]


PAYLOAD = {"include.payload": "p"}
WITH_PAYLOAD = [Column("a", "int"), Column("p", "string")]


def shape(columns: list[Column], options: dict[str, str], format: str = "plain", encode: str = "json") -> RecordShape:
    return RecordShape.of("t", format, encode, columns, options)


def test_a_payload_is_the_text_of_the_record() -> None:
    spelled = '{ "a" : 1.0,  "more": [1e400, "\\u00e9é"] }'
    records = [
        spelled.encode(),
        b'{"a": "x"}',
        b"no json",
        b"[1]",
        None,
        b"",
        spelled.encode("utf-16"),
        b'{"b":"\xff"}',
    ]
    messages = [message(value) for value in records]
    found = shape(WITH_PAYLOAD, PAYLOAD).rows(messages, 0, "null")
    assert [r["p"] for r in found.batch.to_pylist()] == [spelled, '{"a": "x"}', None, None, None, None, spelled, None]
    assert [r["a"] for r in found.batch.to_pylist()] == [1, None, None, None, None, None, 1, None]
    assert found.error_count == 5
    bound = [Column("p", "string")]
    alone = shape(bound, PAYLOAD).rows(messages, 0, "skip")
    assert [r["p"] for r in alone.batch.to_pylist()] == [spelled, '{"a": "x"}', None, spelled]
    with pytest.raises(SourceError, match="malformed JSON"):
        shape(bound, PAYLOAD).rows(messages, 0, "fail")


def test_a_payload_of_many_records_is_as_of_each() -> None:
    records = [b'{"a": %d, "s": "\xc3\xa9"}' % i for i in range(1000)]
    data = b"\n".join(records)
    ends = np.cumsum([len(r) + 1 for r in records]) - 1
    starts = np.concatenate(([0], ends[:-1] + 1))
    packed = PackedMessages(PackedValues(data + b"\n", starts, ends), 0, np.arange(1000))
    made = shape(WITH_PAYLOAD, PAYLOAD)
    assert made.bare, "values are all it takes of records"
    found = made.rows(packed, 0, "fail").batch
    assert found.equals(made.rows([message(r) for r in records], 0, "fail").batch)
    assert found.column("p").to_pylist() == [r.decode() for r in records]


def test_a_payload_of_what_deletes_is_none() -> None:
    columns = [*COLUMNS, Column("p", "string")]
    made = shape(columns, {**PAYLOAD, "include.operation": "op"}, "upsert")
    rows = made.rows([message(b'{"a":1}', b"k"), message(None, b'{"a": 1}')], 0, "fail").batch.to_pylist()
    assert rows == [{"a": 1, "op": "upsert", "p": '{"a":1}'}, {"a": 1, "op": "delete", "p": None}]


@pytest.mark.parametrize("format, encode", [("debezium", "json"), ("plain", "csv"), ("plain", "avro")])
def test_a_payload_is_json(format: str, encode: str) -> None:
    with pytest.raises(NotSupported, match=f"INCLUDE payload with FORMAT {format.upper()} ENCODE {encode.upper()}"):
        shape(WITH_PAYLOAD, {**PAYLOAD, "encode.schema.registry": "http://localhost:1"}, format, encode)


def test_a_header_as_text() -> None:
    options = {"include.header_text.h": "t", "include.header.h": "b"}
    columns = [Column("a", "int"), Column("t", "string"), Column("b", "binary")]
    headers = [("h", "é".encode()), ("g", b"x")], [("h", b"1"), ("h", None)], [], [("h", b"\xff")]
    messages = [message(b"{}", None, *each) for each in headers]
    found = shape(columns, options).rows(messages, 3, "null")
    assert [(r["t"], r["b"]) for r in found.batch.to_pylist()] == [
        ("é", "é".encode()), (None, None), (None, None), (None, b"\xff"),
    ]  # fmt: skip
    assert found.error_count == 1
    with pytest.raises(SourceError, match=r"t\[3\], offset 0, column t: not a text in UTF-8"):
        shape(columns, options).rows(messages[3:], 3, "fail")
