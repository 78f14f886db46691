"""Rows that expire by event time: skipped at once, dropped in time, never back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headrace.state.arrangement import Arrangement
from headrace.state.kernels import consolidate
from headrace.state.merge import merge
from headrace.state.run import Run, RunCache, Section, write_run
from headrace.state.schema import RunRef, TableSchema
from headrace.state.watermark import expired_runs

ADD = ((pa.field("__w", pa.int64(), nullable=False), "add"),)
KEYED = TableSchema((pa.field("n", pa.int64()), pa.field("at", pa.timestamp("us"))), (), ADD, expires="at")
VALUED = TableSchema((pa.field("n", pa.int64()),), (pa.field("at", pa.int64()),), ADD, expires="at")


def run(root: Path, schema: TableSchema, epoch: int, rows: list[tuple[int, int | None]], weight: int = 1) -> RunRef:
    columns = {
        "__k": [n for n, _ in rows], "__h": [n for n, _ in rows], "n": [n for n, _ in rows],
        "at": [t for _, t in rows], "__w": [weight] * len(rows),
    }  # fmt: skip
    arrow = schema.arrow()
    batch = pa.RecordBatch.from_arrays([pa.array(columns[f.name], f.type) for f in arrow], schema=arrow)
    section = Section(1, schema, [consolidate(batch, schema)], epoch)
    return write_run(root, f"{epoch}.run", [section], fsync=False)[0]


def found(table: Arrangement) -> list[int]:
    return sorted(n for b in table.scan() for n in b.column("n").to_pylist())


def test_the_time_may_be_a_field_of_a_struct(tmp_path: Path) -> None:
    window = pa.struct([("start", pa.timestamp("us")), ("end", pa.timestamp("us"))])
    schema = TableSchema((pa.field("n", pa.int64()), pa.field("w", window)), (), ADD, expires="w.end")
    windows = [{"start": 0, "end": 10}, {"start": 10, "end": 20}, {"start": 20, "end": None}, None]
    arrays = [[1, 2, 3, 4], [1, 2, 3, 4], windows, [1] * 4]
    arrow = schema.arrow()
    batch = pa.RecordBatch.from_arrays([pa.array(a, f.type) for a, f in zip(arrays, arrow)], schema=arrow)
    ref = write_run(tmp_path, "1.run", [Section(1, schema, [batch], 1)], fsync=False)[0]
    assert (ref.time_min, ref.time_max) == (None, None), "not known of every row"
    assert found(Arrangement(schema, [ref], tmp_path, watermark=15)) == [2, 3, 4]
    with pytest.raises(ValueError, match="expire"):
        TableSchema(schema.key, (), ADD, expires="x.end")


@pytest.mark.parametrize("schema", [KEYED, VALUED], ids=["timestamp key", "int64 value"])
def test_every_read_skips_what_is_below(tmp_path: Path, schema: TableSchema) -> None:
    """FS-19: fetch, scan and log, with one run and with several, at once; a row without a time stays."""
    refs = [run(tmp_path, schema, 1, [(1, 10), (2, 20), (3, None)]), run(tmp_path, schema, 2, [(4, 5), (5, 30)])]
    assert [(r.time_min, r.time_max) for r in refs] == [(None, None), (5, 30)]
    for watermark, expected in ((None, [1, 2, 3, 4, 5]), (5, [1, 2, 3, 4, 5]), (6, [1, 2, 3, 5]), (99, [3])):
        table = Arrangement(schema, refs, tmp_path, watermark=watermark)
        assert found(table) == expected
        keys = np.arange(1, 6)
        assert sorted(table.fetch(keys).column("n").to_pylist()) == expected
        assert sorted(n for b in table.log(0, 2) for n in b.column("n").to_pylist()) == expected
        alone = Arrangement(schema, refs[:1], tmp_path, watermark=watermark)
        assert found(alone) == [n for n in expected if n < 4]


def test_whole_runs_go_without_being_read(tmp_path: Path) -> None:
    refs = [run(tmp_path, VALUED, 1, [(1, 10), (2, 20)]), run(tmp_path, VALUED, 2, [(3, 30)])]
    assert expired_runs(refs, None) == expired_runs(refs, 20) == []
    assert expired_runs(refs, 21) == refs[:1]
    (tmp_path / refs[0].path).unlink()
    assert found(Arrangement(VALUED, refs, tmp_path, watermark=21, cache=RunCache())) == [3]


def test_a_merge_drops_the_rest(tmp_path: Path) -> None:
    """A row whose retraction comes after it has expired leaves nothing behind either."""
    refs = [run(tmp_path, VALUED, 1, [(1, 10), (2, 20)]), run(tmp_path, VALUED, 2, [(1, 10), (3, 30)], weight=-1)]
    made = merge(refs, VALUED, tmp_path, "m.run", 0, watermark=15, fsync=False)
    assert made is not None and (made.time_min, made.time_max, made.rows) == (20, 30, 2)
    assert Run.open(tmp_path, made).arrow_schema.names[-1] == "__e", "epochs above the safe one are kept"
    assert merge(refs, VALUED, tmp_path, "n.run", 0, watermark=99, fsync=False) is None


def test_only_a_column_of_the_rows_can_expire() -> None:
    with pytest.raises(ValueError, match="no key or value column later"):
        TableSchema(VALUED.key, VALUED.value, ADD, expires="later")


def test_runs_written_before_there_were_times_are_kept(tmp_path: Path) -> None:
    ref = run(tmp_path, VALUED, 1, [(1, 10)])
    old = {k: v for k, v in ref.to_json().items() if not k.startswith("time_")}
    assert expired_runs([RunRef.from_json(old)], 99) == []
    assert found(Arrangement(VALUED, [RunRef.from_json(old)], tmp_path, watermark=99)) == []
