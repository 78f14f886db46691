"""Whether a process serves the database in a directory: an advisory lock that ends with the process."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NAME = "server.lock"


class Ownership:
    """A serving process's claim: shared, since it is the catalog's fence that decides between two of them."""

    def __init__(self, data_dir: Path) -> None:
        self._fd: int | None = os.open(data_dir / _NAME, os.O_RDWR | os.O_CREAT, 0o644)
        fcntl.flock(self._fd, fcntl.LOCK_SH)

    def release(self) -> None:
        """Let go; harmless when repeated."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


@contextmanager
def sole_access(data_dir: Path) -> Iterator[bool]:
    """Whether nobody serves the database; if so, a process that is about to waits until the block ends."""
    fd = os.open(data_dir / _NAME, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(fd)


def is_served(data_dir: Path) -> bool:
    """Whether some process of this machine serves the database now. Creates nothing."""
    if not (data_dir / _NAME).exists():
        return False
    with sole_access(data_dir) as alone:
        return not alone
