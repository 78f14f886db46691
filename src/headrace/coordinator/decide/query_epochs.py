"""At which epochs a read sees its relations: pure choice over exact intervals and floors.

| consistency | every relation is read at |
| --- | --- |
| snapshot | the newest epoch at which all relations of the read are exact |
| global | the newest epoch at which all of them, and every created view of the database, are exact |
| latest | its own newest exact epoch |

A *floor* is an epoch at which a relation was shown before, or one that holds the reader's own writes: no read goes
below it. Time travel asks for the newest common epoch up to a given one and knows no floor.

A view that is being created does not count for `global`. One that is failing, paused or quarantined does: it holds
global reads back, which a notice says by name. Inside `BEGIN`, `latest` is `snapshot`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

from headrace.common.lazy_dataclass import dataclass
from headrace.coordinator.decide.exact import ChangeLog, Interval, intersect_all, newest

Consistency: TypeAlias = Literal["snapshot", "global", "latest"]
"""What relations of one read have in common."""
Monotonic: TypeAlias = Literal["strict", "session", "off"]
"""Whose earlier reads a read must not fall behind: everybody's, those of its own session, nobody's."""


class Floors:
    """The newest epoch at which each relation was shown: no later read goes below it. Not thread-safe."""

    def __init__(self) -> None:
        self._epochs: dict[int, int] = {}

    def of(self, relation_id: int) -> int:
        """The floor of a relation; 0 if it was never shown."""
        return self._epochs.get(relation_id, 0)

    def raise_to(self, epochs: Mapping[int, int]) -> None:
        """Note what was shown; never lowers a floor."""
        for relation, epoch in epochs.items():
            self._epochs[relation] = max(self._epochs.get(relation, 0), epoch)

    def copy(self) -> dict[int, int]:
        """Relation -> floor, as it is now."""
        return dict(self._epochs)

    def forget(self, relation_id: int) -> None:
        """Forgets a relation that was dropped."""
        self._epochs.pop(relation_id, None)


@dataclass(frozen=True)
class Candidate:
    """A relation of a read, with the epochs at which it could be read."""

    relation: int
    exact: Sequence[Interval]
    """Where it can be read: disjoint ascending ranges."""
    floor: int = 0


def choose(
    consistency: Consistency, read: Sequence[Candidate], created: Iterable[Sequence[Interval]] = ()
) -> dict[int, int] | None:
    """Relation -> epoch, as new as the policy allows; None if that would show one of them below its floor.

    `created` are the exact ranges of all created views of the database; only `global` looks at them.
    """
    if consistency == "latest":
        found = {c.relation: newest(c.exact) for c in read}
        fits = {c.relation: e for c in read if (e := found[c.relation]) is not None and e >= c.floor}
        return fits if len(fits) == len(found) else None
    epoch = newest(common_epochs(consistency, read, created))
    if epoch is None or epoch < max((c.floor for c in read), default=0):
        return None
    return {c.relation: epoch for c in read}


def common_epochs(
    consistency: Consistency, read: Sequence[Candidate], created: Iterable[Sequence[Interval]] = ()
) -> list[Interval]:
    """The epochs at which one snapshot over all relations of a read exists."""
    return intersect_all([c.exact for c in read] + (list(created) if consistency == "global" else []))


def choose_at_most(read: Sequence[Candidate], at: int) -> int | None:
    """The newest epoch up to `at` at which all are exact."""
    return newest(common_epochs("snapshot", read), at)


def restart_floor(changes: ChangeLog, exact: Sequence[Interval]) -> int:
    """A floor for a relation that may have been read before the server started: its last change that can be shown.

    Whoever read it before saw that content, or an older one: so no read at or above this epoch shows less than was
    shown before, although the epoch that was served then is not recorded anywhere.
    """
    last = newest(exact)
    if last is None:
        return 0
    return changes.last_up_to(last) or 0
