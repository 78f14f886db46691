"""Sinks into tables: what feeds what. Pure functions of the catalog."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headrace.catalog.contents import SinkContent
from headrace.catalog.records import ObjectRecord
from headrace.catalog.state import CatalogState
from headrace.errors import StatementError


def target_of(record: ObjectRecord) -> int | None:
    """The id of the table that a sink goes into, or that has the rows which its target refuses; None for others."""
    if not isinstance(record.content, SinkContent):
        return None
    return record.content.into if record.content.into is not None else record.content.dead_letters


def fed_by(state: CatalogState, record: ObjectRecord) -> Iterator[ObjectRecord]:
    """What gets the changes of an object directly: what reads it, or the table that a sink goes into."""
    target = target_of(record)
    if target is not None:
        if target in state.objects:
            yield state.objects[target]
        return
    for other in (state.objects[i] for i in state.dependents(record.id)):
        if target_of(other) != record.id:  # a sink depends on its table without reading it
            yield other


def circle(state: CatalogState, table_id: int, read: Iterable[int]) -> list[ObjectRecord]:
    """The way of changes from a table to something out of `read`, both included; empty if there is none."""
    wanted, start = set(read), state.objects[table_id]
    ways: dict[int, list[ObjectRecord]] = {table_id: [start]}
    left = [start]
    while left:
        record = left.pop(0)
        if record.id in wanted:
            return ways[record.id]
        for after in fed_by(state, record):
            if after.id not in ways:
                ways[after.id] = [*ways[record.id], after]
                left.append(after)
    return []


def refuse_circle(state: CatalogState, sink: ObjectRecord, read: Iterable[int]) -> None:
    """Raise `StatementError` (42P17) for a sink into a table that feeds what the sink's query reads."""
    target = target_of(sink)
    way = [] if target is None else circle(state, target, read)
    if way:
        shown = " -> ".join(f'"{name}"' for name in [*(o.name for o in way), sink.name, way[0].name])
        raise StatementError(
            f'sink "{sink.name}" would feed itself: what it writes to "{way[0].name}" comes back to it',
            sqlstate="42P17",
            detail=shown,
            hint="have it write to a table that its query is not built on",
        )
