"""Each name in the catalogue has examples, and they mean here what they mean in PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import differential
import pytest
from catalogue_examples import VALUES_OF, compared, flat, made_up

from headrace.sql.binder import call_binder, overloads
from headrace.sql.binder.bind import BindingContext, bind_query
from headrace.sql.binder.catalogue.aggregate_functions import AGGREGATES, WINDOWS
from headrace.sql.binder.catalogue.examples import (
    AGGREGATE_EXAMPLES,
    EXAMPLES,
    OPERATOR_EXAMPLES,
    OWN,
    WINDOW_EXAMPLES,
)
from headrace.sql.binder.catalogue.functions import FUNCTIONS
from headrace.sql.binder.catalogue.operators import OPERATORS, PREFIXES
from headrace.sql.postgres import parse_statement


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


def test_functions(sides: Any) -> None:
    assert compared(sides, flat(EXAMPLES)) == []


def test_operators(sides: Any) -> None:
    assert compared(sides, flat(OPERATOR_EXAMPLES)) == []


def test_windows(sides: Any) -> None:
    assert compared(sides, flat(WINDOW_EXAMPLES)) == []


def test_aggregates(sides: Any) -> None:
    assert compared(sides, flat(AGGREGATE_EXAMPLES), "SELECT {} FROM d") == []


# ---- each overload


def made_up_aggregates() -> list[str]:
    """An example for each overload of an aggregate that PostgreSQL has, too."""
    found = []
    for name, entries in AGGREGATES.items():
        kinds = [e.signature.arguments[0] for e in entries if name not in OWN and len(e.signature.arguments) == 1]
        found += [f"{name}({VALUES_OF[kind]})" for kind in kinds if kind in VALUES_OF and not kind.startswith("any")]
    return found


def test_each_overload_of_an_operator(sides: Any) -> None:
    assert compared(sides, made_up(), "SELECT {} FROM d WHERE id IN (1, 4) ORDER BY id") == []


def test_each_overload_of_an_aggregate(sides: Any) -> None:
    assert compared(sides, made_up_aggregates(), "SELECT {} FROM d WHERE id <> 2") == []


NEVER_THE_SAME = frozenset((
    "now", "transaction_timestamp", "statement_timestamp", "proctime", "clock_timestamp", "random", "gen_random_uuid",
))  # fmt: skip


def test_each_overload_has_an_example(monkeypatch: pytest.MonkeyPatch) -> None:
    found: set[tuple[int, int]] = set()
    choose, same_types = overloads.chosen, overloads._same_types

    def chosen(known: Any, *rest: Any) -> Any:
        choice = choose(known, *rest)
        found.update([(id(known), choice[0])] if choice is not None else [])
        return choice

    def same(known: Any, given: Any) -> Any:
        choice = same_types(known, given)
        found.update([(id(known), known.index(choice[0]))] if choice is not None else [])
        return choice

    monkeypatch.setattr(overloads, "chosen", chosen)
    monkeypatch.setattr(call_binder, "chosen", chosen)
    monkeypatch.setattr(overloads, "_same_types", same)
    examples = [*made_up(), *made_up_aggregates()]
    for group in (EXAMPLES, OPERATOR_EXAMPLES, AGGREGATE_EXAMPLES, WINDOW_EXAMPLES):
        examples += flat(group)
    for example in examples:
        bind_query(
            parse_statement(f"SELECT {example} FROM d"), BindingContext(lambda name: differential.TABLES.get(name.name))
        )
    without = [
        f"{name}({', '.join(entry.signature.arguments)})"
        for catalogue in (FUNCTIONS, OPERATORS, PREFIXES, AGGREGATES, WINDOWS)
        for name, known in catalogue.items()
        for i, entry in enumerate(known)
        if (id(known), i) not in found and name not in OWN | NEVER_THE_SAME
    ]
    assert without == ["to_char(float8, text)"]  # it is known, and refused by name
