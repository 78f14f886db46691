"""What a request comes to: which table it is for, whether it may, its rows, and what it is answered. No network.

`/webhook/<database>/<schema>/<table>` is looked up in the catalog for each request, so a table's URL goes with its
name: it begins and ends with the table. A request acts as the table's owner, who may always
insert; whoever can sign one may do just this.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import unquote

import pyarrow as pa

from headrace.catalog.contents import TableContent
from headrace.catalog.records import ObjectRecord
from headrace.common.lazy_dataclass import dataclass
from headrace.connectors.webhook.body import BodyFault, check_not_null, rows_of
from headrace.connectors.webhook.options import by_lines, is_webhook
from headrace.connectors.webhook.validation import SECRET, Validation
from headrace.coordinator.decide.watermarks import declared
from headrace.coordinator.writes.requests import RowWrite, TableWrite, WriteResult
from headrace.coordinator.writes.written_rows import RowOperation, append_rows, insert_rows
from headrace.errors import (
    DataError,
    HeadraceError,
    OperationalError,
    ReadOnlyTransaction,
    ShuttingDown,
    UndefinedTable,
)
from headrace.sql.statements import DATABASE
from headrace.state.table_changes import TableChange
from headrace.web.exchange import Answer, Head, failed
from headrace.web.local import strangeness
from headrace.web.seldom import SeldomLog

if TYPE_CHECKING:
    from headrace.catalog.catalog import Catalog
    from headrace.coordinator.coordinator import Coordinator

said = SeldomLog()
"""The log of requests, for all that serves them."""
RETRY_S: Final = 1
"""After so many seconds a client is to come again that was told to."""
SINGLE_ROWS: Final = 1_000
"""Rows of a request that are written one by one; more of them cost less as a whole."""
_LINES: Final = ("application/x-ndjson", "application/ndjson", "application/jsonl")
_JSON: Final = ("application/json", *_LINES)


class WebhookHost(Protocol):
    """What is needed of a database; `Instance` has it."""

    catalog: Catalog
    coordinator: Coordinator

    def check(self) -> None: ...


@dataclass(frozen=True, eq=False)
class RequestRows:
    """Rows on their way into a table."""

    table: ObjectRecord
    request: RowWrite | TableWrite

    def answer(self) -> Answer:
        """What the client is told, once the request is done."""
        try:
            result = self.request.done.result()
        except Exception as error:
            return failure(error)
        return _taken(result)


class Receiver:
    """Takes requests for a database. Thread-safe."""

    def __init__(self, home: WebhookHost, most_waiting: int) -> None:
        """Of each table's requests `most_waiting` may wait to be committed."""
        self._home = home
        self._most_waiting = most_waiting
        self._lock = threading.Lock()
        """Held while a request goes to the writer, so that none does after `close`."""
        self._waiting: set[RequestRows] = set()
        """What waits to be committed. Left without the lock: whoever settles a request may hold the writer's."""
        self._closed = False

    def refusal(self, head: Head) -> Answer | None:
        """Why a request is not taken, as far as its head tells; None where the rest of it is wanted."""
        record = self._table(head.target)
        if record is None:
            return _no_table()
        if head.method != "POST":
            return Answer(405, {"error": f"{head.method} is not what a webhook takes"}, {"Allow": "POST"})
        return _unreadable(record, head) or self._unproved(record, head) or self._unable() or self._crowd(record)

    def take(self, head: Head, body: bytes) -> RequestRows | Answer:
        """Hand the rows of a request to the writer, or say why not. Blocks for no longer than that takes to compute."""
        record = self._table(head.target)
        if record is None:
            return _no_table()
        refused = self._unproved(record, head) or self._unable() or self._unsigned(record, head, body)
        if refused is not None:
            return refused
        try:
            lines = by_lines(record.options) or _media_type(head) in _LINES
            rows = rows_of(body, record.columns, lines=lines)
            check_not_null(rows, [c.name for c in record.columns if not c.nullable or c.name in record.primary_key])
            if not rows.num_rows:
                return _taken(WriteResult(0, 0, 0, 0))
            return self._submitted(RequestRows(record, self._write(record, rows)))
        except Exception as error:
            return failure(error)

    def give_up(self, written: RequestRows) -> None:
        """Let rows go that have waited for too long, unless they are being committed; the request is done then."""
        error = OperationalError("the table takes no rows at the moment: another change of it goes on")
        self._home.coordinator.writer.cancel(written.request, error)

    def close(self) -> None:
        """Take nothing more, and let go what waits, unless it is being committed: no row comes after that."""
        with self._lock:
            self._closed = True
        error = ShuttingDown("the server is shutting down")
        for written in list(self._waiting):
            self._home.coordinator.writer.cancel(written.request, error)

    def _submitted(self, written: RequestRows) -> RequestRows | Answer:
        """Hand rows to the writer, unless too many of the table wait already."""
        with self._lock:
            if self._closed:
                return failed(503, "the server is shutting down", RETRY_S)
            crowd = self._crowd(written.table)
            if crowd is not None:
                return crowd
            self._home.coordinator.writer.submit(written.request)
            self._waiting.add(written)
        written.request.done.add_done_callback(lambda _: self._waiting.discard(written))
        return written

    def _crowd(self, record: ObjectRecord) -> Answer | None:
        """What is said where too many requests of a table wait: while it is locked others are to have room."""
        if sum(written.table.id == record.id for written in list(self._waiting)) < self._most_waiting:
            return None
        return failed(429, f"{self._most_waiting} requests of the table wait (half of webhook_requests)", RETRY_S)

    # ---- who may

    def _unable(self) -> Answer | None:
        """What is said where the database takes no rows; nothing of why, which is nobody's business without a proof."""
        try:
            self._home.check()
            self._home.coordinator.refuse_writes("a request to a webhook")
            self._home.coordinator.check_lease()
        except Exception as error:
            return _hidden(error)
        return None

    def _table(self, target: str) -> ObjectRecord | None:
        """The table that a URL is that of."""
        parts = [unquote(part, errors="replace") for part in target.partition("?")[0].split("/")]
        if len(parts) != 5 or parts[:3] != ["", "webhook", DATABASE]:
            return None
        record = self._home.catalog.image.object_named(parts[3], parts[4])
        found = record is not None and isinstance(record.content, TableContent) and is_webhook(record.options)
        return record if found else None

    def _unproved(self, record: ObjectRecord, head: Head) -> Answer | None:
        """What is said to clients that the table's definition does not let in before they have sent anything."""
        strange = strangeness(head) if Validation.of(record.options) is None else None
        if strange is None:
            return None
        self._note(record, head, f"its table has no VALIDATE: {strange}")
        return failed(401, f"the table has no VALIDATE: {strange}")

    def _unsigned(self, record: ObjectRecord, head: Head, body: bytes) -> Answer | None:
        """What is said of a request that does not prove where it comes from."""
        validation = Validation.of(record.options)
        if validation is None:
            return None
        try:
            values = self._home.coordinator.secrets({SECRET: record.secrets[SECRET]})
            assert values is not None
            secret = values()[SECRET]
        except Exception as error:
            return _hidden(error)
        if validation.accepts(head.headers, body, secret):
            return None
        self._note(record, head, "VALIDATE does not hold")
        return failed(401, f"the header {validation.header} is not what VALIDATE wants")

    def _note(self, record: ObjectRecord, head: Head, reason: str) -> None:
        """Say in the log that a request was refused."""
        said.warning(record.id, "a request was refused", reason=reason, table=record.name, client=head.address)

    # ---- rows

    def _write(self, record: ObjectRecord, rows: pa.RecordBatch) -> RowWrite | TableWrite:
        """Rows as a request to the writer: single ones by key where that can be, as INSERT ... VALUES has it."""
        layout = self._home.coordinator.tables.layout(record.id)
        ignore = record.content_as(TableContent).on_conflict == "ignore"
        singly = rows.num_rows <= SINGLE_ROWS and layout.plain and (layout.keyed or not record.primary_key)
        if not singly or declared(record) is not None:
            return TableWrite(record.id, TableChange(rows, None, "ignore" if ignore else "overwrite"))
        made = list(zip(*(column.to_pylist() for column in rows.columns)))
        if not layout.key_at:
            return RowWrite(RowOperation(record.id, (), append_rows(made)))
        keys = [layout.key_of(row) for row in made]
        return RowWrite(RowOperation(record.id, tuple(keys), insert_rows(made, keys, ignore=ignore)))


def failure(error: BaseException) -> Answer:
    """What is said of an error."""
    if isinstance(error, BodyFault):
        return failed(400, error.message, record=error.record, column=error.column, value=error.value)
    if isinstance(error, DataError):
        return failed(400, error.message)
    if isinstance(error, UndefinedTable):
        return _no_table()
    if isinstance(error, (ReadOnlyTransaction, OperationalError)):
        # Whether rows are there whose commit has failed is not known to everybody; repeated they are there once by key.
        return failed(503, error.message, RETRY_S)
    if isinstance(error, HeadraceError):
        said.error(error.sqlstate, "a request failed", error=error.message, sqlstate=error.sqlstate)
        return failed(500, error.message)
    said.error(type(error).__name__, "a request failed", exc_info=error)
    return failed(500, "the request failed; the server's log says more")


def _hidden(error: Exception) -> Answer:
    """What somebody is told of an error who has proved nothing: the log has the rest."""
    if isinstance(error, HeadraceError):
        said.warning(error.sqlstate, "requests are not taken", error=error.message)
    else:
        said.error(type(error).__name__, "requests are not taken", exc_info=error)
    return failed(503, "the server cannot write at present", RETRY_S)


def _no_table() -> Answer:
    return failed(404, f"there is no webhook here: /webhook/{DATABASE}/<schema>/<table> of a table with this connector")


def _taken(result: WriteResult) -> Answer:
    return Answer(200, {"rows": result.inserted, **({"late": result.late} if result.late else {})})


def _unreadable(record: ObjectRecord, head: Head) -> Answer | None:
    """What is said of a body that does not call itself JSON; nothing is meant as JSON where a signature proves it."""
    kind, encoding = _media_type(head), head.value("content-encoding").lower()
    known = kind in _JSON or kind.endswith("+json") or (not kind and Validation.of(record.options) is not None)
    if known and _is_utf8(head) and encoding in ("", "identity"):
        return None
    kinds = ", ".join(filter(None, (head.value("content-type"), encoding))) or "no type"
    return failed(415, f"a body of {kinds} is not taken: application/json or application/x-ndjson, not compressed")


def _media_type(head: Head) -> str:
    return head.value("content-type").partition(";")[0].strip().lower()


def _is_utf8(head: Head) -> bool:
    _, _, charset = head.value("content-type").lower().replace(" ", "").partition("charset=")
    return charset.partition(";")[0].strip('"') in ("", "utf-8", "utf8")
