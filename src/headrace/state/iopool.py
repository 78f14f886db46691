"""The I/O pool: every request to an object store runs on one of its threads, is tried again, fails only itself."""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

from headrace.errors import HeadraceError, StorageError

T = TypeVar("T")

TRANSIENT = (ConnectionError, TimeoutError)
"""What a request raises when it may go better the next time."""
ANSWERS = (FileNotFoundError, FileExistsError)
"""What a request raises to say something about the object: handed to the caller as it is, never tried again."""

GAUGES = frozenset({"cache_bytes"})
"""Fields of `IoMetrics` that are no counts: they cannot be added up over tasks."""


@dataclass
class IoMetrics:
    """Counts since the process started. Safe to add to from several threads."""

    requests: int = 0
    """Tries, the repeated ones included."""
    retries: int = 0
    failures: int = 0
    """Calls that were given up."""
    bytes_read: int = 0
    bytes_written: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    cache_evictions: int = 0
    cache_bytes: int = 0
    """Bytes in the cache's files, of all processes, as this process saw them last."""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def add(self, **counts: int) -> None:
        """Add to some of the counts."""
        with self._lock:
            for name, count in counts.items():
                setattr(self, name, getattr(self, name) + count)

    def as_dict(self) -> dict[str, int]:
        """All counts by name."""
        with self._lock:
            return {f.name: getattr(self, f.name) for f in fields(self)}

    def since(self, before: Mapping[str, int]) -> dict[str, int]:
        """The counts that have grown since `as_dict` was `before`, by how much; `GAUGES` are none."""
        now = self.as_dict()
        return {name: now[name] - before[name] for name in now if name not in GAUGES and now[name] > before[name]}


@dataclass(frozen=True)
class RetryPolicy:
    """How often and how long a call is tried."""

    attempts: int = 6
    first_ms: int = 50
    """Bound of the first pause; it doubles from one to the next."""
    most_ms: int = 5_000
    deadline_ms: int = 120_000
    """A call fails at the latest after this time, whatever its request is doing."""

    def pause_s(self, retry: int, part: float) -> float:
        """Seconds before retry number `retry` (from 0): the fraction `part` of an exponentially growing bound.

        With a random part that is "full jitter": callers that failed together do not come back together.
        """
        bound_ms = min(self.most_ms, self.first_ms * 2 ** min(retry, 30))
        return part * bound_ms / 1000


@dataclass
class _Task(Generic[T]):
    call: Callable[[], T]
    doing: str
    deadline_s: float
    future: Future[T]
    abandoned: bool = False


class IoPool:
    """Runs calls on at most `concurrency` threads, with retries; more wait in a queue.

    Whatever a call raises, a `BaseException` such as a panic of a native library included, comes out as
    `StorageError` of this one call, and the thread goes on. A call that has not ended at its deadline is given up;
    its thread is replaced, and ends when the call does. Errors of headrace and `ANSWERS` come out as they are.
    """

    def __init__(
        self,
        concurrency: int = 8,
        policy: RetryPolicy | None = None,
        metrics: IoMetrics | None = None,
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
        sleep_s: Callable[[float], None] = time.sleep,
        random_part: Callable[[], float] = random.random,
    ) -> None:
        self.policy = policy or RetryPolicy()
        self.metrics = metrics or IoMetrics()
        self._concurrency = concurrency
        self._monotonic_s = monotonic_s
        self._sleep_s = sleep_s
        self._random_part = random_part
        self._tasks: queue.SimpleQueue[_Task[Any]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._pending = 0
        """Calls that are queued or run on one of the threads counted in `_threads`."""

    def run(self, doing: str, call: Callable[[], T], *, deadline_ms: int | None = None) -> T:
        """The call's result. `doing` says in a message what was done: "reading object x"."""
        return self.start(doing, call, deadline_ms=deadline_ms)()

    def start(self, doing: str, call: Callable[[], T], *, deadline_ms: int | None = None) -> Callable[[], T]:
        """Queue a call; the function that is returned waits for its result."""
        limit_s = (deadline_ms or self.policy.deadline_ms) / 1000
        task = _Task(call, doing, self._monotonic_s() + limit_s, Future[T]())
        with self._lock:
            self._tasks.put(task)
            self._pending += 1
            self._add_threads()
        return lambda: self._result(task)

    def _result(self, task: _Task[T]) -> T:
        try:
            return task.future.result(max(task.deadline_s - self._monotonic_s(), 0))
        except TimeoutError:
            # Python 3.11 has one class for a future's time-out and a call's; only the first means it is not done.
            if task.future.done():
                return task.future.result()
        with self._lock:
            started = not task.future.cancel()
            if started and not task.abandoned:
                task.abandoned = True
                self._threads -= 1
                self._pending -= 1
                self._add_threads()
        self.metrics.add(failures=1)
        raise StorageError(f"{task.doing} failed: no answer in time")

    def _add_threads(self) -> None:
        """As many as there is work for. The caller holds the lock."""
        while self._threads < min(self._pending, self._concurrency):
            self._threads += 1
            threading.Thread(target=self._work, name="headrace-io", daemon=True).start()

    def _work(self) -> None:
        abandoned = False
        while not abandoned:
            task = self._tasks.get()
            if task.future.set_running_or_notify_cancel():
                self._perform(task)
            with self._lock:
                abandoned = task.abandoned
                self._pending -= not abandoned
            del task  # with its result, while this thread waits

    def _perform(self, task: _Task[Any]) -> None:
        try:
            result = self._tried(task)
        except (HeadraceError, *ANSWERS) as error:
            task.future.set_exception(error)
        except BaseException as error:
            self.metrics.add(failures=1)
            task.future.set_exception(_failed(task.doing, error))
        else:
            task.future.set_result(result)

    def _tried(self, task: _Task[T]) -> T:
        retry = 0
        while True:
            self.metrics.add(requests=1)
            try:
                return task.call()
            except TRANSIENT:
                pause_s = self.policy.pause_s(retry, self._random_part())
                retry += 1
                late = self._monotonic_s() + pause_s >= task.deadline_s
                if retry >= self.policy.attempts or late or task.abandoned:
                    raise
            self.metrics.add(retries=1)
            self._sleep_s(pause_s)


def _failed(doing: str, error: BaseException) -> StorageError:
    """The error of one call, with the first line of what happened, and all of it as the detail."""
    text = str(error).strip()
    reason = text.splitlines()[0] if text else type(error).__name__
    made = StorageError(f"{doing} failed: {reason}", detail=f"{type(error).__name__}: {text}"[:2000])
    made.__cause__ = error if isinstance(error, Exception) else None
    return made
