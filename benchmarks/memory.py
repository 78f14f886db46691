"""Does memory stay flat while views are kept up to date? A steady load for ten minutes.

    python benchmarks/memory.py [--minutes 10] [--every 15]

A table gets 2,000 new rows ten times a second at most, and loses those of a hundred writes before, so that all state
keeps its size. Over it are a join with sums, a top-N, distinct counts, and a view on a view; once a second each view is
read. Every so many seconds it notes the memory of the server process, of Spark's JVM (and what its heap holds after a
collection), and of all Python workers: what is resident and not of a file, since mapped files go when memory is wanted
elsewhere, and what processes share counts once. The last lines compare the medians of the second and of the last
quarter. All of it goes to `results/memory.md`, too.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import bench
import numpy as np

from headrace.coordinator import TableChange
from headrace.dataflow.spark import local_session
from headrace.session.database import Database

RESULTS = Path(__file__).parent / "results"
ROWS, KEPT, PAUSE_S = 2_000, 100, 0.1
SETUP = """
    CREATE TABLE item (id bigint, class bigint, PRIMARY KEY (id));
    INSERT INTO item SELECT i, i % 50 FROM generate_series(0, 9999) AS s(i);
    CREATE TABLE sale (id bigint, item bigint, price bigint, note text, PRIMARY KEY (id));
    CREATE MATERIALIZED VIEW by_class AS SELECT class, count(*) AS sales, sum(price) AS total, max(price) AS best
        FROM sale JOIN item ON sale.item = item.id GROUP BY class;
    CREATE MATERIALIZED VIEW best AS SELECT * FROM (
        SELECT item, price, note, row_number() OVER (PARTITION BY item ORDER BY price DESC, sale.id) AS place FROM sale
        ) r WHERE place <= 3;
    CREATE MATERIALIZED VIEW buyers AS SELECT item % 100 AS part, count(DISTINCT price) AS prices FROM sale GROUP BY 1;
    CREATE MATERIALIZED VIEW above AS SELECT sales % 10 AS g, count(*) AS classes FROM by_class GROUP BY 1;
"""
VIEWS = ("by_class", "best", "buyers", "above")


@dataclass(frozen=True)
class Look:
    """What there was at a time; memory in MiB."""

    seconds: float
    epochs: int
    server: float
    jvm: float
    heap: float
    workers: float
    largest: float
    """Of the workers."""
    count: int
    """Of the workers, the daemons that fork them included."""


def processes_below(root: int) -> Iterator[int]:
    """All that descend from a process."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    found = [root]
    while found:
        parent = found.pop()
        below = [p for p, above in parents.items() if above == parent]
        yield from below
        found += below


def memory_mb(process: int) -> float:
    """The share of a process in resident memory that is not of a file; 0 if it has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss_Anon:"):
                return int(line.split()[1]) / 1024
    return 0.0


def look(db: Database, seconds: float) -> Look:
    context = db.spark.sparkContext
    runtime = context._jvm.java.lang.Runtime.getRuntime()  # type: ignore[union-attr]
    runtime.gc()
    heap = (runtime.totalMemory() - runtime.freeMemory()) / 2**20
    jvm = context._gateway.proc.pid  # type: ignore[union-attr]
    workers = [memory_mb(p) for p in processes_below(jvm)]
    epochs = sum(j.epochs for j in db.coordinator.jobs())
    return Look(seconds, epochs, memory_mb(os.getpid()), memory_mb(jvm), heap, sum(workers), max(workers), len(workers))


def load(db: Database, seconds: float, every_s: float) -> Iterator[Look]:
    """Write, take back and read for that long."""
    rng, table = np.random.default_rng(3), bench.relation_id(db, "sale")
    kept: list[bench.Columns] = []
    began = read_s = look_s = time.monotonic()
    written = 0
    while (now_s := time.monotonic()) < began + seconds:
        new = {
            "id": np.arange(written, written + ROWS), "item": rng.integers(0, 10_000, ROWS),
            "price": rng.integers(0, 1_000_000, ROWS), "note": np.array([f"sale {i:020d}" for i in range(ROWS)]),
        }  # fmt: skip
        written += ROWS
        kept.append(new)
        old = bench.batch(kept.pop(0)) if len(kept) > KEPT else None
        db.coordinator.write(table, TableChange(inserts=bench.batch(new), deletes=old))
        if now_s - read_s > 1.0:
            read_s = now_s
            for view in VIEWS:
                list(db.sql(f"SELECT count(*) FROM {view}"))
        if now_s - look_s > every_s:
            look_s = now_s
            yield look(db, now_s - began)
        time.sleep(PAUSE_S)
    for view, query in (("by_class", "SELECT sum(sales) FROM by_class"), ("sale", "SELECT count(*) FROM sale")):
        db.flush()
        print(view, list(db.sql(query)))


def report(looks: list[Look]) -> str:
    names = [f.name for f in fields(Look)]
    lines = ["| " + " | ".join(names) + " |", "| --: " * len(names) + "|"]
    lines += ["| " + " | ".join(f"{value:,.0f}" for value in astuple(each)) + " |" for each in looks]
    lines.append("")
    quarter = max(1, len(looks) // 4)
    for name in names[2:-1]:
        second, last = (
            statistics.median(getattr(each, name) for each in part)
            for part in (looks[quarter : 2 * quarter], looks[-quarter:])
        )
        lines.append(f"- {name}: {second:,.0f} MiB in the second quarter, {last:,.0f} in the last: {last / second:.2f}")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run, print and write down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--every", type=float, default=15)
    options = parser.parse_args()
    spark = local_session(driver_memory="2g")
    looks = []
    with bench.database(spark, barrier_interval_ms=500, max_rows_per_epoch=100_000) as db:
        db.sql(SETUP)
        for found in load(db, options.minutes * 60, options.every):
            looks.append(found)
            print(" ".join(f"{f.name} {getattr(found, f.name):,.0f}" for f in fields(Look)), flush=True)
    text = report(looks)
    print(text)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "memory.md").write_text(f"# Memory over {options.minutes:g} minutes of a steady load\n\n{text}")
    spark.stop()


if __name__ == "__main__":
    main()
