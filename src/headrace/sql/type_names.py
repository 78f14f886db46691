"""PostgreSQL types and Spark types: names, OIDs, and how they map onto each other."""

from __future__ import annotations

from functools import lru_cache

from headrace.common.columns import split_top_level
from headrace.common.jsonb.document import SPARK_TYPE as JSONB
from headrace.common.lazy_dataclass import dataclass
from headrace.common.span import SPARK_TYPE as SPAN
from headrace.common.time_of_day import SPARK_TYPE as TIME
from headrace.sql.catalog_types import CATALOG_TYPES, element_of
from headrace.sql.render import UNCONSTRAINED_NUMERIC, render_text

__all__ = ["PgType", "UNCONSTRAINED_NUMERIC", "pg_type", "pg_type_text", "render_text", "spark_type_of_oid", "typmod"]


@dataclass(frozen=True)
class PgType:
    """A PostgreSQL type; `size` is its length in bytes, -1 where it varies."""

    name: str
    oid: int
    size: int


_SCALARS: dict[str, PgType] = {
    "boolean": PgType("bool", 16, 1),
    "binary": PgType("bytea", 17, -1),
    "bigint": PgType("int8", 20, 8),
    "smallint": PgType("int2", 21, 2),
    "tinyint": PgType("int2", 21, 2),
    "int": PgType("int4", 23, 4),
    "string": PgType("text", 25, -1),
    "void": PgType("text", 25, -1),
    "float": PgType("float4", 700, 4),
    "double": PgType("float8", 701, 8),
    "date": PgType("date", 1082, 4),
    "timestamp_ntz": PgType("timestamp", 1114, 8),
    "timestamp": PgType("timestamptz", 1184, 8),
    "decimal": PgType("numeric", 1700, -1),
    "interval": PgType("interval", 1186, 16),
    JSONB: PgType("jsonb", 3802, -1),
    SPAN: PgType("interval", 1186, 16),
    TIME: PgType("time", 1083, 8),
}
_ARRAY_OIDS = {
    "bool": 1000, "bytea": 1001, "int2": 1005, "int4": 1007, "text": 1009, "int8": 1016, "float4": 1021,
    "float8": 1022, "timestamp": 1115, "date": 1182, "timestamptz": 1185, "interval": 1187, "numeric": 1231,
    "json": 199, "record": 2287, "jsonb": 3807, "time": 1183,
}  # fmt: skip
_JSON = PgType("json", 114, -1)
_RECORD = PgType("record", 2249, -1)
_SPELLED = {
    "bool": "boolean", "int2": "smallint", "int4": "integer", "int8": "bigint", "float4": "real",
    "float8": "double precision", "timestamp": "timestamp without time zone",
    "timestamptz": "timestamp with time zone", "text": "character varying",
}  # fmt: skip
_BY_OID: dict[int, str] = {
    **{kind.oid: name for name, kind in _SCALARS.items() if name not in ("tinyint", "void", "decimal", "interval")},
    18: "string", 19: "string", 26: "bigint", 114: "string", 1042: "string", 1043: "string", 2950: "string",
    1700: UNCONSTRAINED_NUMERIC,
}  # fmt: skip
_ARRAY_BY_OID = {
    oid: f"array<{UNCONSTRAINED_NUMERIC if name == 'numeric' else _BY_OID[kind.oid]}>"
    for name, oid in _ARRAY_OIDS.items()
    for kind in _SCALARS.values()
    if kind.name == name and kind.oid in _BY_OID
}


_HELD_BY_OID = {kind.oid: kind.held for name, kind in CATALOG_TYPES.items() if not name.endswith("vector")}


@lru_cache(maxsize=4096)
def pg_type(spark_type: str) -> PgType:
    """The PostgreSQL type that stands for a Spark type, or is one of the catalogs' own.

    Unknown types are announced as text.
    """
    text = spark_type.strip()
    if text in _SCALARS:
        return _SCALARS[text]
    if text in CATALOG_TYPES:
        found = CATALOG_TYPES[text]
        return PgType(f"_{element_of(text)}" if text.startswith("array<") else text, found.oid, found.size)
    if text.startswith("decimal"):
        return _SCALARS["decimal"]
    if text.startswith("interval"):
        return _SCALARS["interval"]
    if text.startswith("array<"):
        inner = pg_type(_innermost(text))
        return PgType("_" + inner.name, _ARRAY_OIDS.get(inner.name, 1009), -1)
    if text.startswith("struct<"):
        return _RECORD
    if text.startswith("map<"):
        return _JSON
    return _SCALARS["string"]


def is_own(spark_type: str) -> bool:
    """Whether there are values of a type in it that Spark has not, and holds as structs."""
    return any(own in spark_type for own in (JSONB, SPAN, TIME))


def _innermost(text: str) -> str:
    while text.startswith("array<"):
        text = text[len("array<") : -1]
    return text


def typmod(spark_type: str) -> int:
    """The type modifier of a row description: set for `decimal(p,s)`, -1 otherwise."""
    if spark_type.startswith("decimal(") and spark_type != UNCONSTRAINED_NUMERIC:
        precision, scale = spark_type[len("decimal(") : -1].split(",")
        return ((int(precision) << 16) | int(scale)) + 4
    return -1


def spark_type_of_oid(oid: int) -> str | None:
    """The Spark type for a parameter of PostgreSQL type `oid`; None for 0, unknown (705) and foreign types."""
    return _BY_OID.get(oid) or _ARRAY_BY_OID.get(oid) or _HELD_BY_OID.get(oid)


def pg_type_text(spark_type: str) -> str:
    """The type as SQL text of the dialect, as `DESCRIBE` and `SHOW CREATE` print it: it parses back to the same."""
    text = spark_type.strip()
    if text.startswith("array<"):
        return pg_type_text(text[len("array<") : -1]) + "[]"
    if text.startswith("struct<") and text not in _SCALARS:
        fields = [tuple(split_top_level(part.strip(), ":")) for part in split_top_level(text[len("struct<") : -1])]
        return "struct<" + ", ".join(f"{name.strip('`')} {pg_type_text(kind)}" for name, kind in fields) + ">"
    if text.startswith("map<"):
        key, value = split_top_level(text[len("map<") : -1])
        return f"map({pg_type_text(key)}, {pg_type_text(value)})"
    if text == UNCONSTRAINED_NUMERIC:
        return "numeric"
    if text.startswith("decimal"):
        return text.replace("decimal", "numeric", 1)
    kind = pg_type(text)
    return _SPELLED.get(kind.name, kind.name)
