"""Records in Protobuf, framed as Confluent's serializers do: a zero, the schema's id, which message of it, the bytes.

A record is decoded with the schema that it was written with, and gives the declared columns their values by name, as in
Avro. A field without presence (`int32 a = 1` of proto3) has its default where nothing is written; one with presence
(`optional`, messages, of a `oneof`, proto2) is NULL then, or what the schema says by `default`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC
from operator import attrgetter
from typing import Any, Final, TypeAlias

import pyarrow as pa

from headrace.common.columns import Column
from headrace.connectors.declared import needed_module
from headrace.connectors.kafka.framed import FRAME, Unreadable, schema_id
from headrace.connectors.kafka.protobuf_schemas import Kind, ProtobufSchema, compiled, is_named, message_of
from headrace.connectors.kafka.registry import NoSchema, Registry
from headrace.connectors.spelling import SeveralSpellings, spelled
from headrace.errors import NotSupported

Read: TypeAlias = Callable[[Any], Any]
"""A value of the library's as one of Python's."""

_WRAPPED: Final = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_DOCUMENTS: Final = frozenset(f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue"))
_MESSAGE, _ENUM, _STRING, _BYTES = 11, 14, 9, 12
_TYPES: Final[Mapping[int, str]] = {
    1: "double", 2: "float", 3: "bigint", 4: "decimal(20,0)", 5: "int", 6: "decimal(20,0)", 7: "bigint", 8: "boolean",
    _STRING: "string", _BYTES: "binary", 13: "bigint", _ENUM: "string", 15: "int", 16: "bigint", 17: "int",
    18: "bigint",
}  # fmt: skip
"""Of a field's type by its number in `descriptor.proto`."""
_PLAIN: Final[Mapping[str, tuple[pa.DataType, ...]]] = {
    "double": (pa.float64(),), "float": (pa.float32(),), "bigint": (pa.int64(),), "int": (pa.int32(), pa.int64()),
    "boolean": (pa.bool_(),), "string": (pa.string(),), "binary": (pa.binary(),),
}  # fmt: skip
"""Which columns have the very values of a field."""
_MOST_PLACES: Final = 100
_VARINT_BYTES: Final = 10


class ProtobufReader:
    """Decodes records; schemas are asked for, and compiled, once by each reader. See `FramedReader`."""

    def __init__(self, registry: Registry, message: str | None = None) -> None:
        """A message, if given, is what every record is; keys are what they are."""
        self._registry, self._message = registry, message
        self._convert = needed_module("google.protobuf.json_format", "protobuf")
        self._decode_error = needed_module("google.protobuf.message", "protobuf").DecodeError
        self._factory = needed_module("google.protobuf.message_factory", "protobuf")
        self._schemas: dict[int, ProtobufSchema] = {}
        self._classes: dict[bytes, Kind] = {}
        self._readers = _Readers()

    def __reduce__(self) -> tuple[type[ProtobufReader], tuple[Registry, str | None]]:
        """Workers compile for themselves: descriptors cannot be sent."""
        return type(self), (self._registry, self._message)

    def columns(self, values: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch | None:
        """See `FramedReader`: records are plain if they are all of one message and the columns have its very values."""
        try:
            head = values[0][: _frame_bytes(values[0])]
            made = self._expected(head)
            getters = [_getter(made.DESCRIPTOR, field) for field in schema]
            gets = [get for get in getters if get is not None]
            if len(gets) < len(getters) or not all(value.startswith(head) for value in values):
                return None
            parse, start = made.FromString, len(head)
            records = [parse(value[start:]) for value in values]
            arrays = [pa.array(map(get, records), field.type, from_pandas=False) for get, field in zip(gets, schema)]
        except (IndexError, ValueError, self._decode_error, pa.ArrowException):
            return None  # one by one it is told what is wrong
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def record(self, data: bytes) -> dict[str, object]:
        """See `FramedReader`."""
        return self._decoded(self._expected(data[: _frame_bytes(data)]), data)

    def value(self, data: bytes) -> object:
        """See `FramedReader`: any message."""
        return self._decoded(self._class(data[: _frame_bytes(data)]), data)

    def _decoded(self, made: Kind, data: bytes) -> dict[str, object]:
        try:
            message = made.FromString(data[_frame_bytes(data) :])
            found: dict[str, object] = self._readers.of(made.DESCRIPTOR)(message)
        except (self._decode_error, self._convert.Error, ValueError, OverflowError, RecursionError) as error:
            raise Unreadable(f"it is not of the message {made.DESCRIPTOR.full_name}: {error}") from error
        return found

    def _expected(self, head: bytes) -> Kind:
        """The class of the records behind a frame. Raises `Unreadable` for another than what every record is."""
        made = self._class(head)
        if self._message is not None and not is_named(made.DESCRIPTOR, self._message):
            raise Unreadable(f"it is the message {made.DESCRIPTOR.full_name}, not {self._message}")
        return made

    def _class(self, head: bytes) -> Kind:
        """The class of the messages behind a frame."""
        if head not in self._classes:
            self._classes[head] = self._factory.GetMessageClass(self._schema(schema_id(head)).at(_places(head)[0]))
        return self._classes[head]

    def _schema(self, number: int) -> ProtobufSchema:
        if number not in self._schemas:
            try:
                self._schemas[number] = compiled(self._registry, self._registry.by_id(number))
            except NoSchema as error:
                raise Unreadable(f"the schema registry has no schema {number}") from error
        return self._schemas[number]


def _frame_bytes(data: bytes) -> int:
    """How long the frame is. Raises `Unreadable`."""
    schema_id(data)
    return _places(data)[1]


def _places(data: bytes) -> tuple[list[int], int]:
    """Which message it is, as a path of places among the messages of the file, and where the message begins."""
    count, at = _varint(data, FRAME.size)
    if count == 0:  # short for the first one
        return [0], at
    if not 0 < count <= _MOST_PLACES:
        raise Unreadable("it does not say which message of its schema it is")
    places = []
    for _ in range(count):
        place, at = _varint(data, at)
        places.append(place)
    return places, at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A whole number as Protobuf's `sint` is written, and where it ends. Raises `Unreadable`."""
    found = 0
    for i in range(_VARINT_BYTES):
        if at + i >= len(data):
            break
        found |= (data[at + i] & 0x7F) << 7 * i
        if data[at + i] < 0x80:
            return found >> 1 ^ -(found & 1), at + i + 1
    raise Unreadable("it does not say which message of its schema it is")


class _Readers:
    """What makes objects of messages; one for each kind of message, made once, since kinds may contain themselves."""

    def __init__(self) -> None:
        self._made: dict[Kind, Read] = {}
        """By descriptor: schemas have other messages of the same name."""

    def of(self, kind: Kind) -> Read:
        """What makes an object of a message, by the names of its fields."""
        if kind not in self._made:
            fields: list[tuple[str, Read]] = []
            self._made[kind] = lambda message: {name: read(message) for name, read in fields}
            fields += [(field.name, self._field(field)) for field in kind.fields]
        return self._made[kind]

    def _field(self, field: Kind) -> Read:
        name, read = field.name, self._value(field)
        if _is_map(field):
            inner = self._value(field.message_type.fields_by_name["value"])
            return lambda message: {_map_key(k): inner(v) for k, v in getattr(message, name).items()}
        if field.is_repeated:
            return lambda message: [read(value) for value in getattr(message, name)]
        if not field.has_presence:
            return lambda message: read(getattr(message, name))
        other = read(field.default_value) if field.has_default_value else None
        return lambda message: read(getattr(message, name)) if message.HasField(name) else other

    def _value(self, field: Kind) -> Read:
        """What makes a value of one of the field's."""
        if field.type == _ENUM:
            return _enum_names(field)
        if field.message_type is None:
            return _same
        name = field.message_type.full_name
        if name == _TIMESTAMP:
            return lambda value: value.ToDatetime(UTC)
        if name in _WRAPPED:
            return attrgetter("value")
        if name in _DOCUMENTS:
            convert: Read = needed_module("google.protobuf.json_format", "protobuf").MessageToDict
            return convert
        return self.of(field.message_type)


def _same(value: object) -> object:
    return value


def _enum_names(field: Kind) -> Read:
    """The name of a number; a number that has none, as text."""
    names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
    return lambda number: names.get(number) or str(number)


def _map_key(key: object) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _is_map(field: Kind) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _getter(kind: Kind, column: pa.Field) -> Read | None:
    """What gives a column's value of a message, as `_Readers` would; None if the column has other values."""
    try:
        field = spelled(kind.fields_by_name, (column.name,)).get(column.name)
    except SeveralSpellings:
        return None
    if field is None:
        return lambda message: None
    plain = field.message_type is None and not field.is_repeated
    if not plain or column.type not in _PLAIN.get(_TYPES.get(field.type, ""), ()):
        return None
    return _Readers()._field(field)


def protobuf_columns(registry: Registry, subject: str, message: str | None, format: str | None) -> list[Column]:
    """The columns of the newest schema of a subject, of Debezium's changes those of the row. Raises `NoSchema` and
    others."""
    kind = message_of(compiled(registry, registry.newest(subject)), message)
    if format == "debezium":
        after = kind.fields_by_name.get("after")
        if after is None or after.message_type is None:
            raise NotSupported("columns of a Protobuf schema that is none of Debezium's", hint="declare them")
        kind = after.message_type
    return [Column(field.name, _spark_type(field, ())) for field in kind.fields]


def _spark_type(field: Kind, within: tuple[str, ...]) -> str:
    if _is_map(field):
        return f"map<string,{_value_type(field.message_type.fields_by_name['value'], within)}>"
    return f"array<{_value_type(field, within)}>" if field.is_repeated else _value_type(field, within)


def _value_type(field: Kind, within: tuple[str, ...]) -> str:
    kind = field.message_type
    if kind is None:
        if field.type not in _TYPES:
            raise NotSupported(f"the field {field.full_name} of a Protobuf schema", hint="declare the columns")
        return _TYPES[field.type]
    if kind.full_name == _TIMESTAMP:
        return "timestamp"
    if kind.full_name in _WRAPPED:
        return _TYPES[kind.fields_by_name["value"].type]
    if kind.full_name in _DOCUMENTS:
        return "string"
    if kind.full_name in within or not kind.fields:
        what = "which contains itself" if kind.fields else "which has no fields"
        raise NotSupported(
            f"the field {field.full_name} of the message {kind.full_name}, {what}", hint="declare the columns"
        )
    return f"struct<{','.join(_struct_fields(kind, (*within, kind.full_name)))}>"


def _struct_fields(kind: Kind, within: tuple[str, ...]) -> Iterator[str]:
    return (f"{field.name}:{_spark_type(field, within)}" for field in kind.fields)
