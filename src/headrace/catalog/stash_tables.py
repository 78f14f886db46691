"""What a relational database has to do for a catalog in two tables of it; what both databases have in common.

`config(key, value)` has numbers, signed ones of 64 bits; `record(collection, key, value)` has the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final, Protocol

from headrace.catalog.store import Row, Writes
from headrace.common.lazy_dataclass import dataclass
from headrace.errors import CorruptObject, HeadraceError, StorageError

COLUMNS: Final[Mapping[str, frozenset[str]]] = {
    "config": frozenset(("key", "value")),
    "record": frozenset(("collection", "key", "value")),
}
"""The tables and their columns."""
RESTORE: Final = "nothing was changed; restore it from a backup"


class LineLost(StorageError):
    """The connection ended before the answer came."""


class StashTransaction(Protocol):
    """One transaction on the two tables: whole, or not at all."""

    def columns(self) -> Mapping[str, set[str]]:
        """The columns of those of the two tables that there are."""
        ...

    def create(self) -> None:
        """Make the two tables."""
        ...

    def head(self) -> Mapping[str, int]:
        """The fencing token and the sequence number. In a transaction that writes, writers queue from then on."""
        ...

    def config(self) -> Mapping[str, object]:
        """All of `config`."""
        ...

    def value(self, collection: str, key: str) -> str | None:
        """One record's value."""
        ...

    def rows(self, collection: str) -> Sequence[Row]:
        """A collection's records."""
        ...

    def blocks(self, size: int) -> Iterator[Sequence[Row]]:
        """All records, so many at a time; each block has all of the time-out."""
        ...

    def put(self, rows: Sequence[Row]) -> None:
        """Insert records, or replace those under the same keys."""
        ...

    def insert(self, rows: Sequence[Row]) -> None:
        """Insert many records that are new; each call has all of the time-out."""
        ...

    def delete(self, keys: Iterable[tuple[str, str]]) -> None:
        """Delete records."""
        ...

    def set_config(self, values: Mapping[str, int]) -> None:
        """Set numbers of `config`."""
        ...

    def clear(self) -> None:
        """Delete everything."""
        ...


@dataclass(frozen=True)
class StashTrouble:
    """An error of a database, as whoever uses the catalog is told of it."""

    kind: type[HeadraceError]
    text: str
    again: bool = False
    """Whether another transaction was in the way, so that this one is to be run again."""


class StashTables(Protocol):
    """The two tables in some database. Thread-safe."""

    @property
    def is_near(self) -> bool:
        """Whether they are in a file of this machine."""
        ...

    def place(self) -> str:
        """What tells these tables from a copy of them somewhere else."""
        ...

    def transaction(self, *, write: bool, alone: bool = False) -> AbstractContextManager[StashTransaction]:
        """A transaction, committed where the block ends and rolled back where it raises.

        `alone` is for an opener: it comes before whatever the owner is about to commit.
        """
        ...

    def append(self, token: int | None, sequence: int, writes: Writes, config: Mapping[str, int]) -> Mapping[str, int]:
        """Commit if the token and the sequence number are these; what they were."""
        ...

    def token(self) -> int | None:
        """The fencing token by the shortest way; None where only a transaction can tell it."""
        ...

    def trouble(self, error: Exception) -> StashTrouble | None:
        """What an error is; None for one that is not the database's."""
        ...

    def dispose(self) -> None:
        """Let go of connections that nobody uses: they may be dead."""
        ...

    def close(self) -> None:
        """Let go of all connections."""
        ...


def wrong_shape(columns: Mapping[str, set[str]], has_token: Callable[[], bool]) -> str | None:
    """What is wrong with the tables of a catalog's names, by their columns; None if they are a catalog, or missing."""
    for name, found in columns.items():
        if found != COLUMNS[name]:
            return f"its table {name} has the columns {', '.join(sorted(found))}"
    if len(columns) == 1:
        return f"it has a table {next(iter(columns))}, and not the other one"
    return "its table config has no fencing token" if columns and not has_token() else None


def foreign(name: str, what: str) -> CorruptObject:
    """The error for a place that holds something else."""
    return CorruptObject(f"{name} holds no catalog of headrace: {what}", hint="nothing was changed; give another place")


def one_line(error: BaseException | None) -> str:
    """An error's text without line breaks."""
    return " ".join(str(error).split())
