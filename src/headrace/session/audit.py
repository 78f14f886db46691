"""The audit log: who came and who was turned away, what was defined, granted and operated, and what was denied.

Each event is a line of JSON at the end of a file, there before the client hears of it. Nothing in it is a secret:
statements have `***` where a password or the value of a secret stood.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from structlog import get_logger

from headrace.errors import HeadraceError, InsufficientPrivilege, InvalidParameter
from headrace.session.handlers import handler_of
from headrace.sql import statements as st

if TYPE_CHECKING:
    from headrace.session.session import Session

_log = get_logger("headrace")
_MODE: Final = 0o600
_SUCCESS, _DEFECT = "00000", "XX000"
_QUIET_S: Final = 60.0
"""How long nothing more is said of lines that cannot be written."""


class AuditLog:
    """The file. Any thread may note events; whoever rotates it renames it, and the next event begins another one.

    What cannot be written is lost and fails nobody: it is logged, and the next line that is written says how many.
    """

    def __init__(self, path: Path, now_ms: Callable[[], int]) -> None:
        """Raises `InvalidParameter` if the file cannot be written."""
        self._path, self._now_ms = path, now_ms
        self._lock = threading.Lock()
        self._file: int | None = None
        self._lost, self._told_s = 0, -_QUIET_S
        try:
            self._open()
        except OSError as error:
            raise InvalidParameter(
                f"the audit log {path} cannot be written: {error.strerror}", hint="audit_log names the file."
            ) from error

    def note(self, event: str, **said: str | int | None) -> None:
        """Add an event; what is None is left out."""
        at = datetime.fromtimestamp(self._now_ms() / 1000, UTC).isoformat(timespec="milliseconds")
        with self._lock:
            lost = {"lost": self._lost} if self._lost else {}
            found = {
                "at": at,
                "event": event,
                **{key: value for key, value in said.items() if value is not None},
                **lost,
            }
            try:
                self._open()
                assert self._file is not None
                self._write(json.dumps(found, ensure_ascii=True).encode() + b"\n")
                self._lost = 0
            except OSError as error:
                self._lose(error)

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._drop()

    def _open(self) -> None:
        """Have the file open that is there under the name now."""
        if self._file is not None and not self._is_rotated():
            return
        self._drop()
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _MODE)

    def _is_rotated(self) -> bool:
        assert self._file is not None
        try:
            return not os.path.samestat(os.fstat(self._file), os.stat(self._path))
        except FileNotFoundError:
            return True

    def _write(self, line: bytes) -> None:
        """A line at once, so that processes that share the file do not mix theirs; one cut short is ended first."""
        assert self._file is not None
        written = os.write(self._file, line)
        while written < len(line):
            written += os.write(self._file, line[written:])

    def _drop(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _lose(self, error: OSError) -> None:
        self._lost += 1
        self._drop()
        if time.monotonic() - self._told_s >= _QUIET_S:
            self._told_s = time.monotonic()
            _log.error("the audit log cannot be written", file=str(self._path), lost=self._lost, reason=error.strerror)


@contextmanager
def audited(session: Session, statement: st.Statement) -> Iterator[None]:
    """Note the statement that the block runs, and how it ended, if it is of a kind that is noted."""
    if session.database.audit is None or not handler_of(statement).is_audited:
        yield
        return
    try:
        yield
    except BaseException as error:
        session.noted = error
        known = (error.sqlstate, error.message) if isinstance(error, HeadraceError) else (_DEFECT, type(error).__name__)
        _note(session, statement, *known)
        raise
    _note(session, statement, _SUCCESS, None)


def note_denied(session: Session, statement: st.Statement | None, error: HeadraceError, cause: BaseException) -> None:
    """Note a denied statement, once; None for one whose text was only prepared. `cause` is what `error` was made of."""
    if isinstance(error, InsufficientPrivilege) and session.noted not in (error, cause):
        session.noted = error
        _note(session, statement, error.sqlstate, error.message)


def _note(session: Session, statement: st.Statement | None, sqlstate: str, message: str | None) -> None:
    log, role = session.database.audit, session.variables.role
    if log is not None:
        log.note(
            "statement", user=session.authenticated, role=None if role == session.authenticated else role,
            client=session.client or None, session=session.number, sqlstate=sqlstate, message=message,
            command=None if statement is None else statement.words,
            statement=None if statement is None else statement.text,
        )  # fmt: skip
