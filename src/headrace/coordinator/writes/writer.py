"""Forms groups of what is to be written to tables: whatever waits is committed together, by who leads.

There is no thread of its own: whoever waits for its request may find itself leading, and commits the next group for
all that are in it (group commit: DeWitt et al., "Implementation Techniques for Main Memory Database Systems", 1984).
Who cannot wait asks for a thread that leads as long as there is anything to do.

Where several clients write, a group waits a fraction of a millisecond (`GATHER_S`) for those that the last one has
just answered; the last of them to come wakes it. Python's lock bounds all of this, so each request costs as little as
possible (`outcome.py` instead of a future with its condition), and a group wakes no thread that it does not concern.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from copy import copy

from headrace.catalog.edits import Edit
from headrace.common.loggers import get_logger
from headrace.coordinator.run.guard import as_headrace_error
from headrace.coordinator.run.live_state import LiveState, Metrics
from headrace.coordinator.run.runtime import Runtime
from headrace.coordinator.run.storage import Storage
from headrace.coordinator.writes.gates import Gate, Gates
from headrace.coordinator.writes.group_commit import CommitParts, GroupCommit
from headrace.coordinator.writes.history import ReadSet
from headrace.coordinator.writes.outcome import Outcome
from headrace.coordinator.writes.requests import (
    Part,
    Request,
    TransactionCommit,
    WriteResult,
)
from headrace.coordinator.writes.settling import Settling
from headrace.coordinator.writes.small_runs import SmallRuns
from headrace.coordinator.writes.table_rows import TableRows
from headrace.errors import (
    Fenced,
    HeadraceError,
    ShuttingDown,
)
from headrace.state.memory import MemoryController

GROUP_REQUESTS = 1_000
"""Requests that are committed together, at most."""
CHECK_S = 0.2
"""Seconds between two looks whether a writer that waits was cancelled."""
IDLE_S = 5.0
"""Seconds without any request after which the thread that leads for others ends."""
GATHER_S = 0.0003
"""Seconds between two looks whether further requests come, where there are several clients."""
GATHERED_AT_MOST = 10
"""Such looks before a group."""
MANY = 4
"""For so many requests that are expected one look may be in vain, while less than three quarters of them are there."""


class Writer:
    """The one way of changes into tables: forms groups, runs and commits them. Thread-safe."""

    def __init__(
        self, live: LiveState, storage: Storage, runtime: Runtime, memory: MemoryController, totals: Metrics,
        compact: Callable[[], None],
    ) -> None:  # fmt: skip
        """`compact` is called when a table has many runs. `totals` are those of all jobs together."""
        self._runtime = runtime
        self.tables = TableRows(live, storage)
        self._lock = self.tables.lock
        self._turn = threading.Condition(self._lock)
        """Notified when a group is over, a gate is opened, or the coordinator stops."""
        self._leading = threading.Lock()
        """Held while a group is committed: by one thread at a time."""
        self._queue: list[Request] = []
        self._gates = Gates()
        self.settling = Settling(storage, runtime)
        self.small_runs = SmallRuns(storage, runtime)
        self._parts = CommitParts(
            live, storage, runtime, memory, totals, self.tables, self.small_runs, self.settling, compact
        )
        self._thread: threading.Thread | None = None
        self._thread_waits_for = 0
        """How many requests have to be there for that thread to be notified; 0 where it does not wait for any."""
        self._expected = 0
        """Requests that may come: as many as were under way at the end of the last group."""
        self.groups = 0
        self.requests = 0
        """Groups that were committed, and the requests in them, since the start."""

    # ---- writing

    def write(self, request: Request, check: Callable[[], None] = lambda: None) -> WriteResult:
        """Commit a request; durable, and visible to every later read, on return.

        `check` is asked now and then while the request waits for its turn, and raises if it was cancelled: then
        nothing is written. Raises what the request does, `DiskFull`, `StorageError`, `ShuttingDown`.
        """
        self._runtime.check()
        with self._lock:
            self._queue.append(request)
        while not request.done.done():
            if self._leading.acquire(blocking=False):
                try:
                    self._lead_once()
                finally:
                    self._leading.release()
                    self._wake()
            if not request.done.done():
                self._await_turn(request, check)
        return request.done.result()

    def submit(self, request: Request) -> Outcome[WriteResult]:
        """The same without waiting: a thread is there for it. The outcome is settled in that thread."""
        self._runtime.check()
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                thread = threading.Thread(target=self._lead, name="headrace-writer", daemon=True)
                thread.start()  # it comes for the request when the lock is free
                self._thread = thread
            self._queue.append(request)
            if 0 < self._thread_waits_for <= len(self._queue):
                self._thread_waits_for = 0
                self._turn.notify_all()
        return request.done

    def _await_turn(self, request: Request, check: Callable[[], None]) -> None:
        with self._lock:
            if not self._leading.locked() and self._admitted():
                return
            self._turn.wait(CHECK_S)
            if request.done.done():
                return
        try:
            check()
            self._runtime.check()
        except BaseException:
            if self._withdraw(request):
                raise

    def _withdraw(self, request: Request) -> bool:
        """Take a request back, unless it is being committed."""
        with self._lock:
            if request in self._queue:
                self._queue.remove(request)
                return True
            return False

    def cancel(self, request: Request, error: HeadraceError) -> None:
        """Let a request fail that was submitted, unless it is being committed."""
        if self._withdraw(request):
            request.done.set_exception(error)

    def _wake(self) -> None:
        with self._lock:
            self._turn.notify_all()

    def _lead(self) -> None:
        """The thread's main function: commits one group after another, and ends when nothing has come for a while."""
        while not self._runtime.stopping:
            try:
                self._gather()
                with self._leading:
                    self._lead_once()
            except BaseException as error:  # those of that group have been told; all others still wait for this thread
                _log_unexpected(error)
            with self._lock:
                self._turn.notify_all()
                if not self._admitted() and not self._told_in_time(1, IDLE_S) and not self._queue:
                    self._thread = None
                    return
        with self._lock:
            left, self._queue = self._queue, []
            self._thread = None  # whoever comes now gets one that tells it the same
        for request in left:
            request.done.set_exception(ShuttingDown("the server is shutting down"))

    def _told_in_time(self, requests: int, limit_s: float) -> bool:
        """Wait until so many requests are there, for a while; False if the time is over. The caller holds the lock."""
        self._thread_waits_for = requests
        try:
            return self._turn.wait(limit_s)
        finally:
            self._thread_waits_for = 0

    def _gather(self) -> None:
        """Let the clients of the last groups come back before the next one, while they do: larger groups cost less."""
        before, in_vain = 0, 0
        with self._lock:
            for _ in range(GATHERED_AT_MOST):
                there = len(self._queue)
                in_vain = in_vain + 1 if there == before else 0
                patience = self._expected // MANY if there * 4 < self._expected * 3 else 0
                if not there or there >= self._expected or in_vain > patience or self._runtime.stopping:
                    return
                before = there
                self._told_in_time(self._expected, GATHER_S)

    def hand_over(self, table_id: int, parts: Sequence[Part], edits: Sequence[Edit]) -> None:
        """Commit changes of a table and other edits in one transaction: a group by itself, so nobody else fails by it.

        The caller holds the table's gate. Durable on return; raises what `write` does.
        """
        request = TransactionCommit(0, ReadSet(), {table_id: parts})
        try:
            with self._leading, ExitStack() as held:
                self._runtime.check()
                self._commit([request], GroupCommit(self._parts, held, edits))
        finally:
            self._wake()
        request.done.result()

    # ---- gates and what others need

    @contextmanager
    def gate(self, tables: Collection[int], check: Callable[[], None] = lambda: None) -> Iterator[Gate]:
        """Keep all others from writing to some tables inside the block. What waits for them goes on afterwards."""
        gate = Gate(frozenset(tables))
        while True:
            with self._lock:
                if self._gates.try_close(gate):
                    break
                self._turn.wait(CHECK_S)
            check()
            self._runtime.check()
        try:
            # A group that is being committed has been admitted before the gate was closed.
            with self._leading:
                pass
            yield gate
        finally:
            with self._lock:
                self._gates.open(gate)
                self._turn.notify_all()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Commit nothing inside the block: what waits stays waiting. For DDL, which must keep it short."""
        try:
            with self._leading:
                yield
        finally:
            self._wake()

    def forget(self, table_id: int) -> None:
        """Forgets a table that was dropped."""
        self.tables.forget(table_id)
        self.small_runs.forget(table_id)

    def tidy(self) -> None:
        """Let go of pins and open runs that nobody needs at present."""
        self.tables.tidy()
        self.small_runs.tidy()

    # ---- one group; the caller leads

    def _admitted(self) -> bool:
        if not self._gates:
            return bool(self._queue)
        return any(self._gates.admits(r.tables, r.gate) for r in self._queue)

    def _take(self) -> list[Request]:
        with self._lock:
            if not self._gates and len(self._queue) <= GROUP_REQUESTS:
                taken, self._queue = self._queue, []
                return taken
            taken = [r for r in self._queue if self._gates.admits(r.tables, r.gate)][:GROUP_REQUESTS]
            if taken:
                chosen = set(map(id, taken))
                self._queue = [r for r in self._queue if id(r) not in chosen]
            return taken

    def _commit(self, requests: Sequence[Request], group: GroupCommit) -> None:
        """Commit one group, and tell those for whom it went well."""
        applied = group.run(requests)
        self.groups += 1
        self._expected = len(applied) + len(self._queue)
        self.requests += len(applied)
        for request, result in applied:
            request.done.set_result(result)

    def _lead_once(self) -> None:
        """Commit one group of what waits, if anything may go on."""
        taken = self._take()
        if not taken:
            return
        try:
            self._expected = 0  # nobody waits for those that fail
            with ExitStack() as held:
                self._commit(taken, GroupCommit(self._parts, held))
        except BaseException as error:
            if isinstance(error, Fenced):
                self._runtime.fatal(error)
            for request in taken:
                if not request.done.done():
                    request.done.set_exception(_one_more(error))
            if not isinstance(error, Exception):
                raise
            if not isinstance(error, HeadraceError):
                _log_unexpected(error)


def _log_unexpected(error: BaseException) -> None:
    with suppress(Exception):  # where it goes may be full, or gone
        get_logger("headrace").error("a group commit failed unexpectedly", exc_info=error)


def _one_more(error: BaseException) -> BaseException:
    """The same once more: whoever is told adds where in its statement it happened."""
    try:
        return copy(error)
    except Exception:  # not every exception can be made of its arguments alone
        return as_headrace_error(error)
