"""Progress of the epochs under way: what tasks report while they run, by attempt.

Reports are for people and for time-outs. That an epoch may be committed is told by the acknowledgements that come with
the Spark job's result, never by a report.

It keeps what was heard of the attempts that are under way, and of nothing else: a report of another incarnation,
attempt or epoch, or of an earlier try of a task, is counted and forgotten. An attempt of which nothing was heard for
`epoch_timeout_ms` is cancelled; it fails with what it was waiting for and is tried again after the back-off.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from typing import Any

from headrace.common.lazy_dataclass import dataclass
from headrace.errors import JobFailed

MOST_TASKS = 10_000
"""Tasks of one attempt that are kept; reports of further ones only count as a sign of life."""
_STATES = {"started": "running", "progress": "running", "ack": "done", "decline": "declined"}


@dataclass(frozen=True)
class TaskProgress:
    """A task of an operator, as it has last reported."""

    operator: str
    """The stage's label: an operator of the plan, or `view`."""
    task: int
    attempt_number: int
    """Spark's number of the try at this task: higher for a later one, never used twice."""
    state: str
    """running, done or declined."""
    rows_in: int
    rows_out: int
    reason: str = ""
    """Why it was declined."""


@dataclass
class AttemptProgress:
    """What is known of an attempt that is under way, task by task."""

    name: str
    job_id: int
    group: str
    epoch: int
    started_ms: int
    heard_s: float
    """Monotonic time of the last sign of life."""
    beside: tuple[str, ...] = ()
    """The attempts that run as one job with it."""
    tasks: dict[tuple[str, int], TaskProgress] = field(default_factory=dict)
    overdue: bool = False

    def unfinished(self) -> dict[str, tuple[int, int]]:
        """Operator -> (tasks that are done, tasks that have started), where some are not done yet."""
        known, done = Counter[str](), Counter[str]()
        for t in self.tasks.values():
            known[t.operator] += 1
            done[t.operator] += t.state == "done"
        return {o: (done[o], n) for o, n in known.items() if done[o] < n}


class ProgressBook:
    """The attempts under way and their tasks. Thread-safe; what is not under way is neither heard nor remembered."""

    def __init__(self, monotonic_s: Callable[[], float], now_ms: Callable[[], int]) -> None:
        self._lock = threading.Lock()
        self._attempts: dict[str, AttemptProgress] = {}
        self._monotonic_s = monotonic_s
        self._now_ms = now_ms
        self.address = ""
        """Where tasks report, as `host:port/token`; empty if they do not."""
        self.ignored = 0
        """Reports of attempts that are not under way, and such that could not be understood."""

    @contextmanager
    def attempt(self, name: str, job_id: int, group: str, epoch: int, beside: Sequence[str] = ()) -> Iterator[None]:
        """An attempt is under way inside the block. Raises `JobFailed` if it was given up for want of progress.

        `beside` are the attempts that run as one job with it: a sign of life of any is one of all.
        """
        made = AttemptProgress(name, job_id, group, epoch, self._now_ms(), self._monotonic_s(), tuple(beside))
        with self._lock:
            self._attempts[name] = made
        try:
            yield
        except Exception as error:
            if made.overdue:
                raise _no_progress(made) from error
            raise
        finally:
            with self._lock:
                del self._attempts[name]

    def note(self, event: Mapping[str, Any]) -> bool:
        """Take in a report; False if it is of no attempt that is under way, is older than what is known, or garbled."""
        try:
            found = TaskProgress(
                str(event["operator"]), int(event["task"]), int(event["try"]), _STATES[event["kind"]],
                int(event["in"]), int(event["out"]), str(event.get("reason", "")),
            )  # fmt: skip
            name, epoch = str(event["attempt"]), int(event["epoch"])
        except (KeyError, TypeError, ValueError, OverflowError):
            self.ignored += 1
            return False
        with self._lock:
            attempt = self._attempts.get(name)
            if attempt is None or attempt.epoch != epoch:
                self.ignored += 1
                return False
            for each in (attempt, *(self._attempts[n] for n in attempt.beside if n in self._attempts)):
                each.heard_s = self._monotonic_s()
            key = (found.operator, found.task)
            known = attempt.tasks.get(key)
            if known is not None and known.attempt_number > found.attempt_number:
                self.ignored += 1
                return False
            if known is not None or len(attempt.tasks) < MOST_TASKS:
                attempt.tasks[key] = found
            return True

    def live(self) -> list[AttemptProgress]:
        """The attempts under way, by group and epoch, as they are now."""
        with self._lock:
            found = [replace(a, tasks=dict(a.tasks)) for a in self._attempts.values()]
        return sorted(found, key=lambda a: (a.group, a.epoch, a.name))

    def of(self, name: str | None) -> AttemptProgress | None:
        """One attempt under way, as it is now."""
        return next((a for a in self.live() if a.name == name), None)

    def give_up_idle(self, limit_ms: int) -> set[str]:
        """The attempts of which nothing was heard for longer than that; they are marked, and fail with the reason."""
        oldest_s = self._monotonic_s() - limit_ms / 1000
        with self._lock:
            late = [a for a in self._attempts.values() if a.heard_s < oldest_s]
            for attempt in late:
                attempt.overdue = True
            return {a.name for a in late}


def _no_progress(attempt: AttemptProgress) -> JobFailed:
    missing = ", ".join(f"operator {o}: {d} of {n} tasks done" for o, (d, n) in sorted(attempt.unfinished().items()))
    declined = [t.reason for t in attempt.tasks.values() if t.reason]
    return JobFailed(
        f"epoch {attempt.epoch} made no progress for longer than epoch_timeout_ms and was given up",
        detail="; ".join([missing or "no task has reported", *declined[:1]]),
        hint="it is tried again from the last checkpoint",
    )
