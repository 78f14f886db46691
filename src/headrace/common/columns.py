"""Columns and their types: Spark's type strings, and what they are in Arrow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

import pyarrow as pa

from headrace.common.lazy_dataclass import dataclass

_SIMPLE: dict[str, pa.DataType] = {
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "void": pa.null(),
}


@dataclass(frozen=True)
class Column:
    """A column of a relation; `type` is Spark's simple string, for instance `decimal(10,2)`."""

    name: str
    type: str
    nullable: bool = True


def split_top_level(text: str, separator: str = ",") -> Iterator[str]:
    """The parts of `text` between separators that stand outside all brackets and back-quotes."""
    depth, start, quoted = 0, 0, False
    for i, c in enumerate(text):
        if c == "`":
            quoted = not quoted
        elif quoted:
            continue
        elif c in "<(":
            depth += 1
        elif c in ">)":
            depth -= 1
        elif c == separator and depth == 0:
            yield text[start:i]
            start = i + 1
    yield text[start:]


@lru_cache(maxsize=4096)
def arrow_type(type_string: str) -> pa.DataType:
    """The Arrow type in which Spark exchanges `type_string`.

    Raises `ValueError` for a type that has no Arrow form here.
    """
    text = type_string.strip()
    if text in _SIMPLE:
        return _SIMPLE[text]
    name, _, rest = text.partition("<")
    if rest.endswith(">"):
        inner = rest[:-1]
        if name == "array":
            return pa.list_(pa.field("element", arrow_type(inner)))
        if name == "map":
            key, value = split_top_level(inner)
            return pa.map_(arrow_type(key), arrow_type(value))
        if name == "struct":
            return pa.struct([_struct_field(part) for part in split_top_level(inner)] if inner else [])
    if text.startswith("decimal("):
        precision, scale = text[len("decimal(") : -1].split(",")
        return pa.decimal128(int(precision), int(scale))
    raise ValueError(f"no Arrow form for the type {type_string}")


def _struct_field(text: str) -> pa.Field:
    name, kind = split_top_level(text.strip(), ":")
    return pa.field(name.strip().strip("`"), arrow_type(kind))


def arrow_schema(columns: Iterable[Column]) -> pa.Schema:
    """The Arrow schema of a relation."""
    return pa.schema([pa.field(c.name, arrow_type(c.type), c.nullable) for c in columns])
