"""Times of splits: the least counts, nothing that is left is passed, and what is idle holds nobody up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.coordinator.decide.split_times import SplitTimes

SPLITS = st.sampled_from("abc")
TIMES = st.dictionaries(SPLITS, st.integers(0, 50))


def test_the_least_of_the_splits_counts() -> None:
    times = SplitTimes().read({"a": 50, "b": 20}).looked({"a": True, "b": True}, 0.0)
    assert times.reached_us(0, 9.0) == 20
    assert times.read({"b": 10}).reached_us(0, 9.0) == 20, "it never goes back"
    assert times.read({"b": 70}).reached_us(0, 9.0) == 50


def test_a_split_that_has_not_been_read_holds_all() -> None:
    times = SplitTimes().read({"a": 50}).looked({"a": True, "b": True}, 0.0)
    assert times.reached_us(0, 1000.0) is None, "however long it takes"
    assert times.read({"b": 5}).reached_us(0, 1000.0) == 5


def test_a_split_of_which_nothing_is_left_is_idle_after_a_while() -> None:
    times = SplitTimes().read({"a": 50, "b": 20}).looked({"a": True, "b": False, "never": False}, 10.0)
    assert times.reached_us(1000, 10.9) is None, "there may be something of the third soon"
    assert times.reached_us(1000, 11.0) == 50
    again = times.looked({"a": False, "b": False, "never": False}, 10.5)
    assert again.reached_us(1000, 11.2) == 50, "the others are idle since they were"
    assert again.reached_us(1000, 11.5) == 50, "and where all are the newest counts"
    back = again.looked({"a": False, "b": True, "never": False}, 30.0)
    assert back.reached_us(1000, 31.0) == 20
    assert back.looked({"a": False, "b": False, "never": False}, 40.0).reached_us(1000, 40.9) == 20, "not idle at once"


def test_what_is_over_holds_nobody_up() -> None:
    """A file to its end: what comes later lies in others. Of a source without splits all counts."""
    times = SplitTimes().read({"1.csv": 50}).looked({"2.csv": True}, 0.0)
    assert times.reached_us(0, 0.0) is None
    times = times.read({"1.csv": 60, "2.csv": 20}).looked({"2.csv": True}, 0.0)
    assert (times.reached_us(0, 0.0), set(times.newest_us)) == (20, {"", "2.csv"})
    assert times.looked({}, 0.0).reached_us(0, 0.0) == 60
    assert SplitTimes().read({"a": 5, "": 7}).looked(None, 0.0).reached_us(0, 0.0) == 7
    assert SplitTimes().looked(None, 0.0).reached_us(0, 0.0) is None


def test_who_is_far_ahead_of_the_slowest_is_held() -> None:
    times = SplitTimes().read({"a": 50, "b": 20, "c": 19}).looked({"a": True, "b": True, "c": False}, 0.0)
    assert times.ahead(30) == frozenset() and times.ahead(29) == {"a"}
    assert times.looked({"a": True, "b": False, "c": False}, 0.0).ahead(0) == frozenset(), "nobody is waited for"
    assert times.looked({"a": True, "b": True, "new": True}, 0.0).ahead(0) == frozenset(), (
        "how far that is is not known"
    )
    assert SplitTimes().read({"": 3}).ahead(0) == frozenset()


@given(st.lists(st.tuples(TIMES, st.dictionaries(SPLITS, st.booleans())), max_size=12), st.integers(0, 3000))
def test_rows_that_are_left_are_never_passed(
    history: list[tuple[dict[str, int], dict[str, bool]]], idle_ms: int
) -> None:
    """Where a split has rest its newest time is not passed; and one at least of those that have rest goes on."""
    times = SplitTimes()
    for now_s, (read, busy) in enumerate(history):
        times = times.read(read).looked(busy, float(now_s))
        reached, left = times.reached_us(idle_ms, float(now_s)), [s for s, more in busy.items() if more]
        if reached is not None:
            assert all(times.newest_us[s] >= reached for s in left)
        held = times.ahead(0)
        assert not left or set(left) - held, "who is slowest is not held"
        assert held <= set(left)
