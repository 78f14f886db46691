"""Stable orders of 64-bit words, several times as fast as numpy's own.

numpy sorts words in place with vector instructions, but not stably and not positions. So each word's leading bits and
its position are packed into one word and sorted as such: what was left of the words for want of room is put right
afterwards, where it matters.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

SMALL = 256
"""Rows below which packing costs more than it saves."""
ROOM = 24
"""Bits of a word that must find room for packing to be worth it."""


def stable_order(keys: Sequence[Ints]) -> Ints:
    """Positions that sort rows by int64 keys, the first one foremost; rows that are equal in all stay as they are.

    `keys` are one or more arrays of one length.
    """
    order = _by_word(keys[0])
    if len(keys) == 1 or len(order) < 2:
        return order
    word = keys[0][order]
    tied = word[1:] == word[:-1]
    for key in keys[1:]:
        if not tied.any():
            break
        order = _within_ties(order, tied, key)
        word = key[order]
        tied &= word[1:] == word[:-1]
    return order


def _within_ties(order: Ints, tied: npt.NDArray[np.bool_], key: Ints) -> Ints:
    """Sort each stretch of `order` whose rows are tied by one more key."""
    places, stretch = stretches(tied)
    rows = order[places]
    order[places] = rows[_by_word(key[rows], stretch)]
    return order


def stretches(tied: npt.NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """Places that are tied with a neighbour, given which pairs of neighbours are; their stretches, numbered from 0."""
    inside = np.zeros(len(tied) + 1, dtype=np.bool_)
    inside[1:] = tied
    begins = ~inside
    inside[:-1] |= tied
    places = np.flatnonzero(inside)
    return places, np.cumsum(begins[places]) - 1


def _by_word(word: Ints, group: Ints | None = None) -> Ints:
    """Positions that sort by `group` (ascending already, from 0 on) and then by word, stably."""
    n = len(word)
    position_bits = max(n - 1, 1).bit_length()
    group_bits = 0 if group is None or not n else int(group[-1]).bit_length()
    room = 64 - position_bits - group_bits
    if n < SMALL or room < ROOM:
        return _plain(word, group)
    lowest = int(word.min())
    dropped = max((int(word.max()) - lowest).bit_length() - room, 0)
    # Modulo 2**64 the difference is right whatever the signs.
    packed = word.view(np.uint64) - np.uint64(lowest % 2**64)
    packed >>= np.uint64(dropped)
    packed <<= np.uint64(position_bits)
    packed |= np.arange(n, dtype=np.uint64)
    if group is not None:
        packed |= group.astype(np.uint64) << np.uint64(64 - group_bits) if group_bits else np.uint64(0)
    packed.sort()
    order = (packed & np.uint64((1 << position_bits) - 1)).astype(np.int64)
    if dropped:
        _mend(order, word, packed >> np.uint64(position_bits))
    return order


def _mend(order: Ints, word: Ints, leading: npt.NDArray[np.uint64]) -> None:
    """Sort those rows by their whole words, in place, that share the leading bits with a neighbour."""
    same = leading[1:] == leading[:-1]
    if not same.any():
        return
    sorted_word = word[order]
    if not (same & (sorted_word[1:] < sorted_word[:-1])).any():
        return
    places, stretch = stretches(same)
    rows = order[places]
    order[places] = rows[np.lexsort((word[rows], stretch))]


def _plain(word: Ints, group: Ints | None) -> Ints:
    if group is None:
        return np.argsort(word, kind="stable")
    return np.lexsort((word, group))
