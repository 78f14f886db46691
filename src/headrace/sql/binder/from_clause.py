"""FROM: relations, joins, subqueries and functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from postgast import pg_query_pb2 as pb

from headrace.sql.binder import types as t
from headrace.sql.binder.bound_tree import (
    BoundColumn,
    Call,
    Called,
    Constant,
    Derived,
    Expr,
    Itself,
    JoinedRelation,
    Query,
    Relation,
    Scan,
    Sessions,
    WindowedRelation,
    everything,
)  # fmt: skip
from headrace.sql.binder.coerce import to_common
from headrace.sql.binder.expression_binder import Expressions, conjunction
from headrace.sql.binder.own import over_both
from headrace.sql.binder.parse_tree import Message, Nodes, NotBound, declare, inner, kind_of, refuse, strings
from headrace.sql.binder.routines import table_call
from headrace.sql.binder.scope import Item, PendingCte, Scope, Wrong, duplicate
from headrace.sql.binder.set_functions import has_columns as _has_columns
from headrace.sql.binder.set_functions import rows_of
from headrace.sql.binder.spans import DAYTIME, of_daytime
from headrace.sql.binder.types import Type
from headrace.sql.binder.world import Routine
from headrace.sql.intervals import parse_interval, spark_interval
from headrace.sql.statements import DATABASE, TableName

if TYPE_CHECKING:
    from headrace.sql.binder.bind import Binder

declare("RangeVar", "catalogname schemaname relname inh relpersistence alias")
declare("RangeSubselect", "lateral subquery alias")
declare("RangeFunction", "lateral functions alias ordinality")
declare("JoinExpr", "jointype is_natural larg rarg using_clause quals")
declare("Alias", "aliasname colnames")

_KINDS: Final = {
    pb.JOIN_INNER: "INNER JOIN", pb.JOIN_LEFT: "LEFT OUTER JOIN", pb.JOIN_RIGHT: "RIGHT OUTER JOIN",
    pb.JOIN_FULL: "FULL OUTER JOIN",
}  # fmt: skip


class Relations:
    """Binds the FROM clause of one query; its scope gets the names."""

    def __init__(self, binder: Binder, scope: Scope):
        self.binder = binder
        self.scope = scope

    def source(self, nodes: Nodes) -> Relation | None:
        """The relations of a FROM clause, those with a comma between them as a cross join."""
        found: Relation | None = None
        for node in nodes:
            relation, items = self._relation(node)
            self._add(items)
            found = relation if found is None else JoinedRelation("CROSS JOIN", found, relation, None)
        return found

    def _add(self, items: Sequence[Item]) -> None:
        self.scope.items.extend(items)
        again = duplicate(self.scope.items)
        if again is not None:
            raise Wrong(f'table name "{again}" specified more than once', "42712", None)

    def _relation(self, node: pb.Node) -> tuple[Relation, list[Item]]:
        kind = kind_of(node)
        message = inner(node)
        if kind == "RangeVar":
            return self.table(message)
        if kind == "RangeSubselect":
            return self._subquery(message)
        if kind == "JoinExpr":
            return self._join(message)
        if kind == "RangeFunction":
            return self._function(message)
        refuse(kind, message)

    # ---- relations by name

    def table(self, message: pb.RangeVar) -> tuple[Relation, list[Item]]:
        """A relation by its name."""
        if not message.inh:
            refuse("ONLY", message)
        if message.catalogname and message.catalogname != DATABASE:
            name = f"{message.catalogname}.{message.schemaname}.{message.relname}"
            raise Wrong(f'cross-database references are not implemented: "{name}"', "0A000", message.location)
        alias = inner(message.alias) if message.HasField("alias") else None
        if not message.schemaname:
            cte = self.scope.cte(message.relname)
            if isinstance(cte, PendingCte):
                return self._itself(cte, alias, message)
            if cte is not None:
                self._require_stable(cte, message)
                return self._derived(cte, alias, message.relname, False)
        return self._scan(TableName(message.schemaname or None, message.relname), alias, message.location)

    def _scan(self, name: TableName, alias: pb.Alias | None, location: int) -> tuple[Relation, list[Item]]:
        found = self.binder.columns(name, location)
        number = self.binder.next_id()
        shown = alias.aliasname if alias is not None else name.name
        columns = [(n, _current(BoundColumn(k, number, n, f"{shown}.{n}"))) for n, k in found]
        schema = None if alias is not None else (name.schema or "public")
        item = Item(shown, schema, tuple(_renamed(columns, alias, shown)))
        return Scan(number, name, self.binder.is_looked_up(location)), [item]

    def _itself(self, cte: PendingCte, alias: pb.Alias | None, message: pb.RangeVar) -> tuple[Relation, list[Item]]:
        """What a recursive query has found so far."""
        if cte.types is None:
            refuse("a CTE that is used before its own query ends", message)
        cte.uses += 1
        number = self.binder.next_id()
        shown = alias.aliasname if alias is not None else message.relname
        own = unique_names(cte.names)
        columns = [
            (n, BoundColumn(k, number, o, f"{shown}.{n}")) for n, o, k in zip(cte.names, own, cte.types, strict=True)
        ]  # fmt: skip
        return Itself(number, cte.number), [Item(shown, None, tuple(_renamed(columns, alias, shown)))]

    def _require_stable(self, cte: Query, message: Message) -> None:
        """A CTE is put in the place of its name, so that it may be computed several times."""
        if any(isinstance(part, Call) and part.volatile for part in everything(cte)):
            refuse("a CTE with another value each time", message)

    def _subquery(self, message: pb.RangeSubselect) -> tuple[Relation, list[Item]]:
        outer = self.scope if message.lateral else self._outside()
        query = self.binder.query(message.subquery, outer)
        alias = inner(message.alias) if message.HasField("alias") else None
        return self._derived(query, alias, None, bool(message.lateral))

    def _outside(self) -> Scope:
        """What a subquery in FROM sees: the queries around and the CTEs, not its neighbours."""
        return Scope(self.scope.outer, [], self.scope.ctes)

    def _derived(
        self, query: Query, alias: pb.Alias | None, name: str | None, lateral: bool
    ) -> tuple[Relation, list[Item]]:
        number = self.binder.next_id()
        shown = alias.aliasname if alias is not None else name
        own = unique_names(query.names)
        columns = [
            (n, BoundColumn(k, number, o, f"{shown}.{n}"))
            for n, o, k in zip(query.names, own, query.types, strict=True)
        ]
        item = Item(shown, None, tuple(_renamed(columns, alias, shown)))
        return Derived(number, query, own, lateral), [item]

    # ---- joins

    def _join(self, message: pb.JoinExpr) -> tuple[Relation, list[Item]]:
        left, left_items = self._relation(message.larg)
        before = list(self.scope.items)
        self.scope.items = [*before, *left_items]  # a lateral right side sees the left one
        right, right_items = self._relation(message.rarg)
        self.scope.items = before
        items = [*left_items, *right_items]
        again = duplicate(items)
        if again is not None:
            raise Wrong(f'table name "{again}" specified more than once', "42712", None)
        kind = _KINDS.get(message.jointype)
        if kind is None:
            refuse("this join", message)
        side = None
        if kind_of(message.rarg) == "RangeVar" and kind == "LEFT OUTER JOIN":
            side = self.binder.side_join(message.rarg.range_var.location)
        if side is not None and not message.HasField("quals"):
            refuse(f"LEFT {side} JOIN with USING", message)
        names = self._shared(message, left_items, right_items)
        if names is not None:
            return self._using(kind, left, right, left_items, right_items, names)
        condition = None
        if message.HasField("quals"):
            inside = Scope(self.scope.outer, items, self.scope.ctes)
            condition = Expressions(self.binder, inside, "JOIN conditions").condition(message.quals, "JOIN/ON")
            if side is not None:
                return JoinedRelation(f"LEFT {side} JOIN", left, right, condition), left_items
            if kind != "INNER JOIN" and over_both(condition, left_items):
                refuse("a function of jsonb over both sides of an outer join in its condition", message)
        elif kind == "INNER JOIN":
            kind = "CROSS JOIN"
        return JoinedRelation(kind, left, right, condition), items

    def _shared(self, message: pb.JoinExpr, left: Sequence[Item], right: Sequence[Item]) -> list[str] | None:
        """The names of USING, or those that NATURAL finds; None for a join with a condition."""
        if message.is_natural:
            names = [n for item in left if item.open for n, _ in item.columns]
            others = {n for item in right if item.open for n, _ in item.columns}
            return [n for n in dict.fromkeys(names) if n in others]
        if not message.using_clause:
            return None
        return strings(message.using_clause)

    def _using(
        self, kind: str, left: Relation, right: Relation, left_items: list[Item], right_items: list[Item],
        names: list[str],
    ) -> tuple[Relation, list[Item]]:  # fmt: skip
        merged: list[tuple[str, Expr]] = []
        tests: list[Expr] = []
        at = Expressions(self.binder, self.scope, "JOIN/USING")
        for name in names:
            a, b = self._side(left_items, name, "left"), self._side(right_items, name, "right")
            tests.append(at.operate("=", a, b, None))
            merged.append((name, _merged(kind, a, b)))
        rest = [c for item in (*left_items, *right_items) if item.open for c in item.columns if c[0] not in names]
        whole = Item(None, None, (*merged, *rest), named=False)
        items = [whole, *(item.closed() for item in (*left_items, *right_items))]
        if not tests:
            return JoinedRelation(
                "CROSS JOIN" if kind == "INNER JOIN" else kind, left, right, Constant(t.BOOL, "true")
            ), items
        return JoinedRelation(kind, left, right, conjunction("AND", tests)), items

    def _side(self, items: Sequence[Item], name: str, side: str) -> Expr:
        found = [value for item in items if item.open for value in item.find(name)]
        if not found:
            raise Wrong(f'column "{name}" specified in USING clause does not exist in {side} table', "42703", None)
        if len(found) > 1:
            raise Wrong(f'common column name "{name}" appears more than once in {side} table', "42702", None)
        return found[0]

    # ---- functions

    def _windows(self, name: str, call: pb.FuncCall, message: pb.RangeFunction) -> tuple[Relation, list[Item]]:
        """`TUMBLE(relation, time, size [, offset])` and `HOP(relation, time, slide, size [, offset])`."""
        counts = (3, 4) if name == "tumble" else (4, 5)
        if len(call.args) not in counts or not all(map(_is_name, call.args[:2])):
            refuse(f"this {name}", call)
        source, item = self._named(strings(inner(call.args[0]).fields), call.location)
        inside = Scope(None, [item])
        time = Expressions(self.binder, inside, "FROM").bind(call.args[1])
        at = Expressions(self.binder, Scope(), "FROM")
        widths = [_width(at.bind(arg), call) for arg in call.args[2:]]
        if name == "hop":
            widths[:2] = [widths[1], widths[0]]
        elif len(widths) == 2:
            widths.insert(1, widths[0])
        if time.type.name not in ("timestamp", "timestamptz"):
            refuse("windows of another time than a timestamp", call)
        return self._with_bounds(
            WindowedRelation(self.binder.next_id(), source, time, tuple(widths)), item, message, name
        )

    def _sessions(self, call: pb.FuncCall, message: pb.RangeFunction) -> tuple[Relation, list[Item]]:
        """`SESSION(relation, time, gap [, key ...])`."""
        columns = [*call.args[:2], *call.args[3:]]
        if len(call.args) < 3 or not all(map(_is_name, columns)):
            refuse(
                "this SESSION: it takes a relation, a time column, an interval literal, and columns to part it by", call
            )
        source, item = self._named(strings(inner(call.args[0]).fields), call.location)
        inside = Expressions(self.binder, Scope(None, [item]), "FROM")
        time, *keys = (inside.bind(a) for a in columns[1:])
        if time.type.name not in ("timestamp", "timestamptz"):
            refuse("sessions of another time than a timestamp", call)
        gap = Expressions(self.binder, Scope(), "FROM").bind(call.args[2])
        if not isinstance(gap, Constant) or gap.text is None or gap.type.name not in ("interval", "unknown"):
            refuse("a gap of SESSION that is no interval literal", call)
        names = tuple(key.name for key in keys if isinstance(key, BoundColumn))
        width = Call(DAYTIME, spark_interval(gap.text), ())
        return self._with_bounds(Sessions(self.binder.next_id(), source, time, width, names), item, message, "session")

    def _with_bounds(
        self, made: WindowedRelation | Sessions, item: Item, message: pb.RangeFunction, name: str
    ) -> tuple[Relation, list[Item]]:
        """The columns of a relation, and the bounds of the window that each row is in."""
        alias = inner(message.alias) if message.HasField("alias") else None
        shown = alias.aliasname if alias is not None else (item.name or name)
        kinds = [(n, v.type, v.name) for n, v in item.columns if isinstance(v, BoundColumn)]
        kinds += [(n, made.time.type, n) for n in ("window_start", "window_end")]
        columns = [(n, BoundColumn(k, made.id, own, f"{shown}.{n}")) for n, k, own in kinds]
        return made, [Item(shown, None, tuple(_renamed(columns, alias, shown)))]

    def _named(self, names: Sequence[str], location: int) -> tuple[Relation, Item]:
        """A relation or CTE that is an argument of a function."""
        if len(names) > 2:
            raise NotBound("a relation with the name of its database", location)
        cte = self.scope.cte(names[0]) if len(names) == 1 else None
        if isinstance(cte, PendingCte):
            raise NotBound("windows of a recursive query", location)
        if cte is not None:
            relation, items = self._derived(cte, None, names[0], False)
        else:
            name = TableName(names[0] if len(names) == 2 else None, names[-1])
            relation, items = self._scan(name, None, location)
        return relation, items[0]

    def _function(self, message: pb.RangeFunction) -> tuple[Relation, list[Item]]:
        if len(message.functions) != 1:
            refuse("several functions in FROM", message)
        parts = inner(message.functions[0]).items
        if kind_of(parts[0]) != "FuncCall":
            refuse("this in FROM", message)
        call = inner(parts[0])
        names = strings(call.funcname)
        name = names[-1]
        if len(names) > 1 and names[0] != "pg_catalog":
            refuse("a function of a schema", call)
        if name in ("tumble", "hop"):
            return self._windows(name, call, message)
        if name == "session":
            return self._sessions(call, message)
        at = Expressions(self.binder, Scope(self.scope.outer, list(self.scope.items), self.scope.ctes), "FROM")
        arguments = [at.bind(a) for a in call.args]
        number = self.binder.next_id()
        alias = inner(message.alias) if message.HasField("alias") else None
        shown = alias.aliasname if alias is not None else name
        lateral = (bool(self.scope.items) or self.scope.outer is not None) and any(map(_has_columns, arguments))
        routine = self.binder.world.routine(name)
        if routine is not None:
            if message.ordinality:
                refuse("WITH ORDINALITY of a function that somebody created", call)
            return self._called(routine, arguments, call, number, alias, lateral)
        rows = rows_of(name, arguments, call)
        columns = rows.columns(number, shown, name, bool(message.ordinality))
        item = Item(shown, None, tuple(_renamed(columns, alias, shown)))
        if rows.names and len(rows.kinds) == 1:
            return rows.relation(number, bool(message.ordinality), lateral), [replace(item, scalar=True)]
        if alias is not None and not alias.colnames and len(rows.kinds) == 1:
            item = Item(shown, None, ((shown, columns[0][1]), *columns[1:]))
        return rows.relation(number, bool(message.ordinality), lateral), [item]

    def _called(
        self, routine: Routine, arguments: list[Expr], call: pb.FuncCall, number: int, alias: pb.Alias | None,
        lateral: bool,
    ) -> tuple[Relation, list[Item]]:  # fmt: skip
        value = table_call(routine, arguments, call)
        shown = alias.aliasname if alias is not None else routine.name
        columns = [
            (n, BoundColumn(t.of_spark(spark) or Type("?", spark, "?"), number, n, f"{shown}.{n}"))
            for n, spark in routine.columns
        ]
        return Called(number, value, lateral), [Item(shown, None, tuple(_renamed(columns, alias, shown)))]


def _current(column: BoundColumn) -> Expr:
    """A column as its type is held now: a view from before may have Spark's own intervals."""
    return of_daytime(column) if column.type == DAYTIME else column


def _is_name(node: pb.Node) -> bool:
    """Whether a node is the name of something, and no star."""
    return kind_of(node) == "ColumnRef" and kind_of(node.column_ref.fields[-1]) == "String"


def _width(found: Expr, call: Message) -> str:
    """The size of a window, for Spark."""
    if not isinstance(found, Constant) or found.text is None or found.type.name not in ("interval", "unknown"):
        refuse("a window's size that is no literal", call)
    months, days, micros = parse_interval(found.text)
    if months or days * 86_400_000_000 + micros <= 0:
        refuse("a window of this size", call)
    return f"{days * 86_400_000_000 + micros} microseconds"


def _merged(kind: str, left: Expr, right: Expr) -> Expr:
    """The one column that USING makes of two."""
    if kind == "FULL OUTER JOIN":
        pair = to_common((left, right), "JOIN/USING")
        return Call(pair[0].type, "coalesce({0}, {1})", pair)
    pair = to_common((left, right), "JOIN/USING")
    return pair[1] if kind == "RIGHT OUTER JOIN" else pair[0]


def _renamed(
    columns: Sequence[tuple[str, Expr]], alias: pb.Alias | None, shown: str | None
) -> Sequence[tuple[str, Expr]]:
    """The columns with the names that an alias gives to the first of them."""
    if alias is None or not alias.colnames:
        return columns
    names = strings(alias.colnames)
    if len(names) > len(columns):
        raise Wrong(
            f'table "{shown}" has {len(columns)} columns available but {len(names)} columns specified', "42P10", None
        )
    return [(names[i] if i < len(names) else n, value) for i, (n, value) in enumerate(columns)]


def unique_names(names: Sequence[str]) -> tuple[str, ...]:
    """Names of which no two are equal for Spark, which does not tell upper from lower case."""
    used: set[str] = set()
    found = []
    for name in names:
        chosen, number = name, 1
        while chosen.casefold() in used:
            number += 1
            chosen = f"{name}_{number}"
        used.add(chosen.casefold())
        found.append(chosen)
    return tuple(found)
