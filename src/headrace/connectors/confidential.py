"""Connectors of which some options have the value of a secret: nothing that they raise says it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Self
from urllib.parse import quote, quote_plus

import pyarrow as pa

from headrace.common.columns import Column
from headrace.connectors.base import (
    Admission,
    Binding,
    FollowingTable,
    Offsets,
    ReadBatch,
    ReadTask,
    SharedBinding,
    Source,
)
from headrace.errors import HeadraceError, SourceError

HIDDEN: Final = "***"
"""What stands for a secret's value."""
Values = Mapping[str, str]
"""Option -> the value of the secret that it was given. Never printed."""


@contextmanager
def hiding(values: Sequence[str]) -> Iterator[None]:
    """What is raised inside the block has none of the values in its text, nor in that of what it comes from."""
    try:
        yield
    except Exception as error:
        if not any(_says(found, _spellings(values)) for found in _chain(error)):
            raise
        cleaned = _cleaned(error, _spellings(values))
    else:
        return
    raise cleaned from None


def _spellings(values: Sequence[str]) -> list[str]:
    """The values, and how they are written in messages, in JSON and in URLs; the longest first."""
    found: set[str] = set()
    for value in values:
        for way in (str, _shown, _in_json, quote, quote_plus, lambda text: quote(text, safe="")):
            found.add(way(value))
    return sorted(found - {""}, key=lambda text: (-len(text), text))


def _shown(text: str) -> str:
    return repr(text)[1:-1]


def _in_json(text: str) -> str:
    return json.dumps(text)[1:-1]


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _texts(error: BaseException) -> list[str]:
    own = [str(error), repr(error), *getattr(error, "__notes__", ())]
    return [*own, error.message, error.hint or "", error.detail or ""] if isinstance(error, HeadraceError) else own


def _says(error: BaseException, spellings: Sequence[str]) -> bool:
    return any(spelling in text for text in _texts(error) for spelling in spellings)


def _cleaned(error: Exception, spellings: Sequence[str]) -> HeadraceError:
    def clean(text: str | None) -> str | None:
        for spelling in spellings:
            text = None if text is None else text.replace(spelling, HIDDEN)
        return text

    if not isinstance(error, HeadraceError):
        return SourceError(clean(f"{type(error).__name__}: {error}") or "")
    made = type(error).__new__(type(error))
    HeadraceError.__init__(
        made, clean(error.message) or "", hint=clean(error.hint), detail=clean(error.detail), position=error.position,
        sqlstate=error.sqlstate,
    )  # fmt: skip
    return made


class ConfidentialSource(Source):
    """A source that is opened with the values of secrets, again when they change. Safe to use from several threads."""

    def __init__(
        self, open_with: Callable[[Values], Source], columns: Sequence[Column], secrets: Callable[[], Values]
    ) -> None:
        super().__init__({}, columns)
        self._open_with, self._secrets = open_with, secrets
        self._lock = threading.Lock()
        self._opened: tuple[Values, Source] | None = None
        self._names: Sequence[str] | None = None
        with self._source():
            pass

    @classmethod
    def infer_columns(cls, options: Mapping[str, str]) -> list[Column]:
        """It is asked of the connector itself."""
        raise NotImplementedError

    @contextmanager
    def _source(self) -> Iterator[Source]:
        values = self._secrets()
        with hiding([*values.values()]):
            with self._lock:
                if self._opened is None or self._opened[0] != values:
                    made = self._open_with(values)
                    self._opened = values, made if self._names is None else made.only(self._names)
                source = self._opened[1]
            yield source

    def columns_there(self, offsets: Offsets) -> list[Column]:
        """See `Source`."""
        with self._source() as source:
            return source.columns_there(offsets)

    def found_by(self, columns: Sequence[Column]) -> dict[str, str]:
        """See `Source`."""
        with self._source() as source:
            return source.found_by(columns)

    def claim(self) -> None:
        """See `Source`."""
        with self._source() as source:
            source.claim()

    def hand_over(self) -> None:
        """See `Source`."""
        with self._source() as source:
            source.hand_over()

    def acknowledge(self, offsets: Offsets) -> None:
        """See `Source`."""
        with self._source() as source:
            source.acknowledge(offsets)

    def discard(self, last: Offsets | None = None) -> str | None:
        """See `Source`."""
        with self._source() as source:
            return source.discard(last)

    def start_offsets(self) -> Offsets:
        """See `Source`."""
        with self._source() as source:
            return source.start_offsets()

    def latest_offsets(self, after: Offsets, limit: Admission, now_ms: int) -> Binding:
        """See `Source`."""
        with self._source() as source:
            return source.latest_offsets(after, limit, now_ms)

    def latest_together(self, after: Offsets, tables: Mapping[int, FollowingTable], limit: Admission) -> SharedBinding:
        """See `Source`."""
        with self._source() as source:
            return source.latest_together(after, tables, limit)

    def rows_between(self, from_: Offsets, to: Offsets) -> int | None:
        """See `Source`."""
        with self._source() as source:
            return source.rows_between(from_, to)

    def bytes_between(self, from_: Offsets, to: Offsets) -> int | None:
        """See `Source`."""
        with self._source() as source:
            return source.bytes_between(from_, to)

    @property
    def row_bytes(self) -> float | None:
        """See `Source`."""
        with self._source() as source:
            return source.row_bytes

    def joined(self, tasks: Sequence[ReadTask], parallelism: int) -> list[ReadTask]:
        """See `Source`."""
        with self._source() as source:
            return source.joined(tasks, parallelism)

    @property
    def time_column(self) -> str | None:
        """See `Source`."""
        with self._source() as source:
            return source.time_column

    def only(self, names: Sequence[str]) -> Self:
        """See `Source`."""
        self._names, self._opened = names, None
        return self

    def plan(self, from_: Offsets, to: Offsets, parallelism: int) -> list[ReadTask]:
        """See `Source`."""
        with self._source() as source:
            return source.plan(from_, to, parallelism)

    def read(self, task: ReadTask) -> Iterator[ReadBatch]:
        """See `Source`."""
        with self._source() as source:
            source.held = self.held
            yield from source.read(task)

    def gone(self, held: pa.RecordBatch, task: ReadTask) -> ReadBatch:
        """See `Source`."""
        with self._source() as source:
            return source.gone(held, task)
