"""Frames of windows: which rows around its own one an aggregate over a window takes in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from headrace.sql.binder import types as t
from headrace.sql.binder import zone_times
from headrace.sql.binder.bound_tree import Call, Constant, SortKey
from headrace.sql.binder.coerce import coerce, common_digits, plain
from headrace.sql.binder.parse_tree import inner, refuse
from headrace.sql.binder.scope import Wrong
from headrace.sql.binder.types import Type
from headrace.sql.intervals import parse_interval

if TYPE_CHECKING:
    from postgast import pg_query_pb2 as pb

    from headrace.sql.binder.expression_binder import Expressions

_NONDEFAULT, _ROWS, _GROUPS = 0x1, 0x4, 0x8
_BOUNDS: Final = (
    (0x20, 0x40, "UNBOUNDED PRECEDING"), (0x80, 0x100, "UNBOUNDED FOLLOWING"), (0x200, 0x400, "CURRENT ROW"),
    (0x800, 0x1000, "{} PRECEDING"), (0x2000, 0x4000, "{} FOLLOWING"),
)  # fmt: skip
MOST_MONTHS: Final = (1 << 31) - 1
"""Of an interval of Spark's."""
_EXCLUDE: Final = 0x8000 | 0x10000 | 0x20000
_OFFSETS: Final = 0x800 | 0x1000 | 0x2000 | 0x4000
_RANGES: Final = 25
"""Digits that hold any whole number, or time in microseconds, and what is added to it."""


def frame(at: Expressions, definition: pb.WindowDef, order: tuple[SortKey, ...]) -> tuple[tuple[SortKey, ...], str]:
    """The order that a frame goes by, and Spark's text of the frame; empty for the usual one."""
    options = definition.frame_options
    if not options & _NONDEFAULT:
        return order, ""
    if options & _EXCLUDE:
        refuse("EXCLUDE in a window frame", definition)
    if options & _GROUPS and not order:
        raise Wrong("GROUPS mode requires an ORDER BY clause", "42P20", definition.location)
    if options & _GROUPS and options & _OFFSETS:
        refuse("a window frame of so many GROUPS", definition)
    unit, kind = "ROWS", None
    if not options & _ROWS:
        unit = "RANGE"  # without numbers a frame by groups of peers is one by values
        if options & _OFFSETS:
            order, kind = _measured(at, definition, order)
    start, end = "", ""
    for first, last, words in _BOUNDS:
        if options & first:
            start = words.format(_offset(at, definition.start_offset, kind) if "{}" in words else "")
        if options & last:
            end = words.format(_offset(at, definition.end_offset, kind) if "{}" in words else "")
    return order, f"{unit} BETWEEN {start} AND {end or 'CURRENT ROW'}"


def _measured(at: Expressions, definition: pb.WindowDef, order: Sequence[SortKey]) -> tuple[tuple[SortKey, ...], Type]:
    """The key of `RANGE n PRECEDING` as a number to which any `n` can be added, and its type."""
    if len(order) != 1:
        what = "RANGE with offset PRECEDING/FOLLOWING requires exactly one ORDER BY column"
        raise Wrong(what, "42P20", definition.location)
    value, source = order[0].value, at.known(inner(definition.order_clause[0]).node).type
    if source.name in t.INTEGERS:
        key = plain(value, t.decimal(_RANGES, 0))
    elif source.name == "numeric":
        offsets = [at.bind(n) for n in _offset_nodes(definition)]
        if any(o.type.name not in (*t.INTEGERS, "numeric") for o in offsets):
            refuse("this bound of a window frame", definition)
        precision, scale = t.digits(common_digits([value, *offsets]))
        if precision > t.DIGITS - 1:
            refuse("a window frame by a range of numbers of so many digits", definition)
        key = plain(value, t.decimal(precision + 1, scale))
    elif source.name in ("date", "timestamp", "timestamptz") and _in_months(at, definition):
        if source.name == "timestamptz" and not zone_times.current().is_utc:
            refuse("a window frame by a range of months in this time zone", definition)
        key = value if source.name == "timestamptz" else plain(value, t.TIMESTAMP)
    elif source.name in ("date", "timestamp", "timestamptz"):
        if source.name == "timestamptz" and not zone_times.current().is_utc and _in_days(at, definition):
            refuse("a window frame by a range of days in this time zone", definition)
        micros = Call(t.INT8, "unix_micros({0})", (zone_times.spark_cast(value, t.TIMESTAMPTZ),))
        key = plain(micros, t.decimal(_RANGES, 0))
    else:
        refuse(f"a window frame by a range of {source}", definition)
    kind = t.INTERVAL if source.category == "D" and key.type.name == "numeric" else key.type
    return (replace(order[0], value=key, output=None),), kind


def _in_months(at: Expressions, definition: pb.WindowDef) -> bool:
    """Whether the bounds are whole months, which Spark adds to times as PostgreSQL does."""
    spans = _spans(at, definition)
    whole = all(months > 0 and not days and not rest for months, days, rest in spans)
    return whole and len(spans) == len(_offset_nodes(definition))


def _in_days(at: Expressions, definition: pb.WindowDef) -> bool:
    """Whether a bound counts days, which are not all of one length."""
    return any(days for _, days, _ in _spans(at, definition))


def _spans(at: Expressions, definition: pb.WindowDef) -> list[tuple[int, int, int]]:
    """Months, days and microseconds of the bounds that are literals."""
    found = [at.bind(node) for node in _offset_nodes(definition)]
    texts = [coerce(e, t.INTERVAL, "implicit") for e in found if isinstance(e, Constant) and e.text is not None]
    return [parse_interval(e.text) for e in texts if isinstance(e, Constant) and e.text is not None]


def _offset_nodes(definition: pb.WindowDef) -> list[pb.Node]:
    return [getattr(definition, f) for f in ("start_offset", "end_offset") if definition.HasField(f)]


def _offset(at: Expressions, node: pb.Node, kind: Type | None) -> str:
    """How far a bound is away: a number of rows, or what is added to a key of some type."""
    found = at.bind(node)
    if not isinstance(found, Constant) or found.text is None or found.text.startswith("-"):
        refuse("this bound of a window frame", node)
    if kind is None:
        if not found.text.isdigit():
            refuse("this bound of a window frame", node)
        return found.text
    return _spelled(found, kind, node)


def _spelled(found: Constant, kind: Type, node: pb.Node) -> str:
    if kind.category == "D":
        whole = coerce(found, t.INTERVAL, "implicit")
        assert isinstance(whole, Constant) and whole.text is not None
        months = parse_interval(whole.text)[0]
        if months > MOST_MONTHS:
            refuse("a window frame of so many months", node)
        return f"INTERVAL '{months}' MONTH"
    if kind == t.INTERVAL:
        span = coerce(found, t.INTERVAL, "implicit")
        assert isinstance(span, Constant) and span.text is not None
        months, days, micros = parse_interval(span.text)
        total = days * 86_400_000_000 + micros
        if months or total < 0:
            refuse("a window frame by a range of months, or by a negative one", node)
        return f"CAST('{total}' AS DECIMAL({_RANGES},0))"
    if found.type.name not in (*t.INTEGERS, "numeric") or (found.type.name == "numeric" and not t.digits(kind)[1]):
        refuse("this bound of a window frame", node)
    return f"CAST('{found.text}' AS {kind.spark.upper()})"
