"""Exact sums of doubles: fixed-point numbers that hold every finite double, and every sum of them, without rounding.

A sum is an integer number of `2**-1074`, the smallest double, in limbs of 32 bits (Kulisch's long accumulator). It is
stored as a binary value, and each sum has exactly one spelling:

    8 bytes               the bits of a double, where the sum is one; zero is 0.0
    4 bytes, then limbs   the position of the lowest limb, and limbs in two's complement from there, at least two;
                          the lowest is not zero, and the highest is needed for its value or for the sign

So two sums are equal where their bytes are, whatever they were added up of, in whatever order; and what is taken back
is gone. Almost all values of a column lie within a few limbs, and only these are computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.common.lazy_dataclass import dataclass
from headrace.state.kernels.equality import Bools, Ints, validity

Floats = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint32]

EXACT_TYPE = pa.binary()
"""The Arrow type of stored sums."""

_BITS = 32
_MASK = (1 << _BITS) - 1
_UNIT = -1074
"""Sums are whole numbers of 2 to this power."""
_RAW = 8
"""Bytes of a sum that is a double."""
_GROUPS_AT_ONCE = 65_536
_NOTHING: Words = np.zeros(0, dtype=np.uint32)
_FAR = 1_000
"""Powers of two up to this one are doubles, and so are their inverses."""


def of_doubles(values: Floats) -> pa.Array:
    """Finite doubles as sums."""
    whole = np.ascontiguousarray(values + 0.0)  # -0.0 is no sum
    offsets = np.arange(0, _RAW * len(whole) + 1, _RAW, dtype=np.int32)
    return pa.Array.from_buffers(EXACT_TYPE, len(whole), [None, pa.py_buffer(offsets), pa.py_buffer(whole)])


def products(values: Floats, weights: Ints) -> pa.Array:
    """Finite doubles times integers of any size."""
    if not len(weights) or (int(weights.min()) >= -1 and int(weights.max()) <= 1):
        return of_doubles(values * weights)
    return _by_blocks(np.arange(len(values)), len(values), lambda s, _: _product_limbs(values[s], weights[s]))


def sums(column: pa.Array, starts: Ints) -> pa.Array:
    """The sum of every group of sums: group i begins at `starts[i]` and ends where the next begins."""
    stored = _Stored.of(column)
    return _by_blocks(starts, len(column), lambda s, places: _group_limbs(stored.part(s), places))


def not_zero(column: pa.Array) -> Bools:
    """Which sums are not zero."""
    stored = _Stored.of(column)
    return (stored.count > 0) | (stored.doubles != 0)


def rounded(column: pa.Array) -> Floats:
    """The doubles nearest to the sums, the even one of two; infinite beyond the greatest."""
    stored = _Stored.of(column)
    result = stored.doubles
    long = np.flatnonzero(stored.count)
    for start in range(0, len(long), _GROUPS_AT_ONCE):
        rows = long[start : start + _GROUPS_AT_ONCE]
        result[rows] = _nearest(*_total([stored.part(rows)]).magnitude())[0]
    return result


def rounded_totals(left: pa.Array, right: pa.Array) -> Floats:
    """The doubles nearest to the totals of two sums each."""
    columns = [_Stored.of(left), _Stored.of(right)]
    blocks = [slice(i, i + _GROUPS_AT_ONCE) for i in range(0, len(left), _GROUPS_AT_ONCE)]
    found = [_nearest(*_total([c.part(rows) for c in columns]).magnitude())[0] for rows in blocks]
    return np.concatenate(found) if found else np.zeros(0)


@dataclass
class _Stored:
    """A column of sums, taken apart."""

    doubles: Floats
    """The sums that are doubles, 0.0 elsewhere."""
    words: Words
    low: Ints
    """The position of the lowest limb of every sum that is none."""
    count: Ints
    """How many limbs it has; 0 for doubles."""
    start: Ints
    """Where in `words` they begin."""

    @classmethod
    def of(cls, column: pa.Array) -> _Stored:
        n = len(column)
        _, offset_buffer, data = column.buffers()
        offsets = np.zeros(n + 1, dtype=np.int64)
        if n and data is not None:
            offsets[:] = np.frombuffer(offset_buffer, dtype=np.int32, count=n + 1, offset=column.offset * 4)
        words = np.frombuffer(data, dtype=np.uint32, count=int(offsets[-1]) // 4) if offsets[-1] else _NOTHING
        sizes = np.diff(offsets)
        present = validity(column)
        if present is not None:
            sizes = np.where(present, sizes, 0)
        at = offsets[:-1] // 4
        raw = sizes == _RAW
        if n and raw.all():
            zeros = np.zeros(n, dtype=np.int64)
            return cls(words[int(at[0]) :].copy().view(np.float64), words, zeros, zeros, zeros)
        doubles = np.zeros(n)
        place = at[raw]
        doubles[raw] = (words[place] | (words[place + 1].astype(np.uint64) << np.uint64(_BITS))).view(np.float64)
        long = sizes > _RAW
        low = np.zeros(n, dtype=np.int64)
        low[long] = words[at[long]]
        return cls(doubles, words, low, np.where(long, sizes // 4 - 1, 0), at + 1)

    def part(self, rows: slice | Ints) -> _Stored:
        """Some of the sums."""
        return _Stored(self.doubles[rows], self.words, self.low[rows], self.count[rows], self.start[rows])

    def long_window(self) -> range:
        """The positions of the limbs of all sums that are no doubles."""
        long = self.count > 0
        if not long.any():
            return range(0)
        return range(int(self.low[long].min()), int((self.low + self.count)[long].max()))

    def limb(self, j: int) -> Ints:
        """The limb at position `j` of all sums that are no doubles; the highest of each is signed."""
        place = j - self.low
        there = (place >= 0) & (place < self.count)
        found = self.words[np.where(there, self.start + place, 0)].astype(np.int64)
        found -= (there & (place == self.count - 1) & (found > _MASK >> 1)).astype(np.int64) << _BITS
        return np.where(there, found, 0)


@dataclass
class _Limbs:
    """Sums side by side: `values[j]` has the limb at position `low + j` of each; only the last ones are signed."""

    low: int
    values: Ints

    @classmethod
    def carried(cls, low: int, values: Ints) -> _Limbs:
        """Of int64 limbs of any size, with two more above them that are zero."""
        for j in range(len(values) - 1):
            values[j + 1] += values[j] >> _BITS
            values[j] &= _MASK
        return cls(low, values)

    def magnitude(self) -> tuple[int, Ints, Bools]:
        """The lowest position, limbs of the absolute values, and which sums are negative."""
        negative = self.values[-1] < 0
        found = self.values
        if negative.any():
            found = _Limbs.carried(self.low, np.where(negative, -found, found)).values
        used = len(found)
        while used > 1 and not found[used - 1].any():
            used -= 1
        return self.low, found[:used], negative

    def stored(self) -> pa.Array:
        """As a column."""
        doubles, exact = _nearest(*self.magnitude())
        if exact.all():
            return of_doubles(doubles)
        values = self.values & _MASK
        first, last = self._extent(values)
        count = last - first + 1
        size = np.where(exact, 2, count + 1)  # in words
        ends = np.cumsum(size)
        starts = ends - size
        words = np.zeros(int(ends[-1]), dtype=np.uint32)
        halves = doubles.view(np.uint32).reshape(-1, 2)
        words[starts[exact]], words[starts[exact] + 1] = halves[exact, 0], halves[exact, 1]
        long = np.flatnonzero(~exact)
        words[starts[long]] = self.low + first[long]
        for j in range(int(count[long].max())):
            some = long[count[long] > j]
            words[starts[some] + 1 + j] = values[first[some] + j, some]
        offsets = np.concatenate(([0], ends * 4)).astype(np.int32)
        return pa.Array.from_buffers(EXACT_TYPE, len(size), [None, pa.py_buffer(offsets), pa.py_buffer(words)])

    def _extent(self, values: Ints) -> tuple[Ints, Ints]:
        """The first limb of each sum that is not zero, and the last that is needed, after the first."""
        negative = self.values[-1] < 0
        spare = np.where(negative, _MASK, 0)
        first, last = _first(values != 0), _last(values != spare)
        top = np.take_along_axis(values, last[np.newaxis], axis=0)[0]
        last += (top > _MASK >> 1) != negative
        return first, np.maximum(last, first + 1)


def _by_blocks(starts: Ints, rows: int, limbs_of: Callable[[slice, Ints], _Limbs]) -> pa.Array:
    """Sums of groups of rows, some groups at a time: `limbs_of` makes `_Limbs` of a range of rows and its groups."""
    parts = []
    for i in range(0, len(starts), _GROUPS_AT_ONCE):
        some = starts[i : i + _GROUPS_AT_ONCE]
        end = int(starts[i + _GROUPS_AT_ONCE]) if i + _GROUPS_AT_ONCE < len(starts) else rows
        parts.append(limbs_of(slice(int(some[0]), end), some - some[0]).stored())
    if len(parts) == 1:
        return parts[0]
    return pa.concat_arrays(parts) if parts else pa.array([], EXACT_TYPE)


def _group_limbs(rows: _Stored, starts: Ints) -> _Limbs:
    window, long = _window(rows.doubles), rows.long_window()
    low, high = _span(window, long)
    values = np.zeros((high - low + 2, len(starts)), dtype=np.int64)
    for j, digit in _digits(rows.doubles, window):
        values[j - low] = _by_group(digit.astype(np.int64), starts)
    for j in long:
        values[j - low] += _by_group(rows.limb(j), starts)
    return _Limbs.carried(low, values)


def _total(columns: Sequence[_Stored]) -> _Limbs:
    """The totals of sums side by side."""
    windows = [(_window(c.doubles), c.long_window()) for c in columns]
    low, high = _span(*(w for pair in windows for w in pair))
    values = np.zeros((high - low + 2, len(columns[0].doubles)), dtype=np.int64)
    for column, (window, long) in zip(columns, windows):
        for j, digit in _digits(column.doubles, window):
            values[j - low] += digit.astype(np.int64)
        for j in long:
            values[j - low] += column.limb(j)
    return _Limbs.carried(low, values)


def _by_group(values: Ints, starts: Ints) -> Ints:
    return values if len(values) == len(starts) else np.add.reduceat(values, starts)


def _product_limbs(doubles: Floats, weights: Ints) -> _Limbs:
    window = _window(doubles)
    low, high = _span(window)
    values = np.zeros((high - low + 4, len(doubles)), dtype=np.int64)
    lower = ((weights & _MASK) ^ (1 << 31)) - (1 << 31)  # in [-2**31, 2**31), so that products with digits fit
    upper = (weights >> _BITS) + (lower < 0)
    factors = [lower, upper] if upper.any() else [lower]
    for j, digit in _digits(doubles, window):
        whole = digit.astype(np.int64)
        for k, factor in enumerate(factors):
            product = whole * factor
            values[j - low + k] += product & _MASK
            values[j - low + k + 1] += product >> _BITS
    return _Limbs.carried(low, values)


def _window(doubles: Floats) -> range:
    """The positions of the limbs that the doubles have bits in."""
    sizes = np.abs(doubles)
    largest = float(sizes.max(initial=0.0))
    if largest == 0.0:
        return range(0)
    smallest = float(sizes.min(where=sizes > 0, initial=math.inf))
    top, bottom = math.frexp(largest)[1] - 1 - _UNIT, math.frexp(smallest)[1] - 53 - _UNIT
    return range(max(bottom, 0) // _BITS, top // _BITS + 1)


def _span(*windows: range) -> tuple[int, int]:
    """From where to where (exclusive) the windows reach; one limb where all are empty."""
    filled = [w for w in windows if w] or [range(1)]
    return min(w.start for w in filled), max(w.stop for w in filled)


def _digits(doubles: Floats, window: range) -> Iterator[tuple[int, Floats]]:
    """The limbs of doubles from the highest to the lowest, with the signs of the doubles: whole numbers below 2**32.

    Every operation is exact: scaling by powers of two, cutting off, and taking away leading bits.
    """
    rest = doubles
    for j in reversed(window):
        power = _BITS * j + _UNIT
        if power >= -_FAR:
            digit = np.trunc(rest * math.ldexp(1.0, -power))
        else:
            digit = np.trunc(rest * math.ldexp(1.0, _FAR) * math.ldexp(1.0, -power - _FAR))
        yield j, digit
        if j > window.start:
            rest = rest - digit * math.ldexp(1.0, power)


def _first(there: Bools) -> Ints:
    """The first row of each column that is true; the last row where none is."""
    found = np.full(there.shape[1], len(there) - 1)
    for j in range(len(there) - 2, -1, -1):
        found[there[j]] = j
    return found


def _last(there: Bools) -> Ints:
    """The last row of each column that is true; the first row where none is."""
    found = np.zeros(there.shape[1], dtype=np.int64)
    for j in range(1, len(there)):
        found[there[j]] = j
    return found


def _nearest(low: int, limbs: Ints, negative: Bools) -> tuple[Floats, Bools]:
    """The doubles nearest to sums, given their absolute values in limbs; and which of them are exactly that.

    A double has 53 bits, and no sum has bits below the lowest of the smallest doubles: so there is one rounding, to 53
    bits, whether the result is subnormal or not.
    """
    there = limbs != 0
    first, top = _first(there), _last(there)
    padded = np.concatenate([np.zeros((2, limbs.shape[1]), dtype=np.int64), limbs]).view(np.uint64)
    a, b, c = (np.take_along_axis(padded, (top + 2 - i)[np.newaxis], axis=0)[0] for i in range(3))
    bits = np.frexp(a.astype(np.float64))[1].astype(np.uint64)  # of the highest limb: 1 to 32
    leading = (((a << np.uint64(_BITS)) | b) << (np.uint64(_BITS) - bits)) | (c >> bits)
    below = ((c << (np.uint64(_BITS) - bits)) & np.uint64(_MASK)) != 0
    below |= (first < top - 2) & (a != 0)  # of zero, no limb is there
    kept, cut = leading >> np.uint64(11), leading & np.uint64(0x7FF)
    half = np.uint64(0x400)
    kept += (cut > half) | ((cut == half) & (below | (kept & np.uint64(1)).astype(np.bool_)))
    exponent = _BITS * (top + low) + bits.astype(np.int64) - 53 + _UNIT
    with np.errstate(over="ignore"):
        found = np.ldexp(kept.astype(np.float64), exponent)
    exact = (cut == 0) & ~below & np.isfinite(found)
    return np.where(negative, -found, found) + 0.0, exact
