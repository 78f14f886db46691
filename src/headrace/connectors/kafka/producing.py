"""Producers of transactions, in Spark's workers: one for each sink in each process, which outlives epochs.

To be let in costs a producer more than a small epoch does: it looks for its coordinator, shuts out every earlier
producer of the sink and ends what they had begun, and then asks what has been delivered. One that has delivered the
epoch before need not ask again. If somebody else has been let in meanwhile all the same, the brokers take nothing of
it any more: its transaction fails, and with it the attempt at the epoch.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import field
from typing import Any, Final, TypeAlias

from headrace.common.lazy_dataclass import dataclass
from headrace.connectors.declared import needed_module
from headrace.connectors.kafka.options import ANSWER_S, ClientError, Complaints, asked, told
from headrace.connectors.sinks import SinkPosition
from headrace.errors import SinkError

Client: TypeAlias = Any
"""A client of the library, which is there where it is needed only."""
TRANSACTION_S: Final = 600
"""How long an epoch may take from its first record to its commit; brokers allow 15 minutes unless told otherwise."""
PATIENCE_S: Final = 3 * ANSWER_S
"""How long a client may get rid of no record, and a commit may take, before the attempt at the epoch has failed."""
IDLE_S: Final = 300.0
"""A producer that has had no epoch for so long is let go of, once another sink writes in its process."""
KEPT_ERRORS: Final = 10
"""Of records: those behind the first say that they were not sent."""
_lock = threading.Lock()
_kept: dict[tuple[int, str, str, str], SinkProducer] = {}
"""Process, topic, delivery, configuration -> the producer, while it has no epoch."""
DEFAULTS: Final = {"queue.buffering.max.kbytes": 65_536, "delivery.report.only.error": True}
"""Of a producer: without the first, records of a gigabyte may wait in the client."""
_BESIDE = (
    "partitioner", "compression.", "linger.", "batch.", "queue.buffering.", "delivery.", "message.timeout",
    "request.timeout",
)  # fmt: skip
"""What of a configuration is a producer's only."""


class Undelivered:
    """The errors of records that were not taken, the first ones first."""

    def __init__(self) -> None:
        self.errors: list[ClientError] = []

    def __call__(self, error: ClientError | None, _: object) -> None:
        """The client's `on_delivery`."""
        if error is not None and len(self.errors) < KEPT_ERRORS:
            self.errors.append(error)


class Patience:
    """Says when what is waited for has come no further for too long."""

    def __init__(self) -> None:
        self._seen, self._since_s = -1, 0.0

    def is_over(self, count: int) -> bool:
        """Whether the count has stayed the same for `PATIENCE_S`."""
        now_s = time.monotonic()
        if count != self._seen:
            self._seen, self._since_s = count, now_s
        return now_s - self._since_s > PATIENCE_S


@dataclass
class SinkProducer:
    """A producer that has been let in, of one sink."""

    name: str
    """For people."""
    topic: str
    client: Client
    admin: Client
    topic_id: str
    """Of the topic when it was let in: one that is made again has another."""
    group: object
    """The group in whose offsets epochs are noted, as a transaction names it."""
    delivered: int
    """The newest epoch that is noted, as long as nobody else has been let in."""
    undelivered: Undelivered
    """What has become of records that were not taken."""
    complaints: Complaints
    used_s: float = 0.0
    patience: Patience = field(default_factory=Patience)
    """With the records that the client still has."""

    def begin(self) -> None:
        """Begin a transaction."""
        self.undelivered.errors.clear()
        self.patience = Patience()
        asked(self.name, SinkError, self.client.begin_transaction)

    def commit(self, epoch: int) -> None:
        """Note the epoch, and make all visible together."""
        while asked(self.name, SinkError, lambda: self.client.flush(0.1)):
            self.wait()
        self.check()
        if _topic_id(self.name, self.admin, self.topic) != self.topic_id:
            raise SinkError(
                f"topic {self.topic} of {self.name} was deleted and made again",
                hint="what this sink has delivered is gone: create the sink anew",
            )
        note = [_note(self.topic, epoch)]
        asked(self.name, SinkError, lambda: self.client.send_offsets_to_transaction(note, self.group, PATIENCE_S))
        asked(self.name, SinkError, lambda: self.client.commit_transaction(PATIENCE_S))
        self.delivered = epoch

    def wait(self) -> None:
        """Look after records that the client still has. Raises `SinkError` where it gets rid of none for long."""
        self.check()
        if self.patience.is_over(len(self.client)):
            why = self.complaints.told()
            raise SinkError(f"{self.name} takes no records{': ' + why if why else ''}")

    def check(self) -> None:
        """Raise the error of a record that was not taken, if there is one: what fails after it does not say why."""
        kafka = needed_module("confluent_kafka", "kafka")
        with told(self.name, SinkError):
            self.client.poll(0)
            if self.undelivered.errors:
                raise kafka.KafkaException(self.undelivered.errors[0])

    def abort(self) -> None:
        """End the transaction, if that can be had now; else the next one that is let in does."""
        with suppress(Exception):
            self.client.abort_transaction(ANSWER_S)


def taken(
    name: str, topic: str, position: SinkPosition, config: Mapping[str, object], forgotten: Callable[[], None]
) -> SinkProducer:
    """The producer of a sink, which nobody else has until it is given back.

    It is the one that is kept if that has delivered the epoch before, else one that is let in now. `forgotten` is
    called where nothing is noted. Raises `SinkError`.
    """
    with _lock:
        found = _kept.pop(_key(topic, position.delivery, config), None)
    if found is not None and found.delivered == position.from_epoch:
        return found
    kafka, complaints = needed_module("confluent_kafka", "kafka"), Complaints()
    undelivered, member = Undelivered(), f"headrace-{position.delivery}"
    producing = {
        "partitioner": "murmur2_random", "linger.ms": 5, "compression.type": "lz4", **DEFAULTS, **config,
        "transactional.id": member, "transaction.timeout.ms": TRANSACTION_S * 1000, "error_cb": complaints.heard,
        "on_delivery": undelivered,
    }  # fmt: skip
    common = {option: value for option, value in config.items() if not option.startswith(_BESIDE)}
    reading = {**common, "group.id": member, "isolation.level": "read_committed", "enable.auto.commit": False}
    producer = complaints.of(asked(name, SinkError, lambda: kafka.Producer(producing)))
    notes = asked(name, SinkError, lambda: kafka.Consumer(reading))
    try:
        asked(name, SinkError, lambda: producer.init_transactions(PATIENCE_S), complaints)
        (noted,) = asked(name, SinkError, lambda: notes.committed([_note(topic)], timeout=PATIENCE_S))
        if noted.error is not None:
            raise SinkError(f"{name} does not say what has been delivered: {noted.error.str()}")
        if noted.offset < 0:
            forgotten()
        admin = asked(name, SinkError, lambda: needed_module("confluent_kafka.admin", "kafka").AdminClient(common))
        topic_id, group = _topic_id(name, admin, topic), notes.consumer_group_metadata()
        return SinkProducer(
            name, topic, producer, admin, topic_id, group, max(0, int(noted.offset)), undelivered, complaints
        )
    finally:
        notes.close()


def given_back(producer: SinkProducer, delivery: str, config: Mapping[str, object]) -> None:
    """Keep a producer for the next epoch: one that has no transaction, and with which nothing went wrong."""
    producer.used_s = now_s = time.monotonic()
    with _lock:
        _kept[_key(producer.topic, delivery, config)] = producer
        idle = [key for key, kept in _kept.items() if now_s - kept.used_s > IDLE_S]
        for key in idle:
            del _kept[key]


def _key(topic: str, delivery: str, config: Mapping[str, object]) -> tuple[int, str, str, str]:
    return os.getpid(), topic, delivery, repr(sorted(config.items()))


def _topic_id(name: str, admin: Client, topic: str) -> str:
    kafka = needed_module("confluent_kafka", "kafka")
    wanted = kafka.TopicCollection([topic])
    found = asked(name, SinkError, lambda: admin.describe_topics(wanted, request_timeout=ANSWER_S)[topic].result())
    return str(found.topic_id)


def _note(topic: str, epoch: int | None = None) -> object:
    kafka = needed_module("confluent_kafka", "kafka")
    return kafka.TopicPartition(topic, 0, *(() if epoch is None else (epoch,)))
