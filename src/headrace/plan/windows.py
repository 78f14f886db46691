"""The rules for window functions; below a filter on a rank only the first rows of a partition matter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from headrace.plan.border_types import arrow_of
from headrace.plan.catalyst.expressions import Attribute, Expr, Literal
from headrace.plan.catalyst.kinds import WindowCall
from headrace.plan.catalyst.nodes import Filter, Node, Window
from headrace.plan.recompute import First, Windowed, recompute
from headrace.plan.rowwise import derive_selection
from headrace.plan.tree import Operator
from headrace.state.kernels.order_code import useful

if TYPE_CHECKING:
    from headrace.plan.derive import Derivation

# Comparisons of a rank with a number, as what they say of `rank <= number + ...`, from the left and from the right.
_BELOW = {"LessThan": -1, "LessThanOrEqual": 0, "EqualTo": 0, "EqualNullSafe": 0}
_ABOVE = {"GreaterThan": -1, "GreaterThanOrEqual": 0, "EqualTo": 0, "EqualNullSafe": 0}
_SUBQUERY = frozenset({"ScalarSubquery"})
_RANKS = frozenset({"RowNumber", "Rank", "DenseRank"})
# Functions that depend on how many rows their partition has, whatever their frame.
_OF_SIZE = frozenset({"PercentRank", "CumeDist", "NTile"})


def derive_filter(d: Derivation, node: Filter, needed: set[int]) -> Operator:
    """A filter; one that bounds a rank computed right below it tells that node how many rows it wants."""
    child = node.child
    if isinstance(child, Window) and (first := _bound(node.condition, child)) is not None:
        return derive_selection(d, node, needed, partial(derive_window, d, first=first))
    return derive_selection(d, node, needed, d.derive)


def derive_window(d: Derivation, node: Node, needed: set[int], first: First | None = None) -> Operator:
    """Window functions: group recompute by partition, of its first rows where no others matter."""
    assert isinstance(node, Window)
    below = {a.id for a in node.child.output}
    child_needed = (needed & below) | (d.references(node.expressions) & below)
    output = [a for a in d.attrs(node.output) if a.id in child_needed or a.id not in below]
    made = recompute(Windowed, d, node, node.partition, child_needed, output)
    return replace(made, first=first)


def first_rows(orders: Sequence[Expr], need: int, by_value: bool = False) -> First | None:
    """The first rows by these orders, as far as order codes know them; None where that is not at all."""
    known = []
    for order in orders:
        if order.child.is_collated:
            break
        known.append(order)
    if orders and not known:
        return None
    part = useful([arrow_of(o.child) for o in known])
    return First(known[:part], max(need, 1), by_value)


def _bound(condition: Expr, window: Window) -> First | None:
    """The rows that the condition can let through, where it says so, and nothing else of the partition matters."""
    functions = {e.id: e.value for e in window.functions}
    if any(e.has(_SUBQUERY) for e in window.expressions):
        return None
    calls = {i: f for i, f in functions.items() if isinstance(f, WindowCall) and _looks_back(f)}
    if len(calls) < len(functions):
        return None
    ranks = {i: kind for i, f in calls.items() if (kind := f.function.kind) in _RANKS}
    found = [(ranks[i] == "DenseRank", n) for i, n in _limits(condition) if i in ranks]
    if not found:
        return None
    by_value, need = min(found)
    return first_rows(window.orders, need, by_value)


def _looks_back(call: WindowCall) -> bool:
    """Whether a window function's value at a row depends on nothing behind the rows that tie with it."""
    if call.function.kind in _OF_SIZE:
        return False
    upper = call.spec.frame.upper
    if upper.kind == "CurrentRow":
        return True
    value = upper.evaluated() if upper.is_foldable else None
    return isinstance(value, int) and value <= 0


def _limits(condition: Expr) -> Iterator[tuple[int, int]]:
    """Attributes and the numbers that they are at most, as far as the conjuncts of the condition say so."""
    for part in condition.conjuncts:
        for table, flipped in ((_BELOW, False), (_ABOVE, True)):
            if part.kind in table:
                left, right = reversed(part.children) if flipped else part.children
                value = right.value if isinstance(right, Literal) else None
                if isinstance(left, Attribute) and isinstance(value, int) and not isinstance(value, bool):
                    yield left.id, value + table[part.kind]
