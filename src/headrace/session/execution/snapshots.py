"""What a query reads, pinned for as long as it reads."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from headrace.session.context import Context
from headrace.session.execution.as_of import as_of_epoch, within_complete
from headrace.session.names import BoundQuery

if TYPE_CHECKING:
    from headrace.coordinator.reads import Snapshot


def open_snapshot(
    context: Context, bound: BoundQuery, stack: ExitStack, point: tuple[int, tuple[object, ...]] | None = None
) -> Snapshot | None:  # fmt: skip
    """What a query reads of relations and state tables, pinned until the stack ends; None where that is nothing.

    `point` is the table and the primary key of the one row that it reads, where that is known.
    """
    snapshot = _open_relations(context, bound, stack, point)
    internal = bound.state_tables()
    if internal:
        held = stack.enter_context(context.coordinator.state_snapshot(sorted(internal)))
        if snapshot is None:
            return held
        snapshot.tables.update(held.tables)
    return snapshot


def _open_relations(
    context: Context, bound: BoundQuery, stack: ExitStack, point: tuple[int, tuple[object, ...]] | None
) -> Snapshot | None:  # fmt: skip
    relations = bound.relations()
    if not relations:
        return None
    now_ms = context.clock.now_ms()
    at = as_of_epoch(bound, now_ms)
    if at is not None:
        at = within_complete(at, now_ms, context.coordinator.current_epoch())
    return stack.enter_context(context.reads.snapshot(sorted(relations), at, point))
