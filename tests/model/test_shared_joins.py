"""Joins that look a side up by primary key or index: the law, with epochs and backfills in steps, and merges."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from dataclasses import replace

import pytest
from engine import Engine, Row, Table
from keyed import Keyed
from pyspark.sql import SparkSession

from headrace.common.columns import Column
from headrace.coordinator.decide.row_sizes import Intake
from headrace.coordinator.decide.steps import END_OF_KEYS, KeySlice, Step, StepPosition, TableRest, advanced, plan_step
from headrace.dataflow.epoch_result import EpochResult
from headrace.dataflow.params import EpochParams, TableInput
from headrace.plan.planner import Path, PlannedRelation, Planner
from headrace.plan.tree import Sharable
from headrace.state.merge import merge

COLUMNS = (Column("k", "int"), Column("x", "int"), Column("s", "string"))
INDEX = 9


class Sharing(Engine):
    """An engine over `a`, `b` with the primary key k, and `c` with an index on (s, k). Epochs are taken in by steps."""

    def __init__(self, spark: SparkSession, query: str, weak: int | None, rows_at_once: float) -> None:
        self.weak, self.rows_at_once = weak, rows_at_once
        self.index = Keyed(INDEX, "c_i", COLUMNS, key=("s", "k"), unique=False)
        b = Keyed(2, "b", COLUMNS, key=("k",))
        tables = [Table(1, "a", COLUMNS), b, Table(3, "c", COLUMNS), self.index]
        super().__init__(spark, tables, query, weak, codegen=False, arrangements={2, INDEX})

    def define(self, planner: Planner, table: Table) -> None:
        if table is self.index:
            columns = frozenset(c.name for c in COLUMNS)
            planner.define_path(3, Path(INDEX, table.name, self.index.key, columns, False))
            return
        key = table.key if isinstance(table, Keyed) else ()
        planner.define(PlannedRelation(table.id, table.name, False, primary_key=key), table.columns, table.name)

    def change(self, name: str, delta: Sequence[tuple[Row, int]]) -> None:
        """As it is; what an index holds changes with its table."""
        table = self.tables[name]
        if isinstance(table, Keyed):
            self.epoch += 1
            for row, weight in delta:
                table.apply(row, weight)
        else:
            super().change(name, delta)
        for kept in (table, *([self.index] if name == "c" else [])):
            if isinstance(kept, Keyed):
                kept.write(self.root, self.epoch, delta, self.weak)

    def in_steps(self, choice: random.Random, degrees: Sequence[int]) -> None:
        """Take in all that has changed, as a running server would: in steps of about `rows_at_once` rows."""
        self.epoch += 1
        position, first, last = StepPosition(self.epoch), self.done == 0, False
        while not last:
            step = plan_step(self._rests(position), Intake(self.rows_at_once))
            params = self._step_params(position, step, first)
            if choice.random() < 0.2:  # an attempt that comes to nothing
                self.runner.run(replace(params, attempt="lost", prefix=f"lost/{uuid.uuid4().hex}"), 1)
            self._keep(self.runner.run(params, choice.choice(degrees)))
            position, first, last = advanced(position, step), False, step.last
            self._merge(choice)
        self.done = self.epoch

    def _rests(self, position: StepPosition) -> list[TableRest]:
        unread = self.plan.changes_only if not self.done else frozenset[int]()
        found = []
        for i in self.plan.upstreams:
            refs = [r for r in self._by_id(i).refs if r.epoch_hi > self.done]
            if refs and i not in unread and not position.of(i).done:
                found.append(TableRest.of(i, refs, position.of(i).next_key, None))
        return found

    def _step_params(self, position: StepPosition, step: Step, first: bool) -> EpochParams:
        found = self.params(uuid.uuid4().hex)
        tables = {i: TableInput(()) for i in found.tables}
        for i, part in step.slices.items():
            assert isinstance(part, KeySlice)
            tables[i] = TableInput(tuple(self._by_id(i).refs), None if part.whole else (part.low, part.high))
        taken = {i: END_OF_KEYS if t.done else t.next_key for i, t in position.taken.items()}
        lookups = {i: tuple(self._by_id(i).refs) for i in self.plan.arrangements}
        return replace(found, first=first, tables=tables, taken=taken, lookups=lookups)

    def _by_id(self, i: int) -> Table:
        return next(t for t in self.tables.values() if t.id == i)

    def _keep(self, result: EpochResult) -> None:
        by_id = {i: n for n, i in self.ids.items()}
        for ref in result.runs:
            self.state[by_id[ref.table_id]].append(ref)

    def _merge(self, choice: random.Random) -> None:
        """Compaction of what is looked up: the job still needs it as of the epoch from which it starts."""
        for table in (self.tables["b"], self.index):
            chosen = [r for r in table.refs if choice.random() < 0.6]
            if len(chosen) > 1 and choice.random() < 0.5:
                path = f"{table.name}/m{uuid.uuid4().hex}.run"
                made = merge(chosen, table.schema, self.root, path, self.done, fsync=False)
                table.refs = [r for r in table.refs if r not in chosen] + ([] if made is None else [made])


QUERIES: dict[str, tuple[str, set[int]]] = {
    "inner": ("SELECT a.x, b.x AS y FROM a JOIN b ON a.k = b.k WHERE a.x >= b.x", {2}),
    "left": ("SELECT a.k, a.x, c.x AS y FROM a LEFT JOIN c ON a.s = c.s AND a.k = c.k AND c.x >= a.x", {INDEX}),
    "right": ("SELECT b.x, a.s FROM b RIGHT JOIN a ON a.x = b.k", {2}),
    "semi": ("SELECT x, s FROM a WHERE k IN (SELECT k FROM b)", {2}),
    "anti": ("SELECT * FROM a WHERE NOT EXISTS (SELECT 1 FROM c WHERE c.k = a.x AND c.s = a.s AND c.x > a.k)", {INDEX}),
    "exists": ("SELECT k, x FROM a WHERE x > 1 OR EXISTS (SELECT 1 FROM b WHERE b.k = a.k)", {2}),
    "both": ("SELECT b.x, d.s FROM b JOIN b d ON b.k = d.k", {2}),
    "index": ("SELECT c.x, d.x AS y, a.k FROM c JOIN c d ON c.s = d.s AND c.k = d.k JOIN a ON a.k = c.x", {INDEX}),
    "chain": ("SELECT a.x, b.s, c.x AS y FROM a JOIN b ON a.k = b.k JOIN c ON c.s = b.s AND c.k = a.x", {2, INDEX}),
    "below": ("SELECT b.s, g.n FROM (SELECT k, count(*) AS n FROM a GROUP BY k) g JOIN b ON b.k = g.k", {2}),
    "above": ("SELECT b.s, count(*) AS n, sum(a.x) AS x FROM a JOIN b ON a.k = b.k GROUP BY b.s", {2}),
    "read_too": ("SELECT a.x, b.s, g.n FROM a JOIN b ON a.k = b.k JOIN (SELECT x, count(*) AS n FROM b GROUP BY x) g "
                 "ON g.x = a.x", {2}),
    "renamed": ("SELECT a.x, z.v FROM a LEFT JOIN (SELECT k AS q, x AS v FROM b WHERE x IS NOT NULL) z ON z.q = a.x",
                {2}),
}  # fmt: skip
SOME = (("left", 11),)


def run_case(spark: SparkSession, name: str, seed: int) -> None:
    """One history of all three tables."""
    choice = random.Random(f"{name}{seed}")
    degrees = choice.choice([[1], [1, 2], [1, 5]])
    query, shared = QUERIES[name]
    with Sharing(spark, query, choice.choice([None, None, 1, 3]), choice.choice([3, 8, 1000])) as engine:
        assert engine.plan.arrangements == shared, "\n".join(engine.plan.explain())
        for _ in range(4):
            for _ in range(choice.randint(1, 4)):
                _change(engine, choice)
            try:
                engine.in_steps(choice, degrees)
                engine.check()
            except Exception as error:
                raise AssertionError(f"{name}, seed {seed}: {error}") from error


def _change(engine: Sharing, choice: random.Random) -> None:
    name = choice.choice("aabbcc")
    rows = engine.tables[name].rows
    gone = choice.sample(rows, min(len(rows), choice.randint(0, 3)))
    new = [(choice.choice([None, 1, 2, 3]), choice.choice([None, 1, 2]), choice.choice("pq")) for _ in range(4)]
    if name == "b":  # by its primary key
        new = list({row[0]: row for row in new if row[0] is not None}.values())
        keys = {row[0] for row in new}
        gone = [row for row in rows if row in gone or row[0] in keys]
    engine.change(name, [*((row, -1) for row in gone), *((row, 1) for row in new)])


@pytest.mark.parametrize(("name", "seed"), SOME)
def test_shared_sides(spark: SparkSession, name: str, seed: int) -> None:
    """I1, I2: what joins look up is consistent with what they have taken in, at any step and parallelism."""
    run_case(spark, name, seed)


@pytest.mark.soak
@pytest.mark.parametrize("name", QUERIES)
def test_all_sorts_of_joins(spark: SparkSession, name: str) -> None:
    for seed in range(4):
        run_case(spark, name, seed)


def test_what_is_not_shared(spark: SparkSession) -> None:
    """Sides that are more than columns by just the key, preserved, bounded by a watermark; and nothing unasked."""
    planner = Planner(spark)
    for i, (name, key) in enumerate((("a", ()), ("b", ("k",)), ("c", ()))):
        planner.define(PlannedRelation(i + 1, name, False, primary_key=key), COLUMNS, name)
    planner.define(PlannedRelation(4, "w", False, "t", ("k",)), (*COLUMNS, Column("t", "timestamp")), "w")
    planner.define(PlannedRelation(5, "f", False, None, ("k",)), (Column("k", "double"), Column("x", "int")), "f")
    planner.define_path(3, Path(INDEX, "i", ("s", "k"), frozenset(("s", "k")), False))
    every = {2, 4, 5, INDEX}
    used = planner.plan("SELECT a.x, b.x AS y FROM a JOIN b ON a.k = b.k", arrangements=every)
    assert used.arrangements == {2} == used.changes_only and set(used.state_tables()) == {"view/rows", "0.0/left"}
    assert "      shared 0.0/right: b by (k): x" in used.explain()
    own = planner.plan("SELECT a.x, b.x AS y FROM a JOIN b ON a.k = b.k")
    assert own.sharable == (Sharable(1, ("k",)), Sharable(2, ("k",))) and used.sharable == own.sharable[:1]
    assert not own.arrangements and own.fingerprint != used.fingerprint
    again = planner.plan("SELECT a.x, b.x AS y FROM a JOIN b ON a.k = b.k", arrangements=used.arrangements)
    assert again.fingerprint == used.fingerprint
    for query in (
        "SELECT a.x, b.x AS y FROM a JOIN b ON a.k = b.k WHERE b.x > 1",
        "SELECT a.x, b.x AS y FROM a JOIN b ON a.k = b.k AND a.x = b.x",
        "SELECT a.x, b.x AS y FROM a JOIN b ON a.s = b.s",
        "SELECT a.x, b.x AS y FROM a FULL JOIN b ON a.k = b.k",
        "SELECT a.x, b.x AS y FROM a RIGHT JOIN b ON a.k = b.k",
        "SELECT a.x, b.x AS y FROM a JOIN b ON a.k <=> b.k",
        "SELECT a.x, b.x AS y FROM a JOIN b ON cast(a.k AS bigint) = cast(b.k AS bigint)",
        "SELECT a.x, z.y FROM a JOIN (SELECT k, x + 1 AS y FROM b) z ON a.k = z.k",
        "SELECT a.x, w.x AS y FROM a JOIN w ON a.k = w.k",
        "SELECT a.x, f.x AS y FROM a JOIN f ON cast(a.k AS double) = f.k",
        "SELECT a.x, c.x AS y FROM a JOIN c ON a.k = c.k AND a.s = c.s",
        "SELECT a.x FROM a JOIN c ON a.k = c.k",
    ):
        assert not planner.plan(query, arrangements=every).arrangements, query
    assert planner.plan("SELECT a.x FROM a JOIN c ON a.k = c.k AND c.s = a.s", arrangements=every).arrangements == {
        INDEX
    }
    for query, sides in {
        "SELECT a.x, w.x AS y FROM a JOIN w ON a.k = w.k": {Sharable(1, ("k",))},
        "SELECT a.x, b.x AS y FROM a JOIN b ON a.x = b.x AND a.k = b.k": {Sharable(i, ("k", "x")) for i in (1, 2)},
        "SELECT a.x, b.x AS y FROM a LEFT JOIN b ON a.s = b.s AND b.x > 1": set(),
        "SELECT a.x, b.x AS y FROM a FULL JOIN b ON a.s = b.s": set(),
        "SELECT a.x, f.x AS y FROM a JOIN f ON cast(a.k AS double) = f.k": set(),
    }.items():
        assert set(planner.plan(query, arrangements=every).sharable) == sides, query
