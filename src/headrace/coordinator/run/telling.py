"""Tells sources that are not asked for what there is, since they are paused, how far their readers are.

What was bound before goes on being taken in. A source is told in a thread of its own, which holds up no tick; one that
cannot be told is told again later, and is no failing source: nothing is wanted of it.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

from headrace.catalog.records import ObjectRecord
from headrace.common.lazy_dataclass import dataclass
from headrace.connectors.base import Offsets, Source
from headrace.coordinator.decide.targets import retry_delay_ms

_FIRST_RETRY_MS, _MAX_RETRY_MS = 1000, 60_000


@dataclass
class _Told:
    """What a source has been told."""

    offsets: Offsets
    failures: int = 0
    retry_at_s: float = 0.0
    thread: threading.Thread | None = None
    source: Source | None = None
    record: ObjectRecord | None = None
    """What the source was opened by."""


class Teller:
    """Used by the one that holds the ticker's lock."""

    def __init__(self, open_source: Callable[[ObjectRecord], Source], now_s: Callable[[], float]) -> None:
        self._open = open_source
        self._now_s = now_s
        self._told: dict[int, _Told] = {}

    def telling(self, source_id: int) -> threading.Thread | None:
        """The thread that tells a source something just now: who tells it more waits for its end, to come later."""
        told = self._told.get(source_id)
        return told.thread if told is not None and told.thread is not None and told.thread.is_alive() else None

    def tell(self, source_id: int, record: ObjectRecord, taken: Offsets) -> None:
        """Tell a source what all its readers have durably taken in, unless it knows."""
        told = self._told.setdefault(source_id, _Told({}))
        if told.offsets == taken or self.telling(source_id) is not None or told.retry_at_s > self._now_s():
            return
        told.thread = threading.Thread(
            target=self._say, args=(told, record, taken), name=f"headrace-telling-{source_id}", daemon=True
        )
        try:
            told.thread.start()
        except RuntimeError:  # the process has no thread left
            self._failed(told)

    def leave(self, source_id: int) -> None:
        """It is asked again, and told then."""
        if self.telling(source_id) is None:
            self._told.pop(source_id, None)

    def forget(self, source_id: int) -> None:
        """It was dropped: nobody tells it anything any more."""
        self._told.pop(source_id, None)

    def _say(self, told: _Told, record: ObjectRecord, taken: Offsets) -> None:
        try:
            if told.source is None or told.record != record:
                told.source, told.record = self._open(record), record
            told.source.acknowledge(taken)
        except Exception:
            told.source = None
            self._failed(told)
        else:
            told.offsets, told.failures = taken, 0

    def _failed(self, told: _Told) -> None:
        told.failures += 1
        delay_ms = retry_delay_ms(told.failures, _FIRST_RETRY_MS, _MAX_RETRY_MS, random.random())
        told.retry_at_s = self._now_s() + delay_ms / 1000
