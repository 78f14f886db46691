"""An epoch of 1,000 changed rows over growing state, for every native rule: the state must not count.

`python benchmarks/incrementality.py [SIZE ...] [CASE ...]`, all by default. Changed rows are 500 inserts and 500
deletes. Each size has a database of its own; all its views are over the same tables, and their epochs run one by one.
Targets: the median over 10^7 rows of state at most 1.5 times that over 10^5.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import bench
import numpy as np
from pyspark.sql import SparkSession

from headrace import Database
from headrace.coordinator import TableChange

SIZES = (100_000, 1_000_000, 10_000_000)
WARM_UP, EPOCHS, CHANGED = 4, 9, 1_000
GROUP = 10
"""Rows of the table with one value of `a`, about."""

CASES = {
    "filter, project": "SELECT a, v + 1 AS v1 FROM t WHERE v % 10 = 0",
    "union": "SELECT a, v FROM t WHERE v % 10 = 0 UNION ALL SELECT a, g FROM u WHERE g < 10",
    "inner join": "SELECT t.a, t.v, u.g FROM t JOIN u ON t.a = u.a",
    "outer join": "SELECT t.a, t.v, u.g FROM t LEFT JOIN u ON t.a = u.a AND t.v > u.g",
    "semi join": "SELECT u.a, u.g FROM u WHERE EXISTS (SELECT 1 FROM t WHERE t.a = u.a AND t.v > u.g)",
    "aggregate": "SELECT a, count(*) AS c, sum(v) AS s FROM t GROUP BY a",
    "distinct": "SELECT DISTINCT a, v % 4 AS w FROM t",
    "count distinct": "SELECT v % 100 AS w, count(DISTINCT a) AS c FROM t GROUP BY v % 100",
    "several distinct": "SELECT v % 100 AS w, count(DISTINCT a) AS c, sum(DISTINCT v) AS s, count(*) AS n "
    "FROM t GROUP BY v % 100",
    "min, max": "SELECT a, min(v) AS lo, max(v) AS hi FROM t GROUP BY a",
    "min, max of large groups": "SELECT v % 10 AS w, min(a) AS lo, max(x) AS hi FROM t GROUP BY v % 10",
    "top-N per group": "SELECT * FROM (SELECT a, v, x, row_number() OVER (PARTITION BY a ORDER BY v DESC, x) AS r "
    "FROM t) WHERE r <= 3",
    "top-N of large groups": "SELECT * FROM (SELECT v % 10 AS w, x, rank() OVER (PARTITION BY v % 10 ORDER BY x) AS r "
    "FROM t) WHERE r <= 3",
    "global top-N": "SELECT a, v, x FROM t ORDER BY x DESC LIMIT 10",
}


@dataclass
class Data:
    """The table `t` as a window over rows that are known by number, so that any can be deleted."""

    size: int
    next_row: int = 0

    def rows(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """Row number i always has the same values."""
        mixed = (numbers * np.int64(0x9E3779B97F4A7C15 - 2**64)) ^ (numbers >> 7)
        return {
            "a": np.abs(mixed >> 11) % (self.size // GROUP),
            "v": np.abs(mixed >> 3) % 1000,
            "x": np.abs(mixed) % (1 << 53),
        }


def _build(db: Database, data: Data) -> None:
    db.sql("CREATE TABLE t (a bigint, v bigint, x bigint)")
    db.sql("CREATE TABLE u (a bigint, g bigint)")
    keys = data.size // GROUP
    bench.write(db, "u", {"a": np.arange(keys), "g": np.arange(keys) % 1000})
    for start in range(0, data.size, 1_000_000):
        stop = min(start + 1_000_000, data.size)
        bench.write(db, "t", data.rows(np.arange(start, stop, dtype=np.int64)))
    data.next_row = data.size


def _change(data: Data) -> TableChange:
    """Rows that are deleted are the oldest, so that none is deleted twice."""
    half = CHANGED // 2
    gone = np.arange(data.next_row - data.size, data.next_row - data.size + half, dtype=np.int64)
    new = np.arange(data.next_row, data.next_row + half, dtype=np.int64)
    data.next_row += half
    return TableChange(inserts=bench.batch(data.rows(new)), deletes=bench.batch(data.rows(gone)))


def measure(spark: SparkSession, size: int, names: list[str]) -> dict[str, float]:
    """Median seconds of an epoch, by case."""
    found: dict[str, float] = {}
    with bench.database(spark) as db:
        data = Data(size)
        _build(db, data)
        for name in names:
            db.sql(f"CREATE MATERIALIZED VIEW m AS {CASES[name]}")
            bench.settle(spark)
            times = [bench.change_s(db, "m", "t", _change(data)) for _ in range(WARM_UP + EPOCHS)]
            found[name] = bench.median(times[WARM_UP:])
            print(f"{size:>12,} {name}: {found[name] * 1e3:.0f} ms", flush=True)
            db.sql("DROP MATERIALIZED VIEW m")
    return found


def main() -> None:
    sizes = [int(a) for a in sys.argv[1:] if a.isdigit()] or SIZES
    names = [a for a in sys.argv[1:] if not a.isdigit()] or list(CASES)
    spark = bench.session()
    measured = [measure(spark, size, names) for size in sizes]
    spark.stop()
    rows = [
        [name, *(f"{m[name] * 1e3:.0f}" for m in measured), f"{measured[-1][name] / measured[0][name]:.2f}"]
        for name in names
    ]
    header = ["ms for rows of state", *(f"10^{len(str(s)) - 1}" for s in sizes), "last / first"]
    bench.show("An epoch of 1,000 changed rows (target: last / first at most 1.5)", header, rows)


if __name__ == "__main__":
    main()
