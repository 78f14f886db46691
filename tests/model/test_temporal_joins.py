"""Temporal joins: each row is joined once, with the other relation as it is at the epoch that takes the row in."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from engine import Engine, Row, Table, bag
from keyed import Keyed
from pyspark.sql import SparkSession

from headrace.common.columns import Column
from headrace.dataflow.params import EpochParams
from headrace.errors import NotSupported
from headrace.plan.planner import Path, PlannedRelation, Planner


class Looking(Engine):
    """An engine with a stream `a` and a table `b`; what it is to hold depends on the epochs, so it is added up."""

    def __init__(self, spark: SparkSession, stream: Table, table: Keyed, query: str, weak: int | None = None) -> None:
        self.keyed = table
        super().__init__(spark, [stream, table], query, weak, codegen=False)
        self.seen = 0
        self.wanted: Counter[Row] = Counter()

    def define(self, planner: Planner, table: Table) -> None:
        key = table.key if isinstance(table, Keyed) and table.unique else ()
        relation = PlannedRelation(table.id, table.name, table.append_only, primary_key=key)
        planner.define(relation, table.columns, table.name)
        if isinstance(table, Keyed) and not table.unique:
            columns = frozenset(c.name for c in table.columns)
            planner.define_path(relation, Path(table.id, "i", table.key, columns, False))

    def put(self, *rows: Row, gone: tuple[Row, ...] = ()) -> None:
        """Upsert rows of the table, and delete others, in one epoch; without a primary key insert and delete them."""
        table = self.keyed
        place = [[c.name for c in table.columns].index(n) for n in table.key]
        keys = {tuple(r[i] for i in place) for r in ((*rows, *gone) if table.unique else gone)}
        old = [r for r in table.rows if tuple(r[i] for i in place) in keys]
        delta = [(r, -1) for r in old] + [(r, 1) for r in rows]
        self.epoch += 1
        for row, weight in delta:
            table.apply(row, weight)
        table.write(self.root, self.epoch, delta)

    def params(self, attempt: str) -> EpochParams:
        found = super().params(attempt)
        tables = {i: t for i, t in found.tables.items() if i not in self.plan.read_only_by_lookup}
        return replace(found, tables=tables, lookups={self.keyed.id: tuple(self.keyed.refs)})

    def step(self, parallelism: int = 1) -> None:
        stream = self.tables["a"]
        new = replace(stream, rows=stream.rows[self.seen :])
        query = str(self.query).replace("b_now", "b")
        self.wanted += bag(self.batch.answer(query, {"a": new, "b": self.keyed}))
        self.seen = len(stream.rows)
        self.advance(parallelism)
        got = bag(self.view())
        assert got == self.wanted, f"{self.query}\nmissing: {self.wanted - got}\nsurplus: {got - self.wanted}"


QUERIES = {
    "inner": "SELECT a.k, a.x, b.y FROM a JOIN b_now b ON a.k = b.k WHERE b.y <> 2 OR a.x > 1",
    "left": "SELECT a.*, b.y + 1 AS y1, b.k IS NULL AS none FROM a LEFT JOIN b_now b ON b.k = a.x AND b.y > a.k",
    "cast": "SELECT a.x, coalesce(z.y, -1) AS y FROM a LEFT JOIN (SELECT k AS kk, y FROM b_now WHERE y < 4) z "
    "ON a.l = z.kk",
    "constant": "SELECT a.x, b.y FROM a JOIN b_now b ON b.k = 1",
    "no_columns": "SELECT a.x FROM a JOIN b_now b ON a.k = b.k",
    "twice": "SELECT a.x, b.y, c.y AS z FROM a JOIN b_now b ON a.k = b.k LEFT JOIN b_now c ON c.k = b.y",
}
BY_INDEX = {
    "index_left": "SELECT a.k, a.x, b.y FROM a LEFT JOIN b_now b ON a.k = b.k",
    "index_inner": "SELECT a.x, b.y FROM a JOIN b_now b ON a.l = b.k AND b.y > a.x WHERE b.y <> 3",
}
SOME = ("left",)


@pytest.mark.parametrize(
    "name", [n if n in SOME else pytest.param(n, marks=pytest.mark.soak) for n in [*QUERIES, *BY_INDEX]]
)
def test_each_row_is_joined_once(spark: SparkSession, name: str) -> None:
    choice = random.Random(name)
    stream = Table(1, "a", (Column("k", "int"), Column("x", "int"), Column("l", "bigint")), True)
    table = Keyed(2, "b", (Column("k", "int"), Column("y", "int")), key=("k",), unique=name in QUERIES)
    degrees = choice.choice([[1], [1, 3]])
    with Looking(spark, stream, table, {**QUERIES, **BY_INDEX}[name]) as engine:
        assert engine.plan.append_only and set(engine.plan.state_tables()) == {"view/rows"}
        for epoch in range(5):
            if epoch != 3:
                engine.insert("a", *(_row(choice) for _ in range(6)))
            if epoch:
                engine.put(*((k, choice.randrange(5)) for k in choice.sample(range(4), 2)), gone=((3, 0),))
            engine.step(degrees[epoch % len(degrees)])
        assert engine.wanted, "no rows to compare"


def _row(choice: random.Random) -> Row:
    small = [None, 0, 1, 2, 3]
    return choice.choice(small), choice.choice(small), choice.choice([*small, 2**40])


def test_refused(spark: SparkSession) -> None:
    planner = Planner(spark)
    for i, (name, only, key) in enumerate((("a", True, ()), ("c", False, ()), ("b", False, ("k", "k2")))):
        columns = (Column("k", "int"), Column("k2", "string"), Column("x", "double"))
        planner.define(PlannedRelation(i + 1, name, only, primary_key=key), columns, name)
    on = "ON a.k = b.k AND b.k2 = a.k2"
    for query, reason in {
        f"SELECT a.x FROM c a JOIN b_now b {on}": "may change or go",
        "SELECT a.x FROM a JOIN b_now b ON a.k = b.k": "does not give its primary key",
        f"SELECT a.x FROM a FULL JOIN b_now b {on}": "a FullOuter join",
        f"SELECT a.x FROM a LEFT SEMI JOIN b_now b {on}": "a LeftSemi join",
        "SELECT x FROM b_now": "other than on the right of a join",
        f"SELECT a.x FROM a JOIN (SELECT k, k2, count(*) FROM b_now GROUP BY k, k2) b {on}": "other than on the right",
    }.items():
        with pytest.raises(NotSupported, match=reason) as caught:
            planner.plan(query)
        assert caught.value.sqlstate == "0A000" and caught.value.hint
    planner.define(PlannedRelation(4, "d", False, primary_key=("s",)), (Column("s", "string"),), "d")
    planner.define(PlannedRelation(5, "e", False, primary_key=("t",)), (Column("t", "timestamp"),), "e")
    for on_key in ("d_now d ON d.s = a.k2", "e_now e ON date_from_unix_date(a.k) = e.t"):
        assert planner.plan(f"SELECT a.x FROM a JOIN {on_key}").lookups
    planner.define_path(2, Path(9, "i", ("k",), frozenset(("k", "x")), False))
    assert planner.plan("SELECT a.x, c.x AS y FROM a JOIN c_now c ON a.k = c.k AND c.x > a.x").lookups == {9}
    for query, reason in {
        "SELECT a.x FROM a LEFT JOIN c_now c ON a.k = c.k AND c.x > 1": "more conditions than its key",
        "SELECT c.k2 FROM a JOIN c_now c ON a.k = c.k": "all columns of an index",
        "SELECT a.x FROM a JOIN c_now c ON a.k <=> c.k": "all columns of an index",
        # Many texts, and many times, are the same number or day: a look-up would find one of them.
        "SELECT a.x FROM a JOIN d_now d ON CAST(d.s AS int) = a.k": "does not give its primary key",
        "SELECT a.x FROM a JOIN e_now e ON CAST(e.t AS date) = date_from_unix_date(a.k)": "does not give its primary",
        "SELECT a.x FROM a JOIN d_now d ON d.s COLLATE UTF8_LCASE = a.k2": "does not give its primary key",
    }.items():
        with pytest.raises(NotSupported, match=reason):
            planner.plan(query)
    planner.forget(9)
    with pytest.raises(NotSupported, match="primary key"):
        planner.plan("SELECT a.x FROM a JOIN c_now c ON a.k = c.k")
    both = planner.plan(f"SELECT a.x, b.x AS y FROM a JOIN b_now b {on} JOIN b d ON d.k = a.k")
    assert both.lookups == {3} and not both.read_only_by_lookup
