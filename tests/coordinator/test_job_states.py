"""The states of a job: frozen, stepped by the job's own methods alone, and what each step makes of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

import headrace
from headrace.catalog.records import JobRecord, JobStatus
from headrace.catalog.state import CatalogState
from headrace.coordinator.decide.commit import Commit
from headrace.coordinator.decide.job import JobState
from headrace.coordinator.decide.membership import GroupPlace, Membership
from headrace.coordinator.decide.pace import Pace, Portion, Stops
from headrace.coordinator.decide.standing import JobAdvance, Standing
from headrace.coordinator.decide.under_way import Activity, CatchingUp
from headrace.coordinator.run.live_state import Job
from headrace.errors import JobFailed

SOURCE = Path(headrace.__file__).parent
FIXED = {"id", "name", "kind_name", "upstreams", "tables", "lookups", "automatic", "delivers"}
"""What a job is made with, and keeps."""
MUTABLE = {"sources", "metrics"}
"""What is filled, and counted, in place."""


def job(standing: Standing | None = None, membership: Membership | None = None) -> JobState:
    return JobState(1, "v", (), {}, standing or Standing("created", 9, ((5, 9),)), membership or Membership("g"))


# ---- who writes


def test_all_that_changes_of_a_job_is_a_frozen_state() -> None:
    hints = get_type_hints(JobState)
    states = {f.name: hints[f.name] for f in fields(JobState) if f.name not in FIXED | {"options"}}
    assert all(is_dataclass(t) and t.__setattr__ is not object.__setattr__ for t in states.values())
    assert len(states) == 9 and len(fields(Job)) - len(FIXED) <= 15, "before there is another, look for its place"


def assigned(path: Path) -> Iterator[tuple[int, str, str]]:
    """(Line, object, attribute) of all assignments to attributes of a module."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Assign):
            targets = [t for at in node.targets for t in (at.elts if isinstance(at, ast.Tuple) else [at])]
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        else:
            continue
        yield from ((node.lineno, ast.unparse(t.value), t.attr) for t in targets if isinstance(t, ast.Attribute))


def test_nobody_but_a_job_itself_writes_what_changes_of_it() -> None:
    """Whatever happens to it is a method of its own: so a reader finds all that may become of a job in one file."""
    of_jobs = {f.name for f in fields(Job)} - {"id", "name"}
    wrong = [
        f"{path.relative_to(SOURCE)}, line {line}: {of}.{name}"
        for path in sorted([*(SOURCE / "coordinator").rglob("*.py"), *(SOURCE / "session").rglob("*.py")])
        for line, of, name in assigned(path)
        if name in of_jobs and of != "self" and not of.startswith("self._")
    ]
    assert not wrong


def test_nobody_compares_a_status_with_a_word() -> None:
    """`Life` says what a status means, and `shown_status` what people see of it."""
    wrong = []
    words = {*get_args(JobStatus)}
    for path in sorted([*(SOURCE / "coordinator").rglob("*.py"), *(SOURCE / "session").rglob("*.py")]):
        for node in ast.walk(ast.parse(path.read_text())) if path.name != "life.py" else ():
            if isinstance(node, ast.Compare):
                found = {n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
                wrong += (
                    [f"{path.relative_to(SOURCE)}, line {node.lineno}: {ast.unparse(node)}"] if found & words else []
                )
    assert not wrong


# ---- what a step makes of them


def test_a_commit_moves_a_job_on() -> None:
    made = job(Standing("creating"), Membership("g", GroupPlace.JOINING, 2))
    made.take_whole()
    made.advance(JobAdvance(4, ()))
    assert (made.committed, made.created, made.catching_up.rounds, made.whole) == (4, False, 1, False)
    made.advance(JobAdvance(7, ((7, 7),), created=True, joined=True, due=12))
    assert (made.committed, made.status, made.due, made.catching_up.rounds) == (7, "created", 12, 0)
    assert made.membership == Membership("g", GroupPlace.IN_STEP, 2)
    made.advance(JobAdvance(5, ((5, 7),)))
    assert (made.committed, made.due) == (7, 12), "a checkpoint never goes back"


def test_what_was_committed_unseen_is_learned_in_full() -> None:
    """The epoch at which time moves the view next is as much a part of a commit as its checkpoint."""
    made = job(Standing("created", 5, ((5, 5),), due=6), Membership("g", GroupPlace.JOINING))
    made.doubt()
    made.learn(JobRecord(1, "g", "created", committed_epoch=8, exact=((5, 8),), due_epoch=20, joined=True), None)
    assert made.standing == Standing("created", 8, ((5, 8),), due=20)
    assert made.membership.place is GroupPlace.IN_STEP and not made.activity.unsure
    made.learn(JobRecord(1, "g", "paused", committed_epoch=8, exact=((8, 8),), due_epoch=3, joined=True), None)
    assert made.standing == Standing("created", 8, ((5, 8),), due=20), "there was nothing to learn"


def test_who_is_to_join_is_not_taken_along_by_a_commit_that_never_was() -> None:
    """What its record says of its group may be from before."""
    made = job(Standing("created", 5, ((5, 5),)), Membership("g", GroupPlace.JOINING, 2))
    made.doubt()
    made.learn(JobRecord(1, "g", "created", committed_epoch=5, exact=((5, 5),), joined=True), None)
    assert made.membership == Membership("g", GroupPlace.JOINING, 2) and not made.activity.unsure


def test_who_is_altered_is_tried_at_once() -> None:
    made = job()
    made.fail(JobFailed("no"), 5)
    made.retry(99.0)
    made.begin(1.0, 50.0)
    made.hold_until(60.0)
    made.hurry(11)
    made.alter(JobRecord(1, "g", "paused", options={"a": "b"}))
    assert made.paused and made.options == {"a": "b"} and made.failures == 1 and made.trouble.retry_at_s == 0.0
    assert made.pace == Pace(0.0, 0.0, 11), "who waits for it still does"


def test_what_is_waited_for_never_goes_back() -> None:
    assert Pace().asked(7).asked(5).forced == 7


def test_one_stop_serves_all_reads() -> None:
    stops = Stops().added(3).added_for_reads(5)
    assert stops.epochs == {3, 5} and stops.added_for_reads(4) is stops
    assert stops.added_for_reads(8).epochs == {3, 8}, "it takes the place of the one before"
    assert stops.kept(lambda epoch: epoch > 3) == Stops(frozenset({5}), 5)
    assert stops.kept(lambda epoch: True) is stops


def test_an_epoch_ends_once() -> None:
    twice = Activity().opened().opened()
    assert twice.ended().ended() == Activity()
    try:
        Activity().ended()
    except AssertionError:
        return
    raise RuntimeError("an epoch that had not begun has ended")


def test_what_has_been_read_so_far_is_told() -> None:
    first = CatchingUp().read(10, 100, 5.0)
    assert first.reading is not None and (first.reading.rows_done, first.reading.rows_expected) == (10, 100)
    assert first.reading.rate(7.0) == 5.0 and first.reading.remaining_ms(7.0) == 18_000
    more = first.read(110, 0, 9.0).reading
    assert more is not None and (more.rows_done, more.rows_expected, more.since_s) == (120, 120, 5.0)
    assert first.read_all().reading is None and Portion(True, 5).committed() == Portion(False, 5)


@pytest.mark.parametrize(
    ("moved", "happened"),
    [
        (JobAdvance(5, ()), True),
        (JobAdvance(6, ()), False),
        (JobAdvance(5, ((5, 5),), created=True), False),
        (JobAdvance(5, ((5, 5),), joined=True), False),
    ],
)
def test_a_commit_that_moves_no_checkpoint_has_not_happened_by_that(moved: JobAdvance, happened: bool) -> None:
    """Its transaction has failed: a job that it creates, or takes into its group, is not so in the catalog."""
    before = JobRecord(1, "g", "creating", committed_epoch=5, joined=False)
    after = JobRecord(1, "g", "created", committed_epoch=6, exact=((6, 6),), joined=True)
    assert Commit(moves={1: moved}).happened(CatalogState([before])) is happened
    assert Commit(moves={1: moved}).happened(CatalogState([after]))
