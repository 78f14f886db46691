"""Rows are made into messages ahead of their client, piece by piece, on threads that all connections share.

While a client takes a piece the next ones are made: several side by side for a client that is faster than making
them, one for a client that is slower. All connections together hold `MADE_BYTES` that way; what is more is made in
small pieces, each when its client has taken the one before.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeAlias

import pyarrow as pa

MADE_BYTES: Final = 64 << 20
"""About how much memory pieces take that are made ahead, or are being sent, in all connections of a process."""
PIECE_ROWS: Final = 8192
PIECE_BYTES: Final = 1 << 20
"""Rows, and bytes of them, that are made into messages together."""
_SCANTY: Final = 16
"""Which part of that it is where the memory is used up."""
_BESIDE_ROWS: Final = 1024
"""Rows from which on another thread makes them: the way there and back costs more than a few rows do."""
_TAKEN: Final = 2
"""How much larger messages are than their rows, about. Making them takes more, but only so many threads do that."""
_MOST_THREADS: Final = 4

Data: TypeAlias = bytes | memoryview
Encode: TypeAlias = Callable[[pa.RecordBatch], Iterable[Data]]


class Encoders:
    """Threads that make messages, and how much memory may be used for what is made ahead. Any thread may use it."""

    def __init__(self, most_bytes: int = MADE_BYTES, threads: int | None = None) -> None:
        self._threads = threads or min(_MOST_THREADS, _cores())
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._left = most_bytes

    @property
    def left(self) -> int:
        """Bytes that may still be taken for pieces."""
        return self._left

    def encoded(self, batches: Iterable[pa.RecordBatch], encode: Encode) -> Generator[Sequence[Data]]:
        """The messages of all rows, in order, in pieces. To be closed where it is not read to its end.

        From the second piece on rows are read ahead, so it is not for what waits for more to happen.
        """
        ahead, pieces = 0, deque[_Piece]()
        try:
            for rows, taken in self._cut(batches):
                pieces.append(_Piece(self, rows, taken, encode))
                while len(pieces) > (ahead if taken else 0):
                    piece = pieces[0]
                    ahead = max(ahead - 1, 1) if piece.is_made else min(ahead + 1, self._threads + 1)
                    yield piece.messages()
                    pieces.popleft().forget()
            while pieces:
                yield pieces[0].messages()
                pieces.popleft().forget()
        finally:
            for piece in pieces:
                piece.forget()

    def _cut(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Pieces of rows, with how much memory was taken for each; none where there is none left."""
        for batch in batches:
            while batch.num_rows:
                piece = batch.slice(0, piece_rows(batch))
                taken = self._take(_TAKEN * piece.nbytes)
                if not taken:
                    piece = batch.slice(0, piece_rows(batch, _SCANTY))
                yield piece, taken
                batch = batch.slice(piece.num_rows)

    def _take(self, size: int) -> int:
        """So many bytes; 0 where they are not left."""
        with self._lock:
            if size > self._left:
                return 0
            self._left -= size
            return size

    def give_back(self, taken: int) -> None:
        """Memory that was taken is free again."""
        with self._lock:
            self._left += taken

    def submit(self, make: Callable[[], list[Data]]) -> Future[list[Data]] | None:
        """Have one of the threads make it; None where the system has none."""
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._threads, "headrace-encode")
        try:
            return self._pool.submit(make)
        except RuntimeError:
            return None


class _Piece:
    """Rows that are being made into messages; those for which no memory was left when they are asked for."""

    def __init__(self, encoders: Encoders, rows: pa.RecordBatch, taken: int, encode: Encode) -> None:
        self._encoders = encoders
        self._taken = taken
        make = lambda: list(encode(rows))  # noqa: E731
        self._made = encoders.submit(make) if taken and rows.num_rows >= _BESIDE_ROWS else None
        self._make: Callable[[], list[Data]] | None = make if self._made is None else None

    @property
    def is_made(self) -> bool:
        """Whether nobody has to wait for it."""
        return self._made is None or self._made.done()

    def messages(self) -> list[Data]:
        """The messages. Raises what making them does."""
        if self._made is not None:
            return self._made.result()
        make, self._make = self._make, None
        assert make is not None
        return make()

    def forget(self) -> None:
        """Let go of it, wherever it is."""
        made, self._made, self._make = self._made, None, None
        if made is not None:
            made.cancel()
        self._encoders.give_back(self._taken)


def cut(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows in pieces that are made into messages together."""
    for batch in batches:
        while batch.num_rows:
            piece = batch.slice(0, piece_rows(batch))
            yield piece
            batch = batch.slice(piece.num_rows)


def piece_rows(batch: pa.RecordBatch, part: int = 1) -> int:
    """How many of a batch's rows make a piece, all pieces of it being about as large; or a part of one."""
    rows = batch.num_rows
    most = max(1, min(PIECE_ROWS // part, PIECE_BYTES // part * rows // max(batch.nbytes, 1)))
    return -(-rows // -(-rows // most))


def _cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


ENCODERS: Final = Encoders()
"""The encoders of this process."""
