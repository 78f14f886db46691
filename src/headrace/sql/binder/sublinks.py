"""Queries in expressions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from postgast import pg_query_pb2 as pb

from headrace.sql.binder import types as t
from headrace.sql.binder.bound_tree import Call, Expr, Nested, Query, conjunction, fill
from headrace.sql.binder.listed import array_of_query, over_rows
from headrace.sql.binder.parse_tree import inner, kind_of, refuse, strings
from headrace.sql.binder.scope import Wrong

if TYPE_CHECKING:
    from headrace.sql.binder.expression_binder import Expressions


def query_in_expression(at: Expressions, message: pb.SubLink, test: bool) -> Expr:
    """Any query in an expression; `test` says that null counts as false there."""
    kind = message.sub_link_type
    query: Query = at.binder.query(message.subselect, at.scope)
    if kind == pb.EXISTS_SUBLINK:
        return Nested(t.BOOL, "EXISTS ({q})", query, ())
    if kind == pb.EXPR_SUBLINK:
        if len(query.types) != 1:
            raise Wrong("subquery must return only one column", "42601", message.location)
        return Nested(query.types[0], "({q})", query, ())
    if kind == pb.ARRAY_SUBLINK:
        if len(query.types) != 1:
            raise Wrong("subquery must return only one column", "42601", message.location)
        return array_of_query(at.binder, query)
    if kind == pb.ANY_SUBLINK and (not message.oper_name or strings(message.oper_name) == ["="]):
        return _in_query(at, message, query, test)
    if kind in (pb.ANY_SUBLINK, pb.ALL_SUBLINK):
        return _compared_with_query(at, message, query)
    refuse("this query in an expression", message)


def _compared_with_query(at: Expressions, message: pb.SubLink, query: Query) -> Expr:
    """`x op ANY (query)`, `x op ALL (query)` and rows in a query, with null where a null leaves it open."""
    nodes = list(inner(message.testexpr).args) if kind_of(message.testexpr) == "RowExpr" else [message.testexpr]
    if len(nodes) != len(query.types):
        few = "few" if len(nodes) > len(query.types) else "many"
        raise Wrong(f"subquery has too {few} columns", "42601", message.location)
    symbol = strings(message.oper_name)[-1] if message.oper_name else "="
    symbol = "<>" if symbol == "!=" else symbol
    if len(nodes) > 1 and symbol not in ("=", "<>"):
        refuse("an order of rows", message)
    left = [at.bind(node) for node in nodes]

    def compare(columns: Sequence[Expr]) -> Expr:
        parts = [at.operate(symbol, a, b, message) for a, b in zip(left, columns, strict=True)]
        return conjunction("OR" if symbol == "<>" else "AND", parts)

    return over_rows(at.binder, query, compare, message.sub_link_type == pb.ANY_SUBLINK)


def _in_query(at: Expressions, message: pb.SubLink, query: Query, test: bool) -> Expr:
    if kind_of(message.testexpr) == "RowExpr":
        return _row_in_query(at, message, query, test)
    if len(query.types) != 1:
        raise Wrong("subquery has too many columns", "42601", message.location)
    left = at.bind(message.testexpr)
    item = Call(query.types[0], "{item}", ())
    compared = at.operate("=", left, item, message)
    assert isinstance(compared, Call)
    value, wanted = compared.arguments
    if wanted != item and not (isinstance(wanted, Call) and wanted.arguments == (item,)):
        return _compared_with_query(at, message, query)
    column = fill(wanted.form, ["`c`"]) if wanted != item and isinstance(wanted, Call) else "`c`"
    form = f"({{0}} IN (SELECT {column} FROM ({{q}}) AS `_s`(`c`)))"
    if not test:
        form = _three_valued(column)
    return Nested(t.BOOL, form, query, (value,))


def _row_in_query(at: Expressions, message: pb.SubLink, query: Query, test: bool) -> Expr:
    items = inner(message.testexpr).args
    if len(items) != len(query.types):
        raise Wrong("subquery has too few columns", "42601", message.location)
    values = [at.bind(i) for i in items]
    if not test or any(v.type.name in t.LOOSE or v.type != k for v, k in zip(values, query.types, strict=True)):
        return _compared_with_query(at, message, query)
    holes = ", ".join(f"{{{i}}}" for i in range(len(values)))
    return Nested(t.BOOL, f"(({holes}) IN ({{q}}))", query, tuple(values))


def _three_valued(column: str) -> str:
    """`x IN (query)` as a value: null where a null could be the one that is looked for."""
    rows = "FROM ({q}) AS `_s`(`c`)"
    return (
        f"CASE WHEN {{0}} IN (SELECT {column} {rows} WHERE `c` IS NOT NULL) THEN TRUE "
        f"WHEN (SELECT count(*) {rows}) = 0 THEN FALSE "
        f"WHEN {{0}} IS NULL OR (SELECT count(*) {rows} WHERE `c` IS NULL) > 0 THEN NULL ELSE FALSE END"
    )
