"""The names of what can go wrong, and which of it each isolation level forbids.

The names with a G are those of Adya's thesis ("Weak Consistency: A Generalized Theory and Optimistic Implementations
for Distributed Transactions", MIT 1999) with the refinements of Kingsbury and Alvaro ("Elle: Inferring Isolation
Anomalies from Experimental Observations", PVLDB 14(3), 2020) and, for cycles whose anti-dependencies do not follow one
another, Cerone and Gotsman ("Analysing Snapshot Isolation", JACM 65(2), 2018).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Order = Literal["none", "session", "real-time"]

# Cycles of dependencies.
G0 = "G0 (dirty write)"
G1C = "G1c (circular information flow)"
G_SINGLE = "G-single (read skew)"
LOST_UPDATE = "lost update"
G_NONADJACENT = "G-nonadjacent (long fork)"
G2_ITEM = "G2-item (write skew)"
G2 = "G2 (write skew over a predicate)"
# What one transaction, or two, show by themselves.
G1A = "G1a (aborted read)"
G1B = "G1b (intermediate read)"
NO_OWN_WRITES = "own writes not seen"
NON_REPEATABLE = "non-repeatable read"
FRACTURED = "fractured read"
GARBAGE = "garbage read"
BROKEN = "broken row"
INCOMPATIBLE = "incompatible orders"
CYCLIC_VERSIONS = "cyclic versions"
DUPLICATED = "duplicated write"
LOST_WRITE = "lost acknowledged write"
TORN = "torn transaction"
NON_MONOTONIC = "non-monotonic reads"
OWN_COMMIT_UNSEEN = "own commits not seen"

BY_SESSION, BY_TIME = ", by the order of a session", ", by real time"
"""What is added to the name of a cycle that closes only through such an order."""


@dataclass(frozen=True)
class Anomaly:
    """One thing found: its name, the transactions that show it, and how."""

    name: str
    transactions: tuple[int, ...]
    text: str

    def __str__(self) -> str:
        return f"{self.name}: {self.text}"


@dataclass(frozen=True)
class Level:
    """What is promised: the anomalies that must not be, and which orders hold besides that of the dependencies."""

    name: str
    forbidden: frozenset[str]
    order: Order

    def forbids(self, anomaly: Anomaly) -> bool:
        if anomaly.name.endswith(BY_TIME) and self.order != "real-time":
            return False
        if anomaly.name.endswith(BY_SESSION) and self.order == "none":
            return False
        return anomaly.name.removesuffix(BY_TIME).removesuffix(BY_SESSION) in self.forbidden


_COMMITTED = frozenset(
    {G0, G1A, G1B, G1C, NO_OWN_WRITES, GARBAGE, BROKEN, INCOMPATIBLE, CYCLIC_VERSIONS, DUPLICATED, LOST_WRITE, TORN}
)
_SNAPSHOT = _COMMITTED | {G_SINGLE, LOST_UPDATE, G_NONADJACENT, NON_REPEATABLE, FRACTURED}
_ALL = _SNAPSHOT | {G2_ITEM, G2}
_SESSIONS = frozenset({NON_MONOTONIC, OWN_COMMIT_UNSEEN})

READ_COMMITTED = Level("read committed", _COMMITTED, "none")
SNAPSHOT_ISOLATION = Level("snapshot isolation", _SNAPSHOT, "none")
STRONG_SNAPSHOT_ISOLATION = Level("strong snapshot isolation", _SNAPSHOT | _SESSIONS, "real-time")
SERIALIZABLE = Level("serializable", _ALL, "none")
SESSION_SERIALIZABLE = Level("strong session serializable", _ALL | _SESSIONS, "session")
STRICT_SERIALIZABLE = Level("strict serializable", _ALL | _SESSIONS, "real-time")
