"""Functions of `jsonb` over Arrow's columns: what Spark calls, and the server where it computes by itself.

Patterns of regular expressions that are not known before are translated here, too.

A kernel never raises: each of its values is a struct of the value and of the error, as the server takes errors from
Spark, so that an expression that is not looked at does not fail.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from headrace.common import regular
from headrace.common.jsonb import operations as f
from headrace.common.jsonb.document import KEY, TEXT, JsonbFault, known, pretty, read, stored, without_scale
from headrace.errors import HeadraceError

_JSONB: Final = pa.struct([pa.field(KEY, pa.binary()), pa.field(TEXT, pa.string())])
RESULTS: Final[dict[str, pa.DataType]] = {
    "jsonb": _JSONB,
    "text": pa.string(),
    "bool": pa.bool_(),
    "int4": pa.int32(),
    "jsonb[]": pa.list_(pa.field("element", _JSONB)),
    "text[]": pa.list_(pa.field("element", pa.string())),
}
"""What kernels return, by the name of PostgreSQL's type."""
SPARK_RESULTS: Final = {
    "jsonb": f"struct<{KEY}:binary,{TEXT}:string>", "text": "string", "bool": "boolean", "int4": "int",
    "jsonb[]": f"array<struct<{KEY}:binary,{TEXT}:string>>", "text[]": "array<string>",
}  # fmt: skip
"""The same for Spark."""


def spark_name(result: str) -> str:
    """The name by which Spark knows the kernels that return this."""
    return "hr_jsonb_to_" + result.replace("[]", "_array")


def _documents(function: Callable[..., Any], count: int = 1) -> Callable[..., Any]:
    """A function whose first arguments are documents, given by their texts."""
    return lambda *given: function(*map(known, given[:count]), *given[count:])


_DOCUMENTS: Final[dict[str, tuple[Callable[..., Any], int]]] = {
    "field": (f.field, 1),
    "element": (f.element, 1),
    "path": (f.at_path, 1),
    "concat": (f.joined, 2),
    "minus": (lambda found, name: f.without(found, [name]), 1),
    "minus_all": (f.without, 1),
    "minus_place": (f.without_place, 1),
    "minus_path": (f.without_path, 1),
    "strip_nulls": (f.stripped, 1),
    "canonical": (without_scale, 1),
}
_TEXTS: Final[dict[str, tuple[Callable[..., Any], int]]] = {
    "field_text": (lambda found, name: f.text_of(f.field(found, name)), 1),
    "element_text": (lambda found, at: f.text_of(f.element(found, at)), 1),
    "path_text": (lambda found, path: f.text_of(f.at_path(found, path)), 1),
    "typeof": (f.kind, 1),
    "pretty": (pretty, 1),
    "number": (f.number, 1),
}
_BOOLS: Final[dict[str, tuple[Callable[..., Any], int]]] = {
    "contains": (f.contains, 2),
    "has": (f.has, 1),
    "has_any": (lambda found, names: any(f.has(found, n) for n in names if n is not None), 1),
    "has_all": (lambda found, names: all(f.has(found, n) for n in names if n is not None), 1),
    "boolean": (f.boolean, 1),
}
_LISTS: Final[dict[str, tuple[Callable[..., Any], int]]] = {
    "elements": (f.elements, 1),
    "values": (lambda found, name: [v for _, v in f.pairs(found, name)], 1),
}
_TEXT_LISTS: Final[dict[str, tuple[Callable[..., Any], int]]] = {
    "elements_text": (lambda found: [f.text_of(i) for i in f.elements(found)], 1),
    "keys": (lambda found, name: [k for k, _ in f.pairs(found, name)], 1),
    "values_text": (lambda found, name: [f.text_of(v) for _, v in f.pairs(found, name)], 1),
}
_STRICT: Final[dict[tuple[str, str], Callable[..., Any]]] = {
    **{("jsonb", n): _documents(*made) for n, made in _DOCUMENTS.items()},
    **{("text", n): _documents(*made) for n, made in _TEXTS.items()},
    **{("bool", n): _documents(*made) for n, made in _BOOLS.items()},
    **{("jsonb[]", n): _documents(*made) for n, made in _LISTS.items()},
    **{("text[]", n): _documents(*made) for n, made in _TEXT_LISTS.items()},
    ("int4", "length"): _documents(f.length),
    ("jsonb", "read"): read,
    ("jsonb", "value"): f.of_value,
    ("jsonb", "object_agg"): f.aggregated,
    ("jsonb", "set"): lambda a, path, b, create: f.with_value(known(a), path, known(b), create),
    ("text", "pattern"): regular.java_pattern,
    ("text", "replacement"): regular.replacement_for,
    ("text", "similar"): regular.similar,
    ("jsonb", "insert"): lambda a, path, b, after: f.with_inserted(known(a), path, known(b), after),
}
"""Functions that are null where an argument is."""
_LENIENT: Final[dict[tuple[str, str], Callable[..., Any]]] = {
    ("jsonb", "array"): lambda *values: f.array_of(values),
    ("jsonb", "object"): lambda *values: f.object_of(values),
}


def compute(result: str, name: str, given: tuple[Any, ...]) -> tuple[Any, str | None]:
    """The value that a kernel gives for one row, and its error."""
    function = _STRICT.get((result, name))
    if function is not None and None in given:
        return None, None
    try:
        return _held(result, (function or _LENIENT[result, name])(*given)), None
    except JsonbFault as error:
        return None, f"headrace.errors.DataError: [{error.sqlstate}] {error}"
    except HeadraceError as error:
        return None, f"headrace.errors.DataError: [{error.sqlstate}] {error.message}"
    except RecursionError:
        return None, "headrace.errors.DataError: [54001] the JSON document is nested too deeply"


def _held(result: str, value: object) -> object:
    """Return the value as a column of this type holds it. Raise `JsonbFault` for a document that is too large."""
    if value is f.MISSING:
        return None
    if result == "jsonb":
        return stored(value)
    return [stored(item) for item in value] if isinstance(value, list) and result == "jsonb[]" else value


def over_columns(result: str, columns: tuple[Any, ...]) -> pa.Array:
    """What the kernel that the first column names gives for the others, row by row."""
    kind = RESULTS[result]
    lists = [column.to_pylist() for column in columns]
    rows = [compute(result, row[0], row[1:]) for row in zip(*lists, strict=True)]
    values, errors = pa.array([v for v, _ in rows], kind), pa.array([e for _, e in rows], pa.string())
    return pa.StructArray.from_arrays([values, errors], names=["v", "e"])
