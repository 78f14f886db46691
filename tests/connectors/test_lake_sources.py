"""The sources of Iceberg and Delta tables: at every snapshot they have the rows that the table's own package reads."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headrace.common.columns import Column
from headrace.connectors.base import Admission, Binding, Offsets, Source
from headrace.connectors.sources import open_source
from headrace.session.database import Database, connect
from lakes import DeltaLake, IcebergLake, Lake, Row
from support import eventually

COLUMNS = [Column("id", "bigint"), Column("v", "string"), Column("p", "string")]
KINDS: dict[str, Callable[..., Lake]] = {"iceberg": IcebergLake, "deltalake": DeltaLake}


@pytest.fixture(params=[*KINDS])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return KINDS[request.param](tmp_path)


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


def history(lake: Lake, seed: int) -> list[Callable[[], None]]:
    """Random changes; whoever makes them runs them one by one."""
    draw, new = random.Random(seed), itertools.count(1)

    def some() -> list[int]:
        ids = [row[0] for row in lake.rows()]
        return draw.sample(ids, min(len(ids), draw.randint(1, 4))) or [0]

    def fresh(count: int) -> list[Row]:
        return [(next(new), draw.choice(["x", "y", None]), draw.choice(["a b", "c/d", None])) for _ in range(count)]

    def merged() -> None:
        lake.merge([(i, f"m{draw.randint(0, 9)}", "a b") for i in some()] + fresh(2))

    kinds = [
        lambda: lake.append(fresh(draw.randint(1, 6))), lambda: lake.append(fresh(3)), lambda: lake.delete(some()),
        merged, lake.compact, lambda: lake.overwrite(fresh(4)),
    ]  # fmt: skip
    return draw.choices(kinds, [4, 4, 4, 3, 2, 1], k=12)


@pytest.mark.parametrize("kind", [*KINDS])
@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_every_snapshot_is_followed(kind: str, partitioned: bool, seed: int, tmp_path: Path) -> None:
    """One reader follows each commit, one several at once, and one begins late; each pair of offsets can be read."""
    lake = KINDS[kind](tmp_path, partitioned)
    eager, lazy = Follower(lake), Follower(lake)
    contents = [(eager.at, Counter[Row]())]
    for number, change in enumerate(history(lake, seed)):
        change()
        eager.follow(2)
        assert eager.kept == lake.rows()
        contents.append((eager.at, lake.rows()))
        if number % 5 == 4:
            lazy.follow()
            assert lazy.kept == lake.rows()
    source = eager.open()
    for (low, before), (high, after) in itertools.combinations(contents, 2):
        wanted = {row: after[row] - before[row] for row in {**before, **after} if after[row] != before[row]}
        assert rows_of(source, low, high, 2) == wanted
    late = Follower(lake)
    late.follow(3)
    assert late.kept == lake.rows()


def content(database: Database, query: str) -> Counter[Any]:
    return Counter(tuple(row) for row in database.sql(query).rows())


@pytest.mark.parametrize("kind", [*KINDS])
def test_views_tables_and_queries(kind: str, spark: SparkSession, tmp_path: Path) -> None:
    """What the table takes back, views take back, too; with a primary key and without one."""
    lake = KINDS[kind](tmp_path)
    lake.append([(i, "xy"[i % 2], None) for i in range(20)])
    with connect(tmp_path / "db", spark=spark) as database:
        database.sql(f"CREATE SOURCE s WITH ({lake.sql()})")
        database.sql(f"CREATE TABLE keyed (id bigint PRIMARY KEY, v text) WITH ({lake.sql()})")
        database.sql(f"CREATE TABLE plain (id bigint, v text) WITH ({lake.sql()})")
        database.sql("CREATE MATERIALIZED VIEW sums AS SELECT v, count(*) AS n, sum(id) AS s FROM s GROUP BY v")

        def followed() -> bool:
            there = lake.rows()
            wanted = Counter((row[0], row[1]) for row in there.elements())
            sums = Counter(
                (v, sum(r[1] == v for r in there.elements()), sum(r[0] for r in there.elements() if r[1] == v))
                for v in {row[1] for row in there}
            )
            return (
                content(database, "SELECT id, v FROM keyed") == wanted
                and content(database, "SELECT id, v FROM plain") == wanted
                and content(database, "SELECT v, n, s FROM sums") == sums
                and content(database, "SELECT id, v FROM s") == wanted
            )

        eventually(followed, "the first content")
        for change in (lambda: lake.delete([1, 2, 3]), lambda: lake.merge([(4, "z", None), (99, "x", None)]),
                       lake.compact, lambda: lake.overwrite([(7, "y", "p")])):  # fmt: skip
            change()
            eventually(followed, "a change")
