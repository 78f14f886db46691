"""Functions of regular expressions: the patterns are Java's that mean the same; all others are refused."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.common import regular
from headrace.common.regular import Form, Pattern, Unlike
from headrace.sql.binder import types as t
from headrace.sql.binder.bound_tree import Call, Constant, Expr
from headrace.sql.binder.own import kernel
from headrace.sql.binder.parse_tree import NotBound


def _text(text: str) -> Expr:
    return Constant(t.TEXT, text)


def _java(text: Expr, pattern: Expr, flags: str, form: Form) -> tuple[Expr, Expr]:
    """A text and a pattern for Java: a literal is translated here, what is known with each row only by a kernel."""
    if not isinstance(pattern, Constant):
        return text, kernel(t.TEXT, "pattern", (pattern, _text(flags), _text(form), _length(text)))
    if pattern.text is None:
        return text, pattern
    try:
        java = regular.java_pattern(pattern.text, flags, form)
    except Unlike as unknown:
        raise NotBound(unknown.what) from None
    return _short(text, regular.pattern(pattern.text)), _text(java)


def _length(text: Expr) -> Expr:
    return Call(t.INT4, "char_length({0})", (text,))


def _short(text: Expr, pattern: Pattern) -> Expr:
    """The text; an error if Java's stack might not do for it."""
    if pattern.most_characters is None:
        return text
    raised = f"CAST(raise_error('headrace.errors.DataError: [54001] {regular.TOO_LONG}') AS STRING)"
    checked = f"CASE WHEN char_length(`__t`) > {pattern.most_characters} THEN {raised} ELSE `__t` END"
    return Call(t.TEXT, f"transform(array({{0}}), `__t` -> {checked})[0]", (text,))


def _literal(pattern: Expr) -> Pattern:
    if not isinstance(pattern, Constant) or pattern.text is None:
        raise NotBound("a pattern that is no literal")
    try:
        return regular.pattern(pattern.text)
    except Unlike as unknown:
        raise NotBound(unknown.what) from None


def _flags(expr: Expr | None, allowed: str) -> str:
    if expr is None:
        return ""
    if not isinstance(expr, Constant) or expr.text is None or set(expr.text) - set(allowed):
        raise NotBound("these flags of a regular expression")
    return expr.text


def matches(arguments: Sequence[Expr], insensitive: bool, negative: bool) -> Expr:
    """`~` and its like."""
    return _found(*_java(arguments[0], arguments[1], "i" if insensitive else "", "any"), negative)


def _found(text: Expr, pattern: Expr, negative: bool) -> Expr:
    return Call(t.BOOL, "(NOT rlike({0}, {1}))" if negative else "rlike({0}, {1})", (text, pattern))


def similar(text: Expr, pattern: Expr, negative: bool) -> Expr:
    """`SIMILAR TO`."""
    if not isinstance(pattern, Constant):
        return _found(text, kernel(t.TEXT, "similar", (pattern, _length(text))), negative)
    if pattern.text is None:
        return _found(text, pattern, negative)
    try:
        found = Constant(t.TEXT, regular.similar_pattern(pattern.text))
    except Unlike as unknown:
        raise NotBound(unknown.what) from None
    return _found(*_java(text, found, "", "any"), negative)


def regexp_like(arguments: Sequence[Expr]) -> Expr:
    """`regexp_like(text, pattern [, flags])`."""
    flags = _flags(arguments[2] if len(arguments) > 2 else None, "i")
    return matches(arguments, "i" in flags, False)


def regexp_count(arguments: Sequence[Expr]) -> Expr:
    """`regexp_count(text, pattern)`."""
    return Call(t.INT4, "regexp_count({0}, {1})", _java(arguments[0], arguments[1], "", "exact"))


def substring_of(arguments: Sequence[Expr]) -> Expr:
    """`substring(text FROM pattern)`: what its first group matches, or all that it matches."""
    form = "CASE WHEN rlike({0}, {1}) THEN regexp_extract({0}, {1}, 1) END"
    return Call(t.TEXT, form, _java(arguments[0], arguments[1], "", "captured"))


def regexp_match(arguments: Sequence[Expr]) -> Expr:
    """`regexp_match(text, pattern [, flags])`: what the groups match, or all that it matches."""
    groups = max(_literal(arguments[1]).groups, 1)
    flags = _flags(arguments[2] if len(arguments) > 2 else None, "i")
    parts = ", ".join(f"regexp_extract({{0}}, {{1}}, {i})" for i in range(1, groups + 1))
    form = f"CASE WHEN rlike({{0}}, {{1}}) THEN array({parts}) END"
    return Call(t.array_of(t.TEXT), form, _java(arguments[0], arguments[1], flags, "captured"))


def regexp_replace(arguments: Sequence[Expr]) -> Expr:
    """`regexp_replace(text, pattern, replacement [, flags])`, and with a start and a number before the flags."""
    source, pattern, replacement = arguments[:3]
    rest = list(arguments[3:])
    start = rest.pop(0) if rest and rest[0].type.name == "int4" else None
    number = rest.pop(0) if rest and rest[0].type.name == "int4" else None
    flags = _flags(rest[0] if rest else None, "gi" if number is None else "i")
    everywhere = "g" in flags
    if number is not None:
        if not isinstance(number, Constant) or number.text not in ("0", "1"):
            raise NotBound("regexp_replace of this match")
        everywhere = number.text == "0"
    form: Form = "everywhere" if everywhere else "first"
    parts = (*_java(source, pattern, flags, form), _replacement(replacement, pattern, form))
    if start is None:
        return Call(t.TEXT, "regexp_replace({0}, {1}, {2})", parts)
    if not isinstance(start, Constant) or start.text is None or int(start.text) < 1 or _literal(pattern).anchored:
        raise NotBound("regexp_replace from this start")
    spark = f"concat(left({{0}}, {int(start.text) - 1}), regexp_replace(substring({{0}}, {start.text}), {{1}}, {{2}}))"
    return Call(t.TEXT, spark, parts)


def _replacement(replacement: Expr, pattern: Expr, form: Form) -> Expr:
    """What stands for the matches, as Java has it."""
    if not isinstance(replacement, Constant) or not isinstance(pattern, Constant):
        return kernel(t.TEXT, "replacement", (replacement, pattern, _text(form)))
    if replacement.text is None or pattern.text is None:
        return Constant(t.TEXT, None)
    return _text(regular.replacement_for(replacement.text, pattern.text, form))
