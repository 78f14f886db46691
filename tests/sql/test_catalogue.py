"""Each name in the catalogue has examples, and they mean here what they mean in PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import differential
import pytest

from headrace.sql.binder.catalogue.aggregates import AGGREGATES, WINDOWS
from headrace.sql.binder.catalogue.examples import (
    AGGREGATE_EXAMPLES,
    EXAMPLES,
    OPERATOR_EXAMPLES,
    OWN,
    WINDOW_EXAMPLES,
)
from headrace.sql.binder.catalogue.functions import FUNCTIONS
from headrace.sql.binder.catalogue.operators import OPERATORS, PREFIXES


@pytest.fixture(scope="module")
def sides(sql_spark: Any, postgres: Any) -> Iterator[tuple[differential.Headrace, differential.Postgres]]:
    with postgres.new_database("catalogue").connect() as connection:
        yield differential.Headrace(sql_spark), differential.Postgres(connection)


@pytest.mark.parametrize(
    ("names", "examples"),
    [(FUNCTIONS, EXAMPLES), ({**OPERATORS, **PREFIXES}, OPERATOR_EXAMPLES), (AGGREGATES, AGGREGATE_EXAMPLES),
     (WINDOWS, WINDOW_EXAMPLES)],
    ids=["functions", "operators", "aggregates", "windows"],
)  # fmt: skip
def test_each_name_has_an_example(names: dict[str, Any], examples: dict[str, list[str]]) -> None:
    assert sorted(set(names) - set(examples) - OWN) == []


def compared(sides: Any, expressions: list[str], form: str = "SELECT {} FROM d ORDER BY id") -> list[tuple[str, str]]:
    found = []
    for i in range(0, len(expressions), 12):
        part = expressions[i : i + 12]
        found += _compared(sides, part, form)
    return found


def _compared(sides: Any, part: list[str], form: str) -> list[tuple[str, str]]:
    ours, theirs = sides
    sql = form.format(", ".join(f"({e}) AS c{i}" for i, e in enumerate(part)))
    mine, other = ours.ask(sql), theirs.ask(sql)
    if mine.rows is not None and other.rows is not None and differential.difference(sql, mine, other) is None:
        return []
    if len(part) > 1:
        half = len(part) // 2
        return _compared(sides, part[:half], form) + _compared(sides, part[half:], form)
    found = mine.unknown or differential.difference(sql, mine, other)
    return [] if found is None else [(part[0], found)]


def flat(examples: dict[str, list[str]]) -> list[str]:
    return [e for found in examples.values() for e in found]


def test_functions(sides: Any) -> None:
    assert compared(sides, flat(EXAMPLES)) == []


def test_operators(sides: Any) -> None:
    assert compared(sides, flat(OPERATOR_EXAMPLES)) == []


def test_windows(sides: Any) -> None:
    assert compared(sides, flat(WINDOW_EXAMPLES)) == []


def test_aggregates(sides: Any) -> None:
    assert compared(sides, flat(AGGREGATE_EXAMPLES), "SELECT {} FROM d") == []
