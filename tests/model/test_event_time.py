"""Views bounded by watermarks: equal to Spark's batch answer over the rows that are not late, with bounded state."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from engine import Engine, Row, Table, bag
from pyspark.sql import SparkSession

from headrace.common.columns import Column
from headrace.sql.parser import parse_query
from headrace.state.arrangement import Arrangement
from headrace.state.watermark import event_times

ORIGIN = datetime(2024, 1, 1)
DELAY_S = 4
COLUMNS = (Column("id", "int"), Column("t", "timestamp_ntz"), Column("x", "int"))
WINDOWED = "(SELECT id, x, window(t, '10 seconds') AS w FROM {}) "


def sessions(query: str) -> str:
    """A query with SESSION as Spark runs it: over window functions."""
    return parse_query(query).to_spark(lambda table: f"`{table.name}`")


CLOSING = {
    "tumble": f"SELECT w.start AS ws, w.end AS we, id, count(*) AS c, sum(x) AS s, max(x) AS m "
    f"FROM {WINDOWED.format('a')} GROUP BY w.start, w.end, id",
    "hop of a union": "SELECT w.end AS we, count(DISTINCT x) AS d, min(x) AS m FROM (SELECT x, window(t, '10 seconds', "
    "'5 seconds') AS w FROM (SELECT * FROM a UNION ALL SELECT * FROM b)) GROUP BY w.end",
    "first of a window": "SELECT ws, id, x FROM (SELECT *, row_number() OVER (PARTITION BY ws ORDER BY x, id, t) AS r "
    "FROM (SELECT w.start AS ws, * FROM (SELECT *, window(t, '10 seconds') AS w FROM a))) WHERE r <= 2",
    "most in a window": "SELECT l.ws, l.id, l.c FROM (SELECT w.start AS ws, id, count(*) AS c FROM "
    f"{WINDOWED.format('a')} GROUP BY w.start, id) l JOIN (SELECT ws, max(c) AS most FROM (SELECT w.start AS ws, id, "
    f"count(*) AS c FROM {WINDOWED.format('a')} GROUP BY w.start, id) GROUP BY ws) r ON l.ws = r.ws AND l.c = r.most",
    "window as one column": "SELECT w.end AS we, sum(x) AS s FROM (SELECT x, window(t, '10 seconds') AS w FROM a) "
    "GROUP BY w",
    "sort": "SELECT t, x FROM a WHERE x > 1",
    "sessions": sessions("SELECT id, window_start, window_end, count(*) AS c, sum(x) AS s FROM "
                         "SESSION(a, t, INTERVAL '4 seconds', id) GROUP BY 1, 2, 3"),
    "rows of sessions": sessions("SELECT * FROM SESSION(a, t, INTERVAL '2 seconds', id, x) WHERE id < 2 OR x = 1"),
    "sessions of all": sessions("WITH pair AS (SELECT * FROM a UNION ALL SELECT * FROM b) SELECT window_end, "
                                "max(x) - min(x) AS d FROM SESSION(pair, t, INTERVAL '1 second') GROUP BY 1"),
    "minutes": "SELECT date_trunc('minute', t) AS m, id, avg(x) AS v FROM a GROUP BY 1, 2",
}  # fmt: skip
RUNNING = {
    "interval join": "SELECT a.id, a.t, b.x FROM a JOIN b ON a.id = b.id "
    "AND a.t BETWEEN b.t - INTERVAL '3 seconds' AND b.t + INTERVAL '5 seconds'",
    "outer interval join": "SELECT a.id, a.t, a.x AS l, b.x AS r FROM a LEFT JOIN b ON a.id = b.id "
    "AND b.t >= a.t AND b.t - a.t <= INTERVAL '5 seconds'",
    "window join": "SELECT l.ws, l.c AS lc, r.c AS rc FROM "
    f"(SELECT w.start AS ws, count(*) AS c FROM {WINDOWED.format('a')} GROUP BY 1) l FULL JOIN "
    f"(SELECT w.start AS ws, count(*) AS c FROM {WINDOWED.format('b')} GROUP BY 1) r ON l.ws = r.ws",
    "semi join": "SELECT id, t, x FROM a WHERE NOT EXISTS (SELECT 1 FROM b WHERE a.id = b.id AND b.t >= a.t "
    "- INTERVAL '2 seconds' AND b.t <= a.t + INTERVAL '2 seconds')",
}  # fmt: skip


def _us(t: datetime) -> int:
    return int(t.replace(tzinfo=UTC).timestamp()) * 1_000_000


class Stream:
    """Random events of two tables whose times go on; late ones are left out, as sources and tables do."""

    def __init__(self, spark: SparkSession, query: str, seed: int, *, closing: bool) -> None:
        self.random = random.Random(seed)
        self.tables = [Table(1, "a", COLUMNS, True, time="t"), Table(2, "b", COLUMNS, True, time="t")]
        self.engine = Engine(spark, self.tables, query, on_window_close=closing)
        self.now_s = 0
        self.late = 0

    def add(self, events: int, step_s: int) -> None:
        """Some events of each table, up to ten seconds before now, and a few without a time."""
        self.now_s += step_s
        for table in self.tables:
            found: list[Row] = []
            for _ in range(events):
                at = ORIGIN + timedelta(seconds=self.now_s - self.random.randrange(10))
                time = None if self.random.random() < 0.05 else at
                row = (self.random.randrange(3), time, self.random.randrange(6))
                if time is not None and table.watermark_us is not None and _us(time) < table.watermark_us:
                    self.late += 1
                else:
                    found.append(row)
            if found:
                self.engine.insert(table.name, *found)
            seen = [_us(row[1]) - DELAY_S * 1_000_000 for row in table.rows if row[1] is not None]
            table.watermark_us = max(seen, default=None)

    def check(self) -> None:
        """The law: batch over the rows that are not late; of what is emitted on close, the part that is closed."""
        event_time = self.engine.plan.event_time
        expected = bag(self.engine.expected())
        if event_time.column is not None:
            place = [c.name for c in self.engine.plan.columns].index(event_time.column)
            below = self.engine.mark(event_time.closes)
            expected = Counter({r: n for r, n in expected.items() if below is not None and _closed(r[place], below)})
        got = bag(self.engine.view())
        assert got == expected, f"missing: {expected - got}\nsurplus: {got - expected}"

    def state_rows(self) -> dict[str, int]:
        """Rows of state that have not expired and have a time, by state table."""
        found = {}
        for name, schema in self.engine.plan.state_tables().items():
            if schema.expires is not None:
                mark = self.engine.expired.get(name)
                table = Arrangement(schema, self.engine.state[name], self.engine.root, watermark=mark)
                batches = list(table.scan())
                found[name] = sum(len(b) - event_times(b, schema).null_count for b in batches)
        return found


def _closed(time: Any, below_us: int) -> bool:
    return time is not None and _us(time.replace(tzinfo=None)) < below_us


def _run(spark: SparkSession, query: str, seed: int, closing: bool, steps: int) -> None:
    stream = Stream(spark, query, seed, closing=closing)
    with stream.engine as engine:
        for step in range(steps):
            stream.add(stream.random.randrange(1, 7), stream.random.choice([0, 3, 12]))
            if step % 3 != 1:  # an epoch may take in several
                engine.advance(1 if step % 4 else 2)
                stream.check()
        assert stream.late
        stream.add(3, 3600)
        engine.advance()
        stream.check()
        assert engine.rows()
        kept = stream.state_rows()
        assert kept and all(rows <= 12 for rows in kept.values()), kept
        assert any(name != "0/open" for name in kept) or "GROUP" not in query


def test_what_is_emitted_on_window_close_is_the_batch_answer_of_closed_windows(spark: SparkSession) -> None:
    """FS-21: rows come out once, when the watermark has passed them, whatever epochs take in; state goes with them."""
    _run(spark, CLOSING["most in a window"], 1, True, 5)


def test_sessions_are_emitted_once_they_are_closed(spark: SparkSession) -> None:
    """FS-21: a session comes out once, when nothing can prolong it any more; its rows go from the state after it."""
    _run(spark, CLOSING["sessions"], 3, True, 4)


def test_joins_whose_state_expires_equal_the_batch_answer(spark: SparkSession) -> None:
    """FS-19: rows that can meet nothing any more are gone, and nobody misses them."""
    _run(spark, RUNNING["outer interval join"], 2, False, 5)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", [*CLOSING, *RUNNING])
def test_random_histories(spark: SparkSession, name: str, seed: int) -> None:
    _run(spark, {**CLOSING, **RUNNING}[name], 100 + seed, name in CLOSING, 14)
