"""The catalog as a log of objects: what is asked of the store, rollups, deletions, and what lost answers leave."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from faulty_transport import FaultyTransport

from headrace.catalog.catalog import Catalog
from headrace.catalog.directory import Directory
from headrace.catalog.edits import SEQUENCE_KEY, AddEvent, Put
from headrace.catalog.journal import RollupPolicy, batch_name, batch_position, garbage
from headrace.catalog.log_store import LogOptions, LogStore
from headrace.catalog.records import SettingRecord
from headrace.catalog.store import FORMAT_VERSION, OutcomeUnknown
from headrace.errors import CorruptObject, Fenced, OperationalError, StorageError
from headrace.state.iopool import IoPool, RetryPolicy
from headrace.state.transport import open_transport

EVERY_8 = RollupPolicy(least_batches=8, most_batches=8)
NEVER = RollupPolicy(least_batches=1 << 30)


@pytest.fixture
def transport(request: pytest.FixtureRequest) -> FaultyTransport:
    return FaultyTransport(open_transport(f"memory://{request.node.nodeid}", {}, 1000))


def opened(transport: FaultyTransport, **options: object) -> Catalog:
    return Catalog.over(store(transport, **options))


def store(transport: FaultyTransport, **options: object) -> LogStore:
    pool = IoPool(4, RetryPolicy(attempts=3, first_ms=1, most_ms=1, deadline_ms=5_000))
    chosen = LogOptions(**{"policy": NEVER, "background": False, **options})  # type: ignore[arg-type]
    return LogStore(transport, "memory://t", pool, chosen)


def write(catalog: Catalog, *names: object) -> None:
    for name in names:
        catalog.transact([Put(SettingRecord(str(name), "x")), AddEvent("k", None, str(name))])


def written(catalog: Catalog) -> list[str]:
    """What events say happened, oldest first: each of them once, however often an answer was lost."""
    return [e.message for e in reversed(catalog.state.newest_events(10_000))]


def names(transport: FaultyTransport, prefix: str = "") -> set[str]:
    return {o.path for o in transport.inner.list(prefix)}


def test_objects_of_many_megabytes_are_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where an object ends with a piece."""
    monkeypatch.setattr("headrace.catalog.log_store._PIECE_BYTES", 64)
    monkeypatch.setattr("headrace.catalog.log_store._MORE_BYTES", 100)
    for length in range(350, 470, 7):
        with Catalog.over(LogStore(Directory(tmp_path / str(length), sync=False), "d", None)) as catalog:
            catalog.transact([Put(SettingRecord("a", "x" * length))])
        with Catalog.over(LogStore(Directory(tmp_path / str(length), sync=False), "d", None)) as catalog:
            assert catalog.state.settings["a"].value == "x" * length


def test_a_commit_is_one_request(transport: FaultyTransport) -> None:
    """No listing and no look at the fence: the put itself is one."""
    with opened(transport) as catalog:
        write(catalog, "a")
        transport.requests.clear()
        write(catalog, *range(20))
        assert transport.requests == {"put": 20}


def test_reads_within_the_lease_ask_for_nothing(transport: FaultyTransport) -> None:
    now_s = [100.0]
    slept: list[float] = []
    timing = {"lease_ms": 1000, "monotonic_s": lambda: now_s[0], "sleep_s": slept.append}
    old = opened(transport, **timing)
    write(old, "a")
    transport.requests.clear()
    now_s[0] += 0.9
    assert old.state.settings
    assert not transport.requests
    now_s[0] += 0.2
    assert old.state.settings
    assert transport.requests == {"head": 1}
    new = opened(transport, **timing)
    # The opener has waited until nobody can still believe in what it saw before.
    assert slept == [1.0]
    now_s[0] += 1.0
    with pytest.raises(Fenced):
        old.state
    new.close()
    opened(transport, **timing)
    assert slept == [1.0]  # who closes has nothing to be waited for


ROLLING_UP = """
import sys
from headrace.catalog.catalog import Catalog
from headrace.catalog.edits import Put
from headrace.catalog.records import SettingRecord
with Catalog.open(sys.argv[1]) as catalog:
    for n in range(20):
        catalog.transact([Put(SettingRecord(f"s{n}", "x"))])
    catalog._store.roll_up()
"""


@pytest.mark.parametrize("point", ["catalog.rollup.before", "catalog.rollup.after"])
def test_a_process_that_ends_in_a_rollup_loses_nothing(tmp_path: Path, point: str) -> None:
    """XC-2, CM-29: neither what it has written down, nor what comes after it, nor another rollup."""
    location = tmp_path.as_uri()
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", ROLLING_UP, location], env={**os.environ, "HEADRACE_FAULTS": f"{point}=kill"}
        )
        assert done.returncode == -signal.SIGKILL
        with Catalog.open(location) as catalog:
            assert len(catalog.state.settings) == 20 and catalog.sequence in (20, 40)
    with Catalog.open(location) as catalog:
        catalog._store.roll_up()  # type: ignore[attr-defined]
    with Catalog.open(location) as catalog:
        assert len(catalog.state.settings) == 20 and catalog.sequence == 40


@pytest.mark.parametrize("background", [False, True])
def test_rollups_keep_what_replaying_gives(transport: FaultyTransport, background: bool) -> None:
    """CM-29: and leave few objects, however many transactions there were."""
    with opened(transport, policy=EVERY_8, background=background) as catalog:
        write(catalog, *range(100))
        expected = sorted(catalog.state.settings), written(catalog)
    assert not names(transport, "log") or len(names(transport)) < 100
    catalog._store.roll_up()  # type: ignore[attr-defined]
    assert len(names(transport)) <= 12
    with opened(transport, policy=EVERY_8) as catalog:
        assert (sorted(catalog.state.settings), written(catalog)) == expected
        assert catalog.sequence == 100


def test_what_is_written_stays_in_proportion() -> None:
    """A million commits of 300 bytes to a catalog of 10 MB: the rollups add less than the share that is allowed."""
    policy, rollup_bytes, commit_bytes = RollupPolicy(), 10_000_000, 300
    since = log_bytes = rollups = 0
    for _ in range(1_000_000):
        since, log_bytes = since + 1, log_bytes + commit_bytes
        if policy.due(since, log_bytes, rollup_bytes):
            since = log_bytes = 0
            rollups += 1
    assert rollups == 1_000_000 // policy.most_batches
    small = RollupPolicy(most_batches=1 << 30)
    assert not small.due(10_000, 10_000 * commit_bytes // 2, 10_000 * commit_bytes * small.share)
    assert small.due(10_000, 10_000 * commit_bytes, 10_000 * commit_bytes * small.share)


def test_garbage_leaves_the_ends_of_all_terms() -> None:
    batches = [(0, 0), (1, 0), (1, 1), (1, 2), (1, 3), (2, 0), (2, 1), (2, 2), (2, 3)]
    assert garbage(batches, []) == ([], [])
    assert garbage(batches, [(1, 1), (2, 0), (2, 1)]) == ([(1, 0), (1, 1), (2, 0)], [(1, 1)])
    assert garbage(batches, [(2, 3)]) == ([(1, 0), (1, 1), (2, 0), (2, 1)], [])


def test_a_writer_that_wakes_up_after_everything_was_deleted(transport: FaultyTransport) -> None:
    """I9: for good. The name that it goes for is taken for ever."""
    zombies = [opened(transport) for _ in range(3)]
    write(zombies[-1], "z")
    with opened(transport, policy=EVERY_8) as owner:
        write(owner, *range(50))
        owner._store.roll_up()  # type: ignore[attr-defined]
        for zombie in zombies:
            with pytest.raises(Fenced):
                write(zombie, "late")
            with pytest.raises(Fenced):
                zombie.state
        write(owner, "more")
        assert written(owner) == ["z", *map(str, range(50)), "more"]


def test_an_opener_that_stood_still_while_the_log_went_on(transport: FaultyTransport) -> None:
    """Its put finds a name free whose batch has been deleted: that is no fence, and it finds out."""
    owner = opened(transport, policy=EVERY_8)
    write(owner, "a")

    def meanwhile() -> None:
        write(owner, *range(40))
        owner._store.roll_up()  # type: ignore[attr-defined]

    transport.do("put", meanwhile)
    late = opened(transport)
    assert written(late) == ["a", *map(str, range(40))]
    with pytest.raises(Fenced):
        write(owner, "x")
    write(late, "y")
    with opened(transport) as again:
        assert written(again)[-1] == "y"


def test_an_opener_whose_name_was_taken_by_what_has_been_deleted_since(transport: FaultyTransport) -> None:
    """It cannot read what took the name: so the log has gone on, and it begins anew."""
    owner = opened(transport)

    def then() -> None:
        write(owner, *range(20))
        owner._store.roll_up()  # type: ignore[attr-defined]

    def first() -> None:
        write(owner, "a")
        transport.do("get", then)

    transport.do("put", first)
    late = opened(transport)
    assert written(late) == ["a", *map(str, range(20))]
    with pytest.raises(Fenced):
        write(owner, "x")


def test_a_reader_while_objects_are_deleted(transport: FaultyTransport) -> None:
    """It begins anew at the newest rollup."""
    owner = opened(transport)
    write(owner, *range(10))

    def meanwhile() -> None:
        write(owner, "more")
        owner._store.roll_up()  # type: ignore[attr-defined]

    transport.do("get", meanwhile)
    with Catalog.over(store(transport), read_only=True) as reader:
        assert written(reader) == [*map(str, range(10)), "more"]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("failures", [1, 2])
def test_a_lost_answer_is_tried_again_under_the_same_name(
    transport: FaultyTransport, failures: int, after: bool
) -> None:
    """I10: throttled, torn or lost; the transaction is there once."""
    with opened(transport) as catalog:
        write(catalog, "a")
        transport.fail("put", *[ConnectionError("503 SlowDown")] * failures, after=after)
        write(catalog, "b")
        write(catalog, "c")
        assert (catalog.sequence, written(catalog)) == (3, ["a", "b", "c"])
    with opened(transport) as catalog:
        assert (catalog.sequence, written(catalog)) == (3, ["a", "b", "c"])


@pytest.mark.parametrize("arrives", [False, True])
def test_a_store_that_does_not_answer_is_asked_before_anything_else_happens(
    transport: FaultyTransport, arrives: bool
) -> None:
    """I10: what became of the put is decided once, by what has its name."""
    catalog = opened(transport)
    write(catalog, "a")
    gone = [ConnectionError("gone")]
    transport.fail("put", *gone * (1 if arrives else 3), after=arrives)
    transport.fail("get", *gone * 9)
    with pytest.raises(OutcomeUnknown):
        write(catalog, "b")
    with pytest.raises(StorageError):
        catalog.state
    transport.before.clear()
    write(catalog, "c")
    expected = ["a", "b", "c"] if arrives else ["a", "c"]
    assert written(catalog) == expected
    with opened(transport) as again:
        assert written(again) == expected


def test_a_put_that_arrives_late_finds_its_name_taken(transport: FaultyTransport) -> None:
    """I10: it was given up, and said so; so it must not happen any more."""
    catalog = opened(transport)
    late: list[Callable[[], None]] = []
    inner = transport.inner

    class Slow:
        """Keeps the next put back."""

        def __getattr__(self, name: str) -> object:
            return getattr(inner, name)

        def put(self, path: str, data: bytes, *, create: bool) -> None:
            if not late:
                late.append(lambda: inner.put(path, data, create=create))
                raise OSError("the connection was reset")
            inner.put(path, data, create=create)

    transport.inner = Slow()  # type: ignore[assignment]
    with pytest.raises(StorageError):
        write(catalog, "given up")
    with pytest.raises(FileExistsError):
        late[0]()
    write(catalog, "next")
    assert written(catalog) == ["next"]
    with opened(transport) as again:
        assert written(again) == ["next"]


def test_fenced_while_an_outcome_is_unknown(transport: FaultyTransport) -> None:
    old = opened(transport)
    transport.fail("put", *[OSError("no route")])
    transport.fail("get", *[OSError("no route")] * 2)
    with pytest.raises(StorageError):
        write(old, "lost")
    transport.before.clear()
    with opened(transport) as new:
        for _ in range(2):
            with pytest.raises(Fenced):
                old.state
        write(new, "b")
        assert written(new) == ["b"]


def _damage(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "flipped": _damage,
    "truncated": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "foreign": lambda data: b"PAR1" + data,
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("which", ["rollup", "log"])
def test_damaged_objects_are_refused_by_name_and_left_alone(tmp_path: Path, which: str, damage: str) -> None:
    def directory() -> LogStore:
        return LogStore(Directory(tmp_path, sync=False), "d", None, LogOptions(policy=NEVER))

    with Catalog.over(directory()) as catalog:
        write(catalog, *range(5))
        catalog._store.roll_up()  # type: ignore[attr-defined]
        write(catalog, *range(5, 8))
    victim = sorted((tmp_path / which).rglob("*.*"))[-1]
    victim.write_bytes(DAMAGES[damage](victim.read_bytes()))
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    for read_only in (True, False):
        with pytest.raises(CorruptObject, match=victim.name):
            Catalog.over(directory(), read_only=read_only)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_a_log_with_a_hole_is_refused(transport: FaultyTransport) -> None:
    with opened(transport) as catalog:
        write(catalog, *range(5))
    everything = sorted(names(transport))
    for name in (everything[0], everything[3]):
        data = bytes(transport.inner.get(name, 0, 1 << 30))
        transport.inner.delete(name)
        with pytest.raises(CorruptObject, match="missing"):
            opened(transport)
        transport.inner.put(name, data, create=True)
    opened(transport).close()


def test_objects_of_two_catalogs_that_were_mixed_are_refused(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        with Catalog.over(LogStore(Directory(folder, sync=False), "d", None)) as catalog:
            write(catalog, 1, 2, 3)
    other = folders[1] / batch_name((1, 2))
    (folders[0] / batch_name((1, 2))).write_bytes(other.read_bytes())
    with pytest.raises(CorruptObject, match="does not follow"):
        Catalog.over(LogStore(Directory(folders[0], sync=False), "d", None))


def test_a_newer_form_of_the_objects_is_refused(transport: FaultyTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as later:
        later.setattr("headrace.catalog.journal.JOURNAL_VERSION", 2)
        owner = opened(transport)
    there = names(transport)
    with pytest.raises(OperationalError, match="form 2"):
        opened(transport)
    assert names(transport) == there
    with monkeypatch.context() as later:
        later.setattr("headrace.catalog.journal.JOURNAL_VERSION", 2)
        write(owner, "still here")


def test_no_torn_batch_whenever_the_disk_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name appears only once all of its bytes are on the device."""
    order: list[str] = []
    for call in ("fsync", "link"):
        real = getattr(__import__("os"), call)
        monkeypatch.setattr(f"os.{call}", lambda *a, call=call, real=real: (order.append(call), real(*a))[1])
    with Catalog.over(LogStore(Directory(tmp_path), "d", None)) as catalog:
        order.clear()
        write(catalog, "a")
    assert order == ["fsync", "link", "fsync"]


def test_many_threads_and_rollups_at_once(tmp_path: Path) -> None:
    options = LogOptions(policy=RollupPolicy(5, 5))
    with Catalog.over(LogStore(Directory(tmp_path, sync=False), "d", None, options)) as catalog:
        threads = [threading.Thread(target=write, args=(catalog, *(f"{t}-{i}" for i in range(30)))) for t in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert catalog._store.rollup_error is None  # type: ignore[attr-defined]
    with Catalog.over(LogStore(Directory(tmp_path, sync=False), "d", None)) as catalog:
        assert len(set(written(catalog))) == len(written(catalog)) == 120 == catalog.state.config[SEQUENCE_KEY]
    assert all(batch_position(p.relative_to(tmp_path).as_posix()) for p in (tmp_path / "log").rglob("*.batch"))
    assert LogStore(Directory(tmp_path, sync=False), "d", None).load(FORMAT_VERSION).config[SEQUENCE_KEY] == 120


def test_rollups_that_fail_are_tried_again_later_and_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reads the whole log: with one for each commit it would get slower and slower; and somebody asks for it."""
    now_s = 0.0
    options = LogOptions(policy=RollupPolicy(5, 5), background=False, monotonic_s=lambda: now_s)
    with Catalog.over(LogStore(Directory(tmp_path, sync=False), "d", None, options)) as catalog:
        store = catalog._store
        tried: list[float] = []

        def fails() -> None:
            tried.append(now_s)
            raise ValueError("no permission")

        with monkeypatch.context() as broken:
            broken.setattr(store, "roll_up", fails)
            for i in range(200):
                write(catalog, f"{i}")
                now_s += 1.0
            assert 3 <= len(tried) <= 5
            with pytest.raises(ValueError, match="no permission"):
                catalog.check_background()
        now_s += 1000.0
        write(catalog, "well again")
        catalog.check_background()
    with Catalog.over(LogStore(Directory(tmp_path, sync=False), "d", None)) as catalog:
        assert len(written(catalog)) == 201
