"""Constraints of Delta tables: which rows break them.

The package says how many rows of a commit do, and shows some. So they are looked for by writing fewer and fewer rows to
a table of scratch that has the same columns and constraints.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import pyarrow as pa

from headrace.connectors.declared import needed_module
from headrace.connectors.refusals import found

Table: TypeAlias = Any
"""A table of the package, which is there where it is needed only."""
_PREFIX: Final = "delta.constraints."


def constraints(table: Table) -> dict[str, str]:
    """The constraints of a table: expressions by name."""
    properties = table.metadata().configuration
    return {name.removeprefix(_PREFIX): text for name, text in properties.items() if name.startswith(_PREFIX)}


def breaking(table: Table, rows: pa.Table, most: int) -> Iterator[tuple[int, str]]:
    """Which rows a table with constraints refuses because of them, and why, no more than so many."""
    delta, broken = needed_module("deltalake", "deltalake"), constraints(table)
    why = f"it breaks a constraint of the table: {', '.join(f'{name} ({text})' for name, text in broken.items())}"
    with tempfile.TemporaryDirectory(prefix="headrace-constraints-") as folder:
        scratch = delta.DeltaTable.create(folder, table.schema())
        for name, text in broken.items():
            scratch.alter.add_constraint({name: text})

        def attempt(low: int, high: int) -> str | None:
            try:
                delta.write_deltalake(folder, rows.slice(low, high - low), mode="append")
            except delta.exceptions.DeltaError as error:
                if "Invalid data found" not in str(error):
                    raise
                return why
            return None

        yield from found(rows.num_rows, attempt, most)
