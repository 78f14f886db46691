"""The catalog as the rest of headrace uses it: an image in memory, and transactions that change it durably."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError

from headrace.catalog.edits import NEXT_ID_KEY, SEQUENCE_KEY, Edit, plan_change
from headrace.catalog.records import decode
from headrace.catalog.stash import StashStore, server_engine, sqlite_engine
from headrace.catalog.state import CatalogState, Change
from headrace.catalog.store import (
    FORMAT_VERSION,
    MIGRATIONS,
    CatalogStore,
    Loaded,
    Migration,
    OutcomeUnknown,
    Writes,
)
from headrace.common.clock import Clock, SystemClock
from headrace.errors import HeadraceError, InvalidParameter, ReadOnlyTransaction, StorageError


def open_store(
    location: str | Path, *, read_only: bool = False, full_sync: bool = True, busy_timeout_ms: int = 10_000
) -> StashStore:
    """The backend for a path of a SQLite file or a database URL; touches nothing that exists.

    Raises `StorageError` for a read-only file that is not there, `InvalidParameter` for an unknown kind of URL.
    """
    text = str(location)
    path = Path(text)
    if "://" in text:
        try:
            url = sa.make_url(text)
        except ArgumentError as error:
            raise InvalidParameter("cannot read the catalog's URL", hint="postgresql://user@host/database") from error
        if url.get_backend_name() == "postgresql":
            return StashStore(server_engine(text), url.render_as_string(hide_password=True))
        if url.get_backend_name() != "sqlite" or not url.database:
            raise InvalidParameter(
                f'no catalog backend for "{url.render_as_string()}"', hint="a path, or postgresql://"
            )
        path = Path(url.database)
    if read_only and not path.exists():
        raise StorageError(f"there is no catalog in {path}")
    if not read_only:
        path.parent.mkdir(parents=True, exist_ok=True)
    engine = sqlite_engine(path, read_only=read_only, full_sync=full_sync, busy_timeout_ms=busy_timeout_ms)
    return StashStore(engine, str(path))


def read_config(location: str | Path) -> dict[str, int]:
    """The config collection without opening the catalog: shuts out nobody, writes nothing, {} if there is none."""
    if "://" not in str(location) and not Path(location).exists():
        return {}
    store = open_store(location, read_only=True)
    try:
        return store.read_config()
    finally:
        store.close()


class Catalog:
    """An open catalog. Thread-safe; transactions are serialised.

    Every operation of a handle raises `Fenced` once another process has opened the same catalog, and
    `StorageError` when the backend fails or the handle is closed.
    """

    def __init__(self, store: CatalogStore, loaded: Loaded, *, read_only: bool, clock: Clock):
        self._store = store
        self._read_only = read_only
        self._clock = clock
        self._state = CatalogState((decode(*row) for row in loaded.rows), loaded.config)
        self._writing = threading.Lock()
        self._image = threading.RLock()
        self._reader: int | None = None
        self._in_doubt: Change | None = None

    @classmethod
    def open(
        cls,
        location: str | Path,
        *,
        read_only: bool = False,
        clock: Clock | None = None,
        full_sync: bool = True,
        busy_timeout_ms: int = 10_000,
    ) -> Catalog:
        """Open the catalog in a SQLite file or at a database URL, shutting out every earlier opener.

        `read_only` shuts out nobody, writes nothing, and shows the content as of now. Without `full_sync` a
        power failure may lose the last transactions. Raises `OperationalError`, with nothing touched, for a
        newer data format.
        """
        store = open_store(location, read_only=read_only, full_sync=full_sync, busy_timeout_ms=busy_timeout_ms)
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
        """Open the catalog in a given backend; closes the backend if that fails."""
        try:
            loaded = store.load(format_version) if read_only else store.open(format_version, migrations)
            return cls(store, loaded, read_only=read_only, clock=clock or SystemClock())
        except BaseException:
            store.close()
            raise

    # ---- reading

    @property
    def token(self) -> int | None:
        """The fencing token of this handle; None when read-only."""
        return self._store.token

    @property
    def sequence(self) -> int:
        """The number of the last transaction that this handle knows."""
        return self._state.config.get(SEQUENCE_KEY, 0)

    @property
    def state(self) -> CatalogState:
        """The content, checked against the fence: for single look-ups. Several that belong together use `reading`."""
        if self._in_doubt is not None:
            with self._writing:
                self._settle()
        if not self._read_only:
            self._store.verify()
        return self._state

    @property
    def image(self) -> CatalogState:
        """The content as this handle knows it, without asking the store: for metrics, and for closing down."""
        return self._state

    @contextmanager
    def reading(self) -> Iterator[CatalogState]:
        """The content, checked against the fence, standing still until the block ends. Keep the block short.

        A block sees each transaction in full or not at all. `transact` inside it raises `RuntimeError`.
        """
        state = self.state
        with self._image:
            outer, self._reader = self._reader, threading.get_ident()
            try:
                yield state
            finally:
                self._reader = outer

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
            self._state.apply(Change(change.puts, change.deletes, {**change.config, SEQUENCE_KEY: number}))

    def _settle(self) -> None:
        """Learn what became of a transaction whose outcome is unknown. The caller holds `_writing`."""
        change, number = self._in_doubt, self.sequence + 1
        if change is not None:
            if self._store.sequence() >= number:
                self._apply(change, number)
            self._in_doubt = None
