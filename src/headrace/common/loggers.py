"""Loggers that load structlog when there is something to log, and the least severity that is shown.

A program that opens a database would load it, with rich for tracebacks, before it gets its first answer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

_show: Callable[[str], None] | None = None


class _Logger:
    """Stands for one of structlog's; each of its methods is that one's."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    @cached_property
    def _made(self) -> object:
        import structlog

        return structlog.get_logger(*self._names)

    def __getattr__(self, name: str) -> object:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._made, name)


def get_logger(*names: str) -> FilteringBoundLogger:
    """As `structlog.get_logger`."""
    return cast("FilteringBoundLogger", _Logger(names))


def shown_by(show: Callable[[str], None]) -> None:
    """Let what is logged be shown by this, from the level on that it is called with."""
    global _show
    _show = show


def set_level(level: str) -> None:
    """Show what is logged from another level on; where a program logs as it wants, that is left alone."""
    if _show is not None:
        _show(level)
