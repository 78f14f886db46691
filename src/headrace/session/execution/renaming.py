"""ALTER ... RENAME TO."""

from __future__ import annotations

from typing import Final

from headrace.catalog.contents import IndexContent, RoleContent, SinkContent, SourceContent
from headrace.catalog.records import ObjectRecord
from headrace.catalog.state import CatalogState
from headrace.coordinator.ddl.replacing import name_while_filled
from headrace.errors import DuplicateTable, NotSupported, StatementError, UndefinedTable, WrongObjectType
from headrace.session.context import Context
from headrace.session.execution import fed
from headrace.session.execution.existing import refuse_automatic
from headrace.session.execution.refilling import check_not_refreshed
from headrace.session.hidden_views import is_part
from headrace.session.names import label, names_of
from headrace.session.renamed import renamed
from headrace.session.result import Notice, Result
from headrace.sql import statements as st

_RENAMED: Final = ("table", "materialized view", "view", "source", "sink", "index")
_HINTS: Final = {
    "schema": "what is in it is named by its definitions and by search paths; create another one",
    "secret": "its value is sealed with its name; create another one, and drop this one",
}


def rename(context: Context, statement: st.AlterJob) -> Result:
    """ALTER ... RENAME TO, by the rules of PostgreSQL: it takes to own the object, and CREATE in its schema."""
    if statement.kind not in _RENAMED:
        raise NotSupported(f"{statement.tag} ... RENAME", hint=_HINTS.get(statement.kind))
    record = names_of(context).find(statement.name)
    if record is None or isinstance(record.content, RoleContent):
        if statement.if_exists:
            return Result(statement.tag, notices=[Notice(f'relation "{statement.name}" does not exist, skipping')])
        raise UndefinedTable(f'relation "{statement.name}" does not exist')
    _check_kind(context, statement, record)
    refuse_automatic(context, record, "renamed")
    if is_part(record):
        raise WrongObjectType(f'"{label(record)}" is what another relation is made of', hint="rename that one")
    context.rights.require_owner(record)
    context.rights.require_in("C", record.schema)
    if record.content.pipeline is not None:
        raise NotSupported(
            f'another name of "{label(record)}", which a pipeline has made',
            hint="change its name there: applying the pipeline makes it by that name",
        )
    wanted = statement.target
    assert wanted is not None

    def changes(state: CatalogState) -> list[ObjectRecord]:
        found = state.objects.get(record.id)
        if found is None or (found.schema, found.name) != (record.schema, record.name):
            raise UndefinedTable(f'relation "{statement.name}" does not exist')
        _check_still(state, found)
        if state.object_named(record.schema, wanted) is not None:
            raise DuplicateTable(f'relation "{wanted}" already exists')
        return renamed(state, record.id, wanted)

    context.coordinator.rename(changes)
    return Result(statement.tag)


def _check_still(state: CatalogState, record: ObjectRecord) -> None:
    """Raise `StatementError` for a table, or an index of one, in whose place another is being filled, by name."""
    if isinstance(record.content, IndexContent):
        record = state.objects[record.content.on]
    check_not_refreshed(state, record)
    if state.object_named(record.schema, name_while_filled(record)) is not None:
        raise StatementError(
            f'"{label(record)}" is being changed by another statement', sqlstate="55006",
            hint="try again when that has ended",
        )  # fmt: skip


def _check_kind(context: Context, statement: st.AlterJob, record: ObjectRecord) -> None:
    """Raise `WrongObjectType` for another kind than the statement's; ALTER TABLE takes all that can be read by SQL."""
    word = statement.kind
    if word == "table" and record.content.relation and not isinstance(record.content, (SourceContent, SinkContent)):
        return
    if record.kind_name != word or (word == "materialized view" and fed.is_fed(context.catalog.state, record)):
        raise WrongObjectType(f'"{statement.name}" is not {"an" if word == "index" else "a"} {word}')
