"""A table of a shared slot: its content and its changes are read here, and bound with the others' by `slot.py`."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from headrace.common.columns import Column
from headrace.common.identifiers import quoted_name
from headrace.connectors.base import Admission, Binding, Offsets, ReadBatch, ReadTask
from headrace.connectors.option_reader import COMMON_OPTIONS, without_included
from headrace.connectors.postgres.cdc import PostgresCdcSource
from headrace.connectors.postgres.options import CDC, cdc_server, connection
from headrace.connectors.postgres.pgoutput import Messages
from headrace.connectors.postgres.slot import RECENT, owns, place_of
from headrace.connectors.postgres.slot_sharing import CAUGHT_UP, LSN, TABLE
from headrace.connectors.postgres.tables import Published, keys, published
from headrace.errors import NotSupported, SourceError

_MESSAGES: Final = "messages"
"""In a task: the messages themselves, with their places, where they have just been seen."""


class SlotTable(PostgresCdcSource):
    """See the module."""

    @classmethod
    def infer_columns(cls, options: Mapping[str, str]) -> list[Column]:
        """Those of the table in PostgreSQL; the ones of its key are not null."""
        values = CDC.read(without_included(options), COMMON_OPTIONS)
        schema, table = values["schema.name"], values["table.name"]
        with connection(cdc_server(values), SourceError) as c:
            found = c.execute(_COLUMNS, [quoted_name(schema, table)]).fetchall()
            told = [names for names, tells in keys(c, quoted_name(schema, table)) if tells]
            (primary,) = c.execute(_PRIMARY, [quoted_name(schema, table)]).fetchone()
        if not found:
            raise SourceError(f"there is no table {schema}.{table} in PostgreSQL, or it cannot be seen")
        key = sorted(primary) if primary and sorted(primary) in told else next(iter(told), None)
        if key is None:
            raise SourceError(
                f"the table {schema}.{table} in PostgreSQL has no key that changes tell",
                hint="it needs a primary key, or a unique index, not deferrable, of columns that are NOT NULL, "
                "that is its REPLICA IDENTITY",
            )
        return [Column(name, _spark_type(name, kind, modifier), name not in key) for name, kind, modifier in found]

    @classmethod
    def whole(cls, offsets: Offsets) -> bool:
        """Content alone is of a later moment than the other tables are bound to."""
        return bool(offsets.get(CAUGHT_UP, True))

    # ---- binding

    def claim(self) -> None:
        """See `Source`: the key has to be one there, and the table in the publication, or be added to it."""
        super().start_offsets()
        with self._connection() as c:
            c.autocommit = True
            self._check_key(c)
            found = self._published(c)
            if found.name is not None and c.execute(_HAS_CHILDREN, [found.name]).fetchone() is not None:
                raise SourceError(
                    f"other tables inherit from {found.name} in PostgreSQL, and what changes in those is not its own",
                    hint="follow each of them, and UNION ALL what is wanted together",
                )
            if found.name is not None and not found.listed and owns(c, self._publication, self._slot):
                with c.transaction():  # a partitioned table is not listed by its own name: then it is not added
                    c.execute(f"ALTER PUBLICATION {quoted_name(self._publication)} ADD TABLE {found.name}")
                    self._published(c).checked(self._publication)
                return
            found.checked(self._publication)

    def _published(self, c: Any) -> Published:
        return published(c, self._publication, {0: (None, self._schema_name, self._table)})[0]

    def start_offsets(self) -> Offsets:
        """Before the table's content."""
        return {}

    def latest_offsets(self, after: Offsets, limit: Admission, now_ms: int) -> Binding:
        """It is bound with the others of its slot."""
        raise NotImplementedError

    def discard(self) -> None:
        """Take the table out of the publication again, if that was made by headrace."""
        with self._connection() as c:
            c.autocommit = True
            found = self._published(c)
            if found.name is not None and found.listed and owns(c, self._publication, self._slot):
                c.execute(f"ALTER PUBLICATION {quoted_name(self._publication)} DROP TABLE ONLY {found.name}")

    # ---- reading

    def plan(self, from_: Offsets, to: Offsets, parallelism: int) -> list[ReadTask]:
        """See `Source`: what the server has just seen of the log goes along."""
        tasks: list[ReadTask] = []
        if not from_:
            tasks.append({"content": True, TABLE: to[TABLE]})
        low = from_[LSN] if from_ else 0
        if to[CAUGHT_UP] and low < to[LSN]:
            tasks.append({"from": low, "to": to[LSN], TABLE: to[TABLE], **self._seen(to[TABLE], low, to[LSN])})
        return tasks

    def _seen(self, table: int, low: int, high: int) -> ReadTask:
        found = RECENT.share(place_of(self._server, self._slot), table, low, high)
        if found is None:
            return {}
        return {_MESSAGES: [[int(at), base64.b64encode(m).decode()] for at, m in zip(found.positions, found.data)]}

    def _content_of(self, c: Any, task: ReadTask) -> str:
        """The table by its name of now."""
        found = c.execute(_NAME, [task[TABLE]]).fetchone()
        if found is None:
            raise SourceError(
                f"the table {self._name} in PostgreSQL is not there any more", hint="drop the table here, too"
            )
        return str(found[0])

    def read(self, task: ReadTask) -> Iterator[ReadBatch]:
        """See `Source`."""
        if _MESSAGES not in task:
            yield from super().read(task)
            return
        places, data = [at for at, _ in task[_MESSAGES]], [base64.b64decode(text) for _, text in task[_MESSAGES]]
        yield from self._changes([Messages(np.array(places, np.int64), data)], task)


def _spark_type(column: str, kind: str, modifier: int) -> str:
    """The type of a column of PostgreSQL's type `kind`. What there is no other type for is text."""
    if kind.startswith("_"):
        raise NotSupported(
            f'the column "{column}" of an array of a postgres-cdc table', hint="declare the columns, and leave it out"
        )
    if kind != "numeric":
        return _TYPES.get(kind, "string")
    precision, scale = (modifier - 4) >> 16, (modifier - 4) & 0xFFFF
    return f"decimal({precision},{scale})" if modifier >= 0 and scale <= precision <= 38 else "decimal(38,10)"


_TYPES: Final = {
    "bool": "boolean", "int2": "smallint", "int4": "int", "int8": "bigint", "float4": "float", "float8": "double",
    "timestamp": "timestamp_ntz", "timestamptz": "timestamp", "date": "date", "bytea": "binary",
}  # fmt: skip
_COLUMNS = """SELECT attname::text, typname::text, atttypmod FROM pg_attribute JOIN pg_type t ON t.oid = atttypid
              WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
              ORDER BY attnum"""
_PRIMARY = """SELECT (SELECT array_agg(attname::text) FROM pg_index JOIN pg_attribute ON attrelid = indrelid
              AND attnum = ANY (indkey) WHERE indrelid = to_regclass(%s) AND indisprimary)"""
_NAME = """SELECT quote_ident(nspname) || '.' || quote_ident(relname)
           FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE c.oid = %s"""
_HAS_CHILDREN = """SELECT FROM pg_inherits JOIN pg_class c ON c.oid = inhparent
                   WHERE inhparent = to_regclass(%s) AND c.relkind <> 'p' LIMIT 1"""
