"""Values of types that only this database has, as what leaves it: texts, written as PostgreSQL writes them.

A `jsonb`, an interval and a time are structs to Spark and Arrow. Outside nobody knows these: a column of one of them
leaves as text. That of a document is marked, so that whoever writes JSON puts it in as the document that it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.common import span, time_of_day
from headrace.common.columns import Column
from headrace.common.jsonb import document
from headrace.errors import NotSupported

_MARK: Final = {b"headrace": b"jsonb"}
_NAMES: Final = {document.SPARK_TYPE: "jsonb", span.SPARK_TYPE: "interval", time_of_day.SPARK_TYPE: "time"}
_TEXTS: Final[dict[str, Callable[[Any], str]]] = {
    span.SPARK_TYPE: lambda v: span.text_of(v[span.MONTHS], v[span.DAYS], v[span.MICROS]),
    time_of_day.SPARK_TYPE: lambda v: time_of_day.text_of(v[time_of_day.FIELD]),
}


def own_type(kind: str) -> str | None:
    """The type of this database's own that a type is, or has in it."""
    return next((name for own, name in _NAMES.items() if own in kind), None)


def columns_outside(columns: Iterable[Column]) -> list[Column]:
    """The columns as they leave. Raises `NotSupported` for such a type inside an array, a struct or a map."""
    found = []
    for column in columns:
        if column.type in _NAMES:
            column = replace(column, type="string")
        inner = own_type(column.type)
        if inner is not None:
            raise NotSupported(
                f'the column "{column.name}" of a sink, which has {inner} inside of another type',
                hint=f"cast it in the sink's query: {inner} as a column of its own, or as text",
            )
        found.append(column)
    return found


def outside(arrays: Sequence[pa.Array], columns: Sequence[Column]) -> tuple[list[pa.Array], list[pa.Field]]:
    """Values of columns as they leave, and the fields of these."""
    made, fields = [], []
    for array, column in zip(arrays, columns, strict=True):
        mark = None
        if column.type == document.SPARK_TYPE:
            array, mark = pc.struct_field(array, document.TEXT), _MARK
        elif column.type in _TEXTS:
            text = _TEXTS[column.type]
            array = pa.array([None if v is None else text(v) for v in array.to_pylist()], pa.string())
        made.append(array)
        fields.append(pa.field(column.name, array.type, metadata=mark))
    return made, fields


def is_document(field: pa.Field) -> bool:
    """Whether the texts of a column are documents of JSON."""
    return bool(field.metadata) and field.metadata.get(b"headrace") == b"jsonb"
