"""What the commands log: to standard error, from a least severity on."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Final, TextIO

import structlog

from headrace.common import loggers


class Logger(structlog.PrintLogger):
    """Prints messages. What cannot be written (the disk is full, nobody reads any more) is lost, and fails nothing:
    what is logged most of all are failures, by threads that have to go on."""

    def msg(self, message: str) -> None:
        """Print a message."""
        with suppress(OSError, ValueError):  # the latter of a closed file, and of text that its encoding does not have
            super().msg(message)

    log = debug = info = warn = warning = msg
    fatal = failure = err = error = critical = exception = msg


_CONTROL: Final = {i: f"\\x{i:02x}" for i in (*range(0x20), *range(0x7F, 0xA0))}
_LINES: Final = {i: text for i, text in _CONTROL.items() if chr(i) not in "\n\t"}
_LONG: Final = ("exception", "stack")
"""What has lines."""


def escaped(logger: object, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Show control characters instead of sending them: names that strangers make up must not look like messages."""
    return {
        key: value.translate(_LINES if key in _LONG else _CONTROL) if isinstance(value, str) else value
        for key, value in event.items()
    }


def log_to_stderr(level: str) -> None:
    """Let this process's messages from `level` on go to standard error."""
    loggers.shown_by(log_to_stderr)
    file: TextIO = sys.stderr
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.StackInfoRenderer(),
            structlog.dev.set_exc_info,
            structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S", utc=False),
            escaped,
            # By default tracebacks show what variables hold: statements, rows, the values of secrets.
            structlog.dev.ConsoleRenderer(
                colors=not file.closed and file.isatty(), exception_formatter=structlog.dev.plain_traceback
            ),
        ],
        logger_factory=lambda *given: Logger(file),
        wrapper_class=structlog.make_filtering_bound_logger(level),
    )
