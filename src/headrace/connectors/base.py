"""What a source is: splits, offsets, admission, tasks, and errors per row.

A source is a set of *splits* (a file, a Kafka partition, a replication slot), each a sequence of rows with
positions. The coordinator asks for newer offsets (`latest_offsets`), records the answer durably for an epoch, and
from then on the rows of the half-open range (from, to] are fixed for ever: `plan` cuts the range into tasks that
workers `read`, at any time, in any order, as often as it takes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar, Self

import pyarrow as pa

from headrace.common.columns import Column, arrow_schema
from headrace.connectors.declared import Declared
from headrace.connectors.options import COMMON_OPTIONS, ON_ERROR, refuse_open, refuse_secrets
from headrace.errors import InvalidParameter

Offsets = dict[str, Any]
"""JSON: split id -> position (a number, or a small object that holds one). `{}` is before the first row."""

ReadTask = dict[str, Any]
"""JSON: one piece of work of `Source.plan`; only the source that made it looks inside."""

_CONNECTORS: dict[str, tuple[str, str]] = {
    "postgres-cdc": ("headrace.connectors.postgres.cdc", "PostgresCdcSource"),
    "kafka": ("headrace.connectors.kafka.source", "KafkaSource"),
    "datagen": ("headrace.connectors.datagen", "DatagenSource"),
    "files": ("headrace.connectors.files", "FileSource"),
    "nexmark": ("headrace.connectors.nexmark", "NexmarkSource"),
}


@dataclass(frozen=True)
class Admission:
    """How much one binding may take in; `max_rows` None means no limit."""

    max_rows: int | None = None

    def rows(self, own_limit: int | None = None) -> int | None:
        """The smaller of this limit and the source's own, None if there is neither."""
        limits = [limit for limit in (self.max_rows, own_limit) if limit is not None]
        return min(limits) if limits else None


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


@dataclass(frozen=True)
class RowError:
    """A record or value that could not be understood."""

    split: str
    position: int
    """1-based: line (record) of a text file, row of any other split."""
    column: str | None
    """None if the record as a whole is malformed."""
    value: str
    """The text at fault, shortened."""
    message: str

    def __str__(self) -> str:
        where = f", column {self.column}" if self.column is not None else ""
        return f"{self.split}, line {self.position}{where}: {self.message}: {self.value!r}"


@dataclass(frozen=True)
class ReadBatch:
    """Rows with the declared columns (those that `Source.only` asks for at least), and what went wrong on the way."""

    batch: pa.RecordBatch
    errors: list[RowError] = field(default_factory=list)
    """A sample, the first ones of the batch."""
    error_count: int = 0
    """All errors of the batch."""


class Source(ABC):
    """A source that can be read again by offset; instances are made by `open_source`."""

    def __init__(self, options: Mapping[str, str], columns: Sequence[Column]):
        self.columns = list(columns)
        self.schema: pa.Schema = arrow_schema(columns)

    declared: ClassVar[Declared | None] = None
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
    holds = False
    """Whether something is kept for its readers where it reads, until it is told that they have taken it in."""

    @classmethod
    def settled(cls, options: Mapping[str, str]) -> dict[str, str]:
        """The options as they are stored: what was left open and has to stay as it is from then on is filled in."""
        return dict(options)

    def claim(self) -> None:  # noqa: B027  # most hold nothing
        """The source is about to be created, once: what it will hold must be free. Raises `SourceError`."""

    def acknowledge(self, offsets: Offsets) -> None:  # noqa: B027  # most keep nothing for their readers
        """All readers have durably taken in what is up to `offsets`: nobody will read it again."""

    def discard(self) -> None:  # noqa: B027  # most leave nothing behind
        """The source is dropped: let go of what it holds where it reads. Raises `SourceError`."""

    @abstractmethod
    def start_offsets(self) -> Offsets:
        """The offsets before the first row."""

    @abstractmethod
    def latest_offsets(self, after: Offsets, limit: Admission, now_ms: int) -> Binding:
        """The newest offsets at or after `after` that `limit` admits at the wall-clock time `now_ms`.

        Raises `SourceError` if what is still to be read is gone or has changed.
        """

    def rows_between(self, from_: Offsets, to: Offsets) -> int | None:
        """About how many rows lie between two offsets, told without reading; None if the offsets don't tell.

        Splits that stand at the same place in both may be missing in both.
        """
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

    @abstractmethod
    def read(self, task: ReadTask) -> Iterator[ReadBatch]:
        """The rows of a task, the same each time.

        Raises `SourceError` if they are gone, have changed, or are malformed and `on_error` is 'fail'.
        """


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


def kept_columns(columns: Sequence[Column], names: Collection[str]) -> list[int]:
    """The places of the columns that are asked for; one place if there are none, for rows need a column."""
    return [i for i, column in enumerate(columns) if column.name in names] or [0]


Secrets = Callable[[], Mapping[str, str]]
"""Returns option -> the value of the secret that it was given, as of now."""


def open_source(options: Mapping[str, str], columns: Sequence[Column], secrets: Secrets | None = None) -> Source:
    """The source that `options['connector']` names; what has `secrets` tells them to nobody.

    Raises `InvalidParameter` for an option that is unknown, missing or impossible.
    """
    connector = _connector(options)
    if secrets is None:
        return connector(options, columns)
    from headrace.connectors.confidential import ConfidentialSource

    return ConfidentialSource(lambda values: connector({**options, **values}, columns), columns, secrets)


def infer_columns(options: Mapping[str, str], secrets: Secrets | None = None) -> list[Column]:
    """The columns that the source of `options` has by itself; see `Source.infer_columns`."""
    if secrets is None:
        return _connector(options).infer_columns(options)
    from headrace.connectors.confidential import hiding

    values = secrets()
    with hiding([*values.values()]):
        return _connector(options).infer_columns({**options, **values})


def settled(options: Mapping[str, str]) -> dict[str, str]:
    """See `Source.settled`."""
    return _connector(options).settled(options)


def feeds(options: Mapping[str, str]) -> bool:
    """See `Source.feeds`."""
    return _connector(options).feeds


def holds(options: Mapping[str, str]) -> bool:
    """See `Source.holds`; a connector that this program does not know holds nothing."""
    return options.get("connector") in _CONNECTORS and _connector(options).holds


def added_columns(options: Mapping[str, str]) -> list[Column]:
    """See `Source.added_columns`."""
    return _connector(options).added_columns(options)


def check_secret_options(options: Mapping[str, str], names: Iterable[str]) -> None:
    """Raise `InvalidParameter` for a secret as the value of an option that has to be readable, and the other way."""
    connector = _connector(options)
    refuse_open(name for name in options if connector.takes_secret(name))
    refuse_secrets(options, [name for name in names if not connector.takes_secret(name)])


def connector_names() -> list[str]:
    """The connectors that can be opened as sources."""
    return sorted(_CONNECTORS)


def _connector(options: Mapping[str, str]) -> type[Source]:
    name = options.get("connector")
    if name is None:
        raise InvalidParameter("a source needs the option connector", hint=f"one of {', '.join(connector_names())}")
    if name not in _CONNECTORS:
        raise InvalidParameter(f"option connector must be one of {', '.join(connector_names())}, not {name!r}")
    module, attribute = _CONNECTORS[name]
    cls: type[Source] = getattr(import_module(module), attribute)
    return cls


__all__ = [
    "COMMON_OPTIONS",
    "ON_ERROR",
    "Admission",
    "Binding",
    "Offsets",
    "ReadBatch",
    "ReadTask",
    "RowError",
    "Secrets",
    "Source",
    "added_columns",
    "check_secret_options",
    "connector_names",
    "feeds",
    "holds",
    "infer_columns",
    "open_source",
    "settled",
]
