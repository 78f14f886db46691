"""The rules for window functions; below a filter on a rank only the first rows of a partition matter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from headrace.plan.catalyst.bridge import Bridge, JExpr, JNode
from headrace.plan.recompute import recompute, rowwise
from headrace.plan.tree import First, Operator
from headrace.plan.types import arrow_of
from headrace.state.kernels.order_code import useful

if TYPE_CHECKING:
    from headrace.plan.derive import Derivation

# Comparisons of a rank with a number, as what they say of `rank <= number + ...`, from the left and from the right.
_BELOW = {"LessThan": -1, "LessThanOrEqual": 0, "EqualTo": 0, "EqualNullSafe": 0}
_ABOVE = {"GreaterThan": -1, "GreaterThanOrEqual": 0, "EqualTo": 0, "EqualNullSafe": 0}
_RANKS = frozenset({"RowNumber", "Rank", "DenseRank"})
# Functions that depend on how many rows their partition has, whatever their frame.
_OF_SIZE = frozenset({"PercentRank", "CumeDist", "NTile"})


def derive_filter(d: Derivation, node: JNode, needed: set[int]) -> Operator:
    """A filter; one that bounds a rank computed right below it tells that node how many rows it wants."""
    b = d.bridge
    child = b.children(node)[0]
    if b.kind(child) == "Window" and (first := _bound(b, node.condition(), child)) is not None:
        return rowwise(d, node, needed, partial(derive_window, d, first=first))
    return rowwise(d, node, needed, d.derive)


def derive_window(d: Derivation, node: JNode, needed: set[int], first: First | None = None) -> Operator:
    """Window functions: group recompute by partition, of its first rows where no others matter."""
    b = d.bridge
    below = {b.attribute_id(a) for a in b.output(b.children(node)[0])}
    child_needed = (needed & below) | (d.references(b.expressions_of(node)) & below)
    output = [a for a in d.attrs(b.output(node)) if a.id in child_needed or a.id not in below]
    made = recompute(d, node, "Window", b.items(node.partitionSpec()), child_needed, output)
    return replace(made, first=first)


def first_rows(b: Bridge, orders: Sequence[JExpr], need: int, by_value: bool = False) -> First | None:
    """The first rows by these orders, as far as order codes know them; None where that is not at all."""
    known = []
    for order in orders:
        if b.is_collated(b.children(order)[0]):
            break
        known.append(order)
    if orders and not known:
        return None
    part = useful([arrow_of(b.children(o)[0]) for o in known])
    return First(known[:part], max(need, 1), by_value)


def _bound(b: Bridge, condition: JExpr, window: JNode) -> First | None:
    """The rows that the condition can let through, where it says so, and nothing else of the partition matters."""
    functions = {b.attribute_id(e): b.children(e)[0] for e in b.items(window.windowExpressions())}
    if any(True for e in b.expressions_of(window) for _ in b.find(e, frozenset({"ScalarSubquery"}))):
        return None
    if not all(_looks_back(b, f) for f in functions.values()):
        return None
    ranks = {i: kind for i, f in functions.items() if (kind := b.kind(f.windowFunction())) in _RANKS}
    found = [(ranks[i] == "DenseRank", n) for i, n in _limits(b, condition) if i in ranks]
    if not found:
        return None
    by_value, need = min(found)
    return first_rows(b, b.items(window.orderSpec()), need, by_value)


def _looks_back(b: Bridge, call: JExpr) -> bool:
    """Whether a window function's value at a row depends on nothing behind the rows that tie with it."""
    if b.kind(call.windowFunction()) in _OF_SIZE:
        return False
    upper = call.windowSpec().frameSpecification().upper()
    if b.kind(upper) == "CurrentRow":
        return True
    value = upper.eval(None) if upper.foldable() else None
    return isinstance(value, int) and value <= 0


def _limits(b: Bridge, condition: JExpr) -> Iterator[tuple[int, int]]:
    """Attributes and the numbers that they are at most, as far as the conjuncts of the condition say so."""
    if b.kind(condition) == "And":
        for part in b.children(condition):
            yield from _limits(b, part)
        return
    for table, flipped in ((_BELOW, False), (_ABOVE, True)):
        if b.kind(condition) in table:
            left, right = reversed(b.children(condition)) if flipped else b.children(condition)
            value = right.value() if b.kind(right) == "Literal" else None
            if b.is_attribute(left) and isinstance(value, int) and not isinstance(value, bool):
                yield b.attribute_id(left), value + table[b.kind(condition)]
