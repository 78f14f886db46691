"""Where the milliseconds of a small epoch go: `python benchmarks/epoch_profile.py [--rounds 40]`.

1,000 inserted rows for a view with one join and one aggregate, as in `epochs.py overhead`. The steps are timed where
they are called, so they nest as the table shows them; what Spark does inside its job it says itself.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import bench
import numpy as np
from epochs import JOIN_AND_AGGREGATE
from pyspark.sql import SparkSession

from headrace.catalog.catalog import Catalog
from headrace.coordinator.run import driver
from headrace.coordinator.run.attempt import Attempts
from headrace.dataflow import runner
from headrace.plan.catalyst.bridge import Bridge

WARM_UP = 15
STEPS = (
    ("epoch", "from the write's return to the commit that has it"),
    ("work", "  find out what to take in"),
    ("step", "  run it"),
    ("run", "    the Spark part of that"),
    ("clone", "      clone the physical plan and make RDDs of it"),
    ("job", "      the Spark job, scheduling included"),
    ("commit", "  the catalog transaction"),
)

TIMED: tuple[tuple[Any, str, str], ...] = (
    (driver, "next_steps", "work"),
    (Attempts, "run_steps", "step"),
    (runner.EpochRunner, "run", "run"),
    (Catalog, "transact", "commit"),
    (runner._PhysicalPlan, "rows", "clone"),
    (Bridge, "count_rows", "job"),
)
"""Module or class, its function, and the step that its calls are part of."""


class Clocks:
    """Milliseconds of each step, by epoch."""

    def __init__(self) -> None:
        self.now: dict[str, float] = defaultdict(float)
        self.epochs: list[dict[str, float]] = []

    def around(self, owner: Any, name: str, step: str) -> None:
        """Time all calls of a function."""
        inner: Callable[..., Any] = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                return inner(*args, **kwargs)
            finally:
                self.now[step] += (time.perf_counter() - started) * 1e3

        setattr(owner, name, timed)

    def close(self, epoch_ms: float) -> None:
        """An epoch is over."""
        self.epochs.append({**self.now, "epoch": epoch_ms})
        self.now.clear()

    def median(self, step: str) -> float:
        return bench.median([e.get(step, 0.0) for e in self.epochs])


def stages_of_last_job(spark: SparkSession) -> list[list[str]]:
    """What Spark says of the stages of its newest job: run time, time of the processor, and what lies around them."""
    store = spark.sparkContext._jsc.sc().statusStore()
    jobs = store.jobsList(None)
    newest = max((jobs.apply(i) for i in range(jobs.size())), key=lambda j: j.jobId())
    rows = []
    for i in range(newest.stageIds().size()):
        stage = store.lastStageAttempt(newest.stageIds().apply(i))
        if str(stage.status()) != "COMPLETE":
            continue
        took = stage.completionTime().get().getTime() - stage.firstTaskLaunchedTime().get().getTime()
        cells = [took, stage.executorRunTime(), stage.executorCpuTime() / 1e6, stage.executorDeserializeTime()]
        rows.append([f"stage {stage.stageId()}, {stage.numTasks()} tasks", *(f"{c:.0f}" for c in cells)])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    spark = bench.session()
    clocks = Clocks()
    for owner, name, step in TIMED:
        clocks.around(owner, name, step)
    rng = np.random.default_rng(1)

    def facts(rows: int) -> dict[str, np.ndarray]:
        return {"a": rng.integers(0, 10_000, rows), "v": rng.integers(0, 1000, rows)}

    with bench.database(spark) as db:
        db.sql("CREATE TABLE t (a bigint, v bigint)")
        db.sql("CREATE TABLE u (a bigint, g bigint)")
        bench.write(db, "u", {"a": np.arange(10_000), "g": np.arange(10_000) % 100})
        bench.write(db, "t", facts(100_000))
        db.sql(f"CREATE MATERIALIZED VIEW m AS {JOIN_AND_AGGREGATE}")
        for i in range(WARM_UP + rounds):
            epoch = bench.write(db, "t", facts(1000))
            clocks.now.clear()
            started = time.perf_counter()
            bench.wait_for(db, "m", epoch)
            clocks.close((time.perf_counter() - started) * 1e3)
            if i < WARM_UP:
                clocks.epochs.clear()
        stages = stages_of_last_job(spark)
    lines = [[what, f"{clocks.median(step):.1f}"] for step, what in STEPS]
    bench.show("A small epoch", ["", "median ms"], lines)
    bench.show("The stages of the last one's job, ms", ["", "took", "run", "processor", "unpack"], stages)
    spark.stop()


if __name__ == "__main__":
    main()
