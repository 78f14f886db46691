"""A query on Spark that is asked again: with the plan that is kept of it, beside a new plan for each execution.

`python benchmarks/asked_again.py [--rows 12000] [--rounds 6] [--times 5]`: in turn, in one process. Planning is what
comes before the first job: leaves, parsing, analysis, optimizer, physical plan; or a copy of what is kept of these.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import bench

from headrace import Database
from headrace.plan.catalyst.kept import KeptPlan
from headrace.session.execution import spark_queries

QUERIES = {
    "join with groups": "SELECT b.name, count(*) AS n, sum(a.v) AS s FROM a JOIN b ON a.k = b.k WHERE a.v > 5 "
    "GROUP BY b.name ORDER BY s DESC LIMIT 7",
    "window": "SELECT id, row_number() OVER (PARTITION BY k ORDER BY v DESC) AS r FROM a",
    "subqueries": "SELECT name FROM b WHERE k > (SELECT max(k) - 3 FROM a) AND k IN (SELECT k FROM a)",
}


class Planning:
    """Seconds that planning has taken since it was last asked."""

    def __init__(self) -> None:
        self._s = 0.0

    def taken(self) -> float:
        """What it took; begins anew."""
        found, self._s = self._s, 0.0
        return found

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count what is done inside the block."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._s += time.perf_counter() - began

    def watch(self) -> None:
        """Count the steps of both ways from now on."""
        frame_of, stream, prepared = spark_queries.frame_of, spark_queries.stream, KeptPlan._prepared

        def timed_frame(*given: Any) -> Any:
            with self.timed():
                return frame_of(*given)

        def timed_stream(frame: Any) -> Any:
            with self.timed():
                frame._jdf.queryExecution().executedPlan()
            return stream(frame)

        def timed_copy(plan: KeptPlan) -> Any:
            with self.timed():
                return prepared(plan)

        spark_queries.frame_of, spark_queries.stream = timed_frame, timed_stream
        KeptPlan._prepared = timed_copy  # type: ignore[method-assign]


def fill(db: Database, rows: int) -> None:
    """The tables."""
    db.sql("CREATE TABLE a (id int PRIMARY KEY, k int, v int); CREATE TABLE b (k int PRIMARY KEY, name text)")
    db.sql(f"INSERT INTO a SELECT i, i % 100, i FROM generate_series(1, {rows}) AS s(i)")
    db.sql("INSERT INTO b SELECT i, 'n' || i FROM generate_series(0, 99) AS s(i)")


def main() -> None:
    """Measure, and print a table."""
    options = argparse.ArgumentParser()
    options.add_argument("--rows", type=int, default=12_000)
    options.add_argument("--rounds", type=int, default=6)
    options.add_argument("--times", type=int, default=5)
    given = options.parse_args()
    spark, planning, found = bench.session(), Planning(), []
    with bench.database(spark) as db:
        fill(db, given.rows)
        planning.watch()
        for name, sql in QUERIES.items():
            figures: dict[int, list[tuple[float, float, float]]] = {0: [], 100: []}
            for _ in range(given.rounds + 1):
                for kept, measured in figures.items():
                    db.sql(f"ALTER SYSTEM SET kept_spark_plans = {kept}")
                    for _ in range(3):  # to be met, to be kept, and once by what is kept
                        db.sql(sql)
                    planning.taken()
                    for _ in range(given.times):
                        used, began = sum(bench.cpu_s(spark)), time.perf_counter()
                        db.sql(sql)
                        took = time.perf_counter() - began
                        measured.append((took, planning.taken(), sum(bench.cpu_s(spark)) - used))
            for kept, measured in figures.items():
                whole, planned, used_s = zip(*measured[given.times :], strict=True)  # the first round is Java's
                found.append([
                    name, "kept" if kept else "new", f"{bench.median(whole) * 1e3:.0f} ({min(whole) * 1e3:.0f})",
                    f"{bench.median(planned) * 1e3:.0f} ({min(planned) * 1e3:.0f})",
                    f"{bench.median(planned) / bench.median(whole):.0%}", f"{sum(used_s) / len(used_s) * 1e3:.0f}",
                ])  # fmt: skip
    header = ["query", "plan", "all, ms (least)", "planning, ms (least)", "share", "processor, ms"]
    bench.show(f"A query over {given.rows:,} rows, asked again", header, found)


if __name__ == "__main__":
    main()
