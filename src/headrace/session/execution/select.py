"""SELECT: from a resolved query to a result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.errors import ObjectMissing, SerializationFailure, TooManyRows
from headrace.plan.catalyst.java_calls import stream
from headrace.session.context import Context
from headrace.session.engine import columns_of
from headrace.session.execution.simple import constant_row
from headrace.session.execution.snapshots import open_snapshot
from headrace.session.execution.spark_queries import computed, frame_of, rows_on_spark
from headrace.session.introspection import asked
from headrace.session.names import BoundQuery, names_of, null_relation
from headrace.session.reading.read_planning import PlannedRead, plan_read, read_here
from headrace.session.result import Notice, Result, ResultColumn, closing_if_possible
from headrace.session.system.asking_functions import localize
from headrace.sql import statements as st
from headrace.sql.query import Query

if TYPE_CHECKING:
    from headrace.coordinator.reads import Snapshot


_TRIES = 4
"""How often a standby reads what the active server deletes meanwhile."""


class Stream:
    """An iterator over batches that holds on to what they are read from until they end or it is closed."""

    def __init__(self, batches: Iterator[pa.RecordBatch], release: Callable[[], None], check: Callable[[], None]):
        self._batches = batches
        self._release = release
        self._check = check
        self._first: list[pa.RecordBatch] = []

    def start(self) -> Stream:
        """Fetch the first batch, so that errors come up now."""
        try:
            self._first = [next(self._batches)]
        except StopIteration:
            self.close()
        except BaseException:
            self.close()
            raise
        return self

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> pa.RecordBatch:
        if self._first:
            return self._first.pop()
        try:
            self._check()
            return next(self._batches)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go; harmless when repeated."""
        batches, self._batches = self._batches, iter(())
        close = getattr(batches, "close", None)
        if close is not None:
            close()
        release, self._release = self._release, lambda: None
        release()

    def __del__(self) -> None:
        self.close()


def select(context: Context, query: Query) -> Result:
    """The result of a query; on a standby by what the catalog names now, where objects that it named are gone."""
    for left in reversed(range(_TRIES)):
        try:
            return _select(context, query)
        except ObjectMissing as error:
            if not context.on_standby:
                raise
            if not left:
                raise outrun(error) from error
            context.look_again()
    raise AssertionError("unreachable")


def outrun(error: ObjectMissing) -> SerializationFailure:
    """What a standby says where the active server has deleted what a snapshot needs."""
    return SerializationFailure(
        "canceling statement due to conflict with recovery: the active server has deleted what this snapshot reads",
        detail=error.message,
        hint="run it again; vacuum_grace_ms of the active server says for how long objects are kept",
    )


def _outrunnable(context: Context, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows; `outrun` where an object is gone after the first of them have been handed out."""
    handed_out = False
    with closing_if_possible(batches):
        try:
            for batch in batches:
                yield batch
                handed_out = True
        except ObjectMissing as error:
            if handed_out and context.on_standby:
                raise outrun(error) from error
            raise


def _select(context: Context, query: Query) -> Result:
    answer = asked(context, query)
    if answer is not None:
        rows = _sized(context, iter(answer.rows.to_batches()))
        return Result(st.Select.told, answer.columns, Stream(rows, lambda: None, context.check).start())
    planned = plan_read(context, query)
    found = None if planned is None else read(context, planned, ())
    return _select_otherwise(context, query) if found is None else found


def read(context: Context, planned: PlannedRead, values: Sequence[object]) -> Result | None:
    """What is answered here; None where Spark is to answer."""
    if planned.plan.uses_now:
        values = (*values, *context.times.values())
    with ExitStack() as stack:
        found = read_here(context, planned, values, stack)
        if found is None:
            return None
        return _result(context, planned.plan.columns, *found, stack)


def _result(
    context: Context, columns: list[ResultColumn], batches: Iterator[pa.RecordBatch], snapshot: Snapshot | None,
    stack: ExitStack,
) -> Result:  # fmt: skip
    """The rows as a result that lets go of what the stack holds when they end."""
    notices = [Notice(text, "WARNING", "01000") for text in snapshot.notices] if snapshot is not None else []
    sized = _sized(context, _outrunnable(context, batches))
    return Result(st.Select.told, columns, Stream(sized, stack.pop_all().close, context.check).start(), notices)


def _select_otherwise(context: Context, query: Query) -> Result:
    query = localize(context, query)
    constant = constant_row(query, context.zone)
    if constant is not None:
        columns, row = constant
        return Result(st.Select.told, columns, iter([row]))
    bound = BoundQuery(query, names_of(context))
    with ExitStack() as stack:
        snapshot = open_snapshot(context, bound, stack)
        columns, batches = rows_on_spark(context, bound, snapshot)
        return _result(context, bound.with_origins(columns), batches, snapshot, stack)


def _sized(context: Context, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches that are not too large. Raises `TooManyRows`; `max_result_rows` of 0 is no limit."""
    settings = context.settings
    most_rows, batch_rows, rows = settings.max_result_rows, settings.result_batch_rows, 0
    with closing_if_possible(batches):
        for batch in batches:
            rows += batch.num_rows
            if most_rows and rows > most_rows:
                raise TooManyRows(
                    f"the query returns more than {most_rows} rows",
                    hint="ask for fewer with LIMIT, or ALTER SYSTEM SET max_result_rows",
                )
            for start in range(0, max(batch.num_rows, 1), batch_rows):
                yield batch.slice(start, batch_rows)


def compute(context: Context, bound: BoundQuery, wrap: Callable[[list[ResultColumn], str], str]) -> pa.Table:
    """All rows of a query after `wrap` has put more Spark SQL around its text."""
    with ExitStack() as stack:
        snapshot = open_snapshot(context, bound, stack)
        found = describe(context, bound)
        frame = frame_of(context, bound, snapshot, lambda text: wrap(found, text))
        batches = list(computed(context, bound.query.text, stream(frame)))
        columns = columns_of(frame)
    if not batches:
        return Result("", columns).table()
    return pa.Table.from_batches(batches)


def describe(context: Context, bound: BoundQuery) -> list[ResultColumn]:
    """The columns of a query, without running it."""
    text, kept = bound.spark(lambda target: null_relation(target.columns)), context.engine.kept
    columns = kept.columns(text)
    if columns is None:
        with context.jobs.running(bound.query.text):
            columns = tuple(context.engine.analyze(text))
        kept.describe(text, columns)
    return list(columns)


def describe_query(context: Context, query: Query) -> list[ResultColumn]:
    """The columns of a query, by the shortest way."""
    answer = asked(context, query, described=True)
    if answer is not None:
        return answer.columns
    planned = plan_read(context, query)
    if planned is not None:
        return planned.plan.columns
    query = localize(context, query)
    constant = constant_row(query, context.zone)
    if constant is not None:
        return constant[0]
    bound = BoundQuery(query, names_of(context))
    return bound.with_origins(describe(context, bound))
