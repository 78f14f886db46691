"""A catalog that another server writes: an image that follows its transactions, until this server takes it over.

Nobody is shut out by following. What is seen is always the content after some transaction, never one before what was
seen already. Taking over is the fence of any opener, on one condition that is checked in the same step: that nobody
else has opened the catalog since it was looked at. So of several followers that decide at once exactly one succeeds.

A look at a log reads the next batch; a look at a database reads two numbers and, where these have moved, all records,
of which the follower keeps hashes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from headrace.catalog.catalog import Catalog
from headrace.catalog.edits import FENCING_KEY, SEQUENCE_KEY
from headrace.catalog.journal import Batch, JournalReplay
from headrace.catalog.log_store import LogStore
from headrace.catalog.marks import CatalogPlace, NotTheTruth
from headrace.catalog.moving import Places, find_truth
from headrace.catalog.places import canonical
from headrace.catalog.records import decode, parse_key
from headrace.catalog.shadow import ShadowStore
from headrace.catalog.stash import StashStore
from headrace.catalog.state import CatalogState, Change
from headrace.catalog.store import (
    FORMAT_VERSION,
    MIGRATIONS,
    PLACE,
    CatalogStore,
    Row,
    StoredCatalog,
    Writes,
    check_format,
    describe_owner,
)
from headrace.common.clock import Clock, SystemClock
from headrace.common.lazy_dataclass import dataclass
from headrace.errors import OperationalError, StorageError

Rows = dict[tuple[str, str], str]


def difference(before: Rows, after: Rows) -> Writes:
    """What makes one content of the other. Pure."""
    puts = tuple((c, k, v) for (c, k), v in after.items() if before.get((c, k)) != v)
    return Writes(puts, tuple(key for key in before if key not in after))


class Follower(Protocol):
    """Reads what another opener commits. Calls are made by one thread at a time."""

    def start(self) -> StoredCatalog:
        """Everything as of now. Raises `StorageError` where there is no catalog."""
        ...

    def look(self) -> Writes | None:
        """What has been committed since the last call, with all of the config; None for nothing."""
        ...


BEAT: Final = ("setting", "lease")
"""The record that is put again and again by transactions of its own, each of which counts its `renewal` up by one."""


class StashFollower:
    """Follows a catalog in a database: reads two numbers, and all records where anything but `BEAT` has changed."""

    def __init__(self, store: StashStore) -> None:
        self._store = store
        self._config: dict[str, int] = {}
        self._beats = 0
        self._known: dict[tuple[str, str], int] = {}
        """The hashes of all values, which tell what has changed."""

    def start(self) -> StoredCatalog:
        """See `Follower`."""
        return self._load()

    def _load(self) -> StoredCatalog:
        loaded = self._store.load(FORMAT_VERSION)
        self._config = dict(loaded.config)
        self._known = {(c, k): hash(v) for c, k, v in loaded.rows}
        self._beats = _beats(next((v for c, k, v in loaded.rows if (c, k) == BEAT), None))
        return loaded

    def look(self) -> Writes | None:
        """See `Follower`."""
        token, sequence, beat = self._store.head(*BEAT)
        behind = sequence - self._config.get(SEQUENCE_KEY, 0)
        if token == self._config.get(FENCING_KEY, 0):
            if not behind:
                return None
            if beat is not None and _beats(beat) - self._beats == behind:
                # Each of the transactions since has put this record, and so nothing else.
                self._beats, self._config[SEQUENCE_KEY] = _beats(beat), sequence
                self._known[BEAT] = hash(beat)
                return Writes(((*BEAT, beat),), (), dict(self._config))
        known = self._known
        loaded = self._load()
        puts = tuple(row for row in loaded.rows if known.get((row[0], row[1])) != self._known[row[0], row[1]])
        return Writes(puts, tuple(key for key in known if key not in self._known), loaded.config)


class LogFollower:
    """Follows a log: two requests where nothing is new, one more for each batch; reads all where it fell behind."""

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self._log = JournalReplay()
        self._torn = False
        """Whether the next batch cannot be taken in: all is to be read anew."""

    def start(self) -> StoredCatalog:
        """See `Follower`."""
        self._log = self._store.read_log()
        if self._log.last is None:
            raise StorageError(f"there is no catalog in {self._store.name}")
        return self._log.loaded()

    def look(self) -> Writes | None:
        """See `Follower`."""
        log = self._log
        assert log.last is not None and log.rows is not None
        before: Rows = {}
        changed: set[tuple[str, str]] = set()
        last = log.last
        while (batch := self._next(log.last != last)) is not None:
            targets = {*batch.writes.deletes, *((c, k) for c, k, _ in batch.writes.puts)}
            old = {t: log.rows[t] for t in targets - changed if t in log.rows}
            try:
                log.advance(batch)
            except StorageError:
                if log.last == last:
                    raise
                break  # what has been taken in is told first; the next look finds the same
            before |= old
            changed |= targets
        if log.last != last:
            after = {t: log.rows[t] for t in changed if t in log.rows}
            found = difference(before, after)
            return Writes(found.puts, found.deletes, dict(log.config))
        # Either there is nothing new, or so much that what came next has been rolled up and deleted.
        if not self._torn and self._store.has_batch(last):
            return None
        return self._anew()

    def _next(self, enough: bool) -> Batch | None:
        """The next batch, if it can be taken in. With `enough` what hinders that is left to the next look."""
        try:
            batch = self._store.read_batch(self._log.next)
            # An opener's may be none of the log: its name was free because its batch had been deleted.
            strange = batch is not None and (
                batch.reset or (batch.kind == "open" and self._store.was_rolled_up(batch.at))
            )
        except StorageError:
            if enough:
                return None
            raise
        self._torn = strange
        return None if strange else batch

    def _anew(self) -> Writes:
        before = self._log.rows or {}
        log = self._store.read_log()
        if log.last is None:
            raise StorageError(f"the catalog in {self._store.name} is gone")
        self._log, self._torn = log, False
        found = difference(before, log.rows or {})
        return Writes(found.puts, found.deletes, dict(log.config))


def _beats(value: str | None) -> int:
    """The count in the record `BEAT`; 0 where it cannot be read: that is for others to tell."""
    try:
        return int(json.loads(json.loads(value or "")["value"])["renewal"])
    except (ValueError, TypeError, KeyError):
        return 0


def follower_of(store: CatalogStore) -> Follower:
    """What follows a catalog of some kind."""
    if isinstance(store, LogStore):
        return LogFollower(store)
    if isinstance(store, StashStore):
        return StashFollower(store)
    raise OperationalError(f"the catalog in {store.name} cannot be followed")


@dataclass(frozen=True)
class Refreshed:
    """The outcome of one look at a followed catalog: whether anything is new, and what."""

    change: Change
    whole: bool
    """Whether it is all of the content, which has been read anew."""


class FollowedCatalog(Catalog):
    """A catalog that is open read-only and follows; `take_over` makes it one that is open for good.

    `refresh` and `take_over` belong to one thread.
    """

    def __init__(
        self, places: Places, at: str, clock: Clock, told: Callable[[str], None], shadow: str | Path | None
    ) -> None:
        self._places, self._told, self._shadow = places, told, shadow
        store, follower, loaded = self._follow(find_truth(at, places, told))
        super().__init__(store, loaded, read_only=True, clock=clock)
        self._follower = follower
        self._place_rows = _place_rows(loaded.rows)
        self._lost = False
        """Whether the follower has told of something that could not be taken in: only all of the content helps then."""

    @classmethod
    def begin(
        cls,
        location: str | Path,
        places: Places,
        *,
        clock: Clock | None = None,
        told: Callable[[str], None] = lambda text: None,
        shadow: str | Path | None = None,
    ) -> FollowedCatalog:
        """Follow the catalog that is, or was, in a place, wherever it is now. Raises `StorageError` for none."""
        return cls(places, canonical(location), clock or SystemClock(), told, shadow)

    @property
    def followed_token(self) -> int:
        """The fencing token of the opener whose transactions are followed."""
        return self.image.config.get(FENCING_KEY, 0)

    @property
    def owner(self) -> str:
        """Describes who has the catalog open."""
        return describe_owner(self._place_rows.get((PLACE, "owner")))

    def refresh(self, taken: Callable[[Refreshed, CatalogState], None]) -> Refreshed | None:
        """Take in what has been committed; None if nothing has. `taken` is told before anybody else sees it.

        Raises `StorageError`; what is known stays readable, and the next call begins where this one did.
        """
        if self._lost:
            return self._elsewhere(taken)
        writes = self._follower.look()
        if writes is None:
            return None
        self._lost = True
        config = dict(writes.config or {})
        check_format(config.get("format_version"), FORMAT_VERSION)
        for target in writes.deletes:
            self._place_rows.pop(target, None)
        self._place_rows |= _place_rows(writes.puts)
        try:
            self._require_truth(config)
        except NotTheTruth:
            return self._elsewhere(taken)
        change = Change(
            tuple(decode(*row) for row in writes.puts if row[0] != PLACE),
            tuple((c, parse_key(c, k)) for c, k in writes.deletes if c != PLACE),  # type: ignore[misc]
            config,
        )
        with self._image:
            self._content.apply(change)
            self._lost = False
            return self._show(Refreshed(change, False), taken)

    def take_over(self) -> None:
        """Open the catalog, shutting out the one who is followed; from then on this handle writes.

        Raises `Overtaken` where somebody else has opened it meanwhile: it is followed as before, and nobody is shut
        out. After any other error it is not known whether the other one has been shut out; it is followed as before.
        """
        at = canonical(self._store.name)
        store = self._places.store(at)
        try:
            loaded = store.open(FORMAT_VERSION, MIGRATIONS, succeeding=self.followed_token)
            CatalogPlace.of(store.name, loaded).require_truth()
            if self._shadow is not None:
                store = ShadowStore(store, self._places.store(canonical(self._shadow)), at, self._told)
                store.begin(loaded)
        except BaseException:
            store.close()
            raise
        content = _content_of(loaded)
        with self._writing, self._image:
            old, self._store = self._store, store
            self._content, self.origins = content, CatalogPlace.of(store.name, loaded).origins
            self._state = content.snapshot()
            self._read_only = False
        old.close()

    def _follow(self, at: str) -> tuple[CatalogStore, Follower, StoredCatalog]:
        store = self._places.store(at, read_only=True)
        try:
            follower = follower_of(store)
            loaded = follower.start()
            check_format(loaded.config.get("format_version"), FORMAT_VERSION)
            CatalogPlace.of(store.name, loaded).require_truth()
            return store, follower, loaded
        except BaseException:
            store.close()
            raise

    def _require_truth(self, config: dict[str, int]) -> None:
        rows: tuple[Row, ...] = tuple((c, k, v) for (c, k), v in self._place_rows.items())
        CatalogPlace.of(self._store.name, StoredCatalog(config, rows)).require_truth()

    def _show(self, found: Refreshed, taken: Callable[[Refreshed, CatalogState], None]) -> Refreshed:
        state = self._content.snapshot()
        try:
            taken(found, state)
        finally:
            self._state = state
        return found

    def _elsewhere(self, taken: Callable[[Refreshed, CatalogState], None]) -> Refreshed:
        """The catalog has moved, or is to be read anew: go on where it is now."""
        at = find_truth(canonical(self._store.name), self._places, self._told)
        store, follower, loaded = self._follow(at)
        try:
            content = _content_of(loaded)
        except BaseException:
            store.close()
            raise
        self._follower, self._place_rows, self._lost = follower, _place_rows(loaded.rows), False
        with self._image:
            old, self._store = self._store, store
            self._content, self.origins = content, CatalogPlace.of(store.name, loaded).origins
            found = Refreshed(Change(tuple(content.records()), (), dict(loaded.config)), True)
            self._show(found, taken)
        old.close()
        return found


def _content_of(loaded: StoredCatalog) -> CatalogState:
    records = loaded.records
    if records is None:
        records = tuple(decode(*row) for row in loaded.rows if row[0] != PLACE)
    return CatalogState(records, loaded.config)


def _place_rows(rows: tuple[Row, ...]) -> Rows:
    return {(c, k): v for c, k, v in rows if c == PLACE}
