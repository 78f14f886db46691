"""The typed tree that the binder makes: every name is resolved, every expression has a type."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, fields, replace
from typing import Any, Final

from headrace.common.lazy_dataclass import dataclass
from headrace.sql.binder.types import BOOL, Type
from headrace.sql.statements import TableName


@dataclass(frozen=True, slots=True)
class Expr:
    """An expression; Spark computes it as a value of `type.spark`."""

    type: Type

    def children(self) -> tuple[Expr, ...]:
        """The expressions right below it."""
        return ()


@dataclass(frozen=True, slots=True)
class BoundColumn(Expr):
    """A column of a relation of this query or of one around it."""

    relation: int
    name: str
    shown: str = field(compare=False)
    """How messages call it."""


@dataclass(frozen=True, slots=True)
class Constant(Expr):
    """A literal: the text that spells it, None for NULL."""

    text: str | None


@dataclass(frozen=True, slots=True)
class Parameter(Expr):
    """`$number`; `found` gets the type that its first place gives it."""

    number: int
    found: dict[int, Type] = field(compare=False, repr=False)

    def as_type(self, target: Type) -> Parameter:
        """The parameter where a value of a type is wanted."""
        return Parameter(self.found.setdefault(self.number, target), self.number, self.found)


@dataclass(frozen=True, slots=True)
class Call(Expr):
    """A function, an operator or a cast: `form` is Spark's text, with `{0}`, `{1}`, ... for the arguments.

    `volatile` says that it may have another value each time.
    """

    form: str
    arguments: tuple[Expr, ...]
    volatile: bool = False

    def children(self) -> tuple[Expr, ...]:
        return self.arguments


@dataclass(frozen=True, slots=True)
class SortKey:
    """An expression of ORDER BY; `output` is the number of the output column that it is, from 1."""

    value: Expr
    descending: bool
    nulls_first: bool
    output: int | None = None


@dataclass(frozen=True, slots=True)
class BoundAggregate(Expr):
    """A call of an aggregate: `form` is as in `Call`, with `{d}` where DISTINCT stands."""

    form: str
    arguments: tuple[Expr, ...]
    distinct: bool
    order: tuple[SortKey, ...]
    where: Expr | None

    def children(self) -> tuple[Expr, ...]:
        where = () if self.where is None else (self.where,)
        return (*self.arguments, *(key.value for key in self.order), *where)


@dataclass(frozen=True, slots=True)
class Over(Expr):
    """A window function or an aggregate over a window; `frame` is Spark's text."""

    function: Expr
    partition: tuple[Expr, ...]
    order: tuple[SortKey, ...]
    frame: str

    def children(self) -> tuple[Expr, ...]:
        return (*self.function.children(), *self.partition, *(key.value for key in self.order))


@dataclass(frozen=True, slots=True)
class Nested(Expr):
    """A query in an expression: `form` has `{q}` for it."""

    form: str
    query: Query
    arguments: tuple[Expr, ...]

    def children(self) -> tuple[Expr, ...]:
        return self.arguments


# ---- relations


@dataclass(frozen=True, slots=True)
class Relation:
    """What stands in FROM. Those with an id give their columns names of their own."""


@dataclass(frozen=True, slots=True)
class Scan(Relation):
    """A stored relation, or a view."""

    id: int
    table: TableName
    looked_up: bool = False
    """Whether it is read as it is when a row of the other side comes."""


@dataclass(frozen=True, slots=True)
class Derived(Relation):
    """A query in FROM, its columns renamed."""

    id: int
    query: Query
    columns: tuple[str, ...]
    lateral: bool


@dataclass(frozen=True, slots=True)
class Produced(Relation):
    """The rows that an array is exploded to; two columns are the place from 0, and the value."""

    id: int
    call: Expr
    columns: tuple[str, ...]
    lateral: bool


@dataclass(frozen=True, slots=True)
class Called(Relation):
    """The rows of a table function that a user has created."""

    id: int
    call: Expr
    lateral: bool


@dataclass(frozen=True, slots=True)
class WindowedRelation(Relation):
    """The rows of a relation, each once for each window of time that it is in; `widths` are Spark's texts."""

    id: int
    source: Relation
    time: Expr
    widths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sessions(Relation):
    """The rows of a relation with the session that each is in; `keys` are the columns that part it, by their names."""

    id: int
    source: Relation
    time: Expr
    gap: Expr
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Itself(Relation):
    """What a recursive query has found so far, in the query that finds more."""

    id: int
    number: int


@dataclass(frozen=True, slots=True)
class JoinedRelation(Relation):
    """A join; `kind` is Spark's words."""

    kind: str
    left: Relation
    right: Relation
    condition: Expr | None


# ---- queries


@dataclass(frozen=True, slots=True)
class Output:
    """A column of a query: its name is what the user gave or PostgreSQL gives."""

    name: str
    value: Expr


@dataclass(frozen=True, slots=True)
class Query:
    """Any query; `types` are those of its columns."""

    names: tuple[str, ...]
    types: tuple[Type, ...]
    order: tuple[SortKey, ...]
    limit: Expr | None
    offset: Expr | None


@dataclass(frozen=True, slots=True)
class SelectQuery(Query):
    """A SELECT; `grouped` says whether it has one row for each group, `groups` are Spark's grouping clause."""

    outputs: tuple[Output, ...]
    source: Relation | None
    where: Expr | None
    groups: tuple[Expr, ...]
    grouping: str
    """Empty, or Spark's text with `{0}`, ... for the expressions of `groups`."""
    having: Expr | None
    distinct: bool


@dataclass(frozen=True, slots=True)
class Values(Query):
    """Rows of expressions."""

    rows: tuple[tuple[Expr, ...], ...]


@dataclass(frozen=True, slots=True)
class SetOperation(Query):
    """`UNION`, `INTERSECT` or `EXCEPT`, with `ALL` or without; both sides have the types of the whole."""

    operator: str
    left: Query
    right: Query


@dataclass(frozen=True, slots=True)
class Recursive(Query):
    """`WITH RECURSIVE`: the rows of `first`, and those that `following` makes of rows until there are none."""

    number: int
    first: Query
    following: Query


def conjunction(word: str, parts: Sequence[Expr]) -> Expr:
    """All of them with AND, or with OR, between."""
    if len(parts) == 1:
        return parts[0]
    return Call(BOOL, "(" + f" {word} ".join(f"{{{i}}}" for i in range(len(parts))) + ")", tuple(parts))


def walk(expr: Expr) -> Iterator[Expr]:
    """An expression and all below it, without queries in it."""
    stack = [expr]
    while stack:
        found = stack.pop()
        yield found
        stack.extend(found.children())


def everything(query: Query) -> Iterator[Expr]:
    """All expressions of a query, those of the queries in it included."""
    stack: list[object] = [query]
    while stack:
        found = stack.pop()
        if isinstance(found, Expr):
            yield found
        if isinstance(found, (Expr, Query, Relation, Output, SortKey)):
            stack.extend(getattr(found, f.name) for f in fields(found))
        elif isinstance(found, tuple):
            stack.extend(found)


def filled(query: Query, texts: Sequence[str]) -> Query:
    """A query with literals in the place of its parameters."""
    return mapped(query, lambda e: Constant(e.type, texts[e.number - 1]) if isinstance(e, Parameter) else None)


def mapped(query: Query, change: Callable[[Expr], Expr | None]) -> Query:
    """A query with others in the place of its expressions, those of queries in it, too; None leaves one as it is."""
    found: Query = _mapped(query, change)
    return found


def renamed(expr: Expr, name: str) -> Expr:
    """An expression with another column of its relation in the place of the only one that it names."""
    found: Expr = _mapped(expr, lambda e: replace(e, name=name) if isinstance(e, BoundColumn) else None)
    return found


def _mapped(part: Any, change: Callable[[Expr], Expr | None]) -> Any:
    if isinstance(part, Expr) and (new := change(part)) is not None:
        return new
    if isinstance(part, tuple):
        return tuple(_mapped(item, change) for item in part)
    if isinstance(part, (Expr, Query, Relation, Output, SortKey)):
        return replace(part, **{f.name: _mapped(getattr(part, f.name), change) for f in fields(part)})
    return part


_HOLE: Final = re.compile(r"\{(\d+|[a-z])\}")


def fill(form: str, parts: Sequence[str], named: Mapping[str, str] | None = None) -> str:
    """A form with Spark's texts in its holes `{0}`, `{1}`, ... and `{q}`; what the texts say is not looked at again."""

    def text(hole: re.Match[str]) -> str:
        key = hole[1]
        return parts[int(key)] if key.isdigit() else (named or {}).get(key, hole[0])

    return _HOLE.sub(text, form)
