"""The events of the Nexmark auction: persons, auctions and bids as functions of (seed, event number).

Of 50 consecutive events the first is a new person, the next three are new auctions, the others bids. Distributions,
id arithmetic and defaults follow the generator of Apache Beam's Nexmark suite, which Flink's and RisingWave's follow as
well; only the random numbers differ: here each is a hash of the seed, the event's number and the column, so that any
range of events can be made at once, by itself, and is the same each time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.common.lazy_dataclass import dataclass
from headrace.connectors.datagen_fields import Numbers, hash_rows

Kind = Literal["person", "auction", "bid"]
KINDS: tuple[Kind, ...] = ("person", "auction", "bid")

FIRST_PERSON_ID = 1000
FIRST_AUCTION_ID = 1000
FIRST_CATEGORY_ID = 10
HOT_SPAN = 100
"""One in so many ids is a hot one."""

_STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
_CITIES = (
    "Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Kent", "Cheyenne",
)  # fmt: skip
_FIRST_NAMES = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")
_LAST_NAMES = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")
_HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
_COLD_CHANNELS = 10_000
_POOL_LETTERS = 1 << 16
_LONGEST_TEXT = 1 << 14
_BID_PADDINGS = 1 << 12


@dataclass(frozen=True)
class EventShape:
    """What decides the events. Sizes are in bytes, a ratio of n makes (n - 1) of n references go to a hot id."""

    seed: int = 0
    base_time_ms: int = 1_436_918_400_000
    """Event time of event 0, Unix milliseconds (2015-07-15)."""
    event_gap_ns: int = 100_000
    """Event time between two events."""
    person_proportion: int = 1
    auction_proportion: int = 3
    bid_proportion: int = 46
    active_people: int = 1000
    in_flight_auctions: int = 100
    hot_seller_ratio: int = 4
    hot_auction_ratio: int = 2
    hot_bidder_ratio: int = 4
    hot_channel_ratio: int = 2
    num_categories: int = 5
    person_id_lead: int = 10
    auction_id_lead: int = 10
    avg_person_byte_size: int = 200
    avg_auction_byte_size: int = 500
    avg_bid_byte_size: int = 100

    @property
    def total(self) -> int:
        """Events after which the pattern of kinds starts over."""
        return self.person_proportion + self.auction_proportion + self.bid_proportion

    def _place(self, kind: Kind) -> tuple[int, int]:
        sizes = (self.person_proportion, self.auction_proportion, self.bid_proportion)
        i = KINDS.index(kind)
        return sum(sizes[:i]), sizes[i]

    def count(self, kind: Kind, events: int) -> int:
        """How many of the first `events` events are of a kind."""
        offset, size = self._place(kind)
        rounds, rest = divmod(events, self.total)
        return rounds * size + min(max(rest - offset, 0), size)

    def numbers(self, kind: Kind, start: int, stop: int) -> Numbers:
        """The numbers of the events of a kind in [start, stop)."""
        offset, size = self._place(kind)
        ordinals = np.arange(self.count(kind, start), self.count(kind, stop), dtype=np.int64)
        return ordinals // size * self.total + offset + ordinals % size

    def time_ms(self, numbers: Numbers) -> Numbers:
        """Event times, Unix milliseconds; they never go back."""
        times: Numbers = self.base_time_ms + numbers * self.event_gap_ns // 1_000_000
        return times

    def last_person(self, numbers: Numbers) -> Numbers:
        """The newest person, counted from 0, at each event."""
        rounds, rest = np.divmod(numbers, self.total)
        found: Numbers = rounds * self.person_proportion + np.minimum(rest, self.person_proportion - 1)
        return found

    def last_auction(self, numbers: Numbers) -> Numbers:
        """The newest auction, counted from 0, at each event; -1 before the first one."""
        rounds, rest = np.divmod(numbers, self.total)
        since = np.clip(rest - self.person_proportion, -1, self.auction_proportion - 1)
        found: Numbers = rounds * self.auction_proportion + since
        return found


@dataclass(frozen=True)
class Events:
    """Some events of one kind; each method with a column's name makes that column."""

    shape: EventShape
    number: Numbers
    """Their event numbers."""

    def uniform(self, lane: int, bound: int | Numbers) -> Numbers:
        """Independent numbers in [0, bound) for each lane."""
        hashes = hash_rows(self.number, self.shape.seed, lane)
        return (hashes % np.asarray(bound, np.uint64)).astype(np.int64)

    def price(self, lane: int) -> Numbers:
        """Prices from 100 to 10^8, their logarithm evenly distributed."""
        unit = (hash_rows(self.number, self.shape.seed, lane) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return np.rint(np.power(10.0, unit * 6) * 100).astype(np.int64)

    def person_id(self, lane: int) -> Numbers:
        """Somebody among the active people, or one of those to come next."""
        people = self.shape.last_person(self.number) + 1
        active = np.minimum(people, self.shape.active_people)
        return people - active + self.uniform(lane, active + self.shape.person_id_lead)

    def auction_id(self, lane: int) -> Numbers:
        """One of the auctions in flight, or one of those to come next."""
        newest = self.shape.last_auction(self.number)
        oldest = np.maximum(newest - self.shape.in_flight_auctions, 0)
        return oldest + self.uniform(lane, newest - oldest + 1 + self.shape.auction_id_lead)

    def is_hot(self, lane: int, ratio: int) -> npt.NDArray[np.bool_]:
        """True with a probability of 1 - 1/ratio."""
        return self.uniform(lane, ratio) > 0

    @cached_property
    def date_time_ms(self) -> Numbers:
        """Event times, Unix milliseconds."""
        return self.shape.time_ms(self.number)

    def lengths(self, lane: int, longest: int) -> Numbers:
        """Lengths of texts from 3 to below `longest`."""
        return 3 + self.uniform(lane, longest - 3)

    def text(self, lane: int, lengths: Numbers, words: bool = False) -> pa.Array:
        """Random letters."""
        letters = _letters(self.shape.seed, words)
        return _slices(letters, self.uniform(lane + 1, _POOL_LETTERS), lengths)

    def padding(self, lane: int, used: int | Numbers, average: int) -> pa.Array:
        """Letters that bring an event of `used` bytes to `average` bytes, give or take a fifth of what is missing."""
        return self.text(lane, _padded(self.uniform(lane, 2**31), used, average))


def _padded(chance: Numbers, used: int | Numbers, average: int) -> Numbers:
    missing = np.clip(average - np.asarray(used, np.int64), 0, _LONGEST_TEXT // 2)
    spread = np.rint(missing * 0.2).astype(np.int64)
    lengths: Numbers = missing - spread + chance % np.maximum(2 * spread, 1)
    return lengths


@lru_cache(maxsize=8)
def _letters(seed: int, words: bool) -> npt.NDArray[np.uint8]:
    """A pool of letters, from which texts are cut; with `words` one in 13 is a blank."""
    hashes = hash_rows(np.arange(_POOL_LETTERS, dtype=np.int64), seed, -1)
    letters = (97 + hashes % np.uint64(26)).astype(np.uint8)
    if words:
        letters[(hashes >> np.uint64(32)) % np.uint64(13) == 0] = 32
    return np.concatenate([letters, letters[:_LONGEST_TEXT]])


def _slices(letters: npt.NDArray[np.uint8], starts: Numbers, lengths: Numbers) -> pa.Array:
    """Pieces of the pool as strings."""
    ends = np.concatenate([[0], np.cumsum(lengths)])
    places = np.arange(ends[-1]) + np.repeat(starts - ends[:-1], lengths)
    buffers = [None, pa.py_buffer(ends.astype(np.int32).tobytes()), pa.py_buffer(letters[places].tobytes())]
    return pa.Array.from_buffers(pa.string(), len(lengths), buffers)


def _pick(choices: pa.Array, index: Numbers) -> pa.Array:
    return choices.take(pa.array(index))


def _timestamps(times_ms: Numbers) -> pa.Array:
    return pa.array(times_ms * 1000).cast(pa.timestamp("us"))


# ---- persons

_NAME_TEXTS = pa.array([f"{first} {last}" for first in _FIRST_NAMES for last in _LAST_NAMES])


def _email(e: Events) -> pa.Array:
    mailbox, host = e.text(20, e.lengths(20, 7)), e.text(22, e.lengths(22, 5))
    return pc.binary_join_element_wise(mailbox, pc.binary_join_element_wise(host, "com", "."), "@")


def _credit_card(e: Events) -> pa.Array:
    digits = pa.array([f"{i:04d}" for i in range(10_000)])
    return pc.binary_join_element_wise(*[_pick(digits, e.uniform(24 + i, 10_000)) for i in range(4)], " ")


def _person_padding(e: Events) -> pa.Array:
    texts = (PERSON[name].make(e) for name in ("name", "email_address", "city", "state"))
    used = sum(np.asarray(pc.binary_length(text)).astype(np.int64) for text in texts)
    return e.padding(28, used + 8 + 19, e.shape.avg_person_byte_size)


# ---- auctions


def _seller(e: Events) -> Numbers:
    hot = e.shape.last_person(e.number) // HOT_SPAN * HOT_SPAN
    return np.where(e.is_hot(40, e.shape.hot_seller_ratio), hot, e.person_id(41)) + FIRST_PERSON_ID


def _expires_ms(e: Events) -> Numbers:
    shape = e.shape
    ahead = shape.in_flight_auctions * shape.total // shape.auction_proportion
    horizon = shape.time_ms(e.number + ahead) - e.date_time_ms
    return e.date_time_ms + 1 + e.uniform(42, np.maximum(2 * horizon, 1))


def _auction_padding(e: Events) -> pa.Array:
    return e.padding(49, 48 + e.lengths(45, 20) + e.lengths(47, 100), e.shape.avg_auction_byte_size)


# ---- bids


def _auction(e: Events) -> Numbers:
    hot = e.shape.last_auction(e.number) // HOT_SPAN * HOT_SPAN
    return np.where(e.is_hot(60, e.shape.hot_auction_ratio), hot, e.auction_id(61)) + FIRST_AUCTION_ID


def _bidder(e: Events) -> Numbers:
    hot = e.shape.last_person(e.number) // HOT_SPAN * HOT_SPAN + 1
    return np.where(e.is_hot(62, e.shape.hot_bidder_ratio), hot, e.person_id(63)) + FIRST_PERSON_ID


def _channel_index(e: Events) -> Numbers:
    hot = e.uniform(66, len(_HOT_CHANNELS))
    cold = len(_HOT_CHANNELS) + e.uniform(67, _COLD_CHANNELS)
    return np.where(e.is_hot(65, e.shape.hot_channel_ratio), hot, cold)


@lru_cache(maxsize=4)
def _channels(seed: int) -> tuple[pa.Array, pa.Array]:
    """Names and addresses of all channels, the hot ones first."""
    count = len(_HOT_CHANNELS) + _COLD_CHANNELS
    e = Events(EventShape(seed=seed), np.arange(count, dtype=np.int64))
    parts = zip(*(e.text(lane, e.lengths(lane, 5)).to_pylist() for lane in (-10, -12, -14)))
    known = e.uniform(-16, 10) > 0
    names, urls = list(_HOT_CHANNELS), []
    for i, (path, is_known) in enumerate(zip(parts, known)):
        url = f"https://www.nexmark.com/{'/'.join(path)}/item.htm?query=1"
        cold = i - len(_HOT_CHANNELS)
        if cold >= 0:
            names.append(f"channel-{cold}")
        urls.append(f"{url}&channel_id={_reversed_bits(cold)}" if cold >= 0 and is_known else url)
    return pa.array(names), pa.array(urls)


def _reversed_bits(value: int) -> int:
    """The magnitude of the signed 32-bit integer whose bits are those of `value` in reverse order."""
    reverse = int(f"{value:032b}"[::-1], 2)
    return abs(reverse - 2**32 if reverse >= 2**31 else reverse)


@lru_cache(maxsize=4)
def _bid_paddings(seed: int, average: int) -> pa.Array:
    """Paddings that bids share: nearly all events are bids, and making one for each would take most of their time."""
    e = Events(EventShape(seed=seed), np.arange(_BID_PADDINGS, dtype=np.int64))
    return e.padding(-20, 32, average)


def _bid_padding(e: Events) -> pa.Array:
    return _pick(_bid_paddings(e.shape.seed, e.shape.avg_bid_byte_size), e.uniform(68, _BID_PADDINGS))


# ---- columns


@dataclass(frozen=True)
class EventColumn:
    """A column of a kind of event: its Spark type, and how it is made."""

    type: str
    maker: Callable[[Events], pa.Array | Numbers] = field(repr=False)

    def make(self, events: Events) -> pa.Array:
        """The values."""
        made = self.maker(events)
        return pa.array(made) if isinstance(made, np.ndarray) else made


_LONG, _TEXT, _TIME = "bigint", "string", "timestamp_ntz"
_DATE_TIME = EventColumn(_TIME, lambda e: _timestamps(e.date_time_ms))

PERSON: Mapping[str, EventColumn] = {
    "id": EventColumn(_LONG, lambda e: e.shape.last_person(e.number) + FIRST_PERSON_ID),
    "name": EventColumn(_TEXT, lambda e: _pick(_NAME_TEXTS, e.uniform(19, len(_NAME_TEXTS)))),
    "email_address": EventColumn(_TEXT, _email),
    "credit_card": EventColumn(_TEXT, _credit_card),
    "city": EventColumn(_TEXT, lambda e: _pick(pa.array(_CITIES), e.uniform(17, len(_CITIES)))),
    "state": EventColumn(_TEXT, lambda e: _pick(pa.array(_STATES), e.uniform(18, len(_STATES)))),
    "date_time": _DATE_TIME,
    "extra": EventColumn(_TEXT, _person_padding),
}
AUCTION: Mapping[str, EventColumn] = {
    "id": EventColumn(_LONG, lambda e: e.shape.last_auction(e.number) + FIRST_AUCTION_ID),
    "item_name": EventColumn(_TEXT, lambda e: e.text(45, e.lengths(45, 20), words=True)),
    "description": EventColumn(_TEXT, lambda e: e.text(47, e.lengths(47, 100), words=True)),
    "initial_bid": EventColumn(_LONG, lambda e: e.price(43)),
    "reserve": EventColumn(_LONG, lambda e: e.price(43) + e.price(44)),
    "date_time": _DATE_TIME,
    "expires": EventColumn(_TIME, lambda e: _timestamps(_expires_ms(e))),
    "seller": EventColumn(_LONG, _seller),
    "category": EventColumn(_LONG, lambda e: FIRST_CATEGORY_ID + e.uniform(51, e.shape.num_categories)),
    "extra": EventColumn(_TEXT, _auction_padding),
}
BID: Mapping[str, EventColumn] = {
    "auction": EventColumn(_LONG, _auction),
    "bidder": EventColumn(_LONG, _bidder),
    "price": EventColumn(_LONG, lambda e: e.price(64)),
    "channel": EventColumn(_TEXT, lambda e: _pick(_channels(e.shape.seed)[0], _channel_index(e))),
    "url": EventColumn(_TEXT, lambda e: _pick(_channels(e.shape.seed)[1], _channel_index(e))),
    "date_time": _DATE_TIME,
    "extra": EventColumn(_TEXT, _bid_padding),
}
COLUMNS: Mapping[Kind, Mapping[str, EventColumn]] = {"person": PERSON, "auction": AUCTION, "bid": BID}
