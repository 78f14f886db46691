"""Counts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from headrace.common.lazy_dataclass import dataclass
from headrace.state.accumulators.accumulator import COUNTED, Accumulator, Layout

_PRESENT = pa.bool_()
"""What is counted is not null; else its type does not matter."""


@dataclass(frozen=True)
class Count(Accumulator):
    """How many rows have a value."""

    argument: pa.DataType = _PRESENT

    wire = (COUNTED,)

    @property
    def result(self) -> pa.DataType:
        return pa.int64()

    def layout(self) -> Layout:
        return [("n", pa.int64(), "add")]

    def of_rows(self, sent: Sequence[pa.Array], weights: np.ndarray) -> list[pa.Array]:
        return list(sent)

    def of_values(self, values: pa.Array, weights: np.ndarray) -> list[pa.Array]:
        return [pa.array(weights)]

    def read(self, diffs: Sequence[pa.Array]) -> pa.Array:
        return diffs[0]


__all__ = ["Count"]
