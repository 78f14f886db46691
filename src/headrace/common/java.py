"""Is there a Java that Spark can run on?"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from headrace.errors import OperationalError

OLDEST_JAVA: Final = 17
"""The oldest major version that Spark runs on."""
_TIMEOUT_S: Final = 30
_RELEASED = re.compile(r'^JAVA_VERSION="([^"]+)"', re.MULTILINE)
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')


def parse_java_version(text: str) -> int | None:
    """The major version in what `java -version` prints; None if there is none. `1.8` is 8."""
    match = _VERSION.search(text)
    if match is None:
        return None
    major = int(match[1])
    return int(match[2]) if major == 1 and match[2] else major


def find_java(environ: Mapping[str, str] = os.environ) -> str | None:
    """The `java` that Spark would start: the one in JAVA_HOME if that is set, else the one on the PATH."""
    home = environ.get("JAVA_HOME")
    if home:
        path = Path(home) / "bin" / "java"
        return str(path) if path.is_file() else None
    return shutil.which("java", path=environ.get("PATH"))


def install_command(platform: str = sys.platform) -> str:
    """What to type to get a Java on this platform."""
    return "brew install openjdk@17" if platform == "darwin" else "sudo apt-get install -y openjdk-17-jre-headless"


def _told(java: str) -> str:
    """What a Java says of itself: the file beside it, or what it prints, for which it has to start; empty for nothing.

    A file that does not belong to a Java which runs would only put the error off to Spark's start.
    """
    try:
        released = _RELEASED.search((Path(java).resolve().parent.parent / "release").read_text(errors="replace"))
        if released is not None and os.access(java, os.X_OK):
            return f'version "{released[1]}"'
    except OSError:
        pass
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stderr + done.stdout


def require_java(environ: Mapping[str, str] = os.environ) -> int:
    """The major version of the Java that Spark would start. Raises `OperationalError`, with what to do."""
    hint = f"install it with: {install_command()}"
    path = find_java(environ)
    if path is None:
        where = f"in JAVA_HOME ({environ['JAVA_HOME']})" if environ.get("JAVA_HOME") else "on the PATH"
        raise OperationalError(f"no Java {where}, and Spark needs Java {OLDEST_JAVA} or newer", hint=hint)
    version = parse_java_version(_told(path))
    if version is None:
        raise OperationalError(f"{path} does not run, and Spark needs Java {OLDEST_JAVA} or newer", hint=hint)
    if version < OLDEST_JAVA:
        raise OperationalError(f"{path} is Java {version}, and Spark needs Java {OLDEST_JAVA} or newer", hint=hint)
    return version
