"""Blocked Bloom filters over sorted keys: one filter for each batch of a run, probed for all keys at once.

A key sets up to `HASHES` bits of a single 64-bit word, so that a probe costs one access to memory; which ones is one of
a few thousand patterns, so that finding them costs no more: F. Putze, P. Sanders, J. Singler, "Cache-, Hash- and
Space-Efficient Bloom Filters", WEA 2007, with blocks of one word and section 3.3's table of patterns. At
`BITS_PER_KEY` about 2 of 100 absent keys pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.common.lazy_dataclass import dataclass
from headrace.state.kernels.equality import Bools, Ints
from headrace.state.kernels.hashing import mix

Words = npt.NDArray[np.uint64]

BITS_PER_KEY = 12
HASHES = 5
_ONE, _LOW, _SIX, _HALF = np.uint64(1), np.uint64(63), np.uint64(6), np.uint64(32)
_PATTERN_BITS = 12
_PATTERN = np.uint64((1 << _PATTERN_BITS) - 1)


def filter_words(keys: Ints) -> Words:
    """The filter of one batch's sorted keys, which may repeat; at least one word."""
    distinct = keys if len(keys) < 2 else keys[np.append(True, keys[1:] != keys[:-1])]
    words = np.zeros(max(1, -(-len(distinct) * BITS_PER_KEY // 64)), dtype=np.uint64)
    probe = Probe.of(distinct)
    np.bitwise_or.at(words, (probe.upper * len(words)) >> 32, probe.bits)
    return words


@dataclass(frozen=True)
class Probe:
    """Sorted, unique keys to look for, with what is computed once for all filters."""

    keys: Ints
    upper: Ints
    """The upper half of each key's hash, which tells the word, as a fraction of all."""
    bits: Words
    """The bits of each key in its word."""

    @classmethod
    def of(cls, keys: Ints) -> Probe:
        """The probe for these keys."""
        hashes = _hashes(keys)
        return cls(keys, (hashes >> _HALF).view(np.int64), _PATTERNS.take((hashes & _PATTERN).view(np.int64)))

    def __len__(self) -> int:
        return len(self.keys)

    def part(self, low: int, high: int) -> Probe:
        """The keys at positions `low` to `high`, exclusive, without a copy."""
        return Probe(self.keys[low:high], self.upper[low:high], self.bits[low:high])


class KeyFilter:
    """The filters of a run's batches. Encoded as the number of batches, where each starts, and the words of all."""

    def __init__(self, starts: Ints, words: Words) -> None:
        self._starts = starts
        self._counts = np.diff(starts)
        self._words = words

    @staticmethod
    def encode(filters: Sequence[Words]) -> bytes:
        """As bytes, a multiple of eight."""
        starts = np.cumsum([0, *(len(f) for f in filters)], dtype=np.int64)
        return b"".join([np.int64(len(filters)).tobytes(), starts.tobytes(), *(f.tobytes() for f in filters)])

    @classmethod
    def decode(cls, data: Any) -> KeyFilter | None:
        """A view of encoded filters; None for no bytes. Raises `ValueError` for something else."""
        if not len(data):
            return None
        count = int(np.frombuffer(data, np.int64, 1)[0])
        starts = np.frombuffer(data, np.int64, count + 1, 8)
        return cls(starts, np.frombuffer(data, np.uint64, int(starts[-1]), 16 + 8 * count))

    def may_hold(self, probe: Probe, batches: Ints) -> Bools:
        """Whether each key can be in the batch of that number: never false for one that is."""
        places = self._starts.take(batches) + ((probe.upper * self._counts.take(batches)) >> 32)
        words = self._words.take(places)
        result: Bools = (words & probe.bits) == probe.bits
        return result


def _hashes(keys: Ints) -> Words:
    return mix(keys.view(np.uint64))


def _patterns() -> Words:
    """The table of patterns, each of up to `HASHES` bits: part of the format of stored filters."""
    left = mix(np.arange(1 << _PATTERN_BITS, dtype=np.uint64))
    bits = np.zeros(len(left), dtype=np.uint64)
    for _ in range(HASHES):
        bits |= _ONE << (left & _LOW)
        left = left >> _SIX
    return bits


_PATTERNS = _patterns()
