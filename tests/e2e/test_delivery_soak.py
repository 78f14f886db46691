"""A few minutes of what `delivery_soak.py` does for as long as it is told."""

from __future__ import annotations

from pathlib import Path

import delivery_soak
import pytest

from kafka import NoKafka
from postgres import NoPostgres


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_everything_on_the_way_is_killed(tmp_path: Path) -> None:
    """XC-1: every process, at random and at fault points; all targets are exact at the end."""
    try:
        kills = delivery_soak.run(tmp_path, 3, 11)
    except (NoKafka, NoPostgres) as error:
        pytest.skip(str(error))
    assert kills
