"""The two tables of a catalog in a SQLite file: WAL, and write transactions that take the write lock when they begin.

SQLAlchemy, which speaks to servers (`stash_server.py`), is not used: loading it takes a tenth of the processor time
until a server accepts connections.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from headrace.catalog.edits import FENCING_KEY, SEQUENCE_KEY
from headrace.catalog.stash_tables import COLUMNS, RESTORE, StashTrouble, foreign, one_line, wrong_shape
from headrace.catalog.store import Row, Writes
from headrace.common.faults import fault_point
from headrace.errors import CorruptObject, DiskFull, StorageError

_CREATE: Final = (
    "CREATE TABLE config (key TEXT NOT NULL, value BIGINT NOT NULL, PRIMARY KEY (key))",
    "CREATE TABLE record (collection TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, "
    "PRIMARY KEY (collection, key)) WITHOUT ROWID",
)
_HEAD: Final = f"SELECT key, value FROM config WHERE key IN ('{FENCING_KEY}', '{SEQUENCE_KEY}')"
_TOKEN: Final = f"SELECT value FROM config WHERE key = '{FENCING_KEY}'"
_RECORDS: Final = "SELECT collection, key, value FROM record"
_PUT_CONFIG: Final = "INSERT INTO config VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
_PUT_RECORD: Final = (
    "INSERT INTO record VALUES (?, ?, ?) ON CONFLICT (collection, key) DO UPDATE SET value = excluded.value"
)
_DELETE: Final = "DELETE FROM record WHERE collection = ? AND key = ?"
_IDLE: Final = 2
"""Connections that are kept open for transactions to come."""


class FileTransaction:
    """A `StashTransaction` on a connection that has begun it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def columns(self) -> Mapping[str, set[str]]:
        """See `StashTransaction`."""
        return columns_of(self._connection, COLUMNS)

    def create(self) -> None:
        """See `StashTransaction`."""
        for statement in _CREATE:
            self._connection.execute(statement)

    def head(self) -> Mapping[str, int]:
        """See `StashTransaction`. Whoever writes is alone since the beginning."""
        return dict(self._connection.execute(_HEAD))

    def config(self) -> Mapping[str, object]:
        """See `StashTransaction`."""
        return dict(self._connection.execute("SELECT key, value FROM config"))

    def value(self, collection: str, key: str) -> str | None:
        """See `StashTransaction`."""
        text = "SELECT value FROM record WHERE collection = ? AND key = ?"
        found = self._connection.execute(text, (collection, key)).fetchone()
        return None if found is None else str(found[0])

    def rows(self, collection: str) -> Sequence[Row]:
        """See `StashTransaction`."""
        return _rows(self._connection.execute(f"{_RECORDS} WHERE collection = ?", (collection,)))

    def blocks(self, size: int) -> Iterator[Sequence[Row]]:
        """See `StashTransaction`. A file needs no blocks."""
        yield _rows(self._connection.execute(_RECORDS))

    def put(self, rows: Sequence[Row]) -> None:
        """See `StashTransaction`."""
        self._connection.executemany(_PUT_RECORD, rows)

    insert = put

    def delete(self, keys: Iterable[tuple[str, str]]) -> None:
        """See `StashTransaction`."""
        self._connection.executemany(_DELETE, keys)

    def set_config(self, values: Mapping[str, int]) -> None:
        """See `StashTransaction`."""
        self._connection.executemany(_PUT_CONFIG, values.items())

    def clear(self) -> None:
        """See `StashTransaction`."""
        for name in COLUMNS:
            self._connection.execute(f"DELETE FROM {name}")


class FileTables:
    """`StashTables` in a SQLite file."""

    def __init__(self, path: Path, *, read_only: bool, full_sync: bool, busy_timeout_ms: int) -> None:
        self._path = path
        self._read_only = read_only
        self._full_sync = full_sync
        self._busy_timeout_ms = busy_timeout_ms
        self._idle: list[sqlite3.Connection] = []
        self._closed = False
        self._lock = threading.Lock()
        """Of these two."""
        self._probe: sqlite3.Connection | None = None
        self._probing = threading.Lock()
        self._appender: sqlite3.Connection | None = None
        self._appending = threading.Lock()

    @property
    def is_near(self) -> bool:
        """See `StashTables`."""
        return True

    def place(self) -> str:
        """See `StashTables`."""
        path = os.path.realpath(self._path)
        return f"{path} (file {os.stat(path).st_ino})"

    @contextmanager
    def transaction(self, *, write: bool, alone: bool = False) -> Iterator[FileTransaction]:
        """See `StashTables`. Who writes is alone anyway."""
        with self._lock:
            idle = self._idle.pop() if self._idle else None
        connection = idle or self._connect()
        try:
            connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            yield FileTransaction(connection)
            connection.execute("COMMIT")
        except BaseException:
            connection.close()  # which takes back what has not been committed
            raise
        with self._lock:
            if not self._closed and len(self._idle) < _IDLE:
                self._idle.append(connection)
                return
        connection.close()

    def append(self, token: int | None, sequence: int, writes: Writes, config: Mapping[str, int]) -> Mapping[str, int]:
        """See `StashTables`. On a connection kept for it: every small write to a table is one such transaction."""
        with self._appending:
            connection, self._appender = self._appender or self._connect(), None
            try:
                connection.execute("BEGIN IMMEDIATE")
                transaction = FileTransaction(connection)
                head = transaction.head()
                if head.get(FENCING_KEY) == token and head.get(SEQUENCE_KEY, 0) == sequence:
                    _fill(transaction, writes, config)
                    fault_point("catalog.commit.before")
                connection.execute("COMMIT")
            except BaseException:
                connection.close()
                raise
            self._appender = connection
        return head

    def token(self) -> int | None:
        """See `StashTables`. One statement on a connection kept for it: several times faster, and as atomic."""
        with self._probing:
            if self._probe is None:
                self._probe = self._connect()
            found = self._probe.execute(_TOKEN).fetchall()
        return found[0][0] if found else None

    def trouble(self, error: Exception) -> StashTrouble | None:
        """See `StashTables`."""
        if not isinstance(error, (sqlite3.Error, OSError)):
            return None
        full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
        return StashTrouble(DiskFull if full else StorageError, one_line(error))

    def dispose(self) -> None:
        """See `StashTables`."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def close(self) -> None:
        """See `StashTables`."""
        with self._lock:
            self._closed = True
        with self._probing:
            probe, self._probe = self._probe, None
        with self._appending:
            appender, self._appender = self._appender, None
        for connection in (probe, appender):
            if connection is not None:
                connection.close()
        self.dispose()

    def _connect(self) -> sqlite3.Connection:
        with self._lock:
            if self._closed:
                raise StorageError(f"the catalog in {self._path} is closed")
        path = self._path.resolve()
        if path.exists():
            _refuse_foreign_file(self._path)  # before anything is written: the journal's mode stands in the file
        connection = sqlite3.connect(
            f"{path.as_uri()}?mode={'ro' if self._read_only else 'rwc'}",
            uri=True, timeout=self._busy_timeout_ms / 1000, isolation_level=None, check_same_thread=False,
        )  # fmt: skip
        try:
            if not self._read_only:
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute(f"PRAGMA synchronous={'FULL' if self._full_sync else 'NORMAL'}")
        except BaseException:
            connection.close()
            raise
        return connection


def columns_of(connection: sqlite3.Connection, names: Iterable[str]) -> dict[str, set[str]]:
    """The columns of those tables that there are."""
    found = {name: {row[1] for row in connection.execute(f"PRAGMA table_info({name})")} for name in names}
    return {name: columns for name, columns in found.items() if columns}


def _rows(cursor: sqlite3.Cursor) -> list[Row]:
    return [(str(c), str(k), str(v)) for c, k, v in cursor]


def _fill(transaction: FileTransaction, writes: Writes, config: Mapping[str, int]) -> None:
    if writes.deletes:
        transaction.delete(writes.deletes)
    if writes.puts:
        transaction.put(writes.puts)
    transaction.set_config(config)


def _refuse_foreign_file(path: Path) -> None:
    """Raise `CorruptObject` for a file that is no database of SQLite's, or one of another program."""
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
        try:
            rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            names = {name for (name,) in rows if not name.startswith("sqlite_")}
            columns = columns_of(connection, names & COLUMNS.keys())
            what = wrong_shape(columns, lambda: bool(connection.execute(_TOKEN).fetchall()))
        except sqlite3.OperationalError:
            return  # it is locked, say: who opens it finds out
        except sqlite3.DatabaseError as error:
            raise CorruptObject(f"the catalog in {path} cannot be read: {one_line(error)}", hint=RESTORE) from error
    if names and not columns:
        what = f"it has the tables {', '.join(sorted(names)[:5])}"
    if what is not None:
        raise foreign(str(path), what)
