"""Snapshots that DataFrames read: held for as long as any DataFrame that is made of them lives.

A DataFrame that is derived of another one holds on to its plan in Java, not to the Python object: so it is watched
whether Java still has any plan over a snapshot (`Held`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from pyspark.sql import DataFrame

from headrace.common.loggers import get_logger
from headrace.plan.catalyst.java_calls import LeafHold

_LOOK_S: Final = 5.0


class HeldFrames:
    """What is to be let go of when Java has collected the last plan over a leaf. Thread-safe."""

    def __init__(self, look_s: float = _LOOK_S) -> None:
        self._look_s = look_s
        self._lock = threading.Lock()
        self._held: list[tuple[LeafHold, Callable[[], object]]] = []
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def hold(self, leaf: DataFrame, release: Callable[[], object]) -> None:
        """Call `release` once no plan over `leaf`, the outcome of a `mapInArrow`, is left."""
        reference = LeafHold.of(leaf)
        with self._lock:
            self._held.append((reference, release))
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._watch, name="headrace-frames", daemon=True)
                self._thread.start()

    def look(self) -> None:
        """Let go of what no plan reads any more."""
        with self._lock:
            held = list(self._held)
        for item in held:
            if item[0].is_gone():
                self._release(item)

    def close(self) -> None:
        """Let go of everything."""
        self._closed.set()
        with self._lock:
            held = list(self._held)
        for item in held:
            self._release(item)

    def _watch(self) -> None:
        while not self._closed.wait(self._look_s):
            try:
                self.look()
            except Exception:  # whatever it was, the next look comes
                get_logger("headrace").exception("held snapshots could not be looked at")

    def _release(self, item: tuple[LeafHold, Callable[[], object]]) -> None:
        with self._lock:
            others = [held for held in self._held if held is not item]  # to compare them would ask Java
            if len(others) == len(self._held):
                return
            self._held = others
        try:
            item[1]()
        except Exception:
            get_logger("headrace").exception("a snapshot could not be released")
