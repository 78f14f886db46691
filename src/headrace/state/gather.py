"""Random access to the rows of a mapped run: look-up and gathering over all its batches at once.

The buffers of all batches of a run lie in one mapping. So the rows of a column can be fetched by one indexed read
of the mapping, instead of one call for every batch that a row happens to lie in.

A look-up is vectorised over a whole run: the filters discard most keys that are not there, the sparse index tells the
block of rows, one binary search of all keys at once finds the rows in the mapping, and one indexed read for each
column fetches them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.state.kernels.equality import Bools, Ints
from headrace.state.kernels.order import expand_ranges, joined
from headrace.state.kernels.sizes import check_column

Positions = tuple[Ints, Ints]
"""Rows, counted from the start of the run, and the batches that they lie in."""

COPIED_BYTES = 8 << 20
"""Bytes of texts that are fetched by their positions; more are copied text by text."""
_ABSENT = -(2**62)
"""Stands for the place of a buffer that a batch does not have."""


class RowAccess:
    """The columns of a run's batches in one mapping of their bytes.

    `starts` are the batches' first rows; `batch_rows` is the number of rows of all but the last, where they agree.
    """

    def __init__(
        self, view: memoryview, batches: Sequence[pa.RecordBatch], starts: Ints, batch_rows: int | None
    ) -> None:
        self._bytes: npt.NDArray[np.uint8] = np.frombuffer(view, dtype=np.uint8)
        self._start = self._bytes.ctypes.data
        self._batches = batches
        self._batch_rows = batch_rows
        self._first_rows = starts
        self._gatherers: dict[int, Callable[[Positions], pa.Array]] = {}
        self._k = self._words(0)

    def positions(self, rows: Ints) -> Positions:
        """Rows with the batches that they lie in."""
        return rows, self._batch_of(rows)

    def _batch_of(self, rows: Ints) -> Ints:
        return batch_numbers(rows, self._first_rows, self._batch_rows)

    def gather(self, column: int, at: Positions) -> pa.Array:
        """The values of a column at some rows."""
        found = self._gatherers.get(column)
        if found is None:
            found = self._gatherers[column] = self._gatherer(column)
        return found(at)

    def find(self, keys: Ints, first: Ints, stride: int, rows: int) -> Ints:
        """The rows whose `__k` is among `keys` (sorted, unique, none above the last row's), in order.

        `first` is `__k` of every `stride`-th row of the run's `rows`.
        """
        start = self.lower_bounds(keys, first, stride, rows)
        inside = start < rows
        hit = np.zeros(len(keys), dtype=np.bool_)
        hit[inside] = self._k_at(start[inside]) == keys[inside]
        start, keys = start[hit], keys[hit]
        more = start + 1 < rows
        more[more] = self._k_at(start[more] + 1) == keys[more]
        if not more.any():
            return start
        count = np.ones(len(start), dtype=np.int64)
        repeated = keys[more]
        stop = np.full(len(repeated), rows)
        bounded = repeated < np.iinfo(np.int64).max
        stop[bounded] = self.lower_bounds(repeated[bounded] + 1, first, stride, rows)
        count[more] = stop - start[more]
        return expand_ranges(start, count)

    def lower_bounds(self, keys: Ints, first: Ints, stride: int, rows: int) -> Ints:
        """For each key the number of rows below it: a binary search of all keys at once, a block's bytes at a time."""
        block = np.maximum(np.searchsorted(first, keys, side="left") - 1, 0)
        found = block * stride
        limit = np.minimum(found + stride, rows)
        base, words = self._k
        base = base[self._batch_of(found)] - 1
        step = 1 << (stride.bit_length() - 1)
        while step:
            next_ = np.minimum(found + step, limit)
            found = np.where(words.take(base + next_) < keys, next_, found)
            step >>= 1
        return found

    def _k_at(self, rows: Ints) -> Ints:
        base, words = self._k
        return words[base[self._batch_of(rows)] + rows]

    def _words(self, column: int) -> tuple[Ints, npt.NDArray[np.generic]]:
        """For a column of fixed width: where row 0 would lie if it were in a batch, for each batch; and the mapping.

        Both in units of the column's width, or of eight bytes where it is wider.
        """
        width = min(self._batches[0].column(column).type.bit_width // 8, 8)
        words = self._bytes[: len(self._bytes) // width * width].view(f"i{width}")
        each = self._batches[0].column(column).type.bit_width // 8 // width
        return self._places(column, 1) // width - self._first_rows * each, words

    def _places(self, column: int, buffer: int) -> Ints:
        """Where a buffer of a column starts in the mapping, for each batch, in bytes; empty ones are nowhere."""
        found = [b.column(column).buffers()[buffer] for b in self._batches]
        starts = [_ABSENT if f is None or not f.size else f.address - self._start for f in found]
        places = np.array(starts, dtype=np.int64)
        if not ((places == _ABSENT) | ((places >= 0) & (places <= len(self._bytes)))).all():
            raise pa.ArrowInvalid("a buffer outside of the mapping")
        return places

    def _gatherer(self, column: int) -> Callable[[Positions], pa.Array]:
        kind, t = self._batches[0].column(column).type, pa.types
        values: Callable[[Positions], list[pa.Buffer]]
        if t.is_string(kind) or t.is_binary(kind):
            values = self._strings(column, np.int32)
        elif t.is_boolean(kind):
            values = self._booleans(column)
        elif t.is_primitive(kind) or t.is_decimal(kind):
            values = self._fixed(column)
        else:
            return lambda at: self._taken(column, at)
        present = self._bits(column, 0) if any(b.column(column).null_count for b in self._batches) else None

        def gather(at: Positions) -> pa.Array:
            validity = None if present is None else _packed(present(at))
            return pa.Array.from_buffers(kind, len(at[0]), [validity, *values(at)])

        return gather

    def _fixed(self, column: int) -> Callable[[Positions], list[pa.Buffer]]:
        base, words = self._words(column)
        each = self._batches[0].column(column).type.bit_width // 8 // words.itemsize

        def values(at: Positions) -> list[pa.Buffer]:
            rows, batch = at
            if each == 1:
                return [pa.py_buffer(words.take(base.take(batch) + rows))]
            places = base[batch] + rows * each
            return [pa.py_buffer(words[places[:, None] + np.arange(each)])]

        return values

    def _bits(self, column: int, buffer: int) -> Callable[[Positions], Bools]:
        """Bits by row; where a batch has no such buffer, they are set."""
        base = self._places(column, buffer)

        def bits(at: Positions) -> Bools:
            rows, batch = at
            row = rows - self._first_rows[batch]
            start = base[batch]
            there = start >= 0
            found = self._bytes[np.where(there, start + (row >> 3), 0)]
            result: Bools = ((found >> (row & 7).astype(np.uint8)) & 1).astype(np.bool_) | ~there
            return result

        return bits

    def _booleans(self, column: int) -> Callable[[Positions], list[pa.Buffer]]:
        bits = self._bits(column, 1)
        return lambda at: [_packed(bits(at))]

    def _strings(self, column: int, offset_type: Any) -> Callable[[Positions], list[pa.Buffer]]:
        offsets = self._bytes[: len(self._bytes) // 4 * 4].view(offset_type)
        base = self._places(column, 1) // 4 - self._first_rows
        data = self._places(column, 2)

        def values(at: Positions) -> list[pa.Buffer]:
            rows, batch = at
            places = base[batch] + rows
            start = offsets[places].astype(np.int64)
            length = offsets[places + 1] - start
            ends = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(length)))
            check_column(int(ends[-1]), self._batches[0].schema.names[column])
            content = self._ranges(data[batch] + start, length, ends)
            return [pa.py_buffer(ends.astype(offset_type)), pa.py_buffer(content)]

        return values

    def _ranges(self, start: Ints, length: Ints, ends: Ints) -> npt.NDArray[np.uint8]:
        """The bytes of some ranges of the mapping; `ends` is where they begin and end in the result."""
        if ends[-1] <= COPIED_BYTES:
            return self._bytes[expand_ranges(start, length)]
        # A position for each byte would take many times the room of the bytes.
        content = np.empty(int(ends[-1]), dtype=np.uint8)
        for begin, n, to in zip(start.tolist(), length.tolist(), ends.tolist(), strict=False):
            content[to : to + n] = self._bytes[begin : begin + n]
        return content

    def _taken(self, column: int, at: Positions) -> pa.Array:
        """Batch by batch, for types that are not laid out plainly."""
        rows, batch = at
        cuts = np.flatnonzero(batch[1:] != batch[:-1]) + 1
        parts = [
            self._batches[part_of[0]].column(column).take(pa.array(part - self._first_rows[part_of[0]]))
            for part, part_of in zip(np.split(rows, cuts), np.split(batch, cuts))
            if len(part)
        ]
        return joined(parts, self._batches[0].schema.names[column]) if parts else self._batches[0].column(column)[:0]


def batch_numbers(rows: Ints, starts: Ints, batch_rows: int | None) -> Ints:
    """The batches that rows lie in; `batch_rows` is the number of rows of all but the last, where they agree."""
    if batch_rows is not None:
        return rows // batch_rows
    return np.searchsorted(starts, rows, side="right").astype(np.int64, copy=False) - 1


def _packed(bits: Bools) -> pa.Buffer:
    return pa.py_buffer(np.packbits(bits, bitorder="little"))
