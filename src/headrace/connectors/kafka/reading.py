"""Reading ranges of offsets, in Spark's workers: one consumer for each process, which outlives tasks."""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import methodcaller
from typing import Any, Protocol, TypeAlias

from headrace.common.lazy_dataclass import dataclass
from headrace.connectors.declared import needed_module
from headrace.connectors.kafka.bulk import BulkConsumer, are_events, bulk_consumer, messages
from headrace.connectors.kafka.message_rows import Message
from headrace.connectors.kafka.options import asked
from headrace.errors import SourceError

BATCH = 10_000
"""Records that are made rows together."""
LOOK_S = 0.5
GATHER_S = 0.02
"""How long more records are waited for where some have come."""
ASK_S = 10.0
"""How long no record may come before a task asks whether the topic is there: who waits for the epoch is told soon."""
SILENT_S = 60.0
"""How long no record may come before a task gives up all the same: the epoch is tried again."""
_ERROR, _OFFSET = methodcaller("error"), methodcaller("offset")
_lock = threading.Lock()
_free: dict[tuple[int, str, bool, str], list[Consumer]] = {}
"""Process, topic, whether values are all, configuration -> its consumers that nobody uses."""


@dataclass(frozen=True)
class TopicReading:
    """A topic, and how to reach it."""

    topic: str
    config: Mapping[str, object]
    name: str
    """For people."""
    bare: bool = False
    """Whether values and offsets are all that is wanted of its records."""


Found: TypeAlias = tuple[Sequence[Message], list[Any]]
"""Records, and the events among them."""


class Consumer(Protocol):
    """Reads one partition at a time. Raises confluent_kafka's `KafkaException`."""

    def assign(self, topic: str, partition: int, offset: int) -> None:
        """Read a partition from an offset on."""
        ...

    def unassign(self) -> None:
        """Read nothing."""
        ...

    def next(self, most: int) -> Found:
        """What has come, or the next that does and what comes with it: rows are made of many records together.

        The client waits until there are as many as it is asked for, so it is asked for no more than there can be, and
        not for long: there may be fewer.
        """
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class _Whole:
    """A consumer of records with all that they have."""

    def __init__(self, config: Mapping[str, object]) -> None:
        self._kafka = needed_module("confluent_kafka", "kafka")
        self._client = self._kafka.Consumer(config)

    def assign(self, topic: str, partition: int, offset: int) -> None:
        self._client.assign([self._kafka.TopicPartition(topic, partition, offset)])

    def unassign(self) -> None:
        self._client.unassign()

    def next(self, most: int) -> Found:
        found: list[Any] = self._client.consume(most, GATHER_S)
        if not found and (message := self._client.poll(LOOK_S)) is not None:
            found = [message, *(self._client.consume(most - 1, GATHER_S) if most > 1 else ())]
        if all(error is None for error in map(_ERROR, found)):
            return found, []
        return [m for m in found if m.error() is None], [m for m in found if m.error() is not None]

    def close(self) -> None:
        self._client.close()


class _Bare:
    """A consumer of values and offsets."""

    def __init__(self, client: BulkConsumer) -> None:
        self._client, self._partition = client, 0

    def assign(self, topic: str, partition: int, offset: int) -> None:
        self._partition = partition
        self._client.assign(topic, partition, offset)

    def unassign(self) -> None:
        self._client.unassign()

    def next(self, most: int) -> Found:
        with self._client.consume(most, GATHER_S, LOOK_S) as found:
            if not len(found):
                return (), []
            others = are_events(found)
            events = [self._client.event(int(place)) for place in found[others]]
            good = found[~others]
            return messages(good, self._partition) if len(good) else (), events

    def close(self) -> None:
        self._client.close()


def read_range(
    reading: TopicReading, partition: int, low: int, high: int, check: Callable[[], None]
) -> Iterator[Sequence[Message]]:
    """The records of a partition with low <= offset < high, in order. Raises `SourceError`.

    `check` asks whether the topic can be read, and raises where it cannot be: the client itself waits for brokers.
    """
    kafka = needed_module("confluent_kafka", "kafka")
    consumer, ok = _taken(reading), False
    try:
        asked(reading.name, SourceError, lambda: consumer.assign(reading.topic, partition, low))
        yield from _records(kafka, reading, consumer, partition, (low, high), check)
        asked(reading.name, SourceError, consumer.unassign)
        ok = True
    finally:
        _give_back(reading, consumer, ok)


def _records(
    kafka: Any, reading: TopicReading, consumer: Consumer, partition: int, bounds: tuple[int, int],
    check: Callable[[], None],
) -> Iterator[Sequence[Message]]:  # fmt: skip
    at, high = bounds
    done, since_s = False, time.monotonic()
    ask_s = since_s + ASK_S
    while not done:
        good, events = asked(reading.name, SourceError, partial(consumer.next, min(BATCH, high - at)))
        done = any(_ended(kafka, reading, partition, event, event.error(), high) for event in events)
        if good:
            at = good[-1].offset() + 1
            # What the range ends with may be no records at all: then one behind it says so.
            done = done or at >= high
            good = good if at <= high else good[: bisect_left(good, high, key=_OFFSET)]
        if good:
            yield good
            since_s = time.monotonic()
            ask_s = since_s + ASK_S
        elif not done and time.monotonic() > since_s + SILENT_S:
            raise SourceError(f"{reading.name} has sent nothing of topic {reading.topic} for {SILENT_S:.0f} s")
        elif not done and time.monotonic() > ask_s:
            check()
            ask_s = time.monotonic() + ASK_S


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


def _key(reading: TopicReading) -> tuple[int, str, bool, str]:
    return os.getpid(), reading.topic, reading.bare, repr(sorted(reading.config.items()))


def consumer_config(reading: TopicReading) -> dict[str, object]:
    """Of a consumer that reads what it is assigned, and says where partitions end."""
    return {
        "fetch.wait.max.ms": 50, **reading.config,
        "group.id": "headrace", "enable.auto.commit": False, "enable.auto.offset.store": False,
        "auto.offset.reset": "error", "isolation.level": "read_committed", "enable.partition.eof": True,
        "queued.max.messages.kbytes": 16_384, "fetch.queue.backoff.ms": 10,
    }  # fmt: skip


def _taken(reading: TopicReading) -> Consumer:
    with _lock:
        free = _free.get(_key(reading))
        if free:
            return free.pop()
    config = consumer_config(reading)
    return asked(reading.name, SourceError, lambda: _made(reading, config))


def _made(reading: TopicReading, config: Mapping[str, object]) -> Consumer:
    by_token = any(name.startswith("sasl.oauthbearer.") for name in config)  # fetched by what confluent_kafka starts
    client = bulk_consumer(config) if reading.bare and not by_token else None
    return _Whole(config) if client is None else _Bare(client)


def _give_back(reading: TopicReading, consumer: Consumer, ok: bool) -> None:
    if ok:
        with _lock:
            _free.setdefault(_key(reading), []).append(consumer)
    else:
        consumer.close()
