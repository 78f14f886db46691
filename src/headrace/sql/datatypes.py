"""SQL type text to Spark type strings."""

from __future__ import annotations

from sqlglot import exp

from headrace.common.jsonb.document import SPARK_TYPE as JSONB
from headrace.common.span import SPARK_TYPE as SPAN
from headrace.common.time_of_day import SPARK_TYPE as TIME
from headrace.errors import NotSupported, UndefinedObject
from headrace.sql.catalog_types import CATALOG_TYPES, held_as
from headrace.sql.dialect import parse_type_tokens, tokenize
from headrace.sql.render import UNCONSTRAINED_NUMERIC

_D = exp.DType
_SIMPLE: dict[exp.DType, str] = {
    _D.BOOLEAN: "boolean",
    _D.TINYINT: "smallint",
    _D.SMALLINT: "smallint",
    _D.INT: "int",
    _D.BIGINT: "bigint",
    _D.FLOAT: "float",
    _D.DOUBLE: "double",
    _D.TEXT: "string",
    _D.VARCHAR: "string",
    _D.CHAR: "string",
    _D.BPCHAR: "string",
    _D.NCHAR: "string",
    _D.NVARCHAR: "string",
    _D.NAME: "string",
    _D.JSON: "string",
    _D.JSONB: JSONB,
    _D.INTERVAL: SPAN,
    _D.TIME: TIME,
    _D.UUID: "string",
    _D.XML: "string",
    _D.VARBINARY: "binary",
    _D.BINARY: "binary",
    _D.BLOB: "binary",
    _D.DATE: "date",
    _D.TIMESTAMP: "timestamp_ntz",
    _D.TIMESTAMPNTZ: "timestamp_ntz",
    _D.TIMESTAMPTZ: "timestamp",
    _D.TIMESTAMPLTZ: "timestamp",
    _D.NULL: "void",
}


def spark_type(kind: exp.DataType) -> str:
    """The Spark type string of a parsed SQL type.

    `numeric` without precision is `decimal(38,10)`. Raises `NotSupported` or `UndefinedObject` for a type that
    has no counterpart.
    """
    which = kind.this
    if which in (_D.FLOAT, _D.DOUBLE) and kind.expressions:
        return _float(kind)
    _check_size(kind)
    if which in _SIMPLE:
        return _SIMPLE[which]
    if which == _D.DECIMAL:
        return _decimal(kind)
    if which in (_D.ARRAY, _D.LIST):
        return f"array<{_inner(kind, 0)}>"
    if which == _D.STRUCT:
        return "struct<" + ",".join(_field(part) for part in kind.expressions) + ">"
    if which == _D.MAP:
        return f"map<{_inner(kind, 0)},{_inner(kind, 1)}>"
    name = kind.sql(dialect="postgres").lower()
    if name in _OBJECT_IDS:
        return held_as(name)
    if which in _COUNTED:
        raise NotSupported(
            f"the type {name} is not supported: there are no sequences",
            hint="Declare it as an integer and give the numbers, or as varchar DEFAULT gen_random_uuid()::text.",
        )
    if which == _D.USERDEFINED:
        raise UndefinedObject(f'type "{name}" does not exist')
    raise NotSupported(f"the type {name} is not supported", hint="Keep it as varchar, or convert it in the query.")


_COUNTED = {_D.SMALLSERIAL, _D.SERIAL, _D.BIGSERIAL}
"""Integers with a default that counts: there are no sequences, and rows would have null where nobody gives a number."""
_OBJECT_IDS = ("oid", "regclass", "regtype", "regproc")
"""Types of the system catalogs that columns of tables can be declared with."""


def catalog_type(kind: exp.DataType) -> str | None:
    """The type of the system catalogs' own that a parsed type is; None for any other."""
    if kind.this == _D.ARRAY and kind.expressions and isinstance(kind.expressions[0], exp.DataType):
        element = catalog_type(kind.expressions[0])
        name = None if element is None else f"array<{element}>"
    elif kind.this == _D.NAME:
        name = "name"
    elif kind.this == _D.USERDEFINED or isinstance(kind, exp.ObjectIdentifier):
        name = kind.sql(dialect="postgres").lower().removeprefix("pg_catalog.").strip('"')
    else:
        return None
    return name if name in CATALOG_TYPES and not name.endswith("vector") else None


_SIZED = {_D.VARCHAR, _D.CHAR, _D.BPCHAR, _D.NCHAR, _D.NVARCHAR, _D.DECIMAL}
_MICROSECONDS = {_D.TIMESTAMP, _D.TIMESTAMPNTZ, _D.TIMESTAMPTZ, _D.TIMESTAMPLTZ}


def _check_size(kind: exp.DataType) -> None:
    """Raises `NotSupported` for a length or precision that has no effect."""
    sizes = [part.name for part in kind.expressions if isinstance(part, exp.DataTypeParam)]
    if sizes and kind.this not in _SIZED and not (kind.this in _MICROSECONDS and sizes == ["6"]):
        raise NotSupported(f"{kind.sql(dialect='postgres').lower()} is not supported", hint="leave the precision out")


def _float(kind: exp.DataType) -> str:
    """`float(bits)`, as PostgreSQL has it: the smallest type with so many."""
    bits = int(kind.expressions[0].name)
    if not 1 <= bits <= 53:
        raise NotSupported(f"float({bits}) is not supported", hint="The precision of float is 1 to 53 bits.")
    return "float" if bits <= 24 else "double"


def _decimal(kind: exp.DataType) -> str:
    sizes = [int(part.name) for part in kind.expressions if part.name.isdigit()]
    if not sizes:
        return UNCONSTRAINED_NUMERIC
    precision, scale = sizes[0], sizes[1] if len(sizes) > 1 else 0
    if not 1 <= precision <= 38 or not 0 <= scale <= precision:
        raise NotSupported(f"numeric({precision},{scale}) is not supported", hint="The largest precision is 38.")
    return f"decimal({precision},{scale})"


def _inner(kind: exp.DataType, at: int) -> str:
    part = kind.expressions[at]
    assert isinstance(part, exp.DataType)
    return spark_type(part)


def _field(part: exp.Expr) -> str:
    kind = part.args.get("kind")
    if not isinstance(kind, exp.DataType):
        raise NotSupported("a struct type needs a name and a type for each field")
    identifier = part.this
    name = identifier.name if identifier.args.get("quoted") else identifier.name.lower()
    if set(name) & set("`:,<>()"):
        raise NotSupported(f'the field name "{name}" is not supported', hint="Name it with letters, digits and blanks.")
    plain = name.isidentifier() and name.isascii()
    return f"{name if plain else f'`{name}`'}:{spark_type(kind)}"


def parse_type(text: str) -> str:
    """The Spark type string for SQL type text, for instance `varchar(10)` or `int[]`."""
    return spark_type(parse_type_tokens(text, tokenize(text)))
