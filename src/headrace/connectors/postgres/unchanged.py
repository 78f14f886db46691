"""Values that an update leaves out, for they are stored out of line and have not changed: looked up.

What a row had before is what the log has told of it since the beginning of the range that is read, else what the table
here holds. A row that has got another key had it under the one before, whose deletion stands right in front.

In the range in which content was read the table here holds rows of later than some of the changes, and nobody knows
of which moment: a row is held under one of the keys that it has had in the range. Under a key that another row has
had, too, it may be that one. So only a key that was its own tells (`row_chains.py`). Where it is held under none, it
was deleted, or it swapped keys with others, or it moved while content was read in parts, to where another part had been
read already: it is asked for where it is, by the key that it has in the end. Behind that range the table here holds all
rows but those that were left out for their errors: of one that is not here nobody has to be asked.

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
from headrace.connectors.postgres.row_chains import Key, RowChains, Texts
from headrace.state.objects import storage_errors

FILLED_AT_ONCE: Final = 32
"""Rows of which values are looked up together: each value may be as long as PostgreSQL lets it be."""
Arrays: TypeAlias = dict[str, pa.Array]


class ToldPlace(NamedTuple):
    """A row that the log has told."""

    batch: int
    row: int


_Origin: TypeAlias = ToldPlace | Key | None
"""Where a row was told before; by its key, where the table here has it; None where it was deleted."""


class UnknownValues(NamedTuple):
    """Rows of which a value is known to nobody."""

    gone: list[int]
    """Those that are deleted further on in the range."""
    values: list[tuple[int, str]]
    """Of others: rows and columns."""


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
    chains: RowChains | None = None
    """Of a range of which the table here may not hold all rows: which changes are of one row. All are taken in."""
    there: Callable[[Sequence[Texts]], Sequence[Arrays | None]] | None = None
    """What PostgreSQL has of rows, to ask by their keys where nobody else knows; None where it is of no use."""
    behind: bool = False
    """Whether rows that are held are of later than the changes (the range in which content was read)."""
    told: Told = field(default_factory=lambda: Told())
    _newest: dict[Key, ToldPlace | None] = field(default_factory=dict)
    """Of each key that was told: where it was last; None where it was deleted."""
    _told_of: dict[int, ToldPlace] = field(default_factory=dict)
    """Of each row of `chains` that was told: where it was last."""
    _taken: int = 0
    """How many changes have been taken in."""
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

    def fill(self, events: RowEvents, made: Arrays) -> tuple[Arrays, UnknownValues]:
        """The columns with what was left out, and of which rows nobody knows it."""
        rows = self._rows_of(events)
        origins = self._origins(events, made, rows)
        number = len(self.told)
        held = self._find([origin for found in origins.values() for origin in found], made)
        values: dict[str, dict[int, pa.Array]] = {name: {} for name in events.unsaid}
        pending: list[tuple[int, str]] = []
        for name, mask in events.unsaid.items():
            for row in np.flatnonzero(mask).tolist():
                found = (self._value(name, origin, held, made, values[name]) for origin in origins[row])
                value = next((value for value in found if value is not None), None)
                if value is not None:
                    values[name][row] = value
                else:
                    pending.append((row, name))
                    self._unknown.add((ToldPlace(number, row), name))
        unknown = self._ask(pending, rows, values)
        for row, name in pending:
            values[name].setdefault(row, pa.nulls(1, made[name].type))
        filled = made | {name: _replaced(made[name], found) for name, found in values.items()}
        self.told.add(pa.RecordBatch.from_pydict({name: filled[name] for name in self.columns}))
        return filled, unknown

    def _rows_of(self, events: RowEvents) -> list[int]:
        """The row of each change, by `chains`."""
        first, self._taken = self._taken, self._taken + len(events.deletes)
        return [] if self.chains is None else [self.chains.of(i) for i in range(first, self._taken)]

    def _ask(
        self, pending: Sequence[tuple[int, str]], rows: Sequence[int], values: Mapping[str, dict[int, pa.Array]]
    ) -> UnknownValues:  # fmt: skip
        """Ask PostgreSQL for what nobody knows, and note it. Returns what is unknown still."""
        if self.chains is None:
            return UnknownValues([], sorted(pending))
        last = {row: self.chains.last(rows[row]) for row, _ in pending}
        keys = list(dict.fromkeys(key for key in last.values() if key is not None))
        found = dict(zip(keys, self.there(keys))) if keys and self.there is not None else {}
        left: list[tuple[int, str]] = []
        for row, name in pending:
            key = last[row]
            asked = None if key is None else found.get(key)
            if asked is not None:
                values[name][row] = asked[name]
                self._unknown.discard((ToldPlace(len(self.told), row), name))
            elif key is not None:
                left.append((row, name))
        return UnknownValues(sorted(row for row, key in last.items() if key is None), sorted(left))

    def _origins(self, events: RowEvents, made: Arrays, rows: Sequence[int]) -> dict[int, list[_Origin]]:
        """Where those rows may have been told before of which something is left out; and all are noted."""
        if self.chains is not None:
            return self._origins_by(self.chains, events, rows)
        number, found = len(self.told), dict[int, list[_Origin]]()
        wanted = set(_rows(events).tolist())
        keys = list(zip(*(made[name].to_pylist() for name in self.key)))
        before: _Origin = None
        for row, (key, deleted) in enumerate(zip(keys, events.deletes.tolist())):
            if row in wanted:
                moved = events.moved is not None and bool(events.moved[row])
                found[row] = [before if moved else self._newest.get(key, key)]
            before = self._newest.get(key, key)
            self._newest[key] = None if deleted else ToldPlace(number, row)
        return found

    def _origins_by(self, chains: RowChains, events: RowEvents, rows: Sequence[int]) -> dict[int, list[_Origin]]:
        """The same where it is known which changes are of one row."""
        number, found = len(self.told), dict[int, list[_Origin]]()
        wanted = set(_rows(events).tolist())
        for row, (of, deleted) in enumerate(zip(rows, events.deletes.tolist())):
            if row in wanted and of in self._told_of:
                found[row] = [self._told_of[of]]
            elif row in wanted:
                found[row] = [*chains.alone(of)] if self.behind else [chains.first(of)]
            if not deleted:
                self._told_of[of] = ToldPlace(number, row)
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
