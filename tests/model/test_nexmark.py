"""The Nexmark queries as views over the nexmark source: equal to Spark's batch answer at every epoch."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from workload import SourceFeed, TableFeed, Workload

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from nexmark_queries import QUERIES

KINDS = ("person", "auction", "bid")
_SLOW = 100
"""Events per second of event time: some thousand events fill several windows."""


def workload(spark: SparkSession, queries: dict[str, str], events_per_second: int = _SLOW) -> Workload:
    options = {"connector": "nexmark", "events_per_second": str(events_per_second)}
    feeds = [SourceFeed(kind, {**options, "table_type": kind}) for kind in KINDS]
    side = TableFeed("side_input", pa.table({"key": pa.array([], pa.int64()), "value": pa.array([], pa.string())}))
    return Workload(spark, [*feeds, side], queries)


def feed(work: Workload, events: int) -> None:
    """Begin the epoch at which the stream is that long. The side input comes in parts, and is updated."""
    for kind in KINDS:
        work.bind(kind, {"0": events})
    side = work.feeds[-1]
    assert isinstance(side, TableFeed)
    part = np.arange(1000 + work.epoch * 700, 1700 + work.epoch * 700)
    gone = np.arange(0, len(side.content), 9)
    texts = [f"side {k} of {work.epoch}" for k in (*side.content["key"].take(pa.array(gone)).to_pylist(), *part)]
    keys = pa.concat_arrays([side.content["key"].take(pa.array(gone)).combine_chunks(), pa.array(part)])
    side.change(gone, pa.table({"key": keys, "value": texts}))
    work.begin()


def run(spark: SparkSession, marks: list[int], parallelisms: list[int], names: list[str] | None = None) -> None:
    queries = {name: QUERIES[name] for name in names or QUERIES}
    with workload(spark, queries) as work:
        rows = {}
        for events in marks:
            feed(work, events)
            for n, view in enumerate(work.views.values()):
                work.advance(view, parallelisms[n % len(parallelisms)])
                rows[view.name] = work.check(view)
        assert all(rows.values()), f"no rows to compare: {[n for n, count in rows.items() if not count]}"


SOME = ["q4", "q5", "q7", "q8", "q9", "q13", "q15", "q16", "q17", "q19"]
"""The others are like one of these."""


def test_some_queries(spark: SparkSession) -> None:
    run(spark, [900, 2000], [1, 2, 1, 1, 5, 1], SOME)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("parallelism", [1, 2, 5])
def test_every_query_over_many_epochs(spark: SparkSession, parallelism: int) -> None:
    run(spark, [50, 51, 1000, 1003, 3000, 8000, 20_000], [parallelism])
