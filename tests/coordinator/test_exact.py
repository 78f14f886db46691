"""Exactness intervals against a model that looks at every epoch by itself."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.coordinator.decide.exact import (
    ChangeLog,
    after_commit,
    clipped,
    frontier,
    intersect_all,
    merged,
    newest,
    next_epoch_after,
    view_exact,
)
from headrace.errors import LogLost

LAST = 40
EPOCHS = st.integers(1, LAST)
RANGES = st.lists(st.tuples(EPOCHS, EPOCHS).map(lambda p: (min(p), max(p))), max_size=8)


def points(intervals: list[tuple[int, int]]) -> set[int]:
    return {e for low, high in intervals for e in range(low, high + 1)}


@given(RANGES)
def test_merged_covers_the_same_epochs(ranges: list[tuple[int, int]]) -> None:
    found = merged(ranges)
    assert points(found) == points(ranges)
    assert all(a[1] < b[0] for a, b in itertools.pairwise(found))


@given(st.lists(RANGES, min_size=1, max_size=4), EPOCHS)
def test_the_newest_common_epoch(all_ranges: list[list[tuple[int, int]]], at: int) -> None:
    """PC-34, PC-37: a read over several relations picks the newest epoch at which all of them are exact."""
    common = set.intersection(*(points(r) for r in all_ranges))
    found = intersect_all([merged(r) for r in all_ranges])
    assert points(found) == common
    assert newest(found) == max(common, default=None)
    assert newest(found, at) == max((e for e in common if e <= at), default=None)
    assert points(clipped(found, at)) == {e for e in common if e >= at}


@given(RANGES, EPOCHS, EPOCHS)
def test_the_log_of_changes(ranges: list[tuple[int, int]], epoch: int, to: int) -> None:
    log = ChangeLog()
    for low, high in ranges:
        log.add(low, high)
    after = [e for e in points(ranges) if e > epoch]
    assert log.first_after(epoch) == min(after, default=None)
    assert bool([e for e in after if e <= to]) == bool(epoch < to and log.in_range(epoch, to))
    log.prune(epoch)
    assert log.first_after(epoch) == min(after, default=None)


@given(st.sets(EPOCHS), EPOCHS, EPOCHS, st.integers(0, LAST + 5))
def test_the_epoch_after_another(changes: set[int], kept_from: int, newest_epoch: int, epoch: int) -> None:
    """PC-18: the next one, none yet, or an error for an epoch that was truncated or never was."""
    newest_epoch = max(newest_epoch, kept_from)
    log = ChangeLog((e, e) for e in changes if e <= newest_epoch)
    log.prune(kept_from)
    if epoch > newest_epoch:
        with pytest.raises(ValueError, match=f"never had an epoch {epoch}"):
            next_epoch_after(log, epoch, kept_from=kept_from, newest=newest_epoch)
    elif epoch < kept_from:
        with pytest.raises(LogLost, match=f"kept from {kept_from} on"):
            next_epoch_after(log, epoch, kept_from=kept_from, newest=newest_epoch)
    else:
        expected = min((e for e in changes if epoch < e <= newest_epoch), default=None)
        assert next_epoch_after(log, epoch, kept_from=kept_from, newest=newest_epoch) == expected


@given(st.sets(EPOCHS), st.lists(EPOCHS, min_size=1, max_size=6, unique=True).map(sorted), EPOCHS, st.integers(0, 3))
def test_a_view_is_exact_where_its_content_equals_its_query(
    changes: set[int], commits: list[int], upper: int, safe: int
) -> None:
    """A view committed at c holds the inputs' state of c: exact wherever no input has changed since.

    PC-37, PC-16: what is claimed exact is exact; every commit is; and nothing above the inputs' frontier is claimed.
    """
    log = ChangeLog((e, e) for e in changes)
    upper = max(upper, commits[-1])

    def content(epoch: int) -> frozenset[int]:
        return frozenset(c for c in changes if c <= epoch)

    stored: tuple[tuple[int, int], ...] = ()
    committed = 0
    for target in commits:
        end = min(log.first_after(committed) or target, target) - 1
        stored = after_commit(view_exact(stored, committed, end), target, safe)
        committed = target
    end = frontier(committed, upper, log.first_after(committed))
    found = points(clipped(view_exact(stored, committed, end), safe))
    truly = {
        e for e in range(commits[0], upper + 1) if content(e) == content(max(c for c in commits if c <= e))
    }  # fmt: skip
    assert found == {e for e in truly if e >= safe}
    assert {c for c in commits if c >= safe} <= found


def test_a_view_without_a_checkpoint_is_nowhere_exact() -> None:
    assert frontier(0, 17, None) == 0
    assert view_exact((), 0, 0) == []
    assert after_commit((), 9, 0) == ((9, 9),)


def test_a_view_over_views_is_exact_where_they_are() -> None:
    """PC-34: an input that ran an epoch without a change is not exact just before it, and so is what reads it."""
    assert view_exact((), 10, 14, [(7, 10), (12, 13)]) == [(10, 10), (12, 13)]
    assert view_exact([(3, 5), (8, 8)], 8, 9, [(9, 9)]) == [(3, 5), (8, 9)]
