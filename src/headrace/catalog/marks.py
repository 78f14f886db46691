"""What a place says about itself: that its catalog has moved away, or that it holds a copy of another one. Pure.

A catalog is true where neither mark is. `moved` is the tombstone: the place that has it is not the truth any more,
whatever it holds. A `copy` is not the truth either, unless the place that it was copied from says, in its own
tombstone, that it was moved by this very copy: then only the last step of the move is missing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from headrace.catalog.edits import (
    DATABASE_KEY,
    FENCING_KEY,
    FORMAT_VERSION_KEY,
    GENERATION_KEY,
    SEQUENCE_KEY,
    TOMBSTONE_KEY,
)
from headrace.catalog.store import OWNER, PLACE, Row, StoredCatalog, Writes
from headrace.common.lazy_dataclass import dataclass
from headrace.errors import CorruptObject, OperationalError

MOVED: Final = "moved"
"""The key, in `PLACE`, of the mark that says where the catalog has gone."""
ORIGINS: Final = "origins"
"""The key of the places that the catalog has come from, as `CatalogStore.place` calls them, the newest last."""
COPY: Final = "copy"
"""The key, in `PLACE`, of the mark that says of what this is a copy."""


_KEPT_ORIGINS: Final = 10


@dataclass(frozen=True)
class Moved:
    """The tombstone of a place: its catalog has moved `to` another one, and the truth is there."""

    to: str
    move: str
    """Names the move; the same in both places."""
    at_ms: int


@dataclass(frozen=True)
class Copy:
    """The content was copied `source` from another place, by a move that may not have ended, or as a shadow."""

    source: str
    move: str


class NotTheTruth(OperationalError):
    """The catalog of this place is not in use: what it holds is what was left behind, or an unfinished copy."""

    sqlstate = "55000"

    def __init__(self, place: str, truth: str, why: str) -> None:
        super().__init__(
            f"the catalog in {place} is not in use: {why}",
            hint=f"open the one in {truth}; headrace catalog rollback brings it back",
        )
        self.truth = truth


@dataclass(frozen=True)
class CatalogPlace:
    """What `peek` learns of a place without opening its catalog."""

    name: str
    database_id: int = 0
    token: int = 0
    sequence: int = 0
    format_version: int = 0
    moved: Moved | None = None
    copy: Copy | None = None
    owner: str | None = None
    origins: tuple[str, ...] = ()
    generation: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether there is no catalog, or one that nobody has finished making."""
        return self.format_version == 0

    @classmethod
    def of(cls, name: str, loaded: StoredCatalog) -> CatalogPlace:
        """Read the marks. Raises `CorruptObject` for marks that cannot be read or contradict the tombstone."""
        rows = {key: value for collection, key, value in loaded.rows if collection == PLACE}
        config = loaded.config
        try:
            moved = Moved(**json.loads(rows[MOVED])) if MOVED in rows else None
            copy = Copy(**json.loads(rows[COPY])) if COPY in rows else None
            origins = tuple(json.loads(rows.get(ORIGINS, "[]")))
        except (ValueError, TypeError) as error:
            raise CorruptObject(f"the marks of the catalog in {name} cannot be read: {error}") from error
        if (moved is not None) != bool(config.get(TOMBSTONE_KEY, 0)):
            raise CorruptObject(f"the catalog in {name} contradicts itself: its tombstone and its mark do not agree")
        return cls(
            name, config.get(DATABASE_KEY, 0), config.get(FENCING_KEY, 0), config.get(SEQUENCE_KEY, 0),
            config.get(FORMAT_VERSION_KEY, 0), moved, copy, rows.get(OWNER), origins,
            config.get(GENERATION_KEY, 0),
        )  # fmt: skip

    @property
    def is_true(self) -> bool:
        """Whether the catalog in this place is the truth: no mark says otherwise."""
        return self.moved is None and self.copy is None

    def require_truth(self) -> None:
        """Raise `NotTheTruth` where a mark says so."""
        if self.moved is not None:
            raise NotTheTruth(self.name, self.moved.to, f"it has moved to {self.moved.to}")
        if self.copy is not None:
            raise NotTheTruth(self.name, self.copy.source, f"it is a copy of the one in {self.copy.source}")


def was_moved_by(copy: Copy, source: CatalogPlace) -> bool:
    """Whether the place that a copy was made of has been left for that copy."""
    return source.moved is not None and source.moved.move == copy.move


def copied(content: StoredCatalog, mark: Copy, origins: Sequence[str] = ()) -> StoredCatalog:
    """What a place gets that a catalog is copied to: all of the content, the marks of its own."""
    config = {k: v for k, v in content.config.items() if k not in (FENCING_KEY, TOMBSTONE_KEY)}
    rows = (row for row in content.rows if row[0] != PLACE)
    came_from = (PLACE, ORIGINS, json.dumps(list(origins)[-_KEPT_ORIGINS:]))
    return StoredCatalog(config, (*rows, _row(COPY, mark), came_from))


def leaving(mark: Moved) -> Writes:
    """What is written to a place when its catalog has gone: the single step that decides."""
    return Writes((_row(MOVED, mark),), ((PLACE, COPY),), {TOMBSTONE_KEY: 1})


def arriving() -> Writes:
    """What is written to a place that is the truth from now on by itself."""
    return Writes(deletes=((PLACE, COPY), (PLACE, MOVED)), config={TOMBSTONE_KEY: 0})


def _row(key: str, mark: Any) -> Row:
    return (PLACE, key, json.dumps(asdict(mark), separators=(",", ":")))
