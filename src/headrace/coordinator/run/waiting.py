"""Who waits for the coordinator to get on, and who is woken when it does.

An epoch becomes complete many times a second, and concerns few lanes. A thread that waits for nothing but a change of
its inputs says so (`machine.idle`): whoever moves the epochs on asks on its behalf and leaves it asleep. What is not
about epochs (a job is altered, dropped, fails; Spark ends) wakes everybody.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

CHECK_S = 0.2
"""Seconds between two looks whether anybody still waits."""


class Waiters(threading.Condition):
    """A condition of which threads can say that epochs becoming complete do not concern them, for the time being.

    There may be hundreds of lanes of which one has something to do: waking a thread costs a hundred times what asking
    on its behalf does.
    """

    def __init__(self, lock: threading.RLock) -> None:  # type: ignore[valid-type]
        super().__init__(lock)
        self._guard = lock
        self._asleep: dict[threading.Condition, Callable[[], bool]] = {}

    def sleep(self, idle: Callable[[], bool], timeout_s: float | None = None) -> None:
        """Wait until `notify_all`, or `advanced` while `idle` says no, or the time is over. The caller holds the lock.

        `idle` is called with the lock held, by any thread: it must be quick and must not raise.
        """
        alarm = threading.Condition(self._guard)
        self._asleep[alarm] = idle
        try:
            alarm.wait(timeout_s)
        finally:
            del self._asleep[alarm]

    def doze(self, timeout_s: float) -> None:
        """Wait until `notify_all` or until the time is over; epochs becoming complete wake nobody who dozes.

        The caller holds the lock.
        """
        self.sleep(lambda: True, timeout_s)

    def wait_until(
        self, settled: Callable[[], bool], timeout_s: float | None = None, check: Callable[[], None] | None = None
    ) -> bool:
        """Wait until `settled`; False after `timeout_s`. The caller holds the lock.

        `check` is asked now and then, and raises if nobody waits any more.
        """
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not settled():
            if check is not None:
                check()
            left_s = None if until_s is None else until_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                return False
            pause_s = left_s if check is None else min(CHECK_S, CHECK_S if left_s is None else left_s)
            self.wait(pause_s)
        return True

    def notify_all(self) -> None:
        """Wake everybody. The caller holds the lock."""
        super().notify_all()
        for alarm in self._asleep:
            alarm.notify()

    def advanced(self) -> None:
        """Epochs have become complete, or have been committed: wake whom that may concern. The caller holds the lock.

        Not for anything else that somebody may wait for.
        """
        super().notify_all()
        for alarm, idle in self._asleep.items():
            if not idle():
                alarm.notify()
