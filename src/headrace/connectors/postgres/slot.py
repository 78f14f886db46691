"""The `postgres-cdc` source of several tables: one slot and publication, bound together as `slot_sharing.py` says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from headrace.common.columns import Column
from headrace.common.identifiers import quoted_name
from headrace.connectors.base import (
    Admission,
    Binding,
    FollowingTable,
    Offsets,
    ReadBatch,
    ReadTask,
    SharedBinding,
    SlotStanding,
    Source,
    common_options,
)
from headrace.connectors.option_reader import COMMON_OPTIONS, OptionReader
from headrace.connectors.postgres import slots
from headrace.connectors.postgres.content_parts import content_of
from headrace.connectors.postgres.fetching import declare, fetched
from headrace.connectors.postgres.options import SHARED, cdc_server, connection, with_slot
from headrace.connectors.postgres.shapes import AskedShape, shapes_of
from headrace.connectors.postgres.slot_sharing import (
    CAUGHT_UP,
    COLUMNS,
    LSN,
    QUIET_BYTES,
    TABLE,
    Joining,
    SharedTables,
    Transactions,
    is_settled,
)
from headrace.connectors.postgres.stretch import HEAD, KEPT_BYTES, Collector, Recent, Stretch
from headrace.connectors.postgres.tables import check_key, published, table_file
from headrace.errors import InvalidParameter, SourceError

RECENT = Recent()
"""What this process has seen of logs lately."""


def place_of(server: Mapping[str, Any], slot: str) -> str:
    """What tells a slot from all others."""
    return f"{server['host']}:{server['port']}/{server['database']}/{slot}"


class PostgresSlot(Source):
    """See the module."""

    feeds = True
    holds = True
    shared = True
    declared = SHARED

    @classmethod
    def infer_columns(cls, options: Mapping[str, str]) -> list[Column]:
        """It has none: its tables have."""
        return []

    @classmethod
    def settled(cls, options: Mapping[str, str]) -> dict[str, str]:
        """With a slot and a publication."""
        return with_slot(options)

    def __init__(self, options: Mapping[str, str], columns: Sequence[Column]):
        super().__init__(options, columns)
        if columns:
            raise InvalidParameter(
                "a source of several tables of PostgreSQL has no columns of its own",
                hint="CREATE SOURCE s WITH (...); CREATE TABLE t (...) FROM s TABLE 'public.t'",
            )
        values = SHARED.read(options, COMMON_OPTIONS)
        self._server = cdc_server(values)
        self._slot, self._publication = values["slot.name"], values["publication.name"]
        self._max_rows = common_options(OptionReader(options)).max_rows
        self._joining: dict[int, Joining] = {}
        self._read: dict[int, int] = {}
        """As in `SharedTables`."""
        self._quiet: tuple[int, int] | None = None
        """What was bound and the end of the log, where nothing was found between them, nor anybody waited for."""
        self._pending = 0
        """Messages that were not taken in yet when it looked last: they come first each time."""

    @contextmanager
    def _connection(self) -> Iterator[Any]:
        with connection(self._server, SourceError) as c:
            c.autocommit = True
            slots.spell(c)  # what it sees of the log may be kept for who reads it
            yield c

    # ---- the slot and the publication

    def claim(self) -> None:
        """Make the slot, and the publication unless it is there. Raises `SourceError`."""
        with self._connection() as c:
            (level,) = c.execute("SHOW wal_level").fetchone()
            if level != "logical":
                raise SourceError(f"PostgreSQL's wal_level is {level}", hint="ALTER SYSTEM SET wal_level = 'logical'")
            slots.check_free(
                c, self._slot,
                "a source has a slot of its own, which it makes itself: give another slot.name, or drop that",
            )  # fmt: skip
            slots.end_with_client(c)  # a slot waits for transactions: it is not to come when nobody waits any more
            made = publish(c, self._publication, self._slot)
            try:
                c.execute(slots.NEW, [self._slot, self._slot])
            except BaseException:
                if made:
                    c.execute(f"DROP PUBLICATION IF EXISTS {quoted_name(self._publication)}")
                raise

    def discard(self, last: Offsets | None = None) -> str | None:
        """Drop the slot, and the publication if it was made for it."""
        RECENT.forget(place_of(self._server, self._slot))
        with self._connection() as c:
            left = slots.discard(c, self._slot, last)
            if left is None and owns(c, self._publication, self._slot):
                c.execute(f"DROP PUBLICATION IF EXISTS {quoted_name(self._publication)}")
            return left

    # ---- binding

    def start_offsets(self) -> Offsets:
        """Nothing is bound."""
        return {}

    def latest_offsets(self, after: Offsets, limit: Admission, now_ms: int) -> Binding:
        """It is bound together with its tables, by `latest_together`."""
        raise NotImplementedError

    def latest_together(self, after: Offsets, tables: Mapping[int, FollowingTable], limit: Admission) -> SharedBinding:
        """See `Source`."""
        with self._connection() as c:
            confirmed = self._check_slot(c, after)
            bound = int(after[LSN]) if after else confirmed
            names = self._check_tables(c, tables)
            added = _check_shapes(c, tables, names)
            now, end, later = _transactions(c), slots.end_of_log(c), _transactions(c)
            if not all(f.after for f in tables.values()):
                later = replace(later, next=int(c.execute(_NUMBER).fetchone()[0]))
            begun = self._join(c, tables, now, end, later)
            self._read = {n: self._read.get(n, end) for n, f in tables.items() if _has_read(f)}
            known = SharedTables(tables, self._joining, self._read)
            held = max(known.holds(bound), confirmed)
            slots.advance(c, self._slot, held)
            seen = self._quiet == (bound, end) and not self._read
            found = None if seen else self._look(c, held, bound, end, limit)
            standing = self._standing(c)
            made = {} if found is None else known.bindings(found)
            self._read = {n: place for n, place in self._read.items() if n not in made}
            for number in made:  # an update that does not tell it would be taken for one of another row
                check_key(c, names[number], tables[number].key)
        self._quiet = (bound, end) if not made and (found is None or found.high >= end) else None
        # What a limit has cut is to go on behind it, though there may be nothing for any table up to there.
        if found is not None and (made or not after or found.high < end or found.high - bound > QUIET_BYTES):
            return SharedBinding({LSN: found.high}, {**begun, **made}, standing, added)
        return SharedBinding(after or {LSN: bound}, begun, standing, added)

    def _check_slot(self, c: Any, after: Offsets) -> int:
        """Up to where the slot has been moved. Raises `SourceError` where it has lost what was bound."""
        found = c.execute(slots.FOUND, [self._slot]).fetchone()
        hint = "drop the source and its tables (DROP SOURCE ... CASCADE) and create them again: they begin with the " \
               "content of now"  # fmt: skip
        if found is None or found[1] == "lost":
            raise SourceError(f"PostgreSQL does not have the replication slot {self._slot} any more", hint=hint)
        if after and int(found[0]) > after[LSN]:
            raise SourceError(f"somebody else has read from the replication slot {self._slot}", hint=hint)
        return int(found[0])

    def _check_tables(self, c: Any, tables: Mapping[int, FollowingTable]) -> dict[int, str]:
        """The names of tables as of now, quoted. Raises `SourceError` for one that cannot be followed any more."""
        asked = {n: (f.after.get(TABLE), f.options["schema.name"], f.options["table.name"]) for n, f in tables.items()}
        return {n: found.checked(self._publication) for n, found in published(c, self._publication, asked).items()}

    def _join(
        self, c: Any, tables: Mapping[int, FollowingTable], now: Transactions, end: int, later: Transactions
    ) -> dict[int, Binding]:
        """Take tables further that have no binding yet; the bindings of those whose content may be read."""
        new = {n: f for n, f in tables.items() if not f.after}
        first = Joining(later.next)
        self._joining = {n: self._joining.get(n, first).step(now, end, later) for n in new}
        begun: dict[int, Binding] = {}
        for number, joining in self._joining.items():
            if joining.is_over(later):
                options = new[number].options
                name = quoted_name(options["schema.name"], options["table.name"])
                (oid,) = c.execute(_OID, [name]).fetchone()
                file = table_file(c, name)
                shape = shapes_of(c, {0: AskedShape(int(oid), new[number].columns, None)})[0]
                lacks = common_options(OptionReader(options)).on_error != "fail"
                began = {COLUMNS: shape.stored, **content_of(file, lacks)}
                at = {LSN: joining.since, CAUGHT_UP: False, TABLE: int(oid), **began}
                begun[number] = Binding(at, file.rows, False)
        return begun

    # ---- the log

    def _look(self, c: Any, low: int, bound: int, end: int, limit: Admission) -> Stretch:
        """What is behind `low`, beyond what is bound as far as there is something and a limit lets it."""
        room, held = limit.estimated_rows(self._max_rows), self._pending
        while True:
            most = None if room is None else room + held
            found = self._peek(c, low, end, most).within(bound, limit.max_bytes)
            self._pending = found.pending(bound)
            if most is None or found.high >= end or found.high > bound:
                break
            held = max(2 * held, self._pending, room or 1)  # what is pending has filled it
        place = place_of(self._server, self._slot)
        if found.messages is None:
            RECENT.forget(place)
        else:
            RECENT.keep(place, found)
        return found

    def _peek(self, c: Any, low: int, end: int, most: int | None) -> Stretch:
        asked = [self._slot, slots.lsn_text(end), most, quoted_name(self._publication)]

        def begun() -> Collector:
            collector = Collector()
            with c.transaction():
                declare(c, _HEADS, asked)
                for positions, sizes, data in fetched(c, 3, binary=True):
                    places, ends = (np.frombuffer(b"".join(n), ">i8").astype(np.int64) for n in (positions, sizes))
                    collector.add(places, data, ends)
            return collector

        collector = slots.in_turn(begun)
        return collector.stretch(low, None if most is not None and collector.count >= most else end)

    def _standing(self, c: Any) -> SlotStanding:
        found = c.execute(_STANDING, [self._slot]).fetchone()
        confirmed, lag, kept = found if found is not None else ("", 0, 0)
        return SlotStanding(self._slot, self._publication, confirmed, int(lag or 0), int(kept or 0))

    # ---- reading

    def plan(self, from_: Offsets, to: Offsets, parallelism: int) -> list[ReadTask]:
        """It has no rows."""
        return []

    def read(self, task: ReadTask) -> Iterator[ReadBatch]:
        """It has no rows."""
        return iter(())


def _check_shapes(
    c: slots.Connection, tables: Mapping[int, FollowingTable], names: Mapping[int, str]
) -> dict[int, tuple[str, ...]]:
    """The columns that tables have got. Raises `SourceError` for one whose rows may have become others by that."""
    asked = {n: AskedShape(f.after[TABLE], f.columns, f.after.get(COLUMNS)) for n, f in tables.items() if f.after}
    found = shapes_of(c, asked)
    for number, shape in found.items():
        shape.check(asked[number].began, names[number])
    return {number: shape.added for number, shape in found.items()}


def _has_read(follower: FollowingTable) -> bool:
    """Whether all that is bound of a table has been taken in, and more is needed before anybody sees it."""
    return bool(follower.after) and not is_settled(follower.after) and follower.taken == follower.after


def _transactions(c: Any) -> Transactions:
    oldest, following = c.execute(_SNAPSHOT).fetchone()
    return Transactions(int(oldest), int(following))


def publish(c: Any, publication: str, slot: str) -> bool:
    """Make a publication for a slot, unless it is there; whether it was made."""
    found = c.execute(_PUBLISHES, [publication]).fetchone()
    if found is None:
        with c.transaction():
            c.execute(f"CREATE PUBLICATION {quoted_name(publication)}")
            adopt(c, publication, slot)
        return True
    if not found[0]:
        raise SourceError(
            f"the publication {publication} in PostgreSQL leaves out changes",
            hint="let it publish 'insert, update, delete, truncate'",
        )
    return False


def adopt(c: slots.Connection, publication: str, slot: str) -> None:
    """Have a publication say that it was made for a slot."""
    c.execute(f"COMMENT ON PUBLICATION {quoted_name(publication)} IS '{_mark(slot)}'")


def owns(c: Any, publication: str, slot: str) -> bool:
    """Whether a publication was made for a slot by `publish`: it says so itself."""
    found = c.execute(_COMMENT, [publication]).fetchone()
    return found is not None and found[0] == _mark(slot)


def _mark(slot: str) -> str:
    return f"made by headrace for the slot {slot}".replace("'", "")


_HEADS = f"""SELECT (lsn - '0/0'::pg_lsn)::bigint, size::bigint,
             CASE WHEN size <= {KEPT_BYTES} OR get_byte(data, 0) = 84 THEN data ELSE substring(data, 1, {HEAD}) END
             FROM (SELECT lsn, data, sum(octet_length(data)) OVER (ROWS UNBOUNDED PRECEDING) AS size
                   FROM {slots.PEEK.format(limit="%s::int")}) AS m"""
# Truncations (T) name their tables further behind.
_SNAPSHOT = "SELECT pg_snapshot_xmin(s)::text, pg_snapshot_xmax(s)::text FROM pg_current_snapshot() AS s"
_NUMBER = "SELECT pg_current_xact_id()::text"
_OID = "SELECT oid::bigint FROM pg_class WHERE oid = to_regclass(%s)"
_PUBLISHES = "SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate FROM pg_publication WHERE pubname = %s"
_COMMENT = "SELECT obj_description(oid, 'pg_publication') FROM pg_publication WHERE pubname = %s"
_STANDING = """SELECT confirmed_flush_lsn::text, pg_current_wal_insert_lsn() - confirmed_flush_lsn,
                      pg_current_wal_insert_lsn() - restart_lsn FROM pg_replication_slots WHERE slot_name = %s"""
