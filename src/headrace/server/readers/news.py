"""What the server tells its reading processes, and what the two say to each other about a client.

All of it goes over lines that only these processes hold the ends of, so it is pickled.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.catalog.records import ObjectRecord
from headrace.common.lazy_dataclass import dataclass
from headrace.common.zones import Zone
from headrace.server.short_way import StatementKey
from headrace.state.schema import RunRef, TableSchema
from headrace.state.stores import StoreRoot

if TYPE_CHECKING:
    from headrace.session.reading.read_plans import ReadPlan

_LENGTH: Final = struct.Struct("!I")
_HEAD: Final = struct.Struct("!cI")
_REST: Final = struct.Struct("!Q?qQ")
DATA: Final = b"D"
"""Begins a piece of what the client is to be sent."""
REST: Final = b"R"
"""Begins a word on how the client's session stands."""


@dataclass(frozen=True)
class ReaderStart:
    """What a reading process has to know first."""

    number: int
    """Which of the processes it is, from 0."""
    processes: int
    certificate: str | None
    key: str | None
    client_authorities: str | None


@dataclass(frozen=True)
class CatalogOwner:
    """Whose the catalog is, and where the runs are."""

    file: str
    token: int
    root: StoreRoot


class TableEpochs(NamedTuple):
    """Where a table's version stands."""

    committed: int
    safe: int
    """Above it the log of its changes is exact."""


@dataclass(frozen=True)
class TableNews:
    """A table, view or index that may be read from now on."""

    record: ObjectRecord
    schema: TableSchema
    state_table: int
    runs: Mapping[str, RunRef]
    slot: int
    """Where on the board it is noted up to which epoch the table was shown."""
    epochs: TableEpochs


@dataclass(frozen=True)
class News:
    """What a version has that the one before had not. Who knows all up to it knows the version."""

    version: int
    complete: int
    """The newest complete epoch."""
    meaning: int
    """Another number whenever texts may mean something else or be forbidden: by objects, roles, grants, parameters."""
    owner: CatalogOwner | None = None
    tables: Mapping[int, TableNews] = field(default_factory=dict)
    added: Mapping[int, Mapping[str, RunRef]] = field(default_factory=dict)
    """Of each table the runs that have come."""
    removed: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    epochs: Mapping[int, TableEpochs] = field(default_factory=dict)
    """Where the versions of tables stand now that have moved."""
    gone: tuple[int, ...] = ()
    """Tables that are not to be read any more."""


@dataclass(frozen=True)
class KnownStatement:
    """A prepared statement of a client that a reading process may answer."""

    plan: ReadPlan
    oids: tuple[int, ...]
    """Those that the client has declared for its parameters."""
    zone: Zone
    shown_zone: Zone
    meaning: int
    settings: int
    rows_at_most: int = 0
    """How many rows its result may have; 0: any number."""


@dataclass(frozen=True)
class SessionRest:
    """How a client's session stands while nothing is under way in it."""

    received: int
    """Bytes of the client that it has taken in, and answered."""
    free: bool
    """Whether the session keeps nothing that a read beside it would have to know of."""
    at_least: int
    """The epoch of its last write."""
    settings: int
    """Another number whenever a setting has changed."""
    statements: Mapping[StatementKey, KnownStatement | None] = field(default_factory=dict)
    """What the client's names and texts stand for from now on; None for what a reading process does not answer."""


def packed(message: object) -> bytes:
    """A message with its length."""
    body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(body)) + body


def unpacked(buffer: bytearray) -> Iterator[object]:
    """The whole messages at the beginning of a buffer, which are taken from it."""
    while len(buffer) >= _LENGTH.size:
        stop = _LENGTH.size + _LENGTH.unpack_from(buffer)[0]
        if len(buffer) < stop:
            return
        body = bytes(buffer[_LENGTH.size : stop])
        del buffer[:stop]
        yield pickle.loads(body)


def data_head(length: int) -> bytes:
    """What comes before a piece of data."""
    return _HEAD.pack(DATA, length)


def rest_bytes(rest: SessionRest) -> bytes:
    """How a session stands, as it is sent after what came before."""
    body = _REST.pack(rest.received, rest.free, rest.at_least, rest.settings)
    if rest.statements:
        body += pickle.dumps(rest.statements, pickle.HIGHEST_PROTOCOL)
    return _HEAD.pack(REST, len(body)) + body


def pieces_of(buffer: bytearray) -> Iterator[bytes | SessionRest]:
    """The whole pieces at the beginning of a buffer, which are taken from it: data as bytes."""
    at, end = 0, len(buffer)
    try:
        while end - at >= _HEAD.size:
            kind, length = _HEAD.unpack_from(buffer, at)
            start = at + _HEAD.size
            if end - start < length:
                return
            at = start + length
            body = bytes(memoryview(buffer)[start:at])
            yield body if kind == DATA else _rest_of(body)
    finally:
        del buffer[:at]


def _rest_of(body: bytes) -> SessionRest:
    rest = SessionRest(*_REST.unpack_from(body))
    if len(body) == _REST.size:
        return rest
    return SessionRest(rest.received, rest.free, rest.at_least, rest.settings, pickle.loads(body[_REST.size :]))
