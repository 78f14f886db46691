"""Which way a query goes to Spark: by the binder, or, where that does not know all of it yet, by the older translation.

The binder's errors are final: a name that means nothing is an error on either way. `COUNTS` tells how many queries went
which way, and what the binder did not know.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from headrace.errors import HeadraceError
from headrace.sql.binder.bind import Binder, Known, bind_query, reporting
from headrace.sql.binder.changes import Change, bind_change
from headrace.sql.binder.reading import NotBound
from headrace.sql.binder.spark import spark_text
from headrace.sql.binder.tree import Query
from headrace.sql.binder.types import Type, of_spark
from headrace.sql.postgres import parse_statement
from headrace.sql.statements import TableName

COUNTS: Final[Counter[str]] = Counter()
"""How many queries were bound, and how many were not for which reason."""

Relations = tuple[tuple[TableName, tuple[tuple[str, str], ...]], ...]


def bound_text(
    text: str, relations: Mapping[TableName, Mapping[str, str]], routines: frozenset[str],
    rename: Callable[[TableName], str], change: Change | None = None,
) -> str | None:  # fmt: skip
    """Spark's text of a query; None if there is something in it that the binder does not know.

    `relations` are the columns of what it reads, with their Spark types; `routines` names of functions that users have
    created; `change` says which query of an INSERT, UPDATE or DELETE is meant. Errors have their positions in `text`.
    """
    try:
        query = _bound(
            text, tuple((name, tuple(columns.items())) for name, columns in relations.items()), routines, change
        )
        found = spark_text(query, rename)
    except NotBound as unknown:
        COUNTS[f"not bound: {unknown.what}"] += 1
        return None
    except HeadraceError as error:
        COUNTS[f"refused: {error.sqlstate}"] += 1
        raise
    COUNTS["bound"] += 1
    return found


@lru_cache(maxsize=512)
def _bound(text: str, relations: Relations, routines: frozenset[str], change: Change | None) -> Query:
    known = {name: dict(columns) for name, columns in relations}

    parsed, world = parse_statement(text), Known(lambda name: _columns(known, name), routines)
    return bind_query(parsed, world) if change is None else bind_change(parsed, world, change)


def parameter_types(
    text: str, relations: Mapping[TableName, Mapping[str, str]], routines: frozenset[str], given: Sequence[str | None]
) -> list[str | None]:
    """The Spark types of a query's parameters: those given, and those that their places give the others.

    What the binder does not know stays None. Raises the errors that PostgreSQL has.
    """
    kinds = {i + 1: of_spark(spark) for i, spark in enumerate(given) if spark is not None}
    known = Known(lambda name: _columns(relations, name), routines, tuple((n, k) for n, k in kinds.items() if k))
    try:
        parsed = parse_statement(text)
        binder = Binder(parsed, known)
        with reporting(binder, parsed):
            binder.statement()
    except NotBound:
        return list(given)
    return [s if s is not None else _spark(binder.parameters.get(i + 1)) for i, s in enumerate(given)]


def _spark(kind: Type | None) -> str | None:
    return kind.spark if kind is not None else None


def _columns(relations: Mapping[TableName, Mapping[str, str]], name: TableName) -> Mapping[str, str]:
    if name not in relations:
        raise NotBound(f"the relation {name}")
    return relations[name]
