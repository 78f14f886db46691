"""Tables that a connector feeds: the query of the view that keeps the newest row of each key.

The source puts out every record as a row, with what it does to its key and where it stands. Since it only grows, a row
that is not the newest of its key any more never comes back, so the view's state is one row for each key.

A table with a connector is a hidden source of changes and this view of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Final

from headrace.catalog.contents import MaterializedViewContent, SourceContent
from headrace.catalog.records import ObjectRecord
from headrace.catalog.state import CatalogState
from headrace.common.columns import Column
from headrace.connectors.leaving import own_type
from headrace.coordinator.decide.former import source_of as source_of
from headrace.errors import NotSupported, UndefinedColumn
from headrace.session.context import Context
from headrace.sql.binder.spark_text import quoted

COLUMNS: Final = {"operation": "_headrace_operation", "position": "_headrace_position"}
"""What is asked of the source by `INCLUDE`, and the column that it becomes."""
_QUOTED: Final = re.compile("`((?:[^`]|``)+)`")


def check_key(key: Sequence[str], columns: Sequence[Column]) -> None:
    """Raise `UndefinedColumn` for a key of columns that are not there."""
    names = [c.name for c in columns]
    for name in key:
        if name not in names:
            raise UndefinedColumn(f'column "{name}" named in key does not exist')


def check_types(columns: Sequence[Column]) -> None:
    """Raise `NotSupported` for a column of a type that no connector reads."""
    for column in columns:
        kind = own_type(column.type)
        if kind is not None:
            raise NotSupported(
                f'the column "{column.name}" of type {kind} of a connector',
                hint="declare it as text, and cast it in a view",
            )


def query_of(source: ObjectRecord, key: Sequence[str]) -> str:
    """The view's query, in Spark SQL."""
    columns = ", ".join(quoted(c.name) for c in source.columns if c.name not in COLUMNS.values())
    if not key:
        return f"SELECT {columns} FROM `r{source.id}`"
    operation, position = COLUMNS["operation"], COLUMNS["position"]
    keys = ", ".join(map(quoted, key))
    if operation not in (c.name for c in source.columns):  # it takes rows back: which rows there are is all to know
        order = ", ".join(quoted(c.name) for c in source.columns if "map<" not in c.type)
        return (
            f"SELECT {columns} FROM (SELECT *, row_number() OVER (PARTITION BY {keys} ORDER BY {order}) AS __n "
            f"FROM `r{source.id}`) WHERE __n = 1"
        )
    return (
        f"SELECT {columns} FROM (SELECT *, row_number() OVER (PARTITION BY {keys} ORDER BY `{position}` DESC) "
        f"AS __n FROM `r{source.id}`) WHERE __n = 1 AND `{operation}` <> 'delete'"
    )


def key_of(table: ObjectRecord, source: ObjectRecord) -> list[str]:
    """The key by which the query of a table was made over its source: not every column that is NOT NULL is of it.

    Raises `NotSupported` for a query that is none of `query_of`.
    """
    content = source.content_as(SourceContent)
    source = replace(source, columns=source.columns[: content.width_before(table.id)])
    text = table.content_as(MaterializedViewContent).spark_sql or ""
    if text == query_of(source, ()):
        return []
    first, _, rest = query_of(source, [""]).partition(f"PARTITION BY {quoted('')} ")
    keys = text.removeprefix(f"{first}PARTITION BY ").removesuffix(f" {rest}")
    found = [name.replace("``", "`") for name in _QUOTED.findall(keys)]
    if text != query_of(source, found):
        raise NotSupported(f'the query by which "{table.name}" keeps rows', hint="drop it and create it again")
    return found


def is_fed(state: CatalogState, record: ObjectRecord) -> bool:
    """Whether CREATE TABLE has made it: it is the view of a hidden source."""
    return source_of(state, record) is not None


def drop(context: Context, records: Sequence[ObjectRecord], check: Callable[[], None] | None = None) -> list[str]:
    """Drop objects together, and let go of what sources among them hold where they read: what to tell.

    Raises what `Coordinator.drop` raises, and `check`, which is asked while nobody else defines anything; then nothing
    is let go of.
    """
    ids = [o.id for o in records]
    with nullcontext() if check is None else context.coordinator.defining():
        if check is not None:
            check()
        context.coordinator.drop(ids)
    return context.coordinator.let_go(ids)
