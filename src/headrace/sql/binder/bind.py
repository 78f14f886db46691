"""The binder: names and clauses of queries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from postgast import pg_query_pb2 as pb

from headrace.common.lazy_dataclass import dataclass
from headrace.errors import NotSupported, UndefinedTable
from headrace.sql.binder import types as t
from headrace.sql.binder import zone_times
from headrace.sql.binder.bound_tree import (
    BoundAggregate,
    BoundColumn,
    Call,
    Constant,
    Derived,
    Expr,
    JoinedRelation,
    Output,
    Over,
    Query,
    Relation,
    SelectQuery,
    SetOperation,
    SortKey,
    Values,
    walk,
)  # fmt: skip
from headrace.sql.binder.coerce import coerce, common_type
from headrace.sql.binder.distinct_on import first_of_each, with_ties
from headrace.sql.binder.expression_binder import Expressions
from headrace.sql.binder.from_clause import Relations
from headrace.sql.binder.group_by import as_sets, check_grouped, group_value, grouping_of
from headrace.sql.binder.one_row import fetched_first
from headrace.sql.binder.order_by import bound_limit, order_keys
from headrace.sql.binder.output_names import output_name
from headrace.sql.binder.own import canonical, comparable, one_of_equals
from headrace.sql.binder.parse_tree import Nodes, NotBound, check, declare, inner, kind_of, refuse
from headrace.sql.binder.recursion import declare_pending, recursive_query
from headrace.sql.binder.scope import Located, Missing, Scope, Wrong
from headrace.sql.binder.set_functions import sets_of
from headrace.sql.binder.total_aggregates import has_total, with_total
from headrace.sql.binder.types import Type
from headrace.sql.binder.world import NOTHING, World
from headrace.sql.postgres import ParsedStatement
from headrace.sql.statements import TableName

Columns = Callable[[TableName], Mapping[str, str] | None]
"""The columns of a relation and their Spark types; None if there is none of that name."""

declare(
    "SelectStmt",
    "distinct_clause target_list from_clause where_clause group_clause having_clause window_clause values_lists "
    "sort_clause limit_offset limit_count limit_option with_clause op all larg rarg locking_clause",
)
declare("ResTarget", "name val")
declare("WithClause", "ctes recursive")
declare("CommonTableExpr", "ctename aliascolnames ctematerialized ctequery")
declare("LockingClause", "strength wait_policy")
declare("A_Star", "")
_PLAIN: Final = {"target_list", "from_clause", "where_clause", "limit_option", "op"}
"""The parts of a SELECT of which nothing depends on the types of its columns."""
_LOCKS: Final = {
    pb.LCS_FORKEYSHARE: "FOR KEY SHARE", pb.LCS_FORSHARE: "FOR SHARE", pb.LCS_FORNOKEYUPDATE: "FOR NO KEY UPDATE",
    pb.LCS_FORUPDATE: "FOR UPDATE",
}  # fmt: skip
_SETS: Final = {pb.SETOP_UNION: "UNION", pb.SETOP_INTERSECT: "INTERSECT", pb.SETOP_EXCEPT: "EXCEPT"}


@dataclass(frozen=True)
class BindingContext:
    """What the binder is told of the world: relations, functions that somebody created, values of the session."""

    columns: Columns
    world: World = NOTHING
    parameters: tuple[tuple[int, Type], ...] = ()


class Binder:
    """Binds one statement."""

    def __init__(self, parsed: ParsedStatement, known: BindingContext):
        self._parsed = parsed
        self.known = known
        self.world = known.world
        self.local: set[int] = set()
        """Ids of the relations of the query that is bound now."""
        self.parameters: dict[int, Type] = dict(known.parameters)
        """The types of the parameters, as far as they are known."""
        self._ids = 0

    def position(self, location: int) -> int:
        """The 1-based position of a place in bytes."""
        return self._parsed.position(location)

    def is_looked_up(self, location: int) -> bool:
        """Whether the relation that stands there is read `FOR SYSTEM_TIME AS OF PROCTIME()`."""
        return location in self._parsed.lookups

    def side_join(self, location: int) -> str | None:
        """`SEMI` or `ANTI`, where the relation that stands there is joined by that."""
        return dict(self._parsed.side_joins).get(location)

    def next_id(self) -> int:
        """The number of another relation."""
        self._ids += 1
        self.local.add(self._ids)
        return self._ids

    def columns(self, name: TableName, location: int) -> list[tuple[str, Type]]:
        """The columns of a relation. Raises `UndefinedTable`."""
        found = self.known.columns(name)
        if found is None:
            raise UndefinedTable(f'relation "{name}" does not exist', position=self.position(location))
        columns = []
        for column, spark in found.items():
            kind = t.of_spark(spark)
            columns.append((column, kind if kind is not None else Type("?", spark, "?")))
        return columns

    # ---- queries

    def statement(self) -> Query:
        """The whole statement, which is a query."""
        if kind_of(self._parsed.tree) != "SelectStmt":
            refuse("a statement that is no query")
        found = self.query(self._parsed.tree, None)
        if not found.names:
            refuse("a query without columns")
        return found

    def query(self, node: pb.Node | pb.SelectStmt, outer: Scope | None) -> Query:
        """A query of its own, which sees the names of those around it."""
        before, self.local = self.local, set()
        try:
            return self._query(inner(node), Scope(outer))
        finally:
            self.local = before

    def _query(self, message: pb.SelectStmt, scope: Scope) -> Query:
        if message.HasField("with_clause"):
            self.with_clause(message.with_clause, scope)
        for lock in message.locking_clause:
            _check_lock(inner(lock), message)
        if message.op in _SETS:
            return self._set_operation(message, scope)
        if message.values_lists:
            return self._values(message, scope)
        return self._select(message, scope)

    def with_clause(self, message: pb.WithClause, scope: Scope) -> None:
        """Put the CTEs of a WITH clause in sight."""
        if message.recursive:
            declare_pending(inner(message).ctes, scope)
        for node in inner(message).ctes:
            cte = inner(node)
            if not message.recursive and cte.ctename in scope.ctes:
                raise Wrong(f'WITH query name "{cte.ctename}" specified more than once', "42712", cte.location)
            if kind_of(cte.ctequery) != "SelectStmt":
                refuse("INSERT, UPDATE or DELETE in WITH", cte)
            scope.ctes[cte.ctename] = self._cte(cte, scope, message.recursive)

    def _cte(self, cte: pb.CommonTableExpr, scope: Scope, recursive: bool) -> Query:
        query = recursive_query(self, cte, scope) if recursive else None
        if query is None:
            query = self.query(cte.ctequery, scope)
        names = [inner(n).sval for n in cte.aliascolnames]
        if len(names) > len(query.names):
            raise Wrong(
                f'WITH query "{cte.ctename}" has {len(query.names)} columns available but {len(names)} columns '
                "specified", "42P10", cte.location,
            )  # fmt: skip
        return replace(query, names=(*names, *query.names[len(names) :]))

    # ---- SELECT

    def _select(self, message: pb.SelectStmt, scope: Scope, *, is_open: bool = False) -> Query:
        """A SELECT; while `is_open` its parameters have no types yet where they are columns of their own."""
        source = Relations(self, scope).source(message.from_clause)
        targets = Expressions(self, scope, "SELECT", aggregates=True, windows=True)
        targets.named_windows = {inner(w).name: inner(w) for w in message.window_clause}
        targets.sets = []
        outputs = self.outputs(message.target_list, targets, is_open=is_open)
        where = None
        if message.HasField("where_clause"):
            where = Expressions(self, scope, "WHERE").condition(message.where_clause, "WHERE")
        grouped = grouping_of(self, message.group_clause, outputs, scope)
        having_in = Expressions(self, scope, "HAVING", aggregates=True)
        having = having_in.condition(message.having_clause, "HAVING") if message.HasField("having_clause") else None
        sorting = Expressions(self, scope, "ORDER BY", aggregates=True, windows=True)
        sorting.named_windows = targets.named_windows
        first, distinct = self._distinct(message, outputs, scope)
        order = order_keys(self, message.sort_clause, outputs, sorting, distinct)
        has_groups = bool(message.group_clause) or having is not None
        if has_groups or any(e.has_aggregates for e in (targets, having_in, sorting)):
            check_grouped(
                self, grouped[0], [o.value for o in outputs] + [k.value for k in order] + ([having] if having else [])
            )
        grouped = as_sets(
            grouped, [*(o.value for o in outputs), *(k.value for k in order), *([having] if having else [])]
        )
        limit, offset = bound_limit(self, message)
        if targets.sets:
            windowed = any(isinstance(part, Over) for o in outputs for part in walk(o.value))
            if has_groups or windowed or any(e.has_aggregates for e in (targets, having_in, sorting)):
                refuse("a set-returning function in a grouped query")
            produced = sets_of(targets.sets, targets.set_relation, source is not None)
            source = produced if source is None else JoinedRelation("CROSS JOIN", source, produced, None)
        select = SelectQuery(
            tuple(o.name for o in outputs), tuple(o.value.type for o in outputs), order, limit, offset, tuple(outputs),
            source, where, grouped[0], grouped[1], having, distinct,
        )  # fmt: skip
        select = one_of_equals(select)
        if not has_groups and not any(e.has_aggregates for e in (targets, having_in, sorting)):
            select = fetched_first(select)
        if first:
            return self._first_of_each(select, first)
        if select.groups and has_total(message.group_clause):
            if message.limit_option == pb.LIMIT_OPTION_WITH_TIES:
                refuse("WITH TIES of grouping sets with a total", message)
            return with_total(self, select)
        return with_ties(self, select) if message.limit_option == pb.LIMIT_OPTION_WITH_TIES else select

    def _distinct(self, message: pb.SelectStmt, outputs: Sequence[Output], scope: Scope) -> tuple[list[Expr], bool]:
        """The expressions of DISTINCT ON, and whether there is a plain DISTINCT."""
        nodes = [node for node in message.distinct_clause if node.WhichOneof("node") is not None]
        keys = [group_value(self, node, outputs, scope) for node in nodes]
        return [comparable(key) for key in keys], bool(message.distinct_clause) and not nodes

    def _first_of_each(self, select: SelectQuery, keys: list[Expr]) -> Query:
        if any(key.value not in keys for key in select.order[: len(keys)]):
            raise Wrong("SELECT DISTINCT ON expressions must match initial ORDER BY expressions", "42P10", None)
        parts = [part for output in select.outputs for part in walk(output.value)]
        if select.grouping or any(isinstance(part, (BoundAggregate, Over)) for part in parts):
            refuse("DISTINCT ON of a grouped query")
        return first_of_each(self, select, keys)

    def outputs(self, nodes: Nodes, at: Expressions, *, is_open: bool = False) -> list[Output]:
        """The columns that a list of targets makes."""
        outputs: list[Output] = []
        for node in nodes:
            target = inner(node)
            if kind_of(target.val) == "ColumnRef" and kind_of(target.val.column_ref.fields[-1]) == "A_Star":
                outputs += self._star(inner(target.val), at.scope)
                continue
            value = at.bind(target.val) if is_open and kind_of(target.val) == "ParamRef" else at.known(target.val)
            if value.type.category == "?" and not isinstance(value, BoundColumn):
                raise NotBound(f"a value of {value.type.spark}")
            outputs.append(Output(target.name or output_name(target.val), value))
        return outputs

    def _star(self, message: pb.ColumnRef, scope: Scope) -> list[Output]:
        names = [f.string.sval for f in message.fields[:-1]]
        if not names:
            items = [item for item in scope.items if item.open]
            if not items:
                raise Wrong("SELECT * with no tables specified is not valid", "42601", message.location)
        else:
            items = [scope.item(names[-1], names[0] if len(names) > 1 else None, message.location)]
        found = [Output(name, value) for item in items for name, value in item.columns]
        left_out = dict(self._parsed.left_out).get(message.location, ())
        for name in left_out:
            if name not in {o.name for o in found}:
                raise Missing(f'column "{name}" does not exist', message.location)
        return [o for o in found if o.name not in left_out]

    # ---- VALUES and set operations

    def _values(self, message: pb.SelectStmt, scope: Scope) -> Query:
        at = Expressions(self, scope, "VALUES")
        rows = [[at.bind(cell) for cell in inner(row).items] for row in message.values_lists]
        width = len(rows[0])
        if any(len(row) != width for row in rows):
            raise Wrong("VALUES lists must all be the same length", "42601", None)
        types = [common_type([row[i] for row in rows], "VALUES") for i in range(width)]
        cells = tuple(tuple(coerce(c, k, "implicit") for c, k in zip(row, types, strict=True)) for row in rows)
        names = tuple(f"column{i + 1}" for i in range(width))
        order = self._output_order(message, names, types)
        limit, offset = bound_limit(self, message)
        return Values(names, tuple(types), order, limit, offset, cells)

    def _output_order(self, message: pb.SelectStmt, names: Sequence[str], types: Sequence[Type]) -> tuple[SortKey, ...]:
        outputs = [Output(n, Call(k, "?", ())) for n, k in zip(names, types, strict=True)]
        if not message.sort_clause:
            return ()
        return order_keys(self, message.sort_clause, outputs, None, False)

    def _set_operation(self, message: pb.SelectStmt, scope: Scope) -> Query:
        operator = _SETS[message.op]
        left, right = (self.branch(m, scope) for m in (message.larg, message.rarg))
        if len(left.types) != len(right.types):
            raise Wrong(f"each {operator} query must have the same number of columns", "42601", None)
        types = self._common_types(left, right, operator)
        sides = [_as_types(q, types) for q in (left, right)]
        if not message.all or operator != "UNION":
            sides = [self._canonical(side) for side in sides]
        order = self._output_order(message, left.names, types)
        limit, offset = bound_limit(self, message)
        words = f"{operator} ALL" if message.all else operator
        return SetOperation(left.names, tuple(types), order, limit, offset, words, *sides)

    def _canonical(self, query: Query) -> Query:
        """The rows of one side as they are compared with those of the other one."""
        if all(kind.name not in t.LOOSE for kind in query.types):
            return query
        names = tuple(f"c{i}" for i in range(len(query.types)))
        number = self.next_id()
        columns = [BoundColumn(k, number, n, n) for k, n in zip(query.types, names, strict=True)]
        outputs = tuple(Output(n, canonical(c)) for n, c in zip(query.names, columns, strict=True))
        source = Derived(number, query, names, False)
        return SelectQuery(query.names, query.types, (), None, None, outputs, source, None, (), "", None, False)

    def branch(self, message: pb.SelectStmt, scope: Scope) -> Query:
        """One side of a set operation, whose other side may say what its parameters are."""
        before, self.local = self.local, set()
        try:
            if {descriptor.name for descriptor, _ in message.ListFields()} <= _PLAIN:
                return self._select(check(message), Scope(scope), is_open=True)
            return self._query(check(message), Scope(scope))
        finally:
            self.local = before

    def _common_types(self, left: Query, right: Query, operator: str) -> list[Type]:
        found = []
        for i in range(len(left.types)):
            sides = [_representative(q, i) for q in (left, right)]
            found.append(common_type(sides, operator))
        return found


def _representative(query: Query, at: int) -> Expr:
    """A column of a query, as a literal if it is one: its type is then still open."""
    if isinstance(query, SelectQuery) and isinstance(found := query.outputs[at].value, Constant):
        return Constant(t.UNKNOWN, found.text) if found.type.name == "text" else found
    return BoundColumn(query.types[at], 0, str(at), str(at))


def _as_types(query: Query, types: Sequence[Type]) -> Query:
    """The same query with columns of these types."""
    if list(query.types) == list(types):
        return query
    if isinstance(query, SelectQuery) and not query.distinct and not query.order:
        outputs = tuple(
            Output(
                o.name, coerce(_representative(query, i) if isinstance(o.value, Constant) else o.value, k, "implicit")
            )
            for i, (o, k) in enumerate(zip(query.outputs, types, strict=True))
        )
        return replace(query, outputs=outputs, types=tuple(types))
    return _wrapped(query, types)


def _wrapped(query: Query, types: Sequence[Type]) -> Query:
    names = tuple(f"c{i}" for i in range(len(types)))
    source: Relation = Derived(0, query, names, False)
    columns = [BoundColumn(k, 0, n, n) for n, k in zip(names, query.types, strict=True)]
    outputs = tuple(Output(n, coerce(c, k, "implicit")) for n, c, k in zip(query.names, columns, types, strict=True))
    return SelectQuery(query.names, tuple(types), (), None, None, outputs, source, None, (), "", None, False)


def bind_query(parsed: ParsedStatement, known: BindingContext) -> Query:
    """The query that a statement is. Raises `NotBound`, or the errors that PostgreSQL has."""
    binder = Binder(parsed, known)
    with reporting(binder, parsed):
        return binder.statement()


@contextmanager
def reporting(binder: Binder, parsed: ParsedStatement) -> Iterator[None]:
    """What the block binds is bound in the session's zone, and its errors come out as the user sees them."""
    for what, location in parsed.refused:
        raise NotBound(what, location)
    try:
        with zone_times.within(binder.world.zone):
            yield
    except Located as found:
        at = found.location
        raise found.error(binder.position(at) if at is not None and at >= 0 else None) from None
    except RecursionError:
        raise NotSupported("the query is nested too deeply", hint="Split it with WITH or views.") from None


def _check_lock(lock: pb.LockingClause, query: pb.SelectStmt) -> None:
    """Raise for a FOR UPDATE or FOR SHARE that promises what serializable transactions do not do, or that is wrong.

    Nothing is locked: a transaction that has read rows which another one changes fails at its COMMIT (40001).
    """
    if lock.wait_policy == pb.LockWaitSkip:
        refuse("SKIP LOCKED", lock)
    parts = {"DISTINCT clause": query.distinct_clause, "GROUP BY clause": query.group_clause}
    wrong = next((name for name, part in parts.items() if part), None)
    if query.HasField("having_clause"):
        wrong = wrong or "HAVING clause"
    if query.op in _SETS:
        wrong = "UNION/INTERSECT/EXCEPT"
    if wrong is not None:
        raise Wrong(f"{_LOCKS[lock.strength]} is not allowed with {wrong}", "0A000", None)
