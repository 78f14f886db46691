"""Real tasks that find no space: the epoch is declined with 53100, and the next ones go on by themselves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from engine import Engine, Table
from pyspark.sql import SparkSession

from headrace.common.columns import Column
from headrace.common.faults import ENV_VAR
from headrace.errors import DiskFull

COLUMNS = (Column("a", "int"), Column("x", "int"))


@pytest.fixture
def short_of_disk(spark: SparkSession) -> Iterator[SparkSession]:
    """Python workers of which each finds a full disk after a while; Spark replaces a worker that has failed."""
    environment = spark.sparkContext.environment
    environment[ENV_VAR] = "task.spool.before=full@3,task.before_upload=full@2"
    yield spark
    del environment[ENV_VAR]


def test_tasks_that_find_no_space(short_of_disk: SparkSession) -> None:
    """FS-6, FS-16: declined with nothing left behind; the same epoch succeeds when there is room, and is exact."""
    query = "SELECT l.a, count(*) AS n FROM t l JOIN s r ON l.a = r.a GROUP BY l.a"
    with Engine(short_of_disk, [Table(1, "t", COLUMNS), Table(2, "s", COLUMNS)], query, codegen=False) as engine:
        declined = 0
        for i in range(20):
            if engine.done == engine.epoch:
                engine.check()
                if declined:
                    break
                engine.insert("t", (i, i))
                engine.insert("s", (i, 1), (i, 2))
            before = engine.rows()
            try:
                engine.advance(1)
            except DiskFull as error:
                declined += 1
                assert "task." in error.message and error.sqlstate == "53100"
                assert engine.rows() == before and not list((engine.root / "spool").rglob("*"))
        assert declined and engine.done == engine.epoch
