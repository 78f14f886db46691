"""What a catalog backend must do: durable bytes under keys, one fencing token, one sequence of transactions."""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from datetime import UTC, datetime
from typing import Any, Final, Protocol, TypeAlias

from headrace import __version__
from headrace.catalog.edits import (
    DATABASE_KEY,
    FENCING_KEY,
    FORMAT_VERSION_KEY,
    GENERATION_KEY,
    NEXT_ID_KEY,
    SEQUENCE_KEY,
)
from headrace.catalog.records import Record, decode, encode, key_text
from headrace.catalog.state import Change
from headrace.common.lazy_dataclass import dataclass
from headrace.errors import Fenced, HeadraceError, OperationalError, StorageError

FORMAT_VERSION: Final = 2
"""The format of stored data that this program writes."""
PLACE: Final = "place"
"""The collection of what is said about the place itself; it is no part of the database's content, and stays behind when
that moves: `owner`, and the marks of `marks.py`."""
OWNER: Final = "owner"
"""The key, within it, of who opened the catalog last."""

Row: TypeAlias = tuple[str, str, str]
"""Collection, key, value: one stored record."""


@dataclass(frozen=True, slots=True)
class Writes:
    """A transaction in stored form: the rows that it writes and deletes."""

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
class StoredCatalog:
    """The whole stored catalog, read at one moment."""

    config: Mapping[str, int]
    rows: tuple[Row, ...]
    records: tuple[Record, ...] | None = field(default=None, compare=False, repr=False)
    """What the rows of the content say, where they have been decoded already."""


Migration: TypeAlias = Callable[[StoredCatalog], Writes]
"""From format n to n + 1: reads everything, returns what to write. Pure."""


def new_database_id() -> int:
    """A number that tells databases apart; it goes with the content wherever that moves."""
    return secrets.randbits(63) | 1


def initial_config(format_version: int) -> dict[str, int]:
    """The config collection of an empty catalog, but for the fencing token."""
    initial = {FORMAT_VERSION_KEY: format_version, SEQUENCE_KEY: 0, NEXT_ID_KEY: 1}
    return initial if format_version < 2 else {**initial, DATABASE_KEY: new_database_id()}


def _name_the_database(loaded: StoredCatalog) -> Writes:
    """Format 2: the database has an id, and a catalog may have moved away; older programs do not look for that."""
    return Writes(config={DATABASE_KEY: loaded.config.get(DATABASE_KEY) or new_database_id()})


MIGRATIONS: Final[Mapping[int, Migration]] = {1: _name_the_database}
"""Format version -> the migration that leaves it."""


class SequenceConflict(StorageError):
    """The catalog has moved on since this handle last looked: nothing of the transaction is written."""


class Overtaken(StorageError):
    """Another opener came first: the catalog is not any more that of the opener who was to be succeeded."""


class OutcomeUnknown(StorageError):
    """The store could not be asked whether a commit arrived; ask again with `CatalogStore.sequence`."""


class CatalogStore(Protocol):
    """A backend. Every call is one atomic step; I/O failures are `StorageError`. Thread-safe.

    After `open`, each read and write compares the durable fencing token with the one that this handle took, in
    the same step, and raises `Fenced` when they differ.
    """

    @property
    def name(self) -> str:
        """Where it is, as shown to users and as `open_store` takes it; without passwords."""
        ...

    @property
    def token(self) -> int | None:
        """The fencing token of this handle; None before `open`."""
        ...

    def place(self) -> str:
        """What tells this catalog from a copy of it somewhere else. Holds no credentials."""
        ...

    def open(
        self,
        format_version: int,
        migrations: Mapping[int, Migration],
        *,
        initialize: bool = True,
        succeeding: int | None = None,
    ) -> StoredCatalog:
        """Shut out every earlier opener, then initialise or migrate, then load everything.

        Without `initialize` an empty place stays one. `succeeding` is the token of the only opener who is to be shut
        out: where that is not the last one, found out in the same step that would shut it out, `Overtaken` is raised.

        Raises `OperationalError`, with nothing touched and nobody shut out, when the stored format is newer.
        """
        ...

    def load(self, format_version: int) -> StoredCatalog:
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

    def replace(self, content: StoredCatalog, token_floor: int) -> None:
        """Make the content exactly this, in one step; then the fencing token of this handle is above `token_floor`.

        The content's own fencing token is ignored. Raises as `append` does; after `OutcomeUnknown` open anew.
        """
        ...

    def peek(self) -> StoredCatalog:
        """The config collection and the rows of `PLACE`, without opening; both empty if there is no catalog."""
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


def checked(loaded: StoredCatalog, format_version: int) -> StoredCatalog:
    """The same with its records. Raises as `decode` does for one that cannot be read, before anybody is shut out.

    Those of another format are left to its migration.
    """
    if loaded.config.get(FORMAT_VERSION_KEY) != format_version:
        return loaded
    return replace(loaded, records=tuple(decode(*row) for row in loaded.rows if row[0] != PLACE))


def check_generation(newest: int, generation: int) -> None:
    """Raise `OperationalError` when a higher deploy generation has opened the catalog before."""
    if generation < newest:
        raise OperationalError(
            f"this process is of deploy generation {generation}, the catalog belongs to generation {newest}",
            hint="a newer deployment has taken it over; to go on with this one, set HEADRACE_DEPLOY_GENERATION",
        )


def entry(config: Mapping[str, int], generation: int) -> dict[str, int]:
    """What an opener of a deploy generation writes to the config: its token, the next one.

    Raises `OperationalError`, before anybody is shut out, for a generation below the catalog's.
    """
    newest = config.get(GENERATION_KEY, 0)
    check_generation(newest, generation)
    raised = {GENERATION_KEY: generation} if generation > newest else {}
    return {FENCING_KEY: config.get(FENCING_KEY, 0) + 1, **raised}


def owner_row(token: int) -> Row:
    """Who opens the catalog now, as the row that says so."""
    who = {"host": socket.gethostname(), "pid": os.getpid(), "at_ms": time.time_ns() // 1_000_000, "token": token}
    return (PLACE, OWNER, json.dumps({**who, "version": __version__}, separators=(",", ":")))


def describe_owner(text: str | None) -> str:
    """An owner's row in words."""
    try:
        who: Any = json.loads(text or "")
        at = datetime.fromtimestamp(who["at_ms"] / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")
        return f"headrace {who['version']}, process {who['pid']} on {who['host']}, at {at}"
    except (ValueError, TypeError, KeyError):
        return "unknown"


def describe_self() -> str:
    """This process in the same words, without when it opened the catalog."""
    return f"headrace {__version__}, process {os.getpid()} on {socket.gethostname()}"


def fenced(mine: int, durable: int, owner: str | None = None) -> Fenced:
    """The error of a handle that was shut out; names both tokens, and who took over when in its detail."""
    return Fenced(
        f"another process opened this catalog: this one has fencing token {mine}, the catalog is at {durable}",
        detail=f"It was taken over by {describe_owner(owner)}." if owner else None,
        hint="only the newest opener of a database may use it",
    )


def check_succession(name: str, token: int, succeeding: int | None) -> None:
    """Raise `Overtaken` unless the durable token is that of the opener who is to be succeeded."""
    if succeeding is not None and token != succeeding:
        raise Overtaken(f"the catalog in {name} was taken over by another server: it is at fencing token {token}")


def migration_steps(stored: int, known: int, migrations: Mapping[int, Migration]) -> Iterable[tuple[int, Migration]]:
    """The migrations from the stored to the known format, in order, each with the format that it reaches."""
    for version in range(stored, known):
        if version not in migrations:
            raise OperationalError(f"there is no way from data format {version} to {version + 1}")
        yield version + 1, migrations[version]


def landed(name: str, sequence: Callable[[], int], expected_sequence: int, error: HeadraceError) -> bool:
    """Whether the transaction after `expected_sequence` is durable, whose answer was `error`: by reading back.

    Raises `Fenced`, and `OutcomeUnknown` where that cannot be learned now.
    """
    try:
        return sequence() > expected_sequence
    except Fenced:
        raise
    except StorageError as failure:
        raise OutcomeUnknown(
            f"the catalog in {name} does not answer, the last transaction may or may not be durable",
            detail=f"{error.message}; then {failure.message}",
        ) from error
