"""Random expressions over each type and entry of the catalogue."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any, Final

# ---- expressions

_LITERALS = {
    "int2": ("1::int2", "(-3)::int2"),
    "int4": ("0", "1", "2", "7", "-5", "100"),
    "int8": ("3000000000", "5::int8", "(-7)::int8"),
    "numeric": ("2.5", "0.01", "-7.25", "100.0", "1.005", "0.00000001", "12345678901234.5678"),
    "float8": ("2.5::float8", "1e10::float8", "(-0.125)::float8", "'1e-5'::float8"),
    "float4": ("0.5::float4", "(-3)::float4"),
    "text": (
        "'a'::text",
        "'Hello World'::text",
        "''::text",
        "'b,c'::text",
        "'12'::text",
        "'a%b_\\c'::text",
        "'naïve €'::text",
    ),
    "bool": ("true", "false", "NULL::bool"),
    "date": ("date '2024-03-31'", "date '1999-01-01'"),
    "timestamp": ("timestamp '2024-03-31 12:30:45.25'", "timestamp '2000-01-01'"),
    "timestamptz": ("timestamptz '2024-03-31 12:30:45+00'",),
    "interval": (
        "interval '1 day'",
        "interval '2 hours 30 minutes'",
        "interval '-3 days'",
        "interval '1 mon'",
        "interval '-1 year +2 mons -3 days +04:05:06.5'",
    ),
    "time": ("time '04:05:06.789'", "time '23:59:59'", "'24:00'::time"),
    "jsonb": (
        '\'{"a": 1, "b": [1, "x", null]}\'::jsonb',
        "'[1, 2.50, {\"a\": true}]'::jsonb",
        "'\"x\"'::jsonb",
        "'1'::jsonb",
        "'null'::jsonb",
        "'{}'::jsonb",
    ),
    "int4[]": ("ARRAY[1, 2, 3]", "ARRAY[5]", "'{1,NULL}'::int[]"),
    "text[]": ("ARRAY['a', 'b c', NULL]", "'{}'::text[]"),
    "bytea": ("'\\x00ff10'::bytea", "''::bytea"),
}
_COLUMNS_OF = {"int2": "i2", "int4": "i4", "int8": "i8", "float4": "f4", "float8": "f8", "numeric": "n", "text": "t",
               "bool": "b", "date": "d", "timestamp": "ts", "timestamptz": "tz", "int4[]": "a", "time": "tm",
               "interval": "iv", "jsonb": "j", "bytea": "by", "text[]": "ta"}  # fmt: skip
_CASTS = {
    "int2": ("int4", "int8", "numeric", "float8"),
    "int4": ("int2", "int8", "numeric", "float8", "bool", "float4"),
    "int8": ("int4", "numeric", "float8"),
    "numeric": ("int4", "int8"),
    "float8": ("int4", "numeric", "float4"),
    "text": ("int4", "int8", "numeric", "float8", "bool", "date", "timestamp", "timestamptz", "int4[]"),
    "date": ("timestamp", "timestamptz"),
    "time": ("timestamp", "timestamptz", "interval"),
    "interval": ("time",),
    "timestamp": ("date", "timestamptz"),
    "timestamptz": ("timestamp", "date"),
}
_DAYS = ("year", "month", "day", "dow", "isodow", "doy", "week", "quarter", "epoch", "century", "decade", "isoyear")
_UNITS = ("hour", "day", "month", "year", "minute", "week", "quarter", "second")
_FIELDS = ("year", "month", "day", "hour", "minute", "second", "dow", "isodow", "doy", "week", "quarter", "epoch",
           "century", "decade", "isoyear", "millennium")  # fmt: skip
_NUMBERS: Final = ("int2", "int4", "int8", "numeric", "float8", "float4")
_TIMES: Final = ("date", "timestamp", "timestamptz", "interval", "time", "int4", "text")
_UNKNOWN: Final = (
    "'5'",
    "'-2.5'",
    "NULL",
    "'2024-02-29'",
    "'x'",
    "'1 day'",
    "'{1,2}'",
    "'04:05'",
    "'t'",
    "'1e3'",
    "''",
)
_LEFT_OUT = frozenset((
    "random", "now", "transaction_timestamp", "statement_timestamp", "gen_random_uuid", "proctime", "clock_timestamp",
))  # fmt: skip
"""Entries that are never the same twice."""
_FORMS: Final[dict[str, tuple[str, ...]]] = {
    "text": (
        "repeat({text}, 3)", "lpad({text}, 5, {text})", "rpad({text}, 7)", "split_part({text}, ',', {small})",
        "regexp_replace({text}, '[a-z]+', 'X', 'g')", "regexp_replace({text}, '(.)(.)', '\\2\\1')",
        "overlay({text} placing {text} from 2 for 1)", "to_char({timestamp}, 'YYYY-MM-DD HH24:MI:SS.US')",
        "to_char({int4}, 'FM999,999,999,990')", "to_char({timestamptz}, 'Day, DD Month YYYY')",
        "format('%s-%L', {any}, {text})", "chr(64 + {small})", "substring({text} from '[A-Z].')",
        "({text} || {any})", "concat_ws(',', {any}, {any})", "trim(BOTH 'a' FROM {text})", "md5({text})",
        "lpad({text}, 5)", "rpad({text}, {small}, {text})", "regexp_replace({text}, '[a-o]', 'X', 2)",
        "regexp_replace({text}, 'o', '0', 1, 2)", "regexp_replace({text}, 'O', '0', 1, 0, 'i')",
        "regexp_replace({text}, '(ne|[o-z]w)? ?', '<\\1>')", "substring({text} from '[A-Z]?(o|ne|,)')",
        "regexp_replace({text}, left({text}, 1), {text})", "substring({text} from left({text}, {small}))",
        "to_char({int8}, '999999')", "to_char({numeric}, 'FM9990.00')", "overlay({text} placing {text} from 2)",
        "({text})::varchar(3)", "({text[]})[{small}]", "({jsonb} ->> '{key}')", "jsonb_typeof({jsonb})", "array_to_string({text[]}, {text})", "({any})::text",
    ),
    "int4": (
        "position({text} in {text})", "regexp_count({text}, 'o')", "({int4[]})[{small}]", "({int4} << {small})",
        "({int4} >> {small})", "cardinality({text[]})", "array_length({int4[]}, 1)",
        "({int4} & {int4})", "length({bytea})", "({date} - {date})", "extract(year FROM {date})::int",
    ),
    "int8": ("({int8} << {small})", "({int8} >> {small})", "round({numeric})::int8"),
    "numeric": (
        "round({numeric}, {small})", "trunc({numeric}, {small})", "round({numeric})", "({numeric} / 3)",
        "extract(epoch FROM {interval})", "extract({field} FROM {timestamp})", "extract({field} FROM {timestamptz})",
        "trunc({numeric})", "extract(minute FROM {time})",
        "extract({days} FROM {date})", "({numeric} % 7)", "mod({numeric}, 2.5)", "({text})::numeric",
    ),
    "float8": (
        "pow({float8}, 2)", "cos({float8})", "tan({float8})", "sinh({float8} / 1e9)", "cosh({float4} / 1e10)",
        "date_part('day', {date})", "date_part('hour', {time})", "date_part('{field}', {timestamptz})",
        "date_part('day', {interval})", "power({float8}, 2)", "({float8} ^ 2)", "exp({float4} / 4)", "degrees({float8})", "sin({float8})",
        "round({float8})", "trunc({float8})", "date_part('{field}', {timestamp})", "pi()",
        "({interval_s} / {interval_s})",
    ),
    "bool": (
        "regexp_like({text}, '^[a-o]')", "({text} ~ '[0-9]')", "({text} LIKE '%o%')", "({text} ILIKE {text})",
        "({int4[]} = {int4[]})", "({int4[]} < {int4[]})", "({int4[]} @> {int4[]})", "({int4[]} && {int4[]})",
        "(({int4}, {text}) = ({int4}, {text}))", "({bytea} = {bytea})", "({text[]} = {text[]})",
        "({date} < {timestamptz})", "(({int4}, {text}) IN (({int4}, {text}), (1, 'one')))",
        "({text} ~ left({text}, 2))", "({text} !~* {text})", "({text} SIMILAR TO {text})",
        "({text} SIMILAR TO '%(o|a)%')", "({text} SIMILAR TO '[A-Z]_+')", "regexp_like({text}, 'O', 'i')", "({text} LIKE '%\\o%')",
        "({text} LIKE {text})", "(({int4}, {text}) < ({int4}, {text}))", "(({int8}, {date}) >= ({int4}, {date}))",
        "({int4[]} <@ {int4[]})", "({text[]} @> {text[]})", "({jsonb} @> {jsonb})", "({jsonb} ? '{key}')", "({text} < {text})", "(row({int4}, {text}) IS NULL)",
    ),
    "date": ("make_date(2024, 2, {small} + 9)", "to_date('31/12/1999', 'DD/MM/YYYY')", "({timestamp})::date",
             "({date} + {small})", "({date} - {small})"),
    "timestamp": (
        "({timestamptz} AT TIME ZONE 'Europe/Berlin')", "({timestamp} + interval '1 month')",
        "({date} - interval '1 year 2 days')", "make_timestamp(2024, 2, 3, 4, 5, 6.75)",
        "date_trunc('{unit}', {timestamp})",
    ),
    "timestamptz": (
        "({timestamp} AT TIME ZONE 'America/New_York')", "date_trunc('{unit}', {timestamptz}, 'Europe/Berlin')",
        "date_trunc('{unit}', {timestamptz})", "to_timestamp({int4})", "({timestamptz} + interval '2 months')", "to_timestamp('2024-02-29', 'YYYY-MM-DD')",
    ),
    "interval": ("({timestamp} - {timestamp})", "({small} * {interval})", "({interval} / 3)",
                 "age({timestamp}, {timestamp})", "age({timestamptz}, {timestamptz})",
                 "make_interval(1, 2, 3, 4, 5, 6, 7.5)", "make_interval({small}, {small})"),
    "time": ("make_time(8, 15, 23.5)", "({time} + {interval})", "({timestamp})::time"),
    "jsonb": ("to_jsonb({any})", "({jsonb} -> '{key}')", "({jsonb} -> {small})", "jsonb_build_array({any}, {any})",
              "jsonb_build_object({text}, {any})", "jsonb_set({jsonb}, ARRAY['a'], {jsonb})", "({jsonb} || {jsonb})"),
    "int4[]": ("({int4[]})[1:{small}]", "({int4[]})[{small}:]", "ARRAY[{int4}, {int4}]", "({int4[]} || {int4})",
               "({int4} || {int4[]})", "array_prepend({int4}, {int4[]})", "({int4[]} || {int4[]})"),
    "text[]": ("string_to_array({text}, ',')", "regexp_match({text}, '([a-z])(.)')", "ARRAY[{text}, {text}]",
               "({text[]} || {text})", "regexp_match({text}, '([A-Z])', 'i')",
               "({int4[]})::text[]", "array_append({text[]}, {text})", "array_remove({text[]}, {text})"),
    "bytea": ("sha256({bytea})", "substring({bytea} from 2 for 1)", "({bytea} || {bytea})", "({text})::bytea"),
}  # fmt: skip
"""Calls whose arguments may not be just anything, or that are spelled otherwise, by what they return."""
_HOLE: Final = re.compile(r"\{([a-z0-9_]+(?:\[\])?)\}")
_BY_FORM: Final = frozenset((
    "age", "make_time", "make_interval", "extract", "date_part", "date_trunc", "timezone", "split_part",
    "regexp_replace", "overlay", "round", "trunc",
    "position", "to_char", "to_date", "to_timestamp", "regexp_match", "regexp_count", "regexp_like", "format",
    "string_to_array", "repeat", "lpad", "rpad", "power", "pow", "exp", "^", "degrees", "sin", "cos", "tan", "sinh",
    "cosh", "<<", ">>", "pi", "chr", "make_date", "make_timestamp",
))  # fmt: skip
"""Entries that only `_FORMS` call."""


class Generator:
    """Random expressions of the catalogue."""

    def __init__(self, seed: int, relations: Sequence[str] = ()):
        self.random = random.Random(seed)
        self.relations = relations
        self._by_result = _entries_by_result()

    def expression(self, kind: str | None = None, depth: int = 2) -> str:
        """An expression of a type."""
        kind = kind or self.random.choice(list(_LITERALS))
        choice = self.random.random()
        if depth == 0 or choice < 0.15:
            return self._leaf(kind)
        if choice < 0.25 and kind in _CASTS:
            source = self.random.choice(_CASTS[kind])
            return f"({self.expression(source, depth - 1)})::{kind}"
        if choice < 0.35:
            return self._special(kind, depth)
        if choice < 0.55 and kind in _FORMS:
            return _HOLE.sub(lambda hole: self._hole(hole[1], depth - 1), self.random.choice(_FORMS[kind]))
        known = self._by_result.get(kind)
        if not known:
            return self._leaf(kind)
        name, arguments, form = self.random.choice(known)
        return form(name, [self._argument(a, depth - 1) for a in arguments])

    def drawn(self) -> str:
        """An expression of any kind."""
        return self.loose() if self.random.random() < 0.2 else self.expression()

    def loose(self) -> str:
        """An expression over values of several types, whose own type is for the binder to find out."""
        pick = self.random.choice
        family = pick((_NUMBERS, _NUMBERS, _TIMES, ("text", "text[]", "int4[]", "jsonb", "bytea", "bool", "interval")))
        a, b, c = (self._unsure(family) for _ in range(3))
        return pick((
            f"({a} {pick(('+', '-', '*', '/', '%'))} {b})", f"({a} {pick(('+', '-', '*', '/', '||'))} {b})",
            f"({a} {pick(('=', '<>', '<', '>=', 'IS DISTINCT FROM'))} {b})", f"coalesce({a}, {b}, {c})",
            f"{pick(('greatest', 'least'))}({a}, {b}, {c})", f"CASE WHEN {self.expression('bool', 1)} THEN {a} ELSE {b} END",
            f"({a} IN ({b}, {c}))", f"({a} BETWEEN {b} AND {c})", f"ARRAY[{a}, {b}]", f"nullif({a}, {b})",
            f"CAST({a} AS {pick(list(_LITERALS))})", f"({self.expression(None, 1)})::{pick(list(_LITERALS))}",
            f"(({a}, {b}) = ({b}, {c}))", f"({a} = ANY (ARRAY[{b}, {c}]))", f"({self.expression('text', 1)} || {a})",
        ))  # fmt: skip

    def _unsure(self, family: Sequence[str]) -> str:
        """A value of one of some types, or a literal without a type."""
        if self.random.random() < 0.2:
            return self.random.choice(_UNKNOWN)
        return self.expression(self.random.choice(family), 1)

    def column(self, name: str) -> str:
        """A column of one of the relations."""
        return f"{self.random.choice(self.relations)}.{name}" if self.relations else name

    def _hole(self, name: str, depth: int) -> str:
        choices = {"unit": _UNITS, "field": _FIELDS, "days": _DAYS, "small": ("1", "2", "0", "-1", "3"),
                   "key": ("a", "b", "x"),
                   "interval_s": ("extract(epoch FROM interval '90 minutes')::float8",)}  # fmt: skip
        if name in choices:
            return self.random.choice(choices[name])
        return self._argument(name, depth)

    def _argument(self, kind: str, depth: int) -> str:
        if kind == "any":
            return self.expression(None, depth)
        if kind in ("anyelement", "anynonarray"):
            return self.expression("int4", depth)
        if kind == "anyarray":
            return self.expression("int4[]", depth)
        return self.expression(kind, depth)

    def _leaf(self, kind: str) -> str:
        if kind in _COLUMNS_OF and self.random.random() < 0.6:
            return self.column(_COLUMNS_OF[kind])
        return self.random.choice(_LITERALS[kind])

    def _special(self, kind: str, depth: int) -> str:
        pick = self.random.randrange(6)
        inner = [self.expression(kind, depth - 1) for _ in range(2)]
        if pick == 0:
            return f"CASE WHEN {self.expression('bool', depth - 1)} THEN {inner[0]} ELSE {inner[1]} END"
        if pick == 1:
            return f"coalesce({inner[0]}, {inner[1]})"
        if pick == 2 and kind != "bool":
            return f"{self.random.choice(('greatest', 'least'))}({inner[0]}, {inner[1]})"
        if pick == 3:
            return f"nullif({inner[0]}, {inner[1]})"
        if kind == "bool":
            other = self.random.choice(("int4", "text", "numeric", "date", "int8", "float8"))
            a, b, c = (self.expression(other, depth - 1) for _ in range(3))
            return self.random.choice((
                f"({a} BETWEEN {b} AND {c})", f"({a} IN ({b}, {c}))", f"({a} NOT IN ({b}, NULL))", f"({a} IS NULL)",
                f"({a} IS DISTINCT FROM {b})", f"({inner[0]} AND {inner[1]})", f"({inner[0]} OR {inner[1]})",
                f"(NOT {inner[0]})", f"({inner[0]} IS NOT TRUE)",
                f"({self.expression('int4', depth - 1)} = ANY ({self.expression('int4[]', depth - 1)}))",
                f"({self.expression('int4', depth - 1)} < ALL ({self.expression('int4[]', depth - 1)}))",
            ))  # fmt: skip
        if kind == "timestamp":
            return f"date_trunc('{self.random.choice(_UNITS)}', {inner[0]})"
        if kind == "numeric":
            source = self.random.choice(("timestamp", "date", "timestamptz"))
            field = self.random.choice(_FIELDS)
            if source == "date" and field in ("hour", "minute", "second"):
                field = "day"
            return f"extract({field} FROM {self.expression(source, depth - 1)})"
        if kind == "int4":
            return f"({self.expression('int4[]', depth - 1)})[{self.random.choice(('1', '2', '0', '-1'))}]"
        return inner[0]


def _entries_by_result() -> dict[str, list[tuple[str, tuple[str, ...], Any]]]:
    from headrace.sql.binder.catalogue.functions import FUNCTIONS
    from headrace.sql.binder.catalogue.operators import OPERATORS, PREFIXES

    found: dict[str, list[tuple[str, tuple[str, ...], Any]]] = {}

    def add(catalogue: Any, form: Any) -> None:
        for name, overloads in catalogue.items():
            for entry in overloads:
                arguments = entry.signature.arguments
                result = {"*": arguments[0] if arguments else "", "*[]": ""}.get(entry.result, entry.result)
                if result == "anyarray":
                    result = "int4[]"
                if name not in _LEFT_OUT and result in _LITERALS:
                    found.setdefault(result, []).append((name, arguments, form))

    add(OPERATORS, lambda name, a: f"({a[0]} {name} {a[1]})")
    add(PREFIXES, lambda name, a: f"({name} {a[0]})")
    plain = {name: found for name, found in FUNCTIONS.items() if name not in _BY_FORM}
    add(plain, lambda name, a: f"{name}({', '.join(a)})")
    return found
