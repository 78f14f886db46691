"""A second backend that gets every transaction too, to be watched before the catalog moves there.

The live side never waits for it nor fails because of it: transactions are handed over to a thread, and a shadow that
fails or falls behind is filled again from the live side's next snapshot. Snapshots of both sides are compared; what
differs is told with the records.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import field
from typing import Final

from headrace.catalog.edits import FENCING_KEY, SEQUENCE_KEY, TOMBSTONE_KEY
from headrace.catalog.marks import CatalogPlace, Copy, copied
from headrace.catalog.store import FORMAT_VERSION, PLACE, CatalogStore, Migration, StoredCatalog, Writes, check_format
from headrace.common.lazy_dataclass import dataclass
from headrace.errors import HeadraceError, OperationalError

SHADOW: Final = "shadow"
"""What stands for the move in the mark of a shadow: no move has this name, so it never is the truth."""
_BEHIND: Final = 1000
"""Transactions that may wait for the shadow; with more it is filled again instead."""
COMPARE_EVERY: Final = 1000
"""Transactions from one comparison of snapshots to the next."""
_OWN: Final = (FENCING_KEY, TOMBSTONE_KEY)
"""Config entries that each side has for itself."""
_SHOWN: Final = 20


@dataclass
class ShadowReport:
    """How the shadow has fared since it was opened: transactions, differences, failures."""

    written: int = 0
    compared: int = 0
    refilled: int = 0
    differences: list[str] = field(default_factory=list)
    """The newest ones."""
    error: str = ""
    """Why the shadow is not written to at present; empty if it is."""


def differences(live: StoredCatalog, shadow: StoredCatalog) -> list[str]:
    """What differs between two snapshots of the same moment, record by record. Pure."""
    sides = []
    for loaded in (live, shadow):
        rows = {(c, k): v for c, k, v in loaded.rows if c != PLACE}
        rows |= {("config", k): str(v) for k, v in loaded.config.items() if k not in _OWN}
        sides.append(rows)
    ours, theirs = sides
    found = []
    for key in sorted(ours.keys() | theirs.keys()):
        if ours.get(key) != theirs.get(key):
            name = "/".join(key)
            found.append(
                f"{name}: {ours.get(key, 'nothing')} in the catalog, {theirs.get(key, 'nothing')} in its shadow"
            )
    return found


class ShadowStore:
    """A `CatalogStore` that is its live side in every respect."""

    def __init__(
        self,
        live: CatalogStore,
        shadow: CatalogStore,
        source: str,
        told: Callable[[str], None],
        *,
        threaded: bool = True,
    ) -> None:
        """`source` is the live side's place as marks spell it; `told` hears of differences and failures."""
        self._live, self._shadow, self._source, self._told = live, shadow, source, told
        self.report = ShadowReport()
        self._threaded = threaded
        self._waiting: queue.Queue[tuple[Writes, int] | None] = queue.Queue(_BEHIND)
        self._thread: threading.Thread | None = None
        self._open = self._stopping = False
        self._filled_to = 0
        """The last transaction that came with a snapshot."""
        self._complete = False
        """Whether the shadow has all that the live side had; changed by whoever writes to it."""
        self._overflow = threading.Event()

    # ---- the live side

    @property
    def name(self) -> str:
        """Where the live side is."""
        return self._live.name

    def place(self) -> str:
        """That of the live side."""
        return self._live.place()

    @property
    def token(self) -> int | None:
        """That of the live side."""
        return self._live.token

    @property
    def rollup_error(self) -> Exception | None:
        """That of the live side, if it makes rollups."""
        return getattr(self._live, "rollup_error", None)

    def open(
        self,
        format_version: int,
        migrations: Mapping[int, Migration],
        *,
        initialize: bool = True,
        succeeding: int | None = None,
    ) -> StoredCatalog:
        """Open the live side, then the shadow, which gets what is missing in it."""
        loaded = self._live.open(format_version, migrations, initialize=initialize, succeeding=succeeding)
        self.begin(loaded)
        return loaded

    def begin(self, loaded: StoredCatalog) -> None:
        """Open the shadow of a live side that is open and holds this."""
        self._guarded(lambda: self._open_shadow(loaded))
        if self._threaded:
            self._thread = threading.Thread(target=self._run, name="headrace-shadow", daemon=True)
            self._thread.start()

    def load(self, format_version: int) -> StoredCatalog:
        """The live side's content; compared with the shadow's."""
        loaded = self._live.load(format_version)
        self._hand_over(None)
        return loaded

    def sequence(self) -> int:
        """That of the live side."""
        return self._live.sequence()

    @property
    def is_near(self) -> bool:
        """Whether the live side is a file of this machine."""
        return bool(getattr(self._live, "is_near", False))

    @property
    def file(self) -> str | None:
        """The file of the live side, if it is in one."""
        found: str | None = getattr(self._live, "file", None)
        return found

    def verify(self) -> None:
        """Raise `Fenced` if the live side has another opener."""
        self._live.verify()

    def append(self, writes: Writes, expected_sequence: int) -> None:
        """Commit on the live side; then the shadow gets it."""
        self._live.append(writes, expected_sequence)
        self._hand_over((writes, expected_sequence))

    def replace(self, content: StoredCatalog, token_floor: int) -> None:
        """Replace the live side's content; the shadow gets it all anew."""
        self._live.replace(content, token_floor)
        self._overflow.set()

    def peek(self) -> StoredCatalog:
        """What the live side says of itself."""
        return self._live.peek()

    def close(self) -> None:
        """Let the shadow have what waits for it, compare once more, close both."""
        if self._thread is not None and not self._stopping:
            self._stopping = True
            with suppress(queue.Full):  # what waits wakes it as well
                self._waiting.put_nowait(None)
            self._thread.join()
        elif not self._stopping:
            self._stopping = True
            self._take(None)
        self._live.close()
        self._shadow.close()

    # ---- the shadow

    def _hand_over(self, item: tuple[Writes, int] | None) -> None:
        if not self._threaded:
            self._take(item)
            return
        try:
            self._waiting.put_nowait(item)
        except queue.Full:
            self._overflow.set()

    def _run(self) -> None:
        while True:
            item = self._waiting.get()
            self._take(item)
            if not self._stopping:
                continue
            if self.report.error:
                return  # nobody waits for a shadow that fails: the next start fills it
            if self._waiting.empty():
                if item is not None:
                    self._take(None)
                return

    def _take(self, item: tuple[Writes, int] | None) -> None:
        if item is None:
            self._guarded(self._compare)
        elif self._overflow.is_set() or not self._complete:
            self._overflow.clear()
            self._guarded(self._refill)
        else:
            self._guarded(lambda: self._write(*item))

    def _guarded(self, step: Callable[[], None]) -> None:
        """Do something with the shadow: whatever it raises is told, and the shadow filled again later."""
        try:
            step()
            self.report.error = ""
        except Exception as error:
            self._complete = False
            text = error.message if isinstance(error, HeadraceError) else repr(error)
            if isinstance(error, HeadraceError) and error.detail:
                text = f"{text} ({error.detail})"
            first, self.report.error = not self.report.error, text
            if first:
                with suppress(Exception):  # whoever hears of it may fail, too: the thread goes on
                    self._told(f"the catalog's shadow in {self._shadow.name} fails: {text}")

    def _open_shadow(self, loaded: StoredCatalog) -> None:
        there = CatalogPlace.of(self._shadow.name, self._shadow.peek())
        check_format(there.format_version, FORMAT_VERSION)
        if not there.is_empty and there.is_true:
            raise OperationalError("it holds a catalog that is in use", hint="give an empty place")
        found = self._shadow.open(FORMAT_VERSION, {}, initialize=False)
        self._open = True
        self._complete = not there.is_empty and not differences(loaded, found)
        if not self._complete:
            self._fill(loaded)

    def _refill(self) -> None:
        if not self._open:
            self._open_shadow(self._live.load(FORMAT_VERSION))
        else:
            self._fill(self._live.load(FORMAT_VERSION))

    def _fill(self, content: StoredCatalog) -> None:
        self._shadow.replace(copied(content, Copy(self._source, SHADOW)), 0)
        self._filled_to = content.config.get(SEQUENCE_KEY, 0)
        self._complete = True
        self.report.refilled += 1

    def _write(self, writes: Writes, expected_sequence: int) -> None:
        if expected_sequence < self._filled_to:
            return  # it came with the snapshot
        self._shadow.append(writes, expected_sequence)
        self.report.written += 1
        if self.report.written % COMPARE_EVERY == 0:
            self._compare()

    def _compare(self) -> None:
        if not self._complete:
            self._refill()
        live, shadow = self._live.load(FORMAT_VERSION), self._shadow.load(FORMAT_VERSION)
        if live.config.get(SEQUENCE_KEY, 0) != shadow.config.get(SEQUENCE_KEY, 0) and not self._stopping:
            return  # the live side has gone on meanwhile; what the shadow misses it notices by the next number
        self.report.compared += 1
        found = differences(live, shadow)
        if found:
            self.report.differences = found[:_SHOWN]
            more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
            self._told(f"the catalog and its shadow in {self._shadow.name} differ: {'; '.join(found[:_SHOWN])}{more}")
            self._complete = False
