"""Subscriptions: CREATE SUBSCRIPTION, their cursors, and COPY (SUBSCRIBE ...).

A subscription is a promise to keep the history of a relation. Who reads needs SELECT on that relation each time that he
asks for something, and whoever creates one needs it, too. A reader waits for changes in his own thread and holds up
nobody else; nothing of Spark runs for him.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.catalog.contents import SubscriptionContent
from headrace.catalog.records import ObjectRecord
from headrace.common.columns import arrow_type
from headrace.common.epoch import COUNTER_BITS, EPOCH_START_MS, epoch_ms, from_unix_ms
from headrace.common.identifiers import quoted_name
from headrace.coordinator.subscriptions import Feed
from headrace.errors import HeadraceError, InvalidParameter, ObjectMissing, UndefinedObject, WrongObjectType
from headrace.session import open_cursors
from headrace.session.context import Context
from headrace.session.execution.copying import check_lists
from headrace.session.execution.handler import Handler, Needs
from headrace.session.execution.select import outrun
from headrace.session.names import label, names_of
from headrace.session.result import Result, ResultColumn
from headrace.sql import statements as st
from headrace.sql.subscriptions import duration_ms
from headrace.state.changelog import OPERATIONS, ChangePiece, LogPosition
from headrace.state.kernels.equality import Ints

PROGRESS: Final = "Progress"
"""What stands for the operation where COPY (SUBSCRIBE ...) tells that an epoch is complete."""
_ADVANCE_S: Final = 1.0
"""Seconds after which a reader that waits takes note of how far its relation is without a change."""
_NAMES: Final = (*OPERATIONS, PROGRESS)


# ---- what there is


def subscription_of(context: Context, statement: st.CreateSubscription) -> ObjectRecord:
    """What CREATE SUBSCRIPTION makes, without id, owner and schema. Raises `StatementError`."""
    relation = names_of(context).get(statement.source)
    _require_readable(context, relation, statement.source)
    unknown = next((name for name in statement.options if name != "retention"), None)
    if unknown is not None:
        raise InvalidParameter(f'unrecognized option "{unknown}" of a subscription', hint="it has one: retention")
    if "retention" not in statement.options:
        raise InvalidParameter(
            "a subscription needs to know for how long changes are to be kept", hint="WITH (retention = '1 day')"
        )
    kept = retention_ms(statement.options["retention"])
    return ObjectRecord(
        0, SubscriptionContent(retention_ms=kept), "", statement.name.name, definition=statement.text,
        options=dict(statement.options), depends_on=(relation.id,), created_ms=context.clock.now_ms(),
    )  # fmt: skip


def retention_ms(text: str) -> int:
    """A retention in milliseconds. Raises `InvalidParameter`, `InvalidDatetime`."""
    found = duration_ms("retention", text)
    if not found:
        raise InvalidParameter("retention is to be more than nothing")
    return found


def with_retention(record: ObjectRecord, relation: ObjectRecord, text: str) -> ObjectRecord:
    """A subscription that keeps changes for another time; what is not kept any more does not come back."""
    name, source = quoted_name(record.schema, record.name), quoted_name(relation.schema, relation.name)
    spelled = text.replace("'", "''")
    definition = f"CREATE SUBSCRIPTION {name} FROM {source} WITH (retention = '{spelled}')"
    content = replace(record.content_as(SubscriptionContent), retention_ms=retention_ms(text))
    return replace(record, content=content, definition=definition, options={**record.options, "retention": text})


def _require_readable(context: Context, record: ObjectRecord, name: object) -> None:
    if not record.content.keeps_rows:
        raise WrongObjectType(f'"{name}" is a {record.kind_name}: changes are those of tables and materialized views')
    context.rights.require("r", record)


class RelationReader:
    """One reader of one relation: a position, and the piece that it has begun."""

    def __init__(self, context: Context, target: ObjectRecord, since: st.Since, *, holds: bool) -> None:
        """`target` is a relation, or a subscription to one."""
        self._context = context
        objects = context.catalog.state.objects
        subscription = target.content if isinstance(target.content, SubscriptionContent) else None
        self._subscription = 0 if subscription is None else target.id
        self.relation = objects[target.depends_on[0]] if self._subscription else target
        self._require()
        self.feed: Feed = context.coordinator.feed(self.relation.id, holds=holds)
        try:
            self.position = self._start(since, 0 if subscription is None else subscription.since)
        except BaseException:
            self.feed.close()
            raise
        self.last: int | None = None
        """The epoch with which it ends; None where it goes on for ever."""
        self._piece: ChangePiece | None = None
        self._taken = 0

    def _start(self, since: st.Since, history: int) -> LogPosition:
        if since.what == "now":
            return self.feed.newest()
        if since.what == "begin":
            return self.feed.oldest(history)
        if since.what == "full":
            return self.feed.whole()
        if since.what == "position":
            return self.feed.at(LogPosition.parse(since.position))
        coordinator = self._context.coordinator
        # Epochs may be ahead of the clock, after a crash or where it was put back.
        if since.at_ms > max(self._context.clock.now_ms(), epoch_ms(coordinator.current_epoch())):
            raise InvalidParameter(
                f"SINCE {since.at_ms} is in the future", hint="give Unix time in milliseconds, or now()"
            )
        return self.feed.at(LogPosition(max(from_unix_ms(since.at_ms) - 1, 0)))

    def _require(self) -> None:
        """Raise what speaks against reading on: the rights of now, and what was dropped."""
        objects = self._context.catalog.image.objects
        if self._subscription and self._subscription not in objects:
            raise UndefinedObject("the subscription does not exist any more", hint="it was dropped")
        self.relation = objects.get(self.relation.id, self.relation)
        self._context.rights.require("r", self.relation)

    def rows(self, most: int | None) -> Iterator[tuple[ChangePiece, int, int]]:
        """What there is now, up to so many rows and the last epoch: pieces, and from where to where.

        The position moves along. Where the end of an epoch that was begun, or of the content, turns out to have no
        rows, that is told as well.
        """
        left = most
        while left is None or left > 0:
            self._context.check()
            self._require()
            piece = self._piece
            if piece is None or self._taken >= len(piece):
                if self.has_ended:
                    return
                piece = self._read()
                if not len(piece):
                    ends, self.position = self.position.within and not piece.after.within, piece.after
                    if ends:
                        yield piece, 0, 0
                    if not piece.after.within and self._is_up_to_date():
                        return
                    continue
            low = self._taken
            high = min(low + piece.most(self._batch_rows), len(piece), low + left if left is not None else len(piece))
            self._taken, self.position = high, piece.position(high)
            left = None if left is None else left - (high - low)
            yield piece, low, high
            if high == len(piece) and self._piece is piece:  # nothing of it is kept for who comes back later
                self._piece = None

    @property
    def has_ended(self) -> bool:
        """Whether all has been given up to the last epoch."""
        return self.last is not None and not self.position.within and self.position.epoch >= self.last

    @property
    def _batch_rows(self) -> int:
        return self._context.settings.result_batch_rows

    def _is_up_to_date(self) -> bool:
        return not self.feed.wait(self.position, 0.0)

    def _read(self) -> ChangePiece:
        context = self._context
        try:
            piece = self.feed.read(self.position, self.last)
        except ObjectMissing as error:
            if not context.on_standby:
                raise
            context.look_again()
            try:
                piece = self.feed.read(self.position, self.last)
            except ObjectMissing:
                raise outrun(error) from error
        self._piece, self._taken = piece, 0
        return piece

    def wait(self, timeout_s: float | None) -> bool:
        """Wait for something new; False where the time is over before."""
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = _ADVANCE_S if until_s is None else min(_ADVANCE_S, until_s - time.monotonic())
            if self.feed.wait(self.position, max(left_s, 0.0), self._context.check):
                return True
            self._require()
            piece = self._read()
            if len(piece):
                return True
            self.position = piece.after
            if until_s is not None and time.monotonic() >= until_s:
                return False

    def go_back(self, position: LogPosition) -> None:
        """Read from an earlier position again."""
        self._piece, self.position = None, position

    def close(self) -> None:
        """Let go of what it holds; harmless when repeated."""
        self._piece = None
        self.feed.close()


# ---- cursors


class SubscriptionCursor:
    """A cursor over a subscription. It outlives transactions, and holds nothing: what it reads is kept anyway."""

    binary = False

    def __init__(self, context: Context, statement: st.DeclareSubscriptionCursor, subscription: ObjectRecord) -> None:
        self.name, self.subscription = statement.name, subscription
        self.reader = RelationReader(context, subscription, statement.since, holds=False)
        columns = [ResultColumn(c.name, c.type) for c in self.reader.relation.columns]
        self.columns = [*columns, ResultColumn("op", "string"), ResultColumn("rw_timestamp", "bigint")]

    @property
    def position(self) -> str:
        """Behind which change it is: `SINCE '<position>'` goes on there."""
        return str(self.reader.position)

    def fetch(self, direction: str, count: int | None, timeout_s: float | None) -> Iterator[pa.RecordBatch]:
        """The next rows, up to so many; where there is none, what comes first within the time. Whole ones only.

        Where that fails, also behind some of them, the cursor is where it was.
        """
        if direction != "forward" or (count is not None and count < 0):
            raise HeadraceError("cursor can only scan forward", sqlstate="55000")
        until_s = time.monotonic() + (timeout_s or 0.0)
        begun, found = self.reader.position, count == 0
        try:
            while True:
                # Of what comes while it is read there may be no end.
                self.reader.last = self.reader.feed.newest_epoch if count is None else None
                for piece, low, high in self.reader.rows(count):
                    if high > low:
                        found = True
                        yield self._batch(piece, low, high)
                self.reader.last = None
                if found or not self.reader.wait(max(until_s - time.monotonic(), 0.0)):
                    return
                begun = self.reader.position
        except Exception:
            if found:
                self.reader.go_back(begun)
            raise

    def _batch(self, piece: ChangePiece, low: int, high: int) -> pa.RecordBatch:
        at = piece.places(low, high)
        times = pa.array((piece.epochs[at] >> COUNTER_BITS) + EPOCH_START_MS)
        if piece.content:
            times = pa.nulls(len(at), pa.int64())
        columns = [*data_of(piece, at, self.columns[:-2]), operations_of(piece, at), times]
        return pa.RecordBatch.from_arrays(columns, names=[c.name for c in self.columns])

    def close(self) -> None:
        """Let go of it."""
        self.reader.close()


def data_of(piece: ChangePiece, at: Ints, columns: Sequence[ResultColumn]) -> list[pa.Array]:
    """The relation's columns of rows of a piece."""
    index = pa.array(at)
    found = [piece.rows.column(c.name).take(index) for c in columns]
    kinds = [arrow_type(c.type) for c in columns]
    return [a if a.type == kind else pc.cast(a, kind) for a, kind in zip(found, kinds)]


def operations_of(piece: ChangePiece, at: Ints) -> pa.Array:
    """What happens to rows of a piece, in a word each."""
    return pa.array(_NAMES).take(pa.array(piece.operations[at]))


def declare(context: Context, statement: st.DeclareSubscriptionCursor) -> Result:
    """DECLARE ... SUBSCRIPTION CURSOR."""
    context.cursors.require_free(statement.name)
    context.subscription_cursors.require_free(statement.name)
    found = names_of(context).find(statement.subscription)
    if found is None:
        raise UndefinedObject(f'subscription "{statement.subscription}" does not exist')
    if not isinstance(found.content, SubscriptionContent):
        raise WrongObjectType(
            f'"{statement.subscription}" is a {found.kind_name}',
            hint=f"CREATE SUBSCRIPTION ... FROM {label(found)} WITH (retention = '1 day')",
        )
    context.rights.require_in("U", found.schema)
    context.subscription_cursors.put(statement.name, SubscriptionCursor(context, statement, found))
    return Result(statement.tag)


def fetch(cursor: open_cursors.OpenSubscription, statement: st.FetchCursor) -> Result:
    """FETCH and MOVE of a cursor over a subscription."""
    rows = cursor.fetch(statement.direction, statement.count, statement.timeout_s)
    if statement.moves:
        return Result(statement.counted(sum(batch.num_rows for batch in rows)))
    first = next(rows, None)  # so that errors come up now, and what is waited for is here
    # What is read counts as fetched: so it is not read ahead, nor thrown away because its client is slow.
    return Result(statement.tag, cursor.columns, _chain(first, rows), follows=True)


def _chain(first: pa.RecordBatch | None, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if first is not None:
        yield first
        yield from rest


def followed(context: Context, name: st.TableName) -> ObjectRecord:
    """A relation whose changes the session may read, or a subscription, by name."""
    found = names_of(context).get(name)
    if isinstance(found.content, SubscriptionContent):
        context.rights.require_in("U", found.schema)
    else:
        _require_readable(context, found, name)
    return found


# ---- COPY (SUBSCRIBE ...)


def copy_subscribe(context: Context, statement: st.CopySubscribe) -> Result:
    """COPY (SUBSCRIBE ...) TO STDOUT: changes as they come, until the client cancels."""
    found = followed(context, statement.target)
    reader = RelationReader(context, found, statement.since, holds=True)
    own = [ResultColumn("epoch", "bigint"), ResultColumn("op", "string")]
    columns = [*own, *(ResultColumn(c.name, c.type) for c in reader.relation.columns)]
    try:
        if statement.ends:
            reader.last = reader.feed.newest_epoch
        names = [c.name for c in columns]
        check_lists(statement.format, names, names)
    except BaseException:
        reader.close()
        raise
    rows = _Followed(reader, columns, statement.progress)
    return Result(statement.tag, columns, rows, copy=statement.format, follows=not statement.ends)


class _Followed:
    """The rows of COPY (SUBSCRIBE ...): unless it ends, there is always a next one, though it may be long in coming."""

    def __init__(self, reader: RelationReader, columns: list[ResultColumn], progress: bool) -> None:
        self._reader = reader
        self._columns = columns
        self._progress = progress
        self._rows = self._batches()

    def __iter__(self) -> _Followed:
        return self

    def __next__(self) -> pa.RecordBatch:
        try:
            return next(self._rows)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of what is held; harmless when repeated."""
        self._rows.close()
        self._reader.close()

    def _batches(self) -> Generator[pa.RecordBatch, None, None]:
        reader, told = self._reader, 0
        while True:
            for piece, low, high in reader.rows(None):
                if high > low:
                    yield self._batch(piece, low, high)
                if self._progress and not reader.position.within:
                    told = reader.position.epoch
                    yield self._told(told)
            if reader.has_ended:
                return
            while not reader.wait(_ADVANCE_S):
                if self._progress and reader.position.epoch > told:
                    told = reader.position.epoch
                    yield self._told(told)

    def _batch(self, piece: ChangePiece, low: int, high: int) -> pa.RecordBatch:
        at = piece.places(low, high)
        columns = [pa.array(piece.epochs[at]), operations_of(piece, at), *data_of(piece, at, self._columns[2:])]
        return pa.RecordBatch.from_arrays(columns, names=[c.name for c in self._columns])

    def _told(self, epoch: int) -> pa.RecordBatch:
        kinds = [arrow_type(c.type) for c in self._columns[2:]]
        columns = [pa.array([epoch]), pa.array([PROGRESS]), *(pa.nulls(1, kind) for kind in kinds)]
        return pa.RecordBatch.from_arrays(columns, names=[c.name for c in self._columns])


HANDLERS: Final = (
    Handler(st.DeclareSubscriptionCursor, declare, needs=Needs.READ),
    Handler(st.CopySubscribe, copy_subscribe, needs=Needs.READ),
)


__all__ = [
    "PROGRESS", "RelationReader", "SubscriptionCursor", "copy_subscribe", "data_of", "declare", "fetch", "followed",
    "operations_of", "subscription_of", "with_retention",
]  # fmt: skip
