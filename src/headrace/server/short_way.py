"""The short way of what clients send most: one statement, asked for by messages that came together. No I/O.

What is asked for is the same in the simple protocol, and in the extended one with a statement that was prepared before
or is parsed along with it. Reads of single rows that come in one turn of the event loop are looked up together.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

from headrace.common.loggers import get_logger
from headrace.coordinator.reads import Later
from headrace.coordinator.writes.layout import Row
from headrace.server import frontend
from headrace.server.frontend import FrontendMessage
from headrace.server.portals import Portal, WireStatement
from headrace.server.wire import ProtocolViolation
from headrace.session.literal_texts import CHARS_AT_MOST, lifted
from headrace.session.prepared import WantedRow, look_up
from headrace.session.result import Prepared, Result

_log = get_logger("headrace.server")
_DESCRIBED: Final = frontend.Describe("P", "")
_STATEMENTS: Final = 100
"""Statements without a name that are kept with what there is to say of them."""


class OneStatement(NamedTuple):
    """One statement whose rows are all wanted at once: a text, or what is bound to the unnamed portal."""

    query: frontend.Query | None
    parse: frontend.Parse | None
    """What the unnamed statement is to be, where that is said, too."""
    bind: frontend.Bind | None
    described: bool
    """Whether the client wants to know the columns."""


def asked_once(messages: Sequence[FrontendMessage | ProtocolViolation]) -> OneStatement | None:
    """What messages ask for if it is one statement: Query; or Parse, maybe, Bind, maybe Describe, Execute, Sync."""
    count = len(messages)
    first = messages[0] if count else None
    if count == 1:
        return OneStatement(first, None, None, True) if type(first) is frontend.Query else None
    parse = first if type(first) is frontend.Parse else None
    at = 0 if parse is None else 1
    if not 3 <= count - at <= 4:
        return None
    bind, execute, sync = messages[at], messages[-2], messages[-1]
    if type(bind) is not frontend.Bind or type(execute) is not frontend.Execute or type(sync) is not frontend.Sync:
        return None
    described = count - at == 4
    if described and messages[at + 1] is not _DESCRIBED and messages[at + 1] != _DESCRIBED:
        return None
    portal, statement, _, _, result_formats = bind
    if portal or execute.portal or execute.max_rows > 0 or len(result_formats) > 1:
        return None
    if parse is not None and (parse.name or statement):
        return None
    return OneStatement(None, parse, bind, described)


StatementKey: TypeAlias = str | tuple[str, tuple[int, ...]] | tuple[str, tuple[str, ...]]
"""By what a client asks for a statement: a name; a text with the OIDs that it declares; a text out of which numbers
were lifted, with their types."""


def key_of(asked: OneStatement) -> tuple[StatementKey, Sequence[str] | None] | None:
    """By what a statement is asked for, and the values that its text has; None where that says nothing."""
    if asked.query is not None:
        plain = lifted(asked.query.sql)
        return None if plain is None else ((plain.text, plain.types), plain.values)
    if asked.parse is not None:
        return ((asked.parse.sql, asked.parse.type_oids), None) if len(asked.parse.sql) <= CHARS_AT_MOST else None
    assert asked.bind is not None
    return (asked.bind.statement, None) if asked.bind.statement else None


class Quickly(NamedTuple):
    """A statement that is run by the short way."""

    head: bytes
    """How its answer begins."""
    statement: WireStatement
    values: Sequence[str | None]
    result_formats: tuple[int, ...]
    extended: bool
    """Whether it is asked for in the extended protocol: it has a portal then, and an error ends with the Sync."""

    def portal(self, result: Result | None, since: int) -> Portal:
        """What it would have been bound to by the ordinary way."""
        return Portal(self.statement, list(self.values), self.result_formats, since, result)


class WireStatements:
    """Statements without a name as they are for the wire: made once for each, as long as it is used."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[Prepared, tuple[int, ...]], WireStatement] = OrderedDict()

    def of(self, prepared: Prepared, oids: tuple[int, ...] = ()) -> WireStatement:
        """A statement with the type OIDs that the client declares."""
        found = self._known.get((prepared, oids))
        if found is None:
            found = self._known[prepared, oids] = WireStatement(prepared, oids)
            if len(self._known) > _STATEMENTS:
                self._known.popitem(last=False)
        return found


class Gathered:
    """Reads of single rows that have come in the present turn of the event loop."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._wanted: list[WantedRow] = []
        self._calls: list[Callable[[Row | Later | None], None]] = []

    def add(self, wanted: WantedRow, call: Callable[[Row | Later | None], None]) -> None:
        """Have a row looked up once all that has come is taken apart; `call` gets it."""
        if not self._wanted:
            self._loop.call_soon(self._look_up)
        self._wanted.append(wanted)
        self._calls.append(call)

    def _look_up(self) -> None:
        wanted, self._wanted = self._wanted, []
        calls, self._calls = self._calls, []
        for call, row in zip(calls, look_up(wanted), strict=True):
            try:
                call(row)
            except Exception:
                _log.exception("a client could not be told")
