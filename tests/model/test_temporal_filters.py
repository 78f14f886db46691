"""I1 for conditions with `now()`: at every epoch the view is the batch answer with the epoch's time in place of it."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest
from engine import Engine, Row, Table, bag
from pyspark.sql import SparkSession

from headrace.common.columns import Column
from headrace.common.epoch import epoch_datetime, from_unix_ms

COLUMNS = (Column("a", "int"), Column("ts", "timestamp"), Column("until", "timestamp_ntz"), Column("d", "date"))
START = datetime(2026, 3, 1, 22, tzinfo=UTC)


class Timed(Engine):
    """An engine whose epochs have times, and whose answers are as of them."""

    def at(self, moment: datetime, parallelism: int = 1) -> None:
        """Begin the epoch of a moment, and hold the view against the answer for it."""
        self.epoch = from_unix_ms(round(moment.timestamp() * 1000)) - 1
        before = bag(self.view()) if self.done else None
        due = self.result.due_us if self.done else None
        idle = self.done and all(r.epoch_hi <= self.done for t in self.tables.values() for r in t.refs)
        self.result = self.advance(parallelism)
        got, want = bag(self.view()), bag(self.expected())
        assert got == want, f"{self.query} at {moment}\nmissing: {want - got}\nsurplus: {got - want}"
        if idle and (due is None or due > epoch_datetime(self.epoch).timestamp() * 1e6):
            assert got == before, "it changed before anything was due"

    def expected(self):  # type: ignore[no-untyped-def]
        now = epoch_datetime(self.done)
        query = self.query.replace("now()", f"TIMESTAMP '{now:%Y-%m-%d %H:%M:%S.%f}'")  # type: ignore[union-attr]
        query = query.replace("current_date", f"DATE '{now:%Y-%m-%d}'")
        return self.batch.answer(query, self.tables)


QUERIES = {
    "leave": "SELECT a, ts FROM t WHERE ts > now() - INTERVAL '1' HOUR",
    "enter": "SELECT a, count(*) AS n FROM t WHERE ts <= now() GROUP BY a",
    "both": "SELECT * FROM t WHERE ts + INTERVAL '10' MINUTE >= now() AND ts < now() + INTERVAL '1' MINUTE AND a > 0",
    "columns": "SELECT a FROM t WHERE ts <= now() AND now() < until",
    "dates": "SELECT a, d FROM t WHERE d > current_date - 2 AND d <= current_date",
    "age": "SELECT a, until FROM t WHERE now() - ts < INTERVAL '2' HOUR AND until - now() <= INTERVAL '1' DAY",
    "join": "SELECT x.a, y.d FROM t x JOIN t y ON x.a = y.a WHERE x.ts > now() - INTERVAL '1' HOUR AND y.until > now()",
    "pair": "SELECT x.a, y.a AS b FROM t x JOIN s y ON x.a = y.a AND x.ts + (y.ts - x.ts) / 2 > now()",
    "outer": "SELECT x.a, y.ts FROM s x LEFT JOIN (SELECT * FROM t WHERE ts > now() - INTERVAL '1' HOUR) y "
    "ON x.a = y.a",
    "exists": "SELECT a FROM s WHERE EXISTS (SELECT 1 FROM t WHERE t.a = s.a AND t.ts > now() - INTERVAL '30' MINUTE)",
    "scalar": "SELECT a, (SELECT count(*) FROM t WHERE ts >= now() - INTERVAL '1' HOUR) AS n FROM s WHERE a > 1",
    "top": "SELECT a, ts FROM t WHERE ts > now() - INTERVAL '1' HOUR ORDER BY ts, a, d, until LIMIT 2",
    "grouped": "SELECT a, max(ts) AS last FROM t GROUP BY a HAVING max(ts) < now() - INTERVAL '15' MINUTE",
    "equal": "SELECT a FROM t WHERE d = current_date",
}


SOME = ("join",)


@pytest.mark.parametrize("name", [n if n in SOME else pytest.param(n, marks=pytest.mark.soak) for n in QUERIES])
def test_views_with_now(spark: SparkSession, name: str) -> None:
    choice = random.Random(name)
    tables = [Table(1, "t", COLUMNS), Table(2, "s", COLUMNS)]
    degrees = choice.choice([[1], [1, 3]])
    with Timed(spark, tables, QUERIES[name], codegen=False, weak_hash=choice.choice([None, 2])) as engine:
        assert engine.plan.temporal
        moment, seen = START, 0
        for step in range(7):
            for table in engine.tables.values():
                if step not in (3, 5):
                    change = [(_row(choice, moment), 1) for _ in range(6)]
                    gone = choice.sample(table.rows, len(table.rows) // 3)
                    engine.change(table.name, change + [(row, -1) for row in gone])
            engine.at(moment, degrees[step % len(degrees)])
            seen += len(engine.rows())
            moment += timedelta(seconds=choice.choice([1, 400, 3000, 50_000]))
        assert seen, "no rows to compare"


def _row(choice: random.Random, now: datetime) -> Row:
    def near(none: float) -> datetime | None:
        seconds = choice.choice([0, 60, 600, 3600, 86_400]) * choice.choice([-1, 1])
        return None if choice.random() < none else now + timedelta(seconds=seconds, milliseconds=choice.randrange(3))

    ts, until, day = near(0.1), near(0.1), near(0)
    assert day is not None
    return choice.randrange(3), ts, until and until.replace(tzinfo=None), day.date()
