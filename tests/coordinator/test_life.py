"""A job's life: every turn at every place of it, the picture of it, and that nobody else writes a status."""

from __future__ import annotations

import ast
import re
from itertools import product
from pathlib import Path
from typing import get_args

import pytest

import headrace
from headrace.catalog.records import JobRecord, JobStatus
from headrace.coordinator.decide.job import JobState
from headrace.coordinator.decide.life import NO_TROUBLE, Life, Turn, step, turned
from headrace.coordinator.decide.membership import Membership
from headrace.coordinator.decide.standing import Standing
from headrace.errors import JobFailed

STATUSES: tuple[JobStatus, ...] = get_args(JobStatus)
LIVES = [Life(status, filled) for status, filled in product(STATUSES, (False, True))]
SOURCE = Path(headrace.__file__).parent
PICTURE = SOURCE.parents[1] / "docs" / "ARCHITECTURE.md"


def legal(life: Life, turn: Turn) -> bool:
    return turn is not Turn.PLANNED or life.status == "quarantined"


@pytest.mark.parametrize(("life", "turn"), [(a, t) for a in LIVES for t in Turn if not legal(a, t)])
def test_what_cannot_happen_is_an_assertion(life: Life, turn: Turn) -> None:
    with pytest.raises(AssertionError, match=f"a job that is {life.status}"):
        step(life, turn)


@pytest.mark.parametrize(("life", "turn"), [(a, t) for a in LIVES for t in Turn if legal(a, t)])
def test_every_turn_at_every_place(life: Life, turn: Turn) -> None:
    """What holds whatever happens."""
    after, effects = step(life, turn)
    assert after.filled or not life.filled, "what was readable once stays so"
    assert after.filled == life.filled or turn is Turn.CAUGHT_UP
    assert len(effects) <= 1
    again, _ = step(after, turn) if legal(after, turn) else (after, ())
    assert again == after, "a turn that comes twice, as its outcome was not known, is one"
    if life.status == "quarantined":
        assert after.status == "quarantined" or turn is Turn.PLANNED, "nothing but a plan brings it back"
    if after.status in ("creating", "created") and life.status != after.status:
        assert after.status == ("created" if after.filled else "creating")


@pytest.mark.parametrize(
    ("before", "turn", "after", "effects"),
    [
        (Life("creating", False), Turn.CAUGHT_UP, Life("created", True), ("job_created",)),
        (Life("created", True), Turn.CAUGHT_UP, Life("created", True), ()),
        (Life("creating", False), Turn.PAUSE, Life("paused", False), ("job_paused",)),
        (Life("paused", False), Turn.CAUGHT_UP, Life("paused", True), ()),
        (Life("paused", True), Turn.RESUME, Life("created", True), ("job_resumed",)),
        (Life("paused", False), Turn.RESUME, Life("creating", False), ("job_resumed",)),
        (Life("quarantined", True), Turn.RESUME, Life("quarantined", True), ("job_resumed",)),
        (Life("created", True), Turn.LOG_LOST, Life("quarantined", True), ("job_quarantined",)),
        (Life("quarantined", True), Turn.LOG_LOST, Life("quarantined", True), ("job_quarantined",)),
        (Life("paused", False), Turn.UNPLANNABLE, Life("quarantined", False), ("job_quarantined",)),
        (Life("quarantined", False), Turn.UNPLANNABLE, Life("quarantined", False), ()),
        (Life("quarantined", False), Turn.PLANNED, Life("creating", False), ()),
        (Life("quarantined", True), Turn.PLANNED, Life("created", True), ()),
    ],
)
def test_turns(before: Life, turn: Turn, after: Life, effects: tuple[str, ...]) -> None:
    assert step(before, turn) == (after, effects)


def test_a_record_and_a_job_in_memory_take_the_same_turn() -> None:
    for life, turn in product(LIVES, Turn):
        if legal(life, turn):
            record = JobRecord(1, "g", life.status, exact=((3, 5),) if life.filled else ())
            job = JobState(1, "v", (), {}, Standing.of(record), Membership.of(record))
            moved, effects = turned(record, turn)
            job.turn(turn)
            assert job.status == moved.status and effects == step(life, turn)[1]
            assert Life.of(record) == job.life or job.status != record.status


def test_the_picture_shows_all_that_may_happen_and_nothing_else() -> None:
    drawn = set()
    for before, after, turns in re.findall(r"^    (\w+) --> (\w+): (.*)$", PICTURE.read_text(), re.MULTILINE):
        drawn |= {(before, after, turn.name) for turn in Turn if turn.name in turns}
    possible = set()
    for life, turn in product(LIVES, Turn):
        if legal(life, turn) and not (life.status == "created" and not life.filled) and life != Life("creating", True):
            after, _ = step(life, turn)
            possible |= {(life.status, after.status, turn.name)} if after.status != life.status else set()
    assert drawn == possible


def test_nobody_else_says_what_a_status_becomes() -> None:
    """Assignments copy a status; words stand only where a job is made, and in comparisons."""
    wrong = []
    for path in sorted((SOURCE / "coordinator").rglob("*.py")):
        if path.name == "life.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Assign):
                values = [node.value] if any(getattr(t, "attr", "") == "status" for t in node.targets) else []
            elif isinstance(node, ast.Call):
                values = [k.value for k in node.keywords if k.arg == "status"]
            else:
                continue
            words = {n.value for v in values for n in ast.walk(v) if isinstance(n, ast.Constant)}
            wrong += [f"{path.name}, line {node.lineno}: {ast.unparse(node)}"] if words & {*STATUSES} else []
    assert not wrong, "coordinator/decide/life.py says it"


def test_trouble_is_counted_until_an_attempt_succeeds() -> None:
    first, second = JobFailed("first"), JobFailed("second")
    once = NO_TROUBLE.failed(first, NO_TROUBLE.began(5)).retry(9.5)
    assert (once.error, once.since_ms, once.failures, once.failed_total, once.retry_at_s) == (first, 5, 1, 1, 9.5)
    twice = once.failed(second, once.began(8))
    assert (twice.error, twice.since_ms, twice.failures, twice.failed_total, twice.retry_at_s) == (second, 5, 2, 2, 9.5)
    without_an_attempt = twice.failed(first, twice.began(9), attempt=False)
    assert (without_an_attempt.failures, without_an_attempt.failed_total) == (2, 3)
    over = twice.over()
    assert (over.error, over.failures, over.failed_total, over.retry_at_s) == (None, 0, 2, 0.0)
    assert over.began(12) == 12, "the next trouble is another one"


def test_an_error_may_come_and_go_without_an_attempt() -> None:
    one, other = JobFailed("one"), JobFailed("other")
    told = NO_TROUBLE.told(one, 7)
    assert (told.error, told.since_ms, told.failures, told.failed_total) == (one, 7, 0, 0)
    assert told.without(other) is told and told.without(one).error is None
