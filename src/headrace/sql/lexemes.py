"""Where strings, comments, quoted names and parameters lie in a text, as PostgreSQL's lexer sees it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_LEXEME: Final = re.compile(
    r"""
      (?P<line>--[^\n]*)
    | (?P<comment>/\*)
    | (?P<escaped>[eE]'(?:[^'\\]|\\.|'')*')
    | (?P<string>'(?:[^']|'')*')
    | (?P<name>"(?:[^"]|"")*")
    | (?P<dollar>(?P<tag>\$(?:[^\W\d]\w*)?\$).*?(?P=tag))
    | (?P<parameter>\$\d+)
    | (?P<word>[^\W\d][\w$]*)
    """,
    re.DOTALL | re.VERBOSE,
)
_COMMENT_ENDS: Final = re.compile(r"/\*|\*/")
_DOLLAR: Final = re.compile(r"\$(?:[^\W\d]\w*)?\$")
_OPENINGS: Final = {"'": "quoted string", '"': "quoted identifier"}


def parameters(sql: str) -> list[int]:
    """The 0-based offsets of every `$` that begins a parameter."""
    return [at for kind, at, _ in _lexemes(sql) if kind == "parameter"]


def unterminated(sql: str) -> tuple[str, int]:
    """What is left open at the end of `sql`, and the 0-based offset where it starts."""
    for kind, at, _ in _lexemes(sql):
        if kind in ("/* comment", "dollar-quoted string", *_OPENINGS.values()):
            return kind, at
    return "input", len(sql)


def _lexemes(sql: str) -> Iterator[tuple[str, int, int]]:
    """Kind, start and end of each lexeme that could hold a `$`; what is never closed has its own kind, and is last."""
    at = 0
    while at < len(sql):
        found = _LEXEME.match(sql, at)
        if found is None:
            kind = _open(sql, at)
            if kind is not None:
                yield kind, at, len(sql)
                return
            at += 1
            continue
        kind, end = str(found.lastgroup), found.end()
        if kind == "comment":
            closed = _comment_end(sql, end)
            if closed is None:
                yield "/* comment", at, len(sql)
                return
            end = closed
        yield kind, at, end
        at = end


def _open(sql: str, at: int) -> str | None:
    """What begins at `at` and is never closed."""
    if sql[at] in _OPENINGS:
        return _OPENINGS[sql[at]]
    return "dollar-quoted string" if _DOLLAR.match(sql, at) else None


def _comment_end(sql: str, at: int) -> int | None:
    """Where the comment ends whose text begins at `at`; comments nest."""
    depth = 1
    for found in _COMMENT_ENDS.finditer(sql, at):
        depth += 1 if found[0] == "/*" else -1
        if depth == 0:
            return found.end()
    return None
