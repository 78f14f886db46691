"""How often somebody may be wrong about a password: what is tried from one address is bounded."""

from __future__ import annotations

import ipaddress
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final

from headrace.errors import HeadraceError

_WINDOW_S: Final = 60.0
_ADDRESSES: Final = 10_000
"""Of how many addresses is known what they have tried; the one that has failed least recently is forgotten first."""
_NETWORK_BITS: Final = 64
"""What of an address of IPv6 counts: whoever has one has all that begin so."""


class Guesses:
    """The failed logins of the last minute by where they came from. Safe to use from several threads.

    Whoever is turned away is not heard, so that does not count as failed: after a minute without a guess all is well.
    """

    def __init__(self, limit: Callable[[], int], now_s: Callable[[], float] = time.monotonic) -> None:
        """`limit` says how many a minute are heard, as of now; 0 for any number."""
        self._limit = limit
        self._now_s = now_s
        self._lock = threading.Lock()
        self._failed: OrderedDict[str, deque[float]] = OrderedDict()

    def check(self, address: str) -> None:
        """Raise `HeadraceError` (28000) if nobody from there is to be heard for the time being."""
        limit, place = self._limit(), _place(address)
        with self._lock:
            failed = self._failed.get(place)
            if failed is None:
                return
            while failed and failed[0] <= self._now_s() - _WINDOW_S:
                failed.popleft()
            if not failed:
                del self._failed[place]
            if not 0 < limit <= len(failed):
                return
        raise HeadraceError(
            f"too many failed logins from {address or 'here'}",
            sqlstate="28000",
            hint="try again in a minute: failed_logins_per_minute of the server says how many are heard.",
        )

    def note(self, address: str) -> None:
        """Somebody from there has failed to prove who they are."""
        limit, place = self._limit(), _place(address)
        if limit == 0:
            return
        with self._lock:
            failed = self._failed.setdefault(place, deque())
            failed.append(self._now_s())
            while len(failed) > limit:
                failed.popleft()
            self._failed.move_to_end(place)
            if len(self._failed) > _ADDRESSES:
                self._failed.popitem(last=False)


def _place(address: str) -> str:
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, _NETWORK_BITS), strict=False))
