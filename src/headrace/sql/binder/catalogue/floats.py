"""Arithmetic of floats: as in PostgreSQL it is an error where the result of finite numbers is too large, or too small."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace.sql.binder import types as t
from headrace.sql.binder.catalogue.entries import Make
from headrace.sql.binder.coerce import plain
from headrace.sql.binder.spans import let
from headrace.sql.binder.tree import Call, Column, Constant, Expr
from headrace.sql.binder.types import SCALARS, Type

_ERROR: Final = "CAST(raise_error('headrace.errors.NumericOutOfRange: value out of range: {what}') AS {spark})"


def float_operator(symbol: str, kind: str) -> Make:
    """`+`, `-`, `*` or `/` of two floats, computed as the given type."""
    target = SCALARS[kind]
    form = _checked(symbol, target)
    nested = let("__f", "named_struct('a', {0}, 'b', {1})", form.replace("{0}", "`__f`.a").replace("{1}", "`__f`.b"))

    def make(arguments: Sequence[Expr]) -> Expr:
        parts = tuple(a if a.type == target else plain(a, target) for a in arguments)
        return Call(target, form if all(map(_is_short, parts)) else nested, parts)

    return make


def _is_short(expr: Expr) -> bool:
    """Whether it costs nothing to name it several times."""
    if isinstance(expr, Call) and len(expr.arguments) == 1 and expr.form.startswith("CAST({0} AS "):
        return _is_short(expr.arguments[0])
    return isinstance(expr, (Column, Constant))


def _checked(symbol: str, kind: Type) -> str:
    most, spark = f"CAST('Infinity' AS {kind.spark})", kind.spark
    result = f"({{0}} {symbol} {{1}})"
    if symbol == "/" and kind == t.FLOAT4:
        result = "CAST((CAST({0} AS DOUBLE) / CAST({1} AS DOUBLE)) AS FLOAT)"
    left, right = (f"{hole} > -{most} AND {hole} < {most}" for hole in ("{0}", "{1}"))
    finite = left if symbol == "/" else f"{left} AND {right}"
    over = f"WHEN ({result} = {most} OR {result} = -{most}) AND {finite} THEN {_raised('overflow', spark)}"
    lost = {"*": "AND {0} <> 0 AND {1} <> 0", "/": f"AND {{0}} <> 0 AND {right}"}.get(symbol)
    under = f" WHEN {result} = 0 {lost} THEN {_raised('underflow', spark)}" if lost else ""
    return f"CASE {over}{under} ELSE {result} END"


def _raised(what: str, spark: str) -> str:
    return _ERROR.replace("{what}", what).replace("{spark}", spark)
