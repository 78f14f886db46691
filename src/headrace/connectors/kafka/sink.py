"""The `kafka` sink: an epoch is one transaction of a producer, which notes the epoch's number, too.

The number goes where a consumer would note how far it is, as an offset of a group that is the sink's own: that is the
one thing beside records which a transaction of Kafka's can write. Who is about to deliver asks for it after
`init_transactions`, which has shut out every earlier producer of the sink and ended what they had begun.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from headrace.common.columns import Column
from headrace.common.epoch import epoch_ms
from headrace.connectors.declared import needed_module
from headrace.connectors.kafka.avro import AvroForm
from headrace.connectors.kafka.envelopes import Form, Json, Record, debezium, plain, upserts
from headrace.connectors.kafka.options import ANSWER_S, SINK, asked, properties, told
from headrace.connectors.kafka.registry import Registry, check_encode
from headrace.connectors.sinks import SINK_OPTIONS, Sink, SinkPosition, already_delivered, key_of
from headrace.errors import InvalidParameter, NotSupported, SinkError

TRANSACTION_S = 600
"""How long an epoch may take from its first record to its commit; brokers allow 15 minutes unless told otherwise."""
POLL_EVERY = 1000
FORGOTTEN_MS = 6 * 86_400_000
"""Brokers forget the offsets of a group that nobody is a member of after a week, unless told otherwise."""


class KafkaSink(Sink):
    """See the module."""

    declared = SINK

    def __init__(self, options: Mapping[str, str], columns: Sequence[Column]):
        super().__init__(options, columns)
        values = SINK.read(options, SINK_OPTIONS)
        self._topic: str = values["topic"]
        self._format: str = values["format"]
        wanted = "append-only" if self._format == "plain" else "upsert"
        if options.get("type", "upsert") != wanted:
            raise NotSupported(
                f"a kafka sink of type {options.get('type', 'upsert')} with FORMAT {self._format.upper()}",
                hint="FORMAT PLAIN is append-only, FORMAT UPSERT and DEBEZIUM are upsert",
            )
        self._key = key_of(options, columns)
        self._config = properties(SINK, options)
        self._name = f"Kafka at {self._config['bootstrap.servers']}"
        check_encode(options, values["encode"])
        self._form: Form = Json(self._key)
        if values["encode"] == "avro":
            self._form = AvroForm(Registry(options, SinkError), self._topic, columns, self._key)

    def _register(self) -> None:
        if isinstance(self._form, AvroForm):
            self._form.register(self._format)

    def reach(self) -> None:
        """See `Sink`."""
        admin = needed_module("confluent_kafka.admin", "kafka")
        client = asked(self._name, SinkError, lambda: admin.AdminClient(self._config))
        found = asked(self._name, SinkError, lambda: client.list_topics(self._topic, timeout=ANSWER_S))
        error = found.topics[self._topic].error
        if error is not None:
            raise InvalidParameter(f"topic {self._topic} of {self._name}: {error.str()}", hint="create it there first")
        self._register()

    def write(self, position: SinkPosition, batches: Iterator[pa.RecordBatch]) -> int:
        """See `Sink`."""
        self._register()
        producer, notes = self._clients(position)
        try:
            asked(self._name, SinkError, lambda: producer.init_transactions(3 * ANSWER_S))
            if already_delivered(position, self._delivered(notes, position), f"topic {self._topic}"):
                return 0
            asked(self._name, SinkError, producer.begin_transaction)
            try:
                return self._transact(producer, notes, position, batches)
            except BaseException:
                with suppress(Exception):  # else the next one to begin ends it
                    producer.abort_transaction(ANSWER_S)
                raise
        finally:
            notes.close()

    def _clients(self, position: SinkPosition) -> tuple[Any, Any]:
        kafka = needed_module("confluent_kafka", "kafka")
        name = f"headrace-{position.delivery}"
        config = {
            "partitioner": "murmur2_random", "linger.ms": 5, "compression.type": "lz4", **self._config,
            "transactional.id": name, "transaction.timeout.ms": TRANSACTION_S * 1000,
        }  # fmt: skip
        producer = asked(self._name, SinkError, lambda: kafka.Producer(config))
        reading = {"group.id": name, "isolation.level": "read_committed", "enable.auto.commit": False}
        notes = asked(self._name, SinkError, lambda: kafka.Consumer({**_common(self._config), **reading}))
        return producer, notes

    def _note(self, epoch: int | None = None) -> Any:
        kafka = needed_module("confluent_kafka", "kafka")
        return kafka.TopicPartition(self._topic, 0, *(() if epoch is None else (epoch,)))

    def _delivered(self, notes: Any, position: SinkPosition) -> int:
        (found,) = asked(self._name, SinkError, lambda: notes.committed([self._note()], timeout=3 * ANSWER_S))
        if found.error is not None:
            raise SinkError(f"{self._name} does not say what has been delivered: {found.error.str()}")
        if found.offset >= 0:
            return int(found.offset)
        if position.from_epoch and time.time() * 1000 - epoch_ms(position.epoch) > FORGOTTEN_MS:
            raise SinkError(
                f"{self._name} may have forgotten what this sink has delivered: its epoch is older than what brokers "
                "keep of offsets for groups without members",
                hint="look whether the topic has the newest rows, and create the sink anew, with snapshot = false",
            )
        return 0

    def _transact(self, producer: Any, notes: Any, position: SinkPosition, batches: Iterator[pa.RecordBatch]) -> int:
        with told(self._name, SinkError):  # once: what has been produced is not produced again
            count = self._produce_all(producer, batches)
        note, group = [self._note(position.epoch)], notes.consumer_group_metadata()
        asked(self._name, SinkError, lambda: producer.send_offsets_to_transaction(note, group, 3 * ANSWER_S))
        asked(self._name, SinkError, lambda: producer.commit_transaction(TRANSACTION_S))
        return count

    def _records(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Record]:
        names = [c.name for c in self.columns]
        if self._format == "plain":
            return plain(batches, names, self._key, self._form)
        return (upserts if self._format == "upsert" else debezium)(batches, names, self._key, self._form)

    def _produce_all(self, producer: Any, batches: Iterator[pa.RecordBatch]) -> int:
        count = 0
        for count, (key, value) in enumerate(self._records(batches), 1):
            while True:
                try:
                    producer.produce(self._topic, value, key)
                    break
                except BufferError:  # its queue is full
                    producer.poll(0.1)
            if count % POLL_EVERY == 0:
                producer.poll(0)
        return count


def _common(config: Mapping[str, Any]) -> dict[str, Any]:
    """What is left of a producer's configuration for a consumer."""
    beside = (
        "partitioner",
        "compression.",
        "linger.",
        "batch.",
        "queue.buffering.",
        "message.timeout",
        "request.timeout",
    )
    return {name: value for name, value in config.items() if not name.startswith(beside)}
