"""The archive of Spark's classes: where it is, and what the JVM is told."""

from __future__ import annotations

import fcntl
import shlex
from pathlib import Path

import pytest

from headrace.dataflow import class_archive
from headrace.dataflow.class_archive import archive_path, make_beside, recording, using


def test_a_jvm_uses_the_archive_that_there_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cache = tmp_path / "my cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    path = archive_path()
    assert path.parent == cache / "headrace" and using() == ""
    path.parent.mkdir(parents=True)
    path.write_bytes(b"")
    assert f"-XX:SharedArchiveFile={path}" in shlex.split(using())
    assert f"-XX:ArchiveClassesAtExit={path}" in shlex.split(recording(path))


def test_each_java_has_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = set()
    for version in ("one", "two"):
        java = tmp_path / version / "bin" / "java"
        java.parent.mkdir(parents=True)
        java.touch()
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / version))
        found.add(archive_path())
    assert len(found) == 2


WAIT_S = 60.0


@pytest.fixture
def maker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache, and a maker of archives that writes its own where it is told to."""
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "archive_maker.py").write_text(
        "import os, sys; from headrace.dataflow.class_archive import archive_path\n"
        "print(os.environ.get('HEADRACE_PORT'), file=archive_path().open('w'))\n"
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(modules), prepend=":")
    monkeypatch.setenv("HEADRACE_PORT", "1")
    monkeypatch.setattr(class_archive, "_MAKER", "archive_maker")
    return archive_path()


def test_what_is_missing_is_made_beside_without_the_servers_settings(maker: Path) -> None:
    process = make_beside()
    assert process is not None and process.wait(WAIT_S) == 0
    assert maker.read_text() == "None\n"
    assert make_beside() is None


def test_one_process_makes_it_at_a_time(maker: Path) -> None:
    maker.parent.mkdir(parents=True)
    with maker.with_suffix(".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert make_beside() is None
    process = make_beside()
    assert process is not None and process.wait(WAIT_S) == 0


def test_the_lock_is_held_while_it_is_made(maker: Path, tmp_path: Path) -> None:
    (tmp_path / "modules" / "archive_maker.py").write_text(
        "import sys; sys.stdin.read(); import time; time.sleep(60)\n"
    )
    process = make_beside()
    assert process is not None and make_beside() is None
    process.kill()
    process.wait(WAIT_S)
    again = make_beside()
    assert again is not None
    again.kill()
    again.wait(WAIT_S)


def test_where_nothing_can_be_kept_nothing_is_made(maker: Path) -> None:
    maker.parent.parent.mkdir(parents=True, exist_ok=True)
    maker.parent.write_text("a file, not a directory")
    assert make_beside() is None
