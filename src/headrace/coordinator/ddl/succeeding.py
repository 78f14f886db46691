"""Tables that get columns: the change of names, and slots that one table alone has had.

`coordinator/decide/former.py` says what is changed, and why it can be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from headrace.catalog.catalog import Catalog
from headrace.catalog.contents import SourceContent
from headrace.catalog.edits import AddEvent, Edit, Put
from headrace.catalog.records import JobRecord, ObjectRecord
from headrace.catalog.state import CatalogState
from headrace.common.faults import fault_point
from headrace.connectors.base import SHARED_BY
from headrace.coordinator.ddl.lifecycle import Lifecycle
from headrace.coordinator.ddl.planning import Planning
from headrace.coordinator.decide.exact import newest
from headrace.coordinator.decide.former import indexes_of, is_former, succession
from headrace.coordinator.observe.arrival import job_failed
from headrace.coordinator.run.live_state import LiveState, take_up
from headrace.coordinator.run.locks import Locks
from headrace.coordinator.run.runtime import Runtime
from headrace.coordinator.run.ticker import Ticker
from headrace.errors import StatementError, UndefinedTable

Check = Callable[[], None]


class Succeeding:
    """Lets a table take the place of another one that goes on for its readers. One statement of DDL each."""

    def __init__(
        self, live: LiveState, catalog: Catalog, runtime: Runtime, locks: Locks, life: Lifecycle, planning: Planning,
        ticker: Ticker,
    ) -> None:  # fmt: skip
        self._live = live
        self._catalog = catalog
        self._runtime = runtime
        self._locks = locks
        self._life = life
        self._planning = planning
        self._ticker = ticker

    def succeed(self, new_id: int, old_id: int, indexes: Mapping[int, int], check: Check) -> None:
        """See `Coordinator.succeed`."""

        def settled() -> bool:
            return self._runtime.stopping or self._is_level(new_id, old_id, indexes)

        while not self._succeeded(new_id, old_id, indexes):
            with self._live.changed:
                self._live.changed.wait_until(settled, None, check)
        self._live.notify()

    def _succeeded(self, new_id: int, old_id: int, indexes: Mapping[int, int]) -> bool:
        """Change names, unless the new table is behind the old one. No lane commits meanwhile."""
        with self._life.statement():
            with self._locks.committing:
                with self._live.lock:
                    if not self._is_level(new_id, old_id, indexes):
                        return False
                (until,) = self._catalog.allocate_ids(1)
                edits = succession(self._catalog.state, new_id, old_id, indexes, until)
                paused = self._life.paused_as(indexes)
                fault_point("columns.commit.before")
                changed = self._transact(edits, paused)
                fault_point("columns.commit.after")
            self._define(changed)
            return True

    def _is_level(self, new_id: int, old_id: int, indexes: Mapping[int, int]) -> bool:
        """Whether nobody sees less who reads the new table and indexes from now on. The caller holds the lock.

        Raises `UndefinedTable` if one of them is gone, `StatementError` if the old table has been succeeded already or
        is paused, `JobFailed` if one that is new fails.
        """
        graph = self._live.graph
        for i in (new_id, old_id, *indexes, *indexes.values()):
            if i not in graph.jobs:
                raise UndefinedTable(f"relation {i} does not exist", hint="it was dropped meanwhile")
        old = graph.relations[old_id].record
        if is_former(old):
            raise StatementError(
                f'"{old.content.called}" has got columns by another statement meanwhile', sqlstate="55000",
                hint="try again, if there are more",
            )  # fmt: skip
        new = next((i for i in indexes_of(self._catalog.state, old_id) if i.id not in indexes.values()), None)
        if new is not None:
            raise StatementError(
                f'{new.in_words} was created on "{old.name}" while columns were added',
                sqlstate="55000",
                hint="try again",
            )
        if graph.jobs[old_id].paused:  # nobody has said so of the new one, which would go on under its name
            raise StatementError(
                f'"{old.name}" was paused while columns were added', sqlstate="55000", hint="resume it, and try again"
            )
        failing = next((graph.jobs[i] for i in (new_id, *indexes) if graph.jobs[i].error is not None), None)
        if failing is not None:
            raise job_failed(failing)
        reached = [newest(graph.exact(i)) for i in (new_id, *indexes)]
        shown = newest(graph.exact(old_id)) or 0
        return all(epoch is not None and epoch >= shown for epoch in reached)

    def share(self, source_id: int, origin: ObjectRecord, options: Mapping[str, str]) -> int:
        """See `Coordinator.share`."""
        with self._life.statement(), self._ticker.lock:
            source = self._catalog.state.objects.get(source_id)
            if source is None:
                raise UndefinedTable(f"source {source_id} does not exist")
            (first,) = self._catalog.allocate_ids(1)
            made = replace(origin, id=first)
            content = replace(source.content_as(SourceContent), origin=first)
            shared = replace(
                source, content=content, options={**options, SHARED_BY: str(first)},
                depends_on=(first, *(i for i in source.depends_on if i != first)),
            )  # fmt: skip
            text = f'the slot of "{source.name}" is one of several tables'
            self._transact([Put(made), Put(shared), AddEvent("source_altered", source_id, text)])
            self._ticker.forget(source_id)
            fault_point("columns.slot.after")
            return first

    def _transact(self, edits: Sequence[Edit], paused: Sequence[JobRecord] = ()) -> list[ObjectRecord]:
        """Make edits durable, and known in memory; the objects that are others from now on."""
        changed = [e.record for e in edits if isinstance(e, Put) and isinstance(e.record, ObjectRecord)]

        def happened(state: CatalogState) -> bool:
            return all(state.objects.get(o.id) == o for o in changed)

        def settle(state: CatalogState) -> None:
            if happened(state):
                take_up(self._live, changed)
                self._life.settle_jobs(paused, state)
                self._define(changed)

        self._life.undecided.transact([*edits, *map(Put, paused)], happened, settle)
        take_up(self._live, changed)
        self._life.take_up_jobs(paused)
        return changed

    def _define(self, changed: Sequence[ObjectRecord]) -> None:
        for record in changed:
            if record.content.in_graph:
                self._planning.define_altered(record)
