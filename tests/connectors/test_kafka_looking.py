"""A backlog of which nothing is known is bound by records that are looked at, wherever in it they are wide."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence

import pytest

from headrace.common.columns import Column
from headrace.connectors.base import Admission, Binding, Source
from headrace.connectors.kafka import looking
from headrace.connectors.kafka.message_rows import Message
from headrace.connectors.sources import open_source
from headrace.coordinator.run import ticker
from kafka import Kafka

COLUMNS = [Column("a", "int"), Column("v", "string")]
MB = 1 << 20
UNKNOWN = Admission(None, MB, MB / 64, guessed=True)
"""As of a source of which nothing has been read: 64 records would be bound."""
_numbers = itertools.count()


def new_topic(kafka: Kafka, partitions: int = 1) -> str:
    return kafka.topic(f"looked{next(_numbers)}", partitions)


def source(kafka: Kafka, topic: str, **options: str) -> Source:
    server = {"properties.bootstrap.server": kafka.servers}
    return open_source({"connector": "kafka", "topic": topic, **server, **options}, COLUMNS)


def bind(found: Source, limit: Admission = UNKNOWN) -> Binding:
    return found.latest_offsets(found.start_offsets(), limit, 0)


def records(widths: Sequence[int]) -> list[str]:
    return [json.dumps({"a": i, "v": "x" * width}) for i, width in enumerate(widths)]


def fill(kafka: Kafka, topic: str, widths: Sequence[int], partition: int = 0) -> None:
    kafka.send(topic, *records(widths), partition=partition)


def abort(kafka: Kafka, topic: str, widths: Sequence[int]) -> None:
    """Records that are there, and that nobody sees."""
    producer = kafka.producer(**{"transactional.id": f"{topic}-t"})
    producer.init_transactions()
    producer.begin_transaction()
    for record in records(widths):
        producer.produce(topic, record)
    assert producer.flush(60) == 0
    producer.abort_transaction()
    kafka.settle(topic)


def test_a_backlog_of_narrow_records_is_bound_at_once(kafka: Kafka) -> None:
    topic = new_topic(kafka, 3)
    fill(kafka, topic, [10] * 5000, 0)
    fill(kafka, topic, [10] * 2000, 2)
    bound = bind(source(kafka, topic))
    assert bound.rows == 7000 and not bound.behind
    each = sum(map(len, records([10] * 5000))) / 5000
    assert bound.row_bytes == pytest.approx(each, abs=3)


def test_what_has_been_read_and_what_fits_anyway_is_not_looked_at(kafka: Kafka) -> None:
    topic = new_topic(kafka)
    fill(kafka, topic, [10] * 5000)
    read = bind(source(kafka, topic), Admission(None, MB, MB / 64))
    assert (read.rows, read.row_bytes) == (64, None)
    few = bind(source(kafka, topic), Admission(None, MB, MB / 6000, guessed=True))
    assert (few.rows, few.row_bytes) == (5000, None)


@pytest.mark.parametrize("wide_from, wide_to", [(0, 500), (2900, 3000), (900, 1500)])
def test_the_widest_place_says_how_many(kafka: Kafka, wide_from: int, wide_to: int) -> None:
    topic = new_topic(kafka)
    fill(kafka, topic, [4000 if wide_from <= i < wide_to else 10 for i in range(3000)])
    bound = bind(source(kafka, topic))
    assert bound.row_bytes is not None and 4000 < bound.row_bytes < 4100
    assert bound.rows == int(MB / bound.row_bytes)


def test_one_record_is_bound_that_is_more_than_is_let_in(kafka: Kafka) -> None:
    topic = new_topic(kafka)
    kafka.send(topic, *records([900_000] * 3))
    bound = bind(source(kafka, topic), Admission(None, MB // 2, MB, guessed=True))
    assert bound.rows == 1 and bound.behind


def test_the_limit_of_rows_holds(kafka: Kafka) -> None:
    topic = new_topic(kafka)
    fill(kafka, topic, [10] * 3000)
    assert bind(source(kafka, topic, max_rows_per_epoch="500")).rows == 500
    assert bind(source(kafka, topic), Admission(700, MB, MB / 64, guessed=True)).rows == 700
    held = bind(source(kafka, topic), Admission(50, MB, MB / 64, guessed=True))
    assert (held.rows, held.row_bytes) == (50, None), "the guess lets in as many: there is nothing to look for"


def test_records_that_nobody_sees_say_nothing(kafka: Kafka) -> None:
    topic = new_topic(kafka)
    fill(kafka, topic, [10] * 200)
    abort(kafka, topic, [4000] * 1000)
    bound = bind(source(kafka, topic))
    assert bound.rows is not None and bound.rows >= 1200 and bound.row_bytes is not None and bound.row_bytes < 100
    other = new_topic(kafka)
    abort(kafka, other, [4000] * 1000)
    bound = bind(source(kafka, other))
    assert (bound.rows, bound.row_bytes) == (64, None), "there is none to go by"


def test_records_that_do_not_come_soon_are_not_waited_for(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = new_topic(kafka)
    fill(kafka, topic, [10] * 3000)
    monkeypatch.setattr(looking, "PATIENCE_S", -1.0)
    asked = source(kafka, topic)
    bound = bind(asked)
    assert (bound.rows, bound.row_bytes) == (64, None)
    monkeypatch.undo()
    assert bind(asked).row_bytes is None, "nor is it tried again at each tick"
    assert looking.PATIENCE_S <= ticker.POLL_WAIT_S / 2, "who has looked in vain has answered in time"


def test_of_wide_records_few_are_fetched(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    topic, sizes, size = new_topic(kafka), list[int](), looking._size

    def counted(message: Message, bare: bool) -> int:
        sizes.append(size(message, bare))
        return sizes[-1]

    kafka.send(topic, *records([300_000] * 80))
    monkeypatch.setattr(looking, "_size", counted)
    bound = bind(source(kafka, topic))
    assert bound.rows == 3 and len(sizes) <= 4 * 13, "of 80 in each place"
