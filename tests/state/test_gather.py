"""Rows by position are what Arrow's own `take` gives, for every type; keys are found wherever they lie."""

from __future__ import annotations

import datetime
import decimal
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.state import run as run_module
from headrace.state.kernels.bloom import Probe
from headrace.state.run import Run, Section, write_run
from headrace.state.schema import TableSchema
from support import examples

VALUES: dict[str, tuple[pa.DataType, Any]] = {
    "i8": (pa.int8(), st.integers(-128, 127)),
    "i16": (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    "i32": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "i64": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "f32": (pa.float32(), st.floats(width=32, allow_nan=False)),
    "f64": (pa.float64(), st.floats(allow_nan=False)),
    "bool": (pa.bool_(), st.booleans()),
    "date": (pa.date32(), st.dates()),
    "time": (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(datetime.UTC))),
    "dec": (pa.decimal128(38, 2), st.integers(-(10**30), 10**30).map(lambda i: decimal.Decimal(i) / 100)),
    "text": (pa.string(), st.text(max_size=20)),
    "blob": (pa.binary(), st.binary(max_size=20)),
    "list": (pa.list_(pa.int32()), st.lists(st.integers(0, 9), max_size=3)),
    "struct": (pa.struct([("x", pa.int64()), ("y", pa.string())]), st.just({"x": 1, "y": "é"})),
    "null": (pa.null(), st.none()),
}
SCHEMA = TableSchema(
    (pa.field("id", pa.int64()),),
    tuple(pa.field(n, kind) for n, (kind, _) in VALUES.items()),
    ((pa.field("__w", pa.int64()), "add"),),
)
ROW = st.tuples(*(st.none() | values for _, values in VALUES.values()))


@pytest.fixture(autouse=True, scope="module")
def _small_batches() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module, "RUN_BATCH_ROWS", 8)
        patch.setattr(run_module, "INDEX_STRIDE", 4)
        patch.setattr(run_module, "FILTER_MIN_ROWS", 30)
        yield


def _run(folder: str, keys: list[int], rows: list[Any]) -> Run:
    count = len(keys)
    numbers = [sorted(keys), list(range(count)), sorted(keys)]
    columns = [pa.array(c, pa.int64()) for c in numbers]
    columns += [pa.array([r[i] for r in rows], kind) for i, (kind, _) in enumerate(VALUES.values())]
    columns.append(pa.array([1] * count, pa.int64()))
    batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMA.arrow())
    return Run.open(folder, write_run(folder, "r", [Section(1, SCHEMA, [batch], 1)], fsync=False)[0])


@settings(max_examples=examples(80))
@given(st.lists(ROW, min_size=1, max_size=30), st.data())
def test_every_type_is_gathered_as_it_was_stored(rows: list[Any], data: st.DataObject) -> None:
    positions = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=30))
    with tempfile.TemporaryDirectory() as folder:
        run = _run(folder, list(range(len(rows))), rows)
        whole = pa.Table.from_batches(run.batches).combine_chunks()
        for i, name in enumerate(SCHEMA.arrow().names):
            found = run.gather(i, np.array(sorted(positions), dtype=np.int64))
            found.validate(full=True)
            assert found.to_pylist() == whole.column(name).take(pa.array(sorted(positions), pa.int64())).to_pylist()
            assert found.type == SCHEMA.arrow().field(i).type


KEYS = st.sampled_from([-(2**63), -(2**63) + 1, -7, -1, 0, 1, 2, 3, 50, 2**62, 2**63 - 2, 2**63 - 1])


@settings(max_examples=examples(200))
@given(st.lists(KEYS | st.integers(-20, 20), min_size=1, max_size=70), st.sets(KEYS | st.integers(-20, 20), min_size=1))
@example([2**63 - 1] * 20, {2**63 - 1})
@example([-(2**63)] * 20 + [5], {-(2**63), 5})
def test_keys_are_found_wherever_they_lie(stored: list[int], wanted: set[int]) -> None:
    """FS-18: repeated keys, over blocks and batches, at both ends of the range; in more and fewer keys than rows."""
    with tempfile.TemporaryDirectory() as folder:
        run = _run(folder, stored, [(None,) * len(VALUES)] * len(stored))
        keys = np.array(sorted(k for k in wanted if run.ref.k_min <= k <= run.ref.k_max), dtype=np.int64)
        if len(keys):
            assert run.find(Probe.of(keys)).tolist() == [i for i, k in enumerate(sorted(stored)) if k in wanted]
