from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.errors import CorruptObject, DiskFull, StorageError
from headrace.state import run as run_module
from headrace.state.run import Run, RunCache, Section, write_run
from headrace.state.schema import RunRef, TableSchema

SCHEMA = TableSchema(
    (pa.field("id", pa.int64()),), (pa.field("name", pa.string()),), ((pa.field("__w", pa.int64()), "add"),)
)
KEYED = TableSchema((pa.field("id", pa.int64()),), (), ((pa.field("n", pa.int64()), "add"),))


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "RUN_BATCH_ROWS", 16)
    monkeypatch.setattr(run_module, "INDEX_STRIDE", 4)


def _batch(ids: list[int], epochs: list[int] | None = None) -> pa.RecordBatch:
    columns: list[Any] = [[i // 3 for i in ids], ids, ids, [f"name {i}" for i in ids], [1] * len(ids)]
    columns += [] if epochs is None else [epochs]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, SCHEMA.arrow(with_epoch=epochs is not None), strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA.arrow(with_epoch=epochs is not None))


def _write(root: Path, path: str = "a/1.run", count: int = 50) -> RunRef:
    return write_run(root, path, [Section(7, SCHEMA, [_batch(list(range(count)))], epoch=5)], fsync=False)[0]


def test_a_run_reads_back_as_written(tmp_path: Path) -> None:
    ref = _write(tmp_path)
    assert (ref.table_id, ref.rows, ref.epoch_lo, ref.epoch_hi, ref.k_min, ref.k_max) == (7, 50, 5, 5, 0, 16)
    assert RunRef.from_json(json.loads(json.dumps(ref.to_json()))) == ref
    run = Run.open(tmp_path, ref)
    run.verify()
    assert [b.num_rows for b in run.batches] == [16, 16, 16, 2]
    assert pa.Table.from_batches(run.batches).to_pylist() == _batch(list(range(50))).to_pylist()
    assert run.batch_first_k.tolist() == [0, 5, 10, 16]
    assert run.arrow_schema == SCHEMA.arrow()


def test_one_object_holds_sections_of_many_tables(tmp_path: Path) -> None:
    counts = pa.record_batch([[1, 2], [1, 2], [3, 4]], schema=KEYED.arrow())
    parts = [_batch([0, 1, 2], [3, 4, 4]), _batch([], []), _batch(list(range(3, 40)), [3] * 37)]
    sections = [Section(1, SCHEMA, parts), Section(2, KEYED, [], 4), Section(3, KEYED, [counts], 4)]
    refs = write_run(tmp_path, "x", sections)
    assert [(r.table_id, r.rows, r.epoch_lo, r.epoch_hi) for r in refs] == [(1, 40, 3, 4), (3, 2, 4, 4)]
    assert os.listdir(tmp_path) == ["x"]
    for ref in refs:
        Run.open(tmp_path, ref).verify()
    assert pa.Table.from_batches(Run.open(tmp_path, refs[0]).batches).column("id").to_pylist() == list(range(40))
    assert Run.open(tmp_path, refs[1]).batch(0).equals(counts)


def test_nothing_to_write_leaves_no_object(tmp_path: Path) -> None:
    assert write_run(tmp_path, "x", [Section(1, SCHEMA, [_batch([])], 4)]) == []
    assert os.listdir(tmp_path) == []


def test_lower_bound_counts_the_rows_before(tmp_path: Path) -> None:
    run = Run.open(tmp_path, _write(tmp_path))
    points = [(i // 3, i) for i in range(50)]
    for k in range(-2, 19):
        assert run.lower_bound((k,)) == sum(p[0] < k for p in points)
        for h in (-1, 3 * k, 3 * k + 1, 99):
            assert run.lower_bound((k, h)) == sum(p < (k, h) for p in points)
    assert run.lower_bound((2**63,)) == 50
    ids = [i for b in run.slices(10, 40) for i in b.column("id").to_pylist()]
    assert ids == list(range(10, 40))


def test_rows_out_of_order_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not sorted"):
        write_run(tmp_path, "x", [Section(1, SCHEMA, [_batch([3, 2])], 1)])
    with pytest.raises(ValueError, match="not sorted"):
        write_run(tmp_path, "x", [Section(1, SCHEMA, [_batch(list(range(16))), _batch([3])], 1)])
    assert os.listdir(tmp_path) == []


def test_a_name_is_never_used_twice(tmp_path: Path) -> None:
    _write(tmp_path)
    before = (tmp_path / "a/1.run").read_bytes()
    with pytest.raises(StorageError, match=r"a/1\.run exists"):
        _write(tmp_path, count=3)
    assert (tmp_path / "a/1.run").read_bytes() == before


def test_a_missing_object_is_named(tmp_path: Path) -> None:
    ref = _write(tmp_path)
    (tmp_path / ref.path).unlink()
    with pytest.raises(CorruptObject, match=r"a/1\.run is missing"):
        Run.open(tmp_path, ref)


@pytest.mark.parametrize("keep", [0, 10, 0.5, -1])
def test_a_truncated_object_is_named(tmp_path: Path, keep: float) -> None:
    ref = _write(tmp_path)
    target = tmp_path / ref.path
    data = target.read_bytes()
    target.write_bytes(data[: int(len(data) * keep) if isinstance(keep, float) else keep])
    with pytest.raises(CorruptObject, match=r"a/1\.run"):
        Run.open(tmp_path, ref)


def test_every_flipped_byte_is_found(tmp_path: Path) -> None:
    ref = _write(tmp_path, count=20)
    target = tmp_path / ref.path
    data = target.read_bytes()
    for place in range(ref.offset, ref.offset + ref.length):
        damaged = bytearray(data)
        damaged[place] ^= 0x41
        target.write_bytes(damaged)
        with pytest.raises(CorruptObject, match=r"a/1\.run"):
            Run.open(tmp_path, ref).verify()
        with pytest.raises(CorruptObject, match=r"a/1\.run"):
            # Whoever reads finds out by himself, before he sees a row of what is damaged.
            assert Run.open(tmp_path, ref).batches == []


def test_damage_in_one_batch_does_not_stop_reads_of_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "RUN_BATCH_ROWS", 8)
    monkeypatch.setattr(run_module, "INDEX_STRIDE", 4)
    ref = _write(tmp_path, count=30)
    good = Run.open(tmp_path, ref)
    expected = [good.batch(i).to_pylist() for i in range(good.batch_count)]
    data = bytearray((tmp_path / ref.path).read_bytes())
    data[ref.offset + good._blocks[1][0] - 1] ^= 1
    (tmp_path / ref.path).unlink()
    (tmp_path / ref.path).write_bytes(data)
    run = Run.open(tmp_path, ref)
    assert [run.batch(i).to_pylist() for i in (0, 2, 3)] == [expected[i] for i in (0, 2, 3)]
    for _ in range(2):
        with pytest.raises(CorruptObject, match=r"a/1\.run fails its checksum"):
            run.batch(1)


def test_another_run_under_the_name_is_found(tmp_path: Path) -> None:
    one, other = _write(tmp_path, "1", 20), _write(tmp_path, "2", 19)
    (tmp_path / "2").rename(tmp_path / "1")
    with pytest.raises(CorruptObject):
        Run.open(tmp_path, one)
    assert other.crc32 != one.crc32


def _failing(real: Any, code: int, after: int) -> Any:
    calls: Iterator[int] = iter(range(10**6))

    def call(*args: Any, **kwargs: Any) -> Any:
        if next(calls) >= after:
            raise OSError(code, os.strerror(code))
        return real(*args, **kwargs)

    return call


@pytest.mark.parametrize("where", ["open", "write", "fsync"])
def test_a_full_disk_is_reported_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, where, _failing(getattr(os, where), errno.ENOSPC, 0))
        with pytest.raises(DiskFull, match=r"a/1\.run"):
            write_run(tmp_path, "a/1.run", [Section(1, SCHEMA, [_batch([1])], 1)])
    assert not [found for found in tmp_path.rglob("*") if found.is_file()]


def test_a_disk_that_fills_up_half_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "RUN_BATCH_ROWS", 65_536)
    n = 300_000
    column = pa.array(np.arange(n))
    big = pa.RecordBatch.from_arrays([column] * 3, schema=KEYED.arrow())
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", _failing(os.write, errno.ENOSPC, 2))
        with pytest.raises(DiskFull):
            write_run(tmp_path, "x", [Section(1, KEYED, [big], 1)])
    assert os.listdir(tmp_path) == []
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", _failing(os.write, errno.EIO, 0))
        with pytest.raises(StorageError, match="Input/output"):
            write_run(tmp_path, "x", [Section(1, KEYED, [big], 1)])


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:7]))
    Run.open(tmp_path, _write(tmp_path)).verify()


def test_the_cache_holds_a_bounded_number_of_runs(tmp_path: Path) -> None:
    refs = [_write(tmp_path, str(i), 5) for i in range(4)]
    cache = RunCache(capacity=2)
    first = cache.get(tmp_path, refs[0])
    assert cache.get(tmp_path, refs[0]) is first
    batch = first.batch(0)
    for ref in refs[1:]:
        cache.get(tmp_path, ref)
    assert len(cache) == 2
    assert cache.get(tmp_path, refs[0]) is not first
    cache.clear()
    assert batch.column("id").to_pylist() == [0, 1, 2, 3, 4]


def test_the_cache_lets_go_of_what_is_merged_away_or_not_asked_for(tmp_path: Path) -> None:
    """Else files that have been deleted would keep their place on the disk for as long as the process lives."""
    refs = [_write(tmp_path, str(i), 5) for i in range(3)]
    now_s = 0.0
    cache = RunCache(idle_s=30, now_s=lambda: now_s)
    first, *others = [cache.get(tmp_path, ref) for ref in refs]
    cache.tidy(tmp_path / "elsewhere", {7: []})
    cache.tidy(tmp_path, {8: []})
    assert len(cache) == 3, "of other tables nothing is said"
    cache.tidy(tmp_path, {7: refs[1:]})
    assert [cache.get(tmp_path, ref) for ref in refs[1:]] == others and len(cache) == 2
    now_s = 20.0
    assert cache.get(tmp_path, refs[0]) is not first, "for who still reads an older version"
    now_s = 40.0
    cache.tidy(tmp_path, {7: refs})
    assert len(cache) == 1 and cache.get(tmp_path, refs[1]) is not others[0]


def test_an_open_run_outlives_its_object(tmp_path: Path) -> None:
    ref = _write(tmp_path)
    run = Run.open(tmp_path, ref)
    (tmp_path / ref.path).unlink()
    run.verify()
    assert sum(b.num_rows for b in run.batches) == 50
