"""Tables that are filled beside those whose place they take, with more columns: what all ways to it have in common.

`coordinator/decide/former.py` says why names can be changed then. A crash before leaves the table as it was; what was
being filled is dropped by the next start.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from headrace.catalog.contents import IndexContent, MaterializedViewContent, SourceContent
from headrace.catalog.records import ObjectRecord
from headrace.catalog.state import CatalogState
from headrace.common.columns import Column
from headrace.connectors.job_options import GROUP, is_group_name
from headrace.coordinator.ddl.replacing import definition_with, name_while_refreshed
from headrace.coordinator.decide.automatic import is_automatic
from headrace.coordinator.decide.former import indexes_of, is_former, source_of
from headrace.coordinator.decide.life import Life
from headrace.errors import HeadraceError, NotSupported, SourceError, StatementError, UndefinedTable
from headrace.plan.planner import Planner
from headrace.session.context import Context
from headrace.session.execution import ddl, fed
from headrace.session.names import label
from headrace.sql.binder.spark_text import quoted
from headrace.sql.statements import ColumnDef, TableName
from headrace.sql.type_names import pg_type_text


def check_not_refreshed(state: CatalogState, table: ObjectRecord) -> None:
    """Raise `StatementError` for a table to which another statement is adding columns."""
    name = name_while_refreshed(table)
    new = state.object_named(table.schema, name)
    filled = new is not None and new.definition.startswith(definition_with(table, ""))
    if filled or state.object_named(table.schema, f"{name}$changes") is not None:
        raise StatementError(
            f'columns are being added to "{label(table)}" by another statement', sqlstate="55006",
            hint="try again when that has ended",
        )  # fmt: skip


def check_asked(shown: ObjectRecord, taken: Collection[str], column: ColumnDef, what: str) -> None:
    """Raise for a column of ADD COLUMN that is there, or of which more is said than `what` has a place for."""
    if column.name in taken:
        raise StatementError(f'column "{column.name}" of relation "{label(shown)}" already exists', sqlstate="42701")
    if column.default is not None or column.generated is not None or column.not_null:
        raise NotSupported(
            f"DEFAULT, NOT NULL or a generated column of {what}",
            hint="its values are those that are there: name and type are all to say",
        )


def check_running(context: Context, table: ObjectRecord, source: ObjectRecord) -> None:
    """Raises what keeps a table that is filled beside it from being there."""
    state, content = context.catalog.state, source.content_as(SourceContent)
    origin = source if content.origin is None else state.objects[content.origin]
    if table.id not in state.jobs:
        raise UndefinedTable(f'relation "{label(table)}" does not exist', hint="it was dropped meanwhile")
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


def take_place(
    context: Context, table: ObjectRecord, made: Sequence[ObjectRecord],
    check: Callable[[ObjectRecord], None] = lambda new: None,
) -> None:  # fmt: skip
    """Wait until the table that was made last is filled, and give it the place of another one.

    `check` raises if it must not have it. Whatever is raised, all that was made is dropped again, by then.
    """
    made = list(made)
    try:
        ddl.wait(context, made[-1].id)
        new = made[-1]
        check(new)
        existing = indexes_of(context.catalog.state, table.id)
        indexes = {new_index(context, made, new, index): index.id for index in existing}
        context.wait(lambda check: context.coordinator.succeed(new.id, table.id, indexes, check))
    except BaseException:
        undo(context, table, made)
        raise
    _drop_unread(context, table.id)


def undo(context: Context, table: ObjectRecord, made: Sequence[ObjectRecord]) -> None:
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
            source = source_of(state, state.objects[former_id])  # None where the table reads it, too
            context.coordinator.drop([*gone, former_id, *([] if source is None else [source.id])])
        elif gone:
            context.coordinator.drop(gone)


def new_table(
    context: Context, table: ObjectRecord, source: ObjectRecord, key: Sequence[str], text: str,
    planner: Planner | None = None,
) -> ObjectRecord:  # fmt: skip
    """Create the table that is to take the place of another one, over a source, by the key of that. It is not filled
    yet. Where a planner is given, Spark is not waited for.
    """
    query = fed.query_of(source, key)
    content = MaterializedViewContent(spark_sql=query, called=table.name)
    name = TableName(table.schema, name_while_refreshed(table))
    definition, options = definition_with(table, text), _options(context, table)
    made = ddl.create_unfilled(context, name, query, content, definition, options, (source.id,), planner=planner)
    return context.catalog.state.objects[made]


def new_index(context: Context, made: list[ObjectRecord], table: ObjectRecord, index: ObjectRecord) -> int:
    """The index of the new table that is to be what another one is of the old table. Its id."""
    known = index.content_as(IndexContent)
    names = [c.name for c in index.columns]
    query = f"SELECT {', '.join(map(quoted, names))} FROM `r{table.id}`"
    content = IndexContent(spark_sql=query, on=table.id, key=known.key)
    name, options = TableName(index.schema, name_while_refreshed(index)), _options(context, index)
    found = ddl.create_unfilled(context, name, query, content, index.definition, options, (table.id,))
    made.append(context.catalog.state.objects[found])
    ddl.wait(context, found)
    return found


def _options(context: Context, record: ObjectRecord) -> dict[str, str]:
    """The options of what is filled beside a view or index: as they are now, in its group."""
    job = context.catalog.state.jobs[record.id]
    return {**record.options, **job.options, GROUP: job.group if is_group_name(job.group) else "own"}


def told(what: str, columns: Sequence[Column]) -> str:
    """What is said of new columns."""
    names = ", ".join(f'"{c.name}" {pg_type_text(c.type)}' for c in columns)
    return f"{what} has new columns: {names}" if columns else "there are no new columns"
