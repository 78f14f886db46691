"""Calls: functions, aggregates and window functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from headrace.sql.binder import types as t
from headrace.sql.binder.catalogue import numbers
from headrace.sql.binder.catalogue.aggregates import AGGREGATES, WINDOWS, AggregateEntry
from headrace.sql.binder.coerce import coerce
from headrace.sql.binder.overloads import arguments_for, chosen, shown
from headrace.sql.binder.reading import declare, inner, kind_of, place, refuse, strings
from headrace.sql.binder.scope import Wrong
from headrace.sql.binder.tree import Aggregate, Call, Column, Constant, Expr, Over, SortKey, walk

if TYPE_CHECKING:
    from headrace.sql.binder.expressions import Expressions

declare("FuncCall", "funcname args agg_order agg_filter over agg_star agg_distinct agg_within_group funcformat")
declare("WindowDef", "name refname partition_clause order_clause frame_options start_offset end_offset")

_NONDEFAULT, _RANGE, _ROWS, _GROUPS, _BETWEEN = 0x1, 0x2, 0x4, 0x8, 0x10
_BOUNDS: Final = (
    (0x20, 0x40, "UNBOUNDED PRECEDING"), (0x80, 0x100, "UNBOUNDED FOLLOWING"), (0x200, 0x400, "CURRENT ROW"),
    (0x800, 0x1000, "{} PRECEDING"), (0x2000, 0x4000, "{} FOLLOWING"),
)  # fmt: skip
_EXCLUDE: Final = 0x8000 | 0x10000 | 0x20000


def call_function(at: Expressions, message: Any) -> Expr:
    """A call of any kind."""
    names = strings(message.funcname)
    if len(names) > 1 and names[0] != "pg_catalog":
        refuse("a function of a schema", message)
    name = names[-1]
    if name in at.binder.routines:
        refuse("a function that somebody created", message)
    if message.HasField("over"):
        return _windowed(at, name, message)
    if name in WINDOWS and name not in AGGREGATES:
        raise Wrong(f"window function {name} requires an OVER clause", "42809", message.location)
    if message.agg_within_group:
        return _ordered_set(at, name, message)
    if name in AGGREGATES or message.agg_star:
        return _aggregate(at, name, message)
    for field in ("agg_order", "agg_filter", "agg_distinct"):
        if field in {f.name for f, _ in message.ListFields()}:
            refuse(f"{field} in a call of {name}", message)
    return at.called(name, [at.bind(arg) for arg in message.args], message)


# ---- aggregates


def _aggregate(at: Expressions, name: str, message: Any) -> Expr:
    if not at.aggregates or at.inside:
        what = "aggregate function calls cannot be nested" if at.inside else (
            f"aggregate functions are not allowed in {at.clause}"
        )  # fmt: skip
        raise Wrong(what, "42803", message.location)
    at.inside = True
    try:
        arguments = [at.bind(arg) for arg in message.args]
        order = sort_keys(at, message.agg_order)
        where = at.condition(message.agg_filter, "FILTER") if message.HasField("agg_filter") else None
    finally:
        at.inside = False
    at.has_aggregates = True
    _require_local(at, [*arguments, *([where] if where is not None else [])], message)
    return _made(name, arguments, order, where, message)


def _require_local(at: Expressions, found: Sequence[Expr], message: Any) -> None:
    """An aggregate over columns of a query around belongs to that."""
    columns = [c for e in found for c in walk(e) if isinstance(c, Column)]
    if columns and not any(c.relation in at.binder.local for c in columns):
        refuse("an aggregate of a query around", message)


def _made(
    name: str, arguments: Sequence[Expr], order: tuple[SortKey, ...], where: Expr | None, message: Any
) -> Expr:  # fmt: skip
    if message.agg_star:
        if name != "count":
            raise Wrong(f"function {name}() does not exist", "42883", message.location)
        return Aggregate(t.INT8, "count(1)", (), False, (), where)
    entry, ready = _entry(AGGREGATES, name, arguments, message)
    distinct = bool(message.agg_distinct)
    if order and distinct and any(key.value not in arguments for key in order):
        raise Wrong(
            "in an aggregate with DISTINCT, ORDER BY expressions must appear in argument list",
            "42P10",
            message.location,
        )
    if entry.average:
        total, _ = _entry(AGGREGATES, "sum", ready, message)
        parts = tuple(ready)
        summed = Aggregate(total.result(parts), total.form, parts, distinct, (), where)
        counted = Aggregate(t.INT8, "count({d}{0})", tuple(ready), distinct, (), where)
        return numbers.average_of(summed, counted)
    values = tuple(ready)
    kept = order if name in ("string_agg", "array_agg") else ()
    return Aggregate(entry.result(values), entry.form, values, distinct, kept, where)


def _entry(
    known: dict[str, list[AggregateEntry]], name: str, arguments: Sequence[Expr], message: Any
) -> tuple[AggregateEntry, list[Expr]]:
    overloads = known.get(name)
    if overloads is None:
        refuse(f"the function {name}", message)
    given = [a.type for a in arguments]
    found = chosen(overloads, given, name, message)
    if found is None:
        refuse(shown(name, given), message)
    return overloads[found[0]], arguments_for(found[1], arguments)


def _ordered_set(at: Expressions, name: str, message: Any) -> Expr:
    if name != "percentile_cont" or len(message.args) != 1 or len(message.agg_order) != 1 or not at.aggregates:
        refuse(name, message)
    at.inside = True
    try:
        share = coerce(at.bind(message.args[0]), t.FLOAT8, "implicit")
        key = sort_keys(at, message.agg_order)[0]
        where = at.condition(message.agg_filter, "FILTER") if message.HasField("agg_filter") else None
    finally:
        at.inside = False
    at.has_aggregates = True
    if not isinstance(share, Constant) and not isinstance(getattr(share, "arguments", (None,))[0], Constant):
        refuse("a share that is no literal", message)
    if key.value.type.category != "N":
        refuse("percentile_cont of this type", message)
    value = coerce(key.value, t.FLOAT8, "implicit")
    direction = " DESC" if key.descending else ""
    return Aggregate(
        t.FLOAT8, f"percentile_cont({{0}}) WITHIN GROUP (ORDER BY {{1}}{direction})", (share, value), False, (), where
    )


def sort_keys(at: Expressions, clause: Any) -> tuple[SortKey, ...]:
    """The keys of an ORDER BY inside of an expression."""
    return tuple(sort_key(at.known(inner(item).node), item) for item in clause)


declare("SortBy", "node sortby_dir sortby_nulls")


def sort_key(value: Expr, item: Any, output: int | None = None) -> SortKey:
    """A key with PostgreSQL's defaults: nulls are larger than everything."""
    found = inner(item)
    descending = found.sortby_dir == 3
    if found.sortby_dir == 4:
        refuse("ORDER BY ... USING", item)
    nulls_first = found.sortby_nulls == 2 if found.sortby_nulls in (2, 3) else descending
    if value.type.is_array:
        refuse("an order of arrays", item)
    return SortKey(value, descending, nulls_first, output)


# ---- windows


def _windowed(at: Expressions, name: str, message: Any) -> Expr:
    if not at.windows or at.inside:
        raise Wrong(f"window functions are not allowed in {at.clause}", "42P20", message.location)
    definition = inner(message.over)
    if definition.name:
        named = at.named_windows.get(definition.name)
        if named is None:
            raise Wrong(f'window "{definition.name}" does not exist', "42704", message.location)
        definition = named
    elif definition.refname:
        refuse("a window that extends another one", message)
    partition = tuple(at.known(p) for p in definition.partition_clause)
    order = sort_keys(at, definition.order_clause)
    frame = _frame(at, definition, order)
    arguments = [at.bind(arg) for arg in message.args]
    if message.agg_order or message.agg_distinct:
        refuse("DISTINCT or ORDER BY in a window function", message)
    where = at.condition(message.agg_filter, "FILTER") if message.HasField("agg_filter") else None
    if name in AGGREGATES or message.agg_star:
        made = _made(name, arguments, (), where, message)
        return _over(made, partition, order, frame)
    if where is not None:
        refuse("FILTER of a window function", message)
    entry, ready = _entry(WINDOWS, name, arguments, message)
    if name in ("lag", "lead") and len(ready) > 1 and not isinstance(ready[1], Constant):
        refuse("an offset that is no literal", message)
    ranks = name not in ("first_value", "last_value")
    function = Aggregate(entry.result(ready), entry.form, tuple(ready), False, (), None)
    if ranks and not order:
        refuse("a rank without ORDER BY", message)
    return Over(function.type, function, partition, order, "" if ranks else frame)


def _over(made: Expr, partition: tuple[Expr, ...], order: tuple[SortKey, ...], frame: str) -> Expr:
    """Put OVER to the aggregates that an expression is made of."""
    if isinstance(made, Aggregate):
        if made.form == "array_agg" or made.order:
            refuse("this aggregate over a window")
        return Over(made.type, made, partition, order, frame)
    assert isinstance(made, Call)
    parts = tuple(_over(a, partition, order, frame) if isinstance(a, (Aggregate, Call)) else a for a in made.arguments)
    return Call(made.type, made.form, parts, made.volatile)


def _frame(at: Expressions, definition: Any, order: Sequence[SortKey]) -> str:
    options = definition.frame_options
    if not options & _NONDEFAULT:
        return ""
    if options & _EXCLUDE or options & _GROUPS:
        refuse("this window frame", definition)
    unit = "ROWS" if options & _ROWS else "RANGE"
    start, end = "", ""
    for first, last, words in _BOUNDS:
        if options & first:
            start = words.format(_offset(at, definition.start_offset, unit) if "{}" in words else "")
        if options & last:
            end = words.format(_offset(at, definition.end_offset, unit) if "{}" in words else "")
    return f"{unit} BETWEEN {start} AND {end or 'CURRENT ROW'}"


def _offset(at: Expressions, node: Any, unit: str) -> str:
    found = at.bind(node)
    if unit != "ROWS" or not isinstance(found, Constant) or found.text is None or not found.text.isdigit():
        refuse("this bound of a window frame", node)
    return found.text


__all__ = ["call_function", "kind_of", "place", "sort_key", "sort_keys"]
