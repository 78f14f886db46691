"""Hidden views: the joins of which a view is made that was cut behind them, and tables before they got columns."""

from __future__ import annotations

from collections.abc import Collection, Iterable

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
    names = {state.objects[i].name for i in left if i in state.objects}
    while left:
        record = state.objects.get(left.pop())
        for below in record.depends_on if record is not None else ():
            part = state.objects.get(below)
            if part is None or not is_part(part) or is_former(part) or _is_of_another(part, names):
                continue
            if part.id not in found:
                found[part.id] = part
                left.append(part.id)
    return sorted(found.values(), key=lambda o: -o.id)


def _is_of_another(part: ObjectRecord, names: Collection[str]) -> bool:
    """Whether it is what a table reads that is none of these: one of them is filled beside it, to take its place."""
    content = part.content
    return isinstance(content, SourceContent) and content.part not in names
