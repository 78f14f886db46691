"""The catalog's content in memory: typed mappings with the look-ups that the rest of headrace needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from itertools import islice
from types import MappingProxyType
from typing import Any

from headrace.catalog.bindings import Wholes, needed, shortened
from headrace.catalog.contents import Content
from headrace.catalog.frozen import FrozenMap, MapDraft, Timeline
from headrace.catalog.records import (
    Collection,
    EventRecord,
    JobRecord,
    Key,
    LeavingRecord,
    ObjectRecord,
    PositionRecord,
    Record,
    RemapRecord,
    RunRecord,
    SettingRecord,
    SourceRecord,
    StateTableRecord,
)
from headrace.common.lazy_dataclass import dataclass

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


def _sequence_of(event: EventRecord) -> int:
    return event.sequence


def _load_order(record: Record) -> tuple[int, int]:
    """Bindings and events, which are kept in order, in that order: the text keys of the store are in another."""
    if isinstance(record, RemapRecord):
        return record.key
    return (record.sequence, 0) if isinstance(record, EventRecord) else (0, 0)


_COLLECTIONS = ("object", "job", "state_table", "run", "position", "setting", "source", "leaving")
_INDEXES = ("dependents", "groups", "job_tables", "table_runs", "job_positions", "readers")
"""Secondary look-ups: from a key of the kind to the records that have it, by their own keys."""


class CatalogState:
    """An image of the catalog. Who owns it changes it by `apply`; all others get a `snapshot`, which never changes.

    Look-ups return immutable values, so that a snapshot may be searched by any thread for any time, without a lock.
    """

    def __init__(self, records: Iterable[Record] = (), config: Mapping[str, int] | None = None) -> None:
        self._maps: dict[str, FrozenMap[Any, Any]] = {
            name: FrozenMap() for name in (*_COLLECTIONS, *_INDEXES, "names", "remaps")
        }
        self._events: Timeline[EventRecord] = Timeline(_sequence_of)
        self._config: dict[str, int] = {}
        self._wholes = Wholes()
        """Shared by all snapshots: a binding never changes."""
        self._still = False
        self.apply(Change(tuple(sorted(records, key=_load_order)), (), config or {}))

    def snapshot(self) -> CatalogState:
        """The content as it is now, for ever. Takes no time: nothing is copied."""
        made = copy(self)
        made._still = True
        return made

    # ---- mappings

    @property
    def objects(self) -> Mapping[int, ObjectRecord]:
        """Id -> object."""
        return self._maps["object"]

    @property
    def jobs(self) -> Mapping[int, JobRecord]:
        """Id -> job."""
        return self._maps["job"]

    @property
    def state_tables(self) -> Mapping[int, StateTableRecord]:
        """Id -> state table."""
        return self._maps["state_table"]

    @property
    def runs(self) -> Mapping[str, RunRecord]:
        """`path:offset` -> run."""
        return self._maps["run"]

    @property
    def positions(self) -> Mapping[tuple[int, int], PositionRecord]:
        """(Job, upstream) -> log position."""
        return self._maps["position"]

    @property
    def settings(self) -> Mapping[str, SettingRecord]:
        """Name -> system parameter set by SQL."""
        return self._maps["setting"]

    @property
    def sources(self) -> Mapping[int, SourceRecord]:
        """Id -> what is known of a source of which bindings have been deleted."""
        return self._maps["source"]

    @property
    def leaving(self) -> Mapping[int, LeavingRecord]:
        """Id -> source that has been dropped and has not let go yet of what it holds where it reads."""
        return self._maps["leaving"]

    @property
    def events(self) -> Mapping[int, EventRecord]:
        """Sequence -> event, oldest first."""
        return MappingProxyType({e.sequence: e for e in self._events})

    @property
    def config(self) -> Mapping[str, int]:
        """The config collection as of the last commit of this handle."""
        return MappingProxyType(self._config)

    def get(self, collection: Collection, key: Key) -> Record | None:
        """The record under a key of any collection, as stored."""
        if collection == "remap":
            assert isinstance(key, tuple)
            binding = self._bindings(key[0]).up_to(key[1])
            return binding if binding is not None and binding.epoch == key[1] else None
        if collection == "event":
            assert isinstance(key, int)
            event = self._events.up_to(key)
            return event if event is not None and event.sequence == key else None
        found: Record | None = self._maps[collection].get(key)
        return found

    def records(self) -> Iterator[Record]:
        """Every record, collection by collection."""
        for name in _COLLECTIONS:
            yield from self._maps[name].values()
        for bindings in self._maps["remaps"].values():
            yield from bindings
        yield from self._events

    # ---- objects and jobs

    def object_named(self, schema: str, name: str) -> ObjectRecord | None:
        """The object of that name; a schema is found under ("", its name)."""
        found = self._maps["names"].get((schema, name))
        return None if found is None else self.objects.get(found)

    def objects_of(self, *kinds: type[Content]) -> tuple[ObjectRecord, ...]:
        """All objects with contents of these kinds, by id."""
        return tuple(sorted((o for o in self.objects.values() if isinstance(o.content, kinds)), key=lambda o: o.id))

    def dependents(self, object_id: int) -> tuple[int, ...]:
        """Ids of the objects built directly on this one, ascending."""
        return tuple(sorted(self._of("dependents", object_id)))

    def jobs_in(self, group: str) -> tuple[JobRecord, ...]:
        """The jobs of a checkpoint group, by id."""
        return _by_key(self._of("groups", group))

    # ---- versions

    def tables_of(self, job_id: int) -> tuple[StateTableRecord, ...]:
        """The state tables of a job, by id."""
        return _by_key(self._of("job_tables", job_id))

    def runs_of(self, table_id: int) -> tuple[RunRecord, ...]:
        """The runs that make up a table's version, by level, then by epoch."""
        runs = self._of("table_runs", table_id).values()
        return tuple(sorted(runs, key=_by_level_and_epoch))

    def members(self, table_id: int) -> object:
        """Stands for a table's version: the same thing in two snapshots if the table has the same runs in both."""
        return self._of("table_runs", table_id)

    def run_count(self, table_id: int) -> int:
        """How many runs a table's version has."""
        return len(self._of("table_runs", table_id))

    # ---- remaps

    def remap(self, source_id: int, epoch: int) -> RemapRecord | None:
        """The binding made at exactly this epoch."""
        found = self.offsets_at(source_id, epoch)
        return found if found is not None and found.epoch == epoch else None

    def offsets_at(self, source_id: int, epoch: int) -> RemapRecord | None:
        """The newest binding at or below an epoch: what the source holds at it."""
        bindings = self._bindings(source_id)
        found = bindings.up_to(epoch)
        return None if found is None else self._wholes.of(bindings, found)

    def remaps_in(self, source_id: int, from_exclusive: int, to_inclusive: int) -> tuple[RemapRecord, ...]:
        """The bindings made in a range of epochs, ascending, as stored: `offsets_at` tells all of their offsets."""
        return self._bindings(source_id).between(from_exclusive, to_inclusive)

    def newest_remap(self, source_id: int) -> RemapRecord | None:
        """The source's last binding."""
        bindings = self._bindings(source_id)
        return None if bindings.last is None else self._wholes.of(bindings, bindings.last)

    def changes_in(self, source_id: int, from_exclusive: int, to_inclusive: int) -> bool:
        """Whether offsets or watermark move anywhere in a range of epochs.

        A binding without a known predecessor counts as a move.
        """
        bindings = self._bindings(source_id)
        before = bindings.up_to(from_exclusive)
        for binding in self.remaps_in(source_id, from_exclusive, to_inclusive):
            if before is None or binding.watermark_us != before.watermark_us:
                return True
            if binding.base == before.epoch:
                if binding.offsets or binding.gone:
                    return True
            elif self._wholes.of(bindings, binding).offsets != self._wholes.of(bindings, before).offsets:
                return True
            before = binding
        return False

    def stale_remaps(self, source_id: int, epoch: int) -> tuple[RemapRecord, ...]:
        """The bindings, as stored, that no read at or above an epoch needs: the one valid at it is not made of them."""
        bindings = self._bindings(source_id)
        return bindings.before(needed(bindings, epoch))

    def all_remaps(self, source_id: int) -> tuple[RemapRecord, ...]:
        """Every binding of a source as stored, ascending."""
        return tuple(self._bindings(source_id))

    def shortened(self, binding: RemapRecord) -> RemapRecord:
        """How a new binding is to be stored: as the change from the newest, if that says less."""
        bindings = self._bindings(binding.source_id)
        last = bindings.last
        return binding if last is None else shortened(self._wholes.of(bindings, last), last.chained, binding)

    def _bindings(self, source_id: int) -> Timeline[RemapRecord]:
        found: Timeline[RemapRecord] = self._maps["remaps"].get(source_id, _UNBOUND)
        return found

    def _of(self, index: str, group: Any) -> Mapping[Any, Any]:
        found: Mapping[object, object] = self._maps[index].get(group, _NOTHING)
        return found

    # ---- positions, events, epochs

    def position(self, job_id: int, upstream_id: int) -> PositionRecord | None:
        """How far a job has read one upstream."""
        return self.positions.get((job_id, upstream_id))

    def positions_of(self, job_id: int) -> tuple[PositionRecord, ...]:
        """A job's positions in its upstreams' logs, by upstream."""
        return _by_key(self._of("job_positions", job_id))

    def readers_of(self, upstream_id: int) -> tuple[PositionRecord, ...]:
        """The positions of all jobs that read a relation's log, by job."""
        return _by_key(self._of("readers", upstream_id))

    def newest_events(self, limit: int) -> tuple[EventRecord, ...]:
        """The last events, newest first."""
        return tuple(islice(reversed(self._events), limit))

    def oldest_events(self, limit: int) -> tuple[EventRecord, ...]:
        """The first events that are kept, oldest first."""
        return tuple(islice(self._events, limit))

    @property
    def event_count(self) -> int:
        """How many events are kept."""
        return len(self._events)

    @property
    def last_epoch(self) -> int:
        """The newest epoch that any record has ever named; where an `EpochAllocator` starts."""
        return self._config.get(LAST_EPOCH, 0)

    # ---- changes

    def apply(self, change: Change) -> None:
        """Take in a committed change. Raises `RuntimeError` for a snapshot."""
        if self._still:
            raise RuntimeError("a snapshot of the catalog does not change")
        draft = _Draft(self._maps, self._events)
        for collection, key in change.deletes:
            draft.delete(collection, key)
        for record in change.puts:
            draft.put(record)
        self._maps, self._events = draft.done()
        self._config = {**self._config, **change.config}


class _Draft:
    """A content on its way from one version to the next."""

    def __init__(self, maps: Mapping[str, FrozenMap[object, object]], events: Timeline[EventRecord]) -> None:
        self._maps = maps
        self._drafts: dict[str, MapDraft[object, object]] = {}
        self._own: dict[tuple[str, object], dict[object, object]] = {}
        """Entries of indexes that are new: (index, group) -> records by key."""
        self._events = events

    def done(self) -> tuple[dict[str, FrozenMap[object, object]], Timeline[EventRecord]]:
        for (index, group), members in self._own.items():
            if members:
                self._of(index).put(group, members)
            else:
                self._of(index).pop(group)
        return {**self._maps, **{name: d.frozen() for name, d in self._drafts.items()}}, self._events

    def put(self, record: Record) -> None:
        if isinstance(record, EventRecord):
            self._events = self._events.having(record)
        elif isinstance(record, RemapRecord):
            bindings = self._of("remaps").get(record.source_id) or Timeline(_epoch_of)
            self._of("remaps").put(record.source_id, bindings.having(record))
        else:
            self._remove(record.COLLECTION, record.key)
            self._of(record.COLLECTION).put(record.key, record)
            if isinstance(record, ObjectRecord):
                self._of("names").put((record.schema, record.name), record.id)
            for index, group in _entries(record):
                self._members(index, group)[record.key] = record

    def delete(self, collection: Collection, key: Key) -> None:
        if collection == "event":
            assert isinstance(key, int)
            self._events = self._events.without(key)
        elif collection == "remap":
            assert isinstance(key, tuple)
            self._unbind(*key)
        else:
            self._remove(collection, key)

    def _unbind(self, source_id: int, epoch: int) -> None:
        bindings = self._of("remaps").get(source_id)
        if bindings is not None:
            left = bindings.without(epoch)
            if left:
                self._of("remaps").put(source_id, left)
            else:
                self._of("remaps").pop(source_id)

    def _remove(self, collection: Collection, key: Key) -> None:
        old = self._of(collection).pop(key)
        if old is None:
            return
        if isinstance(old, ObjectRecord) and self._of("names").get((old.schema, old.name)) == old.id:
            self._of("names").pop((old.schema, old.name))
        for index, group in _entries(old):
            self._members(index, group).pop(key, None)

    def _of(self, name: str) -> MapDraft[Any, Any]:
        draft = self._drafts.get(name)
        if draft is None:
            draft = self._drafts[name] = self._maps[name].draft()
        return draft

    def _members(self, index: str, group: object) -> dict[object, object]:
        members = self._own.get((index, group))
        if members is None:
            members = self._own[index, group] = dict(self._maps[index].get(group, _NOTHING))
        return members


def _by_level_and_epoch(record: RunRecord) -> tuple[object, ...]:
    ref = record.ref
    return record.level, ref.epoch_lo, ref.epoch_hi, ref.path, ref.offset


_UNBOUND: Timeline[RemapRecord] = Timeline(_epoch_of)
_NOTHING: Mapping[object, object] = MappingProxyType({})


def _by_key(members: Mapping[Any, Any]) -> tuple[Any, ...]:
    return tuple(members[key] for key in sorted(members))


def _entries(record: Record) -> Iterator[tuple[str, object]]:
    """The indexes in which a record is found, and under what."""
    if isinstance(record, ObjectRecord):
        for upstream in record.depends_on:
            yield "dependents", upstream
    elif isinstance(record, JobRecord):
        yield "groups", record.group
    elif isinstance(record, StateTableRecord):
        yield "job_tables", record.job_id
    elif isinstance(record, RunRecord):
        yield "table_runs", record.ref.table_id
    elif isinstance(record, PositionRecord):
        yield "job_positions", record.job_id
        yield "readers", record.upstream_id
