"""What stops a statement before its end: a cancel, or its time limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.errors import QueryCanceled

if TYPE_CHECKING:
    from headrace.coordinator.writes.requests import Request

_WAIT_SLICE_S = 0.1
_OVER_S = 0.0
_TIMED_OUT = "canceling statement due to statement timeout"


class Interrupts:
    """Whether what a session runs has to stop. It runs one statement at a time; any thread may stop it.

    A statement that has written something durable is not said to be cancelled: that holds.
    """

    def __init__(
        self, name: str, cancel_jobs: Callable[[], None], withdraw: Callable[[Request, QueryCanceled], object]
    ):
        self._name = name
        self._cancel_jobs = cancel_jobs
        self._withdraw = withdraw
        self.reason: str | None = None
        """Why to stop; None where nobody wants that."""
        self.durable = False
        """Whether the statement that runs has written something that is durable."""
        self.until_s: float | None = None
        """By the monotonic clock, until when rows may be sent; None where nothing limits that, or none are."""
        self._sends = False
        """Whether rows are being sent that may be stopped."""
        self.stopped: Callable[[], None] = lambda: None
        """Called when something is to stop, by whatever thread says so."""
        self._waits_for: Request | None = None
        """What was started and waits to be committed."""
        self._timing = threading.Lock()
        self._timer: threading.Timer | None = None

    def begin(self) -> None:
        """Forget what was to stop: it was for what has been run before."""
        self.reason = None

    def stop(self, reason: str) -> None:
        """Stop what runs, from any thread."""
        self.reason = reason
        self._cancel_jobs()
        self.withdraw(reason)
        self.stopped()

    def check(self) -> None:
        """Raise `QueryCanceled` if the running statement was cancelled, or has sent rows for too long."""
        until_s = self.until_s
        if until_s is not None and self.reason is None and time.monotonic() >= until_s:
            self.stop(_TIMED_OUT)
        if self.reason is not None:
            raise QueryCanceled(self.reason)

    def wrote(self) -> None:
        """Something has been written: whoever wants to cancel it comes too late."""
        self.reason, self.durable = None, True

    def waiting_for(self, request: Request) -> None:
        """Note what was started, so that it can be cancelled: perhaps it was already."""
        self._waits_for = request
        if self.reason is not None:
            self.withdraw(self.reason)

    def waited(self) -> None:
        """What was started is over."""
        self._waits_for = None

    def withdraw(self, reason: str) -> None:
        """Let what was started fail, unless it is being committed."""
        waits_for = self._waits_for
        if waits_for is not None:
            self._withdraw(waits_for, QueryCanceled(reason))

    @contextmanager
    def limited(self, limit_ms: int) -> Iterator[None]:
        """Stop what takes longer inside the block; 0 is no limit. Within another such block that one counts."""
        if not limit_ms or self._timer is not None:  # EXECUTE runs a statement inside of another one
            self.durable = False
            yield
            self._check_end()
            return
        self.durable = False
        timer = threading.Timer(limit_ms / 1000, lambda: self.time_out(timer))
        timer.daemon = True
        self._timer = timer
        timer.start()
        try:
            yield
            self._check_end()
        finally:
            with self._timing:
                self._timer = None
            timer.cancel()

    def _check_end(self) -> None:
        """Raise `QueryCanceled` for a statement that was cancelled at its end, unless it has written: that holds."""
        if not self.durable:
            self.check()

    def time_out(self, timer: threading.Timer | None) -> None:
        """The time of a statement is over; if it has ended just now, the next one has nothing to do with that."""
        with self._timing:
            if self._timer is timer:
                self.stop(_TIMED_OUT)

    @contextmanager
    def sending(self, until_s: float | None) -> Iterator[Callable[[], None]]:
        """For whoever sends the rows of a statement that has run: gives what to call before each piece."""
        self.until_s, self._sends = until_s, True
        try:
            yield self.check
        finally:
            self.until_s, self._sends = None, False

    @property
    def sends_until_s(self) -> float | None:
        """Until when their client is waited for; that is over where they are to stop. Any thread may ask."""
        return _OVER_S if self._sends and self.reason is not None else self.until_s

    def wait(self, step: Callable[[Callable[[], None]], object]) -> None:
        """Run `step` in a thread of its own, so that waiting for it can be cancelled.

        It gets what it has to call now and then, and which raises once nobody waits for it any more.
        """
        done, given_up = threading.Event(), threading.Event()

        def check() -> None:
            if given_up.is_set():
                raise QueryCanceled("nobody waits for this any more")

        failures: list[BaseException] = []

        def run() -> None:
            try:
                step(check)
            except BaseException as error:
                failures.append(error)
            finally:
                done.set()

        threading.Thread(target=run, name=self._name, daemon=True).start()
        try:
            while not done.wait(_WAIT_SLICE_S):
                self.check()
        finally:
            given_up.set()
        if failures:
            raise failures[0]
