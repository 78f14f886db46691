"""ALTER of sources and of what jobs keep up to date: pause, resume, options, checkpoint groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from headrace.catalog.contents import SourceContent, SubscriptionContent, TableContent
from headrace.catalog.records import ObjectRecord
from headrace.common.columns import Column
from headrace.coordinator.decide.automatic import is_automatic
from headrace.coordinator.decide.former import formers_of
from headrace.errors import InvalidParameter, NotSupported, WrongObjectType
from headrace.session.context import Context
from headrace.session.execution import fed, grants, refreshing, renaming, source_options, subscriptions
from headrace.session.execution.existing import refuse_automatic
from headrace.session.execution.handler import Handler, Needs, not_yet
from headrace.session.execution.refilling import check_not_refreshed, told
from headrace.session.execution.table_columns import add_to_table
from headrace.session.execution.widening import called, can_widen, widen_source
from headrace.session.hidden_views import parts_of
from headrace.session.names import label, names_of
from headrace.session.result import Notice, Result
from headrace.sql import statements as st


def alter(context: Context, statement: st.AlterJob) -> Result:
    """ALTER ... PAUSE, RESUME, SET, OWNER TO and RENAME TO."""
    if statement.action == "rename":
        return renaming.rename(context, statement)
    found = _to_alter(context, statement)
    if found is None and statement.if_exists:
        return Result(statement.tag, notices=[Notice(f'relation "{statement.name}" does not exist, skipping')])
    record = found or names_of(context).get(statement.name)
    fed_table = statement.kind == "table" and fed.is_fed(context.catalog.state, record)
    if record.kind_name != statement.kind and not fed_table:
        raise WrongObjectType(f'"{statement.name}" is not a {statement.kind}', hint=f"It is a {record.kind_name}.")
    refuse_automatic(context, record, "altered")
    context.rights.require_owner(record)
    coordinator = context.coordinator
    if statement.action == "owner":
        assert statement.target is not None
        grants.give(context, record, statement.target)
        return Result(statement.tag)
    if isinstance(record.content, SubscriptionContent) and statement.action == "set":
        _keep_for(context, record, statement.options)
        return Result(statement.tag)
    if statement.action == "refresh schema":
        return Result(statement.tag, notices=_refresh_schema(context, record, statement))
    if statement.action not in ("pause", "resume", "set"):
        raise NotSupported(f"{statement.tag} ... {statement.action.upper()}")
    if statement.action == "set" and source_options.set_of_table(context, record, statement.options):
        return Result(statement.tag)
    if isinstance(record.content, SourceContent):
        _alter_source(context, record, statement)
        return Result(statement.tag)
    if record.id not in context.catalog.state.jobs:
        raise NotSupported(f"{statement.tag} ... {statement.action.upper()}", hint="it has no job")
    if statement.action == "set":
        for each in [record, *formers_of(context.catalog.state, record.id)]:
            coordinator.alter_job(each.id, options=dict(statement.options))
        return Result(statement.tag, notices=_left_behind(context, record))
    for each in _in_step(context, record):
        coordinator.alter_job(each.id, paused=statement.action == "pause")
    return Result(statement.tag)


def add_columns(context: Context, statement: st.AlterColumns) -> Result:
    """ALTER ... ADD COLUMN of a source, and of a table, whether it follows one outside or statements write to it."""
    found = names_of(context).find(statement.name)
    if found is None and statement.if_exists:
        return Result(statement.tag, notices=[Notice(f'relation "{statement.name}" does not exist, skipping')])
    record = found or names_of(context).get(statement.name)
    state = context.catalog.state
    source = record if isinstance(record.content, SourceContent) and can_widen(record) else None
    stored = statement.kind == "table" and not statement.drop and isinstance(record.content, TableContent)
    fed_table = statement.kind == "table" and refreshing.can_refresh(state, record)
    if not stored and (statement.drop or not (source if statement.kind == "source" else fed_table)):
        return not_yet(context, statement)
    refuse_automatic(context, record, "altered")
    context.rights.require_owner(record)
    wanted, notices = _not_there(record, statement)
    if wanted and stored:
        add_to_table(context, record, replace(statement, add=wanted))
    elif wanted and source is not None:
        widen_source(context, source, wanted)
    elif wanted:
        refreshing.refresh(context, record, statement.text, wanted)
    return Result(statement.tag, notices=notices)


def _not_there(record: ObjectRecord, statement: st.AlterColumns) -> tuple[tuple[st.ColumnDef, ...], list[Notice]]:
    """The columns that are to be added, without those that are to be left alone if they are there; what to tell."""
    known, wanted, notices = {c.name for c in record.columns}, list[st.ColumnDef](), list[Notice]()
    for column, unless_there in zip(statement.add, statement.unless_there, strict=True):
        if unless_there and column.name in known:
            text = f'column "{column.name}" of relation "{label(record)}" already exists, skipping'
            notices.append(Notice(text, sqlstate="42701"))
        else:
            wanted.append(column)
            known.add(column.name)
    return tuple(wanted), notices


def _in_step(context: Context, record: ObjectRecord) -> list[ObjectRecord]:
    """What is paused with a job: the hidden ones that it is made of, and what a table was before for what reads it."""
    state = context.catalog.state
    found = [record, *formers_of(state, record.id)]
    return [*found, *(part for part in parts_of(state, [o.id for o in found]) if part.id in state.jobs)]


def _alter_source(context: Context, record: ObjectRecord, statement: st.AlterJob) -> None:
    """ALTER SOURCE ... PAUSE, RESUME and SET; the next tick keeps to it."""
    if statement.action == "set":
        source_options.set_of_source(context, record, statement.options)
        return
    paused = statement.action == "pause"

    def changed(found: ObjectRecord) -> ObjectRecord:
        return replace(found, content=replace(found.content_as(SourceContent), paused=paused))

    context.coordinator.alter_objects([record.id], changed, "is paused" if paused else "goes on")


def _refresh_schema(context: Context, record: ObjectRecord, statement: st.AlterJob) -> list[Notice]:
    """ALTER ... REFRESH SCHEMA: the columns that are there by now; what to tell.

    Views that are there go on with those that they read. Raises for a column that is of another type there.
    """
    state = context.catalog.state
    if fed.is_fed(state, record):
        return [_told(record, refreshing.refresh(context, record, statement.text))]
    if isinstance(record.content, SourceContent) and record.content.shared:
        tables = refreshing.tables_of(state, record)
        for table in tables:
            context.rights.require_owner(table)
            check_not_refreshed(state, table)
        return [_told(table, refreshing.refresh(context, table, statement.text)) for table in tables]
    if not isinstance(record.content, SourceContent) or not can_widen(record):
        raise NotSupported(
            f"{statement.tag} ... REFRESH SCHEMA",
            hint="of a source whose schema a registry has (ENCODE AVRO, PROTOBUF), of a lake's table, of files, of a "
            "source of several tables of PostgreSQL, and of their tables; drop others and create them again",
        )
    return [_told(record, widen_source(context, record, None))]


def _told(record: ObjectRecord, columns: Sequence[Column]) -> Notice:
    return Notice(told(called(record), columns))


def _keep_for(context: Context, record: ObjectRecord, options: Mapping[str, str]) -> None:
    """ALTER SUBSCRIPTION ... SET (retention = ...)."""
    if set(options) != {"retention"}:
        raise InvalidParameter("a subscription has one option: retention")
    relation = context.catalog.state.objects[record.depends_on[0]]
    changed = lambda found: subscriptions.with_retention(found, relation, options["retention"])  # noqa: E731
    context.coordinator.alter_objects([record.id], changed, "keeps changes for another time")


def _to_alter(context: Context, statement: st.AlterJob) -> ObjectRecord | None:
    """What a statement names; of schemas only the owner can be changed."""
    if statement.kind == "schema" and statement.action == "owner":
        return grants.schema_record(context, statement.name.name)
    return names_of(context).find(statement.name)


def _left_behind(context: Context, record: ObjectRecord) -> list[Notice]:
    """What is said of a view that has been moved away from an automatic index of its former checkpoint group."""
    state = context.catalog.state
    group = state.jobs[record.id].group
    used = [o for o in (state.objects[i] for i in record.depends_on) if is_automatic(o)]
    text = '"{}" goes on reading the {}: to make it independent of that group, create it again'
    return [Notice(text.format(label(record), o.name)) for o in used if state.jobs[o.id].group != group]


HANDLERS: Final = (
    Handler(st.AlterJob, alter, needs=Needs.OWNER),
    Handler(st.AlterColumns, add_columns, outside=lambda s: f"{s.tag} ... ADD COLUMN", needs=Needs.OWNER),
)
