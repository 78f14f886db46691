"""The catalogue as a list, for those that ask which functions there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from headrace.common.lazy_dataclass import dataclass
from headrace.sql.binder.catalogue.aggregate_functions import AGGREGATES, WINDOWS
from headrace.sql.binder.catalogue.documents import AGGREGATES as DOCUMENTS
from headrace.sql.binder.catalogue.examples import OWN
from headrace.sql.binder.catalogue.functions import FUNCTIONS


@dataclass(frozen=True)
class Listed:
    """An overload: its kind as `pg_proc` has it, and the names of its types; an empty result depends on the arguments."""

    name: str
    kind: Literal["f", "a", "w"]
    arguments: tuple[str, ...]
    result: str
    volatile: bool


def listed() -> Iterator[Listed]:
    """All functions, in the order of their names."""
    for name, overloads in sorted(FUNCTIONS.items()):
        for entry in overloads:
            result = entry.result if entry.result.isalnum() else ""
            yield Listed(name, "f", entry.signature.arguments, result, name in _VOLATILE)
    for name in sorted(DOCUMENTS):
        count = 2 if "object" in name else 1
        yield Listed(name, "a", ("any",) * count, "jsonb", False)
    for kind, known in (("a", AGGREGATES), ("w", WINDOWS)):
        for name, found in sorted(known.items()):
            for aggregate in found:
                yield Listed(name, "a" if kind == "a" else "w", aggregate.signature.arguments, "", False)


_VOLATILE = frozenset(("random", "gen_random_uuid", "clock_timestamp")) & OWN
