"""A query: which relations it reads, and its text for Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final

from sqlglot import exp
from sqlglot.errors import SqlglotError

from headrace.common.zones import UTC, Zone
from headrace.errors import HeadraceError
from headrace.sql.binder.moments import Times
from headrace.sql.binder.row_changes import QueryWanted
from headrace.sql.binder.way import bound_text
from headrace.sql.binder.world import NOTHING, Routine, World
from headrace.sql.dialect import Headrace
from headrace.sql.function_calls import called, check_known, put_functions
from headrace.sql.law import check_older
from headrace.sql.normalize import fold_names, iter_tables, normalize, strip_catalog, table_name
from headrace.sql.statements import TableName
from headrace.sql.transpile import Schema, is_proctime, to_spark_sql

__all__ = ["Query", "Rename", "Schema"]

Session = tuple[tuple[str, str | bool | int | tuple[str, ...]], ...]
"""Values that only a session knows, by what asks for them, such as `current_user`."""
_TIME_NODES: Final = (exp.CurrentTimestamp, exp.CurrentDate, exp.CurrentTime, exp.Localtime, exp.Localtimestamp)
_TIME_FUNCTIONS: Final = frozenset(
    ("transaction_timestamp", "statement_timestamp", "clock_timestamp", "proctime", "age", "timeofday")
)
Rename = Callable[[TableName], str]
"""Maps a relation to the Spark SQL text that stands for it in `FROM`."""


class Query:
    """A query in the dialect; immutable. `text` is the source it came from.

    `offset` is where that text stands in the script, in characters, if the query is what it says and nothing else; None
    for a query that was made of parts. `refused` says why the older translation does not handle it. `change` says which
    query of an INSERT, UPDATE or DELETE it is, if the text is that of one. `session` are values that only the session
    knows, by what asks for them.
    """

    def __init__(
        self, tree: exp.Expr, text: str, offset: int | None = None, refused: HeadraceError | None = None,
        change: QueryWanted | None = None, session: Session = (),
    ):  # fmt: skip
        try:
            self._tree = normalize(tree)
        except HeadraceError as error:
            self._tree, refused = tree, refused or error
        except (SqlglotError, ValueError, KeyError, AttributeError, TypeError):
            if refused is None:
                raise
            self._tree = tree
        self.text = text
        self.offset = offset
        self.refused = refused
        self.change = change
        self.session = session

    def __repr__(self) -> str:
        return f"Query({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Query) and self._tree == other._tree

    def __hash__(self) -> int:
        return hash(self._tree)

    @property
    def tree(self) -> exp.Expr:
        """A copy of the normalised syntax tree."""
        return self._tree.copy()

    @cached_property
    def _tables(self) -> frozenset[TableName]:
        return frozenset(table_name(table) for table in iter_tables(self._tree))

    def tables(self) -> set[TableName]:
        """The relations it reads, without its CTEs."""
        return set(self._tables)

    def functions(self) -> set[str]:
        """Names of the functions it calls that are not built in."""
        return called(self._tree)

    def to_spark(
        self, rename: Rename, schema: Schema | None = None, routines: Mapping[str, Routine] | None = None,
        *, typed: bool = True, zone: Zone = UTC, times: Times | None = None,
    ) -> str:  # fmt: skip
        """Its Spark SQL text, every relation replaced by `rename`'s text, bound in a time zone.

        `times` are what it has for the times that it asks for, where it is to be run and not to be planned.

        With `schema` (the columns of the relations it reads and their Spark types) the binder makes it, if `typed`
        allows it, and refuses what it does not know. The older translation is left what reads PostgreSQL's catalog,
        and what was defined before there was a binder.
        """
        if typed and schema is not None and self.offset is not None:
            return self.bound(rename, schema, tuple((routines or {}).values()), zone, times)
        if self.refused is not None:
            raise self.refused
        tree = self._tree.copy()
        check_older(tree)
        check_known(tree, routines or {})
        return to_spark_sql(put_functions(tree, routines) if routines else tree, rename, schema)

    def stored_as(self, types: Sequence[str]) -> Query:
        """The query of an INSERT with the Spark types of the columns that its rows are stored in."""
        assert self.change is not None
        change = replace(self.change, types=tuple(types))
        return Query(self._tree, self.text, self.offset, self.refused, change, self.session)

    def world(self, routines: Sequence[Routine] = (), zone: Zone = UTC) -> World:
        """What the query may name beside relations, and the time zone that it is bound in."""
        found = World(tuple(routines), self.session, zone)
        return NOTHING if found == NOTHING else found

    def bound(
        self, rename: Rename, schema: Schema, routines: Sequence[Routine] = (), zone: Zone = UTC,
        times: Times | None = None,
    ) -> str:  # fmt: skip
        """Spark's text by the binder, for a query that is what its text says."""
        try:
            text = self.text if self.change is None else self.change.text
            return bound_text(text, schema, self.world(routines, zone), rename, self.change, times)
        except HeadraceError as error:
            if error.position is not None:
                offset = self.offset or 0
                substituted = self.change is not None and self.change.text != self.text
                error.position = None if substituted else error.position + offset
            raise

    @property
    def is_ordered(self) -> bool:
        """Whether it has an `ORDER BY` of its own."""
        return self._tree.args.get("order") is not None

    @property
    def limit(self) -> int | None:
        """The literal `LIMIT` of the outermost level, if any."""
        limit = self._tree.args.get("limit")
        value = limit.args.get("expression") or limit.args.get("count") if limit is not None else None
        return int(value.name) if isinstance(value, exp.Literal) and value.is_int else None

    def as_of(self) -> dict[TableName, str]:
        """The SQL text of each relation's `FOR SYSTEM_TIME AS OF` expression."""
        found = {}
        for table in iter_tables(self._tree):
            version = table.args.get("version")
            if version is not None and version.args.get("expression") is not None:
                found[table_name(table)] = version.expression.sql(dialect=Headrace)
        return found

    def looked_up(self) -> set[TableName]:
        """The relations it reads `FOR SYSTEM_TIME AS OF PROCTIME()`."""
        return {table_name(t) for t in iter_tables(self._tree) if is_proctime(t.args.get("version"))}

    def uses_now(self) -> bool:
        """Whether its result depends on the current time."""
        if self._tree.find(*_TIME_NODES) is not None:
            return True
        return any(str(call.name).lower() in _TIME_FUNCTIONS for call in self._tree.find_all(exp.Anonymous))


class Expression:
    """A scalar expression in the dialect; immutable."""

    def __init__(self, tree: exp.Expr, text: str):
        self._tree = strip_catalog(tree)
        fold_names(self._tree)
        self.text = text

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expression) and self._tree == other._tree

    def __hash__(self) -> int:
        return hash(self._tree)

    @property
    def tree(self) -> exp.Expr:
        """A copy of the syntax tree."""
        return self._tree.copy()

    def columns(self) -> set[str]:
        """The names of the columns it mentions."""
        return {column.name for column in self._tree.find_all(exp.Column)}

    def to_spark(self) -> str:
        """Its Spark SQL text; columns keep their names."""
        check_known(self._tree, {})
        return to_spark_sql(self.tree, str, None)
