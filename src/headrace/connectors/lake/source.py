"""What the sources of lake tables have in common: a table's rows, and then what each snapshot makes of them.

An offset names a snapshot (of Delta: a version). The rows at an offset are those of the snapshot, and what is read
between two offsets is the difference: see `changes.py`. The first snapshot is taken in by files, so its offsets also
say how many; a later one as a whole. With `append_only` rows are followed that commits add, and a commit that takes
rows away fails the source; only then it may begin with what is added next.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any, ClassVar, Final, Self

import pyarrow as pa

from headrace.common.columns import Column, arrow_type
from headrace.common.last_used import LastUsed
from headrace.common.lazy_dataclass import dataclass
from headrace.connectors.base import (
    FIELD_IDS,
    MORE,
    Admission,
    Binding,
    Offsets,
    ReadBatch,
    ReadTask,
    RowError,
    Source,
    common_options,
)
from headrace.connectors.declared import DeclaredOptions, Option
from headrace.connectors.files.infer import spark_type
from headrace.connectors.lake import changes
from headrace.connectors.lake.changes import Commit, Content, LakeFile, Piece
from headrace.connectors.lake.rows import FileChanges
from headrace.connectors.lake.tables import holds
from headrace.connectors.option_reader import COMMON_OPTIONS, OptionReader
from headrace.connectors.parsed_values import cast_array
from headrace.connectors.policy import ParsedRows, apply_policy, sample
from headrace.connectors.spelling import SeveralSpellings, spelled
from headrace.errors import HeadraceError, NotSupported, SourceError

EARLIEST, LATEST = "earliest", "latest"
FOLLOWING: Final = (
    Option("scan.startup.mode", "`earliest`: the rows that are there, and then what changes. `latest`: only rows that "
           "are added from now on.", default=EARLIEST, choices=(EARLIEST, LATEST)),
    Option("append_only", "Rows are only added: a commit that takes rows away fails the source. `latest` means "
           "so, too.", "boolean", default="false"),
    Option("refresh.interval", "How often the table is looked at.", "duration", default="5s"),
)  # fmt: skip
"""The options of how a table is followed."""
TABLE, AT, TAKEN, SAME, BEGAN, FIELDS = "table", "at", "taken", "same", "began", "fields"
ROWS, BYTES = "rows", "bytes"
"""In offsets: the table's identity; the snapshot; how many files of it, None for all; the snapshot that has the same
rows; the first snapshot; what columns are called in files; how many rows and bytes have been bound in all."""
AGAIN: Final = "drop the source (or the table here) and create it again: it begins with the content of then"
WEIGHT: Final = "__w"
_CONTENTS_KEPT: Final = 4
_MOST_COMMITS: Final = 100
"""So many are bound at once where each is looked at by itself."""


@dataclass(frozen=True)
class LakeField:
    """A column of a table."""

    name: str
    id: int | str
    """What it keeps when it is renamed."""
    type: pa.DataType
    nullable: bool


class LakeTable:
    """A table as it was when it was looked at."""

    name: str
    """For people."""
    identity: str
    newest: int | None
    """None where nothing has been committed yet."""

    def is_current(self) -> bool:
        """Whether it is known at little cost that nothing has been committed since."""
        return False

    @abstractmethod
    def has(self, at: int) -> bool:
        """Whether a snapshot is known still."""

    @abstractmethod
    def commits(self, after: int | None) -> list[Commit] | None:
        """How the newest snapshot came of another, None if that cannot be told."""

    @abstractmethod
    def content(self, at: int) -> Content:
        """The files of a snapshot. Raises `SourceError` for what is not understood."""

    @abstractmethod
    def fields(self, at: int | None) -> Sequence[LakeField]:
        """The columns as of a snapshot. Raises `SourceError` for what is not understood."""


class LakeSource(Source):
    """See the module."""

    declared: ClassVar[DeclaredOptions]

    @classmethod
    def retracts(cls, options: Mapping[str, str]) -> bool:
        """Unless rows are only added."""
        reader = OptionReader(options)
        return not reader.boolean("append_only", False) and options.get("scan.startup.mode") != LATEST

    @classmethod
    def infer_columns(cls, options: Mapping[str, str]) -> list[Column]:
        """Those of the table. Raises `NotSupported` for a type that no column has."""
        return cls(options, []).columns_there({})

    @classmethod
    def refreshes(cls, options: Mapping[str, str]) -> bool:
        """See `Source`: the table says it."""
        return True

    @classmethod
    def widens(cls, options: Mapping[str, str]) -> bool:
        """See `Source`: files that are older than a column have NULL."""
        return True

    def __init__(self, options: Mapping[str, str], columns: Sequence[Column]):
        super().__init__(options, columns)
        self.values = self.declared.read({n: v for n, v in options.items() if n != FIELD_IDS}, COMMON_OPTIONS)
        self._came: dict[str, int | str] = json.loads(options.get(FIELD_IDS, "{}"))
        """What columns are called in files that have come since it was made."""
        self.name = ""
        self._on_error, self._max_rows = common_options(OptionReader(options))
        self._from_now = self.values["scan.startup.mode"] == LATEST
        self._retracts = self.retracts(options)
        self._refresh_ms: float = self.values["refresh.interval"]
        self._wanted = [c.name for c in self.columns]
        self._looked: tuple[int, LakeTable] | None = None
        self._left: tuple[LakeTable, tuple[str, ...]] | None = None
        self._contents = LastUsed[int, Content](_CONTENTS_KEPT)

    @abstractmethod
    def _look(self) -> LakeTable:
        """The table as it is now. Raises `SourceError` where there is none."""

    @abstractmethod
    def _rows(self, task: ReadTask, piece: Mapping[str, Any], names: Sequence[str]) -> Iterator[FileChanges]:
        """The rows of a piece of which there is more or less now, in order. Raises `SourceError`."""

    def _ends(self, file: LakeFile) -> Sequence[int]:
        """Return after which rows a file can be cut, its last one among them; none where it is read as a whole."""
        return ()

    @abstractmethod
    def _task(self, fields: Mapping[str, Any], at: int | None) -> dict[str, Any]:
        """What every task is told."""

    @contextmanager
    def _told(self) -> Iterator[None]:
        """What packages raise inside the block as errors of the source."""
        try:
            yield
        except (HeadraceError, AssertionError, GeneratorExit):
            raise
        except FileNotFoundError as error:
            raise SourceError(
                f"{self.name}: a file is gone that has not been read: {error}",
                hint="files have to be kept until they have been read, by VACUUM and by what expires snapshots; "
                + AGAIN,
            ) from error
        except Exception as error:
            raise SourceError(f"{self.name}: {type(error).__name__}: {error}") from error

    # ---- binding, in the server

    def start_offsets(self) -> Offsets:
        """Before the first row."""
        return {}

    def claim(self) -> None:
        """See `Source`: the table has to be there, with the declared columns."""
        with self._told():
            table = self._look()
            self._settled_fields(table, table.newest, None)

    def columns_there(self, offsets: Offsets) -> list[Column]:
        """See `Source`: what was renamed is not new. Raises `NotSupported` for a type that no column has."""
        known = {self._field_id(offsets.get(FIELDS, {}), c.name): c for c in self.columns}
        found = []
        with self._told():
            table = self._look()
            for field in table.fields(table.newest):
                mine = known.get(field.id)
                column = mine or Column(field.name, spark_type(field.type), field.nullable)
                if mine is None and not holds(arrow_type(column.type), field.type):
                    raise NotSupported(
                        f'the column "{field.name}" of type {field.type} of the {self.name}',
                        hint="declare the columns that are wanted",
                    )
                found.append(column)
        return found

    def found_by(self, columns: Sequence[Column]) -> dict[str, str]:
        """See `Source`: by the ids of fields, or their names in files."""
        with self._told():
            table = self._look()
            by_name = {f.name: f for f in table.fields(table.newest)}
            return {FIELD_IDS: json.dumps({**self._came, **{c.name: self._fitting(by_name, c) for c in columns}})}

    def _fitting(self, by_name: Mapping[str, LakeField], column: Column) -> int | str:
        """What a column is called in files that is to come. Raises `SourceError`."""
        field = self._named(by_name, column.name)
        if field is None:
            raise SourceError(f'the {self.name} has no column "{column.name}"')
        self._check_type(column, field, "")
        return field.id

    def _field_id(self, known: Mapping[str, int | str], name: str) -> int | str | None:
        """What a column is called in files, if that was settled."""
        return self._came.get(name, known.get(name))

    def latest_offsets(self, after: Offsets, limit: Admission, now_ms: int) -> Binding:
        """See `Source`."""
        with self._told():
            table = self._current(now_ms)
            found = self._bound(table, after, limit)
            # Times of files that were written side by side overlap.
            apart = {MORE: True} if found.behind else {}
            return replace(found, added=self._unread(table, found.offsets[FIELDS]), apart=apart)

    def _bound(self, table: LakeTable, after: Offsets, limit: Admission) -> Binding:
        if not after:
            return self._begin(table, limit)
        if after[TABLE] != table.identity:
            raise self.made_again()
        if after[AT] is not None and not table.has(after[AT]):
            raise self._expired(after[AT])
        if after[TAKEN] is not None:
            return self._go_on(table, after, limit)
        return self._follow(table, after, limit.estimated_rows(self._max_rows))

    def _unread(self, table: LakeTable, known: Mapping[str, int | str]) -> tuple[str, ...]:
        """The table's columns that it does not have, found out once for each look."""
        if self._left is None or self._left[0] is not table:
            mine = {self._field_id(known, c.name) for c in self.columns}
            self._left = table, tuple(f.name for f in table.fields(table.newest) if f.id not in mine)
        return self._left[1]

    def made_again(self) -> SourceError:
        """What is said where another table is in the place of the one that is followed."""
        return SourceError(f"the {self.name} is not the one that has been read: it was made again", hint=AGAIN)

    def _expired(self, at: int | None) -> SourceError:
        what = "not all of its snapshots" if at is None else f"no snapshot {at}"
        return SourceError(
            f"the {self.name} has {what} any more: it had been read up to there",
            hint="snapshots have to be kept until the next one has been read; " + AGAIN,
        )

    def _current(self, now_ms: int) -> LakeTable:
        if self._looked is None or not 0 <= now_ms - self._looked[0] < self._refresh_ms:
            same = self._looked is not None and self._looked[1].is_current()
            self._looked = now_ms, self._looked[1] if self._looked is not None and same else self._look()
        return self._looked[1]

    def _content(self, table: LakeTable, at: int | None) -> Content:
        if at is None:
            return {}

        def look() -> Content:
            if not table.has(at):
                raise self._expired(at)
            return table.content(at)

        return self._contents.of(at, look)

    def _begin(self, table: LakeTable, limit: Admission) -> Binding:
        at = table.newest
        fields = self._settled_fields(table, at, None)
        base = {TABLE: table.identity, AT: at, TAKEN: None, SAME: None, BEGAN: at, FIELDS: fields, ROWS: 0, BYTES: 0}
        if at is None or self._from_now:
            return Binding(base, 0, False)
        return self._go_on(table, {**base, TAKEN: 0}, limit)

    def _go_on(self, table: LakeTable, after: Offsets, limit: Admission) -> Binding:
        """With the files of the first snapshot."""
        files = changes.in_order(self._content(table, after[AT]))
        end = changes.admitted(files, after[TAKEN], limit.rows(self._max_rows), limit.max_bytes)
        bound = files[after[TAKEN] : end]
        rows, size = sum(f.rows for f in bound), sum(f.size for f in bound)
        done = end == len(files)
        behind = not done or table.newest != after[AT]
        taken = None if done else end
        offsets = {**after, TAKEN: taken, ROWS: after[ROWS] + rows, BYTES: after[BYTES] + size}
        return Binding(offsets, rows, False, None, behind)

    def _follow(self, table: LakeTable, after: Offsets, limit: int | None) -> Binding:
        """With the commits since."""
        if table.newest == after[AT]:
            return Binding(after, 0, False)
        commits = table.commits(after[AT])
        if commits is not None and not self._retracts:
            commits = commits[:_MOST_COMMITS]
        if commits is None and not self._retracts:
            raise SourceError(
                f"the {self.name} does not tell how it came from snapshot {after[AT]} to {table.newest}: which rows "
                "were added is not known",
                hint="it went back, or snapshots in between have expired; " + AGAIN,
            )
        taken = changes.followed(commits or [], limit)
        to = taken[-1].at if taken else table.newest
        same = bool(taken) and taken[0].replaces
        pieces = [] if same else self._pieces(table, after, {**after, AT: to, SAME: None})
        rows = changes.rows_of(pieces)
        offsets = {
            **after, AT: to, SAME: after[AT] if same else None, ROWS: after[ROWS] + rows,
            BYTES: after[BYTES] + changes.bytes_of(pieces), FIELDS: self._settled_fields(table, to, after[FIELDS]),
        }  # fmt: skip
        return Binding(offsets, rows, False, None, to != table.newest)

    def _settled_fields(
        self, table: LakeTable, at: int | None, known: Mapping[str, int | str] | None
    ) -> dict[str, int | str]:  # fmt: skip
        """What the declared columns are called in files, as it was settled before, if it was.

        Raises `SourceError` for a column that is missing, or of a type that does not fit.
        """
        there = table.fields(at)
        by_name = {f.name: f for f in there}
        # One that came later is not in the schema of an older snapshot, and no row of that has a value of it.
        by_id = {f.id: f for f in (*(table.fields(table.newest) if self._came else ()), *there)}
        found = {}
        for column in self.columns:
            field_id = self._field_id(known or {}, column.name)
            field = self._named(by_name, column.name) if field_id is None else by_id.get(field_id)
            if field is None:
                raise SourceError(
                    f'the {self.name} has no column "{column.name}"' + ("" if known is None else " any more"),
                    hint="leave it out of the declared columns" if known is None else AGAIN,
                )
            self._check_type(column, field, "" if known is None else "; " + AGAIN)
            found[column.name] = field.id
        return found

    def _named(self, by_name: Mapping[str, LakeField], name: str) -> LakeField | None:
        """The field that a column stands for, if there is one. Raises `SourceError` where several may be meant."""
        try:
            return spelled(by_name, (name,)).get(name)
        except SeveralSpellings as error:
            raise SourceError(f'the {self.name} has no column "{name}": {error}') from error

    def _check_type(self, column: Column, field: LakeField, more: str) -> None:
        """Raise `SourceError` for a column that does not hold all values of the field."""
        if not holds(arrow_type(column.type), field.type):
            raise SourceError(
                f'the column "{field.name}" of the {self.name} is of type {field.type}, not all of whose values '
                f"are {column.type}",
                hint="declare a type that holds them" + more,
            )

    # ---- what lies between two offsets

    def rows_between(self, from_: Offsets, to: Offsets) -> int | None:
        """See `Source`."""
        return int(to.get(ROWS, 0) - from_.get(ROWS, 0))

    def bytes_between(self, from_: Offsets, to: Offsets) -> int | None:
        """See `Source`: what the files take that have to be read."""
        return int(to.get(BYTES, 0) - from_.get(BYTES, 0))

    def plan(self, from_: Offsets, to: Offsets, parallelism: int) -> list[ReadTask]:
        """See `Source`."""
        if not to or from_ == to:
            return []
        with self._told():
            table = self._look()
            if to[TABLE] != table.identity:
                raise self.made_again()
            pieces = self._pieces(table, from_, to)
            if pieces:  # the newest schema may have changed since it was bound, without a snapshot
                self._settled_fields(table, to[AT], to[FIELDS])
            common = {TABLE: to[TABLE], **self._task({**to[FIELDS], **self._came}, to[AT])}
            return changes.tasks_of(pieces, parallelism, common, self._ends)

    def _pieces(self, table: LakeTable, from_: Offsets, to: Offsets) -> list[Piece]:
        if from_ and to[SAME] is not None and to[SAME] == from_[AT] and from_[TAKEN] is None:
            return []
        if not self._retracts:
            return self._added(table, from_, to)
        return changes.differences(self._taken_of(table, from_), self._taken_of(table, to))

    def _taken_of(self, table: LakeTable, offsets: Offsets) -> Content:
        """The content at an offset."""
        content = self._content(table, offsets.get(AT)) if offsets else {}
        return content if not offsets or offsets[TAKEN] is None else changes.beginning(content, offsets[TAKEN])

    def _added(self, table: LakeTable, from_: Offsets, to: Offsets) -> list[Piece]:
        """What commits have added; they have to be known one by one, since replaced files have old rows, too."""
        if not from_ and not self._from_now:
            return changes.differences({}, self._taken_of(table, to))
        start = from_[AT] if from_ else to[BEGAN]
        found: list[Piece] = []
        if from_ and from_[TAKEN] is not None:
            whole = self._taken_of(table, {**to, AT: start, TAKEN: to[TAKEN] if to[AT] == start else None})
            found += changes.differences(self._taken_of(table, from_), whole)
        for before, commit in self._chain(table, start, to[AT]):
            if not commit.replaces:
                pieces = changes.differences(self._content(table, before), self._content(table, commit.at))
                if any(p.removes for p in pieces):
                    raise SourceError(
                        f"snapshot {commit.at} of the {self.name} takes rows away, and the source is append_only",
                        hint="create it without append_only and scan.startup.mode, to have its changes",
                    )
                found += pieces
        return found

    def _chain(self, table: LakeTable, start: int | None, end: int | None) -> list[tuple[int | None, Commit]]:
        """The commits from one snapshot to another, each with the snapshot before it."""
        if start == end:
            return []
        commits = table.commits(start)
        known = [] if commits is None else [c.at for c in commits]
        if commits is None or end not in known:
            raise self._expired(start)
        places = [start, *known[: known.index(end) + 1]]
        return [(before, commits[i]) for i, (before, _) in enumerate(pairwise(places))]

    # ---- reading

    def only(self, names: Sequence[str]) -> Self:
        """See `Source`; a column that must have a value is looked at by all readers."""
        self._wanted = [c.name for c in self.columns if c.name in names or not c.nullable] or self._wanted[:1]
        return self

    def read(self, task: ReadTask) -> Iterator[ReadBatch]:
        """See `Source`."""
        columns = [c for c in self.columns if c.name in self._wanted]
        with self._told():
            for piece in task["pieces"]:
                for part in self._rows(task, piece, self._wanted):
                    yield self._batch(piece["path"], part, columns)

    def _batch(self, path: str, part: FileChanges, columns: Sequence[Column]) -> ReadBatch:
        made: list[pa.Array] = []
        errors: list[tuple[int, RowError]] = []
        for column, values in zip(columns, part.columns, strict=True):
            array, bad = cast_array(values, arrow_type(column.type))
            made.append(array)
            errors += [
                (i, RowError(path, int(part.positions[i]) + 1, column.name, sample(values[i].as_py()), message, "row"))
                for i, message in bad
            ]
        names = [c.name for c in columns]
        rows = pa.RecordBatch.from_arrays([*made, pa.array(part.weights)], names=[*names, WEIGHT])
        found = apply_policy(ParsedRows(rows, part.positions + 1, [path], None, errors, "row"), columns, self._on_error)
        weights = found.batch.column(len(names)) if self._retracts else None
        return ReadBatch(found.batch.select(names), found.errors, found.error_count, weights)
