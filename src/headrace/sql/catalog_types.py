"""Types that PostgreSQL's system catalogs alone have: their oids, and what holds their values here.

No table of a user's has a column of one. They exist where the catalogs are read, and for parameters; everywhere else
their values are those of the Spark type that holds them.
"""

from __future__ import annotations

from typing import Final

from headrace.common.lazy_dataclass import dataclass


@dataclass(frozen=True)
class CatalogType:
    """A type of the catalogs; `held` is the Spark type of its values, `size` its length in bytes, -1 if it varies."""

    oid: int
    size: int
    held: str


_OBJECTS: Final = {
    "regproc": (24, 1008), "regprocedure": (2202, 2207), "regclass": (2205, 2210), "regtype": (2206, 2211),
    "regrole": (4096, 4097), "regnamespace": (4089, 4090),
}  # fmt: skip
OBJECT_TYPES: Final = tuple(_OBJECTS)
"""Types whose values are oids that are shown as the names of what has them; the names are held."""
CATALOG_TYPES: Final = {
    "char": CatalogType(18, 1, "string"), "array<char>": CatalogType(1002, -1, "array<string>"),
    "name": CatalogType(19, 64, "string"), "array<name>": CatalogType(1003, -1, "array<string>"),
    "int2vector": CatalogType(22, -1, "array<smallint>"),
    "oid": CatalogType(26, 4, "bigint"), "array<oid>": CatalogType(1028, -1, "array<bigint>"),
    "xid": CatalogType(28, 4, "bigint"), "array<xid>": CatalogType(1011, -1, "array<bigint>"),
    "oidvector": CatalogType(30, -1, "array<bigint>"),
    "pg_node_tree": CatalogType(194, -1, "string"),
    "aclitem": CatalogType(1033, 12, "string"), "array<aclitem>": CatalogType(1034, -1, "array<string>"),
    "varchar": CatalogType(1043, -1, "string"), "array<varchar>": CatalogType(1015, -1, "array<string>"),
    **{name: CatalogType(oid, 4, "string") for name, (oid, _) in _OBJECTS.items()},
    **{f"array<{name}>": CatalogType(array, -1, "array<string>") for name, (_, array) in _OBJECTS.items()},
}  # fmt: skip
"""By name, as columns of system relations are declared."""


def held_as(name: str) -> str:
    """The Spark type of values of a type, which may be one of the catalogs' or one of Spark's."""
    found = CATALOG_TYPES.get(name)
    return name if found is None else found.held


def element_of(name: str) -> str:
    """The type of an array's elements; of a vector's, too. What is no array stays as it is."""
    vectors = {"int2vector": "smallint", "oidvector": "oid"}
    return vectors.get(name) or (name[len("array<") : -1] if name.startswith("array<") else name)
