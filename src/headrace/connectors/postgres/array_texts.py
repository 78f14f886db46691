"""Arrays as PostgreSQL writes them (`{1,NULL,"a,b"}`), many at once, as Arrow's. No I/O.

PostgreSQL's arrays have as many dimensions as a value says, and begin wherever it says; a column here has one type. So
a value of another number of dimensions, or whose first element is not number 1, is one at fault.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa

from headrace.connectors.parsed_values import Bad

Convert = Callable[[pa.Array, pa.DataType], tuple[pa.Array, Bad]]
"""Texts as values of a type, and which of them are none."""

_NULL: Final = "NULL"
"""As it is written without quotes; a text that looks like it has some."""
_ELEMENT: Final = re.compile(r'"((?:[^"\\]|\\.)*)"|([^",{}\\]+)', re.DOTALL)
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
_NESTED: Final = re.compile(r'[{}]|"(?:[^"\\]|\\.)*"', re.DOTALL)


def arrays_of(texts: pa.Array, kind: pa.ListType, convert: Convert) -> tuple[pa.Array, Bad]:
    """The arrays, `convert` making their elements; one at fault becomes NULL."""
    nested = pa.types.is_list(kind.value_type)
    rows: list[list[str | None] | None] = []
    bad: Bad = []
    for i, text in enumerate(texts.to_pylist()):
        try:
            rows.append(None if text is None else _elements(text, nested))
        except ValueError as error:
            bad.append((i, str(error)))
            rows.append(None)
    lengths = np.array([0 if row is None else len(row) for row in rows], np.int64)
    flat = pa.array([element for row in rows if row for element in row], pa.string())
    values, wrong = arrays_of(flat, kind.value_type, convert) if nested else convert(flat, kind.value_type)
    owners = np.repeat(np.arange(len(rows)), lengths)
    bad += [(int(owners[place]), f"an element: {message}") for place, message in wrong]
    gone = {i for i, _ in bad}
    valid = np.array([row is not None and i not in gone for i, row in enumerate(rows)], np.bool_)
    offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int32())
    made = pa.ListArray.from_arrays(offsets, values, type=kind, mask=pa.array(~valid))
    return made, sorted(dict(reversed(bad)).items())


def _elements(text: str, nested: bool) -> list[str | None]:
    """The texts of an array's elements, which are arrays themselves where it is `nested`. Raises `ValueError`."""
    if text.startswith("["):
        raise ValueError("an array whose elements are not numbered from 1")
    if not (text.startswith("{") and text.endswith("}")):
        raise ValueError("not an array")
    body = text[1:-1]
    if not body:
        return []
    if nested:
        return _inner(body)
    if '"' not in body and "{" not in body:
        return [None if element == _NULL else element for element in body.split(",")]
    found: list[str | None] = []
    at = 0
    while at <= len(body):
        match = _ELEMENT.match(body, at)
        if match is None or body[match.end() : match.end() + 1] not in ("", ","):
            raise ValueError("an array of more dimensions than the column has" if "{" in body else "not an array")
        quoted, plain = match.groups()
        found.append(_ESCAPED.sub(r"\1", quoted) if plain is None else None if plain == _NULL else plain)
        at = match.end() + 1
    return found


def _inner(body: str) -> list[str | None]:
    """The arrays within an array."""
    if not body.startswith("{"):
        raise ValueError("an array of fewer dimensions than the column has")
    found: list[str | None] = []
    depth = start = 0
    for match in _NESTED.finditer(body):
        if match[0] == "{":
            start = match.start() if depth == 0 else start
            depth += 1
        elif match[0] == "}":
            depth -= 1
            if depth == 0:
                found.append(body[start : match.end()])
    return found
