"""What a reading process answers a client by itself: statements that were planned by the server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from headrace.common.lazy_dataclass import dataclass
from headrace.coordinator.reads import Later
from headrace.errors import HeadraceError
from headrace.server import backend
from headrace.server.connection import quick_answer
from headrace.server.frontend import FrontendDecoder, Query, Sync
from headrace.server.portals import WireStatement
from headrace.server.readers.followed import Followed
from headrace.server.readers.news import KnownStatement, SessionRest
from headrace.server.readers.own_reads import OwnRead, TooLarge
from headrace.server.short_way import OneStatement, StatementKey, asked_once, key_of
from headrace.session.reading.at_once import PointRead, point_or_result, values_at_once
from headrace.session.result import Result, ResultColumn
from headrace.session.shared_reads import SharedReads
from headrace.sql import statements as st

_PARSE_COMPLETE: Final = backend.PARSE_COMPLETE.encode()
_BIND_COMPLETE: Final = backend.BIND_COMPLETE.encode()
_FORGET: Final = Query("").encode()
"""A text with nothing in it, upon which a server forgets the unnamed statement."""
_SYNC: Final = Sync().encode()


@dataclass
class _Planned:
    """What `WireStatement` wants to know of a statement that is only read from here."""

    columns: list[ResultColumn]
    parameter_types: list[str]

    def execute(self, parameters: Sequence[str | None]) -> Result:
        """Not to be called: the server runs statements."""
        raise AssertionError("a reading process runs nothing")


class _Answered(NamedTuple):
    known: KnownStatement
    wire: WireStatement


class SlowAnswer(NamedTuple):
    """An answer that takes so long to compute that nobody else is to wait for it."""

    asked: OneStatement
    key: StatementKey
    answered: _Answered
    read: OwnRead

    def rows(self) -> WireRows:
        """The rows, in whatever thread. Raises of whatever kind where the server is to answer."""
        batches = self.read.rows()
        return _rows(self.answered, self.asked, Result(st.Select.told, self.answered.known.plan.columns, iter(batches)))


class WireRows(NamedTuple):
    """Rows as messages."""

    data: bytes
    rows: int


def whole_messages() -> FrontendDecoder:
    """What makes messages of the bytes of clients that are past their login."""
    decoder = FrontendDecoder()
    decoder.started = True
    return decoder


class Answers:
    """One client's statements, and how its session stands."""

    def __init__(
        self, followed: Followed, decoder: FrontendDecoder, shared_reads: SharedReads, check: Callable[[], None]
    ) -> None:
        """`check` raises once nobody waits for an answer any more."""
        self._followed = followed
        self._decoder = decoder
        self._shared_reads = shared_reads
        self._check = check
        self._known: dict[StatementKey, _Answered] = {}
        self._owed: bytes | None = None
        self._rest: SessionRest | None = None

    def rested(self, rest: SessionRest) -> None:
        """The server has said how the session stands."""
        for name, known in rest.statements.items():
            if known is None:
                self._known.pop(name, None)
            else:
                types = list(known.plan.types)
                wire = WireStatement(_Planned(known.plan.columns, types), known.oids)
                self._known[name] = _Answered(known, wire)
        self._rest = rest if rest.free else None

    def answer(self, data: bytes, sent: int) -> bytes | SlowAnswer | None:
        """The whole answer to what a client has sent, after so many bytes for the server, or what makes it: that is for
        `finished` then. None if the server is to answer."""
        rest = self._rest
        if rest is None or rest.received != sent:
            return None
        messages = self._decoder.whole(data)
        asked = None if messages is None else asked_once(messages)
        key = None if asked is None else key_of(asked)
        answered = None if key is None else self._known.get(key[0])
        if asked is None or key is None or answered is None or answered.known.settings != rest.settings:
            return None
        known, wire = answered
        followed = self._followed
        if not followed.current() or known.meaning != followed.meaning:
            return None
        try:
            bind = asked.bind
            texts = key[1] if bind is None else wire.texts(bind.formats, bind.values)
            assert texts is not None
            found = self._found(known, texts, rest.at_least)
            if isinstance(found, OwnRead):
                batches = found.at_once()
                if batches is None:
                    return SlowAnswer(asked, key[0], answered, found)
                found = Result(st.Select.told, known.plan.columns, iter(batches))
            return None if found is None else self._whole(asked, wire, _rows(answered, asked, found))
        except TooLarge:
            self._known.pop(key[0], None)
        except Exception:  # of whatever kind: the server says what is wrong
            pass
        return None

    def finished(self, slow: SlowAnswer, rows: WireRows | BaseException) -> bytes | None:
        """The whole answer, once its rows are known; None if the server is to answer, and to go on with that."""
        if isinstance(rows, WireRows):
            return self._whole(slow.asked, slow.answered.wire, rows)
        if self._known.get(slow.key) is slow.answered and not isinstance(rows, (HeadraceError, OSError)):
            del self._known[slow.key]  # it is too large, say, or nothing for a kernel
        return None

    def _whole(self, asked: OneStatement, wire: WireStatement, rows: WireRows) -> bytes:
        formats = () if asked.bind is None else asked.bind.result_formats
        head = b"" if asked.parse is None else _PARSE_COMPLETE
        head += b"" if asked.bind is None else _BIND_COMPLETE
        head += wire.described(formats) if asked.described else b""
        if asked.query is not None:
            self._owed = _FORGET
        elif asked.parse is not None:
            self._owed = _FORGET + asked.parse.encode() + _SYNC
        self._followed.answered()
        return b"".join((head, rows.data, backend.completed(f"{st.Select.told} {rows.rows}"), backend.READY["I"]))

    def owed(self, data: bytes) -> bytes | None:
        """What the server has to be told before what a client has sent; its answer is not for the client.

        The unnamed statement is another one for the client than for the server, if texts were answered here. What
        makes another one of it puts that right by itself. It is told before anything else goes there: as long as
        nothing is under way, all that comes back is the answer to it.
        """
        owed, self._owed = self._owed, None
        return None if data[:1] in b"QX" or (data[:1] == b"P" and data[5:6] == b"\0") else owed

    def _found(self, known: KnownStatement, texts: Sequence[str | None], at_least: int) -> Result | OwnRead | None:
        """What there is of an answer: its rows, or what is left to read. None if the server is to answer."""
        plan, followed = known.plan, self._followed
        found = point_or_result(plan, texts, known.zone)
        if isinstance(found, PointRead):
            row = followed.row_now(found.table, found.key, at_least)
            return None if isinstance(row, Later) else found.result(row)
        if found is not None or plan.record is None or plan.point:
            return found
        values = values_at_once(plan, texts, known.zone)
        held = None if values is None else followed.held_now(plan.record.id, at_least)
        if values is None or held is None:
            return None
        read = OwnRead(plan, values, held, known.zone, self._shared_reads, known.rows_at_most, self._check)
        return read if read.is_small else None


def _rows(answered: _Answered, asked: OneStatement, result: Result) -> WireRows:
    """A result's rows as messages."""
    known, wire = answered
    formats = () if asked.bind is None else asked.bind.result_formats
    assert result.columns is not None
    messages = quick_answer(wire, formats, result, result.columns, known.shown_zone)
    return WireRows(b"".join(messages), len(messages))
