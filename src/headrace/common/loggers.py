"""Loggers that load structlog when there is something to log, and the least severity that is shown.

A program that opens a database would load it, with rich for tracebacks, before it gets its first answer; a server would
before it accepts connections.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

_show: Callable[[str], None] | None = None
_level: str | None = None
"""The level from which on messages are to be shown once there is one; None where that is settled."""
_settling = threading.RLock()  # what is thrown away while messages are made ready to be shown may log
_SEVERITIES: Final = ("debug", "info", "warning")
"""In their order; all others are errors."""


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
        try:
            made = self._made
        except Exception:  # no file can be opened, say: of which somebody is about to tell
            return partial(_say, name)
        return getattr(made, name)


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
        level, _level = _level, None
        if level is not None and _show is not None:
            try:
                _show(level)
            except BaseException:
                _level = level
                raise


def _say(method: str, event: object, /, *_: object, **values: object) -> None:
    """Write a message to standard error where structlog cannot be loaded, which the next message tries again."""
    if _rank(method) >= _rank(_level or "debug"):
        said = " ".join([f"[{method}] {event!a}", *(f"{name}={value!a}" for name, value in values.items())])
        with suppress(OSError, ValueError, AttributeError):  # nobody reads it, or there is no standard error
            print(said, file=sys.stderr, flush=True)


def _rank(severity: str) -> int:
    return _SEVERITIES.index(severity) if severity in _SEVERITIES else len(_SEVERITIES)


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
