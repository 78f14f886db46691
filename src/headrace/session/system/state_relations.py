"""`headrace_internal`: the state tables that operators keep, as relations.

Each is shown as of its committed epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from pyspark.sql.pandas.types import from_arrow_type

from headrace.catalog.catalog import Catalog
from headrace.common.columns import Column
from headrace.common.lazy_dataclass import dataclass
from headrace.coordinator.observe.inspection import find_table, table_infos, table_name
from headrace.errors import UndefinedTable
from headrace.session.context import Context
from headrace.session.system.system_relations import Rows, SystemRelation, define, defined

SCHEMA = "headrace_internal"
"""The schema that holds the state tables, and the list of them."""


@dataclass(frozen=True)
class StateRelation(SystemRelation):
    """A state table as stored: sort key, hash, key, value and diff columns, one row per stored row."""

    table_id: int

    def text(self, context: Context, names: Sequence[str]) -> str:
        """A state table has no text: a query reads its runs."""
        raise AssertionError(f"state table {self.table_id} is read as a leaf")


def internal_relation(catalog: Catalog, name: str) -> SystemRelation:
    """The relation of that name, or with that id as its name, in `headrace_internal`. Raises `UndefinedTable`."""
    load()
    found = defined(SCHEMA, name)
    if found is not None:
        return found
    with catalog.reading() as state:
        try:
            record = find_table(state, name)
        except UndefinedTable as error:
            raise UndefinedTable(error.message, hint=f"{SCHEMA}.state_tables lists them") from error
        full_name = table_name(state, record)
    columns = tuple(Column(f.name, from_arrow_type(f.type).simpleString()) for f in record.to_table_schema().arrow())
    return StateRelation(SCHEMA, full_name, columns, {}, {}, lambda context: (), record.id)


def _state_tables(context: Context) -> Rows:
    with context.catalog.reading() as state:
        return [
            {
                "id": t.id, "name": t.name, "relation": t.owner, "operator": t.operator, "runs": t.runs,
                "rows": t.rows, "bytes": t.bytes, "levels": t.levels, "committed_epoch": t.committed_epoch,
                "safe_epoch": t.safe_epoch,
            }
            for t in table_infos(state)
        ]  # fmt: skip


@cache
def load() -> None:
    """Define the list of the state tables."""
    define(
        SCHEMA, "state_tables",
        "id bigint, name, relation, operator, runs int, rows bigint, bytes bigint, levels, committed_epoch bigint, "
        "safe_epoch bigint", _state_tables,
    )  # fmt: skip
