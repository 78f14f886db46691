"""Indexes that the system makes where views of a checkpoint group would keep the same rows by the same columns.

The first view that joins a relation by some columns keeps its rows itself, and pays for nobody else. Once a second one
of the group wants them by these columns, an index of all columns is made in the group; that view and all later ones
look rows up there. It goes with the last view that uses it. Pure functions of the catalog's content.

For each side that a view keeps and could look up, its plan says which index would do (`ViewPlan.sharable`), and so
does the record of its job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from headrace.catalog.contents import IndexContent
from headrace.catalog.records import ObjectRecord
from headrace.catalog.state import CatalogState
from headrace.common.lazy_dataclass import dataclass
from headrace.coordinator.decide.life import Life
from headrace.plan.tree import Sharable

SCHEMA = "headrace_internal"
"""Where automatic indexes are, as no object of a user can be: their names clash with none."""

FORMER = "former "
"""What the names of those begin with that somebody made on a table that has got columns since."""


@dataclass(frozen=True)
class WantedIndex:
    """An index that the joins of a new view will look rows up in: one that is there, or one to be made."""

    side: Sharable
    index: int | None
    """The automatic index that is there already; None for one to be made."""


def is_automatic(record: ObjectRecord) -> bool:
    """Whether an object is an index that the system has made."""
    return isinstance(record.content, IndexContent) and record.content.automatic


def is_lasting(record: ObjectRecord) -> bool:
    """Whether an index stays for its readers as it is: one that somebody made, of a table as it was before."""
    return not is_automatic(record) or record.name.startswith(FORMER)


def stored(sides: Sequence[Sharable]) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """What the record of a view's job says of the sides that it keeps and could share."""
    return tuple((side.relation, side.key) for side in sorted(set(sides)))


def wanted(state: CatalogState, group: str, sides: Sequence[Sharable]) -> list[WantedIndex]:
    """The indexes of a group that a new view is to use, of those that its joins could: `sides`, each as often as kept.

    There is one if it has been made, or if another view of the group, or the new one itself, keeps the same once more.
    """
    others = {side for job in state.jobs_in(group) for side in job.plan.sharable}
    found = []
    for side, times in sorted(Counter(sides).items()):
        index = index_of(state, group, side)
        if index is not None and Life.of(state.jobs[index.id]).runs:
            found.append(WantedIndex(side, index.id))
        elif index is None and (times > 1 or (side.relation, side.key) in others):
            found.append(WantedIndex(side, None))
    return found


def index_of(state: CatalogState, group: str, side: Sharable) -> ObjectRecord | None:
    """The automatic index of a group for a side."""
    for found in (state.objects.get(j.id) for j in state.jobs_in(group)):
        content = found.content if found is not None and is_automatic(found) else None
        if isinstance(content, IndexContent) and (content.on, content.key) == (side.relation, side.key):
            return found
    return None


def name_of(relation: ObjectRecord, group: str, side: Sharable) -> str:
    """What the index is called wherever it is shown."""
    shown = relation.name if relation.schema in ("", "public") else f"{relation.schema}.{relation.name}"
    return f"automatic {shown}({', '.join(side.key)}) in {group}"
