"""Session windows in a task without Spark: real runs, random histories, watermarks, keys that share a hash."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.dataflow.operators.sessions import UNTIL, SessionStage
from headrace.errors import HeadraceError, InvalidDatetime
from headrace.plan.tree import WEIGHT
from headrace.state.arrangement import Arrangement
from headrace.state.run import Section, write_run
from headrace.state.schema import RunRef, TableSchema
from support import examples

GAP = 5
INPUT = pa.schema([(name, pa.int64()) for name in ("__k", "__w", "k0", "t", "v0")])
OUTPUT = pa.schema([(name, pa.int64()) for name in ("k", "t", "v", "start", "end", "__w")])
Row = tuple[int | None, int, int]
"""Key, time, value."""


class Sessions:
    """The stage over epochs; keys are hashed to `hashes` values."""

    def __init__(self, root: Path, hashes: int, *, expires: bool) -> None:
        until = [pa.field(UNTIL, pa.int64(), nullable=False)] if expires else []
        values = (pa.field("t", pa.int64(), nullable=False), *until, pa.field("v0", pa.int64()))
        self.schema = TableSchema((pa.field("k0", pa.int64()),), values, WEIGHT, UNTIL if expires else None)
        self.stage = SessionStage("0", self.schema, GAP, ("k0", "t", "v0"), OUTPUT)
        self.root, self.hashes = root, hashes
        self.refs: list[RunRef] = []
        self.watermark: int | None = None
        self.epochs = 0
        self.out: Counter[tuple[Any, ...]] = Counter()
        self.put_out = 0

    @property
    def table(self) -> Arrangement:
        return Arrangement(self.schema, self.refs, str(self.root), watermark=self.watermark)

    def epoch(self, changes: list[tuple[Row, int]]) -> None:
        self.epochs += 1
        written: list[tuple[str, TableSchema, pa.RecordBatch]] = []
        task: Any = SimpleNamespace(write=written.extend, arrangement=lambda name, schema: self.table)
        columns = zip(*[(((k or -1) % self.hashes), w, k, t, v) for (k, t, v), w in changes])
        batch = pa.RecordBatch.from_arrays([pa.array(c, pa.int64()) for c in columns], schema=INPUT)
        for found in self.stage.run(task, iter([batch])):
            for row in found.to_pylist():
                self.out[tuple(row.values())[:-1]] += row["__w"]
                self.put_out += 1
        for _, schema, rows in written:
            if rows.num_rows:
                section = Section(1, schema, [rows], self.epochs)
                self.refs += write_run(self.root, f"{self.epochs}.run", [section], fsync=False)

    def stored(self) -> list[dict[str, Any]]:
        return [row for batch in self.table.scan() for row in batch.to_pylist()]


def expected(rows: Counter[Row]) -> Counter[tuple[Any, ...]]:
    """The plain way: along the times of each key."""
    found: Counter[tuple[Any, ...]] = Counter()
    for key in {k for k, _, _ in rows}:
        session: list[Row] = []
        for row in [*sorted(r for r in rows.elements() if r[0] == key), None]:
            if row is None or (session and row[1] >= session[-1][1] + GAP):
                found.update((*r, session[0][1], session[-1][1] + GAP) for r in session)
                session = []
            if row is not None:
                session.append(row)
    return found


KEYS = st.one_of(st.none(), st.integers(0, 3))
ROWS = st.lists(st.tuples(KEYS, st.integers(0, 40), st.integers(0, 1)), max_size=8)


@settings(deadline=None, max_examples=examples(40))
@given(st.lists(st.tuples(ROWS, st.integers(0, 2**32)), min_size=1, max_size=7), st.integers(1, 4))
def test_any_history_gives_the_sessions_of_what_is_there(steps: list[Any], hashes: int) -> None:
    """FS-21: sessions grow, merge, split and vanish; rows come several times; keys may share a hash."""
    with tempfile.TemporaryDirectory() as folder:
        sessions, live = Sessions(Path(folder), hashes, expires=False), Counter[Row]()
        for added, seed in steps:
            gone = [row for row in sorted(live.elements(), key=repr) if random.Random(f"{seed}{row}").random() < 0.3]
            changes = [(row, 1) for row in added] + [(row, -1) for row in gone]
            if changes:
                live.update(added)
                live.subtract(gone)
                sessions.epoch(changes)
            assert +sessions.out == expected(+live)
            assert not -sessions.out
        assert sum(row["__w"] for row in sessions.stored()) == live.total()


@settings(deadline=None, max_examples=examples(40))
@given(st.lists(st.tuples(ROWS, st.integers(0, 12)), min_size=1, max_size=9), st.integers(1, 4))
def test_rows_expire_with_their_session_and_nobody_misses_them(steps: list[Any], hashes: int) -> None:
    """FS-21: with a watermark the sessions stay right, and what is closed is soon gone from the state."""
    with tempfile.TemporaryDirectory() as folder:
        sessions, live, low = Sessions(Path(folder), hashes, expires=True), Counter[Row](), 0
        for added, rise in steps:
            new = [(k, t + low // 2, v) for k, t, v in added if t + low // 2 >= low]
            gone = sorted((row for row in live if live[row] and row[1] >= low), key=repr)[:1]
            if new or gone:
                live.update(new)
                live.subtract(gone)
                sessions.epoch([(row, 1) for row in new] + [(row, -1) for row in gone])
            want = expected(+live)
            assert +sessions.out == want
            low += rise
            sessions.watermark = low
            open_rows = Counter({row[:3]: n for row, n in want.items() if row[4] > low})
            kept = Counter({(r["k0"], r["t"], r["v0"]): r["__w"] for r in sessions.stored()})
            assert not open_rows - kept, "a row of an open session has expired"
        # A session of length s is kept for at most as long again, or a gap.
        sessions.watermark = low + 2 * 100 + 2 * GAP
        assert not sessions.stored()


def test_a_change_reads_and_puts_out_its_neighbourhood_only(tmp_path: Path) -> None:
    """A long session far away costs nothing; a row inside a session costs itself, one at its end all of it."""
    sessions = Sessions(tmp_path, 1, expires=False)
    sessions.epoch([((1, t, 0), 1) for t in range(0, 400, 2)] + [((1, 10_000 + t, 0), 1) for t in (0, 3)])
    for row, put_out in (((1, 5001, 0), 1), ((1, 201, 0), 1), ((1, 10_007, 0), 5)):
        before = sessions.put_out
        sessions.epoch([(row, 1)])
        assert sessions.put_out - before == put_out, row
    before = sessions.put_out
    sessions.epoch([((1, 398, 0), -1), ((1, 402, 0), 1)])
    assert sessions.put_out - before == 2 * 200 + 2


def test_what_goes_on_is_rewritten_when_it_has_doubled(tmp_path: Path) -> None:
    """`until` is put off rarely: a session of n rows that come one by one is written O(n log n) times, not n * n."""
    sessions = Sessions(tmp_path, 1, expires=True)
    for t in range(100):
        sessions.watermark = t
        sessions.epoch([((1, t, 0), 1)])
    assert len(sessions.stored()) == 100
    assert sum(ref.rows for ref in sessions.refs) < 100 * 6


def test_rows_that_show_their_session_only_come_out_as_one(tmp_path: Path) -> None:
    sessions = Sessions(tmp_path, 1, expires=False)
    output = pa.schema([f for f in OUTPUT if f.name not in "tv"])
    sessions.stage = SessionStage("0", sessions.schema, GAP, ("k0",), output)
    sessions.epoch([((k, t, v), 1) for k in (1, None) for t in (0, 3, 3, 20) for v in (0, 1)])
    assert sessions.out == {(k, *s): n for k in (1, None) for s, n in (((0, 8), 6), ((20, 25), 2))}
    assert sessions.put_out == 4
    sessions.epoch([((1, t, 0), 1) for t in (7, 11, 15, 19)] + [((None, 3, v), -1) for v in (0, 0, 1, 1)])
    assert +sessions.out == {(1, 0, 25): 12, (None, 0, 5): 2, (None, 20, 25): 2}
    assert sessions.put_out == 4 + 3 + 2


def test_what_cannot_be(tmp_path: Path) -> None:
    sessions = Sessions(tmp_path, 1, expires=False)
    with pytest.raises(HeadraceError, match="does not have"):
        sessions.epoch([((1, 1, 0), -1)])
    with pytest.raises(InvalidDatetime, match="out of range"):
        sessions.epoch([((1, 2**63 - 2, 0), 1)])
    sessions.epoch([((1, 1, 0), 1), ((1, 1, 0), -1)])
    assert not sessions.refs
