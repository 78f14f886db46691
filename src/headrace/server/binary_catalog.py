"""Values of the types that only the system catalogs have in PostgreSQL's binary format."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from headrace.errors import NotSupported, UndefinedFunction
from headrace.sql.catalog_types import CATALOG_TYPES, OBJECT_TYPES, element_of

_OID: Final = struct.Struct("!I").pack


def catalog_encoder(type: str) -> Callable[[object], bytes] | None:
    """What writes one value that is not null of a type that is no array; None for a type that is not the catalogs'."""
    if type not in CATALOG_TYPES or type.startswith("array<"):
        return None
    if type in OBJECT_TYPES:
        return lambda value: _object(type, str(value))
    if type == "aclitem":
        raise UndefinedFunction("no binary output function available for type aclitem")
    return _ENCODERS.get(type, lambda value: str(value).encode())


def _object(type: str, name: str) -> bytes:
    """The oid of what is shown by name, where that is the oid itself."""
    if name == "-":
        return _OID(0)
    if not name.isdecimal():
        raise NotSupported(f"{type} has no binary format here", hint="Cast it to oid or to text.")
    return _OID(int(name))


def _vector(type: str) -> Callable[[object], bytes]:
    """A vector, which is spelled with blanks, as an array that begins with element 0."""
    element = element_of(type)
    oid, pack = (21, struct.Struct("!ih").pack) if element == "smallint" else (26, struct.Struct("!iI").pack)
    size = 2 if element == "smallint" else 4

    def encode(text: object) -> bytes:
        values = [int(part) for part in str(text).split()]
        head = struct.pack("!iiiii", 1, 0, oid, len(values), 0)
        return head + b"".join(pack(size, value) for value in values)

    return encode


_ENCODERS: Final[dict[str, Callable[[object], bytes]]] = {
    "oid": _OID, "xid": _OID, "char": lambda value: str(value).encode()[:1] or b"\0",
    "int2vector": _vector("int2vector"), "oidvector": _vector("oidvector"),
}  # fmt: skip
