"""Random queries as views over a table that changes are, after each change, what PostgreSQL says that they are."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent.parent / "sql"))
import differential
import differential_views

QUICK = int(os.environ.get("HEADRACE_DIFFERENTIAL", "160")) // 30
"""How many views `make test` compares."""


@pytest.fixture(scope="module")
def theirs(postgres: Any) -> Iterator[differential.Postgres]:
    with postgres.new_database("differential_views").connect() as connection:
        yield differential.Postgres(connection)


def test_random_views(spark: Any, theirs: differential.Postgres) -> None:
    assert differential_views.search_views(spark, theirs, seed=1, count=QUICK) == []


def test_random_views_in_a_time_zone(spark: Any, theirs: differential.Postgres) -> None:
    assert differential_views.search_views(spark, theirs, seed=2, count=QUICK // 2, zone="America/St_Johns") == []


@pytest.mark.soak
def test_many_random_views(spark: Any, theirs: differential.Postgres) -> None:
    count = int(os.environ.get("HEADRACE_DIFFERENTIAL", "20000")) // 100
    for zone in differential.ZONES:
        found = differential_views.search_views(spark, theirs, random.randrange(2**20), count // 6, zone=zone)
        assert found == [], zone
