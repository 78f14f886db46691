"""What is kept of the past for people who look at it."""

from __future__ import annotations

from headrace.connectors.base import RowError
from headrace.coordinator.observe.epoch_history import History

ERROR = RowError("f", 1, "c", "x", "no number")


def test_errors_of_steps_that_are_taken_back_are_told_once() -> None:
    """An epoch whose later step fails is taken whole: its rows are met, and told of, again."""
    history = History()
    for job, epoch in ((1, 10), (1, 20), (2, 20)):
        history.failed_on(job, epoch, 5, [ERROR])
    history.taken_back({1: 10})
    history.failed_on(1, 20, 6, [ERROR])
    assert [(e.job_id, e.epoch, e.at_ms) for e in history.row_errors()] == [(1, 20, 6), (2, 20, 5), (1, 10, 5)]
