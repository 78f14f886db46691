"""Replaying files in the order of their event times.

The rows of all files that are there at the first binding, sorted by the replay column: NULLs (and values that cannot
be understood) first, equal times in the order of the files and of the rows within them. A position is a row number in
that order. The rows are held in memory, once per process and set of columns; files that come later are not part of
the replay.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.common.columns import Column, arrow_schema
from headrace.common.lazy_dataclass import dataclass
from headrace.connectors.base import RowError
from headrace.connectors.files.file_listing import FileState
from headrace.connectors.files.formats import FilePiece, TextOptions, read_piece
from headrace.connectors.pacing import EventSchedule, RateSchedule, Schedule
from headrace.connectors.policy import ParsedRows

_CACHED = 4
_cache: OrderedDict[object, ReplayRows] = OrderedDict()
_lock = Lock()
_DAY_US = 86_400_000_000


@dataclass(frozen=True)
class ReplayPace:
    """How fast to replay: exactly one of the three is set."""

    speed: float | None = None
    """Event time per wall-clock time."""
    rate: float | None = None
    """Rows per second."""
    duration_ms: float | None = None
    """The whole input within this time, in proportion to event time."""


@dataclass(frozen=True)
class ReplayRows:
    """All rows in replay order."""

    batch: pa.RecordBatch
    splits: list[str]
    split_of: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int64]
    times_us: npt.NDArray[np.int64]
    """Event time per row; a row without one has that of the first row that has one."""
    nulls: int
    """Rows without event time; they come first."""
    errors: dict[int, list[RowError]]
    """By position in the replay order."""

    def schedule(self, pace: ReplayPace) -> Schedule:
        """When each row is due."""
        if pace.rate is not None:
            return RateSchedule(pace.rate)
        span_us = int(self.times_us[-1] - self.times_us[0]) if len(self.times_us) else 0
        speed = pace.speed if pace.speed is not None else span_us / (1000 * (pace.duration_ms or 1)) or 1.0
        first = self.times_us[0] if len(self.times_us) else 0
        return EventSchedule(self.times_us - first, speed)

    def watermark_us(self, position: int) -> int | None:
        """The event time that no row at or after `position` falls below."""
        return int(self.times_us[position - 1]) if position > self.nulls else None

    def parsed(self, start: int, stop: int) -> ParsedRows:
        """The rows [start, stop), with what is wrong with them."""
        wrong = [row for row in range(start, stop) if row in self.errors] if self.errors else []
        errors = [(row - start, error) for row in wrong for error in self.errors[row]]
        rows = self.batch.slice(start, stop - start)
        return ParsedRows(rows, self.positions[start:stop], self.splits, self.split_of[start:stop], errors)


def load_replay(
    files: Sequence[tuple[FileState, str]], columns: Sequence[Column], by: Column, text: TextOptions
) -> ReplayRows:
    """The replay of whole files, each with its format.

    Raises `SourceError` as `read_piece` does; malformed rows are kept for whoever reads them.
    """
    identity = tuple((f.path, f.seen, kind) for f, kind in files)
    key = (identity, tuple(columns), by, text)
    with _lock:
        if key in _cache:
            _cache.move_to_end(key)
        else:
            _cache[key] = _build(files, columns, by, text)
            while len(_cache) > _CACHED:
                _cache.popitem(last=False)
        return _cache[key]


def _build(
    files: Sequence[tuple[FileState, str]], columns: Sequence[Column], by: Column, text: TextOptions
) -> ReplayRows:
    wanted = list(columns) if by in columns else [*columns, by]
    parts: list[ParsedRows] = []
    counts: list[int] = []
    for state, kind in files:
        before = sum(part.batch.num_rows for part in parts)
        parts.extend(read_piece(FilePiece(state, kind, 0, None), wanted, text))
        counts.append(sum(part.batch.num_rows for part in parts) - before)
    table = _concat([part.batch for part in parts], wanted)
    times, valid = _times_us(table.column(wanted.index(by)))
    order = np.lexsort((times, valid))
    inverse = np.empty_like(order)
    inverse[order] = np.arange(len(order))
    errors: dict[int, list[RowError]] = {}
    base = 0
    for part in parts:
        for row, error in part.errors:
            errors.setdefault(int(inverse[base + row]), []).append(error)
        base += part.batch.num_rows
    nulls = int(np.count_nonzero(~valid))
    times = times[order]
    times[:nulls] = times[nulls] if nulls < len(times) else 0
    split_of = np.repeat(np.arange(len(files), dtype=np.int32), counts)[order]
    positions = np.concatenate([part.positions for part in parts]) if parts else np.array([], np.int64)
    rows = table.select(list(range(len(columns)))).take(pa.array(order))
    return ReplayRows(rows, [state.path for state, _ in files], split_of, positions[order], times, nulls, errors)


def _concat(batches: Sequence[pa.RecordBatch], columns: Sequence[Column]) -> pa.RecordBatch:
    if batches:
        return pa.concat_batches(batches)
    return pa.RecordBatch.from_pylist([], schema=arrow_schema(columns))


def _times_us(column: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_date(column.type):
        days = column.cast(pa.int32()).cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        return days * _DAY_US, valid
    return column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False).copy(), valid
