"""The daemon that forks Spark's Python workers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from headrace.state import accumulators

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


def test_it_has_loaded_all_accumulators() -> None:
    """Nothing imports them in a worker but the stage that it is sent: each new one would do so again."""
    code = "import sys; from headrace.dataflow.daemon import load; load(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    home = accumulators.__name__
    wanted = {f"{home}.{path.stem}" for path in Path(*accumulators.__path__).glob("*.py")} - {f"{home}.__init__"}
    assert len(wanted) > 3 and wanted <= set(done.stdout.split())
