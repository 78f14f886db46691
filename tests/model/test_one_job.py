"""Epochs of several views as one Spark job: each view is what its query says, and has its own acknowledgements."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import pytest
from engine import Engine, Table
from pyspark.sql import SparkSession

from headrace.common.columns import Column
from headrace.dataflow.runner import EpochResult
from headrace.errors import DivisionByZero

COLUMNS = (Column("a", "int"), Column("x", "int"))
QUERIES = (
    "SELECT a, 60 / x AS q FROM t",
    "SELECT a, count(*) AS n, sum(x) AS s FROM t GROUP BY a",
    "SELECT l.a, r.x, count(*) AS n FROM t l JOIN s r ON l.a = r.a GROUP BY l.a, r.x",
    "SELECT DISTINCT x FROM (SELECT x FROM t UNION ALL SELECT x FROM s)",
)


@pytest.fixture(scope="module")
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


def advance(engines: Sequence[Engine], parallelism: Sequence[int]) -> list[EpochResult]:
    results = run(engines, parallelism)
    for engine, result in zip(engines, results, strict=True):
        engine.commit(result)
        engine.check()
    return results


def test_every_view_equals_its_query(engines: list[Engine], spark: SparkSession) -> None:
    """I1, I2, I3: with and without shuffles, at several parallelisms; a failed job leaves nothing, and can be run again
    view by view, in any order."""
    for engine in engines:
        engine.insert("t", *((i % 3, 1 + i % 4) for i in range(20)))
        engine.insert("s", (0, 5), (1, 6), (1, 7))
    advance(engines, [1, 1, 1, 1])
    for engine in engines:
        engine.delete("t", (0, 1))
        engine.insert("t", (2, 5), (7, 1))
        engine.insert("s", (2, 1))
    jobs = spark.sparkContext._jsc.sc().statusStore()
    before = jobs.jobsList(None).size()
    results = advance(engines, [2, 1, 2, 2])
    assert jobs.jobsList(None).size() == before + len(engines) + 1, "one, beside the batch answers"
    assert [r.rows_in for r in results] == [3, 3, 4, 4]
    for engine in engines:
        engine.insert("t", (7, 0))
    with pytest.raises(DivisionByZero):
        run(engines, [2, 1, 2, 1])
    for engine in engines:
        engine.delete("t", (7, 0))
    for engine in engines[2:]:
        engine.advance(2)
        engine.check()
    advance(engines[:2], [2, 2])
    for engine in engines:
        engine.insert("t", (0, 1))
    advance(engines[::-1], [1, 2, 1, 1])


def test_tasks_count_from_the_beginning_of_their_view(engines: list[Engine]) -> None:
    """The partitions of other views do not show in the names of objects, nor in what is acknowledged."""
    for engine in engines[:2]:
        engine.insert("t", *((i, 1 + i) for i in range(50)))
    results = run(engines[:2], [2, 2])
    named = [{ref.path.rsplit("/", 1)[1] for ref in r.runs} for r in results]
    assert all(names <= {"view-0.0.run", "view-1.0.run"} for names in named), named
    assert all(names for names in named)
