"""Records taken out of the client library many at once are the ones that it gives one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

import pytest

from headrace.connectors.kafka import bulk, reading
from headrace.connectors.kafka.packed import PackedMessages
from headrace.connectors.kafka.reading import TopicReading, read_range
from headrace.errors import InvalidParameter, SourceError
from kafka import Kafka

_topics = count()
Kept = list[tuple[bytes | None, int, int]]


def fine() -> None:
    """The topic can be read."""


def a_topic(kafka: Kafka) -> str:
    return kafka.topic(f"bulk-{next(_topics)}", 1)


def reading_of(kafka: Kafka, topic: str, bare: bool, **more: Any) -> TopicReading:
    config: Mapping[str, Any] = {"bootstrap.servers": kafka.servers, "client.id": "headrace", "log_level": 0, **more}
    return TopicReading(topic, config, "Kafka", bare)


def kept(kafka: Kafka, topic: str, low: int, high: int, bare: bool) -> Kept:
    found = read_range(reading_of(kafka, topic, bare), 0, low, high, fine)
    return [(m.value(), m.partition(), m.offset()) for batch in found for m in batch]


def both(kafka: Kafka, topic: str, low: int, high: int) -> Kept:
    found = kept(kafka, topic, low, high, bare=True)
    assert found == kept(kafka, topic, low, high, bare=False)
    return found


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(reading, "BATCH", 700)
    yield


def test_the_library_is_found() -> None:
    """Where this fails, confluent_kafka has changed what it brings along: then all is read the slower way."""
    assert bulk._library() is not None


@pytest.mark.parametrize("compressed", ["none", "lz4"])
def test_records_of_all_lengths(kafka: Kafka, compressed: str) -> None:
    topic = a_topic(kafka)
    sent = [bytes([65 + i % 26]) * (1 + i * i % 977) for i in range(5_000)]
    producer = kafka.producer(**{"compression.type": compressed})
    for i, value in enumerate(sent):
        producer.produce(topic, value, key=b"k" * (i % 5), headers=[("h", b"x")] * (i % 3))
    producer.flush(60)
    assert both(kafka, topic, 0, 5_000) == [(value, 0, i) for i, value in enumerate(sent)]
    assert both(kafka, topic, 1_234, 1_239) == [(sent[i], 0, i) for i in range(1_234, 1_239)]
    assert all(isinstance(b, PackedMessages) for b in read_range(reading_of(kafka, topic, True), 0, 0, 5_000, fine))


def test_records_without_value_and_empty_ones(kafka: Kafka) -> None:
    topic = a_topic(kafka)
    sent = [b"a", None, b"", b"b", None]
    producer = kafka.producer()
    for value in sent:
        producer.produce(topic, value, key=b"k")
    producer.flush(60)
    assert both(kafka, topic, 0, 5) == [(value, 0, i) for i, value in enumerate(sent)]


def test_aborted_records_and_marks(kafka: Kafka) -> None:
    topic = a_topic(kafka)
    producer = kafka.producer(**{"transactional.id": topic})
    producer.init_transactions(30)
    for number in range(4):
        producer.begin_transaction()
        for i in range(10):
            producer.produce(topic, f"{number}-{i}".encode())
        producer.flush(30)
        if number % 2:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
    found = both(kafka, topic, 0, 44)  # ten and a mark each; it ends with what is no record
    assert [value for value, _, _ in found] == [f"{n}-{i}".encode() for n in (0, 2) for i in range(10)]
    assert [offset for _, _, offset in found] == [*range(10), *range(22, 32)]


def test_what_has_been_deleted_is_told(kafka: Kafka) -> None:
    from confluent_kafka import TopicPartition

    topic = a_topic(kafka)
    producer = kafka.producer()
    for i in range(20):
        producer.produce(topic, str(i).encode())
    producer.flush(60)
    admin = kafka.admin()
    for answer in admin.delete_records([TopicPartition(topic, 0, 10)]).values():
        answer.result(30)
    for bare in (True, False):
        with pytest.raises(SourceError, match="does not have the records any more"):
            kept(kafka, topic, 0, 20, bare)


def test_while_nothing_comes_a_reader_asks_whether_the_topic_is_there(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client waits for brokers that are away without a word."""
    topic, asked = a_topic(kafka), list[str]()
    kafka.send(topic, "a")
    monkeypatch.setattr(reading, "ASK_S", 0.0)

    def gone() -> None:
        asked.append(topic)
        if len(asked) == 2:
            raise SourceError("the broker is gone")

    for bare in (True, False):
        asked.clear()
        with pytest.raises(SourceError, match="the broker is gone"):
            for _ in read_range(reading_of(kafka, topic, bare), 0, 0, 2, gone):
                pass


def test_a_wrong_configuration_is_told(kafka: Kafka) -> None:
    for bare in (True, False):
        with pytest.raises(InvalidParameter, match=r"fetch\.min\.bytes"):
            next(read_range(reading_of(kafka, "t", bare, **{"fetch.min.bytes": "many"}), 0, 0, 1, fine))


def test_without_the_library_records_are_read_one_by_one(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "_library", lambda: None)
    topic = a_topic(kafka)
    producer = kafka.producer()
    producer.produce(topic, b"a")
    producer.flush(60)
    assert kept(kafka, topic, 0, 1, bare=True) == [(b"a", 0, 0)]
