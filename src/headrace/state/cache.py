"""Sections of remote objects, unpacked on the local disk: bounded, least recently used first out, for all processes."""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from headrace.common.private_files import is_private
from headrace.errors import CorruptObject, StorageError
from headrace.state.iopool import IoMetrics
from headrace.state.objects import map_object, storage_errors

_LOW_WATER = 0.9
"""What is left of the bound after room was made, so that not every new section has to look at all files."""
_STALE_S = 3600.0
"""Age at which a temporary file counts as left behind by a process that has ended."""


class SectionCache:
    """Files of one directory, each an unpacked section, at most `limit_bytes` together. Safe between processes.

    A file is written under a temporary name and renamed under a lock on the directory, in which the sum of all
    sizes is kept, so that the bound holds at any time. A file that is removed stays readable for those
    who have mapped it. What is put in must have been verified.
    """

    def __init__(
        self, directory: str | os.PathLike[str], limit_bytes: int, metrics: IoMetrics, *, private: bool = False
    ) -> None:
        self._folder = Path(directory)
        self._limit = limit_bytes
        self._metrics = metrics
        self._private = private
        """Whether the directory is in a place where anybody may make one of its name."""

    def map(self, key: str, length: int) -> memoryview | None:
        """The section, mapped, and marked as used now; None if it is not there, or not of that length."""
        try:
            self._check()
            view = map_object(self._folder, _name(key), 0, length)
        except (CorruptObject, FileNotFoundError):
            self._metrics.add(cache_misses=1)
            return None
        with suppress(OSError):  # removed just now, or on a disk that takes no more writes: it is readable all the same
            os.utime(self._folder / _name(key))
        self._metrics.add(cache_hits=1)
        return view

    def holds(self, key: str, length: int) -> bool:
        """Whether the section is there. It may be gone at the next moment."""
        return _size(self._folder / _name(key)) == length

    def temporary(self) -> Path:
        """A name, free and in the cache's directory, for a file to be admitted."""
        with storage_errors("caching", str(self._folder)):
            self._prepare()
        return self._folder / f".{secrets.token_hex(8)}.tmp"

    def _prepare(self) -> None:
        """Make the directory, or find out that it is not to be trusted."""
        self._folder.mkdir(mode=0o700 if self._private else 0o777, parents=True, exist_ok=True)
        self._check()

    def _check(self) -> None:
        """Raises `StorageError` for a private directory that others could have put, or could put, something into."""
        if not self._private:
            return
        found = os.lstat(self._folder)
        if not stat.S_ISDIR(found.st_mode) or not is_private(found):
            raise StorageError(
                f"the cache directory {self._folder} is no directory that only this user may write to",
                hint="remove it, or give another one as cache_dir",
            )

    def admit(self, key: str, temporary: Path) -> None:
        """Take in a file that holds all of a section. One that is larger than the whole cache is dropped."""
        with storage_errors("caching", key):
            size = temporary.stat().st_size
            if size > self._limit:
                temporary.unlink()
                return
            with self._locked() as fd:
                target = self._folder / _name(key)
                kept = self._with_room(self._total(fd) - _size(target), size, target)
                # In this order: a process that ends in between leaves a sum that is too large, never too small.
                self._store_total(fd, kept + size)
                os.replace(temporary, target)

    def discard(self, key: str) -> None:
        """Forget a section: its file turned out to be damaged."""
        with storage_errors("caching", key), self._locked() as fd:
            target = self._folder / _name(key)
            size = _size(target)
            target.unlink(missing_ok=True)
            self._store_total(fd, self._total(fd) - size)

    def _with_room(self, total: int, size: int, target: Path) -> int:
        """Remove the least recently used files until `size` more bytes fit; the bytes that stay, without `target`."""
        if total + size <= self._limit:
            return total
        files = sorted(_files(self._folder))
        total = sum(s for _, s, path in files if path != target)
        room = max(int(self._limit * _LOW_WATER), size)
        for _, found, path in files:
            if total + size <= room:
                break
            if path != target:
                path.unlink(missing_ok=True)
                total -= found
                self._metrics.add(cache_evictions=1)
        return total

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Exclusive among all processes and threads; gives the descriptor of the locked file."""
        self._prepare()
        fd = os.open(self._folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield fd
        finally:
            os.close(fd)

    def _total(self, fd: int) -> int:
        """The bytes of all files as last counted; without a readable sum they are counted now."""
        text = os.pread(fd, 32, 0).strip()
        return int(text) if text.isdigit() else sum(size for _, size, _ in _files(self._folder))

    def _store_total(self, fd: int, total: int) -> None:
        total = max(total, 0)
        os.pwrite(fd, b"%20d\n" % total, 0)
        self._metrics.cache_bytes = total


def _name(key: str) -> str:
    return hashlib.blake2b(key.encode(), digest_size=16).hexdigest()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _files(folder: Path) -> Iterator[tuple[int, int, Path]]:
    """(last use in nanoseconds, bytes, path) of every cached file; stale temporary ones are removed on the way."""
    stale_ns = time.time_ns() - int(_STALE_S * 1e9)
    for entry in os.scandir(folder):
        with suppress(FileNotFoundError):
            found = entry.stat()
            if not entry.name.startswith("."):
                yield found.st_mtime_ns, found.st_size, Path(entry.path)
            elif entry.name.endswith(".tmp") and found.st_mtime_ns < stale_ns:
                os.unlink(entry.path)
