"""Operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace.sql.binder import types as t
from headrace.sql.binder.bound_tree import Call, Constant, Expr
from headrace.sql.binder.catalogue import clock_times, documents, likes, lists, numbers, spans
from headrace.sql.binder.catalogue.entries import Catalogue, Entry, Make, catalogue, entries, made
from headrace.sql.binder.coerce import as_text, coerce, common_digits, plain
from headrace.sql.binder.floats import arithmetic
from headrace.sql.binder.own import comparable, sortable
from headrace.sql.binder.parse_tree import NotBound
from headrace.sql.binder.spans import as_daytime, let
from headrace.sql.binder.types import SCALARS

_WIDTH: Final = {"int2": 0, "int4": 1, "int8": 2}


def _wider(left: str, right: str) -> str:
    return max(left, right, key=lambda name: _WIDTH[name])


def _whole(symbol: str, result: str) -> Make:
    kind = SCALARS[result]

    def make(arguments: Sequence[Expr]) -> Expr:
        parts = tuple(a if a.type == kind else plain(a, kind) for a in arguments)
        if symbol == "/":
            return plain(Call(t.INT8, "({0} div {1})", parts), kind)
        if kind == t.INT2:
            return plain(Call(t.INT4, f"({{0}} {symbol} {{1}})", tuple(plain(p, t.INT4) for p in parts)), kind)
        return Call(kind, f"({{0}} {symbol} {{1}})", parts)

    return make


def _arithmetic() -> list[Entry]:
    found = []
    for symbol in ("+", "-", "*", "/", "%"):
        for left in t.INTEGERS:
            for right in t.INTEGERS:
                if symbol == "%" and left != right:
                    continue
                result = _wider(left, right)
                found.append(made(symbol, f"{left}, {right}", _whole(symbol, result), result))
        if symbol != "%":
            for kind in t.FLOATS:
                found.append(made(symbol, f"{kind}, {kind}", _float(symbol, kind), kind))
            found.append(made(symbol, "float4, float8", _float(symbol, "float8"), "float8"))
            found.append(made(symbol, "float8, float4", _float(symbol, "float8"), "float8"))
    found.append(made("+", "numeric, numeric", numbers.add("+"), "numeric"))  # type: ignore[arg-type]
    found.append(made("-", "numeric, numeric", numbers.add("-"), "numeric"))  # type: ignore[arg-type]
    found.append(made("*", "numeric, numeric", numbers.multiply, "numeric"))
    found.append(made("/", "numeric, numeric", numbers.divide, "numeric"))
    found.append(made("%", "numeric, numeric", numbers.modulo, "numeric"))
    return found


def _float(symbol: str, kind: str) -> Make:
    target = SCALARS[kind]

    def make(arguments: Sequence[Expr]) -> Expr:
        parts = tuple(a if a.type == target else plain(a, target) for a in arguments)
        return arithmetic(symbol, (parts[0], parts[1]))

    return make


_COMPARED: Final = (
    "bool",
    "jsonb",
    "time",
    "text",
    "bytea",
    "date",
    "timestamp",
    "timestamptz",
    "interval",
    "float4",
    "float8",
)


def _compare(symbol: str) -> list[Entry]:
    found = [made(symbol, f"{k}, {k}", _comparison(symbol), "bool") for k in _COMPARED]
    found += [made(symbol, f"{a}, {b}", _comparison(symbol), "bool") for a in t.INTEGERS for b in t.INTEGERS]
    for a, b in (("float4", "float8"), ("date", "timestamp"), ("date", "timestamptz"), ("timestamp", "timestamptz")):
        found += [made(symbol, f"{x}, {y}", _comparison(symbol), "bool") for x, y in ((a, b), (b, a))]
    found.append(made(symbol, "numeric, numeric", _comparison(symbol), "bool"))
    found.append(made(symbol, "anyarray, anyarray", _comparison(symbol), "bool"))
    return found


_RANK: Final = {name: i for i, name in enumerate(
    ("int2", "int4", "int8", "float4", "float8", "date", "timestamp", "timestamptz"))}  # fmt: skip


def _comparison(symbol: str) -> Make:
    def make(arguments: Sequence[Expr]) -> Expr:
        left, right = alike(arguments, symbol)
        return Call(t.BOOL, f"({{0}} {symbol} {{1}})", (left, right))

    return make


def alike(arguments: Sequence[Expr], symbol: str) -> tuple[Expr, ...]:
    """What is compared, as values of one type that holds both exactly."""
    natural = [as_daytime(a) for a in arguments] if arguments[0].type.name == "interval" else []
    if natural and all(natural):
        return tuple(n for n in natural if n is not None)
    arguments = [comparable(a) for a in arguments]
    kinds = {a.type.name for a in arguments}
    if any(a.type.element is not None and a.type.element.name in t.LOOSE for a in arguments):
        raise NotBound(f"a comparison of arrays of type {arguments[0].type}")
    if kinds == {"numeric"}:
        target = common_digits(arguments)
        return tuple(coerce(a, target, "implicit") for a in arguments)
    if any(a.type.is_array for a in arguments) and len({a.type.spark for a in arguments}) > 1:
        raise NotBound("a comparison of arrays of different types")
    if any(a.type.is_array for a in arguments) and symbol not in ("=", "<>"):
        return tuple(sortable(a) for a in arguments)
    if len(kinds) == 1:
        return tuple(arguments)
    target = max((a.type for a in arguments), key=lambda k: _RANK.get(k.name, -1))
    return tuple(a if a.type.name == target.name or a.type.name in t.TEXTS else plain(a, target) for a in arguments)


_PAIR: Final = "named_struct('a', {0}, 'b', {1})"
_FOUND: Final = "coalesce(exists(`__p`.a, `__f` -> `__f` = `__e`), FALSE)"


def _elements(function: str, swapped: bool) -> Make:
    """Whether all elements of an array, or any, are among those of another; nulls are among none."""
    body = f"CASE WHEN `__p`.a IS NOT NULL AND `__p`.b IS NOT NULL THEN {function}(`__p`.b, `__e` -> {_FOUND}) END"

    def make(arguments: Sequence[Expr]) -> Expr:
        left, right = alike(arguments, "=")
        return Call(t.BOOL, let("__p", _PAIR, body), (right, left) if swapped else (left, right))

    return make


def _joined(arguments: Sequence[Expr]) -> Expr:
    return Call(t.TEXT, "concat({0}, {1})", tuple(as_text(a) for a in arguments))


def _days(symbol: str) -> Make:
    """A date plus or minus a number of days."""

    def make(arguments: Sequence[Expr]) -> Expr:
        date, days = arguments if arguments[0].type.name == "date" else reversed(arguments)
        function = "date_add" if symbol == "+" else "date_sub"
        if isinstance(days, Constant):
            return Call(t.DATE, f"{function}({{0}}, {{1}})", (date, days))
        form = f"CASE WHEN {{1}} NOT BETWEEN -5000000 AND 5000000 THEN CAST(raise_error('{_DATE_RANGE}') AS DATE) ELSE "
        return Call(t.DATE, f"{form}{function}({{0}}, {{1}}) END", (date, days))

    return make


_DATE_RANGE: Final = "headrace.errors.InvalidDatetime: [22008] date out of range"


def _negative(arguments: Sequence[Expr]) -> Expr:
    return Call(arguments[0].type, "(- {0})", tuple(arguments))


_TIMES: Final = """
-(date, date) -> int4 : datediff({0}, {1})
"""
_BITS: Final = """
&(int2, int2) -> int2 : ({0} & {1})
&(int4, int4) -> int4 : ({0} & {1})
&(int8, int8) -> int8 : ({0} & {1})
|(int2, int2) -> int2 : ({0} | {1})
|(int4, int4) -> int4 : ({0} | {1})
|(int8, int8) -> int8 : ({0} | {1})
#(int2, int2) -> int2 : ({0} ^ {1})
#(int4, int4) -> int4 : ({0} ^ {1})
#(int8, int8) -> int8 : ({0} ^ {1})
<<(int4, int4) -> int4 : shiftleft({0}, {1})
<<(int8, int4) -> int8 : shiftleft({0}, {1})
>>(int4, int4) -> int4 : shiftright({0}, {1})
>>(int8, int4) -> int8 : shiftright({0}, {1})
^(float8, float8) -> float8 : POWER
||(bytea, bytea) -> bytea : concat({0}, {1})
"""


def _build() -> Catalogue:
    found = [
        *_arithmetic(),
        *entries(_TIMES),
        *entries(_BITS.replace("POWER", numbers.POWER)),
        *lists.operators(),
        *documents.operators(),
        *spans.operators(),
        *clock_times.operators(),
    ]
    for symbol in ("=", "<>", "<", "<=", ">", ">="):
        found += _compare(symbol)
    found.append(made("||", "text, text", _joined, "text"))
    found.append(made("||", "text, anynonarray", _joined, "text"))
    found.append(made("||", "anynonarray, text", _joined, "text"))
    for symbol in ("~~", "!~~", "~~*", "!~~*"):
        found.append(made(symbol, "text, text", likes.operator(symbol), "bool"))
    found.append(made("@>", "anyarray, anyarray", _elements("forall", False), "bool"))
    found.append(made("<@", "anyarray, anyarray", _elements("forall", True), "bool"))
    found.append(made("&&", "anyarray, anyarray", _elements("exists", False), "bool"))
    found.append(made("+", "date, int4", _days("+"), "date"))
    found.append(made("+", "int4, date", _days("+"), "date"))
    found.append(made("-", "date, int4", _days("-"), "date"))
    return catalogue(found)


OPERATORS: Final = _build()
"""Operators between two arguments."""
PREFIXES: Final = catalogue(
    [
        *(made("-", k, _negative, k) for k in (*t.INTEGERS, *t.FLOATS, "numeric")),
        made("-", "interval", spans.negative, "interval"),
        *(made("+", k, lambda a: a[0], k) for k in (*t.INTEGERS, *t.FLOATS, "numeric")),
        *entries("~(int4) -> int4 : (~ {0})\n~(int8) -> int8 : (~ {0})\n@(float8) -> float8 : abs({0})"),
    ]
)
"""Operators before one argument."""
