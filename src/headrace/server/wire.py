"""What every message of the protocol is made of: integers, strings, frames. No I/O."""

from __future__ import annotations

import struct
from typing import Final

from headrace.errors import HeadraceError

_INT16: Final = struct.Struct("!h")
_INT32: Final = struct.Struct("!i")

MAX_STARTUP_BYTES: Final = 10_000
"""Longest start-up packet, bytes."""
MAX_SMALL_BYTES: Final = 30_000
"""Longest message of a kind that is short by nature, bytes."""
MAX_MESSAGE_BYTES: Final = 64 << 20
"""Longest message of any kind that a client may send, bytes."""


class ProtocolViolation(HeadraceError):
    """Bytes that are not a message of the protocol, or one that has no place here: the connection ends."""

    sqlstate = "08P01"


def int16(value: int) -> bytes:
    """A signed 16-bit integer."""
    return _INT16.pack(value)


def int32(value: int) -> bytes:
    """A signed 32-bit integer."""
    return _INT32.pack(value)


def cstring(text: str) -> bytes:
    """Text with the zero byte that ends it. Zero bytes within it are left out; what is no UTF-8 becomes `?`."""
    encoded = _encoded(text)
    return (encoded.replace(b"\0", b"") if b"\0" in encoded else encoded) + b"\0"


def _encoded(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


def frame(kind: bytes, body: bytes) -> bytes:
    """A typed message around its body."""
    return kind + _INT32.pack(len(body) + 4) + body


class MessageReader:
    """Reads a message's body from front to back; every shortage is a `ProtocolViolation`."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes):
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        """Bytes not read yet."""
        return len(self._data) - self._at

    def take(self, count: int) -> bytes:
        """The next `count` bytes."""
        if not 0 <= count <= self.left:
            raise ProtocolViolation("message is shorter than what it announces")
        start, self._at = self._at, self._at + count
        return self._data[start : self._at]

    def rest(self) -> bytes:
        """Everything that is left."""
        return self.take(self.left)

    def int16(self) -> int:
        """A signed 16-bit integer."""
        return int(_INT16.unpack(self.take(2))[0])

    def int32(self) -> int:
        """A signed 32-bit integer."""
        return int(_INT32.unpack(self.take(4))[0])

    def count(self, item_bytes: int) -> int:
        """A 16-bit count of items of at least `item_bytes` bytes each; it is unsigned, as PostgreSQL reads it."""
        count = self.int16() & 0xFFFF
        if count * item_bytes > self.left:
            raise ProtocolViolation("message is shorter than what it announces")
        return count

    def cstring(self) -> str:
        """Text up to a zero byte. Bytes that are no UTF-8 become lone surrogates, for the reader to refuse."""
        end = self._data.find(b"\0", self._at)
        if end < 0:
            raise ProtocolViolation("string in message is not terminated")
        start, self._at = self._at, end + 1
        return self._data[start:end].decode("utf-8", "surrogateescape")

    def value(self) -> bytes | None:
        """A value with its length in front; None for NULL."""
        length = self.int32()
        return None if length == -1 else self.take(length)

    def numbers(self, count: int, form: str) -> tuple[int, ...]:
        """So many numbers, as `struct` names their form."""
        packed = struct.Struct(f"!{count}{form}")
        return packed.unpack(self.take(packed.size))

    def values(self, count: int) -> tuple[bytes | None, ...]:
        """So many values, as `value` reads each: there may be tens of thousands."""
        data, at, unpack = self._data, self._at, _INT32.unpack_from
        found: list[bytes | None] = []
        for _ in range(count):
            if at + 4 > len(data):
                raise ProtocolViolation("message is shorter than what it announces")
            (length,) = unpack(data, at)
            at += 4
            if length == -1:
                found.append(None)
                continue
            if not 0 <= length <= len(data) - at:
                raise ProtocolViolation("message is shorter than what it announces")
            found.append(data[at : at + length])
            at += length
        self._at = at
        return tuple(found)

    def end(self) -> None:
        """Check that nothing is left."""
        if self.left:
            raise ProtocolViolation("message is longer than its content")


def value(data: bytes | None) -> bytes:
    """A value with its length in front; None for NULL."""
    return b"\xff\xff\xff\xff" if data is None else _INT32.pack(len(data)) + data
