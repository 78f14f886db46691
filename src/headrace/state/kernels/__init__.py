"""Vectorised kernels on record batches: equality, order, groups, combination, matching.

Pure functions of numpy and pyarrow; they do no I/O and keep no state. Columns are found by position, in the stored
order that `TableSchema` defines.

equality.py     exact equality of rows, of any type that Spark exchanges
order.py        order and groups of stored rows, matching, gathering
order_code.py   the leading bits of a sort key as one int64
sorting.py      stable orders of 64-bit words
hashing.py      a stable 64-bit hash of rows
combination.py  equal rows become one: each diff column in its own way
copies.py       rows as often as their weights say, in bounded pieces
sizes.py        how many bytes rows take, and pieces of bounded size
checked.py      integer arithmetic that never wraps
exact_sum.py    sums of doubles without rounding
bloom.py        Bloom filters over sorted keys
"""

from headrace.state.kernels.combination import (
    combine_groups,
    consolidate,
    extrema,
    negated,
    neutral,
    or_neutral,
    remaining,
    totals,
)
from headrace.state.kernels.equality import Selector, int64_values, rows_equal, validity
from headrace.state.kernels.order import (
    Groups,
    concat,
    conform,
    empty,
    expand_ranges,
    group_rows,
    in_row_order,
    joined,
    match,
    sort_order,
    sort_rows,
    take,
)
from headrace.state.kernels.sorting import stable_order

__all__ = [
    "Groups",
    "Selector",
    "combine_groups",
    "concat",
    "conform",
    "consolidate",
    "empty",
    "expand_ranges",
    "extrema",
    "group_rows",
    "in_row_order",
    "int64_values",
    "joined",
    "match",
    "negated",
    "neutral",
    "or_neutral",
    "remaining",
    "rows_equal",
    "sort_order",
    "sort_rows",
    "stable_order",
    "take",
    "totals",
    "validity",
]
