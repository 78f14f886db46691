"""Whose state it is: a mark in the store, renewed at every start, without which nothing there is deleted.

Two databases on one prefix would take each other's objects for left over. Their catalogs cannot tell: a copy of a
catalog is equal to the original. So each start puts a mark of the next number, `owner/<number>.mark`, with a random
`nonce` that its catalog learns before, and of two starts only one gets a number. The newest mark says whose the state
is. It is taken over only by a catalog that wrote it, from the same place; anything else needs `state_moved`.

Where a copy cannot be told by its place, the mark passes to it, and the original finds that out before its next vacuum.
Then it contests the mark, and neither deletes anything until somebody decides. A server whose own catalog has been
opened by another one is fenced, and contests nothing.

docs/design/0014 tells the procedure and its one assumption.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from headrace.catalog.catalog import Catalog
from headrace.catalog.edits import AddEvent, Delete, Edit, Put
from headrace.catalog.records import SettingRecord
from headrace.catalog.state import CatalogState
from headrace.common.clock import Clock
from headrace.common.lazy_dataclass import dataclass
from headrace.config import ENV_PREFIX, Settings
from headrace.coordinator.run.storage import state_root
from headrace.errors import CorruptObject, InvalidParameter, OperationalError, StorageError
from headrace.state.stores import ObjectStore

OWNER: Final = "state_owner"
"""The name of the catalog's setting record that holds the number and nonce of its newest mark that is in the store."""
PENDING: Final = "state_owner_pending"
"""The same of marks of which it is not known whether they are there: of starts that ended before they knew."""
MOST_PENDING = 100
FOLDER: Final = "owner"
KEPT_MARKS = 4
RECHECK_S = 1.0
"""Seconds for which a look at the marks counts while vacuum deletes."""
WITH_STATE: Final = "beside the state"
"""The place of a catalog that is copied together with the state."""
_NAME = re.compile(rf"{FOLDER}/(\d{{10}})\.(mark|contested)")


@dataclass(frozen=True)
class OwnerMark:
    """Who opened the state: the `number`-th time, as the newest mark says."""

    number: int
    nonce: str
    place: str
    """Where the catalog is."""
    since_ms: int
    contested: bool = False
    """Whether another server says that the state is its own."""

    @property
    def path(self) -> str:
        """The name of the mark's object."""
        return f"{FOLDER}/{self.number:010d}.mark"

    @property
    def contest(self) -> str:
        """The name of the object by which it is contested."""
        return f"{FOLDER}/{self.number:010d}.contested"

    def encode(self) -> bytes:
        """The mark's bytes as the store has them."""
        return json.dumps(asdict(self), sort_keys=True).encode()


def newest_mark(store: ObjectStore) -> OwnerMark | None:
    """The newest mark; None where there is none. Raises `CorruptObject` for one that cannot be read."""
    found = [m for o in store.list(FOLDER) if (m := _NAME.fullmatch(o.path))]
    numbers = [int(m[1]) for m in found if m[2] == "mark"]
    if not numbers:
        return None
    for number in sorted(numbers, reverse=True):
        path = f"{FOLDER}/{number:010d}.mark"
        data = store.get(path)
        if data is None:  # replaced at this moment
            return newest_mark(store)
        if data:  # else somebody ended who had only just taken the name, see `objects`
            break
    else:
        return None
    try:
        mark = OwnerMark(**json.loads(data))
    except (ValueError, TypeError) as error:
        raise CorruptObject(f"object {path} is damaged", detail=str(error)) from error
    contested = mark.contested or any(int(m[1]) == mark.number and m[2] == "contested" for m in found)
    return replace(mark, contested=contested)


def put_marks(state: CatalogState) -> dict[int, str]:
    """Number -> nonce of the newest mark that this catalog is known to have put."""
    return _marks(state, OWNER)


def pending_marks(state: CatalogState) -> dict[int, str]:
    """Number -> nonce of marks that this catalog was about to put."""
    return _marks(state, PENDING)


def known_marks(state: CatalogState) -> dict[int, str]:
    """Reads all marks that the store has."""
    return put_marks(state) | pending_marks(state)


def _marks(state: CatalogState, name: str) -> dict[int, str]:
    record = state.settings.get(name)
    return {} if record is None else {int(n): nonce for n, nonce in json.loads(record.value).items()}


def place_of(settings: Settings, catalog: Catalog) -> str:
    """Where the catalog is, as far as that matters: not if whoever copies it copies the state as well."""
    root = state_root(settings)
    if root.is_local and settings.catalog_url is None:
        inside = Path(os.path.realpath(root)).is_relative_to(os.path.realpath(settings.data_dir))
        if inside:
            return WITH_STATE
    return catalog.place


def objection(
    mark: OwnerMark | None, known: Mapping[int, str], place: str, origins: Collection[str] = ()
) -> str | None:
    """Why a catalog may not take the state for its own; None if it may. `origins` are where it has moved from."""
    if mark is None:
        return "the mark that this database has put there is gone" if known else None
    if known.get(mark.number) != mark.nonce:
        return f"it belongs to the database whose catalog is {mark.place}"
    moved = mark.place in origins or (mark.place == WITH_STATE and len(origins) > 0)
    if mark.place != place and not moved:
        return f"it belongs to the database whose catalog is {mark.place}; this one, {place}, looks like a copy of that"
    return None


class Owner:
    """This server's claim on the state: its mark, and whether vacuum may still delete."""

    def __init__(self, catalog: Catalog, store: ObjectStore, clock: Clock, settings: Callable[[], Settings]) -> None:
        self._catalog = catalog
        self._store = store
        self._clock = clock
        self._settings = settings
        self._mark: OwnerMark | None = None
        self._looked_s = 0.0
        self._objection: str | None = None
        self._told: str | None = None

    def claim(self) -> None:
        """Put this start's mark. Raises `InvalidParameter` where the state is another database's, `StorageError`."""
        with self._catalog.reading() as state:
            known, put, pending = known_marks(state), put_marks(state), pending_marks(state)
        place = place_of(self._settings(), self._catalog)
        before = newest_mark(self._store)
        if before is None and not put:
            known = {}  # None has ever been there for certain: none is gone.
        wrong = objection(before, known, place, self._catalog.origins)
        if wrong is not None and not self._settings().state_moved:
            raise self._refusal(wrong)
        number = 1 + max([before.number if before else 0, *put, *pending])
        # Whoever adopts the state decides what is contested; a restart does not.
        contested = before is not None and before.contested and wrong is None and not self._settings().state_moved
        mark = OwnerMark(number, secrets.token_hex(16), place, self._clock.now_ms(), contested)
        if before is not None and pending.get(before.number) == before.nonce:
            put, pending = {before.number: before.nonce}, {}  # Those that came before it are not asked for any more.
        pending = {n: pending[n] for n in sorted(pending)[-MOST_PENDING:]} | {number: mark.nonce}
        edits: list[Edit] = [Put(SettingRecord(name, json.dumps(m))) for name, m in ((OWNER, put), (PENDING, pending))]
        if wrong is not None:
            edits.append(AddEvent("state_adopted", None, f"the state in {self._store.root.url} was adopted: {wrong}"))
        self._catalog.transact(edits)
        self._put(mark)
        self._catalog.transact(
            [Put(SettingRecord(OWNER, json.dumps({number: mark.nonce}))), Delete("setting", PENDING)]
        )
        self._mark = mark
        self._forget_old(mark)

    def check(self) -> None:
        """Raise `InvalidParameter` where the state would not be this server's if it took the catalog over."""
        known, place = known_marks(self._catalog.image), place_of(self._settings(), self._catalog)
        wrong = objection(newest_mark(self._store), known, place, self._catalog.origins)
        if wrong is not None and not self._settings().state_moved:
            raise self._refusal(wrong)

    def _put(self, mark: OwnerMark) -> None:
        store = self._store
        try:
            store.put(mark.path, mark.encode())
        except StorageError:
            if store.get(mark.path) is None:
                raise
        found = newest_mark(store)
        if found is None or found.nonce != mark.nonce:
            raise self._refusal("another database has just taken it")

    def _refusal(self, why: str) -> InvalidParameter:
        return InvalidParameter(
            f"the state in {self._store.root.url} cannot be used: {why}",
            hint="give each database a state_url of its own. If the other one is gone for good, or this is it and was "
            f"moved or restored, start once with {ENV_PREFIX}STATE_MOVED=true",
        )

    def _forget_old(self, mark: OwnerMark) -> None:
        for found in list(self._store.list(FOLDER)):
            name = _NAME.fullmatch(found.path)
            if name and int(name[1]) <= mark.number - KEPT_MARKS:
                with suppress(StorageError):
                    self._store.delete(found.path)

    def may_delete(self) -> bool:
        """Whether the state is this server's alone, as of a moment ago; an event says so where it is not.

        Raises `Fenced`, `StorageError`.
        """
        _ = self._catalog.state  # a server that was shut out contests nothing, and deletes nothing
        now_s = self._clock.monotonic_s()
        if self._objection is not None or now_s - self._looked_s >= RECHECK_S or not self._looked_s:
            self._objection = self._look()
            self._looked_s = now_s
        if self._objection is not None and self._told != self._objection:
            self._told = self._objection
            text = f"nothing is deleted in {self._store.root.url}: {self._objection}"
            self._catalog.transact([AddEvent("vacuum_halted", None, text)])
        return self._objection is None

    def look_again(self) -> None:
        """What was seen of the marks counts no more."""
        self._looked_s = 0.0

    def _look(self) -> str | None:
        if self._mark is None:
            return "it has not been claimed"
        found = newest_mark(self._store)
        if found is None:
            return "the mark that this database has put there is gone"
        if found.nonce == self._mark.nonce:
            return "another server says that it is its own" if found.contested else None
        _ = self._catalog.state
        if not found.contested:
            with suppress(StorageError):  # somebody else has, or the next look does
                self._store.put(found.contest, self._mark.encode())
        return f"it has been taken by the database whose catalog is {found.place}"


def check_owner(settings: Settings, catalog: Catalog, store: ObjectStore) -> None:
    """Raise `OperationalError` unless the state is known to be that of a catalog that nobody serves."""
    mark = newest_mark(store)
    why = objection(mark, known_marks(catalog.image), place_of(settings, catalog), catalog.origins)
    if mark is None and why is None:
        why = "it has no mark yet"
    if why is None and mark is not None and mark.contested:
        why = "another server says that it is its own"
    if why is not None:
        raise OperationalError(
            f"nothing is deleted in {store.root.url}: {why}", hint="start the server of this database first"
        )
