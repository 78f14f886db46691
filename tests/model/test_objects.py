"""How many objects an epoch leaves: one for each Spark task that wrote, whatever the number of its state tables."""

from __future__ import annotations

from collections import Counter

import pytest
from engine import Engine, Table
from pyspark.sql import SparkSession

from headrace.common.columns import Column
from headrace.dataflow.epoch_result import EpochResult

COLUMNS = (Column("a", "int"), Column("x", "int"))
JOINED = "SELECT l.a, count(*) AS n, sum(r.x) AS s FROM t l JOIN s r ON l.a = r.a GROUP BY l.a"
CHAIN = (
    "SELECT a, max(n) AS m FROM (SELECT l.a, l.x, count(r.x) AS n FROM t l FULL JOIN s r ON l.a = r.a "
    "GROUP BY l.a, l.x UNION ALL SELECT a, x, 0 FROM s) GROUP BY a"
)


def _engine(spark: SparkSession, query: str) -> Engine:
    return Engine(spark, [Table(1, "t", COLUMNS), Table(2, "s", COLUMNS)], query, codegen=False)


def _tables_by_object(result: EpochResult) -> dict[str, Counter[int]]:
    found: dict[str, Counter[int]] = {}
    for ref in result.runs:
        found.setdefault(ref.path, Counter())[ref.table_id] += 1
    assert all(n == 1 for tables in found.values() for n in tables.values()), "a table has one section of an object"
    return found


def _fill(engine: Engine) -> None:
    engine.insert("t", *((a, a % 7) for a in range(200)))
    engine.insert("s", *((a, a) for a in range(100, 300)))


def test_one_task_leaves_one_object(spark: SparkSession) -> None:
    """CK-22: the files of one task and epoch are merged before upload into one object; idle epochs add none."""
    with _engine(spark, JOINED) as engine:
        _fill(engine)
        for _ in range(2):
            objects = _tables_by_object(engine.advance(1))
            assert len(objects) == 1
            engine.check()
            engine.insert("s", (1, 5), (2, 6))
            engine.insert("t", (250, 1))
        assert [len(t) for t in objects.values()] == [4], "both sides of the join, the groups, the view's rows"
        engine.advance(1)
        assert engine.advance(1).runs == []
        on_disk = {p.relative_to(engine.root).as_posix() for p in (engine.root / "view").rglob("*.run")}
        assert on_disk == {r.path for refs in engine.state.values() for r in refs}, "idle epochs add none"
        assert not list((engine.root / "spool").rglob("*"))


def test_four_tasks_leave_an_object_each(spark: SparkSession) -> None:
    """CK-22: at parallelism 4 the join's tasks and the aggregate's, which a shuffle parts, write one object each."""
    with _engine(spark, JOINED) as engine:
        _fill(engine)
        objects = _tables_by_object(engine.advance(4))
        stages = Counter(path.rsplit("/", 1)[1].split("-")[0] for path in objects)
        assert stages["view"] == 4 and sorted(stages.values()) == [4, 4], stages
        assert engine.advance(4).runs == []
        engine.check()


@pytest.mark.parametrize("parallelism", [1, 3])
def test_many_operators_of_one_task(spark: SparkSession, parallelism: int) -> None:
    """CK-22: outer join, recompute, aggregate and union of one task share its object; no row gets lost on the way."""
    with _engine(spark, CHAIN) as engine:
        _fill(engine)
        for a in (150, 151):
            objects = _tables_by_object(engine.advance(parallelism))
            engine.check()
            engine.delete("t", (a, a % 7))
            engine.insert("t", (7, 7), (a, 8))
            if parallelism == 1:
                assert len(objects) == 1
        assert not list((engine.root / "spool").rglob("*"))
