"""The audit log: who came and who was turned away, what was defined, granted and operated, and what was denied.

Each event is a line of JSON at the end of a file, there before the client hears of it. Nothing in it is a secret:
statements have `***` where a password or the value of a secret stood.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from headrace.common.loggers import get_logger
from headrace.connectors.option_reader import is_confidential
from headrace.errors import HeadraceError, InsufficientPrivilege, InvalidParameter
from headrace.session.context import Context
from headrace.session.handlers import handler_of
from headrace.sql import statements as st
from headrace.sql.secrets import HIDDEN, STRING, may_hold_a_secret

_log = get_logger("headrace")
_MODE: Final = 0o600
_SUCCESS, _DEFECT = "00000", "XX000"
_QUIET_S: Final = 60.0
"""How long nothing more is said of lines that cannot be written."""
_LONGEST: Final = 16_384
"""Characters of a statement."""
_QUOTE: Final = re.compile(r"['$]")
# What is matched is never given back: time grows with the length of a text, whoever has made it up.
_WORD: Final = r"(?<![\w.])(?<![\w.]-)(?![EeBbXxNn]'|[Uu]&')[\w.]++(?:-[\w.]++)*+"
_GAP: Final = r"(?:\s|--[^\n]*+(?:\n|\Z)|/\*(?:(?!\*/).)*+(?:\*/|\Z))*+"
_NAMED: Final = re.compile(
    rf"""--[^\n]*+|/\*(?:(?!\*/).)*+|(?P<said>(?P<name>"[^"]*+"|{_WORD}){_GAP}(?:=|TO\b)?+{_GAP})?(?P<value>{STRING})""",
    re.DOTALL | re.IGNORECASE,
)
"""A literal, with the name in front of it whose value it may be; or a comment, in which there is none."""
_SAYS_SO: Final = re.compile(r"passw|passphrase|pwd|secret|token|credential|private.?key|access.?key|jaas|signature")
_IN_URL: Final = re.compile(r"(://[^/@:\s']*+:)[^/@\s']*+@")
_IN_CUT_URL: Final = re.compile(r"(://[^/@:\s']*+:)[^/@\s']*+\Z")
_SAID: Final = re.compile(rf"(?P<name>{_WORD})\s*+=\s*+")
_VALUE: Final = re.compile(r"""[^\s&;,'")]*+""")


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
        self._cut = False
        """Whether the last line has no end."""
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
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, _MODE)

    def _is_rotated(self) -> bool:
        assert self._file is not None
        try:
            return not os.path.samestat(os.fstat(self._file), os.stat(self._path))
        except FileNotFoundError:
            return True

    def _write(self, line: bytes) -> None:
        """A line at once, so that processes that share the file do not mix theirs; one cut short is ended first."""
        assert self._file is not None
        left = b"\n" + line if self._cut else line
        while left:
            written = os.write(self._file, left)
            left = left[written:]
            self._cut = bool(left)

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


def note_done(log: AuditLog, context: Context, statement: st.Statement) -> None:
    """Note a statement that has been run, if it is of a kind that is noted."""
    if handler_of(statement).is_audited:
        _note(log, context, statement.words, statement.text, _SUCCESS, None)


def note_failed(log: AuditLog, context: Context, statement: st.Statement | None, text: str, error: Exception) -> None:
    """Note, once, what a client is told of a statement of such a kind, and of any that is denied.

    Without a `statement` only a `text` was to be prepared.
    """
    if isinstance(error, HeadraceError) and error.noted:
        return
    of_kind = statement is not None and handler_of(statement).is_audited
    if not of_kind and not isinstance(error, InsufficientPrivilege):
        return
    told = (_DEFECT, type(error).__name__)
    if isinstance(error, HeadraceError):
        error.noted, told = True, (error.sqlstate, error.message)
    words = None if statement is None else statement.words
    _note(log, context, words, text if statement is None else statement.text, *told)


def _note(log: AuditLog, context: Context, words: str | None, text: str, sqlstate: str, message: str | None) -> None:
    role = context.role
    log.note(
        "statement", user=context.authenticated, role=None if role == context.authenticated else role,
        client=context.client or None, session=context.number, command=words, sqlstate=sqlstate,
        message=None if message is None else masked(message), statement=masked(text),
    )  # fmt: skip


def masked(text: str) -> str:
    """A statement or a message without what nobody is to read: values of options that are called so, passwords of
    URLs and of connection strings; a very long one is cut."""
    cut = len(text) > _LONGEST
    text = text[:_LONGEST] if cut else text
    if may_hold_a_secret(text) and (quoted := _QUOTE.search(text)):
        text = text[: quoted.start()] + HIDDEN
    text = _IN_URL.sub(r"\1***@", _NAMED.sub(_shown, text))
    if cut:
        text = _IN_CUT_URL.sub(r"\1***", text) + "..."
    return _without_values(text)


def _shown(match: re.Match[str]) -> str:
    name = match["name"]
    return match["said"] + HIDDEN if name and _is_secret(name) else match[0]


def _without_values(text: str) -> str:
    """The text without values that stand behind `name=`, within others, too: those of connection strings and URLs."""
    kept, at = [], 0
    for found in _SAID.finditer(text):
        if found.start() < at or not _is_secret(found["name"]):
            continue
        value = _VALUE.match(text, found.end())
        if value is not None and value[0]:
            kept += [text[at : found.end()], "***"]
            at = value.end()
    return "".join([*kept, text[at:]])


def _is_secret(name: str) -> bool:
    plain = name.strip('"').lower()
    return is_confidential(plain.replace("_", ".")) or is_confidential(plain) or _SAYS_SO.search(plain) is not None
