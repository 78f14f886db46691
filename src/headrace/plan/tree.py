"""The incremental plan: an explicit tree of operators with stable ids, which own the view's state tables.

The tree is what `EXPLAIN` prints and what the fingerprint is taken of. Handles of Catalyst expressions ride along for
the builder of the epoch job; they are no part of a node's identity.

`Operator` is all that others know of an operator. The class of each one stands beside the rule that makes it of
Catalyst's plan, in a module of this package, and nothing asks which class an operator is of.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.common.lazy_dataclass import dataclass
from headrace.plan.catalyst.expressions import Attribute
from headrace.plan.mark_rules import Marks
from headrace.plan.watermark_rules import LeastWatermark
from headrace.state.schema import TableSchema

if TYPE_CHECKING:
    from headrace.plan.inputs import Picked

_EXPR_ID = re.compile(r"#(\d+)L?")


@dataclass(frozen=True)
class Attr:
    """A column that flows between operators; `id` is Catalyst's expression id."""

    id: int
    name: str
    type: str
    handle: Attribute = field(compare=False, repr=False)


@dataclass
class Operator:
    """A node of the incremental plan.

    `append_only` says that the node never puts out a negative weight.
    """

    output: list[Attr]
    append_only: bool
    children: list[Operator]
    id: str = field(default="", init=False)
    expires: dict[str, str] = field(default_factory=dict, init=False)
    """State table within the node -> its column with the event time by which rows expire."""
    expiry: dict[str, LeastWatermark] = field(default_factory=dict, init=False)
    """State table within the node -> the mark below which rows have expired."""

    kind = "operator"

    # ---- what it is

    @property
    def child(self) -> Operator:
        """The first operator below it, often the only one."""
        return self.children[0]

    def detail(self) -> str:
        """One line that tells what the node does, expression ids included."""
        return ""

    def distribution(self) -> str | None:
        """The key by which its rows are brought together, where it needs that."""
        return None

    def tables(self) -> dict[str, TableSchema]:
        """Schemas of its state tables by name within the node, as if rows never expired."""
        return {}

    def shared(self) -> dict[str, Shared]:
        """What it looks up in the rows of relations where it would else have state tables, by their names."""
        return {}

    def state(self) -> dict[str, TableSchema]:
        """Schemas of its state tables by name within the node."""
        return {name: replace(schema, expires=self.expires.get(name)) for name, schema in self.tables().items()}

    # ---- what it reads

    def reading(self) -> OwnReading | None:
        """What it reads of a relation by itself."""
        return None

    def sharable(self) -> list[Sharable]:
        """Indexes that would serve instead of state that it keeps."""
        return []

    def picked(self) -> Picked | None:
        """The columns of a relation that its output is, for an operator that does nothing but pick them."""
        return None

    def renamed(self) -> Mapping[int, int] | None:
        """For what puts out each row as it is, but for columns left out or renamed: new id -> id in its child."""
        return None

    # ---- time

    by_clock = False
    """Whether its rows change as time passes, also when its input does not. Then it is never idle."""

    def is_idle(self, active: frozenset[int] | None) -> bool:
        """Whether nothing can come out of it when just these relations have changed; None: any may have.

        What reads no relation, and has nothing below it, puts out all its rows when any may have, and never again.
        """
        if active is None or self.by_clock:
            return False
        own = self.reading()
        changed = own is not None and own.changes and own.relation in active
        return not changed and all(child.is_idle(active) for child in self.children)

    # Event time goes through a plan in this order (`event_time.with_event_time`): `marks` of every operator from the
    # leaves up, as if all watermarks counted; `marks_needed` of all; `forget_event_time` of all; and if any mark was
    # needed, `marks` once more, with those watermarks alone that the needed marks are made of.

    def marks(self, below: Sequence[Marks], watermarks: Mapping[int, str]) -> Marks:
        """The marks of its output, given those of its children, and relations' columns with watermarks.

        It notes on itself what of its state expires by them (`expire`), and which rows it leaves out as late. It may
        be called twice, with `forget_event_time` in between: what it notes elsewhere than by `expire`, an override of
        that takes back.
        """
        return {}

    def marks_needed(self) -> list[LeastWatermark]:
        """The marks without which it could not work, or would keep its state for ever.

        Asked after `marks`, so that they may be those that it has noted. An operator that needs none only takes part
        in event time where another one does.
        """
        return []

    def expire(self, table: str, column: str, mark: LeastWatermark) -> None:
        """Rows of a state table may be forgotten once their event time is below a mark."""
        self.expires[table], self.expiry[table] = column, mark

    def forget_event_time(self) -> None:
        """Undo all that `marks` has noted. An override calls this one, too."""
        self.expires, self.expiry = {}, {}


@dataclass(frozen=True)
class OwnReading:
    """What an operator reads of a relation by itself."""

    relation: int
    changes: bool
    """It takes in what changes; else it looks up rows as they are at the epoch."""
    content: bool
    """It reads what was there before its first epoch."""


@dataclass(frozen=True)
class Shared:
    """Where a side of a join is looked up instead of being kept: rows of a relation that lie by the join's key."""

    relation: int
    relation_name: str
    keys: tuple[str, ...]
    """For each key of the join the relation's column."""
    columns: tuple[str, ...]
    """The same for the columns beside the key."""
    present: tuple[str, ...]
    """Columns that are not null in the rows of the side."""

    def text(self) -> str:
        """For people, and for the fingerprint."""
        present = f" where not null: {', '.join(self.present)}" if self.present else ""
        return f"{self.relation_name} by ({', '.join(self.keys)}): {', '.join(self.columns)}{present}"


@dataclass(frozen=True, order=True)
class Sharable:
    """Rows of a relation by some of its columns, as several views may want to look them up."""

    relation: int
    key: tuple[str, ...]
    """The columns by name, in alphabetical order."""


WEIGHT: tuple[tuple[pa.Field, Any], ...] = ((pa.field("__w", pa.int64(), nullable=False), "add"),)


def attr_arrow(attr: Attr) -> pa.DataType:
    """The Arrow type of an attribute, everything nullable."""
    from headrace.plan.border_types import arrow_of

    return arrow_of(attr.handle)


def number(root: Operator) -> None:
    """Give every operator its id: the position on the way down, which does not depend on anything outside the tree."""

    def visit(op: Operator, path: str) -> None:
        op.id = path
        for i, child in enumerate(op.children):
            visit(child, f"{path}.{i}")

    visit(root, "0")


def walk(root: Operator) -> Iterator[Operator]:
    """The operators, parents first."""
    yield root
    for child in root.children:
        yield from walk(child)


def readings(root: Operator) -> list[OwnReading]:
    """What a plan reads of relations, parents first."""
    return [reading for op in walk(root) if (reading := op.reading()) is not None]


def state_tables(root: Operator) -> dict[str, TableSchema]:
    """All state tables of a plan; names are `<operator id>/<table>`."""
    return {f"{op.id}/{name}": schema for op in walk(root) for name, schema in op.state().items()}


def canonical(text: str, seen: dict[str, int]) -> str:
    """The text with expression ids renumbered in order of appearance, so that it is the same in every process."""
    return _EXPR_ID.sub(lambda m: f"#{seen.setdefault(m.group(1), len(seen))}", text)


def fingerprint(root: Operator) -> str:
    """A digest of operators, ids, keys, state schemas and expressions in canonical form."""
    seen: dict[str, int] = {}
    lines = []
    for op in walk(root):
        tables = {name: schema.arrow().to_string() for name, schema in op.state().items()}
        outputs = [canonical(f"{a.name}#{a.id}:{a.type}", seen) for a in op.output]
        lines.append([op.id, op.kind, canonical(op.detail(), seen), outputs, tables])
        if op.expires:
            lines[-1].append({name: [column, op.expiry[name].text()] for name, column in op.expires.items()})
        if shared := op.shared():
            lines[-1].append({name: found.text() for name, found in shared.items()})
    return hashlib.sha256(json.dumps(lines, sort_keys=True).encode()).hexdigest()


def render(root: Operator) -> list[str]:
    """The plan as `EXPLAIN` shows it."""
    lines: list[str] = []

    def visit(op: Operator, depth: int) -> None:
        pad = "  " * depth
        mark = " append-only" if op.append_only else ""
        lines.append(f"{pad}{op.id} {op.kind}: {_EXPR_ID.sub('', op.detail())}{mark}".rstrip())
        key = op.distribution()
        if key is not None:
            lines.append(f"{pad}    distributed by: {_EXPR_ID.sub('', key)}")
        for name, schema in op.state().items():
            fields = ", ".join(f"{f.name}: {f.type}" for f in schema.arrow())
            until = "" if schema.expires is None else f"; until the watermark passes {schema.expires}"
            lines.append(f"{pad}    state {op.id}/{name}: {fields}{until}")
        for name, found in op.shared().items():
            lines.append(f"{pad}    shared {op.id}/{name}: {found.text()}")
        for child in op.children:
            visit(child, depth + 1)

    visit(root, 0)
    return lines
