"""The `http` sink: an epoch is a few requests, each with a key by which the receiver knows one that comes again.

A receiver of requests keeps no epoch for us, so this is the one sink that delivers at least once. What makes a repeated
request recognizable is that it is the same: the rows of an epoch are put into an order that does not depend on how they
came, so the n-th request of an epoch has the same rows, and the same key, in every attempt.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final

import pyarrow as pa

from headrace.common.columns import Column
from headrace.common.lazy_dataclass import dataclass
from headrace.connectors.connection_options import Connects
from headrace.connectors.declared import DeclaredOptions, Option
from headrace.connectors.held_changes import HeldChanges
from headrace.connectors.http.client import Address, Client, NoAnswer, Response
from headrace.connectors.http.ordering import SortedLines
from headrace.connectors.json_out import NotSpelled, objects, text
from headrace.connectors.netting import taken, without
from headrace.connectors.refusals import MOST_AT_ONCE, Refusal, RowsRefused, collects, not_spelled
from headrace.connectors.sinks import SINK_OPTIONS, Sink, SinkPosition, key_of
from headrace.errors import InvalidParameter, SinkError

PIECE_ROWS: Final = 8192
"""Rows that are objects of Python at once."""
REQUEST_BYTES: Final = 1 << 20
"""Bytes of a request's rows, about: what is more goes into the next one."""
FIRST_PAUSE_S: Final = 0.2
LONGEST_PAUSE_S: Final = 20.0
_UPSERT: Final = '{"op":"upsert","row":'
_DELETE: Final = '{"op":"delete","key":'
OF_ROWS: Final = (400, 413, 422)
"""Answers by which a receiver refuses what a request has in it."""
AGAIN: Final = (408, 425, 429)
"""Answers below 500 upon which a request is sent again."""
_URL: Final = Option("url", "Where requests go: `https://host/path`, or `http://...`.", required=True, secret=True)
_CA: Final = Option(
    "ssl.ca.location", "A file with the certificates that the receiver's is checked by, instead of the system's."
)
_HEADER: Final = "A header of every request: `header.authorization = SECRET token`."
SINK: Final = DeclaredOptions(
    (
        _URL,
        Option("method", "Of requests.", default="POST", choices=("POST", "PUT", "PATCH")),
        Option("batch.rows", "Rows of a request, at most.", "number", default="500", least=1),
        Option("timeout", "How long an answer may take.", "duration", default="10s"),
        Option("retries", "How often a request is sent again before the epoch counts as failed, and begins anew after "
               "a pause.", "number", default="5"),
        _CA,
    ),
    "header.", _HEADER, secret_prefix=True,
)  # fmt: skip
CONNECTION: Final = Connects(DeclaredOptions((_URL, _CA), "header.", _HEADER, secret_prefix=True), {"http": {}})
_OWN: Final = ("content-type", "content-length", "transfer-encoding", "host", "connection", "idempotency-key")
"""Headers that a user cannot set."""

LONGEST_MS: Final = 3_600_000
"""The longest time-out of a request."""


class HttpSink(Sink):
    """See the module."""

    declared = SINK
    refuses = True

    def __init__(self, options: Mapping[str, str], columns: Sequence[Column]):
        super().__init__(options, columns)
        values = SINK.read(options, SINK_OPTIONS)
        self._upserts = options.get("type", "upsert") == "upsert"
        self._key = key_of(options, columns)
        self._collects = collects(options)
        self._rows: int = values["batch.rows"]
        self._retries: int = values["retries"]
        headers = SINK.passed_on(options)
        for name, value in headers.items():
            if name.lower() in _OWN or not name.replace("-", "").isalnum() or not name.isascii():
                raise InvalidParameter(f"option header.{name} cannot be set")
            if not value.isprintable() or not value.isascii():
                raise InvalidParameter(f"option header.{name} has characters that no header can have")
        if values["timeout"] > LONGEST_MS:
            raise InvalidParameter("option timeout must be at most 1h")
        address = Address.of(values["url"], values["ssl.ca.location"])
        self._client = Client(address, values["method"], headers, values["timeout"] / 1000)
        self._name = f"the receiver at {address}"

    def reach(self) -> None:
        """See `Sink`. A request would be one too many: it looks whether somebody takes connections."""
        try:
            self._client.reach()
        except NoAnswer as error:
            raise SinkError(f"{self._name}: {error}") from error

    def write(self, position: SinkPosition, batches: Iterator[pa.RecordBatch]) -> int:
        """See `Sink`. All of the epoch is taken in before anything leaves."""
        with HeldChanges.of(batches, self.scratch, self._key if self._upserts else ()) as held:
            try:
                rows = SortedLines(chain.from_iterable(map(self._elements, held.pieces())), self.scratch)
            except NotSpelled as error:
                refused_rows = not_spelled(held, len(self.columns), MOST_AT_ONCE if self._collects else 1)
                raise RowsRefused(self._name, refused_rows) from error
            count = held.rows
        refused: list[Refusal] = []
        with rows, self._client.connected():
            for request in requests(rows, self._rows):
                refused += self._taken(request, f"{position.delivery}-{position.epoch}-{request.place}")
        if refused:
            raise RowsRefused(self._name, refused, count - len(refused))
        return count

    def _elements(self, piece: Sequence[pa.RecordBatch]) -> Iterator[bytes]:
        """What changes of whole keys come to, as elements of a request's array."""
        found = taken(piece, len(self.columns), self._key if self._upserts else None)
        if found.keys is None:
            yield from _texts(found.rows)
            return
        yield from (b"%b%b}" % (_UPSERT.encode(), row) for row in _texts(found.rows))
        gone = without(found.keys, found.rows.select(list(self._key)))
        yield from (b"%b%b}" % (_DELETE.encode(), key) for key in _texts(gone))

    def _taken(self, request: RowsRequest, key: str) -> Iterator[Refusal]:
        """Have a request taken; where refused rows go to a table, all of it but for these, which are found by halves.

        A part has a key of its own: a receiver may answer a key that it knows as it did before.
        """
        try:
            self._deliver(request, key)
        except _Refused as refused:
            if not self._collects:
                raise
            if len(request.rows) > 1:
                for part in request.halves():
                    yield from self._taken(part, f"{key.partition('+')[0]}+{part.place}.{len(part.rows)}")
                return
            yield _refusal(request.rows[0], self._upserts, refused.message)

    def _deliver(self, request: RowsRequest, key: str) -> None:
        """Send a request until it is taken. Raises `SinkError` where it is refused, or nobody takes it for long."""
        for attempt in range(self._retries + 1):
            answer: Response | None = None
            try:
                answer = self._client.send(request.body, key)
                if answer.status < 300:
                    return
                why = f"it answered {answer.status} {answer.reason}"
            except NoAnswer as error:
                why = str(error)
            if answer is not None and answer.status < 500 and answer.status not in AGAIN:
                kind = _Refused if answer.status in OF_ROWS else SinkError
                raise kind(
                    f"{self._name} refuses a request: {why}",
                    detail=answer.excerpt or None,
                    hint="it is not sent again before the pause of a failed sink is over: have it taken there, or "
                    "drop the sink",
                )
            if attempt < self._retries:
                time.sleep(pause_s(attempt, answer.retry_after_s if answer is not None else None, random.random))
        raise SinkError(f"{self._name} did not take a request, sent {self._retries + 1} times: {why}")


class _Refused(SinkError):
    """The receiver refuses a request for what is in it."""


def _refusal(row: bytes, upserts: bool, why: str) -> Refusal:
    text = row.decode()
    if not upserts:
        return Refusal("insert", text, why)
    gone = text.startswith(_DELETE)
    return Refusal("delete" if gone else "insert", text[len(_DELETE if gone else _UPSERT) : -1], why)


def _texts(table: pa.Table) -> Iterator[bytes]:
    return (text(row) for batch in table.to_batches(max_chunksize=PIECE_ROWS) for row in objects(batch))


@dataclass(frozen=True)
class RowsRequest:
    """Some rows of an epoch, as a JSON array."""

    place: int
    """Of the first row among those of the epoch."""
    rows: tuple[bytes, ...]

    @property
    def body(self) -> bytes:
        """What is sent."""
        return b"[%b]" % b",".join(self.rows)

    def halves(self) -> tuple[RowsRequest, RowsRequest]:
        """The same rows in two requests."""
        middle = len(self.rows) // 2
        return RowsRequest(self.place, self.rows[:middle]), RowsRequest(self.place + middle, self.rows[middle:])


def requests(rows: Iterable[bytes], most_rows: int, most_bytes: int = REQUEST_BYTES) -> Iterator[RowsRequest]:
    """Rows, in this order, in requests of at most so many rows and about so many bytes."""
    held: list[bytes] = []
    size = place = 0
    for row in rows:
        if held and (len(held) == most_rows or size + len(row) > most_bytes):
            yield RowsRequest(place, tuple(held))
            place, held, size = place + len(held), [], 0
        held.append(row)
        size += len(row)
    if held:
        yield RowsRequest(place, tuple(held))


def pause_s(attempt: int, asked_s: float | None, chance: Callable[[], float]) -> float:
    """How long to wait before a request is sent again: twice as long each time, or what the receiver asks for."""
    backoff_s = min(FIRST_PAUSE_S * 2**attempt, LONGEST_PAUSE_S) * (0.5 + chance() / 2)
    return backoff_s if asked_s is None else min(max(asked_s, backoff_s), LONGEST_PAUSE_S)
