"""`bit_and`, `bit_or` and `bit_xor`: for each bit how many rows have it set - all, any, or an odd number of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.common.lazy_dataclass import dataclass
from headrace.state.accumulators.accumulator import Accumulator, Layout, nulled
from headrace.state.kernels.equality import Bools, Ints


@dataclass(frozen=True)
class Bits(Accumulator):
    """An integer, each bit of which depends on how many rows have it set."""

    @abstractmethod
    def is_set(self, rows: Ints, count: Ints) -> Bools:
        """Whether a bit is set in the result, by how many of the rows have it."""

    def layout(self) -> Layout:
        return [("n", pa.int64(), "add"), *((f"b{i}", pa.int64(), "add") for i in range(self.argument.bit_width))]

    def of_rows(self, sent: Sequence[pa.Array], weights: np.ndarray) -> list[pa.Array]:
        values, width = sent[0], self.argument.bit_width
        counts = np.where(np.asarray(pc.is_valid(values)), weights, 0)
        bits = np.asarray(pc.fill_null(values, 0)).view(f"u{width // 8}")
        one = bits.dtype.type(1)
        found = [np.where((bits >> bits.dtype.type(i)) & one, counts, 0) for i in range(width)]
        return [pa.array(counts), *map(pa.array, found)]

    def read(self, diffs: Sequence[pa.Array]) -> pa.Array:
        count = np.asarray(diffs[0])
        unsigned = np.dtype(f"u{self.argument.bit_width // 8}")
        found = np.zeros(len(count), dtype=unsigned)
        for i, rows in enumerate(diffs[1:]):
            found |= self.is_set(np.asarray(rows), count).astype(unsigned) << unsigned.type(i)
        return nulled(found.view(f"i{unsigned.itemsize}"), count)


class BitAnd(Bits):
    """Bits that all rows have."""

    def is_set(self, rows: Ints, count: Ints) -> Bools:
        return rows == count


class BitOr(Bits):
    """Bits that any row has."""

    def is_set(self, rows: Ints, count: Ints) -> Bools:
        return rows > 0


class BitXor(Bits):
    """Bits that an odd number of rows has."""

    def is_set(self, rows: Ints, count: Ints) -> Bools:
        return rows % 2 != 0


__all__ = ["BitAnd", "BitOr", "BitXor", "Bits"]
