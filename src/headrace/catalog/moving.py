"""Moving a catalog between places, and finding the one that is the truth.

The order of the steps is what makes it safe: both sides are fenced before anything is read, the target is replaced in
one step by a copy that nobody takes for the truth, and one write to the source, its tombstone, decides. Before it the
source is the truth, after it the target is; whoever finds the copy asks the source. Any crash leaves one of the two,
and the same move again finishes it or finds it done.

Every place has one decision for itself, so a catalog moves between any two places, in both directions, and following
the marks from any place leads to the truth. Where the copy's mark could not be removed, whoever opens the copy asks
the source whether it was left for this very copy. A source whose own mark still is to be removed is finished first,
because what proves it may lie in the target. `tests/catalog/opener_model.py` lets openers take turns at every request
of both procedures.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import field
from pathlib import Path
from typing import Final

from headrace.catalog.edits import SEQUENCE_KEY
from headrace.catalog.marks import CatalogPlace, Copy, Moved, arriving, copied, leaving, was_moved_by
from headrace.catalog.places import DEFAULTS, PlaceOptions, canonical, open_store, peek
from headrace.catalog.store import (
    FORMAT_VERSION,
    MIGRATIONS,
    PLACE,
    CatalogStore,
    StoredCatalog,
    check_format,
    check_generation,
)
from headrace.common.faults import fault_point
from headrace.common.lazy_dataclass import dataclass
from headrace.errors import CorruptObject, Fenced, InvalidParameter, OperationalError, StorageError

_ATTEMPTS: Final = 20
"""How often a place is looked at again because the catalog moved while it was being opened."""

Told = Callable[[str], None]
"""Is told what happens, in words."""


def _nobody(text: str) -> None:
    pass


@dataclass
class Places:
    """How places are reached: by the locations that are stored in marks, and stand here with their passwords."""

    options: PlaceOptions = DEFAULTS
    locations: Mapping[str, str] = field(default_factory=dict)
    """Stored spelling -> location as it is opened."""
    open_store: Callable[[str], CatalogStore] | None = None
    """Opens other kinds of places than there are."""

    @classmethod
    def known(cls, locations: Sequence[str | Path | None], options: PlaceOptions = DEFAULTS) -> Places:
        """With these locations, which may have passwords."""
        return cls(options, {canonical(at): str(at) for at in locations if at is not None})

    def store(self, stored: str, *, read_only: bool = False) -> CatalogStore:
        """The backend of a place, given in its stored spelling."""
        location = self.locations.get(stored, stored)
        if self.open_store is not None:
            return self.open_store(location)
        return open_store(location, self.options, read_only=read_only)

    def peek(self, stored: str) -> CatalogPlace:
        """What a place says of itself; asks it without opening it."""
        location = self.locations.get(stored, stored)
        try:
            found = peek(location, self.options) if self.open_store is None else self.open_store(location).peek()
            return CatalogPlace.of(stored, found)
        except StorageError as error:
            kind = CorruptObject if isinstance(error, CorruptObject) else StorageError
            raise kind(
                f"the catalog in {stored} cannot be asked: {error.message}", hint=error.hint, detail=error.detail
            ) from error


def find_truth(at: str, places: Places, told: Told = _nobody) -> str:
    """The place where the catalog is that is, or was, in `at`; stored spellings. Opens and fences nothing.

    Raises `StorageError` if a place on the way cannot be asked, `OperationalError` if one has lost what it should hold.
    """
    here, seen = places.peek(at), [at]
    while True:
        if here.moved is not None:
            following, why = here.moved.to, "has moved"
        elif here.copy is not None:
            there = places.peek(here.copy.source)
            if was_moved_by(here.copy, there):
                return here.name
            following, why = here.copy.source, "is a copy"
        else:
            return here.name
        _note(told, here, following, why)
        if following in seen:
            raise OperationalError(
                f"the catalogs in {' and '.join(seen)} all say that another one is in use",
                hint="headrace catalog rollback --force makes one of them the catalog again",
            )
        seen.append(following)
        there = places.peek(following)
        if there.is_empty or there.database_id != here.database_id:
            held = "there is none" if there.is_empty else "that is another database"
            raise OperationalError(
                f"the catalog in {here.name} {why} {'to' if here.moved else 'of'} {following}, but {held}",
                hint="give the right --catalog; headrace catalog rollback --force uses what is left where it was",
            )
        here = there


def _note(told: Told, here: CatalogPlace, following: str, why: str) -> None:
    if why == "has moved":
        told(f"the catalog in {here.name} has moved to {following}, which is used")
    else:
        told(f"the catalog in {here.name} is an unfinished copy of the one in {following}, which is used")


def open_truth(at: str, places: Places, told: Told = _nobody) -> tuple[CatalogStore, StoredCatalog]:
    """Open the catalog that is, or was, in `at`, wherever it is now.

    Raises as `find_truth` and `CatalogStore.open` do.
    """
    for _ in range(_ATTEMPTS):
        at = find_truth(at, places, told)
        store = places.store(at)
        try:
            loaded = store.open(FORMAT_VERSION, MIGRATIONS)
            if _arrived(store, loaded, at, places, told):
                return store, store.load(FORMAT_VERSION)
            if CatalogPlace.of(at, loaded).is_true:
                return store, loaded
        except BaseException:
            store.close()
            raise
        store.close()
    raise OperationalError(f"the catalog in {at} is being moved again and again")


def _arrived(store: CatalogStore, loaded: StoredCatalog, at: str, places: Places, told: Told) -> bool:
    """Whether the last step of a move that was cut short had to be done."""
    place = CatalogPlace.of(at, loaded)
    if place.moved is not None or place.copy is None or not was_moved_by(place.copy, places.peek(place.copy.source)):
        return False
    _arrive(store, loaded)
    told(f"the move of the catalog from {place.copy.source} is finished")
    return True


def _arrive(store: CatalogStore, loaded: StoredCatalog) -> None:
    store.append(arriving(), loaded.config.get(SEQUENCE_KEY, 0))


@dataclass(frozen=True)
class MoveReport:
    """The outcome of a move; of a dry run, the outcome that it would have."""

    source: str
    target: str
    records: int
    done: bool
    """Whether there was anything to do."""


def move(
    source: str, target: str, places: Places, *, told: Told = _nobody, overwrite: bool = False, dry_run: bool = False
) -> MoveReport:
    """Move the catalog that is in `source`, or wherever it has gone from there, to `target`; stored spellings.

    Raises `InvalidParameter` if the target holds another database and `overwrite` is not set; `Fenced` if somebody else
    opened either side meanwhile: then nothing has moved. After any other error, do it again.
    """
    source = find_truth(source, places, told)
    if source == target:
        return _finish(source, places, told)
    here, there = places.peek(source), places.peek(target)
    for place in (here, there):
        check_format(place.format_version, FORMAT_VERSION)
        check_generation(place.generation, places.options.generation)
    _check_target(here, there, overwrite)
    if dry_run:
        return MoveReport(source, target, _count(places, source), True)
    with ExitStack() as closing:
        stores = [places.store(source), places.store(target)]
        for store in stores:
            closing.callback(store.close)
        return _move(source, target, stores[0], stores[1], places, told, overwrite)


def _finish(at: str, places: Places, told: Told) -> MoveReport:
    """The catalog is there already; what a crash may have left of the move is the last step."""
    if places.peek(at).copy is not None:
        store, _ = open_truth(at, places, told)
        store.close()
    return MoveReport(at, at, 0, False)


def _check_target(here: CatalogPlace, there: CatalogPlace, overwrite: bool) -> None:
    if there.is_empty or overwrite:
        return
    if there.database_id != here.database_id:
        raise InvalidParameter(
            f"{there.name} holds the catalog of another database",
            hint="give another place, or --overwrite to lose that database",
        )
    if there.is_true:
        raise InvalidParameter(
            f"{there.name} holds a catalog of this database, too, and both are in use",
            hint="is one of them a backup? --overwrite replaces the one where the catalog is to go",
        )


def _count(places: Places, at: str) -> int:
    store = places.store(at)
    try:
        return _records(store.load(FORMAT_VERSION)) if not places.peek(at).is_empty else 0
    finally:
        store.close()


def _records(loaded: StoredCatalog) -> int:
    return sum(row[0] != PLACE for row in loaded.rows)


def _move(
    source: str, target: str, old: CatalogStore, new: CatalogStore, places: Places, told: Told, overwrite: bool
) -> MoveReport:
    told(f"opening {source}")
    content = old.open(FORMAT_VERSION, MIGRATIONS)
    here = CatalogPlace.of(source, content)
    fault_point("catalog.move.opened")
    told(f"opening {target}")
    before = CatalogPlace.of(target, new.open(FORMAT_VERSION, MIGRATIONS, initialize=False))
    # What tells that the source is the truth may be in the target, which is about to lose it.
    if not _arrived(old, content, source, places, told):
        here.require_truth()
    _check_target(here, before, overwrite)
    # Read after both are fenced: nobody else can have written since.
    content = old.load(FORMAT_VERSION)
    number, name = _records(content), secrets.token_hex(8)
    told(f"copying {number} records")
    origins = (*here.origins, old.place())
    new.replace(copied(content, Copy(source, name), origins), old.token or 0)
    fault_point("catalog.move.copied")
    _check_copy(content, new)
    told(f"{number} records are in {target}")
    old.append(leaving(Moved(target, name, time.time_ns() // 1_000_000)), content.config.get(SEQUENCE_KEY, 0))
    fault_point("catalog.move.decided")
    with suppress(StorageError, Fenced):  # whoever opens it finds that out, and does it
        _arrive(new, content)
    told(f"the catalog is in {target} now")
    return MoveReport(source, target, number, True)


def _check_copy(content: StoredCatalog, new: CatalogStore) -> None:
    """Read back what was written, before it is trusted."""
    found = new.load(FORMAT_VERSION)
    wanted = {row for row in content.rows if row[0] != PLACE}
    if {row for row in found.rows if row[0] != PLACE} != wanted:
        raise StorageError(f"the copy in {new.name} is not what was written", hint="nothing has moved")


def make_true(at: str, places: Places, told: Told = _nobody) -> CatalogPlace:
    """Use what a place holds as the catalog, though another one may be in use: for when that is lost for good.

    Says what that means; returns what the place said before. Raises `Fenced`, `StorageError`, and `OperationalError` if
    there is nothing.
    """
    place = places.peek(at)
    if place.is_empty:
        raise OperationalError(f"there is no catalog in {at}")
    if place.is_true:
        return place
    other = place.moved.to if place.moved is not None else place.copy.source if place.copy is not None else ""
    store = places.store(at)
    try:
        _arrive(store, store.open(FORMAT_VERSION, MIGRATIONS))
    finally:
        store.close()
    told(
        f"the catalog in {at} is in use again, as of its transaction {place.sequence}: what was done since in {other} "
        f"is lost, and no server may use that any more"
    )
    return place
