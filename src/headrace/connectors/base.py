"""What a source is: splits, offsets, admission, tasks, and errors per row.

A source is a set of *splits* (a file, a Kafka partition, a replication slot), each a sequence of rows with
positions. The coordinator asks for newer offsets (`latest_offsets`), records the answer durably for an epoch, and
from then on the rows of the half-open range (from, to] are fixed for ever: `plan` cuts the range into tasks that
workers `read`, at any time, in any order, as often as it takes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, ClassVar, Final, Literal, NamedTuple, Self, TypeAlias

import pyarrow as pa

from headrace.common.columns import Column, arrow_schema
from headrace.common.lazy_dataclass import dataclass
from headrace.connectors.declared import DeclaredOptions, Option
from headrace.connectors.option_reader import COMMON_OPTIONS, ON_ERROR, OptionReader

Offsets = dict[str, Any]
"""JSON: split id -> position (a number, or a small object that holds one). `{}` is before the first row."""

ReadTask = dict[str, Any]
"""JSON: one piece of work of `Source.plan`; only the source that made it looks inside."""


@dataclass(frozen=True)
class Admission:
    """How much one binding may take in; `max_rows` and `max_bytes` None mean no limit."""

    max_rows: int | None = None
    max_bytes: int | None = None
    """What is not to be taken in parts is taken in though it is more, by itself."""
    row_bytes: float = 0.0
    """What a row counts for, by what has been read of the source; 0 if there is nothing to go by."""
    guessed: bool = False
    """Nothing has been read: who can look at some rows at little cost binds by what they have, and says it."""
    held: frozenset[str] = frozenset()
    """Splits of which nothing is to be taken in: their times are far ahead of others."""
    whole: bool = False
    """A query asks for all there is, which no job takes in: a source's own limit is none, where there is an end."""

    def rows(self, own_limit: int | None = None, *, endless: bool = False) -> int | None:
        """The smaller of this limit and the source's own, as far as that holds; None if there is neither.

        `endless` is a source whose rows are all there at once, and without end.
        """
        own = own_limit if endless or not self.whole else None
        limits = [limit for limit in (self.max_rows, own) if limit is not None]
        return min(limits) if limits else None

    def estimated_rows(self, own_limit: int | None = None, *, endless: bool = False) -> int | None:
        """The same for a source that cannot tell how many bytes there are: no more than they are estimated to allow."""
        rows = self.rows(own_limit, endless=endless)
        if self.max_bytes is None or not self.row_bytes:
            return rows
        within = max(1, int(self.max_bytes / self.row_bytes))
        return within if rows is None else min(rows, within)


MORE: Final = "@more"
"""In `Binding.apart`: what is there and not bound, where nobody says of which split."""


@dataclass(frozen=True)
class Binding:
    """The offsets that an epoch is bound to."""

    offsets: Offsets
    rows: int | None
    """Positions between the old and the new offsets (skipped and blank records count), None if unknown."""
    finished: bool
    """No row will ever come after `offsets`."""
    watermark_us: int | None = None
    """No later row is below this in `Source.time_column` (microseconds since 1970 UTC); None if that is not known."""
    behind: bool = False
    """There are more rows right now, which a limit held back."""
    left: Mapping[str, int] | None = None
    """How many rows that are there come behind `offsets`, by split; None if that is not known."""
    added: tuple[str, ...] = ()
    """Columns that have come where it reads, and that it does not have."""
    row_bytes: float | None = None
    """About how many bytes a row of these has, where some have been looked at: see `Admission.guessed`."""
    apart: Mapping[str, bool] | None = None
    """The splits whose times count apart and of which more may come: whether any is there and not bound. None where
    all that a source has counts together."""


@dataclass(frozen=True)
class FollowingTable:
    """A table of a shared source, as a tick finds it."""

    options: Mapping[str, str]
    """Those of the table's own source; none of them is a secret that has been looked up."""
    key: tuple[str, ...]
    """The columns of its primary key."""
    after: Offsets
    """What it is bound to; `{}` for nothing yet."""
    taken: Offsets | None
    """What its readers have durably taken in; None as long as one has not begun."""
    columns: tuple[str, ...] = ()
    """All that are declared."""


@dataclass(frozen=True)
class SlotStanding:
    """How far behind a shared source lies what it holds where it reads."""

    slot: str
    publication: str
    confirmed: str
    """Up to where all of its tables have durably taken it in, and what came before has been let go of."""
    lag_bytes: int
    """From there to the end of the log."""
    kept_bytes: int
    """The log that is kept for it."""


@dataclass(frozen=True)
class SharedBinding:
    """What a shared source and its tables are bound to together, at one epoch."""

    offsets: Offsets
    """The source's own."""
    tables: Mapping[int, Binding]
    """Those of its tables for which there is something new."""
    standing: SlotStanding
    added: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """By table: columns that have come where it reads, and that the table does not have."""


Unit = Literal["line", "row", "offset", "lsn"]


@dataclass(frozen=True)
class RowError:
    """A record or value that could not be understood."""

    split: str
    position: int
    """What `unit` counts: lines (records) of a text file and rows of other files from 1; offsets; places in a log."""
    column: str | None
    """None if the record as a whole is malformed."""
    value: str
    """The text at fault, shortened."""
    message: str
    unit: Unit = "line"
    key: str | None = None
    """The key of the row where it was read, by which it is found there; None if nobody knows of one."""

    def __str__(self) -> str:
        row = f", row {self.key}" if self.key is not None else ""
        where = f", column {self.column}" if self.column is not None else ""
        return f"{self.split}, {self._place()}{row}{where}: {self.message}: {self.value!r}"

    def _place(self) -> str:
        """As who looks for the record there writes it; the log says nothing of what was there before."""
        if self.unit != "lsn":
            return f"{self.unit} {self.position}"
        high, low = divmod(self.position, 1 << 32)
        return f"at {high:X}/{low:X}" if self.position else "in its content"


@dataclass(frozen=True)
class ReadBatch:
    """Rows with the declared columns (those that `Source.only` asks for at least), and what went wrong on the way."""

    batch: pa.RecordBatch
    errors: list[RowError] = field(default_factory=list)
    """A sample, the first ones of the batch."""
    error_count: int = 0
    """All errors of the batch."""
    weights: pa.Array | None = None
    """What each row counts, -1 where it is taken back; None if all are added. Only of sources that take rows back."""
    size: int | None = None
    """Bytes that have been read for it; None if they are those of `batch`."""
    split: str | None = None
    """Where all of it was read; None if nobody says. As in `Binding.apart`."""

    @property
    def read_bytes(self) -> int:
        """Bytes that have been read for it."""
        return self.batch.nbytes if self.size is None else self.size


_READ: Final = (
    Option("on_error", "What becomes of a value that cannot be understood.", default="fail", choices=ON_ERROR),
    Option("max_rows_per_epoch", "Most rows taken in at once.", "number", least=1),
)
"""Those that a connector reads."""
MAX_MB: Final = Option(
    "max_mb_per_epoch", "Most MiB taken in at once, about; no more than the setting of this name.", "number", least=1
)
RATE: Final = Option("source_rate_limit", "Most rows taken in a second, on the average; 0 for none at all.", "number")
"""How fast a source is bound; the ticker keeps to it, as it does to `MAX_MB`."""
IDLE: Final = Option(
    "scan.watermark.idle.timeout",
    "Of a source with `WATERMARK`: how long nothing may be left of a partition until the watermark does not wait for "
    "it any more.",
    "duration", default="1 min",
)  # fmt: skip
DRIFT: Final = Option(
    "scan.watermark.alignment.max.drift",
    "Of a source with `WATERMARK`: how far a partition may be ahead of the slowest of which anything is left, by the "
    "newest times that were read; no more of it is taken in meanwhile. Without it nothing is held back.",
    "duration",
)  # fmt: skip
"""How the watermark is made of those of splits: the ticker reads it for sources that declare it."""
OPTIONS: Final = DeclaredOptions((*_READ, MAX_MB, RATE))
"""Options that every source has besides those of its connector."""
WAITING: Final = {option.name: option for option in (IDLE, DRIFT)}
"""Those that say how the splits of a source wait for each other: only of a connector that declares them."""
ALTERABLE: Final = {option.name: option for option in (_READ[1], MAX_MB, RATE)} | WAITING
"""Those that say how fast a source is bound, and nothing of its rows: they may change while it is read."""


EMPTIED: Final = "emptied"
"""In a task: where the relation was emptied at once. All that its reader holds of it is gone with that: the task reads
a part of these rows, as `PART` says, and `Source.gone` makes changes of them."""
PART: Final = "part"
"""In such a task: which part of how many."""

HeldRows: TypeAlias = Callable[[pa.RecordBatch], pa.RecordBatch]
"""Finds the newest rows that the reader holds of some keys, as it had them before the range that is read: given are
columns of the key, found are all columns of the source, perhaps of other keys, too, or several rows of one key."""

SHARED_BY: Final = "include.source"
"""The option of a table's source that says which shared one it is read from; no statement can give it."""


FIELD_IDS: Final = "include.fields"
"""The option of a source that has got columns: JSON of what they are found by, where a name is not enough. No statement
can give it."""


class CommonOptions(NamedTuple):
    """The values of the options that every source has."""

    on_error: str
    max_rows: int | None


def common_options(reader: OptionReader) -> CommonOptions:
    """Those of a source that it reads itself. Raises `InvalidParameter`."""
    return CommonOptions(*(option.read(reader) for option in _READ))


class Source(ABC):
    """A source that can be read again by offset; instances are made by `open_source`."""

    def __init__(self, options: Mapping[str, str], columns: Sequence[Column]):
        self.columns = list(columns)
        self.schema: pa.Schema = arrow_schema(columns)

    declared: ClassVar[DeclaredOptions | None] = None
    """The options of its connector, where it declares them."""

    @classmethod
    def takes_secret(cls, option: str) -> bool:
        """Whether an option may have the value of a secret: it says nothing of it in offsets, tasks or rows."""
        return cls.declared is not None and cls.declared.takes_secret(option)

    @classmethod
    @abstractmethod
    def infer_columns(cls, options: Mapping[str, str]) -> list[Column]:
        """The columns of a source that is declared without any.

        Raises `InvalidParameter` if the connector has no way to know, `SourceError` if there is nothing to look at.
        """

    @classmethod
    def added_columns(cls, options: Mapping[str, str]) -> list[Column]:
        """The columns that options ask for beside those that are declared, as `INCLUDE` does."""
        return []

    feeds = False
    """Whether records can say what they do to their key, and so be the rows of a table with a primary key."""

    @classmethod
    def retracts(cls, options: Mapping[str, str]) -> bool:
        """Whether rows may be taken back; then (from, to] is the difference between the rows at `to` and at `from`."""
        return False

    holds = False
    """Whether something is kept for its readers where it reads, until it is told that they have taken it in."""

    @classmethod
    def refreshes(cls, options: Mapping[str, str]) -> bool:
        """Whether `infer_columns` asks whoever settles what its rows are, so that new columns can be had from there."""
        return False

    @classmethod
    def widens(cls, options: Mapping[str, str]) -> bool:
        """Whether it may get columns while it is read: they are found by name, in what has been bound before, too."""
        return False

    renews = False
    """Whether another one of the same can be made beside it that begins with the content of now and is bound with it:
    so a table that it feeds can get columns. It is one of a shared source then (`as_shared`), or is made one."""

    @classmethod
    def as_shared(cls, options: Mapping[str, str]) -> dict[str, str]:
        """The options of a shared source that holds what a source of these options, which `renews`, holds by itself."""
        raise NotImplementedError

    shared = False
    """Whether it has no rows of its own, and several tables are read from it, each by a source of its own."""

    @classmethod
    def variant(cls, options: Mapping[str, str]) -> type[Source]:
        """The class that is meant by options, of a connector that has several."""
        return cls

    @classmethod
    def whole(cls, offsets: Offsets) -> bool:
        """Whether all that is up to `offsets` is of one moment; else nobody is to see it before the next binding."""
        return True

    @classmethod
    def of_splits(cls, offsets: Offsets) -> Offsets:
        """Those of the splits alone, for people."""
        return {name: position for name, position in offsets.items() if not name.startswith("@")}

    @classmethod
    def settled(cls, options: Mapping[str, str]) -> dict[str, str]:
        """The options as they are stored: what was left open and has to stay as it is from then on is filled in."""
        return dict(options)

    def claim(self) -> None:  # noqa: B027  # most hold nothing
        """The source is about to be created, once: what it will hold must be free. Raises `SourceError`."""

    def hand_over(self) -> None:  # noqa: B027  # few can
        """What it holds is its shared source's from now on, to which that is to say, too. Harmless if repeated."""

    def acknowledge(self, offsets: Offsets) -> None:  # noqa: B027  # most keep nothing for their readers
        """All readers have durably taken in what is up to `offsets`: nobody will read it again."""

    def discard(self, last: Offsets | None = None) -> str | None:  # most leave nothing behind
        """The source is dropped: let go of what it holds where it reads. Raises `SourceError`.

        `last` is given where that is later, so that others may have made the same again under its names: what it was
        bound to last, or nothing if it never was. What may be theirs is left alone; returns what to tell of that.
        """
        return None

    def columns_there(self, offsets: Offsets) -> list[Column]:
        """The columns that are there by now, of a source that `refreshes`; `offsets` are what it is bound to.

        Those that it has are called as it calls them. Raises as `infer_columns` does.
        """
        raise NotImplementedError

    def found_by(self, columns: Sequence[Column]) -> dict[str, str]:
        """Options by which new columns are found from now on, which it does not have yet.

        Raises `SourceError` for one that is not there, or is of a type that does not fit.
        """
        return {}

    @abstractmethod
    def start_offsets(self) -> Offsets:
        """The offsets before the first row."""

    @abstractmethod
    def latest_offsets(self, after: Offsets, limit: Admission, now_ms: int) -> Binding:
        """The newest offsets at or after `after` that `limit` admits at the wall-clock time `now_ms`.

        Raises `SourceError` if what is still to be read is gone or has changed.
        """

    def latest_together(self, after: Offsets, tables: Mapping[int, FollowingTable], limit: Admission) -> SharedBinding:
        """The newest offsets of a shared source and of its tables, of one moment. Raises `SourceError`."""
        raise NotImplementedError

    def rows_between(self, from_: Offsets, to: Offsets) -> int | None:
        """About how many rows lie between two offsets, told without reading; None if the offsets don't tell.

        Splits that stand at the same place in both may be missing in both.
        """
        return None

    def bytes_between(self, from_: Offsets, to: Offsets) -> int | None:
        """About how many bytes lie between two offsets, as `rows_between` tells rows."""
        return None

    @property
    def row_bytes(self) -> float | None:
        """About how many bytes a row has, where that is known of all of them before they are read."""
        return None

    @property
    def time_column(self) -> str | None:
        """The column in whose order rows come, NULLs first, and of which a binding's `watermark_us` speaks."""
        return None

    def only(self, names: Sequence[str]) -> Self:
        """Make no other columns than `names` from now on, where that is cheaper; others may be made all the same."""
        return self

    @abstractmethod
    def plan(self, from_: Offsets, to: Offsets, parallelism: int) -> list[ReadTask]:
        """At most about `parallelism` balanced tasks that together read (from_, to] exactly once."""

    def joined(self, tasks: Sequence[ReadTask], parallelism: int) -> list[ReadTask]:
        """Some of the tasks that `plan` made as fewer ones, about `parallelism`, where that is cheaper."""
        return list(tasks)

    held: HeldRows | None = None
    """How a source that feeds a table by key finds what the table has; None where its reader cannot tell. Set by the
    reader before `read`."""

    @abstractmethod
    def read(self, task: ReadTask) -> Iterator[ReadBatch]:
        """The rows of a task, the same each time.

        Raises `SourceError` if they are gone, have changed, or are malformed and `on_error` is 'fail'.
        """

    def gone(self, held: pa.RecordBatch, task: ReadTask) -> ReadBatch:
        """What a task with `EMPTIED` makes of rows that its reader holds, whose columns are found by name."""
        raise NotImplementedError


def range_tasks(ranges: Sequence[tuple[int, int, int]], parallelism: int) -> list[ReadTask]:
    """Ranges (split, start, stop) cut into tasks of about as many positions, each with its `ranges`."""
    share = max(1, -(-sum(stop - start for _, start, stop in ranges) // max(parallelism, 1)))
    tasks: list[ReadTask] = []
    room = 0
    for split, start, stop in ranges:
        while start < stop:
            if room == 0:
                tasks.append({"ranges": []})
                room = share
            taken = min(room, stop - start)
            tasks[-1]["ranges"].append([split, start, start + taken])
            start, room = start + taken, room - taken
    return tasks


def joined_ranges(tasks: Sequence[ReadTask], parallelism: int) -> list[ReadTask]:
    """Tasks of `range_tasks`, next to each other, as about `parallelism` of them."""
    joined: list[tuple[int, int, int]] = []
    for split, start, stop in (found for task in tasks for found in task["ranges"]):
        if joined and joined[-1][0] == split and joined[-1][2] == start:
            joined[-1] = split, joined[-1][1], stop
        else:
            joined.append((split, start, stop))
    return range_tasks(joined, parallelism)


def kept_columns(columns: Sequence[Column], names: Collection[str]) -> list[int]:
    """The places of the columns that are asked for; one place if there are none, for rows need a column."""
    return [i for i, column in enumerate(columns) if column.name in names] or [0]


__all__ = [
    "ALTERABLE",
    "COMMON_OPTIONS",
    "EMPTIED",
    "FIELD_IDS",
    "HeldRows",
    "MAX_MB",
    "ON_ERROR",
    "PART",
    "Admission",
    "DRIFT",
    "IDLE",
    "MORE",
    "Binding",
    "CommonOptions",
    "FollowingTable",
    "OPTIONS",
    "Offsets",
    "RATE",
    "ReadBatch",
    "ReadTask",
    "RowError",
    "SHARED_BY",
    "SharedBinding",
    "SlotStanding",
    "Source",
    "WAITING",
    "common_options",
]
