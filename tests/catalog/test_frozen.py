"""Collections whose versions share what they have in common, compared with plain ones."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.catalog.frozen import FrozenMap, Timeline

KEYS = st.one_of(st.integers(-3, 60), st.text("ab", max_size=2), st.tuples(st.integers(0, 9), st.integers(0, 9)))
Changes = list[tuple[object, int | None]]
VERSIONS = st.lists(st.lists(st.tuples(KEYS, st.one_of(st.none(), st.integers())), max_size=8), max_size=8)


@given(
    st.sampled_from([0, 63, 64, 511, 512]),
    st.lists(st.lists(st.tuples(KEYS, st.one_of(st.none(), st.integers())), max_size=8), max_size=8),
)
def test_each_version_of_a_map_stays_as_it_was(start: int, versions: list[Changes]) -> None:
    first: dict[object, int] = dict.fromkeys(range(start), 0)
    made: list[tuple[FrozenMap[object, int], dict[object, int]]] = [(FrozenMap(first.items()), first)]
    for changes in versions:
        draft, expected = made[-1][0].draft(), dict(made[-1][1])
        for key, value in changes:
            assert draft.get(key) == expected.get(key)
            if value is None:
                assert draft.pop(key) == expected.pop(key, None)
            else:
                draft.put(key, value)
                expected[key] = value
        made.append((draft.frozen(), expected))
    for found, expected in made:
        assert dict(found) == expected == dict(found.items()) and len(found) == len(expected)
        assert sorted(found.values()) == sorted(expected.values()) and found == FrozenMap(expected.items())
        for key in (k for changes in versions for k, _ in changes):
            assert (key in found, found.get(key)) == (key in expected, expected.get(key))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 30), st.booleans()), max_size=60), st.integers(0, 31))
def test_each_version_of_a_timeline_stays_as_it_was(changes: list[tuple[int, int, bool]], probe: int) -> None:
    """Also where another version is built on one that is not the last."""
    made: list[tuple[Timeline[int], list[int]]] = [(Timeline(lambda n: n), [])]
    for back, number, added in changes:
        timeline, expected = made[max(len(made) - 1 - back, 0)]
        left = [n for n in expected if n != number]
        made.append((timeline.having(number), sorted([*left, number])) if added else (timeline.without(number), left))
    for timeline, expected in made:
        assert list(timeline) == expected and list(reversed(timeline)) == expected[::-1]
        assert (len(timeline), timeline.last) == (len(expected), expected[-1] if expected else None)
        below = [n for n in expected if n <= probe]
        assert timeline.up_to(probe) == (below[-1] if below else None) and timeline.before(probe) == tuple(below[:-1])
        assert timeline.between(10, probe) == tuple(n for n in below if n > 10)


def test_what_is_in_front_of_a_long_timeline_goes_in_the_end() -> None:
    timeline: Timeline[int] = Timeline(lambda n: n)
    for n in range(20_000):
        timeline = timeline.having(n)
        if n >= 10:
            timeline = timeline.without(n - 10)
    assert list(timeline) == list(range(19_990, 20_000)) and len(timeline._items) < 3000
