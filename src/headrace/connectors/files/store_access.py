"""Where a source's files are: a file system, or stores of objects (`object_files.py`), behind one interface.

Only regular files are files: pipes, devices and links that lead nowhere (or round in a circle) are left alone in
directories and globs, and refused where `path` names one. None of them is ever opened, for that may wait for ever.
"""

from __future__ import annotations

import errno
import glob
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import IO, Protocol
from urllib.parse import unquote, urlsplit

from headrace.common.lazy_dataclass import dataclass
from headrace.errors import SourceError

_RECURSIVE = "**"
_NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""What the system says of names that have gone, of links that lead nowhere, and of links that lead to each other."""
_FILE_URL = "file://"


@dataclass(frozen=True)
class ContentMark:
    """What tells one content of a file from another."""

    size: int
    mtime_ns: int
    tag: str = ""
    """The store's own name of the content (its ETag), where it has one: then the time does not count."""

    def same(self, other: ContentMark) -> bool:
        """Whether both are the same content."""
        if self.tag or other.tag:
            return (self.size, self.tag) == (other.size, other.tag)
        return (self.size, self.mtime_ns) == (other.size, other.mtime_ns)


class FileStore(Protocol):
    """Files by path. Safe to use from several threads; every method may raise `SourceError`."""

    remote: bool
    """Whether each request takes long. Files appear whole there, so nobody has to look whether one is cut off."""
    most_new: int | None
    """How many new files one binding takes in at most."""

    def split(self, path: str) -> list[str]:
        """The items of a comma-separated `path`, each in the one form that it has in offsets."""

    def is_fixed(self, items: Sequence[str]) -> bool:
        """Whether all items name single files, so that no further file can appear."""

    def exists(self, item: str) -> bool:
        """Whether an item that names a file is there."""

    def find(self, item: str, wanted: Callable[[str], bool]) -> list[tuple[str, ContentMark]]:
        """The files of an item now, those of a directory or glob by (modification time, name) if they are wanted."""

    def look(self, path: str) -> ContentMark:
        """What is known of a file now."""

    def opened(
        self, path: str, seen: ContentMark, check: Callable[[ContentMark], None], in_turn: bool = True
    ) -> AbstractContextManager[IO[bytes]]:
        """The file as it was seen, of which `check` makes sure, from the first byte read to the end of the block.

        It will be read `in_turn`, or else by the exact ranges that are asked for.
        """

    def warm(self, files: Iterable[tuple[str, ContentMark, bool]]) -> None:
        """These files will be looked at next: at their beginnings, or at their ends where that is said."""


class LocalFiles:
    """Files of this machine, or mounted here."""

    remote = False
    most_new: int | None = None

    def split(self, path: str) -> list[str]:
        """See `FileStore`."""
        names = (local_path(item.strip()) for item in path.split(",") if item.strip())
        return [os.path.abspath(os.path.expanduser(name)) for name in names]

    def is_fixed(self, items: Sequence[str]) -> bool:
        """See `FileStore`."""
        return not any(os.path.isdir(item) or glob.has_magic(item) for item in items)

    def exists(self, item: str) -> bool:
        """See `FileStore`."""
        return os.path.exists(item)

    def find(self, item: str, wanted: Callable[[str], bool]) -> list[tuple[str, ContentMark]]:
        """See `FileStore`."""
        try:
            if not os.path.isdir(item) and not glob.has_magic(item):
                return [(item, _seen(item, os.stat(item)))]
            names = [os.path.join(item, n) for n in os.listdir(item)] if os.path.isdir(item) else matching(item)
            found = ((path, _regular(path)) for path in names if not hidden(path) and wanted(path))
            files = [(path, ContentMark(now.st_size, now.st_mtime_ns)) for path, now in found if now is not None]
        except OSError as error:
            raise vanished(error.filename or item, error) from error
        return in_order(files)

    def look(self, path: str) -> ContentMark:
        """See `FileStore`."""
        try:
            return _seen(path, os.stat(path))
        except OSError as error:
            raise vanished(path, error) from error

    @contextmanager
    def opened(
        self, path: str, seen: ContentMark, check: Callable[[ContentMark], None], in_turn: bool = True
    ) -> Iterator[IO[bytes]]:
        """See `FileStore`."""
        try:
            raw = open(path, "rb", opener=_at_once)  # noqa: SIM115
        except OSError as error:
            raise vanished(path, error) from error
        with raw:
            check(_seen(path, os.fstat(raw.fileno())))
            try:
                yield raw
            except OSError as error:
                raise vanished(path, error) from error
            check(_seen(path, os.fstat(raw.fileno())))

    def warm(self, files: Iterable[tuple[str, ContentMark, bool]]) -> None:
        """A disk is near enough."""


LOCAL = LocalFiles()


def in_order(files: Iterable[tuple[str, ContentMark]]) -> list[tuple[str, ContentMark]]:
    """Files of one listing by (modification time, name)."""
    return sorted(files, key=lambda entry: (entry[1].mtime_ns, entry[0]))


def hidden(path: str) -> bool:
    """Whether a file is not meant to be read (yet), as its name says."""
    return path.rpartition("/")[2].startswith((".", "_"))


def vanished(path: str, error: OSError) -> SourceError:
    """The error for a file that cannot be opened any more."""
    return SourceError(
        f"file {path} of the source cannot be read: {error.strerror or error}",
        hint="put the file back, or recreate the source",
    )


def local_path(item: str) -> str:
    """A path, of a URL `file:///path` too."""
    return unquote(urlsplit(item).path) if item.startswith(_FILE_URL) else item


def _at_once(path: str, flags: int) -> int:
    """Open without waiting for the other end of a pipe: it is no file, as its status will tell."""
    return os.open(path, flags | os.O_NONBLOCK)


def _seen(path: str, now: os.stat_result) -> ContentMark:
    if not stat.S_ISREG(now.st_mode):
        hint = "a source reads regular files only, no pipes or devices"
        raise SourceError(f"{path} is not a regular file", hint=hint)
    return ContentMark(now.st_size, now.st_mtime_ns)


def _regular(path: str) -> os.stat_result | None:
    """What is known of a file; None if there is none (any more), or it is something else."""
    try:
        found = os.stat(path)
    except OSError as error:
        if error.errno in _NO_FILE:
            return None
        raise
    return found if stat.S_ISREG(found.st_mode) else None


def matching(pattern: str) -> Iterator[str]:
    """What a glob matches. `**` stands for any number of folders, through links too, but never round in a circle.

    Links to one folder are followed once.
    """
    parts = pattern.split(os.sep)
    if _RECURSIVE not in parts:
        yield from glob.iglob(pattern)
        return
    at = parts.index(_RECURSIVE)
    rest = os.sep.join(parts[at + 1 :]) or "*"
    for base in glob.iglob(os.sep.join(parts[:at]) or os.sep):
        for folder in _folders(base):
            yield from matching(os.path.join(glob.escape(folder), rest))


def _folders(base: str) -> Iterator[str]:
    """A folder and all below it. Links to one folder are followed once: else links among many would never end."""
    followed: set[tuple[int, int]] = set()
    left: list[tuple[str, frozenset[tuple[int, int]]]] = [(base, frozenset())]
    while left:
        path, above = left.pop()
        try:
            found = os.stat(path)
            folder = found.st_dev, found.st_ino
            if not stat.S_ISDIR(found.st_mode) or folder in above:
                continue
            if os.path.islink(path):
                if folder in followed:
                    continue
                followed.add(folder)
            names = sorted(os.listdir(path), reverse=True)
        except OSError as error:
            if error.errno in _NO_FILE:
                continue
            raise
        yield path
        inside = above | {folder}
        left += [(os.path.join(path, name), inside) for name in names if not name.startswith(".")]
