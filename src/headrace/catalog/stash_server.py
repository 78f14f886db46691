"""The two tables of a catalog in a PostgreSQL database, over SQLAlchemy Core.

Transactions are serializable, and writers lock the row with the token.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from headrace.catalog.deadlines import Deadlines, limited, renew
from headrace.catalog.edits import FENCING_KEY, SEQUENCE_KEY
from headrace.catalog.stash_tables import LineLost, StashTrouble, one_line
from headrace.catalog.store import Row, Writes
from headrace.common.faults import fault_point
from headrace.errors import DiskFull, InvalidParameter, StorageError

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
)
_ALL_CONFIG: Final = sa.select(_config.c.key, _config.c.value)
_HEAD: Final = _ALL_CONFIG.where(_config.c.key.in_([FENCING_KEY, SEQUENCE_KEY]))
_ALL_RECORDS: Final = sa.select(_record.c.collection, _record.c.key, _record.c.value)
_COLLECTION: Final = _ALL_RECORDS.where(_record.c.collection == sa.bindparam("of"))
_ONE: Final = sa.select(_record.c.value).where(
    _record.c.collection == sa.bindparam("at_collection"), _record.c.key == sa.bindparam("at_key")
)
_DELETE: Final = sa.delete(_record).where(
    _record.c.collection == sa.bindparam("at_collection"), _record.c.key == sa.bindparam("at_key")
)
_NEW_CONFIG: Final = insert(_config)
_PUT_CONFIG: Final = _NEW_CONFIG.on_conflict_do_update(
    index_elements=["key"], set_={"value": _NEW_CONFIG.excluded.value}
)
_NEW_RECORD: Final = insert(_record)
_PUT_RECORD: Final = _NEW_RECORD.on_conflict_do_update(
    index_elements=["collection", "key"], set_={"value": _NEW_RECORD.excluded.value}
)
_DATABASE: Final = sa.text("SELECT datname, oid::text FROM pg_database WHERE datname = current_database()")
_SYSTEM: Final = sa.text("SELECT system_identifier::text FROM pg_control_system()")
_THERE: Final = sa.text("SELECT to_regclass('config') IS NOT NULL")
"""Whether there are tables of a catalog, or others of these names."""
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
_AGAIN: Final = frozenset({"40001", "40P01", "23505", "42P07"})
"""SQLSTATEs after which a transaction is run again: not serializable, a deadlock, and tables or keys that another
opener of an empty database has made in the same moment."""
IDLE_IN_TRANSACTION_MS: Final = 5_000
"""A transaction in PostgreSQL is ended by the server when its client has said nothing for that long."""
_FULL: Final = "53100"
_NOT_OFFERED: Final = ("42", "0A")
"""Classes of SQLSTATEs of what is not permitted, or not there because it is not PostgreSQL itself."""


class ServerTransaction:
    """A `StashTransaction` on a connection that has begun it."""

    def __init__(self, connection: Connection, *, write: bool) -> None:
        self._connection = connection
        self._write = write

    def columns(self) -> Mapping[str, set[str]]:
        """See `StashTransaction`."""
        inspector = sa.inspect(self._connection)
        return {
            name: {column["name"] for column in inspector.get_columns(name)}
            for name in _metadata.tables
            if inspector.has_table(name)
        }

    def create(self) -> None:
        """See `StashTransaction`."""
        _metadata.create_all(self._connection)

    def head(self) -> Mapping[str, int]:
        """See `StashTransaction`. The row stays locked."""
        statement = _HEAD.with_for_update() if self._write else _HEAD
        return dict(self._connection.execute(statement).tuples().all())

    def config(self) -> Mapping[str, object]:
        """See `StashTransaction`."""
        return dict(self._connection.execute(_ALL_CONFIG).tuples().all())

    def value(self, collection: str, key: str) -> str | None:
        """See `StashTransaction`."""
        return self._connection.execute(_ONE, {"at_collection": collection, "at_key": key}).scalar()

    def rows(self, collection: str) -> Sequence[Row]:
        """See `StashTransaction`."""
        return [(str(c), str(k), str(v)) for c, k, v in self._connection.execute(_COLLECTION, {"of": collection})]

    def blocks(self, size: int) -> Iterator[Sequence[Row]]:
        """See `StashTransaction`."""
        for part in self._connection.execute(_ALL_RECORDS.execution_options(yield_per=size)).partitions():
            yield [(str(c), str(k), str(v)) for c, k, v in part]
            renew(self._connection)

    def put(self, rows: Sequence[Row]) -> None:
        """See `StashTransaction`."""
        self._connection.execute(_PUT_RECORD, [{"collection": c, "key": k, "value": v} for c, k, v in rows])

    def insert(self, rows: Sequence[Row]) -> None:
        """See `StashTransaction`. One by one PostgreSQL would take long."""
        columns = ("c", "k", "v")
        self._connection.execute(_MANY, {name: [row[n] for row in rows] for n, name in enumerate(columns)})
        renew(self._connection)

    def delete(self, keys: Iterable[tuple[str, str]]) -> None:
        """See `StashTransaction`."""
        self._connection.execute(_DELETE, [{"at_collection": c, "at_key": k} for c, k in keys])

    def set_config(self, values: Mapping[str, int]) -> None:
        """See `StashTransaction`."""
        self._connection.execute(_PUT_CONFIG, [{"key": k, "value": v} for k, v in values.items()])

    def clear(self) -> None:
        """See `StashTransaction`."""
        self._connection.execute(sa.delete(_record))
        self._connection.execute(sa.delete(_config))


class ServerTables:
    """`StashTables` in a database of a server."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._statements = engine.execution_options(isolation_level="AUTOCOMMIT")
        """The same connections; each statement on them is a transaction."""
        self._held: Connection | None = None
        """See `_appending_connection`."""
        self._closed = False
        self._appending = threading.Lock()
        """Of these two."""

    @property
    def is_near(self) -> bool:
        """See `StashTables`."""
        return False

    def place(self) -> str:
        """See `StashTables`."""
        with self._connected() as connection:
            name, oid = connection.execute(_DATABASE).one()
        try:
            with self._connected() as connection:
                system = connection.execute(_SYSTEM).scalar_one()
        except DBAPIError as error:
            if (getattr(error.orig, "sqlstate", None) or "")[:2] not in _NOT_OFFERED:
                raise  # it may say so the next time: then it would seem to be another place
            system = "unknown"
        return f"database {name} ({oid}) of the PostgreSQL system {system}"

    @contextmanager
    def transaction(self, *, write: bool, alone: bool = False) -> Iterator[ServerTransaction]:
        """See `StashTables`."""
        busy = alone and self._has_config()
        with self._connected() as connection:
            if busy:  # or an owner who never rests could let every attempt fail
                connection.execute(_ALONE)
            yield ServerTransaction(connection, write=write)

    def _has_config(self) -> bool:
        with self._connected() as connection:
            return bool(connection.execute(_THERE).scalar_one())

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        with self._engine.connect() as connection, connection.begin():
            yield connection

    def append(self, token: int | None, sequence: int, writes: Writes, config: Mapping[str, int]) -> Mapping[str, int]:
        """See `StashTables`."""
        parameters = _append_parameters(token, sequence, writes, config)
        fault_point("catalog.commit.before")
        with self._appending_connection() as connection:
            return dict(connection.execute(_APPEND, parameters).tuples().all())

    @contextmanager
    def _appending_connection(self) -> Iterator[Connection]:
        """A connection that is kept for what is run for each commit: to take one of the pool costs half as much again.

        One with which anything goes wrong is given up.
        """
        with self._appending:
            if self._closed:
                raise StorageError("the catalog is closed")
            connection, self._held = self._held or self._statements.connect(), None
            try:
                with limited(connection):
                    yield connection
            except BaseException:
                with suppress(SQLAlchemyError):
                    connection.close()
                raise
            self._held = connection

    def token(self) -> int | None:
        """See `StashTables`."""
        return None

    def trouble(self, error: Exception) -> StashTrouble | None:
        """See `StashTables`."""
        if not isinstance(error, DBAPIError):
            return (
                StashTrouble(StorageError, one_line(error)) if isinstance(error, (SQLAlchemyError, OSError)) else None
            )
        state = getattr(error.orig, "sqlstate", None)
        kind = LineLost if error.connection_invalidated else DiskFull if state == _FULL else StorageError
        return StashTrouble(kind, one_line(error.orig), state in _AGAIN)

    def dispose(self) -> None:
        """See `StashTables`."""
        self._engine.dispose()

    def close(self) -> None:
        """See `StashTables`."""
        with self._appending:
            self._closed = True
            if self._held is not None:
                with suppress(SQLAlchemyError):
                    self._held.close()
        self._engine.dispose()


def _append_parameters(
    token: int | None, sequence: int, writes: Writes, config: Mapping[str, int]
) -> dict[str, object]:  # fmt: skip
    """What `_APPEND` is run with. Within one statement a row can be written only once: a put wins over a delete."""
    puts = {(collection, key): text for collection, key, text in writes.puts}
    deletes = [row for row in writes.deletes if row not in puts]
    return {
        "token": token, "sequence": sequence,
        "deleted_collections": [c for c, _ in deletes], "deleted_keys": [k for _, k in deletes],
        "collections": [c for c, _ in puts], "keys": [k for _, k in puts], "texts": list(puts.values()),
        "entries": list(config), "numbers": list(config.values()),
    }  # fmt: skip


def parsed_url(text: str) -> sa.URL:
    """A server's URL, taken apart. Raises `InvalidParameter`."""
    try:
        return sa.make_url(text)
    except ArgumentError as error:
        raise InvalidParameter("cannot read the catalog's URL", hint="postgresql://user@host/database") from error


def server_engine(url: str, connect_timeout_ms: int = 10_000, timeout_ms: int = 30_000) -> Engine:
    """An engine for a PostgreSQL database (psycopg unless the URL names a driver); transactions are serializable.

    Nothing waits longer than the time-outs: for a connection, for a lock, for an answer. Raises `InvalidParameter`
    when the driver is not installed.
    """
    parsed = parsed_url(url)
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
