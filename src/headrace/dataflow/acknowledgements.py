"""How what tasks have written reaches the driver: an accumulator of acknowledgements.

Workers load its classes with every stage, so they have a module that imports next to nothing else. Both sides run the
same program, and nothing of it is stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from pyspark import AccumulatorParam

from headrace.common.lazy_dataclass import dataclass
from headrace.state.schema import RunRef

if TYPE_CHECKING:
    from headrace.connectors.base import RowError


@dataclass(frozen=True, slots=True)
class NotedFailure:
    """A row on which an expression failed, as a stage notes it; `failures.described` makes it readable."""

    operator: str
    stage: str
    check: int
    """Which of the expressions that the stage notes."""
    values: tuple[str | None, ...]
    """The row, as texts."""


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """What the coordinator learns of a stage that has come to its end in one task."""

    attempt: str
    stage: str
    partition: int
    task_attempt: int
    """Spark's number of the try at this task."""
    rows_in: int = 0
    rows_out: int = 0
    rows_written: int = 0
    """Rows of state tables; the attempt's objects must hold exactly these."""
    spilled_bytes: int = 0
    row_errors: tuple[NotedFailure | RowError, ...] = ()
    """Some of the rows on which an expression failed, or that could not be read."""
    row_error_count: int = 0
    due_us: int | None = None
    """No row of the stage's state is due before this time, Unix microseconds; None if none ever is."""
    late_rows: int = 0
    """Rows of a source that were not taken in because the watermark had passed them."""
    newest_us: Mapping[str, int] = field(default_factory=dict)
    """The highest event time that was read of a source, Unix microseconds, by split."""
    refs: tuple[RunRef, ...] = ()
    """The runs that the task has made durable; its last stage tells them."""
    undelivered: bool = False
    """A sink has delivered nothing: the rows of which the runs tell are to be left out, and the step is run again."""
    remark: str = ""
    """What a sink has left undone that it does besides delivering."""
    rows_read: int = 0
    """Rows that were read of a source, late ones among them."""
    bytes_read: int = 0
    """And how many bytes these were."""
    io: Mapping[str, int] = field(default_factory=dict)
    """What the task has read and written, by the names of the fields of `IoMetrics`; its last stage tells it."""


class Acknowledgements(AccumulatorParam[list[Acknowledgement]]):
    """Adds up lists of acknowledgements, for Spark's accumulator."""

    def zero(self, value: list[Acknowledgement]) -> list[Acknowledgement]:
        """The empty list that a task begins with."""
        return []

    def addInPlace(self, value1: list[Acknowledgement], value2: list[Acknowledgement]) -> list[Acknowledgement]:
        """Puts two lists together."""
        value1.extend(value2)
        return value1
