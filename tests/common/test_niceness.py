"""A process that gives way does so with all its threads and children, those of later included."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from headrace.common.niceness import LOWEST, give_way

THREADS = """
import os, subprocess, sys, threading
threads = [threading.Thread(target=sys.stdin.read) for _ in range(3)]
for thread in threads:
    thread.start()
print("ready", flush=True)
"""
LATER = """
import subprocess, sys
sys.stdin.readline()
print(subprocess.run([sys.executable, "-c", "import os; print(os.nice(0))"], capture_output=True, text=True).stdout)
"""


def test_all_threads_of_a_process_give_way() -> None:
    with subprocess.Popen([sys.executable, "-c", THREADS], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        own = os.nice(0)
        give_way(process.pid, 0)
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == own
        give_way(process.pid, 3)
        threads = [int(path.name) for path in Path(f"/proc/{process.pid}/task").glob("*")] or [process.pid]
        assert {os.getpriority(os.PRIO_PROCESS, thread) for thread in threads} == {min(LOWEST, own + 3)}
        give_way(process.pid, 1)
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == min(LOWEST, own + 3), "nobody is let before"
        process.communicate()


def test_what_it_starts_gives_way_too() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LATER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        give_way(process.pid, 4)
        told, _ = process.communicate("\n")
    assert int(told) == min(LOWEST, os.nice(0) + 4)


def test_one_that_has_ended_is_nobodys_business() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    give_way(process.pid, 5)
