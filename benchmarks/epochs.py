"""Epochs beside Structured Streaming's micro-batches, in one Spark.

`python benchmarks/epochs.py [overhead] [join] [state] [group]`, all by default:

overhead  1,000 changed rows: a join and an aggregate here, one aggregate there (RocksDB state store)
join      two streams of 100,000 rows an epoch over a million distinct keys, joined
state     1,000 changed rows over 10^5, 10^6, 10^7 rows of state, join and aggregate
group     100 changed rows for 5 and 20 views that commit together, with a Spark job each and with shared ones
"""

from __future__ import annotations

import sys
from functools import partial

import bench
import numpy as np
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from headrace.coordinator.decide.together import MOST_TOGETHER, next_steps
from headrace.coordinator.run import driver

ROUNDS, PER_ROUND, WARM_UP = 3, 10, 8
JOIN_AND_AGGREGATE = "SELECT u.g, count(*) AS n, sum(t.v) AS s FROM t JOIN u ON t.a = u.a GROUP BY u.g"


def _facts(rng: np.random.Generator, keys: int, rows: int) -> dict[str, np.ndarray]:
    return {"a": rng.integers(0, keys, rows), "v": rng.integers(0, 1000, rows)}


def _tables(db: object) -> None:
    db.sql("CREATE TABLE t (a bigint, v bigint)")  # type: ignore[attr-defined]
    db.sql("CREATE TABLE u (a bigint, g bigint)")  # type: ignore[attr-defined]


def overhead(spark: SparkSession) -> None:
    rng = np.random.default_rng(1)
    keys = 10_000
    with bench.database(spark) as db:
        _tables(db)
        bench.write(db, "u", {"a": np.arange(keys), "g": np.arange(keys) % 100})
        bench.write(db, "t", _facts(rng, keys, 100_000))
        db.sql(f"CREATE MATERIALIZED VIEW m AS {JOIN_AND_AGGREGATE}")
        peer = bench.Stream(spark, {"t": "a long, v long"})
        groups = peer.source("t").groupBy((F.col("a") % 100).alias("g"))
        peer.put("t", _facts(rng, keys, 100_000))
        peer.start(groups.agg(F.count("*"), F.sum("v")), "update")
        peer.drain()
        ours: list[float] = []
        for _ in range(WARM_UP):
            bench.epoch_s(db, "m", [("t", _facts(rng, keys, 1000))])
            peer.put("t", _facts(rng, keys, 1000))
        skip = len(peer.drain())
        for _ in range(ROUNDS):
            ours += [bench.epoch_s(db, "m", [("t", _facts(rng, keys, 1000))]) for _ in range(PER_ROUND)]
            for _ in range(PER_ROUND):
                peer.put("t", _facts(rng, keys, 1000))
            theirs = peer.drain()[skip:]
        peer.close()
    a, b = bench.median(ours), bench.median(theirs)
    rows = [["headrace, join + aggregate", f"{a * 1e3:.0f}"], ["Structured Streaming, aggregate", f"{b * 1e3:.0f}"]]
    bench.show(
        "An epoch of 1,000 changed rows", ["", "median ms"], [*rows, ["ratio (target: at most 0.7)", f"{a / b:.2f}"]]
    )


def join(spark: SparkSession) -> None:
    rng = np.random.default_rng(2)
    keys, rows, epochs = 1_000_000, 100_000, 10

    def left() -> dict[str, np.ndarray]:
        return {"a": rng.integers(0, keys, rows), "v": np.arange(rows)}

    def right() -> dict[str, np.ndarray]:
        return {"b": rng.integers(0, keys, rows), "g": np.arange(rows)}

    with bench.database(spark) as db:
        db.sql("CREATE TABLE t (a bigint, v bigint)")
        db.sql("CREATE TABLE u (b bigint, g bigint)")
        db.sql("CREATE MATERIALIZED VIEW m AS SELECT t.a, t.v, u.g FROM t JOIN u ON t.a = u.b")
        peer = bench.Stream(spark, {"t": "a long, v long", "u": "b long, g long"})
        t, u = peer.source("t"), peer.source("u")
        peer.put("t", left())
        peer.put("u", right())
        peer.start(t.join(u, t.a == u.b), "append")
        peer.drain()
        ours = []
        for _ in range(epochs):
            ours.append(bench.epoch_s(db, "m", [("t", left()), ("u", right())]))
            peer.put("t", left())
            peer.put("u", right())
            theirs = peer.drain()
        peer.close()
    a, b = 2 * rows / bench.median(ours[2:]), 2 * rows / bench.median(theirs[2:])
    figures = [
        ["headrace", f"{a:,.0f}"],
        ["Structured Streaming", f"{b:,.0f}"],
        ["ratio (target: at least 5)", f"{a / b:.1f}"],
    ]
    bench.show("A join of two streams, 2 x 100,000 rows an epoch, 10^6 keys", ["", "rows/s"], figures)


def state(spark: SparkSession) -> None:
    sizes = [100_000, 1_000_000, 10_000_000]
    medians = []
    for size in sizes:
        rng = np.random.default_rng(3)
        keys = size // 10
        with bench.database(spark) as db:
            _tables(db)
            bench.write(db, "u", {"a": np.arange(keys), "g": np.arange(keys) % 10_000})
            for _ in range(0, size, 1_000_000):
                bench.write(db, "t", _facts(rng, keys, min(size, 1_000_000)))
            db.sql(f"CREATE MATERIALIZED VIEW m AS {JOIN_AND_AGGREGATE}")
            epochs = [bench.epoch_s(db, "m", [("t", _facts(rng, keys, 1000))]) for _ in range(WARM_UP + 20)]
            medians.append(bench.median(epochs[WARM_UP:]))
            print(f"{size:,} rows: {medians[-1] * 1e3:.0f} ms", flush=True)
    rows = [[f"{s:,}", f"{m * 1e3:.0f}", f"{m / medians[0]:.2f}"] for s, m in zip(sizes, medians)]
    title = "An epoch of 1,000 changed rows over growing state (target: last at most 1.5 times the first)"
    bench.show(title, ["rows of state", "median ms", "ratio"], rows)


GROUP_TURNS, PER_TURN, FIRST_OF_TURN = 4, 10, 3


def _views(db: object, count: int) -> None:
    """Small views of one table, half of them with state."""
    db.sql("CREATE TABLE t (a bigint, v bigint); INSERT INTO t VALUES (1, 1)")  # type: ignore[attr-defined]
    for i in range(count):
        grouped = f"SELECT a, count(*) AS n, sum(v) AS s FROM t WHERE v <> {-i - 1} GROUP BY a"
        query = grouped if i % 2 else f"SELECT a, v + {i} AS v FROM t WHERE v <> {-i - 1}"
        db.sql(f"CREATE MATERIALIZED VIEW m{i} AS {query}")  # type: ignore[attr-defined]


def group(spark: SparkSession) -> None:
    rng, rows = np.random.default_rng(4), []
    for count in (5, 20):
        times = {1: list[float](), MOST_TOGETHER: list[float]()}
        used = dict.fromkeys(times, 0.0)
        with bench.database(spark, default_checkpoint_group="shared") as db:
            _views(db, count)
            for turn in range(GROUP_TURNS + 1):  # the first one warms up
                for most in times:
                    driver.next_steps = partial(next_steps, most=most)  # type: ignore[assignment]
                    for _ in range(FIRST_OF_TURN):
                        bench.epoch_s(db, "m0", [("t", _facts(rng, 1000, 100))])
                    before = sum(bench.cpu_s(spark))
                    took = [bench.epoch_s(db, "m0", [("t", _facts(rng, 1000, 100))]) for _ in range(PER_TURN)]
                    if turn:
                        times[most] += took
                        used[most] += sum(bench.cpu_s(spark)) - before
        for most, name in ((1, "a job each"), (MOST_TOGETHER, "shared jobs")):
            cpu_s = used[most] / len(times[most])
            rows.append([f"{count} views, {name}", f"{bench.median(times[most]) * 1e3:.0f}", f"{cpu_s * 1e3:.0f}"])
            print(*rows[-1], flush=True)
    title = "An epoch of 100 changed rows for a group of small views"
    bench.show(title, ["", "median ms from write to commit", "processor ms an epoch"], rows)


def main() -> None:
    spark = bench.session()
    chosen = sys.argv[1:] or ["overhead", "join", "state", "group"]
    for name in chosen:
        {"overhead": overhead, "join": join, "state": state, "group": group}[name](spark)
    spark.stop()


if __name__ == "__main__":
    main()
