"""Sums of doubles, which do not depend on the order of addition."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.common.lazy_dataclass import dataclass
from headrace.state.accumulators.accumulator import Accumulator, Layout, nulled
from headrace.state.kernels import exact_sum

_DOUBLE = pa.float64()


@dataclass(frozen=True)
class DoubleSum(Accumulator):
    """The double that is nearest to the exact sum; NaN and infinities are counted apart."""

    argument: pa.DataType = _DOUBLE

    def layout(self) -> Layout:
        counts = ("n", "nan", "pinf", "ninf")
        return [*((suffix, pa.int64(), "add") for suffix in counts), ("x", exact_sum.EXACT_TYPE, "exact")]

    def of_rows(self, sent: Sequence[pa.Array], weights: np.ndarray) -> list[pa.Array]:
        values = sent[0]
        present = np.asarray(pc.is_valid(values))
        x = np.asarray(pc.fill_null(values, 0.0), dtype=np.float64)
        finite = np.isfinite(x)
        counts = [
            np.where(present, weights, 0),
            np.where(np.isnan(x), weights, 0),
            np.where(np.isposinf(x), weights, 0),
            np.where(np.isneginf(x), weights, 0),
        ]
        total = exact_sum.products(np.where(present & finite, x, 0.0), weights)
        return [*(pa.array(c.astype(np.int64)) for c in counts), total]

    def read(self, diffs: Sequence[pa.Array]) -> pa.Array:
        count, nan, pinf, ninf = (np.asarray(d) for d in diffs[:4])
        total = np.asarray(diffs[4]) if pa.types.is_float64(diffs[4].type) else exact_sum.rounded(diffs[4])
        total = np.where(pinf > 0, np.inf, np.where(ninf > 0, -np.inf, total))
        total = np.where((nan > 0) | ((pinf > 0) & (ninf > 0)), np.nan, total)
        return nulled(total, count)


__all__ = ["DoubleSum"]
