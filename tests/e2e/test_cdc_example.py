"""The example that follows PostgreSQL and Kafka into Iceberg while it is killed: what comes out is what went in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "cdc.py"


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_what_comes_out_is_what_went_in() -> None:
    command = [sys.executable, str(EXAMPLE), "--seconds", "40", "--kills", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "this demonstration needs" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
