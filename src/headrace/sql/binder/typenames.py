"""The names of types as a statement writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.sql.binder import types as t
from headrace.sql.binder.parse_tree import check, declare, inner, kind_of, refuse, strings
from headrace.sql.binder.scope import Wrong
from headrace.sql.binder.types import Type

if TYPE_CHECKING:
    from postgast import pg_query_pb2 as pb

declare("TypeName", "names typmods typemod array_bounds")
_ALIASES: Final = {"string": "text", "bytes": "bytea", "decimal": "numeric", "double": "float8"}


def named_type(message: pb.TypeName) -> Type:
    """The type. Raises `NotBound` for one that the binder does not know."""
    check(message)
    names = strings(message.names)
    if len(names) > 1 and names[0] != "pg_catalog":
        refuse("a type of a schema", message)
    name = _ALIASES.get(names[-1], names[-1])
    found = t.SCALARS.get(name)
    if found is None:
        refuse(f"the type {names[-1]}", message)
    found = _sized(found, message)
    if message.array_bounds:
        if len(message.array_bounds) > 1 or inner(message.array_bounds[0]).ival != -1 or found.size is not None:
            refuse("this array type", message)
        return t.array_of(found)
    return found


def _sized(kind: Type, message: pb.TypeName) -> Type:
    sizes = []
    for part in message.typmods:
        if kind_of(part) != "A_Const" or part.a_const.WhichOneof("val") != "ival":
            refuse("a size that is no number", message)
        sizes.append(part.a_const.ival.ival)
    if not sizes:
        return kind
    if kind.name == "varchar" and len(sizes) == 1:
        if sizes[0] < 1:
            raise Wrong("length for type varchar must be at least 1", "22023", message.location)
        return Type("varchar", "string", "S", size=sizes[0])
    if kind.name == "numeric":
        precision, scale = sizes[0], sizes[1] if len(sizes) > 1 else 0
        if not 1 <= precision <= t.DIGITS or not 0 <= scale <= precision:
            refuse("numeric of this size", message)
        return t.decimal(precision, scale)
    if kind.name in ("timestamp", "timestamptz") and sizes == [6]:
        return kind
    refuse(f"a size of {kind}", message)


_UNITS: Final = {
    1 << 1: "month",
    1 << 2: "year",
    1 << 1 | 1 << 2: "year to month",
    1 << 3: "day",
    1 << 10: "hour",
    1 << 11: "minute",
    1 << 12: "second",
}
"""PostgreSQL's bits for the units of an interval."""


def interval_unit(message: pb.TypeName) -> str | None:
    """The one unit that is written beside an interval's text; None for other types."""
    if not message.names or not message.typmods or message.names[-1].string.sval != "interval" or message.array_bounds:
        return None
    check(message)
    part = message.typmods[0]
    unit = _UNITS.get(inner(part).ival.ival) if kind_of(part) == "A_Const" else None
    if unit is None or len(message.typmods) != 1:
        refuse("a span of units in an interval", message)
    return unit
