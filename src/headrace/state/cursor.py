"""Walking several runs side by side in key order, a bounded number of rows at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.state.kernels.equality import Ints
from headrace.state.run import Point, Run
from headrace.state.schema import RunRef

K_LOWEST = -(2**63)
"""The lowest `__k` there is."""


@dataclass(frozen=True)
class Span:
    """Rows `start` to `stop`, exclusive, of a run."""

    run: Run
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


def overlaps(ref: RunRef, k_from: int, k_to: int | None) -> bool:
    """Whether the run can hold rows with `k_from <= __k < k_to`."""
    return ref.k_max >= k_from and (k_to is None or ref.k_min < k_to)


def spans(runs: Sequence[Run], k_from: int, k_to: int | None) -> list[Span]:
    """The rows of each run with `k_from <= __k < k_to`; runs that have none are left out."""
    result = []
    for run in runs:
        if not overlaps(run.ref, k_from, k_to):
            continue
        start = 0 if run.ref.k_min >= k_from else run.lower_bound((k_from,))
        stop = run.ref.rows if k_to is None or run.ref.k_max < k_to else run.lower_bound((k_to,))
        if start < stop:
            result.append(Span(run, start, stop))
    return result


def chunks(whole: Sequence[Span], chunk_rows: int) -> Iterator[list[Span]]:
    """Cut the spans at common places, in order, so that each part holds about `chunk_rows` rows.

    A part exceeds that by at most one index stride per run. Rows with equal (`__k`, `__h`) are in one part.
    """
    starts = [s.start for s in whole]
    for cut in _cuts(whole, chunk_rows):
        stops = [min(max(s.run.lower_bound(cut), s.start), s.stop) for s in whole]
        part = [Span(s.run, a, b) for s, a, b in zip(whole, starts, stops, strict=True) if a < b]
        starts = stops
        if part:
            yield part
    part = [Span(s.run, a, s.stop) for s, a in zip(whole, starts, strict=True) if a < s.stop]
    if part:
        yield part


def _cuts(whole: Sequence[Span], chunk_rows: int) -> list[Point]:
    if sum(map(len, whole)) <= chunk_rows:
        return []
    stride = max(s.run.index_stride for s in whole)
    points: Ints = np.concatenate([_index_points(s) for s in whole])
    order = np.lexsort(points.T[::-1])
    step = max(1, chunk_rows // stride)
    return [tuple(p) for p in points[order[step - 1 :: step]].tolist()]


def _index_points(span: Span) -> Ints:
    stride = span.run.index_stride
    return span.run.index[span.start // stride + 1 : (span.stop - 1) // stride + 1]
