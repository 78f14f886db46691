"""Which files a `files` source has, in which order, and whether they are still what they were.

Files are immutable once seen: write elsewhere (or under a name that starts with `.` or `_`) and rename into place.
The order is that of first sight: item by item of `path`, within a directory or glob by (modification time, name);
files that appear later come after all earlier ones. It is recorded in the offsets, so it holds for ever.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import field
from typing import IO

from headrace.common.lazy_dataclass import dataclass
from headrace.connectors.base import Offsets
from headrace.connectors.files.store_access import LOCAL, ContentMark, FileStore
from headrace.errors import SourceError

FORMATS = ("csv", "json", "parquet", "avro")
BY_ROWS = ("parquet", "avro")
"""Formats whose files are taken in by rows; text is by bytes."""
COMPRESSED = (".gz", ".zst")
_EXTENSIONS = {"csv": "csv", "json": "json", "jsonl": "json", "ndjson": "json", "parquet": "parquet", "avro": "avro"}


@dataclass(frozen=True)
class FileState:
    """A file of the source and how far it has been taken in; its JSON form is the position of the split."""

    path: str
    ordinal: int
    """Its place in the order of the files, from 0."""
    size: int
    mtime_ns: int
    row: int = 0
    """Rows of a Parquet or Avro file before the position; records of a text file (the header of a CSV file is one),
    which are estimated where nobody has counted them."""
    byte: int = 0
    """Bytes before the position, of the uncompressed text; 0 for Parquet and Avro. Of a compressed file that was taken
    in without being read it is the file's own size."""
    done: bool = False
    tag: str = ""
    """See `Seen`."""
    total: int = 0
    """Rows of a whole Parquet or Avro file that is taken in by parts; 0 where nobody has looked."""
    store: FileStore = field(default=LOCAL, compare=False, repr=False)
    """Where it is."""

    def to_json(self) -> dict[str, object]:
        """The position as it stands in offsets."""
        found: dict[str, object] = {
            "n": self.ordinal,
            "size": self.size,
            "mtime_ns": self.mtime_ns,
            "row": self.row,
            "byte": self.byte,
            "done": self.done,
        }
        if self.total and not self.done:
            found["rows"] = self.total
        return found | {"tag": self.tag} if self.tag else found

    @property
    def seen(self) -> ContentMark:
        """The content that was seen."""
        return ContentMark(self.size, self.mtime_ns, self.tag)

    def check(self, now: ContentMark) -> None:
        """Raise `SourceError` if the file is no longer the one that was seen."""
        if not self.seen.same(now):
            marks = f", ETag {self.tag} -> {now.tag}" if self.tag else ""
            raise SourceError(
                f"file {self.path} has changed since it was taken in",
                detail=f"size {self.size} -> {now.size}, modified {self.mtime_ns} -> {now.mtime_ns} ns{marks}",
                hint="files of a source are immutable: put new rows into a new file",
            )

    def verify(self) -> None:
        """Raise `SourceError` if the file is gone or has changed."""
        self.check(self.store.look(self.path))

    def opened(self, in_turn: bool = True) -> AbstractContextManager[IO[bytes]]:
        """The file as it was seen, see `FileStore.opened`."""
        return self.store.opened(self.path, self.seen, self.check, in_turn)


def file_states(offsets: Offsets, store: FileStore = LOCAL) -> list[FileState]:
    """The files that `offsets` knows, in order."""
    states = [
        FileState(
            path, p["n"], p["size"], p["mtime_ns"], p["row"], p["byte"], p["done"], p.get("tag", ""),
            p.get("rows", 0), store,
        )
        for path, p in offsets.items()
        if not path.startswith("@")
    ]  # fmt: skip
    return sorted(states, key=lambda state: state.ordinal)


def is_compressed(path: str) -> bool:
    """Whether the text of the file can only be read from its beginning."""
    return path.lower().endswith(COMPRESSED)


def format_of(path: str, declared: str | None) -> str | None:
    """The format of a file: the declared one, else by extension (before `.gz` or `.zst`), else None."""
    if declared is not None:
        return declared
    name = os.path.basename(path).lower()
    for suffix in COMPRESSED:
        name = name.removesuffix(suffix)
    return _EXTENSIONS.get(name.rpartition(".")[2])


def list_files(
    items: Sequence[str], declared: str | None, known: Collection[str] = (), store: FileStore = LOCAL
) -> list[FileState]:
    """The files there are now, each at its beginning, in the order of first sight.

    Raises `SourceError` for an item that does not exist, unless it is `known`.
    """
    found: dict[str, ContentMark] = {}
    for item in items:
        if item in known and not store.exists(item):
            continue
        for path, seen in store.find(item, lambda path: format_of(path, declared) is not None):
            found.setdefault(path, seen)
    return [FileState(path, n, s.size, s.mtime_ns, tag=s.tag, store=store) for n, (path, s) in enumerate(found.items())]


def merge_listing(known: Sequence[FileState], listed: Sequence[FileState]) -> list[FileState]:
    """The known files in their order, then the listed ones that are new.

    Raises `SourceError` for a known file that has changed; one that is gone matters only when it is to be read.
    """
    now = {state.path: state for state in listed}
    for state in known:
        current = now.pop(state.path, None)
        if current is not None and not state.seen.same(current.seen):
            state.verify()
    base = 1 + max((state.ordinal for state in known), default=-1)
    return [*known, *(_at(state, base + n) for n, state in enumerate(now.values()))]


def _at(state: FileState, ordinal: int) -> FileState:
    return FileState(
        state.path, ordinal, state.size, state.mtime_ns, tag=state.tag, store=state.store
    )  # fmt: skip
