"""Taking up what the catalog holds at a start, and planning it in the Spark that runs, at a start and after a loss."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager

from headrace.catalog.catalog import Catalog
from headrace.catalog.contents import IndexContent, PlannedContent, SinkContent, SourceContent, TableContent
from headrace.catalog.edits import AddEvent, Delete, Put
from headrace.catalog.records import JobRecord, ObjectRecord
from headrace.connectors.sources import retracts
from headrace.coordinator.ddl.lasting import identity_of
from headrace.coordinator.ddl.recovered import disagreement, in_order, kind_of, recovered_job, recovered_relation
from headrace.coordinator.ddl.secrets import Vault
from headrace.coordinator.decide import automatic
from headrace.coordinator.decide.graph import GraphIndex
from headrace.coordinator.decide.job import PlanFacts
from headrace.coordinator.decide.life import Turn, turned
from headrace.coordinator.decide.settlement import settled
from headrace.coordinator.decide.steps import StepPosition, position_of
from headrace.coordinator.decide.view_options import on_error
from headrace.coordinator.decide.watermarks import time_column
from headrace.coordinator.run.application import PLANNING_TRIES, Application
from headrace.coordinator.run.guard import as_headrace_error
from headrace.coordinator.run.lanes import Lanes
from headrace.coordinator.run.live_state import Job, LiveState, Runner, RunnerFactory
from headrace.coordinator.run.locks import Locks
from headrace.coordinator.run.regroup import regroup
from headrace.coordinator.run.runtime import Runtime
from headrace.dataflow.kept_plans import LastingPlan, Outline, PlanFiles
from headrace.errors import CorruptObject, Fenced, HeadraceError, JobFailed, SparkLost
from headrace.plan.planner import Path, PlannedRelation, Planner, ViewPlan
from headrace.plan.stored_plans import stored_query


def spark_name(object_id: int) -> str:
    """The name under which Spark SQL knows a relation."""
    return f"r{object_id}"


class Planning:
    """Recovers relations and jobs, and has them planned. `ddl` is held by whoever defines, plans or changes them.

    `ticking` and `writing_paused` keep sources from being bound and tables from being written while they are taken up.
    """

    def __init__(
        self, live: LiveState, catalog: Catalog, runtime: Runtime, locks: Locks, application: Application,
        vault: Vault, planner: Planner, make_runner: RunnerFactory, lanes: Lanes, ddl: threading.RLock,
        ticking: threading.Lock, writing_paused: Callable[[], AbstractContextManager[None]],
        plans: PlanFiles | None = None,
    ) -> None:  # fmt: skip
        """`plans` is where plans are kept beyond the life of this server; None where they are not."""
        self._plans = plans
        self._deadly: Counter[int] = Counter()
        """View -> how often in a row Spark has ended while this server planned it."""
        self._live = live
        self._catalog = catalog
        self._runtime = runtime
        self._locks = locks
        self._application = application
        self._vault = vault
        self._planner = planner
        self._make_runner = make_runner
        self._lanes = lanes
        self._ticking = ticking
        self._writing_paused = writing_paused
        self.ddl = ddl

    def recover(self) -> None:
        """Take up everything that the catalog holds, as it says. Nothing of it is planned yet: `plan` does that."""
        left = automatic.abandoned(self._catalog.state)
        if left:
            self._catalog.transact([Delete("object", i) for i in left])
        # Who takes over writes to tables meanwhile: what becomes of that is noted in the relations that are there.
        with self._writing_paused(), self._ticking, self._catalog.reading() as state:
            objects = in_order(o for o in state.objects.values() if o.content.in_graph)
            jobs = dict(state.jobs)
            relations = {o.id: recovered_relation(o, state, self._vault) for o in objects}
            tables = {i: {t.operator: t.id for t in state.tables_of(i)} for i in jobs}
            positions = {i: position_of(state.positions_of(i)) for i in jobs}
            epochs = {i: {t.operator: t.committed_epoch for t in state.tables_of(i)} for i in jobs}
            with self._live.lock:
                self._live.graph.relations.update(relations)
        for record in objects:
            if record.content.has_job:
                found = disagreement(record, jobs[record.id], epochs[record.id])
                self._recover_view(record, jobs[record.id], tables[record.id], positions[record.id], found)

    def _settle(self, group: str) -> None:
        """Find out which jobs of a group move in step, and let all of it run; views may have been created into it."""
        live = self._live
        regroup(
            self._catalog, self._locks.committing, live.lock, self._lanes.launch,
            lambda state: settled(live.graph, state, group),
        )  # fmt: skip

    def _recover_view(
        self, record: ObjectRecord, job_record: JobRecord, tables: dict[str, int], position: StepPosition | None,
        corrupt: CorruptObject | None,
    ) -> None:  # fmt: skip
        job = recovered_job(record, job_record, tables, position, PlanFacts(awaited=corrupt is None))
        if corrupt is not None:
            self._cannot_be_planned(record, job, corrupt)
        with self._live.lock:
            self._live.graph.jobs[job.id] = job

    def define(self) -> None:
        """Tell the planner, which has just been given a Spark, of all that there is. The caller holds `ddl`."""
        live = self._live
        with self._locks.committing, live.lock:  # What is still to be committed is not any more.
            for job in live.graph.jobs.values():
                job.void()
        with self._catalog.reading() as state:
            objects = in_order(o for o in state.objects.values() if o.content.in_graph)
        for record in objects:
            self._define(record)

    def plan(self) -> None:
        """Plan all views, in the Spark application that the planner is in, after `define`.

        A view that cannot be planned as before is quarantined. A group begins to run as soon as its views are planned;
        those that have something to take in come first. Raises `SparkLost` if the application has ended.
        """
        left = set(self._live.graph.jobs)
        if self._plans is not None:
            self._plans.tidy(left)
        while left and not self._runtime.stopping:
            with self.ddl:  # for each group by itself: what needs no plan is not to wait for all of them
                jobs = self._next_group(left)
                left -= {job.id for job in jobs}
                for job in jobs:
                    self._plan_job(job)
                if not jobs:
                    break
                self._settle(jobs[0].group)
        # All went well beside those that are given up: when Spark ends another time, that has another reason.
        self._deadly = Counter({i: n for i, n in self._deadly.items() if n >= PLANNING_TRIES})

    def _next_group(self, left: Collection[int]) -> list[Job]:
        """The jobs out of these of one group, of one that has something to take in if there is any; empty for none."""
        live = self._live
        known = GraphIndex()
        with live.lock:
            jobs = [job for i, job in sorted(live.graph.jobs.items()) if i in left]
            behind = (job for job in jobs if live.graph.job_frontier(job, known) < live.graph.complete)
            first = next(behind, next(iter(jobs), None))
            return [job for job in jobs if first is not None and job.group == first.group]

    def _plan_job(self, job: Job) -> None:
        live = self._live
        with self._catalog.reading() as state:
            record, job_record = state.objects[job.id], state.jobs[job.id]
        plan: ViewPlan | Outline | None = None
        runner: Runner | None = None
        try:
            if isinstance(job.error, CorruptObject) and job.quarantined:
                return
            lasting = None if job.quarantined else self._kept(record, job_record, job.tables)
            if lasting is not None:
                plan, runner = lasting.outline, self._runner_of(lasting, lasting.outline.upstreams)
            else:
                plan = made = self._plan_or_refuse(record, job_record, job.tables)
                runner = self.runner(made, record, job_record)
            if job.starting and job.quarantined:
                self._turn(job, Turn.PLANNED)
        except Fenced:
            raise
        except Exception as error:
            if self._application.is_lost():
                raise error if isinstance(error, SparkLost) else SparkLost(f"Spark ended again: {error}") from error
            self._cannot_be_planned(record, job, as_headrace_error(error))
        with live.changed:
            job.take_plan(plan, runner)
            live.changed.notify_all()

    def _plan_or_refuse(
        self, record: ObjectRecord, job_record: JobRecord, tables: Mapping[str, int]
    ) -> ViewPlan:  # fmt: skip
        """A stored view's plan. Raises what `_plan` does, and `JobFailed` for a view of which the planning has ended
        Spark again and again: all others go on.
        """
        found, name = self._deadly[record.id], f'{kind_of(record)} "{record.name}"'
        if found >= PLANNING_TRIES:
            raise JobFailed(
                f"Spark has ended {found} times in a row while {name} was planned",
                hint="its rows stay readable, and the next start of the server tries again; "
                "see spark.log, and whether spark_driver_memory_mb is enough",
            )
        try:
            plan = self._plan(record, job_record, tables)
        except Fenced:
            raise
        except Exception as error:
            if self._application.is_lost():
                self._deadly[record.id] += 1
                raise SparkLost(f"Spark ended while {name} was planned", detail=str(error)) from error
            raise
        self._deadly.pop(record.id, None)
        return plan

    def _cannot_be_planned(self, record: ObjectRecord, job: Job, error: HeadraceError) -> None:
        with self._live.lock:
            job.tell(error, self._runtime.clock.now_ms())
        self._turn(job, Turn.UNPLANNABLE, f'{kind_of(record)} "{record.name}" is quarantined: {error.message}')

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
            plan = plan.into_table(len(self._catalog.state.objects[content.into].primary_key))
        elif isinstance(content, SinkContent):
            plan = plan.into(record.options)
        elif isinstance(content, IndexContent):
            plan = plan.keyed(len(content.key))
        if plan.fingerprint != job_record.plan.fingerprint or set(plan.state_tables()) != set(tables):
            raise JobFailed(
                f'the plan of {kind_of(record)} "{record.name}" is not the one that its state was made by',
                hint="its rows stay readable; drop the view and create it again to have it kept up to date",
            )
        return plan

    def _turn(self, job: Job, turn: Turn, text: str = "") -> None:
        """Let a job take a turn in its life, durably.

        It commits nothing itself meanwhile, but views above may take it along in their commits: between the look at its
        record and the transaction none comes, which would be written over.
        """
        with self._locks.committing:
            before = self._catalog.state.jobs[job.id]
            record, effects = turned(before, turn)
            if record != before:
                self._catalog.transact([Put(record), *(AddEvent(said, job.id, text) for said in effects)])
            with self._live.lock:
                job.turn(turn)

    def _kept(
        self, record: ObjectRecord, job_record: JobRecord, tables: Mapping[str, int]
    ) -> LastingPlan | None:  # fmt: skip
        """What an earlier server has kept of a plan, if it would be made just so again; all of it is made when asked
        for.
        """
        files, generation = self._plans, self.generation
        if self._deadly[record.id]:  # its planning may end Spark again: not in an epoch that others wait for
            return None
        identity = self._identity(record, job_record, tables)
        if files is None or identity is None or (found := files.find(record.id, identity)) is None:
            return None

        again = SparkLost("Spark was started again while the view was planned")

        def make() -> ViewPlan:
            try:
                plan = self._plan_or_refuse(record, job_record, tables)
            except Exception as error:
                if self.generation != generation:  # there is nothing defined yet where it was planned
                    raise again from error
                if not isinstance(error, SparkLost):  # the next start finds out that it cannot be planned any more
                    files.forget(record.id)
                raise
            if plan.generation != generation:
                raise again
            return plan

        return LastingPlan(found.outline, make, found.forms, lambda kept: files.keep(record.id, identity, kept))

    def runner(self, plan: ViewPlan, record: ObjectRecord, job: JobRecord) -> Runner:
        """The runner of a job with a plan that has just been made. The caller holds `ddl`."""
        files, identity = self._plans, self._identity(record, job, plan.state_tables())
        if files is None or identity is None:
            return self._runner_of(plan, plan.upstreams)
        lasting = LastingPlan.of(plan, lambda kept: files.keep(record.id, identity, kept))
        return self._runner_of(lasting, plan.upstreams)

    def _identity(self, record: ObjectRecord, job: JobRecord, tables: Iterable[str]) -> str | None:
        """What a plan follows from, Spark's own properties among it; None for one that is not kept."""
        if self._plans is None:
            return None
        with self._catalog.reading() as state:
            found = identity_of(state, record, job, tables)
        return None if found is None else f"{found}-{self._planner.bridge.properties}"

    def _runner_of(self, plan: ViewPlan | LastingPlan, upstreams: Sequence[int]) -> Runner:
        return self._make_runner(plan, {i: self._live.graph.relation(i).schema for i in upstreams})

    def define_new(self, record: ObjectRecord) -> None:
        """Tell the planner of what has just become durable, unless Spark has ended: its successor is told of all."""
        try:
            self._define(record)
        except Exception:
            if not self._application.is_lost():
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
        fixed = fixed and not (content.external and retracts(record.options))
        self._planner.define(
            PlannedRelation(record.id, record.name, fixed, time_column(record), primary_key=record.primary_key),
            record.columns,
            spark_name(record.id),
        )

    @property
    def generation(self) -> int:
        """Which Spark application the planner is in."""
        return self._planner.generation

    def forget(self, ids: Sequence[int]) -> None:
        """Objects are dropped; the planner of another Spark never hears of them."""
        if self._plans is not None:
            for i in ids:
                self._plans.forget(i)
        try:
            for i in ids:
                self._planner.forget(i)
        except Exception:  # they are gone all the same
            if not self._application.is_lost():
                raise
