"""How long clients may hold what others need: limits of idle sessions and of transactions."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache

from headrace.errors import ShuttingDown
from headrace.session.result import IdleLimit
from headrace.session.variables import Variables, duration_ms


class IdleClock:
    """Since when a client has had its transaction, as seen each time that it asks for nothing."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic):
        self._now_s = now_s
        self._transaction: object | None = None
        self._since_s = 0.0
        self._version = -1
        self._known: list[tuple[IdleLimit | None, IdleLimit | None]] = []
        """How long the client may ask for nothing, and how long all of its transaction may take: as it was set, outside
        of a transaction and within one."""

    def limit(self, variables: Variables, transaction: object | None) -> IdleLimit | None:
        """How long the client may ask for nothing from now on; `transaction` is the one that is open."""
        if transaction is not self._transaction:
            self._transaction, self._since_s = transaction, self._now_s()
        if variables.version != self._version:
            self._version, self._known = variables.version, [_limits(variables, within) for within in (False, True)]
        idle, whole = self._known[transaction is not None]
        if whole is None:
            return idle
        left_s = max(0.0, whole.seconds - (self._now_s() - self._since_s))
        return idle if idle is not None and idle.seconds <= left_s else IdleLimit(left_s, whole.error)


def _limits(variables: Variables, in_transaction: bool) -> tuple[IdleLimit | None, IdleLimit | None]:
    if not in_transaction:
        return _limit(variables, "idle_session_timeout", "57P05", "idle-session timeout"), None
    idle = _limit(variables, "idle_in_transaction_session_timeout", "25P03", "idle-in-transaction timeout")
    return idle, _limit(variables, "transaction_timeout", "25P04", "transaction timeout")


def _limit(variables: Variables, name: str, sqlstate: str, reason: str) -> IdleLimit | None:
    limit_ms = duration_ms(variables.get(name))
    return _limit_of(limit_ms, name, sqlstate, reason) if limit_ms else None


@lru_cache(maxsize=256)
def _limit_of(limit_ms: int, name: str, sqlstate: str, reason: str) -> IdleLimit:
    error = ShuttingDown(
        f"terminating connection due to {reason}", hint=f"{name} says how long is allowed", sqlstate=sqlstate
    )
    return IdleLimit(limit_ms / 1000, error)
