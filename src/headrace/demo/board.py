"""What the demonstration knows while it runs; the screen shows it, the watcher fills it in."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import field
from typing import Final

from headrace.common.lazy_dataclass import dataclass

_RATE_WINDOW_S: Final = 8.0


@dataclass
class ViewState:
    """One view as last seen; None where that is not known (yet)."""

    name: str
    meaning: str
    status: str = ""
    rows: int | None = None
    lag_ms: int | None = None
    last_epoch_ms: int | None = None
    error: str = ""
    verdict: str = ""


@dataclass
class Board:
    """Everything that the demonstration's screen shows, and the lock around it."""

    total: int
    """Flights in all."""
    views: list[ViewState]
    connect: str = ""
    phase: str = ""
    """What goes on right now."""
    streaming: bool = False
    """Whether flights come in."""
    seen: int = 0
    until: str = ""
    """Event time of the newest flight."""
    lines: list[str] = field(default_factory=list)
    """What has happened, in order."""
    started_s: float = field(default_factory=time.monotonic)
    _samples: deque[tuple[float, int]] = field(default_factory=deque)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started_s

    @property
    def rows_per_s(self) -> float:
        """Flights per second over the last seconds."""
        if len(self._samples) < 2:
            return 0.0
        (first_s, first), (last_s, last) = self._samples[0], self._samples[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else 0.0

    def saw(self, flights: int, until: str) -> None:
        """Note how many flights are in, and the newest one's event time."""
        now_s = time.monotonic()
        self.seen, self.until = flights, until
        self._samples.append((now_s, flights))
        while len(self._samples) > 2 and now_s - self._samples[1][0] > _RATE_WINDOW_S:
            self._samples.popleft()

    def pause(self) -> None:
        """Forget the rate: for a while nothing can be seen."""
        self._samples.clear()

    def note(self, line: str) -> None:
        """Add a line to what has happened."""
        self.lines.append(f"{self.elapsed_s:6.1f} s  {line}")
