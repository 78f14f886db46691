"""Records of CSV, each one row whose fields are the declared columns in their order."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from headrace.common.columns import Column
from headrace.connectors.json_in import Fault, nullable_schema
from headrace.connectors.parsed_values import strings_to_array

NO_VALUE = "a record without value, which is no row of CSV"


def csv_rows(
    records: Sequence[bytes | None], columns: Sequence[Column], delimiter: str
) -> tuple[pa.RecordBatch, list[Fault]]:
    """The rows, NULL where a value could not be understood, and what was wrong.

    An empty field is the empty text, and NULL in any other column.
    """
    faults: list[Fault] = []
    texts = _at_once(records, len(columns), delimiter) or _one_by_one(records, len(columns), delimiter, faults)
    made = []
    for column, field, text in zip(columns, nullable_schema(columns), texts):
        if not pa.types.is_string(field.type):
            text = pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.string()), text)
        array, bad = strings_to_array(text, field.type)
        made.append(array)
        faults += [(row, column.name, text[row].as_py() or "", message) for row, message in bad]
    return pa.RecordBatch.from_arrays(made, schema=nullable_schema(columns)), faults


def _at_once(records: Sequence[bytes | None], width: int, delimiter: str) -> list[pa.Array] | None:
    """The columns of records that are one plain line each; None if any may be something else."""
    if not records or None in records:
        return None
    data = b"\n".join(record or b"" for record in records)
    octets = np.frombuffer(data, np.uint8)
    plain = data.count(b"\n") == len(records) - 1 and not np.isin(octets, (ord('"'), ord("\r"), 0)).any()
    if not plain or b"" in records or data.startswith(b"\xef\xbb\xbf"):
        return None
    names = [str(i) for i in range(width)]
    read = pacsv.ReadOptions(use_threads=False, column_names=names, block_size=len(data) + 1)
    parse = pacsv.ParseOptions(delimiter=delimiter, quote_char=False, ignore_empty_lines=False)
    convert = pacsv.ConvertOptions(column_types={name: pa.string() for name in names}, strings_can_be_null=False)
    try:
        table = pacsv.read_csv(pa.BufferReader(data), read, parse, convert)
    except pa.ArrowInvalid:
        return None
    return [c.combine_chunks() for c in table.columns] if table.num_rows == len(records) else None


def _one_by_one(records: Sequence[bytes | None], width: int, delimiter: str, faults: list[Fault]) -> list[pa.Array]:
    rows: list[list[str | None]] = []
    for row, record in enumerate(records):
        fields: list[str | None] = [None] * width
        try:
            fields = [*_fields(record, width, delimiter)]
        except (ValueError, csv.Error) as error:
            faults.append((row, None, (record or b"").decode(errors="replace"), str(error)))
        rows.append(fields)
    return [pa.array([fields[i] for fields in rows], pa.string()) for i in range(width)]


def _fields(record: bytes | None, width: int, delimiter: str) -> list[str]:
    """The fields of a record. Raises ValueError, `csv.Error`."""
    if record is None:
        raise ValueError(NO_VALUE)
    found = list(csv.reader(io.StringIO(record.decode(), newline=""), delimiter=delimiter, strict=True))
    if len(found) != 1:
        raise ValueError(f"{len(found)} lines of CSV, where a record is one")
    if len(found[0]) != width:
        raise ValueError(f"{len(found[0])} fields, where there are {width} columns")
    return found[0]
