"""Stable orders of words: as numpy's, whatever the words look like."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.state.kernels import sorting
from headrace.state.kernels.sorting import stable_order

RANGES = [(-(2**63), 2**63 - 1), (0, 5), (0, 2**40), (-(2**62), 2**62), (-10, 10), (2**63 - 100, 2**63 - 1)]


@pytest.mark.parametrize("bounds", RANGES)
@pytest.mark.parametrize("room", [1, 24, 65])
def test_the_order_is_numpys(bounds: tuple[int, int], room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few and many rows, many ties, words that differ in their last bits only, words without room."""
    monkeypatch.setattr(sorting, "ROOM", room)
    rng = np.random.default_rng(room)
    for trial in range(60):
        monkeypatch.setattr(sorting, "SMALL", 0 if trial % 2 else 256)
        n = int(rng.integers(0, 2000))
        first = rng.integers(*bounds, n)
        if trial % 4 == 0 and n:
            first = first[rng.integers(0, max(n // 20, 1), n)]
        second = rng.integers(-(2**63), 2**63 - 1, n) if trial % 3 else rng.integers(0, 3, n)
        if trial % 5 == 0:
            second = (second >> 40 << 40) | rng.integers(0, 4, n)
        third = rng.integers(0, 3, n)
        assert (stable_order([first]) == np.argsort(first, kind="stable")).all()
        assert (stable_order([first, second, third]) == np.lexsort((third, second, first))).all()
