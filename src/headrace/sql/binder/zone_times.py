"""The zone of the session: what Spark computes where the meaning of a moment depends on it.

Spark's own zone is UTC always. In another zone a conversion is written out. The zone is a part of the world that a
statement is bound in, and holds as long as that is bound: `within` is called in one place, by the binder.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Final

from headrace.common.zones import UTC, Zone, offset_text
from headrace.sql.binder import types as t
from headrace.sql.binder.bound_tree import Call, Expr, fill
from headrace.sql.binder.spans import let
from headrace.sql.binder.types import Type
from headrace.sql.intervals import spark_interval

_CURRENT: Final[ContextVar[Zone]] = ContextVar("headrace_zone", default=UTC)


@contextmanager
def within(zone: Zone) -> Iterator[None]:
    """Bind what the block binds in a zone."""
    token = _CURRENT.set(zone)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def current() -> Zone:
    """The zone in which a statement is bound now."""
    return _CURRENT.get()


def spark_cast(expr: Expr, target: Type) -> Expr:
    """Spark's own cast, for which local times are those of UTC."""
    return Call(target, f"CAST({{0}} AS {target.spark.upper()})", (expr,))


def _from_utc(zone: Zone, time: str) -> str:
    return f"convert_timezone('UTC', '{zone.java}', {_known(zone, time)})"


def _to_utc(zone: Zone, time: str) -> str:
    return f"convert_timezone('{zone.java}', 'UTC', {_known(zone, time)})"


def _known(zone: Zone, time: str) -> str:
    """The time, which is refused where Java does not know the zone as PostgreSQL does."""
    since = zone.known_since
    if since is None:
        return time
    day = (since + timedelta(days=1)).date().isoformat()
    words = f"times before {day} in the time zone {zone.name} are not supported"
    refused = f"CAST(raise_error('headrace.errors.NotSupported: {words}') AS TIMESTAMP_NTZ)"
    return f"CASE WHEN {time} < TIMESTAMP_NTZ '{day} 00:00:00' THEN {refused} ELSE {time} END"


def local_form(zone: Zone) -> str:
    """Spark's text for what clocks show at the moment `{0}`."""
    cast = "CAST({0} AS TIMESTAMP_NTZ)"
    return cast if zone.is_utc else _from_utc(zone, cast)


def moment_form(zone: Zone) -> str:
    """Spark's text for the moment at which clocks show `{0}`.

    Java takes the earlier of two moments. The later one is as far behind it as the clock, a day later, is behind.
    """
    if zone.is_utc:
        return "CAST({0} AS TIMESTAMP)"
    if zone.fixed_s is not None:
        return f"CAST({_to_utc(zone, '{0}')} AS TIMESTAMP)"
    day = "INTERVAL '1' DAY"
    later = f"`__u` + (`__l` + {day} - {_from_utc(zone, f'`__u` + {day}')})"
    chosen = f"CASE WHEN {_from_utc(zone, '`__v`')} = `__l` THEN greatest(`__u`, `__v`) ELSE `__u` END"
    return let("__l", "{0}", let("__u", _to_utc(zone, "`__l`"), f"CAST({let('__v', later, chosen)} AS TIMESTAMP)"))


def local(moment: Expr, zone: Zone | None = None) -> Expr:
    """What the clocks of a zone show at a moment, a timestamp without zone."""
    return Call(t.TIMESTAMP, local_form(zone or current()), (moment,))


def moment(time: Expr, zone: Zone | None = None) -> Expr:
    """The moment at which the clocks of a zone show a time, a timestamp with zone."""
    return Call(t.TIMESTAMPTZ, moment_form(zone or current()), (time,))


def clocks(value: Expr) -> Expr:
    """A time from which parts are taken: of one with a zone what clocks show. In UTC Spark takes both alike."""
    return local(value) if value.type.name == "timestamptz" and not current().is_utc else value


# ---- offsets and signs


def _offset(zone: Zone) -> str:
    """Seconds that clocks are ahead of UTC at the moment `{0}`."""
    if zone.is_utc:
        return "CASE WHEN {0} IS NOT NULL THEN 0L END"
    return f"((unix_micros(CAST({local_form(zone)} AS TIMESTAMP)) - unix_micros({{0}})) div 1000000L)"


def offset(moment: Expr) -> Expr:
    """Seconds that clocks are ahead of UTC at a moment."""
    return Call(t.INT8, _offset(current()), (moment,))


def _by_offset(zone: Zone, texts: dict[int, str]) -> str:
    if len(texts) == 1:
        return f"'{next(iter(texts.values()))}'"
    arms = " ".join(f"WHEN {seconds}L THEN '{text}'" for seconds, text in sorted(texts.items()))
    unknown = f"CAST(raise_error('headrace.errors.NotSupported: this time in the time zone {zone.name}') AS STRING)"
    return f"CASE {_offset(zone)} {arms} ELSE CASE WHEN {{0}} IS NOT NULL THEN {unknown} END END"


def offset_form(zone: Zone, *, minutes: bool = False) -> str:
    """Spark's text for the offset that PostgreSQL writes behind the moment `{0}`."""
    offsets = {span.offset_s for span in zone.spans}
    return _by_offset(zone, {seconds: offset_text(seconds, minutes=minutes) for seconds in offsets})


def text_form(zone: Zone) -> str:
    """Spark's text for the moment `{0}` as PostgreSQL writes it."""
    shown = "CAST({0} AS STRING)" if zone.is_utc else f"CAST({local_form(zone)} AS STRING)"
    return f"concat({shown}, {offset_form(zone)})"


def iso_form(zone: Zone) -> str:
    """Spark's text for the moment `{0}` as documents have it."""
    shown = "CAST({0} AS STRING)" if zone.is_utc else f"CAST({local_form(zone)} AS STRING)"
    return f"concat(replace({shown}, ' ', 'T'), {offset_form(zone, minutes=True)})"


def short_form(zone: Zone) -> str:
    """Spark's text for what clocks are called at the moment `{0}`, such as CEST."""
    usual = {span.offset_s: span.short for span in zone.spans}
    arms = ""
    for span, following in zip(zone.spans, (*zone.spans[1:], None), strict=True):
        if span.short != usual[span.offset_s]:
            bounds = [f"unix_micros({{0}}) >= {span.since_s * 1_000_000}L"] if span.since_s is not None else []
            if following is not None and following.since_s is not None:
                bounds.append(f"unix_micros({{0}}) < {following.since_s * 1_000_000}L")
            arms += f"WHEN {' AND '.join(bounds) or 'TRUE'} THEN '{span.short}' "
    rest = _by_offset(zone, usual)
    return f"CASE {arms}ELSE {rest} END" if arms else rest


# ---- reading


def read_form(zone: Zone) -> str:
    """Spark's text for a moment that the text `{0}` spells: without an offset it is one of the zone."""
    if zone.is_utc:
        return "CAST(TRIM({0}) AS TIMESTAMP)"
    plain = fill(moment_form(zone), ("CAST(TRIM({0}) AS TIMESTAMP_NTZ)",))
    return f"CASE WHEN rlike({{0}}, ':.*[-+A-Za-z]') THEN CAST(TRIM({{0}}) AS TIMESTAMP) ELSE {plain} END"


# ---- arithmetic


def moved(moment_: Expr, months: int, days: int, micros: int) -> Expr:
    """A moment and an interval: months, then days by the calendar of the zone, then the time that passes."""
    found = moment_
    for text in (months and f"{months} mons", days and f"{days} days"):
        if text:
            found = moment(Call(t.TIMESTAMP, f"({{0}} + {spark_interval(text)})", (local(found),)))
    if micros:
        found = Call(t.TIMESTAMPTZ, f"({{0}} + {spark_interval(f'{micros} us')})", (found,))
    return found


def moved_form(months: str, days: str, micros: str) -> str:
    """The same for the moment `{0}` and an interval `{1}`: the texts give the parts of what is called `__i`.s."""
    zone = current()

    def step(name: str, part: str, span: str) -> str:
        there = fill(moment_form(zone), (f"({fill(local_form(zone), (name,))} + {span})",))
        return f"CASE WHEN {part} = 0 THEN {name} ELSE {there} END"

    by_months = step("`__i`.t", months, f"make_interval(0, {months})")
    by_days = step("`__m`", days, f"make_interval(0, 0, 0, {days})")
    seconds = f"CAST(CAST({micros} AS DECIMAL(19,0)) / CAST(1000000 AS DECIMAL(7,0)) AS DECIMAL(18,6))"
    by_time = f"`__d` + make_interval(0, 0, 0, 0, 0, 0, {seconds})"
    body = let("__m", by_months, let("__d", by_days, by_time))
    return let("__i", "named_struct('t', {0}, 's', {1})", body)
