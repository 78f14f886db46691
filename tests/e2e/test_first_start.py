"""The archive of Spark's classes is made beside the first server of a machine, and used by the next."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from server import Server
from support import eventually

WAIT_S = 300.0


def java_arguments(server: Server) -> list[str]:
    """The arguments of the JVM that a server starts after it has begun to listen."""
    eventually(lambda: server.java_process() is not None, "Java to start", WAIT_S)
    process_id = server.java_process()
    assert process_id is not None
    return Path(f"/proc/{process_id}/cmdline").read_text().split("\0")


@pytest.mark.soak
def test_the_first_start_makes_the_archive_and_the_second_uses_it(tmp_path: Path) -> None:
    cache = tmp_path / "cache" / "headrace"
    settings = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "HEADRACE_CLASS_ARCHIVE": "on"}
    server = Server(tmp_path / "data", settings=settings)
    try:
        server.start()
        end_s = time.monotonic() + WAIT_S
        while not list(cache.glob("spark-*.lock")) and time.monotonic() < end_s:
            time.sleep(0.1)
        assert not any("SharedArchiveFile" in a for a in java_arguments(server))
        server.kill()  # what makes the archive goes on
        while not list(cache.glob("spark-*.jsa")) and time.monotonic() < end_s:
            time.sleep(0.5)
        (archive,) = cache.glob("spark-*.jsa")
        server.start()
        with server.connect() as client:
            assert client.execute("SELECT count(*) FROM generate_series(1, 3)").fetchone() == (3,)
        assert f"-XX:SharedArchiveFile={archive}" in java_arguments(server)
    finally:
        server.close()
