"""Records of text files: where they begin and end, and how to get at a range of bytes of them.

A record is a line; with `multiline` a line break inside double quotes does not end it. Offsets always lie between
two records. Bytes of a `.gz` file are those of the uncompressed text, and reaching an offset in the middle means
decompressing what comes before it.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, cast

import numpy as np
import numpy.typing as npt

from headrace.connectors.file_listing import FileState, vanished
from headrace.errors import SourceError

CHUNK_BYTES = 4 << 20
BOM = b"\xef\xbb\xbf"

Ends = npt.NDArray[np.int64]
"""Offsets just behind each record, relative to the data at hand."""


def is_compressed(path: str) -> bool:
    """Whether the text of the file can only be read from its beginning."""
    return path.lower().endswith(".gz")


@contextmanager
def open_text(state: FileState, start: int) -> Iterator[IO[bytes]]:
    """The file from byte `start` on.

    Raises `SourceError`, also at the end of the block, if it is not (any more) the file that was seen.
    """
    try:
        raw = open(state.path, "rb")  # noqa: SIM115
    except OSError as error:
        raise vanished(state.path, error) from error
    with raw:
        state.check(os.fstat(raw.fileno()))
        stream = cast(IO[bytes], gzip.open(raw) if is_compressed(state.path) else raw)  # noqa: SIM115
        try:
            stream.seek(start)
            yield stream
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise SourceError(f"file {state.path} is not a whole gzip file: {error}") from error
        except OSError as error:
            raise vanished(state.path, error) from error
        state.check(os.fstat(raw.fileno()))


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

    The last record of a file needs no line break.
    """
    rest = b""
    while True:
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


def advance(state: FileState, max_records: int | None, multiline: bool) -> FileState:
    """The state after at most `max_records` further records.

    Raises `SourceError` if the file is gone or has changed.
    """
    row, byte, left = state.row, state.byte, max_records
    whole = not is_compressed(state.path)
    with open_text(state, byte) as stream:
        for data, ends in record_chunks(stream, None, multiline):
            if left is not None and len(ends) > left:
                row, byte = row + left, byte + (int(ends[left - 1]) if left else 0)
                return FileState(state.path, state.ordinal, state.size, state.mtime_ns, row, byte)
            row, byte = row + len(ends), byte + len(data)
            if left is not None:
                left -= len(ends)
                if left == 0 and not (whole and byte == state.size):
                    return FileState(state.path, state.ordinal, state.size, state.mtime_ns, row, byte)
    return FileState(state.path, state.ordinal, state.size, state.mtime_ns, row, byte, True)


def align(state: FileState, byte: int) -> int:
    """The first boundary between lines at or after `byte` (above 0) of an uncompressed file."""
    with open_text(state, byte - 1) as stream:
        return byte - 1 + len(stream.readline())


def count_records(state: FileState, start: int, stop: int) -> int:
    """How many lines there are between two byte offsets."""
    with open_text(state, start) as stream:
        return sum(len(ends) for _, ends in record_chunks(stream, stop - start, False))
