"""Functions that return sets: each as an array that Spark explodes, so that several can go in step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace.common.lazy_dataclass import dataclass
from headrace.sql.binder import types as t
from headrace.sql.binder import zone_times
from headrace.sql.binder.bound_tree import BoundColumn, Call, Constant, Expr, Produced
from headrace.sql.binder.catalogue import documents
from headrace.sql.binder.catalogue.bounded_values import moments_end, series_end
from headrace.sql.binder.coerce import coerce, form_of
from headrace.sql.binder.overloads import undefined
from headrace.sql.binder.parse_tree import Message, refuse
from headrace.sql.binder.resolve import Signature
from headrace.sql.binder.types import Type
from headrace.sql.intervals import parse_interval, spark_interval

SETS: Final = frozenset(("generate_series", "unnest", "string_to_table")) | documents.SETS
"""Functions that return sets."""
_ROWS: Final = Type("rows", "?", "?")


@dataclass(frozen=True)
class Rows:
    """What such a function returns: one array, or several of which the shorter ones are filled up with nulls."""

    arrays: tuple[Expr, ...]
    kinds: tuple[Type, ...]
    names: tuple[str, ...] = ()
    """What its columns are called, where that is not what the function is called."""

    def relation(self, number: int, ordinality: bool, lateral: bool) -> Produced:
        """The relation of the rows."""
        array = self.arrays[0] if len(self.arrays) == 1 else _zipped(self.arrays)
        call = Call(_ROWS, "posexplode({0})" if ordinality else "explode({0})", (array,))
        return Produced(number, call, ("place", "value") if ordinality else ("value",), lateral)

    def columns(self, number: int, shown: str, name: str, ordinality: bool) -> list[tuple[str, Expr]]:
        """Its columns."""
        found: list[tuple[str, Expr]] = []
        for i, kind in enumerate(self.kinds):
            value: Expr = BoundColumn(kind, number, "value", f"{shown}.{name}")
            if len(self.kinds) > 1:
                value = Call(kind, f"{{0}}.`{i}`", (BoundColumn(_ROWS, number, "value", shown),))
            found.append((self.names[i] if self.names else name, value))
        if ordinality:
            place = BoundColumn(t.INT4, number, "place", f"{shown}.ordinality")
            found.append(("ordinality", Call(t.INT8, "(CAST({0} AS BIGINT) + 1L)", (place,))))
        return found


def sets_of(arrays: Sequence[Expr], number: int, beside: bool) -> Produced:
    """The rows that several functions make in step, as the columns `set0`, ...; `beside` other relations."""
    names = tuple(f"set{i}" for i in range(len(arrays)))
    lateral = beside and any(map(has_columns, arrays))
    if len(arrays) == 1:
        return Produced(number, Call(_ROWS, "explode({0})", (arrays[0],)), names, lateral)
    return Produced(number, Call(_ROWS, "inline({0})", (_zipped(arrays),)), names, lateral)


def _zipped(arrays: Sequence[Expr]) -> Expr:
    """Arrays side by side; a null is as good as an empty one."""
    full = tuple(Call(a.type, f"coalesce({{0}}, CAST(array() AS {a.type.spark}))", (a,)) for a in arrays)
    return Call(_ROWS, f"arrays_zip({', '.join(f'{{{i}}}' for i in range(len(full)))})", full)


def has_columns(value: Expr) -> bool:
    """Whether an expression names columns."""
    return isinstance(value, BoundColumn) or any(has_columns(c) for c in value.children())


def rows_of(name: str, arguments: Sequence[Expr], call: Message) -> Rows:
    """The rows of a function that returns a set."""
    if name == "unnest":
        arrays, kinds = [], []
        for argument in arguments:
            if argument.type.element is None:
                refuse("unnest of something else than an array", call)
            arrays.append(argument)
            kinds.append(argument.type.element)
        if not arrays:
            refuse("unnest of nothing", call)
        return Rows(tuple(arrays), tuple(kinds))
    if name in documents.SETS:
        return _of_document(name, arguments, call)
    if name == "generate_series":
        array = _series(list(arguments), call)
    elif name == "string_to_table" and len(arguments) == 2:
        from headrace.sql.binder.catalogue.functions import string_to_array

        array = string_to_array([coerce(a, t.TEXT, "implicit") for a in arguments])
    else:
        refuse(f"{name} in FROM", call)
    assert array.type.element is not None
    return Rows((array,), (array.type.element,))


def _of_document(name: str, arguments: Sequence[Expr], call: Message) -> Rows:
    given = [a.type for a in arguments]
    if len(arguments) != 1 or given[0].name not in ("jsonb", "unknown"):
        undefined(name, given, [Signature(("jsonb",))], call)
    arrays = documents.lists_of(name, coerce(arguments[0], t.JSONB, "implicit"))
    kinds = tuple(a.type.element for a in arrays if a.type.element is not None)
    return Rows(arrays, kinds, documents.column_names(name))


def _series(arguments: list[Expr], call: Message) -> Expr:
    if len(arguments) not in (2, 3):
        refuse("this generate_series", call)
    names = {a.type.name for a in arguments}
    if (
        len(arguments) == 3
        and arguments[2].type.name in ("interval", "unknown")
        and names & {"date", "timestamp", "timestamptz"}
    ):
        return _moments(arguments, call)
    if not names <= {"int2", "int4", "int8", "unknown"} or names == {"unknown"}:
        refuse("a series of other values than whole numbers", call)
    kind = t.INT8 if "int8" in names else t.INT4
    values = [coerce(a, kind, "implicit") for a in arguments]
    array = t.array_of(kind)
    empty = f"CAST(array() AS {array.spark})"
    if len(values) == 2:
        listed = f"sequence({{0}}, {series_end(kind, 1)}, CAST(1 AS {kind.spark}))"
        return Call(array, f"CASE WHEN {{0}} <= {{1}} THEN {listed} ELSE {empty} END", tuple(values))
    step = values[2]
    if not isinstance(step, Constant) or step.text is None or int(step.text) == 0:
        refuse("a series with a step that is no literal", call)
    sign, end = "<=" if int(step.text) > 0 else ">=", series_end(kind, int(step.text))
    return Call(
        array, f"CASE WHEN {{0}} {sign} {{1}} THEN sequence({{0}}, {end}, {{2}}) ELSE {empty} END", tuple(values)
    )


_BY_MONTHS: Final = (
    "filter(aggregate(sequence(1, CAST(abs(months_between({1}, {0})) / {n} AS INT) + 2), array({0}), "
    "(`__a`, `__n`) -> array_append(`__a`, element_at(`__a`, -1) + {2})), `__m` -> `__m` {sign} {1})"
)
"""Each moment is the one before and so many months, as PostgreSQL has it: after February 29 comes March 29."""


def _moments(arguments: list[Expr], call: Message) -> Expr:
    """A series of times."""
    local = all(a.type.name in ("timestamp", "unknown") for a in arguments[:2])
    kind = t.TIMESTAMP if local else t.TIMESTAMPTZ
    first, last = (coerce(a, kind, "implicit") for a in arguments[:2])
    step = coerce(arguments[2], t.INTERVAL, "implicit")
    if not isinstance(step, Constant) or step.text is None:
        refuse("a series by a step that is no literal", call)
    months, days, micros = parse_interval(step.text)
    zoned = kind == t.TIMESTAMPTZ and not zone_times.current().is_utc
    size = days * 86_400_000_000 + micros
    if zoned and (days > 0 > micros or micros > 0 > days):
        refuse("a series by this step", call)
    if (months and size) or not (months or size):
        refuse("a series by this step", call)
    if zoned and (months or days):
        return _by_calendar(first, last, months, days, micros)
    by = spark_interval(step.text)
    array = t.array_of(kind)
    sign = "<=" if (months or size) > 0 else ">="
    form = f"sequence({{0}}, {moments_end(kind, size)}, {by})"
    if months:
        form = _BY_MONTHS.replace("{n}", str(abs(months))).replace("{sign}", sign).replace("{2}", by)
    guarded = f"CASE WHEN {{0}} {sign} {{1}} THEN {form} ELSE CAST(array() AS {array.spark}) END"
    return Call(array, guarded, (first, last))


def _by_calendar(first: Expr, last: Expr, months: int, days: int, micros: int) -> Expr:
    """A series of moments by months or days of the session's zone: each is made of the one before."""
    following = form_of(zone_times.moved(Call(t.TIMESTAMPTZ, "element_at(`__a`, -1)", ()), months, days, micros))
    sign = "<=" if (months or days) > 0 else ">="
    least_us = (abs(months) * 27 * 24 + abs(days) * 20) * 3_600_000_000 + abs(micros)
    count = f"CAST(abs(unix_micros({{1}}) - unix_micros({{0}})) div {least_us}L AS INT) + 2"
    listed = f"aggregate(sequence(1, {count}), array({{0}}), (`__a`, `__n`) -> array_append(`__a`, {following}))"
    array = t.array_of(t.TIMESTAMPTZ)
    form = f"filter({listed}, `__s` -> `__s` {sign} {{1}})"
    return Call(
        array, f"CASE WHEN {{0}} {sign} {{1}} THEN {form} ELSE CAST(array() AS {array.spark}) END", (first, last)
    )
