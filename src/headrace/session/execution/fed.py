"""Tables that a connector feeds: the query of the view that keeps the newest row of each key.

The source puts out every record as a row, with what it does to its key and where it stands. Since it only grows, a row
that is not the newest of its key any more never comes back, so the view's state is one row for each key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace.catalog.records import ObjectRecord
from headrace.common.columns import Column
from headrace.errors import UndefinedColumn

COLUMNS: Final = {"operation": "_headrace_operation", "position": "_headrace_position"}
"""What is asked of the source by `INCLUDE`, and the column that it becomes."""
KEY: Final = "primary_key"
"""In the payload of the view: what the table was declared to be told apart by."""


def check_key(key: Sequence[str], columns: Sequence[Column]) -> None:
    """Raise `UndefinedColumn` for a key of columns that are not there."""
    names = [c.name for c in columns]
    for name in key:
        if name not in names:
            raise UndefinedColumn(f'column "{name}" named in key does not exist')


def query_of(source: ObjectRecord, key: Sequence[str]) -> str:
    """The view's query, in Spark SQL."""

    def quoted(names: Sequence[str]) -> str:
        return ", ".join("`" + n.replace("`", "``") + "`" for n in names)

    columns = quoted([c.name for c in source.columns if c.name not in COLUMNS.values()])
    if not key:
        return f"SELECT {columns} FROM `r{source.id}`"
    operation, position = COLUMNS["operation"], COLUMNS["position"]
    return (
        f"SELECT {columns} FROM (SELECT *, row_number() OVER (PARTITION BY {quoted(key)} ORDER BY `{position}` DESC) "
        f"AS __n FROM `r{source.id}`) WHERE __n = 1 AND `{operation}` <> 'delete'"
    )
