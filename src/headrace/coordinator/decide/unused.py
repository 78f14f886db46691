"""What the system looks after by itself, and lets go of once nothing uses it: automatic indexes, former tables.

Pure functions of the catalog's content.
"""

from __future__ import annotations

from collections.abc import Collection

from headrace.catalog.contents import IndexContent
from headrace.catalog.state import CatalogState
from headrace.coordinator.decide import former
from headrace.coordinator.decide.automatic import is_automatic


def unused(state: CatalogState, going: Collection[int]) -> list[int]:
    """What nothing uses any more once the objects `going` are gone, of that which one of them uses."""
    gone = list(going)
    for i in gone:  # grows: one of them may be the last that uses another
        record = state.objects.get(i)
        for below in record.depends_on if record is not None else ():
            used = state.objects.get(below)
            if used is None or below in gone or not set(state.dependents(below)) <= set(gone):
                continue
            if is_automatic(used) or former.is_former(used) or former.serves_formers(state, used):
                gone.append(below)
    return gone[len(going) :]


def abandoned(state: CatalogState) -> list[int]:
    """What nothing uses: a crash came between it and the view that it was made for, or the end of its last reader."""
    indexes = [o.id for o in state.objects_of(IndexContent) if is_automatic(o) and not state.dependents(o.id)]
    return [*indexes, *former.unread(state, indexes)]
