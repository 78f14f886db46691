"""FROM: relations, joins, subqueries and functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from postgast import pg_query_pb2 as pb

from headrace.sql.binder import types as t
from headrace.sql.binder.coerce import coerce, to_common
from headrace.sql.binder.expressions import Expressions, conjunction
from headrace.sql.binder.reading import NotBound, declare, inner, kind_of, refuse, strings
from headrace.sql.binder.scope import Item, Scope, Wrong, duplicate
from headrace.sql.binder.tree import (
    Call,
    Column,
    Constant,
    Derived,
    Expr,
    Join,
    Produced,
    Query,
    Relation,
    Scan,
    Windowed,
    everything,
)  # fmt: skip
from headrace.sql.intervals import parse_interval
from headrace.sql.statements import TableName

if TYPE_CHECKING:
    from headrace.sql.binder.bind import Binder

declare("RangeVar", "catalogname schemaname relname inh relpersistence alias")
declare("RangeSubselect", "lateral subquery alias")
declare("RangeFunction", "lateral functions alias")
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

    def source(self, nodes: Any) -> Relation | None:
        """The relations of a FROM clause, those with a comma between them as a cross join."""
        found: Relation | None = None
        for node in nodes:
            relation, items = self._relation(node)
            self._add(items)
            found = relation if found is None else Join("CROSS JOIN", found, relation, None)
        return found

    def _add(self, items: Sequence[Item]) -> None:
        self.scope.items.extend(items)
        again = duplicate(self.scope.items)
        if again is not None:
            raise Wrong(f'table name "{again}" specified more than once', "42712", None)

    def _relation(self, node: Any) -> tuple[Relation, list[Item]]:
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

    def table(self, message: Any) -> tuple[Relation, list[Item]]:
        """A relation by its name."""
        if not message.inh:
            refuse("ONLY", message)
        if message.catalogname:
            refuse("a relation with the name of its database", message)
        alias = inner(message.alias) if message.HasField("alias") else None
        if not message.schemaname:
            cte = self.scope.cte(message.relname)
            if cte is not None:
                self._require_stable(cte, message)
                return self._derived(cte, alias, message.relname, False)
        return self._scan(TableName(message.schemaname or None, message.relname), alias, message.location)

    def _scan(self, name: TableName, alias: Any, location: int) -> tuple[Relation, list[Item]]:
        found = self.binder.columns(name, location)
        number = self.binder.next_id()
        shown = alias.aliasname if alias is not None else name.name
        columns = [(n, Column(k, number, n, f"{shown}.{n}")) for n, k in found]
        schema = None if alias is not None else (name.schema or "public")
        item = Item(shown, schema, tuple(_renamed(columns, alias, shown)))
        return Scan(number, name), [item]

    def _require_stable(self, cte: Query, message: Any) -> None:
        """A CTE is put in the place of its name, so that it may be computed several times."""
        if any(isinstance(part, Call) and part.volatile for part in everything(cte)):
            refuse("a CTE with another value each time", message)

    def _subquery(self, message: Any) -> tuple[Relation, list[Item]]:
        outer = self.scope if message.lateral else self._outside()
        query = self.binder.query(message.subquery, outer)
        alias = inner(message.alias) if message.HasField("alias") else None
        return self._derived(query, alias, None, bool(message.lateral))

    def _outside(self) -> Scope:
        """What a subquery in FROM sees: the queries around and the CTEs, not its neighbours."""
        return Scope(self.scope.outer, [], self.scope.ctes)

    def _derived(self, query: Query, alias: Any, name: str | None, lateral: bool) -> tuple[Relation, list[Item]]:
        number = self.binder.next_id()
        shown = alias.aliasname if alias is not None else name
        own = unique_names(query.names)
        columns = [
            (n, Column(k, number, o, f"{shown}.{n}")) for n, o, k in zip(query.names, own, query.types, strict=True)
        ]  # fmt: skip
        item = Item(shown, None, tuple(_renamed(columns, alias, shown)))
        return Derived(number, query, own, lateral), [item]

    # ---- joins

    def _join(self, message: Any) -> tuple[Relation, list[Item]]:
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
        names = self._shared(message, left_items, right_items)
        if names is not None:
            return self._using(kind, left, right, left_items, right_items, names)
        condition = None
        if message.HasField("quals"):
            inside = Scope(self.scope.outer, items, self.scope.ctes)
            condition = Expressions(self.binder, inside, "JOIN conditions").condition(message.quals, "JOIN/ON")
        elif kind == "INNER JOIN":
            kind = "CROSS JOIN"
        return Join(kind, left, right, condition), items

    def _shared(self, message: Any, left: Sequence[Item], right: Sequence[Item]) -> list[str] | None:
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
            return Join("CROSS JOIN" if kind == "INNER JOIN" else kind, left, right, Constant(t.BOOL, "true")), items
        return Join(kind, left, right, conjunction("AND", tests)), items

    def _side(self, items: Sequence[Item], name: str, side: str) -> Expr:
        found = [value for item in items if item.open for value in item.find(name)]
        if not found:
            raise Wrong(f'column "{name}" specified in USING clause does not exist in {side} table', "42703", None)
        if len(found) > 1:
            raise Wrong(f'common column name "{name}" appears more than once in {side} table', "42702", None)
        return found[0]

    # ---- functions

    def _windows(self, name: str, call: Any, message: Any) -> tuple[Relation, list[Item]]:
        """`TUMBLE(relation, time, size [, offset])` and `HOP(relation, time, slide, size [, offset])`."""
        counts = (3, 4) if name == "tumble" else (4, 5)
        if len(call.args) not in counts or any(kind_of(a) != "ColumnRef" for a in call.args[:2]):
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
        number = self.binder.next_id()
        alias = inner(message.alias) if message.HasField("alias") else None
        shown = alias.aliasname if alias is not None else (item.name or name)
        kinds = [(n, v.type, v.name) for n, v in item.columns if isinstance(v, Column)]
        kinds += [(n, time.type, n) for n in ("window_start", "window_end")]
        columns = [(n, Column(k, number, own, f"{shown}.{n}")) for n, k, own in kinds]
        return Windowed(number, source, time, tuple(widths)), [
            Item(shown, None, tuple(_renamed(columns, alias, shown)))
        ]

    def _named(self, names: Sequence[str], location: int) -> tuple[Relation, Item]:
        """A relation or CTE that is an argument of a function."""
        if len(names) > 2:
            raise NotBound("a relation with the name of its database", location)
        cte = self.scope.cte(names[0]) if len(names) == 1 else None
        if cte is not None:
            relation, items = self._derived(cte, None, names[0], False)
        else:
            name = TableName(names[0] if len(names) == 2 else None, names[-1])
            relation, items = self._scan(name, None, location)
        return relation, items[0]

    def _function(self, message: Any) -> tuple[Relation, list[Item]]:
        if len(message.functions) != 1:
            refuse("several functions in FROM", message)
        parts = inner(message.functions[0]).items
        call = inner(parts[0])
        name = strings(call.funcname)[-1]
        if name in ("tumble", "hop"):
            return self._windows(name, call, message)
        if name not in ("generate_series", "unnest"):
            refuse(f"{name} in FROM", call)
        at = Expressions(self.binder, Scope(self.scope.outer, list(self.scope.items), self.scope.ctes), "FROM")
        value = _rows(name, [at.bind(a) for a in call.args], call)
        number = self.binder.next_id()
        alias = inner(message.alias) if message.HasField("alias") else None
        shown = alias.aliasname if alias is not None else name
        column = inner(alias.colnames[0]).sval if alias is not None and alias.colnames else shown
        lateral = bool(self.scope.items) or self.scope.outer is not None
        own = "value"
        item = Item(shown, None, ((column, Column(value.type, number, own, f"{shown}.{column}")),))
        return Produced(number, value, own, lateral and _has_columns(value)), [item]


def _width(found: Expr, call: Any) -> str:
    """The size of a window, for Spark."""
    if not isinstance(found, Constant) or found.text is None or found.type.name not in ("interval", "unknown"):
        refuse("a window's size that is no literal", call)
    months, days, micros = parse_interval(found.text)
    if months or days * 86_400_000_000 + micros <= 0:
        refuse("a window of this size", call)
    return f"{days * 86_400_000_000 + micros} microseconds"


def _has_columns(value: Expr) -> bool:
    return isinstance(value, Column) or any(_has_columns(c) for c in value.children())


def _merged(kind: str, left: Expr, right: Expr) -> Expr:
    """The one column that USING makes of two."""
    if kind == "FULL OUTER JOIN":
        pair = to_common((left, right), "JOIN/USING")
        return Call(pair[0].type, "coalesce({0}, {1})", pair)
    pair = to_common((left, right), "JOIN/USING")
    return pair[1] if kind == "RIGHT OUTER JOIN" else pair[0]


def _rows(name: str, arguments: list[Expr], call: Any) -> Expr:
    """What `EXPLODE` makes rows of."""
    if name == "unnest":
        if len(arguments) != 1 or arguments[0].type.element is None:
            refuse("this unnest", call)
        return Call(arguments[0].type.element, "explode({0})", (arguments[0],))
    if len(arguments) not in (2, 3):
        refuse("this generate_series", call)
    names = {a.type.name for a in arguments}
    if (
        len(arguments) == 3
        and arguments[2].type.name in ("interval", "unknown")
        and names & {"timestamp", "timestamptz"}
    ):
        return _moments(arguments, call)
    if not names <= {"int4", "int8", "unknown"} or names == {"unknown"}:
        refuse("a series of other values than whole numbers", call)
    kind = t.INT8 if "int8" in names else t.INT4
    values = [coerce(a, kind, "implicit") for a in arguments]
    if len(values) == 2:
        form = (
            "explode(CASE WHEN {0} <= {1} THEN sequence({0}, {1}, CAST(1 AS %s)) ELSE CAST(array() AS ARRAY<%s>) END)"
        )
        return Call(kind, form.replace("%s", kind.spark), tuple(values))
    step = values[2]
    if not isinstance(step, Constant) or step.text is None or int(step.text) == 0:
        refuse("a series with a step that is no literal", call)
    sign = "<=" if int(step.text) > 0 else ">="
    empty = f"CAST(array() AS ARRAY<{kind.spark}>)"
    form = f"explode(CASE WHEN {{0}} {sign} {{1}} THEN sequence({{0}}, {{1}}, {{2}}) ELSE {empty} END)"
    return Call(kind, form, tuple(values))


def _moments(arguments: list[Expr], call: Any) -> Expr:
    """A series of times. Steps of months are not the same for PostgreSQL, which takes one after the other."""
    kind = t.TIMESTAMPTZ if any(a.type.name == "timestamptz" for a in arguments) else t.TIMESTAMP
    first, last = (coerce(a, kind, "implicit") for a in arguments[:2])
    step = coerce(arguments[2], t.INTERVAL, "implicit")
    if not isinstance(step, Constant) or step.text is None or step.type.spark != t.INTERVAL.spark:
        refuse("a series by this step", call)
    _, days, micros = parse_interval(step.text)
    if days * 86_400_000_000 + micros == 0:
        refuse("a series by this step", call)
    sign = "<=" if days * 86_400_000_000 + micros > 0 else ">="
    empty = f"CAST(array() AS ARRAY<{kind.spark}>)"
    form = f"explode(CASE WHEN {{0}} {sign} {{1}} THEN sequence({{0}}, {{1}}, {{2}}) ELSE {empty} END)"
    return Call(kind, form, (first, last, step))


def _renamed(columns: Sequence[tuple[str, Expr]], alias: Any, shown: str | None) -> Sequence[tuple[str, Expr]]:
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
