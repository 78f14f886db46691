"""The rule for temporal joins: `a JOIN b FOR SYSTEM_TIME AS OF PROCTIME() ON a.k = b.pk`.

`b` is planned as a leaf of its own, which no other rule takes. Whatever Catalyst has put between the join and that leaf
are projections and filters; they are unfolded into expressions over the leaf's columns and computed after the look-up,
which finds at most one row of a primary key. So a left join needs no counting of matches: where a condition fails, what
comes of the other side is null. By an index several rows may be found; there a left join has no more conditions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.errors import NotSupported
from headrace.plan.catalyst.bridge import Bridge, JExpr, JNode
from headrace.plan.tree import Attr, Lookup, Operator, Rowwise
from headrace.plan.types import arrow_of

if TYPE_CHECKING:
    from headrace.plan.derive import Derivation, Path, Relation

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
    conjuncts += side.conditions
    path, keys, residual = _path(d, side, conjuncts, left_ids, needed)
    if join_type == "left" and residual and not path.unique:
        raise NotSupported(
            f'a left join with "{side.relation.name}" {_CLAUSE} by an index, with more conditions than its key',
            hint="move the other conditions out of ON, or look up by the primary key of a table",
        )
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
    types = [arrow_of(k) for k in keys]
    output = [*own, *found, matched]
    made: Operator = Lookup(
        output, True, [left], path.relation, path.name, [a.name for a in found], keys, types, own, matched,
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


def _path(
    d: Derivation, side: _Side, conjuncts: Sequence[JExpr], left_ids: set[int], needed: set[int]
) -> tuple[Path, list[JExpr], list[JExpr]]:
    """The first way to look up by what the conditions give: what is looked up, and the conditions that are left."""
    b = d.bridge
    by_name = {a.name: a for a in side.columns}
    shown = [e for i, e in side.values.items() if i in needed]
    paths = [p for p in side.relation.paths if p.general]
    for path in paths:
        names = {a.name for a in side.columns if a.id in d.references([*conjuncts, *shown])}
        found = [_key(d, by_name[name], conjuncts, left_ids, path.unique) for name in path.key]
        keys = [f for f in found if f is not None]
        if len(keys) == len(path.key) and names <= path.columns:
            sure = {id(k.condition) for k in keys if k.exact}
            ids = {by_name[name].id for name in path.key}
            rest = [c for c in conjuncts if id(c) not in sure and not (b.kind(c) == "IsNotNull" and _is(b, c, ids))]
            return path, [k.value for k in keys], rest
    name = side.relation.name
    ways = " or ".join(f"({', '.join(p.key)})" for p in paths)
    column = paths[0].key[0] if paths else "key"
    raise NotSupported(
        f'a join with "{name}" {_CLAUSE} that does not give its primary key or all columns of an index: {ways}',
        hint=f"compare each of these columns with a value of the left side: ON a.x = {name}.{column}",
    )


def _is(b: Bridge, condition: JExpr, ids: set[int]) -> bool:
    (child,) = b.children(condition)
    return b.is_attribute(child) and b.attribute_id(child) in ids


@dataclass
class _Key:
    value: JExpr
    """The left side's value for a key column, of the column's type, or null."""
    condition: JExpr
    exact: bool
    """What is found fulfils the condition. Else it is checked afterwards: what does not fit the type equals no key."""


def _key(d: Derivation, column: Attr, conditions: Sequence[JExpr], left_ids: set[int], unique: bool) -> _Key | None:
    """The first condition that compares a key column with a value of the left side."""
    b = d.bridge
    kinds = ("EqualTo", "EqualNullSafe") if unique else ("EqualTo",)
    for condition in (c for c in conditions if b.kind(c) in kinds):
        left, right = b.children(condition)
        for own, other in ((left, right), (right, left)):
            inner = b.children(own)[0] if b.kind(own) == "Cast" else own
            if not b.is_attribute(inner) or b.attribute_id(inner) != column.id:
                continue
            plain = inner is own
            if b.references(other) <= left_ids and (plain or _tells_apart(b, inner, own)) and not b.is_collated(own):
                return _Key(b.try_cast(other, column.handle.dataType()), condition, plain)
    return None


def _tells_apart(b: Bridge, key: JExpr, cast: JExpr) -> bool:
    """Whether keys that differ differ after the cast, too: else one value may equal several of them."""
    return b.widens(key.dataType(), cast.dataType()) and b.simple_type(cast) not in _FLOATING


__all__ = ["derive_lookup_join", "refuse_lookup"]
