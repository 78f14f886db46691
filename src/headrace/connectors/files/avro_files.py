"""Avro's files (object containers): a header with the schema of all records, and blocks of them, each compressed.

Between blocks stands a mark of the file's own. How many records a block has and how long it is stands before it, so
that rows are counted without a look at them; where one record ends only its decoder knows.
"""

from __future__ import annotations

import bz2
import json
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from typing import IO, Final, NamedTuple

import pyarrow as pa

from headrace.common.lazy_dataclass import dataclass
from headrace.connectors.declared import needed_module
from headrace.connectors.kafka.avro_columns import AvroType
from headrace.errors import NotSupported, SourceError

MAX_BLOCK_BYTES: Final = 128 << 20
"""A longer block is an error, compressed or not: it has to fit in memory several times."""
_MAGIC: Final = b"Obj\x01"
_MARK_BYTES: Final = 16
_MOST_BYTES: Final = 10
"""Of a number."""
_CRC_BYTES: Final = 4


class Block(NamedTuple):
    """Records that stand together."""

    first: int
    """How many records of the file come before them."""
    rows: int
    data: bytes | None
    """As it is stored; None where it was not asked for."""


class _Damaged(Exception):
    """What was read is no such file, or not all of it."""


@dataclass
class AvroFile:
    """A file that is read in turn. Every method raises `SourceError` for one that is not whole, or is none."""

    path: str
    _stream: IO[bytes]
    _parsed: AvroType = None

    def __post_init__(self) -> None:
        try:
            if self._exactly(len(_MAGIC)) != _MAGIC:
                raise _Damaged("it does not begin as one")
            found = {name: value for items in self._items() for name, value in items}
            self._mark = self._exactly(_MARK_BYTES)
            self.schema: AvroType = json.loads(found["avro.schema"])
            """As it is written."""
            self._codec = found.get("avro.codec", b"null").decode()
        except (_Damaged, KeyError, ValueError) as error:
            raise self._failure(error) from error
        if self._codec not in _CODECS:
            raise NotSupported(
                f"the compression {self._codec} of the Avro file {self.path}", hint=f"one of {', '.join(_CODECS)}"
            )

    @property
    def names(self) -> list[str]:
        """The fields of its records."""
        if not isinstance(self.schema, dict) or self.schema.get("type") != "record":
            raise SourceError(f"file {self.path} has no records, but values of another type of Avro's")
        return [field["name"] for field in self.schema["fields"]]

    def rows(self) -> int:
        """How many records there are."""
        return sum(block.rows for block in self.blocks(0, 0))

    def blocks(self, start: int, stop: int) -> Iterator[Block]:
        """All blocks, of which those with a record of [start, stop) have their data."""
        first = 0
        try:
            while (rows := self._number(at_end=True)) is not None:
                size = self._number()
                if size is None or rows < 0 or not 0 <= size <= MAX_BLOCK_BYTES:
                    raise _Damaged("a block is too large" if size and size > MAX_BLOCK_BYTES else "a block is damaged")
                wanted = first < stop and start < first + rows
                data = self._exactly(size) if wanted else None
                if data is None:
                    self._stream.seek(size, 1)
                if self._exactly(_MARK_BYTES) != self._mark:
                    raise _Damaged("a block does not end where it says")
                yield Block(first, rows, data)
                first += rows
        except _Damaged as error:
            raise self._failure(error) from error

    def records(self, block: Block) -> Iterator[Mapping[str, object]]:
        """The records of a block that was asked for, decoded."""
        assert block.data is not None
        fastavro = needed_module("fastavro", "avro")
        try:
            if self._parsed is None:
                self._parsed = fastavro.parse_schema(self.schema)
            stream = BytesIO(_CODECS[self._codec](block.data))
            for left in range(block.rows - 1, -1, -1):
                record = fastavro.schemaless_reader(stream, self._parsed, None)
                if not left and stream.read(1):
                    raise _Damaged(f"the block behind record {block.first} has more than its records")
                yield record
        except Exception as error:  # whatever bytes that are none of the schema lead to
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> SourceError:
        return SourceError(f"file {self.path} is not a whole Avro file: {str(error) or type(error).__name__}")

    def _exactly(self, count: int) -> bytes:
        found = self._stream.read(count)
        if len(found) < count:
            raise _Damaged("it ends too early")
        return found

    def _number(self, *, at_end: bool = False) -> int | None:
        """A number of variable length; None where the file ends before it, if it may."""
        found = 0
        for place in range(_MOST_BYTES):
            octet = self._stream.read(1)
            if not octet:
                if at_end and not place:
                    return None
                raise _Damaged("it ends too early")
            found |= (octet[0] & 0x7F) << (7 * place)
            if octet[0] < 0x80:
                return (found >> 1) ^ -(found & 1)
        raise _Damaged("a number is too long")

    def _items(self) -> Iterator[list[tuple[str, bytes]]]:
        """What the header says, some items at a time."""
        while count := self._number():
            if count < 0:  # then the bytes of the items are told, too
                self._number()
            yield [(self._piece().decode(), self._piece()) for _ in range(abs(count))]

    def _piece(self) -> bytes:
        size = self._number()
        if size is None or not 0 <= size <= MAX_BLOCK_BYTES:
            raise _Damaged("its header is damaged")
        return self._exactly(size)


def _bounded(found: bytes) -> bytes:
    if len(found) > MAX_BLOCK_BYTES:
        raise _Damaged("a block is too large")
    return found


def _snappy(data: bytes) -> bytes:
    """What a checksum follows; how long the text is stands at the beginning."""
    size = 0
    for place, octet in enumerate(data[:_MOST_BYTES]):
        size |= (octet & 0x7F) << (7 * place)
        if octet < 0x80:
            break
    if size > MAX_BLOCK_BYTES:
        raise _Damaged("a block is too large")
    body, checksum = data[:-_CRC_BYTES], data[-_CRC_BYTES:]
    found: bytes = pa.decompress(body, decompressed_size=size, codec="snappy", asbytes=True)
    if zlib.crc32(found).to_bytes(_CRC_BYTES, "big") != checksum:
        raise _Damaged("the checksum of a block is another")
    return found


def _zstd(data: bytes) -> bytes:
    with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
        return _bounded(stream.read(MAX_BLOCK_BYTES + 1))


_CODECS: Final[Mapping[str, Callable[[bytes], bytes]]] = {
    "null": bytes,
    "deflate": lambda data: _bounded(zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, MAX_BLOCK_BYTES + 1)),
    "snappy": _snappy,
    "zstandard": _zstd,
    "bzip2": lambda data: _bounded(bz2.BZ2Decompressor().decompress(data, MAX_BLOCK_BYTES + 1)),
    "xz": lambda data: _bounded(lzma.LZMADecompressor().decompress(data, MAX_BLOCK_BYTES + 1)),
}
"""By their names in headers."""
