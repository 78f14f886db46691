"""Minima and maxima: of rows that only come in the diffs, of those that may go as the first of values in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa

from headrace.common.lazy_dataclass import dataclass
from headrace.state.accumulators.accumulator import Accumulator, Layout, Sent, WireColumn


@dataclass(frozen=True)
class Extreme(Accumulator):
    """The smallest or largest of values that are never taken back; not of doubles, whose NaN Arrow passes over."""

    combine: ClassVar[Literal["min", "max"]]
    """How the values of several rows become one, on their way as in the state."""

    def __init_subclass__(cls, combine: Literal["min", "max"]) -> None:
        cls.combine, cls.wire = combine, (WireColumn("raw", Sent.VALUE, combine),)

    def __post_init__(self) -> None:
        if not self.can_hold(self.argument):
            raise ValueError(
                f"the {self.combine} of {self.argument} cannot be accumulated; its values are kept in order"
            )

    @staticmethod
    def can_hold(kind: pa.DataType) -> bool:
        """Whether Arrow's kernels order values of a type as Spark does: NaN is above all there, booleans have none."""
        return not (pa.types.is_floating(kind) or pa.types.is_boolean(kind))

    def layout(self) -> Layout:
        return [("m", self.argument, self.combine)]

    def of_rows(self, sent: Sequence[pa.Array], weights: np.ndarray) -> list[pa.Array]:
        return list(sent)

    def read(self, diffs: Sequence[pa.Array]) -> pa.Array:
        return diffs[0]


class Minimum(Extreme, combine="min"):
    """The smallest of values that are never taken back."""


class Maximum(Extreme, combine="max"):
    """The largest of values that are never taken back."""


@dataclass(frozen=True)
class FirstInOrder(Accumulator):
    """The smallest or largest of values that may be taken back: nothing is kept but the values themselves."""

    def layout(self) -> Layout:
        return []

    def of_rows(self, sent: Sequence[pa.Array], weights: np.ndarray) -> list[pa.Array]:
        return []

    def read(self, diffs: Sequence[pa.Array]) -> pa.Array:
        raise AssertionError("is read of the values")


class Least(FirstInOrder):
    """The smallest of values that may be taken back."""

    order = "ascending"


class Greatest(FirstInOrder):
    """The largest of values that may be taken back."""

    order = "descending"


__all__ = ["Extreme", "FirstInOrder", "Greatest", "Least", "Maximum", "Minimum"]
