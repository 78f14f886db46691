"""Records that a broker refuses for good, because they are too large or not such as the topic takes.

A broker takes or refuses batches of records as a whole. So where it has refused one, the epoch's records are tried
again by a producer that gives each of them a batch of its own: then who is refused is refused for itself, and what
was only too much together is taken.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice
from typing import Final

from headrace.connectors.declared import needed_module
from headrace.connectors.kafka.envelopes import Record, RecordChange
from headrace.connectors.kafka.options import ANSWER_S, PAUSE_S, ClientError
from headrace.connectors.kafka.producing import Patience, SinkProducer
from headrace.errors import SinkError

ALONE: Final = {
    "batch.num.messages": 1, "max.in.flight.requests.per.connection": 1, "linger.ms": 0,
    "delivery.report.only.error": False,
}  # fmt: skip
"""What a producer is configured with so that each record is a batch, sent once the one before it is answered."""
AT_ONCE: Final = 100
"""Records that are under way together: those behind one that is refused are sent again."""
MOST_IN_VAIN: Final = 20
"""How often in a row the client may send nothing, and nothing be refused."""


def for_good(error: BaseException | ClientError | None) -> bool:
    """Whether an error of the client, or one that it has caused, is that of a record, whenever it is sent."""
    kafka = needed_module("confluent_kafka", "kafka")
    cause = error.__cause__ if isinstance(error, SinkError) else error
    found = cause.args[0] if isinstance(cause, kafka.KafkaException) and cause.args else cause
    refusing = (
        kafka.KafkaError.MSG_SIZE_TOO_LARGE, kafka.KafkaError.RECORD_LIST_TOO_LARGE, kafka.KafkaError.INVALID_RECORD,
    )  # fmt: skip
    return isinstance(found, kafka.KafkaError) and found.code() in refusing


def refused(
    producer: SinkProducer, changes: Iterable[RecordChange], record: Callable[[RecordChange], Record], most: int
) -> list[tuple[RecordChange, str]]:
    """Which changes a broker refuses, and why, no more than so many.

    If there are none all are in the producer's transaction, else it has a transaction that says nothing.
    """
    found: list[tuple[RecordChange, str]] = []
    coming, in_vain = iter(changes), 0
    again: list[RecordChange] = []
    while len(found) < most and (some := [*islice(chain(again, coming), AT_ONCE)]):
        again = []
        answers = _sent(producer, [record(change) for change in some])
        if all(error is None for error in answers):
            continue
        producer.abort()
        producer.begin()
        told_off = [(c, error.str()) for c, error in zip(some, answers, strict=True) if error and for_good(error)]
        in_vain = 0 if told_off else in_vain + 1
        if in_vain and (not found or in_vain > MOST_IN_VAIN):
            raise SinkError(f"{producer.name}: {next(error.str() for error in answers if error is not None)}")
        if in_vain:  # the client still puts away the transaction of what was refused before
            time.sleep(PAUSE_S)
        found += told_off[: most - len(found)]
        again = [c for c, error in zip(some, answers, strict=True) if error and not for_good(error)]
    return found


def _sent(producer: SinkProducer, records: Sequence[Record]) -> list[ClientError | None]:
    """What became of records, each: its error, None if it was taken. Behind an error others are not waited for."""
    kafka = needed_module("confluent_kafka", "kafka")
    answers: dict[int, ClientError | None] = {}

    def answered(place: int) -> Callable[[ClientError | None, object], None]:
        return lambda error, _: answers.__setitem__(place, error)

    for place, (key, value) in enumerate(records):
        try:
            producer.client.produce(producer.topic, value, key, on_delivery=answered(place))
        except kafka.KafkaException as failure:
            answers[place] = failure.args[0]
    patience = Patience()
    while len(answers) < len(records) and not any(answers.values()):
        if patience.is_over(len(answers)):
            raise SinkError(f"{producer.name} does not say what has become of {len(records) - len(answers)} records")
        producer.client.poll(0.1)
    if any(answers.values()):
        producer.client.purge(in_flight=False)  # they would wait for ever
        producer.client.flush(ANSWER_S)
    unsaid = kafka.KafkaError(kafka.KafkaError._PURGE_QUEUE)
    return [answers.get(place, unsaid) for place in range(len(records))]
