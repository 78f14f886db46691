"""The I/O pool: every request to an object store runs on one of its threads, is tried again, fails only itself.

Above `transport.py` everything goes through this pool, which bounds, repeats and times all requests. A request that
fails in whatever way, a panic in native code included, fails itself and nothing else.
"""

from __future__ import annotations

import math
import queue
import random
import threading
import time
from collections.abc import Callable, Mapping
from concurrent import futures
from concurrent.futures import Future
from dataclasses import fields
from functools import partial
from typing import Any, Generic, TypeVar

from headrace.common.lazy_dataclass import dataclass
from headrace.errors import HeadraceError, StorageError

T = TypeVar("T")

TRANSIENT = (ConnectionError, TimeoutError)
"""What a request raises when it may go better the next time."""
ANSWERS = (FileNotFoundError, FileExistsError)
"""What a request raises to say something about the object: handed to the caller as it is, never tried again."""

LEAST_BYTES_PER_S = 1 << 20
"""What a store has to come to, for each request: whoever is slower fails. Requests have time for their size at it."""

_NO_THREAD_S = 1.0
"""How long to wait until the system may have a thread again."""

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
    """A call fails at the latest so long after it has begun, whatever its request is doing.

    Beside this it has the time that its bytes take at `LEAST_BYTES_PER_S`.
    """

    def limit_s(self, deadline_ms: int | None, size_bytes: int) -> float:
        """Seconds that a call has which moves so many bytes."""
        return (deadline_ms or self.deadline_ms) / 1000 + size_bytes / LEAST_BYTES_PER_S

    def pause_s(self, retry: int, part: float) -> float:
        """Seconds before retry number `retry` (from 0): the fraction `part` of an exponentially growing bound.

        With a random part that is "full jitter": callers that failed together do not come back together.
        """
        bound_ms = min(self.most_ms, self.first_ms * 2 ** min(retry, 30))
        return part * bound_ms / 1000


@dataclass(eq=False)
class _Task(Generic[T]):
    call: Callable[[], T]
    doing: str
    limit_s: float
    future: Future[T]
    deadline_s: float = math.inf
    """Known once it has begun."""
    abandoned: bool = False


class IoPool:
    """Runs calls on at most `concurrency` threads, with retries; more wait in a queue.

    Whatever a call raises, a `BaseException` such as a panic of a native library included, comes out as
    `StorageError` of this one call, and the thread goes on. A call that has not ended at its deadline is given up;
    its thread is replaced, and ends when the call does. The time that a call waits for a thread does not count: it
    gets one, since all before it end or are given up. Errors of headrace and `ANSWERS` come out as they are.
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
        self._running: set[_Task[object]] = set()
        """Calls that have begun and neither ended nor been given up."""
        self._pending = 0
        """Calls that are queued or run on one of the threads counted in `_threads`."""

    def run(self, doing: str, call: Callable[[], T], *, deadline_ms: int | None = None, size_bytes: int = 0) -> T:
        """The call's result. `doing` says in a message what was done: "reading object x"."""
        return self.start(doing, call, deadline_ms=deadline_ms, size_bytes=size_bytes)()

    def start(
        self, doing: str, call: Callable[[], T], *, deadline_ms: int | None = None, size_bytes: int = 0
    ) -> Callable[[], T]:
        """Queue a call that moves about so many bytes; the function that is returned waits for its result."""
        task = _Task(call, doing, self.policy.limit_s(deadline_ms, size_bytes), Future[T]())
        with self._lock:
            self._tasks.put(task)
            self._pending += 1
            self._add_threads()
            if not self._threads:
                self._give_up(task, "the system has no thread left")
        return lambda: self._result(task)

    def _result(self, task: _Task[T]) -> T:
        """Wait for a call, and meanwhile give up those that are late, whoever waits for them: they hold threads."""
        while not task.future.done():
            with self._lock:
                wait_s = self._patience_s(task)
            futures.wait([task.future], wait_s)
        return task.future.result()

    def _patience_s(self, task: _Task[T]) -> float:
        """Give up what is late; how long to wait until that may be so again. The caller holds the lock."""
        now_s = self._monotonic_s()
        for late in [t for t in self._running if t.deadline_s <= now_s]:
            self._abandon(late)
        self._add_threads()
        if not self._threads:
            return _NO_THREAD_S
        due_s = task.deadline_s if task in self._running else min((t.deadline_s for t in self._running), default=now_s)
        # One that begins a moment later is late no earlier than this.
        return max(min(due_s - now_s, task.limit_s), 0) if due_s > now_s else task.limit_s

    def _abandon(self, task: _Task[object]) -> None:
        """Let a call fail now, and another thread take the place of its own. The caller holds the lock."""
        self._running.discard(task)
        self._threads -= 1
        self._give_up(task, "no answer in time")
        self._add_threads()

    def _give_up(self, task: _Task[Any], why: str) -> None:
        """Whoever waits for a call learns that it has failed. The caller holds the lock."""
        task.abandoned = True
        self._pending -= 1
        self.metrics.add(failures=1)
        task.future.set_exception(StorageError(f"{task.doing} failed: {why}"))

    def _add_threads(self) -> None:
        """As many as there is work for, or as the system has. The caller holds the lock."""
        while self._threads < min(self._pending, self._concurrency):
            try:
                threading.Thread(target=self._work, name="headrace-io", daemon=True).start()
            except RuntimeError:  # those that there are do the work; without any, whoever waits tries again
                return
            self._threads += 1

    def _work(self) -> None:
        abandoned = False
        while not abandoned:
            task = self._tasks.get()
            with self._lock:
                if task.abandoned:  # before it began
                    continue
                task.future.set_running_or_notify_cancel()
                task.deadline_s = self._monotonic_s() + task.limit_s
                self._running.add(task)
            settle = self._performed(task)
            with self._lock:
                abandoned = task.abandoned
                if not abandoned:
                    self._running.discard(task)
                    self._pending -= 1
            if not abandoned:
                settle()
            del task, settle  # with its result, while this thread waits

    def _performed(self, task: _Task[object]) -> Callable[[], None]:
        """Do it; what tells the one who waits."""
        try:
            result = self._tried(task)
        except (HeadraceError, *ANSWERS) as error:
            return partial(task.future.set_exception, error)
        except BaseException as error:
            self.metrics.add(failures=not task.abandoned)
            return partial(task.future.set_exception, _failed(task.doing, error))
        return partial(task.future.set_result, result)

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
