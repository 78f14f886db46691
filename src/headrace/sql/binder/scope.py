"""Which names can be seen where: relations, their columns, and those of the queries around."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace

from headrace.common.lazy_dataclass import dataclass
from headrace.errors import StatementError, UndefinedColumn, UndefinedTable
from headrace.sql.binder.bound_tree import Expr, Query
from headrace.sql.binder.types import Type


@dataclass(frozen=True, slots=True)
class Item:
    """A relation in FROM, or what a join makes of two: its columns in order.

    `named` says whether its name may be used to qualify columns, `open` whether its columns are found without it.
    """

    name: str | None
    schema: str | None
    columns: tuple[tuple[str, Expr], ...]
    named: bool = True
    open: bool = True
    scalar: bool = False
    """Whether it is a function of one value, for which its name stands, too."""

    def closed(self) -> Item:
        """The same inside of a join: only its name is left."""
        return replace(self, open=False)

    def find(self, column: str) -> list[Expr]:
        """Its columns of that name."""
        return [value for name, value in self.columns if name == column]


@dataclass
class PendingCte:
    """A CTE of `WITH RECURSIVE` that is bound now; `types` are None where it may not be used."""

    names: tuple[str, ...] = ()
    types: tuple[Type, ...] | None = None
    number: int = 0
    uses: int = 0


@dataclass
class Scope:
    """What one query sees. `outer` are the queries around it; `ctes` those of WITH."""

    outer: Scope | None = None
    items: list[Item] = field(default_factory=list)
    ctes: dict[str, Query | PendingCte] = field(default_factory=dict)

    def cte(self, name: str) -> Query | PendingCte | None:
        """The query of a CTE in sight; None if there is none of that name."""
        at: Scope | None = self
        while at is not None:
            if name in at.ctes:
                return at.ctes[name]
            at = at.outer
        return None

    def column(self, name: str, location: int) -> Expr | None:
        """The column of that name without a qualifier; None if there is none."""
        at: Scope | None = self
        while at is not None:
            found = [value for item in at.items if item.open for value in item.find(name)]
            if len(found) > 1:
                raise Ambiguous(f'column reference "{name}" is ambiguous', location)
            if found:
                return found[0]
            at = at.outer
        return None

    def qualified(self, relation: str, schema: str | None, column: str, location: int) -> Expr:
        """The column of a relation. Raises `Missing`."""
        item = self.item(relation, schema, location)
        found = item.find(column)
        if len(found) > 1:
            raise Ambiguous(f'column reference "{column}" is ambiguous', location)
        if not found:
            raise Missing(f"column {relation}.{column} does not exist", location)
        return found[0]

    def item(self, relation: str, schema: str | None, location: int) -> Item:
        """The relation of that name. Raises `Missing`."""
        at: Scope | None = self
        while at is not None:
            found = [
                item for item in at.items
                if item.named and item.name == relation and (schema is None or item.schema == schema)
            ]  # fmt: skip
            if len(found) > 1:
                raise Ambiguous(f'table reference "{relation}" is ambiguous', location)
            if found:
                return found[0]
            at = at.outer
        shown = f"{schema}.{relation}" if schema else relation
        raise Missing(f'missing FROM-clause entry for table "{shown}"', location)

    def has(self, relation: str) -> bool:
        """Whether there is a relation of that name."""
        try:
            self.item(relation, None, 0)
        except (Missing, Ambiguous):
            return False
        return True


class Located(Exception):
    """A fault of the statement, with its place in bytes."""

    def __init__(self, message: str, location: int | None):
        super().__init__(message)
        self.message = message
        self.location = location

    def error(self, position: int | None) -> StatementError:
        """What the user sees."""
        return StatementError(self.message, position=position)


class Ambiguous(Located):
    """A name that means several things."""

    def error(self, position: int | None) -> StatementError:
        return StatementError(self.message, sqlstate="42702", position=position)


class Missing(Located):
    """A name that means nothing."""

    def error(self, position: int | None) -> StatementError:
        kind = UndefinedTable if self.message.startswith("missing FROM") else UndefinedColumn
        return kind(self.message, position=position)


class Wrong(Located):
    """Any other fault, with its SQLSTATE."""

    def __init__(self, message: str, sqlstate: str, location: int | None, hint: str | None = None):
        super().__init__(message, location)
        self.sqlstate = sqlstate
        self.hint = hint

    def error(self, position: int | None) -> StatementError:
        return StatementError(self.message, sqlstate=self.sqlstate, position=position, hint=self.hint)


def duplicate(items: Sequence[Item]) -> str | None:
    """A name that two relations of one FROM have."""
    seen: set[tuple[str | None, str | None]] = set()
    for item in items:
        if item.named and item.name is not None:
            if (item.name, item.schema) in seen:
                return item.name
            seen.add((item.name, item.schema))
    return None
