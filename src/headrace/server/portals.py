"""Prepared statements and portals of one connection."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from functools import cached_property
from typing import cast

import pyarrow as pa

from headrace.common.lazy_dataclass import dataclass
from headrace.errors import HeadraceError, InvalidText, NotSupported
from headrace.server.backend import NO_DATA, ParameterDescription
from headrace.server.binary import parameter_text
from headrace.server.row_messages import Writer, data_row, row_description, row_writers, spread
from headrace.server.wire import ProtocolViolation
from headrace.session.open_cursors import not_to_be_run
from headrace.session.prepared import PreparedRead, WantedRow
from headrace.session.result import Pending, Prepared, Quick, Result, ResultColumn, require_same_types
from headrace.sql.type_names import pg_type

_BLANK = re.compile(r"(?:\s|;|--[^\n]*(?:\n|$)|/\*(?:[^*]|\*(?!/))*\*/)*")


def is_blank(sql: str) -> bool:
    """Whether there is nothing but white space, comments and semicolons."""
    return _BLANK.fullmatch(sql) is not None


@dataclass
class WireStatement:
    """A prepared statement; `prepared` is None for an empty one."""

    prepared: Prepared | None
    declared_oids: tuple[int, ...] = ()
    _heads: dict[int, bytes] = field(default_factory=dict, repr=False)
    _writers: dict[int, tuple[Writer, ...] | None] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, found: Prepared) -> WireStatement:
        """What a session has under a name: one of the protocol, or one that `PREPARE` made."""
        return found if isinstance(found, WireStatement) else cls(found)

    @property
    def columns(self) -> list[ResultColumn] | None:
        """The columns it returns; None for no rows at all."""
        return self.prepared.columns if self.prepared else None

    @property
    def parameter_types(self) -> list[str]:
        """Spark types of the parameters."""
        return self.prepared.parameter_types if self.prepared else []

    def execute(self, parameters: Sequence[str | None]) -> Result:
        """Run it with text values, one for each `$n`."""
        return self.prepared.execute(parameters) if self.prepared else Result("")

    @cached_property
    def _quick(self) -> Quick | None:
        return self.prepared if isinstance(self.prepared, Quick) else None

    @property
    def is_quick(self) -> bool:
        """Whether it can be run now without blocking whoever runs it."""
        return self._quick is not None and self._quick.is_quick

    @cached_property
    def parameter_oids(self) -> tuple[int, ...]:
        """Type OIDs of the parameters: what the client declared, else what was found."""
        found = self.prepared.parameter_types if self.prepared else []
        declared = self.declared_oids
        return tuple(
            declared[i] if i < len(declared) and declared[i] not in (0, 705) else pg_type(kind).oid
            for i, kind in enumerate(found)
        )

    def described(self, formats: Sequence[int]) -> bytes:
        """The message that tells the columns of a result with at most one format."""
        form = formats[0] if formats else 0
        known = self._heads.get(form)
        if known is None:
            described = NO_DATA if self.columns is None else row_description(self.columns, (form,))
            known = self._heads[form] = described.encode()
        return known

    def begin(self, values: Sequence[str | None], *, together: bool) -> WantedRow | Result | Pending | None:
        """Run it, quick as it is; `together` where a row that it reads may be looked up with those of others.

        None where it turns out to block.
        """
        prepared = self.prepared
        if together and isinstance(prepared, PreparedRead):
            return prepared.begin(values)
        return cast(Quick, prepared).start(values)

    def row(self, values: Sequence[object], formats: Sequence[int]) -> bytes | None:
        """The message with a single row whose values are given as Python objects; None where that takes an array."""
        form = formats[0] if formats else 0
        if form not in self._writers:
            self._writers[form] = row_writers(self.columns or (), form)
        writers = self._writers[form]
        return None if writers is None else data_row(values, writers)

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
        if not any(formats):
            return [None if v is None else checked_text(v) for v in values]
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

    statement: WireStatement
    parameters: list[str | None]
    result_formats: tuple[int, ...]
    since: int = 0
    """How many savepoints there had been in its transaction when it was made."""
    result: Result | None = None
    _rest: pa.RecordBatch | None = field(default=None, repr=False)
    _pieces: Iterator[pa.RecordBatch] = field(default_factory=lambda: iter(()), repr=False)
    exhausted: bool = False
    failed: bool = False
    """Whether it has raised an error: then it is not run again."""
    _started: Callable[[], Result] | None = field(default=None, repr=False)

    @property
    def is_started(self) -> bool:
        """Whether it has been run, or started."""
        return self.result is not None or self._started is not None

    @property
    def holds_rows(self) -> bool:
        """Whether it has begun to give rows and there may be more, which take their time to come or to be let go of."""
        return self.result is not None and self.result.columns is not None and not self.exhausted

    def begin(self) -> Pending | None:
        """Start a quick statement; what is returned has to be ready before `start` takes its result."""
        if self.result is not None or not self.statement.is_quick:
            return None
        started = cast(Quick, self.statement.prepared).start(self.parameters)
        if started is None:
            return None
        self._started = (lambda: started) if isinstance(started, Result) else started.finish
        return None if isinstance(started, Result) else started

    def start(self) -> Result:
        """Run the statement, once. Raises what it raises, and `NotSupported` if its columns have changed."""
        if self.result is not None:
            return self.result
        assert self.statement.prepared is not None
        prepared, started = self.statement.prepared, self._started
        result = prepared.execute(self.parameters) if started is None else started()
        expected = self.statement.columns
        if result.copy is None:
            try:
                require_same_types(expected, result.columns)
            except NotSupported:
                close_result(result)
                raise
        self.result, self._pieces = result, iter(result.batches)
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


class PortalCursor:
    """A portal for FETCH and MOVE, which read it forward."""

    binary = False

    def __init__(self, name: str, portal: Portal) -> None:
        self._name = name
        self._portal = portal
        self.columns = portal.statement.columns or []

    def fetch(self, direction: str, count: int | None) -> Iterator[pa.RecordBatch]:
        """The next rows. Raises `HeadraceError` (55000) for any others."""
        if direction != "forward" or (count is not None and count <= 0):
            raise HeadraceError("cursor can only scan forward", sqlstate="55000")
        if self._portal.failed:
            raise not_to_be_run(self._name)
        self._portal.start()
        return self._portal.read(count or 0)

    def stopped(self) -> None:
        """A FETCH has ended before its client had all rows."""
        self._portal.failed = True


def close_result(result: Result) -> None:
    """Tell the producer of a result's rows that no more are wanted."""
    close = getattr(result.batches, "close", None)
    if close is not None:
        with contextlib.suppress(HeadraceError):
            close()
