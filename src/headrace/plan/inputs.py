"""The leaves of a plan: relations of the database, and rows that the query itself states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F

from headrace.common.lazy_dataclass import dataclass
from headrace.errors import NotSupported
from headrace.plan import lookups
from headrace.plan.border_types import arrow_of
from headrace.plan.catalyst.nodes import Leaf, Node
from headrace.plan.mark_rules import Marks
from headrace.plan.tree import Attr, Operator, OwnReading
from headrace.plan.watermark_rules import of_column

if TYPE_CHECKING:
    from headrace.plan.derive import Derivation, PlannedRelation


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

    def reading(self) -> OwnReading:
        return OwnReading(self.relation, changes=True, content=not self.changes_only)

    def picked(self) -> Picked:
        return Picked(self, {a.id: name for a, name in zip(self.output, self.columns, strict=True)}, ())

    def marks(self, below: Sequence[Marks], watermarks: Mapping[int, str]) -> Marks:
        column = watermarks.get(self.relation)
        if column is None:
            return {}
        self.late = column
        return {a.id: of_column(self.relation, column) for a in self.output if a.name == column}

    def forget_event_time(self) -> None:
        super().forget_event_time()
        self.late = None


@dataclass(frozen=True)
class Picked:
    """Columns of a relation, as an operator puts them out that does nothing but pick rows without nulls in some."""

    leaf: Input
    names: dict[int, str]
    """Attribute -> the relation's column."""
    present: tuple[str, ...]
    """Columns in which the rows have no null."""


@dataclass
class Constant(Operator):
    """Rows that the query itself states; put out once, in the first epoch."""

    rows: pa.Table
    kind = "constant"

    def detail(self) -> str:
        return f"{self.rows.num_rows} rows"


def derive_leaf(d: Derivation, node: Leaf, needed: set[int]) -> Operator:
    """A leaf, which stands for a relation that was defined."""
    return derive_input(d, node, needed, None if node.leaf_id is None else d.relations.get(node.leaf_id))


def derive_input(d: Derivation, node: Node, needed: set[int], relation: PlannedRelation | None) -> Operator:
    """The needed columns of a relation; None for one of which nothing is known."""
    if relation is None:
        raise NotSupported(
            "a view can read only relations of this database",
            hint="create a source or table for the data, or build the DataFrame from db.table(...)",
        )
    if relation.lookup:
        raise lookups.refuse_lookup(relation)
    output = [a for a in d.attrs(node.output) if a.id in needed]
    columns = [a.name for a in output]
    return Input(output, relation.append_only, [], relation.id, relation.name, columns)


def derive_constant(d: Derivation, node: Node, needed: set[int]) -> Operator:
    """Rows that Spark computes once, when the view is planned."""
    attrs: list[Attr] = d.attrs(node.output)
    names = [f"c{i}" for i in range(len(attrs))]
    # A relation of one row and no columns is a row all the same: the marker keeps it.
    rows = d.bridge.frame(node).toDF(*names).withColumn("__row", F.lit(True)).toArrow()
    kept = [i for i, a in enumerate(attrs) if a.id in needed]
    columns = [rows.column(i).cast(arrow_of(attrs[i].handle)) for i in kept]
    table = pa.table([*columns, rows.column("__row")], names=[*(names[i] for i in kept), "__row"])
    return Constant([attrs[i] for i in kept], True, [], table)
