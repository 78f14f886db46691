"""The body of a request as rows of a table.

A body is one JSON document, or one on each line. A table of one column, a `jsonb`, takes each document as it is, as a
row. For any other a document is an object, whose members are the columns, or an array of such objects.
Either all of a body is understood or none of it counts: the first thing that is wrong is told, with the record that it
is in.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, NoReturn

import numpy as np
import pyarrow as pa

from headrace.common.columns import Column, arrow_type
from headrace.common.jsonb import document
from headrace.connectors.json_in import nullable_schema, object_rows
from headrace.connectors.policy import sample
from headrace.connectors.spelling import SeveralSpellings, spelled
from headrace.errors import HeadraceError

MAX_DEPTH: Final = 100
"""Objects and arrays inside of one another, at most."""
MAX_CELLS: Final = 2_000_000
"""Rows of a body times columns of its table, at most: an empty object costs as much as a full one."""
DIGITS_PER_BYTE: Final = 4
FREE_DIGITS: Final = 100_000
"""Digits that the exponents of a body may come to when its numbers are written out: some, and more for longer ones."""
_STRINGS: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_FAR: Final = re.compile(rb"\d[eE][+-]?0*[1-9]\d{3}")
"""Numbers of a few characters that are thousands of digits when they are written out."""
_EXPONENT: Final = re.compile(rb"\d[eE][+-]?0*(\d{1,3})")
_ZERO: Final = re.compile(rb"(?<!\\)(?:\\\\)*+\\u0000")
"""The one character that no text of PostgreSQL's has."""


class BodyFault(HeadraceError):
    """A body that is not rows of the table."""

    sqlstate = "22P02"

    def __init__(self, message: str, record: int | None = None, column: str | None = None, value: str | None = None):
        super().__init__(message)
        self.record = record
        """Which record of the body, counted from 1."""
        self.column = column
        self.value = value


def is_whole(columns: Sequence[Column]) -> bool:
    """Whether each document is a row as it is."""
    return len(columns) == 1 and columns[0].type == document.SPARK_TYPE


def rows_of(body: bytes, columns: Sequence[Column], *, lines: bool) -> pa.RecordBatch:
    """The rows. A column that an object lacks is NULL, members that are no columns are ignored. Raises `BodyFault`."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise BodyFault(f"the body is not UTF-8: {error.reason} at byte {error.start}") from None
    _check_shape(body)
    texts = [line for line in text.split("\n") if line.strip()] if lines else [text]
    if is_whole(columns):
        _check_cells(len(texts), columns)
        stored = [_stored(_document(one, i), i, columns[0].name) for i, one in enumerate(texts, 1)]
        return pa.RecordBatch.from_arrays([pa.array(stored, arrow_type(columns[0].type))], [columns[0].name])
    return _object_rows(texts, columns)


def check_not_null(rows: pa.RecordBatch, required: Sequence[str]) -> None:
    """Raise `BodyFault` for a row that lacks a value of a column which must have one."""
    for name in required:
        column = rows.column(name)
        if column.null_count:
            at = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0]) + 1
            raise BodyFault(f'null value in column "{name}" violates not-null constraint', at, name, "null")


def _check_shape(body: bytes) -> None:
    """Raise `BodyFault` for what costs much more to read than it is long, and for what no column can hold."""
    if _ZERO.search(body) is not None:
        raise BodyFault("\\u0000 cannot be part of a text")
    deep = body.count(b"{") + body.count(b"[") > MAX_DEPTH
    if not deep and _FAR.search(body) is None and not _is_long_when_written(body, len(body)):
        return
    bare = _STRINGS.sub(b"", body)
    if _FAR.search(bare) is not None:
        raise BodyFault("a number has an exponent of more than three digits")
    if _is_long_when_written(bare, len(body)):
        raise BodyFault("the numbers of the body have too many digits when they are written without exponents")
    octets = np.frombuffer(bare, np.uint8)
    opened = ((octets == ord("{")) | (octets == ord("["))).astype(np.int64)
    closed = ((octets == ord("}")) | (octets == ord("]"))).astype(np.int64)
    if len(octets) and int(np.cumsum(opened - closed).max()) > MAX_DEPTH:
        raise BodyFault(f"the body has more than {MAX_DEPTH} objects and arrays inside of one another")


def _is_long_when_written(text: bytes, length: int) -> bool:
    """Whether exponents come to far more digits than the body is long, which a `jsonb` would have to keep."""
    digits = sum(int(found[1]) for found in _EXPONENT.finditer(text))
    return digits > FREE_DIGITS + DIGITS_PER_BYTE * length


def _check_cells(rows: int, columns: Sequence[Column]) -> None:
    if rows * len(columns) > MAX_CELLS:
        raise BodyFault(f"{rows} rows of {len(columns)} columns are more than {MAX_CELLS} values; send fewer at once")


def _document(text: str, record: int) -> Any:
    try:
        return document.read(text)
    except document.JsonbFault as fault:
        raise BodyFault(str(fault), record, None, sample(text)) from None


def _stored(found: object, record: int, column: str) -> dict[str, object]:
    """Return the document as its column holds it. Raise `BodyFault` for one that is too large."""
    try:
        return document.stored(found)
    except document.JsonbFault as fault:
        raise BodyFault(str(fault), record, column) from None


def _refused(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _value(text: str, record: int) -> Any:
    try:
        return json.loads(text, parse_float=Decimal, parse_constant=_refused)
    except (ValueError, RecursionError) as error:
        raise BodyFault(f"malformed JSON: {error}", record, None, sample(text)) from None


def _object_rows(texts: Sequence[str], columns: Sequence[Column]) -> pa.RecordBatch:
    """Objects, or arrays of them, as rows; columns of `jsonb` come of a reading of their own, with exact numbers."""
    loose = [column for column in columns if column.type == document.SPARK_TYPE]
    objects = _objects([_value(text, i) for i, text in enumerate(texts, 1)])
    _check_cells(len(objects), columns)
    batch, faults = object_rows(objects, [c for c in columns if c not in loose])
    if faults:
        row, name, value, message = min(faults, key=lambda fault: fault[0])
        raise BodyFault(message, row + 1, name, sample(value))
    arrays = dict(zip(batch.schema.names, batch.columns))
    if loose:
        found = _objects([_document(text, i) for i, text in enumerate(texts, 1)])
        for column in loose:
            given = [_member(o, column.name, i) for i, o in enumerate(found, 1)]
            values = [None if v is None else _stored(v, i, column.name) for i, v in enumerate(given, 1)]
            arrays[column.name] = pa.array(values, arrow_type(column.type))
    return pa.RecordBatch.from_arrays([arrays[c.name] for c in columns], schema=nullable_schema(columns))


def _member(found: Mapping[str, object], name: str, record: int) -> object:
    try:
        return spelled(found, (name,)).get(name)
    except SeveralSpellings as error:
        raise BodyFault(str(error), record) from None


def _objects(documents: Sequence[Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for one in documents:
        for item in one if isinstance(one, list) else [one]:
            if not isinstance(item, dict):
                raise BodyFault("not a JSON object", len(found) + 1, None, sample(json.dumps(item, default=str)))
            found.append(item)
    return found
