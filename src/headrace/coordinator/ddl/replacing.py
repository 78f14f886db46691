"""Tables that are filled to take the place of another one, and what is left when a server ends meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from headrace.catalog.contents import IndexContent, MaterializedViewContent, SourceContent, TableContent
from headrace.catalog.edits import AddEvent
from headrace.catalog.records import ObjectRecord
from headrace.catalog.state import CatalogState
from headrace.coordinator.decide.former import named_as

_SUFFIX: Final = "$keyed"
_REFRESHED: Final = "$refreshed"


def name_while_filled(table: ObjectRecord) -> str:
    """The name of what takes the place of a table, until it does."""
    return table.name + _SUFFIX


def name_while_refreshed(record: ObjectRecord) -> str:
    """The name of what takes the place of a table that gets columns, or of one of its indexes, until it does."""
    return record.name + _REFRESHED


def definition_with(table: ObjectRecord, statement: str) -> str:
    """How a table is defined that takes the place of another one because of a statement."""
    return f"{table.definition};\n{statement}"


def in_place_of(old: ObjectRecord, new: ObjectRecord, until: int) -> tuple[ObjectRecord, AddEvent]:
    """A table that has been filled, as it is in the place of another one, and what is said of it.

    `until` is an id above those of all objects: what was made before goes on with the columns that there were.
    """
    content, width = replace(new.content_as(TableContent), called=None), len(old.columns)
    wider = len(new.columns) > width
    if wider:
        content = replace(content, widths=(*content.widths, (until, width)))
    done = "has new columns" if wider else "was given a primary key"
    return named_as(old, replace(new, content=content)), AddEvent("table_altered", new.id, f'table "{old.name}" {done}')


def left_behind(state: CatalogState) -> list[int]:
    """Tables that a server was filling when it ended, with what belongs to them: none can take its place any more.

    One that somebody has given such a name is defined by a statement of its own. The hidden source of a table that a
    server was creating is among them: nobody sees it, and it would be in the way of who creates the table again.
    """
    found: list[int] = []
    for filled in state.objects_of(TableContent):
        if _takes_place(state, filled, filled.name, _SUFFIX):
            found += [filled.id, *_indexes(state, filled.id)]
    for source in state.objects_of(SourceContent):
        part = source.content_as(SourceContent).part
        if part is not None and (not state.dependents(source.id) or _takes_place(state, source, part, _REFRESHED)):
            found += [source.id, *_above(state, source.id)]
    for table in state.objects_of(MaterializedViewContent):
        if table.id not in found and _takes_place(state, table, table.name, _REFRESHED):
            found += [table.id, *_indexes(state, table.id)]
    return found


def _above(state: CatalogState, source_id: int) -> Iterator[int]:
    """The table of a source that was being filled, and its indexes."""
    for table in state.dependents(source_id):
        yield table
        yield from _indexes(state, table)


def _indexes(state: CatalogState, table_id: int) -> Iterator[int]:
    return (i for i in state.dependents(table_id) if isinstance(state.objects[i].content, IndexContent))


def _takes_place(state: CatalogState, record: ObjectRecord, name: str, suffix: str) -> bool:
    """Whether something of that name is to take the place of a table, by its name and its definition."""
    table = state.object_named(record.schema, name.removesuffix(suffix)) if name.endswith(suffix) else None
    return table is not None and takes_place_of(record, table)


def takes_place_of(record: ObjectRecord, table: ObjectRecord) -> bool:
    """Whether something that has such a name is to take the place of a table, by its definition."""
    return record.definition.startswith(definition_with(table, ""))
