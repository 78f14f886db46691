"""Casts: which there are, and what Spark has to compute for each."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Final

from headrace.common import time_of_day
from headrace.common.jsonb import document
from headrace.common.span import text_of as interval_text
from headrace.errors import DatatypeMismatch, HeadraceError, StatementError
from headrace.sql.binder import clock_times, spans, zone_times
from headrace.sql.binder import types as t
from headrace.sql.binder.bound_tree import Call, Constant, Expr, Nested, Parameter, fill, walk
from headrace.sql.binder.floats import checked
from headrace.sql.binder.own import calls_kernel, kernel
from headrace.sql.binder.parse_tree import NotBound
from headrace.sql.binder.types import Context, Type
from headrace.sql.intervals import parse_interval
from headrace.sql.text_values import parse_text, to_array_text, to_text


def _float_text(kind: str, least: int, most: int) -> str:
    """The text of a float as PostgreSQL writes it: the fewest digits that read back the same.

    At least `least` of them are tried, and `most` always do; Java's own text may have more than are needed.
    """
    texts = [f"format_string('%.{digits - 1}e', {{0}})" for digits in range(least, most + 1)]
    arms = " ".join(f"WHEN CAST({text} AS {kind}) = {{0}} THEN {text}" for text in texts[:-1])
    shortest = f"CASE {arms} ELSE {texts[-1]} END"
    return (
        "CASE WHEN {0} IS NULL OR isnan({0}) OR abs({0}) = CAST('Infinity' AS DOUBLE) OR {0} = 0 "
        "THEN regexp_replace(CAST({0} AS STRING), '\\\\.0$', '') "
        f"WHEN abs({{0}}) >= CAST('1e{least}' AS DOUBLE) OR abs({{0}}) < CAST('1e-4' AS DOUBLE) "
        f"THEN regexp_replace({shortest}, '\\\\.?0+e', 'e') "
        f"ELSE regexp_replace(regexp_replace(CAST(CAST({shortest} AS DECIMAL(38,21)) AS STRING), '0+$', ''), "
        "'\\\\.$', '') END"
    )


_FLOAT_TEXTS: Final = {"float8": _float_text("DOUBLE", 15, 17), "float4": _float_text("FLOAT", 6, 9)}
_BOOLEAN_TEXT = (
    "CASE WHEN lower(trim({0})) IN ('t', 'tr', 'tru', 'true', 'y', 'ye', 'yes', 'on', '1') THEN TRUE "
    "WHEN lower(trim({0})) IN ('f', 'fa', 'fal', 'fals', 'false', 'n', 'no', 'of', 'off', '0') THEN FALSE "
    "ELSE CAST(CAST({0} AS STRING) AS BOOLEAN) END"
)
_FLOAT_READ = (
    "CASE WHEN abs(CAST(TRIM({0}) AS {kind})) = CAST('Infinity' AS {kind}) AND rlike({0}, '[0-9]') THEN "
    "CAST(raise_error(concat('headrace.errors.NumericOutOfRange: \"', {0}, '\" is out of range for type {name}')) "
    "AS {kind}) ELSE CAST(TRIM({0}) AS {kind}) END"
)
_BYTES_READ = (
    "CASE WHEN instr({0}, '\\\\') = 0 THEN encode({0}, 'UTF-8') "
    "WHEN rlike({0}, '^\\\\\\\\x([0-9a-fA-F][0-9a-fA-F])*\\\\z') THEN unhex(substring({0}, 3)) "
    "WHEN {0} IS NOT NULL THEN CAST(raise_error('headrace.errors.NotSupported: this text read as bytea: "
    "only \\\\x and an even number of hexadecimal digits, or text without backslashes, can be read') AS BINARY) END"
)
_ELEMENT_TEXT = (
    "CASE WHEN __e IS NULL THEN 'NULL' WHEN __e = '' OR lower(__e) = 'null' OR rlike(__e, '[{},\"\\\\\\\\\\\\s]') "
    "THEN concat('\"', regexp_replace(__e, '([\"\\\\\\\\])', '\\\\\\\\$1'), '\"') ELSE __e END"
)


def coerce(expr: Expr, target: Type, context: Context, location: int | None = None) -> Expr:
    """The expression as a value of another type. Raises `DatatypeMismatch` where PostgreSQL has no such cast there."""
    source = expr.type
    if isinstance(expr, Parameter) and source.name == "unknown":
        return expr.as_type(t.TEXT if target.name == "unknown" else target)
    if source.name == "unknown":
        return _literal(expr, target)
    if not t.can_cast(source, target, context):
        raise DatatypeMismatch(f"cannot cast type {source} to {target}", sqlstate="42846")
    if isinstance(expr, Constant) and expr.text is None:
        return Constant(_narrow(target, expr), None)
    if source.name == target.name and source.name != "numeric":
        return _sized(expr, target)
    return _converted(expr, target)


def _narrow(target: Type, expr: Expr) -> Type:
    """`numeric` without a size takes the digits that a whole number or a decimal has."""
    if target != t.NUMERIC or expr.type.name not in (*t.INTEGERS, "numeric"):
        return target
    if isinstance(expr, Constant) and expr.text is not None and expr.type.name in t.INTEGERS:
        return t.decimal(len(expr.text.lstrip("-").lstrip("0")) or 1, 0)
    return t.decimal(*t.digits(expr.type))


def literal(text: str | None, target: Type) -> Constant:
    """A constant, its text as the type spells it. Raises a `DataError` where the text does not spell a value."""
    if text is None or target.name in ("unknown", "text"):
        return Constant(target, text)
    if target.name == "varchar":
        return Constant(target, text if target.size is None else text[: target.size])
    if target.name == "interval":
        parse_interval(text)
        return Constant(t.INTERVAL, text)
    if target.name == "time":
        return Constant(target, time_of_day.text_of(time_of_day.parse(text)))
    if target.name == "numeric" and text.strip().lstrip("+-").lower() in ("nan", "inf", "infinity"):
        raise NotBound("NaN or an infinity as a numeric")
    if target == t.NUMERIC:
        parse_text(text, "decimal(38,10)")
        return Constant(_fitting(text), text.strip())
    value = parse_text(text, target.spark, zone_times.current())
    if target.element is not None and target.element.name == "timestamptz":
        return Constant(target, to_array_text(value, target.spark))
    if target.is_array or isinstance(value, bytes):
        return Constant(target, text)
    return Constant(target, to_text(value))


def _fitting(text: str) -> Type:
    value = Decimal(text.strip())
    exponent = int(value.as_tuple().exponent)
    if exponent > 0:
        value, exponent = value.quantize(Decimal(1)), 0
    precision = max(len(value.as_tuple().digits), -exponent + 1)
    if precision > t.DIGITS:
        raise NotBound("a number of more than 38 digits")
    return t.decimal(precision, -exponent)


def _literal(expr: Expr, target: Type) -> Expr:
    if not isinstance(expr, Constant):
        raise NotBound("an expression of unknown type")
    return literal(expr.text, t.TEXT if target.name == "unknown" else target)


def _sized(expr: Expr, target: Type) -> Expr:
    if target.size is not None:
        return Call(target, f"LEFT({{0}}, {target.size})", (expr,))
    return expr


def plain(expr: Expr, target: Type) -> Expr:
    """Spark's own cast, between moments and local times by the session's zone."""
    if not zone_times.current().is_utc:
        if expr.type.name == "timestamptz" and target.name in ("timestamp", "date"):
            local = zone_times.local(expr)
            return local if target.name == "timestamp" else zone_times.spark_cast(local, target)
        if target.name == "timestamptz" and expr.type.name in ("timestamp", "date"):
            return zone_times.moment(
                expr if expr.type.name == "timestamp" else zone_times.spark_cast(expr, t.TIMESTAMP)
            )
    return zone_times.spark_cast(expr, target)


def _converted(expr: Expr, target: Type) -> Expr:
    source, kind = expr.type, target.name
    if isinstance(expr, Constant) and expr.text is not None and _is_spelled_alike(source, target):
        return literal(expr.text, target)
    if source.name == "jsonb" and kind not in t.TEXTS:
        return _of_document(expr, target)
    if "time" in (source.name, kind) and kind not in t.TEXTS:
        return _of_day(expr, target)
    if kind == "numeric":
        wanted = _narrow(target, expr)
        if isinstance(expr, Constant) and expr.text is not None and source.name in t.INTEGERS:
            return Constant(wanted, expr.text) if target == t.NUMERIC else plain(expr, wanted)
        return expr if expr.type == wanted else plain(expr, wanted)
    if kind in t.INTEGERS and source.name == "numeric":
        return Call(target, f"CAST(ROUND({{0}}, 0) AS {target.spark.upper()})", (expr,))
    if kind in t.INTEGERS and source.name in t.FLOATS:
        return Call(target, f"CAST(RINT({{0}}) AS {target.spark.upper()})", (expr,))
    if kind == "bool" and source.name == "int4":
        return Call(target, "({0} <> 0)", (expr,))
    if kind in t.TEXTS:
        return _sized(as_text(expr), target)
    if source.name in t.TEXTS:
        return _read(expr, target)
    if source.element is not None and target.element is not None:
        return _elements(expr, target)
    if source.name == "float8" and kind == "float4":
        return checked(expr, plain(expr, target))
    return plain(expr, target)


def _is_spelled_alike(source: Type, target: Type) -> bool:
    """Whether a constant of one type is one of another with the same text."""
    whole = source.name in t.INTEGERS
    return (whole and target.name in (*t.INTEGERS, *t.FLOATS)) or (source.name == "numeric" and target.name in t.FLOATS)


def _elements(expr: Expr, target: Type) -> Expr:
    assert expr.type.element is not None and target.element is not None
    element = _converted(Call(expr.type.element, "`__i`", ()), target.element)
    if calls_kernel(element):
        raise NotBound(f"a cast of arrays to {target}")
    return Call(t.array_of(element.type), f"TRANSFORM({{0}}, `__i` -> {form_of(element)})", (expr,))


def form_of(expr: Expr) -> str:
    """Spark's text of an expression that has no columns in it."""
    if not isinstance(expr, Call):
        raise NotBound("this cast of an array")
    return fill(expr.form, tuple(form_of(a) for a in expr.arguments))


def _of_document(expr: Expr, target: Type) -> Expr:
    """A cast of a jsonb to a number or a boolean."""
    if target.name == "bool":
        return kernel(target, "boolean", (expr,))
    text = kernel(t.TEXT, "number", (expr, Constant(t.TEXT, str(target))))
    return Call(target, f"CAST({{0}} AS {target.spark.upper()})", (text,))


def _of_day(expr: Expr, target: Type) -> Expr:
    """A cast to or from a time of the day."""
    source = expr.type
    forms = {
        "timestamp": clock_times.OF_TIMESTAMP,
        "timestamptz": clock_times.OF_TIMESTAMP,
        "interval": clock_times.OF_INTERVAL,
    }
    if target.name == "interval":
        return Call(t.INTERVAL, clock_times.TO_INTERVAL, (expr,))
    return Call(target, forms.get(source.name, clock_times.OF_TEXT), (zone_times.clocks(expr),))


def _read(expr: Expr, target: Type) -> Expr:
    """Text at run time, read as a value."""
    if target.name == "bool":
        return Call(target, _BOOLEAN_TEXT, (expr,))
    if target.name == "jsonb":
        return kernel(target, "read", (expr,))
    if target.name in t.FLOATS:
        return Call(target, _FLOAT_READ.replace("{kind}", target.spark).replace("{name}", str(target)), (expr,))
    if target.name == "timestamptz":
        return Call(target, zone_times.read_form(zone_times.current()), (expr,))
    if target.name in (*t.INTEGERS, "numeric", "date", "timestamp"):
        return Call(target, f"CAST(TRIM({{0}}) AS {target.spark.upper()})", (expr,))
    if target.name == "bytea":
        return Call(target, _BYTES_READ, (expr,))
    raise NotBound(f"text read as {target}")


def as_text(expr: Expr) -> Expr:
    """A value as PostgreSQL writes it."""
    source = expr.type
    if source.name in t.TEXTS:
        return expr
    if source.name == "interval" and isinstance(expr, Constant) and expr.text is not None:
        return Constant(t.TEXT, interval_text(*parse_interval(expr.text)))
    form = _text_form(source)
    if source.name in t.FLOATS and isinstance(expr, Call) and not any(isinstance(part, Nested) for part in walk(expr)):
        form = spans.let("__f", "{0}", fill(form, ("`__f`",)))
    return Call(t.TEXT, form, (expr,))


def _spelled(text: str) -> str:
    """A string literal of Spark's."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


_MARKS = _spelled(r'(["\\])')
_SPECIAL = _spelled(r'[(),"\\\s]')


def _record_text(source: Type) -> str:
    parts = []
    for name, spark in t.fields_of(source):
        kind = t.of_spark(spark)
        if kind is None or set(name) & set("{}`"):
            raise NotBound("this record as text")
        at = f"{{0}}.`{name}`"
        text = "{0}" if kind.name in t.TEXTS else _text_form(kind)
        if kind.name == "bool":
            text = "CASE WHEN {0} THEN 't' WHEN NOT {0} THEN 'f' END"
        text = text.replace("{0}", at)
        doubled = f"regexp_replace({text}, {_MARKS}, '$1$1')"
        quoted = f"""concat('"', {doubled}, '"')"""
        special = f"{text} = '' OR rlike({text}, {_SPECIAL})"
        parts.append(f"CASE WHEN {text} IS NULL THEN '' WHEN {special} THEN {quoted} ELSE {text} END")
    joined = ", ',', ".join(parts)
    return f"CASE WHEN {{0}} IS NOT NULL THEN concat('(', {joined}, ')') END"


def _text_form(source: Type) -> str:
    if source.name == "record":
        return _record_text(source)
    if source.name == "interval":
        return spans.TEXT
    if source.name == "numeric":
        cast = "CAST({0} AS STRING)"
        open_ended = source == t.NUMERIC
        return f"regexp_replace(regexp_replace({cast}, '0+$', ''), '\\\\.$', '')" if open_ended else cast
    if source.name in t.FLOATS:
        return _FLOAT_TEXTS[source.name]
    if source.name == "timestamptz":
        return zone_times.text_form(zone_times.current())
    if source.name == "bytea":
        return "concat('\\\\x', lower(hex({0})))"
    if source.element is not None:
        inner = fill(_text_form(source.element), ("__v",)) if source.element.name not in t.TEXTS else "__v"
        if source.element.name == "bool":
            inner = "CASE WHEN __v THEN 't' WHEN NOT __v THEN 'f' END"
        return (
            f"concat('{{', array_join(transform(transform({{0}}, __v -> {inner}), __e -> {_ELEMENT_TEXT}), ','), '}}')"
        )
    if source.name in (*t.INTEGERS, "bool", "date", "timestamp"):
        return "CAST({0} AS STRING)"
    if source.name == "time":
        return clock_times.TEXT
    if source.name == "jsonb":
        return f"{{0}}.{document.TEXT}"
    raise NotBound(f"{source} as text")


# ---- one type for several expressions


def common_type(expressions: Sequence[Expr], what: str) -> Type:
    """The type that PostgreSQL finds for the branches of a CASE, the rows of a UNION and the like."""
    known = [e.type for e in expressions if e.type.name != "unknown"]
    if not known:
        return t.TEXT
    found = known[0]
    for kind in known[1:]:
        if kind.name == found.name:
            continue
        if kind.category != found.category:
            raise DatatypeMismatch(f"{what} types {found} and {kind} cannot be matched")
        if not found.preferred and t.can_cast(found, kind, "implicit") and not t.can_cast(kind, found, "implicit"):
            found = kind
    if found.name == "numeric":
        return common_digits(expressions)
    if found.name == "varchar" and any(k.size != found.size for k in known):
        return t.VARCHAR
    return found


def common_digits(expressions: Sequence[Expr]) -> Type:
    """The numeric that holds the values of all of them: the places of the one with most of them are kept."""
    parts = [t.digits(_narrow(t.NUMERIC, e) if e.type.name != "unknown" else _literal_digits(e)) for e in expressions]
    scale = max(s for _, s in parts)
    whole = max(p - s for p, s in parts)
    return t.decimal(min(whole + scale, t.DIGITS), scale)


def _literal_digits(expr: Expr) -> Type:
    if isinstance(expr, Constant) and expr.text is not None:
        try:
            return literal(expr.text, t.NUMERIC).type
        except HeadraceError as error:
            raise StatementError(error.message, sqlstate=error.sqlstate) from None
    return t.decimal(1, 0)


def to_common(expressions: Sequence[Expr], what: str) -> tuple[Expr, ...]:
    """All of them as values of the one type that PostgreSQL finds for them."""
    target = common_type(expressions, what)
    return tuple(coerce(e, target, "implicit") for e in expressions)
