"""A directory as an object store: whole objects, put where there is none, on the device before they are named."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from headrace.state.objects import StoredObject, make_directory, prepare_directory, sync_directory


class Directory:
    """A `Transport` over a directory. An object appears under its name at once, and stays after a loss of power."""

    def __init__(self, root: str | os.PathLike[str], *, sync: bool = True) -> None:
        self._root = Path(root).absolute()
        self._sync = sync
        self._ready: set[Path] = set()
        """Folders that are there, durably."""

    def put(self, path: str, data: bytes | BinaryIO, *, create: bool) -> None:
        """See `Transport`. Only new objects are put here."""
        if not create or not isinstance(data, bytes):
            raise ValueError("the objects of a catalog are put once")
        target = self._root / path
        if target.parent not in self._ready:
            (prepare_directory if self._sync else make_directory)(target.parent)
            self._ready.add(target.parent)
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
        try:
            self._write(temporary, data)
            # Unlike a rename this finds out, in the same step, that somebody has got the name.
            os.link(temporary, target)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
        self._flush(target.parent)

    def _write(self, path: Path, data: bytes) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            if self._sync:
                os.fsync(fd)
        finally:
            os.close(fd)

    def _flush(self, folder: Path) -> None:
        if self._sync:
            sync_directory(folder)

    def get(self, path: str, offset: int, length: int) -> object:
        """See `Transport`."""
        with open(self._root / path, "rb") as file:
            file.seek(offset)
            return file.read(min(length, os.fstat(file.fileno()).st_size))

    def head(self, path: str) -> StoredObject:
        """See `Transport`."""
        found = os.stat(self._root / path)
        return StoredObject(path, found.st_size, found.st_mtime)

    def list(self, prefix: str) -> list[StoredObject]:
        """See `Transport`; without objects that are being written."""
        return list(self._walk(prefix))

    def _walk(self, prefix: str) -> Iterator[StoredObject]:
        for folder, _, names in os.walk(self._root / prefix):
            for name in names:
                if name.startswith("."):
                    continue
                path = Path(folder) / name
                with suppress(FileNotFoundError):
                    found = path.stat()
                    yield StoredObject(path.relative_to(self._root).as_posix(), found.st_size, found.st_mtime)

    def delete(self, path: str) -> None:
        """See `Transport`."""
        with suppress(FileNotFoundError):
            os.unlink(self._root / path)
