"""The `postgres` sink: an epoch is one transaction of the target, which notes the epoch's number, too.

Rows go by COPY: straight into the table where rows are only added, else into a temporary table, where the server itself
works out what is left of them. The line of the sink in `headrace_deliveries` is locked first: whoever else is about to
deliver for it waits there, and then sees what has been delivered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.common.columns import Column
from headrace.common.identifiers import quoted_name
from headrace.connectors.postgres.options import SINK, connection
from headrace.connectors.postgres.rows import FORMAT, copied
from headrace.connectors.postgres.tables import has_key, keys
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

DELIVERIES = "headrace_deliveries"
"""The table, in the schema of the target, with the newest epoch that each sink has delivered."""


class PostgresSink(Sink):
    """See the module."""

    declared = SINK

    def __init__(self, options: Mapping[str, str], columns: Sequence[Column]):
        super().__init__(options, columns)
        self._values = SINK.read(options, SINK_OPTIONS)
        self._key = key_of(options, columns)
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
            changes = self._upsert(c, batches) if self._upserts else self._append(c, batches)
            c.execute(
                f"UPDATE {deliveries} SET epoch = %s, delivered_at = now() WHERE sink = %s",
                [position.epoch, position.delivery],
            )
            c.commit()
            return changes

    @property
    def _names(self) -> list[str]:
        return [quoted_name(c.name) for c in self.columns]

    def _append(self, c: Any, batches: Iterable[pa.RecordBatch]) -> int:
        rows = (batch.take(np.repeat(np.arange(batch.num_rows), batch.column(WEIGHT_COLUMN))) for batch in batches)
        return _copy(c, self._table, self._names, (r.select(range(len(self.columns))) for r in rows))

    def _upsert(self, c: Any, batches: Iterable[pa.RecordBatch]) -> int:
        names, key = ", ".join(self._names), [quoted_name(k) for k in self._key]
        types = dict(c.execute(_COLUMNS, [self._table]).fetchall())
        # What has no equality cannot cancel out: json does as jsonb.
        stage = ", ".join(f"{quoted_name(n.name)} {types[n.name].replace('json', 'jsonb', types[n.name] == 'json')}"
                          for n in self.columns)  # fmt: skip
        c.execute(f"CREATE TEMPORARY TABLE headrace_taken ({stage}, {WEIGHT_COLUMN} bigint) ON COMMIT DROP")
        changes = _copy(c, "headrace_taken", [*self._names, WEIGHT_COLUMN], batches)
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
        rest = ", ".join(f"{n} = excluded.{n}" for n in self._names if n not in key)
        c.execute(
            f"INSERT INTO {self._table} ({names}) SELECT {names} FROM headrace_net WHERE __w > 0 "
            f"ON CONFLICT ({', '.join(key)}) DO {f'UPDATE SET {rest}' if rest else 'NOTHING'}"
        )
        return changes

    def _check_key(self, c: Any, key: Sequence[str]) -> None:
        names = ", ".join(key)
        found = c.execute(
            f"SELECT {names} FROM headrace_net WHERE __w > 0 GROUP BY {names} HAVING sum(__w) > 1 "
            f"OR {' OR '.join(f'{k} IS NULL' for k in key)} LIMIT 1"
        ).fetchone()
        if found is not None:
            raise not_told_apart(self._key, ", ".join(map(repr, found)))


def _copy(c: Any, table: str, names: Sequence[str], batches: Iterable[pa.RecordBatch]) -> int:
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
