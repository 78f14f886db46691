"""Aggregates and window functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from headrace.common.lazy_dataclass import dataclass
from headrace.common.span import DAYS, MICROS, MONTHS
from headrace.sql.binder import types as t
from headrace.sql.binder.bound_tree import Expr
from headrace.sql.binder.catalogue.entries import result_type, signature
from headrace.sql.binder.resolve import Signature
from headrace.sql.binder.spans import TOTAL, struct
from headrace.sql.binder.types import Type


@dataclass(frozen=True, slots=True)
class AggregateEntry:
    """An overload of an aggregate or a window function.

    `form` is Spark's text: `{d}` for DISTINCT, `{w}` for FILTER and OVER, which else stand at its end. An `average` is a sum divided by a count.
    """

    name: str
    signature: Signature
    form: str
    result: Callable[[Sequence[Expr]], Type]
    average: bool = False


def _entry(name: str, listed: str, result: str, form: str) -> AggregateEntry:
    return AggregateEntry(name, signature(listed), form, lambda arguments: result_type(result, arguments))


def _sum_of_numeric(arguments: Sequence[Expr]) -> Type:
    precision, scale = t.digits(arguments[0].type)
    return t.decimal(min(precision + 10, t.DIGITS), scale)


_SORTABLE: Final = (
    "int2",
    "int4",
    "int8",
    "float4",
    "float8",
    "numeric",
    "text",
    "date",
    "timestamp",
    "timestamptz",
)
_PARTS: Final = tuple(f"sum({{0}}.{name}) {{w}}" for name in (MONTHS, DAYS, MICROS))
_SUM_OF_SPANS: Final = f"CASE WHEN {_PARTS[0]} IS NOT NULL THEN {struct(*_PARTS)} END"
_SPAN_IN_ORDER: Final = f"CASE WHEN {{0}} IS NOT NULL THEN named_struct('k', {TOTAL}, 'v', {{0}}) END"
"""Of intervals that are equal always the same one is found."""
_AGGREGATES: Final[list[AggregateEntry]] = [
    _entry("count", "any", "int8", "count({d}{0})"),
    _entry("sum", "int2", "int8", "sum({d}{0})"),
    _entry("sum", "int4", "int8", "sum({d}{0})"),
    AggregateEntry("sum", signature("int8"), "CAST(sum({d}{0}) {w} AS DECIMAL(19,0))", lambda _: t.decimal(19, 0)),
    AggregateEntry("sum", signature("numeric"), "sum({d}{0})", _sum_of_numeric),
    _entry("sum", "float4", "float4", "CAST(sum({d}{0}) {w} AS FLOAT)"),
    _entry("sum", "float8", "float8", "sum({d}{0})"),
    _entry("avg", "float8", "float8", "avg({d}{0})"),
    *(AggregateEntry("avg", signature(k), "", lambda a: t.NUMERIC, average=True) for k in (*t.INTEGERS, "numeric")),
    *(_entry(name, k, "*", f"{name}({{0}})") for name in ("min", "max") for k in _SORTABLE),
    *(_entry(n, "interval", "*", f"({n}({_SPAN_IN_ORDER}){{w}}).v") for n in ("min", "max")),
    *(_entry(n, "time", "*", f"{n}({{0}})") for n in ("min", "max")),
    _entry("sum", "interval", "interval", _SUM_OF_SPANS),
    _entry("bool_and", "bool", "bool", "bool_and({0})"),
    _entry("every", "bool", "bool", "bool_and({0})"),
    _entry("bool_or", "bool", "bool", "bool_or({0})"),
    *(_entry(n, "float8", "float8", f"{s}({{d}}{{0}})") for n, s in (
        ("stddev", "stddev_samp"), ("stddev_samp", "stddev_samp"), ("stddev_pop", "stddev_pop"), ("variance", "var_samp"),
        ("var_samp", "var_samp"), ("var_pop", "var_pop"))),
    _entry("string_agg", "text, text", "text", "string_agg"),
    *(_entry(n, f"any, {k}", "*", f"{s}({{0}}, {{1}})") for n, s in (("arg_min", "min_by"), ("arg_max", "max_by")) for k in _SORTABLE),
    *(_entry(n, "float8, float8", "float8", f"{n}({{d}}{{0}}, {{1}})") for n in ("covar_pop", "covar_samp", "corr")),
    _entry("approx_count_distinct", "any", "int8", "approx_count_distinct({0})"),
    _entry("any_value", "anyelement", "*", "any_value({0})"),
    _entry("count_if", "bool", "int8", "count_if({d}{0})"),
    _entry("array_agg", "anynonarray", "*[]", "array_agg"),
    *(_entry(n, k, "*", f"{n}({{0}})") for n in ("bit_and", "bit_or") for k in t.INTEGERS),
    *(_entry("bit_xor", k, "*", "bit_xor({d}{0})") for k in t.INTEGERS),
]  # fmt: skip
_WINDOWS: Final[list[AggregateEntry]] = [
    _entry("row_number", "", "int8", "CAST(row_number() {w} AS BIGINT)"),
    _entry("rank", "", "int8", "CAST(rank() {w} AS BIGINT)"),
    _entry("dense_rank", "", "int8", "CAST(dense_rank() {w} AS BIGINT)"),
    _entry("percent_rank", "", "float8", "percent_rank() {w}"),
    _entry("cume_dist", "", "float8", "cume_dist() {w}"),
    _entry("ntile", "int4", "int4", "ntile({0}) {w}"),
    _entry("first_value", "anyelement", "*", "first_value({0}) {w}"),
    _entry("last_value", "anyelement", "*", "last_value({0}) {w}"),
    _entry("nth_value", "anyelement, int4", "*", "nth_value({0}, {1}) {w}"),
    _entry("lag", "anyelement", "*", "lag({0}) {w}"),
    _entry("lead", "anyelement", "*", "lead({0}) {w}"),
    _entry("lag", "anyelement, int4", "*", "lag({0}, {1}) {w}"),
    _entry("lead", "anyelement, int4", "*", "lead({0}, {1}) {w}"),
    _entry("lag", "anyelement, int4, anyelement", "*", "lag({0}, {1}, {2}) {w}"),
    _entry("lead", "anyelement, int4, anyelement", "*", "lead({0}, {1}, {2}) {w}"),
]


def _by_name(found: list[AggregateEntry]) -> dict[str, list[AggregateEntry]]:
    names: dict[str, list[AggregateEntry]] = {}
    for entry in found:
        names.setdefault(entry.name, []).append(entry)
    return names


AGGREGATES: Final = _by_name(_AGGREGATES)
"""Aggregates by name."""
WINDOWS: Final = _by_name(_WINDOWS)
"""Functions that are of use over a window only."""
