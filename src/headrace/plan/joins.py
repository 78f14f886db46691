"""Joins of two changing inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.common.lazy_dataclass import dataclass
from headrace.errors import NotSupported
from headrace.plan import temporal
from headrace.plan.border_types import arrow_of
from headrace.plan.catalyst import nodes
from headrace.plan.catalyst.expressions import Attribute, Expr
from headrace.plan.catalyst.nodes import Node
from headrace.plan.guards import bare
from headrace.plan.lookups import derive_lookup_join
from headrace.plan.mark_rules import TIMES, MarkReader, Marks, bands
from headrace.plan.sharing import share
from headrace.plan.tree import WEIGHT, Attr, Operator, Sharable, Shared, attr_arrow
from headrace.plan.watermark_rules import Band, LeastWatermark, through_join
from headrace.state.schema import TableSchema

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


@dataclass
class JoinSide:
    """One side of a join: the equi-join key, and the columns kept beside it."""

    keys: Sequence[Expr]
    key_types: list[pa.DataType]
    values: list[Attr]
    preserved: bool
    shared: Shared | None = None
    """None for a side with an arrangement of its own."""
    sharable: Sharable | None = None
    """For a side with an arrangement of its own: the index of all columns that would serve instead."""

    def schema(self) -> TableSchema:
        """The side's arrangement."""
        return TableSchema(
            key=tuple(pa.field(f"k{i}", t) for i, t in enumerate(self.key_types)),
            value=tuple(pa.field(f"v{i}", attr_arrow(a)) for i, a in enumerate(self.values)),
            diffs=WEIGHT,
        )

    def identity(self) -> TableSchema:
        """The arrangement that counts the matches of each distinct row of a preserved side."""
        return TableSchema(key=self.schema().value, value=(), diffs=(*WEIGHT, (pa.field("matches", pa.int64()), "add")))


@dataclass
class Join(Operator):
    """A join of two changing inputs.

    `join_type` is inner, left, full, semi, anti or existence. A side that is preserved (its rows come out without a
    match, too) has a second arrangement that counts matches per row after the residual condition.
    """

    join_type: str
    left: JoinSide
    right: JoinSide
    residual: Expr | None
    condition_text: str
    exists: Attr | None = None
    kind = "join"

    def detail(self) -> str:
        return f"{self.join_type} {self.condition_text}"

    def distribution(self) -> str | None:
        return ", ".join(k.text for k in self.left.keys) or "(one group)"

    def shared(self) -> dict[str, Shared]:
        return {n: s.shared for n, s in (("left", self.left), ("right", self.right)) if s.shared is not None}

    def tables(self) -> dict[str, TableSchema]:
        sides = (("left", self.left), ("right", self.right))
        tables = {name: side.schema() for name, side in sides if side.shared is None}
        if self.left.preserved:
            tables["left_matches"] = self.left.identity()
        if self.right.preserved:
            tables["right_matches"] = self.right.identity()
        return tables

    def sharable(self) -> list[Sharable]:
        return [side.sharable for side in (self.left, self.right) if side.sharable is not None]

    def marks(self, below: Sequence[Marks], watermarks: Mapping[int, str]) -> Marks:
        marks = [{p: m for p, m in side.items() if isinstance(p, int)} for side in below]
        found: list[Band] = []
        places: list[dict[int, str]] = [{}, {}]
        for i, keys in enumerate(zip(self.left.keys, self.right.keys, strict=True)):
            ids = [k.id if isinstance(k, Attribute) else -1 - i for k in keys]
            for n, key in enumerate(keys):
                mark = MarkReader(below[n]).mark(key)
                if mark is not None and key.type in TIMES:
                    marks[n][ids[n]] = mark
                    places[n][ids[n]] = f"k{i}"
            found.append(Band(ids[0], ids[1], 0, 0))
        if self.residual is not None:
            left, right = ({a.id for a in side.values} for side in (self.left, self.right))
            found += bands(bare(self.residual), left, right)
        through = through_join(found, marks[0], marks[1])
        self._expire_side("left", self.left, places[0], through.left_expires)
        self._expire_side("right", self.right, places[1], through.right_expires)
        visible = {a.id for a in self.output}
        return {p: m for p, m in through.output.items() if p in visible}

    def marks_needed(self) -> list[LeastWatermark]:
        return list(self.expiry.values())

    def _expire_side(
        self, name: str, side: JoinSide, keys: Mapping[int, str], expires: Mapping[int, LeastWatermark]
    ) -> None:
        if side.shared is not None:  # what it looks up is not its own to forget
            return
        values = {a.id: f"v{i}" for i, a in enumerate(side.values) if a.type in TIMES}
        for column, mark in expires.items():
            place = values.get(column) or keys.get(column)
            if place is not None and name not in self.expires:
                self.expire(name, place, mark)
            if side.preserved and column in values and f"{name}_matches" not in self.expires:
                self.expire(f"{name}_matches", values[column], mark)


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
