"""What is decided of a checkpoint group as a whole: made durable, or taken back, with threads for all its lanes."""

from __future__ import annotations

from collections.abc import Callable

from headrace.catalog.state import CatalogState
from headrace.coordinator.decide.settlement import Settlement
from headrace.coordinator.run.core import Core, Job


def regroup(core: Core, launch: Callable[[Job], None], decide: Callable[[CatalogState], Settlement[Job]]) -> None:
    """Settle a group as `decide` says, to whom the core's lock is held. Raises what the transaction does.

    Threads end with their lanes as soon as it is settled in memory: so all lanes are given one however it ends.
    """
    with core.committing:
        with core.catalog.reading() as state, core.lock:
            found = decide(state)
        try:
            if found.edits:
                core.catalog.transact(found.edits)
        except BaseException:
            with core.lock:
                found.take_back()
            raise
        finally:
            for job in found.members:
                launch(job)
