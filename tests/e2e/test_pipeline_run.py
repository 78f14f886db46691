"""`headrace run` as a real process: creates once, goes on after a restart, stops cleanly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from server import QUICK
from support import eventually

EXAMPLE = Path(__file__).parents[2] / "examples" / "shop" / "pipeline.py"


def command(data: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "headrace.cli", "run", str(EXAMPLE), "--data", str(data), *more]


@pytest.mark.soak
def test_the_example_runs_once_and_then_goes_on(tmp_path: Path) -> None:
    """Views with Python functions are taken up by a new process, with Spark and workers of its own."""
    environment = {**os.environ, **QUICK}
    data = tmp_path / "db"
    first = subprocess.run(
        command(data, "--once"), capture_output=True, text=True, timeout=280, check=False, env=environment
    )
    assert first.returncode == 0, first.stdout + first.stderr
    assert "created materialized view favourites" in first.stdout
    log = tmp_path / "second.log"
    with log.open("w") as sink:
        second = subprocess.Popen(command(data), stdout=sink, stderr=subprocess.STDOUT, env=environment)
    try:
        eventually(lambda: log.read_text().count("unchanged") == 7 or second.poll() is not None, "the graph", 240)
        second.send_signal(signal.SIGINT)
        assert second.wait(120) == 0, log.read_text()
    finally:
        second.kill()
        second.wait()
    text = log.read_text()
    assert "created" not in text and "failing" not in text and "quarantined" not in text
    assert text.count("running") == 4, text
