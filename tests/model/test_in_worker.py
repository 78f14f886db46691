"""Expressions that are computed in Python workers: what stays there, and what goes back to Spark."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from engine import Engine, Table
from pyspark.sql import SparkSession

from headrace.common.columns import Column
from headrace.errors import NumericOutOfRange
from support import WAIT_S

T = (Column("a", "bigint"), Column("b", "int"), Column("s", "string"))
U = (Column("a", "bigint"), Column("v", "string"))
JOINED = """SELECT u.v, count(*) AS n, sum(t.b) AS total, max(t.s) AS most
    FROM t JOIN u ON t.a = u.a WHERE t.b % 2 = 0 GROUP BY u.v"""
QUERIES = {
    "project": "SELECT a, upper(s) AS s, b * 2 AS b FROM t WHERE a > 1",
    "aggregate": "SELECT s, count(*) AS n, sum(a) AS total, avg(b) AS mean FROM t GROUP BY s",
    "distinct": "SELECT s, count(DISTINCT a) AS n, count(DISTINCT b) FILTER (WHERE a > 1) AS m FROM t GROUP BY s",
    "several": """SELECT s, count(DISTINCT a) AS n, count(DISTINCT b) FILTER (WHERE a > 1) AS m, sum(b) AS total,
        max(concat(s, 'x')) AS most, count(DISTINCT a, s) FILTER (WHERE b > 0) AS k FROM t GROUP BY s""",
    "global": "SELECT count(DISTINCT a) AS n, count(*) AS m, sum(DISTINCT b) AS total FROM t",
    "rollup": "SELECT s, b, count(*) AS n, sum(a) AS total FROM t GROUP BY ROLLUP (s, b)",
    "over": "SELECT n, count(*) AS m FROM (SELECT a, count(*) AS n FROM t GROUP BY a) GROUP BY n",
}


def stages(engine: Engine, active: frozenset[int] | None = None) -> int:
    """How often the rows of an epoch enter a Python worker, with one task for each operator."""
    plan = engine.runner.prepare(1, active)._executed.text
    assert "Exchange" not in plan
    return plan.count("MapInArrow ")


@pytest.mark.parametrize("name", sorted(QUERIES))
def test_a_small_epoch_stays_in_one_worker(spark: SparkSession, name: str) -> None:
    """I1: operators that follow one another in one worker do what they do with Spark in between."""
    with Engine(spark, [Table(1, "t", T)], QUERIES[name]) as engine:
        assert stages(engine) == 1
        for i, parallelism in enumerate((1, 2, 1, 3, 1)):
            engine.insert("t", (i, i, "x"), (i % 2, 7 - i, None), (2, None, "y"), (None, i, "z"))
            if i > 1:
                engine.delete("t", (2, None, "y"), (i - 1, i - 1, "x"))
            engine.advance(parallelism)
            engine.check()
        assert engine.runner.vectorize


def test_a_join_of_which_one_side_has_changed(spark: SparkSession) -> None:
    """I1: the change of one side goes through join and aggregate in one worker."""
    with Engine(spark, [Table(1, "t", T), Table(2, "u", U)], JOINED) as engine:
        assert stages(engine, frozenset({1})) == 1
        assert stages(engine, frozenset({2})) == 1
        assert stages(engine) > 1
        for i, parallelism in enumerate((1, 1, 2, 1, 1)):
            if i != 2:
                engine.insert("t", (i % 3, 2 * i, "a long text of more than 32 bytes, by which rows are told apart"))
                engine.insert("t", (i % 2, i, None), (None, 2, "x"))
            if i in (0, 2, 4):
                engine.insert("u", (i % 3, f"v{i}"), (1, None))
            if i == 3:
                engine.delete("t", (0, 0, None))
            engine.advance(parallelism)
            engine.check()
        assert engine.runner.vectorize


def test_what_a_kernel_is_not_sure_of_is_computed_by_spark(spark: SparkSession) -> None:
    """I1: the very epoch that meets such a value is right, and those after it."""
    query = "SELECT lower(s) AS s, count(*) AS n FROM t GROUP BY lower(s)"
    with Engine(spark, [Table(1, "t", T)], query) as engine:
        engine.insert("t", (1, 1, "A"), (2, 2, "a"))
        engine.advance()
        assert engine.runner.vectorize
        for text in ("ÀÉ", "B"):
            engine.insert("t", (3, 3, text), (4, 4, "a"))
            engine.advance(2)
            engine.check()
            assert not engine.runner.vectorize
        assert all(ref.path.startswith("view/") for refs in engine.state.values() for ref in refs)


def heard(listener: socket.socket) -> Iterator[dict[str, Any]]:
    """What the workers of an attempt say, one after the other, until one has acknowledged."""
    while True:
        peer, _ = listener.accept()
        peer.settimeout(WAIT_S)
        with peer, peer.makefile() as lines:
            for event in map(json.loads, lines):
                yield event
                if event.get("kind") == "ack":
                    return


def test_what_is_run_again_is_heard_of(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the name of the attempt that is under way: else a long epoch would be given up for want of progress."""
    listener = socket.create_server(("127.0.0.1", 0))
    with listener, Engine(spark, [Table(1, "t", T)], "SELECT upper(s) AS s FROM t") as e:
        host, port = listener.getsockname()
        params = e.params
        monkeypatch.setattr(e, "params", lambda attempt: replace(params(attempt), progress=f"{host}:{port}/secret"))
        e.insert("t", (1, 1, "é"))
        e.epoch += 1
        result = e.runner.run(e.params("5-1-1"), 1)
        assert not e.runner.vectorize and result.runs
        listener.settimeout(WAIT_S)
        told = [event for event in heard(listener) if "token" not in event]
        assert {event["attempt"] for event in told} == {"5-1-1"} and "started" in {event["kind"] for event in told}


def test_errors_are_sparks_own(spark: SparkSession) -> None:
    with Engine(spark, [Table(1, "t", T)], "SELECT a + 1 AS next FROM t") as engine:
        engine.insert("t", (1, 1, "x"), ((1 << 63) - 1, 2, "y"))
        with pytest.raises(NumericOutOfRange, match="value out of range"):
            engine.advance()
        engine.delete("t", ((1 << 63) - 1, 2, "y"))
        engine.advance()
        engine.check()
