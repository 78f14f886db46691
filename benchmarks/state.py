"""The state store by itself, each figure beside what it is compared with.

`python benchmarks/state.py [probe] [rocksdict] [amplification] [scan] [s3]`, all by default:

probe          10,000 random keys in 10^5, 10^6 and 10^7 rows, in the runs of a steady state and in one compacted run
rocksdict      10,000 look-ups, and writing 100,000 sorted rows, beside RocksDB (needs the `bench` extra)
amplification  writing and space at a steady state of updates, beside the policy's bounds; speed of merging
scan           Spark over a table of 10^7 rows, and over the same rows in Parquet
s3             sequential round trips of epochs of a small view, on an S3 server 20 ms away (needs the `dev` extra)
"""

from __future__ import annotations

import math
import os
import shutil
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import bench
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from distant import KEYS as KEYS_IN_ENVIRONMENT
from distant import distant_s3, sequential
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.state.arrangement import Arrangement
from headrace.state.kernels import consolidate
from headrace.state.merge import FAN_IN, TIER_BYTES, choose_compaction, merge
from headrace.state.run import OPEN_RUNS, Run, Section, write_run
from headrace.state.schema import RunRef, TableSchema

SCHEMA = TableSchema(
    (pa.field("id", pa.int64()),),
    (pa.field("a", pa.int64()), pa.field("b", pa.float64()), pa.field("c", pa.float64())),
    ((pa.field("__w", pa.int64()), "add"),),
)
"""Five columns: a key, three values, a weight; beside them the two hashes that every stored row has."""
KEYS = 10_000
ROUNDS = 15


@contextmanager
def scratch() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    try:
        yield path
    finally:
        OPEN_RUNS.clear()
        shutil.rmtree(path, ignore_errors=True)


def spread(ids: np.ndarray) -> np.ndarray:
    """Ids as keys spread over the whole range, one to one."""
    with np.errstate(over="ignore"):
        x = ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        return (x ^ (x >> np.uint64(32))).view(np.int64)


def rows_of(ids: np.ndarray, version: int, weight: int = 1) -> pa.RecordBatch:
    """One row for each id, its values told by the version; not sorted."""
    columns = [spread(ids), spread(ids * 31 + version), ids, ids * 3 + version, ids * 0.5, ids + version * 0.25]
    arrays = [pa.array(c) for c in [*columns, np.full(len(ids), weight)]]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA.arrow())


@dataclass
class Table:
    """A state table, compacted by the policy after every epoch."""

    root: Path
    refs: list[RunRef] = field(default_factory=list)
    epoch: int = 0
    flushed: int = 0
    merged: int = 0
    most_runs: int = 0
    _names: int = 0

    def name(self) -> str:
        self._names += 1
        return f"{self._names}.run"

    def write(self, rows: pa.RecordBatch) -> None:
        """One epoch, and the merges that are due then."""
        self.epoch += 1
        section = Section(1, SCHEMA, [consolidate(rows, SCHEMA)], self.epoch)
        made = write_run(self.root, self.name(), [section], fsync=False)
        self.flushed += sum(r.length for r in made)
        self.refs += made
        self.most_runs = max(self.most_runs, len(self.refs))
        while groups := choose_compaction(self.refs):
            for group in groups:
                self.merge(group)

    def merge(self, group: list[RunRef]) -> None:
        made = merge(group, SCHEMA, self.root, self.name(), self.epoch, fsync=False)
        self.refs = [r for r in self.refs if r not in group]
        for ref in group:
            (self.root / ref.path).unlink()
        if made is not None:
            self.merged += made.length
            self.refs.append(made)

    def compacted(self) -> list[RunRef]:
        """All rows in one run, beside the others."""
        made = merge(self.refs, SCHEMA, self.root, self.name(), self.epoch, fsync=False)
        assert made is not None
        return [made]

    @property
    def bytes(self) -> int:
        return sum(r.length for r in self.refs)


def times(
    *calls: Callable[[], object], rounds: int = ROUNDS, clock: Callable[[], float] = time.process_time
) -> list[float]:
    """The median seconds of each, taken in turn, after one round that does not count: processor time unless told."""
    taken: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds + 1):
        for call, found in zip(calls, taken):
            started = clock()
            call()
            found.append(clock() - started)
    return [bench.median(found[1:]) for found in taken]


def keys_of(rng: np.random.Generator, rows: int) -> np.ndarray:
    return np.sort(spread(rng.choice(rows, KEYS, replace=False)))


def filled(root: Path, size: int, rng: np.random.Generator) -> Table:
    """A table of so many rows, as about 390 epochs leave it: runs in all tiers."""
    table = Table(root)
    ids = rng.permutation(size)
    step = max(size // 390, 1000)
    for start in range(0, size, step):
        table.write(rows_of(ids[start : start + step], 1))
    return table


def probe() -> None:
    sizes = (100_000, 1_000_000, 10_000_000)
    rng = np.random.default_rng(7)
    with scratch() as root:
        calls: list[Callable[[], object]] = []
        counts = []
        for size in sizes:
            folder = root / str(size)
            table = filled(folder, size, rng)
            counts.append(len(table.refs))
            chosen = [keys_of(rng, size) for _ in range(ROUNDS + 1)]
            pair = [Arrangement(SCHEMA, refs, folder) for refs in (table.refs, table.compacted())]
            first, second = (arrangement.fetch(chosen[0]) for arrangement in pair)
            assert first.equals(second) and first.num_rows == KEYS
            calls += [_each(arrangement.fetch, chosen) for arrangement in pair]
            calls.append(_each(partial(taken, mapped_columns(folder / "plain", size)), places_of(rng, size)))
        found = times(*calls)
    many, one, plain = found[::3], found[1::3], found[2::3]
    lines = [
        [f"{size:,}", str(runs), f"{a * 1e3:.1f}", f"{b * 1e3:.1f}", f"{a / b:.2f}", f"{c * 1e3:.2f}"]
        for size, runs, a, b, c in zip(sizes, counts, many, one, plain)
    ]
    title = f"Fetching {KEYS:,} random keys (ratio: at most 3)"
    bench.show(title, ["rows", "runs", "steady state, ms", "one run, ms", "ratio", "plain take, ms"], lines)
    growth, bound = many[-1] / many[0], math.log(sizes[-1]) / math.log(sizes[0])
    print(f"10^7 rows beside 10^5: {growth:.2f} times the time; log N: {bound:.2f} times")
    print(f"The memory's share: taking rows by known places from mapped columns {plain[-1] / plain[0]:.2f} times\n")


def mapped_columns(path: Path, size: int) -> np.ndarray:
    """As many columns as a stored row has, in a mapped file."""
    columns = np.memmap(path, np.int64, "w+", shape=(SCHEMA.width, size))
    columns[:] = np.arange(size)
    columns.flush()
    return np.memmap(path, np.int64, "r", shape=columns.shape)


def places_of(rng: np.random.Generator, size: int) -> list[np.ndarray]:
    return [np.sort(rng.choice(size, KEYS, replace=False)) for _ in range(ROUNDS + 1)]


def taken(columns: np.ndarray, places: np.ndarray) -> object:
    return [column.take(places) for column in columns]


def _each(call: Callable[[np.ndarray], object], arguments: Sequence[np.ndarray]) -> Callable[[], object]:
    turn = iter(arguments)
    return lambda: call(next(turn))


def rocksdict() -> None:
    from rocksdict import AccessType, Options, Rdict, WriteBatch, WriteOptions

    size, rows = 1_000_000, 100_000
    rng = np.random.default_rng(8)
    value = struct.Struct("<qddq")
    with scratch() as root:
        table = filled(root / "ours", size, rng)
        arrangement = Arrangement(SCHEMA, table.refs, root / "ours")
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        peer = Rdict(str(root / "rocksdb"), options, access_type=AccessType.read_write())
        batch = consolidate(rows_of(np.arange(size), 1), SCHEMA)
        pairs = _pairs(batch, value)
        for start in range(0, size, rows):
            _put(peer, WriteBatch(raw_mode=True), pairs[start : start + rows], None)
        peer.compact_range(None, None)

        chosen = [keys_of(rng, size) for _ in range(ROUNDS + 1)]
        texts = [[int(k).to_bytes(8, "big", signed=True) for k in keys] for keys in chosen]
        assert all(v is not None for v in peer.get(texts[0]))
        a, b = times(_each(arrangement.fetch, chosen), _each(peer.get, texts))
        c, d = times(_each(arrangement.fetch, chosen), _each(lambda t: _columns(peer.get(t), value), texts))

        fresh = consolidate(rows_of(np.arange(size, size + rows), 1), SCHEMA)
        bytes_of = _pairs(fresh, value)
        sync = WriteOptions()
        sync.sync = True
        names = iter(range(1000))

        def ours() -> object:
            # The file before it is deleted, as merges would: in a virtual machine the first use of a page of memory
            # costs more than the writing, and files that are kept would take new pages each time.
            number = next(names)
            (root / "ours" / f"w{number - 1}").unlink(missing_ok=True)
            return write_run(root / "ours", f"w{number}", [Section(1, SCHEMA, [fresh], 1)])

        def theirs() -> object:
            return _put(peer, WriteBatch(raw_mode=True), bytes_of, sync)

        e, f = times(ours, theirs, clock=time.perf_counter)
        g, h = times(ours, theirs)
        peer.close()
    lines = [
        [f"{KEYS:,} look-ups of 10^6 rows, as bytes there", f"{a * 1e3:.1f}", f"{b * 1e3:.1f}", f"{b / a:.1f}"],
        ["the same, columns on both sides", f"{c * 1e3:.1f}", f"{d * 1e3:.1f}", f"{d / c:.1f}"],
        [f"writing {rows:,} sorted rows, durable", f"{e * 1e3:.1f}", f"{f * 1e3:.1f}", f"{f / e:.1f}"],
        ["the same, processor time", f"{g * 1e3:.1f}", f"{h * 1e3:.1f}", f"{h / g:.1f}"],
    ]
    title = "Beside RocksDB through rocksdict (times faster: at least 5)"
    bench.show(title, ["", "headrace, ms", "RocksDB, ms", "times faster"], lines)


def _pairs(batch: pa.RecordBatch, value: struct.Struct) -> list[tuple[bytes, bytes]]:
    """Keys and values as RocksDB stores them, in its order; made beforehand, so that it is not timed."""
    columns = [batch.column(name).to_pylist() for name in ("__k", "a", "b", "c", "__w")]
    made = [(k.to_bytes(8, "big", signed=True), value.pack(a, b, c, w)) for k, a, b, c, w in zip(*columns)]
    return sorted(made)


def _put(peer: Any, batch: Any, pairs: Sequence[tuple[bytes, bytes]], options: Any) -> None:
    for key, text in pairs:
        batch.put(key, text)
    peer.write(batch, options) if options is not None else peer.write(batch)


def _columns(found: Sequence[bytes], value: struct.Struct) -> list[tuple[Any, ...]]:
    return list(zip(*value.iter_unpack(b"".join(found))))


def amplification() -> None:
    """Epochs of updates over a fixed number of rows, each taking back a row and putting in its successor."""
    live, step, epochs = 1_000_000, 10_000, 600
    rng = np.random.default_rng(9)
    with scratch() as root:
        table = Table(root)
        versions = np.ones(live, dtype=np.int64)
        table.write(rows_of(np.arange(live), 1))
        flushed, merged, table.most_runs = table.flushed, table.merged, 0
        space = []
        one = sum(r.length for r in table.refs)
        for _ in range(epochs):
            ids = rng.choice(live, step, replace=False)
            table.write(_update(ids, versions))
            space.append(table.bytes / one)
        written = table.flushed - flushed
        writes = 1 + (table.merged - merged) / written
        tiers = 1 + max(0, math.ceil(math.log(written / TIER_BYTES, FAN_IN)))
        copied = _copy_s(root, table.refs)
        size = table.bytes
        started = time.process_time()
        table.merge(table.refs)
        last_s = time.process_time() - started
    lines = [
        ["bytes written per byte of change", f"{writes:.2f}", f"{1 + tiers}"],
        ["bytes stored per byte of live rows, on average", f"{np.mean(space):.2f}", ""],
        ["  at most", f"{max(space):.2f}", f"{1 + written / one:.2f}"],
        ["runs, at most", str(table.most_runs), str((FAN_IN - 1) * (tiers + 1) + 1)],
    ]
    title = f"{epochs} epochs that update {step:,} of {live:,} rows each"
    bench.show(title, ["", "measured", "bound"], lines)
    speed, part = size / last_s / 1e6, copied / last_s
    print(f"merging all runs: {speed:,.0f} MB per processor second, {part:.2f} of a plain Arrow copy's speed\n")


def _update(ids: np.ndarray, versions: np.ndarray) -> pa.RecordBatch:
    old = _at(ids, versions[ids], -1)
    versions[ids] += 1
    return pa.Table.from_batches([old, _at(ids, versions[ids], 1)]).combine_chunks().to_batches()[0]


def _at(ids: np.ndarray, versions: np.ndarray, weight: int) -> pa.RecordBatch:
    columns = [spread(ids), spread(ids * 31 + versions), ids, ids * 3 + versions, ids * 0.5, ids + versions * 0.25]
    arrays = [pa.array(c) for c in [*columns, np.full(len(ids), weight)]]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA.arrow())


def _copy_s(root: Path, refs: Sequence[RunRef]) -> float:
    """Processor seconds to read the runs' batches and write them to a file, as Arrow does it."""
    started = time.process_time()
    with pa.OSFile(str(root / "copy"), "wb") as sink:
        for ref in refs:
            run = Run.open(root, ref)
            with pa.ipc.new_file(sink, run.arrow_schema) as writer:
                for batch in run.batches:
                    writer.write_batch(batch)
    return time.process_time() - started


def scan() -> None:
    size, step = 10_000_000, 1_000_000
    with bench.database(spark()) as db, scratch() as root:
        db.sql("CREATE TABLE t (id bigint, a bigint, b double, c double, d bigint)")
        for start in range(0, size, step):
            ids = np.arange(start, start + step)
            columns = {"id": ids, "a": ids * 3, "b": ids * 0.5, "c": ids + 0.25, "d": ids % 1000}
            bench.write(db, "t", columns)
            pq.write_table(pa.table(columns), root / f"{start}.parquet")
        db.coordinator.compact()
        parquet = spark().read.parquet(str(root))

        def total(frame: DataFrame) -> Any:
            return frame.agg(*(F.sum(c) for c in ("id", "a", "b", "c", "d")), F.count("*")).collect()

        assert total(db.table("t")) == total(parquet)
        a, b = times(lambda: total(db.table("t")), lambda: total(parquet), rounds=7, clock=time.perf_counter)
    lines = [["table", f"{a:.2f}"], ["Parquet", f"{b:.2f}"], ["ratio (at most 2)", f"{a / b:.2f}"]]
    bench.show("Spark, sums over 10^7 rows", ["", "s"], lines)


def s3() -> None:
    delay_s, epochs = 0.02, 20
    with distant_s3(delay_s) as proxy:
        options = {"endpoint": f"http://127.0.0.1:{proxy.port}", "region": "us-east-1", "allow_http": "true"}
        settings = {"state_url": "s3://bench/state", "state_options": options, "compaction_interval_ms": 600_000}
        with bench.database(spark(), **settings) as db:
            db.sql("CREATE TABLE t (g bigint, v bigint)")
            db.sql("CREATE MATERIALIZED VIEW m AS SELECT g, count(*) AS n, sum(v) AS s FROM t GROUP BY g")
            rng = np.random.default_rng(10)
            turns, counts, taken = [], [], []
            for i in range(epochs):
                rows = {"g": rng.integers(0, 100, 100), "v": rng.integers(0, 1000, 100)}
                epoch = bench.write(db, "t", rows)
                started = time.perf_counter()
                bench.wait_for(db, "m", epoch)
                ended = time.perf_counter()
                if i >= 5:
                    found = proxy.between(started, ended)
                    turns.append(sequential(found))
                    counts.append(len(found))
                    taken.append(ended - started)
    lines = [
        ["round trips one after another (at most 2)", f"{bench.median(turns):.0f}", str(max(turns))],
        ["requests", f"{bench.median(counts):.0f}", str(max(counts))],
        ["epoch, ms", f"{bench.median(taken) * 1e3:.0f}", f"{max(taken) * 1e3:.0f}"],
    ]
    bench.show("Epochs of a small view, its state on an S3 server 20 ms away", ["", "median", "most"], lines)


@cache
def spark() -> SparkSession:
    return bench.session()


def main() -> None:
    os.environ.update(KEYS_IN_ENVIRONMENT)
    known = {f.__name__: f for f in (probe, rocksdict, amplification, scan, s3)}
    for name in sys.argv[1:] or list(known):
        known[name]()


if __name__ == "__main__":
    main()
