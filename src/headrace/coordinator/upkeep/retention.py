"""How far back a relation's history is needed: by readers, by views that have not taken it in, by what was promised."""

from __future__ import annotations

from collections.abc import Callable, Collection

from headrace.catalog.catalog import Catalog
from headrace.catalog.records import StateTableRecord
from headrace.common.clock import Clock
from headrace.common.epoch import TOLERATED_AHEAD_MS, epoch_ms, from_unix_ms
from headrace.config import Settings
from headrace.coordinator.decide.graph import Graph
from headrace.coordinator.decide.targets import safe_epoch
from headrace.coordinator.run.live_state import Job, LiveRelation
from headrace.coordinator.run.pins import Pins
from headrace.coordinator.subscriptions import kept_ms


class Retention:
    """Says up to where history may be merged away. It changes nothing; its callers hold the lock of the graph."""

    def __init__(
        self,
        graph: Graph[LiveRelation, Job],
        catalog: Catalog,
        pins: Pins,
        clock: Clock,
        settings: Callable[[], Settings],
    ) -> None:
        self._graph = graph
        self._catalog = catalog
        self._pins = pins
        self._clock = clock
        self._settings = settings

    def releasable(self, relation: LiveRelation, record: StateTableRecord, without: Collection[int] = ()) -> int:
        """The epoch below which nobody needs to see a relation's rows as they were, but for jobs `without`.

        The caller holds the lock.
        """
        kept = max(self._settings().retention_ms, kept_ms(self._catalog.image, relation.id))
        retention = self._before(kept)
        readers = self._graph.log_readers(relation.id, without)
        # What is committed and not yet complete is not read by anybody: below it, the table must stay readable.
        newest = min(record.committed_epoch, self._graph.complete)
        return safe_epoch(relation.safe, newest, retention, self._pins.epochs(relation.id), readers)

    def oldest_needed(self, relation: LiveRelation, without: Collection[int] = ()) -> int:
        """The epoch below which nobody needs the bindings and changes of a relation, but for jobs `without`.

        The caller holds the lock.
        """
        readers = self._graph.binding_readers(relation.id, without)
        return min([self._oldest_promised(), *self._pins.epochs(relation.id), *readers])

    def oldest_needed_of_all(self) -> dict[int, int]:
        """Return the same for every relation, with one look at each job and each pin. The caller holds the lock."""
        promised, read = self._oldest_promised(), self._graph.oldest_bindings()
        pinned_of_all, pinned = self._pins.oldest()
        least = promised if pinned_of_all is None else min(promised, pinned_of_all)
        return {i: min(least, read.get(i, least), pinned.get(i, least)) for i in self._graph.relations}

    def _oldest_promised(self) -> int:
        """Return the epoch down to which history is kept whoever reads."""
        return min(self._before(self._settings().retention_ms), self._graph.complete)

    def _before(self, kept_ms: int) -> int:
        """Return the epoch before which history is older than `kept_ms`, by the clock or by epochs far ahead of it.

        Where the clock was ahead once all epochs are: counted from its present time nothing would ever be old.
        """
        now_ms = max(self._clock.now_ms(), epoch_ms(self._graph.complete) - TOLERATED_AHEAD_MS)
        return from_unix_ms(max(now_ms - kept_ms, 0))
