"""Waiting for what must happen, and processes that end with their test, however busy the machine is."""

from __future__ import annotations

import selectors
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

WAIT_S = 120.0
"""Far more than anything takes: it only ends a test in which something never happens."""
POLL_S, POLL_MOST_S = 0.01, 1.0
BRIEF_JAVA = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
"""Properties of a Spark that ends before it is paid back what Java would optimize in full."""
NEEDS_SPARK = "SELECT DISTINCT upper(v), count(*) OVER (PARTITION BY v) FROM t ORDER BY 1"
"""A query of a table `t` with a column `v` that nothing but Spark answers: a window."""


def eventually(condition: Callable[[], object], what: str = "it to come true", timeout_s: float = WAIT_S) -> None:
    """Ask again and again until a condition holds.

    Asking takes a third of the time at most: the rest is for what is waited for.
    """
    until_s = time.monotonic() + timeout_s
    asked_s = time.monotonic()
    while not condition():
        now_s = time.monotonic()
        assert now_s < until_s, f"waited {timeout_s:g} s for {what}"
        time.sleep(min(max(POLL_S, 2 * (now_s - asked_s)), POLL_MOST_S))
        asked_s = time.monotonic()


def examples(most: int) -> int:
    """How many examples a property is tried with: all of them with `make test-all`, which looks for new ones."""
    from hypothesis import settings

    return most if settings.get_current_profile_name() == "exploring" else (most + 1) // 2


def wait_for_line(file: int, event: int = selectors.EVENT_READ) -> bool:
    """Wait until a descriptor, of whatever number, can be read from, or written to; whether it can."""
    with selectors.DefaultSelector() as selector:
        selector.register(file, event)
        return bool(selector.select(WAIT_S))


@contextmanager
def child(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """A process that does not outlive the block, whatever happens in it."""
    with subprocess.Popen(command, **options) as process:
        try:
            yield process
        finally:
            process.kill()
