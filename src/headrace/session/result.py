"""What a statement returns, and what the servers in front of a session may rely on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import field, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import pyarrow as pa

from headrace.catalog.records import ObjectRecord
from headrace.common.lazy_dataclass import dataclass
from headrace.common.zones import Zone, zone_of_setting
from headrace.errors import HeadraceError, NotSupported
from headrace.session.named import ByName
from headrace.sql.copying import CopyFormat


class Origin(NamedTuple):
    """The column of a relation that a result's column is, unchanged: by its oid, and by its number, from 1."""

    relation: int
    number: int


@dataclass(frozen=True)
class ResultColumn:
    """A column of a result; `type` is Spark's simple type string."""

    name: str
    type: str
    origin: Origin | None = None
    """None for what is computed."""
    catalog_type: str | None = None
    """PostgreSQL's type, where that is one of its system catalogs' own."""

    @property
    def told_as(self) -> str:
        """The type that clients are told, and that binary values have: Spark's, or one of the catalogs'."""
        return self.catalog_type or self.type


def columns_of_record(record: ObjectRecord, items: Sequence[tuple[str, str]]) -> list[ResultColumn]:
    """Columns of a relation as those of a result, from (column, name in the result)."""
    at = {column.name: (number, column.type) for number, column in enumerate(record.columns, 1)}
    return [ResultColumn(label, at[name][1], Origin(record.id, at[name][0])) for name, label in items]


def with_origins(
    columns: Sequence[ResultColumn], record: ObjectRecord, items: Sequence[tuple[str | None, str]]
) -> list[ResultColumn]:
    """Computed columns, of which `items` says which of a relation's they are, if it says so of all."""
    if len(items) != len(columns):
        return list(columns)
    number = {column.name: i for i, column in enumerate(record.columns, 1)}
    return [
        column if name is None else replace(column, origin=Origin(record.id, number[name]))
        for column, (name, _) in zip(columns, items)
    ]


@dataclass(frozen=True)
class Notice:
    """A message for the client beside the result."""

    message: str
    severity: str = "NOTICE"
    sqlstate: str = "00000"


class CopySink(Protocol):
    """Where the rows go that a client sends in COPY FROM. Nothing is written before `finish`."""

    @property
    def format(self) -> CopyFormat:
        """How the client writes them."""
        ...

    @property
    def relation(self) -> str:
        """The table's name, for errors."""
        ...

    @property
    def columns(self) -> list[ResultColumn]:
        """The columns of the rows."""
        ...

    @property
    def zone(self) -> Zone:
        """The time zone in which texts of moments are read."""
        ...

    @property
    def required(self) -> frozenset[str]:
        """Columns that may not be null."""
        ...

    def guarded(self) -> AbstractContextManager[None]:
        """For whatever is done for the statement: errors inside are told as the session tells them, and fail it."""
        ...

    def take(self, rows: pa.RecordBatch) -> None:
        """Takes in some rows."""
        ...

    def finish(self) -> Result:
        """Write them, as one change."""
        ...

    def close(self) -> None:
        """Let go of what was taken in; harmless when repeated."""
        ...


@contextmanager
def _unlimited() -> Iterator[Callable[[], None]]:
    """For what may be sent for any time."""
    yield lambda: None


@dataclass
class Result:
    """The outcome of one statement: a tag, perhaps columns and a stream of rows, and notices.

    `columns` is None where the statement returns no rows at all. For a `SELECT` the tag carries no count: whoever
    sends the rows counts them. Rows of COPY TO have the format that they are to be sent in; for COPY FROM there is a
    sink, and the statement goes on until that is finished.
    """

    tag: str
    columns: list[ResultColumn] | None = None
    batches: Iterator[pa.RecordBatch] = field(default_factory=lambda: iter(()))
    notices: list[Notice] = field(default_factory=list)
    binary: bool = False
    """Whether the rows go to the client in binary format though it has not said so."""
    copy: CopyFormat | None = None
    sink: CopySink | None = None
    follows: bool = False
    """Whether rows come as something happens: those that there are do not wait for the next ones, which are not read
    before these are sent, and nothing limits the time of that."""
    stopped: Callable[[], None] = lambda: None
    """Called where rows cannot be sent any more before the last of them was."""
    sending: Callable[[], AbstractContextManager[Callable[[], None]]] = _unlimited
    """What whoever sends the rows is in while doing so. What it gives raises `QueryCanceled` once no more may be sent;
    it is to be called before each piece."""

    def table(self) -> pa.Table:
        """All rows; empties `batches`."""
        batches = []
        with self.sending() as check:
            for batch in self.batches:
                check()
                batches.append(batch)
        if not batches:
            from headrace.common.columns import arrow_type

            return pa.table({c.name: pa.array([], arrow_type(c.type)) for c in self.columns or []})
        return pa.Table.from_batches(batches)

    def rows(self) -> list[tuple[object, ...]]:
        """All rows as Python tuples; empties `batches`."""
        table = self.table()
        return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


@dataclass
class RowResult(Result):
    """The outcome of a query with one row; `batches` has it, too, and makes it when it is asked for."""

    values: tuple[object, ...] = ()
    """As Python objects: texts as `str`, whole numbers as `int`; dates and times may be none that Python has."""


@contextmanager
def closing_if_possible(batches: Iterator[pa.RecordBatch]) -> Iterator[None]:
    """Close a generator at the end of the block; other iterators hold nothing."""
    try:
        yield
    finally:
        close = getattr(batches, "close", None)
        if close is not None:
            close()


@dataclass(frozen=True)
class IdleLimit:
    """How long a client may ask for nothing, and the error by which it is sent away then."""

    seconds: float
    error: HeadraceError
    """The error that tells the client why."""


def shown_zone(session: SessionLike) -> Zone:
    """The time zone in which a client is shown moments: the one that it has been told."""
    return zone_of_setting(session.parameters.get("TimeZone", "UTC"))


class Ready(Protocol):
    """A promise that something will be done; a `Future`, say."""

    def done(self) -> bool:
        """Whether it is."""
        ...

    def add_done_callback(self, call: Callable[[object], object], /) -> None:
        """Have a call made, in whatever thread, once it is done."""
        ...


class Pending(Protocol):
    """A statement that has been started and is finished elsewhere: the client's turn waits for it."""

    @property
    def ready(self) -> Ready:
        """Done when the statement is, whatever came of it."""
        ...

    def finish(self) -> Result:
        """Its result, once it is ready. Raises what the statement does."""
        ...


@runtime_checkable
class Quick(Protocol):
    """A statement that may run on the event loop, because it does not block."""

    @property
    def is_quick(self) -> bool:
        """Whether it can now; else it is to be run the ordinary way."""
        ...

    def start(self, parameters: Sequence[str | None]) -> Result | Pending | None:
        """Run it with text values; None where that turns out to block: it is to be run the ordinary way."""
        ...


class Prepared(Protocol):
    """A statement that has been parsed, with its parameters still open."""

    @property
    def parameter_types(self) -> list[str]:
        """Spark types of the parameters."""
        ...

    @property
    def columns(self) -> list[ResultColumn] | None:
        """The columns it returns; None for no rows at all."""
        ...

    def execute(self, parameters: Sequence[str | None]) -> Result:
        """Run it with text values, one for each `$n`."""
        ...


class SessionLike(Protocol):
    """What a server needs of a session. Calls block; one thread at a time, `cancel` excepted."""

    @property
    def statements(self) -> ByName[Prepared]:
        """Prepared statements by name, whether a message of the protocol made them or `PREPARE`."""
        ...

    find_portal: Callable[[str], object]
    """What a server has under a name that is no cursor's: FETCH and MOVE go for portals, too. None for nothing."""
    drop_portals: Callable[[int], None]
    """What the server does with portals when a transaction ends (0), or goes back to a savepoint, by its number: those
    that were made since then are gone.
    """
    client: str
    """The address of the client; the server says it."""
    number: int
    """Which session it is since the server began, as events and the audit log call it."""

    @property
    def cursors(self) -> ByName[Any]:
        """Cursors by name, which have `columns`."""
        ...

    @property
    def savepoints_made(self) -> int:
        """How many savepoints there have been in the transaction that is open."""
        ...

    @property
    def transaction_status(self) -> str:
        """`I` idle, `T` in a transaction, `E` in a failed one."""
        ...

    @property
    def parameters(self) -> Mapping[str, str]:
        """Settings that a client is told when it connects."""
        ...

    tell: Callable[[Notice], None]
    """What the server has it call, by the thread that runs a statement, for what cannot wait for its end."""

    def greeting(self) -> list[Notice]:
        """What a client is told when it connects."""
        ...

    def idle_limit(self) -> IdleLimit | None:
        """How long the client may now ask for nothing; must not block, any thread."""
        ...

    @property
    def send_limit_s(self) -> float | None:
        """Seconds for which the client may take nothing of what it is sent; any thread."""
        ...

    @property
    def sends_until_s(self) -> float | None:
        """By the monotonic clock, until when the rows that are being sent may be; any thread."""
        ...

    stopped: Callable[[], None]
    """What the server has called, by whatever thread stops what runs: it may be waiting for the client."""

    def expired(self, error: HeadraceError) -> None:
        """The client is being sent away because of such a limit."""
        ...

    def failed(self) -> None:
        """Something has failed that the client has asked for: its transaction fails, too. Must not block."""
        ...

    def begin_request(self) -> None:
        """A cancel that came before is for nothing that is run from now on; must not block, any thread."""
        ...

    def execute(self, sql: str) -> Iterator[Result]:
        """Run a script; one result for each statement, when it is asked for."""
        ...

    def prepare(self, sql: str, parameter_types: Sequence[str | None] = ()) -> Prepared:
        """Parse one statement; types are Spark's, or None where the client left them open."""
        ...

    def cancel(self) -> None:
        """Stop what runs, from another thread."""
        ...

    def close(self) -> None:
        """Let go of everything the session holds."""
        ...


def require_same_types(expected: Sequence[ResultColumn] | None, found: Sequence[ResultColumn] | None) -> None:
    """Raise `NotSupported` unless a prepared statement returns what its client was told that it would."""
    if [column.type for column in expected or ()] != [column.type for column in found or ()]:
        raise NotSupported("cached plan must not change result type", hint="Prepare the statement again.")
