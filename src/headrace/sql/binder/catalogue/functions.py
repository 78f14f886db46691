"""Functions of single rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from headrace.errors import StatementError
from headrace.sql.binder import types as t
from headrace.sql.binder.bound_tree import Call, Constant, Expr
from headrace.sql.binder.catalogue import (
    bounded_values,
    clock_times,
    documents,
    lists,
    numbers,
    patterns,
    spans,
    templates,
)
from headrace.sql.binder.catalogue.encodings import ENCODINGS
from headrace.sql.binder.catalogue.entries import Catalogue, Make, catalogue, entries, made
from headrace.sql.binder.catalogue.times import (
    EXTRACT,
    TIMES,
    date_part,
    date_trunc,
    make_zoned,
    timezone,
    zoned_trunc,
)
from headrace.sql.binder.coerce import as_text, plain
from headrace.sql.binder.floats import checked
from headrace.sql.binder.parse_tree import NotBound

_TEXT: Final = """
lower(text) -> text : lower({0})
upper(text) -> text : upper({0})
length(text) -> int4 : char_length({0})
length(bytea) -> int4 : octet_length({0})
char_length(text) -> int4 : char_length({0})
character_length(text) -> int4 : char_length({0})
octet_length(text) -> int4 : octet_length({0})
octet_length(bytea) -> int4 : octet_length({0})
bit_length(text) -> int4 : bit_length({0})
btrim(text) -> text : trim(BOTH ' ' FROM {0})
btrim(text, text) -> text : trim(BOTH {1} FROM {0})
ltrim(text) -> text : trim(LEADING ' ' FROM {0})
ltrim(text, text) -> text : trim(LEADING {1} FROM {0})
rtrim(text) -> text : trim(TRAILING ' ' FROM {0})
rtrim(text, text) -> text : trim(TRAILING {1} FROM {0})
left(text, int4) -> text : CASE WHEN {1} < 0 THEN left({0}, greatest(char_length({0}) + {1}, 0)) ELSE left({0}, {1}) END
right(text, int4) -> text : CASE WHEN {1} = -2147483648 THEN {0} WHEN {1} < 0 THEN right({0}, greatest(char_length({0}) + {1}, 0)) ELSE right({0}, {1}) END
substring(text, int4) -> text : CASE WHEN {1} IS NOT NULL THEN substring({0}, greatest({1}, 1)) END
substr(text, int4) -> text : CASE WHEN {1} IS NOT NULL THEN substring({0}, greatest({1}, 1)) END
replace(text, text, text) -> text : CASE WHEN {1} = '' THEN CASE WHEN {2} IS NOT NULL THEN {0} END ELSE replace({0}, {1}, {2}) END
reverse(text) -> text : reverse({0})
strpos(text, text) -> int4 : locate({1}, {0})
position(text, text) -> int4 : locate({1}, {0})
starts_with(text, text) -> bool : startswith({0}, {1})
ascii(text) -> int4 : ascii({0})
translate(text, text, text) -> text : translate({0}, {1}, {2})
md5(text) -> text : md5({0})
md5(bytea) -> text : md5({0})
sha256(bytea) -> bytea : unhex(sha2({0}, 256))
sha224(bytea) -> bytea : unhex(sha2({0}, 224))
sha384(bytea) -> bytea : unhex(sha2({0}, 384))
sha512(bytea) -> bytea : unhex(sha2({0}, 512))
quote_literal(text) -> text : QUOTED
quote_nullable(text) -> text : coalesce(QUOTED, 'NULL')
substring(bytea, int4) -> bytea : CASE WHEN {1} IS NOT NULL THEN substring({0}, greatest({1}, 1)) END
substr(bytea, int4) -> bytea : CASE WHEN {1} IS NOT NULL THEN substring({0}, greatest({1}, 1)) END
initcap(text) -> text : INITCAP
bit_length(bytea) -> int4 : bit_length({0})
split_part(text, text, int4) -> text : CASE WHEN {2} = 0 THEN CAST(raise_error('headrace.errors.DataError: [22023] field position must not be zero') AS STRING) ELSE split_part({0}, {1}, {2}) END
to_hex(int4) -> text : CASE WHEN {0} < 0 THEN right(lower(hex({0})), 8) ELSE lower(hex({0})) END
to_hex(int8) -> text : lower(hex({0}))
chr(int4) -> text : decode(unhex(lpad(hex({0}), 8, '0')), 'UTF-32')
"""
_SUBSTRING: Final = (
    "CASE WHEN {2} < 0 AND {0} IS NOT NULL AND {1} IS NOT NULL THEN CAST(raise_error('headrace.errors.DataError: [22011] negative substring length not allowed') AS STRING) "
    "WHEN {1} IS NOT NULL AND {2} IS NOT NULL THEN substring({0}, greatest({1}, 1), CAST(greatest(CAST({1} AS BIGINT) + {2} - greatest({1}, 1), 0L) AS INT)) END"
)
_OUT_OF_RANGE: Final = "CAST(raise_error('headrace.errors.NumericOutOfRange: input is out of range') AS DOUBLE)"
_MATH: Final = """
abs(int2) -> int2 : abs({0})
abs(int4) -> int4 : abs({0})
abs(int8) -> int8 : abs({0})
abs(float4) -> float4 : abs({0})
abs(float8) -> float8 : abs({0})
ceil(float8) -> float8 : CASE WHEN {0} > -1D AND {0} <= 0D THEN {0} * 0D WHEN abs({0}) < 9e15D THEN CAST(ceil({0}) AS DOUBLE) ELSE {0} END
floor(float8) -> float8 : CASE WHEN {0} = 0D THEN {0} WHEN abs({0}) < 9e15D THEN CAST(floor({0}) AS DOUBLE) ELSE {0} END
round(float8) -> float8 : rint({0})
sign(float8) -> float8 : sign({0})
sqrt(float8) -> float8 : CASE WHEN {0} < 0D THEN CAST(raise_error('headrace.errors.DataError: [2201F] cannot take square root of a negative number') AS DOUBLE) ELSE sqrt({0}) END
cbrt(float8) -> float8 : cbrt({0})
exp(float8) -> float8 : CASE WHEN {0} > 709.782712893384D AND {0} < CAST('Infinity' AS DOUBLE) THEN CAST(raise_error('headrace.errors.NumericOutOfRange: value out of range: overflow') AS DOUBLE) WHEN {0} < -745.2D AND {0} > CAST('-Infinity' AS DOUBLE) THEN CAST(raise_error('headrace.errors.NumericOutOfRange: value out of range: underflow') AS DOUBLE) ELSE exp({0}) END
power(float8, float8) -> float8 : POWER
pow(float8, float8) -> float8 : POWER
sin(float8) -> float8 : CASE WHEN abs({0}) = CAST('Infinity' AS DOUBLE) THEN OUT_OF_RANGE ELSE sin({0}) END
cos(float8) -> float8 : CASE WHEN abs({0}) = CAST('Infinity' AS DOUBLE) THEN OUT_OF_RANGE ELSE cos({0}) END
tan(float8) -> float8 : CASE WHEN abs({0}) = CAST('Infinity' AS DOUBLE) THEN OUT_OF_RANGE ELSE tan({0}) END
asin(float8) -> float8 : CASE WHEN abs({0}) > 1D AND NOT isnan({0}) THEN OUT_OF_RANGE ELSE asin({0}) END
acos(float8) -> float8 : CASE WHEN abs({0}) > 1D AND NOT isnan({0}) THEN OUT_OF_RANGE ELSE acos({0}) END
atan(float8) -> float8 : atan({0})
atan2(float8, float8) -> float8 : atan2({0}, {1})
radians(float8) -> float8 : radians({0})
pi() -> float8 : pi()
sinh(float8) -> float8 : sinh({0})
cosh(float8) -> float8 : cosh({0})
tanh(float8) -> float8 : tanh({0})
asinh(float8) -> float8 : asinh({0})
acosh(float8) -> float8 : CASE WHEN {0} < 1D THEN OUT_OF_RANGE ELSE acosh({0}) END
atanh(float8) -> float8 : CASE WHEN abs({0}) > 1D AND NOT isnan({0}) THEN OUT_OF_RANGE ELSE atanh({0}) END
cot(float8) -> float8 : CASE WHEN abs({0}) = CAST('Infinity' AS DOUBLE) THEN OUT_OF_RANGE ELSE cot({0}) END
mod(int2, int2) -> int2 : CAST({0} % {1} AS SMALLINT)
mod(int4, int4) -> int4 : ({0} % {1})
mod(int8, int8) -> int8 : ({0} % {1})
trunc(float8) -> float8 : CASE WHEN {0} > -1D AND {0} <= 0D THEN {0} * 0D WHEN abs({0}) < 9e15D THEN CAST(CASE WHEN {0} < 0D THEN ceil({0}) ELSE floor({0}) END AS DOUBLE) ELSE {0} END
"""
_ARRAYS: Final = """
cardinality(anyarray) -> int4 : size({0})
array_position(anyarray, anyelement) -> int4 : CASE WHEN {1} IS NOT NULL THEN CAST(nullif(array_position({0}, {1}), 0L) AS INT) ELSE CAST(nullif(array_position(transform({0}, `__i` -> `__i` IS NULL), TRUE), 0L) AS INT) END
array_replace(anyarray, anyelement, anyelement) -> * : transform({0}, `__i` -> CASE WHEN `__i` <=> {1} THEN {2} ELSE `__i` END)
array_remove(anyarray, anyelement) -> * : filter({0}, `__i` -> NOT `__i` <=> {1})
array_to_string(anyarray, text) -> text : ?
"""


def _logarithm(name: str) -> Make:
    function = "ln" if name == "ln" else "log10"

    def make(arguments: Sequence[Expr]) -> Expr:
        form = (
            "CASE WHEN {0} = 0D THEN CAST(raise_error('headrace.errors.DataError: [2201E] cannot take logarithm of zero') AS DOUBLE) "
            "WHEN {0} < 0D THEN CAST(raise_error('headrace.errors.DataError: [2201E] cannot take logarithm of a negative number') AS DOUBLE) "
            f"ELSE {function}({{0}}) END"
        )
        return Call(t.FLOAT8, form, tuple(arguments))

    return make


def _concat(arguments: Sequence[Expr]) -> Expr:
    texts = tuple(_shown(a) for a in arguments)
    return Call(t.TEXT, f"concat({', '.join(f'coalesce({{{i}}}, {chr(39) * 2})' for i in range(len(texts)))})", texts)


def _concat_ws(arguments: Sequence[Expr]) -> Expr:
    texts = (arguments[0], *(_shown(a) for a in arguments[1:]))
    return Call(t.TEXT, f"concat_ws({', '.join(f'{{{i}}}' for i in range(len(texts)))})", texts)


def _shown(expr: Expr) -> Expr:
    """A value as its type's output function writes it: `t` for true."""
    if expr.type.name == "bool":
        return Call(t.TEXT, "CASE WHEN {0} THEN 't' WHEN NOT {0} THEN 'f' END", (expr,))
    return as_text(expr)


def _array_length(arguments: Sequence[Expr]) -> Expr:
    array, dimension = arguments
    if not isinstance(dimension, Constant):
        return Call(t.INT4, "CASE WHEN {1} = 1 THEN nullif(size({0}), 0) END", (array, dimension))
    if dimension.text != "1":
        return Constant(t.INT4, None)
    return Call(t.INT4, "nullif(size({0}), 0)", (array,))


def _overlay(arguments: Sequence[Expr]) -> Expr:
    return Call(t.TEXT, f"overlay({', '.join(f'{{{i}}}' for i in range(len(arguments)))})", tuple(arguments))


def _array_text(arguments: Sequence[Expr]) -> Expr:
    array = arguments[0]
    assert array.type.element is not None
    if array.type.element.name not in (*t.INTEGERS, *t.TEXTS, "date"):
        raise NotBound("array_to_string of this type")
    inner = array if array.type.element.name in t.TEXTS else Call(
        t.array_of(t.TEXT), "transform({0}, `__i` -> CAST(`__i` AS STRING))", (array,)
    )  # fmt: skip
    if len(arguments) == 3:
        form = "CASE WHEN {2} IS NULL THEN array_join({0}, {1}) ELSE array_join({0}, {1}, {2}) END"
        return Call(t.TEXT, form, (inner, *arguments[1:]))
    return Call(t.TEXT, "array_join({0}, {1})", (inner, arguments[1]))


_WORD: Final = "[\\\\p{L}\\\\p{N}]+"
_INITCAP: Final = (
    f"array_join(transform(regexp_extract_all({{0}}, '{_WORD}|[^\\\\p{{L}}\\\\p{{N}}]+', 0), "
    "`__w` -> concat(upper(left(`__w`, 1)), lower(substring(`__w`, 2)))), '')"
)


def _format(arguments: Sequence[Expr]) -> Expr:
    """`format` of a literal with `%s`, `%L` and `%%`."""
    template = arguments[0]
    if not isinstance(template, Constant) or template.text is None:
        raise NotBound("format with a template that is no literal")
    found: list[Expr] = []
    given = iter(arguments[1:])
    for part in re.findall(r"%.|[^%]+|%", template.text, re.DOTALL):
        if part in ("%s", "%L"):
            value = next(given, None)
            if value is None:
                raise StatementError("too few arguments for format()", sqlstate="22023")
            text = _shown(value)
            form = "coalesce({0}, '')" if part == "%s" else _QUOTED_OR_NULL
            found.append(Call(t.TEXT, form, (text,)))
        elif part == "%%" or not part.startswith("%"):
            found.append(Constant(t.TEXT, part.replace("%%", "%")))
        else:
            raise NotBound(f"{part} in format")
    holes = ", ".join(f"{{{i}}}" for i in range(len(found)))
    return Call(t.TEXT, f"concat('', {holes})" if found else "''", tuple(found))


_QUOTED: Final = (
    "CASE WHEN instr({0}, '\\\\') > 0 THEN concat('E\\'', replace(replace({0}, '\\\\', '\\\\\\\\'), '\\'', '\\'\\''), '\\'') "
    "ELSE concat('\\'', replace({0}, '\\'', '\\'\\''), '\\'') END"
)
_QUOTED_OR_NULL: Final = f"coalesce({_QUOTED}, 'NULL')"


def string_to_array(arguments: Sequence[Expr]) -> Expr:
    """`string_to_array(text, delimiter)`: no elements for an empty text."""
    delimiter = arguments[1]
    kind = t.array_of(t.TEXT)
    if not isinstance(delimiter, Constant) or not delimiter.text:
        raise NotBound("string_to_array with this delimiter")
    pattern = Constant(t.TEXT, "".join(f"\\{c}" if c.isascii() and not c.isalnum() else c for c in delimiter.text))
    form = f"CASE WHEN {{0}} = '' THEN CAST(array() AS {kind.spark}) ELSE split({{0}}, {{1}}, -1) END"
    return Call(kind, form, (arguments[0], pattern))


def _degrees(arguments: Sequence[Expr]) -> Expr:
    return checked(arguments[0], Call(t.FLOAT8, "degrees({0})", tuple(arguments)))


def _build() -> Catalogue:
    found = [
        *entries(_TEXT.replace("INITCAP", _INITCAP).replace("QUOTED", _QUOTED)),
        *entries(_MATH.replace("OUT_OF_RANGE", _OUT_OF_RANGE).replace("POWER", numbers.POWER)),
        *entries(_ARRAYS.replace("array_to_string(anyarray, text) -> text : ?\n", "")),
    ]
    found += entries(TIMES)
    found += entries(ENCODINGS)
    found += lists.functions()
    found += bounded_values.functions()
    found += documents.functions()
    found += spans.functions()
    found += clock_times.functions()
    found += entries("random() -> float8 : random()", volatile=True)
    found += entries("gen_random_uuid() -> text : uuid()", volatile=True)
    found += [
        made("date", kind, lambda a: plain(a[0], t.DATE), "date") for kind in ("date", "timestamp", "timestamptz")
    ]
    found.append(made("div", "numeric, numeric", numbers.quotient, "numeric"))
    found.append(made("degrees", "float8", _degrees, "float8"))
    found += [made(name, "float8", _logarithm(name), "float8") for name in ("ln", "log", "log10")]
    for name in ("substring", "substr"):
        found += entries(f"{name}(text, int4, int4) -> text : {_SUBSTRING}")
        found += entries(f"{name}(bytea, int4, int4) -> bytea : {_SUBSTRING.replace('AS STRING', 'AS BINARY')}")
    found += [
        made("concat", "any...", _concat, "text"),
        made("concat_ws", "text, any...", _concat_ws, "text"),
        made("array_length", "anyarray, int4", _array_length, "int4"),
        made("array_to_string", "anyarray, text", _array_text, "text"),
        made("array_to_string", "anyarray, text, text", _array_text, "text"),
        *(
            made("regexp_replace", f"text, text, text{more}", patterns.regexp_replace, "text")
            for more in ("", ", text", ", int4", ", int4, int4", ", int4, int4, text")
        ),
        made("regexp_like", "text, text", patterns.regexp_like, "bool"),
        made("regexp_like", "text, text, text", patterns.regexp_like, "bool"),
        made("regexp_count", "text, text", patterns.regexp_count, "int4"),
        made("regexp_match", "text, text", patterns.regexp_match),
        made("regexp_match", "text, text, text", patterns.regexp_match),
        made("substring", "text, text", patterns.substring_of, "text"),
        made("format", "text", _format, "text"),
        made("format", "text, any...", _format, "text"),
        made("string_to_array", "text, text", string_to_array),
        *(made("to_char", f"{kind}, text", templates.time_text, "text") for kind in ("timestamp", "timestamptz")),
        *(
            made("to_char", f"{kind}, text", templates.number_text, "text")
            for kind in ("int4", "int8", "numeric", "float8")
        ),
        made("to_date", "text, text", templates.read_date, "date"),
        made("to_timestamp", "text, text", templates.read_time, "timestamptz"),
        made("overlay", "text, text, int4", _overlay, "text"),
        made("overlay", "text, text, int4, int4", _overlay, "text"),
        made("abs", "numeric", numbers.same("abs({0})"), "numeric"),  # type: ignore[arg-type]
        made("sign", "numeric", numbers.whole("sign({0})"), "numeric"),  # type: ignore[arg-type]
        made("mod", "numeric, numeric", numbers.modulo, "numeric"),
        made("round", "numeric", numbers.whole("ROUND({0}, 0)"), "numeric"),  # type: ignore[arg-type]
        made("round", "numeric, int4", numbers.round_to("round"), "numeric"),  # type: ignore[arg-type]
        made("trunc", "numeric", numbers.whole("CASE WHEN {0} < 0 THEN CEIL({0}) ELSE FLOOR({0}) END"), "numeric"),  # type: ignore[arg-type]
        made("trunc", "numeric, int4", numbers.round_to("trunc"), "numeric"),  # type: ignore[arg-type]
    ]
    for name, form in (("ceil", "CEIL({0})"), ("ceiling", "CEIL({0})"), ("floor", "FLOOR({0})")):
        found.append(made(name, "numeric", numbers.whole(form), "numeric"))  # type: ignore[arg-type]
    found += entries(
        "ceiling(float8) -> float8 : CASE WHEN {0} > -1D AND {0} <= 0D THEN {0} * 0D WHEN abs({0}) < 9e15D THEN CAST(ceil({0}) AS DOUBLE) ELSE {0} END"
    )
    for kind in ("date", "time", "timestamp", "timestamptz", "interval"):
        found.append(made("date_part", f"text, {kind}", lambda a: plain(date_part(a), t.FLOAT8), "float8"))
        found.append(made(EXTRACT, f"text, {kind}", date_part, "numeric"))
    found += entries("to_timestamp(float8) -> timestamptz : timestamp_seconds({0})")
    for kind in ("timestamp", "timestamptz"):
        found.append(made("date_trunc", f"text, {kind}", date_trunc, kind))
        found += [made("timezone", f"{zone}, {kind}", timezone) for zone in ("text", "interval")]
    parts = "int4, int4, int4, int4, int4, float8"
    found += [made("make_timestamptz", f"{parts}{more}", make_zoned, "timestamptz") for more in ("", ", text")]
    found.append(made("date_trunc", "text, timestamptz, text", zoned_trunc, "timestamptz"))
    return catalogue(found)


FUNCTIONS: Final = _build()
"""Functions that are called by name with values."""
