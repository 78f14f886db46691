"""What groups have done lately: their newest checkpoints, what was read over each edge, how long jobs were paused.

Counted since the server started, kept in memory and bounded.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

CHECKPOINTS_KEPT = 100
"""Newest checkpoints that are kept of each group."""


@dataclass(frozen=True)
class Checkpoint:
    """An epoch that a group has committed."""

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
        """Count more of them."""
        self.historical += more.historical
        self.flushed += more.flushed
        self.buffered += more.buffered


@dataclass
class _Pauses:
    since_s: float | None = None
    total_s: float = 0.0


@dataclass
class History:
    """Thread-safe."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _rings: dict[str, deque[Checkpoint]] = field(default_factory=dict)
    _edges: defaultdict[tuple[int, int], EdgeReads] = field(default_factory=lambda: defaultdict(EdgeReads))
    _pauses: dict[int, _Pauses] = field(default_factory=dict)

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
            for i in ids:
                self._pauses.pop(i, None)
