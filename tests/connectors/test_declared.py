"""Options that are declared once: what is checked, what is said, and what the manual shows."""

from __future__ import annotations

import pytest

from headrace.connectors.declared import DeclaredOptions, Option, needed_module
from headrace.connectors.sinks import open_sink, spelled
from headrace.errors import InvalidParameter

DECLARED = DeclaredOptions(
    (
        Option("place", "Where.", required=True),
        Option("port", "A number.", "number", default="7", least=1),
        Option("fast", "Or not.", "boolean"),
        Option("pause", "How long.", "duration"),
        Option("way", "One of two.", default="left", choices=("left", "right")),
        Option("word", "To get in.", secret=True),
    ),
    "more.", "What else there is.", secret_prefix=True,
)  # fmt: skip


def test_values_have_their_types_and_defaults() -> None:
    given = {"connector": "x", "place": "here", "fast": "yes", "pause": "2s", "more.a.b": "c"}
    assert DECLARED.read(given) == {
        "place": "here", "port": 7, "fast": True, "pause": 2000.0, "way": "left", "word": None,
    }  # fmt: skip
    assert DECLARED.passed_on(given) == {"a.b": "c"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "option place is required"),
        ({"place": "x", "port": "0"}, "option port must be a whole number of at least 1"),
        ({"place": "x", "way": "up"}, "option way must be one of left, right"),
        ({"place": "x", "colour": "red"}, "unknown option colour for connector x"),
        ({"place": "x", "mores": "red"}, "unknown option mores"),
    ],
)
def test_what_is_wrong_is_said(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidParameter, match=message):
        DECLARED.read({"connector": "x", **options})


def test_secrets_and_the_table() -> None:
    assert [n for n in ("place", "word", "more.x", "moreover") if DECLARED.takes_secret(n)] == ["word", "more.x"]
    table = DECLARED.table()
    assert "| `place` | text | required | Where. |" in table
    assert "| `way` | `left`, `right` | `left` | One of two. |" in table
    assert "| `more.*` | text | | What else there is. May be secrets. |" in table


def test_a_package_that_is_missing_names_its_extra() -> None:
    with pytest.raises(InvalidParameter, match="needs the Python package no_such_thing") as caught:
        needed_module("no_such_thing.inner", "thing")
    assert "headrace[thing]" in (caught.value.hint or "")


def test_the_clause_of_format_says_what_options_say() -> None:
    clause = {"connector": "files", "format": "plain", "encode": "json", "encode.force_append_only": "true"}
    assert spelled(clause)["type"] == "append-only" and spelled(clause)["force_append_only"] == "true"
    assert spelled({**clause, "format": "upsert"})["type"] == "upsert"
    with pytest.raises(InvalidParameter, match="given twice"):
        spelled({**clause, "force_append_only": "false"})
    with pytest.raises(
        InvalidParameter, match="must be one of blackhole, deltalake, files, http, iceberg, kafka, postgres"
    ):
        open_sink({"connector": "pulsar"}, [])
