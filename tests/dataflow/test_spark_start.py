"""Starting the first session of a database beside what the caller goes on with; a session is a fake here."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError
from typing import Any

import pytest

from headrace.dataflow.spark import SparkStart
from headrace.errors import OperationalError
from support import WAIT_S, eventually


class Session:
    """Can be stopped."""

    stopped = False

    def stop(self) -> None:
        """Note it."""
        self.stopped = True


def test_the_first_session_comes_by_itself_and_a_failure_is_followed_by_another_attempt() -> None:
    made: list[Any] = [OperationalError("no memory"), Session()]
    attempts: list[int] = []

    def start() -> Any:
        attempts.append(1)
        found = made[len(attempts) - 1]
        if isinstance(found, Exception):
            raise found
        return found

    begun = SparkStart(start)
    with pytest.raises(OperationalError, match="no memory"):
        begun.first()
    assert begun.first() is made[1] and begun.first() is made[1] and len(attempts) == 2
    assert not made[1].stopped


def test_what_is_abandoned_while_it_starts_is_stopped_when_it_is_there() -> None:
    session, starting, may_end = Session(), threading.Event(), threading.Event()

    def start() -> Any:
        starting.set()
        assert may_end.wait(WAIT_S)
        return session

    begun = SparkStart(start)
    assert starting.wait(WAIT_S)
    waiting = SparkStart(Session)  # type: ignore[arg-type]
    waiting.abandon()  # before its turn: one is started at a time
    begun.abandon()
    assert not session.stopped
    may_end.set()
    eventually(lambda: session.stopped, "the session to be stopped")
    with pytest.raises(CancelledError):
        waiting.first()


def test_what_is_abandoned_after_it_was_started_is_stopped_at_once() -> None:
    session = Session()
    begun = SparkStart(lambda: session)  # type: ignore[arg-type, return-value]
    assert begun.first() is session
    begun.abandon()
    assert session.stopped
