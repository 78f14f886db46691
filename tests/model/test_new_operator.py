"""An operator that nothing else has heard of: its node, its rule and its lowering are all that it takes."""

from __future__ import annotations

import pytest
from engine import Engine, Table
from pyspark.sql import SparkSession

from headrace.common.columns import Column
from headrace.common.lazy_dataclass import dataclass
from headrace.dataflow import build
from headrace.dataflow.flow import Builder, Flow
from headrace.dataflow.lowering import Lowering
from headrace.plan import derive
from headrace.plan.catalyst import nodes
from headrace.plan.catalyst.nodes import Node
from headrace.plan.derive import Derivation
from headrace.plan.tree import Operator, walk

COLUMNS = (Column("a", "int"), Column("b", "string"))


@dataclass
class Twice(Operator):
    """Each row twice: what UNION ALL makes of an input and itself."""

    kind = "twice"


def derive_twice(d: Derivation, node: Node, needed: set[int]) -> Operator:
    below = node.children[0]
    child = d.derive(below, {a.id for a in below.output})
    by_id = {a.id: a for a in child.output}
    child.output = [by_id[a.id] for a in below.output]
    return Twice(d.attrs(node.output), child.append_only, [child])


def twice(plan: Builder, op: Twice) -> Flow:
    b, flow = plan.bridge, plan.flow(op.child)
    columns = [c.alias(f"t{i}") for i, c in enumerate(plan.columns(flow, op.child.output))]
    frame = b.frame(flow.node).select(*columns, (b.column(flow.weight) * 2).alias("__w"))
    return plan.read_as(frame, op.output)


QUERY = """
SELECT u.b, count(*) AS n, max(s.a) AS most
FROM (SELECT a, b FROM t UNION ALL SELECT a, b FROM t) u LEFT JOIN s ON u.a = s.a GROUP BY u.b
"""


def engine(spark: SparkSession) -> Engine:
    return Engine(spark, [Table(1, "t", COLUMNS), Table(2, "s", COLUMNS)], QUERY, codegen=False)


def test_an_operator_is_added_by_its_own_module(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """The passes over a plan, fingerprint, EXPLAIN and an epoch's Spark plan take it as it comes."""
    with engine(spark) as known:
        before = known.plan
    monkeypatch.setitem(derive._RULES, nodes.Union, derive_twice)  # type: ignore[arg-type]
    monkeypatch.setitem(build.LOWERINGS, Twice, Lowering(Twice, flow=twice))  # type: ignore[arg-type]
    with engine(spark) as made:
        assert "twice" in {op.kind for op in walk(made.plan.root)}
        assert any(line.strip().endswith("twice:") for line in made.plan.explain())
        assert made.plan.fingerprint != before.fingerprint and made.plan.upstreams == before.upstreams
        made.insert("t", (1, "x"), (2, "y"), (2, "y"))
        made.advance()
        made.check()
        made.insert("s", (2, "z"))
        made.change("t", [((2, "y"), -1), ((3, "x"), 1)])
        made.advance(2)
        made.check()
        made.delete("s", (2, "z"))
        made.advance()
        made.check()
        assert made.rows() == [("x", 4, None), ("y", 2, None)]
