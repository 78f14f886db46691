"""The `files` connector: CSV, JSON lines and Parquet files of a local (or mounted) file system.

Options, besides those of every source:

`path`                a directory, glob, file, or a comma-separated list of them
`format`              csv, json or parquet; default by extension (files of other extensions are then left alone)
`header`              csv: whether the first record names the columns (default true; else columns go by place)
`delimiter`           csv: one character, or `\\t` (default `,`)
`null_string`         csv: the unquoted text that means NULL (default empty); empty is NULL for all but text columns
`multiline`           csv: whether quoted values may hold line breaks (default false; such files are read by one task)
`max_rows_per_epoch`  at most this many records per binding
`replay_column`       replay in the order of this event-time column (see `file_replay`), paced by one of
`replay_speed`        event time per wall-clock time (1 = real time, the default)
`replay_rate`         rows per second
`replay_duration`     the whole input within this time (`60s`), in proportion to event time

Text files and JSON lines may be compressed (`.gz`). Positions are kept in the offsets per file, see `FileState`; those
of a replay under `@replay`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Self

import pyarrow as pa

from headrace.common.columns import Column
from headrace.connectors import file_infer
from headrace.connectors.base import Admission, Binding, Offsets, ReadBatch, ReadTask, Source, kept_columns
from headrace.connectors.file_formats import Piece, TextOptions, open_parquet, read_piece
from headrace.connectors.file_lines import advance, align, is_compressed
from headrace.connectors.file_listing import (
    FORMATS,
    FileState,
    file_states,
    format_of,
    is_fixed,
    list_files,
    merge_listing,
    split_paths,
)
from headrace.connectors.file_replay import Pace, Replay, load_replay
from headrace.connectors.options import OptionReader
from headrace.connectors.pacing import admit
from headrace.connectors.policy import Parsed, apply_policy
from headrace.errors import InvalidParameter

OPTIONS = (
    *("path", "format", "header", "delimiter", "null_string", "multiline"),
    *("replay_column", "replay_speed", "replay_rate", "replay_duration"),
)
MIN_PIECE_BYTES = 64 << 10
_PARQUET_ROW_BYTES = 64
_REPLAY_BATCH_ROWS = 65_536
_REPLAY = "@replay"
_EVENT_TIMES = ("timestamp", "timestamp_ntz", "date")


class FileSource(Source):
    """See the module."""

    def __init__(self, options: Mapping[str, str], columns: Sequence[Column]):
        super().__init__(options, columns)
        reader = OptionReader(options)
        self.paths, self.format, self.text = location(reader)
        self.on_error = reader.on_error()
        self.max_rows = reader.integer("max_rows_per_epoch", 1)
        self.replay_by, self.pace = _replay_options(reader, self.columns)

    @classmethod
    def infer_columns(cls, options: Mapping[str, str]) -> list[Column]:
        """The columns of the first file."""
        paths, declared, text = location(OptionReader(options))
        return file_infer.infer_file_columns(paths, declared, text)

    def start_offsets(self) -> Offsets:
        """No file yet."""
        return {}

    def latest_offsets(self, after: Offsets, limit: Admission, now_ms: int) -> Binding:
        """See `Source`; the order of new files is settled here."""
        if self.replay_by is not None:
            return self._bind_replay(after, limit, now_ms)
        known = file_states(after)
        listed = list_files(self.paths, self.format, {state.path for state in known})
        states = merge_listing(known, listed)
        left = limit.rows(self.max_rows)
        rows, pending = 0, False
        offsets = dict(after)  # most files stand where they stood: their entries are shared by all bindings
        for state in states:
            reached, taken = state, 0
            if not state.done and (left is None or rows < left):
                reached, taken = self._advance(state, None if left is None else left - rows)
            if reached is not state or state.path not in offsets:
                offsets[state.path] = reached.to_json()
            rows, pending = rows + taken, pending or not reached.done
        return Binding(offsets, rows, is_fixed(self.paths) and not pending, None, pending)

    @property
    def time_column(self) -> str | None:
        """See `Source`."""
        return None if self.replay_by is None else self.replay_by.name

    def rows_between(self, from_: Offsets, to: Offsets) -> int | None:
        """See `Source`; the header of a CSV file counts, too."""
        if self.replay_by is not None:
            return None
        begun, ended = _moved(from_, to)
        return sum(state.row for state in ended) - sum(state.row for state in begun.values())

    def only(self, names: Sequence[str]) -> Self:
        """See `Source`; what could not be understood is looked for in all columns."""
        kept = kept_columns(self.columns, names)
        self.schema = pa.schema([self.schema.field(i) for i in kept])
        return self

    def plan(self, from_: Offsets, to: Offsets, parallelism: int) -> list[ReadTask]:
        """See `Source`; small files share a task, big ones are cut."""
        if self.replay_by is not None:
            return _plan_replay(from_, to, parallelism)
        begun, ended = _moved(from_, to)
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
                yield replace(result, batch=pa.RecordBatch.from_arrays(arrays, schema=self.schema))

    def _parsed(self, task: ReadTask) -> Iterator[Parsed]:
        if self.replay_by is not None:
            replay = self._replay(task["files"], self.columns)
            for start in range(task["start"], task["stop"], _REPLAY_BATCH_ROWS):
                yield replay.parsed(start, min(start + _REPLAY_BATCH_ROWS, task["stop"]))
            return
        for entry in task["pieces"]:
            state = file_states({entry["path"]: entry["file"]})[0]
            piece = Piece(state, self._format(state), entry["start"], entry["stop"])
            yield from read_piece(piece, self.columns, self.text, self.schema.names)

    def _format(self, state: FileState) -> str:
        found = format_of(state.path, self.format)
        if found is None:
            raise InvalidParameter(f"option format is required: {state.path} has none of the known extensions")
        return found

    def _advance(self, state: FileState, limit: int | None) -> tuple[FileState, int]:
        if self._format(state) == "parquet":
            with open_parquet(state) as file:
                total: int = file.metadata.num_rows
            row = total if limit is None else min(total, state.row + limit)
            return replace(state, row=row, done=row == total), row - state.row
        csv = self._format(state) == "csv"
        prologue = 1 if csv and self.text.header and state.byte == 0 else 0
        new = advance(state, None if limit is None else limit + prologue, csv and self.text.multiline)
        return new, max(0, new.row - state.row - prologue)

    def _splittable(self, state: FileState) -> bool:
        return not is_compressed(state.path) and not (self._format(state) == "csv" and self.text.multiline)

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

    def _weight(self, old: FileState, new: FileState) -> int:
        if self._format(new) == "parquet":
            return (new.row - old.row) * _PARQUET_ROW_BYTES
        return new.byte - old.byte

    def _cut(self, old: FileState, new: FileState, done: int, size: int) -> int:
        """The position nearest to `done` of `size` weight units of a range."""
        if self._format(new) == "parquet":
            return old.row + done // _PARQUET_ROW_BYTES if done < size else new.row
        if done == 0:
            return old.byte
        if done >= size or not self._splittable(new):
            return new.byte
        return min(align(new, old.byte + done), new.byte)

    def _bind_replay(self, after: Offsets, limit: Admission, now_ms: int) -> Binding:
        states = file_states(after) or list_files(self.paths, self.format)
        files = {state.path: state.to_json() for state in states}
        if not states:
            return Binding({}, 0, is_fixed(self.paths))
        assert self.replay_by is not None and self.pace is not None
        replay = self._replay(files, [self.replay_by])
        total = replay.batch.num_rows
        mark = after.get(_REPLAY, {"start_ms": None, "position": 0})
        schedule = replay.schedule(self.pace)
        start, position, behind = admit(
            schedule, mark["start_ms"], mark["position"], total, limit.rows(self.max_rows), now_ms
        )
        offsets = {**files, _REPLAY: {"start_ms": start, "position": position}}
        rows = position - mark["position"]
        return Binding(offsets, rows, position >= total, replay.watermark_us(position), behind)

    def _replay(self, files: Offsets, columns: Sequence[Column]) -> Replay:
        assert self.replay_by is not None
        pairs = [(state, self._format(state)) for state in file_states(files)]
        return load_replay(pairs, columns, self.replay_by, self.text)


def _moved(from_: Offsets, to: Offsets) -> tuple[dict[str, FileState], list[FileState]]:
    """The files that stand elsewhere in `to` than in `from_`: as they were, by path, and as they are, in order."""
    moved = {path: entry for path, entry in to.items() if from_.get(path) != entry}
    begun = file_states({path: from_[path] for path in moved if path in from_})
    return {state.path: state for state in begun}, file_states(moved)


def location(reader: OptionReader) -> tuple[list[str], str | None, TextOptions]:
    """Where the files are, their declared format, and how text is laid out."""
    reader.refuse_unknown(OPTIONS)
    paths = split_paths(reader.required("path"))
    if not paths:
        raise InvalidParameter("option path must name a directory, glob or file")
    declared = reader.choice("format", FORMATS, "csv") if reader.has("format") else None
    delimiter = reader.options.get("delimiter", ",")
    delimiter = "\t" if delimiter == "\\t" else delimiter
    if len(delimiter) != 1 or delimiter in '"\r\n0' or not delimiter.isascii():
        raise InvalidParameter(
            f"option delimiter must be one ASCII character other than a quote or 0, not {delimiter!r}"
        )
    text = TextOptions(
        reader.boolean("header", True),
        delimiter,
        reader.options.get("null_string", ""),
        reader.boolean("multiline", False),
    )
    return paths, declared, text


def _replay_options(reader: OptionReader, columns: Sequence[Column]) -> tuple[Column | None, Pace | None]:
    paces = ("replay_speed", "replay_rate", "replay_duration")
    given = [name for name in paces if reader.has(name)]
    if len(given) > 1:
        raise InvalidParameter(f"options {' and '.join(given)} exclude each other: give one of {', '.join(paces)}")
    if not reader.has("replay_column"):
        if given:
            raise InvalidParameter(f"option {given[0]} needs the option replay_column")
        return None, None
    name = reader.required("replay_column")
    column = next((c for c in columns if c.name == name), None)
    if column is None or column.type not in _EVENT_TIMES:
        fitting = ", ".join(c.name for c in columns if c.type in _EVENT_TIMES) or "there is none"
        raise InvalidParameter(
            f"option replay_column must be a column of type timestamp, timestamp_ntz or date ({fitting}), not {name!r}"
        )
    speed, rate = reader.positive("replay_speed"), reader.positive("replay_rate")
    duration_ms = reader.duration_ms("replay_duration")
    return column, Pace(speed if given else 1.0, rate, duration_ms)


def _plan_replay(from_: Offsets, to: Offsets, parallelism: int) -> list[ReadTask]:
    start = from_.get(_REPLAY, {}).get("position", 0)
    stop = to.get(_REPLAY, {}).get("position", 0)
    files = {path: entry for path, entry in to.items() if path != _REPLAY}
    count = max(1, min(parallelism, stop - start))
    cuts = [start + (stop - start) * i // count for i in range(count + 1)]
    return [{"files": files, "start": a, "stop": b} for a, b in pairwise(cuts) if a < b]
