"""Logic with three values: `AND`, `OR`, `NOT`, and the tests with `IS`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from postgast import pg_query_pb2 as pb

from headrace.sql.binder import types as t
from headrace.sql.binder.bound_tree import Call, Expr, conjunction
from headrace.sql.binder.parse_tree import inner, kind_of
from headrace.sql.binder.structs import is_null

if TYPE_CHECKING:
    from headrace.sql.binder.expression_binder import Expressions

_TESTS: Final = {
    pb.IS_TRUE: "({0} <=> TRUE)",
    pb.IS_NOT_TRUE: "(NOT {0} <=> TRUE)",
    pb.IS_FALSE: "({0} <=> FALSE)",
    pb.IS_NOT_FALSE: "(NOT {0} <=> FALSE)",
    pb.IS_UNKNOWN: "({0} IS NULL)",
    pb.IS_NOT_UNKNOWN: "({0} IS NOT NULL)",
}


def logic(at: Expressions, message: pb.BoolExpr) -> Expr:
    """`AND`, `OR` and `NOT`."""
    names = {pb.AND_EXPR: "AND", pb.OR_EXPR: "OR", pb.NOT_EXPR: "NOT"}
    name = names[message.boolop]
    if name == "NOT":
        negated, at.test = at.test, False
        found = _part(at, message.args[0], name, negated)
        return Call(t.BOOL, "(NOT {0})", (found,))
    test = at.test
    parts = []
    for arg in message.args:
        at.test = test
        parts.append(at.boolean(at.bind(arg), name, arg))
    return conjunction(name, parts)


def _part(at: Expressions, node: pb.Node, name: str, negated: bool) -> Expr:
    """What NOT stands before; NOT IN a query at the top of a condition Spark knows itat."""
    at.test = negated and kind_of(node) == "SubLink"
    try:
        return at.boolean(at.bind(node), name, node)
    finally:
        at.test = False


def null_test(at: Expressions, message: pb.NullTest) -> Expr:
    """`IS [NOT] NULL`."""
    negative = message.nulltesttype == pb.IS_NOT_NULL
    form = "({0} IS NOT NULL)" if negative else "({0} IS NULL)"
    if kind_of(message.arg) == "RowExpr":
        parts: list[Expr] = [Call(t.BOOL, form, (at.known(arg),)) for arg in inner(message.arg).args]
        return conjunction("AND", parts)
    found = at.known(message.arg)
    if found.type.name == "record":
        return is_null(found, negative)
    return Call(t.BOOL, form, (found,))


def boolean_test(at: Expressions, message: pb.BooleanTest) -> Expr:
    """`IS [NOT] TRUE`, `FALSE` or `UNKNOWN`."""
    return Call(t.BOOL, _TESTS[message.booltesttype], (at.boolean(at.bind(message.arg), "IS TRUE", message.arg),))
