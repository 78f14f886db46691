"""GROUP BY, and the rule that everything else of a grouped query is aggregated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from postgast import pg_query_pb2 as pb

from headrace.sql.binder import types as t
from headrace.sql.binder.bound_tree import (
    BoundAggregate,
    BoundColumn,
    Call,
    Constant,
    Expr,
    Nested,
    Output,
    Over,
    everything,
    walk,
)
from headrace.sql.binder.expression_binder import Expressions
from headrace.sql.binder.own import GROUPING
from headrace.sql.binder.parse_tree import Nodes, declare, inner, kind_of, refuse
from headrace.sql.binder.scope import Scope, Wrong

if TYPE_CHECKING:
    from headrace.sql.binder.bind import Binder

declare("GroupingSet", "kind content")
declare("GroupingFunc", "args")


def grouping_of(binder: Binder, clause: Nodes, outputs: Sequence[Output], scope: Scope) -> tuple[tuple[Expr, ...], str]:
    """The expressions of a GROUP BY, and Spark's text for it with `{0}`, ... for them."""
    found: list[Expr] = []
    clause = [part for node in clause for part in _flat(node)]
    if any(kind_of(node) == "GroupingSet" for node in clause):
        return _sets(binder, clause, outputs, scope)
    for node in clause:
        value = group_value(binder, node, outputs, scope)
        if value not in found and not isinstance(value, Constant):
            found.append(value)
    if clause and not found:
        found.append(Call(t.INT4, "CAST(1 AS INT)", ()))  # one group, or none if there are no rows
    return tuple(found), ", ".join(f"{{{i}}}" for i in range(len(found)))


def _flat(node: pb.Node) -> list[pb.Node]:
    """The parts of `(a, b)`, which is the same as `a, b`; `ROW(a, b)` is a value."""
    return [part for item in inner(node).args for part in _flat(item)] if _is_listed(node) else [node]


def _is_listed(node: pb.Node) -> bool:
    return kind_of(node) == "RowExpr" and node.row_expr.row_format == pb.COERCE_IMPLICIT_CAST


def _sets(binder: Binder, clause: Nodes, outputs: Sequence[Output], scope: Scope) -> tuple[tuple[Expr, ...], str]:
    found: list[Expr] = []
    parts = [_part(binder, node, outputs, scope, found) for node in clause]
    if not found and parts != ["()"]:
        refuse("grouping sets without any expression", clause[0])
    return tuple(found), ", ".join("GROUPING SETS (())" if part == "()" else part for part in parts)


def as_sets(grouped: tuple[tuple[Expr, ...], str], values: Sequence[Expr]) -> tuple[tuple[Expr, ...], str]:
    """A plain GROUP BY as one grouping set where `GROUPING` is asked for, which Spark knows of sets alone."""
    groups, text = grouped
    asked = any(isinstance(p, BoundAggregate) and GROUPING in p.form for value in values for p in walk(value))
    return (groups, f"GROUPING SETS (({text}))") if asked and text.startswith("{") and "(" not in text else grouped


_WORDS: Final = {pb.GROUPING_SET_ROLLUP: "ROLLUP", pb.GROUPING_SET_CUBE: "CUBE", pb.GROUPING_SET_SETS: "GROUPING SETS"}


def _part(binder: Binder, node: pb.Node, outputs: Sequence[Output], scope: Scope, found: list[Expr]) -> str:
    """Spark's text of a part of a GROUP BY with grouping sets; `found` gets the expressions."""
    if _is_listed(node):
        return "(" + ", ".join(_part(binder, a, outputs, scope, found) for a in inner(node).args) + ")"
    if kind_of(node) != "GroupingSet":
        value = group_value(binder, node, outputs, scope)
        if isinstance(value, Constant):
            refuse("a constant in GROUPING SETS", node)
        if value not in found:
            found.append(value)
        return f"{{{found.index(value)}}}"
    message = inner(node)
    if message.kind == pb.GROUPING_SET_EMPTY:
        return "()"
    word = _WORDS.get(message.kind)
    if word is None:
        refuse("this grouping set", message)
    parts = [_part(binder, part, outputs, scope, found) for part in message.content]
    if word == "GROUPING SETS":
        parts = [p if p[0] == "(" or p[0].isalpha() else f"({p})" for p in parts]
    return f"{word} ({', '.join(parts)})"


def group_value(binder: Binder, node: pb.Node, outputs: Sequence[Output], scope: Scope) -> Expr:
    """The expression that a name, a number or an expression of GROUP BY means."""
    at = Expressions(binder, scope, "GROUP BY")
    if kind_of(node) == "A_Const":
        constant = inner(node)
        if constant.WhichOneof("val") != "ival":
            raise Wrong("non-integer constant in GROUP BY", "42601", constant.location)
        return _without_aggregates(
            numbered(outputs, constant.ival.ival, "GROUP BY", constant.location), constant.location
        )
    if kind_of(node) == "ColumnRef" and len(node.column_ref.fields) == 1:
        column = inner(node)
        if kind_of(column.fields[0]) == "String":
            name = column.fields[0].string.sval
            if not any(item.open and item.find(name) for item in scope.items):
                matches = {o.value: o for o in outputs if o.name == name}
                if len(matches) > 1:
                    raise Wrong(f'GROUP BY "{name}" is ambiguous', "42702", column.location)
                if matches:
                    return _without_aggregates(next(iter(matches)), column.location)
    return at.known(node)


def _without_aggregates(value: Expr, location: int) -> Expr:
    if _has_aggregate(value):
        raise Wrong("aggregate functions are not allowed in GROUP BY", "42803", location)
    return value


def _has_aggregate(value: Expr) -> bool:
    return isinstance(value, BoundAggregate) or any(_has_aggregate(c) for c in value.children())


def numbered(outputs: Sequence[Output], number: int, clause: str, location: int) -> Expr:
    """The output column of that number, from 1."""
    if not 1 <= number <= len(outputs):
        raise Wrong(f"{clause} position {number} is not in select list", "42P10", location)
    return outputs[number - 1].value


def check_grouped(binder: Binder, groups: Sequence[Expr], values: Sequence[Expr]) -> None:
    """Raises `Wrong` for a column that is neither grouped nor aggregated."""
    for value in values:
        _check(binder, set(groups), value)


def _check(binder: Binder, groups: set[Expr], value: Expr) -> None:
    if isinstance(value, BoundAggregate) and GROUPING in value.form and not groups.issuperset(value.arguments):
        what = "arguments to GROUPING must be grouping expressions of the associated query level"
        raise Wrong(what, "42803", None)
    if value in groups or isinstance(value, BoundAggregate):
        return
    if isinstance(value, BoundColumn) and value.relation in binder.local:
        raise Wrong(
            f'column "{value.shown}" must appear in the GROUP BY clause or be used in an aggregate function',
            "42803",
            None,
        )
    if isinstance(value, Nested) and _reaches(value, binder.local):
        refuse("a correlated query in a grouped one")
    for child in value.children():
        if isinstance(value, Over):
            _check(binder, groups, child)
        else:
            _check(binder, groups, child)


def _reaches(value: Nested, local: set[int]) -> bool:
    """Whether a nested query may name columns of the query around it."""
    return any(isinstance(part, BoundColumn) and part.relation in local for part in everything(value.query))
