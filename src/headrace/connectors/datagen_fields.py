"""The columns of `datagen`: values from row numbers.

Properties of a column, as options `fields.<col>.<property>`:

`kind`           `random` (default) or `sequence`
`start`, `end`   sequence: first value (default 0, or 1970-01-01); with `end` it starts over after that value
`step`           sequence: distance of two values (default 1; a duration such as `1s` for timestamps, days for dates)
`min`, `max`     random: inclusive range of numbers (default 0 to 1000, tinyint 100),
                 dates and timestamps (default the years 2020 to 2029)
`length`         random text, binary: characters or bytes (default 10); arrays: elements (default 3)
`prefix`         text: in front of the value
`choices`        random: comma-separated values to pick from
`null_fraction`  share of NULLs from 0 to 1 (default 0)
`seed`           another number gives other values

Numbers of rows are those of the whole source: row i of split s of n is number i * n + s.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.common.columns import Column, arrow_type
from headrace.common.lazy_dataclass import dataclass
from headrace.connectors.option_reader import OptionReader, parse_duration_ms
from headrace.connectors.parsed_values import strings_to_array
from headrace.errors import InvalidParameter

PROPERTIES = ("kind", "start", "end", "step", "min", "max", "length", "prefix", "choices", "null_fraction", "seed")
_ALPHABET = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz0123456789", np.uint8)
_DAY_US = 86_400_000_000

Numbers = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]
Maker = Callable[[Numbers, int], pa.Array]
"""Values for row numbers, given a seed."""


def splitmix64(values: Hashes) -> Hashes:
    """The splitmix64 finalizer: a bijection of 64-bit integers that looks random."""
    with np.errstate(over="ignore"):
        z = values + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def hash_rows(numbers: Numbers, seed: int, lane: int = 0) -> Hashes:
    """A random-looking number for each row number; `lane` gives independent ones."""
    key = splitmix64(np.array([(seed * 0x2545F4914F6CDD1D + lane) % 2**64], np.uint64))
    return splitmix64(numbers.astype(np.uint64) ^ key)


@dataclass(frozen=True)
class MadeField:
    """How one column is made."""

    maker: Maker
    seed: int
    null_fraction: float

    def make(self, numbers: Numbers) -> pa.Array:
        """The values for row numbers."""
        values = self.maker(numbers, self.seed)
        if self.null_fraction == 0:
            return values
        share = _unit(hash_rows(numbers, self.seed, 1))
        return pc.if_else(pa.array(share < self.null_fraction), pa.scalar(None, values.type), values)


def make_fields(reader: OptionReader, columns: Sequence[Column], seed: int) -> list[MadeField]:
    """A field per column; raises `InvalidParameter` for properties that are unknown or do not fit."""
    names = {column.name for column in columns}
    for option in reader.options:
        if option.startswith("fields."):
            column, _, name = option[len("fields.") :].rpartition(".")
            if column not in names:
                raise InvalidParameter(f"option {option}: there is no column {column!r}")
            if name not in PROPERTIES:
                raise InvalidParameter(f"option {option}: the property must be one of {', '.join(PROPERTIES)}")
    return [_field(_Properties(reader, column), seed) for column in columns]


@dataclass(frozen=True)
class _Properties:
    reader: OptionReader
    column: Column

    def name(self, name: str) -> str:
        return f"fields.{self.column.name}.{name}"

    def text(self, name: str, default: str) -> str:
        return self.reader.options.get(self.name(name), default)

    def units(self, name: str, kind: pa.DataType, default: int) -> int:
        """A value of the column as its integer: microseconds, days, units of the last decimal."""
        if self.name(name) not in self.reader.options:
            return default
        try:
            return _to_units(self.text(name, ""), kind)
        except (ValueError, InvalidOperation):
            raise self.wrong(name, f"a value of type {self.column.type}") from None

    def wrong(self, name: str, allowed: str) -> InvalidParameter:
        return InvalidParameter(f"option {self.name(name)} must be {allowed}, not {self.text(name, '')!r}")


def _field(properties: _Properties, seed: int) -> MadeField:
    reader, column = properties.reader, properties.column
    nulls = reader.fraction(properties.name("null_fraction"), 0.0)
    if nulls and not column.nullable:
        raise properties.wrong("null_fraction", "0, because the column is NOT NULL")
    own = reader.integer(properties.name("seed")) or 0
    kind = arrow_type(column.type)
    way = reader.choice(properties.name("kind"), ("random", "sequence"), "random")
    if reader.has(properties.name("choices")):
        maker = _choices(properties, kind)
    elif way == "sequence":
        maker = _sequence(properties, kind)
    else:
        maker = _random(properties, kind)
    return MadeField(maker, (seed * 1_000_003 + own) * 2**32 + zlib.crc32(column.name.encode()), nulls)


def _to_units(text: str, kind: pa.DataType) -> int:
    if pa.types.is_date(kind):
        return (date.fromisoformat(text) - date(1970, 1, 1)).days
    if pa.types.is_timestamp(kind):
        moment = datetime.fromisoformat(text)
        since = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
        return since.days * _DAY_US + since.seconds * 1_000_000 + since.microseconds
    if pa.types.is_decimal(kind):
        return int(Decimal(text).scaleb(kind.scale).to_integral_value())
    return int(text)


def _from_units(units: Numbers, kind: pa.DataType) -> pa.Array:
    if pa.types.is_date(kind):
        return pa.array(units.astype(np.int32), pa.date32())
    if pa.types.is_timestamp(kind):
        return pa.array(units, pa.int64()).cast(kind)
    if pa.types.is_decimal(kind):
        octets = np.empty((len(units), 2), np.int64)
        octets[:, 0], octets[:, 1] = units, units >> 63
        return pa.Array.from_buffers(kind, len(units), [None, pa.py_buffer(octets.tobytes())])
    return pa.array(units, pa.int64()).cast(kind)


def _unit(hashes: Hashes) -> npt.NDArray[np.float64]:
    """Uniform in [0, 1)."""
    return (hashes >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _range(kind: pa.DataType) -> tuple[int, int]:
    """The integers that the type can hold (of a decimal: what 64 bits can)."""
    if pa.types.is_integer(kind):
        info = np.iinfo(kind.to_pandas_dtype())
        return int(info.min), int(info.max)
    if pa.types.is_decimal(kind):
        most = min(10**kind.precision - 1, 2**63 - 1)
        return -most, most
    if pa.types.is_date(kind):
        return -719_162, 2_932_896
    return -719_162 * _DAY_US, 2_932_897 * _DAY_US - 1


def _check(properties: _Properties, kind: pa.DataType, low: int, high: int, names: tuple[str, str]) -> None:
    least, most = _range(kind)
    for value, name in zip((low, high), names):
        if not least <= value <= most:
            raise properties.wrong(name, f"in the range of {properties.column.type}")
    if low > high:
        raise properties.wrong(names[1], f"at least {names[0]}")


def _sequence(properties: _Properties, kind: pa.DataType) -> Maker:
    if pa.types.is_string(kind):
        prefix, inner = properties.text("prefix", ""), _sequence_units(properties, pa.int64())
        return lambda numbers, seed: _prefixed(prefix, pa.array(inner(numbers)).cast(pa.string()))
    if pa.types.is_floating(kind):
        start = _number(properties, "start", 0.0)
        step = _number(properties, "step", 1.0)
        return lambda numbers, seed: pa.array(start + numbers * step, pa.float64()).cast(kind)
    if pa.types.is_boolean(kind):
        return lambda numbers, seed: pa.array(numbers % 2 == 1)
    if pa.types.is_nested(kind) or pa.types.is_binary(kind):
        raise properties.wrong("kind", f"random for a column of type {properties.column.type}")
    units = _sequence_units(properties, kind)
    return lambda numbers, seed: _from_units(units(numbers), kind)


def _sequence_units(properties: _Properties, kind: pa.DataType) -> Callable[[Numbers], Numbers]:
    timed = pa.types.is_timestamp(kind)
    start = properties.units("start", kind, 0)
    step = 1_000_000 if timed else 10**kind.scale if pa.types.is_decimal(kind) else 1
    if properties.reader.has(properties.name("step")):
        if timed:
            step = int(1000 * (parse_duration_ms(properties.text("step", "")) or 0))
        else:
            step = properties.units("step", pa.int32() if pa.types.is_date(kind) else kind, step)
    if step == 0:
        raise properties.wrong("step", "a duration such as 1s" if timed else "a number other than 0")
    least, most = _range(kind)
    end = properties.units("end", kind, most if step > 0 else least)
    _check(properties, kind, min(start, end), max(start, end), ("start", "end"))
    count = (end - start) // step + 1
    if count < 1:
        raise properties.wrong("end", "on the side of start that step leads to")
    return lambda numbers: start + (numbers % np.int64(min(count, 2**63 - 1))) * step


def _random(properties: _Properties, kind: pa.DataType) -> Maker:
    if pa.types.is_list(kind):
        size = _length(properties, 3)
        inner = _random(
            _Properties(properties.reader, Column(properties.column.name, _element(properties))), kind.value_type
        )
        return lambda numbers, seed: _lists(inner, numbers, seed, size, kind)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        prefix, size = properties.text("prefix", ""), _length(properties, 10)
        if pa.types.is_string(kind):
            return lambda numbers, seed: _prefixed(prefix, _letters(numbers, seed, size).cast(pa.string()))
        return lambda numbers, seed: _letters(numbers, seed, size)
    if pa.types.is_boolean(kind):
        return lambda numbers, seed: pa.array((hash_rows(numbers, seed) & np.uint64(1)) == 1)
    if pa.types.is_floating(kind):
        low, high = _number(properties, "min", 0.0), _number(properties, "max", 1000.0)
        if low > high:
            raise properties.wrong("max", "at least min")
        return lambda numbers, seed: pa.array(low + _unit(hash_rows(numbers, seed)) * (high - low)).cast(kind)
    if pa.types.is_nested(kind) or pa.types.is_null(kind):
        raise InvalidParameter(
            f"connector datagen cannot make column {properties.column.name}: {properties.column.type}"
        )
    return _random_units(properties, kind)


def _random_units(properties: _Properties, kind: pa.DataType) -> Maker:
    least, most = _default_range(kind)
    low, high = properties.units("min", kind, least), properties.units("max", kind, most)
    _check(properties, kind, low, high, ("min", "max"))
    span = np.uint64(high - low)
    base = np.uint64(low % 2**64)

    def make(numbers: Numbers, seed: int) -> pa.Array:
        hashes = hash_rows(numbers, seed)
        part = hashes if span == np.uint64(2**64 - 1) else hashes % (span + np.uint64(1))
        with np.errstate(over="ignore"):
            return _from_units((part + base).view(np.int64), kind)

    return make


def _default_range(kind: pa.DataType) -> tuple[int, int]:
    if pa.types.is_date(kind):
        return _to_units("2020-01-01", kind), _to_units("2029-12-31", kind)
    if pa.types.is_timestamp(kind):
        return _to_units("2020-01-01", kind), _to_units("2030-01-01", kind) - 1
    if pa.types.is_decimal(kind):
        return 0, min(1000 * 10**kind.scale, _range(kind)[1])
    return 0, min(1000, 100 if kind == pa.int8() else 1000)


def _choices(properties: _Properties, kind: pa.DataType) -> Maker:
    texts = [text.strip() for text in properties.text("choices", "").split(",")]
    values, bad = strings_to_array(pa.array(texts, pa.string()), kind)
    if bad:
        raise properties.wrong("choices", f"values of type {properties.column.type} with commas between")
    count = np.uint64(len(texts))
    return lambda numbers, seed: values.take(pa.array((hash_rows(numbers, seed) % count).astype(np.int64)))


def _number(properties: _Properties, name: str, default: float) -> float:
    try:
        value = float(properties.text(name, str(default)))
    except ValueError:
        value = np.nan
    if not np.isfinite(value):
        raise properties.wrong(name, "a number")
    return value


def _length(properties: _Properties, default: int) -> int:
    value = properties.reader.integer(properties.name("length"), 0)
    return default if value is None else value


def _element(properties: _Properties) -> str:
    return properties.column.type.strip()[len("array<") : -1]


def _letters(numbers: Numbers, seed: int, size: int) -> pa.Array:
    octets = np.empty((len(numbers), size), np.uint8)
    for i in range(size):
        octets[:, i] = _ALPHABET[(hash_rows(numbers, seed, 2 + i) % np.uint64(len(_ALPHABET))).astype(np.int64)]
    ends = np.arange(len(numbers) + 1, dtype=np.int32) * np.int32(size)
    return pa.Array.from_buffers(
        pa.binary(), len(numbers), [None, pa.py_buffer(ends.tobytes()), pa.py_buffer(octets.tobytes())]
    )


def _prefixed(prefix: str, values: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(prefix, values, "") if prefix else values


def _lists(inner: Maker, numbers: Numbers, seed: int, size: int, kind: pa.DataType) -> pa.Array:
    inside = (numbers[:, None] * size + np.arange(size, dtype=np.int64)).reshape(-1)
    ends = np.arange(len(numbers) + 1, dtype=np.int32) * np.int32(size)
    return pa.ListArray.from_arrays(pa.array(ends), inner(inside, seed), type=kind)
