"""A table's rows as Python tuples, and as the batches that its state holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from headrace.catalog.records import ObjectRecord
from headrace.state.kernels import int64_values
from headrace.state.kernels.equality import Ints
from headrace.state.kernels.hashing import hash_columns, hash_key, key_mask
from headrace.state.schema import TableSchema

Key: TypeAlias = tuple[Any, ...]
"""The values of a row's primary key, in the key's order."""
Row: TypeAlias = tuple[object, ...]
"""A row's values, in the order of the table's columns."""

_PLAIN: Final = (
    "tinyint", "smallint", "int", "bigint", "float", "double", "boolean", "string", "date", "timestamp",
    "timestamp_ntz", "binary",
)  # fmt: skip
_TIMES: Final = (pa.date32(), pa.timestamp("us"), pa.timestamp("us", tz="UTC"))
_KEYS: Final = ("tinyint", "smallint", "int", "bigint", "boolean", "string", "date")
"""Types whose values are equal as Python objects exactly where they are equal in the state."""
_ONE_BY_ONE = 24
"""Keys up to which each is hashed by itself: arrays of them cost as much as some dozens."""


class FarTime(int):
    """A date or time for which Python has no object, as the state has it: before the year 1 or after 9999."""

    def __lt__(self, other: object) -> bool:
        return int(self) < int(other) if isinstance(other, FarTime) else self < FarTime(0)

    def __le__(self, other: object) -> bool:
        return self == other or self < other

    def __gt__(self, other: object) -> bool:
        return not self <= other

    def __ge__(self, other: object) -> bool:
        return not self < other


class RowLayout:
    """Converts a table's rows between tuples and the layout of its state."""

    def __init__(self, record: ObjectRecord, schema: TableSchema) -> None:
        self.schema = schema
        self.names = tuple(c.name for c in record.columns)
        types = {c.name: c.type for c in record.columns}
        at = {name: i for i, name in enumerate(self.names)}
        self._stored = [(at[f.name], f.type) for f in schema.data_fields]
        """For each stored column where it stands in a tuple, and its type."""
        self._shown = [[f.name for f in schema.data_fields].index(n) for n in self.names]
        self._arrow = schema.arrow()
        self._key_types = [f.type for f in schema.key]
        masks = [key_mask(kind) for kind in self._key_types]
        self._masks = None if None in masks else [mask for mask in masks if mask is not None]
        self.key_at = tuple(at[name] for name in record.primary_key)
        """Where the values of the primary key stand in a tuple; empty without one."""
        self.plain = all(t in _PLAIN or t.startswith("decimal(") for t in types.values())
        """Whether its rows survive the way through Python unchanged."""
        self.keyed = self.plain and bool(self.key_at) and all(types[n] in _KEYS for n in record.primary_key)
        """Whether rows can be found by their keys as Python objects."""

    def key_of(self, row: Row) -> Key:
        """The primary key of a row."""
        return tuple([row[i] for i in self.key_at])

    def hashes(self, keys: Sequence[Key]) -> Ints:
        """The `__k` of each key, int64."""
        masks = self._masks
        if masks is not None and len(keys) <= _ONE_BY_ONE:
            return np.array([hash_key(key, masks) for key in keys], dtype=np.int64)
        columns = [pa.array(list(values), kind) for values, kind in zip(zip(*keys), self._key_types)]
        return hash_columns(columns)

    def hash_list(self, keys: Sequence[Key]) -> list[int]:
        """The `__k` of keys as a list of Python's integers."""
        masks = self._masks
        if masks is not None and len(keys) <= _ONE_BY_ONE:
            return [hash_key(key, masks) for key in keys]
        return self.hashes(keys).tolist()  # type: ignore[no-any-return]

    def batch(
        self, rows: Sequence[Row], weights: Sequence[int], hashes: Sequence[int] | None = None
    ) -> pa.RecordBatch:  # fmt: skip
        """Rows in the layout of the state, each with its weight, and its `__k` where that is known; not sorted."""
        values = list(zip(*rows)) if rows else [()] * len(self.names)
        data = [pa.array(values[i], kind) for i, kind in self._stored]
        arrays: list[pa.Array] = [
            pa.array(hash_columns(data[: len(self.schema.key)])) if hashes is None else pa.array(hashes, pa.int64())
        ]
        if self.schema.has_row_hash:
            arrays.append(pa.array(hash_columns(data)))
        arrays += data
        arrays.append(pa.array(np.array(weights, dtype=np.int64)))
        return pa.RecordBatch.from_arrays(arrays, schema=self._arrow)

    def rows(self, batch: pa.RecordBatch) -> list[Row]:
        """The stored rows as tuples."""
        start = self.schema.data_start
        columns = [_values(batch.column(start + i)) for i in self._shown]
        return list(zip(*columns)) if columns else []

    def reader(self, batch: pa.RecordBatch) -> Callable[[int], Row]:
        """Reads one stored row after another as a tuple, by its place."""
        start = self.schema.data_start
        columns = [value_reader(batch.column(start + i)) for i in self._shown]
        return lambda at: tuple([read(at) for read in columns])

    def keys(self, batch: pa.RecordBatch) -> list[Key]:
        """The primary keys of stored rows."""
        start = self.schema.data_start
        return list(zip(*(_values(batch.column(start + i)) for i in range(len(self._key_types)))))


def value_reader(column: pa.Array) -> Callable[[int], Any]:
    """Reads one value of a column after another as a Python object."""
    if pa.types.is_signed_integer(column.type) and not column.null_count:
        return np.asarray(column).data.__getitem__  # type: ignore[return-value]
    if column.type in _TIMES:
        return lambda at: _values(column.slice(at, 1))[0]
    return lambda at: column[at].as_py()


def _values(column: pa.Array) -> list[object]:
    """A column as Python objects, with a `FarTime` for what is none."""
    if column.type not in _TIMES:
        return column.to_pylist()  # type: ignore[no-any-return]
    try:
        return column.to_pylist()  # type: ignore[no-any-return]
    except (OverflowError, ValueError):
        return [_time(value) for value in column]


def _time(value: pa.Scalar) -> object:
    try:
        return value.as_py()
    except (OverflowError, ValueError):
        return FarTime(value.value)


def hashes_of(batch: pa.RecordBatch) -> Ints:
    """The `__k` of stored rows."""
    return int64_values(batch.column(0))
