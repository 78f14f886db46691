"""Intervals for Spark: structs of months, days and microseconds, compared by months of 30 days and days of 24 hours."""

from __future__ import annotations

from typing import Final

from headrace.common.span import DAYS, MICROS, MONTHS
from headrace.sql.binder import types as t
from headrace.sql.binder.bound_tree import Call, Constant, Expr, Nested, walk
from headrace.sql.binder.types import Type
from headrace.sql.intervals import parse_interval, spark_interval

DAYTIME: Final = Type("interval", "interval day to second", "T", True)
"""Spark's own intervals of days and times, as a view from before may have them."""
DAY: Final = "86400000000L"
"""Microseconds."""
M, D, U = (f"{{s}}.{name}" for name in (MONTHS, DAYS, MICROS))
TOTAL: Final = (
    f"CAST(CAST({{0}}.{MONTHS} AS DECIMAL(11,0)) * CAST(2592000000000 AS DECIMAL(13,0)) "
    f"+ CAST({{0}}.{DAYS} AS DECIMAL(11,0)) * CAST(86400000000 AS DECIMAL(11,0)) "
    f"+ CAST({{0}}.{MICROS} AS DECIMAL(19,0)) AS DECIMAL(24,0))"
)
"""By what intervals are compared."""


def let(name: str, value: str, body: str) -> str:
    """Spark's text for a body in which a name stands for a value that is computed once."""
    return f"transform(array({value}), `{name}` -> {body})[0]"


def struct(months: str, days: str, micros: str) -> str:
    """Spark's text for an interval of parts."""
    return (
        f"named_struct('{MONTHS}', CAST({months} AS INT), '{DAYS}', CAST({days} AS INT), "
        f"'{MICROS}', CAST({micros} AS BIGINT))"
    )


def of_parts(months: str, days: str, micros: str) -> str:
    """An interval made of those of the argument, which the texts call by `M`, `D` and `U`; null for null."""
    made = struct(months, days, micros)
    return let("__s", "{0}", f"CASE WHEN `__s` IS NOT NULL THEN {made} END".replace("{s}", "`__s`"))


def total(span: Expr) -> Expr:
    """By what an interval is compared: microseconds."""
    return Call(t.decimal(24, 0), TOTAL, (span,))


def canonical(span: Expr) -> Expr:
    """The interval that stands for all that are equal to it."""
    month, day = "CAST(2592000000000 AS DECIMAL(13,0))", "CAST(86400000000 AS DECIMAL(11,0))"
    made = struct(f"`__t` div {month}", f"CAST(`__t` % {month} AS BIGINT) div {DAY}", f"`__t` % {day}")
    return Call(t.INTERVAL, let("__t", TOTAL, f"CASE WHEN `__t` IS NOT NULL THEN {made} END"), (span,))


def constant(text: str) -> str:
    """Spark's text for an interval that is written out."""
    months, days, micros = parse_interval(text)
    return struct(str(months), str(days), f"{micros}L")


def of_daytime(span: Expr) -> Expr:
    """One of Spark's intervals of days and times as an interval."""
    clock = (
        "EXTRACT(HOUR FROM `__d`) * 3600000000L + EXTRACT(MINUTE FROM `__d`) * 60000000L "
        "+ CAST(EXTRACT(SECOND FROM `__d`) * CAST(1000000 AS DECIMAL(7,0)) AS BIGINT)"
    )
    made = struct("0", "EXTRACT(DAY FROM `__d`)", clock)
    return Call(t.INTERVAL, let("__d", "{0}", f"CASE WHEN `__d` IS NOT NULL THEN {made} END"), (span,))


DIFFERENCE: Final = let(
    "__u", "unix_micros({0}) - unix_micros({1})",
    f"CASE WHEN `__u` IS NOT NULL THEN {struct('0', f'`__u` div {DAY}', f'`__u` % {DAY}')} END",
)  # fmt: skip
"""The interval between two times with zones."""
CAST_DIFFERENCE: Final = DIFFERENCE.replace("{0}", "CAST({0} AS TIMESTAMP)").replace("{1}", "CAST({1} AS TIMESTAMP)")
"""The same for times without zones."""
_SPELLED_OUT: Final = (
    "CASE WHEN {0} IS NOT NULL AND {1} IS NOT NULL THEN "
    + struct(
        "0",
        f"(unix_micros({{0}}) - unix_micros({{1}})) div {DAY}",
        f"(unix_micros({{0}}) - unix_micros({{1}})) % {DAY}",
    )
    + " END"
)


def difference(later: Expr, earlier: Expr) -> Expr:
    """The interval between two times of one type: spelled out where a query is in them, which Spark gives no name."""
    form = DIFFERENCE if later.type == t.TIMESTAMPTZ else CAST_DIFFERENCE
    if any(isinstance(part, Nested) for side in (later, earlier) for part in walk(side)):
        form = _SPELLED_OUT
        if later.type != t.TIMESTAMPTZ:
            form = form.replace("unix_micros({0})", "unix_micros(CAST({0} AS TIMESTAMP))")
            form = form.replace("unix_micros({1})", "unix_micros(CAST({1} AS TIMESTAMP))")
    return Call(t.INTERVAL, form, (later, earlier))


def as_daytime(span: Expr) -> Expr | None:
    """The interval as one of Spark's own, where it is a literal or a difference of times; None for others."""
    if isinstance(span, Constant) and span.text is not None and not parse_interval(span.text)[0]:
        return Call(DAYTIME, spark_interval(span.text), ())
    if isinstance(span, Call) and span.form in (DIFFERENCE, CAST_DIFFERENCE):
        return Call(DAYTIME, "CAST(({0} - {1}) AS INTERVAL DAY TO SECOND)", span.arguments)
    return None


def _unit(value: str, word: str) -> str:
    return f"concat(CAST({value} AS STRING), CASE WHEN {value} = 1 THEN ' {word}' ELSE ' {word}s' END)"


def _text() -> str:
    years, months, days, micros = (f"`__p`.{n}" for n in "ymdu")
    before = f"CASE WHEN {days} <> 0 THEN {days} < 0 ELSE {years} < 0 OR {months} < 0 END"
    size = f"abs({micros})"
    hours = f"{size} div 3600000000L"
    minutes, seconds = (f"lpad(CAST({size} div {n}L % 60 AS STRING), 2, '0')" for n in (60_000_000, 1_000_000))
    whole = f"{minutes}, ':', {seconds}"
    micro = f"lpad(CAST({size} % 1000000L AS STRING), 6, '0')"
    fraction = f"CASE WHEN {size} % 1000000L <> 0 THEN concat('.', trim(TRAILING '0' FROM {micro})) ELSE '' END"
    clock = (
        f"concat(CASE WHEN {micros} < 0 THEN '-' WHEN {before} AND {micros} > 0 THEN '+' ELSE '' END, "
        f"CASE WHEN {hours} < 10 THEN '0' ELSE '' END, CAST({hours} AS STRING), ':', {whole}, {fraction})"
    )
    plus = f"CASE WHEN ({years} < 0 OR {months} < 0) AND {days} > 0 THEN '+' ELSE '' END"
    body = (
        f"CASE WHEN `__p`.m IS NOT NULL THEN concat_ws(' ', CASE WHEN {years} <> 0 THEN {_unit(years, 'year')} END, "
        f"CASE WHEN {months} <> 0 THEN {_unit(months, 'mon')} END, "
        f"CASE WHEN {days} <> 0 THEN concat({plus}, {_unit(days, 'day')}) END, "
        f"CASE WHEN {micros} <> 0 OR ({years} = 0 AND {months} = 0 AND {days} = 0) THEN {clock} END) END"
    )
    parts = (
        f"named_struct('y', `__s`.{MONTHS} div 12, 'm', `__s`.{MONTHS} % 12, 'd', `__s`.{DAYS}, 'u', `__s`.{MICROS})"
    )
    return let("__s", "{0}", let("__p", parts, body))


TEXT: Final = _text()
"""The text of an interval as PostgreSQL writes it."""
AS_SPARK: Final = (
    f"make_interval(0, {{1}}.{MONTHS}, 0, {{1}}.{DAYS}, 0, 0, "
    f"CAST(CAST({{1}}.{MICROS} AS DECIMAL(19,0)) / CAST(1000000 AS DECIMAL(7,0)) AS DECIMAL(18,6)))"
)
"""What is added to a time in the place of an interval."""
