from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from arrangement_model import DELTAS, MAX, SCHEMA, Model, counted, hash_of, key_of, table_batch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import CorruptObject
from headrace.state import arrangement as arrangement_module
from headrace.state import run as run_module
from headrace.state import run_cursor as cursor_module
from headrace.state.arrangement import Arrangement, slice_bounds, slice_of
from headrace.state.kernels import consolidate
from headrace.state.kernels.equality import Ints
from headrace.state.merge import choose_compaction, least_runs, merge
from headrace.state.run import RunCache, Section, write_run
from headrace.state.run_cursor import RowSpan
from headrace.state.schema import RunRef, TableSchema
from support import examples


@pytest.fixture(autouse=True, scope="module")
def _small_batches() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module, "RUN_BATCH_ROWS", 8)
        patch.setattr(run_module, "INDEX_STRIDE", 4)
        patch.setattr(arrangement_module, "MAPPED_BYTES", 500)
        yield


MERGES = st.lists(st.tuples(st.lists(st.integers(0, 50), min_size=1, max_size=6), st.integers(0, 6)), max_size=2)
KEYS = st.sampled_from([-(2**63), -6, -5, -4, 0, 1, 3 * 2**40, 2**63 - 1])


def _sorted(batches: list[pa.RecordBatch]) -> bool:
    points = [(r["__k"], r["__h"]) for b in batches for r in b.to_pylist()]
    return points == sorted(points)


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(st.tuples(DELTAS, st.integers(1, 3), MERGES), min_size=1, max_size=6),
    st.sampled_from([1, 8, 30, 1000]),
    st.sets(KEYS, min_size=1),
    KEYS,
    st.none() | KEYS,
)
def test_reads_are_those_of_the_history(
    epochs: list[Any], chunk_rows: int, wanted: set[int], k_from: int, k_to: int | None
) -> None:
    with tempfile.TemporaryDirectory() as root:
        model = Model(Path(root))
        for epoch, (deltas, p, merges) in enumerate(epochs, start=1):
            model.write(deltas, epoch, p)
            for chosen, safe in merges:
                if model.refs:
                    model.merge(chosen, min(safe, epoch), chunk_rows)
        check(model, len(epochs), chunk_rows, wanted, k_from, k_to)


def check(model: Model, last: int, chunk_rows: int, wanted: set[int], k_from: int, k_to: int | None) -> None:
    keys = np.array(sorted(wanted), dtype=np.int64)
    cache = RunCache(3)

    def in_slice(k: int) -> bool:
        return k_from <= k and (k_to is None or k < k_to)

    for as_of in [*range(model.safe, last + 1), None]:
        table = Arrangement(SCHEMA, model.refs, model.root, as_of=as_of, cache=cache)
        up_to = last if as_of is None else as_of
        found = table.fetch(keys)
        assert found.schema == SCHEMA.arrow()
        assert _sorted([found])
        assert counted([found]) == model.expected(0, up_to, wanted.__contains__)
        assert found.num_rows == len(counted([found]))
        scanned = list(table.scan(k_from, k_to, chunk_rows=chunk_rows))
        for rows in (unsorted := list(table.scan_unsorted(k_from, k_to, chunk_rows=chunk_rows))):
            assert rows.schema == SCHEMA.arrow() and rows.num_rows
        assert counted(unsorted) == counted(scanned)
        assert all(w > 0 for b in unsorted for w in b.column("__w").to_pylist()) or min(counted(scanned).values()) < 0
        assert _sorted(scanned)
        assert counted(scanned) == model.expected(0, up_to, in_slice)
        assert sum(b.num_rows for b in scanned) == len(counted(scanned))
        for after in range(model.safe, up_to + 1):
            log = list(table.log(after, up_to, k_from, k_to, with_epoch=True))
            assert counted(log, epochs=True) == model.expected(after, up_to, in_slice, epochs=True)
            plain = list(table.log(after, up_to, k_from, k_to))
            assert all(b.schema == SCHEMA.arrow() for b in plain)
            assert counted(plain) == model.expected(after, up_to, in_slice)


def test_a_hot_key_is_scanned_in_parts(tmp_path: Path) -> None:
    n = 400
    rows = pa.array(np.arange(n))
    zeros, ones = pa.array(np.zeros(n, dtype=np.int64)), pa.array(np.ones(n, dtype=np.int64))
    names = pa.array([str(i) for i in range(n)])
    batch = pa.RecordBatch.from_arrays([zeros, rows, zeros, names, ones], schema=SCHEMA.arrow())
    refs = [write_run(tmp_path, str(e), [Section(1, SCHEMA, [batch], e)])[0] for e in (1, 2)]
    parts = list(Arrangement(SCHEMA, refs, tmp_path).scan(chunk_rows=40))
    assert max(p.num_rows for p in parts) <= 40
    assert [w for p in parts for w in p.column("__w").to_pylist()] == [2] * n


def test_one_run_is_passed_through(tmp_path: Path) -> None:
    batch = consolidate(table_batch([((i, "x"), 1, 1) for i in range(30)]), SCHEMA)
    ref = write_run(tmp_path, "1", [Section(1, SCHEMA, [batch], 1)])[0]
    cache = RunCache()
    scanned = list(Arrangement(SCHEMA, [ref], tmp_path, cache=cache).scan(chunk_rows=5))
    assert max(b.num_rows for b in scanned) == 5
    stored = cache.get(tmp_path, ref).batch(0).column("id").buffers()[1].address
    assert scanned[0].column("id").buffers()[1].address == stored


def _mapped_bytes(path: Path) -> int:
    """How much of a file is in the memory of this process."""
    smaps = Path("/proc/self/smaps")
    if not smaps.exists():
        pytest.skip("needs /proc")
    found, ours = 0, False
    for line in smaps.read_text().splitlines():
        words = line.split()
        if "-" in words[0]:
            ours = words[-1] == str(path)
        elif ours and words[0] == "Rss:":
            found += int(words[1]) << 10
    return found


@pytest.mark.parametrize("runs", [1, 2])
def test_a_scan_of_many_bytes_lets_go_of_what_it_has_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: int
) -> None:
    monkeypatch.setattr(run_module, "RUN_BATCH_ROWS", 4096)
    monkeypatch.setattr(run_module, "INDEX_STRIDE", 64)
    n = 200_000
    numbers, zeros = pa.array(np.arange(n)), pa.array(np.zeros(n, dtype=np.int64))
    names, ones = pa.array([f"the name of number {i}" for i in range(n)]), pa.array(np.ones(n, dtype=np.int64))
    batch = pa.RecordBatch.from_arrays([numbers, zeros, numbers, names, ones], schema=SCHEMA.arrow())
    refs = [write_run(tmp_path, str(e), [Section(1, SCHEMA, [batch], e)])[0] for e in range(1, 1 + runs)]
    size, kept = (tmp_path / "1").stat().st_size, {}
    for limit in (1 << 40, 0):
        monkeypatch.setattr(arrangement_module, "MAPPED_BYTES", limit)
        cache, total = RunCache(), 0
        for rows in Arrangement(SCHEMA, refs, tmp_path, cache=cache).scan_unsorted(chunk_rows=8192):
            total += sum(rows.column("id").to_pylist())
        del rows
        assert total == runs * n * (n - 1) // 2
        kept[limit] = _mapped_bytes(tmp_path / "1")
        assert cache.get(tmp_path, refs[0]).batch(7).column("id").to_pylist() == list(range(7 * 4096, 8 * 4096))
    assert kept[1 << 40] > size * 0.9
    assert kept[0] < size * 0.1


def test_a_table_without_runs_is_empty(tmp_path: Path) -> None:
    table = Arrangement(SCHEMA, [], tmp_path, as_of=3)
    assert table.fetch(np.array([1, 2])).schema == SCHEMA.arrow()
    assert table.rows == 0
    assert list(table.scan()) == []
    assert list(table.log(0, 9)) == []


def test_a_lost_run_is_never_read_as_empty(tmp_path: Path) -> None:
    batch = consolidate(table_batch([((0, "x"), 1, 1)]), SCHEMA)
    ref = write_run(tmp_path, "1", [Section(1, SCHEMA, [batch], 1)])[0]
    (tmp_path / "1").unlink()
    table = Arrangement(SCHEMA, [ref], tmp_path)
    for read in (lambda: table.fetch(np.array([ref.k_min])), lambda: list(table.scan()), lambda: list(table.log(0, 1))):
        with pytest.raises(CorruptObject, match="object 1 is missing"):
            read()


def test_a_damaged_run_is_not_merged(tmp_path: Path) -> None:
    batch = consolidate(table_batch([((i, "xyz"), 1, 1) for i in range(9)]), SCHEMA)
    refs = [write_run(tmp_path, str(e), [Section(1, SCHEMA, [batch], e)])[0] for e in (1, 2)]
    data = bytearray((tmp_path / "2").read_bytes())
    data[data.index(b"xyz")] ^= 1
    (tmp_path / "2").write_bytes(data)
    with pytest.raises(CorruptObject, match="object 2 fails its checksum"):
        merge(refs, SCHEMA, tmp_path, "3", 2)
    assert not (tmp_path / "3").exists()


def test_merge_by_key_slices_is_the_whole_merge(tmp_path: Path) -> None:
    deltas = [table_batch([((i % 10, str(i * e % 7)), 1, e) for i in range(50)]) for e in (1, 2, 3)]
    refs = [
        write_run(tmp_path, str(e), [Section(1, SCHEMA, [consolidate(b, SCHEMA)], e)])[0]
        for e, b in enumerate(deltas, start=1)
    ]
    parts = []
    for i in range(4):
        low, high = slice_bounds(i, 4)
        part = merge(refs, SCHEMA, tmp_path, f"m{i}", 2, k_from=low, k_to=high)
        parts += [] if part is None else [part]
    whole = counted(Arrangement(SCHEMA, refs, tmp_path).scan())
    assert counted(Arrangement(SCHEMA, parts, tmp_path).scan()) == whole
    assert counted(Arrangement(SCHEMA, parts, tmp_path, as_of=2).scan()) == counted(
        Arrangement(SCHEMA, refs, tmp_path, as_of=2).scan()
    )


def test_merge_keeps_extrema(tmp_path: Path) -> None:
    refs = []
    for epoch, best in enumerate(["b", None, "c", "a"], start=1):
        batch = pa.record_batch([[4], [4], [1], pa.array([best], pa.string())], schema=MAX.arrow())
        refs += write_run(tmp_path, str(epoch), [Section(1, MAX, [batch], epoch)])
    merged = merge(refs, MAX, tmp_path, "m", 2)
    assert merged is not None
    for as_of, count, best in ((2, 2, "b"), (3, 3, "c"), (4, 4, "c")):
        row = Arrangement(MAX, [merged], tmp_path, as_of=as_of).fetch(np.array([4])).to_pylist()
        assert row == [{"__k": 4, "id": 4, "n": count, "m": best}]


def test_merge_of_what_cancels_out_leaves_no_run(tmp_path: Path) -> None:
    rows = [consolidate(table_batch([((1, "a"), w, 1)]), SCHEMA) for w in (1, -1)]
    refs = [write_run(tmp_path, str(e), [Section(1, SCHEMA, [b], e)])[0] for e, b in enumerate(rows, start=1)]
    assert merge(refs, SCHEMA, tmp_path, "m", 2) is None
    assert merge(refs, SCHEMA, tmp_path, "n", 1) is not None


@given(st.integers(1, 1000), st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20))
def test_slices_cover_every_key_once(p: int, keys: list[int]) -> None:
    bounds = [slice_bounds(i, p) for i in range(p)]
    assert bounds[0][0] == -(2**63)
    assert bounds[-1][1] is None
    assert [b[1] for b in bounds[:-1]] == [b[0] for b in bounds[1:]]
    for k, i in zip(keys, slice_of(np.array(keys, dtype=np.int64), p).tolist(), strict=True):
        low, high = bounds[i]
        assert low <= k and (high is None or k < high)


def test_there_is_no_slice_beyond_the_last() -> None:
    with pytest.raises(ValueError, match="no slice 3 of 3"):
        slice_bounds(3, 3)


def _ref(i: int, length: int) -> RunRef:
    return RunRef(1, str(i), 0, length, 1, i, i, 0, 1)


@given(st.lists(st.integers(1, 10**9), max_size=200), st.integers(2, 60))
def test_compaction_chooses_disjoint_groups_and_bounds_the_runs(sizes: list[int], fan_in: int) -> None:
    refs = [_ref(i, size) for i, size in enumerate(sizes)]
    assert len(refs) >= least_runs(fan_in) or not choose_compaction(refs, fan_in=fan_in)
    groups = choose_compaction(refs)
    names = [r.path for g in groups for r in g]
    assert len(names) == len(set(names))
    assert all(len(g) > 1 for g in groups)
    assert len(refs) - len(names) + len(groups) <= 48


def test_compaction_rewrites_a_row_once_per_tier() -> None:
    refs: list[RunRef] = []
    rewritten = 0
    for i in range(4096):
        refs.append(_ref(i, 1000))
        while groups := choose_compaction(refs, tier_bytes=4000):
            for group in groups:
                size = sum(r.length for r in group)
                rewritten += size
                refs = [r for r in refs if r not in group] + [_ref(10_000 + i, size)]
        assert len(refs) <= 40
    assert rewritten <= 4096 * 1000 * 6


def test_merge_combines_below_the_safe_epoch_only(tmp_path: Path) -> None:
    batch = consolidate(table_batch([((1, "a"), 1, 1)]), SCHEMA)
    refs = [write_run(tmp_path, str(e), [Section(1, SCHEMA, [batch], e)])[0] for e in range(1, 7)]
    merged = merge(refs, SCHEMA, tmp_path, "m", 4)
    assert merged is not None
    assert (merged.rows, merged.epoch_lo, merged.epoch_hi) == (3, 4, 6)
    log = Arrangement(SCHEMA, [merged], tmp_path).log(0, 9, with_epoch=True)
    assert [(r["__e"], r["__w"]) for b in log for r in b.to_pylist()] == [(4, 4), (5, 1), (6, 1)]


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(st.tuples(DELTAS, st.integers(1, 3), MERGES), min_size=1, max_size=6),
    st.sets(KEYS, min_size=1),
    st.integers(1, 12),
    st.booleans(),
    st.none() | st.integers(1, 6),
)
def test_first_rows(epochs: list[Any], wanted: set[int], need: int, by_code: bool, as_of: int | None) -> None:
    """Against a dictionary: what is needed, complete to the last tie, and no more."""
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrangement_module, "FIRST_ROWS", 1)
        model = Model(Path(root))
        for epoch, (deltas, p, merges) in enumerate(epochs, start=1):
            model.write([(row, abs(w)) for row, w in deltas] if epoch == 1 else deltas, epoch, p)
            for chosen, safe in merges:
                if model.refs:
                    model.merge(chosen, min(safe, epoch, 6 if as_of is None else as_of), 30)
        # Rows that are there a negative number of times are put right: no table of state has any.
        short = [(row, -w) for (row, _), w in model.expected(0, len(epochs), lambda k: True).items() if w < 0]
        model.write(short, len(epochs) + 1, 1)
        last = len(epochs) + 1 if as_of is None else as_of
        live = model.expected(0, last, wanted.__contains__)
        if any(w < 0 for w in live.values()):
            return
        keys = np.array(sorted(wanted), dtype=np.int64)
        read = Arrangement(SCHEMA, model.refs, root, as_of=as_of, cache=RunCache(3))
        batch = read.first_rows(keys, np.full(len(keys), need), by_code=by_code)
        expected: Counter[Any] = Counter()
        for key in wanted:
            have, past = 0, None
            for h, w in sorted((hash_of(r), w) for (r, _), w in live.items() if key_of(r[0]) == key):
                if have >= need and h != past:
                    break
                have += (h != past) if by_code else w
                past = h
            bound = past
            for (row, _), w in live.items():  # type: ignore[assignment]
                if key_of(row[0]) == key and bound is not None and hash_of(row) <= bound:  # type: ignore[index]
                    expected[row, None] = w
        assert counted([batch]) == expected
        assert _sorted([batch])


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.tuples(DELTAS, st.integers(1, 3), MERGES), min_size=1, max_size=6),
    st.dictionaries(KEYS, st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1),
    st.none() | st.integers(1, 6),
)
def test_between(epochs: list[Any], wanted: dict[int, tuple[int, int]], as_of: int | None) -> None:
    """Against all that is there: of each key the rows from one `__h` to another, both included."""
    with tempfile.TemporaryDirectory() as root:
        model = Model(Path(root))
        for epoch, (deltas, p, merges) in enumerate(epochs, start=1):
            model.write(deltas, epoch, p)
            for chosen, safe in merges:
                if model.refs:
                    model.merge(chosen, min(safe, epoch, 6 if as_of is None else as_of), 30)
        live = model.expected(0, len(epochs) if as_of is None else as_of, wanted.__contains__)
        places = sorted({-(2**63), *(hash_of(row) for row, _ in live), 2**63 - 1})
        keys = sorted(wanted)
        ends = [sorted(places[i % len(places)] for i in wanted[k]) for k in keys]
        low, high = ([end[i] for end in ends] for i in (0, 1))
        read = Arrangement(SCHEMA, model.refs, root, as_of=as_of, cache=RunCache(3))
        batch = read.between(*(np.array(values, dtype=np.int64) for values in (keys, low, high)))
        bounds = {k: (a, z) for k, a, z in zip(keys, low, high)}
        assert counted([batch]) == Counter({
            row: w for row, w in live.items()
            if bounds[key_of(row[0][0])][0] <= hash_of(row[0]) <= bounds[key_of(row[0][0])][1]
        })  # fmt: skip
        assert _sorted([batch])


KEYS = TableSchema((pa.field("id", pa.int64()),), (), ((pa.field("__w", pa.int64()), "add"),))


def keys_run(root: Path, name: str, deltas: list[tuple[int, int]]) -> RunRef:
    k, weights = (pa.array([d[i] for d in deltas], pa.int64()) for i in (0, 1))
    rows = pa.RecordBatch.from_arrays([k, k, weights], schema=KEYS.arrow())
    return write_run(root, name, [Section(1, KEYS, [consolidate(rows, KEYS)], 1)], fsync=False)[0]


@given(
    st.lists(st.lists(st.tuples(st.integers(-60, 60), st.sampled_from([1, -1])), min_size=1, max_size=50), max_size=4),
    st.integers(-70, 70),
    st.integers(1, 5),
)
def test_the_lowest_key(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[tuple[int, int]]], k_from: int, look_rows: int
) -> None:
    """Rows that were taken back are none, however many lie in front of the first that is there."""
    root = tmp_path_factory.mktemp("lowest")
    refs, weights = [], Counter[int]()
    for i, part in enumerate(parts):
        sums = Counter[int]()
        for k, w in part:
            sums[k] += w
        weights.update(sums)
        if any(sums.values()):
            refs.append(keys_run(root, f"{i}.run", part))
    expected = min((k for k, w in weights.items() if w and k >= k_from), default=None)
    assert Arrangement(KEYS, refs, root, cache=RunCache()).lowest_key(k_from, look_rows) == expected


def test_the_lowest_key_is_found_without_a_look_at_every_entry_of_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refs = [keys_run(tmp_path, f"{i}.run", [(k, 1) for k in range(i, 40_000, 2)]) for i in range(2)]
    looked: list[int] = []

    def counted_points(span: RowSpan) -> Ints:
        points = index_points(span)
        looked.append(len(points))
        return points

    index_points = cursor_module._index_points
    monkeypatch.setattr(cursor_module, "_index_points", counted_points)
    table = Arrangement(KEYS, refs, tmp_path, cache=RunCache())
    assert table.lowest_key(7) == 7 and table.lowest_key(39_999) == 39_999 and table.lowest_key(40_000) is None
    assert sum(looked) < 100, "of 10,000 entries"
