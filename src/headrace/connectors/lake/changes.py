"""What changes between two contents of a lake table: pure functions of the files that make up each.

A content is the data files of a snapshot, each with what is deleted of it. The difference between two contents needs
no snapshot in between, so it does not matter how one became the other: by rows that were added, files that were
written anew, rows that were marked as deleted, or by going back to an older snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, Final, TypeAlias

from headrace.common.lazy_dataclass import dataclass
from headrace.connectors.base import ReadTask

Deletes: TypeAlias = list[Any]
"""JSON: what says which rows of a file are deleted. Equal ones delete the same rows."""
MOST_BYTES: Final = 1 << 30
"""So much of files is taken in at once, and always one file."""


@dataclass(frozen=True)
class LakeFile:
    """A data file of a table."""

    path: str
    rows: int
    """About how many it has."""
    size: int
    """In bytes."""
    age: int = 0
    """Files that came earlier have a smaller one."""
    deletes: Deletes = field(default_factory=list)
    detail: Mapping[str, Any] = field(default_factory=dict)
    """JSON: what else has to be known to read it."""


Content: TypeAlias = Mapping[str, LakeFile]
"""Data files by their paths."""


@dataclass(frozen=True)
class Commit:
    """What made a snapshot of the one before."""

    at: int
    """The snapshot, or version."""
    rows: int
    """About how many rows it has added and deleted."""
    replaces: bool
    """It has laid out rows in other files, and changed none."""


@dataclass(frozen=True)
class Piece:
    """A file of which rows come, go, or both."""

    file: LakeFile
    was: Deletes | None
    """What was deleted of it; None where it was not there."""
    now: Deletes | None
    """What is deleted of it now; None where it is there no more."""

    @property
    def removes(self) -> bool:
        """Whether it may take rows back."""
        return self.was is not None


def in_order(content: Content) -> list[LakeFile]:
    """The files of a content, in the order in which they are taken in."""
    return sorted(content.values(), key=lambda f: (f.age, f.path))


def beginning(content: Content, count: int) -> Content:
    """The first files of a content."""
    return {f.path: f for f in in_order(content)[:count]}


def admitted(files: Sequence[LakeFile], begin: int, limit: int | None, most_bytes: int | None = None) -> int:
    """Up to which file to go from `begin` on, within limits; at least one file further, if there is one."""
    most_bytes = MOST_BYTES if most_bytes is None else most_bytes
    rows = size = 0
    for i in range(begin, len(files)):
        rows, size = rows + files[i].rows, size + files[i].size
        if i > begin and ((limit is not None and rows > limit) or size > most_bytes):
            return i
    return len(files)


def followed(commits: Sequence[Commit], limit: int | None) -> list[Commit]:
    """The commits that are taken in next: such as replace rows apart from others, and whole ones within a limit."""
    if not commits:
        return []
    taken: list[Commit] = []
    rows = 0
    for commit in commits:
        rows += commit.rows
        ends = commit.replaces != commits[0].replaces
        if taken and (ends or (not commit.replaces and limit is not None and rows > limit)):
            break
        taken.append(commit)
    return taken


def differences(before: Content, after: Content) -> list[Piece]:
    """What has to be read to get from one content to another; what comes first, each in order."""
    come = [f for f in in_order(after) if f.path not in before or before[f.path].deletes != f.deletes]
    gone = [f for f in in_order(before) if f.path not in after]
    found = [Piece(f, before[f.path].deletes if f.path in before else None, f.deletes) for f in come]
    return found + [Piece(f, f.deletes, None) for f in gone]


def rows_of(pieces: Iterable[Piece]) -> int:
    """Return about how many rows pieces have."""
    return sum(p.file.rows for p in pieces)


def bytes_of(pieces: Iterable[Piece]) -> int:
    """Return how many bytes the files of pieces have."""
    return sum(p.file.size for p in pieces)


def tasks_of(
    pieces: Sequence[Piece], parallelism: int, common: Mapping[str, Any], ends: Callable[[LakeFile], Sequence[int]]
) -> list[ReadTask]:
    """Return tasks that read pieces, of about as many rows each.

    `ends` tells after which rows a file can be cut, in order, its last row among them; none where it is read whole.
    It is asked for files that are larger than a task.
    """
    share = -(-rows_of(pieces) // max(parallelism, 1))
    tasks: list[ReadTask] = []
    room = 0
    for piece in pieces:
        for start, stop in _parts(piece.file.rows, share, ends(piece.file) if piece.file.rows > share else ()):
            if room <= 0:
                tasks.append({**common, "pieces": []})
                room = share
            file = piece.file
            tasks[-1]["pieces"].append(
                {"path": file.path, "was": piece.was, "now": piece.now, "start": start, "stop": stop, **file.detail}
            )
            room -= max(1, (stop or file.rows) - start)
    return tasks


def _parts(rows: int, share: int, ends: Sequence[int]) -> Iterator[tuple[int, int | None]]:
    """Yield ranges of rows of a file; the last one reaches to its end, wherever that is."""
    start = 0
    for end in ends[:-1]:
        if end - start >= share and end < rows:
            yield start, end
            start = end
    yield start, None
