"""The server's end of a client that a reading process has: an ordinary connection over a line to that process.

What the client sends comes as it is; what it gets goes in pieces with a head, so that between them the process can be
told how the session stands. As long as nothing has come since, it may answer what it was told of by itself.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast

from headrace.server.connection import Connection
from headrace.server.gate import ClientSocket
from headrace.server.peer import Line
from headrace.server.portals import WireStatement
from headrace.server.readers.news import KnownStatement, SessionRest, data_head, rest_bytes
from headrace.server.readers.publisher import Publisher
from headrace.server.short_way import StatementKey
from headrace.session.result import SessionLike, shown_zone

if TYPE_CHECKING:
    from headrace.session.prepared import PlanBeside

_HEAD: Final = struct.Struct("!I")
_TOLD_AT_MOST: Final = 1_000
"""Statements of a client that its reading process knows."""


def line_head(encrypted: bool, certificate_name: str | None, binding: bytes | None) -> bytes:
    """What a reading process says first on the line of a client: how that has come in."""
    said = {"encrypted": encrypted, "name": certificate_name, "binding": None if binding is None else binding.hex()}
    body = json.dumps(said).encode()
    return _HEAD.pack(len(body)) + body


def client_socket(body: bytes, address: str) -> ClientSocket:
    """What that says, of a client with this address."""
    said = json.loads(body)
    binding = None if said["binding"] is None else bytes.fromhex(said["binding"])
    return ClientSocket(address, said["encrypted"], said["name"], binding)


class _Pieces:
    """A transport that puts a head before whatever is written. All else is that of the transport."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def write(self, data: bytes) -> None:
        """Send a piece of what the client gets."""
        if data:
            self._transport.write(data_head(len(data)) + data)

    def tell(self, rest: SessionRest) -> None:
        """Tell the reading process how the session stands."""
        if not self._transport.is_closing():
            self._transport.write(rest_bytes(rest))

    def __getattr__(self, name: str) -> object:
        found: object = getattr(self._transport, name)
        return found


class ClientStanding:
    """How a connection stands at rest, and what of it its reading process knows. On the event loop."""

    def __init__(self, connection: Connection, publisher: Publisher) -> None:
        self._connection = connection
        self._publisher = publisher
        self._told: dict[StatementKey, tuple[WireStatement, int, int]] = {}
        """What the reading process answers, by name or text; by which meaning of texts and settings it was planned."""
        self._names = -1
        """The version of the session's names as of which that was true."""

    def now(self, received: int) -> SessionRest:
        """How things stand after so many bytes of the client."""
        connection = self._connection
        noted, session = connection.take_noted(), connection.session
        beside = None if session is None or not connection.at_rest else getattr(session, "read_beside", None)
        state = None if beside is None else beside()
        statements: dict[StatementKey, KnownStatement | None] = {}
        if session is not None:
            statements |= self._forgotten(session)
        if session is None or state is None:
            return SessionRest(received, False, 0, 0, statements)
        for name, statement in noted.items():
            if isinstance(name, str) and not _is_named(session, name, statement):
                continue
            give = getattr(statement.prepared, "plan_beside", None)
            found: PlanBeside | None = None if give is None else give()
            meaning = None if found is None else self._publisher.grant(found.relations, found.objects)
            if found is None or meaning is None or self._told.get(name) == (statement, meaning, state.settings):
                continue
            plan = replace(found.plan)  # without what it has worked out for itself
            known = KnownStatement(
                plan, statement.declared_oids, state.zone, shown_zone(session), meaning, state.settings,
                found.rows_at_most,
            )  # fmt: skip
            statements[name], self._told[name] = known, (statement, meaning, state.settings)
        while len(self._told) > _TOLD_AT_MOST:
            oldest = next(iter(self._told))
            del self._told[oldest]
            statements[oldest] = None
        return SessionRest(received, True, state.at_least, state.settings, statements)

    def _forgotten(self, session: SessionLike) -> dict[StatementKey, KnownStatement | None]:
        """The names that stand for something else now."""
        if session.statements.version == self._names:
            return {}
        self._names = session.statements.version
        names = [(name, told[0]) for name, told in self._told.items() if isinstance(name, str)]
        gone = [name for name, statement in names if not _is_named(session, name, statement)]
        for name in gone:
            del self._told[name]
        return dict.fromkeys(gone)


def _is_named(session: SessionLike, name: str, statement: WireStatement) -> bool:
    if not session.statements.has(name):
        return False
    found = session.statements.get(name)
    return found is statement or found is statement.prepared


class PairedLine(Line):
    """The event loop's side of such a line."""

    def __init__(
        self, connected: Callable[[Line, asyncio.StreamWriter], None], loop: asyncio.AbstractEventLoop, address: str,
        publisher: Publisher, closed: Callable[[], None],
    ) -> None:  # fmt: skip
        """`address` is the client's; `closed` is called when the line is cut."""
        super().__init__(connected, loop)
        self._address = address
        self._publisher = publisher
        self._when_cut = closed
        self._head: bytearray | None = bytearray()
        """What has come of the first word; None once that is known."""
        self._received = 0
        self._pieces: _Pieces | None = None
        self._standing: ClientStanding | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The line is there."""
        self._pieces = _Pieces(cast(asyncio.Transport, transport))
        super().connection_made(self._pieces)  # type: ignore[arg-type]
        if self.peer is not None:
            self._standing = ClientStanding(self.peer.connection, self._publisher)
            self.peer.at_rest = self._rest
            self.peer.connection.notes = True

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        if self._head is not None:
            data = self._take_head(data)
        self._received += len(data)
        if data:
            super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """The line is cut."""
        super().connection_lost(exc)
        self._when_cut()

    def _take_head(self, data: bytes) -> bytes:
        """Take in the first word; what comes after it."""
        head = self._head
        assert head is not None
        head += data
        if len(head) < _HEAD.size:
            return b""
        stop = _HEAD.size + _HEAD.unpack_from(head)[0]
        if len(head) < stop:
            return b""
        if self.peer is not None:
            self.peer.connection.wire = client_socket(bytes(head[_HEAD.size : stop]), self._address)
        self._head = None
        return bytes(head[stop:])

    def _rest(self) -> None:
        if self._standing is not None and self._pieces is not None:
            self._pieces.tell(self._standing.now(self._received))
