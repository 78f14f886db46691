"""What is decided of a checkpoint group as a whole: made durable, or taken back, with threads for all its lanes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from headrace.catalog.catalog import Catalog
from headrace.catalog.state import CatalogState
from headrace.coordinator.decide.settlement import Settlement
from headrace.coordinator.run.live_state import Job


def regroup(
    catalog: Catalog, committing: AbstractContextManager[object], lock: AbstractContextManager[object],
    launch: Callable[[Job], None], decide: Callable[[CatalogState], Settlement[Job]],
) -> None:  # fmt: skip
    """Settle a group as `decide` says, to whom the `lock` of jobs is held. Raises what the transaction does.

    No commit comes between (`committing`). Threads end with their lanes as soon as it is settled in memory: so all
    lanes are given one however it ends.
    """
    with committing:
        with catalog.reading() as state, lock:
            found = decide(state)
        try:
            if found.edits:
                catalog.transact(found.edits)
        except BaseException:
            with lock:
                found.take_back()
            raise
        finally:
            for job in found.members:
                launch(job)
