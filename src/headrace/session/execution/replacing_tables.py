"""Tables that get a primary key or columns: another table gets the rows, and then takes the place of the first.

Nobody writes to the table meanwhile, and whoever reads it reads the first one until the other is in its place. A crash
before that leaves the table as it was; what was being filled is dropped by the next start. Plain views go on with the
columns that they have, and indexes are filled beside the others; what else keeps rows of its own is built on the first
table, and has to be dropped before.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from headrace.catalog.contents import IndexContent, TableContent, ViewContent
from headrace.catalog.records import ObjectRecord
from headrace.catalog.state import CatalogState
from headrace.coordinator.ddl.replacing import definition_with, name_while_filled, takes_place_of
from headrace.coordinator.decide.former import indexes_of
from headrace.errors import (
    DependentObjectsExist,
    DuplicateTable,
    HeadraceError,
    NotSupported,
    StatementError,
    WrongObjectType,
)
from headrace.session.context import Context
from headrace.session.execution.in_transaction import opened
from headrace.session.execution.refilling import new_index
from headrace.session.names import check_named, label
from headrace.session.transactions import Transaction


def check_replaceable(context: Context, table: ObjectRecord, what: str, *, built_on: bool) -> None:
    """Raises why another table cannot take the place of this one; `built_on` is whether there may be what goes on."""
    if not isinstance(table.content, TableContent):
        raise WrongObjectType(f'"{label(table)}" is a {table.kind_name}: only a table gets {what}')
    if table.content.append_only or table.options:
        raise NotSupported(
            f"adding {what} to a table that is append-only or takes requests", hint="CREATE TABLE has it"
        )
    other = _in_the_way(context.catalog.state, table, built_on=built_on)
    if other is not None:
        raise DependentObjectsExist(
            f'cannot add {what} to table "{label(table)}" because other objects depend on it',
            detail=f'{other.kind_name} "{label(other)}" depends on table "{label(table)}"',
            hint="Add it before anything is built on the table: drop what is, and create it again.",
        )


def _in_the_way(state: CatalogState, table: ObjectRecord, *, built_on: bool) -> ObjectRecord | None:
    """What is built on a table and does not go on."""
    for above in (state.objects[i] for i in state.dependents(table.id)):
        on_index = state.dependents(above.id) if isinstance(above.content, IndexContent) else ()
        if on_index:
            return state.objects[on_index[0]]
        if not (built_on and isinstance(above.content, (ViewContent, IndexContent))):
            return above
    return None


def put_in_place(
    context: Context, table: ObjectRecord, other: ObjectRecord, text: str,
    copy: Callable[[Transaction, ObjectRecord], None],
) -> None:  # fmt: skip
    """Create a table, have it filled by a transaction, and let it take the place of another one before anybody else
    writes to that. `text` is the statement that wants it.
    """
    coordinator = context.coordinator
    content = replace(other.content, called=table.name)  # plans of its indexes are to be the same afterwards
    definition = definition_with(table, text)
    other = replace(other, name=name_while_filled(table), content=content, definition=definition)
    try:
        with coordinator.defining():
            check_named(context.catalog.state, table)  # from then on it keeps its name, by which its rows are read
            other = replace(other, id=coordinator.create_relation(other))
    except DuplicateTable as error:
        found = context.catalog.state.object_named(other.schema, other.name)
        if found is not None and takes_place_of(found, table):
            raise StatementError(
                f'"{label(table)}" is being filled again by another statement, for a key or columns',
                sqlstate="55006",
                hint="try again when that is done; what one that failed has left goes with the next start",
            ) from error
        error.hint = (
            f'A table is filled under this name while "{label(table)}" gets a key or columns: '
            "give the relation that has it another one, by ALTER ... RENAME TO."
        )
        raise
    made = [other]
    try:
        _fill(context, table, made, copy)
    except BaseException:
        left = [i.id for i in made if context.catalog.state.objects.get(i.id) == i]
        if other.id in left:  # else it has taken the place of the first, with all rows
            with suppress(HeadraceError):
                coordinator.drop(left)
        raise


def _fill(
    context: Context, table: ObjectRecord, made: list[ObjectRecord], copy: Callable[[Transaction, ObjectRecord], None]
) -> None:  # fmt: skip
    """Fill the table that has been made, make its indexes, and let them take their places."""
    (other,) = made
    own = opened(context, implicit=True, gated=frozenset({table.id}))
    try:
        with context.within(own):
            copy(own, other)
        outcome = own.work.commit(context.check)
        filled = own.work.fix() if outcome is None else outcome.epoch
        existing = indexes_of(context.catalog.state, table.id)
        indexes = {new_index(context, made, other, index): index.id for index in existing}
        context.coordinator.take_place(other.id, table.id, indexes, filled)
    finally:
        own.close()
    if outcome is not None:
        context.wrote(outcome.epoch)
