"""Columns that a source has got since it was made: NULL in files that do not have them.

A file that lacks a column which was there from the beginning is at fault, as it says: it may be another one's file.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa

from headrace.common.columns import Column
from headrace.connectors.base import FIELD_IDS
from headrace.connectors.files.file_listing import FileState
from headrace.connectors.files.formats import (
    FilePiece,
    TextOptions,
    csv_header,
    opened_avro,
    opened_parquet,
    read_piece,
)
from headrace.connectors.json_in import nullable_schema
from headrace.connectors.option_reader import OptionReader
from headrace.connectors.policy import ParsedRows
from headrace.connectors.spelling import is_there

_BY_PLACE: Final = "header"
"""The option that says whether a CSV file names its columns."""


def can_come(options: Mapping[str, str]) -> bool:
    """Whether columns are found by name, and nothing has been settled by those that there are."""
    by_place = not OptionReader(options).boolean(_BY_PLACE, True)
    kind = options.get("encode", options.get("format", "csv")).lower()
    return "replay_column" not in options and not (by_place and kind in ("csv", "plain"))


def came(options: Mapping[str, str]) -> frozenset[str]:
    """The names of those that have come."""
    return frozenset(json.loads(options.get(FIELD_IDS, "{}")))


def found_by(known: Collection[str], columns: Sequence[Column]) -> dict[str, str]:
    """The option that says so of more columns, too."""
    return {FIELD_IDS: json.dumps({name: name for name in sorted({*known, *(c.name for c in columns)})})}


def read_with_nulls(
    piece: FilePiece, columns: Sequence[Column], later: Collection[str], text: TextOptions, wanted: Sequence[str]
) -> Iterator[ParsedRows]:  # fmt: skip
    """The rows of a piece, as `read_piece` has them; NULL in columns that have come `later` and that it lacks."""
    missing = _missing(piece.state, piece.format, [c for c in columns if c.name in later], text)
    if not missing:
        yield from read_piece(piece, columns, text, wanted)
        return
    there = [c for c in columns if c.name not in missing]
    asked = [name for name in wanted if name not in missing] or [there[0].name]  # rows have to be counted
    for parsed in read_piece(piece, there, text, asked):
        yield replace(parsed, batch=_filled(parsed.batch, columns, missing))


def _missing(state: FileState, kind: str, later: Sequence[Column], text: TextOptions) -> frozenset[str]:
    """Those that a file lacks; JSON's rows say each by itself what they have."""
    if not later or kind == "json":
        return frozenset()
    names = _names(state, kind, text)
    return frozenset(c.name for c in later if not is_there(names, c.name))


def _names(state: FileState, kind: str, text: TextOptions) -> list[str]:
    if kind == "avro":
        with opened_avro(state) as avro:
            return list(avro.names)
    if kind == "parquet":
        with opened_parquet(state) as file:
            return list(file.schema_arrow.names)
    return csv_header(state, text)


def _filled(batch: pa.RecordBatch, columns: Sequence[Column], missing: Collection[str]) -> pa.RecordBatch:
    """The batch with columns of NULL, in the order of all columns."""
    schema = nullable_schema(columns)
    found = {name: batch.column(name) for name in batch.schema.names}
    found |= {name: pa.nulls(batch.num_rows, schema.field(name).type) for name in missing}
    names = [c.name for c in columns if c.name in found]
    return pa.RecordBatch.from_arrays([found[name] for name in names], names=names)
