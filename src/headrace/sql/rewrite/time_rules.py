"""Rules for dates, timestamps and series."""

from __future__ import annotations

from sqlglot import exp

from headrace.errors import NotSupported
from headrace.sql.date_patterns import spark_pattern
from headrace.sql.intervals import parse_interval
from headrace.sql.normalize import interval_words
from headrace.sql.rewrite.tree_building import FLOATS, INTEGERS, ZONED, ZONELESS, Types, cast, fn, kind_of, number, raw

_D = exp.DType


def date_trunc(node: exp.Expr, types: Types) -> exp.Expr:
    """`date_trunc` keeps a timestamp without zone one without zone."""
    unit = node.args.get("unit")
    word = exp.Literal.string(unit.name.upper() if unit is not None else "DAY")
    call = fn("DATE_TRUNC", word, node.this)
    return cast(call, _D.TIMESTAMP) if kind_of(types, node.this) in ZONELESS else call


def extract(node: exp.Expr, types: Types) -> exp.Expr:
    """Fields of `extract` that Spark spells or counts differently."""
    field, value = node.name.lower(), node.expression
    if field == "epoch":
        return _epoch(value, types)
    if field == "dow":
        return exp.Paren(this=exp.Sub(this=_part("DOW", value), expression=number(1)))
    if field in ("milliseconds", "microseconds", "millisecond", "microsecond"):
        scale = 1000 if field.startswith("milli") else 1_000_000
        return exp.Paren(this=exp.Mul(this=_part("SECOND", value), expression=number(scale)))
    renamed = {"isodow": "DOW_ISO", "isoyear": "YEAROFWEEK", "doy": "DOY"}
    if field in ("century", "decade", "millennium"):
        divisor = {"century": 100, "decade": 10, "millennium": 1000}[field]
        year: exp.Expr = _part("YEAR", value)
        if field != "decade":
            year = exp.Paren(this=exp.Add(this=year, expression=number(divisor - 1)))
        return exp.Paren(this=exp.IntDiv(this=year, expression=number(divisor)))
    return _part(renamed.get(field, field.upper()), value)


def _part(field: str, value: exp.Expr) -> exp.Extract:
    return exp.Extract(this=raw(field), expression=value.copy())


def _epoch(value: exp.Expr, types: Types) -> exp.Expr:
    kind = kind_of(types, value)
    inner = value.this if isinstance(value, exp.Paren) else value
    sides = [kind_of(types, side) for side in (inner.this, inner.expression)] if isinstance(inner, exp.Sub) else []
    if kind == _D.INTERVAL or (sides and all(side in ZONED | ZONELESS for side in sides)):
        total: exp.Expr = _part("SECOND", value)
        for field, seconds in (("MINUTE", 60), ("HOUR", 3600), ("DAY", 86400)):
            scaled = exp.Mul(this=cast(_part(field, value), _D.BIGINT), expression=number(seconds))
            total = exp.Add(this=scaled, expression=total)
        return cast(exp.Paren(this=total), "decimal(20,6)")
    micros = cast(fn("UNIX_MICROS", cast(value, _D.TIMESTAMPTZ)), "decimal(20,0)")
    return cast(exp.Div(this=micros, expression=number(1_000_000)), "decimal(20,6)")


def at_time_zone(node: exp.Expr, types: Types) -> exp.Expr:
    """`AT TIME ZONE` turns a zoned timestamp into local time, and local time into a zoned timestamp."""
    zone = node.args["zone"]
    if kind_of(types, node.this) in ZONELESS:
        return fn("TO_UTC_TIMESTAMP", cast(node.this, _D.TIMESTAMPTZ), zone)
    return cast(fn("FROM_UTC_TIMESTAMP", cast(node.this, _D.TIMESTAMPTZ), zone), _D.TIMESTAMP)


def subtraction(node: exp.Expr, types: Types) -> exp.Expr:
    """A date minus a date is a number of days; a date minus an interval is a timestamp."""
    left, right = kind_of(types, node.this), kind_of(types, node.expression)
    if left == _D.DATE and right == _D.DATE:
        return fn("DATEDIFF", node.this, node.expression)
    return addition(node, types)


def addition(node: exp.Expr, types: Types) -> exp.Expr:
    """A date plus an interval is a timestamp."""
    if kind_of(types, node.this) == _D.DATE and _is_interval(node.expression, types):
        return type(node)(this=cast(node.this, _D.TIMESTAMP), expression=node.expression)
    return node


def _is_interval(node: exp.Expr, types: Types) -> bool:
    spelled = isinstance(node, exp.Var) and node.name.startswith(("INTERVAL '", "MAKE_INTERVAL("))
    return spelled or kind_of(types, node) == _D.INTERVAL


def series(node: exp.Expr, types: Types) -> exp.Expr:
    """`generate_series` is empty when it starts beyond its end."""
    start, end, step = node.args["start"], node.args["end"], node.args.get("step")
    first, last = exp.Paren(this=start), exp.Paren(this=end)
    upward: exp.Expr = exp.LTE(this=first, expression=last)
    downward: exp.Expr = exp.GTE(this=first.copy(), expression=last.copy())
    if step is None:
        step, fits = number(1), upward
    elif (sign := _sign(step)) is not None:
        fits = upward if sign > 0 else downward
    else:
        ups = exp.And(this=exp.GT(this=exp.Paren(this=step.copy()), expression=number(0)), expression=upward)
        downs = exp.And(this=exp.LT(this=exp.Paren(this=step.copy()), expression=number(0)), expression=downward)
        fits = exp.Or(this=exp.Paren(this=ups), expression=exp.Paren(this=downs))
    return fn("EXPLODE", fn("IF", fits, fn("SEQUENCE", start.copy(), end.copy(), step), fn("ARRAY")))


def _sign(step: exp.Expr) -> int | None:
    if isinstance(step, exp.Literal) and not step.is_string:
        return 1
    if isinstance(step, exp.Neg):
        return -1
    if isinstance(step, exp.Var):
        return -1 if "'-" in step.name or ", -" in step.name else 1
    if isinstance(step, exp.Interval):
        return 1 if sum(parse_interval(interval_words(step))) > 0 else -1
    return None


def to_char(node: exp.Expr, types: Types) -> exp.Expr:
    """`to_char` of a time or a number; the pattern has to be a literal."""
    value, pattern = _two(node)
    kind = kind_of(types, value)
    if kind in INTEGERS or kind in FLOATS or kind == _D.DECIMAL:
        plain = exp.Literal.string(pattern.name.removeprefix("FM"))
        number_text = fn("TO_CHAR", cast(value, "decimal(38,10)") if kind != _D.DECIMAL else value, plain)
        return fn("LTRIM", number_text) if pattern.name.startswith("FM") else number_text
    return fn("DATE_FORMAT", value, exp.Literal.string(spark_pattern(pattern.name)))


def _two(node: exp.Expr) -> tuple[exp.Expr, exp.Literal]:
    args = node.expressions
    if len(args) != 2 or not isinstance(args[1], exp.Literal):
        raise NotSupported(f"{node.name} needs a value and a literal pattern")
    return args[0], args[1]


def to_date(node: exp.Expr, types: Types) -> exp.Expr:
    """`to_date(text, pattern)`."""
    value, pattern = _two(node)
    return fn("TO_DATE", value, exp.Literal.string(spark_pattern(pattern.name)))


def to_timestamp(node: exp.Expr, types: Types) -> exp.Expr:
    """`to_timestamp(seconds)` and `to_timestamp(text, pattern)`."""
    if len(node.expressions) == 1:
        return fn("TIMESTAMP_SECONDS", node.expressions[0])
    value, pattern = _two(node)
    return fn("TO_TIMESTAMP", value, exp.Literal.string(spark_pattern(pattern.name)))


ANONYMOUS = {"to_char": to_char, "to_date": to_date, "to_timestamp": to_timestamp}

RULES = {
    exp.TimestampTrunc: date_trunc,
    exp.Extract: extract,
    exp.AtTimeZone: at_time_zone,
    exp.Sub: subtraction,
    exp.Add: addition,
    exp.ExplodingGenerateSeries: series,
    exp.GenerateSeries: series,
}
