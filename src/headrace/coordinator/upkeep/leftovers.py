"""What dropped sources still hold where they read, as a slot of PostgreSQL's log: let go of, however long that takes.

A drop notes what there is to let go of (`ddl/letting_go.py`), and tries it once. What does not answer then is asked
again by a thread of its own, after growing pauses and over restarts, until it has let go, or for `GIVEN_UP_MS`. People
see what is left in `headrace_catalog.dropped_sources`.

Others may have made the same again meanwhile, under the same name. In this database nobody does so while something of
that name is let go of (`holding`), and what is in use here is left alone; what others have made is told from what was
ours by the connector (`Source.discard`).
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from headrace.catalog.catalog import Catalog
from headrace.catalog.edits import AddEvent, Delete, Edit
from headrace.catalog.records import LeavingRecord, ObjectRecord
from headrace.common.faults import fault_point
from headrace.common.lazy_dataclass import dataclass
from headrace.connectors.sources import holds
from headrace.coordinator.ddl.letting_go import released, slot_of
from headrace.coordinator.ddl.secrets import Vault
from headrace.coordinator.decide.targets import retry_delay_ms
from headrace.coordinator.run.guard import Guard, as_headrace_error
from headrace.coordinator.run.live_state import LiveState
from headrace.coordinator.run.runtime import Runtime
from headrace.errors import Fenced

NAME = "letting go of what dropped sources hold"
"""Of the thread, for people."""
FIRST_MS, LONGEST_MS = 1_000, 600_000
"""The first pause between two attempts, which doubles, and the longest one."""
GIVEN_UP_MS = 7 * 24 * 3_600_000
"""So long after its drop what does not answer is given up."""
LEFT, LET_GO = "source_left", "source_let_go"
"""The kinds of its events."""
_SHOWN = "headrace_catalog.dropped_sources"


@dataclass(frozen=True)
class Leftover:
    """A dropped source that holds something still, for people."""

    source: ObjectRecord
    dropped_ms: int
    failures: int
    """Attempts of this server, all of which have failed."""
    error: str
    """Why the last one has; "" if there was none."""
    retry_in_ms: int


@dataclass
class _Trouble:
    due_s: float
    """When to try again, by the monotonic clock."""
    failures: int = 0
    error: str = ""
    told: bool = False
    """It was said that it is there still, perhaps by a server before this one."""


class Leftovers:
    """Lets go of what dropped sources hold. Thread-safe."""

    def __init__(self, live: LiveState, catalog: Catalog, runtime: Runtime, guard: Guard, vault: Vault) -> None:
        self._live = live
        self._catalog = catalog
        self._runtime = runtime
        self._guard = guard
        self._vault = vault
        self._troubles: dict[int, _Trouble] = {}
        """By the source's id. The lock of `live` guards it, and all below."""
        self._freed = threading.Condition(live.lock)
        self._held: set[tuple[str | None, ...]] = set()
        """The slots of which somebody lets go, or makes one."""

    # ---- statements

    def let_go(self, ids: Sequence[int]) -> list[str]:
        """Let go of what sources held that were dropped just now; what to tell of what is there still.

        Of a server that does not let go of one the rest is left to the thread: nobody waits for each of a hundred.
        """
        state = self._catalog.state
        left = [state.leaving[i] for i in ids if i in state.leaving]
        if left:
            fault_point("source.dropped.after")
        told: list[str] = []
        away: set[tuple[str | None, ...]] = set()
        for record in left:
            server = slot_of(record.source.options)[:-1]
            if server in away:
                told.append(f"{_still(record)}: it is asked later ({_SHOWN})")
                continue
            text = self._attempt(record, later=False)
            told += [] if text is None else [text]
            if self._is_left(record):
                away.add(server)
        return told

    @contextmanager
    def holding(self, options: Mapping[str, str]) -> Iterator[None]:
        """Within the block, in which a source of such options is made, nobody lets go of what it will hold.

        What is left of one of the same name goes first, if that can be.
        """
        slot = slot_of(options)
        if slot[-1] is None or not holds(options):
            yield
            return
        with self._turn(slot):
            for _, record in sorted(self._catalog.state.leaving.items()):  # a slot before its tables
                if slot_of(record.source.options) == slot:
                    self._try(record, later=True)
                    if self._is_left(record):  # nor are the others let go of, which would be waited for one by one
                        break
            yield

    def standing(self) -> list[Leftover]:
        """What is left, in the order of the drops."""
        now_s = self._runtime.clock.monotonic_s()
        found = []
        with self._live.lock:
            for key, record in sorted(self._catalog.image.leaving.items()):
                trouble = self._troubles.get(key) or _Trouble(now_s)
                left_ms = max(0, round((trouble.due_s - now_s) * 1000))
                found.append(Leftover(record.source, record.dropped_ms, trouble.failures, trouble.error, left_ms))
        return found

    # ---- the thread

    def run(self) -> None:
        """The thread's main function. What a server before this one has left is due at once."""
        with self._live.lock:
            for key in self._catalog.image.leaving:
                self._troubles.setdefault(key, _Trouble(self._runtime.clock.monotonic_s(), told=True))
        self._guard.forever(NAME, self._loop)

    def _loop(self) -> None:
        while (record := self._next()) is not None:
            self._attempt(record, later=True)
            self._guard.succeeded(NAME)

    def _next(self) -> LeavingRecord | None:
        """The next one that is due, once it is; None if it is time to stop."""
        clock = self._runtime.clock
        with self._live.changed:
            while not self._runtime.stopping:
                left, now_s = self._catalog.image.leaving, clock.monotonic_s()
                for key in self._troubles.keys() - left.keys():
                    del self._troubles[key]
                for key in left:  # its drop comes first
                    self._troubles.setdefault(key, _Trouble(now_s + FIRST_MS / 1000))
                due_s, first = min(((self._troubles[k].due_s, k) for k in left), default=(now_s + LONGEST_MS / 1000, 0))
                if due_s <= now_s:
                    return left[first]
                self._live.changed.doze(due_s - now_s)
        return None

    # ---- one of them

    def _attempt(self, record: LeavingRecord, *, later: bool) -> str | None:
        with self._turn(slot_of(record.source.options)):
            return self._try(record, later=later) if record.key in self._catalog.state.leaving else None

    def _try(self, record: LeavingRecord, *, later: bool) -> str | None:
        """The caller has its turn. What to tell of what is there still."""
        try:
            alone = released(self._catalog.state, record, self._vault.former, later=later)
            self._forget(record, alone)
        except Fenced:
            raise
        except Exception as error:
            return self._failed(record, as_headrace_error(error).message)
        return alone

    def _forget(self, record: LeavingRecord, alone: str | None) -> None:
        """It is done: note what was left `alone`, or that it has worked where it was said that it did not."""
        with self._live.lock:
            trouble = self._troubles.get(record.key)
        edits: list[Edit] = [Delete("leaving", record.key)]
        if alone is not None:
            edits.append(AddEvent(LEFT, record.key, f"{_named(record)} was dropped: {alone}"))
        elif trouble is not None and trouble.told:
            edits.append(AddEvent(LET_GO, record.key, f"what {_named(record)} held where it read is let go of"))
        self._catalog.transact(edits)
        with self._live.lock:
            self._troubles.pop(record.key, None)

    def _failed(self, record: LeavingRecord, error: str) -> str:
        clock = self._runtime.clock
        with self._live.lock:
            trouble = self._troubles.setdefault(record.key, _Trouble(0.0))
            trouble.failures, trouble.error, trouble.told = trouble.failures + 1, error, True
            pause_ms = retry_delay_ms(trouble.failures, FIRST_MS, LONGEST_MS, random.random())
            trouble.due_s = clock.monotonic_s() + pause_ms / 1000
            first = trouble.failures == 1
        text = f"{_still(record)}: {error}"
        given_up = clock.now_ms() - record.dropped_ms >= GIVEN_UP_MS
        text += "; it is given up" if given_up else f"; it is tried again ({_SHOWN})"
        edits: list[Edit] = [AddEvent(LEFT, record.key, text)] if first or given_up else []
        edits += [Delete("leaving", record.key)] if given_up else []
        if edits:
            self._guard.chore("telling what dropped sources hold", lambda: self._catalog.transact(edits))
        self._live.notify()
        return text

    def _is_left(self, record: LeavingRecord) -> bool:
        return record.key in self._catalog.image.leaving

    @contextmanager
    def _turn(self, slot: tuple[str | None, ...]) -> Iterator[None]:
        with self._freed:
            while slot in self._held:
                self._freed.wait()
            self._held.add(slot)
        try:
            yield
        finally:
            with self._freed:
                self._held.remove(slot)
                self._freed.notify_all()


def _named(record: LeavingRecord) -> str:
    return record.source.in_words


def _still(record: LeavingRecord) -> str:
    return f"what {_named(record)} holds where it reads is still there"
