"""Sums of integers and decimals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.common.lazy_dataclass import dataclass
from headrace.state.accumulators import limbs
from headrace.state.accumulators.accumulator import COUNTED, Accumulator, Layout, Sent, WireColumn, nulled
from headrace.state.kernels.combination import LIMB_BITS, LIMB_MASK
from headrace.state.kernels.equality import fixed_width, int64_values


@dataclass(frozen=True)
class SmallSum(Accumulator):
    """The sum of integers of up to 32 bits, in one column of int64."""

    wire = (COUNTED, WireColumn("s", Sent.PRODUCT, "sum"))

    @property
    def result(self) -> pa.DataType:
        return pa.int64()

    def layout(self) -> Layout:
        return [("n", pa.int64(), "add"), ("s", pa.int64(), "add")]

    def of_rows(self, sent: Sequence[pa.Array], weights: np.ndarray) -> list[pa.Array]:
        return list(sent)

    def of_values(self, values: pa.Array, weights: np.ndarray) -> list[pa.Array]:
        return [pa.array(weights), pa.array(np.asarray(values).astype(np.int64) * weights)]

    def read(self, diffs: Sequence[pa.Array]) -> pa.Array:
        return nulled(np.asarray(diffs[1]), np.asarray(diffs[0]))


@dataclass(frozen=True)
class WideSum(Accumulator):
    """The sum of integers of 64 bits, or of decimals of up to 18 digits, in two limbs."""

    as_double: bool = False
    """Read as a double: for averages, whose sum need not fit bigint."""

    wire = (COUNTED, WireColumn("0", Sent.LOW, "sum"), WireColumn("1", Sent.HIGH, "sum"))

    @property
    def result(self) -> pa.DataType:
        if pa.types.is_decimal(self.argument):
            return pa.decimal128(38, self.argument.scale)
        return pa.float64() if self.as_double else pa.int64()

    def layout(self) -> Layout:
        return [("n", pa.int64(), "add"), ("0", pa.int64(), "add"), ("1", pa.int64(), "add")]

    def of_rows(self, sent: Sequence[pa.Array], weights: np.ndarray) -> list[pa.Array]:
        return [sent[0], *map(pa.array, limbs.normalized([int64_values(limb) for limb in sent[1:]]))]

    def of_values(self, values: pa.Array, weights: np.ndarray) -> list[pa.Array]:
        words = fixed_width(values).reshape(len(values), values.type.bit_width // 64)[:, 0].view(np.int64)
        low, high = (words & LIMB_MASK) * weights, (words >> LIMB_BITS) * weights
        return [pa.array(weights), pa.array(low), pa.array(high)]

    def read(self, diffs: Sequence[pa.Array]) -> pa.Array:
        count, *sums = (np.asarray(d) for d in diffs)
        found = limbs.normalized(sums)
        if pa.types.is_decimal(self.argument):
            return limbs.as_decimal(found, count, self.result)
        return limbs.as_double(found, count) if self.as_double else limbs.as_bigint(found, count)


@dataclass(frozen=True)
class DecimalSum(Accumulator):
    """The sum of decimals of any length, in four limbs."""

    @property
    def result(self) -> pa.DataType:
        return pa.decimal128(38, self.argument.scale)

    def layout(self) -> Layout:
        return [("n", pa.int64(), "add"), *((str(i), pa.int64(), "add") for i in range(limbs.DECIMAL_LIMBS))]

    def of_rows(self, sent: Sequence[pa.Array], weights: np.ndarray) -> list[pa.Array]:
        values = sent[0]
        present = np.asarray(pc.is_valid(values))
        products = limbs.times(limbs.of_decimals(values), weights)
        return [pa.array(np.where(present, weights, 0)), *map(pa.array, products)]

    def read(self, diffs: Sequence[pa.Array]) -> pa.Array:
        count, *sums = (np.asarray(d) for d in diffs)
        return limbs.as_decimal(limbs.normalized(sums), count, self.result)


__all__ = ["DecimalSum", "SmallSum", "WideSum"]
