"""Lines in the order of their bytes, as many as there are: sorted in memory, or in files that are merged.

A line is one row as JSON, which has no line breaks of its own.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from heapq import merge
from pathlib import Path
from typing import IO, Final

from headrace.state.objects import storage_errors

SORTED_BYTES: Final = 32 << 20
"""Of lines that are in memory at once, about."""


class SortedLines:
    """All of some lines, sorted, to be gone through once; a context manager that lets go of them.

    Raises `DiskFull` and `StorageError` where the disk does not take them.
    """

    def __init__(self, lines: Iterable[bytes], folder: Path | None) -> None:
        """`folder` is where files may be made, which have no names; None for where the system has such."""
        self._files: list[IO[bytes]] = []
        self._last: list[bytes] = []
        try:
            size = 0
            for line in lines:
                if size > SORTED_BYTES:
                    self._put_away(folder)
                    size = 0
                self._last.append(line)
                size += len(line)
        except BaseException:
            self.close()
            raise
        self._last.sort()

    def __enter__(self) -> SortedLines:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[bytes]:
        return merge(self._last, *(_lines(file) for file in self._files))

    def close(self) -> None:
        """Let go of them."""
        self._last = []
        while self._files:
            self._files.pop().close()

    def _put_away(self, folder: Path | None) -> None:
        self._last.sort()
        with storage_errors("sorting", "rows of an epoch"):
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
            self._files.append(file := tempfile.TemporaryFile(dir=folder))  # noqa: SIM115  # closed by `close`
            file.writelines(line + b"\n" for line in self._last)
            file.seek(0)
        self._last = []


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    return (line[:-1] for line in file)
