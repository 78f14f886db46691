"""What groups have done lately: their newest checkpoints, what was read over each edge, how long jobs were paused.

Counted since the server started, kept in memory and bounded.
"""

from __future__ import annotations

import json
import threading
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING

from headrace.common.lazy_dataclass import dataclass
from headrace.connectors.base import RowError

if TYPE_CHECKING:
    from headrace.dataflow.failures import FailedExpression

CHECKPOINTS_KEPT = 100
"""Newest checkpoints that are kept of each group."""
ROW_ERRORS_KEPT = 1000
"""Newest rows that are kept of all on which something failed."""
_MALFORMED = "22P02"


@dataclass(frozen=True)
class Checkpoint:
    """A committed epoch of one job, with its figures: one line of `headrace_catalog.checkpoints`."""

    group: str
    job_id: int
    epoch: int
    from_epoch: int
    """The checkpoint before; 0 for the first."""
    at_ms: int
    """When it became visible, Unix milliseconds."""
    duration_ms: int
    """From the start of the attempt to the commit."""
    rows_in: int
    rows_out: int
    objects: int
    bytes: int
    """Size of the runs that it added."""


@dataclass(frozen=True)
class RowErrors:
    """What failed on a row that a job has gone on past."""

    job_id: int
    epoch: int
    at_ms: int
    """When it was committed, Unix milliseconds."""
    operator: str | None
    """Of the plan; None for a record of a source."""
    expression: str | None
    """What was computed; of a source, the column that could not be read."""
    message: str
    sqlstate: str
    sample: str
    """The row, or as much of it as the operator has; of a source, the value and where it was."""


@dataclass
class EdgeReads:
    """Rows that a consumer has read from one of its inputs; an input that a query names twice is read twice."""

    historical: int = 0
    """By its first epoch: what the input held."""
    flushed: int = 0
    """From the log, as far as it lies in the store."""
    buffered: int = 0
    """From the log, by steps that found all of it unpacked in this host's cache."""

    def add(self, more: EdgeReads) -> None:
        """Adds the rows of another step."""
        self.historical += more.historical
        self.flushed += more.flushed
        self.buffered += more.buffered


@dataclass
class _Pauses:
    since_s: float | None = None
    total_s: float = 0.0


@dataclass
class History:
    """The memory of recent checkpoints, rows read over edges, and pauses. Bounded and thread-safe."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _rings: dict[str, deque[Checkpoint]] = field(default_factory=dict)
    _edges: defaultdict[tuple[int, int], EdgeReads] = field(default_factory=lambda: defaultdict(EdgeReads))
    _pauses: dict[int, _Pauses] = field(default_factory=dict)
    _row_errors: deque[RowErrors] = field(default_factory=lambda: deque(maxlen=ROW_ERRORS_KEPT))

    def committed(self, checkpoint: Checkpoint, rows_by_input: Mapping[int, EdgeReads]) -> None:
        """Note a checkpoint, and the rows that it took in by relation."""
        with self._lock:
            ring = self._rings.setdefault(checkpoint.group, deque(maxlen=CHECKPOINTS_KEPT))
            ring.append(checkpoint)
            for relation, rows in rows_by_input.items():
                self._edges[relation, checkpoint.job_id].add(rows)

    def checkpoints(self) -> list[Checkpoint]:
        """The newest checkpoints, newest first."""
        with self._lock:
            found = [c for ring in self._rings.values() for c in ring]
        return sorted(found, key=lambda c: (c.at_ms, c.epoch), reverse=True)

    def failed_on(self, job_id: int, epoch: int, at_ms: int, found: Iterable[FailedExpression | RowError]) -> None:
        """Note rows that a job has gone on past, as `EpochResult.row_errors` has them."""
        with self._lock:
            self._row_errors += [_row_error(job_id, epoch, at_ms, error) for error in found]

    def taken_back(self, committed: Mapping[int, int]) -> None:
        """Jobs, given with their checkpoints, have given up what they took in after these: they will meet it again."""
        with self._lock:
            kept = [e for e in self._row_errors if e.epoch <= committed.get(e.job_id, e.epoch)]
            self._row_errors = deque(kept, maxlen=ROW_ERRORS_KEPT)

    def row_errors(self) -> list[RowErrors]:
        """The newest of them, newest first."""
        with self._lock:
            return list(reversed(self._row_errors))

    def reads(self, upstream: int, job_id: int) -> EdgeReads:
        """What a job has read from an input."""
        with self._lock:
            found = self._edges.get((upstream, job_id), EdgeReads())
            return replace(found)

    def paused(self, job_id: int, paused: bool, now_s: float) -> None:
        """Note that a job is paused, or not, from now on; harmless when repeated."""
        with self._lock:
            found = self._pauses.setdefault(job_id, _Pauses())
            if paused and found.since_s is None:
                found.since_s = now_s
            elif not paused and found.since_s is not None:
                found.total_s += now_s - found.since_s
                found.since_s = None

    def paused_ms(self, job_id: int, now_s: float) -> int:
        """How long a job has been paused, milliseconds."""
        with self._lock:
            found = self._pauses.get(job_id, _Pauses())
            running = 0.0 if found.since_s is None else now_s - found.since_s
            return round((found.total_s + running) * 1000)

    def forget(self, ids: set[int], groups: set[str]) -> None:
        """Relations are dropped; `groups` are left."""
        with self._lock:
            for group in self._rings.keys() - groups:
                del self._rings[group]
            for key in [k for k in self._edges if ids.intersection(k)]:
                del self._edges[key]
            kept = [e for e in self._row_errors if e.job_id not in ids]
            self._row_errors = deque(kept, maxlen=ROW_ERRORS_KEPT)
            for i in ids:
                self._pauses.pop(i, None)


def _row_error(job_id: int, epoch: int, at_ms: int, error: FailedExpression | RowError) -> RowErrors:
    if isinstance(error, RowError):
        where: dict[str, object] = {"split": error.split, "position": error.position, "value": error.value}
        if error.key is not None:
            where["row"] = error.key
        sample = json.dumps(where, ensure_ascii=False)
        return RowErrors(job_id, epoch, at_ms, None, error.column, error.message, _MALFORMED, sample)
    row = json.dumps(error.row, ensure_ascii=False)
    return RowErrors(job_id, epoch, at_ms, error.operator, error.expression, error.message, error.sqlstate, row)
