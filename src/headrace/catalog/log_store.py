"""The catalog as a log in an object store, or in a plain directory: `CatalogStore` over puts that need a free name.

A commit is one put of the next batch. Who opens puts the batch that ends the log of the opener before, so a writer
that was shut out finds the name of its next batch taken, by what tells it who took over. A put without an answer is
settled by reading what has its name; while that cannot be read, nothing else is written.

What is below the newest rollup is deleted, apart from the last two batches of each term: they are the only names for
which its owner can ever come back. docs/design/0016 tells why that is enough.
"""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from functools import partial
from typing import Final, TypeVar

from headrace.catalog.edits import FENCING_KEY, FORMAT_VERSION_KEY, SEQUENCE_KEY
from headrace.catalog.journal import (
    KNOCK,
    LOG,
    ROLLUPS,
    Batch,
    JournalReplay,
    Kind,
    Position,
    RollupPolicy,
    batch_name,
    batch_position,
    decode_batch,
    encode_batch,
    garbage,
    rollup_name,
    rollup_position,
)
from headrace.catalog.records import Record
from headrace.catalog.store import (
    OWNER,
    PLACE,
    Migration,
    SequenceConflict,
    StoredCatalog,
    Writes,
    check_format,
    check_succession,
    checked,
    entry,
    fenced,
    initial_config,
    landed,
    migration_steps,
    owner_row,
)
from headrace.common.faults import fault_point
from headrace.common.lazy_dataclass import dataclass
from headrace.errors import CorruptObject, DiskFull, Fenced, HeadraceError, StorageError
from headrace.state.iopool import IoPool
from headrace.state.objects import is_full
from headrace.state.transport import Transport

_READ_ATTEMPTS: Final = 10
"""How often the log is read anew because what was to be read next had been rolled up and deleted meanwhile."""
_AT_ONCE: Final = 8
"""Requests of a rollup, or of who reads the log, that are under way together."""
_PIECE_BYTES: Final = 1 << 20
"""What is read of an object at first: all of it, but for rollups."""
_MORE_BYTES: Final = 16 << 20
_ROLLUP_PAUSE_S: Final = 10.0
"""Seconds until a rollup that failed is tried again; twice as many after each further failure."""
_ROLLUP_MOST_PAUSE_S: Final = 600.0
_KNOCKS_AFTER: Final = 3
"""An opener knocks when so many of its batches in a row came too late."""
_LISTENS_EVERY: Final = 32
"""Transactions after which the owner listens whether somebody knocks."""
_DEAF_FOR: Final = 100_000
"""Transactions for which it does not listen where it could not remove what it has heard."""
_WAY_S: Final = 1.0
"""For how long the owner then does not write."""
_T = TypeVar("_T")


@dataclass(frozen=True)
class LogOptions:
    """The options of a catalog log: how long a look at the fence counts, and when the log is rolled up."""

    lease_ms: int = 0
    """How long a look at the fence counts. An opener waits that long before it believes that nobody reads any more."""
    policy: RollupPolicy = field(default_factory=RollupPolicy)
    generation: int = 0
    """The deploy generation of who opens it."""
    background: bool = True
    """Whether rollups are made in a thread of their own."""
    monotonic_s: Callable[[], float] = lambda: time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
    sleep_s: Callable[[float], None] = time.sleep


class LogStore:
    """A `CatalogStore` over a transport; `pool` tries requests again and gives them up, None for a directory."""

    def __init__(self, transport: Transport, name: str, pool: IoPool | None, options: LogOptions | None = None) -> None:
        self._transport = transport
        self._name = name
        self._pool = pool
        self._options = options or LogOptions()
        self._token: int | None = None
        self._shut_out: Fenced | None = None
        self._closed = False
        self._log = JournalReplay()
        """Where this handle's log ends; its rows only while it opens."""
        self._undecided: dict[str, Batch] = {}
        """By checksum: batches for the next name of which it is not known whether they are there."""
        self._lock = threading.RLock()
        """Held over a change of the log's end."""
        self._trusted_until_s = float("-inf")
        self._appends = 0
        """Since this handle has listened whether somebody knocks."""
        self._rolling: threading.Thread | None = None
        self.rollup_error: Exception | None = None
        """Why the last rollup failed; a commit tries again after a pause, which grows."""
        self._rollup_failures = 0
        self._rollup_after_s = float("-inf")

    @property
    def name(self) -> str:
        """Where it is."""
        return self._name

    def place(self) -> str:
        """What tells this catalog from a copy of it somewhere else."""
        return self._name

    @property
    def token(self) -> int | None:
        """The fencing token of this handle; None before `open`."""
        return self._token

    # ---- opening

    def open(
        self,
        format_version: int,
        migrations: Mapping[int, Migration],
        *,
        initialize: bool = True,
        succeeding: int | None = None,
    ) -> StoredCatalog:
        """Shut out every earlier opener, then initialise or migrate, then load everything."""
        with self._lock:
            self._check_usable()
            known = self._fence(format_version, succeeding, check=initialize)
            fault_point("catalog.fence.after")
            if initialize:
                fault_point("catalog.initialize.before")
                if FORMAT_VERSION_KEY not in self._log.config:
                    self._commit("append", Writes(config=initial_config(format_version)))
            stored = self._log.config.get(FORMAT_VERSION_KEY, format_version)
            for reached, migration in migration_steps(stored, format_version, migrations):
                self._migrate(reached, migration)
                known = None
            loaded = self._log.loaded()
            self._log.rows = None
            return replace(loaded, records=known)

    def _fence(self, format_version: int, succeeding: int | None, *, check: bool) -> tuple[Record, ...] | None:
        """Put the batch that ends the last opener's term, and wait until that one knows; what the records were."""
        log = self._read_all()
        # What is to be replaced may hold anything.
        known, before = checked(log.loaded(), format_version).records if check else None, log.next
        for lost in itertools.count(1):
            check_format(log.config.get(FORMAT_VERSION_KEY), format_version)
            check_succession(self._name, log.config.get(FENCING_KEY, 0), succeeding)
            taken, lease_ms = entry(log.config, self._options.generation), log.lease_ms
            token = taken[FENCING_KEY]
            writes = Writes(puts=(owner_row(token),), config=taken)
            batch = self._batch(log, "open", writes, lease_ms=max(lease_ms, self._options.lease_ms))
            fault_point("catalog.fence.before")
            if not self._put_batch(batch):
                if lost % _KNOCKS_AFTER == 0:
                    with suppress(FileExistsError):  # another opener knocks
                        self._call("knocking", partial(self._transport.put, KNOCK, b"", create=True))
                log = self._behind(log)
            elif self.was_rolled_up(batch.at):
                # The name was free because its batch had been deleted: nobody reads what has been put there.
                log = self._read_all()
            else:
                break
        same = batch.at == before
        log.advance(batch)
        if lost > _KNOCKS_AFTER:
            with suppress(HeadraceError):  # at worst the next owner makes way once for nobody
                self._call("knocking no more", partial(self._transport.delete, KNOCK))
        if lease_ms:
            self._options.sleep_s(lease_ms / 1000)
        self._log, self._token = log, token
        return known if same else None

    def _behind(self, log: JournalReplay) -> JournalReplay:
        """The log with the batches that have come since; read anew where the next one does not tell."""
        try:
            log.advance(self._read(log.next))
            with suppress(FileNotFoundError):
                while True:
                    log.advance(self._read(log.next))
            return log
        except (FileNotFoundError, CorruptObject):
            return self._read_all()

    def was_rolled_up(self, at: Position) -> bool:
        """Whether a rollup holds the batch of that name: what has the name now may be none of the log."""
        return any(found >= at for found in self._rollups())

    def _migrate(self, reached: int, migration: Migration) -> None:
        writes = migration(self._log.loaded())
        sequence = self._log.config.get(SEQUENCE_KEY, 0)
        config = {**(writes.config or {}), FORMAT_VERSION_KEY: reached, SEQUENCE_KEY: sequence + 1}
        fault_point("catalog.migrate.step")
        self._commit("append", Writes(writes.puts, writes.deletes, config))

    # ---- reading

    def load(self, format_version: int) -> StoredCatalog:
        """Reads the whole content as of one moment."""
        with self._lock:
            self._check_usable()
            if self._token is not None:
                self._settle()
            log = self._read_all()
            if self._token is not None and log.next[0] != self._log.next[0]:
                raise self._fenced_by(log)
        if log.last is None:
            raise StorageError(f"there is no catalog in {self._name}")
        check_format(log.config.get(FORMAT_VERSION_KEY), format_version)
        return log.loaded()

    def read_log(self) -> JournalReplay:
        """The whole log as of now, for who follows it: shuts out nobody. Raises `StorageError`."""
        self._check_open()
        return self._read_all()

    def read_batch(self, at: Position) -> Batch | None:
        """The batch of that name; None where there is none, or none any more."""
        self._check_open()
        with suppress(FileNotFoundError):
            return self._read(at)
        return None

    def has_batch(self, at: Position) -> bool:
        """Whether there is a batch of that name."""
        name = batch_name(at)
        with suppress(FileNotFoundError):
            self._call(f"looking for {name}", lambda: self._transport.head(name))
            return True
        return False

    def sequence(self) -> int:
        """How many transactions are durable; decides one of which that is not known."""
        with self._lock:
            self._check_usable()
            self._settle()
            self._look()
            return self._log.config.get(SEQUENCE_KEY, 0)

    def verify(self) -> None:
        """Raise `Fenced` if another opener has come since; a look counts for the lease."""
        self._check_usable()
        if self._options.monotonic_s() >= self._trusted_until_s:
            self._look()

    def peek(self) -> StoredCatalog:
        """The config collection and the rows of `PLACE`, without opening; both empty if there is no catalog."""
        self._check_open()
        loaded = self._read_all().loaded()
        return StoredCatalog(loaded.config, tuple(row for row in loaded.rows if row[0] == PLACE))

    def _look(self) -> None:
        """See whether the next name is taken by an opener. Asks for it without the lock: a commit may be under way."""
        since_s = self._options.monotonic_s()
        at = self._log.next
        while True:
            try:
                self._call(f"looking for {batch_name(at)}", lambda at=at: self._transport.head(batch_name(at)))  # type: ignore[misc]
            except FileNotFoundError:
                self._trust_from(since_s)
                return
            found = self._read_taken(at)
            if found.kind == "open":
                raise self._shut(found)
            at = (at[0], at[1] + 1)

    def _trust_from(self, since_s: float) -> None:
        self._trusted_until_s = since_s + self._options.lease_ms / 1000

    # ---- writing

    def append(self, writes: Writes, expected_sequence: int) -> None:
        """Commit as transaction number `expected_sequence + 1`; a lost acknowledgement is resolved by reading back."""
        with self._lock:
            self._check_usable()
            self._make_way()
            self._settle()
            sequence = self._log.config.get(SEQUENCE_KEY, 0)
            if sequence != expected_sequence:
                self._look()
                raise SequenceConflict(f"the catalog is at transaction {sequence}, not {expected_sequence}")
            config = {**(writes.config or {}), SEQUENCE_KEY: sequence + 1}
            try:
                fault_point("catalog.commit.before")
                self._commit("append", Writes(writes.puts, writes.deletes, config))
                fault_point("catalog.commit.after")
            except Fenced:
                raise
            except HeadraceError as error:
                if not self._landed(expected_sequence, error):
                    raise
        self._roll_up_if_due()

    def _make_way(self) -> None:
        """Write nothing for a while if somebody knocks: an owner who never rests is ahead of any opener for ever."""
        self._appends += 1
        if self._appends < _LISTENS_EVERY:
            return
        self._appends = 0
        with suppress(FileNotFoundError, HeadraceError):  # if the store is away, the transaction itself will tell
            self._call("listening", partial(self._transport.head, KNOCK))
            self._options.sleep_s(_WAY_S)
            self._appends = -_DEAF_FOR  # or one that cannot be removed would slow every transaction down for ever
            self._call("making way once", partial(self._transport.delete, KNOCK))
            self._appends = 0

    def _landed(self, expected_sequence: int, error: HeadraceError) -> bool:
        return landed(self._name, self.sequence, expected_sequence, error)

    def replace(self, content: StoredCatalog, token_floor: int) -> None:
        """Make the content exactly this, in one step; then the fencing token of this handle is above `token_floor`."""
        with self._lock:
            self._check_usable()
            self._settle()
            token = max(self._token or 0, token_floor) + 1
            writes = Writes((*content.rows, owner_row(token)), (), {**content.config, FENCING_KEY: token})
            fault_point("catalog.replace.before")
            self._commit("append", writes, reset=True)
            self._token = token
            fault_point("catalog.replace.after")
        self._roll_up_if_due()

    def _commit(self, kind: Kind, writes: Writes, *, reset: bool = False) -> None:
        """Put the next batch. Raises `Fenced`; any other error leaves it undecided."""
        since_s = self._options.monotonic_s()
        batch = self._batch(self._log, kind, writes, reset=reset, lease_ms=self._options.lease_ms)
        self._undecided[batch.checksum] = batch
        if not self._put_batch(batch):
            self._taken(self._read_taken(batch.at))
            raise StorageError(f"transaction {batch_name(batch.at)} was given up before")
        self._take(batch)
        self._trust_from(since_s)

    def _settle(self) -> None:
        """Decide what has the next name, if it is not known: by taking it, unless it is taken."""
        if self._undecided:
            with suppress(FileNotFoundError):
                self._taken(self._read(self._log.next))
                return
            nothing = self._batch(self._log, "nothing", Writes(), lease_ms=self._options.lease_ms)
            self._undecided[nothing.checksum] = nothing
            if self._put_batch(nothing):
                self._take(nothing)
            else:
                self._taken(self._read_taken(nothing.at))

    def _taken(self, found: Batch) -> None:
        """The next name has been taken by this batch."""
        if found.kind == "open":
            raise self._shut(found)
        if found.checksum not in self._undecided:
            raise CorruptObject(f"object {batch_name(found.at)} of the catalog is of another writer")
        self._take(found)

    def _take(self, batch: Batch) -> None:
        self._log.advance(batch)
        self._undecided.clear()

    def _batch(
        self, log: JournalReplay, kind: Kind, writes: Writes, *, reset: bool = False, lease_ms: int = 0
    ) -> Batch:
        batch = Batch(kind, log.next, log.before, writes, reset, lease_ms, nonce=secrets.token_hex(8))
        return encode_batch(batch)

    def _put_batch(self, batch: Batch) -> bool:
        """Put a batch under its name; whether that has it now."""
        name = batch_name(batch.at)
        try:
            put = partial(self._transport.put, name, batch.data, create=True)
            self._call(f"writing {name}", put, size_bytes=len(batch.data))
        except FileExistsError:
            # An earlier try, whose answer was lost, may have been there first.
            with suppress(FileNotFoundError):  # deleted since: the log has gone on
                return self._read(batch.at).checksum == batch.checksum
            return False
        return True

    # ---- the log

    def _read_all(self) -> JournalReplay:
        """Everything that there is. Raises `CorruptObject` for what is no catalog, or not all of one."""
        missing: Exception | None = None
        for _ in range(_READ_ATTEMPTS):
            try:
                return self._read_log()
            except (FileNotFoundError, _Gap) as error:
                missing = error
        raise CorruptObject(
            f"the catalog in {self._name} is not complete: {missing}",
            hint="nothing was changed; restore what is missing from a backup",
        )

    def _read_log(self) -> JournalReplay:
        log, rollups = JournalReplay(), self._rollups()
        first = log.next
        if rollups:
            first, name = rollups[-1], rollup_name(rollups[-1])
            log.start(decode_batch(name, self._get(name)))
        while True:
            there = self._numbers(*first)
            wanted = range(first[1], first[1] + max(len(there), first == log.last))
            if there != list(wanted) or (first == (0, 0) and not there and self._list(LOG)):
                raise _Gap(f"{batch_name(first)} or one of those after it is missing")
            for data in self._get_many([batch_name((first[0], n)) for n in there if (first[0], n) != log.last]):
                log.advance(decode_batch(batch_name(log.next), data))
            if log.next[0] == first[0]:
                return log
            first = log.next

    def _numbers(self, term: int, first: int) -> list[int]:
        """The batches of a term from a number on."""
        found = (batch_position(name) for name in self._list(f"{LOG}/{term:010d}"))
        return sorted(at[1] for at in found if at is not None and at[1] >= first)

    def _rollups(self) -> list[Position]:
        return sorted(at for at in map(rollup_position, self._list(ROLLUPS)) if at is not None)

    def _read(self, at: Position) -> Batch:
        """The batch of that name. Raises `FileNotFoundError`."""
        return decode_batch(batch_name(at), self._get(batch_name(at)))

    def _read_taken(self, at: Position) -> Batch:
        """The batch that has a name of this handle's term. Raises `Fenced` if it was there and is not any more."""
        try:
            return self._read(at)
        except FileNotFoundError as error:
            log = self._read_all()
            if log.next[0] == at[0]:
                raise CorruptObject(f"object {batch_name(at)} of the catalog is missing") from error
            raise self._fenced_by(log) from error

    def _shut(self, by: Batch) -> Fenced:
        owners = [value for collection, key, value in by.writes.puts if (collection, key) == (PLACE, OWNER)]
        token = (by.writes.config or {}).get(FENCING_KEY, 0)
        self._shut_out = fenced(self._token or 0, token, owners[0] if owners else None)
        return self._shut_out

    def _fenced_by(self, log: JournalReplay) -> Fenced:
        owner = (log.rows or {}).get((PLACE, OWNER))
        self._shut_out = fenced(self._token or 0, log.config.get(FENCING_KEY, 0), owner)
        return self._shut_out

    # ---- rollups

    def _roll_up_if_due(self) -> None:
        log, options = self._log, self._options
        if not options.policy.due(log.since_rollup, log.log_bytes, log.rollup_bytes):
            return
        if options.monotonic_s() < self._rollup_after_s:
            return
        if not options.background:
            self._try_to_roll_up()
        elif self._rolling is None or not self._rolling.is_alive():
            thread = threading.Thread(target=self._try_to_roll_up, name="headrace-rollup", daemon=True)
            with suppress(RuntimeError):  # no thread can be started now: after the next commit perhaps
                thread.start()
                self._rolling = thread

    def _try_to_roll_up(self) -> None:
        try:
            self.roll_up()
            self.rollup_error, self._rollup_failures = None, 0
        except Exception as error:
            self.rollup_error = error
            self._rollup_failures += 1
            # Each try reads the whole log.
            pause_s = min(_ROLLUP_PAUSE_S * 2 ** min(self._rollup_failures - 1, 20), _ROLLUP_MOST_PAUSE_S)
            self._rollup_after_s = self._options.monotonic_s() + pause_s

    def roll_up(self) -> None:
        """Write down all of the content, then delete what nobody needs any more to learn it."""
        log = self._read_all()
        if log.since_rollup:
            batch = log.rollup()
            name, batch = rollup_name(batch.at), encode_batch(batch)
            fault_point("catalog.rollup.before")
            with suppress(FileExistsError):  # then somebody has written down the same
                put = partial(self._transport.put, name, batch.data, create=True)
                self._call(f"writing {name}", put, size_bytes=len(batch.data))
            fault_point("catalog.rollup.after")
            with self._lock:
                self._log.since_rollup = max(0, self._log.since_rollup - log.since_rollup)
                self._log.log_bytes = max(0, self._log.log_bytes - log.log_bytes)
                self._log.rollup_bytes = len(batch.data)
        self._collect()

    def _collect(self) -> None:
        batches = [at for at in map(batch_position, self._list(LOG)) if at is not None]
        gone, old = garbage(batches, self._rollups())
        self._delete_many([*map(rollup_name, old), *map(batch_name, gone)])

    # ---- requests

    def _call(self, doing: str, call: Callable[[], _T], *, size_bytes: int = 0) -> _T:
        doing = f"{doing} of the catalog in {self._name}"
        if self._pool is not None:
            return self._pool.run(doing, call, size_bytes=size_bytes)
        try:
            return call()
        except (FileNotFoundError, FileExistsError):
            raise
        except OSError as error:
            kind = DiskFull if is_full(error) else StorageError
            raise kind(f"{doing} failed: {error.strerror or error}") from error

    def _get(self, name: str) -> bytes:
        return self._whole(
            name, bytes(self._call(f"reading {name}", partial(self._transport.get, name, 0, _PIECE_BYTES)))
        )

    def _whole(self, name: str, data: bytes) -> bytes:
        """An object of which this is the first piece."""
        wanted = _PIECE_BYTES
        while len(data) == wanted:
            get = partial(self._transport.get, name, wanted, _MORE_BYTES)
            data += bytes(self._call(f"reading {name}", get, size_bytes=_MORE_BYTES))
            wanted += _MORE_BYTES
        return data

    def _get_many(self, names: Sequence[str]) -> Sequence[bytes]:
        pool = self._pool
        if pool is None:
            return [self._get(name) for name in names]
        found = self._few_at_once(
            names, lambda name: pool.start(f"reading {name}", lambda: self._transport.get(name, 0, _PIECE_BYTES))
        )
        return [self._whole(name, bytes(data)) for name, data in zip(names, found)]

    def _delete_many(self, names: Sequence[str]) -> None:
        pool = self._pool
        if pool is None:
            for name in names:
                self._call(f"deleting {name}", lambda name=name: self._transport.delete(name))  # type: ignore[misc]
            return
        done = self._few_at_once(
            names, lambda name: pool.start(f"deleting {name}", lambda: self._transport.delete(name))
        )
        for _ in done:
            pass

    @staticmethod
    def _few_at_once(names: Sequence[str], start: Callable[[str], Callable[[], _T]]) -> Iterator[_T]:
        """Results of requests that are started a few at a time: a commit's own must not queue behind all of them."""
        waits: deque[Callable[[], _T]] = deque()
        for name in names:
            if len(waits) == _AT_ONCE:
                yield waits.popleft()()
            waits.append(start(name))
        while waits:
            yield waits.popleft()()

    def _list(self, prefix: str) -> list[str]:
        return [found.path for found in self._call(f"listing {prefix}", lambda: self._transport.list(prefix))]

    # ---- life

    def close(self) -> None:
        """Let a rollup that is being made come to its end, and take no more calls."""
        if self._token is not None and self._options.lease_ms and not self._closed and self._shut_out is None:
            self._give_lease_up()
        self._closed = True
        rolling = self._rolling
        if rolling is not None and rolling is not threading.current_thread():
            rolling.join()

    def _give_lease_up(self) -> None:
        """Say that this handle does not read any more, so that the next opener need not wait."""
        with self._lock, suppress(HeadraceError):
            self._closed = True
            self._settle()
            self._put_batch(self._batch(self._log, "nothing", Writes()))

    def _check_open(self) -> None:
        if self._closed:
            raise StorageError(f"the catalog in {self._name} is closed")

    def _check_usable(self) -> None:
        self._check_open()
        if self._shut_out is not None:
            raise Fenced(self._shut_out.message, detail=self._shut_out.detail, hint=self._shut_out.hint)


class _Gap(Exception):
    """Batches are missing: they were deleted while the log was read, or are lost."""
