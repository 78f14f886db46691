"""`headrace prepare`: later starts take Spark's classes from an archive."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.config import Settings
from headrace.session import rehearsal
from server import Server


def test_the_database_of_the_environment_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What makes the archive defines tables: in a scratch database, whatever the environment says."""
    for name, value in (("CATALOG_URL", f"file://{tmp_path}/live"), ("SPARK_CONF", '{"spark.a": "b"}'), ("PORT", "x")):
        monkeypatch.setenv(f"HEADRACE_{name}", value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    opened: list[Settings] = []

    class Opened(Exception):
        """As soon as it is."""

    def connected(*, spark: object, settings: Settings) -> None:
        opened.append(settings)
        raise Opened

    monkeypatch.setattr(rehearsal, "local_session", lambda **_: None)
    monkeypatch.setattr(rehearsal, "connect", connected)
    with pytest.raises(Opened):
        rehearsal.rehearse()
    (settings,) = opened
    assert (settings.catalog_url, settings.spark_conf, settings.state_url) == (None, {}, None)


@pytest.mark.soak
def test_servers_start_from_the_archive(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is made once, and used; one that is damaged is done without."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    command = [sys.executable, "-m", "headrace.cli", "prepare"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    (archive,) = (tmp_path / "cache" / "headrace").iterdir()
    assert str(archive) in done.stdout and archive.stat().st_size > 2**20
    server = Server(tmp_path)
    try:
        for damaged in (False, True):
            if damaged:
                os.truncate(archive, 5000)
            server.start()
            server.wait_spark()
            maps = Path(f"/proc/{server.java_process()}/maps")
            assert not maps.exists() or (str(archive) in maps.read_text()) is not damaged
            assert server.rows("SELECT count(*) FROM (SELECT 1 AS a UNION SELECT 2) q GROUP BY a > 0") == [(2,)]
            assert server.stop() == 0
    finally:
        server.close()
