"""The examples of the catalogue, asked of headrace and of PostgreSQL."""

from __future__ import annotations

from typing import Any

from differential_meant import difference

from headrace.sql.binder.catalogue.operators import OPERATORS, PREFIXES


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
    if mine.rows is not None and other.rows is not None and difference(sql, mine, other) is None:
        return []
    if len(part) > 1:
        half = len(part) // 2
        return _compared(sides, part[:half], form) + _compared(sides, part[half:], form)
    found = mine.unknown or difference(sql, mine, other)
    return [] if found is None else [(part[0], found)]


def flat(examples: dict[str, list[str]]) -> list[str]:
    return [e for found in examples.values() for e in found]


VALUES_OF = {
    "int2": "i2", "int4": "id", "int8": "i8", "float4": "f4", "float8": "f8", "numeric": "n", "text": "t", "bool": "b",
    "bytea": "'\\x01ff'::bytea", "date": "d", "timestamp": "ts", "timestamptz": "tz", "interval": "interval '3 hours'",
    "time": "ts::time", "jsonb": "to_jsonb(i4)", "anyarray": "a", "anyelement": "id", "anynonarray": "id", "any": "t",
}  # fmt: skip
"""A value of each type; those of the first row are small."""


def made_up() -> list[str]:
    """An example for each overload of an operator."""
    found = []
    for catalogue in (OPERATORS, PREFIXES):
        for symbol, entries in catalogue.items():
            for entry in entries:
                values = [VALUES_OF[kind] for kind in entry.signature.arguments if kind in VALUES_OF]
                if len(values) == len(entry.signature.arguments):
                    found.append(f"{symbol} {values[0]}" if len(values) == 1 else f"{values[0]} {symbol} {values[1]}")
    return found
