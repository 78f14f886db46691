"""A database for simulations: the coordinator's decisions are the real ones, rows, Spark and the disk are dicts.

Rows are integers, and so are their keys. What is durable is a real `CatalogState`, changed by the catalog's own rules,
and the rows of each run by its path. Everything else is lost in a crash.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field, replace
from typing import Any

import pyarrow as pa

from headrace.catalog.contents import CONTENTS, MaterializedViewContent, SourceContent, TableContent
from headrace.catalog.edits import AdvanceJob, CommitTable, Delete, Edit, Put, RaiseSafe, plan_change
from headrace.catalog.records import (
    JobPlan,
    JobRecord,
    ObjectRecord,
    RemapRecord,
    RunRecord,
    SourceRecord,
    StateTableRecord,
    run_id,
)
from headrace.catalog.state import CatalogState
from headrace.common.epoch import epoch_ms
from headrace.common.lazy_dataclass import dataclass
from headrace.coordinator.decide.exact import ChangeLog
from headrace.coordinator.decide.graph import Graph
from headrace.coordinator.decide.group_epoch import GroupEpoch, JobPart
from headrace.coordinator.decide.job import JobState, PlanFacts
from headrace.coordinator.decide.life import Life, Turn, turned
from headrace.coordinator.decide.membership import Membership
from headrace.coordinator.decide.relation import RelationState
from headrace.coordinator.decide.settlement import settled
from headrace.coordinator.decide.standing import Standing
from headrace.coordinator.decide.steps import LOWEST_KEY, position_of
from headrace.coordinator.decide.targets import safe_epoch
from headrace.coordinator.decide.work import Work, lookup_refs
from headrace.errors import DivisionByZero
from headrace.plan.watermark_rules import EventTime
from headrace.state.schema import ROWS, RunRef, TableSchema

Rows = Counter[int]
SCHEMA = TableSchema((pa.field("n", pa.int64()),), (), ((pa.field("__w", pa.int64()), "add"),))
KINDS = ("union", "distinct", "join", "shared", "total", "balanced", "timed")
JOINS = ("join", "shared")
"""A shared one keeps its left side and looks its right one up."""
START_MS = epoch_ms(0)


def source_row(n: int) -> int:
    """The n-th row of every source."""
    return (n * 7) % 23


# ---- what a view is: a function of its inputs


def joined(left: Rows, right: Rows) -> Rows:
    """All pairs whose numbers have the same rest by three."""
    found: dict[int, int] = {}
    for a, m in left.items():
        for b, n in right.items():
            if (a - b) % 3 == 0:
                row = a % 3 * 10 + b % 4
                found[row] = found.get(row, 0) + m * n
    return Counter(found)


def summed(parts: Iterable[Rows]) -> Rows:
    """Weights added up."""
    found: dict[int, int] = {}
    for part in parts:
        for row, weight in part.items():
            found[row] = found.get(row, 0) + weight
    return Counter(found)


def clean(rows: Rows) -> dict[int, int]:
    """Rows that are there."""
    return {row: weight for row, weight in rows.items() if weight}


def times_of(row: int) -> tuple[int, int]:
    """When a row enters and leaves a timed view, in milliseconds since epoch 0."""
    enters = row * 5 % 17
    return enters, enters + 1 + row * 3 % 11


def passing(rows: Rows, epoch: int) -> Rows:
    """The rows that a timed view has at an epoch."""
    now = epoch >> 16
    return Counter({row: n for row, n in rows.items() if times_of(row)[0] <= now < times_of(row)[1]})


def due_us(rows: Rows, epoch: int) -> int | None:
    """When a timed view changes next, in Unix microseconds."""
    times = [t for row, n in rows.items() if n for t in times_of(row) if t > epoch >> 16]
    return (START_MS + min(times)) * 1000 if times else None


def evaluate(kind: str, inputs: Sequence[Rows], epoch: int) -> Rows:
    """The view by its definition."""
    if kind in JOINS:
        return joined(inputs[0], inputs[-1])
    rows = summed(inputs)
    if kind == "timed":
        return passing(rows, epoch)
    if kind == "distinct":
        return Counter({row % 6: 1 for row, weight in rows.items() if weight})
    if kind == "total":
        return Counter({sum(rows.values()): 1})
    return rows


def tables_of(kind: str) -> tuple[str, ...]:
    """The state tables of a view."""
    if kind in JOINS:
        return (ROWS, "0/left", "0/right") if kind == "join" else (ROWS, "0/left")
    return (ROWS, "0/state")


def changes_only(kind: str, inputs: Sequence[int]) -> frozenset[int]:
    """Inputs whose content is looked up and never read."""
    return frozenset(inputs[1:]) - {inputs[0]} if kind == "shared" else frozenset()


def increment(kind: str, deltas: Sequence[Rows], state: dict[str, Rows], initial: bool, epoch: int) -> dict[str, Rows]:
    """One step of a view: from the change of its inputs and its state to what is written to its state tables.

    `balanced` refuses a state in which its rows do not add up to zero: between two epochs there is none.
    """
    if kind in JOINS:
        left, right = state["0/left"], state["0/right"]
        dl, dr = deltas[0], deltas[-1]
        out = summed([joined(dl, summed([right, dr])), joined(left, dr)])
        return {ROWS: out, "0/left": dl, **({"0/right": dr} if kind == "join" else {})}
    before, delta = state["0/state"], summed(deltas)
    after = summed([before, delta])
    if kind == "union":
        return {ROWS: delta, "0/state": delta}
    if kind == "timed":
        change = passing(after, epoch)
        change.subtract(state[ROWS])
        return {ROWS: change, "0/state": delta}
    if kind == "balanced":
        if sum(row * weight for row, weight in after.items()):
            raise DivisionByZero("a state that never was")
        return {ROWS: delta, "0/state": delta}
    assert all(weight >= 0 for weight in after.values()), "a row is taken back that was never there"
    old = Counter[int]() if initial else evaluate(kind, [before], epoch)
    out = evaluate(kind, [after], epoch)
    out.subtract(old)
    return {ROWS: out, "0/state": delta}


# ---- the database


def stand(job: JobState, **changes: Any) -> None:
    """Let a job be somewhere else than its commits have brought it."""
    job.standing = replace(job.standing, **changes)


def stand_at(job: JobState, epoch: int) -> None:
    """Let a job be committed, and exact, at one epoch."""
    stand(job, committed=epoch, exact=((epoch, epoch),))


@dataclass
class SimJob(JobState):
    """A job, and what stands for its failures."""

    kind: str = "union"
    poisoned: bool = False


class World(Graph[RelationState, SimJob]):
    """What is durable, what is in memory, and the model that both are checked against."""

    def __init__(self) -> None:
        super().__init__(lambda: min(self.under_way) - 1 if self.under_way else self.newest)
        self.state = CatalogState()
        self.rows: dict[str, list[tuple[int, int, int]]] = {}
        """Path of a run -> (row, epoch, weight)."""
        self.writes: dict[int, list[tuple[int, Rows]]] = {}
        """The model: table -> (epoch, change)."""
        self.newest = 1 << 16
        self.under_way: set[int] = set()
        self.floor: dict[int, int] = {}
        self.pinned: list[tuple[int, int]] = []
        """(Relation, epoch) that a reader holds."""
        self.shown: dict[tuple[int, int], tuple[tuple[int, int], ...]] = {}
        self.pinned_by_epochs: Callable[[], list[tuple[int, int]]] = list
        """The same of epochs that are under way."""
        self.names = 0
        self.transactions = 0
        self.known: dict[tuple[int, int], Rows] = {}
        self.timed = False
        """Views cut the ranges of sources where a watermark has risen."""
        self.pruned = 0
        """Bindings that were deleted."""

    # ---- time

    def begin(self) -> int:
        """A new epoch, under way."""
        self.newest += 1 << 16
        self.under_way.add(self.newest)
        return self.newest

    def id(self) -> int:
        """A new id, larger than all others."""
        self.names += 1
        return self.names

    # ---- durable changes

    def transact(self, edits: Sequence[Edit]) -> None:
        """Apply edits by the catalog's rules, and check what must hold after every transaction."""
        before = {i: j.committed_epoch for i, j in self.state.jobs.items()}
        remaps = [r for s in self.relations.values() if s.external for r in self.state.all_remaps(s.id)[-2:]]
        self.state.apply(plan_change(self.state, edits, 0))
        self.transactions += 1
        for i, job in self.state.jobs.items():
            assert job.committed_epoch >= before.get(i, 0), "I6: a committed epoch went back"
            for up in job.plan.upstreams or ():
                if job.committed_epoch and up in self.state.jobs:
                    assert self.state.jobs[up].committed_epoch >= job.committed_epoch, "PC-16"
            assert len({t.committed_epoch for t in self.state.tables_of(i)} | {job.committed_epoch}) == 1, "PC-47"
        gone = {e.key for e in edits if isinstance(e, Delete) and e.collection == "remap"}
        for remap in [r for r in remaps if r.key not in gone]:
            assert self.state.remap(*remap.key) == remap, "I12: a binding changed"

    def create(self, kind: str, name: str = "") -> int:
        """A table or a source."""
        made = self.id()
        record = ObjectRecord(made, CONTENTS[kind](), "public", name or f"{kind}{made}")
        relation = RelationState(record)
        edits: list[Edit] = [Put(record)]
        if kind == "table":
            relation.state_table, relation.schema = self.id(), SCHEMA
            edits.append(Put(JobRecord(made, f"table-{made}", "created")))
            edits.append(Put(StateTableRecord.from_table_schema(relation.state_table, made, ROWS, SCHEMA)))
        self.writes[made] = []
        self.transact(edits)
        self.relations[made] = relation
        return made

    def create_view(self, kind: str, inputs: tuple[int, ...], group: str | None) -> int | None:
        """A view; None if its group would make a circle."""
        made = self.id()
        group = group or f"job-{made}"
        if self.cycle_of(made, group, inputs) is not None:
            return None
        tables = {name: self.id() for name in tables_of(kind)}
        joined = not any(j.group == group for j in self.jobs.values())
        record = ObjectRecord(
            made, MaterializedViewContent(), "public", f"v{made}", depends_on=tuple(dict.fromkeys(inputs))
        )
        plan = JobPlan(upstreams=record.depends_on, more={"query": kind, "inputs": inputs})
        edits: list[Edit] = [Put(record), Put(JobRecord(made, group, "creating", plan=plan, joined=joined))]
        edits += [Put(StateTableRecord.from_table_schema(i, made, n, SCHEMA)) for n, i in tables.items()]
        self.transact(edits)
        self.relations[made] = RelationState(record, SCHEMA, tables[ROWS])
        ups = tuple(dict.fromkeys(inputs))
        self.jobs[made] = SimJob(
            made, f"v{made}", ups, tables, Standing.of(self.state.jobs[made]), Membership.of(self.state.jobs[made]),
            facts=self._facts(kind, inputs), kind=kind,
        )  # fmt: skip
        return made

    def _facts(self, kind: str, inputs: Sequence[int]) -> PlanFacts:
        """What the plan of a view tells; that its times are watched, too, though nothing is late or closed."""
        timed = EventTime(frozenset(i for i in inputs if self.timed and self.relations[i].external))
        return PlanFacts(timed, temporal=kind == "timed", changes_only=changes_only(kind, inputs))

    def drop(self, view: int) -> None:
        """A view that nothing is built on."""
        self.jobs[view].withdraw()
        self.transact([Delete("object", view)])
        del self.jobs[view], self.relations[view]

    def alter(self, view: int, **changes: Any) -> None:
        """Change a job's record and what is in memory of it."""
        job = self.jobs[view]
        if "group" in changes:
            changes["joined"] = not any(j.group == changes["group"] for j in self.jobs.values() if j is not job)
        self.transact([Put(replace(self.state.jobs[view], **changes))])
        job.alter(self.state.jobs[view])

    def turn(self, view: int, turn: Turn) -> None:
        """Let a job take a turn in its life, durably and in memory."""
        record, _ = turned(self.state.jobs[view], turn)
        self.transact([Put(record)])
        self.jobs[view].turn(turn)
        assert self.jobs[view].life == Life.of(record)

    def write(self, table: int, change: Rows, epoch: int) -> None:
        """Rows of a table, durable at an epoch that is under way."""
        relation = self.relations[table]
        ref = self.store(relation.state_table, f"t{table}", clean(change), epoch)
        assert ref is not None
        self.transact([Put(RunRecord(ref, 0, 0)), CommitTable(ref.table_id, epoch), AdvanceJob(table, epoch, epoch)])
        self.writes[table].append((epoch, change))
        relation.changed(epoch, ref.rows, ref.length)

    def bind(self, source: int, count: int, epoch: int, mark: int | None = None) -> None:
        """More rows of a source, at an epoch that is under way; its watermark is as it was without `mark`."""
        newest = self.state.newest_remap(source)
        before = 0 if newest is None else newest.offsets["0"]
        mark = newest.watermark_us if mark is None and newest is not None else mark
        self.transact([Put(RemapRecord(source, epoch, {"0": before + count}, mark))])
        self.writes[source].append((epoch, Counter({0: before + count})))
        self.relations[source].changed(epoch, count)
        self.relations[source].bound = True

    def store(self, table: int, name: str, change: dict[int, int], epoch: int) -> RunRef | None:
        """Rows of a state table as a run."""
        return self.store_all(table, name, [(row, epoch, weight) for row, weight in change.items() if weight])

    def store_all(self, table: int, name: str, rows: list[tuple[int, int, int]]) -> RunRef | None:
        """Rows with their epochs as a run."""
        if not rows:
            return None
        path = f"{name}/{len(self.rows)}.run"
        self.rows[path] = rows
        keys, epochs = [r[0] for r in rows], [r[1] for r in rows]
        size = sum(1 + row[0] % 40 for row in rows)
        return RunRef(table, path, 0, size, len(rows), min(epochs), max(epochs), min(keys), max(keys))

    def merge(self, table: int, pick: Callable[[list[RunRef]], list[RunRef]]) -> None:
        """Compaction: raise the safe epoch and merge some runs, at or below the checkpoint or above it."""
        record = self.state.state_tables[table]
        relation = self.relations.get(record.job_id)
        safe = record.committed_epoch
        if relation is not None and relation.state_table == table:
            pins = [e for i, e in [*self.pinned, *self.pinned_by_epochs()] if i == relation.id]
            committed = min(record.committed_epoch, self.complete)
            readers = self.log_readers(relation.id)
            relation.safe = safe = safe_epoch(relation.safe, committed, self.newest, pins, readers)
        refs = [r.ref for r in self.state.runs_of(table)]
        for part in ([r for r in refs if r.epoch_hi <= record.committed_epoch], [
            r for r in refs if r.epoch_hi > record.committed_epoch]):  # fmt: skip
            chosen = pick(part)
            if len(chosen) < 2:
                continue
            floor = max((min(r.epoch_hi, safe) for r in chosen if r.epoch_lo <= safe), default=safe)
            found: Counter[tuple[int, int]] = Counter()
            for ref in chosen:
                for row, epoch, weight in self.rows[ref.path]:
                    found[row, floor if epoch <= safe else epoch] += weight
            made = self.store_all(table, f"m{table}", [(row, e, w) for (row, e), w in found.items() if w])
            edits: list[Edit] = [Delete("run", run_id(ref)) for ref in chosen]
            if safe > self.state.state_tables[table].safe_epoch:
                edits.append(RaiseSafe(table, safe))
            edits += [] if made is None else [Put(RunRecord(made, 1, 0))]
            self.transact(edits)

    def prune(self) -> None:
        """Delete the bindings of sources that nobody needs: what `Compactor.prune` does."""
        for relation in [r for r in self.relations.values() if r.external]:
            pins = [e for i, e in [*self.pinned, *self.pinned_by_epochs()] if i == relation.id]
            low = min([self.newest, self.complete, *pins, *self.binding_readers(relation.id)])
            if stale := self.state.stale_remaps(relation.id, low):
                relation.safe = max(relation.safe, low)
                self.transact([*(Delete("remap", r.key) for r in stale), Put(SourceRecord(relation.id, relation.safe))])
                self.pruned += len(stale)

    # ---- reading

    def content(self, relation: int, epoch: int) -> dict[int, int]:
        """What a reader of the durable runs sees of a table or view at an epoch."""
        refs = [r.ref for r in self.state.runs_of(self.relations[relation].state_table) if r.ref.epoch_lo <= epoch]
        return clean(self._sum(refs, 0, epoch))

    def _sum(self, refs: Iterable[RunRef], after: int, to: int, low: int = -(1 << 63), high: int = 1 << 63) -> Rows:
        found: dict[int, int] = {}
        for ref in refs:
            for row, epoch, weight in self.rows[ref.path]:
                if after < epoch <= to and low <= row < high:
                    found[row] = found.get(row, 0) + weight
        return Counter(found)

    def model(self, relation: int, epoch: int) -> Rows:
        """The content by definition: of a complete epoch it never changes."""
        if epoch > self.complete:
            return self._model(relation, epoch)
        if (relation, epoch) not in self.known:
            self.known[relation, epoch] = self._model(relation, epoch)
        return self.known[relation, epoch]

    def _model(self, relation: int, epoch: int) -> Rows:
        if relation in self.writes and self.relations[relation].writable:
            return summed(change for at, change in self.writes[relation] if at <= epoch)
        if self.relations[relation].external:
            counts = [bound[0] for at, bound in self.writes[relation] if at <= epoch]
            return Counter(source_row(n) for n in range(counts[-1] if counts else 0))
        plan = self.state.jobs[relation].plan
        return evaluate(plan.more["query"], [self.model(i, epoch) for i in plan.more["inputs"]], epoch)

    def check(self, relation: int, epoch: int) -> None:
        """I13, I14, I16, CK-1, PC-40: what is readable is the view's definition at that epoch, now and ever after."""
        if self.relations[relation].external:
            return
        found = self.content(relation, epoch)
        assert found == clean(self.model(relation, epoch)), f"relation {relation} at epoch {epoch >> 16}"
        assert self.shown.setdefault((relation, epoch), tuple(sorted(found.items()))) == tuple(sorted(found.items()))

    # ---- what stands for Spark

    def run_step(self, epoch: GroupEpoch[SimJob], part: JobPart[SimJob], work: Work) -> tuple[list[RunRef], int | None]:
        """One step of a job: what it writes, and when its state is next due."""
        job = part.job
        if job.poisoned:
            raise RuntimeError("poison")
        own = {
            n: [*(r.ref for r in self.state.runs_of(t)), *epoch.runs_of(self.state, job.id, t)]
            for n, t in job.tables.items()
        }
        state = {n: self._sum(refs, 0, 1 << 63) for n, refs in own.items()}
        inputs = self.state.jobs[job.id].plan.more["inputs"]
        deltas = [self._delta(epoch, part, work, i) for i in inputs]
        if job.kind == "shared":
            state["0/right"] = self._so_far(epoch, part, work, inputs[-1])
            deltas[-1] = deltas[-1] if part.committed else Counter()
        out = increment(job.kind, deltas, state, work.initial, epoch.target)
        made = [self.store(job.tables[n], f"j{job.id}", clean(rows), epoch.target) for n, rows in out.items()]
        due = due_us(summed([state["0/state"], *deltas]), epoch.target) if job.facts.temporal else None
        return [ref for ref in made if ref is not None], due

    def _so_far(self, epoch: GroupEpoch[SimJob], part: JobPart[SimJob], work: Work, i: int) -> Rows:
        """What is looked up: as of the epoch where its change has been taken in, else as of the one before."""
        refs = lookup_refs(self, self.state, epoch, part, i)
        if not part.committed:
            return self._sum(refs, 0, epoch.target)
        until = work.taken.get(i, LOWEST_KEY)
        new = self._sum(refs, 0, epoch.target, high=until)
        return summed([new, self._sum(refs, 0, part.committed, low=until)])

    def _delta(self, epoch: GroupEpoch[SimJob], part: JobPart[SimJob], work: Work, i: int) -> Rows:
        given = work.inputs.get(i)
        if given is None:
            return Counter()
        if given.tasks:
            return Counter(source_row(n) for (low, high), _ in given.tasks for n in range(low, high))
        low, high = given.keys or (-(1 << 63), 1 << 63)
        return self._sum(given.refs, part.committed, epoch.target, low, high)

    def rows_between(self, after: dict[str, Any] | None, to: dict[str, Any]) -> tuple[int, int]:
        """The range of a source's offsets."""
        return (0 if after is None else after["0"]), to["0"]

    # ---- a crash

    def crash(self, broken: Callable[[int], bool] = lambda view: False) -> None:
        """Forget what is in memory, and take up what is durable; views that are `broken` cannot be planned any more."""
        self.jobs, self.pinned = {}, []
        self.under_way.clear()
        objects = {o.id: o for o in self.state.objects_of(TableContent, SourceContent, MaterializedViewContent)}
        self.relations = {}
        for i, record in objects.items():
            self.relations[i] = self._recovered(record)
        for i, found in sorted(self.state.jobs.items()):
            if objects[i].content.has_job:
                self.jobs[i] = SimJob(
                    i, objects[i].name, found.plan.upstreams or (),
                    {t.operator: t.id for t in self.state.tables_of(i)},
                    Standing.of(found, position_of(self.state.positions_of(i))), Membership.of(found),
                    facts=self._facts(found.plan.more["query"], found.plan.more["inputs"]),
                    kind=found.plan.more["query"],
                )  # fmt: skip
        for job in self.jobs.values():
            if broken(job.id) != (job.quarantined):
                self.turn(job.id, Turn.PLANNED if job.quarantined else Turn.UNPLANNABLE)
        for group in sorted({j.group for j in self.jobs.values()}):
            self.transact(settled(self, self.state, group).edits)

    def _recovered(self, record: ObjectRecord) -> RelationState:
        if record.content.external:
            remaps = self.state.all_remaps(record.id)
            known = self.state.sources.get(record.id)
            return RelationState(
                record, changes=ChangeLog((r.epoch, r.epoch) for r in remaps), bound=bool(remaps),
                safe=0 if known is None else known.safe_epoch,
            )  # fmt: skip
        table = next(t for t in self.state.tables_of(record.id) if t.operator == ROWS)
        runs = [r.ref for r in self.state.runs_of(table.id) if r.ref.epoch_lo <= table.committed_epoch]
        rows = Counter[int]()
        for run in runs:
            if run.constant_epoch:
                rows[run.epoch_lo] += run.rows
        changes = ChangeLog((r.epoch_lo, r.epoch_hi) for r in runs)
        return RelationState(record, SCHEMA, table.id, changes, rows, table.safe_epoch)


@dataclass
class Ranges:
    """Sources' offsets for the planner of steps."""

    world: World
    opened: int = field(default=0)

    def rows(self, source_id: int, after: Any, to: Any) -> int | None:
        """See `SourceRanges`."""
        low, high = self.world.rows_between(after, to)
        return high - low

    def bytes(self, source_id: int, after: Any, to: Any) -> int | None:
        """See `SourceRanges`: one source tells, another one does not."""
        low, high = self.world.rows_between(after, to)
        return None if source_id % 2 else 20 * (high - low)

    def tasks(self, source_id: int, after: Any, to: Any, parts: int) -> Sequence[Any]:
        """See `SourceRanges`."""
        low, high = self.world.rows_between(after, to)
        each = max(1, -(-(high - low) // parts))
        return [(n, min(n + each, high)) for n in range(low, high, each)]
