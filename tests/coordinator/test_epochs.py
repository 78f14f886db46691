"""Epochs are never used twice, whatever the clock, the catalog and other threads do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.catalog.catalog import Catalog
from headrace.catalog.edits import SetConfig
from headrace.common.clock import ManualClock
from headrace.common.faults import arm, disarm_all
from headrace.coordinator.run.epochs import EPOCH_BOUND, RESERVE_MS, EpochClock
from headrace.coordinator.run.waiting import Waiters
from headrace.errors import HeadraceError
from support import WAIT_S

START_MS = 1_800_000_000_000


class Epochs:
    """An epoch clock over a catalog; `before` is called with each bound before it becomes durable."""

    def __init__(self, folder: Path) -> None:
        self.location = folder / "catalog.db"
        self.clock = ManualClock(START_MS)
        self.catalog = Catalog.open(self.location, full_sync=False)
        self.before: Callable[[int], None] = lambda bound: None
        self.bounds: list[int] = []
        transact = self.catalog.transact

        def watched(edits: Any) -> int:
            edits = list(edits)
            bounds = [e.value for e in edits if isinstance(e, SetConfig) and e.key == EPOCH_BOUND]
            for bound in bounds:
                self.before(bound)
            number = transact(edits)
            self.bounds += bounds
            return number

        self.catalog.transact = watched  # type: ignore[method-assign]
        self.epochs = EpochClock(self.catalog, self.clock, Waiters(threading.RLock()))

    def again(self, back_ms: int) -> EpochClock:
        """After a crash: the catalog is what is durable, and the clock has gone back."""
        self.clock = ManualClock(self.clock.now_ms() - back_ms)
        self.catalog = Catalog.open(self.location, full_sync=False)
        return EpochClock(self.catalog, self.clock, Waiters(threading.RLock()))

    def close(self) -> None:
        disarm_all()
        self.catalog.close()


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Epochs]:
    made = Epochs(tmp_path)
    yield made
    made.close()


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_the_bound_does_not_go_back_when_two_begin_at_once(db: Epochs) -> None:
    """PC-4, I15: the older of two transactions comes last. After a crash and a step back of the clock all is new."""
    first_waits, go_on = threading.Event(), threading.Event()

    def hold_the_first(bound: int) -> None:
        if not first_waits.is_set():
            first_waits.set()
            assert go_on.wait(WAIT_S)

    db.before = hold_the_first
    older = in_thread(db.epochs.begin)
    assert first_waits.wait(WAIT_S)
    db.clock.advance_ms(5_000)
    given: list[int] = []
    newer = in_thread(lambda: given.append(db.epochs.begin()))
    newer.join(0.2)  # Either it comes first, or it waits for the other: in any order, all must hold.
    go_on.set()
    older.join(WAIT_S)
    newer.join(WAIT_S)
    assert db.bounds == sorted(db.bounds)
    db.clock.advance_ms(RESERVE_MS - 1_000)
    last = db.epochs.begin()
    db.epochs.end(last)
    assert db.catalog.state.config[EPOCH_BOUND] >= last
    assert db.again(back_ms=60_000).begin() > last


def test_an_epoch_that_was_given_up_is_not_shown_before_it_is_reserved(db: Epochs) -> None:
    """PC-4: the catalog does not take the bound: nothing above the old one is complete."""
    arm("catalog.commit.before", "fail")
    for _ in range(3):
        db.clock.advance_ms(60_000)
        with pytest.raises(HeadraceError):
            db.epochs.begin()
    shown = db.epochs.complete
    disarm_all()
    assert shown <= db.catalog.state.config.get(EPOCH_BOUND, 0)
    assert db.again(back_ms=600_000).begin() > shown


def test_settling_leaves_no_epoch_above_the_bound(db: Epochs) -> None:
    """PC-4: someone begins an epoch while the server stops."""
    db.epochs.end(db.epochs.begin())
    db.clock.advance_ms(1_000)
    given: list[int] = []
    threads: list[threading.Thread] = []

    def begin_another(bound: int) -> None:
        db.before = lambda bound: None
        threads.append(in_thread(lambda: given.append(db.epochs.begin())))
        threads[0].join(0.2)  # It may wait for the bound, or not.

    db.before = begin_another
    db.epochs.settle()
    threads[0].join(WAIT_S)
    db.epochs.end(given[0])
    assert db.catalog.state.config[EPOCH_BOUND] >= given[0] == db.epochs.complete
    assert db.again(back_ms=60_000).begin() > given[0]


def test_a_settled_bound_is_the_last_epoch(db: Epochs) -> None:
    last = db.epochs.begin()
    db.epochs.end(last)
    db.epochs.settle()
    assert db.catalog.state.config[EPOCH_BOUND] == last
    assert last < db.again(back_ms=0).begin() < last + (RESERVE_MS << 16)
