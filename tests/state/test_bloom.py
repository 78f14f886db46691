from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.errors import CorruptObject
from headrace.state import run as run_module
from headrace.state.arrangement import Arrangement
from headrace.state.gather import RowAccess
from headrace.state.kernels.bloom import KeyFilter, Probe, filter_words
from headrace.state.run import Run, RunCache, Section, write_run
from headrace.state.schema import TableSchema
from support import examples

SCHEMA = TableSchema((pa.field("id", pa.int64()),), (), ((pa.field("n", pa.int64()), "add"),))
INT64 = st.integers(-(2**63), 2**63 - 1)


def _sorted(values: Any) -> np.ndarray:
    return np.array(sorted(values), dtype=np.int64)


@settings(max_examples=examples(300))
@given(st.lists(st.lists(INT64 | st.integers(-5, 5), min_size=1, max_size=200), min_size=1, max_size=5))
@example([[-(2**63)], [2**63 - 1]])
def test_there_is_no_false_negative(batches: list[list[int]]) -> None:
    """FS-18: a filter never denies a key that was put in, repeated or at the ends of the range."""
    keys = [_sorted(b) for b in batches]
    built = KeyFilter.decode(KeyFilter.encode([filter_words(k) for k in keys]))
    assert built is not None
    for i, k in enumerate(keys):
        assert built.may_hold(Probe.of(k), np.full(len(k), i)).all()


def test_few_absent_keys_pass() -> None:
    rng = np.random.default_rng(5)
    keys = np.sort(rng.integers(-(2**63), 2**63 - 1, 65_536))
    for present in (keys, np.arange(65_536)):  # hashes, and keys that are an order-preserving encoding
        words = filter_words(present)
        assert 10 <= len(words) * 64 / len(present) <= 13
        built = KeyFilter.decode(KeyFilter.encode([words]))
        assert built is not None
        absent = np.setdiff1d(rng.integers(-(2**63), 2**63 - 1, 100_000), present)
        assert built.may_hold(Probe.of(absent), np.zeros(len(absent), dtype=np.int64)).mean() < 0.04


def _write(root: Path, path: str, keys: np.ndarray) -> Any:
    ones = pa.array(np.ones(len(keys), dtype=np.int64))
    batch = pa.RecordBatch.from_arrays([pa.array(keys), pa.array(keys), ones], schema=SCHEMA.arrow())
    return write_run(root, path, [Section(1, SCHEMA, [batch], 1)], fsync=False)[0]


@given(st.sets(st.integers(-60, 60), min_size=1), st.lists(st.integers(-50, 50), min_size=1, max_size=120))
def test_fetching_with_filters_finds_what_is_there(wanted: set[int], stored: list[int]) -> None:
    """FS-18: keys that repeat over the ends of batches are found in all of them."""
    import tempfile

    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(run_module, "RUN_BATCH_ROWS", 8)
        patch.setattr(run_module, "INDEX_STRIDE", 4)
        patch.setattr(run_module, "FILTER_MIN_ROWS", 1)
        ref = _write(Path(folder), "r", _sorted(stored))
        assert Run.open(folder, ref)._filter is not None
        found = Arrangement(SCHEMA, [ref], folder, cache=RunCache()).fetch(_sorted(wanted))
        assert found.column("id").to_pylist() == [k for k in sorted(stored) if k in wanted]


def test_absent_keys_are_not_searched_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(6)
    keys = np.unique(rng.integers(-(2**63), 2**63 - 1, 40_000))
    refs = [_write(tmp_path, str(i), keys[i::4]) for i in range(4)]
    searched: list[int] = []
    real = RowAccess.find
    monkeypatch.setattr(RowAccess, "find", lambda self, k, *rest: searched.append(len(k)) or real(self, k, *rest))
    probe = keys[4:-4:4]
    found = Arrangement(SCHEMA, refs, tmp_path, cache=RunCache()).fetch(probe)
    assert found.column("id").to_pylist() == probe.tolist()
    assert len(probe) <= sum(searched) < len(probe) * 1.2


def test_small_runs_have_no_filter(tmp_path: Path) -> None:
    assert Run.open(tmp_path, _write(tmp_path, "r", np.arange(100)))._filter is None


def test_a_damaged_filter_is_found_by_the_checksum(tmp_path: Path) -> None:
    ref = _write(tmp_path, "r", np.arange(10_000))
    data = bytearray((tmp_path / "r").read_bytes())
    data[data.rindex(b'{"table_id"') - 9] ^= 1
    (tmp_path / "r").write_bytes(data)
    with pytest.raises(CorruptObject, match="object r fails its checksum"):
        Run.open(tmp_path, ref).verify()
