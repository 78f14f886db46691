"""Rows that a target refuses for good: who says so, how they are found among others, and what is kept of them.

A sink that meets some raises `RowsRefused` in place of delivering. Where the sink has a dead-letter table its stage
writes them there; the coordinator makes that durable and has the epoch delivered again, without them. So which rows are
left out is known before anything is delivered: an attempt that finds the epoch at the target finds them, too. A target
that keeps no epochs has taken the others already (`delivered`).

What is left out is a row's coming (`insert`) or its going (`delete`): the target then has the sink's rows, but for
those in the table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, Literal

import numpy as np
import pyarrow as pa

from headrace.common.columns import Column
from headrace.common.lazy_dataclass import dataclass
from headrace.connectors.held_changes import HeldChanges
from headrace.connectors.json_out import NotSpelled, objects, text
from headrace.errors import InvalidParameter, NotSupported, SinkError

WEIGHT_COLUMN: Final = "__w"
ON_ROW_ERROR: Final = "on_row_error"
TABLE: Final = "dead_letter_table"
POLICIES: Final = ("fail", "dead_letter")
MOST_AT_ONCE: Final = 1000
"""Rows that one attempt sets aside: the next one goes on, so none of them takes for ever."""
HELD_ROWS: Final = 100_000
"""Rows of an epoch that are held to tell which of them is refused, where there is no table for such rows."""
SHOWN_CHARS: Final = 400
"""Of a row in a message."""
COLUMNS: Final = (
    Column("sink", "string"), Column("epoch", "bigint"), Column("op", "string"), Column("row", "string"),
    Column("error", "string"), Column("at", "timestamp"),
)  # fmt: skip
"""The columns of a dead-letter table."""
DEFINITION: Final = "(sink text, epoch bigint, op text, row text, error text, at timestamptz) APPEND ONLY"
"""What makes such a table."""
Op = Literal["insert", "delete"]


@dataclass(frozen=True)
class Refusal:
    """A row that a target does not take, or does not let go."""

    op: Op
    row: str
    """As JSON, as `texts` writes it."""
    error: str


class RowsRefused(Exception):
    """Raised by a sink whose target refuses rows for good; nothing of the epoch is there, unless `delivered`."""

    def __init__(self, target: str, refusals: Sequence[Refusal], delivered: int | None = None) -> None:
        """`delivered` is how many changes a target has taken that keeps no epochs."""
        super().__init__(target)
        self.target, self.refusals, self.delivered = target, list(refusals), delivered

    def failure(self) -> SinkError:
        """What is said where nothing else is to become of it."""
        first = self.refusals[0]
        return SinkError(
            f"{self.target} refuses a row for good: {first.error}: {first.op} of {_shortened(first.row)}",
            hint=f"have it taken there, or create the sink with {ON_ROW_ERROR} = 'dead_letter' and {TABLE}",
        )


def _shortened(row: str) -> str:
    return row if len(row) <= SHOWN_CHARS else row[: SHOWN_CHARS - 1] + "…"


def collects(options: Mapping[str, str]) -> bool:
    """Whether refused rows go to a table."""
    return options.get(ON_ROW_ERROR, "fail") == "dead_letter"


def check(options: Mapping[str, str], *, refuses: bool) -> None:
    """Raise for a policy without a table, a table without a policy, or where no row is ever `refuses`d by itself."""
    if collects(options) and not refuses:
        raise NotSupported(
            f"{ON_ROW_ERROR} = 'dead_letter' of a sink with connector {options.get('connector')}",
            hint="it refuses no row that it would take others without: leave the option out",
        )
    if collects(options) != (TABLE in options):
        raise InvalidParameter(f"{ON_ROW_ERROR} = 'dead_letter' and {TABLE} need each other")


def texts(rows: pa.RecordBatch) -> list[str]:
    """Rows as JSON; of one that has no spelling there times are texts as Arrow has them."""
    try:
        return [text(row).decode() for row in objects(rows)]
    except NotSpelled:
        if rows.num_rows != 1:  # a row's text does not depend on those beside it
            return [only for i in range(rows.num_rows) for only in texts(rows.slice(i, 1))]
    columns = [c.cast(pa.string()) if pa.types.is_temporal(c.type) else c for c in rows.columns]
    return [text(row).decode() for row in objects(pa.RecordBatch.from_arrays(columns, names=rows.schema.names))]


def not_spelled(batches: Iterable[pa.RecordBatch], width: int, most: int) -> list[Refusal]:
    """The changes, each as often as it is made and no more than so many, of rows that have no spelling in JSON."""
    refused: list[Refusal] = []
    for batch in batches:
        rows, weights = batch.select(range(width)), batch.column(WEIGHT_COLUMN).to_pylist()
        for i, weight in enumerate(weights if not _spelled(rows) else ()):
            row = rows.slice(i, 1)
            if len(refused) < most and not _spelled(row):
                op: Op = "insert" if weight > 0 else "delete"
                refused += [
                    Refusal(op, texts(row)[0], "it has a value that JSON has not: a year below 1 or above 9999")
                ] * min(abs(weight), most - len(refused))
    return refused


def _spelled(rows: pa.RecordBatch) -> bool:
    try:
        objects(rows)
    except NotSpelled:
        return False
    return True


def without(
    batches: Iterable[pa.RecordBatch], width: int, left_out: Counter[tuple[str, str]]
) -> Iterator[pa.RecordBatch]:
    """Batches with so many columns and their weights, less the changes (op, row) that are left out, each so often."""
    left = Counter(left_out)
    for batch in batches:
        if not left.total():
            yield batch
            continue
        weights = np.array(batch.column(WEIGHT_COLUMN), dtype=np.int64)
        for i, row in enumerate(texts(batch.select(range(width)))):
            change = ("insert" if weights[i] > 0 else "delete", row)
            less = min(left[change], abs(int(weights[i])))
            left[change] -= less
            weights[i] -= less * np.sign(weights[i])
        made = batch.set_column(width, batch.schema.field(width), pa.array(weights))
        made = made.filter(pa.array(weights != 0))
        if made.num_rows:
            yield made


class PassingChanges:
    """The batches of an epoch as they come, kept to look for what is refused: all of them if that goes to a table."""

    def __init__(
        self, batches: Iterator[pa.RecordBatch], kept: HeldChanges, all_of_them: bool, needed: bool = False
    ) -> None:
        """`needed` is whether all are kept whatever is looked for."""
        self._coming, self._kept, self._all, self._needed = batches, kept, all_of_them, needed
        self._rows = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._coming:
            self._rows += batch.num_rows
            if self._needed or self._searched:
                self._kept.add(batch)
            else:
                self._kept.clear()
            yield batch

    def take_in(self) -> None:
        """Take in those that have not come yet."""
        for _ in self:
            pass

    def searched(self) -> bool:
        """Take in the rest, and say whether they are to be looked through: then all of them are kept."""
        self.take_in()
        return self._searched

    @property
    def _searched(self) -> bool:
        return self._all or self._rows <= HELD_ROWS


def found(rows: int, attempt: Callable[[int, int], str | None], most: int) -> Iterator[tuple[int, str]]:
    """Which of some rows are refused, and why, in order, and no more than so many.

    `attempt` tries rows [low, high) after those before them that were taken, and says why not all of them are; then it
    has left nothing.
    """
    left, told = [(0, rows)], 0
    while left and told < most:
        low, high = left.pop()
        why = attempt(low, high) if low < high else None
        if why is None:
            continue
        if high - low == 1:
            told += 1
            yield low, why
            continue
        middle = (low + high) // 2
        left += [(middle, high), (low, middle)]


def letters(sink: str, epoch: int, refusals: Sequence[Refusal]) -> dict[str, pa.Array]:
    """Rows of a dead-letter table, by its columns."""
    at = datetime.now(UTC)
    number = len(refusals)
    return {
        "sink": pa.array([sink] * number, pa.string()),
        "epoch": pa.array([epoch] * number, pa.int64()),
        "op": pa.array([r.op for r in refusals], pa.string()),
        "row": pa.array([r.row for r in refusals], pa.string()),
        "error": pa.array([r.error for r in refusals], pa.string()),
        "at": pa.array([at] * number, pa.timestamp("us", "UTC")),
    }
