"""What the log is told of requests, now and then: whoever floods the port is not to flood the log, too."""

from __future__ import annotations

import time
from typing import Final

from headrace.common.loggers import get_logger

_log = get_logger("headrace.web")
LOG_EVERY_S: Final = 1.0
"""The log has at most one message of each kind in so many seconds."""


class SeldomLog:
    """A log that leaves out what it was told a moment ago. Threads may share it: at worst it says something twice.

    There are as many kinds as there are tables, and a few: none is of a client's choosing.
    """

    def __init__(self) -> None:
        self._said_s: dict[int | str, float] = {}

    def warning(self, kind: int | str, message: str, **more: object) -> None:
        """Say what a client has done."""
        if self._is_due(kind):
            _log.warning(message, **more)

    def error(self, kind: int | str, message: str, **more: object) -> None:
        """Say what has failed here."""
        if self._is_due(kind):
            _log.error(message, **more)

    def _is_due(self, kind: int | str) -> bool:
        now_s = time.monotonic()
        if now_s - self._said_s.get(kind, -LOG_EVERY_S) < LOG_EVERY_S:
            return False
        self._said_s[kind] = now_s
        return True
