"""The catalog in a relational database, over SQLAlchemy Core: a SQLite file, or tables in PostgreSQL.

Two tables: rows under keys, and a config collection of numbers. Transactions in PostgreSQL are serializable, and
writers lock the row with the token.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import QueuePool

from headrace.catalog.deadlines import Deadlines, limited, renew
from headrace.catalog.edits import FENCING_KEY, FORMAT_VERSION_KEY, SEQUENCE_KEY
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
from headrace.errors import CorruptObject, DiskFull, Fenced, HeadraceError, InvalidParameter, StorageError

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
_PLACE: Final = _ALL_RECORDS.where(_record.c.collection == PLACE)
_OWNER: Final = sa.select(_record.c.value).where(_record.c.collection == PLACE, _record.c.key == OWNER)
_ONE: Final = sa.select(_record.c.value).where(
    _record.c.collection == sa.bindparam("at_collection"), _record.c.key == sa.bindparam("at_key")
)
_DELETE: Final = sa.delete(_record).where(
    _record.c.collection == sa.bindparam("at_collection"), _record.c.key == sa.bindparam("at_key")
)
_HEAD_SQL: Final = f"SELECT key, value FROM config WHERE key IN ('{FENCING_KEY}', '{SEQUENCE_KEY}')"
_PUT_CONFIG_SQL: Final = "INSERT INTO config VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
_PUT_RECORD_SQL: Final = (
    "INSERT INTO record VALUES (?, ?, ?) ON CONFLICT (collection, key) DO UPDATE SET value = excluded.value"
)
_DELETE_SQL: Final = "DELETE FROM record WHERE collection = ? AND key = ?"
_TOKEN_SQL: Final = f"SELECT value FROM config WHERE key = '{FENCING_KEY}'"
_DATABASE: Final = sa.text("SELECT datname, oid::text FROM pg_database WHERE datname = current_database()")
_SYSTEM: Final = sa.text("SELECT system_identifier::text FROM pg_control_system()")
_THERE: Final = sa.text("SELECT to_regclass('config') IS NOT NULL")
_ALONE: Final = sa.text("LOCK TABLE config IN EXCLUSIVE MODE")
"""Waits for whoever writes, and lets nobody else. As the first statement it comes before what the transaction sees of
the database, which then is what is durable, so that nothing can be in its way."""
_MANY: Final = sa.text(
    "INSERT INTO record (collection, key, value) "
    "SELECT * FROM unnest(CAST(:c AS text[]), CAST(:k AS text[]), CAST(:v AS text[]))"
)
_APPEND: Final = sa.text(f"""
WITH head AS MATERIALIZED (
    SELECT key, value FROM config WHERE key IN ('{FENCING_KEY}', '{SEQUENCE_KEY}') FOR UPDATE
), expected AS MATERIALIZED (
    SELECT FROM head
    HAVING max(value) FILTER (WHERE key = '{FENCING_KEY}') = CAST(:token AS bigint)
    AND coalesce(max(value) FILTER (WHERE key = '{SEQUENCE_KEY}'), 0) = CAST(:sequence AS bigint)
), deleted AS (
    DELETE FROM record
    USING expected,
        unnest(CAST(:deleted_collections AS text[]), CAST(:deleted_keys AS text[])) AS gone (collection, key)
    WHERE record.collection = gone.collection AND record.key = gone.key
), put AS (
    INSERT INTO record (collection, key, value)
    SELECT new.*
    FROM expected, unnest(CAST(:collections AS text[]), CAST(:keys AS text[]), CAST(:texts AS text[])) AS new
    ON CONFLICT (collection, key) DO UPDATE SET value = excluded.value
), configured AS (
    INSERT INTO config (key, value)
    SELECT new.* FROM expected, unnest(CAST(:entries AS text[]), CAST(:numbers AS bigint[])) AS new
    ON CONFLICT (key) DO UPDATE SET value = excluded.value
)
SELECT key, value FROM head
""")
"""A whole transaction in one statement, hence in one round trip: writes if the token and the sequence number are those
expected, and returns what they are. The rows stay locked until it ends, so that writers queue."""
_BLOCK_ROWS: Final = 10_000
"""Rows that are read or written at a time; each block has all of the time-out."""
_RESTORE: Final = "nothing was changed; restore it from a backup"
_SERIALIZATION_ATTEMPTS: Final = 10
_AGAIN: Final = frozenset({"40001", "40P01", "23505", "42P07"})
"""SQLSTATEs after which a transaction is run again: not serializable, a deadlock, and tables or keys that another
opener of an empty database has made in the same moment."""
IDLE_IN_TRANSACTION_MS: Final = 5_000
"""A transaction in PostgreSQL is ended by the server when its client has said nothing for that long."""
_T = TypeVar("_T")
_FULL: Final = "53100"
_NOT_OFFERED: Final = ("42", "0A")
"""Classes of SQLSTATEs of what is not permitted, or not there because it is not PostgreSQL itself."""


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _unsigned(value: int) -> int:
    return value + (1 << 64) if value < 0 else value


def sqlite_engine(path: Path, *, read_only: bool, full_sync: bool, busy_timeout_ms: int) -> Engine:
    """An engine for a SQLite file: WAL, and write transactions that take the write lock when they begin."""

    def connect() -> sqlite3.Connection:
        uri = f"{path.resolve().as_uri()}?mode={'ro' if read_only else 'rwc'}"
        if path.exists():
            _refuse_foreign_file(path)  # before anything is written: the journal's mode stands in the file
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


def _refuse_foreign_file(path: Path) -> None:
    """Raise `CorruptObject` for a file that is no database of SQLite's, or one of another program."""
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
        try:
            rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            names = {name for (name,) in rows if not name.startswith("sqlite_")}
            columns = {
                name: {row[1] for row in connection.execute(f"PRAGMA table_info({name})")}
                for name in names & set(_metadata.tables)
            }
            what = _wrong_shape(columns, lambda: bool(connection.execute(_TOKEN_SQL).fetchall()))
        except sqlite3.OperationalError:
            return  # it is locked, say: who opens it finds out
        except sqlite3.DatabaseError as error:
            raise CorruptObject(f"the catalog in {path} cannot be read: {_one_line(error)}", hint=_RESTORE) from error
    if names and not columns:
        what = f"it has the tables {', '.join(sorted(names)[:5])}"
    if what is not None:
        raise _foreign(str(path), what)


def _wrong_shape(columns: Mapping[str, set[str]], has_token: Callable[[], bool]) -> str | None:
    """What is wrong with the tables of a catalog's names, by their columns; None if they are a catalog, or missing."""
    for name, found in columns.items():
        if found != {column.name for column in _metadata.tables[name].columns}:
            return f"its table {name} has the columns {', '.join(sorted(found))}"
    if len(columns) == 1:
        return f"it has a table {next(iter(columns))}, and not the other one"
    return "its table config has no fencing token" if columns and not has_token() else None


def _foreign(name: str, what: str) -> CorruptObject:
    return CorruptObject(f"{name} holds no catalog of headrace: {what}", hint="nothing was changed; give another place")


def server_engine(url: str, connect_timeout_ms: int = 10_000, timeout_ms: int = 30_000) -> Engine:
    """An engine for a PostgreSQL database (psycopg unless the URL names a driver); transactions are serializable.

    Nothing waits longer than the time-outs: for a connection, for a lock, for an answer. Raises `InvalidParameter`
    when the driver is not installed.
    """
    parsed = sa.make_url(url)
    if "+" not in parsed.drivername:
        parsed = parsed.set(drivername="postgresql+psycopg")
    limits = {
        "lock_timeout": timeout_ms,
        "statement_timeout": timeout_ms,
        # Who was cut off in the middle of a transaction holds its lock no longer than that.
        "idle_in_transaction_session_timeout": min(timeout_ms, IDLE_IN_TRANSACTION_MS),
        "default_transaction_isolation": "serializable",  # also of statements that are a transaction each
        "plan_cache_mode": "force_generic_plan",  # what is run for each commit is not worth planning anew
    }
    given = parsed.query.get("options", "")
    options = " ".join([str(given), *(f"-c {name}={value}" for name, value in limits.items())]).strip()
    arguments = {"connect_timeout": max(2, connect_timeout_ms // 1000), "options": options}
    try:
        engine = sa.create_engine(
            parsed, isolation_level="SERIALIZABLE", pool_size=2, max_overflow=-1, connect_args=arguments
        )
    except ImportError as error:
        hint = 'pip install "psycopg[binary]"'
        raise InvalidParameter(f"no driver for a catalog in PostgreSQL: {error}", hint=hint) from error
    Deadlines(timeout_ms).attach(engine)
    return engine


def _insert_of(engine: Engine) -> Callable[[sa.Table], Any]:
    """How a database inserts or replaces rows. The other one's way is not loaded."""
    if engine.dialect.name == "postgresql":
        from sqlalchemy.dialects import postgresql

        return postgresql.insert
    from sqlalchemy.dialects import sqlite

    return sqlite.insert


class StashStore:
    """A `CatalogStore` in two tables: `config(key, value)` and `record(collection, key, value)`."""

    def __init__(self, engine: Engine, name: str, generation: int = 0):
        self._engine = engine
        self._statements = engine.execution_options(isolation_level="AUTOCOMMIT")
        """The same connections; each statement on them is a transaction."""
        self._generation = generation
        self._name = name
        self._token: int | None = None
        self._closed = threading.Event()
        self._probe: sqlite3.Connection | None = None
        self._probing = threading.Lock()
        self._appender: sqlite3.Connection | None = None
        self._held: Connection | None = None
        """The same of a server, see `_appending_connection`."""
        self._appending = threading.Lock()
        insert = _insert_of(engine)
        config, record = insert(_config), insert(_record)
        self._put_config = config.on_conflict_do_update(index_elements=["key"], set_={"value": config.excluded.value})
        self._put_record = record.on_conflict_do_update(
            index_elements=["collection", "key"], set_={"value": record.excluded.value}
        )

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
        return self._retrying(self._place)

    def _place(self) -> str:
        if self._engine.dialect.name == "sqlite":
            path = os.path.realpath(self._name)
            return f"{path} (file {os.stat(path).st_ino})"
        with self._transaction() as connection:
            name, oid = connection.execute(_DATABASE).one()
        try:
            with self._transaction() as connection:
                system = connection.execute(_SYSTEM).scalar_one()
        except DBAPIError as error:
            if (getattr(error.orig, "sqlstate", None) or "")[:2] not in _NOT_OFFERED:
                raise  # it may say so the next time: then it would seem to be another place
            system = "unknown"
        return f"database {name} ({oid}) of the PostgreSQL system {system}"

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
        with self._transaction() as connection:
            if not self._is_there(connection):
                return StoredCatalog({}, ())
            config = self._config_of(connection)
            check_format(config.get(FORMAT_VERSION_KEY), format_version)
            entry(config, self._generation)
            return checked(self._read(connection), format_version)

    def _unless_changed(self, before: StoredCatalog) -> StoredCatalog | None:
        """What was there before this handle was opened, if nobody has written since; so it need not be read again."""
        with self._transaction() as connection:
            sequence, config = self._compare(connection), self._config_of(connection)
            same = before.config.get(SEQUENCE_KEY) == sequence and before.config.get(FENCING_KEY, 0) + 1 == self._token
            if before.records is None or not same:
                return None
            place = tuple((str(c), str(k), str(v)) for c, k, v in connection.execute(_PLACE))
        return StoredCatalog(config, (*(row for row in before.rows if row[0] != PLACE), *place), before.records)

    def _fence(self, format_version: int, succeeding: int | None) -> int:
        busy = not self.is_near and self._has_config()
        with self._transaction(write=True) as connection:
            if busy:  # or an owner who never rests could let every attempt fail
                connection.execute(_ALONE)
            if self._is_there(connection):
                config = self._config_of(connection)
                check_format(config.get(FORMAT_VERSION_KEY), format_version)
            else:
                _metadata.create_all(connection)
                config = {}
            check_succession(self._name, config.get(FENCING_KEY, 0), succeeding)
            taken = entry(config, self._generation)
            token = taken[FENCING_KEY]
            self._write(connection, Writes(puts=(owner_row(token),), config=taken))
            fault_point("catalog.fence.before")
        return token

    def _has_config(self) -> bool:
        """Whether a server has tables of a catalog, or others of these names."""
        with self._transaction() as connection:
            return bool(connection.execute(_THERE).scalar_one())

    def _is_there(self, connection: Connection) -> bool:
        """Whether there is a catalog. Raises `CorruptObject` for tables of its names that are another program's."""
        inspector = sa.inspect(connection)
        columns = {
            name: {column["name"] for column in inspector.get_columns(name)}
            for name in _metadata.tables
            if inspector.has_table(name)
        }
        what = _wrong_shape(columns, lambda: FENCING_KEY in self._config_of(connection))
        if what is not None:
            raise _foreign(self._name, what)
        return bool(columns)

    def _initialize(self, format_version: int) -> None:
        fault_point("catalog.initialize.before")
        with self._transaction(write=True) as connection:
            self._compare(connection)
            if FORMAT_VERSION_KEY not in self._config_of(connection):
                self._set_config(connection, initial_config(format_version))

    def _format(self) -> int:
        with self._transaction() as connection:
            self._compare(connection)
            return self._config_of(connection).get(FORMAT_VERSION_KEY, 0)

    def _migrate(self, reached: int, migration: Migration) -> None:
        with self._transaction(write=True) as connection:
            sequence = self._compare(connection)
            if self._config_of(connection)[FORMAT_VERSION_KEY] != reached - 1:
                return
            self._write(connection, migration(self._read(connection)))
            self._set_config(connection, {FORMAT_VERSION_KEY: reached, SEQUENCE_KEY: sequence + 1})
            fault_point("catalog.migrate.step")

    # ---- reading

    def load(self, format_version: int) -> StoredCatalog:
        """Reads the whole content as of one moment."""
        return self._reading(lambda: self._load(format_version))

    def _load(self, format_version: int) -> StoredCatalog:
        with self._transaction() as connection:
            if self._token is not None:
                self._compare(connection)
            elif not self._is_there(connection):
                raise StorageError(f"there is no catalog in {self._name}")
            loaded = self._read(connection)
        check_format(loaded.config.get(FORMAT_VERSION_KEY), format_version)
        return loaded

    def head(self, collection: str, key: str) -> tuple[int, int, str | None]:
        """The durable fencing token, the number of the last transaction, and one record as of that; without `open`."""
        return self._reading(lambda: self._head(collection, key))

    def _head(self, collection: str, key: str) -> tuple[int, int, str | None]:
        with self._transaction() as connection:
            head = {key: _unsigned(value) for key, value in connection.execute(_HEAD)}
            value = connection.execute(_ONE, {"at_collection": collection, "at_key": key}).scalar()
        return head.get(FENCING_KEY, 0), head.get(SEQUENCE_KEY, 0), value

    def sequence(self) -> int:
        """How many transactions are durable; waits for one that is being committed."""
        return self._reading(lambda: self._sequence(write=True))

    @property
    def is_near(self) -> bool:
        """Whether it is a file of this machine."""
        return self._engine.dialect.name == "sqlite"

    @property
    def file(self) -> str | None:
        """The path of that file; None for a server's tables."""
        return self._name if self.is_near else None

    def verify(self) -> None:
        """Raise `Fenced` if another opener has come since."""
        if self.is_near:
            self._retrying(self._verify_file)
        else:
            self._reading(lambda: self._sequence(write=False))

    def _verify_file(self) -> None:
        """One statement on a connection kept for it: several times faster, and as atomic."""
        with self._probing:
            self._check_open()
            if self._probe is None:
                self._probe = self._kept_connection()
            found = self._probe.execute(_TOKEN_SQL).fetchall()
        if self._token is None or not found or found[0][0] != self._token:
            self._sequence(write=False)

    def _kept_connection(self) -> sqlite3.Connection:
        """A connection to the file that is not the pool's any more."""
        held = self._engine.raw_connection()
        connection = cast(sqlite3.Connection, held.driver_connection)
        held.detach()
        return connection

    def _sequence(self, *, write: bool) -> int:
        with self._transaction(write=write) as connection:
            return self._compare(connection)

    def peek(self) -> StoredCatalog:
        """The config collection and the rows of `PLACE`, without opening; both empty if there is no catalog."""
        return self._reading(self._peek)

    def _peek(self) -> StoredCatalog:
        with self._transaction() as connection:
            if not self._is_there(connection):
                return StoredCatalog({}, ())
            rows = tuple((str(c), str(k), str(v)) for c, k, v in connection.execute(_PLACE))
            return StoredCatalog(self._config_of(connection), rows)

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
                if last or not isinstance(error, _LineLost):
                    raise

    def _append(self, writes: Writes, expected_sequence: int) -> None:
        if self._engine.dialect.name == "sqlite":
            self._append_to_file(writes, expected_sequence)
            return
        parameters = self._append_parameters(writes, expected_sequence)
        fault_point("catalog.commit.before")
        with self._appending_connection() as connection:
            head = {key: _unsigned(value) for key, value in connection.execute(_APPEND, parameters)}
            self._require_token(connection, head)
        self._require_sequence(head.get(SEQUENCE_KEY, 0), expected_sequence)

    @contextmanager
    def _appending_connection(self) -> Iterator[Connection]:
        """A connection that is kept for what is run for each commit: to take one of the pool costs half as much again.

        One with which anything goes wrong is given up.
        """
        with self._appending:
            self._check_open()
            connection, self._held = self._held or self._statements.connect(), None
            try:
                with limited(connection):
                    yield connection
            except BaseException:
                with suppress(SQLAlchemyError):
                    connection.close()
                raise
            self._held = connection

    def _append_parameters(self, writes: Writes, expected_sequence: int) -> dict[str, object]:
        """What `_APPEND` is run with. Within one statement a row can be written only once: a put wins over a delete."""
        puts = {(collection, key): text for collection, key, text in writes.puts}
        deletes = [row for row in writes.deletes if row not in puts]
        config = {**(writes.config or {}), SEQUENCE_KEY: expected_sequence + 1}
        return {
            "token": None if self._token is None else _signed(self._token), "sequence": _signed(expected_sequence),
            "deleted_collections": [c for c, _ in deletes], "deleted_keys": [k for _, k in deletes],
            "collections": [c for c, _ in puts], "keys": [k for _, k in puts], "texts": list(puts.values()),
            "entries": list(config), "numbers": [_signed(value) for value in config.values()],
        }  # fmt: skip

    def _require_sequence(self, sequence: int, expected: int) -> None:
        if sequence != expected:
            raise SequenceConflict(f"the catalog is at transaction {sequence}, not {expected}")

    def _append_to_file(self, writes: Writes, expected_sequence: int) -> None:
        """The same on a connection kept for it: every small write to a table is one such transaction."""
        with self._appending:
            self._check_open()
            connection, self._appender = self._appender or self._kept_connection(), None
            try:
                connection.execute("BEGIN IMMEDIATE")
                self._fill(connection, writes, expected_sequence)
                fault_point("catalog.commit.before")
                connection.execute("COMMIT")
            except BaseException:
                connection.close()  # which takes back what has not been committed
                raise
            self._appender = connection

    def _fill(self, connection: sqlite3.Connection, writes: Writes, expected_sequence: int) -> None:
        head = {key: _unsigned(value) for key, value in connection.execute(_HEAD_SQL)}
        if self._token is None or head.get(FENCING_KEY) != self._token:
            owner = connection.execute("SELECT value FROM record WHERE collection = ? AND key = ?", (PLACE, OWNER))
            raise fenced(self._token or 0, head.get(FENCING_KEY, 0), (owner.fetchone() or (None,))[0])
        self._require_sequence(head.get(SEQUENCE_KEY, 0), expected_sequence)
        if writes.deletes:
            connection.executemany(_DELETE_SQL, writes.deletes)
        if writes.puts:
            connection.executemany(_PUT_RECORD_SQL, writes.puts)
        config = {**(writes.config or {}), SEQUENCE_KEY: expected_sequence + 1}
        connection.executemany(_PUT_CONFIG_SQL, [(key, _signed(value)) for key, value in config.items()])

    def _landed(self, expected_sequence: int, error: HeadraceError) -> bool:
        """Whether the transaction is durable, asked on a new connection that waits for the lost one to end."""

        def sequence() -> int:
            self._engine.dispose()
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
        with self._transaction(write=True) as connection:
            self._compare(connection)
            connection.execute(sa.delete(_record))
            connection.execute(sa.delete(_config))
            for start in range(0, len(content.rows), _BLOCK_ROWS):
                self._insert(connection, content.rows[start : start + _BLOCK_ROWS])
                renew(connection)
            self._write(connection, Writes((owner_row(token),), (), {**content.config, FENCING_KEY: token}))

    def _insert(self, connection: Connection, rows: Sequence[Row]) -> None:
        """Many new rows at once: one by one PostgreSQL would take long."""
        if self._engine.dialect.name == "sqlite":
            connection.execute(self._put_record, [{"collection": c, "key": k, "value": v} for c, k, v in rows])
        else:
            columns = ("c", "k", "v")
            connection.execute(_MANY, {name: [row[n] for row in rows] for n, name in enumerate(columns)})

    def _durable_token(self, error: HeadraceError) -> int:
        """The fencing token that the catalog has after a write of which the outcome is not known."""
        self._engine.dispose()
        try:
            return self._reading(self._token_after_writers)
        except StorageError as failure:
            raise OutcomeUnknown(
                f"the catalog in {self._name} does not answer, its content may or may not have been replaced",
                detail=f"{error.message}; then {failure.message}",
            ) from error

    def _token_after_writers(self) -> int:
        with self._transaction(write=True) as connection:
            return dict(connection.execute(_HEAD.with_for_update()).tuples().all()).get(FENCING_KEY, 0)

    def close(self) -> None:
        """Let go of all connections."""
        with self._probing:
            self._closed.set()
            if self._probe is not None:
                self._probe.close()
        with self._appending:
            if self._appender is not None:
                self._appender.close()
            if self._held is not None:
                with suppress(SQLAlchemyError):
                    self._held.close()
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
        self._require_token(connection, head)
        return head.get(SEQUENCE_KEY, 0)

    def _require_token(self, connection: Connection, head: Mapping[str, int]) -> None:
        if self._token is None or head.get(FENCING_KEY) != self._token:
            raise fenced(self._token or 0, head.get(FENCING_KEY, 0), connection.execute(_OWNER).scalar())

    def _config_of(self, connection: Connection) -> dict[str, int]:
        found = dict(connection.execute(_ALL_CONFIG).tuples().all())
        for key, value in found.items():
            if not isinstance(value, int):
                raise CorruptObject(f"config entry {key} of the catalog in {self._name} is no number", hint=_RESTORE)
        return {key: _unsigned(value) for key, value in found.items()}

    def _read(self, connection: Connection) -> StoredCatalog:
        rows: list[Row] = []
        for part in connection.execute(_ALL_RECORDS.execution_options(yield_per=_BLOCK_ROWS)).partitions():
            rows.extend((str(c), str(k), str(v)) for c, k, v in part)
            renew(connection)
        return StoredCatalog(self._config_of(connection), tuple(rows))

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
        """Run a transaction, again if another one was in its way, with errors as `StorageError`."""
        for attempt in range(1, _SERIALIZATION_ATTEMPTS + 1):
            try:
                return step()
            except DBAPIError as error:
                if getattr(error.orig, "sqlstate", None) not in _AGAIN or attempt == _SERIALIZATION_ATTEMPTS:
                    raise _kind_of(error)(f"the catalog in {self._name} failed: {_one_line(error.orig)}") from error
            except (SQLAlchemyError, sqlite3.Error, OSError) as error:
                raise _kind_of(error)(f"the catalog in {self._name} failed: {_one_line(error)}") from error
        raise AssertionError("unreachable")

    def _reading(self, step: Callable[[], _T]) -> _T:
        """Run a transaction that writes nothing; once more if its connection turns out to be a dead one."""
        try:
            return self._retrying(step)
        except _LineLost:
            return self._retrying(step)


def _kind_of(error: Exception) -> type[HeadraceError]:
    """What an error of the database is to whoever uses the catalog."""
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return _LineLost
    own = error.orig if isinstance(error, DBAPIError) else error
    full = getattr(own, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL or getattr(own, "sqlstate", None) == _FULL
    return DiskFull if full else StorageError


class _LineLost(StorageError):
    """The connection ended before the answer came."""


def _one_line(error: BaseException | None) -> str:
    return " ".join(str(error).split())
