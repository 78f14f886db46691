"""Records of text files: where they begin and end, and how to get at a range of bytes of them.

A record is a line; with `multiline` a line break inside double quotes does not end it. Offsets always lie between
two records. Bytes of a compressed file (`.gz`, `.zst`) are those of the uncompressed text, and reaching an offset in
the middle means decompressing what comes before it.

Who binds offsets does not read the text: a file is taken in by its size, and where a limit ends in its middle the place
is estimated from the beginning of the text and moved on to the next line break. Two kinds of files are looked through,
since nothing else tells: compressed ones (so that one that is not whole is never bound; where files appear whole they
are taken in as they are instead), and those in which a limit ends among quoted line breaks.
"""

from __future__ import annotations

import gzip
import io
import math
import zlib
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from operator import itemgetter
from typing import IO, Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.connectors.files.file_listing import FileState, is_compressed
from headrace.connectors.files.store_access import ContentMark
from headrace.errors import SourceError

CHUNK_BYTES = 4 << 20
PROBE_BYTES = 64 << 10
"""Text of a file that is looked at to bind it."""
MAX_RECORD_BYTES = 128 << 20
"""A longer record is an error: it has to fit in memory several times."""
_ZSTD_BYTES = 1 << 20
COMPRESSION = 4
"""How many bytes of text a byte of a compressed file stands for, where nobody has looked."""
BOM = b"\xef\xbb\xbf"

Ends = npt.NDArray[np.int64]
"""Offsets just behind each record, relative to the data at hand."""


@contextmanager
def open_text(state: FileState, start: int) -> Iterator[IO[bytes]]:
    """The file from byte `start` on.

    Raises `SourceError`, also at the end of the block, if it is not (any more) the file that was seen.
    """
    with state.opened() as raw:
        try:
            stream = _text(state.path, raw)
            stream.seek(start)
            yield stream
        except (gzip.BadGzipFile, EOFError, zlib.error, _NotWhole) as error:
            kind = "zstd" if isinstance(error, _NotWhole) else "gzip"
            raise SourceError(f"file {state.path} is not a whole {kind} file: {error}") from error


def _text(path: str, raw: IO[bytes]) -> IO[bytes]:
    """The text of a file, which may be compressed."""
    if path.lower().endswith(".gz"):
        return cast(IO[bytes], gzip.open(raw))
    if path.lower().endswith(".zst"):
        return cast(IO[bytes], io.BufferedReader(_Zstd(raw), _ZSTD_BYTES))
    return raw


class _NotWhole(Exception):
    """Compressed data that ends too early, or is none."""


class _Zstd(io.RawIOBase):
    """The text of a file that is compressed with zstd; it is read in turn."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._stream = pa.CompressedInputStream(pa.PythonFile(raw, "r"), "zstd")
        self._at, self.name = 0, raw.name

    def readable(self) -> bool:
        """It is read."""
        return True

    def seekable(self) -> bool:
        """Onwards only."""
        return True

    def tell(self) -> int:
        """Bytes of text before what is read next."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go on to a place in the text."""
        wanted = offset + (self._at if whence == io.SEEK_CUR else 0)
        if whence == io.SEEK_END or wanted < self._at:
            raise io.UnsupportedOperation("compressed text is read onwards")
        while self._at < wanted and self._take(min(wanted - self._at, _ZSTD_BYTES)):
            pass
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Read the next of the text."""
        data = self._take(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _take(self, most: int) -> bytes:
        try:
            data: bytes = self._stream.read(most)
        except OSError as error:
            if error.errno is not None:  # of the file, not of what is in it
                raise
            raise _NotWhole(str(error)) from error
        self._at += len(data)
        return data


def record_ends(data: bytes, multiline: bool) -> Ends:
    """The ends of the complete records in `data`, which begins with a record."""
    octets = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(octets == 10)
    if multiline and b'"' in data:
        quotes = np.flatnonzero(octets == 34)
        ends = ends[np.searchsorted(quotes, ends) % 2 == 0]
    return ends + 1


def record_chunks(stream: IO[bytes], length: int | None, multiline: bool) -> Iterator[tuple[bytes, Ends]]:
    """Pieces of whole records from the next `length` bytes (None: all), each with the ends of its records.

    The last record of a file needs no line break. Raises `SourceError` for one of more than `MAX_RECORD_BYTES`.
    """
    rest = b""
    while True:
        _check_length(stream, len(rest))
        want = max(CHUNK_BYTES, len(rest))
        if length is not None:
            want = min(want, length)
        more = stream.read(want) if want else b""
        if length is not None:
            length -= len(more)
        data = rest + more
        ends = record_ends(data, multiline)
        if not more:
            if data:
                yield data, ends if len(ends) and ends[-1] == len(data) else np.append(ends, len(data))
            return
        cut = int(ends[-1]) if len(ends) else 0
        if cut:
            yield data[:cut], ends
        rest = data[cut:]


def _check_length(stream: IO[bytes], length: int) -> None:
    if length > MAX_RECORD_BYTES:
        raise SourceError(
            f"file {stream.name} has a record of more than {MAX_RECORD_BYTES >> 20} MiB",
            hint="records end with a line break; one that has none is taken for a single record",
        )


def advance(
    state: FileState, max_records: int | None, multiline: bool, max_bytes: int | None = None
) -> FileState:  # fmt: skip
    """The state after at most `max_records` further records: of a large file that is plain text, about as many.

    They have at most `max_bytes` of text, but for the last one. Raises `SourceError` if the file is gone or has
    changed.
    """
    if is_compressed(state.path):
        return _whole(state) if state.store.remote else _looked_through(state, max_records, multiline, max_bytes)
    found = _advance(state, max_records, multiline)
    if max_bytes is None or found.byte - state.byte <= max_bytes:
        return found
    if multiline:
        return _looked_through(state, max_records, multiline, max_bytes)
    byte = _boundary_before(state, state.byte + max_bytes) or align(state, state.byte + max_bytes)
    records = math.ceil((found.row - state.row) * (byte - state.byte) / (found.byte - state.byte))
    return replace(state, row=state.row + records, byte=byte, done=byte == state.size)


def _advance(state: FileState, max_records: int | None, multiline: bool) -> FileState:
    """The same of what is not compressed, without a limit of bytes."""
    left = state.size - state.byte
    with open_text(state, state.byte) as stream:
        head = stream.read(min(PROBE_BYTES, left))
    ends = record_ends(head, multiline)
    if max_records is not None and len(ends) >= max_records and int(ends[max_records - 1]) < left:
        return replace(state, row=state.row + max_records, byte=state.byte + int(ends[max_records - 1]))
    ended = int(ends[-1]) if len(ends) else 0
    if len(head) == left:
        return replace(state, row=state.row + len(ends) + (ended < left), byte=state.size, done=True)
    record_bytes = ended / len(ends) if len(ends) else len(head)
    records = math.ceil(left / record_bytes)
    if max_records is None or records <= max_records:
        return replace(state, row=state.row + records, byte=state.size, done=True)
    if multiline:
        return _looked_through(state, max_records, multiline)
    byte = align(state, state.byte + math.ceil(max_records * record_bytes))
    return replace(state, row=state.row + max_records, byte=byte, done=byte == state.size)


def _whole(state: FileState) -> FileState:
    """The state after all of a compressed file; how many records it has is guessed from the beginning of its text."""
    with open_text(state, 0) as stream:
        head = stream.read(PROBE_BYTES)
    ends = record_ends(head, False)
    if len(head) < PROBE_BYTES:
        records = len(ends) + (not head.endswith(b"\n") and bool(head))
    else:
        records = math.ceil(state.size * COMPRESSION * max(1, len(ends)) / len(head))
    return replace(state, row=records, byte=state.size, done=True)


def _looked_through(
    state: FileState, max_records: int | None, multiline: bool, max_bytes: int | None = None
) -> FileState:  # fmt: skip
    """The state after exactly `max_records` further records, or those that `max_bytes` allow, found by reading them."""
    row, byte, left = state.row, state.byte, max_records
    length = None if is_compressed(state.path) else state.size - byte
    with open_text(state, byte) as stream:
        for data, ends in record_chunks(stream, length, multiline):
            if max_bytes is not None and byte + len(data) - state.byte > max_bytes:
                within = int(np.searchsorted(ends, max_bytes - (byte - state.byte), side="right"))
                within = max(within, 1 if byte == state.byte else 0)
                left = within if left is None else min(left, within)
            if left is not None and len(ends) > left:
                return replace(state, row=row + left, byte=byte + (int(ends[left - 1]) if left else 0))
            row, byte = row + len(ends), byte + len(data)
            if left is not None:
                left -= len(ends)
                if left == 0 and not (length is not None and byte == state.size):
                    return replace(state, row=row, byte=byte)
    return replace(state, row=row, byte=byte, done=True)


def _boundary_before(state: FileState, byte: int) -> int | None:
    """The last boundary between lines closely before `byte`, and behind the state's own; None if there is none."""
    for looked in (PROBE_BYTES, CHUNK_BYTES):
        start = max(state.byte, byte - looked)
        with open_text(state, start) as stream:
            ends = record_ends(stream.read(byte - start), False)
        if len(ends):
            return start + int(ends[-1])
    return None


def align(state: FileState, byte: int) -> int:
    """The first boundary between lines at or after `byte` (above 0) of an uncompressed file."""
    with open_text(state, byte - 1) as stream:
        line_bytes = 0
        while piece := stream.readline(CHUNK_BYTES):
            line_bytes += len(piece)
            _check_length(stream, line_bytes)
            if piece.endswith(b"\n"):
                break
        return byte - 1 + line_bytes


_counted: OrderedDict[tuple[str, ContentMark, bool], list[tuple[int, int]]] = OrderedDict()
"""By file: byte offsets between records, in order, each with the number of records before it."""
_COUNTED_FILES = 64
_MARKS = 1024
"""Offsets that are kept of a file: of more only every other one is."""


def records_before(state: FileState, byte: int, multiline: bool) -> int:
    """How many records there are before a byte offset between two: told by reading what is not known yet.

    So a file is read once, in whatever order its pieces are asked for.
    """
    key = (state.path, state.seen, multiline)
    marks = _counted.pop(key, [(0, 0)])
    at = bisect_right(marks, byte, key=itemgetter(0))
    start, count = marks[at - 1]
    found = []
    if start < byte:
        with open_text(state, start) as stream:
            for data, ends in record_chunks(stream, byte - start, multiline):
                start, count = start + len(data), count + len(ends)
                found.append((start, count))
    marks[at:at] = found
    _counted[key] = marks if len(marks) <= _MARKS else marks[::2]
    while len(_counted) > _COUNTED_FILES:
        _counted.popitem(last=False)
    return count
