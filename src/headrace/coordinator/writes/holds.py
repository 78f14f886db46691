"""What a transaction holds until its end."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

T = TypeVar("T")


class Holds:
    """The few things of `contextlib.ExitStack` that a transaction needs, at a fraction of its cost.

    What was added last is let go of first, and all of it, also where letting go of something raises. Not thread-safe.
    """

    __slots__ = ("_calls",)

    def __init__(self) -> None:
        self._calls: list[tuple[Callable[..., object], tuple[object, ...]]] = []

    def callback(self, call: Callable[..., object], /, *args: object) -> None:
        """Have a call made in the end."""
        self._calls.append((call, args))

    def enter_context(self, manager: AbstractContextManager[T]) -> T:
        """Enter a block that ends in the end, without the error that others may end with."""
        found = manager.__enter__()
        self._calls.append((manager.__exit__, (None, None, None)))
        return found

    def close(self) -> None:
        """Let go of everything; harmless when repeated."""
        calls = self._calls
        while calls:
            call, args = calls.pop()
            try:
                call(*args)
            except BaseException:
                self.close()
                raise
