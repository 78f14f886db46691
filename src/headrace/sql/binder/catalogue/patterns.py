"""PostgreSQL's regular expressions as Java's: those that mean the same in both; all others are refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headrace.errors import StatementError
from headrace.sql.binder import types as t
from headrace.sql.binder.reading import NotBound
from headrace.sql.binder.tree import Call, Constant, Expr
from headrace.sql.formats import java_replacement

_CLASSES: Final = {
    "alpha": r"\p{Alpha}", "digit": r"\p{Digit}", "alnum": r"\p{Alnum}", "upper": r"\p{Upper}", "lower": r"\p{Lower}",
    "punct": r"\p{Punct}", "space": r"\s", "blank": r"\p{Blank}", "cntrl": r"\p{Cntrl}", "graph": r"\p{Graph}",
    "print": r"\p{Print}", "xdigit": r"\p{XDigit}", "word": r"\w",
}  # fmt: skip
_ESCAPES: Final = {
    "d": r"\d", "D": r"\D", "s": r"\s", "S": r"\S", "w": r"\w", "W": r"\W", "y": r"\b", "Y": r"\B", "A": r"\A",
    "Z": r"\z", "m": r"\b(?=\w)", "M": r"\b(?<=\w)", "n": r"\n", "t": r"\t", "r": r"\r", "f": r"\f", "v": r"\x0B",
    "a": r"\x07", "b": r"\x08", "e": r"\x1B", "B": r"\\",
}  # fmt: skip
_QUANTIFIERS: Final = frozenset("*+?")


@dataclass(frozen=True)
class Pattern:
    """A pattern in Java's spelling.

    `longest` says that a match may have another length in Java, which takes the first alternative where PostgreSQL
    takes the longest: whether there is a match is the same.
    """

    java: str
    groups: int
    longest: bool
    optional_groups: bool
    anchored: bool


def pattern_of(expr: Expr) -> Pattern:
    """A literal pattern."""
    if not isinstance(expr, Constant) or expr.text is None:
        raise NotBound("a pattern that is no literal")
    return _Reader(expr.text).pattern()


def similar_pattern(text: str) -> str:
    """A pattern of `SIMILAR TO` as a regular expression."""
    out, escaped, inside = [], False, False
    for c in text:
        if escaped:
            if c.isalnum():
                raise NotBound("this escape in SIMILAR TO")
            out.append("\\" + c)
        elif c == "\\":
            pass
        elif inside or c in "[]":
            out.append(c)
            inside = c != "]"
        else:
            out.append({"%": ".*", "_": ".", "(": "(?:"}.get(c, "\\" + c if c in ".^$" else c))
        escaped = c == "\\" and not escaped
    if escaped:
        raise NotBound("a backslash at the end of a pattern of SIMILAR TO")
    return f"^(?:{''.join(out)})$"


class _Reader:
    def __init__(self, text: str):
        self._text = text
        self._at = 0
        self._out: list[str] = []
        self._groups = 0
        self._open: list[bool] = []
        self._longest = False
        self._optional_groups = False
        self._anchored = False

    def pattern(self) -> Pattern:
        """All of it."""
        if self._text.startswith("***") or (self._text.startswith("(?") and self._text[2:3] not in (":", "=", "!")):
            raise NotBound("a regular expression with options in it")
        while self._at < len(self._text):
            self._step()
        if self._open:
            raise _invalid("parentheses () not balanced")
        return Pattern("".join(self._out), self._groups, self._longest, self._optional_groups, self._anchored)

    def _take(self) -> str:
        found = self._text[self._at]
        self._at += 1
        return found

    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _step(self) -> None:
        c = self._take()
        if c == "\\":
            self._escape()
        elif c == "[":
            self._bracket()
        elif c == "(":
            self._opened()
        elif c == ")":
            if not self._open:
                raise _invalid("parentheses () not balanced")
            self._out.append(")")
            self._quantified(self._open.pop())
        elif c == "|":
            self._longest = True
            self._out.append("|")
        elif c == "^":
            self._anchored = True
            self._out.append("^")
        elif c == "$":
            self._out.append(r"\z")
        elif c in _QUANTIFIERS or (c == "{" and self._next().isdigit()):
            raise _invalid("quantifier operand invalid")
        else:
            self._out.append("." if c == "." else _literal(c))
            self._quantified(False)

    def _escape(self) -> None:
        if not self._next():
            raise _invalid("invalid escape \\ sequence")
        c = self._take()
        if c in _ESCAPES:
            self._out.append(_ESCAPES[c])
        elif c.isalnum():
            raise NotBound(f"\\{c} in a regular expression")
        else:
            self._out.append(_literal(c))
        self._quantified(False)

    def _opened(self) -> None:
        captures = True
        if self._next() == "?":
            kind = self._text[self._at : self._at + 2]
            if kind not in ("?:", "?=", "?!"):
                raise NotBound(f"({kind} in a regular expression")
            self._at += 2
            self._out.append(f"({kind}")
            captures = False
        else:
            self._out.append("(")
            self._groups += 1
        if self._next() in _QUANTIFIERS and self._next():
            raise _invalid("quantifier operand invalid")
        self._open.append(captures)

    def _quantified(self, group: bool) -> None:
        c = self._next()
        if not c or (c not in _QUANTIFIERS and not (c == "{" and self._text[self._at + 1 : self._at + 2].isdigit())):
            return
        text = self._take()
        if c == "{":
            end = self._text.find("}", self._at)
            bounds = self._text[self._at : end] if end >= 0 else ""
            if not bounds.replace(",", "", 1).isdigit():
                raise _invalid("braces {} not balanced")
            text, self._at = f"{{{bounds}}}", end + 1
        if self._next() == "?":
            self._at += 1
            text += "?"
            self._longest = True
        elif self._next() in _QUANTIFIERS and self._next():
            raise _invalid("quantifier operand invalid")
        if group or text[0] == "?":
            self._longest = True
        self._optional_groups = self._optional_groups or group
        self._out.append(text)

    def _bracket(self) -> None:
        out = "["
        if self._next() == "^":
            out += self._take()
        first = True
        while True:
            c = self._next()
            if not c:
                raise _invalid("brackets [] not balanced")
            self._at += 1
            if c == "]" and not first:
                break
            first = False
            if c == "[" and self._next() in (":", ".", "=") and self._next():
                out += self._class()
            elif c == "\\":
                out += self._inner_escape()
            elif c == "-" and self._is_range():
                out += "-"
            else:
                out += _literal(c)
        self._out.append(out + "]")
        self._quantified(False)

    def _is_range(self) -> bool:
        """Whether the sign just read stands between two characters."""
        before = self._text[self._at - 2 : self._at - 1]
        return self._next() not in ("]", "") and before not in ("[", "^")

    def _class(self) -> str:
        end = self._text.find(":]", self._at)
        name = self._text[self._at + 1 : end] if end >= 0 else ""
        if self._next() != ":" or name not in _CLASSES:
            raise NotBound("this character class")
        self._at = end + 2
        return _CLASSES[name]

    def _inner_escape(self) -> str:
        c = self._take() if self._next() else ""
        if c in ("d", "s", "w", "n", "t", "r", "f") and c:
            return f"\\{c}"
        if not c or c.isalnum():
            raise NotBound("this escape in a character class")
        return _literal(c)


def _literal(c: str) -> str:
    return f"\\{c}" if c.isascii() and not c.isalnum() and c not in "\n\r\t_" else c


def _invalid(why: str) -> StatementError:
    return StatementError(f"invalid regular expression: {why}", sqlstate="2201B")


def _flags(expr: Expr | None, allowed: str) -> str:
    if expr is None:
        return ""
    if not isinstance(expr, Constant) or expr.text is None or set(expr.text) - set(allowed):
        raise NotBound("these flags of a regular expression")
    return expr.text


def _with_mode(java: str, flags: str) -> str:
    return ("(?is)" if "i" in flags else "(?s)") + java


def _exact(found: Pattern) -> Pattern:
    """A pattern whose matches are as long in Java."""
    if found.longest:
        raise NotBound(
            "a regular expression with alternatives or optional parts, of which PostgreSQL takes the longest,"
        )
    return found


def matches(arguments: Sequence[Expr], insensitive: bool, negative: bool) -> Expr:
    """`~` and its like."""
    pattern = Constant(t.TEXT, _with_mode(pattern_of(arguments[1]).java, "i" if insensitive else ""))
    return Call(t.BOOL, "(NOT rlike({0}, {1}))" if negative else "rlike({0}, {1})", (arguments[0], pattern))


def regexp_like(arguments: Sequence[Expr]) -> Expr:
    """`regexp_like(text, pattern [, flags])`."""
    flags = _flags(arguments[2] if len(arguments) > 2 else None, "i")
    return matches(arguments, "i" in flags, False)


def regexp_count(arguments: Sequence[Expr]) -> Expr:
    """`regexp_count(text, pattern)`."""
    found = _exact(pattern_of(arguments[1]))
    return Call(t.INT4, "regexp_count({0}, {1})", (arguments[0], Constant(t.TEXT, _with_mode(found.java, ""))))


def substring_of(arguments: Sequence[Expr]) -> Expr:
    """`substring(text FROM pattern)`: what its first group matches, or all that it matches."""
    found = _exact(pattern_of(arguments[1]))
    if found.optional_groups:
        raise NotBound("a group that may be left out")
    pattern = Constant(t.TEXT, _with_mode(found.java, ""))
    form = f"CASE WHEN rlike({{0}}, {{1}}) THEN regexp_extract({{0}}, {{1}}, {min(found.groups, 1)}) END"
    return Call(t.TEXT, form, (arguments[0], pattern))


def regexp_match(arguments: Sequence[Expr]) -> Expr:
    """`regexp_match(text, pattern [, flags])`: what the groups match, or all that it matches."""
    found = _exact(pattern_of(arguments[1]))
    if found.optional_groups:
        raise NotBound("a group that may be left out")
    pattern = Constant(t.TEXT, _with_mode(found.java, _flags(arguments[2] if len(arguments) > 2 else None, "i")))
    places = range(1, found.groups + 1) if found.groups else (0,)
    parts = ", ".join(f"regexp_extract({{0}}, {{1}}, {i})" for i in places)
    return Call(t.array_of(t.TEXT), f"CASE WHEN rlike({{0}}, {{1}}) THEN array({parts}) END", (arguments[0], pattern))


def regexp_replace(arguments: Sequence[Expr]) -> Expr:
    """`regexp_replace(text, pattern, replacement [, flags])`, and with a start and a number before the flags."""
    source, replacement = arguments[0], arguments[2]
    rest = list(arguments[3:])
    start = rest.pop(0) if rest and rest[0].type.name == "int4" else None
    number = rest.pop(0) if rest and rest[0].type.name == "int4" else None
    flags = _flags(rest[0] if rest else None, "gi" if number is None else "i")
    if not isinstance(replacement, Constant) or replacement.text is None:
        raise NotBound("regexp_replace with a replacement that is no literal")
    found = _exact(pattern_of(arguments[1]))
    everywhere = "g" in flags
    if number is not None:
        if not isinstance(number, Constant) or number.text not in ("0", "1"):
            raise NotBound("regexp_replace of this match")
        everywhere = number.text == "0"
    if everywhere:
        parts = (Constant(t.TEXT, _with_mode(found.java, flags)), Constant(t.TEXT, java_replacement(replacement.text)))
    else:
        new = "$1" + java_replacement(replacement.text, 2) + f"${found.groups + 3}"
        parts = (Constant(t.TEXT, _with_mode(f"^(.*?)({found.java})(.*)\\z", flags)), Constant(t.TEXT, new))
        if found.anchored:
            parts = (Constant(t.TEXT, _with_mode(f"^()({found.java})(.*)\\z", flags)), parts[1])
    if start is None:
        return Call(t.TEXT, "regexp_replace({0}, {1}, {2})", (source, *parts))
    if not isinstance(start, Constant) or start.text is None or int(start.text) < 1 or found.anchored:
        raise NotBound("regexp_replace from this start")
    form = f"concat(left({{0}}, {int(start.text) - 1}), regexp_replace(substring({{0}}, {start.text}), {{1}}, {{2}}))"
    return Call(t.TEXT, form, (source, *parts))
