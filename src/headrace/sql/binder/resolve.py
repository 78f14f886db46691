"""Which of several functions or operators of one name a call means: PostgreSQL's rules (chapter 10 of its manual)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from headrace.common.lazy_dataclass import dataclass
from headrace.sql.binder import types as t
from headrace.sql.binder.types import SCALARS, Type

Result = Callable[[Sequence[Type]], Type]
_POLYMORPHIC: Final = frozenset(("any", "anyelement", "anyarray", "anynonarray"))


@dataclass(frozen=True, slots=True)
class Signature:
    """The types of the arguments of a function or an operator; the last one may be repeated if it is `variadic`."""

    arguments: tuple[str, ...]
    variadic: bool = False

    def expanded(self, count: int) -> tuple[str, ...] | None:
        """The types for so many arguments; None if it does not take so many."""
        if not self.variadic:
            return self.arguments if len(self.arguments) == count else None
        fixed = len(self.arguments) - 1
        return (*self.arguments[:fixed], *[self.arguments[-1]] * (count - fixed)) if count > fixed else None


def choose(candidates: Sequence[tuple[str, ...]], given: Sequence[Type]) -> tuple[str, ...] | bool | None:
    """The argument types of the candidate that is meant; None if none fits, False if several do."""
    exact = [c for c in candidates if _exact(c, given)]
    if exact:
        return exact[0]
    fitting = [
        c for c in candidates if all(_fits(g, w) for g, w in zip(given, c, strict=True)) and _consistent(c, given)
    ]
    if len(fitting) <= 1:
        return fitting[0] if fitting else None
    fitting = _most(fitting, lambda c: sum(g.name == w for g, w in zip(given, c, strict=True)))
    fitting = _most(fitting, lambda c: sum(_counts(g, w) for g, w in zip(given, c, strict=True)))
    if len(fitting) == 1:
        return fitting[0]
    return _by_unknowns(fitting, given)


def _exact(wanted: Sequence[str], given: Sequence[Type]) -> bool:
    return all(g.name == w for g, w in zip(given, wanted, strict=True))


def _fits(given: Type, wanted: str) -> bool:
    if wanted in ("any", "anyelement") or given.name == "unknown":
        return True
    if wanted == "anyarray":
        return given.is_array
    if wanted == "anynonarray":
        return not given.is_array
    kind = named(wanted)
    return kind is not None and t.can_cast(given, kind, "implicit")


def _consistent(wanted: Sequence[str], given: Sequence[Type]) -> bool:
    """Whether the arguments that have to be of one type, whatever that is, are."""
    elements = set()
    for g, w in zip(given, wanted, strict=True):
        if g.name == "unknown" or w not in ("anyelement", "anyarray", "anynonarray"):
            continue
        name = g.element.name if w == "anyarray" and g.element is not None else g.name
        elements.add("text" if name == "varchar" else name)
    return len(elements) <= 1


def _counts(given: Type, wanted: str) -> bool:
    kind = named(wanted)
    return given.name == wanted or (given.name != "unknown" and kind is not None and kind.preferred
                                    and kind.category == given.category)  # fmt: skip


def _most(candidates: list[tuple[str, ...]], score: Callable[[tuple[str, ...]], int]) -> list[tuple[str, ...]]:
    best = max(map(score, candidates))
    return [c for c in candidates if score(c) == best]


def _category(wanted: str) -> str:
    kind = named(wanted)
    return kind.category if kind is not None else "P"


def _by_unknowns(candidates: list[tuple[str, ...]], given: Sequence[Type]) -> tuple[str, ...] | bool:
    """Which candidate string literals are meant for."""
    left = candidates
    for i, kind in enumerate(given):
        if kind.name != "unknown":
            continue
        categories = {_category(c[i]) for c in left}
        chosen = "S" if "S" in categories else next(iter(categories)) if len(categories) == 1 else None
        if chosen is None:
            break
        left = [c for c in left if _category(c[i]) == chosen]
        preferred = [c for c in left if (n := named(c[i])) is not None and n.preferred]
        left = preferred or left
    if len(left) == 1:
        return left[0]
    known = {g.name for g in given if g.name != "unknown"}
    if len(known) == 1 and len(known) < len({g.name for g in given}):
        alike = [c for c in left if all(_fits(SCALARS.get(next(iter(known)), t.TEXT), w) for w in c)]
        exact = [c for c in alike if set(c) == known]
        alike = exact or alike
        if len(alike) == 1:
            return alike[0]
    return False


def named(name: str) -> Type | None:
    """The type of that name; None for `any` and its like."""
    if name in _POLYMORPHIC:
        return None
    if name.endswith("[]"):
        return t.array_of(SCALARS[name[:-2]])
    return SCALARS.get(name)
