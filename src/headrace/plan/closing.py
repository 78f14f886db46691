"""`EMIT ON WINDOW CLOSE`, over all of a query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from headrace.common.lazy_dataclass import dataclass
from headrace.errors import NotSupported
from headrace.plan.mark_rules import TIMES, Marks
from headrace.plan.tree import WEIGHT, Operator, attr_arrow
from headrace.plan.watermark_rules import LeastWatermark
from headrace.state.schema import TableSchema


@dataclass
class WindowClose(Operator):
    """Holds rows back until the watermark has passed them: what it puts out never changes."""

    position: int
    """Of the column with the event time."""
    mark: LeastWatermark
    kind = "window close"
    TABLE = "open"

    def detail(self) -> str:
        return self.output[self.position].name

    def tables(self) -> dict[str, TableSchema]:
        columns = tuple(pa.field(f"c{i}", attr_arrow(a)) for i, a in enumerate(self.output))
        return {self.TABLE: TableSchema(columns, (), WEIGHT)}

    def is_idle(self, active: frozenset[int] | None) -> bool:
        return False  # the watermark may pass what waits

    def marks(self, below: Sequence[Marks], watermarks: Mapping[int, str]) -> Marks:
        self.expire(self.TABLE, f"c{self.position}", self.mark)
        return {}  # nothing is above it

    def marks_needed(self) -> list[LeastWatermark]:
        return [self.mark]


def closed(root: Operator, marks: Marks) -> WindowClose:
    """The plan that holds its rows back by the first of its columns with a watermark. `NotSupported` if none has."""
    for i, a in enumerate(root.output):
        if a.id in marks and a.type in TIMES:
            return WindowClose(root.output, True, [root], i, marks[a.id])
    raise NotSupported(
        "EMIT ON WINDOW CLOSE of a query without a watermarked time among its columns",
        hint="declare WATERMARK FOR a time column of every input that can change old rows of the result, group by a "
        "window of it (TUMBLE, HOP, date_trunc), and have the window's start or end in the SELECT list",
    )
