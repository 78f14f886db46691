"""Reading ranges of offsets, in Spark's workers: one consumer for each process, which outlives tasks."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from operator import methodcaller
from typing import Any

from headrace.connectors.declared import needed_module
from headrace.connectors.kafka.options import asked
from headrace.errors import SourceError

BATCH = 10_000
"""Records that are made rows together."""
LOOK_S = 0.5
GATHER_S = 0.02
"""How long more records are waited for where some have come."""
SILENT_S = 60.0
"""How long no record may come before a task gives up: the epoch is tried again."""
_ERROR = methodcaller("error")
_lock = threading.Lock()
_free: dict[tuple[int, str, str], list[Any]] = {}
"""Process, configuration -> its consumers that nobody uses."""


@dataclass(frozen=True)
class TopicReading:
    """A topic, and how to reach it."""

    topic: str
    config: Mapping[str, Any]
    name: str
    """For people."""


def read_range(reading: TopicReading, partition: int, low: int, high: int) -> Iterator[list[Any]]:
    """The records of a partition with low <= offset < high, in order. Raises `SourceError`."""
    kafka = needed_module("confluent_kafka", "kafka")
    consumer, ok = _taken(reading), False
    try:
        asked(reading.name, SourceError, lambda: consumer.assign([kafka.TopicPartition(reading.topic, partition, low)]))
        yield from _records(kafka, reading, consumer, partition, low, high)
        asked(reading.name, SourceError, consumer.unassign)
        ok = True
    finally:
        _give_back(reading, consumer, ok)


def _records(
    kafka: Any, reading: TopicReading, consumer: Any, partition: int, low: int, high: int
) -> Iterator[list[Any]]:
    until_s = time.monotonic() + SILENT_S
    at, done = low, False
    while not done:
        found = asked(reading.name, SourceError, partial(_next, consumer, min(BATCH, high - at)))
        good = found
        if not all(error is None for error in map(_ERROR, found)):
            good = [message for message in found if message.error() is None]
            events = (message for message in found if message.error() is not None)
            done = any(_ended(kafka, reading, partition, event, event.error(), high) for event in events)
        if good:
            at = good[-1].offset() + 1
            # What the range ends with may be no records at all: then one behind it says so.
            done = done or at >= high
            good = good if at <= high else [message for message in good if message.offset() < high]
        if good:
            until_s = time.monotonic() + SILENT_S
            yield good
        elif not done and time.monotonic() > until_s:
            raise SourceError(f"{reading.name} has sent nothing of topic {reading.topic} for {SILENT_S:.0f} s")


def _next(consumer: Any, most: int) -> list[Any]:
    """What has come, or the next that does and what comes with it: rows are made of many records together.

    The client waits until there are as many as it is asked for, so it is asked for no more than there can be, and not
    for long: there may be fewer.
    """
    found: list[Any] = consumer.consume(most, GATHER_S)
    if not found and (message := consumer.poll(LOOK_S)) is not None:
        found = [message, *(consumer.consume(most - 1, GATHER_S) if most > 1 else ())]
    return found


def _ended(kafka: Any, reading: TopicReading, partition: int, message: Any, error: Any, high: int) -> bool:
    """Whether an event says that the range is at its end. Raises `SourceError` for one that is a failure."""
    what = f"partition {partition} of topic {reading.topic}"
    if error.code() == kafka.KafkaError._PARTITION_EOF:
        return bool(message.offset() is not None and message.offset() >= high)
    if error.code() in (kafka.KafkaError._AUTO_OFFSET_RESET, kafka.KafkaError.OFFSET_OUT_OF_RANGE):
        raise SourceError(
            f"{what} does not have the records any more that are to be read: {error.str()}",
            hint="they were deleted by the topic's retention; drop the source and create it again to go on without",
        )
    if error.code() in (kafka.KafkaError._ALL_BROKERS_DOWN, kafka.KafkaError._TRANSPORT) and not error.fatal():
        return False
    raise SourceError(f"{what} cannot be read: {error.str()}")


def _key(reading: TopicReading) -> tuple[int, str, str]:
    return os.getpid(), reading.topic, repr(sorted(reading.config.items()))


def _taken(reading: TopicReading) -> Any:
    with _lock:
        free = _free.get(_key(reading))
        if free:
            return free.pop()
    kafka = needed_module("confluent_kafka", "kafka")
    config = {
        "fetch.wait.max.ms": 50, **reading.config,
        "group.id": "headrace", "enable.auto.commit": False, "enable.auto.offset.store": False,
        "auto.offset.reset": "error", "isolation.level": "read_committed", "enable.partition.eof": True,
        "queued.max.messages.kbytes": 16_384, "fetch.queue.backoff.ms": 10,
    }  # fmt: skip
    return asked(reading.name, SourceError, lambda: kafka.Consumer(config))


def _give_back(reading: TopicReading, consumer: Any, ok: bool) -> None:
    if ok:
        with _lock:
            _free.setdefault(_key(reading), []).append(consumer)
    else:
        consumer.close()
