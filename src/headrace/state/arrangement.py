"""An arrangement: the sorted runs of one state table, read by key, by key range, or as a log of epochs.

`fetch` reads by key, `scan` by key range, `log` the changes of a range of epochs. Reads skip rows below the table's
watermark at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from headrace.state.kernels import concat, consolidate, expand_ranges, int64_values, remaining, sort_rows
from headrace.state.kernels.bloom import Probe
from headrace.state.kernels.equality import Bools, Ints
from headrace.state.kernels.order_code import counted_units, leading
from headrace.state.run import OPEN_RUNS, Run, RunCache
from headrace.state.run_cursor import K_LOWEST, RowSpan, chunks, overlaps, spans
from headrace.state.schema import RunRef, TableSchema
from headrace.state.stores import Root
from headrace.state.watermark import alive, expired_runs, may_expire

CHUNK_ROWS = 262_144
"""Rows that a scan holds in memory at a time, about."""
PIECE_ROWS = 4_096
"""Rows that an unsorted scan puts together at least, out of small runs."""
MAPPED_BYTES = 64 << 20
"""Bytes of runs up to which a scan leaves them mapped; of more it lets go behind itself."""
LOOK_ROWS = 1024
"""Rows of each run that are looked at together for the first one that is there."""
_MOST_QUOTA = 1 << 60
FIRST_ROWS = 8
"""Rows of a key that are read from each run, at least, when its first are looked for; more in every further try."""


def slice_bounds(i: int, p: int) -> tuple[int, int | None]:
    """The i-th (from 0) of p equal slices of the signed 64-bit space: from, to exclusive (None in the last)."""
    if not 0 <= i < p:
        raise ValueError(f"no slice {i} of {p}")
    return K_LOWEST + (i * 2**64) // p, None if i + 1 == p else K_LOWEST + ((i + 1) * 2**64) // p


def slice_of(k: Ints, p: int) -> Ints:
    """The slice, of p, that each key lies in; agrees with `slice_bounds`."""
    bounds = np.array([slice_bounds(i, p)[0] for i in range(1, p)], dtype=np.int64)
    return np.searchsorted(bounds, k, side="right").astype(np.int64, copy=False)


class Arrangement:
    """A state table as of an epoch: what its runs hold up to and including it. Without `as_of`, all they hold.

    Rows whose event time is below `watermark`, Unix microseconds, are skipped, where the schema says that they expire.
    Whether `as_of` lies within the table's safe and committed epochs is the caller's to know. Every method may raise
    `CorruptObject` for a run that is missing or damaged.
    """

    def __init__(
        self,
        schema: TableSchema,
        refs: Sequence[RunRef],
        root: Root,
        *,
        as_of: int | None = None,
        watermark: int | None = None,
        cache: RunCache = OPEN_RUNS,
    ) -> None:
        gone = set(expired_runs(refs, watermark))
        self.schema = schema
        self.refs = tuple(r for r in refs if (as_of is None or r.epoch_lo <= as_of) and r not in gone)
        self.as_of = as_of
        self.watermark = watermark if schema.expires is not None else None
        self._root = root
        self._cache = cache
        self._stored = schema.arrow()

    def beginning_before(self, time_us: int) -> Arrangement:
        """The same without the runs that are known to hold no row with an event time below `time_us`.

        Rows with such times are all there; others may be, in part: whoever reads them must leave them out.
        """
        refs = [r for r in self.refs if may_expire(r, time_us)]
        return Arrangement(
            self.schema, refs, self._root, as_of=self.as_of, watermark=self.watermark, cache=self._cache
        )  # fmt: skip

    @property
    def rows(self) -> int:
        """Rows stored in the runs: at least as many as there are in the table."""
        return sum(r.rows for r in self.refs)

    def fetch(self, keys: Ints) -> pa.RecordBatch:
        """The rows whose `__k` is among `keys` (sorted, unique), consolidated, sorted by `__k`, `__h`.

        Raises `OutOfBudget` where their texts are too large for one batch.
        """
        low = np.searchsorted(keys, [r.k_min for r in self.refs])
        high = np.searchsorted(keys, [r.k_max for r in self.refs], side="right")
        within = [i for i in range(len(self.refs)) if low[i] < high[i]]
        runs = self._cache.get_all(self._root, [self.refs[i] for i in within])
        probe = Probe.of(keys)
        found = [(run, self._find(run, probe.part(low[i], high[i]))) for i, run in zip(within, runs)]
        found = [(run, rows) for run, rows in found if len(rows)]
        final = len(found) < 2 and not any(self._has_epochs(run) for run, _ in found)
        rows = concat([self._gather(run, rows) for run, rows in found], self._stored)
        return rows if final else consolidate(rows, self.schema)

    def _find(self, run: Run, probe: Probe) -> Ints:
        """The positions of the visible rows with these keys."""
        return self._shown(run, run.find(probe))

    def _shown(self, run: Run, rows: Ints) -> Ints:
        """Those of the positions whose rows are not newer than `as_of`."""
        if self.as_of is None or run.ref.epoch_hi <= self.as_of or not len(rows):
            return rows
        return rows[int64_values(run.gather(self.schema.width, rows)) <= self.as_of]

    def _gather(self, run: Run, rows: Ints) -> pa.RecordBatch:
        run.check(rows)
        at = run.access.positions(rows)
        arrays = [run.access.gather(i, at) for i in range(self.schema.width)]
        return self._alive(run, pa.RecordBatch.from_arrays(arrays, schema=self._stored))

    def first_rows(self, keys: Ints, need: Ints, *, by_code: bool = False) -> pa.RecordBatch:
        """The first rows, in order of `__h`, of every key (sorted, unique), consolidated, sorted by `__k`, `__h`.

        Of a key come as many as it takes to have `need` (one for each key, at least 1) of them by multiplicity, or
        with `by_code` as many different `__h`; and with the last one all that share its `__h`. A key that has fewer
        comes whole. Costs what is read: a little more than that of each run, and what was taken back in front of it.
        """
        if not self.schema.has_row_hash:
            return self.fetch(keys)
        runs = self._cache.get_all(self._root, [ref for ref in self.refs if _holds(ref, keys)])
        ranges = [(run, *run.ranges(keys)) for run in runs]
        found: list[pa.RecordBatch] = []
        quota = np.maximum(need, FIRST_ROWS)
        left = np.arange(len(keys))
        while len(left):
            rows, horizon, cut = self._prefix(ranges, left, quota[left])
            place = np.searchsorted(keys[left], int64_values(rows.column(0)))
            h = int64_values(rows.column(1))
            whole = ~cut[place] | (h < horizon[place])
            if not whole.all():
                rows, place, h = rows.filter(pa.array(whole)), place[whole], h[whole]
            weights = int64_values(rows.column(self.schema.diff_start))
            units = counted_units(place, h, weights, by_code=by_code)
            have = np.zeros(len(left), dtype=np.int64)
            np.add.at(have, place, units)
            done = (have >= need[left]) | ~cut
            keep = leading(place, h, units, need[left][place]) & done[place]
            found.append(_where(rows, keep))
            left = left[~done]
            quota[left] = np.minimum(quota[left], _MOST_QUOTA) * 4
        rows = concat(found, self._stored)
        return sort_rows(rows, self.schema) if len(found) > 1 else rows

    def between(self, keys: Ints, low: Ints, high: Ints) -> pa.RecordBatch:
        """The rows of every key (sorted, unique) whose `__h` lies from its `low` to its `high`, both included.

        Consolidated, sorted by `__k`, `__h`. The table has a `__h`. Costs what is read, and a binary search by key.
        """
        assert self.schema.has_row_hash, "rows without a hash are in no order"
        assert (low <= high).all()
        parts, final = [], True
        for run in self._cache.get_all(self._root, [ref for ref in self.refs if _holds(ref, keys)]):
            start, stop = run.between(keys, low, high)
            rows = self._shown(run, expand_ranges(start, stop - start))
            if len(rows):
                final = final and not self._has_epochs(run)
                parts.append(self._gather(run, rows))
        rows = concat(parts, self._stored)
        return rows if len(parts) < 2 and final else consolidate(rows, self.schema)

    def _prefix(
        self, ranges: Sequence[tuple[Run, Ints, Ints]], which: Ints, quota: Ints
    ) -> tuple[pa.RecordBatch, Ints, Bools]:
        """The first `quota` rows of each run for the keys at `which`, consolidated.

        And for each key the lowest `__h` at which a run has more, and whether any has: rows below it are complete.
        """
        horizon = np.full(len(which), np.iinfo(np.int64).max)
        cut = np.zeros(len(which), dtype=np.bool_)
        parts: list[pa.RecordBatch] = []
        touched, final = 0, True
        for run, low, high in ranges:
            start, stop = low[which], high[which]
            count = np.minimum(stop - start, quota)
            more = np.flatnonzero(stop - start > count)
            if len(more):
                last = int64_values(run.gather(1, start[more] + count[more] - 1))
                horizon[more] = np.minimum(horizon[more], last)
                cut[more] = True
            rows = self._shown(run, expand_ranges(start, count))
            if len(rows):
                touched += 1
                final = final and not self._has_epochs(run)
                parts.append(self._gather(run, rows))
        rows = concat(parts, self._stored)
        return rows if touched < 2 and final else consolidate(rows, self.schema), horizon, cut

    def scan(
        self, k_from: int = K_LOWEST, k_to: int | None = None, *, chunk_rows: int = CHUNK_ROWS
    ) -> Iterator[pa.RecordBatch]:
        """The consolidated rows with `k_from <= __k < k_to`, sorted by `__k`, `__h`, in batches.

        Holds about `chunk_rows` rows of all runs in memory at a time. A single run without `__e` is passed
        through without a copy.
        """
        return self._scanned(
            k_from, k_to, chunk_rows, lambda parts: [consolidate(concat(parts, self._stored), self.schema)]
        )

    def scan_unsorted(
        self, k_from: int = K_LOWEST, k_to: int | None = None, *, chunk_rows: int = CHUNK_ROWS
    ) -> Iterator[pa.RecordBatch]:
        """The same rows in no order; equal ones may come several times, with diffs that have to be combined.

        Where no row takes another back they come as the runs have them, without being gathered.
        """
        return self._scanned(
            k_from, k_to, chunk_rows, lambda parts: _gathered(remaining(parts, self.schema), self._stored)
        )

    def _scanned(
        self, k_from: int, k_to: int | None, chunk_rows: int,
        together: Callable[[list[pa.RecordBatch]], Iterable[pa.RecordBatch]],
    ) -> Iterator[pa.RecordBatch]:  # fmt: skip
        runs = self._cache.get_all(self._root, [r for r in self.refs if overlaps(r, k_from, k_to)])
        whole = spans(runs, k_from, k_to)
        large = sum(s.run.stored_bytes(s.start, s.stop) for s in whole) > MAPPED_BYTES
        one = len(whole) == 1 and not self._has_epochs(whole[0].run)
        for part in _cut(whole[0], chunk_rows) if one else chunks(whole, chunk_rows):
            if len(part) == 1 and not self._has_epochs(part[0].run):
                yield from filter(len, (self._alive(s.run, b) for s in part for b in s.run.slices(s.start, s.stop)))
            else:
                rows = [self._snapshot(span.run, b) for span in part for b in span.run.slices(span.start, span.stop)]
                yield from filter(len, together(rows))
                del rows
            for span in part if large else ():
                span.run.let_go(span.start, span.stop)

    def lowest_key(self, k_from: int, look_rows: int = LOOK_ROWS) -> int | None:
        """The lowest `__k`, not below `k_from`, that has a row; None where there is none.

        Costs a binary search in each run, and what is read: about `look_rows` rows of each run, more only where these
        have been taken back.
        """
        while left := spans(self._cache.get_all(self._root, list(self.refs)), k_from, None):
            cut = [s.run.point_at(s.start + look_rows)[0] for s in left if len(s) > look_rows]
            k_to = min(cut) + 1 if cut else None
            for rows in self.scan(k_from, k_to):
                return int(int64_values(rows.column(0))[0])
            if k_to is None:
                return None
            k_from, look_rows = k_to, look_rows * 4
        return None

    def log(
        self,
        from_exclusive: int,
        to_inclusive: int,
        k_from: int = K_LOWEST,
        k_to: int | None = None,
        *,
        with_epoch: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """The rows written in the epochs after `from_exclusive` up to `to_inclusive`, as stored, run by run.

        Rows of one run are sorted; equal rows of different runs or epochs are not combined. `as_of` bounds the
        range as well. `from_exclusive` must not lie below the table's safe epoch.
        """
        if self.as_of is not None:
            to_inclusive = min(to_inclusive, self.as_of)
        for ref in sorted(self.refs, key=lambda r: (r.epoch_lo, r.epoch_hi)):
            if ref.epoch_hi <= from_exclusive or ref.epoch_lo > to_inclusive or not overlaps(ref, k_from, k_to):
                continue
            for span in spans([self._cache.get(self._root, ref)], k_from, k_to):
                for batch in span.run.slices(span.start, span.stop):
                    rows = self._alive(span.run, self._between(span.run, batch, from_exclusive, to_inclusive))
                    if rows.num_rows:
                        yield with_epochs(span.run, rows, self.schema) if with_epoch else self._without_epoch(rows)

    def _between(self, run: Run, batch: pa.RecordBatch, after: int, up_to: int) -> pa.RecordBatch:
        if run.ref.epoch_lo > after and run.ref.epoch_hi <= up_to:
            return batch
        epochs = int64_values(batch.column(self.schema.width))
        return _where(batch, (epochs > after) & (epochs <= up_to))

    def _visible(self, run: Run, batch: pa.RecordBatch) -> Bools | None:
        """Which rows are not newer than `as_of`; None when all are."""
        if self.as_of is None or run.ref.epoch_hi <= self.as_of:
            return None
        return int64_values(batch.column(self.schema.width)) <= self.as_of

    def _snapshot(self, run: Run, batch: pa.RecordBatch) -> pa.RecordBatch:
        visible = self._visible(run, batch)
        rows = self._without_epoch(batch)
        return self._alive(run, rows if visible is None else _where(rows, visible))

    def _alive(self, run: Run, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that have not expired."""
        return alive(batch, self.schema, self.watermark) if may_expire(run.ref, self.watermark) else batch

    def _has_epochs(self, run: Run) -> bool:
        return len(run.arrow_schema) > self.schema.width

    def _without_epoch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.select(range(self.schema.width)) if batch.num_columns > self.schema.width else batch


def with_epochs(run: Run, batch: pa.RecordBatch, schema: TableSchema) -> pa.RecordBatch:
    """Rows of a run with `__e`, whether it is stored or not."""
    if batch.num_columns > schema.width:
        return batch
    epochs = pa.array(np.full(batch.num_rows, run.ref.epoch_lo, dtype=np.int64))
    return pa.RecordBatch.from_arrays([*batch.columns, epochs], schema=schema.arrow(with_epoch=True))


def _gathered(batches: Iterable[pa.RecordBatch], stored: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The same rows, small batches put together."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(map(len, held)) >= PIECE_ROWS:
            yield concat(held, stored)
            held = []
    yield concat(held, stored)


def _holds(ref: RunRef, keys: Ints) -> bool:
    return bool(np.searchsorted(keys, ref.k_min) < np.searchsorted(keys, ref.k_max, side="right"))


def _where(batch: pa.RecordBatch, keep: Bools) -> pa.RecordBatch:
    return batch if keep.all() else batch.filter(pa.array(keep))


def _cut(span: RowSpan, chunk_rows: int) -> Iterator[list[RowSpan]]:
    """The rows in parts of at most so many, each of one batch."""
    at = span.start
    for batch in span.run.slices(span.start, span.stop):
        for start in range(0, batch.num_rows, chunk_rows):
            stop = min(start + chunk_rows, batch.num_rows)
            yield [RowSpan(span.run, at + start, at + stop)]
        at += batch.num_rows
