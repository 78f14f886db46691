"""How often Java is asked something for a view's plan and for its job: what that costs, without a clock."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from engine import Engine, Table
from py4j.java_gateway import GatewayClient
from pyspark.sql import SparkSession

from headrace.common.columns import Column

T = (Column("id", "bigint"), Column("n", "bigint"), Column("name", "string"))
U = (Column("name", "string"), Column("place", "string"), Column("k", "int"))
JOINED = """SELECT u.place, count(*) AS c, avg(t.n) AS mean, max(t.n) AS most FROM t LEFT JOIN u ON t.name = u.name
    WHERE t.n > 10 GROUP BY u.place HAVING count(*) > 2"""
TEN_JOINS = "SELECT t.id, u9.place, count(*) AS c FROM t {joins} WHERE t.n > 10 GROUP BY t.id, u9.place".format(
    joins=" ".join(f"JOIN u AS u{i} ON t.name = u{i}.name AND u{i}.k > {i}" for i in range(10))
)
SUMS = "SELECT name, sum(n) + 1 AS total FROM t GROUP BY name"


class Questions:
    """How many of this thread's there were."""

    def __init__(self) -> None:
        self.count = 0


@contextmanager
def questions(monkeypatch: pytest.MonkeyPatch) -> Iterator[Questions]:
    """Count what this thread asks Java inside the block, without what lets go of what is not used any more."""
    found, asking, send = Questions(), threading.get_ident(), GatewayClient.send_command

    def counted(client: GatewayClient, command: str, *more: object, **named: object) -> object:
        found.count += threading.get_ident() == asking and not command.startswith("m\n")
        return send(client, command, *more, **named)

    with monkeypatch.context() as patched:
        patched.setattr(GatewayClient, "send_command", counted)
        yield found


@pytest.mark.parametrize(("query", "most"), [(SUMS, 270), (JOINED, 820), (TEN_JOINS, 3000)])
def test_a_plan_takes_few_questions(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, query: str, most: int
) -> None:
    """The bounds are a bit above what it takes; a question takes longer than most of what is asked."""
    with Engine(spark, [Table(1, "t", T), Table(2, "u", U)], query) as engine:
        with questions(monkeypatch) as asked:
            engine.planner.plan(query)
        assert 0 < asked.count <= most


def test_a_job_takes_few_questions(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    with Engine(spark, [Table(1, "t", T)], SUMS) as engine:
        with questions(monkeypatch) as asked:
            engine.runner.prepare(1, frozenset({1}))
        assert 0 < asked.count <= 960
