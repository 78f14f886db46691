"""How wide the records of a topic are before any has been read: some of them are looked at, in the server.

A source that has a backlog and of which nothing is known would begin with few records, and take several epochs where
one does. Looked at is what would be bound by the width that is known so far: at its beginning, between, and at its end,
so that records that become wider further on are not bound by the width of the first ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Protocol, TypeAlias

from headrace.connectors.declared import needed_module
from headrace.connectors.kafka.message_rows import Message
from headrace.connectors.kafka.options import asked
from headrace.connectors.kafka.reading import GATHER_S, TopicReading, consumer_config
from headrace.errors import SourceError

PLACES: Final = 4
"""Places of each partition that are looked at."""
PARTITIONS: Final = 4
"""Partitions that are looked at, of those that have the most records."""
RECORDS: Final = 100
"""Records of a place that say how wide they are there; more may come with them."""
BYTES: Final = 1 << 20
"""Of a partition's records in a place that say so, too, where there are fewer: wide ones are not all fetched."""
TOGETHER: Final = 10
"""Records that are taken from the client at once: no more are fetched in vain."""
PATIENCE_S: Final = 1.0
"""How long all of it may take: who waits for the first rows is not kept waiting for an estimate.

It is less than a tick waits for a source: one that is looked at in vain is bound by this tick all the same.
"""


class Polled(Message, Protocol):
    """A record, or an event of the client's."""

    def error(self) -> object: ...


class Polling(Protocol):
    """A consumer. Raises confluent_kafka's `KafkaException`."""

    def consume(self, num_messages: int, timeout: float) -> Sequence[Polled]: ...


Widths: TypeAlias = Callable[[Mapping[int, int]], float | None]
"""Partition -> offset to look at: bytes of a record where they are widest, 0 if there is none, None if none came."""
Shared: TypeAlias = Callable[[float], Mapping[int, int]]
"""Bytes of a record -> how many records of each partition would be bound."""


def row_bytes(
    reading: TopicReading, began: Mapping[int, int], there: Mapping[int, int], shared: Shared
) -> float | None:
    """About how many bytes a record has where those that would be bound are widest; None if that cannot be told soon.

    `began` has the offset of each partition's first record, `there` how many there are. Raises `SourceError`.
    """
    looked_at = sorted((p for p in there if there[p]), key=lambda p: -there[p])[:PARTITIONS]
    room, each = dict.fromkeys(looked_at, 0), 0.0
    with _looking(reading) as look:
        for n in range(PLACES):
            seen = look({p: began[p] + max(0, room[p] - RECORDS) * n // (PLACES - 1) for p in looked_at})
            if seen is None:
                return None
            each = max(each, seen)
            room = {p: rows for p, rows in shared(each).items() if p in looked_at}
    return each or None


@contextmanager
def _looking(reading: TopicReading) -> Iterator[Widths]:
    kafka = needed_module("confluent_kafka", "kafka")
    config = {**consumer_config(reading), "fetch.message.max.bytes": 1 << 16, "queued.max.messages.kbytes": 1 << 10}
    client = asked(reading.name, SourceError, lambda: kafka.Consumer(config))
    until_s = time.monotonic() + PATIENCE_S

    def look(places: Mapping[int, int]) -> float | None:
        asked(
            reading.name, SourceError,
            lambda: client.assign([kafka.TopicPartition(reading.topic, p, at) for p, at in places.items()]),
        )  # fmt: skip
        return _widest(client, set(places), reading, until_s)

    try:
        yield look
    finally:
        client.close()


def _widest(client: Polling, partitions: set[int], reading: TopicReading, until_s: float) -> float | None:
    """By the records that come first; a partition that has none there, or says an error, does not count."""
    widths, left = dict[int, list[int]](), set(partitions)
    while left:
        if time.monotonic() > until_s:
            return None
        for message in asked(reading.name, SourceError, lambda: client.consume(TOGETHER, GATHER_S)):
            found = widths.setdefault(message.partition(), [])
            if message.error() is None:
                found.append(_size(message, reading.bare))
            if message.error() is not None or len(found) >= RECORDS or sum(found) >= BYTES:
                left.discard(message.partition())
    return max((sum(found) / len(found) for found in widths.values() if found), default=0.0)


def _size(message: Message, bare: bool) -> int:
    return len(message.value() or b"") + (0 if bare else len(message.key() or b""))
