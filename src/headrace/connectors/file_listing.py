"""Which files a `files` source has, in which order, and whether they are still what they were.

Files are immutable once seen: write elsewhere (or under a name that starts with `.` or `_`) and rename into place.
Only regular files are files: pipes, devices and links that lead nowhere (or round in a circle) are left alone in
directories and globs, and refused where `path` names one. None of them is ever opened, for that may wait for ever.
The order is that of first sight: item by item of `path`, within a directory or glob by (modification time, name);
files that appear later come after all earlier ones. It is recorded in the offsets, so it holds for ever.
"""

from __future__ import annotations

import errno
import glob
import os
import stat
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.connectors.base import Offsets
from headrace.errors import SourceError

FORMATS = ("csv", "json", "parquet")
_RECURSIVE = "**"
_NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""What the system says of names that have gone, of links that lead nowhere, and of links that lead to each other."""
_EXTENSIONS = {"csv": "csv", "json": "json", "jsonl": "json", "ndjson": "json", "parquet": "parquet"}


@dataclass(frozen=True)
class FileState:
    """A file of the source and how far it has been taken in; its JSON form is the position of the split."""

    path: str
    ordinal: int
    """Its place in the order of the files, from 0."""
    size: int
    mtime_ns: int
    row: int = 0
    """Rows of a Parquet file before the position; records of a text file (the header of a CSV file is one), which are
    estimated where nobody has counted them."""
    byte: int = 0
    """Bytes before the position, of the uncompressed text; 0 for Parquet."""
    done: bool = False

    def to_json(self) -> dict[str, Any]:
        """The position as it stands in offsets."""
        return {
            "n": self.ordinal,
            "size": self.size,
            "mtime_ns": self.mtime_ns,
            "row": self.row,
            "byte": self.byte,
            "done": self.done,
        }

    def check(self, now: os.stat_result) -> None:
        """Raise `SourceError` if the file is no longer the one that was seen."""
        if not stat.S_ISREG(now.st_mode):
            raise no_regular_file(self.path)
        if (now.st_size, now.st_mtime_ns) != (self.size, self.mtime_ns):
            raise SourceError(
                f"file {self.path} has changed since it was taken in",
                detail=f"size {self.size} -> {now.st_size}, modified {self.mtime_ns} -> {now.st_mtime_ns} ns",
                hint="files of a source are immutable: put new rows into a new file",
            )

    def verify(self) -> None:
        """Raise `SourceError` if the file is gone or has changed."""
        try:
            now = os.stat(self.path)
        except OSError as error:
            raise vanished(self.path, error) from error
        self.check(now)


def vanished(path: str, error: OSError) -> SourceError:
    """The error for a file that cannot be opened any more."""
    return SourceError(
        f"file {path} of the source cannot be read: {error.strerror}",
        hint="put the file back, or recreate the source",
    )


def no_regular_file(path: str) -> SourceError:
    """The error for a pipe, device or directory in the place of a file."""
    return SourceError(f"{path} is not a regular file", hint="a source reads regular files only, no pipes or devices")


def file_states(offsets: Offsets) -> list[FileState]:
    """The files that `offsets` knows, in order."""
    states = [
        FileState(path, p["n"], p["size"], p["mtime_ns"], p["row"], p["byte"], p["done"])
        for path, p in offsets.items()
        if not path.startswith("@")
    ]
    return sorted(states, key=lambda state: state.ordinal)


def split_paths(path: str) -> list[str]:
    """The items of a comma-separated `path`, made absolute."""
    return [os.path.abspath(os.path.expanduser(item.strip())) for item in path.split(",") if item.strip()]


def is_fixed(items: Sequence[str]) -> bool:
    """Whether all items name single files, so that no further file can appear."""
    return not any(os.path.isdir(item) or glob.has_magic(item) for item in items)


def format_of(path: str, declared: str | None) -> str | None:
    """The format of a file: the declared one, else by extension (before `.gz`), else None."""
    if declared is not None:
        return declared
    name = os.path.basename(path).lower().removesuffix(".gz")
    return _EXTENSIONS.get(name.rpartition(".")[2])


def list_files(items: Sequence[str], declared: str | None, known: Collection[str] = ()) -> list[FileState]:
    """The files there are now, each at its beginning, in the order of first sight.

    Raises `SourceError` for an item that does not exist, unless it is `known`.
    """
    found: dict[str, os.stat_result] = {}
    for item in items:
        if item in known and not os.path.exists(item):
            continue
        for path, seen in _item_files(item, declared):
            found.setdefault(path, seen)
    return [FileState(path, n, s.st_size, s.st_mtime_ns) for n, (path, s) in enumerate(found.items())]


def _item_files(item: str, declared: str | None) -> list[tuple[str, os.stat_result]]:
    try:
        if not os.path.isdir(item) and not glob.has_magic(item):
            return [(item, _named_file(item))]
        names = [os.path.join(item, n) for n in os.listdir(item)] if os.path.isdir(item) else matching(item)
        wanted = (p for p in names if not _hidden(p) and format_of(p, declared) is not None)
        files = [(path, found) for path in wanted if (found := _regular(path)) is not None]
    except OSError as error:
        raise vanished(error.filename or item, error) from error
    return sorted(files, key=lambda entry: (entry[1].st_mtime_ns, entry[0]))


def _named_file(path: str) -> os.stat_result:
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise no_regular_file(path)
    return found


def _regular(path: str) -> os.stat_result | None:
    """What is known of a file; None if there is none (any more), or it is something else."""
    try:
        found = os.stat(path)
    except OSError as error:
        if error.errno in _NO_FILE:
            return None
        raise
    return found if stat.S_ISREG(found.st_mode) else None


def _hidden(path: str) -> bool:
    return os.path.basename(path).startswith((".", "_"))


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


def merge_listing(known: Sequence[FileState], listed: Sequence[FileState]) -> list[FileState]:
    """The known files in their order, then the listed ones that are new.

    Raises `SourceError` for a known file that has changed; one that is gone matters only when it is to be read.
    """
    now = {state.path: state for state in listed}
    for state in known:
        current = now.pop(state.path, None)
        if current is not None and (current.size, current.mtime_ns) != (state.size, state.mtime_ns):
            state.verify()
    base = 1 + max((state.ordinal for state in known), default=-1)
    fresh = [FileState(s.path, base + n, s.size, s.mtime_ns) for n, s in enumerate(now.values())]
    return [*known, *fresh]
