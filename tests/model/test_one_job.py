"""Epochs of several views as one Spark job: each view is what its query says, and has its own acknowledgements."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import pytest
from engine import Engine, Table
from pyspark.sql import SparkSession

from headrace.common.columns import Column
from headrace.dataflow.epoch_result import EpochResult
from headrace.errors import DivisionByZero, NotVectorized

COLUMNS = (Column("a", "int"), Column("x", "int"))
QUERIES = (
    "SELECT a, 60 / x AS q FROM t",
    "SELECT a, count(*) AS n, sum(x) AS s FROM t GROUP BY a",
    "SELECT l.x, r.x AS y FROM t l JOIN s r ON l.a = r.a",
)


@pytest.fixture
def engines(spark: SparkSession) -> Iterator[list[Engine]]:
    with ExitStack() as ends:
        yield [
            ends.enter_context(Engine(spark, [Table(1, "t", COLUMNS), Table(2, "s", COLUMNS)], query, codegen=False))
            for query in QUERIES
        ]


def run(engines: Sequence[Engine], parallelism: Sequence[int]) -> list[EpochResult]:
    """An epoch of all of them as one job; nothing is committed."""
    for engine in engines:
        engine.epoch += 1
    first, *others = [(e.runner, e.params(uuid.uuid4().hex), p) for e, p in zip(engines, parallelism, strict=True)]
    return first[0].run_with(first[1], first[2], others)


def commit(engines: Sequence[Engine], results: Sequence[EpochResult]) -> None:
    for engine, result in zip(engines, results, strict=True):
        engine.commit(result)
        engine.check()


def jobs_of(spark: SparkSession) -> int:
    """Spark jobs so far."""
    return int(spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs())


def test_every_view_equals_its_query(engines: list[Engine], spark: SparkSession) -> None:
    """I1, I2, I3: with and without shuffles, with one task and with two. A failed job leaves nothing, and can be run
    again view by view, or with fewer of them."""
    for engine in engines:
        engine.insert("t", *((i % 3, 1 + i % 4) for i in range(20)))
        engine.insert("s", (0, 5), (1, 6), (1, 7))
    results = run(engines, [1, 1, 1])
    commit(engines, results)
    assert [r.rows_in for r in results] == [12, 12, 15], "rows of the same values come as one"
    for engine in engines:
        engine.delete("t", (0, 1))
        engine.insert("t", (2, 5), (7, 1), *((i, 3) for i in range(20, 40)))
    before = jobs_of(spark)
    results = run(engines, [2, 1, 2])
    assert jobs_of(spark) == before + 1
    commit(engines, results)
    slices = [{int(ref.path.rsplit("-", 1)[1].split(".")[0]) for ref in r.runs} for r in results]
    assert slices == [{0, 1}, {0}, {0, 1}], "tasks are counted from the beginning of their view, not of the job"
    for engine in engines:
        engine.insert("t", (7, 0))
    with pytest.raises(NotVectorized):  # it is not said of which view
        run(engines, [2, 1, 2])
    assert all(engine.runner.vectorize for engine in engines)
    with pytest.raises(DivisionByZero):
        run(engines[:1], [2])
    assert [engine.runner.vectorize for engine in engines] == [False, True, True]
    with pytest.raises(DivisionByZero):
        run(engines, [2, 1, 2])
    for engine in engines:
        engine.delete("t", (7, 0))
        engine.insert("t", (7, 2))
    engines[2].advance(2)
    engines[2].check()
    commit(engines[:2], run(engines[:2], [2, 1]))
