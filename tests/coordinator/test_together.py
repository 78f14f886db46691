"""Which steps of a group share a Spark job, and what happens when such a job fails."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_database import FakeRunner
from fake_groups import Groups
from hypothesis import given
from hypothesis import strategies as st

from headrace.common.clock import ManualClock
from headrace.common.faults import disarm_all
from headrace.coordinator.decide.group_epoch import GroupEpoch, JobPart
from headrace.coordinator.decide.job import JobState
from headrace.coordinator.decide.life import Trouble
from headrace.coordinator.decide.membership import Membership
from headrace.coordinator.decide.pace import Portion
from headrace.coordinator.decide.standing import Standing
from headrace.coordinator.decide.steps import LOWEST_KEY, KeySlice, Step, StepPosition
from headrace.coordinator.decide.targets import ROWS_PER_TASK
from headrace.coordinator.decide.together import MOST_TOGETHER, next_steps
from headrace.coordinator.decide.work import Work
from headrace.coordinator.observe.progress import ProgressBook
from headrace.dataflow.epoch_result import EpochResult
from headrace.dataflow.params import END_OF_KEYS, EpochParams
from headrace.errors import DivisionByZero, JobFailed
from headrace.state.schema import ROWS
from support import WAIT_S

EPOCH = 7


def part(number: int, *upstreams: int, **job: Any) -> JobPart[JobState]:
    standing = Standing("created", 5, exact=((5, 5),))
    made = JobState(number, f"v{number}", upstreams, {ROWS: 100 + number}, standing, Membership("g"))
    for name, value in job.items():
        setattr(made, name, value)
    return JobPart(made, made.committed, 0, StepPosition(EPOCH))


def work(rows: float = 10, *, last: bool = True) -> Work:
    high = END_OF_KEYS if last else 0
    return Work(Step({1: KeySlice(LOWEST_KEY, high, rows)}, last), {}, (), False)


def chosen(parts: list[JobPart[JobState]], apart: bool = False, **works: Work | None) -> list[int]:
    """The jobs of the steps that run next; `v2=` says what there is to do for job 2 if that is not little."""
    found = next_steps(GroupEpoch(EPOCH, parts), lambda p: works.get(p.job.name, work()), apart=apart)
    return [p.job.id for p, _ in found]


def test_views_that_do_not_read_one_another_share_a_job() -> None:
    """In levels, each after what it reads."""
    parts = [part(1, 50), part(2, 50, 51), part(3, 1, 50), part(4, 51), part(5, 3, 2)]
    assert chosen(parts) == [1, 2, 4]
    for p in (parts[0], parts[1], parts[3]):
        p.finished = True
    assert chosen(parts) == [3]
    parts[2].finished = True
    assert chosen(parts) == [5]


def test_without_anything_to_do_a_part_is_finished() -> None:
    parts = [part(1, 50), part(2, 50), part(3, 1)]
    assert chosen(parts, v1=None, v2=None) == []
    assert [p.finished for p in parts] == [True, True, False]
    assert chosen(parts) == [3]


@pytest.mark.parametrize(
    ("job", "todo"),
    [
        ({}, work(ROWS_PER_TASK + 1)),
        ({}, work(last=False)),
        ({"standing": Standing("creating", 5)}, work()),
        ({"trouble": Trouble(failures=1)}, work()),
        ({"portion": Portion(whole=True)}, work()),
        ({"tables": {"0/state": 9}}, work()),
    ],
    ids=["large", "part", "creating", "failing", "whole", "sink"],
)
def test_what_runs_by_itself(job: dict[str, Any], todo: Work) -> None:
    """What takes long, or may well fail, does not hold up the others or make them run again."""
    assert chosen([part(1, 50), part(2, 50, **job), part(3, 50)], v2=todo) == [1, 3]
    assert chosen([part(2, 50, **job), part(3, 50)], v2=todo) == [2]
    assert chosen([part(1, 50), part(2, 50), part(3, 50)], apart=True) == [1]


def test_an_epoch_that_has_been_begun_is_finished_by_itself() -> None:
    begun = part(2, 50)
    begun.begun = True
    assert chosen([part(1, 50), begun, part(3, 50)]) == [1, 3]


def test_so_many_at_most() -> None:
    assert chosen([part(i, 1000) for i in range(1, 100)]) == list(range(1, MOST_TOGETHER + 1))


@given(st.data())
def test_every_order_is_possible(data: st.DataObject) -> None:
    """Whatever reads what, and whatever has something to do: all parts run once, after what they read."""
    count = data.draw(st.integers(1, 12))
    parts: list[JobPart[JobState]] = []
    for i in range(count):
        above = data.draw(st.sets(st.integers(0, i - 1))) if i else set[int]()
        parts.append(part(i, 50, *above, trouble=Trouble(failures=data.draw(st.integers(0, 1)))))
    epoch, idle = GroupEpoch(EPOCH, parts), data.draw(st.sets(st.integers(0, count - 1)))
    ran: list[int] = []
    while epoch.current is not None:
        apart = data.draw(st.booleans())
        steps = next_steps(epoch, lambda p: None if p.job.id in idle else work(), apart=apart, most=3)
        assert len(steps) <= (1 if apart else 3)
        unfinished = {p.job.id for p in epoch.parts if not p.finished}
        for p, _ in steps:
            assert unfinished.isdisjoint(p.job.upstreams)
        for p, _ in steps:
            p.finished = True
            ran.append(p.job.id)
    assert sorted(ran) == sorted(set(range(count)) - idle)


def test_a_sign_of_life_of_one_is_one_of_all() -> None:
    """FS-5: a view whose tasks are done waits for those that run in the same job, and is not without progress."""
    clock = ManualClock()
    book = ProgressBook(clock.monotonic_s, clock.now_ms)
    names = ["1-1-1", "2-1-2"]
    say = {"kind": "progress", "attempt": "2-1-2", "epoch": 7, "operator": "0", "task": 0, "try": 0, "in": 1, "out": 0}
    with book.attempt("1-1-1", 1, "g", 7, names), book.attempt("2-1-2", 2, "g", 7, names):
        clock.advance_ms(900)
        assert book.note(say)
        clock.advance_ms(900)
        assert book.give_up_idle(1000) == set()
        clock.advance_ms(200)
        assert book.give_up_idle(1000) == set(names)


# ---- the driver


class SharingRunner(FakeRunner):
    """Notes the jobs that it is asked to run: how many views each had."""

    shared: list[int]

    def run(self, params: EpochParams, parallelism: int) -> EpochResult:
        self.shared.append(1)
        return super().run(params, parallelism)

    def run_with(
        self, params: EpochParams, parallelism: int, others: Sequence[tuple[FakeRunner, EpochParams, int]]
    ) -> list[EpochResult]:
        self.shared.append(1 + len(others))
        given = [(self, params, parallelism), *others]
        return [FakeRunner.run(r, p, n) for r, p, n in given]


class Shared(Groups):
    def __init__(self, *given: Any, **more: Any) -> None:
        self.shared: list[int] = []
        super().__init__(*given, **more)

    def runner(self, plan: Any, relations: Any) -> FakeRunner:
        made = SharingRunner(plan, relations)
        made.shared = self.shared
        self.runners.append(made)
        return made


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Shared]:
    made = Shared(
        tmp_path, group_retry_initial_ms=1, group_retry_max_ms=1, max_in_flight_epochs=1, progress_host=""
    )  # fmt: skip
    yield made
    disarm_all()
    made.close()


def test_a_group_runs_in_as_few_jobs_as_it_is_deep(db: Shared) -> None:
    """Views that do not read one another share a job, and one that reads them is given what they have written."""
    t = db.table("t")
    views = [db.grouped(name, "g", t) for name in "abc"]
    top = db.grouped("top", "g", *views)
    db.c.flush(WAIT_S)
    db.shared.clear()
    db.insert(t, 1, 2)
    db.c.flush(WAIT_S)
    assert db.shared == [3, 1]
    assert db.read(*views, top) == [[1, 2]] * 3 + [[1, 1, 1, 2, 2, 2]]


def test_the_view_that_is_to_blame_is_told_from_the_others(db: Shared) -> None:
    """The shared job fails, then each view runs by itself: one of them fails, under its own name. As
    long as it does it shares no job; when it no longer does, all are exact."""
    t = db.table("t")
    a, b, c = (db.grouped(name, "g", t) for name in "abc")
    db.c.flush(WAIT_S)
    db.shared.clear()
    db.runner_of(b).error = DivisionByZero("Division by zero")
    db.insert(t, 5)
    with pytest.raises(JobFailed, match='"b" is failing: Division by zero'):
        db.c.flush(WAIT_S)
    assert db.shared[:3] == [3, 1, 1], "all together, then a, then b"
    assert [db.status(v).failures > 0 for v in (a, b, c)] == [False, True, False]
    db.until(lambda: 2 in db.shared)
    assert db.read(a, b, c) == [[], [], []], "a group commits all of its views or none"
    db.runner_of(b).error = None
    db.c.flush(WAIT_S)
    assert db.read(a, b, c) == [[5], [5], [5]]
    assert len(db.events("job_failed")) == 1


def test_a_shared_job_that_fails_once_is_nobodys_failure(db: Shared) -> None:
    """PC-6: what a view wrote in a job that failed is never committed, and the epoch goes on without a retry."""
    t = db.table("t")
    a, b = (db.grouped(name, "g", t) for name in "ab")
    db.c.flush(WAIT_S)
    runner = db.runner_of(b)
    failing = runner.error = RuntimeError("lost a task")
    db.shared.clear()
    run = SharingRunner.run

    def healed(self: SharingRunner, params: EpochParams, parallelism: int) -> EpochResult:
        self.error = None if self.error is failing else self.error
        return run(self, params, parallelism)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SharingRunner, "run", healed)
        db.insert(t, 4)
        db.c.flush(WAIT_S)
    assert db.shared == [2, 1, 1]
    assert db.read(a, b) == [[4], [4]]
    attempts = [p.attempt for p in db.runner_of(a).calls[-2:]]
    paths = [r.ref.path for r in db.catalog.state.runs.values()]
    assert [any(name in path for path in paths) for name in attempts] == [False, True]
    assert not db.events("job_failed") and db.status(b).failures == 0


def test_a_view_that_is_dropped_takes_its_shared_job_along(db: Shared) -> None:
    """The job is cancelled, and the others go on without it."""
    t = db.table("t")
    a, b = (db.grouped(name, "g", t) for name in "ab")
    db.c.flush(WAIT_S)
    held = db.runner_of(b)
    db.hold(b)
    db.insert(t, 4)
    db.until_held(b)
    db.c.drop([b])
    assert held.cancelled
    db.c.flush(WAIT_S)
    assert db.read(a) == [[4]]
    assert db.status(a).failures == 0
