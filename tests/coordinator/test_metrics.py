"""What `headrace_catalog.metrics` is made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from fake_database import Database

from headrace.coordinator.observe.metrics import Figures, metrics
from headrace.coordinator.run import start_times
from headrace.coordinator.run.live_state import Metrics
from headrace.coordinator.upkeep.compaction import MergeCounts
from headrace.coordinator.upkeep.vacuum import VacuumCounts
from headrace.dataflow.epoch_result import EpochResult
from headrace.state.iopool import GAUGES, IoMetrics
from headrace.state.memory import MemoryUse
from support import WAIT_S

COUNTS = {f.name: 10 + i for i, f in enumerate(fields(IoMetrics))}


def _metrics(runs: tuple[int, ...] = (3, 7, 0)) -> dict[str, float]:
    jobs = Metrics(rows_in=1, rows_out=2, epochs=3, row_errors=4, spilled_bytes=5, io=Counter(COUNTS))
    figures = Figures(
        COUNTS, MemoryUse(100, 20, 30, 4, 5), jobs, MergeCounts(6, 7, 8, 9, 1.5), VacuumCounts(2, 11), 12, runs,
        {"storage": 0.5, "views": 2.0},
    )  # fmt: skip
    found = list(metrics(figures))
    assert len({m.name for m in found}) == len(found), "names are unique"
    assert all(m.help and m.unit in ("count", "bytes", "seconds", "rows") for m in found)
    assert all(m.unit == unit for m in found for unit in ("bytes", "seconds") if m.name.endswith(unit))
    return {m.name: m.value for m in found}


def test_every_count_has_a_metric() -> None:
    found = _metrics()
    server = [value for name, value in found.items() if name.startswith("server_")]
    workers = [value for name, value in found.items() if name.startswith("worker_")]
    assert sorted(server) == sorted(COUNTS.values())
    assert sorted(workers) == sorted(value for name, value in COUNTS.items() if name not in GAUGES)
    assert (found["server_io_retries"], found["worker_cache_hits"]) == (COUNTS["retries"], COUNTS["cache_hits"])
    assert [found[f"memory_{n}"] for n in ("budget_bytes", "used_bytes", "peak_bytes", "waits", "refusals")] == [
        100, 20, 30, 4, 5
    ]  # fmt: skip
    assert [found[n] for n in ("rows_in", "rows_out", "epochs_committed", "row_errors", "spilled_bytes")] == [
        1, 2, 3, 4, 5
    ]  # fmt: skip
    parts = ("merges", "failures", "bytes_read", "bytes_written", "seconds")
    assert [found[f"compaction_{n}"] for n in parts] == [6, 7, 8, 9, 1.5]
    assert (found["vacuum_passes"], found["vacuum_deleted"], found["catalog_transactions"]) == (2, 11, 12)
    assert (found["runs"], found["runs_largest_table"]) == (10, 7)
    assert (found["start_seconds"], found["start_views_seconds"]) == (2.5, 2.0)


def test_a_database_without_tables() -> None:
    found = _metrics(())
    assert (found["runs"], found["runs_largest_table"]) == (0, 0)


def test_steps_add_up() -> None:
    total = Metrics()
    for _ in range(2):
        total.add(EpochResult(rows_in=3, rows_out=2, row_error_count=1, spilled_bytes=7, io=Counter(requests=4)))
    assert total == Metrics(rows_in=6, rows_out=4, row_errors=2, spilled_bytes=14, io=Counter(requests=8))


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    made = Database(tmp_path, compaction_trigger_runs=2, vacuum_grace_ms=0, retention_ms=0)
    yield made
    made.close()


def _now(db: Database) -> dict[str, float]:
    return {m.name: m.value for m in db.c.metrics()}


def test_what_a_database_has_done(db: Database) -> None:
    before = _now(db)
    t = db.table()
    v = db.view("v", t)
    for i in range(4):
        db.insert(t, i)
        db.c.flush(WAIT_S)
    after = _now(db)
    assert after["rows_in"] == after["rows_out"] == 4 and after["epochs_committed"] == db.status(v).epochs >= 5
    assert after["catalog_transactions"] == db.catalog.sequence > before["catalog_transactions"] + 8
    assert after["runs"] == len(db.catalog.state.runs) and after["runs_largest_table"] == 4
    size = sum(r.ref.length for r in db.catalog.state.runs.values())
    merges = db.c.compact()
    merged = _now(db)
    assert merged["compaction_merges"] == merges > 0 == merged["compaction_failures"]
    assert merged["compaction_bytes_read"] == size
    assert merged["compaction_bytes_written"] == sum(r.ref.length for r in db.catalog.state.runs.values())
    assert merged["runs_largest_table"] == 1 and merged["memory_peak_bytes"] > 0 == merged["memory_used_bytes"]
    deleted = db.c.vacuum() + db.c.vacuum()
    assert (_now(db)["vacuum_passes"], _now(db)["vacuum_deleted"]) == (2, deleted)
    db.c.drop([v])
    assert _now(db)["rows_in"] == 4, "what dropped views have done still counts"


def test_a_merge_that_fails_is_counted(db: Database) -> None:
    t = db.table()
    db.insert(t, 1)
    db.insert(t, 2)
    ref = next(iter(db.catalog.state.runs.values())).ref
    (Path(db.core.storage.root) / ref.path).unlink()
    assert db.c.compact() == 0
    assert (_now(db)["compaction_merges"], _now(db)["compaction_failures"]) == (0, 1)


def test_a_slow_start_is_an_event_with_its_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    db = Database(tmp_path)
    assert db.events("slow_start") == []
    db.close()
    monkeypatch.setattr(start_times, "SLOW_START_S", 0)
    db = Database(tmp_path)
    try:
        (text,) = db.events("slow_start")
        assert all(step in text for step in ("storage", "relations", "reads", "views"))
        found = _now(db)
        steps = [value for name, value in found.items() if name.startswith("start_") and name != "start_seconds"]
        assert len(steps) == 4 and sum(steps) == pytest.approx(found["start_seconds"])
    finally:
        db.close()
