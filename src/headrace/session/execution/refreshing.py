"""REFRESH SCHEMA and ADD COLUMN of tables that follow one outside: columns that have come there, with their values.

A second table is filled beside the first, with the rows as they are there by now, and follows the same log through the
same slot. Then it gets the name of the first, which goes on for what was built on it, and goes with the last of that:
`coordinator/decide/former.py` tells more. A crash before leaves the table as it was; what was being filled is dropped
by the next start.

A table that has a slot to itself shares it from then on: its slot becomes a hidden source of several tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from headrace.catalog.contents import IndexContent, MaterializedViewContent, SourceContent
from headrace.catalog.records import ObjectRecord
from headrace.catalog.state import CatalogState
from headrace.common.columns import Column
from headrace.connectors.base import SHARED_BY
from headrace.connectors.job_options import GROUP, is_group_name
from headrace.connectors.sources import as_shared, infer_columns, open_source, renews
from headrace.coordinator.ddl.replacing import definition_with, name_while_refreshed
from headrace.coordinator.decide.automatic import is_automatic
from headrace.coordinator.decide.former import indexes_of, is_former, source_of
from headrace.coordinator.decide.life import Life
from headrace.errors import (
    DuplicateTable,
    HeadraceError,
    NotSupported,
    SourceError,
    StatementError,
    UndefinedColumn,
)
from headrace.session.context import Context
from headrace.session.execution import ddl, fed
from headrace.session.names import label
from headrace.sql.binder.spark_text import quoted
from headrace.sql.statements import ColumnDef, TableName
from headrace.sql.type_names import pg_type_text

_OTHERS: Final = "drop the table and create it again"


def can_refresh(state: CatalogState, record: ObjectRecord) -> bool:
    """Whether columns can be had for a table."""
    source = source_of(state, record)
    return source is not None and renews(source.options)


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
    _check_running(context, table, source)
    columns = _new_columns(context, source) if asked is None else _asked(context, table, source, asked)
    if not columns:
        return []
    _check_there(context, source, columns)
    if source.content_as(SourceContent).origin is None:
        source = _with_shared_slot(context, table, source)
    made: list[ObjectRecord] = []
    try:
        made.append(_new_source(context, table, source, columns, text))
        made.append(_new_table(context, table, made[0], text))
        existing = indexes_of(context.catalog.state, table.id)
        indexes = {_new_index(context, made, index): index.id for index in existing}
        context.wait(lambda check: context.coordinator.succeed(made[1].id, table.id, indexes, check))
    except BaseException:
        _undo(context, table, made)
        raise
    _drop_unread(context, table.id)
    return list(columns)


def _undo(context: Context, table: ObjectRecord, made: Sequence[ObjectRecord]) -> None:
    """Drop what was being filled, or if it has taken its place, what the table was before."""
    objects = context.catalog.state.objects
    left = [o for o in made if o.id in objects]
    if left and all(objects[o.id].name == o.name for o in left):
        with suppress(HeadraceError):  # it has taken its place meanwhile; or the next start does it
            context.coordinator.drop([o.id for o in left])
    now = context.catalog.state.objects.get(table.id)
    if now is not None and is_former(now):
        _drop_unread(context, table.id)


def _drop_unread(context: Context, former_id: int) -> None:
    """Drop what a table was before, if nothing reads it, with its indexes."""
    state = context.catalog.state
    if former_id not in state.objects:
        return
    above = [state.objects[i] for i in state.dependents(former_id)]
    gone = [o.id for o in above if is_automatic(o) and not state.dependents(o.id)]
    with suppress(HeadraceError):  # it has got a reader meanwhile; or the next start does it
        if set(state.dependents(former_id)) <= set(gone):
            source = source_of(state, state.objects[former_id])
            assert source is not None
            context.coordinator.drop([*gone, former_id, source.id])
        elif gone:
            context.coordinator.drop(gone)


# ---- what can be had


def _source(context: Context, table: ObjectRecord) -> ObjectRecord:
    source = source_of(context.catalog.state, table)
    if source is None or not renews(source.options):
        raise NotSupported(
            f'new columns of the table "{label(table)}", which keeps rows of those that it was created with',
            hint=f"columns that were added there are left alone; to have them, {_OTHERS}",
        )
    return source


def check_not_refreshed(state: CatalogState, table: ObjectRecord) -> None:
    """Raise `StatementError` for a table to which another statement is adding columns."""
    other = state.object_named(table.schema, f"{name_while_refreshed(table)}$changes")
    if other is not None:
        raise StatementError(
            f'columns are being added to "{label(table)}" by another statement', sqlstate="55006",
            hint="try again when that has ended",
        )  # fmt: skip


def _check_running(context: Context, table: ObjectRecord, source: ObjectRecord) -> None:
    """Raises what keeps a table that is filled beside it from being there."""
    state, content = context.catalog.state, source.content_as(SourceContent)
    origin = source if content.origin is None else state.objects[content.origin]
    life = Life.of(state.jobs[table.id])
    if not (life.serves and life.runs):
        raise StatementError(
            f'"{label(table)}" does not run', sqlstate="55000", hint="ALTER MATERIALIZED VIEW ... RESUME, and try again"
        )
    if origin.content_as(SourceContent).paused:
        raise StatementError(
            f'source "{label(origin)}" is paused', sqlstate="55000", hint="ALTER SOURCE ... RESUME, and try again"
        )
    failed, _ = context.coordinator.source_errors().get(origin.id, (None, 0))
    if failed is not None:
        raise SourceError(f'source "{label(origin)}" cannot be read: {failed.message}', hint=failed.hint)


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
        if column.name in known:
            raise StatementError(
                f'column "{column.name}" of relation "{label(table)}" already exists', sqlstate="42701"
            )
        if column.default is not None or column.generated is not None or column.not_null:
            raise NotSupported(
                "DEFAULT, NOT NULL or a generated column of a table that follows another one",
                hint="its values are those that are there: name and type are all to say",
            )
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
    origin = replace(
        source, id=0, name=f"{table.name}$slot", columns=(), content=content, options=as_shared(source.options),
        created_ms=context.clock.now_ms(),
    )  # fmt: skip
    context.coordinator.share(source.id, origin, options)
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
    open_source(record.options, record.columns, context.coordinator.secrets(record.secrets)).claim()
    try:
        return replace(record, id=context.coordinator.create_relation(record))
    except DuplicateTable:
        check_not_refreshed(context.catalog.state, table)  # it has begun meanwhile
        raise


def _new_table(context: Context, table: ObjectRecord, source: ObjectRecord, text: str) -> ObjectRecord:
    key = [c.name for c in source.columns if not c.nullable]
    query = fed.query_of(source, key)
    content = MaterializedViewContent(spark_sql=query, called=table.name)
    name = TableName(table.schema, name_while_refreshed(table))
    options = _options(context, table)
    made = ddl.create_planned(context, name, query, content, definition_with(table, text), options, (source.id,))
    ddl.wait(context, made)
    return context.catalog.state.objects[made]


def _new_index(context: Context, made: list[ObjectRecord], index: ObjectRecord) -> int:
    """The index of the new table that is to be what another one is of the old table. Its id."""
    known, table = index.content_as(IndexContent), made[1]
    names = [c.name for c in index.columns]
    query = f"SELECT {', '.join(map(quoted, names))} FROM `r{table.id}`"
    content = IndexContent(spark_sql=query, on=table.id, key=known.key)
    name, options = TableName(index.schema, name_while_refreshed(index)), _options(context, index)
    found = ddl.create_planned(context, name, query, content, index.definition, options, (table.id,))
    made.append(context.catalog.state.objects[found])
    ddl.wait(context, found)
    return found


def _options(context: Context, record: ObjectRecord) -> dict[str, str]:
    """The options of what is filled beside a view or index: as they are now, in its group."""
    job = context.catalog.state.jobs[record.id]
    return {**record.options, **job.options, GROUP: job.group if is_group_name(job.group) else "own"}


def told(table: ObjectRecord, columns: Sequence[Column]) -> str:
    """What is said of new columns."""
    names = ", ".join(f'"{c.name}" {pg_type_text(c.type)}' for c in columns)
    return f'table "{label(table)}" has new columns: {names}' if columns else "there are no new columns"
