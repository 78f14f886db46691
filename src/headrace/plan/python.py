"""The rules for plan nodes that call Python functions.

Scalar functions, table functions and maps work row by row; aggregates and functions over groups are recomputed for the
groups that changed. A map or a table function is a function of the bag of its rows: Spark itself promises nothing
about how rows fall into batches and partitions, so a function that depends on it has no right answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle
from pyspark.util import PythonEvalType

from headrace.errors import NotSupported
from headrace.plan.catalyst.bridge import Bridge, JExpr, JNode
from headrace.plan.recompute import recompute
from headrace.plan.tree import Operator, Rowwise

if TYPE_CHECKING:
    from headrace.plan.derive import Derivation

CALLS = frozenset({"PythonUDF", "PythonUDAF", "PythonUDTF"})
"""Kinds of expressions that call a Python function."""
AGGREGATE_CALL = frozenset({"PythonUDAF"})
APPLY = "Apply"
"""Label of a group recompute by `applyInPandas` or `applyInArrow`."""
_GROUPED = {
    PythonEvalType.SQL_GROUPED_MAP_PANDAS_UDF: "applyInPandas",
    PythonEvalType.SQL_GROUPED_MAP_ARROW_UDF: "applyInArrow",
}


def derive_map(d: Derivation, node: JNode, needed: set[int]) -> Operator:
    """`mapInPandas` and `mapInArrow`: row by row."""
    b = d.bridge
    if bool(node.isBarrier()):
        raise NotSupported("a barrier stage in a view", hint="leave barrier=True out")
    below = b.children(node)[0]
    child = d.derive(below, {b.attribute_id(a) for a in b.output(below)})
    output = d.attrs(b.output(node))
    return Rowwise(output, child.append_only, [child], node, b.kind(node), _text(b, node))


def derive_table_function(d: Derivation, node: JNode, needed: set[int]) -> Operator:
    """A Python table function called for each row."""
    b = d.bridge
    call = node.udtf()
    name = str(call.name())
    taken = call.tableArguments()
    if not taken.isEmpty() and any(bool(t) for t in b.items(taken.get())):
        raise NotSupported(
            f"the table function {name} over a TABLE argument in a view",
            hint="pass it columns of the row (LATERAL), or group the rows and use applyInPandas",
        )
    handler = _loaded(b, call.func())
    if hasattr(handler, "terminate"):
        raise NotSupported(
            f"the table function {name} in a view: its method terminate depends on partitions",
            hint="yield all rows of a call in eval",
        )
    below = {b.attribute_id(a) for a in b.output(b.children(node)[0])}
    wanted = (needed & below) | d.references([call])
    child = d.derive(b.children(node)[0], wanted)
    kept = [a for a in d.attrs(b.output(node)) if a.id in needed]
    return Rowwise(kept, child.append_only, [child], node, b.kind(node), _text(b, node))


def derive_apply(d: Derivation, node: JNode, needed: set[int]) -> Operator:
    """`groupBy(...).applyInPandas` and `applyInArrow`: recomputed by group."""
    b = d.bridge
    if int(node.functionExpr().evalType()) not in _GROUPED:
        raise NotSupported(
            "applyInPandas or applyInArrow with a function over iterators in a view",
            hint="give a function that takes the whole group and returns one DataFrame or table",
        )
    keys = b.items(node.groupingAttributes())
    wanted = d.references([node.functionExpr(), *keys])
    return recompute(d, node, APPLY, keys, wanted, d.attrs(b.output(node)))


def refuse_cogroup(d: Derivation, node: JNode, needed: set[int]) -> Operator:
    """`cogroup` has no rule."""
    raise NotSupported(
        "cogroup(...).applyInPandas in a view",
        hint="union both inputs with a column that tells them apart, then groupBy(...).applyInPandas",
    )


def check_aggregates(b: Bridge, functions: list[JExpr]) -> None:
    """Refuse what Spark cannot run: Python aggregates of different kinds, or beside built-in ones."""
    kinds = {int(f.evalType()) if b.kind(f) == "PythonUDAF" else None for f in functions}
    if kinds <= {None} or len(kinds) == 1:
        return
    name = next(str(f.name()) for f in functions if b.kind(f) == "PythonUDAF")
    raise NotSupported(
        f"the Python aggregate {name} beside aggregates of another kind",
        hint="define it by CREATE AGGREGATE ... LANGUAGE python, which goes with any other aggregate; or compute each "
        "in a view of its own and join them",
    )


def nondeterministic_call(b: Bridge, expression: JExpr) -> str | None:
    """The name of a Python function in an expression that is not declared deterministic."""
    for call in b.find(expression, CALLS):
        if not bool(call.udfDeterministic()):
            return str(call.name())
    return None


def names_called(b: Bridge, node: JNode) -> set[str]:
    """Names of all Python functions that a plan calls."""
    found = {str(call.name()) for e in b.expressions_of(node) for call in b.find(e, CALLS)}
    for child in [*b.children(node), *b.subqueries(node)]:
        found |= names_called(b, child)
    return found


def _loaded(b: Bridge, function: Any) -> Any:
    """What a Python function was pickled from; for a table function its class."""
    try:
        return cloudpickle.loads(b.python_command(function))
    except NotSupported:
        raise
    except Exception as error:
        raise NotSupported(
            f"a Python function that cannot be loaded again: {type(error).__name__}: {error}",
            hint="define it in a module that can be imported, or without what cannot be pickled",
        ) from error


def _text(b: Bridge, node: JNode) -> str:
    return str(node.simpleString(1000)).removeprefix(b.kind(node)).strip()
