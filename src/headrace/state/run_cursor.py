"""Walking several runs side by side in key order, a bounded number of rows and bytes at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from headrace.common.lazy_dataclass import dataclass
from headrace.state.kernels import sizes
from headrace.state.kernels.equality import Ints
from headrace.state.run import Point, Run
from headrace.state.schema import RunRef

K_LOWEST = -(2**63)
"""The lowest `__k` there is."""


@dataclass(frozen=True)
class RowSpan:
    """The rows from `start` to `stop`, exclusive, of a run."""

    run: Run
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def nbytes(self) -> int:
        """Bytes that the rows take."""
        return sum(batch.nbytes for batch in self.run.slices(self.start, self.stop))


def overlaps(ref: RunRef, k_from: int, k_to: int | None) -> bool:
    """Whether the run can hold rows with `k_from <= __k < k_to`."""
    return ref.k_max >= k_from and (k_to is None or ref.k_min < k_to)


def spans(runs: Sequence[Run], k_from: int, k_to: int | None) -> list[RowSpan]:
    """The rows of each run with `k_from <= __k < k_to`; runs that have none are left out."""
    result = []
    for run in runs:
        if not overlaps(run.ref, k_from, k_to):
            continue
        start = 0 if run.ref.k_min >= k_from else run.lower_bound((k_from,))
        stop = run.ref.rows if k_to is None or run.ref.k_max < k_to else run.lower_bound((k_to,))
        if start < stop:
            result.append(RowSpan(run, start, stop))
    return result


def chunks(whole: Sequence[RowSpan], chunk_rows: int) -> Iterator[list[RowSpan]]:
    """Cut the spans at common places, in order, so that each part holds about `chunk_rows` rows, or `CHUNK_BYTES`.

    A part exceeds the first by at most one index stride per run, and the other only where its rows are equal in
    (`__k`, `__h`): these are in one part.
    """
    left = list(whole)
    for cut in _cuts(whole, chunk_rows):
        part, left = _split(left, cut)
        yield from _bounded(part, sizes.CHUNK_BYTES)
    yield from _bounded(left, sizes.CHUNK_BYTES)


def _split(part: Sequence[RowSpan], cut: Point) -> tuple[list[RowSpan], list[RowSpan]]:
    """What lies before a place and what does not, without empty spans."""
    stops = [min(max(s.run.lower_bound(cut), s.start), s.stop) for s in part]
    before = [RowSpan(s.run, s.start, stop) for s, stop in zip(part, stops, strict=True) if s.start < stop]
    return before, [RowSpan(s.run, stop, s.stop) for s, stop in zip(part, stops, strict=True) if stop < s.stop]


def _bounded(part: list[RowSpan], most_bytes: int) -> Iterator[list[RowSpan]]:
    """A part, cut in the middle as long as it is too large."""
    left = [part] if part else []
    while left:
        part = left.pop()
        if sum(s.run.stored_bytes(s.start, s.stop) for s in part) > most_bytes:
            taken = [s.nbytes for s in part]
            halves = _halves(part, part[int(np.argmax(taken))]) if sum(taken) > most_bytes else None
            if halves is not None:
                left += reversed(halves)
                continue
        yield part


def _halves(part: list[RowSpan], largest: RowSpan) -> tuple[list[RowSpan], list[RowSpan]] | None:
    """A part in two, at about the middle of one of its spans; None where all rows of that are at one place."""
    middle = largest.run.point_at(largest.start + len(largest) // 2)
    for cut in (middle, (*middle[:-1], middle[-1] + 1)):
        before, rest = _split(part, cut)
        if before and rest:
            return before, rest
    return None


def _cuts(whole: Sequence[RowSpan], chunk_rows: int) -> list[Point]:
    if sum(map(len, whole)) <= chunk_rows:
        return []
    stride = max(s.run.index_stride for s in whole)
    points: Ints = np.concatenate([_index_points(s) for s in whole])
    order = np.lexsort(points.T[::-1])
    step = max(1, chunk_rows // stride)
    return [tuple(p) for p in points[order[step - 1 :: step]].tolist()]


def _index_points(span: RowSpan) -> Ints:
    stride = span.run.index_stride
    return span.run.index[span.start // stride + 1 : (span.stop - 1) // stride + 1]
