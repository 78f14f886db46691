"""The catalog's content in memory: typed mappings with the look-ups that the rest of headrace needs."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from headrace.catalog.records import (
    Collection,
    EventRecord,
    JobRecord,
    Key,
    ObjectRecord,
    PositionRecord,
    Record,
    RemapRecord,
    RunRecord,
    SettingRecord,
    StateTableRecord,
)

LAST_EPOCH = "last_epoch"
"""Config key: the newest epoch that any record has ever named."""


@dataclass(frozen=True, slots=True)
class Change:
    """What one transaction does to the catalog: checked, complete, each key at most once."""

    puts: tuple[Record, ...]
    deletes: tuple[tuple[Collection, Key], ...]
    config: Mapping[str, int]

    @property
    def empty(self) -> bool:
        """Whether it changes nothing."""
        return not (self.puts or self.deletes or self.config)


def _epoch_of(remap: RemapRecord) -> int:
    return remap.epoch


def _load_order(record: Record) -> tuple[int, int]:
    if isinstance(record, RemapRecord):
        return record.key
    return (record.sequence, 0) if isinstance(record, EventRecord) else (0, 0)


class _Index:
    """Key sets by a secondary key; an entry without keys takes no room."""

    __slots__ = ("_sets",)

    def __init__(self) -> None:
        self._sets: dict[Any, dict[Any, None]] = {}

    def add(self, group: Any, key: Any) -> None:
        self._sets.setdefault(group, {})[key] = None

    def discard(self, group: Any, key: Any) -> None:
        members = self._sets.get(group)
        if members is not None:
            members.pop(key, None)
            if not members:
                del self._sets[group]

    def of(self, group: Any) -> tuple[Any, ...]:
        return tuple(self._sets.get(group, ()))


class CatalogState:
    """An image of the catalog, changed in place by `apply`.

    Look-ups return immutable values. Look-ups that belong together, and iterations over the mappings, go
    inside `Catalog.reading()` when other threads may commit meanwhile.
    """

    def __init__(self, records: Iterable[Record] = (), config: Mapping[str, int] | None = None) -> None:
        self._data: dict[str, dict[Any, Any]] = {
            name: {} for name in ("object", "job", "state_table", "run", "position", "setting", "event")
        }
        self._config: dict[str, int] = dict(config or {})
        self._names: dict[tuple[str, str], int] = {}
        self._dependents, self._groups, self._job_tables = _Index(), _Index(), _Index()
        self._table_runs, self._job_positions, self._readers = _Index(), _Index(), _Index()
        self._remaps: defaultdict[int, list[RemapRecord]] = defaultdict(list)
        for record in sorted(records, key=_load_order):
            self._put(record)

    # ---- mappings

    @property
    def objects(self) -> Mapping[int, ObjectRecord]:
        """Id -> object."""
        return MappingProxyType(self._data["object"])

    @property
    def jobs(self) -> Mapping[int, JobRecord]:
        """Id -> job."""
        return MappingProxyType(self._data["job"])

    @property
    def state_tables(self) -> Mapping[int, StateTableRecord]:
        """Id -> state table."""
        return MappingProxyType(self._data["state_table"])

    @property
    def runs(self) -> Mapping[str, RunRecord]:
        """`path:offset` -> run."""
        return MappingProxyType(self._data["run"])

    @property
    def positions(self) -> Mapping[tuple[int, int], PositionRecord]:
        """(Job, upstream) -> log position."""
        return MappingProxyType(self._data["position"])

    @property
    def settings(self) -> Mapping[str, SettingRecord]:
        """Name -> system parameter set by SQL."""
        return MappingProxyType(self._data["setting"])

    @property
    def events(self) -> Mapping[int, EventRecord]:
        """Sequence -> event, oldest first."""
        return MappingProxyType(self._data["event"])

    @property
    def config(self) -> Mapping[str, int]:
        """The config collection as of the last commit of this handle."""
        return MappingProxyType(self._config)

    def get(self, collection: Collection, key: Key) -> Record | None:
        """The record under a key of any collection."""
        if collection == "remap":
            assert isinstance(key, tuple)
            return self.remap(*key)
        found: Record | None = self._data[collection].get(key)
        return found

    def records(self) -> Iterator[Record]:
        """Every record, collection by collection."""
        for members in self._data.values():
            yield from members.values()
        for bindings in self._remaps.values():
            yield from bindings

    # ---- objects and jobs

    def object_named(self, schema: str, name: str) -> ObjectRecord | None:
        """The object of that name; a schema is found under ("", its name)."""
        found = self._names.get((schema, name))
        return None if found is None else self.objects.get(found)

    def objects_of(self, *kinds: str) -> tuple[ObjectRecord, ...]:
        """All objects of these kinds, by id."""
        return tuple(sorted((o for o in self.objects.values() if o.kind in kinds), key=lambda o: o.id))

    def dependents(self, object_id: int) -> tuple[int, ...]:
        """Ids of the objects built directly on this one, ascending."""
        return tuple(sorted(self._dependents.of(object_id)))

    def jobs_in(self, group: str) -> tuple[JobRecord, ...]:
        """The jobs of a checkpoint group, by id."""
        return tuple(self.jobs[i] for i in sorted(self._groups.of(group)))

    # ---- versions

    def tables_of(self, job_id: int) -> tuple[StateTableRecord, ...]:
        """The state tables of a job, by id."""
        return tuple(self.state_tables[i] for i in sorted(self._job_tables.of(job_id)))

    def runs_of(self, table_id: int) -> tuple[RunRecord, ...]:
        """The runs that make up a table's version, by level, then by epoch."""
        runs = [self.runs[i] for i in self._table_runs.of(table_id)]
        return tuple(sorted(runs, key=lambda r: (r.level, r.ref.epoch_lo, r.ref.epoch_hi, r.id)))

    def run_count(self, table_id: int) -> int:
        """How many runs a table's version has."""
        return len(self._table_runs.of(table_id))

    # ---- remaps

    def remap(self, source_id: int, epoch: int) -> RemapRecord | None:
        """The binding made at exactly this epoch."""
        found = self.offsets_at(source_id, epoch)
        return found if found is not None and found.epoch == epoch else None

    def offsets_at(self, source_id: int, epoch: int) -> RemapRecord | None:
        """The newest binding at or below an epoch: what the source holds at it."""
        bindings = self._remaps.get(source_id, [])
        at = bisect_right(bindings, epoch, key=_epoch_of)
        return bindings[at - 1] if at else None

    def remaps_in(self, source_id: int, from_exclusive: int, to_inclusive: int) -> tuple[RemapRecord, ...]:
        """The bindings made in a range of epochs, ascending."""
        bindings = self._remaps.get(source_id, [])
        low = bisect_right(bindings, from_exclusive, key=_epoch_of)
        return tuple(bindings[low : bisect_right(bindings, to_inclusive, key=_epoch_of)])

    def newest_remap(self, source_id: int) -> RemapRecord | None:
        """The source's last binding."""
        bindings = self._remaps.get(source_id)
        return bindings[-1] if bindings else None

    def changes_in(self, source_id: int, from_exclusive: int, to_inclusive: int) -> bool:
        """Whether offsets or watermark move anywhere in a range of epochs.

        A binding without a known predecessor counts as a move.
        """
        before = self.offsets_at(source_id, from_exclusive)
        for binding in self.remaps_in(source_id, from_exclusive, to_inclusive):
            if before is None or (binding.offsets, binding.watermark_us) != (before.offsets, before.watermark_us):
                return True
            before = binding
        return False

    def stale_remaps(self, source_id: int, epoch: int) -> tuple[RemapRecord, ...]:
        """The bindings that no read at or above an epoch needs: all below the one valid at it."""
        bindings = self._remaps.get(source_id, [])
        return tuple(bindings[: max(bisect_right(bindings, epoch, key=_epoch_of) - 1, 0)])

    def all_remaps(self, source_id: int) -> tuple[RemapRecord, ...]:
        """Every binding of a source, ascending."""
        return tuple(self._remaps.get(source_id, ()))

    # ---- positions, events, epochs

    def position(self, job_id: int, upstream_id: int) -> PositionRecord | None:
        """How far a job has read one upstream."""
        return self.positions.get((job_id, upstream_id))

    def positions_of(self, job_id: int) -> tuple[PositionRecord, ...]:
        """A job's positions in its upstreams' logs, by upstream."""
        return tuple(self.positions[k] for k in sorted(self._job_positions.of(job_id)))

    def readers_of(self, upstream_id: int) -> tuple[PositionRecord, ...]:
        """The positions of all jobs that read a relation's log, by job."""
        return tuple(self.positions[k] for k in sorted(self._readers.of(upstream_id)))

    def newest_events(self, limit: int) -> tuple[EventRecord, ...]:
        """The last events, newest first."""
        found: list[EventRecord] = []
        for sequence in reversed(self._data["event"]):
            if len(found) >= limit:
                break
            found.append(self._data["event"][sequence])
        return tuple(found)

    @property
    def last_epoch(self) -> int:
        """The newest epoch that any record has ever named; where an `EpochAllocator` starts."""
        return self._config.get(LAST_EPOCH, 0)

    # ---- changes

    def apply(self, change: Change) -> None:
        """Take in a committed change."""
        for collection, key in change.deletes:
            self._delete(collection, key)
        for record in change.puts:
            self._put(record)
        self._config.update(change.config)

    def _put(self, record: Record) -> None:
        if isinstance(record, RemapRecord):
            self._delete("remap", record.key)
            bindings = self._remaps[record.source_id]
            bindings.insert(bisect_left(bindings, record.epoch, key=_epoch_of), record)
            return
        members = self._data[record.COLLECTION]
        old = members.get(record.key)
        if old is not None:
            self._unlink(old)
        members[record.key] = record
        self._link(record)

    def _delete(self, collection: Collection, key: Key) -> None:
        if collection == "remap":
            assert isinstance(key, tuple)
            bindings = self._remaps.get(key[0], [])
            at = bisect_left(bindings, key[1], key=_epoch_of)
            if at < len(bindings) and bindings[at].epoch == key[1]:
                del bindings[at]
                if not bindings:
                    del self._remaps[key[0]]
            return
        old = self._data[collection].pop(key, None)
        if old is not None:
            self._unlink(old)

    def _link(self, record: Record) -> None:
        if isinstance(record, ObjectRecord):
            self._names[record.schema, record.name] = record.id
        for index, group in self._entries(record):
            index.add(group, record.key)

    def _unlink(self, record: Record) -> None:
        if isinstance(record, ObjectRecord) and self._names.get((record.schema, record.name)) == record.id:
            del self._names[record.schema, record.name]
        for index, group in self._entries(record):
            index.discard(group, record.key)

    def _entries(self, record: Record) -> Iterator[tuple[_Index, Any]]:
        if isinstance(record, ObjectRecord):
            for upstream in record.depends_on:
                yield self._dependents, upstream
        elif isinstance(record, JobRecord):
            yield self._groups, record.group
        elif isinstance(record, StateTableRecord):
            yield self._job_tables, record.job_id
        elif isinstance(record, RunRecord):
            yield self._table_runs, record.ref.table_id
        elif isinstance(record, PositionRecord):
            yield self._job_positions, record.job_id
            yield self._readers, record.upstream_id
