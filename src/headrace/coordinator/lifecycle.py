"""Relations and jobs coming and going: created, recovered at start, altered, dropped."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

import pyarrow as pa

from headrace.catalog.bindings import moves
from headrace.catalog.contents import (
    ConnectionContent,
    IndexContent,
    PlannedContent,
    RoleContent,
    SchemaContent,
    SecretContent,
    SinkContent,
    SourceContent,
    SubscriptionContent,
    TableContent,
)
from headrace.catalog.edits import AddEvent, Delete, Edit, Put
from headrace.catalog.records import JobPlan, JobRecord, ObjectRecord, RemapRecord, StateTableRecord
from headrace.catalog.state import CatalogState
from headrace.common.columns import arrow_type
from headrace.connectors.base import Source
from headrace.connectors.job_options import GROUP, ON_ERROR, of_job
from headrace.connectors.sinks import delivers
from headrace.coordinator import automatic
from headrace.coordinator.core import Core, Job, Relation, Runner, RunnerFactory, as_headrace_error
from headrace.coordinator.exact import ChangeLog
from headrace.coordinator.graph import Known
from headrace.coordinator.into import refuse_circle, target_of
from headrace.coordinator.job import NO_FACTS, PlanFacts
from headrace.coordinator.lanes import Lanes
from headrace.coordinator.life import Turn, turned
from headrace.coordinator.membership import Membership
from headrace.coordinator.options import checked_options, on_error, own_group
from headrace.coordinator.secrets import Vault, sealed_record
from headrace.coordinator.standing import Standing
from headrace.coordinator.steps import Position, position_of
from headrace.coordinator.undecided import Undecided
from headrace.coordinator.watermarks import declared, time_column
from headrace.errors import (
    CorruptObject,
    DependentObjectsExist,
    DuplicateObject,
    DuplicateTable,
    Fenced,
    HeadraceError,
    InvalidParameter,
    JobFailed,
    NotSupported,
    SnapshotUnavailable,
    SparkLost,
    StatementError,
    UndefinedObject,
    UndefinedTable,
    WrongObjectType,
)
from headrace.plan.planner import Path, Planner, ViewPlan
from headrace.plan.planner import Relation as PlannedRelation
from headrace.plan.stored import stored_query
from headrace.plan.tree import WEIGHT
from headrace.state.schema import HANDED, ROWS, TableSchema


def rows_schema(record: ObjectRecord) -> TableSchema:
    """The layout of a table's rows: its primary key as the key, or else all columns."""
    fields = {c.name: pa.field(c.name, arrow_type(c.type)) for c in record.columns}
    key = record.primary_key or tuple(fields)
    value = tuple(f for name, f in fields.items() if name not in key)
    return TableSchema(key=tuple(fields[name] for name in key), value=value, diffs=WEIGHT)


def spark_name(object_id: int) -> str:
    """The name under which Spark SQL knows a relation."""
    return f"r{object_id}"


class Lifecycle:
    """Changes what there is. DDL is serialised by `ddl`; each step of it is one transaction.

    `forget` is called with the ids of what has been dropped.
    """

    def __init__(
        self,
        core: Core,
        planner: Planner,
        make_runner: RunnerFactory,
        compact: Callable[[], None],
        ticking: threading.Lock,
        writing_paused: Callable[[], AbstractContextManager[None]],
        forget: Callable[[Sequence[int]], None],
    ) -> None:
        self._core = core
        self._planner = planner
        self._make_runner = make_runner
        self._ticking = ticking
        self._writing_paused = writing_paused
        self._forget = forget
        self._undecided = Undecided(core.catalog)
        self.ddl = threading.RLock()
        self.lanes = Lanes(core, compact)

    # ---- start

    def recover(self) -> None:
        """Take up everything that the catalog holds, as it says. Nothing of it is planned yet: `plan` does that."""
        left = automatic.abandoned(self._core.catalog.state)
        if left:
            self._core.catalog.transact([Delete("object", i) for i in left])
        # Who takes over writes to tables meanwhile: what becomes of that is noted in the relations that are there.
        with self._writing_paused(), self._ticking, self._core.catalog.reading() as state:
            objects = _in_order(o for o in state.objects.values() if o.content.in_graph)
            jobs = dict(state.jobs)
            relations = {o.id: recovered_relation(o, state, self._core.vault) for o in objects}
            tables = {i: {t.operator: t.id for t in state.tables_of(i)} for i in jobs}
            positions = {i: position_of(state.positions_of(i)) for i in jobs}
            epochs = {i: {t.operator: t.committed_epoch for t in state.tables_of(i)} for i in jobs}
            with self._core.lock:
                self._core.graph.relations.update(relations)
        for record in objects:
            if record.content.has_job:
                found = _disagreement(record, jobs[record.id], epochs[record.id])
                self._recover_view(record, jobs[record.id], tables[record.id], positions[record.id], found)

    def _settle(self, groups: Iterable[str]) -> None:
        """Find out which jobs move in step with their groups; note durably which ones do not any more."""
        core = self._core
        with core.lock:
            left = [j for group in groups for j in core.graph.settle(group)]
        records = core.catalog.state.jobs
        edits: list[Edit] = [Put(replace(records[j.id], joined=False)) for j in left if records[j.id].joined]
        if edits:
            core.catalog.transact(edits)

    def _recover_view(
        self, record: ObjectRecord, job_record: JobRecord, tables: dict[str, int], position: Position | None,
        corrupt: CorruptObject | None,
    ) -> None:  # fmt: skip
        job = recovered_job(record, job_record, tables, position, PlanFacts(awaited=corrupt is None))
        if corrupt is not None:
            self._cannot_be_planned(record, job, corrupt)
        with self._core.lock:
            self._core.graph.jobs[job.id] = job

    def define(self) -> None:
        """Tell the planner, which has just been given a Spark, of all that there is. The caller holds `ddl`."""
        core = self._core
        with core.committing, core.lock:  # What is still to be committed is not any more.
            for job in core.graph.jobs.values():
                job.void()
        with core.catalog.reading() as state:
            objects = _in_order(o for o in state.objects.values() if o.content.in_graph)
        for record in objects:
            self._define(record)

    def plan(self) -> None:
        """Plan all views, in the Spark application that the planner is in, after `define`.

        A view that cannot be planned as before is quarantined. A group begins to run as soon as its views are planned;
        those that have something to take in come first. Raises `SparkLost` if the application has ended.
        """
        left = set(self._core.graph.jobs)
        while left and not self._core.stopping:
            with self.ddl:  # for each group by itself: what needs no plan is not to wait for all of them
                jobs = self._next_group(left)
                left -= {job.id for job in jobs}
                for job in jobs:
                    self._plan_job(job)
                self._settle({job.group for job in jobs})
                for job in jobs:
                    self.lanes.launch(job)
            if not jobs:
                return

    def _next_group(self, left: Collection[int]) -> list[Job]:
        """The jobs out of these of one group, of one that has something to take in if there is any; empty for none."""
        core, known = self._core, Known()
        with core.lock:
            jobs = [job for i, job in sorted(core.graph.jobs.items()) if i in left]
            behind = (job for job in jobs if core.graph.job_frontier(job, known) < core.graph.complete)
            first = next(behind, next(iter(jobs), None))
            return [job for job in jobs if first is not None and job.group == first.group]

    def _plan_job(self, job: Job) -> None:
        core = self._core
        with core.catalog.reading() as state:
            record, job_record = state.objects[job.id], state.jobs[job.id]
        plan: ViewPlan | None = None
        runner: Runner | None = None
        try:
            if isinstance(job.error, CorruptObject) and job.quarantined:
                return
            plan = self._plan(record, job_record, job.tables)
            runner = self._runner(plan)
            if job.starting and job.quarantined:
                self._turn(job, Turn.PLANNED)
        except Fenced:
            raise
        except Exception as error:
            if core.spark_is_lost():
                raise SparkLost(f"Spark ended again: {error}") from error
            self._cannot_be_planned(record, job, as_headrace_error(error))
        with core.changed:
            job.take_plan(plan, runner)
            core.changed.notify_all()

    def _cannot_be_planned(self, record: ObjectRecord, job: Job, error: HeadraceError) -> None:
        with self._core.lock:
            job.tell(error, self._core.clock.now_ms())
        self._turn(job, Turn.UNPLANNABLE, f'{_kind(record)} "{record.name}" is quarantined: {error.message}')

    def _plan(self, record: ObjectRecord, job_record: JobRecord, tables: Mapping[str, int]) -> ViewPlan:
        """A stored view's plan. Raises `JobFailed` if it is not the one that its state was made by."""
        content = record.content_as(PlannedContent)
        arrangements = job_record.plan.arrangements or ()
        query = stored_query(self._planner, content)
        plan = self._planner.plan(
            query, on_window_close=content.emit_on_window_close, arrangements=arrangements,
            on_error=on_error(job_record.options),
        )  # fmt: skip
        if isinstance(content, SinkContent) and content.into is not None:
            plan = plan.into_table(len(self._core.catalog.state.objects[content.into].primary_key))
        elif isinstance(content, SinkContent):
            plan = plan.into(record.options)
        elif isinstance(content, IndexContent):
            plan = plan.keyed(len(content.key))
        if plan.fingerprint != job_record.plan.fingerprint or set(plan.state_tables()) != set(tables):
            raise JobFailed(
                f'the plan of {_kind(record)} "{record.name}" is not the one that its state was made by',
                hint="its rows stay readable; drop the view and create it again to have it kept up to date",
            )
        return plan

    def _turn(self, job: Job, turn: Turn, text: str = "") -> None:
        """Let a job take a turn in its life, durably. The caller sees to it that the job commits nothing meanwhile."""
        before = self._core.catalog.state.jobs[job.id]
        record, effects = turned(before, turn)
        if record != before:
            self._core.catalog.transact([Put(record), *(AddEvent(said, job.id, text) for said in effects)])
        with self._core.lock:  # views above may take it along in their commits
            job.turn(turn)

    def _runner(self, plan: ViewPlan) -> Runner:
        return self._make_runner(plan, {i: self._core.graph.relation(i).schema for i in plan.upstreams})

    def _define_new(self, record: ObjectRecord) -> None:
        """Tell the planner of what has just become durable, unless Spark has ended: its successor is told of all."""
        try:
            self._define(record)
        except Exception:
            if not self._core.spark_is_lost():
                raise

    def _define(self, record: ObjectRecord) -> None:
        content = record.content
        if isinstance(content, SinkContent):  # nothing reads it
            return
        if isinstance(content, IndexContent):
            columns = frozenset(c.name for c in record.columns)
            path = Path(record.id, record.name, content.key, columns, False, not content.automatic)
            self._planner.define_path(content.on, path)
            return
        fixed = isinstance(content, (TableContent, SourceContent, PlannedContent)) and content.append_only
        self._planner.define(
            PlannedRelation(record.id, record.name, fixed, time_column(record), primary_key=record.primary_key),
            record.columns,
            spark_name(record.id),
        )

    # ---- statements

    @contextmanager
    def _statement(self) -> Iterator[None]:
        """One at a time, and none while it is not known what became of another."""
        with self.ddl:
            self._core.check()
            self._undecided.settle()  # what cannot be settled for other reasons, the next tick tells
            yield

    def settle(self) -> None:
        """Finish statements whose outcome was not known, unless another one runs or the catalog does not answer.

        Raises `Fenced`, and what keeps one of them from being finished though the catalog answers.
        """
        if self._undecided and self.ddl.acquire(blocking=False):
            try:
                failure = self._undecided.settle()
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
        core = self._core
        if not record.content.stands_alone:
            raise WrongObjectType(f"a {record.kind} is not created this way")
        with self._statement():
            self._check_new(record)
            first, second = core.catalog.allocate_ids(2)
            record = replace(record, id=first, created_ms=record.created_ms or core.clock.now_ms())
            edits: list[Edit] = [Put(record)]
            relation: Relation | None = None
            if record.content.writable:
                relation = Relation(record, rows_schema(record), second)
                assert relation.schema is not None
                edits.append(Put(JobRecord(first, f"table-{first}", "created", plan=JobPlan(kind="table"))))
                edits.append(Put(StateTableRecord.from_table_schema(second, first, ROWS, relation.schema)))
            elif record.content.external:
                relation = Relation(record)
                relation.in_order = _in_order_of_time(record, core.vault.open(record))
            self._transact_new(edits, first)
            if relation is not None:
                with core.lock:
                    core.graph.relations[first] = relation
                self._define_new(record)
            return first

    def create_view(self, record: ObjectRecord, plan: ViewPlan) -> Job:
        """See `Coordinator.create_view`; the job is made and not launched."""
        core = self._core
        with self._statement():
            self._check_new(record)
            if plan.generation != self._planner.generation:
                raise SparkLost("Spark was started again while the query was planned", hint="run the statement again")
            for upstream in plan.upstreams:
                core.graph.relation(upstream)
            target = target_of(record)
            if target is not None:
                core.graph.relation(target)
                refuse_circle(core.catalog.state, record, plan.upstreams)
            layouts = plan.state_tables()
            first, *rest = core.catalog.allocate_ids(1 + len(layouts))
            tables = dict(zip(layouts, rest))
            content = replace(
                record.content_as(PlannedContent), append_only=plan.append_only,
                watermark_column=plan.event_time.column,
            )  # fmt: skip
            depends = tuple(dict.fromkeys((*record.depends_on, *plan.upstreams)))
            record = replace(
                record, id=first, content=content, columns=record.columns or plan.columns, depends_on=depends,
                created_ms=record.created_ms or core.clock.now_ms(),
            )  # fmt: skip
            own = of_job(record.options) if isinstance(content, SinkContent) else record.options
            options = checked_options(own)
            group = self._group(first, record.name, plan.upstreams, options.pop(GROUP, None))
            joined = not any(j.group == group for j in core.graph.jobs.values())
            lookups = plan.read_only_by_lookup
            stored = JobPlan(
                fingerprint=plan.fingerprint, upstreams=tuple(plan.upstreams), lookups=tuple(sorted(lookups)),
                arrangements=tuple(sorted(plan.arrangements)), sharable=automatic.stored(plan.sharable),
            )  # fmt: skip
            runner = self._runner(plan)
            new = JobRecord(first, group, "creating", plan=stored, options=options, joined=joined)
            edits: list[Edit] = [Put(record), Put(new)]
            edits += [Put(StateTableRecord.from_table_schema(i, first, n, layouts[n])) for n, i in tables.items()]
            self._transact_new(edits, first)
            job = recovered_job(record, new, tables, None)
            job.take_plan(plan, runner)
            with core.lock:
                layout = plan.schema if ROWS in tables else None
                core.graph.relations[first] = Relation(record, layout, tables.get(ROWS, 0))
                core.graph.jobs[first] = job
            self._define_new(record)
            return job

    def create_secret(self, record: ObjectRecord, value: str) -> int:
        """See `Coordinator.create_secret`."""
        core = self._core
        with self._statement():
            self._check_new(record)
            keys = core.vault.keys
            _ = keys.first  # without one no id is spent
            record = replace(record, id=core.catalog.allocate_ids(1)[0])
            record = sealed_record(record, value, core.catalog.state, keys)
            event = AddEvent("secret_created", record.id, f'secret "{record.name}" was created')
            self._transact_new([Put(record), event], record.id)
            return record.id

    def create_subscription(self, record: ObjectRecord) -> int:
        """See `Coordinator.create_subscription`."""
        core = self._core
        (relation_id,) = record.depends_on
        with self._statement():
            self._check_new(record)
            with core.lock:
                relation, since = core.graph.relation(relation_id), core.graph.frontier(relation_id)
                if not core.graph.is_filled(relation_id):
                    raise SnapshotUnavailable(
                        f'materialized view "{relation.name}" is still being created',
                        hint="create the subscription when SHOW JOBS shows that it runs",
                    )
                pin = core.pins.pin([relation_id], since)  # until all know of the subscription
            try:
                content = replace(record.content_as(SubscriptionContent), since=since)
                record = replace(record, id=core.catalog.allocate_ids(1)[0], content=content)
                self._transact_new([Put(record)], record.id)
            finally:
                core.pins.unpin(pin)
            return record.id

    def alter_secret(self, secret_id: int, value: str) -> None:
        """See `Coordinator.alter_secret`."""

        def sealed(record: ObjectRecord) -> ObjectRecord:
            return sealed_record(record, value, self._core.catalog.state, self._core.vault.keys)

        self.alter_objects([secret_id], sealed, "was given another value")

    def alter_objects(
        self, object_ids: Sequence[int], change: Callable[[ObjectRecord], ObjectRecord], done: str
    ) -> None:
        """See `Coordinator.alter_objects`."""
        core = self._core
        with self._statement():
            edits: list[Edit] = []
            made: dict[int, ObjectRecord] = {}
            for object_id in object_ids:
                before = core.catalog.state.objects.get(object_id)
                if before is None:
                    raise UndefinedObject(f"there is no object {object_id}")
                after = change(before)
                if after.name != before.name:
                    self._check_name(after)
                self._check_owner(after)
                if after != before:
                    text = f'{before.kind} "{before.name}" {done}'
                    edits += [Put(after), AddEvent(f"{before.kind}_altered", object_id, text)]
                    made[object_id] = after
            self._undecided.transact(
                edits,
                lambda state: all(state.objects.get(i) == after for i, after in made.items()),
                lambda state: None,
            )

    def _check_owner(self, record: ObjectRecord) -> None:
        if record.owner and record.owner not in self._core.catalog.state.objects:
            raise UndefinedObject("the role that the object is to belong to does not exist any more")

    def _check_new(self, record: ObjectRecord) -> None:
        self._check_name(record)
        self._check_owner(record)

    def _check_name(self, record: ObjectRecord) -> None:
        if self._core.catalog.state.object_named(record.schema, record.name) is not None:
            if isinstance(record.content, SchemaContent):
                raise DuplicateObject(f'schema "{record.name}" already exists')
            if isinstance(record.content, (SecretContent, RoleContent, ConnectionContent)):
                raise DuplicateObject(f'"{record.name}" already exists')
            raise DuplicateTable(f'relation "{record.name}" already exists')

    def _transact_new(self, edits: list[Edit], object_id: int) -> None:
        def settle(state: CatalogState) -> None:
            if object_id in state.objects:  # It was said not to be created.
                self._core.catalog.transact([Delete("object", object_id)])

        self._undecided.transact(edits, lambda state: object_id in state.objects, settle)

    def may_read(self, group: str, relation_id: int) -> bool:
        """See `Coordinator.may_read`."""
        core = self._core
        group = self.group_named(group)
        with core.lock:
            return group == "own" or core.graph.cycle_of(0, group, (relation_id,)) is None

    def group_named(self, wanted: str | None) -> str:
        """See `Coordinator.group_named`."""
        return wanted or self._core.settings.default_checkpoint_group

    def _group(self, job_id: int, name: str, upstreams: Iterable[int], wanted: str | None) -> str:
        """The checkpoint group of a job. Raises `InvalidParameter` where groups would wait for each other."""
        core = self._core
        group = self.group_named(wanted)
        if group == "own":
            group = own_group(job_id)
        with core.lock:
            circle = core.graph.cycle_of(job_id, group, upstreams)
        if circle is not None:
            shown = " -> ".join(f'"{g}"' for g in circle)
            raise InvalidParameter(
                f'"{name}" cannot be in checkpoint group "{group}": groups would wait for each other',
                detail=f"a group steps as a whole, but these would read one another: {shown}",
                hint="put the views in between into the same group, or this one into another",
            )
        return group

    def _check_move(self, job: Job, group: str) -> None:
        """Raises `StatementError` (55006) where a job of the group is still being created over this one."""
        with self._core.lock:
            reader = None if group == job.group else self._core.graph.filling(job.id, group)
        if reader is not None:
            raise StatementError(
                f'"{job.name}" cannot move to checkpoint group "{group}" now: "{reader.name}" is being created over it',
                sqlstate="55006", hint="try again when that is there, or drop it",
            )  # fmt: skip

    # ---- alter, drop

    def alter(self, job_id: int, paused: bool | None, options: Mapping[str, str] | None) -> None:
        """See `Coordinator.alter_job`."""
        core = self._core
        given = checked_options(options or {})
        with self._statement():
            job = core.graph.jobs.get(job_id)
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
            group = job.group if wanted is None else self._group(job_id, job.name, job.upstreams, wanted)
            with core.committing:
                self._check_move(job, group)
                self._alter(job, paused, given, group)
            core.notify()

    def _alter(self, job: Job, paused: bool | None, given: Mapping[str, str], group: str) -> None:
        """The transaction of an ALTER. The caller holds `committing`: no lane is at a commit."""
        core = self._core
        record = core.catalog.state.jobs[job.id]
        turn = {True: Turn.PAUSE, False: Turn.RESUME, None: None}[paused]
        turned_to, effects = (record, ()) if turn is None else turned(record, turn)
        options = {**record.options, **given}
        moved = group != record.group
        with core.lock:
            joined = (
                not any(j.group == group for j in core.graph.jobs.values() if j is not job) if moved else record.joined
            )
        kind = effects[0] if effects else "job_moved" if moved else "job_altered"
        text = f'job "{job.name}": {kind.removeprefix("job_")}' + (f' to checkpoint group "{group}"' if moved else "")
        altered = replace(turned_to, options=options, group=group, joined=joined)

        def settle(state: CatalogState) -> None:
            with core.committing:
                self._take_up(job, state.jobs[job.id])

        edits: list[Edit] = [Put(altered), AddEvent(kind, job.id, text)]
        self._undecided.transact(edits, lambda state: state.jobs[job.id] == altered, settle)
        self._take_up(job, altered)

    def _take_up(self, job: Job, record: JobRecord) -> None:
        """Let a job be as an ALTER has made its record."""
        core = self._core
        with core.changed:
            job.alter(record)
            core.history.paused(job.id, job.paused, core.clock.monotonic_s())
            core.changed.notify_all()
        self.lanes.launch(job)

    def drop(self, ids: Sequence[int]) -> None:
        """See `Coordinator.drop`."""
        core = self._core
        with self._statement():
            with core.catalog.reading() as state:
                ids = [*ids, *automatic.unused(state, ids)]
            self._check_drop(ids)
            with core.lock:
                jobs = [core.graph.jobs[i] for i in ids if i in core.graph.jobs]
            undecided = len(self._undecided)
            try:
                self.lanes.withdraw(jobs)
                with self._writing_paused(), self._ticking:
                    self._delete(ids, jobs)
            except BaseException:
                if len(self._undecided) == undecided:
                    self._resume(jobs)
                raise
        core.notify()

    def _check_drop(self, ids: Sequence[int]) -> None:
        with self._core.catalog.reading() as state:
            for i in ids:
                if i not in state.objects:
                    raise UndefinedTable(f"object {i} does not exist")
                others = [d for d in state.dependents(i) if d not in ids]
                if isinstance(state.objects[i].content, RoleContent):
                    others += [o.id for o in state.objects.values() if o.owner == i and o.id not in ids]
                if others:
                    name, other = state.objects[i].name, state.objects[others[0]].name
                    raise DependentObjectsExist(
                        f'cannot drop "{name}" because other objects depend on it',
                        detail=f'"{other}" depends on "{name}"',
                        hint="DROP ... CASCADE drops them too",
                    )

    def _delete(self, ids: Sequence[int], jobs: Sequence[Job]) -> None:
        def happened(state: CatalogState) -> bool:
            return not any(i in state.objects for i in ids)

        def settle(state: CatalogState) -> None:
            if happened(state):
                self._dropped(ids)
            else:
                self._resume(jobs)

        self._undecided.transact([Delete("object", i) for i in ids], happened, settle)
        self._dropped(ids)

    def _resume(self, jobs: Sequence[Job]) -> None:
        """They were withdrawn, and are not dropped."""
        for job in jobs:
            with self._core.lock:
                job.reinstate()
            self.lanes.launch(job)

    def _dropped(self, ids: Sequence[int]) -> None:
        core = self._core
        with core.changed:
            for i in ids:
                core.graph.jobs.pop(i, None)
                relation = core.graph.relations.pop(i, None)
                if relation is not None:
                    relation.dropped = True
            core.changed.notify_all()
        core.vault.forget(ids)
        self._forget(ids)
        try:
            for i in ids:
                self._planner.forget(i)
        except Exception:  # they are gone all the same, and the planner of another Spark never hears of them
            if not core.spark_is_lost():
                raise


def _kind(record: ObjectRecord) -> str:
    return record.kind.replace("_", " ")


def _in_order(objects: Iterable[ObjectRecord]) -> list[ObjectRecord]:
    """Each after all that it is built on; ids only grow, so that is their order."""
    return sorted(objects, key=lambda o: o.id)


def recovered_job(
    record: ObjectRecord, job_record: JobRecord, tables: dict[str, int], position: Position | None,
    facts: PlanFacts = NO_FACTS,
) -> Job:  # fmt: skip
    """A job as the catalog has it, without a plan."""
    return Job(
        id=record.id,
        name=record.name,
        upstreams=record.depends_on if job_record.plan.upstreams is None else job_record.plan.upstreams,
        tables=tables,
        standing=Standing.of(job_record, position),
        membership=Membership.of(job_record),
        options=dict(job_record.options),
        lookups=frozenset(job_record.plan.lookups or ()),
        automatic=automatic.is_automatic(record),
        delivers=_delivers(record),
        facts=facts,
    )


def _delivers(record: ObjectRecord) -> bool:
    return isinstance(record.content, SinkContent) and record.content.into is None and delivers(record.options)


def recovered_relation(record: ObjectRecord, state: CatalogState, vault: Vault | None) -> Relation:
    """A relation as the catalog has it; of a source that is not opened, for want of a vault, it is not known how many
    rows were bound.
    """
    content = record.content
    if content.external:
        remaps = state.all_remaps(record.id)
        changes = ChangeLog((r.epoch, r.epoch) for r in remaps)
        source = None if vault is None else _opened(record, vault)
        rows_bound = {} if source is None else _rows_bound(source, remaps)
        in_order = source is not None and _in_order_of_time(record, source)
        known = state.sources.get(record.id)
        return Relation(
            record, changes=changes, rows_by_epoch=rows_bound, bound=bool(remaps), in_order=in_order,
            safe=0 if known is None else known.safe_epoch,
        )  # fmt: skip
    if isinstance(content, SinkContent):
        return Relation(record)
    table = next(t for t in state.tables_of(record.id) if t.operator == ROWS)
    # Above the committed epoch are parts of one that is not finished: nobody sees them yet.
    runs = [r.ref for r in state.runs_of(table.id) if r.ref.epoch_lo <= table.committed_epoch]
    changes = ChangeLog((r.epoch_lo, r.epoch_hi) for r in runs)
    if isinstance(content, PlannedContent) and content.watermark_column is not None and table.committed_epoch:
        changes.add(table.committed_epoch)  # its watermark may have risen then, without any row
    rows: dict[int, int] = {}
    for run in runs:
        if run.constant_epoch:
            rows[run.epoch_lo] = rows.get(run.epoch_lo, 0) + run.rows
    return Relation(record, table.to_table_schema(), table.id, changes, rows, table.safe_epoch)


def _opened(record: ObjectRecord, vault: Vault) -> Source | None:
    """The source, if it can be opened now."""
    try:
        return vault.open(record)
    except HeadraceError:
        return None


def _in_order_of_time(record: ObjectRecord, source: Source) -> bool:
    watermark = declared(record)
    return watermark is not None and watermark.column == source.time_column


def _rows_bound(source: Source, remaps: Sequence[RemapRecord]) -> dict[int, int]:
    """Epoch -> rows that were bound at it, as far as the offsets tell."""
    try:
        start = source.start_offsets()
    except HeadraceError:
        return {}
    rows = ((epoch, source.rows_between(before, to)) for epoch, before, to in moves(remaps, start))
    return {epoch: count for epoch, count in rows if count is not None}


def _disagreement(record: ObjectRecord, job: JobRecord, epochs: Mapping[str, int]) -> CorruptObject | None:
    """What is wrong if the state tables of a job are not all at its own checkpoint: no commit leaves them so."""
    apart = sorted(f"{name} at {epoch}" for name, epoch in epochs.items() if epoch != job.committed_epoch)
    if not apart:
        return None
    return CorruptObject(
        f'the state of {_kind(record)} "{record.name}" is not of one epoch: it is committed at {job.committed_epoch}, '
        f"but {', '.join(apart)}",
        hint="drop it and create it again; look at the storage of the catalog",
    )
