"""Collections that never change: changing one gives another, which shares almost everything with the first.

So whoever has one may search it for as long as he likes, while others go on to newer ones, and nobody needs a lock.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, ItemsView, Iterable, Iterator, Mapping, ValuesView
from itertools import chain
from math import isqrt
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
T = TypeVar("T")

_SMALL = 64
"""Entries that one bucket may have where there is but one."""
_DEAD_MOST = 1024
"""Items in front of a timeline that may be kept though nobody needs them."""


def _most(buckets: int) -> int:
    """Entries for which that many buckets are enough: a change copies the list of them, and those that it touches."""
    return _SMALL * buckets * isqrt(buckets)


class FrozenMap(Mapping[K, V]):
    """An immutable mapping; no value is None. Its order is arbitrary."""

    __slots__ = ("_buckets", "_length")

    def __init__(self, items: Iterable[tuple[K, V]] = ()) -> None:
        self._buckets: list[dict[K, V]] = _spread(dict(items))
        self._length = sum(map(len, self._buckets))

    def __getitem__(self, key: K) -> V:
        return self._buckets[hash(key) & len(self._buckets) - 1][key]

    def get(self, key: K, default: Any = None) -> Any:
        """The value of a key; the default if there is none."""
        return self._buckets[hash(key) & len(self._buckets) - 1].get(key, default)

    def __contains__(self, key: object) -> bool:
        return key in self._buckets[hash(key) & len(self._buckets) - 1]

    def __iter__(self) -> Iterator[K]:
        return chain.from_iterable(self._buckets)

    def __len__(self) -> int:
        return self._length

    def values(self) -> ValuesView[V]:
        """All values."""
        return _Values(self)

    def items(self) -> ItemsView[K, V]:
        """All keys with their values."""
        return _Items(self)

    def draft(self) -> MapDraft[K, V]:
        """A copy that can be changed."""
        return MapDraft(self)


def _spread(entries: dict[K, V]) -> list[dict[K, V]]:
    """As many buckets as entries need; a power of two."""
    count = 1
    while len(entries) > _most(count):
        count *= 4
    if count == 1:
        return [entries]
    buckets: list[dict[K, V]] = [{} for _ in range(count)]
    for key, value in entries.items():
        buckets[hash(key) & count - 1][key] = value
    return buckets


class _Values(ValuesView[V]):
    _mapping: FrozenMap[object, V]

    def __iter__(self) -> Iterator[V]:
        return chain.from_iterable(bucket.values() for bucket in self._mapping._buckets)


class _Items(ItemsView[K, V]):
    _mapping: FrozenMap[K, V]

    def __iter__(self) -> Iterator[tuple[K, V]]:
        return chain.from_iterable(bucket.items() for bucket in self._mapping._buckets)


class MapDraft(Generic[K, V]):
    """A mapping on its way from one version to the next; what it does not touch is shared with the first."""

    def __init__(self, base: FrozenMap[K, V]) -> None:
        self._buckets = list(base._buckets)
        self._length = base._length
        self._own: set[int] = set()
        """The buckets that are copies, by their places."""

    def get(self, key: K) -> V | None:
        """The value of a key; None if there is none."""
        return self._buckets[hash(key) & len(self._buckets) - 1].get(key)

    def put(self, key: K, value: V) -> None:
        """Set the value of a key."""
        bucket = self._bucket(key)
        self._length += key not in bucket
        bucket[key] = value
        if self._length > _most(len(self._buckets)):
            self._buckets = _spread({k: v for each in self._buckets for k, v in each.items()})
            self._own = set(range(len(self._buckets)))

    def pop(self, key: K) -> V | None:
        """Take a key out; its value, None if there was none."""
        if self.get(key) is None:
            return None
        self._length -= 1
        return self._bucket(key).pop(key)

    def _bucket(self, key: K) -> dict[K, V]:
        at = hash(key) & len(self._buckets) - 1
        if at not in self._own:
            self._own.add(at)
            self._buckets[at] = dict(self._buckets[at])
        return self._buckets[at]

    def frozen(self) -> FrozenMap[K, V]:
        """What has become of it; the draft is not to be used any more."""
        made: FrozenMap[K, V] = FrozenMap.__new__(FrozenMap)
        made._buckets, made._length = self._buckets, self._length
        return made


class Timeline(Generic[T]):
    """Immutable items in the ascending order of a number that each has.

    Made for adding behind and taking away in front: both take no time. Versions share a list, of which each sees its
    own part; whoever adds behind the last version adds to it.
    """

    __slots__ = ("_high", "_items", "_low", "_number")

    def __init__(self, number: Callable[[T], int], items: Iterable[T] = ()) -> None:
        self._number = number
        self._items = sorted(items, key=number)
        self._low, self._high = 0, len(self._items)

    def __len__(self) -> int:
        return self._high - self._low

    def __iter__(self) -> Iterator[T]:
        return iter(self._items[self._low : self._high])

    def __reversed__(self) -> Iterator[T]:
        return (self._items[at] for at in range(self._high - 1, self._low - 1, -1))

    @property
    def last(self) -> T | None:
        """The one with the highest number."""
        return self._items[self._high - 1] if len(self) else None

    def up_to(self, number: int) -> T | None:
        """The last one at or below a number."""
        at = self._after(number)
        return self._items[at - 1] if at > self._low else None

    def between(self, above: int, up_to: int) -> tuple[T, ...]:
        """Those in a range of numbers, without its lower end."""
        return tuple(self._items[self._after(above) : self._after(up_to)])

    def before(self, number: int) -> tuple[T, ...]:
        """All in front of the one that `up_to` gives."""
        return tuple(self._items[self._low : max(self._after(number) - 1, self._low)])

    def _after(self, number: int) -> int:
        return bisect_right(self._items, number, self._low, self._high, key=self._number)

    def having(self, item: T) -> Timeline[T]:
        """With one more, which takes the place of one of the same number."""
        number, last = self._number(item), self.last
        if last is not None and number <= self._number(last):
            at = bisect_left(self._items, number, self._low, self._high, key=self._number)
            behind = at + (self._number(self._items[at]) == number)
            return self._of([*self._items[self._low : at], item, *self._items[behind : self._high]])
        if len(self._items) != self._high or self._low > max(_DEAD_MOST, len(self)):
            return self._of([*self._items[self._low : self._high], item])
        self._items.append(item)
        return self._of(self._items, self._low, self._high + 1)

    def without(self, number: int) -> Timeline[T]:
        """Without the one of a number, if there is one."""
        at = bisect_left(self._items, number, self._low, self._high, key=self._number)
        if at == self._high or self._number(self._items[at]) != number:
            return self
        if at == self._low:
            return self._of(self._items, self._low + 1, self._high)
        return self._of([*self._items[self._low : at], *self._items[at + 1 : self._high]])

    def _of(self, items: list[T], low: int = 0, high: int | None = None) -> Timeline[T]:
        made: Timeline[T] = Timeline.__new__(Timeline)
        made._number, made._items = self._number, items
        made._low, made._high = low, len(items) if high is None else high
        return made
