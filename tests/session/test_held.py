"""A snapshot stays readable for as long as any DataFrame over it lives, and no longer."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.sql import SparkSession

from headrace.plan.catalyst.java_calls import LeafHold
from headrace.session.database import Database
from headrace.session.held import HeldFrames
from support import eventually


def collected(database: Database, spark: SparkSession) -> bool:
    """Look after a collection in Python and in Java whether everything has been let go of."""
    gc.collect()
    jvm: Any = spark._jvm
    jvm.java.lang.System.gc()
    database._frames.look()
    return not database._frames._held


@pytest.mark.timeout(280)
def test_derived_frames_hold_the_snapshot(database: Database, spark: SparkSession) -> None:
    database.sql("CREATE TABLE held_t (a int, b text); INSERT INTO held_t VALUES (1, 'x'), (2, 'y'), (3, 'y')")
    pins = database.coordinator._core.storage.pins
    eventually(lambda: not pins, "others to let go")
    derived = spark.range(2).join(database.table("held_t").filter("a > 1").groupBy("b").count())
    for _ in range(3):
        assert not collected(database, spark)
    assert pins
    database.sql("DELETE FROM held_t")
    assert sorted(tuple(row) for row in derived.collect()) == [(0, "y", 2), (1, "y", 2)]
    del derived
    eventually(lambda: collected(database, spark), "Java to collect the plans")
    eventually(lambda: not pins, "whoever looked first, perhaps the database's own thread, to let go")


def test_what_is_held_goes_with_java_and_with_the_database() -> None:
    class Ended:
        def refersTo(self, other: None) -> bool:
            raise Py4JNetworkError("nobody answers")

    class Here:
        def refersTo(self, other: None) -> bool:
            return False

    released: list[str] = []
    frames = HeldFrames()
    frames._held += [
        (LeafHold(Ended()), lambda: released.append("ended")),
        (LeafHold(Here()), lambda: released.append("here")),
    ]
    frames.look()
    assert released == ["ended"]
    frames.close()
    frames.close()
    assert released == ["ended", "here"]


class Lost:
    """What Java was asked for, after it has ended."""

    gone = True

    def refersTo(self, other: object) -> bool:  # Java's name
        if self.gone:
            raise Py4JNetworkError("no answer from Java")
        return False

    def __eq__(self, other: object) -> bool:
        raise Py4JNetworkError("no answer from Java")

    __hash__ = object.__hash__


def test_java_ends_while_snapshots_are_looked_at() -> None:
    """One was there a moment ago, the next is not: it is released, and nobody asks Java whether they are the same."""
    frames, released = HeldFrames(), []
    first, second = Lost(), Lost()
    first.gone = False
    frames._held = [(LeafHold(first), lambda: released.append(1)), (LeafHold(second), lambda: released.append(2))]
    frames.look()
    assert released == [2]
    first.gone = True
    frames.look()
    frames.close()
    assert released == [2, 1]
