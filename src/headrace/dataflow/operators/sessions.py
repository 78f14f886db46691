"""Session windows: rows that follow each other at less than a gap, by key and time.

Rows lie in the order of their times (`__h` is the time itself), so of a key only the sessions are read that the new and
the removed rows can touch. A change puts out the rows of a session whose start or end it has moved, and itself.

The stage reads of each changed key a stretch of time around the change (`Arrangement.between`), wider as long as the
session goes on at its ends, and finds start and end of each row before and after. Rows whose session has moved come
out twice, all others not at all.

With a watermark, rows of a session that goes on may be as old as they like. They expire by a column of their own,
`until`, the same in all rows of a session and never before its end. It is put off by the length of the session at a
time, so rows are written again when their session has doubled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from headrace.common.lazy_dataclass import dataclass
from headrace.dataflow.operators.task import Keyed, Labelled, Task, as_type, collect, int64, sliced, state_batch
from headrace.errors import HeadraceError, InvalidDatetime
from headrace.state.arrangement import Arrangement
from headrace.state.kernels import checked, concat, consolidate, group_rows, stable_order
from headrace.state.kernels.equality import Bools, Ints
from headrace.state.schema import TableSchema

TABLE, TIME, UNTIL = "rows", "t", "until"
_NEVER, _FOREVER = np.iinfo(np.int64).min, np.iinfo(np.int64).max
_REACH = 16
"""How many gaps before and after a change are read at first, and how many times as far whenever that is too near."""
_FARTHEST_US = 1 << 61


@dataclass(frozen=True)
class SessionStage(Labelled, Keyed):
    """State table `rows`: every row by key, with its time `t`, Unix microseconds, which is its `__h`.

    Where the table expires, `until` is a time that is not before the end of the row's session, and the same in all of
    its rows: so none of them goes before the watermark has passed the session. It is further off than the end by as
    much as the session is long: a session that goes on has its rows written once whenever it has doubled, not in each
    epoch.

    Input rows are `__k`, `__w`, keys, `t`, and values. Output rows are the state's `columns`, then the start and the
    end of the session, then `__w`.
    """

    operator: str
    schema: TableSchema
    gap_us: int
    columns: tuple[str, ...]
    output: pa.Schema

    def run(self, task: Task, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Find the sessions that the delta touches as they were and as they are, and put out what differs."""
        batch = collect(batches)
        if batch is None:
            return
        delta = consolidate(self._taken_in(batch), self._versions)
        if not delta.num_rows:
            return
        known = self._touched(task.arrangement(TABLE, self.schema), delta)
        rows = consolidate(concat([known, delta], delta.schema), self._versions)
        old, change = int64(rows.column("__w")), int64(rows.column("__d"))
        new = old + change
        if new.min() < 0:
            raise HeadraceError(f"operator {self.operator} was told to remove a row that it does not have")
        time, group = int64(rows.column(TIME)), _groups(rows, self._versions)
        if int(time.max()) > _FOREVER - self.gap_us:
            raise InvalidDatetime("timestamp out of range: a session that begins then has no end")
        order = stable_order([group, time])
        before, after = (self._sessions(group, time, order[weights[order] > 0]) for weights in (old, new))
        moved = (old > 0) & (new > 0) & ((before[0] != after[0]) | (before[1] != after[1]))
        stays = ~moved & (change != 0)
        gone, come = moved | (stays & (new == 0)), moved | (stays & (new > 0))
        for which, weights, session in ((gone, -old, before), (come, np.where(moved, new, change), after)):
            yield from self._out(rows, order[which[order]], group, weights, session)
        task.write([(TABLE, self.schema, self._kept(rows, old, new, self._until(rows, group, time, order)))])

    @property
    def _versions(self) -> TableSchema:
        """Rows before and after: `__w` is the weight in the state, `__d` its change."""
        values = tuple(f for f in self.schema.value if f.name != UNTIL)
        change, until = pa.field("__d", pa.int64(), nullable=False), pa.field(UNTIL, pa.int64())
        return TableSchema(self.schema.key, values, (*self.schema.diffs, (change, "add"), (until, "max")))

    def _taken_in(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = {name: batch.column(name) for name in batch.schema.names}
        nothing = pa.array(np.zeros(batch.num_rows, dtype=np.int64))
        columns |= {"__h": columns[TIME], "__d": columns["__w"], "__w": nothing}
        return state_batch(self._versions, {**columns, UNTIL: pa.nulls(batch.num_rows, pa.int64())})

    def _touched(self, table: Arrangement, delta: pa.RecordBatch) -> pa.RecordBatch:
        """The stored rows of all sessions that the rows of the delta belong to or could join together."""
        found = [self._stored(table, *_spans(delta))] if table.refs else []
        rows = concat(found, self.schema.arrow())
        columns = {name: rows.column(name) for name in rows.schema.names}
        columns.setdefault(UNTIL, pa.nulls(rows.num_rows, pa.int64()))
        return state_batch(self._versions, {**columns, "__d": pa.array(np.zeros(rows.num_rows, dtype=np.int64))})

    def _stored(self, table: Arrangement, keys: Ints, low: Ints, high: Ints) -> pa.RecordBatch:
        """For each `__k` the rows from `low` to `high`, and those that follow each other from there on both sides."""
        found: list[pa.RecordBatch] = []
        reach = min(self.gap_us * _REACH, _FARTHEST_US)
        while len(keys):
            begin, end = np.maximum(low, _NEVER + reach) - reach, np.minimum(high, _FOREVER - reach) + reach
            near = table.between(keys, begin, end)
            first, last = self._chain(near, keys, low, high)
            done = (first - begin >= self.gap_us) & (end - last >= self.gap_us) | (reach == _FARTHEST_US)
            place, time = np.searchsorted(keys, int64(near.column("__k"))), int64(near.column(TIME))
            found.append(near.filter(pa.array(done[place] & (first[place] <= time) & (time <= last[place]))))
            keys, low, high = keys[~done], low[~done], high[~done]
            reach = min(reach * _REACH, _FARTHEST_US)
        return concat(found, self.schema.arrow())

    def _chain(self, near: pa.RecordBatch, keys: Ints, low: Ints, high: Ints) -> tuple[Ints, Ints]:
        """For each key the first and the last time that is reached from `low` and `high` by steps below the gap."""
        each = np.arange(len(keys))
        which = np.concatenate((np.searchsorted(keys, int64(near.column("__k"))), each, each))
        time = np.concatenate((int64(near.column(TIME)), low, high))
        order = stable_order([which, time])
        begins = np.flatnonzero(_begins(which[order], time[order], self.gap_us))
        at = np.empty(len(order), dtype=np.int64)
        at[order] = np.arange(len(order))
        first = begins[np.searchsorted(begins, at[near.num_rows : near.num_rows + len(keys)], side="right") - 1]
        following = np.searchsorted(begins, at[near.num_rows + len(keys) :], side="right")
        last = np.append(begins, len(order))[following] - 1
        return time[order[first]], time[order[last]]

    def _sessions(self, group: Ints, time: Ints, order: Ints) -> tuple[Ints, Ints]:
        """Start and end of the session of each row at `order`, sorted by group and time; 0 for all others."""
        start, end = np.zeros(len(time), dtype=np.int64), np.zeros(len(time), dtype=np.int64)
        begins = _begins(group[order], time[order], self.gap_us)
        first, number = np.flatnonzero(begins), np.cumsum(begins) - 1
        last = np.append(first, len(order))[1:] - 1
        start[order] = time[order[first]][number]
        end[order] = time[order[last]][number] + self.gap_us
        return start, end

    def _out(
        self, rows: pa.RecordBatch, places: Ints, group: Ints, weights: Ints, session: tuple[Ints, Ints]
    ) -> Iterator[pa.RecordBatch]:
        """The rows at places that are sorted by group and time; those that show nothing but their session as one."""
        weights = weights[places]
        if len(places) and all(name.startswith("k") for name in self.columns):
            whose, start = group[places], session[0][places]
            first = np.flatnonzero(np.append(True, (whose[1:] != whose[:-1]) | (start[1:] != start[:-1])))
            places, weights = places[first], checked.sums(weights, first, what=checked.ROWS)
        part = rows.take(pa.array(places))
        columns = [part.column(name) for name in self.columns]
        columns += [pa.array(values) for values in (session[0][places], session[1][places], weights)]
        arrays = [as_type(c, f.type) for c, f in zip(columns, self.output, strict=True)]
        yield from sliced(pa.RecordBatch.from_arrays(arrays, schema=self.output))

    def _kept(self, rows: pa.RecordBatch, old: Ints, new: Ints, after: Ints | None) -> pa.RecordBatch:
        """The change of the state; `after` is until when each row is to be kept, where rows expire."""
        known = {f.name: rows.column(f.name) for f in rows.schema}
        if after is None:
            parts = [(old != new, new - old, old)]
        else:
            before = np.asarray(known[UNTIL].fill_null(_NEVER))
            late = (old > 0) & (before != after)
            rest = ~late & (old != new)
            parts = [(late, -old, before), (late & (new > 0), new, after), (rest, new - old, after)]
        batches = []
        for which, weights, until in parts:
            columns = {name: column.filter(pa.array(which)) for name, column in known.items()}
            columns |= {"__w": pa.array(weights[which]), UNTIL: pa.array(until[which])}
            batches.append(state_batch(self.schema, columns))
        return consolidate(concat(batches, self.schema.arrow()), self.schema)

    def _until(self, rows: pa.RecordBatch, group: Ints, time: Ints, order: Ints) -> Ints | None:
        """Until when each row is kept, the same in all of a session: as before, where that is not before its end.

        The sessions are those of old and new rows together, so that none of either ends later. None where rows do not
        expire.
        """
        if self.schema.expires is None:
            return None
        start, end = (times[order] for times in self._sessions(group, time, order))
        begins = _begins(group[order], time[order], self.gap_us)
        known = np.asarray(rows.column(UNTIL).fill_null(_NEVER))[order]
        latest = np.maximum.reduceat(known, np.flatnonzero(begins))[np.cumsum(begins) - 1]
        after = np.empty(len(order), dtype=np.int64)
        length = end - start
        after[order] = np.where(latest >= end, latest, np.minimum(end, _FOREVER - length) + length)
        return after


def _spans(delta: pa.RecordBatch) -> tuple[Ints, Ints, Ints]:
    """Every `__k` of sorted rows, with its first and its last time."""
    k, time = int64(delta.column("__k")), int64(delta.column(TIME))
    first = np.flatnonzero(np.append(True, k[1:] != k[:-1]))
    return k[first], time[first], time[np.append(first[1:], len(k)) - 1]


def _groups(rows: pa.RecordBatch, schema: TableSchema) -> Ints:
    """A number for each row, of rows sorted by `__k`: the same where all key columns are equal."""
    if not schema.key or not rows.num_rows:
        return np.zeros(rows.num_rows, dtype=np.int64)
    keys = replace(schema, value=())
    found = group_rows(rows.select(["__k", *(f.name for f in schema.key)]), keys)
    begins = np.zeros(rows.num_rows, dtype=np.int64)
    begins[found.starts[1:]] = 1
    numbers = np.cumsum(begins)
    if found.order is None:
        return numbers
    group = np.empty_like(numbers)
    group[found.order] = numbers
    return group


def _begins(group: Ints, time: Ints, gap_us: int) -> Bools:
    """Which rows, sorted by group and time, begin a session."""
    begins = np.ones(len(time), dtype=np.bool_)
    # Differences of sorted times need all 64 bits: they are right modulo 2**64.
    begins[1:] = (group[1:] != group[:-1]) | ((time[1:] - time[:-1]).view(np.uint64) >= np.uint64(gap_us))
    return begins
