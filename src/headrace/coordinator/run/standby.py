"""A server that waits to take over: it follows the catalog, serves reads of what is there, and watches the lease.

What it shows is always a state that the active server had: it reads at epochs of which that one, or a checkpoint of one
of its views, has said that nothing will be written at or below them any more, and everything that was is in the
catalog before that word.

docs/design/0015 says which epochs a standby shows, and how it takes over.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Literal

from headrace.catalog.following import FollowedCatalog, Refreshed
from headrace.catalog.state import CatalogState
from headrace.catalog.store import Overtaken
from headrace.common.lazy_dataclass import dataclass
from headrace.common.loggers import get_logger
from headrace.coordinator.decide.lease import LOOKS, Lease, Sign, Watch, lease_of, look_interval_s
from headrace.coordinator.run.guard import Guard
from headrace.coordinator.run.live_state import LiveState
from headrace.coordinator.run.mirror import complete_epoch, mirror
from headrace.coordinator.run.runtime import Runtime
from headrace.errors import HeadraceError, ReadOnlyTransaction, SnapshotUnavailable
from headrace.state.run import OPEN_RUNS
from headrace.state.stores import StoreRoot

NAME: Final = "the standby"
"""Of the thread, for people."""
_NEWS: Final = "taking in what another server has changed"
_PATIENCE: Final = 10
"""A look that takes long is followed by a pause of as many times that: following costs the store a tenth at most."""

Why = Literal["its lease has run out", "it has stopped", "it was told to"]


@dataclass(frozen=True)
class StandbyStatus:
    """What a standby knows of the server that it stands by for."""

    owner: str
    """Who it is, when it opened the catalog."""
    address: str
    """Where its clients reach it; empty if it has not said so."""
    epoch: int
    """The newest epoch that is served."""
    staleness_ms: int
    """Milliseconds since that was known to be the newest one."""
    lease_ms: int
    """The length of its lease; 0 if it keeps none, so that nobody takes over by himself."""
    silent_ms: int
    """For how long it has given no sign of life."""
    error: str
    """Why the last look at the catalog has failed; empty if it has not."""


class Standby:
    """Follows a catalog, and takes it over in the end. `take_over` does that once it is decided, and says why.

    `news` is told what has changed in the catalog, after it has been taken in; None for anything.
    """

    def __init__(
        self, live: LiveState, catalog: FollowedCatalog, root: StoreRoot, runtime: Runtime, guard: Guard, *,
        take_over: Callable[[Why], None], news: Callable[[Refreshed | None], None],
    ) -> None:  # fmt: skip
        self._live = live
        self._catalog = catalog
        self._root = root
        self._runtime = runtime
        self._guard = guard
        self._take_over = take_over
        self._news = news
        self._watch = Watch()
        self._lease: Lease | None = None
        self._fresh_s = runtime.clock.monotonic_s()
        """When the look began that found the newest word on what is complete."""
        self._error = ""
        self._told = threading.Event()
        self._torn = False
        """Whether what was found last did not get into relations and jobs."""
        self._looking = False
        self._looks = 0
        """How many looks have ended; and the one that somebody waits for."""
        self._asked = 0

    # ---- what others ask

    def status(self) -> StandbyStatus:
        """What the standby knows of the active server now."""
        live, lease, sign = self._live, self._lease, self._watch.sign
        with live.lock:
            stale_s = self._runtime.clock.monotonic_s() - self._fresh_s
            return StandbyStatus(
                owner=self._catalog.owner,
                address="" if lease is None else lease.address,
                epoch=live.epochs.complete,
                staleness_ms=round(stale_s * 1000),
                lease_ms=0 if lease is None else lease.length_ms,
                silent_ms=0 if sign is None else round(self._watch.silent_s * 1000),
                error=self._error,
            )

    def refusal(self, what: str) -> ReadOnlyTransaction:
        """The error of something that only the active server does."""
        status = self.status()
        where = f"at {status.address}" if status.address else "which has not said where it is reached"
        return ReadOnlyTransaction(
            f"cannot execute {what} in a read-only transaction",
            detail=f"This server is a standby; the active one is {status.owner}, {where}.",
            hint="Connect with the addresses of all servers and target_session_attrs=read-write. SELECT pg_promote() "
            "or headrace catalog takeover makes this server the active one.",
        )

    def notices(self) -> list[str]:
        """What a read is to be told: that what it sees is old."""
        status, limit_ms = self.status(), self._runtime.settings.lag_notice_ms
        if self._live.mirrored is None or not limit_ms or status.staleness_ms <= limit_ms:
            return []
        return [f"this standby has heard nothing new of the active server for {status.staleness_ms / 1000:.0f} s"]

    def check_readable(self, relation_ids: Sequence[int]) -> None:
        """Raise `SnapshotUnavailable` where what could be shown is unknown, or older than is allowed."""
        if self._live.mirrored is None:  # it has just taken over
            return
        status, limit_ms = self.status(), self._runtime.settings.standby_staleness_ms
        with self._live.lock:
            fresh = [r for r in map(self._live.graph.relation, relation_ids) if r.external and not r.bound]
        if fresh:
            raise SnapshotUnavailable(
                f"nothing has read {fresh[0].record.in_words} yet: it is not known here what it holds",
                hint="read it from the active server first",
            )
        if not status.epoch and self._lease is None:
            raise SnapshotUnavailable(
                "this standby does not know yet up to which epoch all is complete",
                detail=status.error or "The active server keeps no lease, and no view has had a checkpoint.",
                hint="read from the active server, or set lease_ms there",
            )
        if limit_ms and status.staleness_ms > limit_ms:
            raise SnapshotUnavailable(
                f"this standby has heard nothing new of the active server for {status.staleness_ms / 1000:.0f} s",
                detail=status.error or None,
                hint=f"standby_staleness_ms ({limit_ms}) says how old what it shows may be; 0: any age",
            )

    def tell(self) -> None:
        """Take over at the next look."""
        self._told.set()
        self._live.notify()

    @property
    def was_told(self) -> bool:
        """Whether it is about to take over because of that; not any more when it has failed to."""
        return self._told.is_set()

    def look_again(self, timeout_s: float) -> None:
        """Return once a look that began after this call has ended, or the time is over."""
        live = self._live
        with live.changed:
            wanted = self._looks + (2 if self._looking else 1)
            self._asked = max(self._asked, wanted)
            live.changed.notify_all()
            live.changed.wait_until(lambda: self._looks >= wanted or self._runtime.stopping, timeout_s)

    # ---- the thread

    def begin(self) -> None:
        """Take in what is there. Raises `CorruptObject`."""
        with self._catalog.reading() as state:
            self._take_in(None, state)

    def run(self) -> None:
        """The thread's main function: until it has taken over, or the server stops."""
        self._guard.forever(NAME, self._loop)

    def _loop(self) -> None:
        clock = self._runtime.clock
        while True:
            began_s = clock.monotonic_s()
            if self._look():
                return
            if not self._pause((clock.monotonic_s() - began_s) * _PATIENCE):
                return

    def _look(self) -> bool:
        """Look at the catalog once; whether this server has taken over."""
        with self._live.lock:
            self._looking = True
        try:
            self._refresh()
        finally:
            with self._live.changed:
                self._looks += 1
                self._looking = False
                self._live.changed.notify_all()
        OPEN_RUNS.tidy(self._root, {})  # what is deleted elsewhere keeps its place on the disk while it is open
        why = self._why()
        return why is not None and self._try(why)

    def _refresh(self) -> None:
        """Take in what is new in the catalog; a failure is told by reads, and counts for the lease."""
        runtime = self._runtime
        began_s = runtime.clock.monotonic_s()
        try:
            if self._torn:
                self.begin()
                # What was told last has not come here: all of it is news.
                self._guard.chore(_NEWS, partial(self._news, None))
            found = self._catalog.refresh(lambda found, state: self._take_in(found, state, began_s))
            if found is not None:
                self._guard.chore(_NEWS, partial(self._news, found))
        except HeadraceError as error:
            if error.message != self._error:
                get_logger("headrace").warning("the catalog cannot be followed", error=error.message)
            self._error = error.message
            self._watch.missed()
            return
        self._error = ""
        sign = Sign.of(self._catalog.followed_token, self._lease)
        self._watch.looked(sign, began_s, runtime.clock.monotonic_s())

    def _take_in(self, found: Refreshed | None, state: CatalogState, began_s: float | None = None) -> None:
        """Let relations, jobs and the newest complete epoch be as the catalog says, for all reads at once."""
        live = self._live
        before = self._lease
        self._torn = True
        lease = lease_of(state)
        with live.changed:
            mirror(live.graph, state, None if found is None or found.whole else found.change)
            live.mirrored, self._lease = state, lease
            complete = max(complete_epoch(live.graph), 0 if lease is None else lease.complete)
            if complete > live.epochs.complete or lease != before:
                self._fresh_s = self._runtime.clock.monotonic_s() if began_s is None else began_s
            live.epochs.follow(complete)
            live.changed.notify_all()
        self._torn = False

    def _why(self) -> Why | None:
        sign = self._watch.sign
        if self._told.is_set():
            return "it was told to"
        if self._watch.due:
            return "it has stopped" if sign is not None and sign.released else "its lease has run out"
        return None

    def _try(self, why: Why) -> bool:
        try:
            self._catalog.take_over()
        except Overtaken as error:
            get_logger("headrace").info("another server was first, this one stays a standby", detail=error.message)
            self._give_up()
            return False
        except HeadraceError as error:
            get_logger("headrace").error("the catalog cannot be taken over", error=error.message, detail=error.detail)
            self._error = error.message
            self._give_up()
            return False
        self._take_over(why)
        return True

    def _give_up(self) -> None:
        """Stay a standby, for a lease's length at least unless it is told again."""
        self._watch.missed()
        self._told.clear()
        self._live.notify()

    def _pause(self, least_s: float) -> bool:
        runtime, live = self._runtime, self._live
        length_ms = 0 if self._lease is None else self._lease.length_ms
        pause_s = look_interval_s(length_ms, runtime.settings.standby_look_ms / 1000)
        if length_ms:  # or it would not be seen that the lease is renewed
            least_s = min(least_s, length_ms / 1000 / LOOKS)
        due_s = runtime.clock.monotonic_s() + max(pause_s, least_s)
        with live.changed:
            while not runtime.stopping and not self._told.is_set() and self._looks >= self._asked:
                left_s = due_s - runtime.clock.monotonic_s()
                if left_s <= 0:
                    break
                live.changed.wait(left_s)
            return not runtime.stopping
