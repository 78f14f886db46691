"""The producers of Kafka's sink, which outlive epochs."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import count

import pyarrow as pa
import pytest

from headrace.common.columns import Column
from headrace.connectors.kafka import producing
from headrace.connectors.refusals import RowsRefused
from headrace.connectors.sinks import Sink, SinkPosition, open_sink
from headrace.errors import SinkError
from kafka import Kafka

_topics = count()


class Delivery:
    """A sink of its own, opened anew for each epoch, as workers do."""

    def __init__(self, kafka: Kafka) -> None:
        self.kafka, self.topic = kafka, kafka.topic(f"kept-{next(_topics)}", 1)

    def sink(self) -> Sink:
        options = {"connector": "kafka", "topic": self.topic, "properties.bootstrap.server": self.kafka.servers,
                   "format": "plain", "encode": "json", "type": "append-only"}  # fmt: skip
        return open_sink(options, [Column("id", "bigint")])

    def write(self, from_epoch: int, epoch: int, *ids: int) -> None:
        position = SinkPosition(f"test-{self.topic}", from_epoch, epoch, 0, "a")
        self.sink().write(position, _rows(*ids))

    def ids(self) -> list[int]:
        return [json.loads(m.value())["id"] for m in self.kafka.records(self.topic)]

    def kept(self) -> producing.SinkProducer | None:
        return next((p for p in producing._kept.values() if p.topic == self.topic), None)

    def displace(self) -> None:
        """Somebody else is let in, as a worker of another process is."""
        other = self.kafka.producer(**{"transactional.id": f"headrace-test-{self.topic}"})
        other.init_transactions(30)


def _rows(*ids: int) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"id": list(ids), "__w": [1] * len(ids)})


@pytest.fixture
def delivery(kafka: Kafka) -> Delivery:
    return Delivery(kafka)


def test_one_producer_delivers_epoch_after_epoch(delivery: Delivery) -> None:
    delivery.write(0, 10, 1)
    first = delivery.kept()
    assert first is not None
    delivery.write(10, 20, 2)
    delivery.write(20, 30, 3)
    assert delivery.kept() is first
    assert delivery.ids() == [1, 2, 3]


def test_a_topic_that_is_made_again_is_noticed(delivery: Delivery) -> None:
    """By a producer that was let in before, too: it delivers nothing into the new one."""
    delivery.write(0, 10, 1)
    delivery.kafka.remade(delivery.topic)
    with pytest.raises(SinkError):
        delivery.write(10, 20, 2)
    assert delivery.kept() is None and delivery.ids() == []


def test_what_a_record_is_refused_for_is_told_however_late_that_is_noticed(kafka: Kafka) -> None:
    topic = kafka.topic(f"refusing-{next(_topics)}", 1, max_message_bytes="2000")
    options = {"connector": "kafka", "topic": topic, "properties.bootstrap.server": kafka.servers,
               "format": "plain", "encode": "json", "type": "append-only",
               "on_row_error": "dead_letter", "dead_letter_table": "t"}  # fmt: skip
    rows = [(i, random.Random(i).randbytes(2000).hex()) for i in range(30)]
    columns = {"id": [i for i, _ in rows], "v": [text for _, text in rows], "__w": [1] * 30}
    sink = open_sink(options, [Column("id", "bigint"), Column("v", "string")])
    with pytest.raises(RowsRefused) as error:
        sink.write(SinkPosition(f"test-{topic}", 0, 10, 0, "a"), iter([pa.RecordBatch.from_pydict(columns)]))
    assert len(error.value.refusals) == 30 and "too large" in error.value.refusals[0].error


def test_one_that_has_been_shut_out_delivers_nothing(delivery: Delivery) -> None:
    delivery.write(0, 10, 1)
    delivery.displace()
    with pytest.raises(SinkError):
        delivery.write(10, 20, 2)
    assert delivery.kept() is None
    assert delivery.ids() == [1]
    delivery.write(10, 20, 2)
    assert delivery.ids() == [1, 2]


def test_one_that_has_not_delivered_the_epoch_before_asks_again(delivery: Delivery) -> None:
    delivery.write(0, 10, 1)
    first = delivery.kept()
    delivery.write(15, 20, 2)  # between them lie epochs without changes, or others that somebody else has delivered
    assert delivery.kept() is not first
    delivery.write(15, 20, 2)
    assert delivery.ids() == [1, 2]


def test_one_with_which_an_epoch_has_failed_is_not_kept(delivery: Delivery) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield from _rows(2)
        raise ZeroDivisionError

    delivery.write(0, 10, 1)
    with pytest.raises(ZeroDivisionError):
        delivery.sink().write(SinkPosition(f"test-{delivery.topic}", 10, 20, 0, "a"), broken())
    assert delivery.kept() is None
    delivery.write(10, 20, 2)
    assert delivery.ids() == [1, 2]


def test_idle_ones_are_let_go_of(delivery: Delivery, kafka: Kafka) -> None:
    delivery.write(0, 10, 1)
    idle = delivery.kept()
    assert idle is not None
    idle.used_s -= producing.IDLE_S + 1
    other = Delivery(kafka)
    other.write(0, 10, 1)
    assert delivery.kept() is None
    assert other.kept() is not None
