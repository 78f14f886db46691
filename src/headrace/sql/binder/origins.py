"""Origins: which column of which relation a query's column is, where it is nothing but that.

Clients ask by them whether a column may be NULL and which row a value came from, so that it can be changed in place
(PostgreSQL's protocol tells them in `RowDescription`). What is computed has no origin, and neither has what comes of a
UNION or of a relation's row as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from headrace.sql.binder import bound_tree as bt
from headrace.sql.statements import TableName

ColumnOrigin: TypeAlias = tuple[TableName, str]
"""A relation as the query names it, and the name of its column."""


def column_origins(query: bt.Query) -> list[ColumnOrigin | None]:
    """Of each column of a query its origin, subqueries and CTEs looked through; None for one that has none."""
    if not isinstance(query, bt.SelectQuery):
        return [None] * len(query.names)
    relations = {found.id: found for found in _relations(query.source)}
    return [_origin(output.value, relations) for output in query.outputs]


def _relations(source: bt.Relation | None) -> Iterator[bt.Scan | bt.Derived]:
    """What the columns of a FROM clause may come from unchanged."""
    stack = [source]
    while stack:
        found = stack.pop()
        if isinstance(found, bt.JoinedRelation):
            stack += [found.left, found.right]
        elif isinstance(found, (bt.Scan, bt.Derived)):
            yield found


def _origin(value: bt.Expr, relations: dict[int, bt.Scan | bt.Derived]) -> ColumnOrigin | None:
    if not isinstance(value, bt.BoundColumn):
        return None
    relation = relations.get(value.relation)
    if isinstance(relation, bt.Scan):
        return relation.table, value.name
    if isinstance(relation, bt.Derived) and value.name in relation.columns:
        return column_origins(relation.query)[relation.columns.index(value.name)]
    return None
