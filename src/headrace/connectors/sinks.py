"""What a sink is: it takes whole epochs of changes, each slice of an epoch in a task of its own.

A job with a sink is run and checkpointed like a view's: an epoch counts once the catalog has committed it, and until
then it may run again, in slices of another number. The position tells a sink which it is: what it has written for an
epoch above the last committed one is to be replaced, never added to.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module

import pyarrow as pa

from headrace.common.columns import Column
from headrace.connectors.options import OptionReader, refuse_secrets
from headrace.errors import InvalidParameter

WEIGHT_COLUMN = "__w"
SINK_OPTIONS = (
    "type", "force_append_only", "parallelism", "checkpoint_interval_ms", "checkpoint_group", "max_rows_per_epoch",
)  # fmt: skip
"""Options of every sink, besides those of its connector."""
TYPES = ("upsert", "append-only")

_SINKS: dict[str, tuple[str, str]] = {"blackhole": ("headrace.connectors.blackhole", "BlackholeSink")}


@dataclass(frozen=True)
class SinkPosition:
    """Which piece of the stream of changes a write is: those after `from_epoch` up to `epoch`, one slice of them."""

    from_epoch: int
    epoch: int
    slice: int
    attempt: str
    """Unique over all attempts at all epochs."""


class Sink(ABC):
    """Takes changes; instances are made by `open_sink`, in the server to check options and in workers to write."""

    only_counts = False
    """Whether the number of changes is all it wants, so that they need not leave Spark."""

    @classmethod
    def takes_secret(cls, option: str) -> bool:
        """Whether an option may have the value of a secret."""
        return False

    def __init__(self, options: Mapping[str, str], columns: Sequence[Column]):
        self.columns = list(columns)
        self.options = dict(options)

    @abstractmethod
    def write(self, position: SinkPosition, batches: Iterator[pa.RecordBatch]) -> int:
        """Take one slice of an epoch, and say how many changes it had.

        Batches have the sink's columns in order, and `__w`: how often the row is added, or taken back if negative.
        Returning means that the rows are safe, should the epoch be committed; what it raises fails the epoch.
        """


def drops_retractions(options: Mapping[str, str]) -> bool:
    """Whether a sink wants only the rows that are added, even where rows are taken back."""
    return options.get("type") == "append-only" and OptionReader(options).boolean("force_append_only", False)


def only_counts(options: Mapping[str, str]) -> bool:
    """See `Sink.only_counts`."""
    return _kind(options).only_counts


def check_secret_options(options: Mapping[str, str], names: Iterable[str]) -> None:
    """Raise `InvalidParameter` for a secret as the value of an option that has to be readable."""
    kind = _kind(options)
    refuse_secrets(options, [name for name in names if not kind.takes_secret(name)])


def open_sink(options: Mapping[str, str], columns: Sequence[Column]) -> Sink:
    """The sink that `options['connector']` names. Raises `InvalidParameter` for options that are wrong."""
    kind, reader = _kind(options), OptionReader(options)
    reader.choice("type", TYPES, "upsert")
    reader.boolean("force_append_only", False)
    for option in ("parallelism", "checkpoint_interval_ms", "max_rows_per_epoch"):
        reader.integer(option, 1)
    return kind(options, columns)


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
