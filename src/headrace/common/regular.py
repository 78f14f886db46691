"""PostgreSQL's regular expressions as Java's: those that mean the same in both.

Classes of characters are those of Unicode, as PostgreSQL has them with a UTF-8 locale of the C library.
"""

from __future__ import annotations

import re
from functools import lru_cache
from math import inf
from typing import Final, Literal

from headrace.common.ambiguity import ALL, OTHERS, PatternShape, between, characters, folded
from headrace.common.lazy_dataclass import dataclass
from headrace.errors import NotSupported, StatementError

Form = Literal["any", "exact", "captured", "everywhere", "first"]
"""What a pattern is for: whether there is a match; matches as they are; what the first group, or all of it, matches;
the replacement of all matches, or of the first one."""
_LETTERS: Final = r"\p{IsAlphabetic}\p{Nd}"
_SPACES: Final = r" \t\n\x0B\f\r\u1680\u2000-\u2006\u2008-\u200a\u2028\u2029\u205f\u3000"
_NONE: Final = r"\p{Cc}\p{Cn}\p{Cs}"
_CLASSES: Final = {
    "alpha": r"\p{IsAlphabetic}[\p{Nd}&&[^0-9]]", "digit": "0-9", "alnum": _LETTERS, "upper": r"\p{IsUppercase}\p{Lt}",
    "lower": r"\p{IsLowercase}\u01c5\u01c8\u01cb\u01f2", "space": _SPACES,
    "punct": rf"\p{{Punct}}[^{_LETTERS}{_NONE}\p{{ASCII}}{_SPACES}]",
    "blank": r" \t", "cntrl": r"\p{Cc}", "graph": f"[^{_NONE}{_SPACES}]",
    "print": rf"[^{_NONE}\u2028\u2029]", "xdigit": "0-9A-Fa-f", "word": f"{_LETTERS}_",
}  # fmt: skip
"""Classes, as they stand between brackets."""
_ESCAPES: Final = {
    "d": "[0-9]", "D": "[^0-9]", "s": f"[{_SPACES}]", "S": f"[^{_SPACES}]", "w": f"[{_LETTERS}_]",
    "W": f"[^{_LETTERS}_]", "A": r"\A", "Z": r"\z", "n": r"\n", "t": r"\t", "r": r"\r", "f": r"\f", "v": r"\x0B",
    "a": r"\x07", "b": r"\x08", "e": r"\x1B", "B": r"\\",
}  # fmt: skip
_BEFORE, _AFTER = f"(?<=[{_LETTERS}_])", f"(?=[{_LETTERS}_])"
_NOT_BEFORE, _NOT_AFTER = f"(?<![{_LETTERS}_])", f"(?![{_LETTERS}_])"
_PLACES: Final = {
    "m": _NOT_BEFORE + _AFTER, "M": _BEFORE + _NOT_AFTER,
    "y": f"(?:{_NOT_BEFORE}{_AFTER}|{_BEFORE}{_NOT_AFTER})", "Y": f"(?:{_NOT_BEFORE}{_NOT_AFTER}|{_BEFORE}{_AFTER})",
}  # fmt: skip
"""Escapes for the beginning and the end of words."""
_ASCII: Final = {
    "alpha": "[A-Za-z]", "digit": "[0-9]", "alnum": "[A-Za-z0-9]", "upper": "[A-Z]", "lower": "[a-z]",
    "punct": r"[!-/:-@\[-`{-~]", "space": r"[ \t-\r]", "blank": r"[ \t]", "cntrl": r"[\x00-\x1f\x7f]", "graph": "[!-~]",
    "print": "[ -~]", "xdigit": "[0-9A-Fa-f]", "word": r"[A-Za-z0-9_]",
}  # fmt: skip
_SETS: Final = {
    name: characters(filter(re.compile(text).match, map(chr, range(128))))
    | (0 if name in ("digit", "xdigit", "blank") else OTHERS)
    for name, text in _ASCII.items()
}
"""Which characters are of a class."""
_SHORT: Final = {"d": "digit", "s": "space", "w": "word"}
_QUANTIFIERS: Final = frozenset("*+?")
_MOST_TIMES: Final = 255
"""What the bounds of a quantifier may be at most."""
STACK_MIB: Final = 16
"""The stack that Java's threads are given: a loop over what varies in length keeps frames on it for each turn."""
_CHARACTERS: Final = 12_000
"""How long a text may be for such a loop, divided by how deep brackets are nested; a turn takes up to 1 kB a level."""
_FEW_TURNS: Final = 1000
"""So many turns need no such bound."""
_LONGEST, _DEEPEST = 10_000, 50
"""How long a pattern may be, and how deep its brackets: Java's frames grow with both."""


TOO_LONG: Final = "the text is too long for a regular expression with a loop over parts of several lengths"


class Unlike(NotSupported):
    """A pattern that no pattern of Java's is sure to mean."""

    def __init__(self, what: str):
        super().__init__(f"{what} is not supported")
        self.what = what


@dataclass(frozen=True)
class Pattern:
    """A pattern in Java's spelling.

    `longest` says that a match may have another length in Java, which takes the first one where PostgreSQL takes the
    longest: whether there is a match is the same. `optional_groups` says that a group may have no part in a match.
    `most_characters` is how long a text may be that Java is to find it in; None where its stack does not grow with it.
    """

    java: str
    groups: int
    longest: bool
    optional_groups: bool
    anchored: bool
    most_characters: int | None = None


@lru_cache(maxsize=1000)
def pattern(text: str) -> Pattern:
    """A pattern as Java has it. Raises `Unlike`, and `StatementError` for what is no pattern."""
    return _Reader(text).pattern()


def java_pattern(text: str, flags: str, form: Form, length: int | None = None) -> str:
    """The text of a pattern for Java, with the flag `i` for either case.

    `length` is how many characters the text has that it is for. Raises `StatementError` if it is too long.
    """
    found = pattern(text)
    if length is not None and found.most_characters is not None and length > found.most_characters:
        raise StatementError(TOO_LONG, sqlstate="54001")
    if form != "any" and found.longest:
        raise Unlike("a regular expression that matches in several ways, of which PostgreSQL takes the longest,")
    if form == "captured" and found.optional_groups:
        raise Unlike("a group that may be left out")
    mode = "(?isu)" if "i" in flags else "(?s)"
    if form == "first":
        return f"{mode}^(.*?)({found.java})(.*)\\z"
    return f"{mode}({found.java})" if form == "captured" and not found.groups else mode + found.java


def java_replacement(text: str, groups: int, shift: int = 0) -> str:
    """A replacement in Java's spelling for a pattern with so many groups, whose numbers are moved by `shift`."""

    def step(match: re.Match[str]) -> str:
        if match[1] == "0":
            return "\\\\0"
        if match[1]:
            return f"${int(match[1]) + shift}" if int(match[1]) <= groups else ""
        if match["digit"]:
            return f"\\{match['digit']}"  # or it would be one of the number of a group before it
        if match[0] == "\\&":
            return f"${shift}" if shift else "$0"
        return "\\$" if match[0] == "$" else "\\\\"

    return re.sub(r"\\([0-9])|(?P<digit>[0-9])|\\&|\\\\|\$|\\", step, text)


def replacement_for(text: str, pattern_text: str, form: Form) -> str:
    """What Java puts in the place of what `java_pattern` matches for this form."""
    groups = pattern(pattern_text).groups
    if form == "everywhere":
        return java_replacement(text, groups)
    return "$1" + java_replacement(text, groups, 2) + f"${groups + 3}"


def similar(text: str, length: int | None = None) -> str:
    """A pattern of `SIMILAR TO` for Java; `length` as for `java_pattern`."""
    return java_pattern(similar_pattern(text), "", "any", length)


def similar_pattern(text: str) -> str:
    """A pattern of `SIMILAR TO` as a regular expression."""
    out, escaped, inside = [], False, False
    for c in text:
        if escaped:
            if c.isalnum():
                raise Unlike("this escape in SIMILAR TO")
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
        raise Unlike("a backslash at the end of a pattern of SIMILAR TO")
    return f"^(?:{''.join(out)})$"


@dataclass
class _Bracket:
    """A bracket: what stands behind it, and how many groups there are before it.

    `varies` says that what it matches may have several lengths; `turns` is how often loops in it may turn for which
    Java keeps frames.
    """

    kind: str
    groups_before: int
    alternatives: bool = False
    varies: bool = False
    turns: float = 0


class _Reader:
    def __init__(self, text: str):
        self._text = text
        self._at = 0
        self._out: list[str] = []
        self._groups = 0
        self._open: list[_Bracket] = []
        self._whole = _Bracket("", 0)
        self._shape = PatternShape()
        self._choices = False
        """Whether there are alternatives, or parts that may be left out."""
        self._lazy = False
        self._optional_groups = False
        self._anchored = False
        self._looks = False
        """Whether what is matched may depend on what is around it, but for the ends of the text."""
        self._loops: list[int] = []
        """Where the quantifiers of loops stand for which Java keeps frames."""
        self._depth = 1

    def pattern(self) -> Pattern:
        """All of it."""
        if self._text.startswith("***") or (self._text.startswith("(?") and self._text[2:3] not in (":", "=", "!")):
            raise Unlike("a regular expression with options in it")
        if len(self._text) > _LONGEST:
            raise Unlike(f"a regular expression of more than {_LONGEST} characters")
        while self._at < len(self._text):
            self._step()
        if self._open:
            raise _invalid("parentheses () not balanced")
        self._leave(self._whole)
        ambiguous = self._shape.is_ambiguous()
        longest = self._lazy or (self._choices and ambiguous)
        most = int(_CHARACTERS / self._depth) if self._whole.turns > _FEW_TURNS else None
        if not (self._lazy or self._looks or ambiguous or self._shape.entwined):
            # What a loop has taken is never given back: Java need not remember its turns.
            for place in self._loops:
                self._out[place] += "+"
            most = None
        return Pattern("".join(self._out), self._groups, longest, self._optional_groups, self._anchored, most)

    @property
    def _around(self) -> _Bracket:
        return self._open[-1] if self._open else self._whole

    def _leave(self, bracket: _Bracket) -> None:
        """Groups in one of several alternatives may have no part in a match."""
        if bracket.alternatives and self._groups > bracket.groups_before:
            self._optional_groups = True

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
            bracket = self._open.pop()
            self._leave(bracket)
            self._shape.closed(bracket.kind in ("", "?:"))
            self._quantified(bracket)
            self._around.varies |= bracket.varies
            self._around.turns += bracket.turns
        elif c == "|":
            self._around.alternatives = self._around.varies = self._choices = True
            self._shape.alternative()
            self._out.append("|")
        elif c == "^":
            self._anchored = True
            self._looks = self._looks or not self._shape.is_empty()
            self._out.append("^")
        elif c == "$":
            self._out.append(r"\z")
        elif c in _QUANTIFIERS or (c == "{" and _is_digits(self._next())):
            raise _invalid("quantifier operand invalid")
        else:
            self._atom("." if c == "." else _literal(c), ALL if c == "." else folded(characters(c)))

    def _atom(self, java: str, matched: int) -> None:
        """Something that matches one character."""
        self._out.append(java)
        self._shape.atom(matched)
        self._quantified()

    def _escape(self) -> None:
        if not self._next():
            raise _invalid("invalid escape \\ sequence")
        c = self._take()
        if c in _PLACES:
            self._looks = True
            self._out.append(_PLACES[c])
            return
        if c.lower() in _SHORT:
            inside = _SETS[_SHORT[c.lower()]]
            self._atom(_ESCAPES[c], inside if c.islower() else ALL & ~inside | OTHERS)
        elif c in "AZ":
            self._looks = self._looks or (c == "A" and not self._shape.is_empty())
            self._out.append(_ESCAPES[c])
        elif c in _ESCAPES:
            self._atom(_ESCAPES[c], ALL)
        elif c.isalnum():
            raise Unlike(f"\\{c} in a regular expression")
        else:
            self._atom(_literal(c), folded(characters(c)))

    def _opened(self) -> None:
        kind = ""
        if self._next() == "?":
            kind = self._text[self._at : self._at + 2]
            if kind not in ("?:", "?=", "?!"):
                raise Unlike(f"({kind} in a regular expression")
            self._at += 2
        self._looks = self._looks or kind in ("?=", "?!")
        # What only looks at what comes captures nothing.
        looks = any(bracket.kind in ("?=", "?!") for bracket in self._open)
        kind = kind or ("?:" if looks else "")
        self._out.append(f"({kind}")
        self._shape.opened()
        self._groups += not kind
        self._open.append(_Bracket(kind, self._groups))
        self._depth = max(self._depth, len(self._open) + 1)
        if self._depth > _DEEPEST:
            raise Unlike(f"a regular expression with brackets nested deeper than {_DEEPEST}")
        if self._next() in _QUANTIFIERS and self._next():
            raise _invalid("quantifier operand invalid")

    def _quantified(self, bracket: _Bracket | None = None) -> None:
        c = self._next()
        if not c or (c not in _QUANTIFIERS and not (c == "{" and _is_digits(self._text[self._at + 1 : self._at + 2]))):
            return
        text = self._take()
        if c == "{":
            end = self._text.find("}", self._at)
            bounds = self._text[self._at : end] if end >= 0 else ""
            if not _is_digits(bounds.replace(",", "", 1)):
                raise _invalid("braces {} not balanced")
            if any(int(bound) > _MOST_TIMES for bound in bounds.split(",") if bound):
                raise _invalid("invalid repetition count(s)")
            text, self._at = f"{{{bounds}}}", end + 1
        if self._next() == "?":
            self._at += 1
            text += "?"
            self._lazy = True
        elif self._next() in _QUANTIFIERS and self._next():
            raise _invalid("quantifier operand invalid")
        self._choices = self._choices or bracket is not None or text[0] == "?"
        least, most = _bounds(text)
        if most is not None and most < least:
            raise _invalid("invalid repetition count(s)")
        self._shape.repeated(least, most)
        if bracket is not None and (bracket.kind == "" or self._groups > bracket.groups_before):
            self._optional_groups = True
        self._out.append(text)
        self._turns(bracket, least, most)

    def _turns(self, bracket: _Bracket | None, least: int, most: int | None) -> None:
        """Notes what Java does for a quantifier: only of what is always as long it does not keep every turn."""
        repeated = most is None or most > 1
        if bracket is not None and bracket.varies and repeated:
            self._loops.append(len(self._out) - 1)
            bracket.turns = max(bracket.turns, 1) * (inf if most is None else most)
        if least != most:
            (bracket or self._around).varies = True

    def _bracket(self) -> None:
        out, matched, first, before, ranged = "[", 0, True, "", False
        negated = self._next() == "^"
        if negated:
            out += self._take()
        while True:
            c = self._next()
            if not c:
                raise _invalid("brackets [] not balanced")
            self._at += 1
            if c == "]" and not first:
                break
            if c == "-" and not (first or before) and self._next() != "]":
                raise _invalid("invalid character range")
            first = False
            if c == "-" and before and self._next() not in ("]", ""):
                out, ranged = out + "-", True
                continue
            text, found, c = self._item(c)
            if ranged and (not c or c < before):
                raise _invalid("invalid character range")
            if ranged:
                found = between(before, c)
            out, matched, before, ranged = out + text, matched | found, c, False
        self._atom(out + "]", ALL & ~matched | OTHERS if negated else folded(matched))

    def _item(self, c: str) -> tuple[str, int, str]:
        """What stands in brackets: its text, the characters that it matches, and the character if it is one."""
        if c == "[" and self._next() in (":", ".", "=") and self._next():
            name = self._class()
            return _CLASSES[name], _SETS[name], ""
        if c != "\\":
            return _literal(c), characters(c), c
        c = self._take() if self._next() else ""
        if c in _SHORT:
            return _CLASSES[_SHORT[c]], _SETS[_SHORT[c]], ""
        if c in ("n", "t", "r", "f") and c:
            return f"\\{c}", characters({"n": "\n", "t": "\t", "r": "\r", "f": "\f"}[c]), ""
        if not c or c.isalnum():
            raise Unlike("this escape in a character class")
        return _literal(c), characters(c), c

    def _class(self) -> str:
        end = self._text.find(":]", self._at)
        name = self._text[self._at + 1 : end] if end >= 0 else ""
        if self._next() != ":" or name not in _CLASSES:
            raise Unlike("this character class")
        self._at = end + 2
        return name


def _is_digits(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _bounds(quantifier: str) -> tuple[int, int | None]:
    """How many times at least and at most; None for any number."""
    known = {"*": (0, None), "+": (1, None), "?": (0, 1)}
    if quantifier[0] in known:
        return known[quantifier[0]]
    least, comma, most = quantifier[1 : quantifier.index("}")].partition(",")
    return int(least), (int(most) if most else None) if comma else int(least)


def _literal(c: str) -> str:
    return f"\\{c}" if c.isascii() and not c.isalnum() and c not in "\n\r\t_" else c


def _invalid(why: str) -> StatementError:
    return StatementError(f"invalid regular expression: {why}", sqlstate="2201B")
