"""Loggers that load structlog when there is something to log, and the least severity that is shown.

A program that opens a database would load it, with rich for tracebacks, before it gets its first answer; a server would
before it accepts connections.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

_show: Callable[[str], None] | None = None
_level: str | None = None
"""The level from which on messages are to be shown once there is one; None where that is settled."""
_settling = threading.Lock()


class _Logger:
    """Stands for one of structlog's; each of its methods is that one's."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    @cached_property
    def _made(self) -> object:
        _settle()
        import structlog

        return structlog.get_logger(*self._names)

    def __getattr__(self, name: str) -> object:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._made, name)


def get_logger(*names: str) -> FilteringBoundLogger:
    """As `structlog.get_logger`."""
    return cast("FilteringBoundLogger", _Logger(names))


def shown_later(show: Callable[[str], None], level: str) -> None:
    """Call `show` with the level before the first message is logged."""
    global _show, _level
    _show, _level = show, level


def _settle() -> None:
    global _level
    with _settling:  # whoever logs at the same time must not go on before it is settled how
        if _level is not None and _show is not None:
            _show(_level)
        _level = None


def shown_by(show: Callable[[str], None]) -> None:
    """Let what is logged be shown by this, from the level on that it is called with."""
    global _show
    _show = show


def set_level(level: str) -> None:
    """Show what is logged from another level on; where a program logs as it wants, that is left alone."""
    global _level
    with _settling:
        if _level is not None:
            _level = level
        elif _show is not None:
            _show(level)
