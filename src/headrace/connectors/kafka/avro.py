"""Records in Avro, framed as Confluent's serializers do: a zero, the id of the writer's schema, and the value.

A record is decoded with the schema that it was written with. The declared columns are the reader's: they take their
values by name, and what a writer does not have is NULL. So writers may go on to other schemas at any time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace.common.columns import Column, arrow_type
from headrace.connectors import json_out
from headrace.connectors.declared import needed_module
from headrace.connectors.kafka.avro_columns import RecordColumns
from headrace.connectors.kafka.framed import FRAME, Unreadable, schema_id
from headrace.connectors.kafka.packed import PackedValues
from headrace.connectors.kafka.registry import NoSchema, Registry, avro_schema
from headrace.errors import NotSupported, SourceError

MOST_DIGITS: Final = 38
"""Of a decimal that a column can have."""
_SIMPLE: Final = {
    "boolean": "boolean", "int": "int", "long": "bigint", "float": "float", "double": "double", "bytes": "binary",
    "string": "string", "enum": "string", "fixed": "binary",
}  # fmt: skip
_LOGICAL: Final = {
    "date": "date", "timestamp-millis": "timestamp", "timestamp-micros": "timestamp", "uuid": "string",
    "local-timestamp-millis": "timestamp_ntz", "local-timestamp-micros": "timestamp_ntz", "time-millis": "string",
    "time-micros": "string",
}  # fmt: skip


_WRITTEN: Final[Mapping[Any, Any]] = {
    pa.bool_(): "boolean", pa.int8(): "int", pa.int16(): "int", pa.int32(): "int", pa.int64(): "long",
    pa.float32(): "float", pa.float64(): "double", pa.string(): "string", pa.binary(): "bytes",
    pa.date32(): {"type": "int", "logicalType": "date"},
}  # fmt: skip
_STREAM: Final = re.compile(r" from <[^>]*>")
"""How the library calls what it reads from."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLACES: Final = 256 ** np.arange(FRAME.size - 1, -1, -1, dtype=np.int64)
"""What the bytes of a frame count in one number."""
_NULL, _SECOND = b"\x00", b"\x02"
"""Which type of a union a value has; a length of one is written as the second."""


class AvroReader:
    """Decodes records; schemas are asked for once by each reader."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._fastavro = needed_module("fastavro", "avro")
        self._schemas: dict[int, Any] = {}
        self._written: dict[int, Any] = {}
        self._columns: dict[tuple[int, pa.Schema], RecordColumns | None] = {}

    def columns(self, values: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch | None:
        """The columns of records that are plain (`avro_columns`), else None. Raises `SourceError` as `record` does."""
        packed = PackedValues.of(values)
        if not len(packed) or int((packed.ends - packed.starts).min()) < FRAME.size:
            return None
        frames = packed.octets[packed.starts[:, None] + np.arange(FRAME.size)] @ _PLACES
        parts = []
        for frame in np.unique(frames).tolist():
            which = frames == frame
            how = self._by_columns(frame, schema)
            batch = None if how is None else how.batch(packed if which.all() else packed.chosen(which))
            if batch is None:
                return None
            parts.append((np.flatnonzero(which), batch))
        if len(parts) == 1:
            return parts[0][1]
        places = np.concatenate([which for which, _ in parts])
        whole = pa.Table.from_batches([batch for _, batch in parts]).combine_chunks()
        return whole.take(np.argsort(places)).combine_chunks().to_batches()[0]

    def _by_columns(self, frame: int, schema: pa.Schema) -> RecordColumns | None:
        magic, number = divmod(frame, 1 << 32)
        key = number, schema
        if magic == 0 and key not in self._columns:
            try:
                self._schema(number)  # as one by one: it is told what is wrong with it
                self._columns[key] = RecordColumns.of(self._written[number], schema)
            except Unreadable:
                return None
        return self._columns.get(key) if magic == 0 else None

    def record(self, data: bytes) -> dict[str, Any]:
        """The fields of a record. Raises `Unreadable`, and `SourceError` where the registry does not answer."""
        found = self.value(data)
        if not isinstance(found, dict):
            raise Unreadable("its schema is not that of a record")
        return found

    def value(self, data: bytes) -> Any:
        """A value, of any type. Raises as `record` does."""
        schema = self._schema(schema_id(data))
        stream = BytesIO(data)
        stream.seek(FRAME.size)
        try:
            found = self._fastavro.schemaless_reader(stream, schema, None)
        except Exception as error:  # whatever bytes that are none of the schema lead to
            said = _STREAM.sub("", str(error))
            raise Unreadable(f"it is not of the schema that it names: {type(error).__name__}: {said}") from error
        if stream.tell() != len(data):
            raise Unreadable(f"{len(data) - stream.tell()} bytes are left behind what its schema reads")
        return found

    def _schema(self, number: int) -> Any:
        if number not in self._schemas:
            try:
                self._written[number] = avro_schema(self._registry.by_id(number))
                self._schemas[number] = self._fastavro.parse_schema(self._written[number])
            except NoSchema as error:
                raise Unreadable(f"the schema registry has no schema {number}") from error
            except self._fastavro.schema.SchemaParseException as error:
                raise SourceError(f"schema {number} of the registry is not understood: {error}") from error
        return self._schemas[number]


class AvroForm:
    """Writes rows as records in Avro: see `Form`. The registry knows their schemas before the first is written."""

    def __init__(self, registry: Registry, topic: str, columns: Sequence[Column], key: Sequence[str]) -> None:
        """Raises `NotSupported` for a column that Avro has no type or name for."""
        self._registry, self._topic = registry, topic
        self._fastavro = needed_module("fastavro", "avro")
        self._columns, self._names = list(columns), key
        self._row, self._key_row = record_schema("Row", columns), record_schema("Key", self._of_key())
        self._parsed, self._parsed_key = map(self._fastavro.parse_schema, (self._row, self._key_row))
        self._value_frame = self._key_frame = b""

    def _of_key(self) -> list[Column]:
        return [c for name in self._names for c in self._columns if c.name == name]

    def register(self, format: str) -> None:
        """Make the schemas known, under the subjects of the topic. Raises `SinkError`."""
        schema = envelope_schema(self._row) if format == "debezium" else self._row
        value_id = self._registry.register(f"{self._topic}-value", schema)
        self._value_frame = FRAME.pack(0, value_id)
        if self._names:
            self._key_frame = FRAME.pack(0, self._registry.register(f"{self._topic}-key", self._key_row))

    def key(self, row: Mapping[str, Any]) -> bytes:
        """See `Form`."""
        return self._written(self._parsed_key, {name: row[name] for name in self._names})

    def value(self, row: Mapping[str, Any]) -> bytes:
        """See `Form`."""
        return self._written(self._parsed, row)

    def _written(self, schema: Any, row: Mapping[str, Any]) -> bytes:
        out = BytesIO()
        self._fastavro.schemaless_writer(out, schema, row)
        return out.getvalue()

    def shown(self, key: bytes) -> str:
        """See `Form`."""
        return json_out.text(self._fastavro.schemaless_reader(BytesIO(key), self._parsed_key, None)).decode()

    def record(self, key: bytes | None, value: bytes | None) -> tuple[bytes | None, bytes | None]:
        """See `Form`."""
        framed_key = None if key is None else self._key_frame + key
        return framed_key, None if value is None else self._value_frame + value

    def change(
        self, key: bytes, before: bytes | None, after: bytes | None, op: str
    ) -> tuple[bytes | None, bytes | None]:  # fmt: skip
        """See `Form`: of a union Avro writes which type it is, of a text its length."""
        rows = b"".join(_NULL if row is None else _SECOND + row for row in (before, after))
        return self._key_frame + key, self._value_frame + rows + _SECOND + op.encode()


def record_schema(name: str, columns: Sequence[Column]) -> dict[str, Any]:
    """The schema of rows. Raises `NotSupported`."""
    kinds = ((c.name, arrow_type(c.type)) for c in columns)
    return {"type": "record", "name": name, "namespace": "headrace", "fields": _fields(kinds, name)}


def envelope_schema(row: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of changes, as Debezium's are."""
    before: dict[str, Any] = {"name": "before", "type": ["null", row], "default": None}
    after: dict[str, Any] = {"name": "after", "type": ["null", "headrace.Row"], "default": None}
    fields = [before, after, {"name": "op", "type": "string"}]
    return {"type": "record", "name": "Envelope", "namespace": "headrace", "fields": fields}


def _fields(kinds: Iterable[tuple[str, pa.DataType]], within: str) -> list[dict[str, Any]]:
    found = []
    for name, kind in kinds:
        if not _NAME.fullmatch(name):
            raise NotSupported(
                f'the column "{name}" in Avro', hint="names are of letters, digits and _: give it another"
            )
        own = name.replace("_", "__")  # or a_b would be b within a
        found.append({"name": name, "type": ["null", _avro_type(kind, f"{within}_{own}")], "default": None})
    return found


def _avro_type(kind: pa.DataType, name: str) -> Any:
    """The type of a column; records in it are named by where they are."""
    t = pa.types
    if kind in _WRITTEN:
        return _WRITTEN[kind]
    if t.is_decimal(kind):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if t.is_timestamp(kind):
        return {"type": "long", "logicalType": "timestamp-micros" if kind.tz else "local-timestamp-micros"}
    if t.is_list(kind):
        return {"type": "array", "items": ["null", _avro_type(kind.value_type, name)]}
    if t.is_map(kind) and t.is_string(kind.key_type):
        return {"type": "map", "values": ["null", _avro_type(kind.item_type, name)]}
    if t.is_struct(kind):
        fields = ((kind.field(i).name, kind.field(i).type) for i in range(kind.num_fields))
        return {"type": "record", "name": name, "fields": _fields(fields, name)}
    raise NotSupported(f"a column of type {kind} in Avro", hint="cast it in the sink's query")


def columns_of(schema: Any) -> list[Column]:
    """The columns that a record's schema stands for. Raises `NotSupported` for what no column is."""
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise NotSupported("columns of an Avro schema that is no record", hint="declare them: CREATE SOURCE s (a int)")
    return [Column(f["name"], _spark_type(f["type"], f["name"])) for f in schema["fields"]]


def row_of_change(schema: Any) -> Any:
    """The schema of the row in Debezium's changes."""
    fields = schema.get("fields", []) if isinstance(schema, dict) else []
    after = next((f["type"] for f in fields if f["name"] in ("before", "after") and _record_in(f["type"])), None)
    if after is None:
        raise NotSupported("columns of an Avro schema that is none of Debezium's", hint="declare them")
    return _record_in(after)


def _record_in(kind: Any) -> Any:
    kinds = kind if isinstance(kind, list) else [kind]
    return next((k for k in kinds if isinstance(k, dict) and k.get("type") == "record"), None)


def _spark_type(kind: Any, where: str) -> str:
    if isinstance(kind, list):
        kinds = [k for k in kind if k != "null"]
        if len(kinds) != 1:
            raise NotSupported(f"the field {where} of an Avro schema, a union of several types", hint="declare columns")
        return _spark_type(kinds[0], where)
    named: Mapping[str, Any] = kind if isinstance(kind, dict) else {"type": kind}
    inner, logical = named["type"], named.get("logicalType")
    if isinstance(inner, (dict, list)):
        return _spark_type(inner, where)
    if logical == "decimal" and "precision" in named:
        if not 1 <= named["precision"] <= MOST_DIGITS:
            raise NotSupported(
                f"the field {where} of an Avro schema, a decimal of {named['precision']} digits",
                hint="declare the columns",
            )
        return f"decimal({named['precision']},{named.get('scale', 0)})"
    if logical in _LOGICAL:
        return _LOGICAL[logical]
    if inner == "array":
        return f"array<{_spark_type(named['items'], where)}>"
    if inner == "map":
        return f"map<string,{_spark_type(named['values'], where)}>"
    if inner == "record":
        fields = (f"{f['name']}:{_spark_type(f['type'], where)}" for f in named["fields"])
        return f"struct<{','.join(fields)}>"
    if inner not in _SIMPLE:
        raise NotSupported(f"the field {where} of type {inner} of an Avro schema", hint="declare the columns")
    return _SIMPLE[inner]
