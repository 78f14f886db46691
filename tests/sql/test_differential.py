"""Random expressions of the catalogue mean here what they mean in PostgreSQL."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import differential
import pytest

QUICK = int(os.environ.get("HEADRACE_DIFFERENTIAL", "80"))
"""How many expressions `make test` compares."""
CASES = Path(__file__).parent / "differential_cases.sql"
"""What was found once, an expression a line."""
QUERIES = Path(__file__).parent / "differential_query_cases.sql"
"""What was found once, a query a line."""


@pytest.fixture(scope="module")
def sides(sql_spark: Any, postgres: Any) -> Iterator[tuple[differential.Headrace, differential.Postgres]]:
    with postgres.new_database("differential").connect() as connection:
        differential.compile_expressions(sql_spark, False)
        sql_spark.conf.set("spark.sql.adaptive.enabled", "false")
        yield differential.Headrace(sql_spark), differential.Postgres(connection)
        sql_spark.conf.unset("spark.sql.adaptive.enabled")
        differential.compile_expressions(sql_spark, True)


def lines(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line and not line.startswith("--")]


def test_found_queries(sides: Any) -> None:
    tally: Counter[str] = Counter()
    assert differential.compare_queries(*sides, lines(QUERIES), tally) == []
    assert set(tally) == {"equal", "refused by both"}


def test_found_cases(sides: Any) -> None:
    cases = lines(CASES)
    assert len(cases) > 10
    assert [found for i in range(0, len(cases), 8) for found in differential.compare(*sides, cases[i : i + 8])] == []


def test_random_expressions(sides: Any) -> None:
    assert differential.search(*sides, seed=1, count=QUICK) == []


@pytest.fixture
def elsewhere(sides: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Both in another time zone."""
    for side in sides:
        side.in_zone(request.param)
    yield sides
    for side in sides:
        side.in_zone("UTC")


@pytest.mark.parametrize("elsewhere", ["Europe/Berlin"], indirect=True)
def test_random_expressions_in_a_time_zone(elsewhere: Any) -> None:
    assert differential.search(*elsewhere, seed=2, count=QUICK // 2) == []
    assert differential.search_queries(*elsewhere, seed=2, count=QUICK // 20) == []


def test_random_queries(sides: Any) -> None:
    assert differential.search_queries(*sides, seed=1, count=QUICK // 5) == []


def test_mixed_queries(sides: Any) -> None:
    assert differential.search_mutated(*sides, seed=1, count=QUICK) == []


@pytest.mark.soak
def test_many_mixed_queries(sides: Any) -> None:
    count = int(os.environ.get("HEADRACE_DIFFERENTIAL", "20000"))
    assert differential.search_mutated(*sides, seed=random.randrange(2**31), count=count) == []


@pytest.mark.soak
def test_many_random_queries(sides: Any) -> None:
    count = int(os.environ.get("HEADRACE_DIFFERENTIAL", "20000")) // 10
    assert differential.search_queries(*sides, seed=random.randrange(2**31), count=count) == []


@pytest.mark.soak
@pytest.mark.parametrize("elsewhere", differential.ZONES[1:], indirect=True)
def test_many_random_expressions_in_a_time_zone(elsewhere: Any) -> None:
    count = int(os.environ.get("HEADRACE_DIFFERENTIAL", "20000")) // 10
    assert differential.search(*elsewhere, seed=random.randrange(2**31), count=count) == []
    assert differential.search_queries(*elsewhere, seed=random.randrange(2**31), count=count // 10) == []


@pytest.mark.soak
def test_many_random_expressions(sides: Any) -> None:
    count = int(os.environ.get("HEADRACE_DIFFERENTIAL", "20000"))
    assert differential.search(*sides, seed=random.randrange(2**31), count=count) == []
