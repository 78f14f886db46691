"""The rules for plan nodes that call Python functions.

Scalar functions, table functions and maps work row by row; aggregates and functions over groups are recomputed for the
groups that changed. A map or a table function is a function of the bag of its rows: Spark itself promises nothing
about how rows fall into batches and partitions, so a function that depends on it has no right answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark import cloudpickle
from pyspark.util import PythonEvalType

from headrace.common.lazy_dataclass import dataclass
from headrace.errors import NotSupported
from headrace.plan.catalyst.bridge import Bridge
from headrace.plan.catalyst.expressions import Expr
from headrace.plan.catalyst.kinds import PythonCall
from headrace.plan.catalyst.nodes import Node, PythonGroups, PythonMap, PythonTable
from headrace.plan.recompute import Applied, recompute
from headrace.plan.rowwise import Rowwise
from headrace.plan.tree import Operator

if TYPE_CHECKING:
    from headrace.plan.derive import Derivation

_GROUPED = {
    PythonEvalType.SQL_GROUPED_MAP_PANDAS_UDF: "applyInPandas",
    PythonEvalType.SQL_GROUPED_MAP_ARROW_UDF: "applyInArrow",
}


@dataclass
class PythonRows(Rowwise):
    """What a Python function makes of all rows: `mapInPandas`, `mapInArrow`."""

    node: PythonMap


@dataclass
class TableFunction(Rowwise):
    """Each row once for each row that a Python table function makes of it, with the columns of that beside its own."""

    node: PythonTable


def derive_map(d: Derivation, node: PythonMap, needed: set[int]) -> Operator:
    """`mapInPandas` and `mapInArrow`: row by row."""
    if node.is_barrier:
        raise NotSupported("a barrier stage in a view", hint="leave barrier=True out")
    below = node.child
    child = d.derive(below, {a.id for a in below.output})
    output = d.attrs(node.output)
    return PythonRows(output, child.append_only, [child], node, node.detail)


def derive_table_function(d: Derivation, node: PythonTable, needed: set[int]) -> Operator:
    """A Python table function called for each row."""
    b = d.bridge
    call = node.call
    name = call.name
    if call.takes_table:
        raise NotSupported(
            f"the table function {name} over a TABLE argument in a view",
            hint="pass it columns of the row (LATERAL), or group the rows and use applyInPandas",
        )
    handler = _loaded(b, call)
    if hasattr(handler, "terminate"):
        raise NotSupported(
            f"the table function {name} in a view: its method terminate depends on partitions",
            hint="yield all rows of a call in eval",
        )
    below = {a.id for a in node.child.output}
    wanted = (needed & below) | d.references([call])
    child = d.derive(node.child, wanted)
    kept = [a for a in d.attrs(node.output) if a.id in needed]
    return TableFunction(kept, child.append_only, [child], node, node.detail)


def derive_apply(d: Derivation, node: PythonGroups, needed: set[int]) -> Operator:
    """`groupBy(...).applyInPandas` and `applyInArrow`: recomputed by group."""
    if node.call.eval_type not in _GROUPED:
        raise NotSupported(
            "applyInPandas or applyInArrow with a function over iterators in a view",
            hint="give a function that takes the whole group and returns one DataFrame or table",
        )
    keys = node.keys
    wanted = d.references([node.call, *keys])
    return recompute(Applied, d, node, keys, wanted, d.attrs(node.output))


def refuse_cogroup(d: Derivation, node: Node, needed: set[int]) -> Operator:
    """`cogroup` has no rule."""
    raise NotSupported(
        "cogroup(...).applyInPandas in a view",
        hint="union both inputs with a column that tells them apart, then groupBy(...).applyInPandas",
    )


def check_aggregates(functions: Sequence[Expr]) -> None:
    """Refuse what Spark cannot run: Python aggregates of different kinds, or beside built-in ones."""
    called = [f for f in functions if isinstance(f, PythonCall)]
    kinds = {f.eval_type if isinstance(f, PythonCall) else None for f in functions}
    if kinds <= {None} or len(kinds) == 1:
        return
    name = called[0].name
    raise NotSupported(
        f"the Python aggregate {name} beside aggregates of another kind",
        hint="define it by CREATE AGGREGATE ... LANGUAGE python, which goes with any other aggregate; or compute each "
        "in a view of its own and join them",
    )


def nondeterministic_call(expression: Expr) -> str | None:
    """The name of a Python function in an expression that is not declared deterministic."""
    for call in expression.every(PythonCall):
        if not call.declared_deterministic:
            return call.name
    return None


def names_called(node: Node) -> set[str]:
    """Names of all Python functions that a plan calls."""
    found = {call.name for e in node.expressions for call in e.every(PythonCall)}
    for child in [*node.children, *node.subqueries]:
        found |= names_called(child)
    return found


def _loaded(b: Bridge, call: PythonCall) -> object:
    """What a Python function was pickled from; for a table function its class."""
    try:
        return cloudpickle.loads(b.python_command(call))
    except NotSupported:
        raise
    except Exception as error:
        raise NotSupported(
            f"a Python function that cannot be loaded again: {type(error).__name__}: {error}",
            hint="define it in a module that can be imported, or without what cannot be pickled",
        ) from error
