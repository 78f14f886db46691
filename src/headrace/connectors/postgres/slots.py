"""What is asked of PostgreSQL's replication slots, and of its log."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeAlias, TypeVar

from headrace.connectors.base import Offsets
from headrace.connectors.declared import needed_module
from headrace.connectors.postgres.slot_sharing import LSN
from headrace.errors import SourceError

T = TypeVar("T")
Connection: TypeAlias = Any
"""One of psycopg's, which is loaded only where it is needed."""

SLOT_WAIT_S: Final = 30.0
"""How long to wait for a slot that another one is peeking through."""
FLUSH_WAIT_S: Final = 10.0
MADE_UP: Final = re.compile("headrace_[0-9a-f]{12}")
"""The names of slots that nobody has named."""
_PAGE_HEADER_BYTES: Final = 40
"""At the start of a file of the log; 24 elsewhere. No record is so short that it fits into the difference."""
_WRITTEN: Final = "SELECT pg_current_wal_flush_lsn() - '0/0'::pg_lsn, current_setting('wal_block_size')"
_TEXT: Final = (
    "SET datestyle = 'ISO'; SET bytea_output = 'hex'; SET intervalstyle = 'postgres'; SET extra_float_digits = 1"
)
_IN_USE = "55006"


def lsn_text(number: int) -> str:
    """A place in the log as PostgreSQL writes it."""
    return f"{number >> 32:X}/{number & 0xFFFFFFFF:X}"


def spell(c: Connection) -> None:
    """Have a connection spell values as text as here they are read, whatever is set in the server."""
    c.execute(_TEXT)


def in_turn(call: Callable[[], T]) -> T:
    """The result of a call for which a slot has to be free."""
    psycopg = needed_module("psycopg", "postgres")
    until_s = time.monotonic() + SLOT_WAIT_S
    while True:
        try:
            return call()
        except psycopg.Error as error:
            if error.sqlstate != _IN_USE or time.monotonic() > until_s:
                raise
            time.sleep(0.05)


def check_free(c: Connection, slot: str, hint: str) -> None:
    """Raise `SourceError` where there is a slot of that name."""
    if c.execute(FOUND, [slot]).fetchone() is not None:
        raise SourceError(f"there is a replication slot {slot} in PostgreSQL already", hint=hint)


def end_with_client(c: Connection) -> None:
    """Let what a connection runs end soon after its client has, where the server can notice that: not all do."""
    with suppress(needed_module("psycopg", "postgres").Error):
        c.execute("SET client_connection_check_interval = '5s'")


def end_of_log(c: Connection) -> int:
    """A place in the log beyond all that anybody sees now, and up to which it is on PostgreSQL's disk."""
    (end,) = c.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()
    until_s = time.monotonic() + FLUSH_WAIT_S
    while True:
        written, page_bytes = (int(number) for number in c.execute(_WRITTEN).fetchone())
        if is_written(end, written, page_bytes):
            return min(int(end), written)
        if time.monotonic() > until_s:
            raise SourceError("PostgreSQL does not write its log to its disk")
        time.sleep(0.02)


def is_written(end: int, written: int, page_bytes: int) -> bool:
    """Whether all of the log before `end` is on the disk, which has what is before `written`.

    Where the last record fills its page, the next one's place is behind the header of a page that is not begun, and
    nothing brings the disk there until somebody writes.
    """
    return written >= end or (written % page_bytes == 0 and end - written <= _PAGE_HEADER_BYTES)


def advance(c: Connection, slot: str, to: int) -> None:
    """Move a slot on, if it is not there yet: what lies before is let go of."""
    in_turn(lambda: c.execute(_ADVANCE, [slot, lsn_text(to)]))


def discard(c: Connection, slot: str, last: Offsets | None) -> str | None:
    """Drop a slot, if it is there; see `Source.discard`.

    A slot that is made later begins beyond all that was bound through one before it, and no slot of ours is moved on
    beyond what is bound. Where nothing was, a name that was made up is nobody else's.
    """
    own = MADE_UP.fullmatch(slot) is not None
    if last is None or (LSN not in last and own):
        in_turn(lambda: c.execute(_DROP, [slot]))
        return None
    if LSN in last:
        in_turn(lambda: c.execute(f"{_DROP} AND confirmed_flush_lsn <= %s::pg_lsn", [slot, lsn_text(last[LSN])]))
    if c.execute(FOUND, [slot]).fetchone() is None:
        return None
    return (
        f"the replication slot {slot} in PostgreSQL may be another one of that name by now, and is left alone "
        f"(SELECT pg_drop_replication_slot('{slot}') drops it there)"
    )


_ADVANCE = """SELECT pg_replication_slot_advance(slot_name, wanted) FROM pg_replication_slots,
              (SELECT %s AS name, %s::pg_lsn AS wanted) w WHERE slot_name = w.name AND confirmed_flush_lsn < wanted"""
_DROP = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s"
NEW: Final = """SELECT pg_create_logical_replication_slot(%s, 'pgoutput')
                WHERE NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = %s)"""
FOUND: Final = """SELECT confirmed_flush_lsn - '0/0'::pg_lsn, wal_status,
                         pg_current_wal_insert_lsn() - restart_lsn
                  FROM pg_replication_slots WHERE slot_name = %s"""
PEEK: Final = """pg_logical_slot_peek_binary_changes(%s, %s::pg_lsn, {limit},
                 'proto_version', '1', 'publication_names', %s)"""
