"""Lets a process give way to this one, where both want the processor."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

LOWEST: Final = 19
_LOOKS: Final = 10
"""Times that threads are looked for: each may have started others meanwhile, which are as nice as it was."""


def give_way(pid: int, by: int) -> None:
    """Make a process of this user's, all its threads and whatever they start nicer than this one by so much.

    Where that cannot be had, all stays as it is.
    """
    if by <= 0 or sys.platform == "win32":
        return
    wanted = min(LOWEST, os.getpriority(os.PRIO_PROCESS, 0) + by)
    threads = Path(f"/proc/{pid}/task")
    if not threads.is_dir():
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, pid, wanted)
        return
    for _ in range(_LOOKS):
        left = [thread for thread in _numbers(threads) if _set(thread, wanted)]
        if not left:
            return


def _numbers(threads: Path) -> list[int]:
    with suppress(OSError):
        return [int(path.name) for path in threads.iterdir()]
    return []


def _set(thread: int, wanted: int) -> bool:
    """Whether there was something to set."""
    with suppress(OSError):
        if os.getpriority(os.PRIO_PROCESS, thread) < wanted:
            os.setpriority(os.PRIO_PROCESS, thread, wanted)
            return True
    return False
