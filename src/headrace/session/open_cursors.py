"""Cursors that are open: where one is in the rows of a query, and which of these are kept.

A cursor holds its query's snapshot until it is closed or its transaction ends, and no rows but those that it may have
to give again: all that it has given where it may go back, and what is left at COMMIT where it is held. These stay
within `cursor_memory_bytes`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Protocol

import numpy as np
import pyarrow as pa

from headrace.catalog.records import ObjectRecord
from headrace.errors import HeadraceError, OutOfBudget
from headrace.session.result import Result, ResultColumn, closing_if_possible
from headrace.sql import statements as st


class OpenCursor:
    """The rows of a query, and where one is in them: 0 before the first row, n on the n-th, one more after the last."""

    def __init__(self, statement: st.DeclareCursor, result: Result, most_bytes: int, since: int) -> None:
        self.columns: list[ResultColumn] = result.columns or []
        self.binary = statement.binary
        self._name = statement.name
        self.holds = statement.hold
        self.held = False
        """Whether it outlives transactions by now: all its rows are here."""
        self.since = since
        """How many savepoints there had been in its transaction when it was declared."""
        self._scrolls = statement.scroll
        self._source = result.batches
        self._most_bytes = most_bytes
        self._kept: list[pa.RecordBatch] = []
        self._starts: list[int] = []
        """How many rows come before each batch that is kept."""
        self._loaded = 0
        self._bytes = 0
        self._at = 0
        self._from = 0
        """Where it was before the FETCH that is under way, or the last one."""
        self._failed = False

    # ---- reading

    def fetch(self, direction: str, count: int | None) -> Iterator[pa.RecordBatch]:
        """The rows of FETCH, which moves as they are taken. Raises `HeadraceError` (55000) where it would go back, or
        where a FETCH was stopped before."""
        if self._failed:
            raise not_to_be_run(self._name)
        self._from = self._at
        if direction == "absolute":
            return self._to(count or 0)
        if direction == "relative":
            return self._by(count or 0)
        if count is not None and count < 0:
            direction, count = ("backward" if direction == "forward" else "forward"), -count
        if count == 0:
            return self._by(0)
        return self._forward(count) if direction == "forward" else self._backward(count)

    def stopped(self) -> None:
        """A FETCH has ended before its client had all rows: one that is held has all of them and goes back."""
        if self.held:
            self._at = self._from
        else:
            self._failed = True

    def _forward(self, count: int | None) -> Iterator[pa.RecordBatch]:
        left = count
        while left is None or left > 0:
            if self._at >= self._loaded and not self._pull():
                self._at = self._loaded + 1
                return
            i = bisect_right(self._starts, self._at) - 1
            batch = self._kept[i].slice(self._at - self._starts[i], left)
            self._at += batch.num_rows
            left = None if left is None else left - batch.num_rows
            self._forget()
            yield batch

    def _backward(self, count: int | None) -> Iterator[pa.RecordBatch]:
        self._require_scroll()
        if self._at == 0:
            return
        stop = 0 if count is None else max(self._at - 1 - count, 0)
        upto, self._at = self._at - 1, stop + 1 if count is not None and self._at - 1 >= count else 0
        while upto > stop:
            i = bisect_right(self._starts, upto - 1) - 1
            start = max(self._starts[i], stop)
            batch = self._kept[i].slice(start - self._starts[i], upto - start)
            yield batch.take(pa.array(np.arange(batch.num_rows)[::-1].copy()))
            upto = start

    def _by(self, count: int) -> Iterator[pa.RecordBatch]:
        if count == 0 and not 0 < self._at <= self._loaded:
            return iter(())
        return self._row(self._at + count)

    def _to(self, count: int) -> Iterator[pa.RecordBatch]:
        if count >= 0:
            return self._row(count)
        self._require_scroll()
        while self._pull():
            pass
        return self._row(max(self._loaded + 1 + count, 0))

    def _row(self, number: int) -> Iterator[pa.RecordBatch]:
        """The row with a number, which it then is on."""
        if number <= self._at and (number, self._at) != (0, 0):
            self._require_scroll()
        self._at = min(self._at, self._loaded + 1)
        while self._loaded < number and self._pull():
            self._at = min(number - 1, self._loaded)
            self._forget()
        self._at = max(min(number - 1, self._loaded), 0)
        if number <= 0:
            return
        yield from self._forward(1)

    def _require_scroll(self) -> None:
        if not self._scrolls:
            raise HeadraceError(
                "cursor can only scan forward", hint="Declare it with SCROLL option to enable backward scan.",
                sqlstate="55000",
            )  # fmt: skip

    # ---- what is kept

    def _pull(self) -> bool:
        """Get more rows; False if there are none."""
        batch = next((b for b in self._source if b.num_rows), None)
        if batch is None:
            return False
        self._starts.append(self._loaded)
        self._kept.append(batch)
        self._loaded += batch.num_rows
        self._bytes += batch.nbytes
        if self._bytes > self._most_bytes and len(self._kept) > 1:
            raise OutOfBudget(
                f"the cursor keeps more than {self._most_bytes} bytes of rows",
                hint="Declare it without SCROLL and WITH HOLD, or ALTER SYSTEM SET cursor_memory_bytes.",
            )
        return True

    def _forget(self) -> None:
        """Let go of rows that it has passed, unless it may go back."""
        passed = min(self._at, self._from) if self.held else self._at
        while not self._scrolls and self._kept and self._starts[0] + self._kept[0].num_rows <= passed:
            self._bytes -= self._kept.pop(0).nbytes
            del self._starts[0]

    def hold(self) -> None:
        """Get all rows that are left, so that nothing else is needed for them. One that has failed is not held."""
        if self._failed:
            return
        while self._pull():
            pass
        self._close_source()
        self.held = True

    def _close_source(self) -> None:
        source, self._source = self._source, iter(())
        with closing_if_possible(source):
            pass

    def close(self) -> None:
        """Let go of everything."""
        self._close_source()
        self._kept, self._starts = [], []


def not_to_be_run(name: str) -> HeadraceError:
    """The error for a cursor, or a portal, that has failed."""
    return HeadraceError(f'portal "{name}" cannot be run', sqlstate="55000")


class OpenSubscription(Protocol):
    """A cursor over a subscription, which outlives transactions."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def subscription(self) -> ObjectRecord:
        """What it follows."""
        ...

    @property
    def position(self) -> str:
        """Behind which change it is."""
        ...

    @property
    def columns(self) -> list[ResultColumn]:
        """The columns of its rows."""
        ...

    def fetch(self, direction: str, count: int | None, timeout_s: float | None) -> Iterator[pa.RecordBatch]:
        """The next rows, up to so many; where there is none, what comes first within the time."""
        ...

    def close(self) -> None:
        """Let go of what it holds."""
        ...
