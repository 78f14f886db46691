"""The daemon that forks Spark's Python workers."""

from __future__ import annotations

import subprocess
import sys

CHILDREN = """
import os
from headrace.dataflow.daemon import load

load()
import numpy, threading
assert threading.active_count() == 1
for _ in range(2):
    read, write = os.pipe()
    if not os.fork():
        os.write(write, numpy.random.bytes(8).hex().encode())
        os._exit(0)
    os.wait()
    print(os.read(read, 100).decode())
tasks = "/proc/self/task"
print(len(os.listdir(tasks)) if os.path.exists(tasks) else 1)
"""


def test_it_has_one_thread_and_its_children_their_own_random_numbers() -> None:
    """A process that forks must not hold locks of other threads; and workers must not draw the same numbers."""
    done = subprocess.run([sys.executable, "-c", CHILDREN], capture_output=True, text=True, check=True)
    first, second, threads = done.stdout.split()
    assert first != second and threads == "1"
