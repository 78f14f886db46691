"""What a sink is: it takes whole epochs of changes.

A job with a sink is run and checkpointed like a view's: an epoch counts once the catalog has committed it, and until
then it may run again. One that *delivers*, to a target outside, has more to hold on to:

- The epoch that it takes in is durable in the catalog before its first row leaves. So whatever happens, the same
  changes are delivered under the same number, and the next number comes only once this one has been.
- One task writes all of an epoch, and makes it visible at once, together with its number. It looks at the newest number
  first: an epoch that is there already, because an answer was lost or somebody who should be dead was faster, is done.
  A target with an older number than the catalog knows of is not what it was: restored, emptied or made anew.
  Where a target keeps no such number (`http`), the epoch comes again as it was, with what tells the target so.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from headrace.common.columns import Column
from headrace.common.lazy_dataclass import dataclass
from headrace.connectors import job_options, refusals
from headrace.connectors.declared import DeclaredOptions, Option
from headrace.connectors.leaving import columns_outside
from headrace.connectors.option_reader import OptionReader, check_secrets
from headrace.errors import HeadraceError, InvalidParameter, SinkError

WEIGHT_COLUMN = "__w"
TYPES = ("upsert", "append-only")
OPTIONS = DeclaredOptions(
    (
        Option(
            "type",
            "whether rows are only added, or replaced and deleted by `primary_key`",
            default="upsert",
            choices=TYPES,
        ),
        Option("primary_key", "what tells rows apart, needed for `upsert`: `'a, b'`", "columns"),
        Option(
            "force_append_only",
            "with `append-only`: what is taken back is left out, instead of being refused at the creation",
            "boolean",
            "false",
        ),
        Option("snapshot", "`false`: only what changes from the creation on", "boolean", "true"),
        Option(
            refusals.ON_ROW_ERROR,
            "what becomes of a row that the target refuses for good: the sink waits for it and says so, or it is left "
            "out and goes to `dead_letter_table` (not of `files`)",
            default="fail",
            choices=refusals.POLICIES,
        ),
        Option(refusals.TABLE, f"the table for these, `{refusals.DEFINITION}`"),
    )
)
"""Options that every sink has besides those of its connector and of its job."""
_ALL = (*OPTIONS.options, *job_options.OPTIONS)
SINK_OPTIONS = tuple(option.name for option in _ALL)
"""The names of these."""

_SINKS: dict[str, tuple[str, str]] = {
    "blackhole": ("headrace.connectors.blackhole", "BlackholeSink"),
    "deltalake": ("headrace.connectors.lake.delta", "DeltaSink"),
    "files": ("headrace.connectors.files.sink", "FileSink"),
    "http": ("headrace.connectors.http.sink", "HttpSink"),
    "iceberg": ("headrace.connectors.lake.iceberg", "IcebergSink"),
    "kafka": ("headrace.connectors.kafka.sink", "KafkaSink"),
    "postgres": ("headrace.connectors.postgres.sink", "PostgresSink"),
}


@dataclass(frozen=True)
class SinkPosition:
    """Which piece of the stream of changes a write is: those after `from_epoch` up to `epoch`, one slice of them."""

    delivery: str
    """Whose stream it is: unlike that of any other sink of any database. Empty for a sink that does not deliver."""
    from_epoch: int
    epoch: int
    slice: int
    attempt: str
    """Unique over all attempts at all epochs."""
    known: int = 0
    """The newest epoch that the catalog knows to be at the target, at or below `from_epoch`; 0 for none. An epoch
    without changes is not delivered, so the target need not have `from_epoch`."""


class Sink(ABC):
    """Takes changes; instances are made by `open_sink`, in the server to check options and in workers to write."""

    only_counts = False
    """Whether the number of changes is all it wants, so that they need not leave Spark."""
    delivers = True
    """Whether it writes to something outside: see the module."""
    refuses = False
    """Whether its target may refuse single rows for good; then `write` raises `RowsRefused`."""

    declared: ClassVar[DeclaredOptions | None] = None
    """The options of its connector, where it declares them."""
    scratch: Path | None = None
    """A folder of the task that writes, for what does not fit in memory; None for that of the system."""
    undone: HeadraceError | None = None
    """What failed of that which it does besides, once the target has the epoch: people are told, nothing else comes of
    it."""

    @classmethod
    def takes_secret(cls, option: str) -> bool:
        """Whether an option may have the value of a secret."""
        return cls.declared is not None and cls.declared.takes_secret(option)

    def __init__(self, options: Mapping[str, str], columns: Sequence[Column]):
        self.columns = list(columns)
        self.options = dict(options)

    def reach(self) -> None:  # noqa: B027  # what is nowhere is always reached
        """Look whether the target is there and takes such rows; make there what deliveries are noted in.

        Raises `SinkError` where it cannot be reached, `InvalidParameter` where it does not fit.
        """

    @abstractmethod
    def write(self, position: SinkPosition, batches: Iterator[pa.RecordBatch]) -> int:
        """Take one slice of an epoch, and say how many changes it had.

        Batches have the sink's columns in order, and `__w`: how often the row is added, or taken back if negative.
        There is at least one, and none is empty; what cancels out within them may be among them. Returning means that
        the rows are safe, should the epoch be committed; what it raises fails the epoch. Any number but 0 means that
        the target, if it notes epochs, has noted this one.
        """


def drops_retractions(options: Mapping[str, str]) -> bool:
    """Whether a sink wants only the rows that are added, even where rows are taken back."""
    return options.get("type") == "append-only" and OptionReader(options).boolean("force_append_only", False)


def spelled(options: Mapping[str, str]) -> dict[str, str]:
    """The options of a sink, those in the parentheses of `FORMAT ... ENCODE ... (...)` as if they were in `WITH`.

    Of a sink with such a clause it says the type, too: `FORMAT PLAIN` only adds.
    """
    found = dict(options)
    if "encode" in found and "format" in found:
        found.setdefault("type", "append-only" if found["format"] == "plain" else "upsert")
    for name in SINK_OPTIONS:
        value = found.pop(f"encode.{name}", None)
        if value is not None and found.setdefault(name, value) != value:
            raise InvalidParameter(f"option {name} is given twice, with different values")
    return found


def leaves_out_snapshot(options: Mapping[str, str]) -> bool:
    """Whether a sink wants only what changes after its creation."""
    return not OptionReader(options).boolean("snapshot", True)


def key_of(options: Mapping[str, str], columns: Sequence[Column]) -> tuple[str, ...]:
    """The columns that `primary_key` names. Raises `InvalidParameter` if they are not there, or not needed."""
    names = tuple(name.strip() for name in options.get("primary_key", "").split(",") if name.strip())
    known = [column.name for column in columns]
    for name in names:
        if name not in known:
            raise InvalidParameter(
                f'option primary_key: there is no column "{name}"', hint=f"one of {', '.join(known)}"
            )
    if not names and options.get("type", "upsert") == "upsert":
        raise InvalidParameter(
            "a sink of type upsert needs the option primary_key",
            hint="name the columns that tell rows apart, or set type to append-only",
        )
    return names


def delivers(options: Mapping[str, str]) -> bool:
    """See `Sink.delivers`; so does one of a connector that this program does not know."""
    return options.get("connector") not in _SINKS or _kind(options).delivers


def only_counts(options: Mapping[str, str]) -> bool:
    """See `Sink.only_counts`."""
    return _kind(options).only_counts


def check_secret_options(options: Mapping[str, str], names: Iterable[str]) -> None:
    """See `check_secrets`."""
    check_secrets(_kind(options).takes_secret, options, names)


def open_sink(options: Mapping[str, str], columns: Sequence[Column]) -> Sink:
    """The sink that `options['connector']` names. Raises `InvalidParameter` for options that are wrong."""
    kind, reader = _kind(options), OptionReader(options)
    for option in _ALL:
        option.read(reader)
    refusals.check(options, refuses=kind.refuses)
    return kind(options, columns_outside(columns) if kind.delivers else columns)


def _kind(options: Mapping[str, str]) -> type[Sink]:
    name = options.get("connector")
    known = ", ".join(sorted(_SINKS))
    if name is None:
        raise InvalidParameter("a sink needs the option connector", hint=f"one of {known}")
    if name not in _SINKS:
        raise InvalidParameter(f"option connector of a sink must be one of {known}, not {name!r}")
    module, attribute = _SINKS[name]
    found: type[Sink] = getattr(import_module(module), attribute)
    return found


def not_told_apart(key: Sequence[str], values: str) -> SinkError:
    """What is said where `primary_key` does not tell rows apart."""
    return SinkError(
        f"the option primary_key ({', '.join(key)}) does not tell the rows of the sink apart: "
        f"{values} is NULL or stands for several",
        hint="create the sink with the columns that do, or with type append-only",
    )


def already_delivered(position: SinkPosition, delivered: int, target: str) -> bool:
    """Whether an epoch is at the target already, of which the newest that was noted there is `delivered`.

    Raises `SinkError` where one of them knows of what the other one does not: then one of them is not what it was.
    """
    if delivered < position.known:
        raise SinkError(
            f"{target} does not have what this sink has delivered: it has taken epoch {delivered}, and was given "
            f"{position.known} before",
            hint="it was restored from a backup, emptied or made anew: put it back, or create the sink anew, with an "
            "empty target",
        )
    if position.from_epoch < delivered < position.epoch:
        raise SinkError(
            f"{target} has taken epoch {delivered} of this sink, which is between two that this database knows: "
            f"{position.from_epoch} and {position.epoch}",
            hint="the target was written by a newer catalog than this one: create the sink anew, with another target",
        )
    return delivered >= position.epoch
