"""Casts as they are written; what they compute is in `coerce`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from headrace.sql.binder import types as t
from headrace.sql.binder.arrays import array
from headrace.sql.binder.bound_tree import Constant, Expr
from headrace.sql.binder.call_binder import SPARK, spark_call
from headrace.sql.binder.coerce import literal
from headrace.sql.binder.json_paths import is_json, json_literal
from headrace.sql.binder.parse_tree import inner, kind_of, refuse, strings
from headrace.sql.binder.typenames import interval_unit, named_type

if TYPE_CHECKING:
    from postgast import pg_query_pb2 as pb

    from headrace.sql.binder.expression_binder import Expressions

_NUMBER: Final = re.compile(r"\s*[+-]?\d+\s*", re.ASCII)
_YEARS: Final = re.compile(r"\s*[+-]?\d+-\d+\s*", re.ASCII)


def cast(at: Expressions, message: pb.TypeCast) -> Expr:
    """`CAST(x AS type)`, `x::type` and `type 'text'`."""
    unit = interval_unit(message.type_name)
    if unit is not None:
        return _interval(at, message, unit)
    if is_json(message.type_name):
        return json_literal(at.bind(message.arg), message)
    target = named_type(message.type_name)
    if kind_of(message.arg) == "FuncCall" and strings(message.arg.func_call.funcname)[0] == SPARK:
        return spark_call(at, inner(message.arg), target)
    if kind_of(message.arg) == "A_Const" and target.name in t.FLOATS and message.arg.a_const.HasField("fval"):
        return literal(message.arg.a_const.fval.fval, target)
    if kind_of(message.arg) == "A_ArrayExpr" and target.element is not None:
        return array(at, inner(message.arg), target)
    found = at.bind(message.arg)
    return at.converted(found, target, message, "explicit")


def _interval(at: Expressions, message: pb.TypeCast, unit: str) -> Expr:
    """`INTERVAL '2' DAY`."""
    found = at.bind(message.arg)
    if not isinstance(found, Constant) or found.text is None:
        refuse("an interval with units beside what is no literal", message)
    if unit == "year to month" and _YEARS.fullmatch(found.text):
        return literal(found.text, t.INTERVAL)
    if " to " in unit or not _NUMBER.fullmatch(found.text):
        refuse("an interval with units beside its text", message)
    return literal(f"{found.text.strip()} {unit}", t.INTERVAL)
