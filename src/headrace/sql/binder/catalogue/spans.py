"""Functions and operators of intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace.common.span import DAYS, MICROS, MONTHS
from headrace.errors import StatementError
from headrace.sql.binder import spans, zone_times
from headrace.sql.binder import types as t
from headrace.sql.binder.bound_tree import Call, Constant, Expr
from headrace.sql.binder.catalogue.entries import Entry, Make, made
from headrace.sql.binder.coerce import plain
from headrace.sql.binder.session_values import now_as
from headrace.sql.binder.spans import DAY, D, M, U, let, of_parts, struct
from headrace.sql.intervals import parse_interval, spark_interval


def moved(symbol: str) -> Make:
    """A time plus or minus an interval."""

    def make(arguments: Sequence[Expr]) -> Expr:
        time, span = arguments
        if time.type.name == "interval":
            time, span = span, time
        if time.type.name == "date":
            time = plain(time, t.TIMESTAMP)
        if time.type.name == "timestamptz" and not zone_times.current().is_utc:
            return _in_zone(symbol, time, span)
        if isinstance(span, Constant) and span.text is not None:
            return Call(time.type, f"({{0}} {symbol} {spark_interval(span.text)})", (time,))
        return Call(time.type, f"({{0}} {symbol} {spans.AS_SPARK})", (time, span))

    return make


def _in_zone(symbol: str, moment: Expr, span: Expr) -> Expr:
    """Months and days by the calendar of the session's zone."""
    if isinstance(span, Constant) and span.text is not None:
        sign = -1 if symbol == "-" else 1
        return zone_times.moved(moment, *(sign * part for part in parse_interval(span.text)))
    parts = (f"({symbol} `__i`.s.{name})" for name in (MONTHS, DAYS, MICROS))
    return Call(moment.type, zone_times.moved_form(*parts), (moment, span))


def difference(arguments: Sequence[Expr]) -> Expr:
    """A time minus another one."""
    zoned = any(a.type.name == "timestamptz" for a in arguments)
    target = t.TIMESTAMPTZ if zoned else t.TIMESTAMP
    later, earlier = (a if a.type == target else plain(a, target) for a in arguments)
    return spans.difference(later, earlier)


def added(symbol: str) -> Make:
    """Two intervals: part by part."""
    parts = (f"(`__s`.a{m.removeprefix('{s}')} {symbol} `__s`.b{m.removeprefix('{s}')})" for m in (M, D, U))
    body = f"CASE WHEN `__s`.a IS NOT NULL AND `__s`.b IS NOT NULL THEN {struct(*parts)} END"
    form = let("__s", "named_struct('a', {0}, 'b', {1})", body)
    return lambda arguments: Call(t.INTERVAL, form, tuple(arguments))


def negative(arguments: Sequence[Expr]) -> Expr:
    """`- interval`."""
    found = arguments[0]
    if isinstance(found, Constant) and found.text is not None:
        months, days, micros = parse_interval(found.text)
        return Constant(t.INTERVAL, f"{-months} mons {-days} days {-micros} us")
    return Call(t.INTERVAL, of_parts(f"(- {M})", f"(- {D})", f"(- {U})"), (found,))


def scaled(symbol: str) -> Make:
    """`interval * number` and `interval / number`: what is left of months goes to days, and of days to seconds."""
    f = "`__i`.f"
    months, days, micros = (f"(CAST(`__i`.s{part.removeprefix('{s}')} AS DOUBLE) {symbol} {f})" for part in (M, D, U))
    left_days = f"rint(({months} - CAST({months} AS INT)) * 30D * 1000000D) / 1000000D"
    left_seconds = f"rint(({days} - CAST({days} AS INT) + `__r` - CAST(`__r` AS INT)) * 86400D * 1000000D) / 1000000D"
    more = "CAST(`__e` / 86400D AS INT)"
    made_of = struct(
        f"CAST({months} AS INT)", f"CAST({days} AS INT) + {more} + CAST(`__r` AS INT)",
        f"CAST(rint({micros} + (`__e` - {more} * 86400D) * 1000000D) AS BIGINT)",
    )  # fmt: skip
    body = let("__r", left_days, let("__e", left_seconds, made_of))
    wrong = "isnan(`__i`.f)" if symbol == "/" else "isnan(`__i`.f) OR abs(`__i`.f) = CAST('Infinity' AS DOUBLE)"
    raised = (
        f"CAST(raise_error('headrace.errors.InvalidDatetime: [22008] interval out of range') AS {t.INTERVAL.spark})"
    )
    whole = f"CASE WHEN `__i`.s IS NULL OR {f} IS NULL THEN NULL WHEN {wrong} THEN {raised} ELSE {body} END"
    form = let("__i", "named_struct('s', {0}, 'f', {1})", whole)

    def make(arguments: Sequence[Expr]) -> Expr:
        span, factor = arguments if arguments[0].type.name == "interval" else reversed(arguments)
        return Call(t.INTERVAL, form, (span, factor))

    return make


# ---- parts

_FIELDS: Final = {
    "year": f"({M} div 12)", "month": f"({M} % 12)", "day": D, "hour": f"({U} div 3600000000L)",
    "minute": f"({U} div 60000000L % 60)", "quarter": f"({M} % 12 div 3 + 1)", "decade": f"({M} div 120)",
    "century": f"({M} div 1200)", "millennium": f"({M} div 12000)", "microseconds": f"({U} % 60000000L)",
    "microsecond": f"({U} % 60000000L)",
}  # fmt: skip
_SCALED: Final = {"second": 6, "millisecond": 3, "milliseconds": 3}
_NEVER: Final = ("week", "dow", "doy", "isodow", "isoyear", "julian", "timezone", "timezone_hour", "timezone_minute")
_EPOCH: Final = (
    f"((CAST({M} div 12 AS DECIMAL(10,0)) * CAST(1461 AS DECIMAL(4,0)) + CAST({M} % 12 AS DECIMAL(3,0)) * CAST(120 AS DECIMAL(3,0)) "
    f"+ CAST({D} AS DECIMAL(10,0)) * CAST(4 AS DECIMAL(1,0))) * CAST(21600 AS DECIMAL(5,0)) "
    f"+ CAST({U} AS DECIMAL(19,0)) * CAST(0.000001 AS DECIMAL(6,6)))"
)


def part(field: str, value: Expr) -> Expr:
    """`extract(field FROM interval)`."""
    if field in _FIELDS:
        form = f"CAST({_FIELDS[field]} AS DECIMAL(19,0))"
        return Call(t.decimal(19, 0), form.replace("{s}", "{0}"), (value,))
    if field in _SCALED:
        places = _SCALED[field]
        form = f"CAST(CAST({U} % 60000000L AS DECIMAL(10,0)) * CAST(0.{'0' * (places - 1)}1 AS DECIMAL({places},{places})) AS DECIMAL(14,{places}))"
        return Call(t.decimal(14, places), form.replace("{s}", "{0}"), (value,))
    if field == "epoch":
        return Call(t.decimal(26, 6), f"CAST({_EPOCH} AS DECIMAL(26,6))".replace("{s}", "{0}"), (value,))
    if field in _NEVER:
        raise StatementError(f'unit "{field}" not supported for type interval', sqlstate="0A000")
    raise StatementError(f'unit "{field}" not recognized for type interval', sqlstate="22023")


# ---- functions


def _signed(high: str, low: str, size: str) -> tuple[str, str]:
    """Two parts, put to one sign."""
    down, up = f"({high} > 0 AND {low} < 0)", f"({high} < 0 AND {low} > 0)"
    step = f"CASE WHEN {down} THEN 1 WHEN {up} THEN -1 ELSE 0 END"
    return f"({high} - {step})", f"({low} + {step} * {size})"


def _justify_hours() -> str:
    days, micros = _signed("`__j`.d", "`__j`.u", DAY)
    parts = f"named_struct('m', {M}, 'd', {D} + {U} div {DAY}, 'u', {U} % {DAY})".replace("{s}", "`__s`")
    made_of = f"CASE WHEN `__s` IS NOT NULL THEN {struct('`__j`.m', days, micros)} END"
    return let("__s", "{0}", let("__j", parts, made_of))


def _justify_days() -> str:
    months, days = _signed("`__j`.m", "`__j`.d", "30")
    parts = f"named_struct('m', {M} + {D} div 30, 'd', {D} % 30, 'u', {U})".replace("{s}", "`__s`")
    made_of = f"CASE WHEN `__s` IS NOT NULL THEN {struct(months, days, '`__j`.u')} END"
    return let("__s", "{0}", let("__j", parts, made_of))


def _justify_interval() -> str:
    """Days of the clock first, then months of the days; then all parts are put to the sign of the first one."""
    first = f"named_struct('m', {M}, 'd', {D} + {U} div {DAY}, 'u', {U} % {DAY})".replace("{s}", "`__s`")
    second = "named_struct('m', `__j`.m + `__j`.d div 30, 'd', `__j`.d % 30, 'u', `__j`.u)"
    down = "`__k`.m > 0 AND (`__k`.d < 0 OR (`__k`.d = 0 AND `__k`.u < 0))"
    up = "`__k`.m < 0 AND (`__k`.d > 0 OR (`__k`.d = 0 AND `__k`.u > 0))"
    step = f"CASE WHEN {down} THEN 1 WHEN {up} THEN -1 ELSE 0 END"
    third = f"named_struct('m', `__k`.m - {step}, 'd', `__k`.d + {step} * 30, 'u', `__k`.u)"
    days, micros = _signed("`__l`.d", "`__l`.u", DAY)
    made_of = f"CASE WHEN `__s` IS NOT NULL THEN {struct('`__l`.m', days, micros)} END"
    return let("__s", "{0}", let("__j", first, let("__k", second, let("__l", third, made_of))))


def _age(later: str = "`__a`.x >= `__a`.y") -> str:
    """The years, months, days and time between two times: what is missing is taken of the month of the earlier one."""
    clock = "pmod(unix_micros(CAST({t} AS TIMESTAMP)), " + DAY + ")"
    months = "(CAST(EXTRACT(YEAR FROM {t}) AS INT) * 12 + CAST(EXTRACT(MONTH FROM {t}) AS INT))"
    first = (
        f"named_struct('h', CASE WHEN {later} THEN `__a`.x ELSE `__a`.y END, "
        f"'l', CASE WHEN {later} THEN `__a`.y ELSE `__a`.x END, 'g', CASE WHEN {later} THEN 1 ELSE -1 END)"
    )
    day = "CAST(EXTRACT(DAY FROM {t}) AS INT)"

    def minus(text: str) -> str:
        return text.replace("{t}", "`__b`.h") + " - " + text.replace("{t}", "`__b`.l")

    second = f"named_struct('m', {minus(months)}, 'd', {minus(day)}, 'u', {minus(clock)})"
    third = f"named_struct('m', `__c`.m, 'd', `__c`.d - CASE WHEN `__c`.u < 0 THEN 1 ELSE 0 END, 'u', CASE WHEN `__c`.u < 0 THEN `__c`.u + {DAY} ELSE `__c`.u END)"
    short = "`__e`.d < 0"
    length = "CAST(EXTRACT(DAY FROM last_day(CAST(`__b`.l AS DATE))) AS INT)"
    made_of = struct(
        f"`__b`.g * (`__e`.m - CASE WHEN {short} THEN 1 ELSE 0 END)",
        f"`__b`.g * (`__e`.d + CASE WHEN {short} THEN {length} ELSE 0 END)", "`__b`.g * `__e`.u",
    )  # fmt: skip
    whole = f"CASE WHEN `__a`.x IS NOT NULL AND `__a`.y IS NOT NULL THEN {let('__b', first, let('__c', second, let('__e', third, made_of)))} END"
    return whole


def _ages(arguments: Sequence[Expr]) -> Expr:
    given = list(arguments)
    if len(given) == 1:
        given.insert(0, plain(now_as(t.DATE), given[0].type))
    if given[0].type.name == "timestamp" or zone_times.current().is_utc:
        return Call(t.INTERVAL, _AGE, tuple(a if a.type.name == "timestamp" else plain(a, t.TIMESTAMP) for a in given))
    return Call(t.INTERVAL, _AGE_IN_ZONE, (*map(zone_times.local, given), *given))


_AGE: Final = let("__a", "named_struct('x', {0}, 'y', {1})", _age())
_AGE_IN_ZONE: Final = let(
    "__a", "named_struct('x', {0}, 'y', {1}, 'p', {2}, 'q', {3})", _age("`__a`.p >= `__a`.q")
)  # fmt: skip
"""Where clocks are turned back the later moment may show the earlier time."""
_PARTS: Final = ("int4",) * 6 + ("float8",)


def _make(arguments: Sequence[Expr]) -> Expr:
    """`make_interval(years, months, weeks, days, hours, mins, secs)`, each with 0 as its default."""
    holes = [f"{{{i}}}" if i < len(arguments) else ("0D" if i == 6 else "0") for i in range(7)]
    years, months, weeks, days, hours, minutes, seconds = holes
    known = " AND ".join(f"{hole} IS NOT NULL" for hole in holes[: len(arguments)]) or "TRUE"
    clock = (
        f"CAST({hours} AS BIGINT) * 3600000000L + CAST({minutes} AS BIGINT) * 60000000L "
        f"+ CAST(rint({seconds} * 1000000D) AS BIGINT)"
    )
    made_of = struct(f"{years} * 12 + {months}", f"{weeks} * 7 + {days}", clock)
    return Call(t.INTERVAL, f"CASE WHEN {known} THEN {made_of} END", tuple(arguments))


def functions() -> list[Entry]:
    """All functions of single rows."""
    forms = {
        "justify_hours": _justify_hours(),
        "justify_days": _justify_days(),
        "justify_interval": _justify_interval(),
    }
    return [
        *(made(n, "interval", lambda a, f=f: Call(t.INTERVAL, f, tuple(a)), "interval") for n, f in forms.items()),  # type: ignore[misc]
        *(
            made("age", f"{k}{more}", _ages, "interval")
            for k in ("timestamp", "timestamptz")
            for more in ("", f", {k}")
        ),
        *(made("make_interval", ", ".join(_PARTS[:count]), _make, "interval") for count in range(8)),
        made(
            "isfinite", "interval", lambda a: Call(t.BOOL, "CASE WHEN {0} IS NOT NULL THEN TRUE END", tuple(a)), "bool"
        ),
    ]


def operators() -> list[Entry]:
    """All operators, comparisons apart."""
    found = []
    for kind in ("date", "timestamp", "timestamptz"):
        result = "timestamp" if kind == "date" else kind
        found.append(made("+", f"{kind}, interval", moved("+"), result))
        found.append(made("+", f"interval, {kind}", moved("+"), result))
        found.append(made("-", f"{kind}, interval", moved("-"), result))
    found += [made("-", f"{k}, {k}", difference, "interval") for k in ("timestamp", "timestamptz")]
    found += [made(s, "interval, interval", added(s), "interval") for s in ("+", "-")]
    found += [made(s, "interval, float8", scaled(s), "interval") for s in ("*", "/")]
    return [*found, made("*", "float8, interval", scaled("*"), "interval")]
