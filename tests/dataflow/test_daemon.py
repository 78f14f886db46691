"""The daemon that Python workers are forked from."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

_CODE = """
import json, os, sys
from headrace.dataflow import daemon
daemon.preload()
threads = [open(f"/proc/self/task/{t}/comm").read().strip() for t in os.listdir("/proc/self/task")]
server = [m for m in sys.modules if m.startswith(("headrace.session", "headrace.coordinator", "headrace.server"))]
print(json.dumps([threads, server]))
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted as Linux shows them")
def test_no_thread_is_lost_in_a_fork() -> None:
    """Of the threads that imports start only jemalloc's is there, which knows of forks; and no part of the server."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", _CODE], capture_output=True, text=True, check=True, env=environment)
    threads, server = json.loads(done.stdout)
    assert len([name for name in threads if name != "jemalloc_bg_thd"]) == 1
    assert server == []


_FORKS = """
import os, sys
from headrace.dataflow import daemon
daemon.preload()
import numpy
for _ in range(2):
    read, write = os.pipe()
    if not os.fork():
        os.write(write, numpy.random.bytes(8).hex().encode())
        os._exit(0)
    os.wait()
    print(os.read(read, 100).decode())
"""


def test_workers_do_not_draw_the_same_random_numbers() -> None:
    """They are forked from a process that has imported numpy, whose generator has been seeded then."""
    done = subprocess.run([sys.executable, "-c", _FORKS], capture_output=True, text=True, check=True)
    first, second = done.stdout.split()
    assert first != second
