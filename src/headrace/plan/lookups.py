"""The rule for temporal joins: `a JOIN b FOR SYSTEM_TIME AS OF PROCTIME() ON a.k = b.pk`.

`b` is planned as a leaf of its own, which no other rule takes. Whatever Catalyst has put between the join and that leaf
are projections and filters; they are unfolded into expressions over the leaf's columns and computed after the look-up,
which finds at most one row. So a left join needs no counting of matches: where a condition fails, what comes of the
other side is null.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.errors import NotSupported
from headrace.plan.bridge import JExpr, JNode
from headrace.plan.tree import Attr, Lookup, Operator, Rowwise
from headrace.plan.types import arrow_of

if TYPE_CHECKING:
    from headrace.plan.derive import Derivation, Relation

_CLAUSE = "FOR SYSTEM_TIME AS OF PROCTIME()"
_TYPES = {"Inner": "inner", "LeftOuter": "left"}
_FLOATING = ("float", "double")


@dataclass
class _Side:
    """The side that is looked up, unfolded: all over the columns of its leaf."""

    relation: Relation
    columns: list[Attr]
    values: dict[int, JExpr]
    """Output attributes of the side, by id."""
    conditions: list[JExpr]


def derive_lookup_join(d: Derivation, node: JNode, needed: set[int]) -> Operator | None:
    """A temporal join; None for a join of any other sort."""
    b = d.bridge
    left_node, right_node = b.children(node)
    side = _unfolded(d, right_node)
    if side is None:
        return None
    join_type = _TYPES.get(str(node.joinType().toString()))
    if join_type is None:
        raise NotSupported(f"a {node.joinType().toString()} join {_CLAUSE}", hint="use an inner or a left join")
    condition = node.condition()
    conjuncts = [] if condition.isEmpty() else [_over(d, side, c) for c in b.conjuncts(condition.get())]
    left_ids = {b.attribute_id(a) for a in b.output(left_node)}
    residual = [*conjuncts, *side.conditions]
    keys = _keys(d, side, residual, left_ids)
    shown = {i: e for i, e in side.values.items() if i in needed}
    used = d.references([*residual, *shown.values()])
    wanted = (needed | used | d.references(keys)) & left_ids
    left = d.derive(left_node, wanted)
    if not left.append_only:
        raise NotSupported(
            f"a join {_CLAUSE} of rows that may change or go",
            detail="what a row was joined with is not remembered, so that it could not be taken back",
            hint="let its left side be a source or a table that is declared APPEND ONLY, or leave the clause out: an "
            "ordinary join keeps up with both sides",
        )
    own = [a for a in left.output if a.id in needed or a.id in used]
    found = [a for a in side.columns if a.id in used]
    matched = d.attrs([b.alias(b.literal(True), "matched").toAttribute()])[0]
    relation = side.relation
    types = [arrow_of(k) for k in keys]
    output = [*own, *found, matched]
    made: Operator = Lookup(
        output, True, [left], relation.id, relation.name, [a.name for a in found], keys, types, own, matched,
        join_type == "left",
    )  # fmt: skip
    if join_type == "inner" and residual:
        node = b.filter(b.all_of(residual), b.local_leaf([a.handle for a in output]))
        made = Rowwise(output, True, [made], node, "Filter", str(node.condition().toString()))
    hit = b.all_of([matched.handle, *residual])
    columns = [a.handle for a in own if a.id in needed]
    for handle in b.output(right_node):
        if (i := b.attribute_id(handle)) in shown:
            value = shown[i] if join_type == "inner" else b.if_else_null(hit, shown[i])
            columns.append(b.alias(value, str(handle.name()), handle.exprId()))
    text = "[" + ", ".join(str(c.toString()) for c in columns) + "]"
    return Rowwise(d.attrs([c.toAttribute() for c in columns]), True, [made], node, "Project", text, columns)


def refuse_lookup(relation: Relation) -> NotSupported:
    """The error for a look-up that is no join's right side."""
    return NotSupported(
        f'"{relation.name}" {_CLAUSE} other than on the right of a join',
        hint=f"write ... FROM a JOIN {relation.name} {_CLAUSE} ON a.x = {relation.name}.<primary key>",
    )


def _unfolded(d: Derivation, node: JNode) -> _Side | None:
    b, kind = d.bridge, d.bridge.kind(node)
    if kind == "LogicalRDD":
        leaf = b.relation_id(node)
        relation = None if leaf is None else d.relations.get(leaf)
        if relation is None or not relation.lookup:
            return None
        columns = d.attrs(b.output(node))
        return _Side(relation, columns, {a.id: a.handle for a in columns}, [])
    if kind not in ("Project", "Filter"):
        return None
    side = _unfolded(d, b.children(node)[0])
    if side is None:
        return None
    if kind == "Filter":
        side.conditions += [_over(d, side, c) for c in b.conjuncts(node.condition())]
        return side
    named = b.items(node.projectList())
    side.values = {b.attribute_id(e): _over(d, side, e if b.is_attribute(e) else b.children(e)[0]) for e in named}
    return side


def _over(d: Derivation, side: _Side, expression: JExpr) -> JExpr:
    """An expression over the side's output as one over its leaf; attributes of the other side stay."""
    b = d.bridge
    return b.rewrite(expression, lambda e: side.values.get(b.attribute_id(e)) if b.is_attribute(e) else None)


def _keys(d: Derivation, side: _Side, conjuncts: Sequence[JExpr], left_ids: set[int]) -> list[JExpr]:
    """What is looked up for each column of the primary key."""
    by_name = {a.name: a for a in side.columns}
    keys = []
    for name in side.relation.primary_key:
        found = next((k for c in conjuncts if (k := _key(d, by_name[name], c, left_ids)) is not None), None)
        if found is None:
            key = ", ".join(side.relation.primary_key)
            raise NotSupported(
                f'a join with "{side.relation.name}" {_CLAUSE} that does not give its primary key ({key})',
                hint="compare each column of the key with a value of the left side: "
                f"ON a.x = {side.relation.name}.{name}",
            )
        keys.append(found)
    return keys


def _key(d: Derivation, column: Attr, condition: JExpr, left_ids: set[int]) -> JExpr | None:
    """The left side's value for a key column, if the condition compares the two; of the column's type, or null.

    The condition itself is checked afterwards: a value that does not fit the type equals no key.
    """
    b = d.bridge
    if b.kind(condition) not in ("EqualTo", "EqualNullSafe"):
        return None
    for own, other in (b.children(condition), reversed(b.children(condition))):
        inner = b.children(own)[0] if b.kind(own) == "Cast" else own
        if not b.is_attribute(inner) or b.attribute_id(inner) != column.id:
            continue
        references = b.references(other)
        exact = inner is own or b.simple_type(own) not in _FLOATING
        if references <= left_ids and exact:
            return b.try_cast(other, column.handle.dataType())
    return None


__all__ = ["derive_lookup_join", "refuse_lookup"]
