"""A reader of a lake table's source, as a view is one: what it has taken in, and the offsets at which it has stood."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from headrace.common.columns import Column
from headrace.connectors.base import Admission, Binding, Offsets, Source
from headrace.connectors.sources import open_source
from lakes import Lake

COLUMNS = [Column("id", "bigint"), Column("v", "string"), Column("p", "string")]


def rows_of(source: Source, from_: Offsets, to: Offsets, parts: int = 3) -> Counter[Any]:
    """The difference between two offsets, as often as each row comes (or goes)."""
    found: Counter[Any] = Counter()
    for task in source.plan(from_, to, parts):
        for made in source.read(task):
            weights = [1] * made.batch.num_rows if made.weights is None else made.weights.to_pylist()
            for row, weight in zip(zip(*(c.to_pylist() for c in made.batch.columns)), weights, strict=True):
                found[row] += weight
    return Counter({row: weight for row, weight in found.items() if weight})


class Follower:
    """A reader that takes in what is bound, each time with a new source, as after a restart."""

    def __init__(self, lake: Lake, columns: Sequence[Column] = COLUMNS, **options: str) -> None:
        self.lake, self.columns = lake, columns
        self.options = {**lake.options(), **options}
        self.open().claim()
        self.at: Offsets = self.open().start_offsets()
        self.bounds = [self.at]
        self.kept: Counter[Any] = Counter()
        self._minutes = itertools.count()

    def open(self) -> Source:
        return open_source(self.options, self.columns)

    def bind(self, rows: int | None = None) -> Binding:
        return self.open().latest_offsets(self.at, Admission(rows), 60_000 * next(self._minutes))

    def step(self, rows: int | None = None) -> bool:
        """Take in one binding; False if there is nothing new."""
        bound = self.bind(rows)
        if bound.offsets == self.at:
            return False
        self.kept.update(rows_of(self.open(), self.at, bound.offsets))
        assert min(self.kept.values(), default=0) >= 0, "nothing goes that was not there"
        self.kept = +self.kept
        self.at = bound.offsets
        self.bounds.append(self.at)
        return True

    def follow(self, rows: int | None = None) -> None:
        while self.step(rows):
            pass


def check_followed(lake: Lake, history: Iterable[Callable[[], None]], *, lazy_every: int) -> None:
    """One reader follows each change, another one several at once; each pair of offsets can be read."""
    eager, lazy = Follower(lake), Follower(lake)
    contents = [(eager.at, Counter[Any]())]
    for number, change in enumerate(history, 1):
        change()
        eager.follow(2)
        assert eager.kept == lake.rows()
        contents.append((eager.at, lake.rows()))
        if number % lazy_every == 0:
            lazy.follow()
            assert lazy.kept == lake.rows()
    source = eager.open()
    for (low, before), (high, after) in itertools.combinations(contents, 2):
        wanted = {row: after[row] - before[row] for row in {**before, **after} if after[row] != before[row]}
        assert rows_of(source, low, high, 2) == wanted
