"""`Database.subscribe`: the changes of a table or view as Arrow batches, epoch by epoch."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import chain
from typing import Literal

import numpy as np
import pyarrow as pa

from headrace.common.epoch import epoch_datetime
from headrace.common.lazy_dataclass import dataclass
from headrace.errors import HeadraceError, InvalidParameter
from headrace.session.execution.subscriptions import RelationReader, data_of, followed, operations_of
from headrace.session.result import ResultColumn
from headrace.session.session import Session
from headrace.sql import statements as st
from headrace.sql.render import plain_table
from headrace.sql.subscriptions import LEAST_EPOCH
from headrace.state.changelog import ChangePiece, LogPosition

OPERATION = "op"
"""The last column of what comes."""
_NAMED = {"now": st.Since("now"), "begin": st.Since("begin"), "full": st.Since("full")}


@dataclass(frozen=True)
class Changes:
    """What one epoch has changed, or a part of that where it is large; or a part of the rows that there were at first.

    `batch` has the columns of the relation, and in `op` what has happened to each row: Insert, UpdateDelete,
    UpdateInsert (of tables with a primary key, one after the other) or Delete. A row that is there twice comes twice.
    """

    batch: pa.RecordBatch
    epoch: int
    snapshot: bool
    """Whether these are rows that were there at that epoch, and no changes."""
    complete: bool
    """Whether it is the last of its epoch, or of the rows that there were."""
    position: str
    """Where to go on behind these: what `since` takes, in another process, too."""

    @property
    def at(self) -> datetime:
        """The time of the epoch."""
        return epoch_datetime(self.epoch)


class Following:
    """The changes of a relation as they come: an iterator, plain or of asyncio, that never ends by itself.

    What it has not given yet is kept for it until it is closed. A context manager; one thread, or one task, at a time.
    """

    def __init__(self, session: Session, name: st.TableName, since: st.Since) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._closed = False
        try:
            context = session.context
            self._reader = RelationReader(context, followed(context, name), since, holds=True)
        except BaseException:
            session.close()
            raise
        self.columns = [ResultColumn(c.name, c.type) for c in self._reader.relation.columns]
        self.position = str(self._reader.position)
        """Where it is: behind what it has given last."""
        self._now: Iterator[Changes] = iter(())
        self._pending: asyncio.Future[Changes | None] | None = None

    def poll(self, timeout_s: float | None = None) -> Changes | None:
        """The next changes, waited for if need be; None where none come within the time, or it is closed."""
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        with self._lock:
            return self._given(self._next(until_s))

    def _given(self, found: Changes | None) -> Changes | None:
        self.position = self.position if found is None else found.position
        return found

    def _next(self, until_s: float | None) -> Changes | None:
        try:
            while not self._closed:
                found = next(self._now, None)
                if found is not None:
                    return found
                if not self._reader.wait(None if until_s is None else max(until_s - time.monotonic(), 0.0)):
                    return None
                self._now = self._there()
        except HeadraceError:
            if not self._closed:
                raise
        return None

    def _there(self) -> Iterator[Changes]:
        """What there is now, an epoch at a time."""
        for piece, low, high in self._reader.rows(None):
            epochs = piece.epochs[piece.places(low, high)]
            cuts = [low + 1 + int(i) for i in np.flatnonzero(epochs[1:] != epochs[:-1])]
            for start, stop in zip([low, *cuts], [*cuts, high]):
                yield self._changes(piece, start, stop)

    def _changes(self, piece: ChangePiece, low: int, high: int) -> Changes:
        position = piece.position(high) if high > low else piece.after
        at = piece.places(low, high)
        epoch = int(piece.epochs[at[0]]) if len(at) else position.epoch
        names, kinds = [c.name for c in self.columns], [c.type for c in self.columns]
        table = pa.table(data_of(piece, at, self.columns), names=[str(i) for i in range(len(names))])
        table = plain_table(table, kinds).append_column(OPERATION, operations_of(piece, at))
        arrays = [column.combine_chunks() for column in table.columns]
        batch = pa.RecordBatch.from_arrays(arrays, names=[*names, OPERATION])
        return Changes(batch, epoch, piece.content, _complete(position, epoch), str(position))

    def __iter__(self) -> Following:
        return self

    def __next__(self) -> Changes:
        found = self.poll()
        if found is None:
            raise StopIteration
        return found

    def __aiter__(self) -> Following:
        return self

    async def __anext__(self) -> Changes:
        """The next changes, waited for in a thread; none is lost where the task is cancelled meanwhile."""
        loop = asyncio.get_running_loop()
        if self._pending is None or self._pending.get_loop() is not loop:
            self._pending = self._polling(loop)
        pending = self._pending
        await asyncio.wait([pending])  # which leaves it alone if this is cancelled
        self._pending = None
        found = self._given(pending.result())
        if found is None:
            raise StopAsyncIteration
        return found

    def _polling(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[Changes | None]:
        """What comes next, found by a thread that keeps no process from ending."""
        future: asyncio.Future[Changes | None] = loop.create_future()

        def run() -> None:
            with self._lock:
                found: Changes | None = None
                failure: BaseException | None = None
                try:
                    found = self._next(None)
                except BaseException as error:
                    failure = error
                try:
                    loop.call_soon_threadsafe(_settle, future, found, failure)
                except RuntimeError:  # the loop is closed: it is for who asks next
                    self._now = self._now if found is None else chain([found], self._now)

        threading.Thread(target=run, name="headrace-following", daemon=True).start()
        return future

    def close(self) -> None:
        """Let go of everything, and let whoever waits go on; harmless when repeated, and in any thread."""
        self._closed = True
        self._session.cancel()
        self._reader.close()
        self._session.close()

    def __enter__(self) -> Following:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    async def __aenter__(self) -> Following:
        return self

    async def __aexit__(self, *failure: object) -> None:
        self.close()


def _settle(future: asyncio.Future[Changes | None], found: Changes | None, failure: BaseException | None) -> None:
    if future.done():
        return
    if failure is None:
        future.set_result(found)
    else:
        future.set_exception(failure)


def _complete(position: LogPosition, epoch: int) -> bool:
    return not position.within and position.epoch >= epoch


def since_of(since: Literal["now", "begin", "full"] | str | int | datetime) -> st.Since:
    """Where to begin: now, begin, full, a time (a number is Unix milliseconds), an epoch, or a position.

    Raises `InvalidParameter`.
    """
    if isinstance(since, datetime):
        moment = since if since.tzinfo is not None else since.replace(tzinfo=UTC)
        return st.Since("at_ms", at_ms=int(moment.timestamp() * 1000))
    if isinstance(since, int) and not isinstance(since, bool):
        return st.Since("at_ms", at_ms=since) if since < LEAST_EPOCH else st.Since("position", position=str(since))
    if isinstance(since, str):
        return _NAMED.get(since) or st.Since("position", position=since)
    raise InvalidParameter(f"since {since!r}", hint="now, begin, full, a datetime, an epoch, or a position")


__all__ = ["Changes", "Following", "since_of"]
