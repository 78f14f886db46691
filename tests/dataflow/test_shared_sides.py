"""Joins whose sides are looked up in the rows of a relation: as an epoch is taken in by steps, and rows are merged."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from stage_task import MemoryTask

from headrace.dataflow.operators.join import JoinStage, Side
from headrace.dataflow.operators.shared_sides import SharedRows
from headrace.dataflow.params import END_OF_KEYS, LOWEST_KEY, EpochParams
from headrace.plan.tree import WEIGHT
from headrace.state.kernels import consolidate
from headrace.state.kernels.hashing import hash_columns
from headrace.state.merge import merge
from headrace.state.run import Section, write_run
from headrace.state.schema import RunRef, TableSchema

I32, I64 = pa.int32(), pa.int64()
# The relation's key columns are in another order than the join's, and its rows have a column that the join has not.
STORED = TableSchema((pa.field("b", pa.string()), pa.field("a", I32)), (pa.field("u", I32), pa.field("v", I32)), WEIGHT)
SIDE = TableSchema((pa.field("k0", I32), pa.field("k1", pa.string())), (pa.field("v0", I32),), WEIGHT)
OUTPUT = pa.schema([("o0", I32), ("o1", I32), ("__w", I64)])
Row = tuple[str | None, int | None, int, int | None]
"""b, a, u, v."""


@dataclass
class Relation:
    """A relation with its history, as content of the model and as runs."""

    id: int
    root: Path
    weak: int | None
    shared: bool
    changes_only: bool = False
    history: list[tuple[int, Row, int]] = field(default_factory=list)
    refs: list[RunRef] = field(default_factory=list)
    taken: int = LOWEST_KEY

    def hashes(self, rows: list[Row]) -> list[int]:
        found = hash_columns([pa.array([r[i] for r in rows], f.type) for i, f in enumerate(STORED.key)])
        return [int(h) if self.weak is None else int(h) % self.weak for h in found]

    def change(self, choice: random.Random, epoch: int) -> None:
        """Insert and delete some rows; keys and values may be null."""
        content = self.content(epoch)
        delta: Counter[Row] = Counter()
        for _ in range(choice.randint(0, 4)):
            there = [row for row in content if content[row] + delta[row] > 0]
            if there and choice.random() < 0.5:
                delta[choice.choice(there)] -= 1
            if choice.random() < 0.7:
                key = choice.choice("xy"), choice.choice([0, 1])
                row = (*key, choice.randrange(2), choice.choice([None, 10, 11, 12]))
                delta[row if choice.random() < 0.9 else (None, *row[1:])] += 1
        rows = [(row, w) for row, w in delta.items() if w]
        if rows:
            self.history += [(epoch, row, w) for row, w in rows]
            section = Section(self.id, STORED, [self.stored(rows)], epoch)
            self.refs += write_run(str(self.root), f"{self.id}/{epoch}.run", [section], fsync=False)

    def stored(self, rows: list[tuple[Row, int]]) -> pa.RecordBatch:
        data = [pa.array([r[i] for r, _ in rows], f.type) for i, f in enumerate(STORED.data_fields)]
        k = pa.array(self.hashes([r for r, _ in rows]), I64)
        columns = [k, pa.array(hash_columns(data)), *data, pa.array([w for _, w in rows], I64)]
        return consolidate(pa.RecordBatch.from_arrays(columns, schema=STORED.arrow()), STORED)

    def content(self, to: int, after: int = 0) -> Counter[Row]:
        found: Counter[Row] = Counter()
        for epoch, row, w in self.history:
            if after < epoch <= to:
                found[row] += w
        return Counter({row: w for row, w in found.items() if w})

    def slice(self, after: int, to: int, until: int) -> Counter[Row]:
        """What a step takes in: the change, or at first the content, from where the last one ended."""
        if self.changes_only and not after:
            return Counter()
        rows = self.content(to, after)
        return Counter({r: w for (r, w), k in zip(rows.items(), self.hashes(list(rows))) if self.taken <= k < until})

    def so_far(self, after: int, to: int) -> Counter[Row]:
        """The content that the job has taken in."""
        if self.changes_only and not after:
            return self.content(to)
        old, new = self.content(after), self.content(to)
        rows = [*{**old, **new}]
        return Counter({r: (new if k < self.taken else old)[r] for r, k in zip(rows, self.hashes(rows))})

    def merge(self, choice: random.Random, safe: int) -> None:
        """Compaction: rows of epochs up to `safe` are not told apart any more."""
        chosen = [r for r in self.refs if choice.random() < 0.7]
        if len(chosen) > 1:
            made = merge(chosen, STORED, str(self.root), f"{self.id}/m{choice.random()}.run", safe, fsync=False)
            self.refs = [r for r in self.refs if r not in chosen] + ([] if made is None else [made])


def side(name: str, relation: Relation, present: bool) -> Side:
    found = ("v",) if present else ()
    shared = SharedRows(relation.id, STORED, ("a", "b"), ("v",), found, relation.weak) if relation.shared else None
    return Side(name, SIDE, (0,), False, shared)


def wire(deltas: tuple[Counter[Row], Counter[Row]], weak: int | None, present: bool) -> pa.RecordBatch:
    """The rows of both sides as they travel, by another hash than the relations' own."""
    rows = [(s, row, w) for s, delta in enumerate(deltas) for row, w in delta.items()]
    rows = [(s, row, w) for s, row, w in rows if not present or row[3] is not None]
    k = [(ord(row[0] or "z") * 7 + (row[1] or 0)) % (weak or 997) for _, row, _ in rows]
    return pa.RecordBatch.from_pydict({
        "__s": pa.array([s for s, *_ in rows], I32),
        "__k": pa.array(k, I64),
        "__h": pa.array([(h * 31 + (row[3] or 0)) % (weak or 997) for h, (_, row, _) in zip(k, rows)], I64),
        "__w": pa.array([w for *_, w in rows], I64),
        "k0": pa.array([row[1] for _, row, _ in rows], I32),
        "k1": pa.array([row[0] for _, row, _ in rows], pa.string()),
        "s0": pa.array([row[3] for _, row, _ in rows], I32),
    })  # fmt: skip


def joined(left: Counter[Row], right: Counter[Row], present: bool) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for x, m in left.items():
        for y, n in right.items():
            nulls = None in (*x[:2], *y[:2]) or (present and None in (x[3], y[3]))
            if x[:2] == y[:2] and not nulls:
                found[x[3], y[3]] += m * n
    return Counter({pair: w for pair, w in found.items() if w})


def run_case(seed: int, root: Path) -> None:
    """One history, taken in by epochs and these by steps of ranges of keys."""
    choice = random.Random(seed)
    weak, present = choice.choice([None, None, 2, 3]), choice.random() < 0.3
    share = choice.choice([(False, True), (False, True), (True, False), (True, True)])
    relations = [Relation(i + 1, root, weak, s) for i, s in enumerate(share)]
    relations[1 if share[1] else 0].changes_only = True
    task = MemoryTask()
    stage = JoinStage("0", side("left", relations[0], present), side("right", relations[1], present), OUTPUT)
    view: Counter[Any] = Counter()
    done, epoch = 0, 0
    for _ in range(choice.randint(2, 5)):
        for _ in range(choice.randint(1, 4)):
            epoch += 1
            for relation in relations:
                relation.change(choice, epoch)
        for relation in relations:
            relation.taken = LOWEST_KEY
        while min(r.taken for r in relations) < END_OF_KEYS:
            refs = {r.id: tuple(r.refs) for r in relations if r.shared}
            task.params = EpochParams(
                "a", done, epoch, False, str(root), "p", lookups=refs, taken={r.id: r.taken for r in relations}
            )  # fmt: skip
            before = joined(*(r.so_far(done, epoch) for r in relations), present)
            until = [_next(choice, r, epoch) for r in relations]
            deltas = tuple(r.slice(done, epoch, u) for r, u in zip(relations, until))
            for relation, u in zip(relations, until):
                relation.taken = u
            batch = wire(deltas, weak, present)  # type: ignore[arg-type]
            made = task.epoch(stage, batch if batch.num_rows else None)
            for found in made:
                for x, y, w in zip(*(c.to_pylist() for c in found.columns)):
                    view[x, y] += w
            view = Counter({pair: w for pair, w in view.items() if w})
            after = joined(*(r.so_far(done, epoch) for r in relations), present)
            assert view == after, f"seed {seed}, epoch {epoch}"
            pairs = {pair for b in made for pair in zip(b.column("o0").to_pylist(), b.column("o1").to_pylist())}
            assert pairs <= set(before) | set(after), f"seed {seed}: a pair that is in neither result"
            if choice.random() < 0.3:
                relations[choice.randrange(2)].merge(choice, choice.choice([0, done]))
        assert view == joined(*(r.content(epoch) for r in relations), present)
        assert set(task.tables) <= {n for n, s in zip(("left", "right"), share) if not s}
        done = epoch


def _next(choice: random.Random, relation: Relation, epoch: int) -> int:
    """Up to where a step takes in a relation: nothing, a part, or all that is left."""
    keys = sorted(k for k in relation.hashes(list({r: 1 for _, r, _ in relation.history})) if k >= relation.taken)
    kind = choice.random()
    if kind < 0.4 or not keys:
        return END_OF_KEYS
    return relation.taken if kind < 0.6 else choice.choice(keys) + choice.randrange(2)


def test_what_is_looked_up_is_what_has_been_taken_in(tmp_path: Path) -> None:
    """I1, I2: an epoch in steps of any ranges of keys; a job that lags behind merges of what it looks up."""
    for seed in range(40):
        run_case(seed, tmp_path / str(seed))


@pytest.mark.soak
def test_many_histories(tmp_path: Path) -> None:
    for seed in range(1000, 4000):
        with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
            run_case(seed, Path(folder))


def test_no_row_is_read_for_no_key(tmp_path: Path) -> None:
    """A step without rows of the other side opens no run: there is none to open."""
    relation = Relation(1, tmp_path, None, True)
    relation.change(random.Random(3), 1)
    rows = SharedRows(1, STORED, ("a", "b"), ("v",))
    task: Any = MemoryTask()
    gone = RunRef(1, "gone.run", 0, 1, 5, 1, 1, LOWEST_KEY, END_OF_KEYS - 1)
    task.params = EpochParams("a", 1, 2, False, str(tmp_path), "p", lookups={1: (gone,)})
    assert rows.fetch(task, np.zeros(0, dtype=np.int64), SIDE).num_rows == 0
