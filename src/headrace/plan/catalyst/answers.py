"""What comes back from calls of Java instead of a value: what Java raised, or that nobody answered."""

from __future__ import annotations

import re
from typing import Final

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException

CallFailed: Final[type[Exception]] = Py4JError
"""What any call raises that gives no value."""
Raised: Final[type[Exception]] = Py4JJavaError
"""What a call raises in which Java itself has raised something."""
UNANSWERED: Final[tuple[type[Exception], ...]] = (Py4JError, OSError)
"""What a call may raise whose Java process has ended."""

_STOPPED = re.compile(r"Cannot call methods on a stopped SparkContext|SparkContext (was|has been) shut ?down")
_CALL_FAILED = "An error occurred while calling "
# Whoever runs knows each name: what is no class is taken for a package.
_NAME_UNKNOWN = " does not exist in the JVM"
_CAUSES_AT_MOST = 10


def text_of(error: BaseException) -> str:
    """All that an error says: of one of Java's also what has caused it."""
    if isinstance(error, Py4JJavaError):
        parts: list[str] = []
        cause = error.java_exception
        while cause is not None and len(parts) < _CAUSES_AT_MOST:
            parts.append(str(cause.toString()))
            cause = cause.getCause()
        return "\n\n".join(parts)
    if isinstance(error, PySparkException):
        state = error.getSqlState() if hasattr(error, "getSqlState") else None
        text = str(error)
        return f"{text} SQLSTATE: {state}" if state and "SQLSTATE:" not in text else text
    return f"{type(error).__name__}: {error}"


def first_line(error: BaseException) -> str:
    """The first line of what Java raised, or of the error itself."""
    return str(getattr(error, "java_exception", None) or error).split("\n")[0]


def is_bare(error: BaseException) -> bool:
    """Whether a call just failed, with nothing that Java has raised."""
    return type(error) is Py4JError


def is_of_a_lost_application(error: BaseException) -> bool:
    """Whether there was nobody at the other end of a call to the JVM, or a SparkContext that has been stopped."""
    if isinstance(error, (Py4JNetworkError, ConnectionError, EOFError)):
        return True
    if isinstance(error, PySparkException):
        # Whatever fails while the schema of a DataFrame is fetched, PySpark calls a data type that cannot be parsed.
        within = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if within is not None and is_of_a_lost_application(within):
            return True
    if isinstance(error, (Py4JJavaError, PySparkException)):
        try:
            return _STOPPED.search(text_of(error)) is not None
        except (Py4JError, ConnectionError, AssertionError):  # what Java had to say is gone with it
            return True
    if not isinstance(error, Py4JError):
        return False
    # A call that Java refuses comes with a trace of Java's; one that nobody answers does not.
    text = str(error)
    unanswered = text.startswith(_CALL_FAILED) or text.endswith(_NAME_UNKNOWN)
    return _STOPPED.search(text) is not None or (unanswered and "Trace:" not in text)


__all__ = ["CallFailed", "Raised", "UNANSWERED", "first_line", "is_bare", "is_of_a_lost_application", "text_of"]
