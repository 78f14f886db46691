"""Records of JSON as rows of the declared columns: many at once where they are plain, else one by one.

What a record becomes depends on it alone, never on its neighbours. So Arrow's parser, which takes many records at
once, has to find what Python's finds in each of them. Where it cannot, or is not known to, it is not asked, or its
answer is not taken. Records are then halved, until those that are not plain stand among few others, which are parsed by
Python.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pajson

from headrace.common.columns import Column, arrow_schema
from headrace.common.lazy_dataclass import dataclass
from headrace.connectors.parsed_values import objects_to_array
from headrace.connectors.spelling import SeveralSpellings, SpelledKeys, spelled

Fault = tuple[int, str | None, str, str]
"""(row, column, value, message)"""

FEW: Final = 250
"""Records that are parsed one by one if one of them has to be."""
_SHALLOW: Final = 200
"""Objects and arrays that a record may have so that it cannot be too deep for Python."""
_DAY = r"[12]\d{3}-\d{2}-\d{2}"
_MOMENT = _DAY + r"[T ]([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,6})?"
_ZONED = _MOMENT + r"(Z|[+-]([01]\d|2[0-3]):[0-5]\d)"
_MINUS_ZERO = re.compile(rb"-0(?<=[:\s]-0)(?![.\deE])")
"""For Python it is a whole number, which has no sign then."""


@dataclass(frozen=True)
class JsonRecords:
    """Records, none of which is empty, as ranges of `data`; each but the last ends with a line break."""

    data: bytes
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts)

    def part(self, start: int, stop: int) -> JsonRecords:
        """Some of them."""
        return JsonRecords(self.data, self.starts[start:stop], self.ends[start:stop])

    def text(self) -> bytes:
        """All of them."""
        return self.data[int(self.starts[0]) : int(self.ends[-1])]

    def record(self, i: int) -> bytes:
        """One of them."""
        return self.data[int(self.starts[i]) : int(self.ends[i])].rstrip(b"\r\n")


def json_rows(records: Sequence[bytes], columns: Sequence[Column]) -> tuple[pa.RecordBatch, list[Fault]]:
    """Records that come one by one, such as messages, as rows; see `rows_of`."""
    lines = [record + b"\n" for record in records]
    ends = np.cumsum(np.fromiter(map(len, lines), np.int64, len(lines)))
    return rows_of(JsonRecords(b"".join(lines), np.concatenate(([0], ends[:-1])), ends), columns)


def rows_of(records: JsonRecords, columns: Sequence[Column]) -> tuple[pa.RecordBatch, list[Fault]]:
    """One JSON object per record; a column that the object lacks is NULL, others are ignored."""
    schema = nullable_schema(columns)
    faults: list[Fault] = []
    plain = all(_read_as(kind) is not None for kind in schema.types)
    pieces = _pieces(records, 0, columns, schema, faults) if plain else [rows_one_by_one(records, 0, columns, faults)]
    if len(pieces) == 1:
        return pieces[0], faults
    table = pa.Table.from_batches(pieces).combine_chunks()
    return pa.RecordBatch.from_arrays([one_array(column) for column in table.columns], schema=schema), faults


def _pieces(
    records: JsonRecords, base: int, columns: Sequence[Column], schema: pa.Schema, faults: list[Fault]
) -> list[pa.RecordBatch]:
    found = rows_at_once(records, schema)
    if found is not None:
        return [found]
    count = len(records)
    ends = (records.part(0, FEW), records.part(count - FEW, count)) if count > FEW else ()
    if all(rows_at_once(part, schema) is None for part in ends):  # none is plain, as it seems
        return [rows_one_by_one(records, base, columns, faults)]
    middle = count // 2
    return [
        *_pieces(records.part(0, middle), base, columns, schema, faults),
        *_pieces(records.part(middle, count), base + middle, columns, schema, faults),
    ]


def rows_one_by_one(records: JsonRecords, base: int, columns: Sequence[Column], faults: list[Fault]) -> pa.RecordBatch:
    """The rows by Python's parser; faults are added, with rows counted from `base`."""
    objects: list[dict[str, object]] = []
    for row in range(len(records)):
        record = records.record(row)
        try:
            found = json.loads(record, parse_float=Decimal)
            if not isinstance(found, dict):
                raise ValueError("not a JSON object")
        except (ValueError, RecursionError) as error:
            faults.append((base + row, None, record.decode(errors="replace"), _fault(error)))
            found = {}
        objects.append(found)
    batch, more = object_rows(objects, columns)
    faults += [(base + row, column, value, message) for row, column, value, message in more]
    return batch


def object_rows(
    objects: Sequence[Mapping[str, object]], columns: Sequence[Column]
) -> tuple[pa.RecordBatch, list[Fault]]:
    """Objects of JSON, decimals as such, as rows: a column that one lacks is NULL, others are ignored.

    A name that differs from a column's in capitals alone stands for it.
    """
    schema, arrays = nullable_schema(columns), []
    faults: list[Fault] = []
    objects = _spelled(objects, tuple(schema.names), faults)
    for column, field in zip(columns, schema):
        into = [found.get(column.name) for found in objects]
        array, bad = objects_to_array(into, field.type)
        faults.extend(
            (row, column.name, str(into[row]), f"{message} (column is {column.type})") for row, message in bad
        )
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema), faults


def _spelled(
    objects: Sequence[Mapping[str, object]], names: tuple[str, ...], faults: list[Fault]
) -> list[Mapping[str, object]]:
    """The objects by the names of columns; of one with which that cannot be nothing is left."""
    into: list[Mapping[str, object]] = []
    for row, found in enumerate(objects):
        try:
            into.append(spelled(found, names))
        except SeveralSpellings as error:
            faults.append((row, None, json.dumps(found, default=str), str(error)))
            into.append({})
    return into


def rows_at_once(records: JsonRecords, schema: pa.Schema) -> pa.RecordBatch | None:
    """The rows by Arrow's parser, None if a type or record is not plain enough for it."""
    kinds = [_read_as(kind) for kind in schema.types]
    data = records.text()
    if None in kinds or not _are_plain(records, data, pa.float64() in kinds):
        return None
    keys = SpelledKeys(data)
    names = [name if f'"{name}"'.encode() in data else keys.of(name) for name in schema.names]
    if None in names:
        return None
    read = pajson.ReadOptions(use_threads=False, block_size=len(data) + 1)
    wanted = pa.schema([pa.field(name, kind) for name, kind in zip(names, kinds)])
    parse = pajson.ParseOptions(explicit_schema=wanted, unexpected_field_behavior="ignore")
    try:
        table = pajson.read_json(pa.BufferReader(data), read, parse).combine_chunks()
        table.validate(full=True)
        if table.num_rows != len(records) or table.schema.names != names or _has_others(keys, table, schema.names):
            return None
        arrays = [_converted(one_array(column), kind) for column, kind in zip(table.columns, schema.types)]
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return None
    return None if any(array is None for array in arrays) else pa.RecordBatch.from_arrays(arrays, schema=schema)


def _has_others(keys: SpelledKeys, table: pa.Table, names: Sequence[str]) -> bool:
    """Whether what is NULL, read by its own name, may be there by another, of other capitals."""
    missing = [name for i, name in enumerate(names) if table.schema.names[i] == name and table.column(i).null_count]
    return any(keys.of(name) != name for name in missing)


def _are_plain(records: JsonRecords, data: bytes, fractions: bool) -> bool:
    """Whether records are whole objects, each by itself, that Arrow cannot understand where Python does not."""
    octets = np.frombuffer(records.data, np.uint8)
    last = octets[records.ends - 2] == ord("}")
    last[-1] |= data.endswith(b"}")
    if not (np.all(octets[records.starts] == ord("{")) and np.all(last)):
        return False
    if (fractions and _MINUS_ZERO.search(data)) or _may_be_deep(records, octets, data):
        return False
    try:
        data.decode()  # what is not asked for is not decoded by Arrow
    except UnicodeDecodeError:
        return False
    return True


def _may_be_deep(records: JsonRecords, octets: npt.NDArray[np.uint8], data: bytes) -> bool:
    """Whether a record may be too deep for Python: has so many objects and arrays."""
    if data.count(b"{") + data.count(b"[") <= len(records) + _SHALLOW:
        return False
    low = int(records.starts[0])
    octets = octets[low : int(records.ends[-1])]  # of these records only: a part is asked about again and again
    opened = np.cumsum((octets == ord("{")) | (octets == ord("[")))
    return bool(np.any(opened[records.ends - 1 - low] - opened[records.starts - low] > _SHALLOW))


def _read_as(kind: pa.DataType) -> pa.DataType | None:
    """The type as which Arrow reads a value of which a column of type `kind` is made; None if there is none."""
    t = pa.types
    if t.is_integer(kind):
        return pa.int64()
    if t.is_floating(kind):
        return pa.float64()
    if t.is_date(kind) or t.is_timestamp(kind):
        return pa.string()
    if t.is_decimal(kind):
        return pa.decimal256(76, 38)  # all digits before the point that a column can have, and most behind it
    return kind if t.is_string(kind) or t.is_boolean(kind) else None


def _converted(array: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """A column as it was read, as `kind`; None if a value is not spelled in the one way that all readers understand."""
    if pa.types.is_floating(kind):
        if pc.any(pc.is_inf(array)).as_py():  # too large a whole number is one at fault
            return None
        return array.cast(kind, safe=False)  # rounded, as elsewhere
    if array.type == kind or pa.types.is_integer(kind):
        return array.cast(kind)
    if pa.types.is_decimal(kind):
        return pc.round(array, kind.scale, round_mode="half_towards_infinity").cast(kind)
    if pa.types.is_date(kind):
        return array.cast(kind) if _all_match(array, _DAY) else None
    if kind.tz is None:
        return array.cast(kind) if _all_match(array, _MOMENT) else None
    if _all_match(array, _ZONED):
        return array.cast(kind)
    return array.cast(pa.timestamp("us")).cast(kind) if _all_match(array, _MOMENT) else None


def _all_match(array: pa.Array, pattern: str) -> bool:
    found = pc.all(pc.match_substring_regex(array, f"^{pattern}$")).as_py()
    return found is not False


def _fault(error: Exception) -> str:
    return f"malformed JSON: {error}" if isinstance(error, json.JSONDecodeError) else str(error)


def nullable_schema(columns: Sequence[Column]) -> pa.Schema:
    """The schema of rows of which any value may turn out to be none."""
    return arrow_schema([Column(column.name, column.type) for column in columns])


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """A column in one piece."""
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
