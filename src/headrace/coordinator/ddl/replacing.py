"""Tables that are filled to take the place of another one, and what is left of them when a server ends meanwhile."""

from __future__ import annotations

from typing import Final

from headrace.catalog.contents import TableContent
from headrace.catalog.records import ObjectRecord
from headrace.catalog.state import CatalogState

_SUFFIX: Final = "$keyed"


def name_while_filled(table: ObjectRecord) -> str:
    """The name of what takes the place of a table, until it does."""
    return table.name + _SUFFIX


def definition_with(table: ObjectRecord, statement: str) -> str:
    """How a table is defined that takes the place of another one because of a statement."""
    return f"{table.definition};\n{statement}"


def left_behind(state: CatalogState) -> list[int]:
    """Tables that a server was filling when it ended: none can take its place any more.

    One that somebody has given such a name is defined by a statement of its own.
    """
    found = []
    for record in state.objects_of(TableContent):
        if record.name.endswith(_SUFFIX):
            table = state.object_named(record.schema, record.name.removesuffix(_SUFFIX))
            if table is not None and record.definition.startswith(definition_with(table, "")):
                found.append(record.id)
    return found
