"""What the rate of a source lets in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.coordinator.decide.allowance import Allowance


@given(st.integers(1, 1000), st.lists(st.tuples(st.floats(0, 5), st.integers(0, 3000)), max_size=30))
def test_no_more_is_let_in_than_the_rate_allows(per_s: int, looks: list[tuple[float, int]]) -> None:
    """Whenever it is looked at: a burst, and what has grown since the first look."""
    now_s, taken = 100.0, 0
    found: Allowance | None = None
    for pause_s, there in looks:
        now_s += pause_s
        found = Allowance.grown(found, per_s, now_s, 2.0)
        rows = min(there, found.rows)
        found, taken = found.spent(rows), taken + rows
        assert taken <= per_s * (now_s - 100.0) + 2.0 * per_s + 1e-6


def test_it_grows_by_the_clock_and_is_used_up() -> None:
    first = Allowance.grown(None, 10, 0.0, 1.0)
    assert first.rows == 10
    empty = first.spent(10)
    assert empty.rows == 0
    assert Allowance.grown(empty, 10, 0.5, 1.0).rows == 5
    assert Allowance.grown(empty, 10, 60.0, 1.0).rows == 10, "what was not used is not saved up"
    assert Allowance.grown(empty.spent(500), 10, 0.5, 1.0).rows == 5, "nothing is owed"
    assert Allowance.grown(empty, 3, 0.0, 1.0).rows == 3, "another rate begins anew"
    assert Allowance.grown(None, 0, 0.0, 1.0).rows == 0
