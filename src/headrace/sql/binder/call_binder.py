"""Calls: functions, aggregates and window functions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from headrace.sql.binder import types as t
from headrace.sql.binder.bound_tree import (
    BoundAggregate,
    BoundColumn,
    Call,
    Constant,
    Expr,
    Nested,
    Over,
    SortKey,
    walk,
)
from headrace.sql.binder.catalogue import numbers
from headrace.sql.binder.catalogue.aggregate_functions import AGGREGATES, WINDOWS, AggregateEntry
from headrace.sql.binder.catalogue.documents import AGGREGATES as DOCUMENTS
from headrace.sql.binder.catalogue.documents import aggregated as document_of
from headrace.sql.binder.catalogue.spans import scaled
from headrace.sql.binder.coerce import coerce, to_common
from headrace.sql.binder.overloads import FORBIDDEN, arguments_for, chosen, undefined
from headrace.sql.binder.own import canonical, comparable, sortable
from headrace.sql.binder.parse_tree import Message, Nodes, declare, inner, kind_of, place, refuse, strings
from headrace.sql.binder.routines import routine_call
from headrace.sql.binder.scope import Wrong
from headrace.sql.binder.session_values import is_session_function, session_value
from headrace.sql.binder.set_functions import SETS, has_columns
from headrace.sql.binder.types import Type
from headrace.sql.binder.window_frames import frame
from headrace.sql.binder.world import Routine

if TYPE_CHECKING:
    from postgast import pg_query_pb2 as pb

    from headrace.sql.binder.expression_binder import Expressions

declare("FuncCall", "funcname args agg_order agg_filter over agg_star agg_distinct agg_within_group funcformat")
declare("WindowDef", "name refname partition_clause order_clause frame_options start_offset end_offset")

_SAME_WITH_DISTINCT = frozenset({
    "min", "max", "bool_and", "bool_or", "every", "bit_and", "bit_or", "any_value", "arg_min", "arg_max",
    "approx_count_distinct", "array_agg", "string_agg",
})  # fmt: skip
"""Aggregates that take values of which there are several once, or that have DISTINCT in another way."""


def call_function(at: Expressions, message: pb.FuncCall) -> Expr:
    """A call of any kind."""
    names = strings(message.funcname)
    if len(names) > 1 and names[0] == SPARK:
        raise Wrong(f"the type of {'.'.join(names)} is not known", "42P18", message.location,
                    f"Give it: CAST({'.'.join(names)}(...) AS type).")  # fmt: skip
    if len(names) > 1 and names[0] != "pg_catalog":
        refuse("a function of a schema", message)
    name = names[-1]
    routine = at.binder.world.routine(name)
    if routine is not None:
        return _created(at, routine, message)
    if is_session_function(name, len(message.args)) and not message.HasField("over"):
        return _of_session(at, name, message)
    if name in SETS:
        return at.set_of(name, message)
    if message.HasField("over"):
        return _windowed(at, name, message)
    if name in WINDOWS and name not in AGGREGATES:
        raise Wrong(f"window function {name} requires an OVER clause", "42809", message.location)
    if message.agg_within_group:
        return _ordered_set(at, name, message)
    if name in AGGREGATES or name in DOCUMENTS or message.agg_star:
        return _aggregate(at, name, message)
    for field in ("agg_order", "agg_filter", "agg_distinct"):
        if field in {f.name for f, _ in message.ListFields()}:
            refuse(f"{field} in a call of {name}", message)
    return at.called(name, [at.bind(arg) for arg in message.args], message)


def _created(at: Expressions, routine: Routine, message: pb.FuncCall) -> Expr:
    """A function that a user has created."""
    if message.agg_star:
        refuse(f"{routine.name}(*)", message)
    if routine.form != "aggregate" or message.HasField("over"):
        arguments, where = [at.bind(arg) for arg in message.args], None
        if message.HasField("agg_filter"):
            where = at.condition(message.agg_filter, "FILTER")
    else:
        arguments, _, where = _aggregated(at, message)
    made = routine_call(routine, arguments, message, where)
    if routine.form == "aggregate" and message.HasField("over"):
        return _over(made, *_window(at, routine.name, message))
    return made


def _of_session(at: Expressions, name: str, message: pb.FuncCall) -> Expr:
    """What the session answers."""
    world = at.binder.world
    if name not in ("current_setting", "current_schemas"):
        return session_value(world, name, message)
    given = [argument.text if isinstance(argument, Constant) else None for argument in map(at.bind, message.args)]
    if None in given:
        refuse(f"{name} of what is no literal", message)
    asked = f"{name} {str(given[0]).lower()}"
    if given[1:] == ["true"] and world.value(f"{asked} is missing"):
        return Constant(t.TEXT, None)
    return session_value(world, asked, message)


SPARK: Final = "spark"
"""The schema by which Spark's own functions are called, right inside of a cast that says what type they return."""


def spark_call(at: Expressions, message: pb.FuncCall, target: Type) -> Expr:
    """`spark.f(...)::type`: a function of Spark's, with Spark's meaning."""
    names = strings(message.funcname)
    extras = ("agg_order", "agg_filter", "agg_distinct", "agg_star", "over", "agg_within_group", "func_variadic")
    if len(names) != 2 or not re.fullmatch(r"[a-z_][a-z_0-9]*", names[1]) or names[1].startswith("hr_"):
        refuse("this call of Spark", message)
    if names[1] in FORBIDDEN or any(f.name in extras for f, _ in message.ListFields()):
        refuse(f"spark.{names[1]}", message)
    arguments = tuple(at.known(arg) for arg in message.args)
    holes = ", ".join(f"{{{i}}}" for i in range(len(arguments)))
    return Call(target, f"CAST({names[1]}({holes}) AS {target.spark})", arguments, True)


# ---- aggregates


def _aggregate(at: Expressions, name: str, message: pb.FuncCall) -> Expr:
    arguments, order, where = _aggregated(at, message)
    return _made(name, arguments, order, where, message)


def _aggregated(at: Expressions, message: pb.FuncCall) -> tuple[list[Expr], tuple[SortKey, ...], Expr | None]:
    """Arguments, order and filter of an aggregate."""
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
    return arguments, order, where


def _require_local(at: Expressions, found: Sequence[Expr], message: Message) -> None:
    """An aggregate over columns of a query around belongs to that."""
    columns = [c for e in found for c in walk(e) if isinstance(c, BoundColumn)]
    if columns and not any(c.relation in at.binder.local for c in columns):
        refuse("an aggregate of a query around", message)


def _made(
    name: str, arguments: Sequence[Expr], order: tuple[SortKey, ...], where: Expr | None, message: pb.FuncCall
) -> Expr:  # fmt: skip
    if message.agg_star:
        if name != "count":
            raise Wrong(f"function {name}() does not exist", "42883", message.location)
        return BoundAggregate(t.INT8, "count(1)", (), False, (), where)
    if name in DOCUMENTS:
        return document_of(name, arguments, order, where, message)
    if name == "avg" and len(arguments) == 1 and arguments[0].type.name == "interval":
        summed, count = (_made(n, arguments, order, where, message) for n in ("sum", "count"))
        return scaled("/")([summed, coerce(count, t.FLOAT8, "implicit")])
    entry, ready = _entry(AGGREGATES, name, arguments, message)
    distinct = bool(message.agg_distinct)
    if distinct and name == "sum" and ready[0].type.name in t.LOOSE:
        refuse(f"sum(DISTINCT) of {ready[0].type}", message)
    if distinct:
        ready = [canonical(r) for r in ready]
    if order and distinct and any(key.value not in arguments for key in order):
        raise Wrong(
            "in an aggregate with DISTINCT, ORDER BY expressions must appear in argument list",
            "42P10",
            message.location,
        )
    if entry.average:
        total, _ = _entry(AGGREGATES, "sum", ready, message)
        parts = tuple(ready)
        summed = BoundAggregate(total.result(parts), total.form, parts, distinct, (), where)
        counted = BoundAggregate(t.INT8, "count({d}{0})", tuple(ready), distinct, (), where)
        return numbers.average_of(summed, counted)
    if name == "string_agg":
        return _joined(ready[0], ready[1], distinct, order, where)
    if distinct and "{d}" not in entry.form and name not in _SAME_WITH_DISTINCT:
        refuse(f"DISTINCT in {name}", message)
    values = tuple(ready)
    kept = order if name == "array_agg" else ()
    return BoundAggregate(entry.result(values), entry.form, values, distinct, kept, where)


def _joined(text: Expr, delimiter: Expr, distinct: bool, order: tuple[SortKey, ...], where: Expr | None) -> Expr:
    """`string_agg`: Spark's own fails beside aggregates with DISTINCT, and leaves the order of distinct texts open."""
    if has_columns(delimiter):
        refuse("string_agg with a delimiter of each row")
    parts = (text, *(key.value for key in order), *((where,) if where is not None else ()))
    if any(
        isinstance(part, Nested) for value in parts for part in walk(value)
    ):  # no function of lists has queries in it
        order = order or ((SortKey(text, False, False),) if distinct else ())
        return BoundAggregate(t.TEXT, "listagg({d}{0}, {1})", (text, delimiter), distinct, order, where)
    passing: Expr = Call(t.BOOL, "({0} IS NOT NULL)", (text,))
    if where is not None:
        passing = Call(t.BOOL, "({0} AND {1})", (passing, where))
    texts = BoundAggregate(t.array_of(t.TEXT), "list", (text,), distinct, order, passing)
    form = "CASE WHEN size({0}) > 0 THEN array_join({0}, coalesce({1}, '')) END"
    return Call(t.TEXT, form, (texts, delimiter))


def _entry(
    known: dict[str, list[AggregateEntry]], name: str, arguments: Sequence[Expr], message: Message
) -> tuple[AggregateEntry, list[Expr]]:
    overloads = known.get(name)
    given = [a.type for a in arguments]
    found = chosen(overloads, given, name, message) if overloads else None
    if overloads is None or found is None:
        undefined(name, given, [o.signature for o in overloads or ()], message)
    return overloads[found[0]], arguments_for(found[1], arguments)


def _ordered_set(at: Expressions, name: str, message: pb.FuncCall) -> Expr:
    counts = {"percentile_cont": 1, "percentile_disc": 1, "mode": 0}
    if len(message.args) != counts.get(name) or len(message.agg_order) != 1 or not at.aggregates or at.inside:
        refuse(f"this {name}", message)
    at.inside = True
    try:
        share = coerce(at.bind(message.args[0]), t.FLOAT8, "implicit") if message.args else Constant(t.FLOAT8, "0")
        key = sort_keys(at, message.agg_order)[0]
        where = at.condition(message.agg_filter, "FILTER") if message.HasField("agg_filter") else None
    finally:
        at.inside = False
    at.has_aggregates = True
    if not isinstance(share, Constant) and not isinstance(getattr(share, "arguments", (None,))[0], Constant):
        refuse("a share that is no literal", message)
    if name != "percentile_cont":
        return _of_sorted(name, share, key, where)
    if key.value.type.category != "N":
        refuse("percentile_cont of this type", message)
    value = coerce(key.value, t.FLOAT8, "implicit")
    direction = " DESC" if key.descending else ""
    return BoundAggregate(
        t.FLOAT8, f"percentile_cont({{0}}) WITHIN GROUP (ORDER BY {{1}}{direction})", (share, value), False, (), where
    )


def _of_sorted(name: str, share: Expr, key: SortKey, where: Expr | None) -> Expr:
    """`percentile_disc`: the value at a share of the sorted ones; `mode`: the first of the most frequent."""
    kind = key.value.type
    if kind.category in "?P" or kind.is_array:
        refuse(f"{name} of this type")
    if kind.name in t.LOOSE:
        refuse(f"{name} of {kind}")
    if name == "mode":
        order = " ORDER BY {0} DESC" if key.descending else " ORDER BY {0}"
        return BoundAggregate(kind, f"mode() WITHIN GROUP ({order.strip()})", (key.value,), False, (), where)
    rows = BoundAggregate(t.array_of(kind), "collect_list({0})", (key.value,), False, (), where)
    form = "try_element_at({1}, CAST(greatest(ceil({0} * size({1})), 1) AS INT))"
    return Call(kind, form.replace("{1}", f"sort_array({{1}}, {not key.descending})", 1), (share, rows))


def sort_keys(at: Expressions, clause: Nodes) -> tuple[SortKey, ...]:
    """The keys of an ORDER BY inside of an expression."""
    return tuple(sort_key(at.known(inner(item).node), item) for item in clause)


declare("SortBy", "node sortby_dir sortby_nulls")


def sort_key(value: Expr, item: pb.Node, output: int | None = None, distinct: bool = False) -> SortKey:
    """A key with PostgreSQL's defaults: nulls are larger than everything.

    `distinct` says that it is an output of which equal values are the same.
    """
    found = inner(item)
    descending = found.sortby_dir == 3
    if found.sortby_dir == 4:
        refuse("ORDER BY ... USING", item)
    nulls_first = found.sortby_nulls == 2 if found.sortby_nulls in (2, 3) else descending
    if value.type.is_array or value.type.category in "?P":
        if not value.type.is_array:
            refuse(f"an order of values of {value.type}", item)
        if value.type.element is not None and value.type.element.name in t.LOOSE:
            refuse(f"an order of values of {value.type}", item)
        return SortKey(sortable(value), descending, nulls_first)
    if value.type.name in (*t.LOOSE, "time") and not distinct:
        return SortKey(comparable(value), descending, nulls_first)
    return SortKey(value, descending, nulls_first, output)


# ---- windows


def _windowed(at: Expressions, name: str, message: pb.FuncCall) -> Expr:
    if not at.windows or at.inside:
        raise Wrong(f"window functions are not allowed in {at.clause}", "42P20", message.location)
    arguments = [at.bind(arg) for arg in message.args]
    if message.agg_order or message.agg_distinct:
        refuse("DISTINCT or ORDER BY in a window function", message)
    where = at.condition(message.agg_filter, "FILTER") if message.HasField("agg_filter") else None
    partition, order, frame = _window(at, name, message)
    if name in AGGREGATES or name in DOCUMENTS or message.agg_star:
        made = _made(name, arguments, (), where, message)
        return _over(_without_filter(made, message), partition, order, frame)
    if where is not None:
        refuse("FILTER of a window function", message)
    if name in ("lag", "lead") and len(arguments) == 3:
        arguments[0], arguments[2] = to_common((arguments[0], arguments[2]), name)
    entry, ready = _entry(WINDOWS, name, arguments, message)
    if name in ("lag", "lead") and len(ready) > 1 and not isinstance(ready[1], Constant):
        refuse("an offset that is no literal", message)
    ranks = name not in ("first_value", "last_value", "nth_value")
    function = BoundAggregate(entry.result(ready), entry.form, tuple(ready), False, (), None)
    if ranks and not order:
        order = (SortKey(Constant(t.INT4, "1"), False, False),)
    return Over(function.type, function, partition, order, "" if ranks else frame)


def _without_filter(made: Expr, message: Message) -> Expr:
    """An aggregate over a window without its FILTER: Spark loses the window of one that lets nothing pass."""
    if isinstance(made, Call):
        return replace(made, arguments=tuple(_without_filter(a, message) for a in made.arguments))
    if not isinstance(made, BoundAggregate) or made.where is None:
        return made
    if made.form in ("array_agg", "list"):
        refuse("this aggregate over a window", message)
    if not made.arguments:
        return replace(made, form="count({0})", arguments=(_passing(made.where, Constant(t.INT4, "1")),), where=None)
    return replace(made, arguments=(_passing(made.where, made.arguments[0]), *made.arguments[1:]), where=None)


def _passing(where: Expr, value: Expr) -> Expr:
    """A value where a condition is true, else null, which aggregates pass over."""
    return Call(value.type, "CASE WHEN {0} THEN {1} END", (where, value))


def _window(at: Expressions, name: str, message: pb.FuncCall) -> tuple[tuple[Expr, ...], tuple[SortKey, ...], str]:
    """What OVER says: partition, order and frame."""
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
    partition = tuple(comparable(at.known(p)) for p in definition.partition_clause)
    order = sort_keys(at, definition.order_clause)
    return partition, *frame(at, definition, order)


def _over(made: Expr, partition: tuple[Expr, ...], order: tuple[SortKey, ...], frame: str) -> Expr:
    """Put OVER to the aggregates that an expression is made of."""
    if isinstance(made, BoundAggregate):
        if made.order or "listagg" in made.form:
            refuse("this aggregate over a window")
        return Over(made.type, made, partition, order, frame)
    assert isinstance(made, Call)
    parts = tuple(
        _over(a, partition, order, frame) if isinstance(a, (BoundAggregate, Call)) else a for a in made.arguments
    )
    return Call(made.type, made.form, parts, made.volatile)


__all__ = ["call_function", "kind_of", "place", "sort_key", "sort_keys"]
