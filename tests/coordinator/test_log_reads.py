"""How a view reads the logs of its inputs: in which order, in what portions, and where the rows come from.

What stands for the log store's buffer is the cache of unpacked sections (`tests/state/test_stores.py`); a portion, or
merged reference, is one epoch of the reader over several of its input.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from fake_database import FakeRunner
from fake_groups import Logs
from world import World, stand, stand_at

from headrace.catalog.edits import Put
from headrace.catalog.records import RemapRecord
from headrace.common.faults import arm, disarm_all
from headrace.coordinator.decide.group_epoch import open_epoch
from headrace.coordinator.decide.machine import next_epoch
from headrace.coordinator.decide.row_sizes import Intake
from headrace.coordinator.decide.work import next_work
from headrace.coordinator.observe.epoch_history import EdgeReads
from headrace.coordinator.run.attempt import reads_of
from headrace.dataflow.epoch_result import EpochResult
from headrace.dataflow.params import EpochParams
from support import WAIT_S


class RecordingRunner(FakeRunner):
    """Keeps, for each step, the rows that it has read."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.read: list[tuple[EpochParams, int]] = []

    def run(self, params: EpochParams, parallelism: int) -> EpochResult:
        result = super().run(params, parallelism)
        self.read.append((params, result.rows_in))
        return result


class Readers(Logs):
    def runner(self, plan: Any, relations: Any) -> FakeRunner:
        self.runners.append(RecordingRunner(plan, relations))
        return self.runners[-1]

    def steps(self, view: int) -> list[tuple[int, int, int]]:
        """(From, to, rows) of each step, in order."""
        runner = self.runner_of(view)
        assert isinstance(runner, RecordingRunner)
        return [(p.from_epoch, p.to_epoch, rows) for p, rows in runner.read]


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Readers]:
    made = Readers(tmp_path, max_in_flight_epochs=1, progress_host="")
    yield made
    disarm_all()
    made.close()


def test_what_goes_in_comes_out_in_order(db: Readers) -> None:
    """LS-1: a reader that keeps up takes in each epoch by itself, in order; its log is that of its input."""
    t = db.table()
    v = db.view("v", t)
    w = db.view("w", v)
    given: list[tuple[int, Counter[int]]] = []
    for n in range(5):
        given.append((db.insert(t, *range(n + 1)), Counter(range(n + 1))))
        db.c.flush(WAIT_S)
    ends = [*(epoch - 1 for epoch, _ in given[1:]), db.c.current_epoch()]
    taken = [step for step in db.steps(v) if step[1] >= given[0][0]]
    assert [rows for *_, rows in taken] == [1, 2, 3, 4, 5]
    for (epoch, rows), step, end in zip(given, taken, ends, strict=True):
        assert step[0] < epoch <= step[1] <= end
        assert db.log(v, epoch - 1, end) == db.log(w, epoch - 1, end) == rows


def test_a_watermark_stays_with_the_rows_of_its_epoch() -> None:
    """LS-1: whoever reads a source at an epoch, and whenever, finds the watermark that was bound with its offsets."""
    world = World()
    source = world.create("source")
    for n in range(1, 5):
        world.transact([Put(RemapRecord(source, n << 16, {"0": 3 * n}, watermark_us=100 * n))])
    for n in range(1, 5):
        for epoch in (n << 16, (n << 16) + 9):
            found = world.state.offsets_at(source, epoch)
            assert found is not None and (found.offsets["0"], found.watermark_us) == (3 * n, 100 * n)


def test_history_comes_first_and_then_the_log_in_order(db: Readers) -> None:
    """LS-4, LS-26: a new view reads content at one epoch, then the log in order without a gap; each row counts once."""
    db.c.configure(db.settings.replaced(backfill_slice_rows=3))
    t = db.table()
    db.insert(t, *range(10))
    v = db.view("v", t, wait=False)
    for n in range(3):
        db.insert(t, 100 + n)
    db.c.wait_created(v, WAIT_S)
    db.insert(t, 200, 201)
    db.c.flush(WAIT_S)
    steps = db.steps(v)
    history = [step for step in steps if not step[0]]
    assert history == steps[: len(history)] and len({to for _, to, _ in history}) == 1
    edges = [(0, history[0][1]), *(step[:2] for step in steps[len(history) :])]
    assert all(before[1] == after[0] for before, after in pairwise(edges))
    edge = db.edge(t, v)
    assert edge.rows_historical == sum(rows for *_, rows in history) >= 10
    assert edge.rows_historical + edge.rows_flushed == sum(rows for *_, rows in steps) == len(db.read(v)[0])
    assert edge.rows_buffered == 0, "a directory has no copies"


def test_rows_count_by_where_they_come_from(db: Readers, monkeypatch: pytest.MonkeyPatch) -> None:
    """LS-4, LS-26: what a step finds in this host's cache as a whole is read from the buffer, all else from the log."""
    t = db.table()
    v = db.view("v", t)
    far: set[str] = set()
    monkeypatch.setattr(db.core.storage.store, "copied", lambda ref: ref.path not in far)
    db.insert(t, 1, 2)
    db.c.flush(WAIT_S)
    db.c.alter_job(v, paused=True)
    db.insert(t, 3, 4, 5)
    far |= {r.path for r in db.refs(t)}
    db.insert(t, 6)
    db.c.alter_job(v, paused=False)
    db.c.flush(WAIT_S)
    db.insert(t, 7)
    db.c.flush(WAIT_S)
    edge = db.edge(t, v)
    assert (edge.rows_historical, edge.rows_flushed, edge.rows_buffered) == (0, 4, 3)
    assert reads_of(5, first=True, at_hand=True) == EdgeReads(historical=5)


def test_an_empty_change_is_no_item(db: Readers) -> None:
    """LS-6: a write without rows, and a view's epoch without output, make no object, no change and no step below."""
    t = db.table(key=True)
    v = db.view("v", t)
    w = db.view("w", v)
    db.insert(t, 1)
    db.c.flush(WAIT_S)
    objects, steps = len(list(db.core.storage.store.list())), len(db.steps(v))
    db.insert(t)
    db.delete(t, 77)
    db.c.flush(WAIT_S)
    assert (len(list(db.core.storage.store.list())), len(db.steps(v))) == (objects, steps)
    db.c.alter_job(v, paused=True)
    db.insert(t, 2)
    db.delete(t, 2)
    below = len(db.steps(w))
    db.c.alter_job(v, paused=False)
    db.c.flush(WAIT_S)
    assert len(db.steps(v)) == steps + 1, "the change cancels out in one epoch of the view"
    assert len(list(db.core.storage.store.list())) == objects + 2 and len(db.steps(w)) == below
    edge = db.edge(v, w)
    assert (edge.backlog_epochs, edge.backlog_rows, edge.oldest_unconsumed) == (0, 0, None)


def test_a_backlog_of_small_epochs_is_one_read(db: Readers) -> None:
    """LS-8: two epochs of five rows, kept nowhere else, are one step of ten rows; merged they are one run."""
    t = db.table()
    v = db.view("v", t)
    db.c.alter_job(v, paused=True)
    first, second = db.insert(t, *range(5)), db.insert(t, *range(5, 10))
    assert len(db.refs(t)) == 2
    db.settled()
    assert [(r.rows, r.epoch_lo, r.epoch_hi) for r in db.refs(t)] == [(10, first, second)]
    steps = len(db.steps(v))
    db.c.alter_job(v, paused=False)
    db.c.flush(WAIT_S)
    assert [rows for *_, rows in db.steps(v)[steps:]] == [10]
    assert db.edge(t, v).rows_flushed == 10


# ---- portions: pure


@dataclass
class Backlog:
    """A table with changes of so many rows each, and a view that has taken in none of them."""

    sizes: tuple[int, ...]
    world: World = field(default_factory=World)

    def __post_init__(self) -> None:
        world = self.world
        self.table = world.create("table")
        view = world.create_view("union", (self.table,), None)
        assert view is not None
        self.job = world.jobs[view]
        self.start = world.newest
        stand_at(self.job, self.start)
        self.epochs = [self.write(range(n)) for n in self.sizes]

    def write(self, rows: range) -> int:
        epoch = self.world.begin()
        self.world.write(self.table, Counter(rows), epoch)
        self.world.under_way.discard(epoch)
        return epoch

    def portions(self, limit: int) -> list[int]:
        """The epochs that the view runs to, one after the other, by their place in the backlog."""
        found = []
        while (decision := next_epoch(self.world, [self.job], Intake(limit))).run:
            stand(self.job, committed=decision.target)
            found.append(max(i for i, epoch in enumerate(self.epochs) if epoch <= decision.target))
        return found

    def steps(self, target: int, limit: int) -> list[int]:
        """The rows of the steps of the first portion."""
        epoch = open_epoch([self.job], target)
        work = next_work(self.world, self.world.state, epoch, epoch.parts[0], [], Intake(limit))
        assert work is not None
        return [round(work.step.rows), sum(len(i.refs) for i in work.inputs.values())]


def test_references_merge_while_they_are_adjacent_and_fit() -> None:
    """LS-9: epochs are read together up to `max_rows_per_epoch`; never across one at which the view has to stop."""
    assert Backlog((5, 5)).portions(10) == [1], "just as many as fit"
    assert Backlog((5, 5)).portions(9) == [0, 1]
    assert Backlog((3, 3, 3, 3)).portions(6) == [1, 3]
    parted = Backlog((5, 5, 5))
    parted.job.stop_at(parted.epochs[0])
    assert parted.portions(100) == [0, 2], "a stop between two epochs keeps them apart"
    two = Backlog((5, 5))
    assert two.steps(two.epochs[1], 10) == [10, 2], "one step reads both"


def test_a_large_epoch_is_read_by_itself() -> None:
    """LS-10: one that is larger than a portion is not merged with its neighbours; it is taken in by bounded steps."""
    assert Backlog((5, 100, 5)).portions(10) == [0, 1, 2]
    large = Backlog((100,))
    rows, refs = large.steps(large.epochs[0], 10)
    assert 1 <= rows <= 11 and refs == 1


def test_runs_of_a_checkpoint_and_of_what_is_above_it_stay_apart(db: Readers) -> None:
    """LS-9: what is not committed yet is never merged with what is: it can still be given up."""
    t = db.table()
    v = db.view("v", t)
    for n in range(4):
        db.insert(t, n)
        db.c.flush(WAIT_S)
    db.c.alter_job(v, options={"max_rows_per_epoch": "4"})
    committed = db.committed(v)[0]
    arm("commit.acked", "hang", nth=1)
    db.insert(t, *range(20))
    db.until(lambda: len([r for r in db.refs(v) if r.epoch_lo > committed]) > 2)
    db.settled()
    assert not any(r.epoch_lo <= committed < r.epoch_hi for r in db.refs(v))
    disarm_all()
    db.c.flush(WAIT_S)
    assert db.read(v) == [sorted([*range(4), *range(20)])]
