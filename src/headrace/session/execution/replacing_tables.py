"""Tables that get a primary key or columns: another table gets the rows, and then takes the place of the first.

Nobody writes to the table meanwhile, and whoever reads it reads the first one until the other is in its place. A crash
before that leaves the table as it was; what was being filled is dropped by the next start. Plain views go on with the
columns that they have; what keeps rows of its own is built on the first table, and has to be dropped before.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from headrace.catalog.contents import TableContent, ViewContent
from headrace.catalog.records import ObjectRecord
from headrace.coordinator.ddl.replacing import definition_with, name_while_filled
from headrace.errors import (
    DependentObjectsExist,
    DuplicateTable,
    HeadraceError,
    NotSupported,
    WrongObjectType,
)
from headrace.session.context import Context
from headrace.session.execution.in_transaction import opened
from headrace.session.names import label
from headrace.session.transactions import Transaction


def check_replaceable(context: Context, table: ObjectRecord, what: str, *, views: bool) -> None:
    """Raises why another table cannot take the place of this one; `views` is whether plain ones may be over it."""
    if not isinstance(table.content, TableContent):
        raise WrongObjectType(f'"{label(table)}" is a {table.kind_name}: only a table gets {what}')
    if table.content.append_only or table.options:
        raise NotSupported(
            f"adding {what} to a table that is append-only or takes requests", hint="CREATE TABLE has it"
        )
    state = context.catalog.state
    above = [state.objects[i] for i in sorted(state.dependents(table.id))]
    other = next((o for o in above if not (views and isinstance(o.content, ViewContent))), None)
    if other is not None:
        raise DependentObjectsExist(
            f'cannot add {what} to table "{label(table)}" because other objects depend on it',
            detail=f'{other.kind_name} "{label(other)}" depends on table "{label(table)}"',
            hint="Add it before anything is built on the table: drop what is, and create it again.",
        )


def put_in_place(
    context: Context, table: ObjectRecord, other: ObjectRecord, text: str,
    copy: Callable[[Transaction, ObjectRecord], None],
) -> None:  # fmt: skip
    """Create a table, have it filled by a transaction, and let it take the place of another one before anybody else
    writes to that. `text` is the statement that wants it.
    """
    coordinator = context.coordinator
    other = replace(other, name=name_while_filled(table), definition=definition_with(table, text))
    try:
        other = replace(other, id=coordinator.create_relation(other))
    except DuplicateTable as error:
        error.hint = "A table is filled under this name while it gets a key or columns: DROP TABLE what has it."
        raise
    try:
        _fill(context, table, other, copy)
    except BaseException:
        left = context.catalog.state.objects.get(other.id)
        if left is not None and left.name == other.name:  # else it has taken the place of the first, with all rows
            with suppress(HeadraceError):
                coordinator.drop([other.id])
        raise


def _fill(
    context: Context, table: ObjectRecord, other: ObjectRecord, copy: Callable[[Transaction, ObjectRecord], None]
) -> None:  # fmt: skip
    own = opened(context, implicit=True, gated=frozenset({table.id}))
    try:
        with context.within(own):
            copy(own, other)
        outcome = own.work.commit(context.check)
        context.coordinator.take_place(other.id, table.id)
    finally:
        own.close()
    if outcome is not None:
        context.wrote(outcome.epoch)
