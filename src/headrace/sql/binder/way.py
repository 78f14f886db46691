"""The way of a query to Spark: what the binder does not know is refused. `COUNTS` tells how many were, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from headrace.errors import HeadraceError, NotSupported
from headrace.sql.binder.bind import Binder, BindingContext, bind_query, reporting
from headrace.sql.binder.bound_tree import Query
from headrace.sql.binder.moments import Times, asks, at
from headrace.sql.binder.parse_tree import NotBound
from headrace.sql.binder.row_changes import QueryWanted, bind_change, changed
from headrace.sql.binder.spark_text import spark_text
from headrace.sql.binder.types import Type, of_spark
from headrace.sql.binder.world import World
from headrace.sql.postgres import parse_statement
from headrace.sql.statements import TableName

COUNTS: Final[Counter[str]] = Counter()
"""How many queries were bound, and how many were not for which reason."""

Relations = tuple[tuple[TableName, tuple[tuple[str, str], ...]], ...]


def bound_text(
    text: str, relations: Mapping[TableName, Mapping[str, str]], world: World, rename: Callable[[TableName], str],
    change: QueryWanted | None = None, times: Times | None = None,
) -> str:  # fmt: skip
    """Spark's text of a query, with the times that it asks for where these are given.

    `relations` are the columns of what it reads, with their Spark types; `change` says which query of an INSERT, UPDATE
    or DELETE is meant. Errors have their positions in `text`. Raises `NotSupported` for what the binder does not know.
    """
    try:
        bind = _kept if len(text) <= _KEPT_CHARACTERS else _bound
        query = bind(text, tuple((name, tuple(columns.items())) for name, columns in relations.items()), world, change)
        if times is not None and asks(query):
            query = at(query, times)
        found = spark_text(query, rename)
    except NotBound as unknown:
        COUNTS[f"not supported: {unknown.what}"] += 1
        raise not_supported(unknown, text) from None
    except HeadraceError as error:
        COUNTS[f"refused: {error.sqlstate}"] += 1
        raise
    COUNTS["bound"] += 1
    return found


def bound_change(
    text: str, relations: Mapping[TableName, Mapping[str, str]], world: World, change: QueryWanted
) -> Query:  # fmt: skip
    """The typed tree of the query of an INSERT, UPDATE or DELETE. Raises `NotBound`, and the errors of PostgreSQL."""
    bind = _kept if len(text) <= _KEPT_CHARACTERS else _bound
    return bind(text, tuple((name, tuple(columns.items())) for name, columns in relations.items()), world, change)


def not_supported(unknown: NotBound, text: str) -> NotSupported:
    """The error for what the binder does not know in a text."""
    at = unknown.location
    position = parse_statement(text).position(at) if at is not None and at >= 0 else None
    return NotSupported(f"{unknown.words} is not supported", position=position)


def _bound(text: str, relations: Relations, world: World, change: QueryWanted | None) -> Query:
    known = {name: dict(columns) for name, columns in relations}
    parsed, whole = parse_statement(text), BindingContext(lambda name: _columns(known, name), world)
    return bind_query(parsed, whole) if change is None else bind_change(parsed, whole, change)


_kept = lru_cache(maxsize=512)(_bound)
_KEPT_CHARACTERS: Final = 65_536
"""Larger queries are bound each time."""


def bound_query(
    text: str, relations: Mapping[TableName, Mapping[str, str]], world: World, given: Sequence[str | None] = ()
) -> tuple[Query, tuple[str, ...]]:
    """The typed tree of a query, and the Spark types of its parameters: those given, and those that their places give.

    Raises `NotBound` for what the binder does not know, and the errors that PostgreSQL has.
    """
    bind = _kept_open if len(text) <= _KEPT_CHARACTERS else _bound_open
    found = bind(
        text, tuple((name, tuple(columns.items())) for name, columns in relations.items()), world, tuple(given)
    )
    COUNTS["bound"] += 1
    return found


def _bound_open(
    text: str, relations: Relations, world: World, given: tuple[str | None, ...]
) -> tuple[Query, tuple[str, ...]]:
    columns = {name: dict(columns) for name, columns in relations}
    kinds = {i + 1: of_spark(spark) for i, spark in enumerate(given) if spark is not None}
    parsed = parse_statement(text)
    known = BindingContext(lambda name: _columns(columns, name), world, tuple((n, k) for n, k in kinds.items() if k))
    binder = Binder(parsed, known)
    with reporting(binder, parsed):
        query = binder.statement()
    numbers = range(1, max([len(given), *binder.parameters]) + 1)
    missing = [n for n in numbers if n not in binder.parameters]
    if missing:
        raise NotBound(f"the type of ${missing[0]}")
    return query, tuple(binder.parameters[n].spark for n in numbers)


_kept_open = lru_cache(maxsize=512)(_bound_open)


def parameter_types(
    text: str, relations: Mapping[TableName, Mapping[str, str]], world: World, given: Sequence[str | None],
    change: QueryWanted | None = None,
) -> list[str | None]:  # fmt: skip
    """The Spark types of a query's parameters: those given, and those that their places give the others.

    `change` says which query of an INSERT, UPDATE or DELETE is meant. What the binder does not know stays None. Raises
    the errors that PostgreSQL has.
    """
    kinds = {i + 1: of_spark(spark) for i, spark in enumerate(given) if spark is not None}
    known = BindingContext(lambda name: _columns(relations, name), world, tuple((n, k) for n, k in kinds.items() if k))
    try:
        parsed = parse_statement(text)
        binder = Binder(parsed, known)
        with reporting(binder, parsed):
            if change is None:
                binder.statement()
            else:
                changed(binder, parsed, change)
    except NotBound:
        return list(given)
    return [s if s is not None else _spark(binder.parameters.get(i + 1)) for i, s in enumerate(given)]


def _spark(kind: Type | None) -> str | None:
    return kind.spark if kind is not None else None


def _columns(relations: Mapping[TableName, Mapping[str, str]], name: TableName) -> Mapping[str, str]:
    if name not in relations:
        raise NotBound(f"the relation {name}")
    return relations[name]
