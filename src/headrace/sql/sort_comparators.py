"""How Spark's `array_sort` is told an order."""

from __future__ import annotations

from collections.abc import Sequence


def array_comparator(keys: Sequence[tuple[str, bool, bool]]) -> str:
    """A lambda that compares structs: (field, descending, nulls first), most significant first."""
    body = "0"
    for name, descending, nulls_first in reversed(keys):
        left, right = f"`__l`.`{name}`", f"`__r`.`{name}`"
        null, less = (-1 if nulls_first else 1), (1 if descending else -1)
        body = (
            f"CASE WHEN {left} <=> {right} THEN {body} WHEN {left} IS NULL THEN {null} "
            f"WHEN {right} IS NULL THEN {-null} WHEN {left} < {right} THEN {less} ELSE {-less} END"
        )
    return f"(`__l`, `__r`) -> {body}"
