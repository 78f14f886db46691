"""The catalog in a relational database, over SQLAlchemy Core: a SQLite file, or tables in PostgreSQL."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import QueuePool

from headrace.catalog.edits import FENCING_KEY, FORMAT_VERSION_KEY, NEXT_ID_KEY, SEQUENCE_KEY
from headrace.catalog.store import (
    Loaded,
    Migration,
    OutcomeUnknown,
    SequenceConflict,
    Writes,
    check_format,
    fenced,
    migration_steps,
)
from headrace.common.faults import fault_point
from headrace.errors import Fenced, HeadraceError, InvalidParameter, StorageError

_metadata = sa.MetaData()
_config = sa.Table(
    "config",
    _metadata,
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("value", sa.BigInteger, nullable=False),
)
_record = sa.Table(
    "record",
    _metadata,
    sa.Column("collection", sa.Text, primary_key=True),
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
    sqlite_with_rowid=False,
)
_ALL_CONFIG: Final = sa.select(_config.c.key, _config.c.value)
_HEAD: Final = _ALL_CONFIG.where(_config.c.key.in_([FENCING_KEY, SEQUENCE_KEY]))
_ALL_RECORDS: Final = sa.select(_record.c.collection, _record.c.key, _record.c.value)
_DELETE: Final = sa.delete(_record).where(
    _record.c.collection == sa.bindparam("at_collection"), _record.c.key == sa.bindparam("at_key")
)
_TOKEN_SQL: Final = f"SELECT value FROM config WHERE key = '{FENCING_KEY}'"
_SERIALIZATION_ATTEMPTS: Final = 10
_T = TypeVar("_T")


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _unsigned(value: int) -> int:
    return value + (1 << 64) if value < 0 else value


def sqlite_engine(path: Path, *, read_only: bool, full_sync: bool, busy_timeout_ms: int) -> Engine:
    """An engine for a SQLite file: WAL, and write transactions that take the write lock when they begin."""

    def connect() -> sqlite3.Connection:
        uri = f"{path.resolve().as_uri()}?mode={'ro' if read_only else 'rwc'}"
        connection = sqlite3.connect(
            uri, uri=True, timeout=busy_timeout_ms / 1000, isolation_level=None, check_same_thread=False
        )
        if not read_only:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute(f"PRAGMA synchronous={'FULL' if full_sync else 'NORMAL'}")
        return connection

    engine = sa.create_engine("sqlite://", creator=connect, poolclass=QueuePool, pool_size=2, max_overflow=-1)

    @sa.event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        write = connection.get_execution_options().get("headrace_write", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    return engine


def server_engine(url: str) -> Engine:
    """An engine for a PostgreSQL database (psycopg unless the URL names a driver); transactions are serializable.

    Raises `InvalidParameter` when the driver is not installed.
    """
    parsed = sa.make_url(url)
    if "+" not in parsed.drivername:
        parsed = parsed.set(drivername="postgresql+psycopg")
    try:
        return sa.create_engine(parsed, isolation_level="SERIALIZABLE", pool_size=2, pool_pre_ping=True)
    except ImportError as error:
        hint = 'pip install "psycopg[binary]"'
        raise InvalidParameter(f"no driver for a catalog in PostgreSQL: {error}", hint=hint) from error


class StashStore:
    """A `CatalogStore` in two tables: `config(key, value)` and `record(collection, key, value)`."""

    def __init__(self, engine: Engine, name: str):
        self._engine = engine
        self._name = name
        self._token: int | None = None
        self._closed = threading.Event()
        self._probe: sqlite3.Connection | None = None
        self._probing = threading.Lock()
        dialect: Any = postgresql if engine.dialect.name == "postgresql" else sqlite
        config, record = dialect.insert(_config), dialect.insert(_record)
        self._put_config = config.on_conflict_do_update(index_elements=["key"], set_={"value": config.excluded.value})
        self._put_record = record.on_conflict_do_update(
            index_elements=["collection", "key"], set_={"value": record.excluded.value}
        )

    @property
    def token(self) -> int | None:
        """The fencing token of this handle; None before `open`."""
        return self._token

    # ---- opening

    def open(self, format_version: int, migrations: Mapping[int, Migration]) -> Loaded:
        """Shut out every earlier opener, then initialise or migrate, then load everything."""
        self._token = self._retrying(lambda: self._fence(format_version))
        fault_point("catalog.fence.after")
        self._retrying(lambda: self._initialize(format_version))
        stored = self._retrying(self._format)
        for reached, migration in migration_steps(stored, format_version, migrations):
            self._retrying(lambda reached=reached, migration=migration: self._migrate(reached, migration))  # type: ignore[misc]
        return self.load(format_version)

    def _fence(self, format_version: int) -> int:
        with self._transaction(write=True) as connection:
            if sa.inspect(connection).has_table(_config.name):
                config = self._config_of(connection)
                check_format(config.get(FORMAT_VERSION_KEY), format_version)
            else:
                _metadata.create_all(connection)
                config = {}
            token = config.get(FENCING_KEY, 0) + 1
            self._set_config(connection, {FENCING_KEY: token})
            fault_point("catalog.fence.before")
        return token

    def _initialize(self, format_version: int) -> None:
        fault_point("catalog.initialize.before")
        with self._transaction(write=True) as connection:
            self._compare(connection)
            if FORMAT_VERSION_KEY not in self._config_of(connection):
                self._set_config(connection, {FORMAT_VERSION_KEY: format_version, SEQUENCE_KEY: 0, NEXT_ID_KEY: 1})

    def _format(self) -> int:
        with self._transaction() as connection:
            self._compare(connection)
            return self._config_of(connection)[FORMAT_VERSION_KEY]

    def _migrate(self, reached: int, migration: Migration) -> None:
        with self._transaction(write=True) as connection:
            sequence = self._compare(connection)
            if self._config_of(connection)[FORMAT_VERSION_KEY] != reached - 1:
                return
            self._write(connection, migration(self._read(connection)))
            self._set_config(connection, {FORMAT_VERSION_KEY: reached, SEQUENCE_KEY: sequence + 1})
            fault_point("catalog.migrate.step")

    # ---- reading

    def load(self, format_version: int) -> Loaded:
        """Everything at one moment."""
        return self._retrying(lambda: self._load(format_version))

    def _load(self, format_version: int) -> Loaded:
        with self._transaction() as connection:
            if self._token is not None:
                self._compare(connection)
            elif not sa.inspect(connection).has_table(_config.name):
                raise StorageError(f"there is no catalog in {self._name}")
            loaded = self._read(connection)
        check_format(loaded.config.get(FORMAT_VERSION_KEY), format_version)
        return loaded

    def sequence(self) -> int:
        """How many transactions are durable; waits for one that is being committed."""
        return self._retrying(lambda: self._sequence(write=True))

    def verify(self) -> None:
        """Raise `Fenced` if another opener has come since."""
        if self._engine.dialect.name == "sqlite":
            self._retrying(self._verify_file)
        else:
            self._retrying(lambda: self._sequence(write=False))

    def _verify_file(self) -> None:
        """One statement on a connection kept for it: several times faster, and as atomic."""
        with self._probing:
            self._check_open()
            if self._probe is None:
                held = self._engine.raw_connection()
                self._probe = cast(sqlite3.Connection, held.driver_connection)
                held.detach()
            found = self._probe.execute(_TOKEN_SQL).fetchall()
        durable = found[0][0] if found else 0
        if self._token is None or durable != self._token:
            raise fenced(self._token or 0, durable)

    def _sequence(self, *, write: bool) -> int:
        with self._transaction(write=write) as connection:
            return self._compare(connection)

    def read_config(self) -> dict[str, int]:
        """The config collection, without opening; empty if there is no catalog."""
        return self._retrying(self._read_config)

    def _read_config(self) -> dict[str, int]:
        with self._transaction() as connection:
            return self._config_of(connection) if sa.inspect(connection).has_table(_config.name) else {}

    # ---- writing

    def append(self, writes: Writes, expected_sequence: int) -> None:
        """Commit as transaction number `expected_sequence + 1`; a lost acknowledgement is resolved by reading back."""
        self._check_open()
        try:
            self._retrying(lambda: self._append(writes, expected_sequence))
            fault_point("catalog.commit.after")
        except (Fenced, SequenceConflict):
            raise
        except HeadraceError as error:
            if not self._landed(expected_sequence, error):
                raise

    def _append(self, writes: Writes, expected_sequence: int) -> None:
        with self._transaction(write=True) as connection:
            sequence = self._compare(connection)
            if sequence != expected_sequence:
                raise SequenceConflict(f"the catalog is at transaction {sequence}, not {expected_sequence}")
            self._write(connection, writes)
            self._set_config(connection, {SEQUENCE_KEY: sequence + 1})
            fault_point("catalog.commit.before")

    def _landed(self, expected_sequence: int, error: HeadraceError) -> bool:
        """Whether the transaction is durable, asked on a new connection that waits for the lost one to end."""
        try:
            self._engine.dispose()
            return self.sequence() > expected_sequence
        except Fenced:
            raise
        except StorageError as failure:
            raise OutcomeUnknown(
                f"the catalog in {self._name} does not answer, the last transaction may or may not be durable",
                detail=f"{error.message}; then {failure.message}",
            ) from error

    def close(self) -> None:
        """Let go of all connections."""
        with self._probing:
            self._closed.set()
            if self._probe is not None:
                self._probe.close()
        self._engine.dispose()

    # ---- within a transaction

    @contextmanager
    def _transaction(self, *, write: bool = False) -> Iterator[Connection]:
        self._check_open()
        with self._engine.connect() as connection:
            if write:
                connection = connection.execution_options(headrace_write=True)
            with connection.begin():
                yield connection

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise StorageError(f"the catalog in {self._name} is closed")

    def _compare(self, connection: Connection) -> int:
        """Check the fence inside the transaction, return its sequence number.

        On a server the row stays locked, so that writers queue.
        """
        statement = _HEAD
        if connection.get_execution_options().get("headrace_write"):
            statement = statement.with_for_update()
        head = {key: _unsigned(value) for key, value in connection.execute(statement)}
        if self._token is None or head.get(FENCING_KEY) != self._token:
            raise fenced(self._token or 0, head.get(FENCING_KEY, 0))
        return head.get(SEQUENCE_KEY, 0)

    def _config_of(self, connection: Connection) -> dict[str, int]:
        return {key: _unsigned(value) for key, value in connection.execute(_ALL_CONFIG)}

    def _read(self, connection: Connection) -> Loaded:
        rows = tuple((str(c), str(k), str(v)) for c, k, v in connection.execute(_ALL_RECORDS))
        return Loaded(self._config_of(connection), rows)

    def _set_config(self, connection: Connection, values: Mapping[str, int]) -> None:
        connection.execute(self._put_config, [{"key": k, "value": _signed(v)} for k, v in values.items()])

    def _write(self, connection: Connection, writes: Writes) -> None:
        if writes.deletes:
            connection.execute(_DELETE, [{"at_collection": c, "at_key": k} for c, k in writes.deletes])
        if writes.puts:
            connection.execute(self._put_record, [{"collection": c, "key": k, "value": v} for c, k, v in writes.puts])
        if writes.config:
            self._set_config(connection, writes.config)

    def _retrying(self, step: Callable[[], _T]) -> _T:
        """Run a transaction, again if the server found it unserializable, with errors as `StorageError`."""
        for attempt in range(1, _SERIALIZATION_ATTEMPTS + 1):
            try:
                return step()
            except DBAPIError as error:
                unserializable = getattr(error.orig, "sqlstate", None) in ("40001", "40P01")
                if not unserializable or attempt == _SERIALIZATION_ATTEMPTS:
                    raise StorageError(f"the catalog in {self._name} failed: {error.orig}") from error
            except (SQLAlchemyError, sqlite3.Error, OSError) as error:
                raise StorageError(f"the catalog in {self._name} failed: {error}") from error
        raise AssertionError("unreachable")
