"""Cuts typed or piped text into statements."""

from __future__ import annotations

import re

_TOKEN = re.compile(
    r"""(?P<space>\s+)
      | (?P<line>--[^\n]*)
      | (?P<block>/\*)
      | (?P<escape>[eE]'(?:[^'\\]|\\.|'')*'?)
      | (?P<text>'(?:[^']|'')*'?)
      | (?P<name>"(?:[^"]|"")*"?)
      | (?P<dollar>\$(?:[A-Za-z_]\w*)?\$)
      | (?P<end>;)
      | (?P<word>[A-Za-z_0-9$]+)
      | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_COMMENT = re.compile(r"/\*|\*/")


def split_statements(text: str) -> tuple[list[str], str]:
    """The complete statements in `text`, without their semicolons, and what is left after the last one.

    Statements of white space and comments only are left out, and so is such a rest.
    """
    statements: list[str] = []
    at = start = 0
    blank = True
    while at < len(text):
        match = _TOKEN.match(text, at)
        assert match is not None
        at = match.end()
        if match["space"] or match["line"]:
            continue
        if match["block"]:
            at = _comment_end(text, at)
            continue
        if match["end"]:
            if not blank:
                statements.append(text[start : at - 1].strip())
            start, blank = at, True
            continue
        blank = False
        if match["dollar"]:
            close = text.find(match["dollar"], at)
            at = len(text) if close < 0 else close + len(match["dollar"])
    return statements, "" if blank else text[start:].lstrip()


def _comment_end(text: str, at: int) -> int:
    """Where a block comment ends that began before `at`; comments nest."""
    depth = 1
    while depth:
        match = _COMMENT.search(text, at)
        if match is None:
            return len(text)
        depth += 1 if match[0] == "/*" else -1
        at = match.end()
    return at
