"""What an accumulator is: all that the rest of the program asks of one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum
from typing import ClassVar, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from headrace.common.lazy_dataclass import dataclass
from headrace.state.schema import Combine

Layout: TypeAlias = Sequence[tuple[str, pa.DataType, Combine]]
"""Diff columns: the suffix of the name, the type, and how those of equal rows combine."""


class Sent(Enum):
    """What a row can send for an accumulator. Whoever plans rows computes it (`dataflow/accumulator_input.py`)."""

    VALUE = "the value as it is"
    COUNT = "the row's weight; 0 where the value is null"
    PRODUCT = "the value, a whole number of up to 32 bits, times the weight; 0 where it is null"
    LOW = "the lowest 32 bits of the unscaled value times the weight; 0 where it is null"
    HIGH = "what is above these; 0 where it is null"


@dataclass(frozen=True)
class WireColumn:
    """A column that each row sends. All but values are int64."""

    suffix: str
    sent: Sent
    merged: Literal["sum", "min", "max"] | None = None
    """How columns of several rows may become one on the way to the state; None where that would not be exact."""

    @property
    def adds(self) -> bool:
        """Whether columns of several rows are added up."""
        return self.merged == "sum"


COUNTED = WireColumn("n", Sent.COUNT, "sum")
"""How often a value is there."""
AS_IT_IS = WireColumn("raw", Sent.VALUE)
"""The value, which only the accumulator itself can combine with others."""


@dataclass(frozen=True)
class Accumulator(ABC):
    """Keeps one aggregate of each group in diff columns, which are all that is stored of it.

    The diffs of rows are combined with those of the state as `Combine` says. In any order they must come to the same,
    and where rows can be taken back, their diffs with the opposite weight must leave what was there before. Instances
    travel to Spark's workers.
    """

    argument: pa.DataType
    """The type of what is accumulated."""

    wire: ClassVar[tuple[WireColumn, ...]] = (AS_IT_IS,)
    """What a row sends."""
    order: ClassVar[Literal["ascending", "descending"] | None] = None
    """Its result is the first value in this order. Then all values are kept in order beside the diffs, not in them."""

    @property
    def result(self) -> pa.DataType:
        """The type of what is read."""
        return self.argument

    @property
    def merges(self) -> bool:
        """Whether rows of a group may be combined on their way."""
        return all(w.merged is not None for w in self.wire)

    @abstractmethod
    def layout(self) -> Layout:
        """The diff columns; the first one counts rows where averages are read of it."""

    def diffs(self, prefix: str) -> list[tuple[pa.Field, Combine]]:
        """The diff columns under names that begin with a prefix."""
        return [(pa.field(f"{prefix}_{suffix}", kind), how) for suffix, kind, how in self.layout()]

    @abstractmethod
    def of_rows(self, sent: Sequence[pa.Array], weights: np.ndarray) -> list[pa.Array]:
        """The diffs of rows, from what they sent and their int64 weights."""

    def of_values(self, values: pa.Array, weights: np.ndarray) -> list[pa.Array]:
        """The diffs of values, none of them null, that come or go with int64 weights. Decimals must fit their type."""
        assert self.wire == (AS_IT_IS,), "what sends something else says what values come to"
        return self.of_rows([values], weights)

    def counted(self, diffs: Sequence[pa.Array]) -> pa.Array:
        """How many rows have been accumulated."""
        return diffs[0]

    @abstractmethod
    def read(self, diffs: Sequence[pa.Array]) -> pa.Array:
        """The result of every group, of type `result`; null where no row counts, but for counts.

        In place of an "exact" diff there may be what it is rounded to.

        Raises `NumericOutOfRange` where a sum does not fit the type.
        """


def nulled(values: np.ndarray, count: np.ndarray) -> pa.Array:
    """Values of groups, null where no row counts."""
    return pa.array(values, mask=count == 0)


__all__ = ["AS_IT_IS", "COUNTED", "Accumulator", "Layout", "Sent", "WireColumn", "nulled"]
