"""What a catalog backend must do: durable bytes under keys, one fencing token, one sequence of transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from headrace.catalog.records import encode, key_text
from headrace.catalog.state import Change
from headrace.errors import Fenced, OperationalError, StorageError

FORMAT_VERSION: Final = 1
"""The format of stored data that this program writes."""

Row: TypeAlias = tuple[str, str, str]
"""Collection, key, value: one stored record."""


@dataclass(frozen=True, slots=True)
class Writes:
    """The stored form of a change."""

    puts: tuple[Row, ...] = ()
    deletes: tuple[tuple[str, str], ...] = ()
    config: Mapping[str, int] | None = None

    @classmethod
    def of(cls, change: Change) -> Writes:
        """Encode a change."""
        return cls(
            tuple((r.COLLECTION, key_text(r.key), encode(r)) for r in change.puts),
            tuple((collection, key_text(key)) for collection, key in change.deletes),
            dict(change.config),
        )


@dataclass(frozen=True, slots=True)
class Loaded:
    """All of a catalog as stored, read at one moment."""

    config: Mapping[str, int]
    rows: tuple[Row, ...]


Migration: TypeAlias = Callable[[Loaded], Writes]
"""From format n to n + 1: reads everything, returns what to write. Pure."""

MIGRATIONS: Final[Mapping[int, Migration]] = {}
"""Format version -> the migration that leaves it."""


class SequenceConflict(StorageError):
    """The catalog has moved on since this handle last looked: nothing of the transaction is written."""


class OutcomeUnknown(StorageError):
    """The store could not be asked whether a commit arrived; ask again with `CatalogStore.sequence`."""


class CatalogStore(Protocol):
    """A backend. Every call is one atomic step; I/O failures are `StorageError`. Thread-safe.

    After `open`, each read and write compares the durable fencing token with the one that this handle took, in
    the same step, and raises `Fenced` when they differ.
    """

    @property
    def token(self) -> int | None:
        """The fencing token of this handle; None before `open`."""
        ...

    def open(self, format_version: int, migrations: Mapping[int, Migration]) -> Loaded:
        """Shut out every earlier opener, then initialise or migrate, then load everything.

        Raises `OperationalError`, with nothing touched and nobody shut out, when the stored format is newer.
        """
        ...

    def load(self, format_version: int) -> Loaded:
        """Everything at one moment; also without `open`, then shutting out nobody and writing nothing."""
        ...

    def sequence(self) -> int:
        """How many transactions are durable; waits for one that is being committed."""
        ...

    def verify(self) -> None:
        """Raise `Fenced` if another opener has come since."""
        ...

    def append(self, writes: Writes, expected_sequence: int) -> None:
        """Commit as transaction number `expected_sequence + 1`; durable, exactly once, when it returns.

        Raises `SequenceConflict` if that number is taken, `OutcomeUnknown` if the store stopped answering on the
        way, any other `StorageError` if nothing was written.
        """
        ...

    def read_config(self) -> dict[str, int]:
        """The config collection, without opening; empty if there is no catalog."""
        ...

    def close(self) -> None:
        """Let go of all resources; harmless when repeated."""
        ...


def check_format(stored: int | None, known: int) -> None:
    """Raise `OperationalError` when the stored format is newer than the known one."""
    if stored is not None and stored > known:
        raise OperationalError(
            f"the catalog has data format {stored}, this program knows up to {known}",
            hint="start the headrace version that wrote it, or a newer one; nothing was changed",
        )


def fenced(mine: int, durable: int) -> Fenced:
    """The error of a handle that was shut out; names both tokens."""
    return Fenced(
        f"another process opened this catalog: this one has fencing token {mine}, the catalog is at {durable}",
        hint="only the newest opener of a database may use it",
    )


def migration_steps(stored: int, known: int, migrations: Mapping[int, Migration]) -> Iterable[tuple[int, Migration]]:
    """The migrations from the stored to the known format, in order, each with the format that it reaches."""
    for version in range(stored, known):
        if version not in migrations:
            raise OperationalError(f"there is no way from data format {version} to {version + 1}")
        yield version + 1, migrations[version]
