"""A table of a shared slot: its content and its changes are read here, and bound with the others' by `slot.py`."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from headrace.common.columns import Column
from headrace.common.identifiers import quoted_name
from headrace.connectors.base import Admission, Binding, Offsets, ReadTask
from headrace.connectors.option_reader import COMMON_OPTIONS, without_included
from headrace.connectors.postgres.cdc import PostgresCdcSource
from headrace.connectors.postgres.options import CDC, cdc_server, connection
from headrace.connectors.postgres.pgoutput import Messages
from headrace.connectors.postgres.slot import RECENT, adopt, owns, place_of
from headrace.connectors.postgres.slot_sharing import TABLE
from headrace.connectors.postgres.tables import Published, TableColumn, check_alone, columns, keys, published
from headrace.errors import SourceError

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
            found = columns(c, quoted_name(schema, table))
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
        return [Column(f.name, _spark_type(f), f.name not in key) for f in found if not f.generated]

    # ---- binding

    def claim(self) -> None:
        """See `Source`: the key has to be one there, and the table in the publication, or be added to it."""
        super().start_offsets()
        with self._connection() as c:
            c.autocommit = True
            self._check_key(c)
            found = self._published(c)
            if found.name is not None:
                check_alone(c, found.name)
            if found.name is not None and not found.listed and owns(c, self._publication, self._slot):
                with c.transaction():  # where it is not listed after that it is not added
                    c.execute(f"ALTER PUBLICATION {quoted_name(self._publication)} ADD TABLE {found.name}")
                    self._published(c).checked(self._publication)
                return
            found.checked(self._publication)

    def hand_over(self) -> None:
        """See `Source`: a publication that was made for the slot goes with it."""
        if self._publication == self._slot:
            with self._connection() as c:
                c.autocommit = True
                adopt(c, self._publication, self._slot)

    def _published(self, c: Any) -> Published:
        return published(c, self._publication, {0: (None, self._schema_name, self._table)})[0]

    def start_offsets(self) -> Offsets:
        """Before the table's content."""
        return {}

    def latest_offsets(self, after: Offsets, limit: Admission, now_ms: int) -> Binding:
        """It is bound with the others of its slot."""
        raise NotImplementedError

    def discard(self, last: Offsets | None = None) -> str | None:
        """Take the table out of the publication again, if that was made by headrace."""
        with self._connection() as c:
            c.autocommit = True
            found = self._published(c)
            if found.name is not None and found.listed and owns(c, self._publication, self._slot):
                c.execute(f"ALTER PUBLICATION {quoted_name(self._publication)} DROP TABLE ONLY {found.name}")
        return None

    # ---- reading

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

    def _messages(self, task: ReadTask) -> Iterator[Messages]:
        if _MESSAGES not in task:
            yield from super()._messages(task)
            return
        places, data = [at for at, _ in task[_MESSAGES]], [base64.b64decode(text) for _, text in task[_MESSAGES]]
        yield Messages(np.array(places, np.int64), data)


def _spark_type(column: TableColumn) -> str:
    """The type of a column of PostgreSQL. What there is no other type for is text."""
    found = _TYPES.get(column.kind, "string")
    if column.kind == "numeric":
        precision, scale = (column.modifier - 4) >> 16, (column.modifier - 4) & 0xFFFF
        declared = column.modifier >= 0 and scale <= precision <= 38
        found = f"decimal({precision},{scale})" if declared else "decimal(38,10)"
    if column.dimensions and column.unlike(is_array=True, is_text=False):
        return "string"
    return "array<" * column.dimensions + found + ">" * column.dimensions


_TYPES: Final = {
    "bool": "boolean", "int2": "smallint", "int4": "int", "int8": "bigint", "float4": "float", "float8": "double",
    "timestamp": "timestamp_ntz", "timestamptz": "timestamp", "date": "date", "bytea": "binary",
}  # fmt: skip
_PRIMARY = """SELECT (SELECT array_agg(attname::text) FROM pg_index JOIN pg_attribute ON attrelid = indrelid
              AND attnum = ANY (indkey) WHERE indrelid = to_regclass(%s) AND indisprimary)"""
_NAME = """SELECT quote_ident(nspname) || '.' || quote_ident(relname)
           FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE c.oid = %s"""
