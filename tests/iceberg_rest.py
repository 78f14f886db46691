"""A REST catalog of Iceberg's for a test: the one that Iceberg tests its own clients with, as a process."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import registries
from support import eventually

PROGRAM = Path(__file__).parent / "connectors" / "RestCatalog.java"
HOST = "127.0.0.1"


class NoCatalog(Exception):
    """There is none on this machine that could be started."""


@contextmanager
def rest_catalog() -> Iterator[str]:
    """Start one, with its tables in memory; where it listens. Raises NoCatalog."""
    if shutil.which("javac") is None:
        raise NoCatalog("there is no Java compiler")
    try:
        jars = registries.jars(*registries.ICEBERG_REST)
    except registries.NotToBeHad as error:
        raise NoCatalog(str(error)) from error
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = int(probe.getsockname()[1])
    process = subprocess.Popen(
        ["java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*", str(PROGRAM), str(port)]
    )

    def answers() -> bool:
        if process.poll() is not None:
            raise NoCatalog(f"it ended with {process.returncode}")
        with socket.socket() as client:
            return client.connect_ex((HOST, port)) == 0

    try:
        eventually(answers, "the catalog to come up")
        yield f"http://{HOST}:{port}"
    finally:
        process.kill()
        process.wait()
