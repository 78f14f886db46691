"""A transport that does what a test tells it to, below the I/O pool: fails, tears, delays or loses the answer."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from headrace.state.objects import StoredObject
from headrace.state.transport import Transport

Fault = Callable[[], None]


@dataclass
class FaultyTransport:
    """Wraps a transport. `before[op]` and `after[op]` hold what happens around the next requests, one entry each."""

    inner: Transport
    before: dict[str, deque[Fault | None]] = field(default_factory=dict)
    after: dict[str, deque[Fault | None]] = field(default_factory=dict)
    torn_bytes: deque[int] = field(default_factory=deque)
    """How many bytes the next reads leave out at the end."""
    requests: Counter[str] = field(default_factory=Counter)

    def fail(self, op: str, *errors: BaseException, after: bool = False) -> None:
        """The next requests of a kind raise these, before they are sent or after they were answered."""
        queue = (self.after if after else self.before).setdefault(op, deque())
        queue.extend(_raiser(e) for e in errors)

    def do(self, op: str, fault: Fault) -> None:
        """The next request of a kind does this first."""
        self.before.setdefault(op, deque()).append(fault)

    def _around(self, op: str, call: Callable[[], Any]) -> Any:
        self.requests[op] += 1
        _next(self.before, op)
        result = call()
        _next(self.after, op)
        return result

    def put(self, path: str, data: bytes | BinaryIO, *, create: bool) -> None:
        self._around("put", lambda: self.inner.put(path, data, create=create))

    def get(self, path: str, offset: int, length: int) -> Any:
        found = self._around("get", lambda: self.inner.get(path, offset, length))
        return found[: max(len(found) - self.torn_bytes.popleft(), 0)] if self.torn_bytes else found

    def head(self, path: str) -> StoredObject:
        return self._around("head", lambda: self.inner.head(path))

    def list(self, prefix: str) -> list[StoredObject]:
        return self._around("list", lambda: self.inner.list(prefix))

    def delete(self, path: str) -> None:
        self._around("delete", lambda: self.inner.delete(path))


def _raiser(error: BaseException) -> Fault:
    def fault() -> None:
        raise error

    return fault


def _next(faults: dict[str, deque[Fault | None]], op: str) -> None:
    queue = faults.get(op)
    fault = queue.popleft() if queue else None
    if fault is not None:
        fault()
