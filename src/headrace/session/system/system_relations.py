"""The system relations: their columns, and the rows that the catalog gives them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from headrace.common.columns import Column
from headrace.common.lazy_dataclass import dataclass
from headrace.session.context import Context
from headrace.sql.binder.spark_text import quoted
from headrace.sql.catalog_types import CATALOG_TYPES, held_as

Rows: TypeAlias = Iterable[dict[str, Any]]
"""One dict per row; a column that is left out has its default."""


SYSTEM_SCHEMAS: Final = ("pg_catalog", "information_schema", "headrace_catalog", "headrace_internal", "rw_catalog")
"""The schemas that hold them."""


def literal(value: object) -> str:
    """A value as Spark SQL."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, (list, tuple)):
        return f"array({', '.join(literal(v) for v in value)})"
    return "'" + str(value).replace("\\", "\\\\").replace("'", "\\'") + "'"


@dataclass(frozen=True)
class SystemRelation:
    """A relation that is computed when it is read."""

    schema: str
    name: str
    columns: tuple[Column, ...]
    types: Mapping[str, str]
    """PostgreSQL's types of columns that have one of the catalogs' own."""
    defaults: dict[str, object]
    rows: Callable[[Context], Rows]

    @property
    def key(self) -> tuple[str, str]:
        """Schema and name."""
        return (self.schema, self.name)

    def text(self, context: Context, names: Sequence[str]) -> str:
        """Spark SQL of its rows, with the columns `names`."""
        types = {c.name: c.type for c in self.columns}
        items = ", ".join(f"CAST(c{i} AS {types[n]}) AS {quoted(n)}" for i, n in enumerate(names))
        rows = [[row.get(n, self.defaults.get(n)) for n in names] for row in self.rows(context)]
        if not rows:
            empty = ", ".join(f"CAST(NULL AS {types[n]}) AS {quoted(n)}" for n in names)
            return f"(SELECT {empty} WHERE false)"
        values = ", ".join("(" + ", ".join(literal(v) for v in row) + ")" for row in rows)
        heads = ", ".join(f"c{i}" for i in range(len(names)))
        return f"(SELECT {items} FROM VALUES {values} AS __rows({heads}))"


_RELATIONS: dict[tuple[str, str], SystemRelation] = {}


def define(
    schema: str, name: str, columns: str, rows: Callable[[Context], Rows] = lambda context: (), **defaults: object
) -> None:
    """Add a relation; `columns` is `name type, name type, ...`, text where there is no type.

    A type is Spark's, or one of the catalogs' own.
    """
    parts = [part.split() for part in columns.split(",")]
    types = {p[0]: p[1] if len(p) > 1 else "string" for p in parts}
    made = tuple(Column(name, held_as(kind)) for name, kind in types.items())
    own = {name: kind for name, kind in types.items() if kind in CATALOG_TYPES}
    _RELATIONS[schema, name] = SystemRelation(schema, name, made, own, defaults, rows)


def defined(schema: str, name: str) -> SystemRelation | None:
    """The relation that has been defined by that name."""
    return _RELATIONS.get((schema, name))
