"""Joins that look a side up, beside the same joins that keep it in state of their own.

`python benchmarks/sharing.py key [ROWS]`: one view, by the primary key of a table; a million rows on the side in
question by default, half as many on the other. `python benchmarks/sharing.py group [ROWS]`: 1 to 10 views of one
checkpoint group over the same join, whose sides none, the second and later ones, or all look up. The views are filled
and measured in turn, in one database. An epoch is from the return of the durable change to the commit.
"""

from __future__ import annotations

import argparse
import time

import bench
import numpy as np
from pyspark.sql import SparkSession

from headrace import Database

ROWS = 1_000_000
WARM_UP, EPOCHS, CHANGED = 4, 9, 1_000
QUERY = "SELECT o.id, o.v, p.a, p.b FROM o JOIN p ON o.person = p.id"


def _build(db: Database, rows: int) -> None:
    db.sql("CREATE TABLE p (id bigint PRIMARY KEY, a bigint, b bigint, c bigint)")
    db.sql("CREATE TABLE o (id bigint, person bigint, v bigint)")
    bench.write(db, "p", _people(np.arange(rows, dtype=np.int64), 0))
    bench.write(db, "o", _orders(np.arange(rows // 2, dtype=np.int64), rows))


def _people(ids: np.ndarray, version: int) -> dict[str, np.ndarray]:
    return {"id": ids, "a": ids * 7 % 1000 + version, "b": ids % 10, "c": ids * 3}


def _orders(ids: np.ndarray, rows: int) -> dict[str, np.ndarray]:
    return {"id": ids, "person": ids * 2_654_435_761 % rows, "v": ids % 100}


def _state_bytes(db: Database) -> int:
    """Bytes of the join's own state: the rows of the view are the same either way."""
    state = db.catalog.state
    tables = [t for t in state.tables_of(bench.relation_id(db, "m")) if t.operator != "view/rows"]
    return sum(r.ref.length for t in tables for r in state.runs_of(t.id))


def measure(db: Database, setting: str, rows: int, round_: int) -> list[str]:
    """Seconds to fill the view, its state, and the median milliseconds of epochs of new orders and changed people."""
    db.sql(f"SET streaming_use_arrangements = {setting}")
    started = time.perf_counter()
    db.sql(f"CREATE MATERIALIZED VIEW m AS {QUERY}")
    filled_s = time.perf_counter() - started
    size = _state_bytes(db)
    orders, people = [], []
    choice = np.random.default_rng(1)
    for n in range(WARM_UP + EPOCHS):
        new = np.arange(CHANGED, dtype=np.int64) + rows + (round_ * 100 + n) * CHANGED
        orders.append(bench.epoch_s(db, "m", [("o", _orders(new, rows))]))
        changed = choice.choice(rows, CHANGED, replace=False).astype(np.int64)
        people.append(bench.epoch_s(db, "m", [("p", _people(changed, round_ * 100 + n + 1))]))
    db.sql("DROP MATERIALIZED VIEW m")
    epochs = [f"{bench.median(times[WARM_UP:]) * 1e3:.0f} ms" for times in (orders, people)]
    return ["shared" if setting == "on" else "own", f"{filled_s:.1f} s", f"{size / 1e6:.1f} MB", *epochs]


def by_key(db: Database, rows: int) -> None:
    """The primary key of a table."""
    _build(db, rows)
    found = [measure(db, s, rows, i) for i, s in enumerate(("off", "on", "off", "on"))]
    header = [
        "the side by primary key is",
        "filled in",
        "state of the join",
        "1,000 new on the other",
        "1,000 changed on it",
    ]
    bench.show(f"A join of {rows // 2:,} rows with {rows:,}", header, found)


COUNTS = (1, 2, 3, 5, 10)
WAYS = {"own state": "off", "automatic": "on", "made first": "on"}
GROUP_QUERY = "SELECT o.id, o.v + {} AS v, p.a FROM o JOIN p ON o.person = p.k"


def in_group(db: Database, spark: SparkSession, rows: int) -> None:
    """A checkpoint group: its views keep both sides, or share indexes of both."""
    db.sql("CREATE TABLE p (id bigint PRIMARY KEY, k bigint, a bigint, b bigint, c bigint)")
    db.sql("CREATE TABLE o (id bigint, person bigint, v bigint)")
    ids = np.arange(rows, dtype=np.int64)
    bench.write(db, "p", _people(ids, 0) | {"k": ids})
    bench.write(db, "o", _orders(ids[: rows // 2], rows))
    found, round_ = [], 0
    for count in COUNTS:
        for way in WAYS:
            round_ += 1
            found.append([f"{count}, {way}", *_measure_group(db, spark, rows, count, way, round_)])
    header = [
        "views, sides",
        "filled in",
        "state of the joins",
        "1,000 new: epoch",
        "CPU",
        "1,000 changed: epoch",
        "CPU",
    ]
    bench.show(f"Views of a group that join {rows // 2:,} rows with {rows:,}", header, found)


def _measure_group(db: Database, spark: SparkSession, rows: int, count: int, way: str, round_: int) -> list[str]:
    db.sql(f"SET default_checkpoint_group = g; SET streaming_use_arrangements = {WAYS[way]}")
    names = [f"m{i}" for i in range(count)]
    started = time.perf_counter()
    if way == "made first":
        db.sql("CREATE INDEX ip ON p (k); CREATE INDEX io ON o (person)")
    for i, name in enumerate(names):
        db.sql(f"CREATE MATERIALIZED VIEW {name} AS {GROUP_QUERY.format(i)}")
    filled_s = time.perf_counter() - started
    state = db.catalog.state
    views = {bench.relation_id(db, name) for name in names}
    kept = [
        t for j in state.jobs_in("g") for t in state.tables_of(j.id) if j.id not in views or "view" not in t.operator
    ]
    size = sum(r.ref.length for t in kept for r in state.runs_of(t.id))
    found = [f"{filled_s:.1f} s", f"{size / 1e6:.0f} MB"]
    choice = np.random.default_rng(round_)
    for table in "op":
        times: list[float] = []
        before_s = 0.0
        for n in range(WARM_UP + EPOCHS):
            if n == WARM_UP:
                before_s = sum(bench.cpu_s(spark))
            new = np.arange(CHANGED, dtype=np.int64) + rows + (round_ * 100 + n) * CHANGED
            some = choice.choice(rows, CHANGED, replace=False).astype(np.int64)
            change = _orders(new, rows) if table == "o" else _people(some, round_ * 100 + n) | {"k": some}
            times.append(bench.epoch_s(db, names[-1], [(table, change)]))
        db.flush()
        used_s = (sum(bench.cpu_s(spark)) - before_s) / EPOCHS
        found += [f"{bench.median(times[WARM_UP:]) * 1e3:.0f} ms", f"{used_s * 1e3:.0f} ms"]
    for name in names:
        db.sql(f"DROP MATERIALIZED VIEW {name}")
    db.sql("DROP INDEX IF EXISTS ip; DROP INDEX IF EXISTS io")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=("key", "group"), nargs="?", default="key")
    parser.add_argument("rows", type=int, nargs="?")
    given = parser.parse_args()
    spark = bench.session()
    with bench.database(spark) as db:
        if given.case == "key":
            by_key(db, given.rows or ROWS)
        else:
            in_group(db, spark, given.rows or ROWS // 5)
    spark.stop()


if __name__ == "__main__":
    main()
