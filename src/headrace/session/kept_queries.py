"""Queries on Spark whose plans are kept, so that one that is asked again is neither parsed nor planned by Spark again.

What a plan follows from is its `Shape`: Spark's text of the query, in which names, rights, settings and the values of
parameters have been put already, and how each stored relation is read. That is all that there is to it, since leaves
find out when they run which runs to read (`leaves.told_runs`), and `KeptPlan.of` refuses what has anything else of a
run in it. So nobody has to tell that a relation was altered or dropped, or that a right was taken: such a query has
another shape, or none.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final, NamedTuple

from headrace.common.last_used import LastUsed
from headrace.dataflow.operators.inputs import SnapshotScan
from headrace.plan.catalyst.kept import KeptPlan
from headrace.session.result import ResultColumn

CHARS_AT_MOST: Final = 10_000
"""Length of Spark's text up to which the plan of a query is kept."""
MET_AT_MOST: Final = 1_000
"""Shapes of which it is known that they were asked before, or that their plans are not to be kept."""
DESCRIBED_AT_MOST: Final = 1_000
"""Texts of which it is known what columns they give."""


class ToldLeaf(NamedTuple):
    """How a stored relation is read, whatever is in it."""

    relation: int
    scan: SnapshotScan
    """Without runs and epoch. Into how many slices it is cut goes by how many rows there are."""
    types: tuple[str, ...]
    """Spark's, of the columns."""


class Shape(NamedTuple):
    """All that the plan of a query follows from."""

    text: str
    small: bool
    """Whether Spark may copy relations to every task: there are few rows."""
    leaves: tuple[ToldLeaf, ...]
    application: int
    """Which Spark it is."""


class KeptQuery(NamedTuple):
    """A plan, and the columns that it gives."""

    plan: KeptPlan
    columns: list[ResultColumn]


class KeptQueries:
    """The plans of those queries that were asked last, for all sessions. Thread-safe.

    A plan is worth its memory once its query has been asked for the second time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: LastUsed[Shape, KeptQuery] = LastUsed(0)
        self._met: LastUsed[Shape, bool] = LastUsed(MET_AT_MOST)
        """Whether the plan of a shape may be kept, as far as it is known."""
        self._described: LastUsed[str, tuple[ResultColumn, ...]] = LastUsed(DESCRIBED_AT_MOST)
        self.found = 0
        """How many queries were run by a plan that was there."""

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, shape: Shape) -> KeptQuery | None:
        """The plan of a query that has this shape."""
        with self._lock:
            kept = self._kept.find(shape)
            self.found += kept is not None
            return kept

    def is_wanted(self, shape: Shape) -> bool:
        """Note that a query of this shape, whose plan is not here, is asked; whether its plan is to be kept."""
        with self._lock:
            known = self._met.find(shape)
            self._met.put(shape, known is not False)
            return bool(known)

    def refuse(self, shape: Shape) -> None:
        """Note that the plan of such a query is good for one run only."""
        with self._lock:
            self._met.put(shape, False)

    def keep(self, shape: Shape, kept: KeptQuery) -> None:
        """Remember a plan; where there are too many, what was not asked for the longest time makes room."""
        with self._lock:
            self._kept.put(shape, kept)

    def limit(self, most: int) -> None:
        """Keep so many plans from now on."""
        with self._lock:
            self._kept.shrink(most)

    def clear(self) -> None:
        """Let go of all plans: the Spark that they were made in has ended."""
        with self._lock:
            self._kept.clear()
            self._met.clear()

    def columns(self, text: str) -> tuple[ResultColumn, ...] | None:
        """The columns of a query in Spark SQL, if they are known."""
        with self._lock:
            return self._described.find(text)

    def describe(self, text: str, columns: Sequence[ResultColumn]) -> None:
        """Remember the columns of a query."""
        if len(text) <= CHARS_AT_MOST:
            with self._lock:
                self._described.put(text, tuple(columns))
