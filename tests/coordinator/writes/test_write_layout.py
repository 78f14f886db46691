"""Rows as Python tuples and back: nothing may change on the way, whatever the values."""

from __future__ import annotations

import datetime as dt
import itertools
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from write_world import layout_of

from headrace.common.columns import arrow_type
from headrace.coordinator.writes.group import find_rows
from headrace.state.kernels import consolidate
from headrace.state.table_changes import stored_rows
from support import examples

UTC = ZoneInfo("UTC")


def whole(bits: int) -> Any:
    edge = 1 << (bits - 1)
    return some.integers(-edge, edge - 1) | some.sampled_from([-edge, edge - 1, 0])


TIMES = some.datetimes().map(lambda t: t.replace(fold=0)) | some.sampled_from([dt.datetime.min, dt.datetime.max])
KINDS: dict[str, Any] = {
    "tinyint": whole(8), "smallint": whole(16), "int": whole(32), "bigint": whole(64),
    "float": some.floats(width=32, allow_nan=False), "double": some.floats(allow_nan=False),
    "boolean": some.booleans(), "string": some.text(some.characters(exclude_categories=["Cs"])),
    "date": some.dates() | some.sampled_from([dt.date.min, dt.date.max]), "timestamp_ntz": TIMES,
    "timestamp": TIMES.map(lambda t: t.replace(tzinfo=UTC)), "binary": some.binary(),
    "decimal(38,10)": some.decimals(-10**27, 10**27, places=10),
}  # fmt: skip
COLUMNS = {f"c{i}": kind for i, kind in enumerate(KINDS)}
ROW = some.tuples(*(some.none() | values for values in KINDS.values()))


@settings(max_examples=examples(40))
@given(some.lists(some.tuples(ROW, some.sampled_from([-1, 1])), min_size=1, max_size=5))
def test_rows_survive_the_way_through_python(pairs: list[Any]) -> None:
    layout = layout_of(COLUMNS)
    assert layout.plain and not layout.keyed
    batch = layout.batch([row for row, _ in pairs], [weight for _, weight in pairs])
    assert [repr(row) for row in layout.rows(batch)] == [repr(row) for row, _ in pairs]
    plain = pa.RecordBatch.from_arrays(
        [pa.array([row[i] for row, _ in pairs], arrow_type(kind)) for i, kind in enumerate(KINDS)], names=list(COLUMNS)
    )
    stored = stored_rows(layout.schema, plain, 1)
    assert batch.drop_columns("__w").equals(stored.drop_columns("__w")), "both ways hash alike"


KEYED = [kind for kind in KINDS if layout_of({"a": kind}, ("a",)).keyed]


@settings(max_examples=examples(60))
@given(some.data(), some.sampled_from(KEYED))
def test_rows_are_found_by_their_keys(data: Any, kind: str) -> None:
    """Keys that are equal in Python are equal in the state, and the other way round."""
    values = data.draw(some.lists(KINDS[kind], min_size=1, max_size=6, unique=True))
    layout = layout_of({"v": "int", "k": kind}, ("k",))
    rows = [(i, value) for i, value in enumerate(values[: len(values) // 2 + 1])]
    state = consolidate(layout.batch(rows, [1] * len(rows)), layout.schema)
    assert sorted(layout.keys(state), key=repr) == sorted(((v,) for _, v in rows), key=repr)
    found = find_rows(layout, lambda _: state, [(v,) for v in values])
    there = {row[1]: row for row in rows}
    assert {key[0]: f.row for key, f in found.items()} == {v: there.get(v) for v in values}
    assert [f.k for f in found.values()] == layout.hashes([(v,) for v in values]).tolist()


@pytest.mark.parametrize(
    ("kind", "raw"),
    [("date", [2932897, -719163, 2147483647, -2147483648, 0]), ("timestamp", [253402300800000000, -(1 << 63), 0]),
     ("timestamp_ntz", [(1 << 63) - 1, -62135596800000001, 0])],
)  # fmt: skip
def test_times_that_python_has_no_object_for_stay_what_they_are(kind: str, raw: list[int]) -> None:
    """Spark computes them; a row that has one can be read, compared, and written back unchanged."""
    layout = layout_of({"id": "int", "t": kind}, ("id",))
    width = pa.int32() if kind == "date" else pa.int64()
    times = pa.array(raw, width).cast(arrow_type(kind))
    state = stored_rows(
        layout.schema,
        pa.RecordBatch.from_arrays([pa.array(range(len(raw)), pa.int32()), times], names=["id", "t"]), 1,
    )  # fmt: skip
    rows = layout.rows(state)
    assert layout.batch(rows, [1] * len(rows)).equals(state)
    by_value = sorted(rows, key=lambda row: raw[row[0]])
    for low, high in itertools.pairwise(by_value):
        assert low[1] < high[1] and high[1] > low[1] and low[1] != high[1] and not high[1] <= low[1]
        assert low[1] <= high[1] and high[1] >= low[1] and low[1] == low[1] and not low[1] >= high[1]


def test_a_date_that_python_has_no_object_for_can_be_a_key() -> None:
    layout = layout_of({"d": "date"}, ("d",))
    days = pa.array([2932897, 5], pa.int32()).cast(pa.date32())
    state = stored_rows(layout.schema, pa.RecordBatch.from_arrays([days], names=["d"]), 1)
    keys = layout.keys(state)
    found = find_rows(layout, lambda _: state, keys)
    assert [found[key].row for key in keys] == keys
    assert np.array_equal(layout.hashes(keys), np.asarray(state.column(0)))
