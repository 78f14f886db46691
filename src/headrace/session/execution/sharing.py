"""Which tables and indexes the joins of a new view may look rows up in, instead of keeping these once more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.session.session import Session

SETTING = "streaming_use_arrangements"


def usable(session: Session, options: Mapping[str, str]) -> frozenset[int]:
    """Ids of tables with a primary key and of indexes that are filled, unless the session has it switched off.

    An index is left out where its checkpoint group and that of the view (which `options` may say) would wait for each
    other, or where it is not being kept up to date.
    """
    if not session.variables.is_on(SETTING):
        return frozenset()
    coordinator, state = session.database.coordinator, session.database.catalog.state
    group = options.get("checkpoint_group") or session.variables.get("default_checkpoint_group")
    tables = {o.id for o in state.objects_of("table") if o.primary_key}
    filled = [o.id for o in state.objects_of("index") if state.jobs[o.id].status == "created"]
    return frozenset(tables.union(i for i in filled if coordinator.may_read(group, i)))
