"""Objects get other names: in the catalog in one transaction, and in what runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.catalog.catalog import Catalog
from headrace.catalog.edits import AddEvent, Edit, Put
from headrace.catalog.records import ObjectRecord
from headrace.catalog.state import CatalogState
from headrace.common.faults import fault_point
from headrace.coordinator.ddl.lifecycle import Lifecycle
from headrace.coordinator.run.live_state import LiveState, take_up

Renamed = Callable[[CatalogState], Sequence[ObjectRecord]]
"""What a change of a name changes, by the catalog's content: first what has another name."""


def rename(catalog: Catalog, live: LiveState, life: Lifecycle, changes: Renamed) -> None:
    """See `Coordinator.rename`. Nothing is planned again: plans know what they read by id, and by `Content.called`."""
    with life.statement():
        state = catalog.state
        changed = changes(state)
        for record in changed:
            before = state.objects[record.id]
            if (before.schema, before.name) != (record.schema, record.name):
                life.check_free(record)
        first = changed[0]
        text = f'{first.kind} "{state.objects[first.id].name}" is named "{first.name}"'
        edits: list[Edit] = [*map(Put, changed), AddEvent(f"{first.kind}_altered", first.id, text)]

        def happened(found: CatalogState) -> bool:
            return all(found.objects.get(o.id) == o for o in changed)

        def settle(found: CatalogState) -> None:
            if happened(found):
                take_up(live, changed)

        fault_point("rename.before")
        life.undecided.transact(edits, happened, settle)
        take_up(live, changed)
        fault_point("rename.after")
    live.notify()
