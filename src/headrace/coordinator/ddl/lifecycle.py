"""Relations and jobs coming and going: created, altered, dropped."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from headrace.catalog.contents import (
    ConnectionContent,
    PlannedContent,
    RoleContent,
    SchemaContent,
    SecretContent,
    SinkContent,
    SubscriptionContent,
)
from headrace.catalog.edits import AddEvent, AdvanceJob, CommitTable, Delete, Edit, Put, RaiseSafe
from headrace.catalog.records import JobPlan, JobRecord, ObjectRecord, StateTableRecord
from headrace.catalog.state import CatalogState
from headrace.common.columns import Column
from headrace.common.faults import fault_point
from headrace.connectors.job_options import GROUP, ON_ERROR, of_job
from headrace.coordinator.ddl.grouping import Grouping
from headrace.coordinator.ddl.letting_go import leaving
from headrace.coordinator.ddl.planning import Planning
from headrace.coordinator.ddl.recovered import in_order_of_time, recovered_job, rows_schema
from headrace.coordinator.ddl.replacing import in_place_of
from headrace.coordinator.ddl.secrets import Vault, sealed_record
from headrace.coordinator.ddl.undecided import Undecided
from headrace.coordinator.decide import automatic
from headrace.coordinator.decide.automatic import is_automatic
from headrace.coordinator.decide.former import formers, named_as, views_over
from headrace.coordinator.decide.into import refuse_circle, target_of
from headrace.coordinator.decide.life import Life, Turn, turned
from headrace.coordinator.decide.unused import unused
from headrace.coordinator.decide.view_options import checked_options, on_error
from headrace.coordinator.decide.widths import left_wide, narrowed, wider
from headrace.coordinator.observe.epoch_history import History
from headrace.coordinator.run.lanes import Lanes
from headrace.coordinator.run.live_state import Job, LiveRelation, LiveState, take_up
from headrace.coordinator.run.locks import Locks
from headrace.coordinator.run.runtime import Runtime
from headrace.coordinator.run.storage import Storage
from headrace.errors import (
    DependentObjectsExist,
    DuplicateObject,
    DuplicateTable,
    Fenced,
    HeadraceError,
    InvalidParameter,
    NotSupported,
    SnapshotUnavailable,
    SparkLost,
    UndefinedObject,
    UndefinedTable,
    WrongObjectType,
)
from headrace.plan.planner import ViewPlan
from headrace.state.schema import HANDED, ROWS


class Lifecycle:
    """Changes what there is. DDL is serialised by `ddl`; each step of it is one transaction.

    `forget` is called with the ids of what has been dropped.
    """

    def __init__(
        self, live: LiveState, storage: Storage, runtime: Runtime, locks: Locks, vault: Vault, history: History,
        planning: Planning, lanes: Lanes, ticking: threading.Lock,
        writing_paused: Callable[[], AbstractContextManager[None]], forget: Callable[[Sequence[int]], None],
    ) -> None:  # fmt: skip
        self._live = live
        self._catalog = storage.catalog
        self._pins = storage.pins
        self._runtime = runtime
        self._locks = locks
        self._vault = vault
        self._history = history
        self._planning = planning
        self._ticking = ticking
        self._writing_paused = writing_paused
        self._forget = forget
        self.undecided = Undecided(storage.catalog)
        self.ddl = planning.ddl
        self.lanes = lanes
        self.groups = Grouping(live.graph, live.lock, lambda: runtime.settings)

    # ---- statements

    @contextmanager
    def statement(self) -> Iterator[None]:
        """One at a time, and none while it is not known what became of another."""
        with self.ddl:
            self._runtime.check()
            self.undecided.settle()  # what cannot be settled for other reasons, the next tick tells
            yield

    def settle(self) -> None:
        """Finish statements whose outcome was not known, unless another one runs or the catalog does not answer.

        Raises `Fenced`, and what keeps one of them from being finished though the catalog answers.
        """
        if self.undecided and self.ddl.acquire(blocking=False):
            try:
                failure = self.undecided.settle()
            except Fenced:
                raise
            except HeadraceError:
                return
            finally:
                self.ddl.release()
            if failure is not None:
                raise failure

    # ---- create

    def create_relation(self, record: ObjectRecord) -> int:
        """See `Coordinator.create_relation`."""
        if not record.content.stands_alone:
            raise WrongObjectType(f"a {record.kind} is not created this way")
        with self.statement():
            self._check_new(record)
            first, second = self._catalog.allocate_ids(2)
            record = replace(record, id=first, created_ms=record.created_ms or self._runtime.clock.now_ms())
            edits: list[Edit] = [Put(record)]
            relation: LiveRelation | None = None
            if record.content.writable:
                relation = LiveRelation(record, rows_schema(record), second)
                assert relation.schema is not None
                edits.append(Put(JobRecord(first, f"table-{first}", "created", plan=JobPlan(kind="table"))))
                edits.append(Put(StateTableRecord.from_table_schema(second, first, ROWS, relation.schema)))
            elif record.content.external:
                relation = LiveRelation(record)
                relation.in_order = in_order_of_time(record, self._vault.open(record))
            self._transact_new(edits, first)
            if relation is not None:
                with self._live.lock:
                    self._live.graph.relations[first] = relation
                self._planning.define_new(record)
            return first

    def create_view(self, record: ObjectRecord, plan: ViewPlan, check: Callable[[], None] = lambda: None) -> Job:
        """See `Coordinator.create_view`; the job is made and not launched."""
        live = self._live
        with self.statement():
            self._check_new(record)
            check()
            if plan.generation != self._planning.generation:
                raise SparkLost("Spark was started again while the query was planned", hint="run the statement again")
            for upstream in plan.upstreams:
                live.graph.relation(upstream)
            target = target_of(record)
            if target is not None:
                live.graph.relation(target)
                refuse_circle(self._catalog.state, record, plan.upstreams)
            layouts = plan.state_tables()
            first, *rest = self._catalog.allocate_ids(1 + len(layouts))
            tables = dict(zip(layouts, rest))
            content = replace(
                record.content_as(PlannedContent), append_only=plan.append_only,
                watermark_column=plan.event_time.column,
            )  # fmt: skip
            depends = tuple(dict.fromkeys((*record.depends_on, *plan.upstreams)))
            record = replace(
                record, id=first, content=content, columns=record.columns or plan.columns, depends_on=depends,
                created_ms=record.created_ms or self._runtime.clock.now_ms(),
            )  # fmt: skip
            own = of_job(record.options) if isinstance(content, SinkContent) else record.options
            options = checked_options(own)
            group = self.groups.group_of(first, record.name, plan.upstreams, options.pop(GROUP, None))
            joined = not any(j.group == group for j in live.graph.jobs.values())
            lookups = plan.read_only_by_lookup
            stored = JobPlan(
                fingerprint=plan.fingerprint, upstreams=tuple(plan.upstreams), lookups=tuple(sorted(lookups)),
                arrangements=tuple(sorted(plan.arrangements)), sharable=automatic.stored(plan.sharable),
            )  # fmt: skip
            new = JobRecord(first, group, "creating", plan=stored, options=options, joined=joined)
            runner = self._planning.runner(plan, record, new)
            edits: list[Edit] = [Put(record), Put(new)]
            edits += [Put(StateTableRecord.from_table_schema(i, first, n, layouts[n])) for n, i in tables.items()]
            self._transact_new(edits, first)
            job = recovered_job(record, new, tables, None)
            job.take_plan(plan, runner)
            with live.lock:
                layout = plan.schema if ROWS in tables else None
                live.graph.relations[first] = LiveRelation(record, layout, tables.get(ROWS, 0))
                live.graph.jobs[first] = job
            self._planning.define_new(record)
            return job

    def create_secret(self, record: ObjectRecord, value: str) -> int:
        """See `Coordinator.create_secret`."""
        with self.statement():
            self._check_new(record)
            keys = self._vault.keys
            _ = keys.first  # without one no id is spent
            record = replace(record, id=self._catalog.allocate_ids(1)[0])
            record = sealed_record(record, value, self._catalog.state, keys)
            event = AddEvent("secret_created", record.id, f'secret "{record.name}" was created')
            self._transact_new([Put(record), event], record.id)
            return record.id

    def create_subscription(self, record: ObjectRecord) -> int:
        """See `Coordinator.create_subscription`."""
        live = self._live
        (relation_id,) = record.depends_on
        with self.statement():
            self._check_new(record)
            with live.lock:
                relation, since = live.graph.relation(relation_id), live.graph.frontier(relation_id)
                if not live.graph.is_filled(relation_id):
                    raise SnapshotUnavailable(
                        f"{relation.record.in_words} is still being created",
                        hint="create the subscription when SHOW JOBS shows that it runs",
                    )
                pin = self._pins.pin([relation_id], since)  # until all know of the subscription
            try:
                content = replace(record.content_as(SubscriptionContent), since=since)
                record = replace(record, id=self._catalog.allocate_ids(1)[0], content=content)
                self._transact_new([Put(record)], record.id)
            finally:
                self._pins.unpin(pin)
            return record.id

    def alter_secret(self, secret_id: int, value: str) -> None:
        """See `Coordinator.alter_secret`."""

        def sealed(record: ObjectRecord) -> ObjectRecord:
            return sealed_record(record, value, self._catalog.state, self._vault.keys)

        self.alter_objects([secret_id], sealed, "was given another value")

    def alter_objects(
        self, object_ids: Sequence[int], change: Callable[[ObjectRecord], ObjectRecord], done: str
    ) -> None:
        """See `Coordinator.alter_objects`."""
        with self.statement():
            self._change(object_ids, change, done, lambda state: None)

    def alter_sources(
        self, source_ids: Sequence[int], change: Callable[[ObjectRecord], ObjectRecord], done: str
    ) -> None:
        """See `Coordinator.alter_sources`."""
        live = self._live

        def known(state: CatalogState) -> None:
            with live.changed:
                for record in (state.objects[i] for i in source_ids if i in state.objects):
                    live.graph.relation(record.id).record = record
                for job in (j for j in live.graph.jobs.values() if not {*j.upstreams}.isdisjoint(source_ids)):
                    job.retry(0.0)
                live.changed.notify_all()

        with self.statement():
            self._change(source_ids, change, done, known)
            known(self._catalog.state)

    def add_columns(self, source_id: int, columns: Sequence[Column], options: Mapping[str, str]) -> None:
        """See `Coordinator.add_columns`."""

        def changed(record: ObjectRecord) -> ObjectRecord:
            (first,) = self._catalog.allocate_ids(1)
            return wider(narrowed(self._catalog.state, record), columns, options, first)

        def known(state: CatalogState) -> None:
            record = state.objects.get(source_id)
            if record is not None:
                with self._live.lock:
                    self._live.graph.relation(source_id).record = record
                self._planning.define_new(record)

        with self.statement():
            self._change([source_id], changed, "has new columns" if columns else "has no columns to come", known)
            known(self._catalog.state)
            fault_point("columns.wider.after")

    def clear(self, ids: Sequence[int]) -> None:
        """Drop what a server that ended was filling, and take away columns that came for that."""
        if ids:
            self.drop(ids)
        for source_id in left_wide(self._catalog.state):
            self.add_columns(source_id, (), {})

    def _change(
        self, object_ids: Sequence[int], change: Callable[[ObjectRecord], ObjectRecord], done: str,
        settle: Callable[[CatalogState], None],
    ) -> None:  # fmt: skip
        edits: list[Edit] = []
        made: dict[int, ObjectRecord] = {}
        for object_id in object_ids:
            before = self._catalog.state.objects.get(object_id)
            if before is None:
                raise UndefinedObject(f"there is no object {object_id}")
            after = change(before)
            if after.name != before.name:
                self.check_free(after)
            self._check_owner(after)
            if after != before:
                text = f'{before.kind} "{before.name}" {done}'
                edits += [Put(after), AddEvent(f"{before.kind}_altered", object_id, text)]
                made[object_id] = after
        self.undecided.transact(
            edits, lambda state: all(state.objects.get(i) == after for i, after in made.items()), settle
        )

    def _check_owner(self, record: ObjectRecord) -> None:
        if record.owner and record.owner not in self._catalog.state.objects:
            raise UndefinedObject("the role that the object is to belong to does not exist any more")

    def _check_new(self, record: ObjectRecord) -> None:
        self.check_free(record)
        self._check_owner(record)

    def check_free(self, record: ObjectRecord) -> None:
        """Raise `DuplicateTable` (`DuplicateObject`) for a name that is taken."""
        if self._catalog.state.object_named(record.schema, record.name) is not None:
            if isinstance(record.content, SchemaContent):
                raise DuplicateObject(f'schema "{record.name}" already exists')
            if isinstance(record.content, (SecretContent, RoleContent, ConnectionContent)):
                raise DuplicateObject(f'"{record.name}" already exists')
            raise DuplicateTable(f'relation "{record.name}" already exists')

    def _transact_new(self, edits: list[Edit], object_id: int) -> None:
        def settle(state: CatalogState) -> None:
            if object_id in state.objects:  # It was said not to be created.
                self._catalog.transact([Delete("object", object_id)])

        self.undecided.transact(edits, lambda state: object_id in state.objects, settle)

    # ---- alter, drop

    def alter(self, job_id: int, paused: bool | None, options: Mapping[str, str] | None) -> None:
        """See `Coordinator.alter_job`."""
        live = self._live
        given = checked_options(options or {})
        with self.statement():
            job = live.graph.jobs.get(job_id)
            if job is None:
                raise UndefinedObject(f"there is no job {job_id}")
            if ON_ERROR in given and on_error(given) != on_error(job.options):
                raise NotSupported(
                    f'another {ON_ERROR} for "{job.name}": its state was made by the expressions of '
                    f"{ON_ERROR} = '{on_error(job.options)}', and rows of the past would stay as these left them",
                    hint="create another view of the same query with the option, and drop this one when that is filled",
                )
            wanted = given.pop(GROUP, None)
            if wanted is not None and (job.delivers or HANDED in job.tables):
                raise InvalidParameter(f"this sink keeps a checkpoint group of its own: {GROUP} cannot be set")
            group = job.group if wanted is None else self.groups.group_of(job_id, job.name, job.upstreams, wanted)
            with self._locks.committing:
                self.groups.check_move(job, group)
                self._alter(job, paused, given, group)
            live.notify()

    def _alter(self, job: Job, paused: bool | None, given: Mapping[str, str], group: str) -> None:
        """The transaction of an ALTER. The caller holds `committing`: no lane is at a commit."""
        live = self._live
        record = self._catalog.state.jobs[job.id]
        turn = {True: Turn.PAUSE, False: Turn.RESUME, None: None}[paused]
        turned_to, effects = (record, ()) if turn is None else turned(record, turn)
        options = {**record.options, **given}
        moved = group != record.group
        with live.lock:
            joined = (
                not any(j.group == group for j in live.graph.jobs.values() if j is not job) if moved else record.joined
            )
        kind = effects[0] if effects else "job_moved" if moved else "job_altered"
        text = f'job "{job.name}": {kind.removeprefix("job_")}' + (f' to checkpoint group "{group}"' if moved else "")
        altered = replace(turned_to, options=options, group=group, joined=joined)

        def settle(state: CatalogState) -> None:
            with self._locks.committing:
                self._take_up(job, state.jobs[job.id])

        edits: list[Edit] = [Put(altered), AddEvent(kind, job.id, text)]
        self.undecided.transact(edits, lambda state: state.jobs[job.id] == altered, settle)
        self._take_up(job, altered)

    def _take_up(self, job: Job, record: JobRecord) -> None:
        """Let a job be as an ALTER has made its record."""
        live = self._live
        with live.changed:
            job.alter(record)
            self._history.paused(job.id, job.paused, self._runtime.clock.monotonic_s())
            live.changed.notify_all()
        self.lanes.launch(job)

    def paused_as(self, indexes: Mapping[int, int]) -> list[JobRecord]:
        """The records, paused, of new indexes of which those are paused whose place they take.

        The caller holds `committing`.
        """
        jobs = self._catalog.state.jobs
        return [turned(jobs[new], Turn.PAUSE)[0] for new, old in indexes.items() if Life.of(jobs[old]).paused]

    def take_up_jobs(self, records: Sequence[JobRecord]) -> None:
        """Let jobs be as a transaction has made their records. The caller holds `committing`."""
        for record in records:
            self._take_up(self._live.graph.jobs[record.id], record)

    def settle_jobs(self, records: Sequence[JobRecord], state: CatalogState) -> None:
        """The same where it is learned later, by the catalog's content of then."""
        with self._locks.committing:
            self.take_up_jobs([state.jobs[record.id] for record in records])

    def _define(self, records: Sequence[ObjectRecord]) -> None:
        for record in records:
            self._planning.define_new(record)

    def drop(self, ids: Sequence[int]) -> None:
        """See `Coordinator.drop`."""
        live = self._live
        with self.statement():
            with self._catalog.reading() as state:
                ids = [*ids, *unused(state, ids)]
            self._check_drop(ids)
            with self._withdrawn(ids) as jobs, self._writing_paused(), self._ticking:
                self._delete(ids, jobs)
        live.notify()

    def take_place(self, new_id: int, old_id: int, indexes: Mapping[int, int], filled: int) -> None:
        """See `Coordinator.take_place`.

        Of before it was filled the new table is not seen: there it is empty. Its indexes were made after that, so they
        need nothing of before, whatever epoch it has been taken along to by one of them.
        """
        live = self._live
        with self.statement():
            (until,) = self._catalog.allocate_ids(1)
            with self._catalog.reading() as state:
                views = list(views_over(state, old_id, new_id))
                unread = (o.id for o in map(state.objects.get, state.dependents(old_id)) if o and is_automatic(o))
                gone = [old_id, *indexes.values(), *unread]
            self._check_drop(gone, allowed={v.id for v in views})
            with self._catalog.reading() as state:
                for i in (new_id, *indexes):
                    if i not in state.objects:
                        raise UndefinedTable(f"object {i} does not exist")
                placed, event = in_place_of(state.objects[old_id], state.objects[new_id], until)
                kept = [named_as(state.objects[i], state.objects[new]) for new, i in indexes.items()]
                relation = live.graph.relation(new_id)
            with live.changed:
                done = lambda: self._runtime.stopping or live.epochs.complete >= filled  # noqa: E731
                live.changed.wait_until(done, None, self._runtime.check)
            edits: list[Edit] = [*map(Put, (placed, *kept, *views)), event]
            with (
                self._withdrawn(gone) as jobs, self._locks.raising, self._locks.committing, self._writing_paused(),
                self._ticking,
            ):  # fmt: skip
                with live.lock:
                    relation.safe = max(relation.safe, filled)
                edits += _not_before(self._catalog.state, relation, filled)
                paused = self.paused_as(indexes)

                def settle(state: CatalogState) -> None:
                    self.settle_jobs(paused, state)
                    self._define([placed, *kept])

                self._delete(gone, jobs, [*edits, *map(Put, paused)], settle, renamed=[placed, *kept])
                self.take_up_jobs(paused)
            self._define([placed, *kept])
        live.notify()

    @contextmanager
    def _withdrawn(self, ids: Sequence[int]) -> Iterator[list[Job]]:
        """Their jobs do not run within the block, in which they are dropped; they go on if that fails."""
        with self._live.lock:
            jobs = [self._live.graph.jobs[i] for i in ids if i in self._live.graph.jobs]
        undecided = len(self.undecided)
        try:
            self.lanes.withdraw(jobs)
            yield jobs
        except BaseException:
            if len(self.undecided) == undecided:
                self._resume(jobs)
            raise

    def _check_drop(self, ids: Sequence[int], allowed: Collection[int] = ()) -> None:
        with self._catalog.reading() as state:
            known = formers(state)
            for i in ids:
                if i not in state.objects:
                    raise UndefinedTable(f"object {i} does not exist")
                above = [*state.dependents(i), *(former.id for former in known.get(i, ()))]
                others = [d for d in above if d not in ids and d not in allowed]
                if isinstance(state.objects[i].content, RoleContent):
                    others += [o.id for o in state.objects.values() if o.owner == i and o.id not in ids]
                if others:
                    name, other = state.objects[i].name, state.objects[others[0]].name
                    raise DependentObjectsExist(
                        f'cannot drop "{name}" because other objects depend on it',
                        detail=f'"{other}" depends on "{name}"',
                        hint="DROP ... CASCADE drops them too",
                    )

    def _delete(
        self, ids: Sequence[int], jobs: Sequence[Job], others: Sequence[Edit] = (),
        more: Callable[[CatalogState], None] = lambda state: None, renamed: Sequence[ObjectRecord] = (),
    ) -> None:  # fmt: skip
        """Drop objects in one transaction with `others`, by which those that are `renamed` get the names that are free.

        `more` is done if it is learned later that it has happened.
        """

        def happened(state: CatalogState) -> bool:
            return not any(i in state.objects for i in ids)

        def settle(state: CatalogState) -> None:
            if happened(state):
                self._dropped(ids, renamed)
                more(state)
            else:
                self._resume(jobs)

        left = map(Put, leaving(self._catalog.state, ids, self._runtime.clock.now_ms()))
        self.undecided.transact([*(Delete("object", i) for i in ids), *left, *others], happened, settle)
        self._dropped(ids, renamed)

    def _resume(self, jobs: Sequence[Job]) -> None:
        """They were withdrawn, and are not dropped."""
        for job in jobs:
            with self._live.lock:
                job.reinstate()
            self.lanes.launch(job)

    def _dropped(self, ids: Sequence[int], renamed: Sequence[ObjectRecord] = ()) -> None:
        live = self._live
        with live.changed:
            take_up(live, renamed)  # at once: who writes to one that is gone is told that another has its name
            for i in ids:
                live.graph.jobs.pop(i, None)
                relation = live.graph.relations.pop(i, None)
                if relation is not None:
                    relation.dropped = True
            live.changed.notify_all()
        self._vault.forget(ids)
        self._forget(ids)
        self._planning.forget(ids)


def _not_before(state: CatalogState, relation: LiveRelation, epoch: int) -> list[Edit]:
    """What makes durable that a table, whose safe epoch has been raised, is not seen as of less than an epoch."""
    if state.state_tables[relation.state_table].committed_epoch >= epoch:
        return [RaiseSafe(relation.state_table, relation.safe)]
    # It got no rows, and has not been committed.
    return [CommitTable(relation.state_table, epoch, epoch), AdvanceJob(relation.id, epoch, epoch)]
