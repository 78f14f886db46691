"""Spark's Java classes, loaded and checked once: an archive in the user's cache, from which later JVMs map them.

It is Java's dynamic class-data sharing. Java writes the archive when it ends, and does without one that was made by
another Java or from other jars.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import pyspark

from headrace.common.java import find_java

_QUIET = "-Xlog:cds*=off"
_MAKER = "headrace.session.rehearsal"
"""The module that makes an archive when it is run as a program."""


def archive_path() -> Path:
    """Where the archive of this Java and this Spark lives, whether there is one or not."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    java = os.path.realpath(find_java() or "java")
    of = hashlib.sha256(f"{java}\n{Path(pyspark.__file__).parent}".encode()).hexdigest()[:12]
    return cache / "headrace" / f"spark-{pyspark.__version__}-{of}.jsa"


def recording(path: Path) -> str:
    """The options of a JVM that writes the classes it has loaded to a file when it ends."""
    return f'"-XX:ArchiveClassesAtExit={path}" {_QUIET}'


def using() -> str:
    """The options of a JVM that takes its classes from the archive; none where there is no archive."""
    path = archive_path()
    return f'"-XX:SharedArchiveFile={path}" {_QUIET}' if os.access(path, os.R_OK) else ""


def make_beside() -> subprocess.Popen[bytes] | None:
    """Begin to make the archive where there is none, in a process of its own; None where nothing is begun.

    One process of a user makes it at a time: the lock is the child's, and ends with it. The child yields to all others
    (it sets its own priority), has nobody's terminal, and outlives who began it: a program that runs for a second would
    never have an archive otherwise.
    """
    path = archive_path()
    if path.exists():
        return None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_suffix(".lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            process = subprocess.Popen(
                [sys.executable, "-m", _MAKER], pass_fds=[lock.fileno()], start_new_session=True, cwd=path.parent,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                env={k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")},
            )  # fmt: skip
    except OSError:  # somebody else makes it, or it cannot be kept: Java starts without one
        return None
    threading.Thread(target=process.wait, name="headrace-archive", daemon=True).start()  # or it stays as a zombie
    return process
