"""The changes of an epoch, held to be gone through more than once: in memory, and on local disk where they are many.

What a sink delivers first is all that there is, in one epoch, and one task delivers it. What has to be worked out of an
epoch as a whole is worked out key by key: so it is held in pieces, each with all changes of its keys, and no more than
a piece is in memory at once.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from headrace.errors import HeadraceError
from headrace.state.kernels import concat, stable_order, take
from headrace.state.kernels.hashing import hash_columns
from headrace.state.objects import storage_errors
from headrace.state.spool import RowsFile, read_rows

PIECE_BYTES: Final = 32 << 20
"""Of changes that are in memory at once, about."""
PARTS: Final = 128
"""Into how many files changes go that do not fit, by their keys."""


class HeldChanges:
    """Batches as they were added, and in pieces; a context manager that lets go of them.

    Raises `DiskFull` and `StorageError` where the disk does not take them.
    """

    def __init__(self, folder: Path | None, key: Sequence[str] = ()) -> None:
        """`folder` is where files may be made, else where the system has such; a piece has all changes of a `key`."""
        self._parent, self._key = folder, key
        self._folder: Path | None = None
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._open: dict[int, RowsFile] = {}
        self._files: dict[int, int] = {}
        """Bytes of rows in each file, by its number."""
        self.rows = 0
        """Changes that were added."""

    @classmethod
    def of(cls, batches: Iterable[pa.RecordBatch], folder: Path | None, key: Sequence[str] = ()) -> HeldChanges:
        """All of some batches."""
        with ExitStack() as stack:
            made = stack.enter_context(cls(folder, key))
            for batch in batches:
                made.add(batch)
            stack.pop_all()
        return made

    def __enter__(self) -> HeldChanges:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def add(self, batch: pa.RecordBatch) -> None:
        """Hold a batch, too."""
        self._held.append(batch)
        self.rows += batch.num_rows
        self._held_bytes += batch.nbytes
        if self._held_bytes > PIECE_BYTES:
            self._put_away()

    def clear(self) -> None:
        """Let go of all that was added."""
        self._held, self._held_bytes, self.rows = [], 0, 0
        try:
            self._close()
        except HeadraceError:  # of a full disk, say: nobody reads it any more
            self._open.clear()
        self._files.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for piece in self.pieces():
            yield from piece

    def pieces(self) -> Iterator[list[pa.RecordBatch]]:
        """All changes, again and again: none of them empty, each as large as fits in memory, about."""
        if not self._files:
            if self._held:
                yield list(self._held)
            return
        if self._held:
            self._put_away()
        self._close()
        piece: list[Path] = []
        size = 0
        for number, nbytes in sorted(self._files.items()):
            if piece and size + nbytes > PIECE_BYTES:
                yield [batch for path in piece for batch in read_rows(path)]
                piece, size = [], 0
            piece.append(self._path(number))
            size += nbytes
        yield [batch for path in piece for batch in read_rows(path)]

    def _path(self, number: int) -> Path:
        if self._folder is None:
            with storage_errors("holding changes in", "a folder"):
                if self._parent is not None:
                    self._parent.mkdir(parents=True, exist_ok=True)
                self._folder = Path(tempfile.mkdtemp(prefix="held-", dir=self._parent))
        return self._folder / f"{number}.rows"

    def _put_away(self) -> None:
        """Write what is in memory: by key to where its other changes are, or to a file of its own."""
        rows = concat(self._held, self._held[0].schema)
        self._held, self._held_bytes = [], 0
        if not self._key:
            self._write(len(self._files), rows)
            self._close()
            return
        parts = hash_columns([rows.column(name) for name in self._key]) % PARTS
        order = stable_order([parts])
        rows, parts = take(rows, order), parts[order]
        ends = np.searchsorted(parts, np.arange(PARTS + 1)).tolist()
        for number, (low, high) in enumerate(pairwise(ends)):
            if low < high:
                self._write(number, rows.slice(low, high - low))

    def _write(self, number: int, rows: pa.RecordBatch) -> None:
        if number not in self._open:
            assert number not in self._files, "what is added is added before it is gone through"
            self._open[number] = RowsFile(self._path(number), rows.schema)
        self._open[number].append(rows)
        self._files[number] = self._files.get(number, 0) + rows.nbytes

    def _close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()
