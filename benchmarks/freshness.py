"""How long a row takes from being durable to being seen, beside Structured Streaming's way from input to sink.

`python benchmarks/freshness.py [--rounds 60]`

headrace  from the return of `INSERT` to the commit of a view on a view (two aggregates, one Spark job after the other)
          from which readers see it, at ticks of 100 ms; and to the end of a `SELECT` that sees it
stream    from a new file of one row to the call of the sink with the micro-batch that holds it: one aggregate, RocksDB
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Sequence

import bench
import numpy as np
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

WARM_UP = 10
TICK_MS = 100


def headrace_s(spark: SparkSession, rounds: int) -> tuple[list[float], list[float]]:
    """Seconds until the view on a view has each row, and until a query has shown it."""
    committed, seen = [], []
    with bench.database(spark, barrier_interval_ms=TICK_MS) as db:
        db.sql("CREATE TABLE t (a bigint, v bigint)")
        db.sql("CREATE MATERIALIZED VIEW m AS SELECT a, count(*) AS n, sum(v) AS s FROM t GROUP BY a")
        db.sql("CREATE MATERIALIZED VIEW mm AS SELECT n, count(*) AS keys, max(s) AS most FROM m GROUP BY n")
        for i in range(rounds + WARM_UP):
            epoch = bench.write(db, "t", {"a": np.array([i % 7]), "v": np.array([i])})
            started = time.perf_counter()
            while not any(e.name == "mm" and (e.newest_exact or 0) >= epoch for e in db.coordinator.epochs()):
                time.sleep(0.002)
            committed.append(time.perf_counter() - started)
            rows = db.sql("SELECT sum(n * keys) AS n FROM mm").rows()
            assert rows == [(i + 1,)], rows
            seen.append(time.perf_counter() - started)
            # Writes at no fixed distance from the ticks.
            time.sleep(float(np.random.default_rng(i).uniform(0, 2 * TICK_MS / 1000)))
    return committed[WARM_UP:], seen[WARM_UP:]


def stream_s(spark: SparkSession, rounds: int) -> list[float]:
    """Seconds until the sink has each row."""
    peer = bench.Stream(spark, {"t": "a long, v long"})
    peer.spark.conf.set("spark.sql.streaming.pollingDelay", "10ms")
    arrived = threading.Event()

    def sink(frame: DataFrame, _: int) -> None:
        if frame.collect():
            arrived.set()

    frame = peer.source("t").groupBy("a").agg(F.count("*"), F.sum("v"))
    writer = frame.writeStream.foreachBatch(sink).outputMode("update")
    peer.query = writer.option("checkpointLocation", str(peer.root / "checkpoint")).start()
    found = []
    for i in range(rounds + WARM_UP):
        arrived.clear()
        peer.put("t", {"a": np.array([i % 7]), "v": np.array([i])})
        started = time.perf_counter()
        assert arrived.wait(60)
        found.append(time.perf_counter() - started)
        time.sleep(float(np.random.default_rng(i).uniform(0, 2 * TICK_MS / 1000)))
    peer.close()
    return found[WARM_UP:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    rounds = parser.parse_args().rounds
    spark = bench.session()
    committed, seen = headrace_s(spark, rounds)
    theirs = stream_s(spark, rounds)

    def line(name: str, values: Sequence[float]) -> list[str]:
        p50, p99 = np.quantile(values, [0.5, 0.99])
        return [name, f"{p50 * 1e3:.0f}", f"{p99 * 1e3:.0f}", f"{p50 / np.median(theirs):.2f}"]

    lines = [
        line("headrace, committed in the view on a view", committed),
        line("headrace, shown by a SELECT", seen),
        line("Structured Streaming, input to sink", theirs),
    ]
    bench.show(f"From a row to its result, ticks of {TICK_MS} ms", ["", "p50 ms", "p99 ms", "p50 / stream"], lines)
    spark.stop()


if __name__ == "__main__":
    main()
