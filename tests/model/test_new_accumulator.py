"""An accumulator that nothing else has heard of: its class and one rule are all that it takes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from engine import Engine, Table
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.common.columns import Column
from headrace.common.lazy_dataclass import dataclass
from headrace.plan import accumulable
from headrace.plan.accumulable import AsItIs
from headrace.plan.tree import walk
from headrace.state.accumulators import Accumulator
from headrace.state.accumulators.accumulator import Layout, nulled

COLUMNS = (Column("a", "int"), Column("x", "double"))


@dataclass(frozen=True)
class Signs(Accumulator):
    """The product of numbers each of which is -1, 0 or 1."""

    def layout(self) -> Layout:
        return [(suffix, pa.int64(), "add") for suffix in ("n", "zeros", "minus")]

    def of_rows(self, sent: Sequence[pa.Array], weights: np.ndarray) -> list[pa.Array]:
        values = np.asarray(pc.fill_null(sent[0], 1.0))
        masks = (np.asarray(pc.is_valid(sent[0])), values == 0, values < 0)
        return [pa.array(np.where(mask, weights, 0)) for mask in masks]

    def read(self, diffs: Sequence[pa.Array]) -> pa.Array:
        count, zeros, minus = (np.asarray(d) for d in diffs)
        return nulled(np.where(zeros > 0, 0.0, np.where(minus % 2 == 0, 1.0, -1.0)), count)


@pytest.fixture
def shipped() -> Iterator[None]:
    """Workers get the class itself: they cannot import this module."""
    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    yield
    cloudpickle.unregister_pickle_by_value(module)


def products(spark: SparkSession) -> DataFrame:
    return spark.table("t").groupBy("a").agg(F.product("x").alias("p"), F.count("*").alias("n"))


@pytest.mark.usefixtures("shipped")
def test_an_accumulator_is_added_by_its_class_and_a_rule(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan, state, fingerprint and an epoch's Spark job take it as it comes."""
    with Engine(spark, [Table(1, "t", COLUMNS)], products) as known:
        before = known.plan
    assert "recompute" in {op.kind for op in walk(before.root)}
    monkeypatch.setitem(accumulable.RULES, "Product", AsItIs("product", Signs))  # type: ignore[arg-type]
    with Engine(spark, [Table(1, "t", COLUMNS)], products) as made:
        assert {op.kind for op in walk(made.plan.root)} >= {"aggregate"}
        assert made.plan.fingerprint != before.fingerprint
        names = [schema.arrow().names for schema in made.plan.state_tables().values()]
        assert any({"a0_n", "a0_zeros", "a0_minus"} <= set(n) for n in names)
        made.insert("t", (1, -1.0), (1, 1.0), (2, 0.0), (2, -1.0), (3, None))
        made.advance()
        made.check()
        made.insert("t", (1, -1.0), (3, -1.0))
        made.delete("t", (2, 0.0))
        made.advance(2)
        made.check()
        made.delete("t", (1, 1.0), (1, -1.0))
        made.advance()
        made.check()
        assert sorted(made.rows()) == [(1, -1.0, 1), (2, -1.0, 1), (3, -1.0, 2)]
