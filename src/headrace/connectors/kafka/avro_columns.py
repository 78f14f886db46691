"""Records in Avro as columns: a field of thousands of records is decoded by a handful of numpy's passes over them all.

What a record becomes is what decoding it alone gives (`AvroReader`), or nothing is decoded here: None comes back for a
schema, a column or a record that is not plain, and whoever asked goes record by record. In Avro a field begins where
the one before it ends, so every field of the writer is walked through, whether a column wants it or not, and what a
reader by record would refuse in it is refused here, too. A record is whole exactly if the walk ends where the record
does, since a walk never goes back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.common.lazy_dataclass import dataclass
from headrace.connectors.kafka.packed import PAD, PackedValues
from headrace.connectors.spelling import spelled

Ints: TypeAlias = npt.NDArray[np.int64]
Numbers: TypeAlias = npt.NDArray[Any]
"""Of any of numpy's types."""
AvroType: TypeAlias = Any
"""A type as a schema's JSON writes it: a name, an object, or a union's list."""
Rows: TypeAlias = Ints | slice
"""Which records: all of them, or those at some places."""

FRAME: Final = 5
"""Bytes before a value: a zero, and the id of its schema."""
_MOST_BYTES: Final = 9
"""Of a number that is decoded here: all but the largest 64-bit ones."""
_DAYS: Final = (-719_162, 2_932_896)
_MOMENTS_US: Final = (-62_135_596_800_000_000, 253_402_300_799_999_999)
"""The first and the last that Python has."""
_WHOLE_BYTES: Final = 8
_WHOLE_DIGITS: Final = 18


class _NotPlain(Exception):
    """A schema, a column or a record that is not decoded here."""


@dataclass
class _Walk:
    """Where a walk through the fields of records is in each of them."""

    octets: npt.NDArray[np.uint8]
    """All records, one behind the other, and some zeros."""
    at: Ints

    def move(self, rows: Rows, at: Ints) -> None:
        """Go on, in some records. Raises `_NotPlain` behind the last of all bytes, where nothing can be looked at."""
        if len(at) and int(at.max()) > len(self.octets) - PAD:
            raise _NotPlain
        self.at[rows] = at

    def numbers(self, rows: Rows) -> Ints:
        """A zigzag number of variable length of each."""
        at = self.at[rows]
        octets = self.octets[at]
        found = (octets & 0x7F).astype(np.uint64)
        ends, more = at + 1, np.flatnonzero(octets & 0x80)
        for step in range(1, _MOST_BYTES):
            if not len(more):
                break
            octets = self.octets[np.minimum(at[more] + step, len(self.octets) - 1)]
            found[more] |= (octets & 0x7F).astype(np.uint64) << np.uint64(7 * step)
            ends[more] += 1
            more = more[(octets & 0x80) != 0]
        if len(more):
            raise _NotPlain
        self.move(rows, ends)
        return (found >> np.uint64(1)).astype(np.int64) ^ -(found & np.uint64(1)).astype(np.int64)

    def pieces(self, rows: Rows, lengths: Ints) -> Ints:
        """Where bytes of these lengths begin, which are passed."""
        if len(lengths) and (int(lengths.min()) < 0 or int(lengths.max()) > len(self.octets)):
            raise _NotPlain
        at = self.at[rows].copy()
        self.move(rows, at + lengths)
        return at

    def fixed(self, rows: Rows, width: int) -> npt.NDArray[np.uint8]:
        """So many bytes of each, as rows."""
        at = self.pieces(rows, np.full(len(self.at[rows]), width, np.int64))
        return self.octets[at[:, None] + np.arange(width)]


@dataclass
class FieldValues:
    """A field of records before it is a column: numbers, or where its bytes are."""

    values: Numbers
    """Numbers, or the first byte of each."""
    lengths: Ints | None = None
    """Of the bytes."""
    valid: npt.NDArray[np.bool_] | None = None
    """None if none is NULL."""

    def spread(self, valid: npt.NDArray[np.bool_]) -> FieldValues:
        """The same with NULL for the records between them."""
        if self.valid is not None:
            raise _NotPlain
        values = np.zeros(len(valid), self.values.dtype)
        values[valid] = self.values
        lengths = None
        if self.lengths is not None:
            lengths = np.zeros(len(valid), np.int64)
            lengths[valid] = self.lengths
        return FieldValues(values, lengths, valid)


Reader: TypeAlias = Callable[[_Walk, Rows], FieldValues]
Maker: TypeAlias = Callable[[FieldValues, pa.DataType, npt.NDArray[np.uint8]], pa.Array]


def _number(walk: _Walk, rows: Rows) -> FieldValues:
    return FieldValues(walk.numbers(rows))


def _truth(walk: _Walk, rows: Rows) -> FieldValues:
    octets = walk.fixed(rows, 1)[:, 0]
    if len(octets) and int(octets.max()) > 1:
        raise _NotPlain
    return FieldValues(octets.astype(np.bool_))


def _floats(width: int) -> Reader:
    def read(walk: _Walk, rows: Rows) -> FieldValues:
        return FieldValues(np.ascontiguousarray(walk.fixed(rows, width)).view(f"<f{width}")[:, 0])

    return read


def _text(walk: _Walk, rows: Rows) -> FieldValues:
    lengths = walk.numbers(rows)
    return FieldValues(walk.pieces(rows, lengths), lengths)


def _fixed(size: int) -> Reader:
    def read(walk: _Walk, rows: Rows) -> FieldValues:
        lengths = np.full(len(walk.at[rows]), size, np.int64)
        return FieldValues(walk.pieces(rows, lengths), lengths)

    return read


def _nothing(walk: _Walk, rows: Rows) -> FieldValues:
    count = len(walk.at[rows])
    return FieldValues(np.zeros(count, np.int64), None, np.zeros(count, np.bool_))


def _nullable(null_at: int, inner: Reader) -> Reader:
    """Of a union of NULL and one type: which of both a value has stands before it."""

    def read(walk: _Walk, rows: Rows) -> FieldValues:
        branch = walk.numbers(rows)
        if len(branch) and not 0 <= int(branch.min()) <= int(branch.max()) <= 1:
            raise _NotPlain
        valid = branch != null_at
        if valid.all():
            return inner(walk, rows)
        chosen = np.flatnonzero(valid) if isinstance(rows, slice) else rows[valid]
        return inner(walk, chosen).spread(valid)

    return read


_SIMPLE: Final[Mapping[str, Reader]] = {
    "null": _nothing, "boolean": _truth, "int": _number, "long": _number, "enum": _number, "float": _floats(4),
    "double": _floats(8), "bytes": _text, "string": _text,
}  # fmt: skip


def _reader(kind: AvroType, wanted: bool) -> Reader:
    """What walks over a value of a type, and looks at one that no column wants.

    Raises `_NotPlain`; names of types are not looked up here.
    """
    if isinstance(kind, list):
        if len(kind) != 2 or kind.count("null") != 1:
            raise _NotPlain
        null_at = kind.index("null")
        return _nullable(null_at, _reader(kind[1 - null_at], wanted))
    named, logical = (kind["type"], kind.get("logicalType")) if isinstance(kind, dict) else (kind, None)
    if isinstance(named, (dict, list)):
        return _reader(named, wanted)
    if named == "record":
        return _skipped([_reader(each["type"], False) for each in kind["fields"]])
    if (named, logical) in _UNCHECKED:
        return _fixed(int(kind["size"])) if named == "fixed" else _SIMPLE[named]
    if wanted:
        return _SIMPLE[named]
    if (named, logical) not in _NATURAL:
        raise _NotPlain
    return _looked_at(_SIMPLE[named], _maker(kind, _NATURAL[named, logical]), _NATURAL[named, logical])


def _looked_at(inner: Reader, maker: Maker, kind: pa.DataType) -> Reader:
    def read(walk: _Walk, rows: Rows) -> FieldValues:
        found = inner(walk, rows)
        maker(found, kind, walk.octets)
        return found

    return read


def _skipped(inner: Sequence[Reader]) -> Reader:
    """A record in a record, which no column takes from here."""

    def read(walk: _Walk, rows: Rows) -> FieldValues:
        for each in inner:
            each(walk, rows)
        return FieldValues(np.zeros(len(walk.at[rows]), np.int64))

    return read


# ---- columns


def _checked(raw: FieldValues, bounds: tuple[int, int]) -> npt.NDArray[np.int64]:
    values: npt.NDArray[np.int64] = raw.values
    if len(values) and not bounds[0] <= int(values.min()) <= int(values.max()) <= bounds[1]:
        raise _NotPlain
    return values


def _array(raw: FieldValues, values: Numbers, kind: pa.DataType) -> pa.Array:
    # A NaN is a value, and no NULL.
    return pa.array(values, kind, mask=None if raw.valid is None else ~raw.valid, from_pandas=False)


def _whole(raw: FieldValues, kind: pa.DataType, octets: npt.NDArray[np.uint8]) -> pa.Array:
    info = np.iinfo(kind.to_pandas_dtype())
    return _array(raw, _checked(raw, (int(info.min), int(info.max))), pa.int64()).cast(kind)


def _as_it_is(raw: FieldValues, kind: pa.DataType, octets: npt.NDArray[np.uint8]) -> pa.Array:
    return _array(raw, raw.values, kind)


def _double(raw: FieldValues, kind: pa.DataType, octets: npt.NDArray[np.uint8]) -> pa.Array:
    return _array(raw, raw.values.astype(np.float64), kind)


def _day(raw: FieldValues, kind: pa.DataType, octets: npt.NDArray[np.uint8]) -> pa.Array:
    return _array(raw, _checked(raw, _DAYS).astype(np.int32), pa.int32()).cast(kind)


def _moment(scale: int) -> Maker:
    def made(raw: FieldValues, kind: pa.DataType, octets: npt.NDArray[np.uint8]) -> pa.Array:
        low, high = (-(-bound // scale) if bound < 0 else bound // scale for bound in _MOMENTS_US)
        return _array(raw, _checked(raw, (low, high)) * scale, pa.int64()).cast(kind)

    return made


def _bytes(raw: FieldValues, kind: pa.DataType, octets: npt.NDArray[np.uint8]) -> pa.Array:
    """Texts and bytes, which are copied to stand one behind the other."""
    assert raw.lengths is not None
    ends = np.cumsum(raw.lengths)
    total = int(ends[-1]) if len(ends) else 0
    if total >= np.iinfo(np.int32).max:
        raise _NotPlain
    begins = np.concatenate(([0], ends))
    data = octets[np.repeat(raw.values - begins[:-1], raw.lengths) + np.arange(total)]
    offsets = pa.py_buffer(begins.astype(np.int32))
    found = pa.Array.from_buffers(kind, len(raw.values), [_validity(raw), offsets, pa.py_buffer(data)])
    try:
        found.validate(full=True)
    except pa.ArrowInvalid as error:  # no UTF-8
        raise _NotPlain from error
    return found


def _symbols(symbols: Sequence[str]) -> Maker:
    def made(raw: FieldValues, kind: pa.DataType, octets: npt.NDArray[np.uint8]) -> pa.Array:
        return pc.take(pa.array(symbols, kind), _array(raw, _checked(raw, (0, len(symbols) - 1)), pa.int64()))

    return made


def _decimal(digits: int) -> Maker:
    """Whole numbers of so many digits, the most significant byte first, of which the scale is the column's."""
    bound = 10 ** min(digits, _WHOLE_DIGITS)

    def made(raw: FieldValues, kind: pa.DataType, octets: npt.NDArray[np.uint8]) -> pa.Array:
        assert raw.lengths is not None
        lengths = raw.lengths
        if len(lengths) and int(lengths.max()) > _WHOLE_BYTES:
            raise _NotPlain
        found = np.where((octets[raw.values] >= 0x80) & (lengths > 0), -1, 0)
        for step in range(int(lengths.max(initial=0))):
            found = np.where(step < lengths, (found << 8) | octets[raw.values + step], found)
        _checked(FieldValues(found), (1 - bound, bound - 1))
        words = np.empty((len(found), 2), np.int64)
        words[:, 0], words[:, 1] = found, found >> 63
        return pa.Array.from_buffers(kind, len(found), [_validity(raw), pa.py_buffer(words)])

    return made


def _validity(raw: FieldValues) -> pa.Buffer | None:
    return None if raw.valid is None else pa.py_buffer(np.packbits(raw.valid, bitorder="little"))


def _maker(kind: AvroType, wanted: pa.DataType) -> Maker:
    """What makes a column of a type's values, as a reader by record would. Raises `_NotPlain`."""
    if isinstance(kind, list):
        return _maker(next(k for k in kind if k != "null"), wanted)
    named, logical = (kind["type"], kind.get("logicalType")) if isinstance(kind, dict) else (kind, None)
    if isinstance(named, (dict, list)):
        return _maker(named, wanted)
    if logical == "decimal" and named == "bytes" and pa.types.is_decimal128(wanted):
        if kind.get("scale", 0) == wanted.scale and 1 <= kind.get("precision", 0) <= wanted.precision:
            return _decimal(kind["precision"])
    elif named == "enum" and logical is None and wanted == pa.string():
        return _symbols(kind["symbols"])
    elif (found := _MAKERS.get((named, logical))) is not None and wanted in found[0]:
        return found[1]
    raise _NotPlain


_WHOLES: Final = (pa.int16(), pa.int32(), pa.int64())
_MAKERS: Final[Mapping[tuple[str, str | None], tuple[tuple[pa.DataType, ...], Maker]]] = {
    ("boolean", None): ((pa.bool_(),), _as_it_is),
    ("int", None): (_WHOLES, _whole),
    ("long", None): (_WHOLES, _whole),
    ("float", None): ((pa.float64(),), _double),
    ("double", None): ((pa.float64(),), _double),
    ("string", None): ((pa.string(),), _bytes),
    ("bytes", None): ((pa.binary(),), _bytes),
    ("int", "date"): ((pa.date32(),), _day),
    ("long", "timestamp-millis"): ((pa.timestamp("us", "UTC"),), _moment(1000)),
    ("long", "timestamp-micros"): ((pa.timestamp("us", "UTC"),), _moment(1)),
    ("long", "local-timestamp-millis"): ((pa.timestamp("us"),), _moment(1000)),
    ("long", "local-timestamp-micros"): ((pa.timestamp("us"),), _moment(1)),
}
"""By type and logical type: the columns that its values are, unchanged."""
_NATURAL: Final = {key: kinds[-1] for key, (kinds, _) in _MAKERS.items()} | {("enum", None): pa.string()}
"""The column as which a value is looked at that no column wants."""
_UNCHECKED: Final = frozenset(
    [(name, None) for name in ("null", "boolean", "int", "long", "float", "double", "bytes", "fixed")]
)
"""What every walk understands: no value of it is refused."""


@dataclass(frozen=True)
class RecordColumns:
    """How records of one writer's schema become columns."""

    readers: tuple[Reader, ...]
    """Of the fields, in the writer's order."""
    makers: tuple[tuple[int, Maker] | None, ...] = field(repr=False)
    """Of the columns: which field, and how; None for one that the writer does not have."""
    schema: pa.Schema

    @classmethod
    def of(cls, written: AvroType, schema: pa.Schema) -> RecordColumns | None:
        """None if the writer's schema, or a column, is not plain."""
        if not isinstance(written, dict) or written.get("type") != "record":
            return None
        try:
            at = spelled({each["name"]: i for i, each in enumerate(written["fields"])}, tuple(schema.names))
            wanted = {at[name] for name in schema.names if name in at}
            readers = tuple(_reader(each["type"], i in wanted) for i, each in enumerate(written["fields"]))
            makers = tuple(
                (at[f.name], _maker(written["fields"][at[f.name]]["type"], f.type)) if f.name in at else None
                for f in schema
            )
        except (_NotPlain, KeyError, TypeError, ValueError, StopIteration):
            return None
        return cls(readers, makers, schema)

    def batch(self, values: PackedValues) -> pa.RecordBatch | None:
        """The columns of records, each with its frame; None if one is not plain, or not whole."""
        octets = values.octets
        walk = _Walk(octets, values.starts + FRAME)
        try:
            raws = [read(walk, slice(None)) for read in self.readers]
            if not np.array_equal(walk.at, values.ends):
                return None
            arrays = [
                pa.nulls(len(values), f.type) if made is None else made[1](raws[made[0]], f.type, octets)
                for f, made in zip(self.schema, self.makers)
            ]
        except (_NotPlain, pa.ArrowInvalid, OverflowError):
            return None
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)
