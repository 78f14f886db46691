"""Hidden views: the joins of which a view is made that was cut behind them, and tables before they got columns."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.catalog.contents import MaterializedViewContent, SourceContent
from headrace.catalog.records import ObjectRecord
from headrace.catalog.state import CatalogState
from headrace.coordinator.decide.former import is_former


def is_part(record: ObjectRecord) -> bool:
    """Whether an object is a join of a view or what a table was before, and not the user's."""
    content = record.content
    made_of = isinstance(content, (MaterializedViewContent, SourceContent)) and content.part is not None
    return made_of or is_former(record)


def parts_of(state: CatalogState, ids: Iterable[int]) -> list[ObjectRecord]:
    """The hidden views and sources of which these views are made alone, those that read others first."""
    found: dict[int, ObjectRecord] = {}
    left = list(ids)
    while left:
        record = state.objects.get(left.pop())
        for below in record.depends_on if record is not None else ():
            part = state.objects.get(below)
            if part is not None and is_part(part) and not is_former(part) and part.id not in found:
                found[part.id] = part
                left.append(part.id)
    return sorted(found.values(), key=lambda o: -o.id)
