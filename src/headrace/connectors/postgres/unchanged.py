"""Values that an update leaves out, for they are stored out of line and have not changed: looked up.

What a row had before is what the log has told of it since the beginning of the range that is read, else what the table
here holds. A row that has got another key had it under the one before, whose deletion stands right in front.

In the range in which content was read the table here holds rows of later than some of the changes. Where that is all of
one moment, a row that is not held under the key that it had has got another one by then: it is held under that, or was
deleted. Where it was read in parts, a row may have got away from who reads it: it moves to where another one has been
already. Then nobody knows it here, and it is asked for where it is.

What the log tells is kept in a file of its own for as long as the range is read, and only in a range in which a value
is left out: nobody knows beforehand of which rows they will be asked for.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from headrace.common.lazy_dataclass import dataclass
from headrace.connectors.base import HeldRows
from headrace.connectors.postgres.pgoutput import DELETE, Mask, RowEvents
from headrace.state.objects import storage_errors

FILLED_AT_ONCE: Final = 32
"""Rows of which values are looked up together: each value may be as long as PostgreSQL lets it be."""
Arrays: TypeAlias = dict[str, pa.Array]
Key: TypeAlias = tuple[object, ...]
Texts: TypeAlias = tuple[str, ...]
"""A key as PostgreSQL writes it."""


class ToldPlace(NamedTuple):
    """A row that the log has told."""

    batch: int
    row: int


_Origin: TypeAlias = ToldPlace | Key | None
"""Where a row was told before; by its key, where the table here has it; None where it was deleted."""


class EventColumns(NamedTuple):
    """The columns that are not the table's own."""

    operation: str
    position: str


@dataclass
class Unchanged:
    """Takes in the changes of a range in their order, and fills in what they leave out."""

    key: Sequence[str]
    columns: Sequence[str]
    """All of the table's own."""
    beside: EventColumns
    held: HeldRows
    there: Callable[[Texts], Arrays | None] | None = None
    """What PostgreSQL has of a row now, to ask by its key where nobody else knows; None where it has none."""
    later: bool = False
    """What the table here holds may be of later than the changes, all of one moment."""
    told: Told = field(default_factory=lambda: Told())
    _newest: dict[Key, ToldPlace | None] = field(default_factory=dict)
    """Of each key that was told: where it was last; None where it was deleted."""
    _unknown: set[tuple[ToldPlace, str]] = field(default_factory=set)
    """Rows and columns that were told without a value that anybody knew."""

    def parts(self, events: RowEvents) -> Iterator[RowEvents]:
        """The same changes, few enough at once for what is left out of them."""
        rows = _rows(events)
        start = 0
        for at in rows[FILLED_AT_ONCE::FILLED_AT_ONCE].tolist():
            stop = at - 1 if events.moved is not None and events.moved[at] else at
            yield events.part(start, stop)
            start = stop
        yield events.part(start, len(events.deletes))

    def fill(self, events: RowEvents, made: Arrays) -> tuple[Arrays, list[tuple[int, str]]]:
        """The columns with what was left out, and the rows and columns of which nobody knows it."""
        origins = self._origins(events, made)
        number = len(self.told)
        held = self._find([origin for found in origins.values() for origin in found], made)
        filled, missing = dict(made), list[tuple[int, str]]()
        for name, mask in events.unsaid.items():
            values: dict[int, pa.Array] = {}
            for row in np.flatnonzero(mask).tolist():
                found = (self._value(name, origin, held, made, values) for origin in origins[row])
                value = next((value for value in found if value is not None), None)
                if value is None and self.there is not None:
                    asked = self.there(tuple(events.values[key][row].as_py() for key in self.key))
                    value = None if asked is None else asked[name]
                if value is None:
                    missing.append((row, name))
                    self._unknown.add((ToldPlace(number, row), name))
                    value = pa.nulls(1, made[name].type)
                values[row] = value
            filled[name] = _replaced(made[name], values)
        self.told.add(pa.RecordBatch.from_pydict({name: filled[name] for name in self.columns}))
        return filled, sorted(missing)

    def _origins(self, events: RowEvents, made: Arrays) -> dict[int, list[_Origin]]:
        """Where those rows were told before of which something is left out, likeliest first; and all are noted."""
        number, found = len(self.told), dict[int, list[_Origin]]()
        wanted = set(_rows(events).tolist())
        keys = list(zip(*(made[name].to_pylist() for name in self.key)))
        before: _Origin = None
        for row, (key, deleted) in enumerate(zip(keys, events.deletes.tolist())):
            if row in wanted:
                moved = events.moved is not None and bool(events.moved[row])
                found[row] = [before if moved else self._newest.get(key, key)]
                if self.later:  # a key that was told of nobody before is held of none but this row
                    found[row].insert(len(found[row]) if key in self._newest else 0, key)
            before = self._newest.get(key, key)
            self._newest[key] = None if deleted else ToldPlace(number, row)
        return found

    def _find(self, origins: Sequence[_Origin], made: Arrays) -> dict[Key, tuple[pa.RecordBatch, int]]:
        """By key the newest rows that the table here has; none where the newest is a deletion."""
        keys = list(dict.fromkeys(o for o in origins if o is not None and not isinstance(o, ToldPlace)))
        if not keys:
            return {}
        columns = [pa.array([key[i] for key in keys], made[name].type) for i, name in enumerate(self.key)]
        rows = self.held(pa.RecordBatch.from_arrays(columns, names=list(self.key)))
        at = rows.column(self.beside.position).to_pylist()
        newest: dict[Key, int] = {}
        for row, key in enumerate(zip(*(rows.column(name).to_pylist() for name in self.key))):
            if key not in newest or at[row] > at[newest[key]]:
                newest[key] = row
        gone = rows.column(self.beside.operation).to_pylist()
        return {key: (rows, row) for key, row in newest.items() if gone[row] != DELETE}

    def _value(
        self, name: str, origin: _Origin, held: Mapping[Key, tuple[pa.RecordBatch, int]], made: Arrays,
        filled: Mapping[int, pa.Array],
    ) -> pa.Array | None:  # fmt: skip
        if isinstance(origin, ToldPlace):
            if (origin, name) in self._unknown:
                return None
            if origin.batch < len(self.told):
                return self.told.value(origin, name)
            return filled[origin.row] if origin.row in filled else made[name].slice(origin.row, 1)
        if origin is None or origin not in held:
            return None
        rows, row = held[origin]
        return rows.column(name).slice(row, 1).cast(made[name].type)


class Told:
    """Rows that were told, in a file without a name."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="headrace-told-")  # noqa: SIM115  # it goes with this object
        self._ends = [0]
        self._schema: pa.Schema | None = None
        self._map: mmap.mmap | None = None
        self._mapped = 0

    def __len__(self) -> int:
        """How many batches there are."""
        return len(self._ends) - 1

    def add(self, batch: pa.RecordBatch) -> None:
        """Keep a batch. Raises `DiskFull` and `StorageError` where the disk does not take it."""
        self._schema = batch.schema
        data = memoryview(batch.serialize())
        with storage_errors("keeping", "what the log has told"):
            while len(data):
                data = data[self._file.write(data) :]
            self._file.flush()
        self._ends.append(os.fstat(self._file.fileno()).st_size)

    def value(self, place: ToldPlace, name: str) -> pa.Array:
        """A value, alone in a column."""
        start, stop = self._ends[place.batch], self._ends[place.batch + 1]
        if self._map is None or self._mapped < stop:
            self._map, self._mapped = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ), self._ends[-1]
        data = pa.py_buffer(memoryview(self._map)[start:stop])
        return pa.ipc.read_record_batch(data, self._schema).column(name).slice(place.row, 1)


def _rows(events: RowEvents) -> np.ndarray:
    """The rows of which something is left out."""
    found: Mask = np.zeros(len(events.deletes), bool)
    for mask in events.unsaid.values():
        found |= mask
    return np.flatnonzero(found)


def _replaced(array: pa.Array, values: Mapping[int, pa.Array]) -> pa.Array:
    if not values:
        return array
    at = np.arange(len(array))
    at[list(values)] = len(array) + np.arange(len(values))
    return pa.concat_arrays([array, *values.values()]).take(pa.array(at))
