"""PostgreSQL's types, how Spark holds their values, and which casts there are between them."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, Literal

from headrace.common.columns import split_top_level
from headrace.common.jsonb.document import SPARK_TYPE as JSONB_SPARK
from headrace.common.lazy_dataclass import dataclass
from headrace.common.span import SPARK_TYPE as SPAN_SPARK
from headrace.common.time_of_day import SPARK_TYPE as TIME_SPARK

Context = Literal["implicit", "assignment", "explicit"]
"""Where a cast stands: in an expression, in a value that is stored, or written as a cast."""


@dataclass(frozen=True, slots=True)
class Type:
    """A type of PostgreSQL's as an expression has it.

    `spark` is the Spark type of its values: that of a numeric says how many digits there can be, which PostgreSQL
    leaves open. `size` is the length of `varchar(n)`.
    """

    name: str
    spark: str
    category: str
    preferred: bool = False
    element: Type | None = None
    size: int | None = None

    def __str__(self) -> str:
        return SPELLED.get(self.name, self.name)

    @property
    def is_array(self) -> bool:
        """Whether its values are arrays."""
        return self.element is not None


SPELLED: Final = {
    "bool": "boolean", "int2": "smallint", "int4": "integer", "int8": "bigint", "float4": "real",
    "float8": "double precision", "timestamp": "timestamp without time zone", "varchar": "character varying",
    "timestamptz": "timestamp with time zone", "time": "time without time zone",
}  # fmt: skip
"""Types that messages call by another name."""

BOOL: Final = Type("bool", "boolean", "B", True)
INT2: Final = Type("int2", "smallint", "N")
INT4: Final = Type("int4", "int", "N")
INT8: Final = Type("int8", "bigint", "N")
FLOAT4: Final = Type("float4", "float", "N")
FLOAT8: Final = Type("float8", "double", "N", True)
NUMERIC: Final = Type("numeric", "decimal(38,10)", "N")
TEXT: Final = Type("text", "string", "S", True)
VARCHAR: Final = Type("varchar", "string", "S")
BYTEA: Final = Type("bytea", "binary", "U")
DATE: Final = Type("date", "date", "D")
TIMESTAMP: Final = Type("timestamp", "timestamp_ntz", "D")
TIMESTAMPTZ: Final = Type("timestamptz", "timestamp", "D", True)
JSONB: Final = Type("jsonb", JSONB_SPARK, "U")
TIME: Final = Type("time", TIME_SPARK, "D")
INTERVAL: Final = Type("interval", SPAN_SPARK, "T", True)
UNKNOWN: Final = Type("unknown", "void", "X")
"""The type of a string literal, a null or a parameter before its context decides."""

SCALARS: Final = {
    t.name: t
    for t in (
        BOOL,
        INT2,
        INT4,
        INT8,
        FLOAT4,
        FLOAT8,
        NUMERIC,
        TEXT,
        VARCHAR,
        BYTEA,
        DATE,
        TIMESTAMP,
        TIMESTAMPTZ,
        INTERVAL,
        JSONB,
        TIME,
    )
}
INTEGERS: Final = ("int2", "int4", "int8")
FLOATS: Final = ("float4", "float8")
TEXTS: Final = ("text", "varchar")
_OF_SPARK: Final = {
    "boolean": BOOL, "tinyint": INT2, "smallint": INT2, "int": INT4, "bigint": INT8, "float": FLOAT4, "double": FLOAT8,
    "string": TEXT, "binary": BYTEA, "date": DATE, "timestamp_ntz": TIMESTAMP, "timestamp": TIMESTAMPTZ,
    "interval day to second": Type("interval", "interval day to second", "T", True),
    SPAN_SPARK: INTERVAL, TIME_SPARK: TIME, JSONB_SPARK: JSONB,
}  # fmt: skip
_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")
LOOSE: Final = ("jsonb", "interval")
"""Types of which values can be equal that are not the same: `1.0` and `1`, a day and 24 hours."""
DIGITS: Final = 38
"""Most digits of a decimal of Spark's."""


def decimal(precision: int, scale: int) -> Type:
    """A numeric with at most so many digits."""
    return Type("numeric", f"decimal({precision},{scale})", "N")


def digits(kind: Type) -> tuple[int, int]:
    """Precision and scale of what holds a number that is no float."""
    match = _DECIMAL.fullmatch(kind.spark)
    if match:
        return int(match[1]), int(match[2])
    return {"smallint": 5, "tinyint": 3, "int": 10, "bigint": 19}[kind.spark], 0


@lru_cache(maxsize=512)
def array_of(element: Type) -> Type:
    """The type of arrays of a type; an array of arrays is no type of its own, but Spark's type says how deep it is."""
    return Type(f"{element.name.removesuffix('[]')}[]", f"array<{element.spark}>", "A", element=element)


@lru_cache(maxsize=4096)
def of_spark(spark: str) -> Type | None:
    """The type of a column that Spark holds so; None for those that the binder does not know."""
    text = spark.strip()
    if text in _OF_SPARK:
        return _OF_SPARK[text]
    match = _DECIMAL.fullmatch(text)
    if match:
        return decimal(int(match[1]), int(match[2]))
    if text.startswith("array<"):
        element = of_spark(text[len("array<") : -1])
        return None if element is None or element.is_array else array_of(element)
    if text.startswith("struct<"):
        return Type("record", text, "P")
    return None


def fields_of(kind: Type) -> list[tuple[str, str]]:
    """The names of a record's fields, and their Spark types."""
    inner = kind.spark[len("struct<") : -1]
    parts = [split_top_level(part.strip(), ":") for part in split_top_level(inner)]
    return [(name.strip().strip("`"), spark.strip()) for name, spark in parts]


_IMPLICIT: Final = {
    "int2": "int4 int8 numeric float4 float8",
    "int4": "int8 numeric float4 float8",
    "int8": "numeric float4 float8",
    "numeric": "float4 float8",
    "float4": "float8",
    "varchar": "text",
    "text": "varchar",
    "date": "timestamp timestamptz",
    "timestamp": "timestamptz",
    "time": "interval",
}
_ASSIGNMENT: Final = {
    "int4": "int2",
    "int8": "int2 int4",
    "numeric": "int2 int4 int8",
    "float4": "int2 int4 int8 numeric",
    "float8": "int2 int4 int8 numeric float4",
    "timestamp": "date time",
    "timestamptz": "date timestamp time",
    "interval": "time",
}
_EXPLICIT: Final = {"bool": "int4", "int4": "bool", "jsonb": "bool int2 int4 int8 float4 float8 numeric"}


def can_cast(source: Type, target: Type, context: Context) -> bool:
    """Whether PostgreSQL casts between two types there."""
    if source.name == target.name or source.name == "unknown":
        return True
    if source.element is not None and target.element is not None:
        return can_cast(source.element, target.element, context)
    if target.name in _IMPLICIT.get(source.name, "").split():
        return True
    if context == "implicit":
        return False
    if target.name in _ASSIGNMENT.get(source.name, "").split() or target.category == "S":
        return True
    if context == "assignment":
        return False
    return target.name in _EXPLICIT.get(source.name, "").split() or source.category == "S"
