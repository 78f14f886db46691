"""Starting the first session of a database once it is asked for; a session is a fake here."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any

import pytest
from py4j.java_gateway import JVMView
from pyspark.sql import SparkSession

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

    begun, waiting = SparkStart(start), SparkStart(Session)  # type: ignore[arg-type]
    asked = [threading.Thread(target=outcome_of, args=(one.first,), daemon=True) for one in (begun, waiting)]
    asked[0].start()
    assert starting.wait(WAIT_S)
    asked[1].start()
    eventually(lambda: waiting._attempt is not None, "the other one to wait for its turn: one is started at a time")
    waiting.abandon()
    begun.abandon()
    assert not session.stopped
    may_end.set()
    eventually(lambda: session.stopped, "the session to be stopped")
    with pytest.raises(CancelledError):
        waiting.first()


def outcome_of(call: Callable[[], object]) -> object:
    """What a call returns, or that it was cancelled."""
    with suppress(CancelledError):
        return call()
    return CancelledError


def test_nothing_is_started_before_it_is_asked_for_nor_after_it_was_abandoned() -> None:
    attempts: list[int] = []
    begun = SparkStart(lambda: attempts.append(1))  # type: ignore[arg-type, return-value]
    begun.abandon()
    with pytest.raises(CancelledError):
        begun.first()
    assert attempts == []


def test_what_is_abandoned_after_it_was_started_is_stopped_at_once() -> None:
    session = Session()
    begun = SparkStart(lambda: session)  # type: ignore[arg-type, return-value]
    assert begun.first() is session
    begun.abandon()
    assert session.stopped


def test_java_optimizes_in_full_what_runs_often(spark: SparkSession) -> None:
    """By the thresholds that it was started with, which are options of every HotSpot."""
    jvm: JVMView = spark._jvm
    kind = jvm.java.lang.Class.forName("com.sun.management.HotSpotDiagnosticMXBean")
    bean = jvm.java.lang.management.ManagementFactory.getPlatformMXBean(kind)
    for name, value in (("Tier4InvocationThreshold", "50000"), ("Tier4BackEdgeThreshold", "40000")):
        assert bean.getVMOption(name).getValue() == value
