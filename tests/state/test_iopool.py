"""The I/O pool over a clock of its own: no test here waits."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import CorruptObject, StorageError
from headrace.state.iopool import LEAST_BYTES_PER_S, IoMetrics, IoPool, RetryPolicy
from support import WAIT_S


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds


def pool(time: Time, *, concurrency: int = 2, part: float = 1.0, **policy: int) -> IoPool:
    return IoPool(
        concurrency,
        RetryPolicy(**policy),
        monotonic_s=lambda: time.now_s,
        sleep_s=time.sleep,
        random_part=lambda: part,
    )


def failing(times: int, error: BaseException) -> Callable[[], str]:
    left = [times]

    def call() -> str:
        if left[0]:
            left[0] -= 1
            raise error
        return "done"

    return call


class Panic(BaseException):
    """As the panics of native libraries are: not an `Exception`."""


def test_transient_errors_are_tried_again_with_growing_pauses() -> None:
    time = Time()
    io = pool(time, attempts=5, first_ms=100, most_ms=300)
    assert io.run("reading object x", failing(4, ConnectionError("reset"))) == "done"
    assert time.slept == [0.1, 0.2, 0.3, 0.3]
    assert (io.metrics.requests, io.metrics.retries, io.metrics.failures) == (5, 4, 0)


def test_an_error_that_stays_is_reported_once_with_its_reason() -> None:
    time = Time()
    io = pool(time, attempts=3)
    with pytest.raises(StorageError, match=r"^writing object a failed: 503 slow down$") as caught:
        io.run("writing object a", failing(99, ConnectionError("503 slow down\nand more")))
    assert caught.value.detail is not None and "and more" in caught.value.detail
    assert (io.metrics.requests, io.metrics.failures) == (3, 1)


def test_only_transient_errors_are_tried_again() -> None:
    io = pool(Time())
    with pytest.raises(StorageError, match="denied"):
        io.run("reading object x", failing(1, PermissionError("denied")))
    for answer in (FileNotFoundError("x"), FileExistsError("x"), CorruptObject("object x is missing")):
        with pytest.raises(type(answer)) as caught:
            io.run("reading object x", failing(1, answer))
        assert caught.value is answer
    assert io.metrics.retries == 0


@pytest.mark.parametrize("error", [Panic("a bug in native code"), KeyboardInterrupt(), SystemExit(3), MemoryError()])
def test_whatever_a_call_raises_fails_only_that_call(error: BaseException) -> None:
    """FS-16, for the pool: its threads survive, so that as many panics as there are threads change nothing."""
    io = pool(Time(), concurrency=2)
    for _ in range(5):
        with pytest.raises(StorageError, match=r"^writing object x failed"):
            io.run("writing object x", failing(1, error))
    assert io.run("writing object x", lambda: 7) == 7
    assert io.metrics.failures == 5


def test_a_call_ends_at_its_deadline() -> None:
    """Retries stop before the pause that would pass it."""
    time = Time()
    io = pool(time, attempts=100, first_ms=1000, most_ms=1000)
    with pytest.raises(StorageError, match="reset"):
        io.run("reading object x", failing(999, ConnectionError("reset")), deadline_ms=3500)
    assert time.slept == [1.0, 1.0, 1.0]


def test_a_call_that_never_ends_is_given_up_and_its_thread_replaced() -> None:
    held, entered = threading.Event(), threading.Semaphore(0)

    def stuck() -> None:
        entered.release()
        held.wait()

    time = Time()
    io = pool(time, concurrency=2, deadline_ms=20)
    try:
        for _ in range(3):
            wait = io.start("reading object x", stuck)
            assert entered.acquire(timeout=WAIT_S)
            time.now_s += 0.02
            with pytest.raises(StorageError, match="no answer in time"):
                wait()
        assert io.run("reading object x", lambda: "fine", deadline_ms=round(WAIT_S * 1000)) == "fine"
        assert io.metrics.failures == 3
    finally:
        held.set()


def test_no_more_calls_than_threads_run_at_once() -> None:
    gate, lock = threading.Semaphore(0), threading.Lock()
    running, most = [0], [0]

    def call() -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        gate.acquire()
        with lock:
            running[0] -= 1

    io = IoPool(3)
    waits = [io.start("reading object x", call) for _ in range(12)]
    for _ in waits:
        gate.release()
    for wait in waits:
        wait()
    assert most[0] <= 3


@given(st.integers(0, 200), st.floats(0, 1))
def test_pauses_are_bounded(retry: int, part: float) -> None:
    policy = RetryPolicy(first_ms=50, most_ms=5000)
    assert 0 <= policy.pause_s(retry, part) <= min(5.0, 0.05 * 2**retry)


def test_what_was_counted_since() -> None:
    """Only what has grown; the size of the cache is no count."""
    metrics = IoMetrics(requests=5)
    before = metrics.as_dict()
    assert metrics.since(before) == {}
    metrics.add(requests=2, bytes_read=10)
    metrics.cache_bytes = 99
    assert metrics.since(before) == {"requests": 2, "bytes_read": 10}


def test_waiting_for_a_thread_does_not_count() -> None:
    """32 parts that take 50 ms each, one after the other: none has had more than its 300 ms."""
    time, gate = Time(), threading.Semaphore(0)

    def part() -> None:
        gate.acquire()
        time.sleep(0.05)

    io = pool(time, concurrency=1, deadline_ms=300)
    waits = [io.start("reading object x", part) for _ in range(32)]
    for wait in waits:
        gate.release()
        wait()
    assert len(time.slept) == 32 and io.metrics.failures == 0


def test_calls_that_nobody_waits_for_give_their_threads_back() -> None:
    """Otherwise one that waits for a thread would wait for ever."""
    held, entered = threading.Event(), threading.Semaphore(0)
    time = Time()
    io = pool(time, concurrency=2, deadline_ms=20)

    def stuck() -> None:
        entered.release()
        held.wait()

    try:
        left = [io.start("reading object x", stuck) for _ in range(2)]
        for _ in left:
            assert entered.acquire(timeout=WAIT_S)
        wait = io.start("reading object y", lambda: "fine")
        time.now_s += 0.02
        assert wait() == "fine"
        for given_up in left:
            with pytest.raises(StorageError, match="reading object x failed: no answer in time"):
                given_up()
        assert io.metrics.failures == 2
    finally:
        held.set()


def test_a_call_has_time_for_its_size() -> None:
    """A hundred seconds at the least rate, beside the deadline."""
    time = Time()
    io = pool(time, attempts=200, first_ms=1000, most_ms=1000, deadline_ms=1000)
    with pytest.raises(StorageError, match="reset"):
        io.run("writing object x", failing(999, ConnectionError("reset")), size_bytes=100 * LEAST_BYTES_PER_S)
    assert len(time.slept) == 100


def test_a_thread_that_cannot_be_started_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call without any thread fails, those that come later go on, and the others do the work meanwhile."""
    time = Time()
    io = pool(time, concurrency=2)
    entered, held = threading.Event(), threading.Event()

    def none(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def slow() -> str:
        entered.set()
        held.wait(WAIT_S)
        return "slow"

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", none)
        with pytest.raises(StorageError, match="reading object x failed: the system has no thread left"):
            io.run("reading object x", lambda: "never")
    first = io.start("reading object y", slow)
    assert entered.wait(WAIT_S)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", none)
        second = io.start("reading object z", lambda: "done")
    held.set()
    assert (first(), second()) == ("slow", "done")
    assert io.run("reading object x", lambda: "fine") == "fine"
    assert io.metrics.failures == 1
