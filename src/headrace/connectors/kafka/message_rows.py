"""Kafka's records as rows: values decoded, and what `INCLUDE` asks for beside them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from operator import methodcaller
from typing import Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.common.columns import Column, arrow_schema
from headrace.common.lazy_dataclass import dataclass
from headrace.connectors.base import ReadBatch, RowError
from headrace.connectors.json_in import FEW, JsonRecords, json_rows, nullable_schema, object_rows, rows_of
from headrace.connectors.kafka.avro import AvroReader
from headrace.connectors.kafka.changes import DELETE, UPSERT, Fault, Row, changed, debezium, upserted
from headrace.connectors.kafka.csv_records import csv_rows
from headrace.connectors.kafka.framed import FramedReader, Unreadable, as_json
from headrace.connectors.kafka.options import DELIMITER
from headrace.connectors.kafka.packed import PackedMessages, PackedValues
from headrace.connectors.kafka.protobuf import ProtobufReader
from headrace.connectors.kafka.registry import MESSAGE, Registry
from headrace.connectors.policy import ParsedRows, apply_policy, sample
from headrace.connectors.spelling import spelled
from headrace.errors import InvalidParameter, NotSupported

_PREFIX, _HEADER, _HEADER_TEXT = "include.", "include.header.", "include.header_text."
OPERATION, PAYLOAD = "operation", "payload"
_VALUE = methodcaller("value")


class Message(Protocol):
    """A record as the client gives it; a method for each part, as there."""

    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def partition(self) -> int: ...
    def offset(self) -> int: ...
    def timestamp(self) -> tuple[int, int]: ...
    def headers(self) -> Sequence[tuple[str, bytes | None]] | None: ...


_PARTS: dict[str, tuple[str, Callable[[Message], object]]] = {
    "key": ("binary", lambda m: m.key()),
    "partition": ("string", lambda m: str(m.partition())),
    "offset": ("string", lambda m: str(m.offset())),
    "timestamp": ("timestamp", lambda m: m.timestamp()[1] * 1000 if m.timestamp()[0] else None),
    "header": ("array<struct<key:string,value:binary>>", lambda m: _headers(m)),
    "position": ("bigint", lambda m: m.offset()),
    OPERATION: ("string", lambda m: None),
    PAYLOAD: ("string", lambda m: m.value()),
}
_READERS: Final[Mapping[str, Callable[[Mapping[str, str]], FramedReader]]] = {
    "avro": lambda options: AvroReader(Registry(options)),
    "protobuf": lambda options: ProtobufReader(Registry(options), options.get(MESSAGE)),
}
_NO_VALUE = "a record without value, which is a row only with FORMAT UPSERT, as a deletion"
Part = tuple[Column, Callable[[Message], object]]
"""A column, and what makes its value of a record."""


def included(options: Mapping[str, str]) -> list[Part]:
    """The columns of `INCLUDE`, in order. Raises `InvalidParameter`."""
    found: list[Part] = []
    for option, name in options.items():
        if option.startswith(_HEADER):
            found.append((Column(name, "binary"), _header(option.removeprefix(_HEADER))))
        elif option.startswith(_HEADER_TEXT):
            found.append((Column(name, "string"), _header(option.removeprefix(_HEADER_TEXT))))
        elif option.startswith(_PREFIX):
            part = option.removeprefix(_PREFIX)
            if part not in _PARTS:
                raise InvalidParameter(f"INCLUDE {part} of a kafka source", hint=f"one of {', '.join(sorted(_PARTS))}")
            found.append((Column(name, _PARTS[part][0]), _PARTS[part][1]))
    return found


def _headers(message: Message) -> list[dict[str, str | bytes | None]]:
    return [{"key": key, "value": value} for key, value in message.headers() or []]


def _header(key: str) -> Callable[[Message], bytes | None]:
    """The last header of a key, as Kafka itself understands several of one."""
    return lambda m: next((value for k, value in reversed(m.headers() or []) if k == key), None)


def _header_texts(values: Sequence[object], column: str, faults: list[Fault]) -> list[object]:
    """Values, of which those that are bytes become the texts that they are."""
    return [_text(v, "utf-8", row, column, faults) if isinstance(v, bytes) else v for row, v in enumerate(values)]


def _payloads(values: Sequence[bytes | None], column: str, faults: list[Fault]) -> list[str | None]:
    """The texts of documents of JSON; of one that is none there is nothing, nor of a record without any."""
    bad = {row for row, of_column, _, _ in faults if of_column is None}
    return [
        _text(value, json.detect_encoding(value), row, column, faults) if value and row not in bad else None
        for row, value in enumerate(values)
    ]


def _text(value: bytes, encoding: str, row: int, column: str, faults: list[Fault]) -> str | None:
    try:
        return value.decode(encoding)
    except UnicodeDecodeError:
        faults.append((row, column, value.decode(errors="replace"), "not a text in UTF-8"))
        return None


def _offsets(messages: Sequence[Message]) -> npt.NDArray[np.int64]:
    """The offsets of records of one partition, which grow."""
    if isinstance(messages, PackedMessages):
        return messages.offsets
    if not messages:
        return np.empty(0, np.int64)
    first, last = messages[0].offset(), messages[-1].offset()
    if last - first == len(messages) - 1:
        return np.arange(first, last + 1)
    return np.fromiter((m.offset() for m in messages), np.int64, len(messages))


def _values(messages: Sequence[Message]) -> Sequence[bytes | None]:
    return messages.values if isinstance(messages, PackedMessages) else [*map(_VALUE, messages)]


def size_of(messages: Sequence[Message]) -> int:
    """The bytes of the keys and values of records, as far as they are read."""
    values = _values(messages)
    if isinstance(values, PackedValues):
        return int((values.ends - values.starts).sum())
    return sum(len(value or b"") + len(m.key() or b"") for value, m in zip(values, messages))


def _plain_values(messages: Sequence[Message]) -> Sequence[bytes]:
    """None where one has no value."""
    values = _values(messages)
    if isinstance(values, PackedValues):
        return values
    found = [value for value in values if value is not None]
    return found if len(found) == len(values) else []


Decoded: TypeAlias = tuple[Sequence[Message], pa.RecordBatch, list[Fault], list[str]]
"""The records that are rows, their values, what is wrong with these, and what each does to its key."""


def _joined(first: Decoded, second: Decoded) -> Decoded:
    """Records one after the other."""
    count = len(first[0])
    table = pa.Table.from_batches([first[1], second[1]]).combine_chunks()
    batch = table.to_batches()[0] if table.num_rows else first[1]
    later = [(row + count, column, value, message) for row, column, value, message in second[2]]
    return [*first[0], *second[0]], batch, first[2] + later, first[3] + second[3]


@dataclass(frozen=True)
class RecordShape:
    """What rows are made of records."""

    topic: str
    format: str
    encode: str
    columns: tuple[Column, ...]
    parts: tuple[Part, ...]
    operation: str | None
    """The column that says what a record does to its key."""
    payload: str | None = None
    """The column that is the value itself, as text."""
    delimiter: str = ","
    """Of CSV."""
    framed: FramedReader | None = None
    """What decodes records that name their schema."""

    @classmethod
    def of(
        cls, topic: str, format: str, encode: str, columns: Sequence[Column], options: Mapping[str, str]
    ) -> RecordShape:
        """Raises `InvalidParameter`, `NotSupported` for columns that do not fit."""
        by_name = {part[0].name: part for part in included(options)}
        parts = tuple(by_name[c.name] for c in columns if c.name in by_name)
        own = [c for c in columns if c.name not in by_name]
        if encode == "bytes" and ([c.type for c in own] != ["binary"] or format != "plain"):
            raise NotSupported("ENCODE BYTES into any columns but one of type bytea, with FORMAT PLAIN")
        if encode == "csv" and format != "plain":
            raise NotSupported(f"ENCODE CSV with FORMAT {format.upper()}", hint="FORMAT PLAIN ENCODE CSV")
        delimiter = options.get(DELIMITER, ",").replace("\\t", "\t")
        if len(delimiter) != 1 or delimiter in '"\r\n' or not delimiter.isascii():
            raise InvalidParameter(f"option delimiter must be one character, not {delimiter!r}")
        payload = options.get(_PREFIX + PAYLOAD)
        if payload is not None and (encode != "json" or format == "debezium"):
            raise NotSupported(
                f"INCLUDE payload with FORMAT {format.upper()} ENCODE {encode.upper()}",
                hint="it is the JSON that a record is, of FORMAT PLAIN or UPSERT with ENCODE JSON",
            )
        framed = _READERS[encode](options) if encode in _READERS else None
        operation = options.get(_PREFIX + OPERATION)
        return cls(topic, format, encode, tuple(columns), parts, operation, payload, delimiter, framed)

    @property
    def bare(self) -> bool:
        """Whether values and offsets are all that it takes of records."""
        return self.format == "plain" and all(c.name in (self.operation, self.payload) for c, _ in self.parts)

    def rows(self, messages: Sequence[Message], partition: int, on_error: str) -> ReadBatch:
        """The rows of records of one partition. Raises `SourceError` as `on_error` says."""
        beside = {part[0].name: part[1] for part in self.parts}
        own = [c for c in self.columns if c.name not in beside]
        messages, batch, faults, operations = self._decoded(messages, own)
        made = dict(zip(batch.schema.names, batch.columns))
        schema = arrow_schema([Column(c.name, c.type) for c in self.columns])
        for field in schema:
            if field.name == self.operation:
                made[field.name] = pa.array(operations, field.type)
            elif field.name == self.payload:
                made[field.name] = pa.array(_payloads(_values(messages), field.name, faults), field.type)
            elif field.name in beside:
                values = [beside[field.name](m) for m in messages]
                texts = pa.types.is_string(field.type)
                made[field.name] = pa.array(_header_texts(values, field.name, faults) if texts else values, field.type)
        positions = _offsets(messages)
        split = f"{self.topic}[{partition}]"
        errors = [
            (row, RowError(split, int(positions[row]), column, sample(value), message, "offset"))
            for row, column, value, message in faults
        ]
        rows = pa.RecordBatch.from_arrays([made[c.name] for c in self.columns], schema=schema)
        return apply_policy(ParsedRows(rows, positions, [split], None, errors, "offset"), self.columns, on_error)

    def _decoded(self, messages: Sequence[Message], own: Sequence[Column]) -> Decoded:
        """The records that are rows, their values, what is wrong with these, and what each does to its key."""
        if self.encode == "bytes":
            array = pa.array([*_values(messages)], pa.binary())
            batch = pa.RecordBatch.from_arrays([array], names=[own[0].name])
            return messages, batch, [], [UPSERT] * len(messages)
        if self.encode == "csv":
            batch, faults = csv_rows([*_values(messages)], own, self.delimiter)
            return messages, batch, faults, [UPSERT] * len(messages)
        if self.framed is not None:
            return self._from_framed(self.framed, messages, own)
        if self.format != "debezium":
            values = _values(messages)
            if self.format == "plain":
                if isinstance(values, PackedValues):
                    batch, faults = rows_of(JsonRecords(values.data, values.starts, values.ends + 1), own)
                    return messages, batch, faults, [UPSERT] * len(messages)
                batch, faults = json_rows([value or b"{}" for value in values], own)
                if None in values:
                    faults += [(i, None, "", _NO_VALUE) for i, value in enumerate(values) if value is None]
                return messages, batch, faults, [UPSERT] * len(messages)
            batch, faults = json_rows([upserted(m) for m in messages], own)
            return messages, batch, faults, [DELETE if value is None else UPSERT for value in values]
        kept = [m for m in messages if m.value() is not None]  # what is none follows a deletion, for compaction
        changes = [debezium(value) for m in kept if (value := m.value()) is not None]
        rows: list[Row] = [row for row, _, _ in changes]
        batch, faults = object_rows(rows, own)
        faults += [(i, None, value, wrong) for i, (_, _, (value, wrong)) in enumerate(changes) if wrong]
        return kept, batch, faults, [operation for _, operation, _ in changes]

    def _from_framed(self, reader: FramedReader, messages: Sequence[Message], own: Sequence[Column]) -> Decoded:
        """The same of records that name their schema.

        Many are decoded at once where they are plain, else halves of them, few one by one.
        """
        values = _plain_values(messages) if self.format != "debezium" else []
        if values:
            batch = reader.columns(values, nullable_schema(own))
            if batch is not None:
                return messages, batch, [], [UPSERT] * len(messages)
        if len(messages) <= FEW:
            return self._one_by_one(reader, messages, own)
        middle = len(messages) // 2
        first, second = (self._from_framed(reader, half, own) for half in (messages[:middle], messages[middle:]))
        return _joined(first, second)

    def _one_by_one(self, reader: FramedReader, messages: Sequence[Message], own: Sequence[Column]) -> Decoded:
        kept = [m for m in messages if m.value() is not None] if self.format == "debezium" else messages
        rows: list[Row] = []
        operations: list[str] = []
        faults: list[Fault] = []
        names = tuple(c.name for c in own)
        for i, message in enumerate(kept):
            row: Mapping[str, object] = {}
            operation = UPSERT
            try:
                found, operation = self._change(reader, message)
                row = spelled(found, names)
            except ValueError as error:
                faults.append((i, None, (message.value() or b"").hex(), str(error)))
            rows.append({c.name: as_json(row.get(c.name), c) for c in own})
            operations.append(operation)
        batch, more = object_rows(rows, own)
        return kept, batch, faults + more, operations

    def _change(self, reader: FramedReader, message: Message) -> tuple[Row, str]:
        """The row of a record, and what that does to its key. Raises `ValueError`."""
        value, key = message.value(), message.key()
        if value is not None:
            record = reader.record(value)
            return changed(record) if self.format == "debezium" else (record, UPSERT)
        if self.format != "upsert":
            raise ValueError(_NO_VALUE)
        try:
            found = reader.value(key or b"")
        except Unreadable:  # a key that is taken as it is
            found = {}
        return found if isinstance(found, dict) else {}, DELETE
