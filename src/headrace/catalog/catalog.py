"""The catalog as the rest of headrace uses it: an image in memory, and transactions that change it durably."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import TracebackType

from headrace.catalog.edits import NEXT_ID_KEY, SEQUENCE_KEY, Edit, plan_change
from headrace.catalog.marks import CatalogPlace
from headrace.catalog.moving import Places, find_truth, open_truth
from headrace.catalog.places import DEFAULTS, PlaceOptions, canonical, open_store, peek
from headrace.catalog.records import decode
from headrace.catalog.shadow import ShadowStore
from headrace.catalog.state import CatalogState, Change
from headrace.catalog.store import (
    FORMAT_VERSION,
    MIGRATIONS,
    PLACE,
    CatalogStore,
    Migration,
    OutcomeUnknown,
    StoredCatalog,
    Writes,
)
from headrace.common.clock import Clock, SystemClock
from headrace.errors import HeadraceError, ReadOnlyTransaction


def read_config(location: str | Path, options: PlaceOptions = DEFAULTS) -> dict[str, int]:
    """The config collection without opening the catalog: shuts out nobody, writes nothing, {} if there is none."""
    return dict(peek(location, options).config)


class Catalog:
    """An open catalog. Thread-safe; transactions are serialised.

    Every operation of a handle raises `Fenced` once another process has opened the same catalog, and
    `StorageError` when the backend fails or the handle is closed.
    """

    def __init__(self, store: CatalogStore, loaded: StoredCatalog, *, read_only: bool, clock: Clock):
        self._store = store
        self._read_only = read_only
        self._clock = clock
        records = loaded.records
        if records is None:
            records = tuple(decode(*row) for row in loaded.rows if row[0] != PLACE)
        self._content = CatalogState(records, loaded.config)
        """Changed in place, by `_apply` alone; nobody else ever sees it."""
        self._state = self._content.snapshot()
        self.origins = CatalogPlace.of(store.name, loaded).origins
        """The places from which it has moved here, as `place` calls them."""
        self._writing = threading.Lock()
        self._image = threading.RLock()
        self._reader: int | None = None
        self._in_doubt: Change | None = None
        self.showing: Callable[[Change, CatalogState], AbstractContextManager[object]] = lambda change, state: (
            nullcontext()
        )
        """Around the moment from which on everybody sees a change: for whom must know before others act on it."""

    @classmethod
    def open(
        cls,
        location: str | Path,
        *,
        read_only: bool = False,
        clock: Clock | None = None,
        full_sync: bool = True,
        busy_timeout_ms: int = 10_000,
        options: PlaceOptions | None = None,
    ) -> Catalog:
        """Open the catalog in a SQLite file or at a URL (see `open_store`), shutting out every earlier opener.

        `read_only` shuts out nobody, writes nothing, and shows the content as of now. Without `full_sync` a
        power failure may lose the last transactions. Raises `OperationalError`, with nothing touched, for a
        newer data format.
        """
        chosen = options or PlaceOptions(full_sync=full_sync, busy_timeout_ms=busy_timeout_ms)
        store = open_store(location, chosen, read_only=read_only)
        return cls.over(store, read_only=read_only, clock=clock)

    @classmethod
    def over(
        cls,
        store: CatalogStore,
        *,
        read_only: bool = False,
        clock: Clock | None = None,
        format_version: int = FORMAT_VERSION,
        migrations: Mapping[int, Migration] = MIGRATIONS,
    ) -> Catalog:
        """Open the catalog in a given backend; closes the backend if that fails.

        Raises `NotTheTruth` where the catalog has moved away from.
        """
        try:
            loaded = store.load(format_version) if read_only else store.open(format_version, migrations)
            CatalogPlace.of(store.name, loaded).require_truth()
            return cls(store, loaded, read_only=read_only, clock=clock or SystemClock())
        except BaseException:
            store.close()
            raise

    @classmethod
    def find(
        cls,
        location: str | Path,
        places: Places,
        *,
        read_only: bool = False,
        clock: Clock | None = None,
        told: Callable[[str], None] = lambda text: None,
        shadow: str | Path | None = None,
    ) -> Catalog:
        """Open the catalog that is, or was, in a place, wherever it is now; `told` hears of it. See `moving`.

        What is written goes to the `shadow`, too. See `shadow`.
        """
        at = canonical(location)
        if read_only:
            store = places.store(find_truth(at, places, told), read_only=True)
        else:
            store, loaded = open_truth(at, places, told)
        if shadow is not None and not read_only:
            store = ShadowStore(store, places.store(canonical(shadow)), canonical(store.name), told)
            store.begin(loaded)
        try:
            if read_only:
                loaded = store.load(FORMAT_VERSION)
            return cls(store, loaded, read_only=read_only, clock=clock or SystemClock())
        except BaseException:
            store.close()
            raise

    # ---- reading

    @property
    def location(self) -> str:
        """Where it is, without passwords."""
        return self._store.name

    @property
    def token(self) -> int | None:
        """The fencing token of this handle; None when read-only."""
        return self._store.token

    @property
    def place(self) -> str:
        """What tells this catalog from a copy of it somewhere else."""
        return self._store.place()

    @property
    def sequence(self) -> int:
        """The number of the last transaction that this handle knows."""
        return self._state.config.get(SEQUENCE_KEY, 0)

    @property
    def state(self) -> CatalogState:
        """The content as of now, checked against the fence. What it returns never changes: later transactions are seen
        by those who ask again. So look-ups that belong together are made in one of these."""
        # Inside `reading` all stays as it is; who holds `_writing` may be waiting for the end of the block.
        if self._in_doubt is not None and self._reader != threading.get_ident():
            with self._writing:
                self._settle()
        if not self._read_only:
            self._store.verify()
        return self._state

    def verify(self) -> None:
        """Raise `Fenced` if another process has opened the catalog. For what is about to change something outside."""
        self._store.verify()

    @property
    def image(self) -> CatalogState:
        """The same as this handle knows it, without asking the store: for metrics, and for closing down."""
        return self._state

    @property
    def settled(self) -> bool:
        """Whether it is known of every transaction so far if it is durable: else `image` may lack one that is."""
        return self._in_doubt is None

    @property
    def is_near(self) -> bool:
        """Whether the fence is asked without a way over a network: in a file of this machine."""
        return bool(getattr(self._store, "is_near", False))

    @property
    def file(self) -> str | None:
        """The file that it is in, for other processes that look at the fence; None if it is in none."""
        found: str | None = getattr(self._store, "file", None)
        return found

    @contextmanager
    def reading(self) -> Iterator[CatalogState]:
        """The content, checked against the fence, which nobody changes until the block ends. Keep the block short.

        For what has to be done before the next transaction is seen by anybody: to pin what was found, say.
        `transact` inside it raises `RuntimeError`.
        """
        _ = self.state
        with self._image:
            outer, self._reader = self._reader, threading.get_ident()
            try:
                yield self._state
            finally:
                self._reader = outer

    def check_background(self) -> None:
        """Raise what fails, at present, of what the backend does in the background: the rollups of a log of objects."""
        error: Exception | None = getattr(self._store, "rollup_error", None)
        if error is not None:
            raise error

    # ---- writing

    def transact(self, edits: Iterable[Edit]) -> int:
        """Apply all edits or none; durable, and visible in `state`, when it returns the transaction's number.

        Raises `EditRejected` for edits that break a rule, `ReadOnlyTransaction` on a read-only handle,
        `OutcomeUnknown` when the backend stopped answering half-way (the next operation then finds out).
        """
        edits = list(edits)
        with self._write_access():
            change = plan_change(self._state, edits, self._clock.now_ms())
            if change.empty:
                self._store.verify()
                return self.sequence
            return self._commit(change)

    def allocate_ids(self, count: int = 1) -> range:
        """That many ids, never given out before or again, also over restarts."""
        if count < 1:
            raise ValueError(f"cannot allocate {count} ids")
        with self._write_access():
            first = self._state.config.get(NEXT_ID_KEY, 1)
            self._commit(Change((), (), {NEXT_ID_KEY: first + count}))
            return range(first, first + count)

    def close(self) -> None:
        """Let go of the backend; harmless when repeated. Later operations raise `StorageError`."""
        with self._writing:
            self._store.close()

    def __enter__(self) -> Catalog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _write_access(self) -> Iterator[None]:
        if self._read_only:
            raise ReadOnlyTransaction("the catalog is open read-only")
        if self._reader == threading.get_ident():
            raise RuntimeError("a transaction inside reading() of the same thread")
        with self._writing:
            self._settle()
            yield

    def _commit(self, change: Change) -> int:
        number = self.sequence + 1
        try:
            self._store.append(Writes.of(change), number - 1)
        except BaseException as error:
            if isinstance(error, OutcomeUnknown) or not isinstance(error, HeadraceError):
                self._in_doubt = change
            raise
        self._apply(change, number)
        return number

    def _apply(self, change: Change, number: int) -> None:
        with self._image:
            self._content.apply(Change(change.puts, change.deletes, {**change.config, SEQUENCE_KEY: number}))
            state = self._content.snapshot()
            with self.showing(change, state):
                self._state = state

    def _settle(self) -> None:
        """Learn what became of a transaction whose outcome is unknown. The caller holds `_writing`."""
        change, number = self._in_doubt, self.sequence + 1
        if change is not None:
            if self._store.sequence() >= number:
                self._apply(change, number)
            self._in_doubt = None
