"""Sorted runs: how a section of an object is laid out, written, opened and checked.

An object holds one or more sections, each the rows of one state table. A section starts at a multiple of 64 bytes:

    Arrow IPC file        record batches of exactly `batch_rows` rows, the last one smaller; uncompressed. Where these
                          would be too large they have fewer, always a multiple of `index_stride` but for the last
    padding to 8 bytes
    sparse index          int64 (`__k`[, `__h`]) of every `index_stride`-th row, from row 0
    key filter            Bloom filters of the batches' keys, see `kernels/bloom.py`; none in a small run
    description           JSON: table, rows, range of epochs, keys and event times, batch_rows, index_stride, bytes of
                          the key filter, and `blocks`: for each batch where its bytes end and their CRC-32; with
                          batches of different sizes `starts`: the first row of each
    tail (32 bytes)       lengths of the above, CRC-32 of all bytes that are in no block, magic number, which tells
                          whether there are `starts`

So the catalog, which knows the last checksum, vouches for the description, and that for every batch. What a batch is
read for is never looked at before its bytes are found to be right: once in each process, when it is first touched.

Opening a run costs next to nothing, since its checksum covers index and description only. A run that is damaged, cut
off, missing or exchanged is a `CorruptObject` that names it, and stops only what needs that run.
"""

from __future__ import annotations

import json
import os
import struct
import threading
import time
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from isal.isal_zlib import crc32

from headrace.common.lazy_dataclass import dataclass
from headrace.errors import CorruptObject
from headrace.state.gather import RowAccess, batch_numbers
from headrace.state.kernels import concat, conform, int64_values
from headrace.state.kernels.bloom import KeyFilter, Probe, Words, filter_words
from headrace.state.kernels.equality import Ints
from headrace.state.kernels.order import expand_ranges
from headrace.state.kernels.sizes import overflows_named, row_bytes
from headrace.state.objects import ObjectBuffer, SectionSink, append_unsynced, let_go
from headrace.state.schema import RunRef, TableSchema
from headrace.state.stores import ObjectStore, Root, store_of
from headrace.state.watermark import time_range

RUN_BATCH_ROWS = 65_536
"""Rows per record batch of a run."""
RUN_BATCH_BYTES = 64 << 20
"""Bytes of a batch beyond which it has fewer rows."""
INDEX_STRIDE = 256
"""Rows per entry of the sparse index; divides `RUN_BATCH_ROWS`. Few, so that a look-up touches few bytes between."""
FILTER_MIN_ROWS = 4_096
"""Rows below which a run has no key filter: looking for the keys themselves costs no more."""

SMALL_BYTES = 64 << 10
"""Bytes of a batch up to which it is put together in memory."""

_MAGIC = b"HEADRUN3"
_MAGIC_STARTS = b"HEADRUN4"
"""Of runs whose batches differ in size: whoever does not know of these must not read them."""
_LENGTHS = struct.Struct("<QIII")
_TAIL = struct.Struct("<QIIII8s")
_CHECKED_TAIL = _TAIL.size - _LENGTHS.size
"""Bytes at the end of a section that no checksum covers: the last checksum itself, and the magic number."""

Point = tuple[int, ...]
"""A place in the order of rows: (`__k`,) or (`__k`, `__h`)."""


@dataclass(frozen=True)
class Section:
    """What goes into one section: batches of consolidated rows, sorted by `__k`, `__h` over all of them.

    With `epoch` given, that is the epoch of all rows and the batches have no `__e`; otherwise they have one.
    """

    table_id: int
    schema: TableSchema
    batches: Iterable[pa.RecordBatch]
    epoch: int | None = None


def write_run(root: Root, path: str, sections: Iterable[Section], *, fsync: bool = True) -> list[RunRef]:
    """Write an object with one section per table; returns where they are, in order.

    A section without rows leaves nothing, and an object without sections is not written. `path` is relative to
    `root` and must be unique for ever. With `fsync` the object is durable on return. Raises `DiskFull`,
    `StorageError`, and `ValueError` for rows out of order.
    """
    with store_of(root).create(path, fsync=fsync) as out:
        refs = _write_sections(out, sections)
        if refs:
            out.commit()
    return refs


def write_small_run(
    root: str | os.PathLike[str], path: str, section: Section, at: int = 0
) -> tuple[list[RunRef], bytes]:  # fmt: skip
    """Write an object of one small section to a directory, not durable on return, and give its bytes, too.

    Where the object has `at` bytes already, a multiple of `ALIGNMENT`, the section comes after them: see
    `append_unsynced`. Raises what `write_run` does.
    """
    made = ObjectBuffer(path, at)
    refs, content = _write_sections(made, [section]), bytes(made.content)
    if refs:
        append_unsynced(root, path, content, at)
    return refs, content


def _write_sections(out: SectionSink, sections: Iterable[Section]) -> list[RunRef]:
    refs: list[RunRef] = []
    for section in sections:
        batches = _rechunk(section)
        first = next(batches, None)
        if first is not None:
            refs.append(_SectionWriter(out, section).finish(first, batches))
    return refs


def _rechunk(section: Section) -> Iterator[pa.RecordBatch]:
    """The section's rows in batches of exactly `RUN_BATCH_ROWS`, but for the last, and fewer where they are large.

    Raises `OutOfBudget` for `INDEX_STRIDE` rows that together are too large for one batch.
    """
    schema = section.schema.arrow(with_epoch=section.epoch is None)
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for given in section.batches:
        batch = conform(given, schema)
        start = 0
        while start < batch.num_rows:
            part = batch.slice(start, RUN_BATCH_ROWS - rows)
            nbytes = part.nbytes
            full = rows + part.num_rows == RUN_BATCH_ROWS
            if size + nbytes > RUN_BATCH_BYTES:
                fits = rows + int(np.searchsorted(np.cumsum(row_bytes(part)), RUN_BATCH_BYTES - size, side="right"))
                end = max(fits // INDEX_STRIDE, rows // INDEX_STRIDE + 1) * INDEX_STRIDE
                if end < rows + part.num_rows:
                    part, full = part.slice(0, end - rows), True
                    nbytes = part.nbytes
            start += part.num_rows
            rows += part.num_rows
            size += nbytes
            held.append(part)
            if full:
                yield _together(held, section)
                held, rows, size = [], 0, 0
    if held:
        yield _together(held, section)


def _together(parts: list[pa.RecordBatch], section: Section) -> pa.RecordBatch:
    with overflows_named(f"{sum(p.num_rows for p in parts)} rows of state table {section.table_id}"):
        return concat(parts, parts[0].schema)


class _SectionWriter:
    """Writes one section; also the sink of Arrow's writer, so that the checksum is taken on the way."""

    closed = False

    def __init__(self, out: SectionSink, section: Section) -> None:
        self._out = out
        self._section = section
        self._length = 0
        self._crc = 0
        self._blocks: list[tuple[int, int]] = []
        self._rows = 0
        self._starts: list[int] = []
        self._index: list[Ints] = []
        self._filters: list[Words] = []
        self._last: Point | None = None
        self._epochs = None if section.epoch is None else (section.epoch, section.epoch)
        self._times: list[tuple[int, int] | None] = []

    def write(self, data: object) -> int:
        self._crc = crc32(data, self._crc)
        count = self._out.write(data)
        self._length += count
        return count

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _add(self, batch: pa.RecordBatch) -> None:
        keys = [int64_values(batch.column(i)) for i in range(self._section.schema.data_start)]
        if not _in_order(self._last, keys):
            raise ValueError(f"rows of table {self._section.table_id} for object {self._out.path} are not sorted")
        self._last = tuple(int(key[-1]) for key in keys)
        self._index.append(np.column_stack([key[::INDEX_STRIDE] for key in keys]))
        self._filters.append(filter_words(keys[0]))
        self._starts.append(self._rows)
        self._rows += batch.num_rows
        self._times.append(time_range([batch], self._section.schema))
        if self._section.epoch is None:
            epochs = int64_values(batch.column(self._section.schema.width))
            low, high = int(epochs.min()), int(epochs.max())
            self._epochs = (
                (low, high) if self._epochs is None else (min(self._epochs[0], low), max(self._epochs[1], high))
            )

    def finish(self, first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> RunRef:
        """Writes all that is left, and the description."""
        self._out.begin()
        second = next(rest, None)
        if second is None and first.nbytes <= SMALL_BYTES:
            self._write_at_once(first)
        else:
            with pa.ipc.new_file(pa.PythonFile(self, mode="w"), first.schema) as writer:
                for batch in chain([first], [] if second is None else [second], rest):
                    self._add(batch)
                    writer.write_batch(batch)
                    self._blocks.append((self._length, self._crc))
                    self._crc = 0
        body = self._length
        index = np.concatenate(self._index)
        keys = KeyFilter.encode(self._filters) if self._rows >= FILTER_MIN_ROWS else b""
        self.write(bytes(-body % 8))
        self.write(index.tobytes())
        self.write(keys)
        facts = self._facts(index)
        layout: dict[str, object] = {
            "batch_rows": RUN_BATCH_ROWS, "index_stride": INDEX_STRIDE, "filter_bytes": len(keys)
        }  # fmt: skip
        magic = _MAGIC
        if self._starts != list(range(0, self._rows, RUN_BATCH_ROWS)):
            layout["starts"], magic = self._starts, _MAGIC_STARTS
        description = json.dumps({**facts, **layout, "blocks": self._blocks}).encode()
        self.write(description)
        self.write(_LENGTHS.pack(body, len(index), index.shape[1], len(description)))
        self._out.write(struct.pack("<I8s", self._crc, magic))
        extent = self._out.end()
        return RunRef(
            path=self._out.path,
            offset=extent.offset,
            length=extent.length,
            packed=extent.packed,
            crc32=self._crc,
            **facts,
        )

    def _write_at_once(self, batch: pa.RecordBatch) -> None:
        """The same bytes with two writes: Arrow makes some twenty, and each of them costs as much as a small batch."""
        made = pa.BufferOutputStream()
        with pa.ipc.new_file(made, batch.schema) as writer:
            self._add(batch)
            writer.write_batch(batch)
            end = made.tell()
        content = memoryview(made.getvalue())
        self.write(content[:end])
        self._blocks.append((self._length, self._crc))
        self._crc = 0
        self.write(content[end:])

    def _facts(self, index: Ints) -> dict[str, Any]:
        low, high = self._epochs or (0, 0)
        return {
            "table_id": self._section.table_id,
            "rows": self._rows,
            "epoch_lo": low,
            "epoch_hi": high,
            "k_min": int(index[0, 0]),
            "k_max": self._last[0] if self._last else 0,
            **self._event_times(),
        }

    def _event_times(self) -> dict[str, int | None]:
        known = [t for t in self._times if t is not None]
        if len(known) < len(self._times):
            return {"time_min": None, "time_max": None}
        return {"time_min": min(t[0] for t in known), "time_max": max(t[1] for t in known)}


def _in_order(last: Point | None, keys: Sequence[Ints]) -> bool:
    if last is not None and tuple(int(key[0]) for key in keys) < last:
        return False
    k = keys[0]
    wrong = k[1:] < k[:-1]
    if len(keys) > 1:
        wrong |= (k[1:] == k[:-1]) & (keys[1][1:] < keys[1][:-1])
    return not wrong.any()


class Run:
    """An open section: a mapping of its bytes, and views of its batches. Safe to share between threads."""

    def __init__(self, ref: RunRef, view: memoryview, distrust: Callable[[], object] | None = None) -> None:
        self.ref = ref
        self.damaged = False
        """Whether bytes were found wrong since it was opened: opening it again may fetch another copy."""
        self._distrust = distrust
        self._view = view
        body, entries, columns, described, self._crc, magic = _TAIL.unpack(view[-_TAIL.size :])
        index_start = body + -body % 8
        filter_start = index_start + entries * columns * 8
        description_start = len(view) - _TAIL.size - described
        if magic not in (_MAGIC, _MAGIC_STARTS) or filter_start > description_start:
            raise CorruptObject(f"object {ref.path} does not hold a run at byte {ref.offset}")
        if ref.crc32 is not None and ref.crc32 != self._crc:
            raise CorruptObject(f"object {ref.path} holds another run than expected at byte {ref.offset}")
        try:
            description = json.loads(bytes(view[description_start : description_start + described]))
            self._blocks: list[tuple[int, int]] = [(int(end), int(crc)) for end, crc in description["blocks"]]
            self.index_stride: int = description["index_stride"]
            rows: int = description["batch_rows"]
            starts = description["starts"] if magic == _MAGIC_STARTS else range(0, rows * len(self._blocks), rows)
            self.starts: Ints = np.array(starts, dtype=np.int64)
            """The first row of each batch."""
            self._batch_rows = rows if magic == _MAGIC else None
            described_from = self._blocks[-1][0]
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise CorruptObject(f"object {ref.path} is damaged", detail=str(error)) from error
        if crc32(view[described_from:-_CHECKED_TAIL]) != self._crc:
            raise self._fails_checksum()
        index = np.frombuffer(view, dtype=np.int64, count=entries * columns, offset=index_start)
        self.index: Ints = index.reshape(entries, columns)
        """`__k`[, `__h`] of every `index_stride`-th row."""
        try:
            self._reader = pa.ipc.open_file(pa.py_buffer(view[:body]))
            if description["filter_bytes"] != description_start - filter_start:
                raise ValueError("the key filter has another size than described")
            self._filter = KeyFilter.decode(view[filter_start:description_start])
        except (ValueError, KeyError, TypeError, OSError, pa.ArrowException) as error:
            raise CorruptObject(f"object {ref.path} is damaged", detail=str(error)) from error
        self._block_first_k = np.ascontiguousarray(self.index[:, 0])
        if len(self.starts) != self._reader.num_record_batches or (self.starts % self.index_stride).any():
            raise CorruptObject(f"object {ref.path} is damaged", detail="its batches are not those described")
        self.batch_first_k: Ints = self._block_first_k[self.starts // self.index_stride]
        """`__k` of the first row of every batch."""
        self._access: RowAccess | None = None
        self._batches: list[pa.RecordBatch | None] = [None] * self._reader.num_record_batches
        self._checked = np.zeros(len(self._batches), dtype=np.bool_)
        self._k: list[Ints | None] = [None] * len(self._batches)
        self._lock = threading.Lock()

    @classmethod
    def open(cls, root: Root, ref: RunRef) -> Run:
        """Map a section and check all of it but the batches, which are checked when they are first touched.

        What is downloaded is checked as a whole. Raises `CorruptObject` where the object is missing, truncated, damaged
        or something else, and `StorageError`.
        """
        if ref.length <= _TAIL.size:
            raise CorruptObject(f"object {ref.path} is truncated")
        store = store_of(root)
        try:
            return cls._opened(store, ref)
        except CorruptObject:
            if not store.distrust(ref):
                raise
            return cls._opened(store, ref)

    @classmethod
    def _opened(cls, store: ObjectStore, ref: RunRef) -> Run:
        view = store.open(ref, lambda copy: cls(ref, copy).verify())
        return cls(ref, view, lambda: store.distrust(ref))

    def verify(self) -> None:
        """Read the whole section and compare its checksums. Raises `CorruptObject`."""
        self._checked[:] = False
        self._check(np.arange(self.batch_count))

    def _check(self, batches: Ints) -> None:
        """Compare the checksums of these batches, unless that has been done."""
        for i in np.unique(batches[~self._checked[batches]]).tolist():
            start = self._blocks[i - 1][0] if i else 0
            end, crc = self._blocks[i]
            if crc32(self._view[start:end]) != crc:
                self.damaged = True
                if self._distrust is not None:
                    self._distrust()
                raise self._fails_checksum()
            self._checked[i] = True

    def _fails_checksum(self) -> CorruptObject:
        return CorruptObject(f"object {self.ref.path} fails its checksum", detail=f"section at byte {self.ref.offset}")

    @property
    def arrow_schema(self) -> pa.Schema:
        """The schema of the stored rows."""
        return self._reader.schema

    @property
    def batch_count(self) -> int:
        """Number of record batches."""
        return len(self._batches)

    @property
    def batches(self) -> list[pa.RecordBatch]:
        """All batches, in order."""
        return [self.batch(i) for i in range(self.batch_count)]

    def batch(self, i: int) -> pa.RecordBatch:
        """Batch number `i`, without a copy. Raises `CorruptObject` if its bytes are not those that were written."""
        if not self._checked[i]:
            self._check(np.array([i]))
        return self._unchecked(i)

    def _unchecked(self, i: int) -> pa.RecordBatch:
        batch = self._batches[i]
        if batch is None:
            with self._lock:
                try:
                    batch = self._reader.get_batch(i)
                except (ValueError, OSError, pa.ArrowException) as error:
                    raise CorruptObject(f"object {self.ref.path} is damaged", detail=str(error)) from error
                self._batches[i] = batch
        return batch

    def k(self, i: int) -> Ints:
        """The `__k` of batch `i`, as a view."""
        values = self._k[i]
        if values is None:
            values = self._k[i] = int64_values(self.batch(i).column(0))
        return values

    def find(self, probe: Probe) -> Ints:
        """The positions, in order, of all rows with one of the keys, which lie within the run's range.

        Batches are not looked at for a key that the filter knows not to be there.
        """
        keys = probe.keys
        if len(keys) > self.ref.rows:
            return self._among(keys)
        if self._filter is not None:
            batches = np.searchsorted(self.batch_first_k, keys, side="right") - 1
            keys = keys[self._filter.may_hold(probe, batches)]
        if not len(keys):
            return np.zeros(0, dtype=np.int64)
        if not self._checked.all():
            low = np.maximum(np.searchsorted(self.batch_first_k, keys, side="left") - 1, 0)
            high = np.maximum(np.searchsorted(self.batch_first_k, keys, side="right") - 1, 0)
            self._check(expand_ranges(low, high - low + 1))
        return self.access.find(keys, self._block_first_k, self.index_stride, self.ref.rows)

    def _among(self, keys: Ints) -> Ints:
        """The same for more keys than there are rows: each row is looked for among the keys."""
        found = []
        for i in range(self.batch_count):
            k = self.k(i)
            place = np.minimum(np.searchsorted(keys, k), len(keys) - 1)
            found.append(np.flatnonzero(keys[place] == k) + self.starts[i])
        return np.concatenate(found)

    def places(self, k: int, most: int) -> list[tuple[int, int]] | None:
        """The batches of the rows with a `__k`, and where they are in them; None if they are more than some."""
        found: list[tuple[int, int]] = []
        for i in range(max(bisect_left(self.batch_first_k, k) - 1, 0), self.batch_count):
            keys = self.k(i).data
            at, end = bisect_left(keys, k), len(keys)
            while at < end and keys[at] == k:
                if len(found) == most:
                    return None
                found.append((i, at))
                at += 1
            if at < end:
                break
        return found

    def gather(self, column: int, rows: Ints) -> pa.Array:
        """The values of one column at these positions."""
        self.check(rows)
        return self.access.gather(column, self.access.positions(rows))

    def check(self, rows: Ints) -> None:
        """Make sure of the batches that these rows are in, before they are read through `access`."""
        self._check(batch_numbers(rows, self.starts, self._batch_rows))

    @property
    def access(self) -> RowAccess:
        """The rows by position, whatever batch they are in; the caller sees to it that the batches are checked."""
        if self._access is None:
            batches = [self._unchecked(i) for i in range(self.batch_count)]
            try:
                self._access = RowAccess(self._view, batches, self.starts, self._batch_rows)
            except pa.ArrowInvalid as error:
                raise CorruptObject(f"object {self.ref.path} is damaged", detail=str(error)) from error
        return self._access

    def lower_bound(self, point: Point) -> int:
        """Number of rows that lie before `point`: the position where it would be inserted on the left."""
        blocks = bisect_left(range(len(self.index)), point, key=lambda i: tuple(self.index[i].tolist()))
        if blocks == 0:
            return 0
        low = (blocks - 1) * self.index_stride
        high = min(blocks * self.index_stride, self.ref.rows)
        return bisect_left(range(self.ref.rows), point, low + 1, high, key=self.point_at)

    def _place(self, row: int) -> tuple[int, int]:
        """The batch of a row, and where it is there."""
        i = int(np.searchsorted(self.starts, row, side="right")) - 1
        return i, row - int(self.starts[i])

    def point_at(self, row: int) -> Point:
        """Where a row is in the order."""
        i, j = self._place(row)
        k = int(self.k(i)[j])
        return (k,) if self.index.shape[1] == 1 else (k, int(int64_values(self.batch(i).column(1))[j]))

    def ranges(self, keys: Ints) -> tuple[Ints, Ints]:
        """Where the rows of each key (sorted, unique) begin and where they end; at one place where there are none."""
        low = np.maximum(np.searchsorted(self.batch_first_k, keys, side="left") - 1, 0)
        high = np.maximum(np.searchsorted(self.batch_first_k, keys, side="right") - 1, 0)
        self._check(np.concatenate((low, high)))
        begin = self.access.lower_bounds(keys, self._block_first_k, self.index_stride, self.ref.rows)
        end = np.full(len(keys), self.ref.rows)
        bounded = keys < np.iinfo(np.int64).max
        following = keys[bounded] + 1
        end[bounded] = self.access.lower_bounds(following, self._block_first_k, self.index_stride, self.ref.rows)
        return begin, end

    def between(self, keys: Ints, low: Ints, high: Ints) -> tuple[Ints, Ints]:
        """The same for the rows of each key whose `__h` lies from `low` to `high` (one for each key), both included."""
        begin, end = self.ranges(keys)
        return self._bound(begin, end, low, above=False), self._bound(begin, end, high, above=True)

    def _bound(self, begin: Ints, end: Ints, h: Ints, *, above: bool) -> Ints:
        """Where in each range, sorted by `__h`, the first row is that is not below `h`; or with `above`, above it."""
        begin, end = begin.copy(), end.copy()
        while len(left := np.flatnonzero(begin < end)):
            middle = (begin[left] + end[left]) // 2
            values = int64_values(self.gather(1, middle))
            before = values <= h[left] if above else values < h[left]
            begin[left[before]] = middle[before] + 1
            end[left[~before]] = middle[~before]
        return begin

    def slices(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Rows `start` to `stop`, exclusive, as views of the batches."""
        while start < stop:
            i, j = self._place(start)
            batch = self.batch(i)
            count = min(stop - start, batch.num_rows - j)
            yield batch.slice(j, count)
            start += count

    def stored_bytes(self, start: int, stop: int) -> int:
        """Bytes of the batches that hold rows `start` to `stop`, exclusive: at least what these rows take."""
        (low, _), (high, _) = self._place(start), self._place(stop - 1)
        return self._blocks[high][0] - (self._blocks[low - 1][0] if low else 0)

    def let_go(self, start: int, stop: int) -> None:
        """Give back the memory that the batches of rows `start` to `stop`, exclusive, take in this process."""
        (low, _), (high, _) = self._place(start), self._place(stop - 1)
        let_go(self._view, self._blocks[low - 1][0] if low else 0, self._blocks[high][0])


class RunCache:
    """The most recently used open runs, at most `capacity` of them. Safe to share between threads.

    A file that is mapped keeps its place on the disk also once it is deleted, and a run some memory: so `tidy` lets go
    of those that have been merged away, and of those that nobody has asked for in `idle_s`.
    """

    def __init__(self, capacity: int = 512, idle_s: float = 30.0, now_s: Callable[[], float] = time.monotonic) -> None:
        self._capacity = capacity
        self._idle_s = idle_s
        self._now_s = now_s
        self._runs: OrderedDict[tuple[Root, str, int], tuple[Run, float]] = OrderedDict()
        """With the time of their last use, the least recently used first."""
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._runs)

    def get(self, root: Root, ref: RunRef) -> Run:
        """The run, opened if need be. Raises what `Run.open` does."""
        name = (root, ref.path, ref.offset)
        with self._lock:
            run, _ = self._runs.get(name, (None, 0.0))
            if run is not None and run.ref == ref and not run.damaged:
                self._use(name, run)
                return run
        run = Run.open(root, ref)
        with self._lock:
            self._use(name, run)
            while len(self._runs) > self._capacity:
                self._runs.popitem(last=False)
        return run

    def _use(self, name: tuple[Root, str, int], run: Run) -> None:
        self._runs[name] = run, self._now_s()
        self._runs.move_to_end(name)

    def tidy(self, root: Root, versions: Mapping[int, Collection[RunRef]]) -> None:
        """Let go of what is not needed any more; `versions` are the runs that some tables have now.

        A run that a reader of an older version asks for again is opened again.
        """
        kept = {(root, ref.path, ref.offset) for refs in versions.values() for ref in refs}
        with self._lock:
            before_s = self._now_s() - self._idle_s
            for name, (run, used_s) in list(self._runs.items()):
                merged = name[0] == root and run.ref.table_id in versions and name not in kept
                if merged or used_s < before_s:
                    del self._runs[name]

    def get_all(self, root: Root, refs: Sequence[RunRef]) -> list[Run]:
        """The runs, in order; those of an object store are opened side by side. Raises what `Run.open` does."""
        with self._lock:
            missing = sum((root, r.path, r.offset) not in self._runs for r in refs)
        if missing < 2 or store_of(root).root.is_local:
            return [self.get(root, r) for r in refs]
        with ThreadPoolExecutor(min(missing, store_of(root).root.concurrency)) as threads:
            return list(threads.map(lambda ref: self.get(root, ref), refs))

    def clear(self) -> None:
        """Forget all runs. Batches handed out stay valid."""
        with self._lock:
            self._runs.clear()


OPEN_RUNS = RunCache()
"""The open runs of this process."""
