"""The catalog in two tables of a relational database, whichever that is: what its transactions read and write."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, TypeVar

from headrace.catalog.edits import FENCING_KEY, FORMAT_VERSION_KEY, SEQUENCE_KEY
from headrace.catalog.stash_tables import RESTORE, LineLost, StashTables, StashTransaction, foreign, wrong_shape
from headrace.catalog.store import (
    OWNER,
    PLACE,
    Migration,
    OutcomeUnknown,
    Row,
    SequenceConflict,
    StoredCatalog,
    Writes,
    check_format,
    check_succession,
    checked,
    entry,
    fenced,
    initial_config,
    landed,
    migration_steps,
    owner_row,
)
from headrace.common.faults import fault_point
from headrace.errors import CorruptObject, Fenced, HeadraceError, StorageError

_BLOCK_ROWS: Final = 10_000
"""Rows that are read or written at a time; each block has all of the time-out."""
_SERIALIZATION_ATTEMPTS: Final = 10
_T = TypeVar("_T")


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _unsigned(value: int) -> int:
    return value + (1 << 64) if value < 0 else value


class StashStore:
    """A `CatalogStore` in two tables: `config(key, value)` and `record(collection, key, value)`."""

    def __init__(self, tables: StashTables, name: str, generation: int = 0):
        self._tables = tables
        self._generation = generation
        self._name = name
        self._token: int | None = None
        self._closed = threading.Event()

    @property
    def name(self) -> str:
        """Where it is."""
        return self._name

    @property
    def token(self) -> int | None:
        """The fencing token of this handle; None before `open`."""
        return self._token

    def place(self) -> str:
        """What tells this catalog from a copy of it somewhere else: a file, or a database of a server."""
        return self._retrying(self._tables.place)

    # ---- opening

    def open(
        self,
        format_version: int,
        migrations: Mapping[int, Migration],
        *,
        initialize: bool = True,
        succeeding: int | None = None,
    ) -> StoredCatalog:
        """Shut out every earlier opener, then initialise or migrate, then load everything."""
        # What is to be replaced may hold anything.
        before = self._reading(lambda: self._check(format_version)) if initialize else StoredCatalog({}, ())
        self._token = self._retrying(lambda: self._fence(format_version, succeeding))
        fault_point("catalog.fence.after")
        if initialize:
            self._retrying(lambda: self._initialize(format_version))
        stored = self._reading(self._format) or format_version
        for reached, migration in migration_steps(stored, format_version, migrations):
            self._retrying(lambda reached=reached, migration=migration: self._migrate(reached, migration))  # type: ignore[misc]
        return self._reading(lambda: self._unless_changed(before)) or self.load(format_version)

    def _check(self, format_version: int) -> StoredCatalog:
        """Everything. Raises for what cannot be opened, as long as nobody has been shut out for it."""
        with self._transaction() as stash:
            if not self._is_there(stash):
                return StoredCatalog({}, ())
            config = self._config_of(stash)
            check_format(config.get(FORMAT_VERSION_KEY), format_version)
            entry(config, self._generation)
            return checked(self._read(stash), format_version)

    def _unless_changed(self, before: StoredCatalog) -> StoredCatalog | None:
        """What was there before this handle was opened, if nobody has written since; so it need not be read again."""
        with self._transaction() as stash:
            sequence, config = self._compare(stash), self._config_of(stash)
            same = before.config.get(SEQUENCE_KEY) == sequence and before.config.get(FENCING_KEY, 0) + 1 == self._token
            if before.records is None or not same:
                return None
            place = stash.rows(PLACE)
        return StoredCatalog(config, (*(row for row in before.rows if row[0] != PLACE), *place), before.records)

    def _fence(self, format_version: int, succeeding: int | None) -> int:
        with self._transaction(write=True, alone=True) as stash:
            if self._is_there(stash):
                config = self._config_of(stash)
                check_format(config.get(FORMAT_VERSION_KEY), format_version)
            else:
                stash.create()
                config = {}
            check_succession(self._name, config.get(FENCING_KEY, 0), succeeding)
            taken = entry(config, self._generation)
            token = taken[FENCING_KEY]
            self._write(stash, Writes(puts=(owner_row(token),), config=taken))
            fault_point("catalog.fence.before")
        return token

    def _is_there(self, stash: StashTransaction) -> bool:
        """Whether there is a catalog. Raises `CorruptObject` for tables of its names that are another program's."""
        columns = stash.columns()
        what = wrong_shape(columns, lambda: FENCING_KEY in self._config_of(stash))
        if what is not None:
            raise foreign(self._name, what)
        return bool(columns)

    def _initialize(self, format_version: int) -> None:
        fault_point("catalog.initialize.before")
        with self._transaction(write=True) as stash:
            self._compare(stash)
            if FORMAT_VERSION_KEY not in self._config_of(stash):
                self._set_config(stash, initial_config(format_version))

    def _format(self) -> int:
        with self._transaction() as stash:
            self._compare(stash)
            return self._config_of(stash).get(FORMAT_VERSION_KEY, 0)

    def _migrate(self, reached: int, migration: Migration) -> None:
        with self._transaction(write=True) as stash:
            sequence = self._compare(stash)
            if self._config_of(stash)[FORMAT_VERSION_KEY] != reached - 1:
                return
            self._write(stash, migration(self._read(stash)))
            self._set_config(stash, {FORMAT_VERSION_KEY: reached, SEQUENCE_KEY: sequence + 1})
            fault_point("catalog.migrate.step")

    # ---- reading

    def load(self, format_version: int) -> StoredCatalog:
        """Reads the whole content as of one moment."""
        return self._reading(lambda: self._load(format_version))

    def _load(self, format_version: int) -> StoredCatalog:
        with self._transaction() as stash:
            if self._token is not None:
                self._compare(stash)
            elif not self._is_there(stash):
                raise StorageError(f"there is no catalog in {self._name}")
            loaded = self._read(stash)
        check_format(loaded.config.get(FORMAT_VERSION_KEY), format_version)
        return loaded

    def head(self, collection: str, key: str) -> tuple[int, int, str | None]:
        """The durable fencing token, the number of the last transaction, and one record as of that; without `open`."""
        return self._reading(lambda: self._head(collection, key))

    def _head(self, collection: str, key: str) -> tuple[int, int, str | None]:
        with self._transaction() as stash:
            head = _head(stash)
            value = stash.value(collection, key)
        return head.get(FENCING_KEY, 0), head.get(SEQUENCE_KEY, 0), value

    def sequence(self) -> int:
        """How many transactions are durable; waits for one that is being committed."""
        return self._reading(lambda: self._sequence(write=True))

    @property
    def is_near(self) -> bool:
        """Whether it is a file of this machine."""
        return self._tables.is_near

    @property
    def file(self) -> str | None:
        """The path of that file; None for a server's tables."""
        return self._name if self.is_near else None

    def verify(self) -> None:
        """Raise `Fenced` if another opener has come since."""
        if self._token is None or self._retrying(self._quick_token) != _signed(self._token):
            self._reading(lambda: self._sequence(write=False))

    def _quick_token(self) -> int | None:
        self._check_open()
        return self._tables.token()

    def _sequence(self, *, write: bool) -> int:
        with self._transaction(write=write) as stash:
            return self._compare(stash)

    def peek(self) -> StoredCatalog:
        """The config collection and the rows of `PLACE`, without opening; both empty if there is no catalog."""
        return self._reading(self._peek)

    def _peek(self) -> StoredCatalog:
        with self._transaction() as stash:
            if not self._is_there(stash):
                return StoredCatalog({}, ())
            rows = tuple(stash.rows(PLACE))
            return StoredCatalog(self._config_of(stash), rows)

    # ---- writing

    def append(self, writes: Writes, expected_sequence: int) -> None:
        """Commit as transaction number `expected_sequence + 1`; a lost acknowledgement is resolved by reading back."""
        self._check_open()
        for last in (False, True):
            try:
                self._retrying(lambda: self._append(writes, expected_sequence))
                fault_point("catalog.commit.after")
                return
            except (Fenced, SequenceConflict):
                raise
            except HeadraceError as error:
                if self._landed(expected_sequence, error):
                    return
                # The connection may have been a dead one of the pool. It is known that nothing was written.
                if last or not isinstance(error, LineLost):
                    raise

    def _append(self, writes: Writes, expected_sequence: int) -> None:
        self._check_open()
        config = {name: _signed(value) for name, value in (writes.config or {}).items()}
        config[SEQUENCE_KEY] = _signed(expected_sequence + 1)
        token = None if self._token is None else _signed(self._token)
        found = self._tables.append(token, _signed(expected_sequence), writes, config)
        head = {key: _unsigned(value) for key, value in found.items()}
        if not self._has_token(head):
            with self._transaction() as stash:
                raise self._fenced(stash, head)
        sequence = head.get(SEQUENCE_KEY, 0)
        if sequence != expected_sequence:
            raise SequenceConflict(f"the catalog is at transaction {sequence}, not {expected_sequence}")

    def _landed(self, expected_sequence: int, error: HeadraceError) -> bool:
        """Whether the transaction is durable, asked on a new connection that waits for the lost one to end."""

        def sequence() -> int:
            self._tables.dispose()
            return self.sequence()

        return landed(self._name, sequence, expected_sequence, error)

    def replace(self, content: StoredCatalog, token_floor: int) -> None:
        """Make the content exactly this, in one step; then the fencing token of this handle is above `token_floor`."""
        self._check_open()
        token = max(self._token or 0, token_floor) + 1
        fault_point("catalog.replace.before")
        try:
            self._retrying(lambda: self._replace(content, token))
            fault_point("catalog.replace.after")
        except Fenced:
            raise
        except HeadraceError as error:
            if self._durable_token(error) != token:
                raise
        self._token = token

    def _replace(self, content: StoredCatalog, token: int) -> None:
        with self._transaction(write=True) as stash:
            self._compare(stash)
            stash.clear()
            for start in range(0, len(content.rows), _BLOCK_ROWS):
                stash.insert(content.rows[start : start + _BLOCK_ROWS])
            self._write(stash, Writes((owner_row(token),), (), {**content.config, FENCING_KEY: token}))

    def _durable_token(self, error: HeadraceError) -> int:
        """The fencing token that the catalog has after a write of which the outcome is not known."""
        self._tables.dispose()
        try:
            return self._reading(self._token_after_writers)
        except StorageError as failure:
            raise OutcomeUnknown(
                f"the catalog in {self._name} does not answer, its content may or may not have been replaced",
                detail=f"{error.message}; then {failure.message}",
            ) from error

    def _token_after_writers(self) -> int:
        with self._transaction(write=True) as stash:
            return _head(stash).get(FENCING_KEY, 0)

    def close(self) -> None:
        """Let go of all connections."""
        self._closed.set()
        self._tables.close()

    # ---- within a transaction

    @contextmanager
    def _transaction(self, *, write: bool = False, alone: bool = False) -> Iterator[StashTransaction]:
        self._check_open()
        with self._tables.transaction(write=write, alone=alone) as stash:
            yield stash

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise StorageError(f"the catalog in {self._name} is closed")

    def _compare(self, stash: StashTransaction) -> int:
        """Check the fence inside the transaction, return its sequence number.

        On a server the row stays locked, so that writers queue.
        """
        head = _head(stash)
        if not self._has_token(head):
            raise self._fenced(stash, head)
        return head.get(SEQUENCE_KEY, 0)

    def _has_token(self, head: Mapping[str, int]) -> bool:
        return self._token is not None and head.get(FENCING_KEY) == self._token

    def _fenced(self, stash: StashTransaction, head: Mapping[str, int]) -> Fenced:
        return fenced(self._token or 0, head.get(FENCING_KEY, 0), stash.value(PLACE, OWNER))

    def _config_of(self, stash: StashTransaction) -> dict[str, int]:
        found: dict[str, int] = {}
        for key, value in stash.config().items():
            if not isinstance(value, int):
                raise CorruptObject(f"config entry {key} of the catalog in {self._name} is no number", hint=RESTORE)
            found[key] = _unsigned(value)
        return found

    def _read(self, stash: StashTransaction) -> StoredCatalog:
        rows: list[Row] = []
        for block in stash.blocks(_BLOCK_ROWS):
            rows.extend(block)
        return StoredCatalog(self._config_of(stash), tuple(rows))

    def _set_config(self, stash: StashTransaction, values: Mapping[str, int]) -> None:
        stash.set_config({key: _signed(value) for key, value in values.items()})

    def _write(self, stash: StashTransaction, writes: Writes) -> None:
        if writes.deletes:
            stash.delete(writes.deletes)
        if writes.puts:
            stash.put(writes.puts)
        if writes.config:
            self._set_config(stash, writes.config)

    def _retrying(self, step: Callable[[], _T]) -> _T:
        """Run a transaction, again if another one was in its way, with errors as `StorageError`."""
        for attempt in range(1, _SERIALIZATION_ATTEMPTS + 1):
            try:
                return step()
            except Exception as error:
                trouble = self._tables.trouble(error)
                if trouble is None:
                    raise
                if not trouble.again or attempt == _SERIALIZATION_ATTEMPTS:
                    raise trouble.kind(f"the catalog in {self._name} failed: {trouble.text}") from error
        raise AssertionError("unreachable")

    def _reading(self, step: Callable[[], _T]) -> _T:
        """Run a transaction that writes nothing; once more if its connection turns out to be a dead one."""
        try:
            return self._retrying(step)
        except LineLost:
            return self._retrying(step)


def _head(stash: StashTransaction) -> dict[str, int]:
    return {key: _unsigned(value) for key, value in stash.head().items()}
