"""The `kafka` source: a partition is a split, an offset a position.

What is bound reaches up to the *last stable offset*: below it every transaction of a producer is decided, so what a
range holds does not change any more, whoever reads it and however often; aborted records are not in it, nor are what
compaction has removed and the brokers' own marks. A binding says of each partition where it began and where it is now,
so whoever reads from the beginning begins at the same record, too.

A binding names the topic by its id: one that was deleted and made again under its name is another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from headrace.common.columns import Column
from headrace.connectors.base import (
    Admission,
    Binding,
    Offsets,
    ReadBatch,
    ReadTask,
    Source,
    common_options,
    joined_ranges,
    range_tasks,
)
from headrace.connectors.declared import needed_module
from headrace.connectors.kafka.avro import columns_of, row_of_change
from headrace.connectors.kafka.looking import row_bytes
from headrace.connectors.kafka.message_rows import RecordShape, included, size_of
from headrace.connectors.kafka.options import (
    ANSWER_S,
    EARLIEST,
    LATEST,
    OFFSETS,
    SOURCE,
    TIMESTAMP,
    asked,
    properties,
)
from headrace.connectors.kafka.protobuf import protobuf_columns
from headrace.connectors.kafka.reading import TopicReading, read_range
from headrace.connectors.kafka.registry import MESSAGE, NoSchema, Registry, avro_schema, check_encode
from headrace.connectors.kafka.topics import Asking, asking_at, other_topic
from headrace.connectors.option_reader import COMMON_OPTIONS, OptionReader, without_included
from headrace.errors import InvalidParameter, SourceError

TOPIC = "topic"
"""Beside the partitions, in offsets: the id of the topic."""


class KafkaSource(Source):
    """See the module."""

    feeds = True
    holds = True  # its readers' offsets, as those of a consumer group

    declared = SOURCE

    @classmethod
    def infer_columns(cls, options: Mapping[str, str]) -> list[Column]:
        """Bytes are one column, those of Avro and Protobuf are in the registry; nobody knows those of JSON."""
        if options.get("encode") == "bytes":
            return [Column("data", "binary")]
        if cls.refreshes(options):
            subject = f"{OptionReader(options).required('topic')}-value"
            try:
                if options["encode"] == "protobuf":
                    return protobuf_columns(Registry(options), subject, options.get(MESSAGE), options.get("format"))
                schema = avro_schema(Registry(options).newest(subject))
            except NoSchema as error:
                hint = "declare the columns: CREATE SOURCE s (a int, ...)"
                raise InvalidParameter(f"the schema registry has no subject {subject}", hint=hint) from error
            return columns_of(row_of_change(schema) if options.get("format") == "debezium" else schema)
        if "include.payload" in options:
            return []
        raise InvalidParameter(
            "a kafka source of JSON or CSV needs its columns",
            hint="declare them: CREATE SOURCE s (a int, ...), or take each record whole: INCLUDE payload",
        )

    @classmethod
    def refreshes(cls, options: Mapping[str, str]) -> bool:
        """See `Source`: the registry has the schemas of Avro and Protobuf."""
        return options.get("encode") in ("avro", "protobuf")

    @classmethod
    def widens(cls, options: Mapping[str, str]) -> bool:
        """See `Source`: what a field of CSV is, its place says, and bytes have none."""
        return options.get("encode", "json") in ("json", "avro", "protobuf")

    @classmethod
    def added_columns(cls, options: Mapping[str, str]) -> list[Column]:
        """Those of `INCLUDE`."""
        return [column for column, _ in included(options)]

    @classmethod
    def of_splits(cls, offsets: Offsets) -> Offsets:
        """See `Source`: partitions, each with where it began and where it is now."""
        return {name: position for name, position in offsets.items() if name != TOPIC}

    def __init__(self, options: Mapping[str, str], columns: Sequence[Column]):
        super().__init__(options, columns)
        values = SOURCE.read(without_included(options), COMMON_OPTIONS)
        self._options = dict(options)
        self._reader = OptionReader(options)
        self._on_error, self._max_rows = common_options(self._reader)
        self._topic: str = values["topic"]
        self._at_ms: int | None = values["scan.startup.timestamp.millis"]
        self._at = _startup_offsets(values["scan.startup.offsets"])
        self._mode: str = values["scan.startup.mode"]
        if "scan.startup.mode" not in options:
            self._mode = TIMESTAMP if self._at_ms is not None else OFFSETS if self._at else EARLIEST
        if (self._mode == TIMESTAMP) != (self._at_ms is not None):
            raise InvalidParameter(f"scan.startup.mode '{TIMESTAMP}' and scan.startup.timestamp.millis go together")
        if (self._mode == OFFSETS) != bool(self._at):
            raise InvalidParameter(f"scan.startup.mode '{OFFSETS}' and scan.startup.offsets go together")
        self._config = properties(SOURCE, options)
        check_encode(options, values["encode"])
        self._shape = RecordShape.of(self._topic, values["format"], values["encode"], columns, options)
        self._by_key = {"include.operation", "include.position"} <= set(options)  # as a table by key asks for them
        self._group: str | None = values["group.id"]
        self._told: Offsets = {}
        """What has been committed for the group."""
        self._asking = Asking(self._config)
        self._looked_in_vain = False
        """How wide records are could not be told soon: nobody is kept waiting for that at each tick."""

    # ---- binding, in the server

    def columns_there(self, offsets: Offsets) -> list[Column]:
        """See `Source`."""
        return self.infer_columns(self._options)

    def start_offsets(self) -> Offsets:
        """Before the first record: where that is, the first binding says. Raises `SourceError` for no such topic."""
        self._asking.describe(self._topic)
        return {}

    def latest_offsets(self, after: Offsets, limit: Admission, now_ms: int) -> Binding:
        """See `Source`."""
        topic, partitions = self._asking.describe(self._topic)
        if after and after.get(TOPIC) != topic:
            raise other_topic(self._topic)
        gone = sorted(set(_partitions(after)) - set(partitions))
        if gone:
            raise SourceError(f"partition {gone[0]} of topic {self._topic} is gone")
        new = sorted(set(partitions) - set(_partitions(after)))
        if after and new and self._by_key:
            raise SourceError(
                f"topic {self._topic} has got partition {new[0]}: which of two records of a key is the newer one "
                "cannot be told any more, since keys have moved between partitions",
                hint="drop the table and create it again, on a topic in which each key has one partition",
            )
        earliest, latest = self._offsets("earliest", partitions), self._offsets("latest", partitions)
        began = self._beginnings(after, partitions, earliest, latest)
        for p in partitions:
            self._check(p, began[p][1], earliest[p], latest[p])
        there = {p: latest[p] - began[p][1] for p in partitions}
        taken = {p: 0 if str(p) in limit.held else count for p, count in there.items()}

        def shared(each: float) -> dict[int, int]:
            return _shared(taken, replace(limit, row_bytes=each).estimated_rows(self._max_rows))

        room, each = shared(limit.row_bytes), None
        if limit.guessed and room != shared(0.0) and not self._looked_in_vain:  # the guess holds some back
            reading = TopicReading(self._topic, self._config, self._name, self._shape.bare)
            each = row_bytes(reading, {p: at for p, (_, at) in began.items()}, taken, shared)
            room, self._looked_in_vain = (room, True) if each is None else (shared(each), False)
        offsets: Offsets = {str(p): [began[p][0], began[p][1] + room[p]] for p in partitions}
        left = {str(p): there[p] - room[p] for p in partitions}
        bound = {TOPIC: topic, **offsets}
        apart = {split: bool(count) for split, count in left.items()}
        return Binding(bound, sum(room.values()), False, None, any(left.values()), left, row_bytes=each, apart=apart)

    def acknowledge(self, offsets: Offsets) -> None:
        """Commit the offsets that all readers have taken in, for a group without members: nothing is read by them."""
        if self._group is None or offsets == self._told or TOPIC not in offsets:
            return
        kafka = needed_module("confluent_kafka", "kafka")
        reached = [kafka.TopicPartition(self._topic, p, at) for p, (_, at) in _partitions(offsets).items()]
        wanted = kafka.ConsumerGroupTopicPartitions(self._group, reached)
        client, group = self._asking.client(), self._group
        asking = asked(
            self._name, SourceError, lambda: client.alter_consumer_group_offsets([wanted], request_timeout=ANSWER_S)
        )
        what = f"the consumer group {group} of {self._name}"
        self._asking.answer(what, lambda: asking[group].result(ANSWER_S + 5))
        self._told = offsets

    def _beginnings(
        self, after: Offsets, partitions: Sequence[int], earliest: Mapping[int, int], latest: Mapping[int, int]
    ) -> dict[int, tuple[int, int]]:
        """Of each partition, where it began and how far it is; a partition that came later is read from its start."""
        known = _partitions(after)
        found = {p: (known[p] if p in known else (earliest[p], earliest[p])) for p in partitions}
        if after:
            return found
        if self._mode == LATEST:
            return {p: (latest[p], latest[p]) for p in partitions}
        if self._mode == TIMESTAMP:
            at = self._offsets(self._at_ms, partitions)
            first = {p: at[p] if at[p] >= 0 else latest[p] for p in partitions}
            return {p: (min(first[p], latest[p]), min(first[p], latest[p])) for p in partitions}
        for p, start in self._at.items():
            if p not in found or not earliest[p] <= start <= latest[p]:
                raise SourceError(
                    f"scan.startup.offsets: partition {p} of topic {self._topic} does not have offset {start}",
                    detail=f"it has {earliest.get(p)} to {latest.get(p)}",
                )
            found[p] = (start, start)
        return found

    def _check(self, partition: int, position: int, earliest: int, latest: int) -> None:
        if position < earliest:
            raise SourceError(
                f"the topic {self._topic} has lost offsets {position} to {earliest - 1} of partition {partition}: "
                "they have not been read",
                hint="they were deleted by the topic's retention; drop the source and create it again to go on without",
            )
        if position > latest:
            raise SourceError(
                f"partition {partition} of topic {self._topic} ends at offset {latest}, and has been read up to "
                f"{position}",
                hint="the brokers have lost records; drop the source and create it again",
            )

    @property
    def _name(self) -> str:
        return self._asking.name

    def _offsets(self, which: str | int | None, partitions: Sequence[int]) -> dict[int, int]:
        """An offset of each partition: the first, the last stable one, or the first at or after a time."""
        kafka, admin = needed_module("confluent_kafka", "kafka"), needed_module("confluent_kafka.admin", "kafka")
        spec = admin.OffsetSpec
        wanted = {"earliest": spec.earliest, "latest": spec.latest}.get(str(which), lambda: spec.for_timestamp(which))()
        client = self._asking.client()
        asking = asked(
            self._name, SourceError,
            lambda: client.list_offsets(
                {kafka.TopicPartition(self._topic, p): wanted for p in partitions},
                isolation_level=kafka.IsolationLevel.READ_COMMITTED, request_timeout=ANSWER_S,
            ),
        )  # fmt: skip
        what = f"the offsets of topic {self._topic}"
        answers = self._asking.answer(what, lambda: {t.partition: f.result(ANSWER_S + 5) for t, f in asking.items()})
        return {p: int(answer.offset) for p, answer in answers.items()}

    # ---- reading

    def rows_between(self, from_: Offsets, to: Offsets) -> int | None:
        """See `Source`."""
        return sum(high - low for _, low, high in _ranges(from_, to))

    def plan(self, from_: Offsets, to: Offsets, parallelism: int) -> list[ReadTask]:
        """See `Source`."""
        return [{**task, TOPIC: to[TOPIC]} for task in range_tasks(_ranges(from_, to), parallelism)]

    def joined(self, tasks: Sequence[ReadTask], parallelism: int) -> list[ReadTask]:
        """See `Source`: going on where one is costs nothing."""
        topic = {TOPIC: tasks[0][TOPIC]} if tasks else {}
        return [{**task, **topic} for task in joined_ranges(tasks, parallelism)]

    def read(self, task: ReadTask) -> Iterator[ReadBatch]:
        """See `Source`. A topic that was what was bound, and is it in the end, was it all along.

        Whoever takes no more than the first rows, as many as are read at once, has them when that is known, too.
        """
        reading = TopicReading(self._topic, self._config, self._name, self._shape.bare)
        check = partial(asking_at(self._config).check, self._topic, task[TOPIC])
        check()
        begun = whole = False
        for partition, low, high in task["ranges"]:
            for records in read_range(reading, partition, low, high, check):
                rows = self._shape.rows(records, partition, self._on_error)
                found = replace(rows, size=size_of(records), split=str(partition))
                if not begun:
                    check()
                    begun, whole = True, len(task["ranges"]) == 1 and records[-1].offset() + 1 >= high
                yield found
        if not whole:
            check()


def _partitions(offsets: Offsets) -> dict[int, tuple[int, int]]:
    return {int(split): (at[0], at[1]) for split, at in offsets.items() if split != TOPIC}


def _ranges(from_: Offsets, to: Offsets) -> list[tuple[int, int, int]]:
    """(partition, first, end) of what lies between two offsets."""
    before = _partitions(from_)
    found = ((p, before[p][1] if p in before else first, high) for p, (first, high) in _partitions(to).items())
    return sorted((p, low, high) for p, low, high in found if low < high)


def _shared(there: Mapping[int, int], limit: int | None) -> dict[int, int]:
    """How many records of each partition to take, so that it is at most `limit` in all: small ones in full."""
    if limit is None:
        return dict(there)
    found, left = dict[int, int](), limit
    for n, (p, count) in enumerate(sorted(there.items(), key=lambda item: item[1])):
        found[p] = min(count, -(-left // (len(there) - n)))
        left -= found[p]
    return found


def _startup_offsets(text: str | None) -> dict[int, int]:
    if not text:
        return {}
    try:
        return {int(p): int(at) for p, at in (part.split(":") for part in text.split(","))}
    except ValueError:
        raise InvalidParameter("option scan.startup.offsets must be partition:offset,..., not " + repr(text)) from None
