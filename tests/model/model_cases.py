"""Cases of the law: tables, a query, a history of changes, how it falls into epochs, and how each epoch is run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import model_queries
from engine import Engine, Row, Table, Udfs, bag
from hypothesis import strategies as st
from model_values import ALL_TYPES, NUMBER_TYPES, SMALL_KEY, literal, numbers, values
from pyspark.sql import SparkSession

from headrace.common.columns import Column
from headrace.errors import DataError, HeadraceError

Change = tuple[str, list[tuple[Row, int]]]


@dataclass(frozen=True)
class Epoch:
    """The changes that one epoch takes in, each written in a table epoch of its own, and the tasks that run it."""

    changes: tuple[Change, ...]
    parallelism: int


@dataclass
class Case:
    """Everything that decides a run."""

    query: str
    columns: dict[str, tuple[Column, ...]]
    epochs: tuple[Epoch, ...]
    append_only: frozenset[str] = frozenset()
    weak_hash: int | None = None
    udfs: Udfs = field(default_factory=dict)

    def script(self, upto: int | None = None) -> str:
        """The case as SQL, for people."""
        lines = []
        for name, columns in self.columns.items():
            only = "  -- append-only" if name in self.append_only else ""
            lines.append(f"CREATE TABLE {name} ({', '.join(f'{c.name} {c.type}' for c in columns)});{only}")
        lines.append(f"CREATE MATERIALIZED VIEW v AS {self.query};  -- weak_hash={self.weak_hash}")
        for i, epoch in enumerate(self.epochs[:upto]):
            for name, delta in epoch.changes:
                lines += [self._statement(name, row, weight) for row, weight in delta]
                lines.append("-- (a change ends)")
            lines.append(f"-- epoch {i + 1}, parallelism {epoch.parallelism}")
        return "\n".join(lines)

    def _statement(self, name: str, row: Row, weight: int) -> str:
        columns = self.columns[name]
        texts = [literal(v, c.type) for v, c in zip(row, columns)]
        if weight > 0:
            return f"INSERT INTO {name} VALUES ({', '.join(texts)});"
        where = " AND ".join(f"{c.name} <=> {t}" for c, t in zip(columns, texts))
        return f"DELETE FROM {name} WHERE {where};  -- one of them"

    def __repr__(self) -> str:
        return f"\n{self.script()}\n"


def run_case(spark: SparkSession, case: Case) -> None:
    """Run a case, and hold the view against Spark's batch answer after every epoch.

    Where the batch query fails on the data (an overflow, a division), the epoch must fail as well, and the next one
    goes on from where the view was.
    """
    tables = [Table(i + 1, n, c, n in case.append_only) for i, (n, c) in enumerate(case.columns.items())]
    with Engine(spark, tables, case.query, case.weak_hash, case.udfs) as engine:
        for i, epoch in enumerate(case.epochs):
            for name, delta in epoch.changes:
                engine.change(name, delta)
            try:
                _step(engine, epoch.parallelism)
            except Exception as error:
                plan = "\n".join(engine.plan.explain())
                raise AssertionError(f"{error}\n\n{case.script(i + 1)}\n\n{plan}") from error


def _step(engine: Engine, parallelism: int) -> None:
    try:
        want = bag(engine.expected())
    except HeadraceError as expected:
        if not isinstance(expected, DataError):
            raise
        try:
            engine.advance(parallelism)
        except HeadraceError as error:
            assert error.sqlstate == expected.sqlstate, f"{error!r} where the batch query says {expected!r}"
            return
        raise AssertionError(f"the batch query fails, the view does not: {expected!r}") from expected
    engine.advance(parallelism)
    got = bag(engine.view())
    assert got == want, f"{engine.query}\nmissing: {want - got}\nsurplus: {got - want}"


# -- strategies ----------------------------------------------------------------------------------------------------


@st.composite
def schemas(draw: Callable[[Any], Any]) -> dict[str, tuple[Column, ...]]:
    """Two tables that can be joined: a small key `a`, a key `b` of any type, numbers `n`, and `v` of any type."""
    b = draw(st.sampled_from(ALL_TYPES))
    return {
        name: (
            Column("a", "int"),
            Column("b", b),
            Column("n", draw(st.sampled_from(NUMBER_TYPES))),
            Column("v", draw(st.sampled_from(ALL_TYPES))),
        )
        for name in ("t", "s")
    }


def rows(columns: Sequence[Column]) -> st.SearchStrategy[Row]:
    """Rows of a table of `schemas`."""
    return st.tuples(*(_column(c) for c in columns))


def _column(column: Column) -> st.SearchStrategy[Any]:
    if column.name == "a":
        return st.sampled_from([*SMALL_KEY, *SMALL_KEY, None])
    return numbers(column.type) if column.name == "n" else values(column.type)


@st.composite
def histories(
    draw: Callable[[Any], Any],
    columns: dict[str, tuple[Column, ...]],
    append_only: frozenset[str],
    max_epochs: int = 4,
    parallelism: Sequence[int] = (1, 2, 3, 5),
) -> tuple[Epoch, ...]:
    """Inserts, deletes and updates of rows that are there, in changes and epochs of any size, empty ones too.

    Chance alone often leaves a short history without what tells most. So two epochs follow in which every table gains
    rows it has had before, several times over, and then loses about half of its rows.
    """
    # A physical plan is made for every parallelism; two of them in one history show what there is to see.
    count = draw(st.sampled_from([1, 1, 2]))
    degrees = draw(st.lists(st.sampled_from(parallelism), min_size=count, max_size=count, unique=True))
    pools = {name: draw(st.lists(rows(c), min_size=2, max_size=6)) for name, c in columns.items()}
    content: dict[str, list[Row]] = {name: [] for name in columns}
    epochs = []
    for _ in range(draw(st.integers(min(2, max_epochs - 2), max_epochs - 2))):
        changes: list[Change] = []
        for _ in range(draw(st.sampled_from([0, 1, 1, 2, 2, 3]))):
            name = draw(st.sampled_from(sorted(columns)))
            kinds = "i" if name in append_only else "iiidduu"
            delta: list[tuple[Row, int]] = []
            for kind in draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=5)):
                if kind in "du" and content[name]:
                    gone = content[name].pop(draw(st.integers(0, len(content[name]) - 1)))
                    delta.append((gone, -1))
                if kind in "iu":
                    row = draw(st.sampled_from(pools[name]))
                    content[name].append(row)
                    delta.append((row, 1))
            if delta:
                changes.append((name, delta))
        epochs.append(Epoch(tuple(changes), draw(st.sampled_from(degrees))))
    for gain in (True, False):
        step = _gain(pools, content) if gain else _loss(content, append_only)
        epochs.append(Epoch(step, draw(st.sampled_from(degrees))))
    return tuple(epochs)


def _gain(pools: dict[str, list[Row]], content: dict[str, list[Row]]) -> tuple[Change, ...]:
    """Every row of the pools once more, and the first of each twice more."""
    found = []
    for name, pool in sorted(pools.items()):
        content[name] += [*pool, pool[0]]
        found.append((name, [(row, 1) for row in [*pool, pool[0]]]))
    return tuple(found)


def _loss(content: dict[str, list[Row]], append_only: frozenset[str]) -> tuple[Change, ...]:
    """Every second row of each table goes, where rows may go at all."""
    found = []
    for name in sorted(set(content) - append_only):
        gone = content[name][::2]
        content[name] = content[name][1::2]
        found.append((name, [(row, -1) for row in gone]))
    return tuple(found)


@st.composite
def cases(draw: Callable[[Any], Any], query: str | None = None, max_epochs: int = 4) -> Case:
    """Any case; of a given query where one is given."""
    columns = draw(schemas())
    append_only = draw(st.sampled_from([frozenset[str](), frozenset[str](), frozenset({"t"}), frozenset({"t", "s"})]))
    text = query if query is not None else draw(model_queries.queries())
    weak = draw(st.sampled_from([None, None, None, 1, 2, 4]))
    return Case(text, columns, draw(histories(columns, append_only, max_epochs)), append_only, weak)
