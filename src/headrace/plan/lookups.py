"""Temporal joins: `a JOIN b FOR SYSTEM_TIME AS OF PROCTIME() ON a.k = b.pk`.

`b` is planned as a leaf of its own, which no other rule takes. Whatever Catalyst has put between the join and that leaf
are projections and filters; they are unfolded into expressions over the leaf's columns and computed after the look-up,
which finds at most one row of a primary key. So a left join needs no counting of matches: where a condition fails, what
comes of the other side is null. By an index several rows may be found; there a left join has no more conditions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.common.lazy_dataclass import dataclass
from headrace.errors import NotSupported
from headrace.plan.border_types import arrow_of
from headrace.plan.catalyst.bridge import Bridge
from headrace.plan.catalyst.expressions import Attribute, Expr, Named
from headrace.plan.catalyst.made_nodes import mapped
from headrace.plan.catalyst.nodes import Filter, Join, Node, Project
from headrace.plan.mark_rules import Marks, column_of
from headrace.plan.rowwise import Projection, Selection
from headrace.plan.tree import Attr, Operator, OwnReading

if TYPE_CHECKING:
    from headrace.plan.derive import Derivation, Path, PlannedRelation

_CLAUSE = "FOR SYSTEM_TIME AS OF PROCTIME()"
_TYPES = {"Inner": "inner", "LeftOuter": "left"}
_FLOATING = ("float", "double")


@dataclass
class Lookup(Operator):
    """A temporal join: each row with the one row of a relation, as it is at the epoch, that has its key.

    Output are the columns `own` of its input, `columns` of the relation, and whether there is such a row.
    """

    relation: int
    relation_name: str
    columns: list[str]
    keys: Sequence[Expr]
    """What is looked up: for each column of the relation's key an expression over the input."""
    key_types: list[pa.DataType]
    own: list[Attr]
    matched: Attr
    outer: bool
    kind = "lookup"

    def detail(self) -> str:
        how = "left " if self.outer else ""
        keys = ", ".join(k.text for k in self.keys)
        return f"{how}in {self.relation_name} [{', '.join(self.columns)}] by {keys}"

    def reading(self) -> OwnReading:
        return OwnReading(self.relation, changes=False, content=True)

    def marks(self, below: Sequence[Marks], watermarks: Mapping[int, str]) -> Marks:
        own = {a.id for a in self.own}
        return {place: mark for place, mark in below[0].items() if column_of(place) in own}


@dataclass
class _Side:
    """The side that is looked up, unfolded: all over the columns of its leaf."""

    relation: PlannedRelation
    columns: list[Attr]
    values: dict[int, Expr]
    """Output attributes of the side, by id."""
    conditions: list[Expr]


def derive_lookup_join(d: Derivation, node: Join, needed: set[int]) -> Operator | None:
    """A temporal join; None for a join of any other sort."""
    b = d.bridge
    left_node, right_node = node.children
    side = _unfolded(d, right_node)
    if side is None:
        return None
    join_type = _TYPES.get(node.join_type)
    if join_type is None:
        raise NotSupported(f"a {node.join_type} join {_CLAUSE}", hint="use an inner or a left join")
    condition = node.condition
    conjuncts = [] if condition is None else [mapped(c, side.values) for c in condition.conjuncts]
    left_ids = {a.id for a in left_node.output}
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
    matched = d.attrs([b.alias(b.literal(True), "matched").attribute])[0]
    types = [arrow_of(k) for k in keys]
    output = [*own, *found, matched]
    made: Operator = Lookup(
        output, True, [left], path.relation, path.name, [a.name for a in found], keys, types, own, matched,
        join_type == "left",
    )  # fmt: skip
    if join_type == "inner" and residual:
        kept = b.filter(b.all_of(residual), b.local_leaf([a.handle for a in output]))
        made = Selection(output, True, [made], kept, kept.condition.text)
    hit = b.all_of([matched.handle, *residual])
    columns: list[Named] = [a.handle for a in own if a.id in needed]
    for handle in right_node.output:
        if (i := handle.id) in shown:
            value = shown[i] if join_type == "inner" else b.if_else_null(hit, shown[i])
            columns.append(b.alias(value, handle.name, handle))
    text = "[" + ", ".join(c.text for c in columns) + "]"
    return Projection(d.attrs([c.attribute for c in columns]), True, [made], node, text, columns)


def refuse_lookup(relation: PlannedRelation) -> NotSupported:
    """The error for a look-up that is no join's right side."""
    return NotSupported(
        f'"{relation.name}" {_CLAUSE} other than on the right of a join',
        hint=f"write ... FROM a JOIN {relation.name} {_CLAUSE} ON a.x = {relation.name}.<primary key>",
    )


def _unfolded(d: Derivation, node: Node) -> _Side | None:
    if node.leaf_id is not None:
        relation = d.relations.get(node.leaf_id)
        if relation is None or not relation.lookup:
            return None
        columns = d.attrs(node.output)
        values: dict[int, Expr] = {a.id: a.handle for a in columns}
        return _Side(relation, columns, values, [])
    if not isinstance(node, (Project, Filter)):
        return None
    side = _unfolded(d, node.child)
    if side is None:
        return None
    # What is over the side's output as expressions over its leaf.
    if isinstance(node, Filter):
        side.conditions += [mapped(c, side.values) for c in node.condition.conjuncts]
    else:
        side.values = {e.id: mapped(e.value, side.values) for e in node.named}
    return side


def _path(
    d: Derivation, side: _Side, conjuncts: Sequence[Expr], left_ids: set[int], needed: set[int]
) -> tuple[Path, list[Expr], list[Expr]]:
    """The first way to look up by what the conditions give: what is looked up, and the conditions that are left."""
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
            rest = [c for c in conjuncts if id(c) not in sure and not (c.kind == "IsNotNull" and _is(c, ids))]
            return path, [k.value for k in keys], rest
    name = side.relation.name
    ways = " or ".join(f"({', '.join(p.key)})" for p in paths)
    column = paths[0].key[0] if paths else "key"
    raise NotSupported(
        f'a join with "{name}" {_CLAUSE} that does not give its primary key or all columns of an index: {ways}',
        hint=f"compare each of these columns with a value of the left side: ON a.x = {name}.{column}",
    )


def _is(condition: Expr, ids: set[int]) -> bool:
    (child,) = condition.children
    return isinstance(child, Attribute) and child.id in ids


@dataclass
class _Key:
    value: Expr
    """The left side's value for a key column, of the column's type, or null."""
    condition: Expr
    exact: bool
    """What is found fulfils the condition. Else it is checked afterwards: what does not fit the type equals no key."""


def _key(d: Derivation, column: Attr, conditions: Sequence[Expr], left_ids: set[int], unique: bool) -> _Key | None:
    """The first condition that compares a key column with a value of the left side."""
    b = d.bridge
    kinds = ("EqualTo", "EqualNullSafe") if unique else ("EqualTo",)
    for condition in (c for c in conditions if c.kind in kinds):
        left, right = condition.children
        for own, other in ((left, right), (right, left)):
            inner = own.child if own.kind == "Cast" else own
            if not isinstance(inner, Attribute) or inner.id != column.id:
                continue
            plain = inner is own
            if other.references <= left_ids and (plain or _tells_apart(b, inner, own)) and not own.is_collated:
                return _Key(b.try_cast(other, column.handle), condition, plain)
    return None


def _tells_apart(b: Bridge, key: Expr, cast: Expr) -> bool:
    """Whether keys that differ differ after the cast, too: else one value may equal several of them."""
    return b.widens(key, cast) and cast.type not in _FLOATING


__all__ = ["Lookup", "derive_lookup_join", "refuse_lookup"]
