"""Window functions that find one row, such as `first_value`: what they give of it is computed of that row alone.

So an expression that fails on rows which nobody asks for fails nobody, as in PostgreSQL.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from headrace.sql.binder.bound_tree import BoundAggregate, BoundColumn, Call, Constant, Expr, Over, SelectQuery, walk
from headrace.sql.binder.own import calls_kernel
from headrace.sql.binder.types import Type

_FORM: Final = re.compile(r"(first_value|last_value|nth_value|lag|lead)\(\{0\}(, \{1\})?(, \{2\})? *\) \{w\}")


def fetched_first(select: SelectQuery) -> SelectQuery:
    """The same query without groups, in which such functions fetch the columns of the row, before it computes."""
    return replace(
        select, outputs=tuple(replace(o, value=_lazy(o.value)) for o in select.outputs),
        order=tuple(replace(k, value=_lazy(k.value)) for k in select.order),
    )  # fmt: skip


def _lazy(expr: Expr) -> Expr:
    if isinstance(expr, Over):
        return _of_row(expr)
    if isinstance(expr, Call) and any(isinstance(part, Over) for part in walk(expr)):
        return replace(expr, arguments=tuple(map(_lazy, expr.arguments)))
    return expr


def _of_row(over: Over) -> Expr:
    """The value of the row that is found; as it is where that is a column's, or more than columns are in it."""
    function = over.function
    assert isinstance(function, BoundAggregate)
    match = _FORM.fullmatch(function.form)
    value = function.arguments[0] if function.arguments else over
    columns = list(dict.fromkeys(p for p in walk(value) if isinstance(p, BoundColumn)))
    if match is None or isinstance(value, BoundColumn) or not columns or not _is_plain(value):
        return over
    fields = ", ".join(f"'c{i}', {{{i}}}" for i in range(len(columns)))
    shape = ",".join(f"c{i}:{c.type.spark}" for i, c in enumerate(columns))
    row = Call(Type("record", f"struct<{shape}>", "P"), f"named_struct({fields})", tuple(columns))
    form = function.form.replace(", {2}", "")
    found = replace(
        over, type=row.type,
        function=replace(function, type=row.type, form=form, arguments=(row, *function.arguments[1:2])),
    )  # fmt: skip
    fetched: dict[Expr, Expr] = {c: Call(c.type, f"{{0}}.c{i}", (found,)) for i, c in enumerate(columns)}
    default = function.arguments[2] if match[3] else Constant(value.type, None)
    return Call(over.type, "CASE WHEN {0} IS NOT NULL THEN {1} ELSE {2} END", (found, _put(value, fetched), default))


def _is_plain(value: Expr) -> bool:
    parts = list(walk(value))
    known = all(isinstance(p, (Call, BoundColumn, Constant)) for p in parts)
    return known and not calls_kernel(value) and not any(isinstance(p, Call) and p.volatile for p in parts)


def _put(expr: Expr, found: Mapping[Expr, Expr]) -> Expr:
    if isinstance(expr, Call):
        return replace(expr, arguments=tuple(_put(a, found) for a in expr.arguments))
    return found.get(expr, expr)
