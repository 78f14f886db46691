"""The checker: a history in, what it shows that the level forbids out.

It works as Elle does (Kingsbury and Alvaro, "Elle: Inferring Isolation Anomalies from Experimental Observations",
PVLDB 14(3), 2020) on the definitions of Adya's thesis (MIT, 1999): from what transactions were shown it infers in
which order versions came, from that which transactions depend on which, and cycles among them are anomalies. It finds
no anomaly that is not there; it can miss one that nobody has looked at.
"""

from __future__ import annotations

from collections.abc import Iterable

from anomalies import Anomaly, Level
from cycles import find_cycles
from dependencies import dependencies
from direct import find_direct
from events import History
from observations import observe


def anomalies_of(history: History, order: str = "real-time") -> list[Anomaly]:
    """Everything that is found, forbidden or not."""
    seen = observe(history)
    find_direct(seen)
    graph = dependencies(seen)
    return seen.found + find_cycles(graph, order)


def check(history: History, level: Level) -> list[Anomaly]:
    """What a history shows that a level forbids; nothing if it keeps what the level promises."""
    return [found for found in anomalies_of(history, level.order) if level.forbids(found)]


def names_of(found: Iterable[Anomaly]) -> set[str]:
    """The names among what was found."""
    return {each.name for each in found}


def told(found: list[Anomaly], most: int = 20) -> str:
    """What was found, in words, the first of it."""
    lines = [str(each) for each in found[:most]]
    return "\n".join([f"{len(found)} anomalies", *lines])
