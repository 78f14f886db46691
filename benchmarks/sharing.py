"""A join that looks a side up by primary key, beside the same join that keeps that side in state of its own.

`python benchmarks/sharing.py [ROWS]`, a million rows on the side in question by default, half as many on the other. The
views are filled and measured in turn, in one database. An epoch is from the return of the durable change to the view's
commit.
"""

from __future__ import annotations

import sys
import time

import bench
import numpy as np

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


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    spark = bench.session()
    with bench.database(spark) as db:
        _build(db, rows)
        found = [measure(db, s, rows, i) for i, s in enumerate(("off", "on", "off", "on"))]
    spark.stop()
    header = [
        "the side by primary key is",
        "filled in",
        "state of the join",
        "1,000 new on the other",
        "1,000 changed on it",
    ]
    bench.show(f"A join of {rows // 2:,} rows with {rows:,}", header, found)


if __name__ == "__main__":
    main()
