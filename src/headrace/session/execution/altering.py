"""ALTER of what jobs keep up to date: pause, resume, options, checkpoint groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headrace.catalog.contents import SubscriptionContent
from headrace.catalog.records import ObjectRecord
from headrace.coordinator.decide.automatic import is_automatic
from headrace.errors import InvalidParameter, NotSupported, WrongObjectType
from headrace.session.context import Context
from headrace.session.execution import grants, subscriptions
from headrace.session.execution.existing import refuse_automatic
from headrace.session.execution.handler import Handler, Needs, not_yet
from headrace.session.hidden_views import parts_of
from headrace.session.names import kind_name, label, names_of
from headrace.session.result import Notice, Result
from headrace.sql import statements as st


def alter(context: Context, statement: st.AlterJob) -> Result:
    """ALTER ... PAUSE, RESUME, SET and OWNER TO."""
    found = _to_alter(context, statement)
    if found is None and statement.if_exists:
        return Result(statement.tag, notices=[Notice(f'relation "{statement.name}" does not exist, skipping')])
    record = found or names_of(context).get(statement.name)
    if kind_name(record) != statement.kind:
        raise WrongObjectType(f'"{statement.name}" is not a {statement.kind}')
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
    if statement.action not in ("pause", "resume", "set"):
        raise NotSupported(f"{statement.tag} ... {statement.action.upper()}")
    if record.id not in context.catalog.state.jobs:
        raise NotSupported(f"{statement.tag} ... {statement.action.upper()}", hint="it has no job")
    if statement.action == "set":
        coordinator.alter_job(record.id, options=dict(statement.options))
        return Result(statement.tag, notices=_left_behind(context, record))
    jobs = context.catalog.state.jobs
    parts = [p for p in parts_of(context.catalog.state, [record.id]) if p.id in jobs]
    for each in [record, *parts]:
        coordinator.alter_job(each.id, paused=statement.action == "pause")
    return Result(statement.tag)


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
    Handler(st.AlterColumns, not_yet, needs=Needs.OWNER),
)
