"""The first words of statements, and what reads each: a module with readers has them in a tuple `STARTS`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from headrace.common.lazy_dataclass import dataclass
from headrace.sql.statements import Statement
from headrace.sql.token_cursor import Cursor

Inner: TypeAlias = Callable[[Cursor], Statement]
"""Reads a statement that stands inside of another one."""


@dataclass(frozen=True)
class Start:
    """A statement by the words that it begins with; several where there are several ways to begin it."""

    words: tuple[str, ...]
    read: Callable[[Cursor, Inner], Statement]
    whole: bool
    """Whether it is read from the first of its words on, not from behind them."""


def starts(read: Callable[[Cursor], Statement], *words: str, whole: bool = False) -> Start:
    """A statement in which none other stands."""
    return Start(words, lambda cursor, inner: read(cursor), whole)


def nests(read: Callable[[Cursor, Inner], Statement], *words: str, whole: bool = False) -> Start:
    """A statement in which others stand."""
    return Start(words, read, whole)


class Readers:
    """Finds the reader of a statement by its first words: of those that fit, the one with the most words."""

    def __init__(self, declared: Iterable[Start]) -> None:
        found: dict[str, dict[tuple[str, ...], Start]] = {}
        for start in declared:
            for text in start.words:
                words = tuple(text.split())
                others = found.setdefault(words[0], {})
                if words in others:
                    raise ValueError(f"two statements begin with {text}")
                others[words] = start
        self._by_first: Mapping[str, list[tuple[tuple[str, ...], Start]]] = {
            first: sorted(others.items(), key=lambda item: -len(item[0])) for first, others in found.items()
        }

    def read(self, cursor: Cursor, inner: Inner) -> Statement:
        """Read a statement. Raises `SyntaxFault` where none begins like that, and what its reader raises."""
        first = cursor.token.text.upper().split() if cursor.token is not None else []
        for words, start in self._by_first.get(first[0], ()) if first else ():
            count = cursor.peek(*words)
            if count:
                cursor.at += 0 if start.whole else count
                return start.read(cursor, inner)
        cursor.fail()
