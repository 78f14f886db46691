"""The rule for joins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.errors import NotSupported
from headrace.plan import temporal
from headrace.plan.catalyst import nodes
from headrace.plan.catalyst.expressions import Expr
from headrace.plan.catalyst.nodes import Node
from headrace.plan.lookups import derive_lookup_join
from headrace.plan.sharing import share
from headrace.plan.tree import Attr, Join, JoinSide, Operator
from headrace.plan.types import arrow_of

if TYPE_CHECKING:
    from headrace.plan.derive import Derivation

_TYPES = {
    "Inner": "inner",
    "Cross": "inner",
    "LeftOuter": "left",
    "RightOuter": "left",
    "FullOuter": "full",
    "LeftSemi": "semi",
    "LeftAnti": "anti",
    "ExistenceJoin": "existence",
}


def derive_join(d: Derivation, node: nodes.Join, needed: set[int]) -> Operator:
    """A join of any type; a right join is a left join with its sides changed."""
    b = d.bridge
    looked_up = derive_lookup_join(d, node, needed)
    if looked_up is not None:
        return looked_up
    spelled = node.join_type
    if spelled not in _TYPES:
        raise NotSupported(f"a {spelled} join in a view", hint="rewrite it with an outer or semi join")
    join_type = _TYPES[spelled]
    condition = node.condition
    if condition is not None and d.clock.within(condition):
        if join_type != "inner":
            raise temporal.refusal(condition)
        rest, timed = temporal.split(d, condition)
        return temporal.over(d, b.join_on(node, b.all_of(rest) if rest else None), timed, needed)
    left_keys, right_keys, residual = b.equi_join(node)
    left_node, right_node = node.children
    if spelled == "RightOuter":
        left_node, right_node, left_keys, right_keys = right_node, left_node, right_keys, left_keys
    wanted = needed | (d.references([residual]) if residual is not None else set())
    left, left_side = _side(d, left_node, left_keys, wanted, join_type != "inner")
    right, right_side = _side(d, right_node, right_keys, wanted, join_type == "full")
    output = [*left_side.values, *right_side.values]
    exists = None
    if join_type in ("semi", "anti", "existence"):
        output = list(left_side.values)
    if join_type == "existence":
        exists = d.attrs([node.exists])[0]
        output.append(exists)
    text = "(no condition)" if condition is None else condition.text
    append_only = join_type == "inner" and left.append_only and right.append_only
    share(d, (left, left_side), (right, right_side))
    return Join(output, append_only, [left, right], join_type, left_side, right_side, residual, text, exists)


def _side(
    d: Derivation, node: Node, keys: Sequence[Expr], wanted: set[int], preserved: bool
) -> tuple[Operator, JoinSide]:
    b = d.bridge
    available = d.attrs(node.output)
    if preserved:  # its rows are counted by all their kept columns, which must decide the key as well
        wanted = wanted | d.references(keys)
    child = d.derive(node, {a.id for a in available if a.id in wanted} | d.references(keys))
    normal = [b.normalized(k) for k in keys]
    values: list[Attr] = [a for a in child.output if a.id in wanted]
    return child, JoinSide(normal, [arrow_of(k) for k in normal], values, preserved)
