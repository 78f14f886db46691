"""What a client sends: the messages, and bytes to and from them. No I/O."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import field
from typing import Final, NamedTuple, TypeAlias

from headrace.common.lazy_dataclass import dataclass
from headrace.server.wire import (
    MAX_MESSAGE_BYTES,
    MAX_SMALL_BYTES,
    MAX_STARTUP_BYTES,
    MessageReader,
    ProtocolViolation,
    cstring,
    frame,
    int16,
    int32,
    value,
)

PROTOCOL_3_0: Final = 3 << 16
PROTOCOL_3_2: Final = 3 << 16 | 2
"""From this version on a cancel key may be long."""
_CANCEL, _SSL, _GSSENC = 80877102, 80877103, 80877104
_MAX_SECRET_BYTES = 256
_MAX_ENCRYPTION_REQUESTS = 2


@dataclass(frozen=True, slots=True)
class SslRequest:
    """May the connection be encrypted with TLS?"""

    def encode(self) -> bytes:
        """The packet."""
        return int32(8) + int32(_SSL)


@dataclass(frozen=True, slots=True)
class GssEncRequest:
    """May the connection be encrypted with GSSAPI?"""

    def encode(self) -> bytes:
        """The packet."""
        return int32(8) + int32(_GSSENC)


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """Stop what another connection is doing."""

    pid: int
    secret: bytes

    def encode(self) -> bytes:
        """The packet."""
        return int32(12 + len(self.secret)) + int32(_CANCEL) + int32(self.pid) + self.secret


@dataclass(frozen=True, slots=True)
class Startup:
    """The first real message; `version` is major << 16 | minor."""

    parameters: dict[str, str]
    version: int = PROTOCOL_3_0

    def encode(self) -> bytes:
        """The packet."""
        pairs = b"".join(cstring(name) + cstring(text) for name, text in self.parameters.items())
        return int32(len(pairs) + 9) + int32(self.version) + pairs + b"\0"


@dataclass(frozen=True, slots=True)
class Query:
    """A script to run."""

    sql: str

    def encode(self) -> bytes:
        """The message."""
        return frame(b"Q", cstring(self.sql))


@dataclass(frozen=True, slots=True)
class Parse:
    """Prepare a statement; type OIDs are 0 where left open."""

    name: str
    sql: str
    type_oids: tuple[int, ...] = ()

    def encode(self) -> bytes:
        """The message."""
        oids = b"".join(int32(_signed(oid)) for oid in self.type_oids)
        return frame(b"P", cstring(self.name) + cstring(self.sql) + int16(_short(len(self.type_oids))) + oids)


class Bind(NamedTuple):
    """Make a portal of a prepared statement; formats are 0 for text, 1 for binary."""

    portal: str
    statement: str
    formats: tuple[int, ...] = ()
    values: tuple[bytes | None, ...] = ()
    result_formats: tuple[int, ...] = ()

    def encode(self) -> bytes:
        """The message."""
        parts = [cstring(self.portal), cstring(self.statement), _formats(self.formats)]
        parts += [int16(_short(len(self.values))), *(value(v) for v in self.values), _formats(self.result_formats)]
        return frame(b"B", b"".join(parts))


@dataclass(frozen=True, slots=True)
class Describe:
    """What does a statement (`S`) or portal (`P`) take and return?"""

    kind: str
    name: str

    def encode(self) -> bytes:
        """The message."""
        return frame(b"D", self.kind.encode() + cstring(self.name))


@dataclass(frozen=True, slots=True)
class Close:
    """Let go of a statement (`S`) or portal (`P`)."""

    kind: str
    name: str

    def encode(self) -> bytes:
        """The message."""
        return frame(b"C", self.kind.encode() + cstring(self.name))


@dataclass(frozen=True, slots=True)
class Execute:
    """Run a portal; `max_rows` 0 means all of them."""

    portal: str
    max_rows: int = 0

    def encode(self) -> bytes:
        """The message."""
        return frame(b"E", cstring(self.portal) + int32(self.max_rows))


@dataclass(frozen=True, slots=True)
class Sync:
    """End of a group of messages: recover from an error, and say when ready."""

    def encode(self) -> bytes:
        """The message."""
        return frame(b"S", b"")


@dataclass(frozen=True, slots=True)
class Flush:
    """Send what there is."""

    def encode(self) -> bytes:
        """The message."""
        return frame(b"H", b"")


@dataclass(frozen=True, slots=True)
class Terminate:
    """Goodbye."""

    def encode(self) -> bytes:
        """The message."""
        return frame(b"X", b"")


@dataclass(frozen=True, slots=True)
class Opaque:
    """A message whose content does not matter here: function call, password, copy data."""

    kind: str
    body: bytes = field(repr=False)

    def encode(self) -> bytes:
        """The message."""
        return frame(self.kind.encode(), self.body)


FrontendMessage: TypeAlias = (
    SslRequest
    | GssEncRequest
    | CancelRequest
    | Startup
    | Query
    | Parse
    | Bind
    | Describe
    | Close
    | Execute
    | Sync
    | Flush
    | Terminate
    | Opaque
)


def _signed(number: int) -> int:
    return number - (1 << 32) if number >= 1 << 31 else number


def _short(number: int) -> int:
    return number - (1 << 16) if number >= 1 << 15 else number


def _formats(formats: tuple[int, ...]) -> bytes:
    return int16(_short(len(formats))) + b"".join(int16(f) for f in formats)


def _read_formats(body: MessageReader) -> tuple[int, ...]:
    formats = body.numbers(body.count(2), "h")
    if any(f not in (0, 1) for f in formats):
        raise ProtocolViolation("unknown format code in bind message", hint="0 is text and 1 is binary.")
    return formats


def _parse(body: MessageReader) -> Parse:
    name, sql = body.cstring(), body.cstring()
    return Parse(name, sql, body.numbers(body.count(4), "I"))


def _bind(body: MessageReader) -> Bind:
    portal, statement, formats = body.cstring(), body.cstring(), _read_formats(body)
    values = body.values(body.count(4))
    return Bind(portal, statement, formats, values, _read_formats(body))


def _target(body: MessageReader) -> tuple[str, str]:
    kind = body.take(1)
    if kind not in (b"S", b"P"):
        raise ProtocolViolation("describe and close take a statement (S) or a portal (P)")
    return kind.decode(), body.cstring()


_DECODERS: dict[int, Callable[[MessageReader], FrontendMessage]] = {
    ord("Q"): lambda body: Query(body.cstring()),
    ord("P"): _parse,
    ord("B"): _bind,
    ord("D"): lambda body: Describe(*_target(body)),
    ord("C"): lambda body: Close(*_target(body)),
    ord("E"): lambda body: Execute(body.cstring(), body.int32()),
    ord("S"): lambda body: Sync(),
    ord("H"): lambda body: Flush(),
    ord("X"): lambda body: Terminate(),
    **{ord(kind): (lambda body, kind=kind: Opaque(kind, body.rest())) for kind in "Fpdcf"},  # type: ignore[misc]
}
_LONG = frozenset(b"QPBFd")


_SAME: Final[dict[bytes, FrontendMessage]] = {}
"""Short messages by their bytes: most clients send the same few all the time."""
_SAME_WHOLE: Final[dict[bytes, tuple[FrontendMessage, ...]]] = {}
"""The same of a `Bind` without values and what follows it."""
_SAME_AT_MOST, _SAME_BYTES, _SAME_PARSE_BYTES = 1000, 40, 1000
_KNOWN_FORMATS: Final = frozenset((0, 1))
_COUNT: Final = struct.Struct("!H").unpack_from
_LENGTH: Final = struct.Struct("!i").unpack_from


def _quickly(data: bytes, at: int, stop: int) -> FrontendMessage | None:
    """A whole message of a frequent kind; None for any other, and for what may be wrong: `_typed` says of them all."""
    kind = data[at]
    if kind == 0x42:
        try:
            return _bind_quickly(data, at + 5, stop)
        except (struct.error, ValueError):
            return None
    if kind not in b"DESCH" or stop - at > _SAME_BYTES:
        return None
    raw = data[at:stop]
    return _SAME.get(raw) or _noted(raw, _DECODERS[kind])


def _noted(raw: bytes, decode: Callable[[MessageReader], FrontendMessage]) -> FrontendMessage | None:
    """A whole message, noted by its bytes since it comes again; None for what is none."""
    body = MessageReader(raw[5:])
    try:
        found = decode(body)
        body.end()
    except ProtocolViolation:
        return None
    if len(_SAME) >= _SAME_AT_MOST:
        _SAME.clear()
    _SAME[raw] = found
    return found


def _bind_quickly(data: bytes, at: int, stop: int) -> Bind | None:
    """A `Bind`; None, `struct.error` or `ValueError` for what is none."""
    portal_end = data.index(0, at, stop)
    name_end = data.index(0, portal_end + 1, stop)
    formats, here = _formats_quickly(data, name_end + 1)
    (count,) = _COUNT(data, here)
    here += 2
    values: list[bytes | None] = []
    for _ in range(count):
        (length,) = _LENGTH(data, here)
        here += 4
        if length < -1 or here + length > stop:
            return None
        if length < 0:
            values.append(None)
        else:
            values.append(data[here : here + length])
            here += length
    results, here = _formats_quickly(data, here)
    if here != stop or not (_KNOWN_FORMATS.issuperset(formats) and _KNOWN_FORMATS.issuperset(results)):
        return None
    portal = data[at:portal_end].decode("utf-8", "surrogateescape") if portal_end > at else ""
    name = data[portal_end + 1 : name_end].decode("utf-8", "surrogateescape")
    return Bind(portal, name, formats, tuple(values), results)


def _formats_quickly(data: bytes, at: int) -> tuple[tuple[int, ...], int]:
    """Format codes, and where they end."""
    if data[at : at + 2] == b"\0\0":
        return (), at + 2
    (count,) = _COUNT(data, at)
    return struct.unpack_from(f"!{count}h", data, at + 2), at + 2 + 2 * count


def _rest_of(*messages: FrontendMessage) -> tuple[bytes, tuple[FrontendMessage, ...]]:
    return b"".join(m.encode() for m in messages), messages


_REST: Final[dict[bytes, tuple[FrontendMessage, ...]]] = dict([
    _rest_of(Describe("P", ""), Execute(""), Sync()), _rest_of(Execute(""), Sync()),
])  # fmt: skip
"""What follows a `Bind` as a rule."""


def _bound_whole(data: bytes) -> tuple[FrontendMessage, ...] | None:
    """A `Bind` and what follows it as a rule; None for anything else."""
    if data[:1] != b"B":
        return None
    same = _SAME_WHOLE.get(data)
    if same is not None:
        return same
    stop = 1 + int.from_bytes(data[1:5], "big")
    rest = _REST.get(data[stop:])
    if rest is None:
        return None
    bind = _quickly(data, 0, stop)
    if not isinstance(bind, Bind):
        return None
    found = (bind, *rest)
    if not bind.values and len(data) <= 2 * _SAME_BYTES:  # BEGIN and COMMIT, say, are the same bytes each time
        if len(_SAME_WHOLE) >= _SAME_AT_MOST:
            _SAME_WHOLE.clear()
        _SAME_WHOLE[data] = found
    return found


def _query_quickly(data: bytes) -> Query | None:
    """A `Query` that is all of the bytes; None for anything else."""
    if 1 + int.from_bytes(data[1:5], "big") != len(data) or data.find(0, 5) != len(data) - 1:
        return None
    return Query(data[5:-1].decode("utf-8", "surrogateescape"))


def _parse_quickly(data: bytes) -> Parse | None:
    """A `Parse` that is all of the bytes, if it is short: most clients send the same few all the time."""
    found = _SAME.get(data)
    if found is None and len(data) <= _SAME_PARSE_BYTES:
        found = _noted(data, _parse)
    return found if isinstance(found, Parse) else None


class FrontendDecoder:
    """Bytes from a client in, messages out. The first packets have no type byte, up to and including `Startup`."""

    def __init__(self, max_message_bytes: int = MAX_MESSAGE_BYTES, admitted: Callable[[], bool] = lambda: True):
        """`admitted` tells whether it is known who the client is: who is not yet sends nothing long."""
        self._admitted = admitted
        self._buffer = bytearray()
        self._max_message_bytes = max_message_bytes
        self._encryption_requests = 0
        self.started = False
        """Whether the start-up packet has been seen."""

    @property
    def holds_bytes(self) -> bool:
        """Whether a part of a message has come."""
        return bool(self._buffer)

    def whole(self, data: bytes) -> tuple[FrontendMessage, ...] | None:
        """The messages of bytes that are what clients send most: a `Query`, or a `Bind` and short ones, perhaps with a
        `Parse` before them. None where `feed` is asked.

        None of it is taken in then.
        """
        if not self.started or self._buffer:
            return None
        kind = data[:1]
        if kind == b"Q":
            query = _query_quickly(data)
            return None if query is None else (query,)
        if kind == b"P":
            stop = 1 + int.from_bytes(data[1:5], "big")
            parse = _parse_quickly(data[:stop])
            bound = None if parse is None else _bound_whole(data[stop:])
            return None if parse is None or bound is None else (parse, *bound)
        return _bound_whole(data)

    def feed(self, data: bytes) -> Iterator[FrontendMessage]:
        """Take in bytes; the messages that are now complete.

        Raises `ProtocolViolation`; nothing can be read from the connection after that.
        """
        if self.started and not self._buffer:
            at, end = 0, len(data)
            while at < end:
                stop = at + 1 + int.from_bytes(data[at + 1 : at + 5], "big")
                known = _quickly(data, at, stop) if at + 5 <= stop <= end else None
                if known is None:
                    break
                at = stop
                yield known
            data = data[at:]
        self._buffer += data
        while True:
            message = self._typed() if self.started else self._startup()
            if message is None:
                return
            yield message

    def _startup(self) -> FrontendMessage | None:
        if len(self._buffer) < 4:
            return None
        length = int.from_bytes(self._buffer[:4], "big")
        if not 8 <= length <= MAX_STARTUP_BYTES:
            raise ProtocolViolation("invalid length of start-up packet", hint="This port speaks PostgreSQL's protocol.")
        if len(self._buffer) < length:
            return None
        body = MessageReader(bytes(self._buffer[4:length]))
        del self._buffer[:length]
        return self._startup_message(body)

    def _startup_message(self, body: MessageReader) -> FrontendMessage:
        code = body.int32()
        if code in (_SSL, _GSSENC):
            body.end()
            self._encryption_requests += 1
            if self._encryption_requests > _MAX_ENCRYPTION_REQUESTS:
                raise ProtocolViolation("too many encryption requests")
            return SslRequest() if code == _SSL else GssEncRequest()
        if code == _CANCEL:
            pid = body.int32()
            if not 4 <= body.left <= _MAX_SECRET_BYTES:
                raise ProtocolViolation("invalid length of cancel request")
            return CancelRequest(pid, body.rest())
        self.started = True
        if code >> 16 != 3:
            asked = f"{code >> 16}.{code & 0xFFFF}"
            raise ProtocolViolation(f"unsupported frontend protocol {asked}: this server has 3.0 and 3.2")
        return Startup(_startup_parameters(body), code)

    def _typed(self) -> FrontendMessage | None:
        buffer = self._buffer
        if not buffer:
            return None
        kind = buffer[0]
        decode = _DECODERS.get(kind)
        if decode is None:
            raise ProtocolViolation(f"invalid frontend message type {kind}")
        if len(buffer) < 5:
            return None
        length = int.from_bytes(buffer[1:5], "big")
        short = kind not in _LONG or not self._admitted()
        longest = min(MAX_SMALL_BYTES, self._max_message_bytes) if short else self._max_message_bytes
        if not 4 <= length <= longest:
            raise ProtocolViolation(f"invalid message length {length}: at most {longest} bytes are taken")
        if len(buffer) <= length:
            return None
        body = MessageReader(bytes(buffer[5 : length + 1]))
        del buffer[: length + 1]
        message = decode(body)
        body.end()
        return message


def _startup_parameters(body: MessageReader) -> dict[str, str]:
    parameters: dict[str, str] = {}
    while name := body.cstring():
        parameters[name] = body.cstring()
    body.end()
    return parameters
