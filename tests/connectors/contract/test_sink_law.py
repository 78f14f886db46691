"""The law of sinks: every epoch is at its target once, whole and in order, whatever happens to who delivers it."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
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
    StoreTarget,
    Target,
    changes,
)

from cloud_servers import BUCKET, KEY, azure, azurite, google
from headrace.common.epoch import from_unix_ms
from headrace.connectors import held_changes
from headrace.connectors.http import ordering
from headrace.connectors.kafka import producing
from headrace.errors import HeadraceError, SinkError
from nursery import Nursery
from object_server import S3Server
from receiver import Receiver, receiving
from schema_registry import SchemaRegistry, schema_registry

KINDS = (
    "postgres upsert", "postgres append", "files", "s3 parquet", "s3 csv.gz", "gs json.zst", "az parquet",
    "kafka plain", "kafka upsert", "kafka debezium", "kafka avro", "kafka keys",
    "iceberg upsert", "iceberg append", "deltalake upsert", "deltalake append", "http upsert", "http append",
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _let_go_of_producers() -> Iterator[None]:
    """They are kept for later epochs, with ten threads each, by a process that is to go on with other tests."""
    yield
    producing._kept.clear()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as found:
        yield found


@pytest.fixture(scope="module")
def registry() -> Iterator[SchemaRegistry]:
    with schema_registry() as found:
        yield found


STORES = ("s3", "gs", "az")


@pytest.fixture
def s3_store(s3: S3Server) -> tuple[str, dict[str, str]]:
    return f"s3://{s3.bucket}/sinks", s3.options


@pytest.fixture(scope="module")
def gs_store() -> Iterator[tuple[str, dict[str, str]]]:
    with google():
        key = os.environ["GOOGLE_SERVICE_ACCOUNT_KEY"]
        yield f"gs://{BUCKET}/sinks", {"gcs.credential": key, "gcs.endpoint": json.loads(key)["gcs_base_url"]}


@pytest.fixture(scope="module")
def az_store() -> Iterator[tuple[str, dict[str, str]]]:
    command = azurite()
    if command is None:
        pytest.skip("Azurite comes from npm, which is not there")
    with azure(command) as cloud:
        given = dict(cloud.options)
        yield f"az://{BUCKET}/sinks", {
            "azure.account": given["account_name"], "azure.endpoint": given["endpoint"], "azure.secret.key": KEY,
        }  # fmt: skip


@pytest.fixture(params=KINDS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    name, _, kind = request.param.partition(" ")
    if name == "files":
        made: Target = FilesTarget(tmp_path)
    elif name in STORES:
        made = StoreTarget(*request.getfixturevalue(f"{name}_store"), kind)
    elif name in ("iceberg", "deltalake"):
        made = (IcebergTarget if name == "iceberg" else DeltaTarget)(tmp_path, kind == "upsert")
    elif name == "http":
        made = HttpTarget(request.getfixturevalue("receiver"), kind == "upsert")
    elif kind == "avro":
        made = KafkaTarget(request.getfixturevalue("kafka"), "upsert", request.getfixturevalue("registry"))
    elif kind == "keys":
        servers = request.getfixturevalue("kafka"), "upsert", request.getfixturevalue("registry")
        made = KafkaTarget(*servers, key_encode="text")
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


def test_an_epoch_that_does_not_fit_in_memory(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one of a large view's first delivery is, and one in which each of its rows changes."""
    monkeypatch.setattr(held_changes, "PIECE_BYTES", 1500)
    monkeypatch.setattr(ordering, "SORTED_BYTES", 2000)
    texts = [str(i) for i in range(200)]

    def many(weight: int, more: str = "") -> Iterator[pa.RecordBatch]:
        for low in range(0, 200, 50):
            yield from changes(*((i, texts[i] + more, weight) for i in range(low, low + 50)))

    with pytest.raises(Broken):
        target.deliver(0, 10, chain(many(1), broken((200, "x", 1))), "fails")
    assert target.rows() == Counter()
    for attempt in ("a", "b"):
        target.deliver(0, 10, many(1), attempt)
    wanted = Counter(enumerate(texts))
    assert target.rows() == wanted
    if target.upserts:
        target.deliver(10, 20, chain(many(1, "!"), many(-1), changes((5, "5!", -1))))
        wanted = Counter((i, text + "!") for i, text in enumerate(texts) if i != 5)
        assert target.rows() == wanted
        with pytest.raises(SinkError, match="does not tell the rows of the sink apart"):
            target.deliver(20, 30, chain(many(1, "?"), many(1, "??")))
        assert target.rows() == wanted


def test_what_is_not_there_may_go(target: Target) -> None:
    """An epoch that finds nothing to do at the target is delivered all the same, or none: what is said is so."""
    if not target.upserts or isinstance(target, KafkaTarget | HttpTarget):
        pytest.skip("what goes is told to whoever reads it")
    now = from_unix_ms(round(time.time() * 1000))
    target.deliver(0, now, changes((1, "a", 1)))
    taken = target.deliver(now, now + 10, changes((7, "gone by itself", -1)))
    target.deliver(now + 10, now + 20, changes((2, "b", 1)), known=now + 10 if taken else now)
    assert target.rows() == Counter([(1, "a"), (2, "b")])


def test_a_target_that_knows_more_than_the_catalog_is_told(target: Target) -> None:
    if isinstance(target, FilesTarget | StoreTarget | HttpTarget):
        pytest.skip("it knows epochs by name alone")
    target.deliver(0, 10, changes((1, "a", 1)))
    target.deliver(10, 20, changes((2, "b", 1)))
    with pytest.raises(SinkError, match="which is between two that this database knows"):
        target.deliver(10, 30, changes((2, "b", 1), (3, "c", 1)))
    assert target.rows() == Counter([(1, "a"), (2, "b")])


def test_a_target_that_is_not_what_it_was_is_told(target: Target) -> None:
    """One that was restored from a backup, or emptied, gets nothing: what is gone there would never come."""
    if isinstance(target, FilesTarget | StoreTarget | HttpTarget):
        pytest.skip("it knows epochs by name alone")
    now = from_unix_ms(round(time.time() * 1000))
    target.deliver(0, now, changes((1, "a", 1)))
    with pytest.raises(SinkError, match=rf"it has taken epoch {now}, and was given {now + 10} before"):
        target.deliver(now + 20, now + 30, changes((3, "c", 1)), known=now + 10)
    assert target.rows() == Counter([(1, "a")])
    target.deliver(now + 20, now + 30, changes((3, "c", 1)), "put back", known=now)
    assert target.rows() == Counter([(1, "a"), (3, "c")])
    target.emptied()
    target.sink().reach()
    with pytest.raises(SinkError, match=rf"it has taken epoch 0, and was given {now + 30} before"):
        target.deliver(now + 40, now + 50, changes((4, "d", 1)), "emptied", known=now + 30)
    assert target.rows() == Counter()


def _killed(target: Any, n: int) -> None:
    """Deliver, and be killed after n rows; or right after the last, with the answer lost."""

    def until() -> Iterator[pa.RecordBatch]:
        for i in range(20):
            if i == n:
                os.kill(os.getpid(), signal.SIGKILL)
            yield from changes((i, str(i), 1))

    target.deliver(0, 10, until())
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as found:
        yield found


def test_killed_anywhere(target: Target, nursery: Nursery) -> None:
    rows = [(i, str(i)) for i in range(20)]
    for n in (0, 13, 25):
        assert nursery.run(_killed, target, n) == -signal.SIGKILL
        assert target.rows() == Counter(rows if n > 20 else []), "whole, or not at all"
    target.deliver(0, 10, changes(*((i, v, 1) for i, v in rows)), "last")
    assert target.rows() == Counter(rows)
