"""What a bounded cache keeps."""

from __future__ import annotations

from functools import partial

import pytest

from headrace.common.last_used import LastUsed


def test_what_was_used_last_stays() -> None:
    made: list[int] = []
    cache = LastUsed[int, None](2)
    for key in (1, 2, 1, 3, 1, 2):
        cache.of(key, partial(made.append, key))
    assert made == [1, 2, 3, 2] and len(cache) == 2


def test_what_cannot_be_made_is_not_kept() -> None:
    cache = LastUsed[int, int](1)
    with pytest.raises(ZeroDivisionError):
        cache.of(1, lambda: 1 // 0)
    assert len(cache) == 0 and cache.of(1, lambda: 5) == 5
