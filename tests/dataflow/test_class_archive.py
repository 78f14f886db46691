"""The archive of Spark's classes: where it is, and what the JVM is told."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from headrace.dataflow.class_archive import archive_path, recording, using


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
