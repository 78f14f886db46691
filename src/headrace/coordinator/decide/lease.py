"""The lease of the server that owns a database: what it says of itself in the catalog, and when it may be succeeded.

The owner renews its record every third of the lease's length. A standby never compares its clock with another
machine's: it measures, by its own monotonic clock, for how long it has looked at the record and found it unchanged. So
clocks may be wrong by any amount; only how fast they run matters, and by a third. A lease decides nothing about what
is true: who takes over does so by the catalog's fence, and who was shut out wrongly has only been shut out.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Final

from headrace.catalog.records import SettingRecord
from headrace.catalog.state import CatalogState
from headrace.common.lazy_dataclass import dataclass
from headrace.errors import CorruptObject

LEASE: Final = "lease"
"""The name of the catalog's setting record that holds it."""
RENEWALS: Final = 3
"""How often a lease is renewed within its length."""
LOOKS: Final = 4
"""How often a standby looks at least between two renewals."""


@dataclass(frozen=True)
class Lease:
    """What the server that owns the catalog says of itself, as of its last renewal."""

    token: int
    """Its fencing token."""
    renewal: int
    length_ms: int
    """0: it renews nothing, so that nobody can tell from here whether it lives."""
    complete: int
    """An epoch at or below which nothing will be written any more: what was is in the catalog before this record."""
    address: str = ""
    """Where its clients reach it; empty if that is not known."""
    released: bool = False
    """It has stopped, in order."""

    def record(self) -> SettingRecord:
        """The record as the catalog stores it."""
        return SettingRecord(LEASE, json.dumps(asdict(self), separators=(",", ":")))

    def renewed(self, complete: int, address: str) -> Lease:
        """The record of the next renewal."""
        return replace(self, renewal=self.renewal + 1, complete=complete, address=address)


def lease_of(state: CatalogState) -> Lease | None:
    """The newest one; None if no server has ever kept one. Raises `CorruptObject`."""
    record = state.settings.get(LEASE)
    if record is None:
        return None
    try:
        return Lease(**json.loads(record.value))
    except (ValueError, TypeError) as error:
        raise CorruptObject(f"the lease in the catalog cannot be read: {error}") from error


@dataclass(frozen=True)
class Sign:
    """What a standby sees of the lease in one look."""

    token: int
    """The catalog's fencing token."""
    renewal: int = 0
    length_ms: int = 0
    released: bool = False

    @classmethod
    def of(cls, token: int, lease: Lease | None) -> Sign:
        """Of the catalog's token and the lease in it, which may be that of an earlier owner."""
        if lease is None:
            return cls(token)
        released = lease.released and lease.token == token
        return cls(token, lease.renewal, lease.length_ms, released)


class Watch:
    """How long an owner has given no sign of life, by one's own monotonic clock. Pure: it is told the time.

    Only time in which the record was looked at counts. A standby that was stopped itself, or could not reach the
    catalog, begins to count anew: the owner may have had the same trouble.
    """

    def __init__(self) -> None:
        self._sign: Sign | None = None
        self._since_s = 0.0
        """When the look ended that saw this sign first."""
        self._looked_s = 0.0
        """When the last look began."""

    @property
    def sign(self) -> Sign | None:
        """What the last look has shown."""
        return self._sign

    @property
    def silent_s(self) -> float:
        """For how long the same sign has been seen."""
        return max(0.0, self._looked_s - self._since_s) if self._sign is not None else 0.0

    def looked(self, sign: Sign, began_s: float, ended_s: float) -> None:
        """Takes in what a look has shown."""
        length_s = sign.length_ms / 1000
        interrupted = began_s - self._looked_s > length_s / 2
        if sign != self._sign or interrupted:
            self._since_s = ended_s
        self._sign, self._looked_s = sign, began_s

    def missed(self) -> None:
        """A look has failed: what is known of the time before does not count any more."""
        self._sign = None

    @property
    def due(self) -> bool:
        """Whether the owner is to be succeeded: it has stopped in order, or its lease has run out."""
        sign = self._sign
        if sign is None:
            return False
        return sign.released or (sign.length_ms > 0 and self.silent_s >= sign.length_ms / 1000)


def renewal_interval_s(length_ms: int) -> float:
    """Seconds between two renewals."""
    return length_ms / 1000 / RENEWALS


def look_interval_s(length_ms: int, least_s: float) -> float:
    """Seconds between two looks of a standby, `least_s` at most."""
    return min(least_s, renewal_interval_s(length_ms) / LOOKS) if length_ms else least_s
