"""Comparisons that have a syntax of their own: of rows, with patterns, with arrays, with null."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from postgast import pg_query_pb2 as pb

from headrace.sql.binder import types as t
from headrace.sql.binder.bound_tree import Call, Constant, Expr, conjunction
from headrace.sql.binder.catalogue import likes, patterns
from headrace.sql.binder.coerce import coerce
from headrace.sql.binder.own import calls_kernel
from headrace.sql.binder.parse_tree import Message, inner, kind_of, place, refuse, strings
from headrace.sql.binder.scope import Wrong
from headrace.sql.binder.spans import let
from headrace.sql.binder.sublinks import query_in_expression
from headrace.sql.binder.types import Type

if TYPE_CHECKING:
    from headrace.sql.binder.expression_binder import Expressions


def rows(at: Expressions, symbol: str, message: pb.A_Expr) -> Expr:
    """`(a, b) = (c, d)`, `(a, b) < (c, d)`."""
    left, right = (inner(m).args for m in (message.lexpr, message.rexpr))
    if len(left) != len(right):
        raise Wrong("unequal number of entries in row expressions", "42601", place(message))
    if symbol in ("<", "<=", ">", ">="):
        return _ordered(at, symbol, [(at.bind(a), at.bind(b)) for a, b in zip(left, right, strict=True)], message)
    if symbol not in ("=", "<>"):
        refuse(f"rows with {symbol}", message)
    parts = [at.operate(symbol, at.bind(a), at.bind(b), message) for a, b in zip(left, right, strict=True)]
    return conjunction("AND" if symbol == "=" else "OR", parts)


def _ordered(at: Expressions, symbol: str, pairs: Sequence[tuple[Expr, Expr]], message: Message) -> Expr:
    """The first pair of which the two are not equal decides; a null in front of it leaves it open."""
    (left, right), *rest = pairs
    if not rest:
        return at.operate(symbol, left, right, message)
    equal = at.operate("=", left, right, message)
    decided = at.operate(symbol[0], left, right, message)
    return Call(t.BOOL, "CASE WHEN {0} THEN {1} ELSE {2} END", (equal, _ordered(at, symbol, rest, message), decided))


def distinct(at: Expressions, message: pb.A_Expr) -> Expr:
    """`IS [NOT] DISTINCT FROM`."""
    left, right = at.bind(message.lexpr), at.bind(message.rexpr)
    nulls = [e for e in (left, right) if isinstance(e, Constant) and e.text is None]
    if nulls:
        other = right if nulls[0] is left else left
        form = "({0} IS NOT NULL)" if message.kind == pb.AEXPR_DISTINCT else "({0} IS NULL)"
        return Call(t.BOOL, form, (coerce(other, t.TEXT, "implicit") if other.type.name == "unknown" else other,))
    compared = at.operate("=", left, right, message)
    assert isinstance(compared, Call)
    form = "(NOT {0} <=> {1})" if message.kind == pb.AEXPR_DISTINCT else "({0} <=> {1})"
    return Call(t.BOOL, form, compared.arguments)


def nullif(at: Expressions, message: pb.A_Expr) -> Expr:
    """`NULLIF`: the first value, of the type in which it is compared, so `nullif(1, 2.5)` is numeric."""
    left, right = at.bind(message.lexpr), at.bind(message.rexpr)
    compared = at.operate("=", left, right, message)
    left = coerce(left, _compared_as(left.type, right.type), "implicit")
    return Call(left.type, "CASE WHEN {1} THEN NULL ELSE {0} END", (left, compared))


def _compared_as(left: Type, right: Type) -> Type:
    """The type of a first operand of `=`: another one where no operator of PostgreSQL's takes the two as they are."""
    if left.name == "unknown":
        return t.TEXT if right.name == "unknown" else right
    if left.name in t.INTEGERS and right.name == "numeric":
        return t.decimal(*t.digits(left))
    return t.FLOAT8 if left.name in (*t.INTEGERS, "numeric") and right.name in ("float4", "float8") else left


def row_equals(at: Expressions, left: pb.Node, right: pb.Node, message: Message) -> Expr:
    """`(a, b) = (c, d)` as an element of IN."""
    if kind_of(right) != "RowExpr":
        refuse("a row compared with something else", message)
    a, b = inner(left).args, inner(right).args
    if len(a) != len(b):
        raise Wrong("unequal number of entries in row expressions", "42601", place(message))
    return conjunction("AND", [at.operate("=", at.bind(x), at.bind(y), message) for x, y in zip(a, b, strict=True)])


def like(at: Expressions, message: pb.A_Expr) -> Expr:
    """`LIKE` and `ILIKE`."""
    if kind_of(message.rexpr) == "FuncCall" and strings(message.rexpr.func_call.funcname)[-1] == "like_escape":
        return _like_escape(at, message)
    left, right = at.bind(message.lexpr), at.bind(message.rexpr)
    return at.operate(at.symbol(message), left, right, message)


def _like_escape(at: Expressions, message: pb.A_Expr) -> Expr:
    """`LIKE ... ESCAPE 'c'`."""
    pattern, escape = (at.bind(arg) for arg in inner(message.rexpr).args)
    if not isinstance(escape, Constant) or escape.text is None or len(escape.text) != 1:
        refuse("this ESCAPE", message)
    parts = [at.converted(e, t.TEXT, message) for e in (at.bind(message.lexpr), pattern)]
    return likes.operator(at.symbol(message), escape.text)(parts)


def similar(at: Expressions, message: pb.A_Expr) -> Expr:
    """`SIMILAR TO`."""
    call = inner(message.rexpr)
    if strings(call.funcname)[-1] != "similar_to_escape" or len(call.args) != 1:
        refuse("SIMILAR TO with ESCAPE", message)
    inner(call)
    left, pattern = (at.converted(at.bind(node), t.TEXT, message) for node in (message.lexpr, call.args[0]))
    return patterns.similar(left, pattern, at.symbol(message).startswith("!"))


def between(at: Expressions, message: pb.A_Expr) -> Expr:
    """`[NOT] BETWEEN [SYMMETRIC]`."""
    low, high = inner(message.rexpr).items
    value = at.bind(message.lexpr)

    def within(first: pb.Node, last: pb.Node) -> Expr:
        parts = (">=", first), ("<=", last)
        return conjunction("AND", [at.operate(symbol, value, at.bind(bound), message) for symbol, bound in parts])

    whole = within(low, high)
    if message.kind in (pb.AEXPR_BETWEEN_SYM, pb.AEXPR_NOT_BETWEEN_SYM):
        whole = conjunction("OR", [whole, within(high, low)])
    negative = message.kind in (pb.AEXPR_NOT_BETWEEN, pb.AEXPR_NOT_BETWEEN_SYM)
    return Call(t.BOOL, "(NOT {0})", (whole,)) if negative else whole


def any_all(at: Expressions, message: pb.A_Expr) -> Expr:
    """`x op ANY (array)` and `x op ALL (array)`."""
    if kind_of(message.rexpr) == "SubLink" and message.rexpr.sub_link.sub_link_type == pb.ARRAY_SUBLINK:
        return query_in_expression(at, _with_rows_of(message), False)
    left, right = at.bind(message.lexpr), at.bind(message.rexpr)
    if right.type.name == "unknown":
        if left.type.name == "unknown":
            refuse("ANY of a literal", message)
        right = at.converted(right, t.array_of(left.type), message.rexpr)
    if right.type.element is None:
        raise Wrong("op ANY/ALL (array) requires array on right side", "42809", place(message))
    item = Call(right.type.element, "`__item`", ())
    function = "exists" if message.kind == pb.AEXPR_OP_ANY else "forall"
    if not calls_kernel(left):
        compared = at.operate(at.symbol(message), left, item, message)
        _require_plain(compared, message)
        return Call(t.BOOL, f"{function}({{0}}, `__item` -> {{1}})", (right, compared))
    compared = at.operate(at.symbol(message), Call(left.type, "`__both`.x", ()), item, message)
    _require_plain(compared, message)
    found = f"{function}(`__both`.a, `__item` -> {{2}})"
    return Call(t.BOOL, let("__both", "named_struct('a', {0}, 'x', {1})", found), (right, left, compared))


def _with_rows_of(message: pb.A_Expr) -> pb.SubLink:
    """`x op ANY (ARRAY(query))` is `x op ANY (query)`."""
    whole = pb.SubLink()
    whole.CopyFrom(inner(message.rexpr))
    whole.sub_link_type = pb.ANY_SUBLINK if message.kind == pb.AEXPR_OP_ANY else pb.ALL_SUBLINK
    whole.testexpr.CopyFrom(message.lexpr)
    whole.oper_name.extend(message.name)
    return whole


def _require_plain(compared: Expr, message: Message) -> None:
    """Spark computes no kernel for each element of an array."""
    if calls_kernel(compared):
        refuse("this operator between a value and each element of an array", message)
