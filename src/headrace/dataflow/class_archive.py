"""Spark's Java classes, loaded and checked once: an archive in the user's cache, from which later JVMs map them.

It is Java's dynamic class-data sharing. Java writes the archive when it ends, and does without one that was made by
another Java or from other jars.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pyspark

from headrace.common.java import find_java

_QUIET = "-Xlog:cds*=off"


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
