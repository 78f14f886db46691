"""Prepared statements and portals of one connection."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import pyarrow as pa

from headrace.errors import HeadraceError, InvalidText, NotSupported
from headrace.server.backend import ParameterDescription
from headrace.server.binary import parameter_text
from headrace.server.rows import slices, spread
from headrace.server.wire import ProtocolViolation
from headrace.session.result import Prepared, Result, ResultColumn
from headrace.sql.types import pg_type

_BLANK = re.compile(r"(?:\s|;|--[^\n]*(?:\n|$)|/\*(?:[^*]|\*(?!/))*\*/)*")
_COPY = re.compile(r"copy\b", re.IGNORECASE)
_T = TypeVar("_T")


def is_blank(sql: str) -> bool:
    """Whether there is nothing but white space, comments and semicolons."""
    return _BLANK.fullmatch(sql) is not None


def refuse_copy(sql: str) -> None:
    """Raise `NotSupported` for a COPY statement."""
    start = _BLANK.match(sql)
    if _COPY.match(sql, start.end() if start else 0):
        raise NotSupported(
            "COPY is not supported", hint="Insert many rows with one INSERT, or create a source over the files."
        )


@dataclass
class Statement:
    """A prepared statement; `prepared` is None for an empty one."""

    prepared: Prepared | None
    declared_oids: tuple[int, ...] = ()

    @property
    def columns(self) -> list[ResultColumn] | None:
        """The columns it returns; None for no rows at all."""
        return self.prepared.columns if self.prepared else None

    @property
    def parameter_oids(self) -> tuple[int, ...]:
        """Type OIDs of the parameters: what the client declared, else what was found."""
        found = self.prepared.parameter_types if self.prepared else []
        declared = self.declared_oids
        return tuple(
            declared[i] if i < len(declared) and declared[i] not in (0, 705) else pg_type(kind).oid
            for i, kind in enumerate(found)
        )

    def describe_parameters(self) -> ParameterDescription:
        """The message that tells the parameter types."""
        return ParameterDescription(self.parameter_oids)

    def texts(self, formats: Sequence[int], values: Sequence[bytes | None]) -> list[str | None]:
        """Bound values as text. Raises `HeadraceError` (08P01, 22021, 22P03)."""
        oids = self.parameter_oids
        if len(values) != len(oids):
            raise HeadraceError(
                f"bind message supplies {len(values)} parameters, but the prepared statement requires {len(oids)}",
                sqlstate=ProtocolViolation.sqlstate,
            )
        if len(formats) > 1 and len(formats) != len(values):
            raise HeadraceError(
                f"bind message has {len(formats)} parameter formats but {len(values)} parameters",
                sqlstate=ProtocolViolation.sqlstate,
            )
        forms = spread(formats, len(values)) if values else ()
        return [
            None if v is None else parameter_text(v, oid) if form else checked_text(v)
            for v, oid, form in zip(values, oids, forms, strict=True)
        ]


def checked_text(data: bytes) -> str:
    """Bytes of a text value as text. Raises `InvalidText` (22021)."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidText('invalid byte sequence for encoding "UTF8"', sqlstate="22021") from None
    if "\0" in text:
        raise InvalidText('invalid byte sequence for encoding "UTF8": 0x00', sqlstate="22021")
    return text


@dataclass
class Portal:
    """A statement with its parameters bound, and how far it has been read."""

    statement: Statement
    parameters: list[str | None]
    result_formats: tuple[int, ...]
    result: Result | None = None
    _rest: pa.RecordBatch | None = field(default=None, repr=False)
    _pieces: Iterator[pa.RecordBatch] = field(default_factory=lambda: iter(()), repr=False)
    exhausted: bool = False

    def start(self) -> Result:
        """Run the statement, once. Raises what it raises, and `NotSupported` if its columns have changed."""
        if self.result is not None:
            return self.result
        assert self.statement.prepared is not None
        result = self.statement.prepared.execute(self.parameters)
        expected = self.statement.columns
        if [c.type for c in expected or ()] != [c.type for c in result.columns or ()]:
            close_result(result)
            raise NotSupported("cached plan must not change result type", hint="Prepare the statement again.")
        self.result, self._pieces = result, pieces(result)
        return result

    def read(self, max_rows: int) -> Iterator[pa.RecordBatch]:
        """Batches of the next rows, at most `max_rows` in all; 0 means all. Sets `exhausted` at the end."""
        left = max_rows
        while max_rows == 0 or left > 0:
            batch = self._rest if self._rest is not None else next(self._pieces, None)
            self._rest = None
            if batch is None:
                self.exhausted = True
                return
            if max_rows and batch.num_rows > left:
                self._rest, batch = batch.slice(left), batch.slice(0, left)
            left -= batch.num_rows
            yield batch

    def close(self) -> None:
        """Let go of the rows that were not read."""
        self._rest, self.exhausted = None, True
        if self.result is not None:
            close_result(self.result)


def pieces(result: Result) -> Iterator[pa.RecordBatch]:
    """The result's rows in small batches."""
    for batch in result.batches:
        yield from slices(batch)


def close_result(result: Result) -> None:
    """Tell the producer of a result's rows that no more are wanted."""
    close = getattr(result.batches, "close", None)
    if close is not None:
        with contextlib.suppress(HeadraceError):
            close()


class Named(Generic[_T]):
    """Objects by name, where the empty name may be taken again and others may not."""

    def __init__(self, kind: str, missing_sqlstate: str, duplicate_sqlstate: str):
        self._kind = kind
        self._missing = missing_sqlstate
        self._duplicate = duplicate_sqlstate
        self._items: dict[str, _T] = {}

    def require_free(self, name: str) -> None:
        """Raise `HeadraceError` if a name other than the empty one is taken."""
        if name and name in self._items:
            raise HeadraceError(f'{self._kind} "{name}" already exists', sqlstate=self._duplicate)

    def put(self, name: str, item: _T) -> None:
        """Add, or replace."""
        self._items[name] = item

    def get(self, name: str) -> _T:
        """The object; raises `HeadraceError` if there is none."""
        if name not in self._items:
            raise HeadraceError(f'{self._kind} "{name}" does not exist', sqlstate=self._missing)
        return self._items[name]

    def pop(self, name: str) -> _T | None:
        """Remove; None if there was none."""
        return self._items.pop(name, None)

    def clear(self) -> list[_T]:
        """Remove all and return them."""
        items, self._items = list(self._items.values()), {}
        return items
