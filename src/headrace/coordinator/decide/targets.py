"""What a group does next: pure decisions about epochs, parallelism, admission and retries."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from headrace.common.lazy_dataclass import dataclass
from headrace.coordinator.decide.exact import Interval, newest
from headrace.coordinator.decide.row_sizes import Intake

ROWS_PER_TASK = 100_000
"""Input rows that one task takes in before a second one pays off."""
UNKNOWN_ROWS = 100_000
"""What an input of unknown size counts for."""


@dataclass(frozen=True)
class Upstream:
    """An input of a job, as the choice of the job's next epoch sees it."""

    relation: int
    frontier: int
    """The input will not change any more at or below this epoch; 0 if it cannot be read yet."""
    first_change: int | None
    """Its first change after the job's committed epoch."""


@dataclass(frozen=True)
class Decision:
    """Whether jobs that step together have something to do, and up to which epoch."""

    target: int
    run: bool
    first_change: int | None = None
    """The first change that the epoch takes in."""
    waiting_for: int | None = None
    """The input that keeps a job from starting."""


def first_change_of(upstreams: Iterable[Upstream], due: int = 0) -> int | None:
    """The first change of any input after the job's committed epoch, or by the passing of time (`due`; 0 for none)."""
    changes = [u.first_change for u in upstreams if u.first_change is not None]
    return min([*changes, due] if due else changes, default=None)


def decide(
    committed: int, upstreams: Sequence[Upstream], now_epoch: int, *, at_least: int = 0, due: int = 0
) -> Decision:
    """The next epoch of jobs that step together: up to the smallest frontier of their inputs, and only if one changed.

    `committed` is their oldest checkpoint. Jobs without one run in any case, once every input can be read. Jobs without
    inputs run once. With `at_least` they run also without a change, to that epoch or a later one. From the epoch `due`
    on time alone has changed something.
    """
    slowest = min(upstreams, key=lambda u: u.frontier, default=None)
    target = now_epoch if slowest is None else min(slowest.frontier, now_epoch)
    first = first_change_of(upstreams, due)
    if committed == 0:
        blocked = slowest.relation if slowest is not None and slowest.frontier == 0 else None
        return Decision(target, target > 0 and blocked is None, first, blocked)
    changed = target > committed and first is not None and first <= target
    return Decision(target, target >= at_least and (changed or at_least > 0), first)


def aligned_target(common: Sequence[Interval], first: int, most: int, limit: int) -> int | None:
    """The epoch up to which a job runs, out of `common`: where all its inputs are exact at once. None if there is none.

    The newest one up to `limit`, or else the oldest, but not below `first` nor above `most`.
    """
    found = newest(common, min(limit, most))
    if found is not None and found >= first:
        return found
    later = (max(low, first) for low, high in common if high >= first)
    found = next(later, None)
    return found if found is not None and found <= most else None


def bounded_target(target: int, changes: Sequence[tuple[int, int | None, float]], limit: Intake) -> int:
    """The newest epoch up to `target` whose input stays within `limit`.

    `changes` are (epoch, rows, bytes of a row) of all inputs, in any order. At least the first change is always taken
    in, whatever its size; one of unknown size counts as `UNKNOWN_ROWS`.
    """
    left, last = limit, 0
    for epoch, known, row_bytes in sorted(changes, key=lambda c: c[0]):
        if epoch > target:
            break
        left = left.without(UNKNOWN_ROWS if known is None else known, row_bytes)
        if left.is_exceeded and last and epoch > last:
            return epoch - 1
        last = epoch
    return target


def fewer_rows(limit: int, taken: int) -> int:
    """Most rows of the next epoch after one of `taken` rows ran out of memory or disk: half of them, but at least one.

    `limit` is what was allowed; `taken` may be less, or 0 if it is not known.
    """
    return max(1, min(limit, taken or limit) // 2)


def more_rows(current: int, limit: int) -> int:
    """The same after an epoch that succeeded: twice as many, until that is all that is configured; then 0, no limit."""
    return 0 if 2 * current >= limit else 2 * current


def choose_parallelism(rows: int | None, most: int) -> int:
    """Tasks per operator: one for a trickle, all that are allowed for more than `ROWS_PER_TASK` rows.

    Only these two, since a plan is made once for each parallelism. None means that the number is not known.
    """
    return 1 if rows is not None and rows <= ROWS_PER_TASK else max(1, most)


def retry_delay_ms(failures: int, initial_ms: int, max_ms: int, jitter: float) -> int:
    """Milliseconds to wait after that many failures in a row: doubling, capped, and shortened by up to a half.

    `jitter` lies in [0, 1).
    """
    exponent = min(max(failures, 1) - 1, 40)
    full = min(initial_ms * 2**exponent, max_ms)
    return max(1, math.ceil(full * (1.0 - jitter / 2)))


def safe_epoch(
    current: int, committed: int, retention_epoch: int, pins: Iterable[int], consumers: Iterable[int]
) -> int:
    """The oldest epoch that must stay readable: never back, never past a pin, a consumer, retention or the commit."""
    return max(current, min([committed, retention_epoch, *pins, *consumers]))
