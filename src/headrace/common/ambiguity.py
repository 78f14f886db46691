"""Whether a regular expression can be matched in one way only.

Where it can, what Java takes first is what PostgreSQL takes, which wants the longest match. So it is if at each place
of the pattern no two of the places that may come next match a common character (Glushkov's automaton is deterministic).

Where besides no two loops lead from one place to the same next one, each character decides which loop goes on, and
what a loop has taken need never be given back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from typing import Final

from headrace.common.lazy_dataclass import dataclass

OTHERS: Final = 1 << 128
"""All characters that are not ASCII."""
ALL: Final = (OTHERS << 1) - 1


def characters(text: Iterable[str]) -> int:
    """The set of some characters."""
    found = 0
    for c in text:
        found |= 1 << ord(c) if c.isascii() else OTHERS
    return found


def between(low: str, high: str) -> int:
    """The set of the characters of a range."""
    others = 0 if high.isascii() else OTHERS
    return others | characters(map(chr, range(ord(low), min(ord(high), 127) + 1)))


def folded(found: int) -> int:
    """The set, and the same letters in the other case."""
    for upper in range(ord("A"), ord("Z") + 1):
        both = 1 << upper | 1 << upper + 32
        if found & both:
            found |= both
    return found


@dataclass
class _Part:
    """A part of a pattern: whether it matches the empty text, and the places at its beginning and its end."""

    empty: bool = True
    first: frozenset[int] = frozenset()
    last: frozenset[int] = frozenset()


@dataclass
class _Level:
    """What stands between two brackets: the alternatives that are complete, and the parts of the present one."""

    done: list[_Part] = field(default_factory=list)
    whole: _Part = field(default_factory=_Part)


class PatternShape:
    """Takes the parts of a pattern from left to right."""

    def __init__(self) -> None:
        self.ambiguous = False
        self.entwined = False
        """Whether one step is made by two loops, as in `(a+)+`."""
        self._sets: list[int] = []
        self._next: list[set[int]] = []
        self._counted: set[tuple[int, int]] = set()
        """Steps from one time of a counted part to its next, where the count may be one of several."""
        self._levels = [_Level()]
        self._last = _Part()
        """What a quantifier would be about."""

    def atom(self, matched: int) -> None:
        """A place that matches one character of a set."""
        self._append()
        self._sets.append(matched)
        self._next.append(set())
        place = frozenset((len(self._sets) - 1,))
        self._last = _Part(False, place, place)

    def opened(self) -> None:
        """A bracket."""
        self._append()
        self._levels.append(_Level())

    def alternative(self) -> None:
        """A bar."""
        self._append()
        level = self._levels[-1]
        self.ambiguous = self.ambiguous or level.whole.empty  # what is behind it would never be tried
        level.done.append(level.whole)
        level.whole = _Part()

    def closed(self, matches: bool) -> None:
        """The end of a bracket; `matches` is false for one that only looks at what comes."""
        whole = self._alternatives()
        self._levels.pop()
        self._last = whole if matches else _Part()

    def repeated(self, least: int, most: int | None) -> None:
        """A quantifier behind the last part; `most` is None for any number of times."""
        part = self._last
        edges = {(end, start) for end in part.last for start in part.first}
        if most is None or most > 1:
            # Who counts on both levels cannot tell from the last character which count goes on.
            self.ambiguous = self.ambiguous or part.empty or bool(edges & self._counted)
            self.entwined = self.entwined or any(start in self._next[end] for end, start in edges)
            self._follow(part, part)
        if least > 1 and most is not None and most != least:
            self._counted |= edges
        self._last = _Part(part.empty or least == 0, part.first, part.last)

    def is_empty(self) -> bool:
        """Whether nothing that matches a character has come so far."""
        return not self._sets

    def is_ambiguous(self) -> bool:
        """Whether the whole pattern is."""
        whole = self._alternatives()
        return self.ambiguous or any(map(self._overlap, [whole.first, *self._next]))

    def _alternatives(self) -> _Part:
        self._append()
        level = self._levels[-1]
        parts = [*level.done, level.whole]
        first, last = (frozenset().union(*sets) for sets in ((p.first for p in parts), (p.last for p in parts)))
        return _Part(any(p.empty for p in parts), first, last)

    def _append(self) -> None:
        """Put the last part behind those before it."""
        level, part = self._levels[-1], self._last
        whole = level.whole
        self._follow(whole, part)
        level.whole = _Part(
            whole.empty and part.empty, whole.first | part.first if whole.empty else whole.first,
            whole.last | part.last if part.empty else part.last,
        )  # fmt: skip
        self._last = _Part()

    def _follow(self, part: _Part, after: _Part) -> None:
        for place in part.last:
            self._next[place] |= after.first

    def _overlap(self, places: Iterable[int]) -> bool:
        seen = 0
        for place in places:
            if seen & self._sets[place]:
                return True
            seen |= self._sets[place]
        return False
