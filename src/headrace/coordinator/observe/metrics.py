"""What the server has counted, as named numbers. Everything here is collected; the parts themselves do the counting.

Workers count for themselves: the acknowledgement of a task's last stage in a process says by how much that process's
I/O counters have grown, and counts when its step is committed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from headrace.common.lazy_dataclass import dataclass
from headrace.coordinator.run.live_state import LiveState, Metrics
from headrace.coordinator.run.storage import Storage
from headrace.coordinator.upkeep.compaction import MergeCounts
from headrace.coordinator.upkeep.vacuum import VacuumCounts
from headrace.state.iopool import GAUGES
from headrace.state.memory import MemoryController, MemoryUse

Unit = Literal["count", "bytes", "seconds", "rows"]

_IO: tuple[tuple[str, str, Unit, str], ...] = (
    ("requests", "io_requests", "count", "Requests to storage, those that were tried again included"),
    ("retries", "io_retries", "count", "Requests that were tried again"),
    ("failures", "io_failures", "count", "Calls to storage that were given up"),
    ("bytes_read", "io_bytes_read", "bytes", "Read from the object store; files are mapped, and not counted"),
    ("bytes_written", "io_bytes_written", "bytes", "Written to the object store; files are not counted"),
    ("cache_hits", "cache_hits", "count", "Sections of remote objects that were found in the cache"),
    ("cache_misses", "cache_misses", "count", "Sections that had to be fetched"),
    ("cache_evictions", "cache_evictions", "count", "Sections that had to make room for others"),
    ("cache_bytes", "cache_bytes", "bytes", "Size of this host's cache when this process last changed it"),
)
"""Field of `IoMetrics`, name without the kind of process, unit, meaning."""


@dataclass(frozen=True)
class Metric:
    """A counted number with its name, its unit and what it counts."""

    name: str
    value: float
    unit: Unit
    help: str


@dataclass(frozen=True)
class Figures:
    """The inputs of all metrics, taken at one moment."""

    server_io: Mapping[str, int]
    """By the names of the fields of `IoMetrics`."""
    memory: MemoryUse
    jobs: Metrics
    """Of all jobs together, dropped ones included."""
    merges: MergeCounts
    vacuum: VacuumCounts
    transactions: int
    runs: tuple[int, ...]
    """How many runs each state table has."""
    start_s: Mapping[str, float]
    """Seconds of each step of the start."""
    background_failures: int = 0
    epochs_ahead_ms: int = 0


def collect(
    live: LiveState, storage: Storage, memory: MemoryController, *, jobs: Metrics, merges: MergeCounts,
    vacuum: VacuumCounts, start_s: Mapping[str, float], failures: Mapping[str, int],
) -> list[Metric]:  # fmt: skip
    """The metrics of now. Raises `Fenced`, `StorageError`."""
    with storage.catalog.reading() as state:
        runs = tuple(len(state.runs_of(table)) for table in state.state_tables)
        transactions = storage.catalog.sequence
    with live.lock:
        figures = Figures(
            storage.store.metrics.as_dict(), memory.use(), jobs, merges, vacuum, transactions, runs, dict(start_s),
            sum(failures.values()), live.epochs.ahead_ms,
        )  # fmt: skip
        return list(metrics(figures))


def metrics(f: Figures) -> Iterator[Metric]:
    """Every metric; names are unique and those of one part follow each other."""
    yield from _io("server", "by the server process", f.server_io)
    yield from _io("worker", "by tasks whose epochs were committed", f.jobs.io)
    yield from _memory(f.memory)
    yield from _jobs(f.jobs)
    yield from _merges(f.merges, f.runs)
    yield Metric("vacuum_passes", f.vacuum.passes, "count", "Searches for unreferenced objects")
    yield Metric("vacuum_deleted", f.vacuum.deleted, "count", "Unreferenced objects that were deleted")
    yield Metric("background_failures", f.background_failures, "count", "Failures of the server's threads and chores")
    ahead = "How far the newest epoch is ahead of the clock; it stays there if the clock has been ahead once"
    yield Metric("epochs_ahead_seconds", f.epochs_ahead_ms / 1000, "seconds", ahead)
    yield Metric("catalog_transactions", f.transactions, "count", "Commits of the catalog since it was created")
    yield Metric("start_seconds", sum(f.start_s.values()), "seconds", "The server's start, after that of Spark")
    for step, seconds in f.start_s.items():
        yield Metric(f"start_{step}_seconds", seconds, "seconds", f"The part of it spent on: {step}")


def _io(process: str, by: str, counts: Mapping[str, int]) -> Iterator[Metric]:
    for field, name, unit, meaning in _IO:
        if process == "server" or field not in GAUGES:
            yield Metric(f"{process}_{name}", counts.get(field, 0), unit, f"{meaning}; {by}")


def _memory(use: MemoryUse) -> Iterator[Metric]:
    yield Metric("memory_budget_bytes", use.budget_bytes, "bytes", "What memory_budget_mb comes to")
    yield Metric("memory_used_bytes", use.used_bytes, "bytes", "Held by the server's writes and merges now")
    yield Metric("memory_peak_bytes", use.peak_bytes, "bytes", "The most that they have held at once")
    yield Metric("memory_waits", use.waits, "count", "Times that one of them had to wait for memory")
    yield Metric("memory_refusals", use.spills, "count", "Times that one of them was refused memory")


def _jobs(m: Metrics) -> Iterator[Metric]:
    yield Metric("spilled_bytes", m.spilled_bytes, "bytes", "Input of operators that went to local disk and back")
    yield Metric("epochs_committed", m.epochs, "count", "Epochs of views and sinks that were committed")
    yield Metric("rows_in", m.rows_in, "rows", "Rows that views and sinks have taken in")
    yield Metric("rows_out", m.rows_out, "rows", "Changes to rows of views, and rows that sinks took")
    yield Metric("row_errors", m.row_errors, "rows", "Rows that could not be understood")
    yield Metric("late_rows", m.late_rows, "rows", "Rows below the watermark, which were left out")


def _merges(m: MergeCounts, runs: tuple[int, ...]) -> Iterator[Metric]:
    yield Metric("compaction_merges", m.merges, "count", "Merges that were committed")
    yield Metric("compaction_failures", m.failures, "count", "Merges that failed")
    yield Metric("compaction_bytes_read", m.bytes_read, "bytes", "Size of the runs that were merged, unpacked")
    yield Metric("compaction_bytes_written", m.bytes_written, "bytes", "Size of the runs that took their place")
    yield Metric("compaction_seconds", m.seconds, "seconds", "Time that these merges took")
    yield Metric("runs", sum(runs), "count", "Runs that state tables consist of now")
    yield Metric("runs_largest_table", max(runs, default=0), "count", "Runs of the state table that has most of them")
