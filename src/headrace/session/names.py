"""What the names in a query stand for: relations of the catalog, system relations, and views to put in their place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import cached_property
from typing import TypeAlias

from headrace.catalog.catalog import Catalog
from headrace.catalog.contents import (
    CONTENTS,
    Content,
    FunctionContent,
    IndexContent,
    SchemaContent,
    SourceContent,
    ViewContent,
)
from headrace.catalog.records import ObjectRecord
from headrace.catalog.state import CatalogState
from headrace.common.columns import Column
from headrace.common.lazy_dataclass import dataclass
from headrace.common.zones import UTC, Zone
from headrace.errors import (
    HeadraceError,
    InvalidParameter,
    NotSupported,
    StatementError,
    UndefinedTable,
    WrongObjectType,
)
from headrace.session.context import Context
from headrace.session.created_functions import routine_of
from headrace.session.result import Origin, ResultColumn
from headrace.session.rights import Rights
from headrace.session.system.state_relations import SCHEMA as INTERNAL
from headrace.session.system.state_relations import StateRelation, internal_relation
from headrace.session.system.system_lookup import system_relation
from headrace.session.system.system_relations import SystemRelation
from headrace.sql.binder.bound_tree import Call, everything
from headrace.sql.binder.bound_tree import Query as Tree
from headrace.sql.binder.moments import Times
from headrace.sql.binder.origins import column_origins
from headrace.sql.binder.parse_tree import NotBound
from headrace.sql.binder.spark_text import quoted
from headrace.sql.binder.way import bound_change, bound_query, parameter_types
from headrace.sql.binder.world import Routine
from headrace.sql.parser import parse_query
from headrace.sql.query import Query
from headrace.sql.statements import TableName

_MAX_VIEW_DEPTH = 64
_EMULATED = ("pg_catalog", "information_schema")

Target: TypeAlias = ObjectRecord | SystemRelation
Leaf: TypeAlias = Callable[[Target], str]
"""Spark SQL text that stands for a stored or a system relation in `FROM`."""


_CONFIDENTIAL = {("headrace_catalog", "row_errors"), ("headrace_catalog", "events")}
"""System relations that show rows, or what others did."""


def table_name(text: str) -> TableName:
    """The name of a relation as a program writes it. Raises `InvalidParameter`."""
    parts = [part.strip().strip('"') for part in text.split(".")]
    if len(parts) > 2 or not all(parts):
        raise InvalidParameter(f"{text!r} is not the name of a relation")
    return TableName(parts[0] if len(parts) == 2 else None, parts[-1])


def label(record: ObjectRecord) -> str:
    """The object's name as messages spell it."""
    return record.name if record.schema in ("", "public") else f"{record.schema}.{record.name}"


def check_named(state: CatalogState, record: ObjectRecord) -> None:
    """Raise `StatementError` for an object that has another name by now, or is gone."""
    check_same(state.object_named(record.schema, record.name), record)


def check_same(found: object, record: ObjectRecord) -> None:
    """Raise `StatementError` where a name stands for something else by now than when a statement looked at it first."""
    if not isinstance(found, ObjectRecord) or found.id != record.id:
        raise StatementError(f'"{label(record)}" was renamed or dropped meanwhile', sqlstate="55000", hint="try again")


def kind_called(word: str) -> type[Content] | None:
    """The kind that SQL has a word for: `materialized view`, `aggregate`; None for none."""
    return FunctionContent if word == "aggregate" else CONTENTS.get(word.replace(" ", "_"))


@dataclass(frozen=True)
class Names:
    """Look-up of names along a search path."""

    catalog: Catalog
    search_path: tuple[str, ...] = ("public",)
    checked: bool = True
    """Whether the catalog is asked for each look-up if it still belongs to this process."""
    rights: Rights | None = None
    """Of whom what is read is checked; None where nobody asks for it."""
    zone: Zone = UTC
    """The time zone in which queries are bound, those of plain views in them included."""
    made: int | None = None
    """The id of the plain view whose names are looked up: it has the columns that there were when it was made."""
    state: CatalogState | None = None
    """What is looked up in; None for what there is at each look-up."""

    def now(self) -> Names:
        """The same in what there is now: a query's names, those of views in it included, are of one moment."""
        return self if self.state is not None else replace(self, state=self._newest())

    def _newest(self) -> CatalogState:
        return self.catalog.state if self.checked else self.catalog.image

    @property
    def schema(self) -> str:
        """The schema in which new objects are made."""
        for schema in self.search_path:
            if self.catalog.state.object_named("", schema) is not None:
                return schema
        return "public"

    def find(self, name: TableName) -> ObjectRecord | None:
        """The object of that name, whatever its kind."""
        state = self._newest() if self.state is None else self.state
        for schema in (name.schema,) if name.schema else self.search_path:
            found = state.object_named(schema, name.name)
            if found is not None and not isinstance(found.content, SchemaContent):
                return found
        return None

    def get(self, name: TableName) -> ObjectRecord:
        """The object of that name. Raises `UndefinedTable`, with similar names as a hint."""
        found = self.find(name)
        if found is None:
            raise self._undefined(name)
        return found

    def functions(self, names: Iterable[str]) -> dict[str, ObjectRecord]:
        """Those of the names that are functions somebody created."""
        found = {name: self.find(TableName(None, name)) for name in names}
        called = {name: o for name, o in found.items() if o is not None and isinstance(o.content, FunctionContent)}
        for record in called.values():
            if self.rights is not None:
                self.rights.require("X", record)
        return called

    def target(self, name: TableName) -> Target:
        """The relation that a query means by a name. Raises `InsufficientPrivilege` for one that must not be read."""
        if self.rights is not None:
            _ = self.rights.superuser  # also system relations are for roles that there are
        if name.schema == INTERNAL:
            if self.rights is not None:
                self.rights.require_member("pg_read_all_data", f"read {name}")
            return internal_relation(self.catalog, name.name)
        if name.schema in (None, "pg_catalog", "information_schema", "rw_catalog", "headrace_catalog"):
            system = system_relation(name.schema, name.name)
            if system is not None and (name.schema is not None or self.find(name) is None):
                if self.rights is not None and system.key in _CONFIDENTIAL:
                    self.rights.require_member("pg_monitor", f"read {name}")
                return system
        found = self.get(name)
        if not found.content.readable:
            raise WrongObjectType(f'cannot read from {found.kind_name} "{name}"')
        if isinstance(found.content, SourceContent) and found.content.shared:
            raise WrongObjectType(
                f'source "{name}" has no rows of its own', hint=f"CREATE TABLE t (*) FROM {name} TABLE 'schema.table'"
            )
        if isinstance(found.content, SourceContent) and found.content.origin is not None:
            raise WrongObjectType(
                f'source "{name}" is what a table is made of, and begins and goes on with it', hint="read the table"
            )
        if self.rights is not None:
            self.rights.require("r", found)
        return found

    def inside(self, view: ObjectRecord) -> Names:
        """Look-up of the names in a view, with its search path and the rights of its owner."""
        path = view.content_as(ViewContent).search_path
        rights = None if self.rights is None else Rights.of(self.rights.state, view.owner)
        return Names(self.catalog, path, rights=rights, zone=self.zone, made=view.id, state=self.state)

    def _undefined(self, name: TableName) -> UndefinedTable:
        known = [label(o) for o in self.catalog.state.objects.values() if o.content.relation]
        similar = get_close_matches(str(name), known, n=3, cutoff=0.6)
        hint = f"Perhaps you meant {' or '.join(chr(34) + s + chr(34) for s in similar)}." if similar else None
        return UndefinedTable(f'relation "{name}" does not exist', hint=hint)


def names_of(context: Context, *, checked: bool = True) -> Names:
    """Look-up along a session's search path. Unchecked, for what finds out by itself if the catalog is lost."""
    return Names(context.catalog, context.variables.search_path(), checked, context.rights, context.zone)


class BoundQuery:
    """A query whose names are resolved; plain views are part of it as queries of their own."""

    def __init__(self, query: Query, names: Names, depth: int = 0, typed: bool = True):
        if depth > _MAX_VIEW_DEPTH:
            raise NotSupported("views are nested too deeply")
        names = names.now()
        self.query = query
        self._typed = typed
        """Whether the binder may translate it; views from before there was one keep the meaning that they had."""
        self._depth = depth
        self._made = names.made
        self.catalog = names.catalog
        self.zone = names.zone
        self.targets: dict[TableName, Target] = {n: names.target(n) for n in _sorted(query.tables())}
        self.functions = names.functions(sorted(query.functions()))
        self._inner: dict[int, BoundQuery] = {}
        for found in self.targets.values():
            view = found.content if isinstance(found, ObjectRecord) else None
            if isinstance(found, ObjectRecord) and isinstance(view, ViewContent) and found.id not in self._inner:
                self._inner[found.id] = BoundQuery(parse_query(view.query), names.inside(found), depth + 1, view.typed)

    def indexed(self) -> set[int]:
        """Ids of the relations that have an index of a user's."""
        found = (record.content_as(IndexContent) for record in self.catalog.state.objects_of(IndexContent))
        return {index.on for index in found if not index.automatic}

    def schema(self) -> Mapping[TableName, Mapping[str, str]]:
        """Columns and types of what it reads, by the names it uses; in a plain view those of when that was made."""
        return {name: {c.name: c.type for c in self._columns(found)} for name, found in self.targets.items()}

    def _columns(self, target: Target) -> Sequence[Column]:
        if self._made is None or not isinstance(target, ObjectRecord):
            return target.columns
        return target.columns[: target.content.width_before(self._made)]

    def leaves(self) -> Iterator[Target]:
        """The stored and system relations it reads, those inside views included, each once."""
        seen: set[object] = set()
        for found in self._all():
            if found.key not in seen and not _is_view(found):
                seen.add(found.key)
                yield found

    def relations(self) -> dict[int, ObjectRecord]:
        """The stored relations it reads, by id."""
        return {found.id: found for found in self.leaves() if isinstance(found, ObjectRecord)}

    def state_tables(self) -> dict[int, StateRelation]:
        """The state tables it reads, by id."""
        return {found.table_id: found for found in self.leaves() if isinstance(found, StateRelation)}

    def dependencies(self) -> tuple[int, ...]:
        """Ids of the objects that it names, plain views and functions included."""
        named = [*self.targets.values(), *self.functions.values()]
        return tuple(sorted({t.id for t in named if isinstance(t, ObjectRecord)}))

    def check_names(self) -> None:
        """Raise `StatementError` where something that it names has another name by now, or is gone.

        Who makes something of it asks for that while nothing else is defined: it is kept by its text, too.
        """
        for found in (*self.targets.values(), *self.functions.values()):
            if isinstance(found, ObjectRecord):
                check_named(self.catalog.state, found)

    def queries(self) -> Iterator[Query]:
        """The query and those of the views in it."""
        yield from (part.query for part in self.parts())

    def parts(self) -> Iterator[BoundQuery]:
        """The bound query and those of the views in it."""
        yield self
        for inner in self._inner.values():
            yield from inner.parts()

    def spark(self, leaf: Leaf, times: Times | None = None) -> str:
        """Spark SQL text with `leaf`'s text for each relation, and `times` where they are asked for."""

        def rename(name: TableName) -> str:
            found = self.targets[name]
            inner = self._inner.get(found.id) if isinstance(found, ObjectRecord) else None
            if inner is None:
                return leaf(found)
            columns = ", ".join(quoted(c.name) for c in found.columns)
            return f"(SELECT * FROM ({inner.spark(leaf, times)}) AS __view({columns}))"

        routines = {name: routine_of(record) for name, record in self.functions.items()}
        try:
            typed = self._typed and not self._emulates()
            return self.query.to_spark(rename, self.schema(), routines, typed=typed, zone=self.zone, times=times)
        except HeadraceError as error:
            if self._depth:
                error.position = None  # it is one in the view's text
            raise

    @cached_property
    def uses_now(self) -> bool:
        """Whether what it gives depends on the current time, that of a view in it included."""
        return any(query.uses_now() for query in self.queries())

    @property
    def by_binder(self) -> bool:
        """Whether the binder says what the query and all views in it mean."""
        return all(p._typed and not p._emulates() and p.query.offset is not None for p in self.parts())

    @property
    def typed(self) -> bool:
        """Whether the binder says what the query itself means, views in it aside."""
        if self._emulates() or self.query.offset is None:
            return False
        self.query.bound(str, self.schema(), self._routines(), self.zone)
        return True

    @property
    def is_volatile(self) -> bool:
        """Whether it calls what may have another value each time, as far as the binder says what it means."""
        if not self._typed or self._emulates() or self.query.offset is None:
            return False
        try:
            tree, _ = bound_query(self.query.text, self.schema(), self.query.world(self._routines(), self.zone))
        except NotBound:
            return False
        return any(isinstance(part, Call) and part.volatile for part in everything(tree))

    def with_origins(self, columns: Sequence[ResultColumn]) -> list[ResultColumn]:
        """The query's columns, with what says which of them are columns of relations."""
        if not self._typed or self._emulates() or self.query.offset is None:
            return list(columns)
        try:
            world = self.query.world(self._routines(), self.zone)
            found = column_origins(bound_query(self.query.text, self.schema(), world)[0])
        except (NotBound, HeadraceError):  # a parameter that has no type, or what the older translation understands
            return list(columns)
        return [
            column if origin is None else replace(column, origin=self._origin(*origin))
            for column, origin in zip(columns, found, strict=True)
        ]

    def _origin(self, name: TableName, column: str) -> Origin | None:
        target = self.targets.get(name)
        if not isinstance(target, ObjectRecord):
            return None
        return Origin(target.id, 1 + [c.name for c in target.columns].index(column))

    def _routines(self) -> tuple[Routine, ...]:
        return tuple(routine_of(record) for _, record in sorted(self.functions.items()))

    def _emulates(self) -> bool:
        """Whether it reads PostgreSQL's own catalog, whose columns have not all the types here that they have there."""
        return any(isinstance(t, SystemRelation) and t.schema in _EMULATED for t in self.targets.values())

    def changed(self) -> Tree:
        """The typed tree of the query of an INSERT, UPDATE or DELETE. Raises `NotBound`."""
        query = self.query
        assert query.change is not None
        world = query.world(self._routines(), self.zone)
        return bound_change(query.change.text, self.schema(), world, query.change)

    def parameter_types(self, given: Sequence[str | None]) -> list[str | None]:
        """The Spark types of the query's parameters, as far as they are given or the binder finds them."""
        query = self.query
        return parameter_types(query.text, self.schema(), query.world(self._routines(), self.zone), given, query.change)

    def _all(self) -> Iterator[Target]:
        for found in self.targets.values():
            yield found
            if isinstance(found, ObjectRecord) and found.id in self._inner:
                yield from self._inner[found.id]._all()


def _is_view(target: Target) -> bool:
    return isinstance(target, ObjectRecord) and isinstance(target.content, ViewContent)


def _sorted(names: set[TableName]) -> list[TableName]:
    return sorted(names, key=lambda n: (n.schema or "", n.name))


def null_relation(columns: Sequence[Column]) -> str:
    """Spark SQL text of a relation with these columns, for analysis only."""
    items = ", ".join(f"CAST(NULL AS {c.type}) AS {quoted(c.name)}" for c in columns)
    return f"(SELECT {items or '1'})"
