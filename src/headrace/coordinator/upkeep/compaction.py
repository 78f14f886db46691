"""Maintenance of state tables: raising safe epochs, merging runs, dropping bindings nobody can read any more."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress

from headrace.catalog.edits import Delete, Edit, EditRejected, Put, RaiseSafe
from headrace.catalog.records import RunRecord, SourceRecord, StateTableRecord, run_id
from headrace.catalog.state import CatalogState
from headrace.common.faults import fault_point
from headrace.common.lazy_dataclass import dataclass
from headrace.coordinator.decide.targets import retry_delay_ms
from headrace.coordinator.run.application import Application
from headrace.coordinator.run.capacity import Capacity
from headrace.coordinator.run.guard import PiecesOfWork
from headrace.coordinator.run.live_state import LiveRelation, LiveState
from headrace.coordinator.run.locks import Locks
from headrace.coordinator.run.runtime import Runtime
from headrace.coordinator.run.storage import Storage
from headrace.coordinator.upkeep.retention import Retention
from headrace.errors import CorruptObject, HeadraceError, JobFailed, OutOfBudget
from headrace.state.merge import MergePart, MergeRunner, choose_compaction, first_levels, least_runs
from headrace.state.schema import RunRef
from headrace.state.watermark import expired_runs

MOST_REST_MS = 60_000
"""Most milliseconds for which a table is left alone after a merge that failed."""
KEPT_STALE = 100
"""Bindings of a relation that are kept though nobody needs them: more are deleted at one go."""
MERGE_BYTES = 64 << 20
"""What a merge in this process is taken to hold in memory, at most."""


@dataclass
class MergeCounts:
    """Merges since the server started; sizes and times are those of merges that were committed."""

    merges: int = 0
    failures: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class _Rest:
    """Until when a table is left alone after that many failed merges."""

    failures: int
    until_s: float


class Compactor:
    """One pass after another over all state tables, one at a time.

    Small merges happen in the calling thread. `merge_runner` does the parts of large ones, split by keys.
    """

    def __init__(
        self, live: LiveState, storage: Storage, runtime: Runtime, locks: Locks, application: Application,
        capacity: Capacity, retention: Retention, merge_runner: MergeRunner,
    ) -> None:  # fmt: skip
        self._live = live
        self._storage = storage
        self._runtime = runtime
        self._locks = locks
        self._application = application
        self._capacity = capacity
        self._retention = retention
        self._merge_runner = merge_runner
        self.merged: Callable[[int, list[RunRef], list[RunRef]], object] = lambda job_id, refs, made: None
        """Told of every merge that was committed: the job or table, its runs, and those in their place."""
        self._resting: dict[int, _Rest] = {}
        """The state tables whose last merge has failed."""
        self.counts = MergeCounts()
        """Changed under the lock of `live`."""

    def pass_once(self) -> int:
        """Merge what is due in every table and prune; returns the number of merges that were committed.

        A failure in one table keeps no other from its turn; the first one is raised in the end: `Fenced`,
        `StorageError`, `DiskFull`.
        """
        several = PiecesOfWork()
        merges = 0
        with several.one():
            merges = self.merge_due()
        with several.one():
            self.prune()
        several.end()
        return merges

    def merge_due(self, *, patient: bool = False) -> int:
        """Merge what is due; the same of it. With `patient` tables whose merges failed are left alone for a while."""
        with self._locks.raising:
            with self._storage.catalog.reading() as state:
                tables = [i for i, record in sorted(state.state_tables.items()) if self._may_be_due(state, record)]
                self._resting = {i: rest for i, rest in self._resting.items() if i in state.state_tables}
            several, merges = PiecesOfWork(), 0
            for table in tables:
                if self._runtime.stopping:
                    break
                if not (patient and self._rests(table)):
                    with several.one():
                        merges += self._compact(table)
        several.end()
        return merges

    def _rests(self, table_id: int) -> bool:
        rest = self._resting.get(table_id)
        return rest is not None and self._runtime.clock.monotonic_s() < rest.until_s

    def _compact(self, table_id: int) -> int:
        """The same for one table; notes whether it fails."""
        runtime = self._runtime
        failed = self.counts.failures
        try:
            return self.compact(table_id)
        except Exception as error:
            if not isinstance(error, HeadraceError):  # the others are counted already
                with self._live.lock:
                    self.counts.failures += 1
            raise
        finally:
            if self.counts.failures == failed:
                self._resting.pop(table_id, None)
            else:
                before = self._resting.get(table_id)
                times = 1 if before is None else before.failures + 1
                delay_ms = retry_delay_ms(times, runtime.settings.compaction_interval_ms, MOST_REST_MS, random.random())
                self._resting[table_id] = _Rest(times, runtime.clock.monotonic_s() + delay_ms / 1000)

    def _may_be_due(self, state: CatalogState, record: StateTableRecord) -> bool:
        """Whether it is worth while to look at the runs of a table: most have few, and none that expires."""
        least = least_runs(self._runtime.settings.compaction_trigger_runs)
        return record.watermark is not None or state.run_count(record.id) >= least

    def compact(self, table_id: int) -> int:
        """Merge what is due in one table."""
        settings = self._runtime.settings
        with self._storage.catalog.reading() as state:
            record = state.state_tables.get(table_id)
            if record is None or not record.to_table_schema().combinable:  # of a view that must be created again
                return 0
            refs = [r.ref for r in state.runs_of(table_id)]
        gone = expired_runs(refs, record.watermark)
        if gone and self._commit(record, gone, [], record.safe_epoch):
            refs = [ref for ref in refs if ref not in gone]
        # Above the checkpoint are parts of an epoch: they must not be mixed with what stays if it is given up.
        parts = [[r for r in refs if (r.epoch_hi > record.committed_epoch) == above] for above in (False, True)]
        groups = [g for p in parts for g in choose_compaction(p, fan_in=settings.compaction_trigger_runs)]
        if not groups:
            return 0
        safe = self.raise_safe(record)
        return sum(self._merge(record, first_levels(group, settings.compaction_fan_in), safe) for group in groups)

    def raise_safe(self, record: StateTableRecord) -> int:
        """The epoch up to which a table's history may be merged now; reads below it are refused from here on."""
        live = self._live
        with live.lock:
            relation = live.graph.relations.get(record.job_id)
            if relation is None or relation.state_table != record.id:
                return record.committed_epoch
            return self.raise_relation(relation, record)

    def raise_relation(self, relation: LiveRelation, record: StateTableRecord) -> int:
        """The same for a relation's rows, whose history has readers. The caller holds the lock."""
        relation.safe = self._retention.releasable(relation, record)
        return relation.safe

    def _merge(self, record: StateTableRecord, refs: list[RunRef], safe: int) -> int:
        runtime, storage = self._runtime, self._storage
        if self._application.suspended is not None and not self._is_small(refs):
            self._application.merge_waits = True
            return 0  # it is due until Spark is there
        name = f"{record.job_id}/m{record.id}-{uuid.uuid4().hex[:16]}"
        since_s = runtime.clock.monotonic_s()
        token = storage.pins.pin((), 0, {r.path for r in refs})
        try:
            with storage.pins.writing(name):
                whole = MergePart(
                    tuple(refs), record.to_table_schema(), storage.root, f"{name}.run", safe,
                    watermark=record.watermark, fsync=runtime.settings.run_fsync,
                )  # fmt: skip
                made = self._run(whole, name)
                fault_point("compaction.merge.after")
                committed = self._commit(record, refs, made, safe)
                if committed:
                    self.merged(record.job_id, refs, made)
                    self._count(refs, made, runtime.clock.monotonic_s() - since_s)
                    fault_point("compaction.commit.after")
                else:
                    for ref in made:
                        storage.store.delete(ref.path)
            return int(committed)
        except HeadraceError as error:
            with self._live.lock:
                self.counts.failures += 1
            # Reported by the readers that need the object; here it must only not spread. What parts of the merge have
            # written nothing refers to, so that it goes with vacuum.
            if isinstance(error, (CorruptObject, JobFailed, OutOfBudget)):
                return 0
            raise
        finally:
            storage.pins.unpin(token)

    def _count(self, refs: list[RunRef], made: list[RunRef], seconds: float) -> None:
        with self._live.lock:
            self.counts.merges += 1
            self.counts.bytes_read += sum(r.length for r in refs)
            self.counts.bytes_written += sum(r.length for r in made)
            self.counts.seconds += seconds

    def _is_small(self, refs: Sequence[RunRef]) -> bool:
        """Whether a merge is done in this process."""
        return sum(r.length for r in refs) < self._runtime.settings.compaction_spark_mb << 20

    def _run(self, whole: MergePart, name: str) -> list[RunRef]:
        """The new runs, with disjoint ranges of keys: one, or more if there is enough to do for several tasks."""
        runtime, capacity = self._runtime, self._capacity
        size = sum(r.length for r in whole.refs)
        share = runtime.settings.compaction_spark_mb << 20
        if self._is_small(whole.refs):
            with capacity.memory.reserving(min(size, MERGE_BYTES), lambda: runtime.stopping):
                made = [whole.run()]
        else:
            most = min(capacity.tasks_at_once, runtime.settings.compaction_max_tasks or capacity.tasks_at_once)
            parts = whole.split(name, min(most, 1 + size // max(share, 1)))
            made = self._merge_runner(parts)
        return [ref for ref in made if ref is not None]

    def _commit(self, record: StateTableRecord, refs: list[RunRef], made: list[RunRef], safe: int) -> bool:
        """Replace the runs; False if the table was dropped or its runs replaced meanwhile."""
        edits: list[Edit] = [Delete("run", run_id(ref)) for ref in refs]
        now = self._storage.catalog.state.state_tables.get(record.id)
        if now is not None and safe > now.safe_epoch:
            edits.append(RaiseSafe(record.id, safe))
        level = min(1 + sum(r.length for r in made).bit_length() // 3, 60)
        edits += [Put(RunRecord(ref, level, self._runtime.clock.now_ms())) for ref in made]
        try:
            self._storage.catalog.transact(edits)
        except EditRejected:
            return False
        return True

    def prune(self) -> None:
        """Forget changes that no reader asks for, and bindings below all that can be read.

        That a source cannot be read below is durable together with the deletion: nobody finds it empty there.
        """
        with self._locks.raising:
            self._prune()

    def _prune(self) -> None:
        storage, live = self._storage, self._live
        found: list[list[Edit]] = []
        with storage.catalog.reading() as state, live.lock:
            oldest = self._retention.oldest_needed_of_all()
            for relation in live.graph.relations.values():
                low = oldest[relation.id]
                relation.changes.prune(low)
                for epoch in [e for e in relation.rows_by_epoch if e <= low]:
                    del relation.rows_by_epoch[epoch]
                stale = state.stale_remaps(relation.id, low) if relation.external or relation.writable else ()
                if len(stale) > KEPT_STALE:
                    edits: list[Edit] = [Delete("remap", r.key) for r in stale]
                    if relation.external:
                        known = state.sources.get(relation.id)
                        # At once, and before anybody else can pin an epoch below.
                        relation.safe = max(relation.safe, low, 0 if known is None else known.safe_epoch)
                        edits.append(Put(SourceRecord(relation.id, relation.safe)))
                    found.append(edits)
        for edits in found:  # one after the other: what is refused of one keeps no other from being pruned
            with suppress(EditRejected):
                storage.catalog.transact(edits)
