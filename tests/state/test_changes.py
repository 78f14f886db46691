"""Writes to tables against a dictionary and a bag."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headrace.state import table_changes
from headrace.state.kernels import concat, consolidate, int64_values, take
from headrace.state.schema import TableSchema
from headrace.state.table_changes import TableChange, plan_change

WEIGHT = ((pa.field("__w", pa.int64(), nullable=False), "add"),)
A, B = pa.field("a", pa.int64()), pa.field("b", pa.string())
KEYED = TableSchema((A,), (B,), WEIGHT)
BAG = TableSchema((A, B), (), WEIGHT)
ROWS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["x", "y", None])), max_size=5)
CHANGES = st.lists(st.tuples(ROWS, ROWS, st.sampled_from(["overwrite", "ignore"])), max_size=6)
Row = tuple[int, str | None]


class Store:
    """A table's rows in memory."""

    def __init__(self, schema: TableSchema, unique: bool):
        self.schema, self.unique = schema, unique
        self.rows = pa.RecordBatch.from_pylist([], schema=schema.arrow())

    def fetch(self, keys: Any) -> pa.RecordBatch:
        return take(self.rows, np.flatnonzero(np.isin(int64_values(self.rows.column(0)), keys)))

    def change(self, inserts: list[Row], deletes: list[Row], on_conflict: Any) -> table_changes.Delta:
        change = TableChange(batch(inserts), batch(deletes), on_conflict)
        delta = plan_change(self.schema, change, self.fetch, unique=self.unique)
        self.rows = consolidate(concat([self.rows, delta.rows], self.schema.arrow()), self.schema)
        return delta

    def bag(self) -> Counter[Row]:
        columns = [self.rows.column(n).to_pylist() for n in ("a", "b")]
        return Counter(dict(zip(zip(*columns), self.rows.column("__w").to_pylist())))


def batch(rows: list[Row]) -> pa.RecordBatch | None:
    if not rows:
        return None
    return pa.RecordBatch.from_arrays([pa.array([r[0] for r in rows], A.type), pa.array([r[1] for r in rows], B.type)],
                                      schema=pa.schema([A, B]))  # fmt: skip


def weak(columns: Any) -> Any:
    return np.zeros(len(columns[0]), dtype=np.int64)


def check_keyed(steps: list[tuple[list[Row], list[Row], str]]) -> None:
    store, model = Store(KEYED, True), dict[int, str | None]()
    for inserts, deletes, on_conflict in steps:
        gone = {a for a, _ in deletes if a in model}
        for a in gone:
            del model[a]
        before = set(model)
        delta = store.change(inserts, deletes, on_conflict)
        for a, b in inserts:
            if on_conflict == "overwrite" or a not in model:
                model[a] = b
        assert store.bag() == Counter(model.items())
        assert delta.deleted == len(gone)
        keys = {a for a, _ in inserts}
        assert delta.inserted == len(keys if on_conflict == "overwrite" else keys - before)


@given(CHANGES)
def test_a_primary_key_holds_one_row(steps: list[tuple[list[Row], list[Row], str]]) -> None:
    """FS-10: delete then insert of one key in one change leaves the new row; overwrites retract the old one."""
    check_keyed(steps)


@given(CHANGES)
def test_a_primary_key_survives_collisions(steps: list[tuple[list[Row], list[Row], str]]) -> None:
    original, table_changes.hash_columns = table_changes.hash_columns, weak
    try:
        check_keyed(steps)
    finally:
        table_changes.hash_columns = original


@given(CHANGES, st.booleans())
def test_without_a_key_rows_are_counted(steps: list[tuple[list[Row], list[Row], str]], collide: bool) -> None:
    original = table_changes.hash_columns
    table_changes.hash_columns = weak if collide else original
    try:
        store, model = Store(BAG, False), Counter[Row]()
        for inserts, deletes, on_conflict in steps:
            taken = Counter(deletes) & model
            model = model - taken + Counter(inserts)
            delta = store.change(inserts, deletes, on_conflict)
            assert store.bag() == model
            assert (delta.inserted, delta.deleted) == (len(inserts), taken.total())
    finally:
        table_changes.hash_columns = original


def test_a_key_of_all_columns() -> None:
    store = Store(BAG, True)
    store.change([(1, "x"), (1, "x"), (2, "y")], [], "overwrite")
    assert store.change([(1, "x")], [], "overwrite").rows.num_rows == 0
    assert store.change([(1, "x"), (3, "z")], [(2, "y")], "ignore").inserted == 1
    assert store.bag() == Counter({(1, "x"): 1, (3, "z"): 1})
