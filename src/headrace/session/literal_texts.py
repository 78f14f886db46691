"""Statements that clients send as texts with their values in them, and that differ in whole numbers only.

Parsing and planning one takes milliseconds. So of two texts alike the plan is kept, with parameters in the place of the
numbers. A parameter has the type that the literal has, so that the statement means the same.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from headrace.session.execution.row_writes import RowPlan
from headrace.session.handlers import handler_of
from headrace.session.prepared import PreparedRead, PreparedStatement, StatementRunner, plans_as_of, share, shared
from headrace.session.reading.read_planning import PlannedRead
from headrace.sql import statements as st
from headrace.sql.binder.bound_tree import filled
from headrace.sql.parser import parse_one

CHARS_AT_MOST = 1_000
"""Length of a text up to which it is looked at."""
KEPT = 1_000
"""Kinds of texts that a session remembers."""
_FIRST = re.compile(r"\s*(?:insert|update|delete|select)\b", re.IGNORECASE)
_TOKEN = re.compile(
    r"""\d+(?![\w.$])|[A-Za-z_]\w*(?!['$\w])|'(?:[^'\\]|'')*'(?!')|"[^"]*"|[\s(),=<>+*%;]+|-(?!-)|!=|\|\||::""",
    re.ASCII,
)
"""What such a text may be made of: nothing with a comment, a parameter, a fraction, an escape or a dot in it."""
_INT_DIGITS, _BIGINT_DIGITS = 9, 18
"""Numbers of so many digits have that type in any case, also with a minus before them."""


class Lifted(NamedTuple):
    """A text whose whole numbers were lifted out: parameters stand in their places."""

    text: str
    types: tuple[str, ...]
    values: tuple[str, ...]


def lifted(sql: str) -> Lifted | None:
    """The text with its numbers lifted out; None for what is not plain enough."""
    if len(sql) > CHARS_AT_MOST or _FIRST.match(sql) is None:
        return None
    types: list[str] = []
    values: list[str] = []
    tokens = _TOKEN.findall(sql)
    if sum(map(len, tokens)) != len(sql):  # what is no token was left out
        return None
    for i, token in enumerate(tokens):
        if token[0].isdecimal():
            if len(token) > _BIGINT_DIGITS or _INT_DIGITS < len(token) <= _INT_DIGITS + 1:
                return None
            if token[0] == "0" and len(token) > _INT_DIGITS:
                return None  # by its value it is an int
            values.append(token)
            types.append("int" if len(token) <= _INT_DIGITS else "bigint")
            tokens[i] = f"${len(values)}"
    return Lifted("".join(tokens), tuple(types), tuple(values))


class KnownTexts:
    """The plans of a session's statements by their lifted texts. One thread at a time."""

    def __init__(self, runner: StatementRunner) -> None:
        self._runner = runner
        self._known: OrderedDict[tuple[str, tuple[str, ...]], PreparedStatement | None] = OrderedDict()
        """None for what was met once, or has no plan."""
        self._planned: set[tuple[str, tuple[str, ...]]] = set()
        """What has been tried."""
        self._prepared: OrderedDict[tuple[str, tuple[str | None, ...]], PreparedRead] = OrderedDict()
        self._last: tuple[str, tuple[PreparedStatement, Sequence[str]] | None] = "", None

    def prepared(self, sql: str, types: Sequence[str | None]) -> PreparedRead | None:
        """The read that was prepared of just this text before, if it still is what the text means."""
        key = sql, tuple(types)
        found = self._prepared.get(key)
        if (found is None or not found.is_planned) and len(sql) <= CHARS_AT_MOST:
            found = shared(self._runner, sql, types, lifted=False)
            if found is not None:
                self._put(key, found)
        return found if found is not None and found.is_planned else None

    def _put(self, key: tuple[str, tuple[str | None, ...]], prepared: PreparedRead) -> None:
        self._prepared[key] = prepared
        while len(self._prepared) > KEPT:
            self._prepared.popitem(last=False)

    def keep(self, sql: str, types: Sequence[str | None], prepared: PreparedStatement) -> None:
        """Remember a read that was prepared: drivers prepare the same text again and again."""
        if isinstance(prepared, PreparedRead) and len(sql) <= CHARS_AT_MOST:
            self._put((sql, tuple(types)), prepared)
            share(prepared, sql, types, lifted=False)

    def find(self, sql: str) -> tuple[PreparedStatement, Sequence[str]] | None:
        """The statement of a text, and the values in it, if it is known and can be run without blocking."""
        found = self._found(sql)
        return found if found is not None and found[0].is_quick else None

    def planned(self, sql: str) -> PreparedStatement | None:
        """The statement of a text, if it is known and has a plan."""
        found = self._found(sql)
        return found[0] if found is not None and found[0].is_planned else None

    def _found(self, sql: str) -> tuple[PreparedStatement, Sequence[str]] | None:
        if self._last[0] == sql:
            return self._last[1]
        found = self._find(sql)
        self._last = ("", None) if found is None else (sql, found)
        return found

    def _find(self, sql: str) -> tuple[PreparedStatement, Sequence[str]] | None:
        plain = lifted(sql)
        if plain is None:
            return None
        key = plain.text, plain.types
        statement = self._known.get(key)
        if statement is None or not statement.is_planned:
            statement = shared(self._runner, *key, lifted=True) or statement
            if statement is not None:
                self._put_known(key, statement)
        return None if statement is None else (statement, plain.values)

    def _put_known(self, key: tuple[str, tuple[str, ...]], statement: PreparedStatement | None) -> None:
        self._known[key] = statement
        while len(self._known) > KEPT:
            oldest, _ = self._known.popitem(last=False)
            self._planned.discard(oldest)

    def met(self, sql: str) -> None:
        """A text has been run the long way: the second of its kind is planned for those to come."""
        plain = lifted(sql)
        if plain is None:
            return
        key = plain.text, plain.types
        if key in self._known and key not in self._planned:
            self._planned.add(key)
            self._known[key] = self._statement(plain, sql)
            self._last = "", None
        elif key in self._known:
            statement = self._known[key]
            if statement is not None and not statement.is_planned:  # its table has changed
                self._known[key] = self._statement(plain, sql)
                self._last = "", None
        else:
            self._put_known(key, None)

    def _statement(self, plain: Lifted, sql: str) -> PreparedStatement | None:
        try:
            as_of = plans_as_of(self._runner.context)
            statement = parse_one(plain.text)
            plan = self._plan(statement, plain.types)
            if isinstance(plan, PlannedRead):
                met = self._plan(parse_one(sql), ())
                if not _is_same(plan, met, plain):
                    return None
                made = PreparedRead(self._runner, statement, plan, as_of)
                share(made, plain.text, plain.types, lifted=True)
                return made
        except Exception:  # of whatever kind: the statement that was met has succeeded
            return None
        return None if plan is None else PreparedStatement(self._runner, statement, plan.types, plan.columns, plan)

    def _plan(self, statement: st.Statement, types: Sequence[str | None]) -> PlannedRead | RowPlan | None:
        return handler_of(statement).plan(self._runner.context, statement, types)


def _is_same(lifted_out: PlannedRead, met: PlannedRead | RowPlan | None, plain: Lifted) -> bool:
    """Whether a query with parameters, filled in, is the one that was met: a number in ORDER BY, say, is no value."""
    if not isinstance(met, PlannedRead) or not lifted_out.lasting:
        return False
    return filled(lifted_out.plan.query, plain.values) == met.plan.query
