"""A thread of its own for each connection's blocking calls."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

_T = TypeVar("_T")
_Job = tuple[Callable[[], object], "asyncio.Future[Any]"]


class Worker:
    """Runs calls one after another in one daemon thread, which starts with the first call.

    A call that hangs does not keep the process from ending.
    """

    def __init__(self, name: str):
        self._name = name
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def begin(self, call: Callable[[], _T]) -> asyncio.Future[_T]:
        """Have `call` made in its turn. Once the future is cancelled, nobody hears what came of it."""
        if self._thread is None:
            thread = threading.Thread(target=self._loop, name=self._name, daemon=True)
            thread.start()
            self._thread = thread
        future: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        self._jobs.put((call, future))
        return future

    async def run(self, call: Callable[[], _T]) -> _T:
        """What `call` returns or raises, in its turn."""
        return await self.begin(call)

    def stop(self) -> None:
        """End the thread after the calls that are queued."""
        self._jobs.put(None)

    def _loop(self) -> None:
        while (job := self._jobs.get()) is not None:
            call, future = job
            try:
                result, error = call(), None
            except BaseException as raised:
                result, error = None, raised
            with contextlib.suppress(RuntimeError):  # the loop is closed
                future.get_loop().call_soon_threadsafe(_settle, future, result, error)
            del job, call, future, result, error


def _settle(future: asyncio.Future[object], result: object, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
