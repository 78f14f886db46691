"""REFRESH SCHEMA and ADD COLUMN of tables that follow one outside: columns that have come there, with their values.

Of PostgreSQL a second table is filled beside the first, with the rows as they are there by now, and follows the same
log through the same slot. Then it gets the name of the first, which goes on for what was built on it, and goes with the
last of that: `refilling.py`. A table that has a slot to itself shares it from then on: its slot becomes a hidden source
of several tables. Other sources are read again with more columns: `widening.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from headrace.catalog.contents import MaterializedViewContent, SourceContent
from headrace.catalog.records import ObjectRecord
from headrace.catalog.state import CatalogState
from headrace.common.columns import Column
from headrace.connectors.base import SHARED_BY
from headrace.connectors.sources import as_shared, infer_columns, open_source, renews
from headrace.coordinator.ddl.replacing import definition_with, name_while_refreshed
from headrace.coordinator.decide.former import source_of
from headrace.errors import (
    DuplicateTable,
    NotSupported,
    UndefinedColumn,
)
from headrace.session.context import Context
from headrace.session.execution import ddl, fed
from headrace.session.execution.refilling import (
    check_asked,
    check_not_refreshed,
    check_running,
    new_table,
    take_place,
    undo,
)
from headrace.session.execution.widening import can_widen, widen_table
from headrace.session.names import check_named, label
from headrace.sql.statements import ColumnDef

_OTHERS: Final = "drop the table and create it again"


def can_refresh(state: CatalogState, record: ObjectRecord) -> bool:
    """Whether columns can be had for a table."""
    source = source_of(state, record)
    return source is not None and (renews(source.options) or can_widen(source))


def tables_of(state: CatalogState, source: ObjectRecord) -> list[ObjectRecord]:
    """The tables of a shared source that people know, by id."""
    views = (o for o in state.objects_of(MaterializedViewContent) if o.content_as(MaterializedViewContent).part is None)
    found = ((view, source_of(state, view)) for view in views)
    mine = [v for v, s in found if s is not None and s.content_as(SourceContent).origin == source.id]
    return [v for v in mine if v.content_as(MaterializedViewContent).former_of is None]


def refresh(context: Context, table: ObjectRecord, text: str, asked: Sequence[ColumnDef] | None = None) -> list[Column]:
    """Give a table the columns that have come where it reads, or those of them that are asked for. Returns them.

    Raises `NotSupported`, `SourceError` and `StatementError` for what keeps it from getting them.
    """
    source = _source(context, table)
    check_not_refreshed(context.catalog.state, table)
    if can_widen(source):
        return widen_table(context, table, source, text, asked)
    check_running(context, table, source)
    columns = _new_columns(context, source) if asked is None else _asked(context, table, source, asked)
    if not columns:
        return []
    key = fed.key_of(table, source)
    _check_there(context, source, columns)
    if source.content_as(SourceContent).origin is None:
        source = _with_shared_slot(context, table, source)
    made = [_new_source(context, table, source, columns, text)]
    try:
        made.append(new_table(context, table, made[0], key, text))
    except BaseException:
        undo(context, table, made)
        raise
    take_place(context, table, made)
    return list(columns)


# ---- what can be had


def _source(context: Context, table: ObjectRecord) -> ObjectRecord:
    source = source_of(context.catalog.state, table)
    if source is None or not (renews(source.options) or can_widen(source)):
        raise NotSupported(
            f'new columns of the table "{label(table)}", which keeps rows of those that it was created with',
            hint="columns of JSON, Avro, Protobuf, lakes and PostgreSQL come to a table; to have others, " + _OTHERS,
        )
    return source


def _as_shared(source: ObjectRecord) -> dict[str, str]:
    """The options of a source as one of the tables of another."""
    return {"schema.name": "public", SHARED_BY: "0", **source.options}


def _new_columns(context: Context, source: ObjectRecord) -> list[Column]:
    """Those that are there and that a source does not have."""
    found = infer_columns(_as_shared(source), context.coordinator.secrets(source.secrets))
    known = {c.name for c in source.columns}
    new = [replace(c, nullable=True) for c in found if c.name not in known]
    return list(ddl.declared_columns([ColumnDef(c.name, c.type) for c in new]))


def _asked(
    context: Context, table: ObjectRecord, source: ObjectRecord, asked: Sequence[ColumnDef]
) -> list[Column]:  # fmt: skip
    """The columns of ADD COLUMN, which have to be there."""
    known, there = {c.name for c in table.columns}, {c.name for c in _new_columns(context, source)}
    for column in asked:
        check_asked(table, known, column, "a table that follows another one")
        if column.name not in there:
            raise UndefinedColumn(
                f'the table that "{label(table)}" follows has no column "{column.name}"',
                hint="add it there first; columns that are generated there cannot be had",
            )
    columns = ddl.declared_columns(asked)
    fed.check_types(columns)
    return list(ddl.unlike(columns))


def _columns(source: ObjectRecord, new: Sequence[Column]) -> tuple[Column, ...]:
    """Those of a source with new ones behind the table's."""
    beside = [c for c in source.columns if c.name in fed.COLUMNS.values()]
    return (*(c for c in source.columns if c not in beside), *new, *beside)


def _check_there(context: Context, source: ObjectRecord, new: Sequence[Column]) -> None:
    """Raises what is wrong with the columns where they are read: nothing has been done yet."""
    values = context.coordinator.secrets(source.secrets)
    open_source(_as_shared(source), _columns(source, new), values).claim()


# ---- what is filled


def _with_shared_slot(context: Context, table: ObjectRecord, source: ObjectRecord) -> ObjectRecord:
    """The source as one of the tables of another, which holds its slot from now on."""
    options = _as_shared(source)
    values = context.coordinator.secrets(source.secrets)
    open_source(options, source.columns, values).hand_over()
    content = replace(SourceContent(shared=True, part=table.name))
    with context.coordinator.defining():
        check_named(context.catalog.state, table)  # the names of both have its name
        source = context.catalog.state.objects[source.id]  # its options may have been altered meanwhile
        origin = replace(
            source, id=0, name=f"{table.name}$slot", columns=(), content=content, options=as_shared(source.options),
            created_ms=context.clock.now_ms(),
        )  # fmt: skip
        context.coordinator.share(source.id, origin, _as_shared(source))
    return context.catalog.state.objects[source.id]


def _new_source(
    context: Context, table: ObjectRecord, source: ObjectRecord, new: Sequence[Column], text: str
) -> ObjectRecord:
    name = name_while_refreshed(table)
    content = replace(source.content_as(SourceContent), part=name, called=f"{table.name}$changes")
    record = replace(
        source, id=0, name=f"{name}$changes", columns=_columns(source, new), content=content,
        definition=definition_with(table, text), created_ms=context.clock.now_ms(),
    )  # fmt: skip
    try:
        with context.coordinator.holding(record.options):
            open_source(record.options, record.columns, context.coordinator.secrets(record.secrets)).claim()
            with context.coordinator.defining():
                check_named(context.catalog.state, table)  # from then on it keeps its name
                record = replace(record, options=context.catalog.state.objects[source.id].options)  # altered meanwhile
                return replace(record, id=context.coordinator.create_relation(record))
    except DuplicateTable:
        check_not_refreshed(context.catalog.state, table)  # it has begun meanwhile
        raise
