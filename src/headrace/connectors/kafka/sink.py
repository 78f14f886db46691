"""The `kafka` sink: an epoch is one transaction of a producer, which notes the epoch's number, too.

The number goes where a consumer would note how far it is, as an offset of a group that is the sink's own: that is the
one thing beside records which a transaction of Kafka's can write. Who is about to deliver knows it (`producing.py`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

import pyarrow as pa

from headrace.common.columns import Column
from headrace.common.epoch import epoch_ms
from headrace.connectors.declared import needed_module
from headrace.connectors.held_changes import HeldChanges
from headrace.connectors.json_out import NotSpelled
from headrace.connectors.kafka.avro import AvroForm
from headrace.connectors.kafka.envelopes import Form, Json, Record, RecordChange, changes, named, record
from headrace.connectors.kafka.options import (
    ANSWER_S,
    KEY_ENCODE,
    PAUSE_S,
    SINK,
    ClientError,
    Complaints,
    asked,
    properties,
    told,
)
from headrace.connectors.kafka.plain_keys import WithKeys, key_form
from headrace.connectors.kafka.producing import Client, SinkProducer, given_back, taken
from headrace.connectors.kafka.refused import ALONE, for_good, refused
from headrace.connectors.kafka.registry import Registry, check_encode
from headrace.connectors.refusals import MOST_AT_ONCE, PassingChanges, RowsRefused, collects, not_spelled
from headrace.connectors.sinks import SINK_OPTIONS, Sink, SinkPosition, already_delivered, key_of
from headrace.errors import InvalidParameter, NotSupported, SinkError

POLL_EVERY = 1000
MADE_S = 3.0
"""How long brokers that make topics have for one. They do not say whether they do: so long lasts a refusal, too."""
FORGOTTEN_MS = 6 * 86_400_000
"""Brokers forget the offsets of a group that nobody is a member of after a week, unless told otherwise."""


class KafkaSink(Sink):
    """See the module."""

    declared = SINK
    refuses = True

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
        self._collects = collects(options)
        self._most_refused = MOST_AT_ONCE if self._collects else 1
        self._config = properties(SINK, options)
        self._name = f"Kafka at {self._config['bootstrap.servers']}"
        self._target = f"topic {self._topic} of {self._name}"
        check_encode(options, values["encode"])
        self._form: Form = Json(self._key)
        self._avro: AvroForm | None = None
        keys: str | None = values[KEY_ENCODE]
        if values["encode"] == "avro":
            own_key = () if keys is not None else self._key
            self._form = self._avro = AvroForm(Registry(options, SinkError), self._topic, columns, own_key)
        if keys is not None:
            self._form = WithKeys(key_form(keys, self._format, self._key, columns), self._form)

    def _register(self) -> None:
        if self._avro is not None:
            self._avro.register(self._format)

    def reach(self) -> None:
        """See `Sink`."""
        admin = needed_module("confluent_kafka.admin", "kafka")
        complaints = Complaints()
        config = {**self._config, "error_cb": complaints.heard}
        client = complaints.of(asked(self._name, SinkError, lambda: admin.AdminClient(config)))
        error = self._topic_error(client, complaints) and self._made(config)
        if error is not None:
            raise InvalidParameter(f"topic {self._topic} of {self._name}: {error.str()}", hint="create it there first")
        self._register()

    def _made(self, config: Mapping[str, object]) -> ClientError | None:
        """Ask for the topic as producers do, which some brokers make it for; what is wrong with it after that."""
        complaints = Complaints()
        kafka = needed_module("confluent_kafka", "kafka")
        given = {**config, "error_cb": complaints.heard, "allow.auto.create.topics": True}
        client = complaints.of(asked(self._name, SinkError, lambda: kafka.Producer(given)))
        until_s = time.monotonic() + MADE_S
        while (error := self._topic_error(client, complaints)) is not None and time.monotonic() < until_s:
            time.sleep(PAUSE_S)
        return error

    def _topic_error(self, client: Client, complaints: Complaints) -> ClientError | None:
        """What the brokers say is wrong with the topic."""
        found = asked(self._name, SinkError, lambda: client.list_topics(self._topic, timeout=ANSWER_S), complaints)
        error: ClientError | None = found.topics[self._topic].error
        return error

    def write(self, position: SinkPosition, batches: Iterator[pa.RecordBatch]) -> int:
        """See `Sink`."""
        self._register()
        by_key = self._format != "plain"
        with HeldChanges(self.scratch, self._key if by_key else ()) as held:
            coming = PassingChanges(batches, held, self._collects, needed=by_key)
            try:
                return self._deliver(position, coming, held if by_key else None)
            except SinkError as error:
                if (not isinstance(error, NotSpelled) and not for_good(error)) or not coming.searched():
                    raise
                if isinstance(error, NotSpelled):
                    told_off = not_spelled(held, len(self.columns), self._most_refused)
                    raise RowsRefused(self._target, told_off) from error
            return self._deliver_alone(position, held)

    def _deliver(self, position: SinkPosition, coming: PassingChanges, held: HeldChanges | None) -> int:
        """Deliver an epoch as one transaction, as it comes or when all of it is held; how many changes were not there.

        What is held is so before the transaction begins, which must not take long.
        """
        producer = self._let_in(position, self._config)
        if producer is None:
            return 0
        if held is not None:
            coming.take_in()
        changes = self._changes([coming] if held is None else held.pieces())
        producer.begin()
        try:
            with told(self._name, SinkError):  # once: what has been produced is not produced again
                count = self._produce_all(producer, changes)
            producer.commit(position.epoch)
        except BaseException as error:
            try:
                if isinstance(error, SinkError):
                    producer.check()
            finally:
                producer.abort()
            raise
        given_back(producer, position.delivery, self._config)
        return count

    def _deliver_alone(self, position: SinkPosition, held: HeldChanges) -> int:
        """The same, with each record in a batch by itself. Raises `RowsRefused` where some of them are."""
        producer = self._let_in(position, {**self._config, **ALONE})
        if producer is None:
            return 0
        producer.begin()
        try:
            told_off = refused(producer, self._changes(held.pieces()), self._record, self._most_refused)
            if told_off:
                names = [c.name for c in self.columns]
                rows = named(self._format, dict(told_off), held, names, self._key, self._form)
                raise RowsRefused(self._target, list(rows))
            producer.commit(position.epoch)
        except BaseException:
            producer.abort()
            raise
        return held.rows

    def _let_in(self, position: SinkPosition, config: Mapping[str, object]) -> SinkProducer | None:
        """A producer for an epoch; None if the topic has it."""
        producer = taken(self._name, self._topic, position, config, lambda: _check_notes(self._name, position))
        if not producer.delivered and _may_be_forgotten(position.known):
            position = replace(position, known=0)
        return None if already_delivered(position, producer.delivered, f"topic {self._topic}") else producer

    def _changes(self, pieces: Iterable[Iterable[pa.RecordBatch]]) -> Iterator[RecordChange]:
        names = [c.name for c in self.columns]
        return chain.from_iterable(changes(self._format, piece, names, self._key, self._form) for piece in pieces)

    def _record(self, change: RecordChange) -> Record:
        return record(self._format, change, self._form)

    def _produce_all(self, producer: SinkProducer, changes: Iterable[RecordChange]) -> int:
        count = 0
        for count, (key, value) in enumerate(map(self._record, changes), 1):
            while True:
                try:
                    producer.client.produce(self._topic, value, key)
                    break
                except BufferError:  # its queue is full
                    producer.client.poll(0.1)
                    producer.wait()
            if count % POLL_EVERY == 0:
                producer.check()
        return count


def _may_be_forgotten(epoch: int) -> bool:
    """Whether an epoch is so old that brokers need not know any more whether it has been delivered."""
    return time.time() * 1000 - epoch_ms(epoch) > FORGOTTEN_MS


def _check_notes(name: str, position: SinkPosition) -> None:
    """Raise `SinkError` where nothing is noted of a sink that may have delivered."""
    if position.from_epoch and _may_be_forgotten(position.epoch):
        raise SinkError(
            f"{name} may have forgotten what this sink has delivered: its epoch is older than what brokers "
            "keep of offsets for groups without members",
            hint="look whether the topic has the newest rows, and create the sink anew, with snapshot = false",
        )
