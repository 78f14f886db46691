"""PostgreSQL's own parser, and what headrace's language adds to it cut out.

Each query and each INSERT, UPDATE or DELETE passes PostgreSQL's grammar before anything else sees it, so what that
refuses is refused here, in its words and with its position. What the language adds is found by its scanner, which knows
strings, comments and dollar quotes, and is blanked out or replaced by something of the same length: positions stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import field
from functools import lru_cache
from importlib import import_module
from typing import Final

from google.protobuf.message import DecodeError
from postgast import PgQueryError, parse, scan
from postgast import pg_query_pb2 as pb

from headrace.common.lazy_dataclass import dataclass
from headrace.errors import NotSupported, SyntaxFault

_OPENS: Final = frozenset(("(", "["))
_CLOSES: Final = frozenset((")", "]"))
_KINDS: Final = {number: name for name, number in pb.Token.items()}
_SIGNS: Final = frozenset(("+", "-", "*", "/", "::"))
_UNITS: Final = frozenset(("year", "month", "week", "day", "hour", "minute", "second", "millisecond", "microsecond"))
_MARKS: Final = frozenset(("system_time", "except", "semi", "anti", "struct", "map"))
"""Words without one of which a text has no additions."""
_DEEP: Final = 400
"""Brackets inside of each other up to which a text is parsed: the parser's stack is not endless."""
with suppress(ImportError, AttributeError):  # else an expression of 50 operators is too deep for a message
    import_module("google._upb._message").SetAllowOversizeProtos(True)

_LEVELS: Final = 2_000
"""Levels that a text's tree may have at most. C code goes through them by recursion, and a stack that overflows there
ends the process."""
_FLAT: Final = frozenset(("IDENT", "SCONST", "ICONST", "FCONST", "PARAM", "ASCII_44", "ASCII_46", "AS"))
"""Words that make a tree wider, and no deeper."""
_SETS: Final = frozenset(("union", "intersect", "except"))
_KEPT_BYTES: Final = 65_536
"""Larger statements are parsed each time."""


@dataclass(frozen=True)
class Word:
    """A token: where it stands, in bytes, and its text in lower case."""

    start: int
    end: int
    text: str
    kind: str


@dataclass(frozen=True)
class ParsedStatement:
    """A statement's tree by PostgreSQL's parser, and what was cut out before."""

    tree: pb.Node
    """A message of libpg_query: the statement's node."""
    source: bytes
    refused: tuple[tuple[str, int], ...] = ()
    """What was cut out that nobody knows, and where it stands, in bytes."""
    lookups: frozenset[int] = frozenset()
    """Where the relations stand, in bytes, that are read `FOR SYSTEM_TIME AS OF PROCTIME()`."""
    left_out: tuple[tuple[int, tuple[str, ...]], ...] = ()
    """Where a star stands, with its qualifier, and the names of `EXCEPT (...)` behind it."""
    side_joins: tuple[tuple[int, str], ...] = ()
    """Where the relations stand that are joined by `LEFT SEMI JOIN` or `LEFT ANTI JOIN`, and which of the two."""

    def position(self, location: int) -> int:
        """The 1-based position of a character, from its place in bytes."""
        return len(self.source[:location].decode("utf-8", "replace")) + 1


def parse_statement(text: str) -> ParsedStatement:
    """The tree of one statement. Raises `SyntaxFault`, and `NotSupported` for one that is nested too deeply."""
    return _kept(text) if len(text) <= _KEPT_BYTES else _parse(text)


def _parse(text: str) -> ParsedStatement:
    source = text.encode()
    try:
        words = words_of(source)
        if _depth(words) > _LEVELS:
            raise _too_deep()
        cut, added = _without_additions(source, words)
        found = parse(cut.decode())
    except PgQueryError as error:
        raise _fault(error) from None
    except DecodeError:
        raise _too_deep() from None
    if len(found.stmts) != 1:
        raise SyntaxFault("cannot insert multiple commands into a prepared statement", position=1)
    return ParsedStatement(
        found.stmts[0].stmt, source, tuple(added.refused), frozenset(added.lookups), tuple(added.left_out),
        tuple(added.side_joins),
    )  # fmt: skip


_kept = lru_cache(maxsize=64)(_parse)


def _too_deep() -> NotSupported:
    return NotSupported("the query is nested too deeply", hint="Split it with WITH or views.")


def _depth(words: Sequence[Word]) -> int:
    """As many levels as the tree of a text can have: what stands between two commas is a chain at worst."""
    levels = [[0, 0, 0]]  # of each open bracket: the chain since the last comma, the deepest one, the queries united
    for word in words:
        level = levels[-1]
        if word.text in _OPENS:
            levels.append([0, 0, 0])
        elif word.text in _CLOSES and len(levels) > 1:
            chain, deepest, united = levels.pop()
            levels[-1][0] += max(chain, deepest) + united + 1
        elif word.text == ",":
            level[:2] = 0, max(level[:2])
        elif word.text in _SETS:
            level[2] += 1
        elif word.kind not in _FLAT:
            level[0] += 1
    return sum(max(chain, deepest) + united for chain, deepest, united in levels)


def check_grammar(text: str, offset: int) -> None:
    """Raises `SyntaxFault` for a text that begins at an offset of a script and is no statement of PostgreSQL's."""
    try:
        parse_statement(text)
    except SyntaxFault as error:
        raise SyntaxFault(error.message, position=offset + (error.position or 1)) from None


def _fault(error: PgQueryError) -> SyntaxFault:
    return SyntaxFault(str(error.message), position=error.cursorpos or None)


def words_of(source: bytes) -> list[Word]:
    """The words of a text, without its comments. Raises `SyntaxFault`."""
    found = []
    depth = 0
    for token in scan(source.decode()).tokens:
        kind = _KINDS.get(token.token)
        if kind is None:  # a character of which no word is made
            before, found_there = source[: token.start].decode(), source[token.start : token.end].decode()
            raise SyntaxFault(f'syntax error at or near "{found_there}"', position=len(before) + 1)
        if kind in ("SQL_COMMENT", "C_COMMENT"):
            continue
        text = source[token.start : token.end].decode()
        depth += (text in _OPENS) - (text in _CLOSES)
        if depth > _DEEP:
            raise _too_deep()
        found.append(Word(token.start, token.end, text.lower(), kind))
    return found


# ---- additions


@dataclass
class _Added:
    """The additions, as `Parsed` has them."""

    refused: list[tuple[str, int]] = field(default_factory=list)
    lookups: set[int] = field(default_factory=set)
    left_out: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)
    side_joins: list[tuple[int, str]] = field(default_factory=list)


def _without_additions(source: bytes, words: Sequence[Word]) -> tuple[bytes, _Added]:
    """The text with blanks for what is added, and what that was."""
    added = _Added()
    if not _MARKS.intersection(w.text for w in words):
        return source, added
    cut = bytearray(source)
    at = 0
    while at < len(words):
        for read in _READERS:
            part = read(words, at)
            if part is None:
                continue
            end, instead = min(part[0], len(words)), part[1]
            start = words[at].start
            cut[start : words[end - 1].end] = instead.encode().ljust(words[end - 1].end - start)
            if read is system_time:
                if any(w.text == "proctime" for w in words[at:end]):
                    added.lookups.add(words[_qualified(words, at - 1)].start)
            elif read is _star_except:
                names = tuple(_spelled(source, w) for w in words[at + 2 : end - 1] if w.text != ",")
                added.left_out.append((words[_qualified(words, at - 1)].start, names))
            elif read is _own_type:
                added.refused.append((f"a cast to {words[at].text}", start))
            elif read is _side_join and at + 2 < len(words):
                if words[at + 2].text in ("(", "lateral", "only"):
                    added.refused.append((f"{words[at].text.upper()} JOIN of what is no relation", start))
                added.side_joins.append((words[at + 2].start, words[at].text.upper()))
            at = end - 1
            break
        at += 1
    return bytes(cut), added


def _qualified(words: Sequence[Word], at: int) -> int:
    """Where a name begins that ends with a word, what qualifies it included."""
    while at >= 2 and words[at - 1].text == ".":
        at -= 2
    return max(at, 0)


def _spelled(source: bytes, word: Word) -> str:
    """A name as it is looked up."""
    text = source[word.start : word.end].decode()
    return text[1:-1].replace('""', '"') if text.startswith('"') else text.lower()


def _texts(words: Sequence[Word], at: int, *wanted: str) -> bool:
    return [w.text for w in words[at : at + len(wanted)]] == list(wanted)


def system_time(words: Sequence[Word], at: int) -> tuple[int, str] | None:
    """`FOR SYSTEM_TIME AS OF expression`."""
    if not _texts(words, at, "for", "system_time", "as", "of"):
        return None
    at = _operand(words, at + 4)
    while at < len(words) and words[at].text in _SIGNS:
        at = _operand(words, at + 1)
    return at, ""


def _operand(words: Sequence[Word], at: int) -> int:
    """Where the operand that begins at a word ends."""
    while at < len(words) and words[at].text in ("+", "-"):
        at += 1
    if at < len(words) and words[at].text == "(":
        return _closing(words, at)
    typed = at < len(words) and words[at].text in ("interval", "timestamp", "timestamptz", "date")
    if typed and _is_string(words, at + 1):
        at += 1
    if _is_string(words, at):
        return at + 2 if at + 1 < len(words) and words[at + 1].text.removesuffix("s") in _UNITS else at + 1
    at += 1
    return _closing(words, at) if at < len(words) and words[at].text == "(" else at


def _is_string(words: Sequence[Word], at: int) -> bool:
    return at < len(words) and words[at].kind == "SCONST"


def _closing(words: Sequence[Word], at: int) -> int:
    """Behind the bracket that closes the one at a word."""
    depth = 0
    for i in range(at, len(words)):
        depth += (words[i].text in _OPENS) - (words[i].text in _CLOSES)
        if depth == 0:
            return i + 1
    return len(words)


def _star_except(words: Sequence[Word], at: int) -> tuple[int, str] | None:
    """`EXCEPT (columns)` behind a star."""
    if (
        at < 2
        or not _texts(words, at - 1, "*", "except", "(")
        or words[at - 2].text not in ("select", ",", ".", "distinct")
    ):
        return None
    end = _closing(words, at + 1)
    inner = words[at + 2 : end - 1]
    if not inner or inner[0].text in ("select", "with", "values", "table", "("):
        return None
    return end, ""


def _side_join(words: Sequence[Word], at: int) -> tuple[int, str] | None:
    """`SEMI` or `ANTI` in a join."""
    if words[at].text in ("semi", "anti") and at and words[at - 1].text == "left" and _texts(words, at + 1, "join"):
        return at + 1, ""
    return None


def _own_type(words: Sequence[Word], at: int) -> tuple[int, str] | None:
    """`struct<...>` and `map(...)` as types."""
    typed = at > 0 and words[at - 1].text in ("::", "as")
    if words[at].text == "struct" and typed and _texts(words, at + 1, "<"):
        depth = 0
        for i in range(at + 1, len(words)):
            depth += words[i].text.count("<") - words[i].text.count(">")
            if depth <= 0:
                return i + 1, "text"
    if words[at].text == "map" and typed and words[at - 1].text == "::" and _texts(words, at + 1, "("):
        return _closing(words, at + 1), "text"
    return None


_READERS: Final[tuple[Callable[[Sequence[Word], int], tuple[int, str] | None], ...]] = (
    system_time, _star_except, _side_join, _own_type,
)  # fmt: skip
