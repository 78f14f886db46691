"""What becomes of watermarks in plans: which marks columns get, what state expires, what is refused."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from headrace.common.columns import Column
from headrace.errors import NotSupported
from headrace.plan import tree
from headrace.plan.planner import Planner, Relation, ViewPlan

COLUMNS = [Column("id", "int"), Column("t", "timestamp_ntz"), Column("z", "timestamp"), Column("x", "int")]
S = 1_000_000
NOW = {1: 1_000 * S + 1, 2: 900 * S + 2}
"""The watermarks of a.t and b.z; c has none."""


@pytest.fixture(scope="module")
def planner(spark: SparkSession) -> Planner:
    made = Planner(spark)
    for i, (name, watermark) in enumerate((("a", "t"), ("b", "z"), ("c", None)), start=1):
        made.define(Relation(i, name, True, watermark), COLUMNS, name)
    return made


def value(plan: ViewPlan) -> int | None:
    mark = plan.event_time.closes
    return None if mark is None else mark.value(lambda i, _: NOW[i])


@pytest.mark.parametrize(
    ("query", "column", "expected"),
    [
        ("SELECT t - INTERVAL '10 seconds' AS q FROM a", "q", NOW[1] - 10 * S),
        ("SELECT CAST(t + INTERVAL '1 day' AS timestamp) AS q FROM a", "q", NOW[1] + 86_400 * S),
        ("SELECT date_trunc('hour', z) AS q, count(*) AS n FROM b WHERE x > 1 GROUP BY 1", "q", 0),
        ("SELECT window(t, '1 minute', '1 minute', '10 seconds').start AS q FROM a", "q", 970 * S),
        ("SELECT window(t, '1 minute', '20 seconds').start AS q FROM a", "q", 960 * S),
        ("SELECT w.end AS q, max(x) AS m FROM (SELECT x, window(t, '1 minute') AS w FROM a) GROUP BY w.end HAVING "
         "count(*) > 1", "q", 1020 * S),
        ("SELECT t AS q FROM a UNION ALL SELECT CAST(z AS timestamp_ntz) FROM b", "q", NOW[2]),
        ("SELECT a.id, a.t AS q FROM a JOIN b ON a.id = b.id AND a.t >= b.z - INTERVAL '5 seconds'", "q",
         NOW[2] - 5 * S),
        ("SELECT l.q, n, m FROM (SELECT window(t, '10 seconds').start AS q, count(*) AS n FROM a GROUP BY 1) l JOIN "
         "(SELECT CAST(window(z, '10 seconds').start AS timestamp_ntz) AS q, count(*) AS m FROM b GROUP BY 1) r "
         "ON l.q = r.q", "q", 900 * S),
        ("SELECT t AS q, id FROM (SELECT *, row_number() OVER (PARTITION BY t ORDER BY x) AS r FROM a) WHERE r = 1",
         "q", NOW[1]),
        ("SELECT w.start AS q, count(*) AS n FROM (SELECT window(t, '1 minute') AS w FROM a) GROUP BY w", "q", 960 * S),
        ("SELECT t AS q, explode(array(1, 2)) AS e FROM a", "q", NOW[1]),
    ],
)  # fmt: skip
def test_marks(planner: Planner, query: str, column: str, expected: int) -> None:
    plan = planner.plan(query, on_window_close=True)
    assert isinstance(plan.root, tree.WindowClose) and plan.append_only
    assert plan.event_time.column == column
    assert value(plan) == expected
    assert plan.event_time.expiry["0/open"] == plan.event_time.closes
    assert set(plan.event_time.expiry) <= set(plan.state_tables())
    for op in tree.walk(plan.root):
        assert not isinstance(op, tree.Aggregate) or op.expires, "every grouping is bounded"
    for name, mark in plan.event_time.expiry.items():
        assert plan.state_tables()[name].expires is not None
        assert mark.relations <= plan.event_time.relations


@pytest.mark.parametrize(
    "query",
    [
        "SELECT count(*) AS n FROM a",
        "SELECT id, count(*) AS n FROM (SELECT id, window(t, '1 minute') AS w FROM a) GROUP BY id, w.start",
        "SELECT a.t, c.x FROM a JOIN c ON a.id = c.id",  # an old row changes when c does
        "SELECT t FROM a UNION ALL SELECT t FROM c",
        "SELECT t FROM a ORDER BY x LIMIT 3",
        "SELECT t, sum(x) OVER (PARTITION BY id ORDER BY t) AS s FROM a",
        "SELECT CAST(t AS date) AS d, count(*) AS n FROM a GROUP BY 1",
    ],
)
def test_what_never_closes_is_refused(planner: Planner, query: str) -> None:
    with pytest.raises(NotSupported) as caught:
        planner.plan(query, on_window_close=True)
    assert caught.value.sqlstate == "0A000" and "WATERMARK FOR" in str(caught.value.hint)
    assert not planner.plan(query).event_time.expiry


INTERVAL = "a.t BETWEEN b.z - INTERVAL '10 seconds' AND b.z + INTERVAL '5 seconds'"


@pytest.mark.parametrize(
    ("query", "expired"),
    [
        (f"SELECT a.id, b.x FROM a JOIN b ON a.id = b.id AND {INTERVAL}", {"left": -10, "right": -5}),
        (f"SELECT a.id, b.x FROM a FULL JOIN b ON a.id = b.id AND {INTERVAL}",
         {"left": -10, "right": -5, "left_matches": -10, "right_matches": -5}),
        (f"SELECT a.id FROM a LEFT ANTI JOIN b ON a.id = b.id AND {INTERVAL}",
         {"left": -10, "right": -5, "left_matches": -10}),
        ("SELECT a.id, b.x FROM a JOIN b ON a.id = b.id AND a.t > b.z", {"left": 0}),
        ("SELECT a.id, b.x FROM b JOIN a ON a.id = b.id AND b.z - CAST(a.t AS timestamp) <= INTERVAL '7' SECOND",
         {"right": -7}),
        ("SELECT a.id, b.x FROM a JOIN b ON a.id = b.id", {}),
        ("SELECT a.id, c.x FROM a JOIN c ON a.id = c.id AND a.t = c.t", {}),
        (f"SELECT a.id, count(*) AS n FROM a JOIN b ON a.id = b.id AND {INTERVAL} GROUP BY a.id",
         {"left": -10, "right": -5}),
        ("SELECT window(t, '1 minute').start AS q, count(*) AS n FROM a GROUP BY 1", {}),
    ],
)  # fmt: skip
def test_state_of_joins_expires(planner: Planner, query: str, expired: dict[str, int]) -> None:
    """Seconds that the rows of each side are kept after both watermarks; without joins of times nothing is late."""
    plan = planner.plan(query)
    both = dict.fromkeys(NOW, 0)
    found = {name.split("/")[1]: mark.value(lambda i, _: both[i]) for name, mark in plan.event_time.expiry.items()}
    # The least of both marks: the row's own is at 0.
    assert found == {name: min(0, s * S) for name, s in expired.items()}
    late = {op.relation: op.late for op in tree.walk(plan.root) if isinstance(op, tree.Input)}
    assert late == ({1: "t", 2: "z"} if expired else dict.fromkeys(late))


def test_explain_and_fingerprint_tell_event_time(planner: Planner) -> None:
    query = "SELECT window(t, '1 minute').start AS q, count(*) AS n FROM a GROUP BY 1"
    running, closing = planner.plan(query), planner.plan(query, on_window_close=True)
    assert running.fingerprint != closing.fingerprint
    assert closing.fingerprint == planner.plan(query, on_window_close=True).fingerprint
    text = "\n".join(closing.explain())
    assert "window close: q" in text and "unless late by t" in text and "until the watermark passes g0" in text
    assert "late" not in "\n".join(running.explain())


def test_sessions_of_spark_are_refused(planner: Planner) -> None:
    """Their physical operators merge neighbours, which no incremental rule does."""
    with pytest.raises(NotSupported, match="session_window") as caught:
        planner.plan("SELECT id, count(*) AS n FROM a GROUP BY id, session_window(t, '10 seconds')")
    assert "SESSION" in str(caught.value.hint)
