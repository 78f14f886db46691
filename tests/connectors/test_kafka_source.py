"""The kafka source against a real broker: what is bound is read, the same each time, and nothing else."""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import registries
from headrace.common.columns import Column
from headrace.connectors.base import Admission, Binding, Offsets, Source
from headrace.connectors.kafka import options as options_module
from headrace.connectors.kafka import source as source_module
from headrace.connectors.kafka import topics
from headrace.connectors.kafka.topics import Asking, asking_at
from headrace.connectors.sources import open_source
from headrace.coordinator.run.guard import as_headrace_error, without_frames
from headrace.errors import HeadraceError, InvalidParameter, SourceError
from kafka import Kafka
from support import eventually

COLUMNS = [Column("a", "int"), Column("b", "string")]
_numbers = itertools.count()


def new_topic(kafka: Kafka, partitions: int = 1, **config: str) -> str:
    return kafka.topic(f"t{next(_numbers)}", partitions, **config)


def source(kafka: Kafka, topic: str, columns: Sequence[Column] = COLUMNS, **options: str) -> Source:
    plain = {name.replace("__", "."): value for name, value in options.items()}
    return open_source(
        {"connector": "kafka", "topic": topic, "properties.bootstrap.server": kafka.servers, **plain}, columns
    )


def bind(found: Source, after: Offsets | None = None, rows: int | None = None) -> Binding:
    return found.latest_offsets(found.start_offsets() if after is None else after, Admission(rows), 0)


def read(found: Source, from_: Offsets, to: Offsets, parallelism: int = 2) -> list[dict[str, Any]]:
    tasks = found.plan(from_, to, parallelism)
    return [row for task in tasks for made in found.read(task) for row in made.batch.to_pylist()]


def test_ranges_are_read_once_and_the_same_each_time(kafka: Kafka) -> None:
    topic = new_topic(kafka, 3)
    kafka.send(topic, *(f'{{"a": {i}, "b": "x{i}"}}' for i in range(100)))
    found = source(kafka, topic)
    first = bind(found, rows=30)
    assert first.rows == 30 and first.behind
    second = bind(found, first.offsets)
    assert second.rows == 70 and not second.behind
    kafka.send(topic, '{"a": 1000}')
    parts = [read(found, {}, first.offsets, n) for n in (1, 2, 7)]
    assert all(sorted(map(str, p)) == sorted(map(str, parts[0])) for p in parts)
    rest = read(found, first.offsets, second.offsets)
    assert sorted(r["a"] for r in [*parts[0], *rest]) == list(range(100))
    assert found.rows_between({}, second.offsets) == 100
    assert sorted(r["a"] for r in read(found, {}, second.offsets)) == list(range(100))


def test_aborted_and_open_transactions_are_not_seen(kafka: Kafka) -> None:
    topic = new_topic(kafka)
    producer = kafka.producer(**{"transactional.id": topic})
    producer.init_transactions(30)
    for commits, values in ((True, [1, 2]), (False, [3, 4]), (True, [5])):
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, f'{{"a": {value}}}')
        (producer.commit_transaction if commits else producer.abort_transaction)(30)
    found = source(kafka, topic)
    bound = bind(found)
    assert [r["a"] for r in read(found, {}, bound.offsets)] == [1, 2, 5]
    producer.begin_transaction()
    producer.produce(topic, '{"a": 6}')
    producer.flush()
    assert bind(found, bound.offsets).offsets == bound.offsets  # nobody knows yet what becomes of it
    producer.abort_transaction(30)
    eventually(lambda: bind(found, bound.offsets).rows)  # a broker tells of an end a moment after it has said so
    after = bind(found, bound.offsets)
    assert read(found, bound.offsets, after.offsets) == []
    kafka.send(topic, '{"a": 7}')
    eventually(lambda: bind(found, after.offsets).rows)
    last = bind(found, after.offsets)
    assert [r["a"] for r in read(found, bound.offsets, last.offsets)] == [7]


def test_gaps_of_compaction_are_gone_over(kafka: Kafka) -> None:
    topic = new_topic(
        kafka, cleanup_policy="compact", segment_ms="200", min_cleanable_dirty_ratio="0.01", max_compaction_lag_ms="200"
    )
    for i in range(20):
        kafka.send(topic, f'{{"a": {i}}}', key="same")

    def compacted() -> bool:
        kafka.send(topic, '{"a": 99}', key="other")
        return len(kafka.records(topic)) < 15

    eventually(compacted, "compaction")
    found = source(kafka, topic)
    bound = bind(found)
    rows = read(found, {}, bound.offsets)
    assert rows[-1]["a"] == 99 and len(rows) < (bound.rows or 0)


def test_starts(kafka: Kafka) -> None:
    topic = new_topic(kafka, 2, retention_ms="-1")
    for at in (1000, 2000, 3000):
        kafka.send(topic, f'{{"a": {at}}}', partition=0, timestamp=at)
    kafka.send(topic, '{"a": 1}', partition=1, timestamp=500)
    assert bind(source(kafka, topic, scan__startup__mode="latest")).rows == 0
    by_time = source(kafka, topic, scan__startup__mode="timestamp", scan__startup__timestamp__millis="1500")
    assert [r["a"] for r in read(by_time, {}, bind(by_time).offsets)] == [2000, 3000]
    alone = source(kafka, topic, scan__startup__timestamp__millis="1500")
    assert bind(alone).offsets == bind(by_time).offsets
    by_offset = source(kafka, topic, scan__startup__mode="offsets", scan__startup__offsets="0:2")
    bound = bind(by_offset)
    assert sorted(r["a"] for r in read(by_offset, {}, bound.offsets)) == [1, 3000]
    assert bind(source(kafka, topic, scan__startup__offsets="0:2")).offsets == bound.offsets
    latest = source(kafka, topic, scan__startup__mode="latest")
    first = bind(latest)
    kafka.send(topic, '{"a": 7}', partition=1)
    assert [r["a"] for r in read(latest, {}, bind(latest, first.offsets).offsets)] == [7]
    wrong = source(kafka, topic, scan__startup__mode="offsets", scan__startup__offsets="0:200")
    with pytest.raises(SourceError, match="does not have offset 200"):
        bind(wrong)


def test_new_partitions_are_read_from_their_start(kafka: Kafka) -> None:
    """FS-22: the offsets of an epoch name them."""
    from confluent_kafka.admin import NewPartitions

    topic = new_topic(kafka)
    kafka.send(topic, '{"a": 1}')
    found = source(kafka, topic, scan__startup__mode="latest")
    first = bind(found)
    admin = kafka.admin()
    admin.create_partitions([NewPartitions(topic, 2)])[topic].result(30)
    eventually(lambda: len(admin.list_topics(topic, timeout=10).topics[topic].partitions) == 2)
    kafka.send(topic, '{"a": 2}', partition=1)
    eventually(lambda: bind(found, first.offsets).rows == 1)
    assert [r["a"] for r in read(found, first.offsets, bind(found, first.offsets).offsets)] == [2]


def test_lost_records_and_another_topic_of_the_name_are_told(kafka: Kafka) -> None:
    from confluent_kafka import TopicPartition

    topic = new_topic(kafka)
    kafka.send(topic, *(f'{{"a": {i}}}' for i in range(10)))
    found = source(kafka, topic)
    first = bind(found, rows=3)
    all_of_it = bind(found, first.offsets)
    admin = kafka.admin()
    for answer in admin.delete_records([TopicPartition(topic, 0, 5)]).values():
        answer.result(30)
    with pytest.raises(SourceError, match="has lost offsets 3 to 4 of partition 0"):
        bind(found, first.offsets)
    with pytest.raises(SourceError, match="does not have the records any more"):
        read(found, first.offsets, all_of_it.offsets)
    admin.delete_topics([topic])[topic].result(30)
    with pytest.raises(SourceError):
        eventually(lambda: bind(found, all_of_it.offsets) is None)
    eventually(lambda: topic not in admin.list_topics(timeout=10).topics)
    kafka.topic(topic)
    with pytest.raises(SourceError, match="deleted and made again"):
        bind(found, all_of_it.offsets)
    kafka.send(topic, *(f'{{"a": {i}}}' for i in range(100, 110)))
    with pytest.raises(SourceError, match="deleted and made again"):
        read(found, first.offsets, all_of_it.offsets)


def test_records_of_another_topic_are_none_of_this_one(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = new_topic(kafka)
    kafka.send(topic, '{"a": 1}')
    found = source(kafka, topic)
    bound = bind(found)
    records = source_module.read_range

    def made_again(*given: Any) -> Iterator[Any]:
        kafka.remade(topic)
        kafka.send(topic, '{"a": 9}')
        yield from records(*given)

    monkeypatch.setattr(source_module, "read_range", made_again)
    with pytest.raises(SourceError):
        read(found, {}, bound.offsets)
    monkeypatch.undo()
    bound = bind(source(kafka, topic))
    monkeypatch.setattr(source_module, "read_range", made_again)
    [task] = found.plan({}, bound.offsets, 1)
    with pytest.raises(SourceError):
        next(found.read(task))  # as of a query with LIMIT, which does not read to the end


def test_what_is_read_at_once_is_checked_once(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    topic, asked = new_topic(kafka, 2), list[str]()
    kafka.send(topic, *(f'{{"a": {i}}}' for i in range(10)), partition=0)
    found = source(kafka, topic)
    bound = bind(found)
    describe = Asking.describe
    monkeypatch.setattr(Asking, "describe", lambda self, name: asked.append(name) or describe(self, name))
    assert len(read(found, {}, bound.offsets, 1)) == 10
    assert len(asked) == 2, "before the records, and behind them"
    kafka.send(topic, '{"a": 11}', partition=1)
    [task] = found.plan({}, bind(found).offsets, 1)
    asked.clear()
    assert sum(b.batch.num_rows for b in found.read(task)) == 11
    assert len(asked) == 3


def test_clients_of_tasks_are_let_go_of() -> None:
    first = asking_at({"bootstrap.servers": "localhost:1"})
    for port in range(2, topics.KEPT + 1):
        asking_at({"bootstrap.servers": f"localhost:{port}"})
    assert asking_at({"bootstrap.servers": "localhost:1"}) is first
    second = asking_at({"bootstrap.servers": "localhost:2"})
    for port in range(100, 99 + topics.KEPT):
        asking_at({"bootstrap.servers": f"localhost:{port}"})
    assert asking_at({"bootstrap.servers": "localhost:2"}) is second
    assert asking_at({"bootstrap.servers": "localhost:1"}) is not first, "it is the one that was not wanted for longest"


def test_kafkas_own_tools_show_how_far_readers_are(kafka: Kafka) -> None:
    try:
        tools = registries.jars(*registries.KAFKA_TOOLS)
    except registries.NotToBeHad as error:
        pytest.skip(str(error))
    topic = new_topic(kafka, 2)
    for partition in (0, 1):
        kafka.send(topic, *(f'{{"a": {i}}}' for i in range(10)), partition=partition)
    found = source(kafka, topic, group__id=f"of-{topic}")
    first = bind(found, rows=12)
    assert first.left is not None and sum(first.left.values()) == 8
    found.acknowledge({})
    found.acknowledge(first.offsets)
    tool = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
    asked = ["--bootstrap-server", kafka.servers, "--describe", "--group", f"of-{topic}", "--timeout", "60000"]
    command = [kafka.command[0], "-Xmx128m", "-cp", f"{tools}/*", tool, *asked]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    lines = [line.split() for line in done.stdout.splitlines()]
    shown = {line[2]: (line[3], line[4], line[5]) for line in lines if line[:2] == [f"of-{topic}", topic]}
    assert shown == {"0": ("6", "10", "4"), "1": ("6", "10", "4")}, done.stdout + done.stderr
    assert read(found, first.offsets, bind(found, first.offsets).offsets), "nothing is read by them"


def test_included_columns_and_bad_records(kafka: Kafka) -> None:
    topic = new_topic(kafka, retention_ms="-1")
    kafka.send(
        topic,
        '{"a": 1, "b": "é", "more": [1]}',
        key="k",
        timestamp=1_700_000_000_123,
        headers=[("h", b"1"), ("h", b"2")],
    )
    kafka.send(topic, "no json", None, '{"a": "x"}')
    options = {"include.key": "k", "include.partition": "p", "include.offset": "o", "include.timestamp": "t",
               "include.header.h": "h", "include.header": "hs"}  # fmt: skip
    plain = source(kafka, topic)
    columns = [*COLUMNS, *type(plain).added_columns(options)]
    found = source(kafka, topic, columns, on_error="null", **options)
    bound = bind(found)
    rows = read(found, {}, bound.offsets)
    stamp = rows[0].pop("t")
    assert (stamp.timestamp(), rows[0]) == (1_700_000_000.123, {
        "a": 1, "b": "é", "k": b"k", "p": "0", "o": "0", "h": b"2",
        "hs": [{"key": "h", "value": b"1"}, {"key": "h", "value": b"2"}],
    })  # fmt: skip
    assert [r["a"] for r in rows] == [1, None, None, None]
    with pytest.raises(SourceError, match=rf"{topic}\[0\], offset 1: malformed JSON"):
        read(plain, {}, bound.offsets)
    skipping = source(kafka, topic, on_error="skip")
    assert [r["a"] for r in read(skipping, {}, bound.offsets)] == [1]
    whole = {"include.payload": "p", "include.header_text.h": "t"}
    columns = [*type(plain).infer_columns(whole), *type(plain).added_columns(whole)]
    assert columns == [Column("p", "string"), Column("t", "string")]
    assert read(source(kafka, topic, columns, on_error="skip", **whole), {}, bound.offsets) == [
        {"p": '{"a": 1, "b": "é", "more": [1]}', "t": "2"}, {"p": '{"a": "x"}', "t": None},
    ]  # fmt: skip
    raw = source(kafka, topic, [Column("data", "binary")], encode="bytes")
    assert [r["data"] for r in read(raw, {}, bound.offsets)][1:3] == [b"no json", None]


def test_changes(kafka: Kafka) -> None:
    topic = new_topic(kafka)
    for key, value in (('{"a": 1}', '{"a": 1, "b": "x"}'), ('{"a": 1}', None), ("plain", None)):
        kafka.send(topic, value, key=key)
    options = {"include.operation": "op", "include.position": "at"}
    columns = [*COLUMNS, Column("op", "string"), Column("at", "bigint")]
    found = source(kafka, topic, columns, format="upsert", **options)
    rows = read(found, {}, bind(found).offsets)
    assert [tuple(r.values()) for r in rows] == [
        (1, "x", "upsert", 0),
        (1, None, "delete", 1),
        (None, None, "delete", 2),
    ]
    topic = new_topic(kafka)
    before, after = '{"a": 1, "b": "x"}', '{"a": 1, "b": "y"}'
    kafka.send(
        topic,
        f'{{"before": null, "after": {before}, "op": "r"}}',
        f'{{"schema": {{}}, "payload": {{"before": {before}, "after": {after}, "op": "u"}}}}',
        f'{{"payload": {{"before": {after}, "after": null, "op": "d"}}}}',
        None,
        '{"payload": {"op": "t"}}',
        "{}",
    )
    found = source(kafka, topic, columns, format="debezium", on_error="skip", **options)
    to = bind(found).offsets
    rows = read(found, {}, to)
    assert [tuple(r.values()) for r in rows] == [(1, "x", "upsert", 0), (1, "y", "upsert", 1), (1, "y", "delete", 2)]
    strict = source(kafka, topic, columns, format="debezium", **options)
    with pytest.raises(SourceError, match="operation 't' is not supported"):
        read(strict, {}, to)


def test_partitions_that_are_added(kafka: Kafka) -> None:
    from confluent_kafka.admin import AdminClient, NewPartitions

    topic = new_topic(kafka)
    kafka.send(topic, '{"a": 1}')
    options = {"include.operation": "op", "include.position": "at"}
    by_key = source(
        kafka, topic, [*COLUMNS, Column("op", "string"), Column("at", "bigint")], format="upsert", **options
    )
    listed = source(kafka, topic)
    at, of_rows = bind(by_key).offsets, bind(listed).offsets
    admin = AdminClient({"bootstrap.servers": kafka.servers})
    admin.create_partitions([NewPartitions(topic, 2)])[topic].result(30)
    eventually(lambda: len(bind(listed, of_rows).offsets) == 3, "the new partition")
    with pytest.raises(SourceError, match="has got partition 1"):
        bind(by_key, at)


def test_options_are_checked(kafka: Kafka) -> None:
    for options, text in (
        ({}, "properties.bootstrap.server is required"),
        ({"properties.bootstrap.server": kafka.servers, "colour": "red"}, "unknown option colour"),
        ({"properties.bootstrap.server": kafka.servers, "properties.group.id": "x"}, "cannot be set"),
        (
            {"properties.bootstrap.server": kafka.servers, "scan.startup.mode": "never"},
            "scan.startup.mode must be one of",
        ),
    ):
        with pytest.raises(InvalidParameter, match=text):
            open_source({"connector": "kafka", "topic": "x", **options}, COLUMNS)
    with pytest.raises(SourceError):
        source(kafka, "there-is-no-such-topic").start_offsets()
    with pytest.raises(InvalidParameter, match=r"properties\.colour cannot be set"):
        source(kafka, "x", properties__colour="red").start_offsets()
    nobody = {"connector": "kafka", "topic": "x", "properties.bootstrap.server": "127.0.0.1:1"}
    with pytest.raises(SourceError, match=r"Kafka at 127\.0\.0\.1:1"):
        open_source(nobody, COLUMNS).start_offsets()


def test_clients_that_get_nowhere_end_with_who_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nobody looks for garbage, and the error is kept: each has four threads."""
    monkeypatch.setattr(source_module, "ANSWER_S", 0.2)
    monkeypatch.setattr(options_module, "ANSWER_S", 0.2)
    nobody = {"connector": "kafka", "topic": "x", "properties.bootstrap.server": "127.0.0.1:1"}
    kept: list[HeadraceError] = []

    def ask() -> None:
        try:
            open_source(nobody, COLUMNS).start_offsets()
        except Exception as error:
            kept.append(without_frames(as_headrace_error(error)))

    def threads() -> int:
        return len(os.listdir("/proc/self/task"))

    gc.collect()
    gc.disable()
    try:
        before = threads()
        for _ in range(3):
            ask()
        eventually(lambda: threads() <= before, "the clients to end")
    finally:
        gc.enable()
    assert len(kept) == 3 and all(error.__traceback__ is None for error in kept)
