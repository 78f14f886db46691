"""Which files a `files` source has, in which order, and whether they are still what they were.

Files are immutable once seen: write elsewhere (or under a name that starts with `.` or `_`) and rename into place.
The order is that of first sight: item by item of `path`, within a directory or glob by (modification time, name);
files that appear later come after all earlier ones. It is recorded in the offsets, so it holds for ever.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.connectors.base import Offsets
from headrace.errors import SourceError

FORMATS = ("csv", "json", "parquet")
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
    """Records before the position (the header of a CSV file is one)."""
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

    def check(self, stat: os.stat_result) -> None:
        """Raise `SourceError` if the file is no longer the one that was seen."""
        if (stat.st_size, stat.st_mtime_ns) != (self.size, self.mtime_ns):
            raise SourceError(
                f"file {self.path} has changed since it was taken in",
                detail=f"size {self.size} -> {stat.st_size}, modified {self.mtime_ns} -> {stat.st_mtime_ns} ns",
                hint="files of a source are immutable: put new rows into a new file",
            )

    def verify(self) -> None:
        """Raise `SourceError` if the file is gone or has changed."""
        try:
            stat = os.stat(self.path)
        except OSError as error:
            raise vanished(self.path, error) from error
        self.check(stat)


def vanished(path: str, error: OSError) -> SourceError:
    """The error for a file that cannot be opened any more."""
    return SourceError(
        f"file {path} of the source cannot be read: {error.strerror}",
        hint="put the file back, or recreate the source",
    )


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
        for path, stat in _item_files(item, declared):
            found.setdefault(path, stat)
    return [FileState(path, n, s.st_size, s.st_mtime_ns) for n, (path, s) in enumerate(found.items())]


def _item_files(item: str, declared: str | None) -> list[tuple[str, os.stat_result]]:
    if os.path.isdir(item):
        candidates = [os.path.join(item, name) for name in os.listdir(item)]
    elif glob.has_magic(item):
        candidates = glob.glob(item, recursive=True)
    else:
        try:
            return [(item, os.stat(item))]
        except OSError as error:
            raise vanished(item, error) from error
    files = []
    for path in candidates:
        if os.path.basename(path).startswith((".", "_")) or format_of(path, declared) is None:
            continue
        try:
            stat = os.stat(path)
        except FileNotFoundError:
            continue  # renamed or deleted since it was listed, and not yet taken in
        if os.path.isfile(path):
            files.append((path, stat))
    return sorted(files, key=lambda entry: (entry[1].st_mtime_ns, entry[0]))


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
