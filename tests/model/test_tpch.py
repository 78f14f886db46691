"""The TPC-H queries as views over tables that change: equal to Spark's batch answer at every epoch."""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tpch_queries import QUERIES
from workload import TableFeed, Workload

TABLES = ("customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier")


def generate(folder: Path, scale: float) -> dict[str, pa.Table]:
    """All tables, made by tpchgen-cli."""
    program = shutil.which("tpchgen-cli", path=str(Path(sys.executable).parent)) or "tpchgen-cli"
    subprocess.run([program, "parquet", "-s", str(scale), f"--output-dir={folder}"], check=True, timeout=120)
    return {name: _plain(pq.read_table(folder / f"{name}.parquet")) for name in TABLES}


def _plain(table: pa.Table) -> pa.Table:
    kinds = {pa.string_view(): pa.string()}
    return table.cast(pa.schema([pa.field(f.name, kinds.get(f.type, f.type)) for f in table.schema]))


class Warehouse:
    """The tables' history: orders come and go with their lines, everything else is updated now and then."""

    def __init__(self, spark: SparkSession, data: dict[str, pa.Table], queries: dict[str, str], seed: int):
        self.rng = np.random.default_rng(seed)
        self.data = data
        self.feeds = {name: TableFeed(name, table.slice(0, 0)) for name, table in data.items()}
        self.work = Workload(spark, list(self.feeds.values()), queries)
        self.loaded = 0

    def _within(self, name: str, column: str, keys: np.ndarray) -> np.ndarray:
        return np.flatnonzero(np.isin(np.asarray(self.feeds[name].content[column]), keys))

    def load(self, share: float) -> None:
        """Insert the next share of the orders with their lines; the first time also all other tables."""
        if self.loaded == 0:
            for name in sorted(set(TABLES) - {"orders", "lineitem"}):
                self.feeds[name].change(np.array([], int), self.data[name])
        upto = min(len(self.data["orders"]), self.loaded + max(1, round(share * len(self.data["orders"]))))
        orders = self.data["orders"].slice(self.loaded, upto - self.loaded)
        lines = self.data["lineitem"]
        self.feeds["orders"].change(np.array([], int), orders)
        mine = lines.filter(pc.is_in(lines["l_orderkey"], orders["o_orderkey"].combine_chunks()))
        self.feeds["lineitem"].change(np.array([], int), mine)
        self.loaded = upto

    def delete(self, share: float) -> None:
        """Delete orders with their lines, and some lines of others."""
        keys = np.asarray(self.feeds["orders"].content["o_orderkey"])
        gone = self.rng.choice(keys, max(1, int(share * len(keys))), replace=False)
        self._remove("orders", self._within("orders", "o_orderkey", gone))
        self._remove("lineitem", self._within("lineitem", "l_orderkey", gone))
        count = len(self.feeds["lineitem"].content)
        self._remove("lineitem", self.rng.choice(count, max(1, int(share * count / 2)), replace=False))

    def _remove(self, name: str, places: np.ndarray) -> None:
        self.feeds[name].change(places, self.data[name].slice(0, 0))

    def update(self, share: float) -> None:
        """Change some rows of every other table, and some lines."""
        for name, column, how in (
            ("customer", "c_acctbal", partial(_shuffled, self.rng)), ("supplier", "s_nationkey", self._permuted),
            ("partsupp", "ps_supplycost", partial(_shuffled, self.rng)), ("part", "p_type", self._permuted),
            ("lineitem", "l_quantity", partial(_shuffled, self.rng)), ("orders", "o_orderpriority", self._permuted),
        ):  # fmt: skip
            feed = self.feeds[name]
            places = self.rng.choice(len(feed.content), max(2, int(share * len(feed.content))), replace=False)
            rows = feed.content.take(pa.array(np.sort(places)))
            i = rows.schema.get_field_index(column)
            feed.change(places, rows.set_column(i, rows.schema.field(i), how(rows[column])))

    def _permuted(self, values: pa.ChunkedArray) -> pa.Array:
        return values.combine_chunks().take(pa.array(self.rng.permutation(len(values))))

    def epoch(self, parallelism: int | None = None) -> dict[str, int]:
        """One epoch of every view, each held against the batch answer; the number of their rows.

        Without a parallelism each view has one of its own.
        """
        self.work.begin()
        rows = {}
        for i, view in enumerate(self.work.views.values()):
            self.work.advance(view, (1, 2, 1, 1, 5, 1)[i % 6] if parallelism is None else parallelism)
            rows[view.name] = self.work.check(view)
        return rows


def _shuffled(rng: np.random.Generator, values: pa.ChunkedArray) -> pa.Array:
    """The values in another order, each a little more."""
    return pc.add(values.combine_chunks().take(pa.array(rng.permutation(len(values)))), pa.scalar(1)).cast(values.type)


SOME = ("q4", "q13", "q15", "q18", "q21")
"""Between them: joins of all kinds, subqueries, a top-N, a view in the query."""


def test_some_queries(spark: SparkSession, tmp_path: Path) -> None:
    house = Warehouse(spark, generate(tmp_path, 0.002), {name: QUERIES[name] for name in SOME}, seed=1)
    with house.work:
        house.load(0.9)
        rows = house.epoch()
        assert all(rows.values()), f"no rows to compare: {[n for n, count in rows.items() if not count]}"
        house.load(0.05)
        house.delete(0.05)
        house.update(0.05)
        house.epoch()


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("parallelism", [1, 2, 5])
def test_every_query_over_many_epochs(spark: SparkSession, tmp_path: Path, parallelism: int) -> None:
    house = Warehouse(spark, generate(tmp_path, 0.01), QUERIES, seed=parallelism)
    with house.work:
        house.load(0.5)
        house.epoch(parallelism)
        for _ in range(4):
            house.load(0.1)
            house.delete(0.05)
            house.update(0.01)
            house.epoch(parallelism)
        house.delete(0.9)
        house.epoch(parallelism)
