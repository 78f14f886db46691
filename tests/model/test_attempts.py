"""A state table never mixes two attempts: what a failed attempt wrote is never read, and a repeated one is declined."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from engine import Engine, Table
from pyspark.sql import SparkSession

from headrace.common.columns import Column
from headrace.dataflow.acknowledgements import Acknowledgement, Acknowledgements
from headrace.dataflow.operators.task import Task
from headrace.errors import HeadraceError, JobFailed
from headrace.state.schema import RunRef
from headrace.state.spool import forget_leftovers
from support import eventually

COLUMNS = (Column("a", "int"), Column("x", "int"))


@pytest.fixture
def engine(spark: SparkSession) -> Iterator[Engine]:
    # The join writes its state before the division of a later stage fails.
    query = "SELECT l.a, sum(10 / r.x) AS s FROM t l LEFT JOIN s r ON l.a = r.a GROUP BY l.a"
    with Engine(spark, [Table(1, "t", COLUMNS), Table(2, "s", COLUMNS)], query) as made:
        yield made


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_failed_attempt_leaves_nothing(engine: Engine, parallelism: int) -> None:
    engine.insert("t", (1, 1), (2, 2), (3, 3))
    engine.insert("s", (1, 1), (2, 2))
    engine.advance(parallelism)
    engine.check()
    before = engine.rows()
    engine.insert("s", (3, 0), (1, 5))
    for _ in range(2):
        with pytest.raises(HeadraceError):
            engine.advance(parallelism)
        assert engine.rows() == before
    written = {p.relative_to(engine.root).as_posix() for p in (engine.root / "view").rglob("*.run")}
    known = {ref.path for refs in engine.state.values() for ref in refs}
    if parallelism == 1:
        assert written == known, "one task has one object, which is written last"
    else:
        assert written - known, "the join's stage has uploaded something before the attempt failed"
    spool = engine.root / "spool"

    def forgotten() -> bool:
        """Other tasks of the attempt may still be on their way to their end: what they leave goes as leftovers."""
        if parallelism > 1:
            forget_leftovers(spool)
        return not list(spool.rglob("*"))

    eventually(forgotten, "a failed attempt to take its spool along")
    engine.delete("s", (3, 0))
    engine.advance(parallelism)
    engine.check()
    engine.delete("t", (1, 1))
    engine.insert("s", (2, 4))
    engine.advance(1)
    engine.check()


def test_an_attempt_that_is_given_up_and_run_again(engine: Engine) -> None:
    """The same epoch twice: only the second attempt is committed."""
    engine.insert("t", (1, 1))
    engine.insert("s", (1, 2))
    engine.epoch += 1
    first = engine.runner.run(engine.params("first"), 2)
    second = engine.runner.run(engine.params("second"), 3)
    assert not {r.path for r in first.runs} & {r.path for r in second.runs}
    engine.commit(second)
    engine.check()
    engine.insert("s", (1, 5))
    engine.advance()
    engine.check()


def _ack(attempt: str, stage: str, partition: int, refs: int, task_attempt: int = 0) -> Acknowledgement:
    ref = RunRef(1, f"{stage}-{partition}.{task_attempt}.run", 0, 10, 4, 1, 1, 0, 0)
    return Acknowledgement(
        attempt, stage, partition, task_attempt, rows_in=5, rows_out=3, rows_written=4 * refs, refs=(ref,) * refs,
        io={"requests": 2},
    )  # fmt: skip


def test_acknowledgements_count_once(engine: Engine) -> None:
    params = engine.params("now")
    acks = [_ack("now", "0", 0, 1), _ack("now", "0", 1, 1), _ack("now", "view", 0, 1), _ack("past", "0", 0, 1)]
    result = engine.runner._result(params, acks)
    assert [r.path for r in result.runs] == ["0-0.0.run", "0-1.0.run", "view-0.0.run"]
    assert (result.rows_out, result.task_count, result.io) == (4, 3, {"requests": 6})


def test_a_slice_that_was_written_twice_declines_the_epoch(engine: Engine) -> None:
    params = engine.params("now")
    with pytest.raises(JobFailed, match="ran twice"):
        engine.runner._result(params, [_ack("now", "0", 1, 1), _ack("now", "0", 1, 1, task_attempt=1)])


def test_a_slice_that_ran_twice_and_wrote_nothing_is_no_harm(engine: Engine) -> None:
    """What it has seen counts once all the same: its rows, and those on which an expression fails."""
    params = engine.params("now")
    leaf = next(iter(engine.runner._inputs))
    once, again = (replace(_ack("now", leaf, 1, 0, task_attempt=n), row_error_count=2, late_rows=1) for n in (0, 1))
    result = engine.runner._result(params, [once, again])
    assert (result.row_error_count, result.late_rows, result.rows_in, result.task_count) == (2, 1, 3, 1)


@pytest.mark.parametrize("parallelism", [1, 2])
def test_what_a_task_says_is_not_lost(engine: Engine, monkeypatch: pytest.MonkeyPatch, parallelism: int) -> None:
    """Spark takes a task as done whose accumulator's update got lost on its way: the epoch does not."""
    engine.insert("t", (1, 1), (2, 1))
    engine.insert("s", (1, 1))
    add, calls = Acknowledgements.addInPlace, count()

    def lossy(self: Acknowledgements, one: list[Any], other: list[Any]) -> list[Any]:
        if next(calls) == 0:
            raise MemoryError
        return add(self, one, other)

    monkeypatch.setattr(Acknowledgements, "addInPlace", lossy)
    with pytest.raises(JobFailed, match="were not heard of"):
        engine.advance(parallelism)
    engine.advance(parallelism)
    engine.check()


def test_objects_are_named_by_attempt(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """No two attempts, stages, slices or tries of a task share an object."""
    engine.insert("t", (1, 1), (2, 1))
    engine.insert("s", (1, 1))
    result = engine.advance(3)
    assert all(f"/{Task.__name__}" not in r.path for r in result.runs)
    objects = {r.path for r in result.runs}
    prefix = next(iter(objects)).rsplit("/", 1)[0]
    assert all(o.startswith(prefix) for o in objects)
    again = engine.params("other").prefix
    assert again != prefix
