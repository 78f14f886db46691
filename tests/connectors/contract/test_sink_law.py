"""The law of sinks: every epoch is at its target once, whole and in order, whatever happens to who delivers it."""

from __future__ import annotations

import multiprocessing
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from harness import (
    DeltaTarget,
    FilesTarget,
    HttpTarget,
    IcebergTarget,
    KafkaTarget,
    PostgresTarget,
    Target,
    changes,
)

from headrace.errors import HeadraceError, SinkError
from receiver import Receiver, receiving
from schema_registry import SchemaRegistry, schema_registry

KINDS = (
    "postgres upsert", "postgres append", "files", "kafka plain", "kafka upsert", "kafka debezium", "kafka avro",
    "iceberg upsert", "iceberg append", "deltalake upsert", "deltalake append", "http upsert", "http append",
)  # fmt: skip


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as found:
        yield found


@pytest.fixture(scope="module")
def registry() -> Iterator[SchemaRegistry]:
    with schema_registry() as found:
        yield found


@pytest.fixture(params=KINDS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    name, _, kind = request.param.partition(" ")
    if name == "files":
        made: Target = FilesTarget(tmp_path)
    elif name in ("iceberg", "deltalake"):
        made = (IcebergTarget if name == "iceberg" else DeltaTarget)(tmp_path, kind == "upsert")
    elif name == "http":
        made = HttpTarget(request.getfixturevalue("receiver"), kind == "upsert")
    elif kind == "avro":
        made = KafkaTarget(request.getfixturevalue("kafka"), "upsert", request.getfixturevalue("registry"))
    elif name == "kafka":
        made = KafkaTarget(request.getfixturevalue("kafka"), kind)
    else:
        made = PostgresTarget(request.getfixturevalue("postgres"), kind == "upsert")
    made.sink().reach()
    return made


class Broken(Exception):
    """What the rows of an epoch end in."""


def broken(*rows: tuple[int, str | None, int]) -> Iterator[pa.RecordBatch]:
    yield from changes(*rows)
    raise Broken


def test_an_epoch_is_there_once_however_often_it_is_delivered(target: Target) -> None:
    target.deliver(0, 10, changes((1, "a", 1), (2, None, 1)))
    for attempt in ("b", "c"):
        target.deliver(0, 10, changes((1, "a", 1), (2, None, 1)), attempt)
    assert target.rows() == Counter([(1, "a"), (2, None)])
    target.deliver(10, 20, changes((3, "c", 1)))
    assert target.rows() == Counter([(1, "a"), (2, None), (3, "c")])


def test_nothing_is_seen_of_an_epoch_that_fails(target: Target) -> None:
    target.deliver(0, 10, changes((1, "a", 1)))
    with pytest.raises(Broken):
        target.deliver(10, 20, broken((2, "b", 1), (3, "c", 1)))
    assert target.rows() == Counter([(1, "a")])
    target.deliver(10, 20, changes((2, "b", 1), (3, "c", 1)), "again")
    assert target.rows() == Counter([(1, "a"), (2, "b"), (3, "c")])


def test_who_comes_late_changes_nothing(target: Target) -> None:
    """An attempt of a server that has been replaced wakes up after its epoch, and the next one, have been delivered."""
    target.deliver(0, 10, changes((1, "a", 1)))
    target.deliver(10, 20, changes((2, "b", 1)))
    target.deliver(20, 30, changes((3, "c", 1)))
    target.deliver(10, 20, changes((2, "b", 1)), "late")
    assert target.rows() == Counter([(1, "a"), (2, "b"), (3, "c")])


def test_two_at_once_deliver_once(target: Target) -> None:
    target.deliver(0, 10, changes((1, "a", 1)))
    together = threading.Barrier(2)

    def slowly() -> Iterator[pa.RecordBatch]:
        with suppress(threading.BrokenBarrierError):
            together.wait(2)
        yield from changes(*((i, str(i), 1) for i in range(2, 50)))

    def attempt(name: str) -> None:
        with suppress(HeadraceError):  # one of them may be shut out
            target.deliver(10, 20, slowly(), name)

    threads = [threading.Thread(target=attempt, args=(name,)) for name in ("x", "y")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    target.deliver(10, 20, changes(*((i, str(i), 1) for i in range(2, 50))), "z")
    assert target.rows() == Counter([(1, "a"), *((i, str(i)) for i in range(2, 50))])


def test_rows_are_replaced_and_deleted(target: Target) -> None:
    if not target.upserts:
        pytest.skip("it only adds")
    target.deliver(0, 10, changes((1, "a", 1), (2, "b", 1), (3, None, 1)))
    target.deliver(10, 20, changes((1, "A", 1), (2, "b", -1), (1, "a", -1), (4, "x", 1), (4, "x", -1), (3, None, -1)))
    assert target.rows() == Counter([(1, "A")])
    target.deliver(20, 30, changes((2, "again", 1), (1, "A", 1), (1, "A", -1)))
    assert target.rows() == Counter([(1, "A"), (2, "again")])
    with pytest.raises(SinkError, match="does not tell the rows of the sink apart"):
        target.deliver(30, 40, changes((7, "x", 1), (7, "y", 1)))
    assert target.rows() == Counter([(1, "A"), (2, "again")])


def test_a_target_that_knows_more_than_the_catalog_is_told(target: Target) -> None:
    if isinstance(target, FilesTarget | HttpTarget):
        pytest.skip("it knows epochs by name alone")
    target.deliver(0, 10, changes((1, "a", 1)))
    target.deliver(10, 20, changes((2, "b", 1)))
    with pytest.raises(SinkError, match="which is between two that this database knows"):
        target.deliver(10, 30, changes((2, "b", 1), (3, "c", 1)))
    assert target.rows() == Counter([(1, "a"), (2, "b")])


def _killed(target: Any, n: int) -> None:
    """Deliver, and be killed after n rows; or right after the last, with the answer lost."""
    import os
    import signal

    def until() -> Iterator[pa.RecordBatch]:
        for i in range(20):
            if i == n:
                os.kill(os.getpid(), signal.SIGKILL)
            yield from changes((i, str(i), 1))

    target.deliver(0, 10, until())
    os.kill(os.getpid(), signal.SIGKILL)


def test_killed_anywhere(target: Target) -> None:
    rows = [(i, str(i)) for i in range(20)]
    for n in (0, 13, 25):
        process = multiprocessing.get_context("spawn").Process(target=_killed, args=(target, n))
        process.start()
        process.join(120)
        assert process.exitcode == -9
        assert target.rows() == Counter(rows if n > 20 else []), "whole, or not at all"
    target.deliver(0, 10, changes(*((i, v, 1) for i, v in rows)), "last")
    assert target.rows() == Counter(rows)
