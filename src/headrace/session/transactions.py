"""What a transaction of a session has read and wants to write. `execution/in_transaction.py` opens and ends it.

Every statement runs in a transaction: the one that BEGIN has opened, or one of its own. All are serializable, whatever
level is asked for: one that has read what another one has changed since is told so (40001), and a single statement
is run again by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import NamedTuple

from headrace.common.lazy_dataclass import dataclass
from headrace.coordinator.writes.holds import Holds
from headrace.coordinator.writes.transaction import Mark, WriteTransaction
from headrace.errors import TransactionError
from headrace.session.variables import SettingsMark


class OpenSavepoint(NamedTuple):
    """A savepoint of a transaction."""

    name: str
    written: Mark
    number: int
    """Which one of the transaction it is, from 1 on."""
    settings: SettingsMark


@dataclass
class Transaction:
    """A session's open transaction: its snapshot, its writes, and what it holds."""

    work: WriteTransaction
    held: Holds
    """What it holds until its end."""
    began_us: int
    """When the client has asked for it, in microseconds since 1970: what `now()` is in it."""
    read_only: bool = False
    settings: SettingsMark | None = None
    """The session's settings when it was opened, which a rollback brings back; None where it cannot change them."""
    committed: bool = False
    implicit: bool = False
    """Whether it is that of a single statement which writes."""
    at_least: int = 0
    """The epoch of a write that its snapshot must hold."""
    behind: str | None = None
    """Why its snapshot is older than the tables that it has read, where a view was the reason."""
    script: bool = False
    """Whether it is that of several statements in one text, and ends with these."""
    failed: bool = False
    savepoints: list[OpenSavepoint] = field(default_factory=list)
    savepoints_made: int = 0
    """How many there have been: what is made later than one goes when it is rolled back to."""
    shown: Mapping[int, int] = field(default_factory=dict)
    """Up to which epochs relations had been shown when it fixed its own."""

    def close(self) -> None:
        """Let go of everything; harmless when repeated."""
        self.held.close()


def aborted() -> TransactionError:
    """The error for whatever is run in a transaction that has failed."""
    return TransactionError(
        "current transaction is aborted, commands ignored until end of transaction block", sqlstate="25P02"
    )
