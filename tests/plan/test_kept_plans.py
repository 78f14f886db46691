"""Physical plans that are kept: which may be, and that each run of one stands by itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

from headrace.plan.catalyst.bridge import PLANNING_CONF
from headrace.plan.catalyst.java_calls import set_property
from headrace.plan.catalyst.kept import KeptPlan
from support import WAIT_S

TOLD = "headrace.test.told"


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    def told(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Rows (a, b) up to the number that the job tells."""
        context = TaskContext.get()
        assert context is not None
        most = int(context.getLocalProperty(TOLD) or 0)
        for batch in batches:
            rows = [i for i in range(most) if i % 2 in batch.column(0).to_pylist()]
            yield pa.RecordBatch.from_pydict({"a": pa.array(rows, pa.int32()), "s": [str(i % 3) for i in rows]})

    made = spark.newSession()
    for key, value in PLANNING_CONF.items():
        made.conf.set(key, value)
    made.conf.set("spark.sql.shuffle.partitions", "2")
    made.range(0, 2, 1, 2).mapInArrow(told, "a int, s string").createOrReplaceTempView("t")
    return made


def answer(session: SparkSession, plan: KeptPlan, most: int) -> list[tuple[object, ...]]:
    """What a plan gives where so many rows are told."""
    set_property(session.sparkContext, TOLD, str(most))
    try:
        return sorted(
            tuple(row) for batch in plan.stream() for row in zip(*(c.to_pylist() for c in batch.columns), strict=True)
        )
    finally:
        set_property(session.sparkContext, TOLD, None)


QUERIES = {
    "SELECT s, count(*) FROM t GROUP BY s": lambda n: [(str(i), len(range(i, n, 3))) for i in range(min(n, 3))],
    "SELECT x.a FROM t x JOIN t y ON x.a = y.a + 1": lambda n: [(i,) for i in range(1, n)],
    "SELECT x.n FROM (SELECT s, count(*) AS n FROM t GROUP BY s) x JOIN (SELECT s, count(*) AS n FROM t GROUP BY s) y "
    "ON x.s = y.s": lambda n: sorted((len(range(i, n, 3)),) for i in range(min(n, 3))),
    "SELECT a FROM t WHERE a >= (SELECT max(a) FROM t)": lambda n: [(n - 1,)],
    "SELECT a, (SELECT count(*) FROM t) FROM t WHERE a IN (SELECT a + 1 FROM t)": lambda n: [
        (i, n) for i in range(1, n)
    ],
    "SELECT a FROM t ORDER BY a DESC LIMIT 1": lambda n: [(n - 1,)],
    "SELECT a, row_number() OVER (ORDER BY a DESC) FROM t": lambda n: [(i, n - i) for i in range(n)],
    "SELECT explode(array(a, 1)) FROM t UNION ALL SELECT 7": lambda n: sorted(
        [(i,) for i in range(n)] + [(1,)] * n + [(7,)]
    ),
}


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("broadcast", ["10485760", "-1"])
def test_each_run_reads_what_it_is_told(session: SparkSession, query: str, broadcast: str) -> None:
    session.conf.set("spark.sql.autoBroadcastJoinThreshold", broadcast)
    plan = KeptPlan.of(session.sql(query))
    assert plan is not None
    for most in (5, 2, 9):
        assert answer(session, plan, most) == QUERIES[query](most)


def test_what_is_shared_in_a_plan_is_shared_anew(session: SparkSession) -> None:
    """An exchange that is reused refers to the very node, and a subquery keeps its value."""
    counted = "SELECT s, count(*) AS n FROM t WHERE a < (SELECT max(a) FROM t) GROUP BY s"
    plan = KeptPlan.of(session.sql(f"{counted} UNION ALL {counted}"))
    assert plan is not None
    shared = str(plan._prepared().treeString())
    assert "ReusedExchange" in shared and "Subquery scalar" in shared
    assert answer(session, plan, 4) == [("0", 1), ("0", 1), ("1", 1), ("1", 1), ("2", 1), ("2", 1)]
    assert answer(session, plan, 2) == [("0", 1)] * 2


def test_runs_at_once(session: SparkSession) -> None:
    plan = KeptPlan.of(session.sql("SELECT s, count(*) FROM t WHERE a < (SELECT count(*) FROM t) GROUP BY s"))
    assert plan is not None
    found: dict[int, list[tuple[object, ...]]] = {}
    threads = [
        threading.Thread(target=lambda n=n: found.update({n: answer(session, plan, n)})) for n in (1, 4, 30, 300)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert found == {n: [(str(i), len(range(i, n, 3))) for i in range(min(n, 3))] for n in (1, 4, 30, 300)}


@pytest.mark.parametrize("query", [
    "SELECT now() FROM t", "SELECT current_date() FROM t", "SELECT CAST('no' || 'w' AS timestamp) FROM t",
    "SELECT date('today') FROM t", "SELECT a FROM t WHERE a IN (SELECT year(CAST('now' AS date)) FROM t)",
    "SELECT a FROM t WHERE EXISTS (SELECT 1 FROM t WHERE current_timestamp() > '2020-01-01')",
    "SELECT rand() FROM t", "SELECT uuid() FROM t",
    "SELECT a FROM t WHERE a > (SELECT max(r) FROM (SELECT a * rand() AS r FROM t))",
    "SELECT a FROM t TABLESAMPLE (50 PERCENT)", "SELECT monotonically_increasing_id() FROM t",
    "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 5) SELECT n FROM r JOIN t ON n = a",
    "SELECT current_user(), a FROM t",
])  # fmt: skip
def test_what_is_good_for_one_run_is_refused(session: SparkSession, query: str) -> None:
    assert KeptPlan.of(session.sql(query)) is None


def test_what_spark_reads_from_elsewhere_is_refused(session: SparkSession) -> None:
    cached = session.sql("SELECT a FROM t").cache()
    try:
        assert KeptPlan.of(cached) is None
    finally:
        cached.unpersist(blocking=True)
    assert KeptPlan.of(session.createDataFrame([(1,)], "a int").join(session.table("t"), "a")) is None


def test_line_breaks_in_a_plan_hide_no_node(session: SparkSession) -> None:
    assert KeptPlan.of(session.sql("SELECT a FROM t WHERE s <> 'x\n+- Sample'")) is None
    assert KeptPlan.of(session.sql("SELECT a FROM t TABLESAMPLE (50 PERCENT) WHERE s <> '\n+- Filter'")) is None


def test_the_active_session_is_what_it_was(session: SparkSession) -> None:
    plan = KeptPlan.of(session.sql("SELECT a FROM t"))
    assert plan is not None
    sessions = session._jvm.org.apache.spark.sql.classic.SparkSession
    sessions.clearActiveSession()
    assert answer(session, plan, 2) == [(0,), (1,)]
    assert sessions.getActiveSession().isEmpty()
    other = session.newSession()._jsparkSession
    sessions.setActiveSession(other)
    assert answer(session, plan, 2) == [(0,), (1,)]
    assert sessions.getActiveSession().get().equals(other)
    sessions.clearActiveSession()
