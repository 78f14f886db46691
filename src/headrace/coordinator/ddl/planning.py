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
from headrace.coordinator.ddl.recovered import (
    disagreement,
    in_order,
    recovered_job,
    recovered_relation,
    rows_schema,
)
from headrace.coordinator.ddl.secrets import Vault
from headrace.coordinator.decide import automatic, unused
from headrace.coordinator.decide.graph import GraphIndex
from headrace.coordinator.decide.job import PlanFacts
from headrace.coordinator.decide.life import Turn, turned
from headrace.coordinator.decide.settlement import settled
from headrace.coordinator.decide.steps import StepPosition, position_of
from headrace.coordinator.decide.view_options import on_error
from headrace.coordinator.decide.watermarks import time_column
from headrace.coordinator.run.application import PLANNING_TRIES, SUSPECT_MOST_S, SUSPECT_S, Application
from headrace.coordinator.run.guard import as_headrace_error
from headrace.coordinator.run.lanes import Lanes
from headrace.coordinator.run.live_state import Job, LiveState, Runner, RunnerFactory
from headrace.coordinator.run.locks import Locks
from headrace.coordinator.run.regroup import regroup
from headrace.coordinator.run.runtime import Runtime
from headrace.dataflow.kept_plans import Kept, LastingPlan, Outline, PlanFiles
from headrace.errors import CorruptObject, Fenced, HeadraceError, JobFailed, NotPlannable, SparkLost
from headrace.plan.planner import Path, PlannedRelation, Planner, ViewPlan
from headrace.plan.stored_plans import stored_query


def spark_name(object_id: int) -> str:
    """The name under which Spark SQL knows a relation."""
    return f"r{object_id}"


def _earlier_name(source_id: int, width: int) -> str:
    """The name under which it knows a source with the first columns alone."""
    return f"{spark_name(source_id)}_{width}"


class Planning:
    """Recovers relations and jobs, and has them planned. `ddl` is held by whoever defines, plans or changes them.

    `ticking` and `writing_paused` keep sources from being bound and tables from being written while they are taken up.
    """

    def __init__(
        self, live: LiveState, catalog: Catalog, runtime: Runtime, locks: Locks, application: Application,
        vault: Vault, planner: Planner, make_runner: RunnerFactory, kept_runner: Callable[[Kept], Runner], lanes: Lanes,
        ddl: threading.RLock,
        ticking: threading.Lock, writing_paused: Callable[[], AbstractContextManager[None]],
        plans: PlanFiles | None = None,
    ) -> None:  # fmt: skip
        """`plans` is where plans are kept beyond the life of this server; None where they are not. `kept_runner` makes
        a runner of what is kept, which needs no Spark.
        """
        self._plans = plans
        self._deadly: Counter[int] = Counter()
        """View -> how often in a row Spark has ended while this server planned it."""
        self._suspects: dict[int, float] = {}
        """View that is given up for that -> the moment of the monotonic clock at which it is tried again."""
        self._live = live
        self._catalog = catalog
        self._runtime = runtime
        self._locks = locks
        self._application = application
        self._vault = vault
        self._planner = planner
        self._make_runner = make_runner
        self._kept_runner = kept_runner
        self._lanes = lanes
        self._ticking = ticking
        self._writing_paused = writing_paused
        self.ddl = ddl

    def recover(self) -> None:
        """Take up everything that the catalog holds, as it says. Nothing of it is planned yet: `plan` does that."""
        left = unused.abandoned(self._catalog.state)
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
                if self._application.starts and job.runner is not None:
                    job.await_plan()  # which it was given by `take_kept`
                job.void()
        with self._catalog.reading() as state:
            objects = in_order(o for o in state.objects.values() if o.content.in_graph)
        for record in objects:
            self._define(record)

    def take_kept(self) -> None:
        """Let the groups run of which all plans are kept, before there is a Spark: those that are behind come first."""
        left = set(self._live.graph.jobs)
        while left and not self._runtime.stopping:
            with self.ddl:
                jobs = self._next_group(left)
                if not jobs or not self._application.starts:  # the rest is dropped, or Spark is there
                    return
                left -= {job.id for job in jobs}
                found = [self._kept_of(job) for job in jobs]
                kept = [one for one in found if one is not None]
                if len(kept) < len(jobs):
                    continue
                with self._live.changed:
                    for job, one in zip(jobs, kept, strict=True):
                        job.take_plan(one.outline, self._kept_runner(one))
                self._settle(jobs[0].group)

    def _kept_of(self, job: Job) -> Kept | None:
        """What is kept of the plan of a job that can run; None where there is nothing to be used."""
        with self._catalog.reading() as state:
            record, job_record = state.objects.get(job.id), state.jobs.get(job.id)
            if self._plans is None or record is None or job_record is None or job.quarantined:
                return None
            identity = identity_of(state, record, job_record, job.tables)
        return None if identity is None else self._plans.find(job.id, identity, None)

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

    def plan_suspect(self) -> None:
        """Plan a view once more that was given up since Spark has ended while it was planned, if it is time: whatever
        ended it, a lack of memory of the machine's, may be over. One at a time, with nothing else being planned: what
        then ends Spark is this one. Raises `SparkLost` if it does.
        """
        now_s = self._runtime.clock.monotonic_s()
        due = next((i for i, at_s in list(self._suspects.items()) if at_s <= now_s), None)
        if due is None or self._runtime.stopping:
            return
        with self.ddl:
            del self._suspects[due]
            job = self._live.graph.jobs.get(due)
            if job is None or not job.quarantined:
                del self._deadly[due]
                return
            self._plan_job(job, suspected=True)
            self._settle(job.group)

    def _next_group(self, left: Collection[int]) -> list[Job]:
        """The jobs out of these of one group, of one that has something to take in if there is any; empty for none."""
        live = self._live
        known = GraphIndex()
        with live.lock:
            jobs = [job for i, job in sorted(live.graph.jobs.items()) if i in left]
            behind = (job for job in jobs if live.graph.job_frontier(job, known) < live.graph.complete)
            first = next(behind, next(iter(jobs), None))
            return [job for job in jobs if first is not None and job.group == first.group]

    def _plan_job(self, job: Job, *, suspected: bool = False) -> None:
        """Plan a job, or quarantine it; what is `suspected` to end Spark, too."""
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
                plan = made = self._plan_or_refuse(record, job_record, job.tables, suspected=suspected)
                runner = self.runner(made, record, job_record)
            if (job.starting or suspected) and job.quarantined:
                self._turn(job, Turn.PLANNED)
        except Fenced:
            raise
        except Exception as error:
            if self._application.is_lost():
                raise error if isinstance(error, SparkLost) else SparkLost(f"Spark ended again: {error}") from error
            self._cannot_be_planned(record, job, as_headrace_error(error))
        with live.changed:
            job.take_plan(plan, runner)
            if suspected and not job.quarantined:
                job.recover()
            live.changed.notify_all()

    def _plan_or_refuse(
        self, record: ObjectRecord, job_record: JobRecord, tables: Mapping[str, int], *, suspected: bool = False
    ) -> ViewPlan:
        """A stored view's plan. Raises what `_plan` does, and `JobFailed` for a view of which the planning has ended
        Spark again and again, unless it is to be planned though it is `suspected`: all others go on.
        """
        found, name = self._deadly[record.id], record.in_words
        if found >= PLANNING_TRIES and not suspected:
            tried = found - PLANNING_TRIES
            pause_s = min(SUSPECT_S * 2.0 ** min(tried, 16), SUSPECT_MOST_S)
            self._suspects.setdefault(record.id, self._runtime.clock.monotonic_s() + pause_s)
            raise JobFailed(
                f"Spark has ended {found} times in a row while {name} was planned",
                hint="its rows stay readable; it is tried again after a while, and by the next start of the server; "
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
        self._turn(job, Turn.UNPLANNABLE, f"{record.in_words} is quarantined: {error.message}")

    def _plan(self, record: ObjectRecord, job_record: JobRecord, tables: Mapping[str, int]) -> ViewPlan:
        """A stored view's plan. Raises `JobFailed` if it is not the one that its state was made by."""
        content = record.content_as(PlannedContent)
        arrangements = job_record.plan.arrangements or ()
        query = stored_query(self._planner, content, self._as_made(record.id))
        plan = self._planner.plan(
            query, on_window_close=content.emit_on_window_close, arrangements=arrangements,
            on_error=on_error(job_record.options),
        )  # fmt: skip
        if isinstance(content, SinkContent) and content.into is not None:
            plan = plan.into_table(len(self._catalog.state.objects[content.into].primary_key))
        elif isinstance(content, SinkContent):
            table = content.dead_letters
            plan = plan.into(record.options, None if table is None else rows_schema(self._catalog.state.objects[table]))
        elif isinstance(content, IndexContent):
            plan = plan.keyed(len(content.key))
        if plan.fingerprint != job_record.plan.fingerprint or set(plan.state_tables()) != set(tables):
            raise JobFailed(
                f"the plan of {record.in_words} is not the one that its state was made by",
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
        if files is None or identity is None or (found := files.find(record.id, *identity)) is None:
            return None

        again = SparkLost("Spark was started again while the view was planned")

        def make() -> ViewPlan:
            try:
                plan = self._plan_or_refuse(record, job_record, tables)
            except Exception as error:
                if self.generation != generation:  # there is nothing defined yet where it was planned
                    raise again from error
                if isinstance(error, (Fenced, SparkLost)):
                    raise
                files.forget(record.id)  # the next start, too, finds out that it cannot be planned any more
                found = as_headrace_error(error)
                raise NotPlannable(found.message, hint=found.hint, detail=found.detail) from error
            if plan.generation != generation:
                raise again
            return plan

        return LastingPlan(found.outline, make, found.forms, lambda kept: files.keep(record.id, *identity, kept))

    def runner(self, plan: ViewPlan, record: ObjectRecord, job: JobRecord) -> Runner:
        """The runner of a job with a plan that has just been made. The caller holds `ddl`."""
        files, identity = self._plans, self._identity(record, job, plan.state_tables())
        if files is None or identity is None:
            return self._runner_of(plan, plan.upstreams)
        lasting = LastingPlan.of(plan, lambda kept: files.keep(record.id, *identity, kept))
        return self._runner_of(lasting, plan.upstreams)

    def _as_made(self, object_id: int) -> dict[str, tuple[int, str]]:
        """Names of the sources that have got columns since an object was made, with their ids and what they were."""
        found = {}
        for source in self._catalog.state.objects_of(SourceContent):
            width = source.content_as(SourceContent).width_before(object_id)
            if width is not None:
                found[spark_name(source.id)] = source.id, _earlier_name(source.id, width)
        return found

    def _identity(self, record: ObjectRecord, job: JobRecord, tables: Iterable[str]) -> tuple[str, str] | None:
        """What a plan follows from, and Spark's own properties; None for one that is not kept."""
        if self._plans is None:
            return None
        with self._catalog.reading() as state:
            found = identity_of(state, record, job, tables)
        return None if found is None else (found, self._planner.bridge.properties)

    def _runner_of(self, plan: ViewPlan | LastingPlan, upstreams: Sequence[int]) -> Runner:
        return self._make_runner(plan, {i: self._live.graph.relation(i).schema for i in upstreams})

    def define_new(self, record: ObjectRecord) -> None:
        """Tell the planner of what has just become durable, unless Spark has ended: its successor is told of all."""
        try:
            self._define(record)
        except Exception:
            if not self._application.is_lost():
                raise

    def define_altered(self, record: ObjectRecord) -> None:
        """Tell the planner of another name of something, and of what an index has become."""
        try:
            if isinstance(record.content, IndexContent):
                self._planner.forget(record.id)
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
            lasting = automatic.is_lasting(record)
            path = Path(record.id, content.called or record.name, content.key, columns, False, lasting)
            self._planner.define_path(content.on, path)
            return
        fixed = isinstance(content, (TableContent, SourceContent, PlannedContent)) and content.append_only
        fixed = fixed and not (content.external and retracts(record.options))
        name = content.called or record.name
        relation = PlannedRelation(record.id, name, fixed, time_column(record), primary_key=record.primary_key)
        self._planner.define(relation, record.columns, spark_name(record.id))
        for _, width in content.widths if isinstance(content, SourceContent) else ():
            self._planner.define_earlier(relation, record.columns[:width], _earlier_name(record.id, width))

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
