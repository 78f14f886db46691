"""The `files` connector: CSV, JSON lines, Parquet and Avro, of a file system or of object stores (see `options.py`).

Text files and JSON lines may be compressed (`.gz`, `.zst`). Positions are kept in the offsets per file, see
`FileState`; those of a replay under `@replay`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Self

import pyarrow as pa

from headrace.common.columns import Column
from headrace.common.last_used import LastUsed
from headrace.connectors.base import (
    FIELD_IDS,
    MORE,
    Admission,
    Binding,
    Offsets,
    ReadBatch,
    ReadTask,
    Source,
    common_options,
    kept_columns,
)
from headrace.connectors.files import infer, later_columns
from headrace.connectors.files.admission import Left
from headrace.connectors.files.file_listing import (
    BY_ROWS,
    FileState,
    file_states,
    format_of,
    is_compressed,
    list_files,
    merge_listing,
)
from headrace.connectors.files.formats import FilePiece, row_groups_of, rows_of_file
from headrace.connectors.files.lines import COMPRESSION, advance, align
from headrace.connectors.files.options import SOURCE, location, replay_options
from headrace.connectors.files.replay import ReplayRows, load_replay
from headrace.connectors.files.row_groups import nearest_end
from headrace.connectors.option_reader import OptionReader
from headrace.connectors.pacing import admit
from headrace.connectors.policy import ParsedRows, apply_policy
from headrace.connectors.spelling import place_of
from headrace.errors import InvalidParameter

MIN_PIECE_BYTES = 64 << 10
_ROW_BYTES = 64
"""What a row counts of files that are taken in by rows."""
_REPLAY_BATCH_ROWS = 65_536
_REPLAY = "@replay"
_FOOTERS_KEPT = 256
_WINDOW = 64
"""Files that a store makes ready at once to be looked at."""


class FileSource(Source):
    """See the module."""

    declared = SOURCE

    def __init__(self, options: Mapping[str, str], columns: Sequence[Column]):
        super().__init__(options, columns)
        self._later = later_columns.came(options)
        options = {name: value for name, value in options.items() if name != FIELD_IDS}
        found, reader = location(options), OptionReader(options)
        self.store, self.paths, self.format, self.text = found.store, found.paths, found.format, found.text
        self.on_error, self.max_rows = common_options(reader)
        self.replay_by, self.pace = replay_options(options, self.columns)
        self._refresh_ms = found.refresh_ms
        self._listing: tuple[int, list[FileState]] | None = None
        """When files were listed, and what was there."""
        self._row_groups = LastUsed[object, tuple[int, ...]](_FOOTERS_KEPT)

    @classmethod
    def infer_columns(cls, options: Mapping[str, str]) -> list[Column]:
        """The columns of the first file."""
        found = location(options)
        return infer.infer_file_columns(found.store, found.paths, found.format, found.text)

    @classmethod
    def refreshes(cls, options: Mapping[str, str]) -> bool:
        """See `Source`: the newest file."""
        return later_columns.can_come(options)

    @classmethod
    def widens(cls, options: Mapping[str, str]) -> bool:
        """See `Source`."""
        return later_columns.can_come(options)

    def columns_there(self, offsets: Offsets) -> list[Column]:
        """See `Source`: those of the newest file, by name; what type one has that is known, has been declared."""
        known = [c.name for c in self.columns]
        there = infer.columns_of_newest(self.store, self.paths, self.format, self.text)
        return [*self.columns, *(c for c in there if place_of(known, c.name) is None)]

    def found_by(self, columns: Sequence[Column]) -> dict[str, str]:
        """See `Source`."""
        return later_columns.found_by(self._later, columns)

    def start_offsets(self) -> Offsets:
        """No file yet."""
        return {}

    def latest_offsets(self, after: Offsets, limit: Admission, now_ms: int) -> Binding:
        """See `Source`; the order of new files is settled here."""
        if self.replay_by is not None:
            return self._bind_replay(after, limit, now_ms)
        known = file_states(after, self.store)
        states, pending = self._bounded(known, merge_listing(known, self._listed(known, now_ms)))
        left = Left(limit.rows(self.max_rows), limit.max_bytes)
        apart = {MORE: True} if pending else {}
        offsets = dict(after)  # most files stand where they stood: their entries are shared by all bindings
        for i, state in enumerate(states):
            reached = state
            if left.any and i % _WINDOW == 0:
                self._make_ready(states[i : i + _WINDOW])
            if left.any and not state.done:
                found, rows, size = self._advance(state, left)
                reached = found if left.take(rows, size) else state
            if reached is not state or state.path not in offsets:
                offsets[state.path] = reached.to_json()
            pending = pending or not reached.done
            if not reached.done:  # those that have not begun are many
                apart[state.path if reached.row or reached.byte else MORE] = True
        finished = self.store.is_fixed(self.paths) and not pending
        return Binding(offsets, left.taken_rows, finished, None, pending, apart=apart)

    def _listed(self, known: Sequence[FileState], now_ms: int) -> list[FileState]:
        """The files there are, as of a while ago at most."""
        if self._listing is None or not self._refresh_ms or now_ms - self._listing[0] >= self._refresh_ms:
            found = list_files(self.paths, self.format, {state.path for state in known}, self.store)
            self._listing = now_ms, found
        return self._listing[1]

    def _bounded(self, known: Sequence[FileState], states: Sequence[FileState]) -> tuple[Sequence[FileState], bool]:
        """As many new files as one binding takes in, and whether there are more."""
        most = self.store.most_new
        within = states if most is None else states[: len(known) + most]
        return within, len(within) < len(states)

    def _make_ready(self, states: Sequence[FileState]) -> None:
        """Tell the store which files are looked at next."""
        new = [state for state in states if not (state.done or state.row or state.byte)]
        self.store.warm((state.path, state.seen, self._format(state) == "parquet") for state in new)

    @property
    def time_column(self) -> str | None:
        """See `Source`."""
        return None if self.replay_by is None else self.replay_by.name

    def rows_between(self, from_: Offsets, to: Offsets) -> int | None:
        """See `Source`; the header of a CSV file counts, too."""
        if self.replay_by is not None:
            return _replayed(to) - _replayed(from_)
        begun, ended = self._moved(from_, to)
        return sum(state.row for state in ended) - sum(state.row for state in begun.values())

    def bytes_between(self, from_: Offsets, to: Offsets) -> int | None:
        """See `Source`; rows of a Parquet or Avro file, and those of a replay, count as alike."""
        if self.replay_by is not None:
            size = sum(state.size for state in file_states(to, self.store))
            return size * (_replayed(to) - _replayed(from_)) // max(to.get(_REPLAY, {}).get("rows", 0), 1)
        begun, ended = self._moved(from_, to)
        pairs = [(begun.get(state.path, replace(state, row=0, byte=0)), state) for state in ended]
        return sum(self._size(old, new) for old, new in pairs)

    def only(self, names: Sequence[str]) -> Self:
        """See `Source`; what could not be understood is looked for in all columns."""
        kept = kept_columns(self.columns, names)
        self.schema = pa.schema([self.schema.field(i) for i in kept])
        return self

    def plan(self, from_: Offsets, to: Offsets, parallelism: int) -> list[ReadTask]:
        """See `Source`; small files share a task, big ones are cut."""
        if self.replay_by is not None:
            return _plan_replay(from_, to, parallelism)
        begun, ended = self._moved(from_, to)
        ranges = []
        for state in ended:
            old = begun.get(state.path, replace(state, row=0, byte=0, done=False))
            if (old.row, old.byte) != (state.row, state.byte):
                ranges.append((old, state))
        return self._pack(ranges, max(1, parallelism))

    def read(self, task: ReadTask) -> Iterator[ReadBatch]:
        """See `Source`."""
        for parsed in self._parsed(task):
            there = parsed.batch.schema.names
            result = apply_policy(parsed, [c for c in self.columns if c.name in there], self.on_error)
            if result.batch.num_rows or result.error_count:
                arrays = [result.batch.column(name) for name in self.schema.names]
                split = parsed.splits[0] if len(parsed.splits) == 1 else None
                yield replace(result, batch=pa.RecordBatch.from_arrays(arrays, schema=self.schema), split=split)

    def _parsed(self, task: ReadTask) -> Iterator[ParsedRows]:
        if self.replay_by is not None:
            replay = self._replay(task["files"], self.columns)
            for start in range(task["start"], task["stop"], _REPLAY_BATCH_ROWS):
                yield replay.parsed(start, min(start + _REPLAY_BATCH_ROWS, task["stop"]))
            return
        for entry in task["pieces"]:
            state = file_states({entry["path"]: entry["file"]}, self.store)[0]
            # How long its text is: it is read to its end.
            unknown = self.store.remote and is_compressed(state.path) and not self._by_rows(state)
            piece = FilePiece(state, self._format(state), entry["start"], None if unknown else entry["stop"])
            yield from later_columns.read_with_nulls(piece, self.columns, self._later, self.text, self.schema.names)

    def _format(self, state: FileState) -> str:
        found = format_of(state.path, self.format)
        if found is None:
            raise InvalidParameter(f"option format is required: {state.path} has none of the known extensions")
        return found

    def _advance(self, state: FileState, left: Left) -> tuple[FileState, int, int]:
        """The state after what is taken in next, at least a row if there is one; how many rows and bytes that are."""
        if self._by_rows(state):
            total = rows_of_file(state, self._format(state))
            row = state.row + min(left.within(state.size, total), total - state.row)
            if row < total and self._format(state) == "parquet":
                row = self._whole_groups(state, row)
            new = replace(state, row=row, done=row == total, total=total)
            return new, row - state.row, state.size * (row - state.row) // max(total, 1)
        csv = self._format(state) == "csv"
        prologue = 1 if csv and self.text.header and state.byte == 0 else 0
        most = None if left.rows is None else left.rows + prologue
        new = advance(state, most, csv and self.text.multiline, left.bytes)
        return new, max(0, new.row - state.row - prologue), self._size(state, new)

    def _whole_groups(self, state: FileState, row: int) -> int:
        """Return the end of the last row group up to `row`, if it is not far below; else `row` itself."""
        end = max((end for end in self._groups_of(state) if end <= row), default=0)
        return end if end - state.row > (row - state.row) // 2 else row

    def _groups_of(self, state: FileState) -> tuple[int, ...]:
        return self._row_groups.of((state.path, state.seen), lambda: row_groups_of(state))

    def _size(self, old: FileState, new: FileState) -> int:
        """Return about how many bytes there are between two states of a file."""
        if self._by_rows(new):
            return new.size * (new.row - old.row) // max(new.total, new.row, 1)
        unread = is_compressed(new.path) and self.store.remote
        return (new.size * COMPRESSION if unread else new.byte) - old.byte

    def _moved(self, from_: Offsets, to: Offsets) -> tuple[dict[str, FileState], list[FileState]]:
        """The files that stand elsewhere in `to` than in `from_`: as they were, by path, and as they are, in order."""
        moved = {path: entry for path, entry in to.items() if from_.get(path) != entry}
        begun = file_states({path: from_[path] for path in moved if path in from_}, self.store)
        return {state.path: state for state in begun}, file_states(moved, self.store)

    def _splittable(self, state: FileState) -> bool:
        """Whether text, or Avro's blocks, can be read from the middle on without asking for all that is before."""
        if is_compressed(state.path) or (self._format(state) == "avro" and self.store.remote):
            return False
        return not (self._format(state) == "csv" and self.text.multiline)

    def _pack(self, ranges: Sequence[tuple[FileState, FileState]], parallelism: int) -> list[ReadTask]:
        sizes = [self._weight(old, new) for old, new in ranges]
        target = max(MIN_PIECE_BYTES, -(-sum(sizes) // parallelism))
        tasks: list[ReadTask] = []
        room = 0
        for (old, new), size in zip(ranges, sizes):
            done = 0
            while done < size:
                if room <= 0:
                    tasks.append({"pieces": []})
                    room = target
                part = min(room, size - done)
                start, stop = self._cut(old, new, done, size), self._cut(old, new, done + part, size)
                if start < stop:
                    tasks[-1]["pieces"].append({"path": new.path, "file": new.to_json(), "start": start, "stop": stop})
                done, room = done + part, room - part
                if not self._can_cut(new):
                    done = size
        return [task for task in tasks if task["pieces"]]

    def _can_cut(self, state: FileState) -> bool:
        return self._format(state) == "parquet" or self._splittable(state)

    def _by_rows(self, state: FileState) -> bool:
        return self._format(state) in BY_ROWS

    def _weight(self, old: FileState, new: FileState) -> int:
        if self._by_rows(new):
            return (new.row - old.row) * _ROW_BYTES
        return new.byte - old.byte

    def _cut(self, old: FileState, new: FileState, done: int, size: int) -> int:
        """The position nearest to `done` of `size` weight units of a range."""
        if self._by_rows(new):
            if done == 0:
                return old.row
            if done >= size or not self._can_cut(new):
                return new.row
            row = old.row + done // _ROW_BYTES
            return row if self._format(new) == "avro" else nearest_end(self._groups_of(new), row, old.row, new.row)
        if done == 0:
            return old.byte
        if done >= size or not self._splittable(new):
            return new.byte
        return min(align(new, old.byte + done), new.byte)

    def _bind_replay(self, after: Offsets, limit: Admission, now_ms: int) -> Binding:
        states = file_states(after, self.store) or list_files(self.paths, self.format, store=self.store)
        files = {state.path: state.to_json() for state in states}
        if not states:
            return Binding({}, 0, self.store.is_fixed(self.paths))
        assert self.replay_by is not None and self.pace is not None
        replay = self._replay(files, [self.replay_by])
        total = replay.batch.num_rows
        mark = after.get(_REPLAY, {"start_ms": None, "position": 0})
        schedule = replay.schedule(self.pace)
        start, position, behind = admit(
            schedule, mark["start_ms"], mark["position"], total, limit.rows(self.max_rows), now_ms
        )
        offsets = {**files, _REPLAY: {"start_ms": start, "position": position, "rows": total}}
        rows = position - mark["position"]
        return Binding(offsets, rows, position >= total, replay.watermark_us(position), behind)

    def _replay(self, files: Offsets, columns: Sequence[Column]) -> ReplayRows:
        assert self.replay_by is not None
        pairs = [(state, self._format(state)) for state in file_states(files, self.store)]
        return load_replay(pairs, columns, self.replay_by, self.text)


def _replayed(offsets: Offsets) -> int:
    """Return how many rows of a replay lie before an offset."""
    return int(offsets.get(_REPLAY, {}).get("position", 0))


def _plan_replay(from_: Offsets, to: Offsets, parallelism: int) -> list[ReadTask]:
    start = from_.get(_REPLAY, {}).get("position", 0)
    stop = to.get(_REPLAY, {}).get("position", 0)
    files = {path: entry for path, entry in to.items() if path != _REPLAY}
    count = max(1, min(parallelism, stop - start))
    cuts = [start + (stop - start) * i // count for i in range(count + 1)]
    return [{"files": files, "start": a, "stop": b} for a, b in pairwise(cuts) if a < b]
