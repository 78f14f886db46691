"""What the connector `postgres-cdc` is by its options: a table with a slot of its own, a slot, or one of its tables."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.connectors.base import SHARED_BY, Source
from headrace.connectors.postgres.cdc import PostgresCdcSource
from headrace.connectors.postgres.slot import PostgresSlot
from headrace.connectors.postgres.slot_table import SlotTable


class PostgresCdc(PostgresCdcSource):
    """See the module; nobody makes one."""

    @classmethod
    def variant(cls, options: Mapping[str, str]) -> type[Source]:
        """See `Source`."""
        if SHARED_BY in options:
            return SlotTable
        return PostgresCdcSource if "table.name" in options else PostgresSlot
