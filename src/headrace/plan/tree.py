"""The incremental plan: an explicit tree of operators with stable ids, which own the view's state tables.

The tree is what `EXPLAIN` prints and what the fingerprint is taken of. Handles of Catalyst expressions ride along for
the builder of the epoch job; they are no part of a node's identity.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from headrace.common.shifts import Shift, describe
from headrace.plan.catalyst.expressions import Attribute, Expr, Named
from headrace.plan.catalyst.nodes import Node
from headrace.plan.watermarks import Mark
from headrace.state.accumulators import Accumulator
from headrace.state.schema import Combine, TableSchema

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
    expiry: dict[str, Mark] = field(default_factory=dict, init=False)
    """State table within the node -> the mark below which rows have expired."""

    kind = "operator"

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

    def expire(self, table: str, column: str, mark: Mark) -> None:
        """Rows of a state table may be forgotten once their event time is below a mark."""
        self.expires[table], self.expiry[table] = column, mark

    def forget_event_time(self) -> None:
        """Undo what event time has brought."""
        self.expires, self.expiry = {}, {}


@dataclass
class Input(Operator):
    """A relation of the database: its change of the epoch, or all of it in the first epoch."""

    relation: int
    relation_name: str
    columns: list[str]
    late: str | None = field(default=None, init=False)
    """The time column by which late rows are not taken in; None if all rows are."""
    changes_only: bool = field(default=False, init=False)
    """Its content before the first checkpoint is not read: a join looks it up."""
    kind = "input"

    def detail(self) -> str:
        late = "" if self.late is None else f" unless late by {self.late}"
        only = " changes only" if self.changes_only else ""
        return f"{self.relation_name} [{', '.join(self.columns)}]{late}{only}"

    def forget_event_time(self) -> None:
        super().forget_event_time()
        self.late = None


@dataclass
class Constant(Operator):
    """Rows that the query itself states; put out once, in the first epoch."""

    rows: pa.Table
    kind = "constant"

    def detail(self) -> str:
        return f"{self.rows.num_rows} rows"


@dataclass
class Rowwise(Operator):
    """A node that Spark runs row by row; weights pass through."""

    node: Node
    label: str
    text: str
    expressions: Sequence[Named] = field(default_factory=list)
    kind = "rowwise"

    def detail(self) -> str:
        return f"{self.label} {self.text}"


@dataclass
class Union(Operator):
    """All rows of all children."""

    kind = "union"


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


@dataclass
class Accumulation:
    """A call of an aggregate function whose value is accumulated, and by what."""

    accumulator: Accumulator
    argument: Expr | None
    """NULL where a row does not count (a filter is folded in); None of what is over distinct values."""
    result: Attr
    """What the operator hands to Spark: for sums the raw sum, which the result expressions then convert."""
    count: Attr | None = None
    """Where the number of counted rows is wanted too (averages)."""
    distinct: int | None = None
    """Which of the aggregate's distinct values it is over, instead of all."""
    filter: int = 0
    """Which of the filters of these values is its own."""

    @property
    def in_order(self) -> bool:
        """Whether its values are kept in order."""
        return self.accumulator.order is not None


@dataclass
class DistinctValues:
    """Values that are counted once in each group: of one or more columns; where one is NULL, none counts.

    For each aggregate over them those values count that are in a row which passes its filter.
    """

    arguments: Sequence[Expr]
    types: list[pa.DataType]
    filters: list[Expr | None] = field(default_factory=list)
    """The different filters of the aggregates, None for that of those without one."""

    def weight(self, i: int) -> str:
        """The diff column that tells how many rows with a value pass filter `i`; `__w` is of those that pass any."""
        return "__w" if len(self.filters) == 1 or self.filters[i] is None else f"w{i}"

    @property
    def weights(self) -> dict[str, int]:
        """The diff columns of filters that have one beside `__w`, and the filters."""
        return {name: i for i in range(len(self.filters)) if (name := self.weight(i)) != "__w"}


@dataclass
class Aggregate(Operator):
    """Grouping with accumulable aggregates; without aggregates it is DISTINCT. One look-up per changed group."""

    groups: Sequence[Expr]
    group_attrs: list[Attr]
    accumulators: list[Accumulation]
    results: Sequence[Named]
    text: str
    distincts: list[DistinctValues] = field(default_factory=list)
    kind = "aggregate"

    @property
    def is_global(self) -> bool:
        """No GROUP BY: exactly one row, always."""
        return not self.groups

    @property
    def by_value(self) -> bool:
        """Whether values are counted once before groups come together; not where groups keep all their rows' values."""
        return bool(self.distincts) and not any(a.in_order for a in self.accumulators)

    def detail(self) -> str:
        return self.text

    def distribution(self) -> str | None:
        groups = ", ".join(a.name for a in self.group_attrs) or "(one group)"
        return f"distinct values, then {groups}" if self.by_value else groups

    def tables(self) -> dict[str, TableSchema]:
        diffs = list(WEIGHT)
        for i, a in enumerate(self.accumulators):
            diffs += a.accumulator.diffs(f"a{i}")
        key = tuple(pa.field(f"g{i}", attr_arrow(a)) for i, a in enumerate(self.group_attrs))
        tables = {"groups": TableSchema(key=key, value=(), diffs=tuple(diffs))}
        for i, a in enumerate(self.accumulators):
            if a.in_order:
                tables[f"ordered{i}"] = TableSchema(key, (pa.field("v", a.accumulator.argument),), WEIGHT)
        for i, d in enumerate(self.distincts):
            values = tuple(pa.field(f"v{n}", t) for n, t in enumerate(d.types))
            weights: list[tuple[pa.Field, Combine]] = [(pa.field(name, pa.int64()), "add") for name in d.weights]
            tables[f"distinct{i}"] = TableSchema((*key, *values), (), (*WEIGHT, *weights))
        return tables


@dataclass
class Bound:
    """One end of the time in which a row passes a filter: `row` against a shift of the current time."""

    row: Expr
    """A time of the row."""
    shift: Shift
    late: int
    """Microseconds (0 or 1) by which the shifted time must have passed the row's."""
    leaves: bool
    """The row passes until then; else from then on."""

    def text(self) -> str:
        """As a condition."""
        sign = (">", ">=") if self.leaves else ("<=", "<")
        return f"{self.row.text} {sign[self.late]} {describe(self.shift)}"


@dataclass
class TemporalFilter(Operator):
    """A filter that compares times of the rows with the current time, which is the time of the epoch.

    State table `rows` has each row by the time at which it is next to enter or to leave.
    """

    bounds: list[Bound]
    kind = "temporal filter"

    def detail(self) -> str:
        return " and ".join(b.text() for b in self.bounds)

    def state(self) -> dict[str, TableSchema]:
        values = [pa.field(f"v{i}", attr_arrow(a)) for i, a in enumerate(self.output)]
        due, leaves = (pa.field(name, pa.int64(), nullable=False) for name in ("due", "leaves"))
        return {"rows": TableSchema(key=(due,), value=(leaves, *values), diffs=WEIGHT)}


@dataclass
class First:
    """How much of each partition decides an operator's result: the first `need` rows, or the first `need` values."""

    orders: Sequence[Expr]
    """Sort orders of which the rows' order code is made; empty where the rows' hash is the order."""
    need: int
    by_value: bool = False
    kept: bool = False
    """The input only grows, so that no others are kept."""

    def text(self) -> str:
        """For people, and for the fingerprint; empty if all rows are kept, in the order of their hash."""
        if not self.orders and not self.kept:
            return ""
        what = "values" if self.by_value else "rows"
        order = f" by [{', '.join(o.text for o in self.orders)}]" if self.orders else ""
        return f" {'keeps' if self.kept else 'from'} the first {self.need} {what}{order}"


@dataclass
class Recompute(Operator):
    """Group recompute: Spark's own operator over the old and the new rows of every partition that changed.

    With `first`, the state is kept in order, and only the first rows of a partition are read; over an input that only
    grows, they are all that is kept.
    """

    node: Node
    label: str
    text: str
    keys: Sequence[Expr]
    key_types: list[pa.DataType]
    values: list[Attr]
    limit: tuple[Sequence[Expr], int, int | None] | None = None
    """For a top-N: sort orders, offset, and limit."""
    first: First | None = None
    kind = "recompute"

    def __post_init__(self) -> None:
        if self.first is not None:
            self.first = replace(self.first, kept=self.child.append_only)

    def detail(self) -> str:
        return f"{self.label} {self.text}{'' if self.first is None else self.first.text()}"

    def distribution(self) -> str | None:
        return ", ".join(k.text for k in self.keys) or "(one group)"

    def tables(self) -> dict[str, TableSchema]:
        return {
            "rows": TableSchema(
                key=tuple(pa.field(f"k{i}", t) for i, t in enumerate(self.key_types)),
                value=tuple(pa.field(f"v{i}", attr_arrow(a)) for i, a in enumerate(self.values)),
                diffs=WEIGHT,
            )
        }


@dataclass
class Session(Operator):
    """Session windows: each row with the start and the end of its session, the last two columns of the output.

    A session of a key is rows whose times follow each other at less than the gap; it ends a gap after the last.
    """

    keys: Sequence[Expr]
    key_types: list[pa.DataType]
    time: Expr
    """Never null: a timestamp with or without zone."""
    gap_us: int
    values: list[Attr]
    """Columns of the input that are kept beside key and time."""
    columns: list[str]
    """Where in the state each column of the output is, but for the last two."""
    kind = "session"
    TABLE = "rows"

    def detail(self) -> str:
        return f"of {self.time.text} with a gap of {self.gap_us / 1e6:g} s"

    def distribution(self) -> str | None:
        return ", ".join(k.text for k in self.keys) or "(one group)"

    def tables(self) -> dict[str, TableSchema]:
        until = [pa.field("until", pa.int64(), nullable=False)] if self.TABLE in self.expires else []
        values = [pa.field(f"v{i}", attr_arrow(a)) for i, a in enumerate(self.values)]
        return {
            self.TABLE: TableSchema(
                key=tuple(pa.field(f"k{i}", t) for i, t in enumerate(self.key_types)),
                value=(pa.field("t", pa.int64(), nullable=False), *until, *values),
                diffs=WEIGHT,
            )
        }


@dataclass
class WindowClose(Operator):
    """Holds rows back until the watermark has passed them: what it puts out never changes."""

    position: int
    """Of the column with the event time."""
    mark: Mark
    kind = "window close"
    TABLE = "open"

    def detail(self) -> str:
        return self.output[self.position].name

    def tables(self) -> dict[str, TableSchema]:
        columns = tuple(pa.field(f"c{i}", attr_arrow(a)) for i, a in enumerate(self.output))
        return {self.TABLE: TableSchema(columns, (), WEIGHT)}


WEIGHT: tuple[tuple[pa.Field, Any], ...] = ((pa.field("__w", pa.int64(), nullable=False), "add"),)


def attr_arrow(attr: Attr) -> pa.DataType:
    """The Arrow type of an attribute, everything nullable."""
    from headrace.plan.types import arrow_of

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
