"""`LIKE` and `ILIKE`: a pattern's escape character stands for whatever comes behind it, for Spark before a few characters only."""

from __future__ import annotations

import re
from typing import Final

from headrace.errors import StatementError
from headrace.sql.binder import types as t
from headrace.sql.binder.bound_tree import Call, Constant, Expr, Parameter
from headrace.sql.binder.catalogue.entries import Make

_PLAIN: Final = r"\G((?:[^{e}]|{e}[%_{e}])*+){e}([^%_{e}])"
"""What comes up to an escape character that stands before an ordinary one, and that one: `{e}` is the escape character."""


def operator(symbol: str, escape: str = "\\") -> Make:
    """`~~` and its like: `LIKE`, which `!` negates, and which ignores upper and lower case with `*`."""
    sides = ("lower({0})", "lower({1})") if "*" in symbol else ("{0}", "{1}")
    clause = f" ESCAPE {_spelled(escape.lower() if '*' in symbol else escape)}"
    form = f"({sides[0]} LIKE {sides[1]}{'' if escape == chr(92) else clause})"
    if symbol.startswith("!"):
        form = f"(NOT {form})"
    return lambda arguments: Call(t.BOOL, form, (arguments[0], _pattern(arguments[1], escape)))


def _pattern(pattern: Expr, escape: str) -> Expr:
    """The pattern without escape characters before what would stand for itself all the same."""
    mark = re.escape(escape)
    if isinstance(pattern, Parameter):
        return pattern  # it stays a literal for Spark, which refuses such a one
    if not isinstance(pattern, Constant):
        java = _spelled(_PLAIN.replace("{e}", mark))
        return Call(t.TEXT, f"regexp_replace({{0}}, {java.replace('{', '{{')}, '$1$2')", (pattern,))
    if pattern.text is None:
        return pattern
    pairs = re.compile(f"{mark}(.?)", re.DOTALL)
    if any(not pair[1] for pair in pairs.finditer(pattern.text)):
        raise StatementError("LIKE pattern must not end with escape character", sqlstate="22025")
    text = pairs.sub(lambda pair: pair[0] if pair[1] in ("%", "_", escape) else pair[1], pattern.text)
    return Constant(pattern.type, text)


def _spelled(text: str) -> str:
    """A string literal of Spark's."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
