"""What the server sends: the messages, and bytes to and from them. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import field
from functools import lru_cache
from typing import Final, TypeAlias

from headrace.common.lazy_dataclass import dataclass
from headrace.server.wire import MessageReader, ProtocolViolation, cstring, frame, int16, int32, value

ENCRYPTION_REFUSED: Final = b"N"
ENCRYPTION_ACCEPTED: Final = b"S"
"""The one byte that answers a request for encryption."""


@dataclass(frozen=True, slots=True)
class AuthenticationOk:
    """The client is let in."""

    def encode(self) -> bytes:
        """The message."""
        return frame(b"R", int32(0))


@dataclass(frozen=True, slots=True)
class AuthenticationSasl:
    """The client is to prove who it is by one of these mechanisms."""

    mechanisms: tuple[str, ...]

    def encode(self) -> bytes:
        """The message."""
        return frame(b"R", int32(10) + b"".join(map(cstring, self.mechanisms)) + b"\0")


@dataclass(frozen=True, slots=True)
class AuthenticationSaslContinue:
    """The exchange goes on."""

    data: bytes = field(repr=False)

    def encode(self) -> bytes:
        """The message."""
        return frame(b"R", int32(11) + self.data)


@dataclass(frozen=True, slots=True)
class AuthenticationSaslFinal:
    """The server's own proof."""

    data: bytes = field(repr=False)

    def encode(self) -> bytes:
        """The message."""
        return frame(b"R", int32(12) + self.data)


@dataclass(frozen=True, slots=True)
class NegotiateProtocolVersion:
    """The newest version that is on offer, and the protocol options that are not known here."""

    version: int
    """major << 16 | minor, as PostgreSQL sends it and its library reads it, whatever its manual says of that."""
    options: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """The message."""
        return frame(b"v", int32(self.version) + int32(len(self.options)) + b"".join(map(cstring, self.options)))


@dataclass(frozen=True, slots=True)
class ParameterStatus:
    """A setting the client should know."""

    name: str
    value: str

    def encode(self) -> bytes:
        """The message."""
        return frame(b"S", cstring(self.name) + cstring(self.value))


@dataclass(frozen=True, slots=True)
class BackendKeyData:
    """What a cancel request must show."""

    pid: int
    secret: bytes

    def encode(self) -> bytes:
        """The message."""
        return frame(b"K", int32(self.pid) + self.secret)


@dataclass(frozen=True, slots=True)
class ReadyForQuery:
    """The server waits; `status` is I, T or E."""

    status: str

    def encode(self) -> bytes:
        """The message."""
        return frame(b"Z", self.status.encode())


@dataclass(frozen=True, slots=True)
class Field:
    """A column of a row description; `format` is 0 for text, 1 for binary.

    `table_oid` and `column_number` say which column of a relation it is; both are 0 for one that is computed.
    """

    name: str
    type_oid: int
    type_size: int = -1
    typmod: int = -1
    format: int = 0
    table_oid: int = 0
    column_number: int = 0

    def encode(self) -> bytes:
        """The field within its message."""
        where = cstring(self.name) + int32(self.table_oid) + int16(self.column_number)
        return where + int32(self.type_oid) + int16(self.type_size) + int32(self.typmod) + int16(self.format)


@dataclass(frozen=True, slots=True)
class RowDescription:
    """The columns of the rows to come."""

    fields: tuple[Field, ...]

    def encode(self) -> bytes:
        """The message."""
        return frame(b"T", int16(len(self.fields)) + b"".join(field.encode() for field in self.fields))


@dataclass(frozen=True, slots=True)
class DataRow:
    """One row."""

    values: tuple[bytes | None, ...]

    def encode(self) -> bytes:
        """The message."""
        return frame(b"D", int16(len(self.values)) + b"".join(map(value, self.values)))


@dataclass(frozen=True, slots=True)
class ParameterDescription:
    """The types of a prepared statement's parameters."""

    type_oids: tuple[int, ...]

    def encode(self) -> bytes:
        """The message."""
        count = len(self.type_oids)
        oids = b"".join(oid.to_bytes(4, "big") for oid in self.type_oids)
        return frame(b"t", count.to_bytes(2, "big") + oids)


@dataclass(frozen=True, slots=True)
class CommandComplete:
    """A statement is done."""

    tag: str

    def encode(self) -> bytes:
        """The message."""
        return frame(b"C", cstring(self.tag))


@dataclass(frozen=True, slots=True)
class Report:
    """An error (`E`) or a notice (`N`): fields by their one-letter codes, severity S and V, SQLSTATE C, message M."""

    kind: str
    fields: dict[str, str]

    def encode(self) -> bytes:
        """The message."""
        fields = b"".join(code.encode() + cstring(text) for code, text in self.fields.items())
        return frame(self.kind.encode(), fields + b"\0")


@dataclass(frozen=True, slots=True)
class CopyResponse:
    """COPY begins: `G` for rows that the client is to send, `H` for rows that it gets."""

    kind: str
    binary: bool
    columns: int

    def encode(self) -> bytes:
        """The message."""
        formats = int16(int(self.binary)) * self.columns
        return frame(self.kind.encode(), bytes([self.binary]) + int16(self.columns) + formats)


@dataclass(frozen=True, slots=True)
class CopyData:
    """Rows of COPY: one, as this server sends them."""

    body: bytes = field(repr=False)

    def encode(self) -> bytes:
        """The message."""
        return frame(b"d", self.body)


@dataclass(frozen=True, slots=True)
class Bare:
    """A message without content: ParseComplete `1`, BindComplete `2`, CloseComplete `3`, NoData `n`,
    PortalSuspended `s`, EmptyQueryResponse `I`, CopyDone `c`."""

    kind: str

    def encode(self) -> bytes:
        """The message."""
        return frame(self.kind.encode(), b"")


PARSE_COMPLETE: Final = Bare("1")
BIND_COMPLETE: Final = Bare("2")
CLOSE_COMPLETE: Final = Bare("3")
NO_DATA: Final = Bare("n")
PORTAL_SUSPENDED: Final = Bare("s")
EMPTY_QUERY: Final = Bare("I")
COPY_DONE: Final = Bare("c")

READY: Final = {status: ReadyForQuery(status).encode() for status in "ITE"}
"""The bytes of `ReadyForQuery` by its status."""


@lru_cache(maxsize=1000)
def completed(tag: str) -> bytes:
    """The bytes of `CommandComplete`."""
    return CommandComplete(tag).encode()


BackendMessage: TypeAlias = (
    AuthenticationOk
    | AuthenticationSasl
    | AuthenticationSaslContinue
    | AuthenticationSaslFinal
    | NegotiateProtocolVersion
    | ParameterStatus
    | BackendKeyData
    | ReadyForQuery
    | RowDescription
    | DataRow
    | ParameterDescription
    | CommandComplete
    | Report
    | CopyResponse
    | CopyData
    | Bare
)


def _authentication(body: MessageReader) -> BackendMessage:
    method = body.int32()
    match method:
        case 0:
            return AuthenticationOk()
        case 10:
            mechanisms = []
            while mechanism := body.cstring():
                mechanisms.append(mechanism)
            return AuthenticationSasl(tuple(mechanisms))
        case 11:
            return AuthenticationSaslContinue(body.rest())
        case 12:
            return AuthenticationSaslFinal(body.rest())
    raise ProtocolViolation(f"the server asks for authentication method {method}, which this client lacks")


def _negotiate(body: MessageReader) -> NegotiateProtocolVersion:
    version, count = body.int32(), body.int32()
    if not 0 <= count <= body.left:
        raise ProtocolViolation("message is shorter than what it announces")
    return NegotiateProtocolVersion(version, tuple(body.cstring() for _ in range(count)))


def _field(body: MessageReader) -> Field:
    name = body.cstring()
    table_oid, number = body.int32(), body.int16()
    return Field(name, body.int32(), body.int16(), body.int32(), body.int16(), table_oid, number)


def _row_description(body: MessageReader) -> RowDescription:
    return RowDescription(tuple(_field(body) for _ in range(body.count(19))))


def _data_row(body: MessageReader) -> DataRow:
    return DataRow(tuple(body.value() for _ in range(body.count(4))))


def _parameter_description(body: MessageReader) -> ParameterDescription:
    return ParameterDescription(tuple(body.int32() & 0xFFFFFFFF for _ in range(body.count(4))))


def _report(kind: str) -> Callable[[MessageReader], Report]:
    def decode(body: MessageReader) -> Report:
        fields: dict[str, str] = {}
        while (code := body.take(1)) != b"\0":
            fields[code.decode("latin-1")] = body.cstring()
        return Report(kind, fields)

    return decode


def _copy_response(kind: str) -> Callable[[MessageReader], CopyResponse]:
    def decode(body: MessageReader) -> CopyResponse:
        binary = body.take(1) != b"\0"
        columns = body.count(2)
        body.take(2 * columns)
        return CopyResponse(kind, binary, columns)

    return decode


def _bare(kind: str) -> Callable[[MessageReader], Bare]:
    return lambda body: Bare(kind)


_DECODERS: dict[int, Callable[[MessageReader], BackendMessage]] = {
    ord("R"): _authentication,
    ord("v"): _negotiate,
    ord("S"): lambda body: ParameterStatus(body.cstring(), body.cstring()),
    ord("K"): lambda body: BackendKeyData(body.int32(), body.rest()),
    ord("Z"): lambda body: ReadyForQuery(body.take(1).decode("latin-1")),
    ord("T"): _row_description,
    ord("D"): _data_row,
    ord("t"): _parameter_description,
    ord("C"): lambda body: CommandComplete(body.cstring()),
    ord("E"): _report("E"),
    ord("N"): _report("N"),
    ord("G"): _copy_response("G"),
    ord("H"): _copy_response("H"),
    ord("d"): lambda body: CopyData(body.rest()),
    **{ord(kind): _bare(kind) for kind in "123nsIc"},
}


class BackendDecoder:
    """Bytes from a server in, messages out."""

    def __init__(self, max_message_bytes: int = 1 << 30) -> None:
        self._buffer = bytearray()
        self._max_message_bytes = max_message_bytes

    def feed(self, data: bytes) -> Iterator[BackendMessage]:
        """Take in bytes; the messages that are now complete. Raises `ProtocolViolation`."""
        self._buffer += data
        while len(self._buffer) >= 5:
            decode = _DECODERS.get(self._buffer[0])
            length = int.from_bytes(self._buffer[1:5], "big")
            if decode is None or not 4 <= length <= self._max_message_bytes:
                raise ProtocolViolation(f"invalid message from the server, type {self._buffer[0]}, length {length}")
            if len(self._buffer) <= length:
                return
            body = MessageReader(bytes(self._buffer[5 : length + 1]))
            del self._buffer[: length + 1]
            message = decode(body)
            body.end()
            yield message
