"""The `nexmark` connector: the persons, auctions and bids of the Nexmark benchmark, see `nexmark_events`.

A source is one of the three kinds of events, or all of them in one stream. Event n is a function of (seed, n) alone.
Sources with equal options are views of one stream of events: offsets, limits and rates count events of all kinds, so
that such sources keep step with each other. An option may be written with the prefix `nexmark.`, and with dots for
underscores. Who knows the seed knows all events that will come: it may be a secret.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa

from headrace.common.columns import Column, arrow_type, split_top_level
from headrace.connectors.base import (
    Admission,
    Binding,
    Offsets,
    ReadBatch,
    ReadTask,
    Source,
    common_options,
    kept_columns,
)
from headrace.connectors.declared import DeclaredOptions, Option
from headrace.connectors.nexmark_events import COLUMNS, KINDS, Events, EventShape, Kind
from headrace.connectors.option_reader import OptionReader
from headrace.connectors.pacing import admit_rate
from headrace.errors import InvalidParameter

BATCH_EVENTS = 65_536
SAMPLE_EVENTS: Final = 1_000
PREFIX = "nexmark."
_PARAMETERS: Final = {
    "person_proportion": "Persons among `person_proportion + auction_proportion + bid_proportion` events.",
    "auction_proportion": "Auctions among them.",
    "bid_proportion": "Bids among them.",
    "active_people": "How many persons sell and bid at a time.",
    "in_flight_auctions": "How many auctions are open at a time.",
    "hot_seller_ratio": "Of n auctions n - 1 are of a hot seller.",
    "hot_auction_ratio": "Of n bids n - 1 are for a hot auction.",
    "hot_bidder_ratio": "Of n bids n - 1 are of a hot bidder.",
    "hot_channel_ratio": "Of n bids n - 1 have a hot channel.",
    "num_categories": "Categories of auctions.",
    "person_id_lead": "Persons that are referred to before they come.",
    "auction_id_lead": "Auctions that are referred to before they come.",
    "avg_person_byte_size": "Bytes of a person, on average.",
    "avg_auction_byte_size": "Bytes of an auction, on average.",
    "avg_bid_byte_size": "Bytes of a bid, on average.",
}
"""The generator's parameters, see `nexmark_events.Shape`, which has their defaults."""
_MAY_BE_ZERO: Final = ("person_id_lead", "auction_id_lead")
_NO_EFFECT: Final = "Accepted and without effect: any range of events is made in parallel."
OPTIONS: Final = DeclaredOptions(
    (
        Option("table_type", "Without it one stream of all: `event_type` (0, 1, 2), `person`, `auction`, `bid` "
               "(structs, one of which is set), `date_time`.", choices=tuple(KINDS)),
        Option("event_num", "How many events there are, of all kinds; by default there is no end.", "number"),
        Option("rows_per_second", "Events per second of the wall clock: a number, or `unlimited`, as many as are "
               "admitted; by default as fast as event time passes."),
        Option("events_per_second", "Events per second of event time: a number, by default 10000."),
        Option("min_event_gap_in_ns", "Event time between two events, instead.", "number", least=1),
        Option("base_time", "Event time of the first event: `2015-07-15 00:00:00`, say."),
        Option("seed", "Another number gives other events.", "number", default="0", secret=True, least=None),
        *(Option(name, text, "number", str(getattr(EventShape, name)), least=0 if name in _MAY_BE_ZERO else 1)
          for name, text in _PARAMETERS.items()),
        Option("split_num", _NO_EFFECT),
        Option("max_chunk_size", _NO_EFFECT),
    )
)  # fmt: skip
_SPLIT = "0"
_START = "@start_ms"


def _plain(name: str) -> str:
    """An option's name in one spelling."""
    return name.removeprefix(PREFIX).replace(".", "_")


def _known(options: Mapping[str, str]) -> dict[str, str]:
    """Options in one spelling. Raises `InvalidParameter` for one that is given in two."""
    known: dict[str, str] = {}
    for name, value in options.items():
        if _plain(name) in known:
            raise InvalidParameter(f"option {_plain(name)} is given twice")
        known[_plain(name)] = value.lower() if _plain(name) == "table_type" else value
    return known


class NexmarkSource(Source):
    """See the module."""

    declared = OPTIONS

    def __init__(self, options: Mapping[str, str], columns: Sequence[Column]):
        super().__init__(options, columns)
        known = _known(options)
        values, reader = OPTIONS.read(known), OptionReader(known)
        self.max_rows = common_options(reader).max_rows
        self.kind: Kind | None = values["table_type"]
        self.shape = _shape(values, reader)
        self.end: int | None = values["event_num"]
        self.rate = self._rate(reader)
        self._makers = [_maker(self.kind, column) for column in columns]
        self._time = next((c.name for c in columns if c.name.replace("_", "").lower() == "datetime"), None)

    @classmethod
    def infer_columns(cls, options: Mapping[str, str]) -> list[Column]:
        """The columns of the kind of event, or of all kinds in one."""
        kind: Kind | None = OPTIONS.read(_known(options))["table_type"]
        if kind is not None:
            return [Column(name, column.type) for name, column in COLUMNS[kind].items()]
        structs = [Column(k, f"struct<{','.join(f'{n}:{c.type}' for n, c in COLUMNS[k].items())}>") for k in KINDS]
        return [Column("event_type", "bigint"), *structs, Column("date_time", "timestamp_ntz")]

    @property
    def time_column(self) -> str | None:
        """See `Source`."""
        return self._time

    def only(self, names: Sequence[str]) -> Self:
        """See `Source`."""
        kept = kept_columns(self.columns, names)
        self._makers = [self._makers[i] for i in kept]
        self.columns = [self.columns[i] for i in kept]
        self.schema = pa.schema([self.schema.field(i) for i in kept])
        return self

    def start_offsets(self) -> Offsets:
        """Event 0; the clock starts at the first binding."""
        return {_SPLIT: 0}

    def latest_offsets(self, after: Offsets, limit: Admission, now_ms: int) -> Binding:
        """See `Source`; limits count events of all kinds."""
        position = int(after.get(_SPLIT, 0))
        most = limit.estimated_rows(self.max_rows, endless=self.rate is None and self.end is None)
        start_ms, reached, behind = admit_rate(self.rate, after.get(_START), position, self.end, most, now_ms)
        offsets: Offsets = {_SPLIT: reached, _START: start_ms}
        finished = self.end is not None and reached >= self.end
        watermark_us = 1000 * int(self.shape.time_ms(np.array([reached]))[0])
        return Binding(offsets, self._rows(position, reached), finished, watermark_us, behind)

    def rows_between(self, from_: Offsets, to: Offsets) -> int | None:
        """See `Source`."""
        return self._rows(int(from_.get(_SPLIT, 0)), int(to.get(_SPLIT, 0)))

    @property
    def row_bytes(self) -> float | None:
        """See `Source`: as the first rows are."""
        rows = list(self.read({"start": 0, "stop": SAMPLE_EVENTS}))
        return sum(r.read_bytes for r in rows) / sum(r.batch.num_rows for r in rows) if rows else None

    def plan(self, from_: Offsets, to: Offsets, parallelism: int) -> list[ReadTask]:
        """See `Source`; a task is a range [start, stop) of events."""
        start, stop = int(from_.get(_SPLIT, 0)), int(to.get(_SPLIT, 0))
        share = max(1, -(-(stop - start) // max(1, parallelism)))
        return [{"start": at, "stop": min(at + share, stop)} for at in range(start, stop, share)]

    def read(self, task: ReadTask) -> Iterator[ReadBatch]:
        """See `Source`; there are never errors."""
        for start in range(task["start"], task["stop"], BATCH_EVENTS):
            stop = min(start + BATCH_EVENTS, task["stop"])
            made = _Range(self.shape, start, stop)
            if self._rows(start, stop):
                arrays = [_as(maker(made), field.type) for maker, field in zip(self._makers, self.schema)]
                yield ReadBatch(pa.RecordBatch.from_arrays(arrays, schema=self.schema))

    def _rows(self, start: int, stop: int) -> int:
        if self.kind is None:
            return max(0, stop - start)
        return max(0, self.shape.count(self.kind, stop) - self.shape.count(self.kind, start))

    def _rate(self, reader: OptionReader) -> float | None:
        if reader.options.get("rows_per_second") != "unlimited":
            return reader.positive("rows_per_second") or 1e9 / self.shape.event_gap_ns
        if self.end is None and self.max_rows is None:
            raise InvalidParameter("option rows_per_second 'unlimited' needs event_num or max_rows_per_epoch")
        return None


class _Range:
    """The events of a range, by kind, made when asked for."""

    def __init__(self, shape: EventShape, start: int, stop: int):
        self.shape, self.start, self.stop = shape, start, stop
        self._events: dict[Kind, Events] = {}

    def of(self, kind: Kind) -> Events:
        """Those of one kind."""
        if kind not in self._events:
            self._events[kind] = Events(self.shape, self.shape.numbers(kind, self.start, self.stop))
        return self._events[kind]

    def all(self) -> Events:
        """All of them, for what does not depend on the kind."""
        return Events(self.shape, np.arange(self.start, self.stop, dtype=np.int64))

    def places(self, kind: Kind) -> pa.Array:
        """For each event of the range its place among those of the kind, NULL if it is of another one."""
        numbers = self.of(kind).number - self.start
        places = np.full(self.stop - self.start, -1, np.int64)
        places[numbers] = np.arange(len(numbers))
        return pa.array(places, mask=places < 0)


def _maker(kind: Kind | None, column: Column) -> Any:
    """The function that makes a declared column from a range. Raises `InvalidParameter` for one that there is not."""
    if kind is not None:
        name = _matching(column.name, COLUMNS[kind], f"events of type {kind}")
        _check_type(column.name, column.type, COLUMNS[kind][name].type)
        return lambda made: COLUMNS[kind][name].make(made.of(kind))
    name = _matching(column.name, ("event_type", *KINDS, "date_time"), "events of all types")
    if name == "event_type":
        _check_type(column.name, column.type, "bigint")
        return lambda made: _event_types(made)
    if name == "date_time":
        _check_type(column.name, column.type, "timestamp_ntz")
        return lambda made: COLUMNS["bid"]["date_time"].make(made.all())
    struct = next(k for k in KINDS if k == name)
    return _struct_maker(struct, column)


def _struct_maker(kind: Kind, column: Column) -> Any:
    if not column.type.startswith("struct<"):
        raise InvalidParameter(f"column {column.name} of connector nexmark must be a struct, not {column.type}")
    parts = [tuple(split_top_level(part.strip(), ":")) for part in split_top_level(column.type[len("struct<") : -1])]
    made_of = []
    for spelled, declared in parts:
        name = _matching(spelled.strip(" `"), COLUMNS[kind], f"events of type {kind}")
        _check_type(f"{column.name}.{name}", declared.strip(), COLUMNS[kind][name].type)
        made_of.append(COLUMNS[kind][name])
    whole = arrow_type(column.type)

    def make(made: _Range) -> pa.Array:
        events = made.of(kind)
        arrays = [_as(c.make(events), whole.field(i).type) for i, c in enumerate(made_of)]
        return pa.StructArray.from_arrays(arrays, fields=list(whole)).take(made.places(kind))

    return make


def _event_types(made: _Range) -> pa.Array:
    types = np.empty(made.stop - made.start, np.int64)
    for i, kind in enumerate(KINDS):
        types[made.of(kind).number - made.start] = i
    return pa.array(types)


def _matching(name: str, known: Any, of: str) -> str:
    """The generator's name of a declared column: case and underscores do not count."""
    found = {known_name.replace("_", ""): str(known_name) for known_name in known}.get(name.replace("_", "").lower())
    if found is None:
        raise InvalidParameter(f"connector nexmark: {of} have no column {name}", hint=f"columns: {', '.join(known)}")
    return found


def _check_type(name: str, declared: str, own: str) -> None:
    fits = {"bigint": ("bigint", "int", "double", "string"), "timestamp_ntz": ("timestamp_ntz", "timestamp")}
    if declared != own and declared not in fits.get(own, ()):
        raise InvalidParameter(f"connector nexmark makes column {name} as {own}, which is not for {declared}")


def _as(array: pa.Array, kind: pa.DataType) -> pa.Array:
    return array if array.type == kind else array.cast(kind)


def _shape(values: Mapping[str, Any], reader: OptionReader) -> EventShape:
    given: dict[str, int] = {name: values[name] for name in _PARAMETERS}
    gap_ns, per_second = values["min_event_gap_in_ns"], reader.positive("events_per_second")
    if per_second is not None and gap_ns is not None:
        raise InvalidParameter("options events_per_second and min_event_gap_in_ns exclude each other")
    if per_second is not None:
        gap_ns = max(1, round(1e9 / per_second))
    if gap_ns is not None:
        given["event_gap_ns"] = gap_ns
    if reader.has("base_time"):
        given["base_time_ms"] = _time_ms(reader)
    return EventShape(seed=values["seed"], **given)


def _time_ms(reader: OptionReader) -> int:
    text = reader.options["base_time"]
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidParameter(f"option base_time must be a time such as 2015-07-15 00:00:00, not {text!r}") from None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
