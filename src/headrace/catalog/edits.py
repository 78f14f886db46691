"""Edits and the rules they must keep: pure decisions, taken against the in-memory image before anything is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Final, TypeAlias

from headrace.catalog.records import (
    RECORD_TYPES,
    Collection,
    EventRecord,
    JobRecord,
    Key,
    ObjectRecord,
    PositionRecord,
    Record,
    RemapRecord,
    RunRecord,
    SourceRecord,
    StateTableRecord,
    key_text,
)
from headrace.catalog.state import LAST_EPOCH, CatalogState, Change
from headrace.common.lazy_dataclass import dataclass
from headrace.errors import TransactionError

MAX_EVENTS: Final = 10_000
"""Events kept; adding one more drops the oldest."""
FORMAT_VERSION_KEY: Final = "format_version"
"""Config key: the version of the stored data's format."""
FENCING_KEY: Final = "fencing_token"
"""Config key: the token of the newest opener."""
SEQUENCE_KEY: Final = "sequence"
"""Config key: how many transactions have committed."""
NEXT_ID_KEY: Final = "next_id"
"""Config key: the first id that `Catalog.allocate_ids` has not given out."""
TOMBSTONE_KEY: Final = "tombstone"
"""Config key: 1 where the catalog has moved away from, so that what is left is not the truth."""
DATABASE_KEY: Final = "database_id"
"""Config key: tells databases apart, wherever their catalogs are."""
GENERATION_KEY: Final = "deploy_generation"
"""Config key: the deploy generation of the newest opener; who has a lower one does not open. Absent: 0."""
RESERVED_CONFIG: Final = frozenset(
    {
        FORMAT_VERSION_KEY, FENCING_KEY, SEQUENCE_KEY, NEXT_ID_KEY, LAST_EPOCH, TOMBSTONE_KEY, DATABASE_KEY,
        GENERATION_KEY,
    }
)  # fmt: skip
"""Config keys that the catalog itself writes."""
_MAX_CONFIG: Final = (1 << 64) - 1


class EditRejected(TransactionError):
    """The transaction breaks a rule of the catalog: nothing of it is written."""


@dataclass(frozen=True, slots=True)
class Put:
    """Creates a record, or replaces the one of the same key."""

    record: Record


@dataclass(frozen=True, slots=True)
class Delete:
    """Removes a record and what belongs to it. The record must exist.

    An object takes its job and bindings with it, a job its state tables and positions, a state table its runs.
    """

    collection: Collection
    key: Key


@dataclass(frozen=True, slots=True)
class CommitTable:
    """Move a state table's committed epoch forward, and its safe epoch and its watermark if given."""

    table_id: int
    epoch: int
    safe_epoch: int | None = None
    watermark: int | None = None


@dataclass(frozen=True, slots=True)
class RaiseSafe:
    """Move a state table's safe epoch forward; moving it to where it is changes nothing."""

    table_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class RaiseWatermark:
    """Let the rows of a state table expire whose event time, Unix microseconds, lies below the watermark."""

    table_id: int
    watermark: int


@dataclass(frozen=True, slots=True)
class AdvanceJob:
    """Move a job's committed epoch and frontier forward; `exact` replaces its exact ranges if given."""

    job_id: int
    committed_epoch: int
    frontier: int
    exact: tuple[tuple[int, int], ...] | None = None


@dataclass(frozen=True, slots=True)
class CarryAlong:
    """Move a job in which nothing has changed, and its state tables, forward to an epoch.

    One that is there already, or beyond, is left as it is. `exact` replaces the job's exact ranges if given.
    """

    job_id: int
    epoch: int
    exact: tuple[tuple[int, int], ...] | None = None


@dataclass(frozen=True, slots=True)
class SettleRun:
    """Let go of the copy of a run's object: it is durable by itself. A run that is gone stays gone."""

    run_id: str


@dataclass(frozen=True, slots=True)
class AddEvent:
    """Append to the audit and recovery history; the catalog numbers and dates it."""

    kind: str
    object_id: int | None
    message: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class SetConfig:
    """Set a config entry, an unsigned 64-bit number; booleans are 0 and 1."""

    key: str
    value: int


Edit: TypeAlias = (
    Put | Delete | SettleRun | CommitTable | RaiseSafe | RaiseWatermark | AdvanceJob | CarryAlong | AddEvent | SetConfig
)
"""One edit of a transaction."""


def plan_change(state: CatalogState, edits: Iterable[Edit], now_ms: int) -> Change:
    """What a transaction of these edits does to `state`; raises `EditRejected` when any edit breaks a rule."""
    return _Planner(state, now_ms).plan(edits)


@dataclass
class _Planner:
    state: CatalogState
    now_ms: int
    touched: dict[tuple[Collection, Key], Record | None] = field(default_factory=dict)
    config: dict[str, int] = field(default_factory=dict)
    events: list[AddEvent] = field(default_factory=list)

    def plan(self, edits: Iterable[Edit]) -> Change:
        for edit in edits:
            self._take(edit)
        self._cascade()
        for (collection, key), record in self.touched.items():
            if record is not None:
                self._check_record(record, self.state.get(collection, key))
            elif collection == "object":
                self._check_unused(key)
        self._shorten()
        self._add_events()
        self._note_epochs()
        puts = tuple(record for record in self.touched.values() if record is not None)
        deletes = tuple(target for target, record in self.touched.items() if record is None)
        return Change(puts, deletes, self.config)

    # ---- taking edits in

    def _take(self, edit: Edit) -> None:
        if isinstance(edit, Put):
            self._put(edit.record)
        elif isinstance(edit, Delete):
            self._delete(edit)
        elif isinstance(edit, CommitTable):
            self._commit_table(edit)
        elif isinstance(edit, RaiseSafe):
            self._touch_table(edit.table_id, {"safe_epoch": edit.epoch})
        elif isinstance(edit, RaiseWatermark):
            self._touch_table(edit.table_id, {"watermark": edit.watermark})
        elif isinstance(edit, AdvanceJob):
            self._advance_job(edit)
        elif isinstance(edit, CarryAlong):
            self._carry_along(edit)
        elif isinstance(edit, SettleRun):
            self._settle_run(edit)
        elif isinstance(edit, AddEvent):
            self.events.append(edit)
        else:
            self._set_config(edit)

    def _put(self, record: Record) -> None:
        if isinstance(record, EventRecord):
            raise EditRejected("events are appended with AddEvent")
        self._touch(record.COLLECTION, record.key, record)

    def _delete(self, edit: Delete) -> None:
        if edit.collection not in RECORD_TYPES or self.state.get(edit.collection, edit.key) is None:
            raise EditRejected(f"there is no {edit.collection} {key_text(edit.key)} to delete")
        self._touch(edit.collection, edit.key, None)

    def _commit_table(self, edit: CommitTable) -> None:
        table = self._known_table(edit.table_id)
        if edit.epoch <= table.committed_epoch:
            raise EditRejected(
                f"state table {edit.table_id} is committed at epoch {table.committed_epoch}, cannot commit {edit.epoch}"
            )
        moved = {"committed_epoch": edit.epoch}
        if edit.safe_epoch is not None:
            moved["safe_epoch"] = edit.safe_epoch
        if edit.watermark is not None:
            moved["watermark"] = edit.watermark
        self._touch_table(edit.table_id, moved)

    def _touch_table(self, table_id: int, moved: Mapping[str, int]) -> None:
        self._touch("state_table", table_id, replace(self._known_table(table_id), **moved))  # type: ignore[arg-type]

    def _known_table(self, table_id: int) -> StateTableRecord:
        table = self.state.state_tables.get(table_id)
        if table is None:
            raise EditRejected(f"there is no state table {table_id}")
        return table

    def _advance_job(self, edit: AdvanceJob) -> None:
        job = self.state.jobs.get(edit.job_id)
        if job is None:
            raise EditRejected(f"there is no job {edit.job_id}")
        exact = job.exact if edit.exact is None else edit.exact
        moved = replace(job, committed_epoch=edit.committed_epoch, frontier=edit.frontier, exact=exact)
        self._touch("job", edit.job_id, moved)

    def _carry_along(self, edit: CarryAlong) -> None:
        job = self.state.jobs.get(edit.job_id)
        if job is None:
            raise EditRejected(f"there is no job {edit.job_id}")
        if job.committed_epoch >= edit.epoch:
            return
        self._advance_job(AdvanceJob(job.id, edit.epoch, max(job.frontier, edit.epoch), edit.exact))
        for table in self.state.tables_of(job.id):
            if table.committed_epoch < edit.epoch:
                self._touch_table(table.id, {"committed_epoch": edit.epoch})

    def _settle_run(self, edit: SettleRun) -> None:
        run = self.state.runs.get(edit.run_id)
        if run is not None and run.content_b64 is not None:
            self._touch("run", edit.run_id, replace(run, content_b64=None))

    def _set_config(self, edit: SetConfig) -> None:
        if edit.key in RESERVED_CONFIG:
            raise EditRejected(f'config entry "{edit.key}" belongs to the catalog')
        if not 0 <= edit.value <= _MAX_CONFIG:
            raise EditRejected(f'config entry "{edit.key}" is an unsigned 64-bit number, not {edit.value}')
        if edit.key in self.config:
            raise EditRejected(f'config entry "{edit.key}" is named twice in one transaction')
        self.config[edit.key] = edit.value

    def _touch(self, collection: Collection, key: Key, record: Record | None) -> None:
        if (collection, key) in self.touched:
            raise EditRejected(f"{collection} {key_text(key)} is named twice in one transaction")
        self.touched[collection, key] = record

    # ---- what goes with a deletion

    def _cascade(self) -> None:
        pending = [target for target, record in self.touched.items() if record is None]
        while pending:
            for target in self._owned(*pending.pop()):
                if target not in self.touched:
                    self.touched[target] = None
                    pending.append(target)

    def _owned(self, collection: Collection, key: Key) -> Sequence[tuple[Collection, Key]]:
        if not isinstance(key, int):
            return ()
        if collection == "object":
            job: list[tuple[Collection, Key]] = [("job", key)] if key in self.state.jobs else []
            source: list[tuple[Collection, Key]] = [("source", key)] if key in self.state.sources else []
            return [*job, *source, *(("remap", r.key) for r in self.state.all_remaps(key))]
        if collection == "job":
            tables: list[tuple[Collection, Key]] = [("state_table", t.id) for t in self.state.tables_of(key)]
            return [*tables, *(("position", p.key) for p in self.state.positions_of(key))]
        if collection == "state_table":
            return [("run", r.id) for r in self.state.runs_of(key)]
        return ()

    # ---- the rules

    def _exists(self, collection: Collection, key: Key) -> bool:
        if (collection, key) in self.touched:
            return self.touched[collection, key] is not None
        return self.state.get(collection, key) is not None

    def _need(self, record: Record, collection: Collection, key: Key) -> None:
        if not self._exists(collection, key):
            raise EditRejected(
                f"{record.COLLECTION} {key_text(record.key)} needs {collection} {key_text(key)}, which does not exist"
            )

    def _check_record(self, record: Record, old: Record | None) -> None:
        if isinstance(record, ObjectRecord):
            self._check_object(record)
        elif isinstance(record, JobRecord):
            self._check_job(record, old)
        elif isinstance(record, StateTableRecord):
            self._check_table(record, old)
        elif isinstance(record, RunRecord):
            self._check_run(record, old)
        elif isinstance(record, RemapRecord):
            self._check_remap(record)
        elif isinstance(record, PositionRecord):
            self._check_position(record, old)
        elif isinstance(record, SourceRecord):
            self._need(record, "object", record.id)
            if isinstance(old, SourceRecord):
                self._no_way_back(record, "safe epoch", old.safe_epoch, record.safe_epoch)

    def _check_object(self, record: ObjectRecord) -> None:
        for upstream in record.depends_on:
            self._need(record, "object", upstream)
        rival = self.state.object_named(record.schema, record.name)
        if rival is not None and rival.id != record.id and ("object", rival.id) not in self.touched:
            raise EditRejected(f'the name "{record.schema}.{record.name}" is taken by object {rival.id}')
        for other in self.touched.values():
            same_name = isinstance(other, ObjectRecord) and (other.schema, other.name) == (record.schema, record.name)
            if same_name and other is not record:
                raise EditRejected(f'the name "{record.schema}.{record.name}" is given twice in one transaction')

    def _check_unused(self, key: Key) -> None:
        assert isinstance(key, int)
        for dependent in self.state.dependents(key):
            now = self.touched.get(("object", dependent), self.state.objects.get(dependent))
            if isinstance(now, ObjectRecord) and key in now.depends_on:
                raise EditRejected(f"object {key} cannot be deleted, object {dependent} is built on it")

    def _check_job(self, record: JobRecord, old: Record | None) -> None:
        self._need(record, "object", record.id)
        if isinstance(old, JobRecord):
            self._no_way_back(record, "committed epoch", old.committed_epoch, record.committed_epoch)
            self._no_way_back(record, "frontier", old.frontier, record.frontier)

    def _check_table(self, record: StateTableRecord, old: Record | None) -> None:
        self._need(record, "job", record.job_id)
        if isinstance(old, StateTableRecord):
            self._no_way_back(record, "committed epoch", old.committed_epoch, record.committed_epoch)
            self._no_way_back(record, "safe epoch", old.safe_epoch, record.safe_epoch)
            if old.watermark is not None:
                now = old.watermark - 1 if record.watermark is None else record.watermark
                self._no_way_back(record, "watermark", old.watermark, now)
        if record.watermark is not None and record.expires is None:
            raise EditRejected(f"state table {record.id} has no column by which its rows expire")
        if record.safe_epoch > record.committed_epoch:
            raise EditRejected(
                f"state table {record.id}: safe epoch {record.safe_epoch} is above "
                f"its committed epoch {record.committed_epoch}"
            )

    def _check_run(self, record: RunRecord, old: Record | None) -> None:
        self._need(record, "state_table", record.ref.table_id)
        if isinstance(old, RunRecord) and old.ref != record.ref:
            raise EditRejected(f"run {record.id} exists with another content; runs are never overwritten")

    def _check_remap(self, record: RemapRecord) -> None:
        self._need(record, "object", record.source_id)
        newest = self.state.newest_remap(record.source_id)
        if newest is not None and record.epoch <= newest.epoch:
            raise EditRejected(
                f"source {record.source_id} is bound up to epoch {newest.epoch}, {record.epoch} is too late"
            )

    def _check_position(self, record: PositionRecord, old: Record | None) -> None:
        self._need(record, "job", record.job_id)
        if isinstance(old, PositionRecord):
            self._no_way_back(record, "position", old.epoch, record.epoch)
            if old.epoch == record.epoch:
                self._no_way_back(record, "position in the epoch", old.from_epoch, record.from_epoch)
                if old.from_epoch == record.from_epoch:
                    self._no_way_back(record, "position in the epoch", old.sequence, record.sequence)

    def _no_way_back(self, record: Record, what: str, old: int, new: int) -> None:
        if new < old:
            name = f"{record.COLLECTION} {key_text(record.key)}"
            raise EditRejected(f"{name}: the {what} cannot go back from {old} to {new}")

    # ---- what the catalog does by itself

    def _shorten(self) -> None:
        """Bindings are stored as what they change; those that others are the change from stay."""
        remaps = [(key, record) for (collection, key), record in self.touched.items() if collection == "remap"]
        puts = [record for _, record in remaps if isinstance(record, RemapRecord)]
        deleted = {key for key, record in remaps if record is None}
        for record in puts:
            if record.base is not None:
                raise EditRejected(f"remap {key_text(record.key)} is not whole")
            newest = self.state.newest_remap(record.source_id)
            alone = sum(other.source_id == record.source_id for other in puts) == 1
            if alone and newest is not None and newest.key not in deleted:
                self.touched["remap", record.key] = self.state.shortened(record)
        for source_id in {key[0] for key in deleted if isinstance(key, tuple)}:
            for left in self.state.all_remaps(source_id):
                if left.key not in deleted and (source_id, left.base) in deleted:
                    raise EditRejected(f"remap {source_id}:{left.base} cannot be deleted, {left.epoch} is its change")

    def _add_events(self) -> None:
        newest = self.state.newest_events(1)
        last = newest[0].sequence if newest else 0
        for offset, event in enumerate(self.events[-MAX_EVENTS:], start=1):
            record = EventRecord(last + offset, self.now_ms, event.kind, event.object_id, event.message, event.detail)
            self.touched["event", record.key] = record
        surplus = self.state.event_count + min(len(self.events), MAX_EVENTS) - MAX_EVENTS
        if self.events and surplus > 0:
            for old in self.state.oldest_events(surplus):
                self.touched["event", old.key] = None

    def _note_epochs(self) -> None:
        newest = max((_epoch_named(r) for r in self.touched.values() if r is not None), default=0)
        if newest > self.state.last_epoch:
            self.config[LAST_EPOCH] = newest


def _epoch_named(record: Record) -> int:
    if isinstance(record, JobRecord):
        return max(record.committed_epoch, record.frontier)
    if isinstance(record, StateTableRecord):
        return record.committed_epoch
    if isinstance(record, RunRecord):
        return record.ref.epoch_hi
    return record.epoch if isinstance(record, RemapRecord | PositionRecord) else 0
