"""What becomes of a request: known at some moment, by a result or an error, and told to whoever has asked."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar, cast

from headrace.common.loggers import get_logger

T = TypeVar("T")


class Outcome(Generic[T]):
    """The few things of `concurrent.futures.Future` that a request needs, without a lock: there is one for each write.

    Safe for any thread. Who settles it does so once. Each callback is called once, with the outcome: by who settles
    it, or at once where it is settled already. That one raises is logged, and nobody else's concern.
    """

    __slots__ = ("_callbacks", "_error", "_settled", "_value")

    def __init__(self) -> None:
        self._settled = False
        self._value: T | None = None
        self._error: BaseException | None = None
        self._callbacks: deque[Callable[[Outcome[T]], object]] = deque()

    def done(self) -> bool:
        """Whether it is settled."""
        return self._settled

    def set_result(self, value: T) -> None:
        """Settle it with a result."""
        self._value = value
        self._settle()

    def set_exception(self, error: BaseException) -> None:
        """Settle it with an error."""
        self._error = error
        self._settle()

    def result(self, timeout_s: float | None = None) -> T:
        """The result, waited for; raises the error that it was settled with, and `TimeoutError`."""
        error = self.exception(timeout_s)
        if error is not None:
            raise error
        return cast("T", self._value)

    def exception(self, timeout_s: float | None = None) -> BaseException | None:
        """The error that it was settled with, waited for; None if it has a result. Raises `TimeoutError`."""
        if not self._settled:
            told = threading.Event()
            self.add_done_callback(lambda _: told.set())
            if not told.wait(timeout_s):
                raise TimeoutError("the outcome is not known yet")
        return self._error

    def add_done_callback(self, call: Callable[[object], object]) -> None:
        """Have a call made once it is settled."""
        self._callbacks.append(call)
        if self._settled:
            self._tell()

    def _settle(self) -> None:
        # First this, then the calls: whoever adds one afterwards finds it settled, and makes the calls himself.
        self._settled = True
        if self._callbacks:
            self._tell()

    def _tell(self) -> None:
        calls = self._callbacks
        while calls:
            try:
                call = calls.popleft()
            except IndexError:  # somebody else has taken the last one
                return
            try:
                call(self)
            except Exception as error:
                with suppress(Exception):  # where it goes may be full, or gone
                    get_logger("headrace").error("the outcome of a write could not be told", exc_info=error)
