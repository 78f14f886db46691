"""What becomes of watermarks in plans: which marks columns get, what state expires, what is refused."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from headrace.common.columns import Column
from headrace.errors import NotSupported
from headrace.plan import tree
from headrace.plan.aggregates import Aggregate
from headrace.plan.closing import WindowClose
from headrace.plan.inputs import Input
from headrace.plan.planner import PlannedRelation, Planner, ViewPlan
from headrace.plan.sessions import Session, marked, read
from headrace.plan.stored_plans import stored_query, to_content
from headrace.sql.parser import parse_query

COLUMNS = [Column("id", "int"), Column("t", "timestamp_ntz"), Column("z", "timestamp"), Column("x", "int")]
S = 1_000_000
NOW = {1: 1_000 * S + 1, 2: 900 * S + 2}
"""The watermarks of a.t and b.z; c has none."""


@pytest.fixture(scope="module")
def planner(spark: SparkSession) -> Planner:
    made = Planner(spark)
    for i, (name, watermark) in enumerate((("a", "t"), ("b", "z"), ("c", None)), start=1):
        made.define(PlannedRelation(i, name, True, watermark), COLUMNS, name)
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
    assert isinstance(plan.root, WindowClose) and plan.append_only
    assert plan.event_time.column == column
    assert value(plan) == expected
    assert plan.event_time.expiry["0/open"] == plan.event_time.closes
    assert set(plan.event_time.expiry) <= set(plan.state_tables())
    for op in tree.walk(plan.root):
        assert not isinstance(op, Aggregate) or op.expires, "every grouping is bounded"
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
    late = {op.relation: op.late for op in tree.walk(plan.root) if isinstance(op, Input)}
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


def sessions(query: str) -> str:
    return parse_query(query).to_spark(lambda table: f"`{table.name}`")


COUNTED = "SELECT id, window_start, window_end, count(*) AS n FROM SESSION(a, t, INTERVAL '10 s', id) GROUP BY 1, 2, 3"


def test_sessions_are_one_operator(planner: Planner) -> None:
    """What SESSION stands for is found again, keeps key and time only, and is bounded by the watermark."""
    plan = planner.plan(sessions(COUNTED), on_window_close=True)
    kinds = [op.kind for op in tree.walk(plan.root)]
    assert kinds == ["window close", "aggregate", "rowwise", "session", "rowwise", "input"]
    session = next(op for op in tree.walk(plan.root) if isinstance(op, Session))
    assert (session.gap_us, session.columns, session.values) == (10 * S, ["k0"], [])
    # What ends at the watermark is closed; rows are kept until a time that is not before their session's end.
    marks = {name: mark.value(lambda *_: 7 * S) for name, mark in plan.event_time.expiry.items()}
    assert marks == {"0/open": 7 * S + 1, "0.0/groups": 7 * S + 1, "0.0.0.0/rows": 7 * S}
    assert plan.event_time.column == "window_end"
    text = "\n".join(plan.explain())
    assert "session: of t with a gap of 10 s" in text and "until the watermark passes until" in text
    assert plan.fingerprint == planner.plan(sessions(COUNTED), on_window_close=True).fingerprint
    running = planner.plan(sessions(COUNTED))
    assert not running.event_time.expiry and "until" not in "\n".join(running.explain())
    with pytest.raises(NotSupported, match="EMIT ON WINDOW CLOSE"):
        planner.plan(sessions("SELECT t, window_start FROM SESSION(a, t, INTERVAL '1 s')"), on_window_close=True)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("SELECT * FROM SESSION(a, t, INTERVAL '1 s', id, x) WHERE window_end > '2024-01-01' AND x = 1", 1),
        ("WITH s AS (SELECT window_start AS w, x FROM SESSION(a, t, INTERVAL '1 s') AS v) SELECT l.w, r.x FROM s l "
         "JOIN s r ON l.w = r.w AND l.x < r.x", 2),
        ("WITH q AS (SELECT id + 1 AS k, CAST(t AS timestamptz) AS u FROM a) "
         "SELECT * FROM SESSION(q, u, INTERVAL '1 d', k)", 1),
        ("SELECT * FROM (SELECT x, window_end AS e FROM SESSION(a, t, INTERVAL '1 s', x)) q ORDER BY e LIMIT 1", 1),
        ("SELECT x FROM SESSION(a, t, INTERVAL '1 s', x)", 0),
        ("SELECT * FROM SESSION(a, t, INTERVAL '1 month', x)", 0),
        ("SELECT * FROM SESSION(a, t, INTERVAL '0 s', x)", 0),
    ],
)  # fmt: skip
def test_where_sessions_are_found(planner: Planner, query: str, found: int) -> None:
    """In any place of a query; what is not shown is not computed, and a gap without a fixed length is left to Spark."""
    kinds = [op.kind for op in tree.walk(planner.plan(sessions(query)).root)]
    assert kinds.count("session") == found
    assert "recompute" not in kinds or "0 s" in query or "month" in query or "LIMIT" in query


def test_sessions_of_a_dataframe_are_found_when_it_is_read_again(planner: Planner) -> None:
    b = planner.bridge
    content = to_content(b, b.analyzed(b.spark.sql(sessions(COUNTED))), planner.relation_of)
    plan = planner.plan(stored_query(planner, content), on_window_close=True)
    assert "session" in [op.kind for op in tree.walk(plan.root)]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("LAG(`__time`)", "LAG(`__time`, 2)"), ("LAG(`__time`)", "LEAD(`__time`)"), ("MAX(`__time`)", "MIN(`__time`)"),
        ("MAX(`__first`)", "MIN(`__first`)"), ("> `__time`", ">= `__time`"), ("ELSE `__time`", "ELSE `t`"),
        ("NOT `t` IS NULL", "NOT `id` IS NULL"), ("ORDER BY `__time` NULLS LAST", "ORDER BY `__time` DESC"),
        ("PARTITION BY `id` ORDER", "PARTITION BY `x` ORDER"), ("'0 00:00:10.000000'", "'0 00:00:11.000000'"),
        ("(PARTITION BY `id`, `window_start`)", "(PARTITION BY `id`, `window_start` ORDER BY `__time`)"),
        ("PARTITION BY `id`, `window_start`", "PARTITION BY `window_start`"), ("THEN NULL", "THEN `t`"),
    ],
)  # fmt: skip
def test_what_only_looks_like_sessions_is_left_to_spark(planner: Planner, old: str, new: str) -> None:
    text = sessions(COUNTED)
    changed = text.replace(old, new, 1)
    assert changed != text
    b = planner.bridge
    analyzed = [b.analyzed(b.spark.sql(query)) for query in (text, changed)]
    assert [any(read(n) is not None for n in marked(b, node).walk()) for node in analyzed] == [True, False]
