"""Keeps a database's Spark running: notices that it has ended, and puts another application in its place."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from headrace.common.lazy_dataclass import dataclass
from headrace.common.loggers import get_logger
from headrace.dataflow.spark import has_ended, successor
from headrace.errors import HeadraceError, JobFailed, OperationalError, ShuttingDown, SparkLost
from headrace.plan.failures import translate

if TYPE_CHECKING:
    from headrace.coordinator.coordinator import Coordinator


@dataclass(frozen=True)
class KeeperPace:
    """How long what takes, in seconds."""

    look_s: float = 0.5
    """Between two looks whether the JVM still runs."""
    dying_s: float = 1.0
    """That a JVM which does not answer is given to be gone."""
    ready_s: float = 120.0
    """That a statement waits for Spark at most."""
    retry_s: float = 1.0
    """Before Spark is tried to be started again; twice as long after each failure."""
    retry_most_s: float = 30.0
    notice_s: float = 1.0
    """Before whoever waits for Spark is told so."""


_PACE = KeeperPace()
_WAIT_SLICE_S = 0.1


class SparkKeeper:
    """Holds the Spark session that everything else is made of, and is where whoever needs it waits for it.

    `start` makes another one like it; None where it was given from outside, so that nobody here can replace it: then
    its end is the end of the database. Without a session there will be one: `first` returns it once it is there, and
    tries again after it has failed. With `on_demand` it is first called once somebody waits for Spark, or the
    coordinator has something for it to do. `renew` moves what is made of a session to another one. `ended`,
    `successor` and `pause` are how to find out, to replace, and to wait for an event. Thread-safe.
    """

    def __init__(
        self,
        session: SparkSession | None,
        start: Callable[[], SparkSession] | None,
        renew: Callable[[SparkSession], None],
        *,
        first: Callable[[], SparkSession] | None = None,
        on_demand: bool = False,
        pace: KeeperPace = _PACE,
        ended: Callable[[SparkSession, float], bool] = has_ended,
        successor: Callable[[SparkSession, Callable[[], SparkSession]], SparkSession] = successor,
        pause: Callable[[threading.Event, float], object] = threading.Event.wait,
    ):
        self.session = session
        self._first = first
        self._start = start
        self._renew = renew
        self._pace = pace
        self._ended = ended
        self._successor = successor
        self._pause = pause
        self._coordinator: Coordinator | None = None
        self._ready = threading.Event()
        self._ran = session is not None
        """Whether Spark has ever been ready."""
        if session is not None:
            self._ready.set()
        self._failure: HeadraceError | None = None
        """Why the last attempt to start Spark has failed, until the next one begins."""
        self._needed = threading.Event()
        """Set as soon as the first session is to be started."""
        if not on_demand:
            self._needed.set()
        self._lost = threading.Event()
        self._closed = threading.Event()
        self._changing = threading.Lock()

    def watch(self, coordinator: Coordinator) -> None:
        """Take care of it from now on."""
        self._coordinator = coordinator
        coordinator.watch_spark(self.is_lost)
        threading.Thread(target=self._run, name="headrace-spark", daemon=True).start()

    def close(self) -> SparkSession | None:
        """Leave it alone from now on; the session that runs, or ran last, and None if `first` has not returned."""
        self._closed.set()
        self._needed.set()  # so that nobody waits on
        with self._changing:
            return self.session

    def is_lost(self) -> bool:
        """Whether Spark has ended; what is to be done about it is begun. Asked by who met `SparkLost`."""
        session = self.session
        if session is not None and not self._lost.is_set():
            if not self._ended(session, self._pace.dying_s):
                return False
            if session is self.session:
                self._suspend()
        return session is not None

    def wait_ready(
        self, check: Callable[[], None], tell: Callable[[str], None] = lambda text: None,
        unless: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        """Return once Spark runs queries, though views may still be planned; `tell` is told if that takes its time.
        Return, too, as soon as it need not, by what `unless` says.

        `check` raises what should end the wait. Raises `SparkLost` after a bound, and at once where Spark did not start
        and none has been there yet.
        """
        since_s, told = time.monotonic(), False
        while not unless() and not self._ready.is_set():
            self._needed.set()
            if self._ready.wait(_WAIT_SLICE_S):
                return
            check()
            if self._closed.is_set():
                raise ShuttingDown("the database is closed")
            self.check_starts()
            waited_s = time.monotonic() - since_s
            if waited_s > self._pace.ready_s:
                what = "Spark has ended, and could not be started again" if self._ran else "Spark has not started"
                raise SparkLost(f"{what} for {self._pace.ready_s:.0f} s", hint="see its log")
            if not told and waited_s >= self._pace.notice_s:
                told = True
                tell("waiting for Spark to start")

    def check_starts(self) -> None:
        """Raise `OperationalError` where Spark did not start and none has been there yet; it is tried again."""
        failure = self._failure
        if failure is not None and not self._ran:
            raise OperationalError(failure.message, hint=failure.hint)

    def explained(self, error: HeadraceError, began_on: SparkSession | None) -> HeadraceError:
        """An error of a statement that began on a session; `SparkLost` if it looks like a consequence of its end."""
        if isinstance(error, SparkLost):
            self.is_lost()
        elif type(error) is JobFailed and (self._lost.is_set() or began_on not in (None, self.session)):
            return SparkLost("Spark ended while this was running", hint="run it again", detail=error.message)
        return error

    # ---- the thread

    def _run(self) -> None:
        """It must not end before its time: nobody else would notice that Spark has."""
        assert self._coordinator is not None
        wait_s = self._pace.retry_s
        while not self._closed.is_set():
            try:
                self._watch()
                return
            except Exception as error:
                with suppress(Exception):
                    self._coordinator.note_failure("the watch over Spark", error)
                self._pause(self._closed, wait_s)
                wait_s = min(2 * wait_s, self._pace.retry_most_s)

    def _watch(self) -> None:
        """Until it is closed, or Spark is lost for good."""
        assert self._coordinator is not None
        if self.session is None and self._first is not None:
            self._await_need(self._coordinator)
            self._replace(self._first)
        while not self._closed.is_set():
            session = self.session
            if self._lost.wait(self._pace.look_s) or (session is not None and self._ended(session, 0.0)):
                if self._closed.is_set():
                    return
                self._suspend()
                if self._start is None:
                    return
                self._replace(self._start)
            elif self._ready.is_set():
                with suppress(SparkLost):  # which the next look finds out, too
                    self._coordinator.plan_suspect()

    def _await_need(self, coordinator: Coordinator) -> None:
        """Return once the first session is needed, or nothing is any more."""
        while not self._closed.is_set() and not self._needed.is_set():
            if coordinator.needs_spark():
                self._needed.set()
            else:
                self._needed.wait(self._pace.look_s)

    def _suspend(self) -> None:
        assert self._coordinator is not None
        self._lost.set()
        self._ready.clear()  # in this order: whoever is just saying that it is ready looks whether it is lost
        if self._start is not None:
            self._coordinator.suspend(SparkLost("Spark has ended, and is being started again"))
            return
        gone = "the Spark session that the database was opened with has ended"
        self._coordinator.suspend(SparkLost(gone))
        self._coordinator.abort(SparkLost(gone, hint="open the database again with another one: nothing is lost"))

    def _replace(self, start: Callable[[], SparkSession]) -> None:
        """Start Spark, however often that takes; `start` is how the first one comes where there was none."""
        wait_s = self._pace.retry_s
        while not self._closed.is_set():
            try:
                self._try_to_replace(start)
                return
            except Exception as error:
                if self._closed.is_set():
                    return
                found = error if isinstance(error, HeadraceError) else translate(error)
                text = "Spark cannot be started again" if self._ran else "Spark cannot be started"
                get_logger("headrace").error(text, error=found.message, detail=found.detail)
                self._ready.clear()  # though it ran: what comes next is another application
                self._failure = found
                self._pause(self._closed, wait_s)
                wait_s = min(2 * wait_s, self._pace.retry_most_s)

    def _try_to_replace(self, start: Callable[[], SparkSession]) -> None:
        assert self._coordinator is not None
        self._failure = None
        if self.session is None:
            session = start()
            with self._changing:
                if self._closed.is_set():
                    return  # it is stopped by whoever has closed this
                self.session = session
        else:
            with self._changing:
                if self._closed.is_set():
                    return
                self.session = self._successor(self.session, self._start or start)
                self._lost.clear()
        if self._closed.is_set():
            return
        session = self.session
        self._coordinator.renew(lambda: self._renew(session), self._serve)

    def _serve(self) -> None:
        """Let who waits for Spark go on: all there is has been defined there, unless it ended meanwhile."""
        self._ran = True
        self._ready.set()
        if self._lost.is_set() or self._closed.is_set():
            self._ready.clear()
