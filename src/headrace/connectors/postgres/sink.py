"""The `postgres` sink: an epoch is one transaction of the target, which notes the epoch's number, too.

Rows go by COPY: straight into the table where rows are only added, else into a temporary table, where the server itself
works out what is left of them, unless all of the epoch are rows that are added, each with a key of its own. A row that
it refuses is found by trying fewer and fewer of them, each time behind a savepoint. The line of the sink in
`headrace_deliveries` is locked first: whoever else is about to deliver for it waits there, and then sees what has been
delivered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from headrace.common.columns import Column
from headrace.common.identifiers import quoted_name
from headrace.connectors.declared import needed_module
from headrace.connectors.held_changes import HeldChanges
from headrace.connectors.netting import NetChanges, taken, without
from headrace.connectors.postgres.options import SINK, connection
from headrace.connectors.postgres.rows import FORMAT, copied
from headrace.connectors.postgres.tables import has_key, keys
from headrace.connectors.refusals import MOST_AT_ONCE, Op, PassingChanges, Refusal, RowsRefused, collects, found, texts
from headrace.connectors.sinks import (
    SINK_OPTIONS,
    WEIGHT_COLUMN,
    Sink,
    SinkPosition,
    already_delivered,
    key_of,
    not_told_apart,
)
from headrace.errors import InvalidParameter

Client: TypeAlias = Any
"""A connection of psycopg, which is there where it is needed only, and is to be given texts that are literals."""
DELIVERIES = "headrace_deliveries"
"""The table, in the schema of the target, with the newest epoch that each sink has delivered."""


class PostgresSink(Sink):
    """See the module."""

    declared = SINK
    refuses = True

    def __init__(self, options: Mapping[str, str], columns: Sequence[Column]):
        super().__init__(options, columns)
        self._values = SINK.read(options, SINK_OPTIONS)
        self._key = key_of(options, columns)
        self._collects = collects(options)
        self._upserts = options.get("type", "upsert") == "upsert"
        schema = quoted_name(self._values["schema"])
        self._table = f"{schema}.{quoted_name(self._values['table'])}"
        self._deliveries = f"{schema}.{DELIVERIES}"

    def reach(self) -> None:
        """See `Sink`."""
        with connection(self._values) as c:
            known = dict(c.execute(_COLUMNS, [self._table]).fetchall())
            if not known:
                raise InvalidParameter(f"there is no table {self._table} in PostgreSQL", hint="create it there first")
            for column in self.columns:
                if column.name not in known:
                    raise InvalidParameter(f'the table {self._table} in PostgreSQL has no column "{column.name}"')
            if self._upserts and not has_key(keys(c, self._table), self._key):
                raise InvalidParameter(
                    f"the table {self._table} in PostgreSQL has no primary key or unique index of "
                    f"{', '.join(self._key)}",
                    hint="an upsert needs one, checked at once and of all rows, to find the rows that it replaces",
                )
            c.execute(
                f"CREATE TABLE IF NOT EXISTS {self._deliveries} (sink text PRIMARY KEY, epoch bigint NOT NULL, "
                "delivered_at timestamptz NOT NULL DEFAULT now())"
            )
            c.commit()

    def write(self, position: SinkPosition, batches: Iterator[pa.RecordBatch]) -> int:
        """See `Sink`."""
        deliveries = self._deliveries.replace("%", "%%")  # in a statement with values
        with connection(self._values) as c:
            c.execute(_SAFE)
            c.execute(f"INSERT INTO {deliveries} VALUES (%s, 0) ON CONFLICT DO NOTHING", [position.delivery])
            found = c.execute(
                f"SELECT epoch FROM {deliveries} WHERE sink = %s FOR UPDATE", [position.delivery]
            ).fetchone()
            if already_delivered(position, found[0], self._table):
                return 0
            changes = self._taken(c, batches)
            c.execute(
                f"UPDATE {deliveries} SET epoch = %s, delivered_at = now() WHERE sink = %s",
                [position.epoch, position.delivery],
            )
            c.commit()
            return changes

    def _taken(self, c: Client, batches: Iterator[pa.RecordBatch]) -> int:
        """Write what an epoch has. Raises `RowsRefused`."""
        psycopg = needed_module("psycopg", "postgres")
        with HeldChanges(self.scratch, self._key if self._upserts else ()) as held:
            coming = PassingChanges(batches, held, self._collects)
            try:
                with c.transaction():
                    changes = self._upsert(c, coming) if self._upserts else self._append(c, coming)
                    c.execute("SET CONSTRAINTS ALL IMMEDIATE")
                    return changes
            except psycopg.Error as error:
                if not for_good(error.sqlstate) or not coming.searched():
                    raise
                refused = list(islice(self._refusals(c, held), MOST_AT_ONCE if self._collects else 1))
                if refused:
                    raise RowsRefused(self._table, refused) from error
                # What it does not take as a value was to go, and has never been there: so all has been taken now.
                return held.rows

    def _refusals(self, c: Client, held: HeldChanges) -> Iterator[Refusal]:
        """The rows that the table refuses; all others have been taken once there is no more."""
        if not self._upserts:
            for net in self._net(held, None):
                yield from _refused(
                    c, "insert", net.rows, lambda rows: _copy(c, self._table, self._names, rows.to_batches())
                )
            return
        for net in self._net(held, self._key):  # all that goes, before what comes
            assert net.gone is not None
            gone = without(net.gone, net.rows.select(list(self._key)))
            yield from _refused(c, "delete", gone, partial(self._delete_rows, c))
        for net in self._net(held, self._key):
            yield from _refused(c, "insert", net.rows, partial(self._upsert_rows, c))

    def _net(self, held: HeldChanges, key: Sequence[str] | None) -> Iterator[NetChanges]:
        return (taken(piece, len(self.columns), key) for piece in held.pieces())

    def _staged(self, c: Client, names: Sequence[str], rows: pa.Table) -> None:
        """Make `headrace_rows` of some columns of rows."""
        types = dict(c.execute(_COLUMNS, [self._table]).fetchall())
        columns = ", ".join(f"{quoted_name(name)} {types[name]}" for name in names)
        c.execute(f"DROP TABLE IF EXISTS headrace_rows; CREATE TEMPORARY TABLE headrace_rows ({columns})")
        _copy(c, "headrace_rows", [quoted_name(name) for name in names], rows.select(list(names)).to_batches())

    def _delete_rows(self, c: Client, rows: pa.Table) -> None:
        self._staged(c, self._key, rows)
        same = " AND ".join(f"t.{quoted_name(k)} = n.{quoted_name(k)}" for k in self._key)
        c.execute(f"DELETE FROM {self._table} t USING headrace_rows n WHERE {same}")

    def _upsert_rows(self, c: Client, rows: pa.Table) -> None:
        self._staged(c, [column.name for column in self.columns], rows)
        c.execute(self._replacing("headrace_rows", ""))

    def _replacing(self, table: str, where: str) -> str:
        """The statement that puts rows into the place of those with their keys."""
        names, key = ", ".join(self._names), [quoted_name(k) for k in self._key]
        rest = ", ".join(f"{n} = excluded.{n}" for n in self._names if n not in key)
        return (
            f"INSERT INTO {self._table} ({names}) SELECT {names} FROM {table} {where} "
            f"ON CONFLICT ({', '.join(key)}) DO {f'UPDATE SET {rest}' if rest else 'NOTHING'}"
        )

    @property
    def _names(self) -> list[str]:
        return [quoted_name(c.name) for c in self.columns]

    def _append(self, c: Client, batches: Iterable[pa.RecordBatch]) -> int:
        rows = (batch.take(np.repeat(np.arange(batch.num_rows), batch.column(WEIGHT_COLUMN))) for batch in batches)
        return _copy(c, self._table, self._names, (r.select(range(len(self.columns))) for r in rows))

    def _upsert(self, c: Client, batches: Iterable[pa.RecordBatch]) -> int:
        names, key = ", ".join(self._names), [quoted_name(k) for k in self._key]
        types = dict(c.execute(_COLUMNS, [self._table]).fetchall())
        # What has no equality cannot cancel out: json does as jsonb.
        stage = ", ".join(f"{quoted_name(n.name)} {types[n.name].replace('json', 'jsonb', types[n.name] == 'json')}"
                          for n in self.columns)  # fmt: skip
        c.execute(f"CREATE TEMPORARY TABLE headrace_taken ({stage}, {WEIGHT_COLUMN} bigint) ON COMMIT DROP")
        seen = _Additions(batches, self._key)
        changes = _copy(c, "headrace_taken", [*self._names, WEIGHT_COLUMN], seen)
        if seen.only and self._add_at_once(c):
            return changes
        c.execute(
            f"CREATE TEMPORARY TABLE headrace_net ON COMMIT DROP AS SELECT {names}, sum({WEIGHT_COLUMN}) AS __w "
            f"FROM headrace_taken GROUP BY {names} HAVING sum({WEIGHT_COLUMN}) <> 0; ANALYZE headrace_net"
        )
        self._check_key(c, key)

        def same(table: str) -> str:
            return " AND ".join(f"{table}.{k} = n.{k}" for k in key)

        c.execute(
            f"DELETE FROM {self._table} t USING headrace_net n WHERE n.__w < 0 AND {same('t')} AND NOT EXISTS "
            f"(SELECT FROM headrace_net p WHERE p.__w > 0 AND {same('p')})"
        )
        c.execute(self._replacing("headrace_net", "WHERE __w > 0"))
        return changes

    def _add_at_once(self, c: Client) -> bool:
        """Take the staged rows as they are, if each has a key of its own: there is nothing to work out then."""
        if set(self._key) == {column.name for column in self.columns}:
            return False  # the statement would pass over a key that comes twice
        try:
            with c.transaction():
                c.execute(self._replacing("headrace_taken", ""))
        except needed_module("psycopg.errors", "postgres").CardinalityViolation:
            return False
        return True

    def _check_key(self, c: Client, key: Sequence[str]) -> None:
        names = ", ".join(key)
        found = c.execute(
            f"SELECT {names} FROM headrace_net WHERE __w > 0 GROUP BY {names} HAVING sum(__w) > 1 "
            f"OR {' OR '.join(f'{k} IS NULL' for k in key)} LIMIT 1"
        ).fetchone()
        if found is not None:
            raise not_told_apart(self._key, ", ".join(map(repr, found)))


def for_good(sqlstate: str | None) -> bool:
    """Whether an error is one of a row, which will be the same whenever it comes: of its values, or a rule on them."""
    return sqlstate is not None and sqlstate.startswith(("22", "23", "44", "54", "P0001"))


def _refused(c: Client, op: Op, rows: pa.Table, write: Callable[[pa.Table], object]) -> Iterator[Refusal]:
    """Which of some rows are refused; the others are written."""
    whole = rows.combine_chunks()
    for place, why in found(whole.num_rows, partial(_tried, c, op, whole, write), MOST_AT_ONCE):
        (row,) = texts(whole.slice(place, 1).to_batches()[0])
        yield Refusal(op, row, why)


def _tried(c: Client, op: Op, rows: pa.Table, write: Callable[[pa.Table], object], low: int, high: int) -> str | None:
    """See `found`. A key that the target's types do not hold stands for no row of it: nothing is to be deleted."""
    psycopg = needed_module("psycopg", "postgres")
    try:
        with c.transaction():
            write(rows.slice(low, high - low))
            c.execute("SET CONSTRAINTS ALL IMMEDIATE")
    except psycopg.Error as error:
        if not for_good(error.sqlstate):
            raise
        if op == "delete" and error.sqlstate.startswith("22") and high - low == 1:
            return None
        said = error.diag.message_primary or str(error)
        return f"{said} (SQLSTATE {error.sqlstate})"
    return None


class _Additions:
    """Batches as they come, and whether all that they have are rows that are added once, with a whole key."""

    def __init__(self, batches: Iterable[pa.RecordBatch], key: Sequence[str]) -> None:
        self._batches, self._key, self.only = batches, key, True

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            once = (np.asarray(batch.column(WEIGHT_COLUMN)) == 1).all()
            self.only = bool(self.only and once and not any(batch.column(k).null_count for k in self._key))
            yield batch


def _copy(c: Client, table: str, names: Sequence[str], batches: Iterable[pa.RecordBatch]) -> int:
    count = 0
    with c.cursor() as cursor, cursor.copy(f"COPY {table} ({', '.join(names)}) FROM STDIN {FORMAT}") as copy:
        for batch in batches:
            copy.write(copied(batch))
            count += batch.num_rows
    return count


_COLUMNS = """SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
              WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped"""
_SAFE = """SELECT set_config('synchronous_commit', 'on', true)
           WHERE current_setting('synchronous_commit') IN ('off', 'local')"""
"""What a commit says is so after a crash, too, whatever the role or the database is set to."""
