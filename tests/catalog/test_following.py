"""Following a catalog that another opener writes, and taking it over; on each backend."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace

import pyarrow as pa
import pytest
from opener_model import Memory

from headrace.catalog import stash
from headrace.catalog.catalog import Catalog
from headrace.catalog.contents import TableContent
from headrace.catalog.edits import AddEvent, Delete, Edit, Put, SetConfig
from headrace.catalog.following import FollowedCatalog, LogFollower, Refreshed
from headrace.catalog.journal import RollupPolicy
from headrace.catalog.log_store import LogOptions, LogStore
from headrace.catalog.moving import Places, move
from headrace.catalog.places import PlaceOptions, canonical
from headrace.catalog.records import (
    JobPlan,
    JobRecord,
    ObjectRecord,
    PositionRecord,
    Record,
    RemapRecord,
    RunRecord,
    SettingRecord,
    SourceRecord,
    StateTableRecord,
    key_text,
    parse_key,
)
from headrace.catalog.stash import StashStore
from headrace.catalog.state import CatalogState
from headrace.catalog.store import FORMAT_VERSION, MIGRATIONS, Overtaken, StoredCatalog, Writes
from headrace.coordinator.decide.lease import Lease
from headrace.errors import CorruptObject, Fenced, ReadOnlyTransaction, StorageError
from headrace.state.schema import ROWS, RunRef, TableSchema

OPTIONS = PlaceOptions(full_sync=False, lease_ms=0)


def taken(found: Refreshed, state: CatalogState) -> None:
    """Nobody is to be told."""


@contextmanager
def following(location: str) -> Iterator[FollowedCatalog]:
    with FollowedCatalog.begin(location, Places.known([location], OPTIONS)) as catalog:
        yield catalog


def content(state: CatalogState) -> tuple[set[object], dict[str, int]]:
    return {repr(record) for record in state.records()}, dict(state.config)


def state_table(table_id: int, job_id: int) -> StateTableRecord:
    schema = TableSchema((pa.field("k", pa.int64()),), (), ((pa.field("__w", pa.int64()), "add"),))
    return StateTableRecord.from_table_schema(table_id, job_id, ROWS, schema)


def table(n: int) -> list[Edit]:
    return [
        Put(ObjectRecord(n, TableContent(), "public", f"t{n}")),
        Put(JobRecord(n, f"table-{n}", "created", plan=JobPlan(kind="table"))),
        Put(state_table(n + 1, n)),
    ]


def run(table_id: int, n: int) -> Put:
    return Put(RunRecord(RunRef(table_id, f"{table_id}/{n}.run", 0, 10, n, n, 1, 0, 0), 0, 0))


def test_what_is_committed_is_seen(location: str) -> None:
    with Catalog.open(location, options=OPTIONS) as active:
        active.transact(table(10))
        with following(location) as follower:
            assert content(follower.state) == content(active.state)
            assert follower.refresh(taken) is None
            for edits in (
                [run(11, 1), run(11, 2)],
                [Delete("run", "11/1.run:0"), run(11, 3), Put(SettingRecord("a", "1"))],
                [Put(RemapRecord(10, n, {"0": n})) for n in range(20)],
                [Delete("remap", (10, 0)), AddEvent("x", None, "something")],
                [Delete("setting", "a"), SetConfig("b", (1 << 64) - 1)],
                [Delete("object", 10)],
            ):
                before = follower.state
                active.transact(edits)
                assert content(follower.state) == content(before), "nothing is seen before it is taken in"
                found = follower.refresh(taken)
                assert found is not None
                assert content(follower.state) == content(active.state)
                assert follower.refresh(taken) is None


def test_it_writes_nothing_and_shuts_out_nobody(location: str) -> None:
    """CM-8: following is no opening."""
    with Catalog.open(location, options=OPTIONS) as active, following(location) as follower:
        with pytest.raises(ReadOnlyTransaction):
            follower.transact([SetConfig("a", 1)])
        assert follower.token is None
        active.transact([SetConfig("a", 1)])


def test_what_is_taken_is_told_before_it_is_seen(location: str) -> None:
    with Catalog.open(location, options=OPTIONS) as active, following(location) as follower:
        active.transact([SetConfig("a", 1)])
        seen = []
        follower.refresh(lambda found, state: seen.append((follower.image.config.get("a"), state.config.get("a"))))
        assert seen == [(None, 1)]


def test_taking_over_shuts_out_the_other_one(location: str) -> None:
    with Catalog.open(location, options=OPTIONS) as active, following(location) as follower:
        active.transact(table(10))
        follower.refresh(taken)
        active.transact([run(11, 1)])  # not seen yet, and there all the same
        follower.take_over()
        with pytest.raises(Fenced):
            active.transact([run(11, 2)])
        assert set(follower.state.runs) == {"11/1.run:0"}
        follower.transact([run(11, 3)])
        with Catalog.open(location, options=OPTIONS) as later:
            assert set(later.state.runs) == {"11/1.run:0", "11/3.run:0"}


def test_an_owner_that_never_rests_is_shut_out_at_the_first_attempt(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A standby that gave up because of the other one's transactions would wait for a lease that is renewed."""
    monkeypatch.setattr(stash, "_SERIALIZATION_ATTEMPTS", 1)
    owner = Catalog.open(location, options=OPTIONS)
    for _ in range(2 if location.startswith("s3:") else 5):
        followers = [FollowedCatalog.begin(location, Places.known([location], OPTIONS)) for _ in range(2)]
        writing = threading.Thread(target=write_until_fenced, args=(owner,), daemon=True)
        looking = threading.Thread(target=look_until_it_changes, args=(followers[1],), daemon=True)
        writing.start()
        looking.start()
        time.sleep(0.05)
        followers[0].take_over()
        writing.join()
        looking.join()
        owner.close()
        followers[1].close()
        owner = followers[0]
    owner.close()


def write_until_fenced(owner: Catalog) -> None:
    with suppress(Fenced, StorageError):
        while True:
            owner.transact([AddEvent(0, "tick", None, "")])


def look_until_it_changes(follower: FollowedCatalog) -> None:
    before = follower.followed_token
    while follower.followed_token == before:
        with suppress(StorageError):
            follower.refresh(taken)


def test_of_two_followers_one_takes_over(location: str) -> None:
    """CM-7: the one that comes second is refused, and shuts out nobody."""
    with (
        Catalog.open(location, options=OPTIONS),
        following(location) as first,
        following(location) as second,
    ):
        first.take_over()
        with pytest.raises(Overtaken):
            second.take_over()
        first.transact([SetConfig("a", 1)])  # it has not been shut out
        second.refresh(taken)
        assert second.image.config["a"] == 1
        assert second.followed_token == first.token
        second.take_over()
        with pytest.raises(Fenced):
            first.transact([SetConfig("a", 2)])


def test_it_goes_on_with_whoever_opens_the_catalog(location: str) -> None:
    with ExitStack() as stack:
        opener = stack.enter_context(Catalog.open(location, options=OPTIONS))
        follower = stack.enter_context(following(location))
        for n in range(5):
            opener.transact([SetConfig("n", n)])
            opener = stack.enter_context(Catalog.open(location, options=OPTIONS))
            follower.refresh(taken)
            assert follower.image.config["n"] == n
            assert follower.followed_token == opener.token


def test_it_follows_a_catalog_that_moves(location: str, tmp_path: object) -> None:
    target = f"file://{tmp_path}/moved"
    with Catalog.open(location, options=OPTIONS) as active:
        active.transact(table(10))
    with following(location) as follower:
        places = Places.known([location, target], OPTIONS)
        move(canonical(location), canonical(target), places)
        found = follower.refresh(taken)
        assert found is not None
        assert found.whole
        with Catalog.open(target, options=OPTIONS) as active:
            active.transact([run(11, 1)])
            follower.refresh(taken)
            assert content(follower.state) == content(active.state)
            follower.take_over()
            with pytest.raises(Fenced):
                active.transact([run(11, 2)])


def test_what_could_not_be_taken_in_is_not_lost(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Catalog.open(location, options=OPTIONS) as active, following(location) as follower:
        active.transact([*table(10), run(11, 1)])
        before = follower.state

        def failing(*row: str) -> Record:
            raise CorruptObject("injected")

        with monkeypatch.context() as patched:
            patched.setattr("headrace.catalog.following.decode", failing)
            for _ in range(2):
                with pytest.raises(CorruptObject):
                    follower.refresh(taken)
        assert content(follower.state) == content(before)
        found = follower.refresh(taken)
        assert found is not None and found.whole
        active.transact([run(11, 2)])
        follower.refresh(taken)
        assert content(follower.state) == content(active.state)
        assert follower.refresh(taken) is None


def test_a_place_that_does_not_answer_when_the_catalog_moves_there_is_asked_again(
    location: str, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = f"file://{tmp_path}/moved"
    with Catalog.open(location, options=OPTIONS) as active:
        active.transact(table(10))
    with following(location) as follower:
        move(canonical(location), canonical(target), Places.known([location, target], OPTIONS))

        def unanswered(*given: object) -> str:
            raise StorageError("injected")

        with monkeypatch.context() as patched:
            patched.setattr("headrace.catalog.following.find_truth", unanswered)
            for _ in range(2):
                with pytest.raises(StorageError, match="injected"):
                    follower.refresh(taken)
        with Catalog.open(target, options=OPTIONS) as active:
            active.transact([run(11, 1)])
            follower.refresh(taken)
            assert content(follower.state) == content(active.state)


def test_without_a_catalog_there_is_nothing_to_follow(location: str) -> None:
    with pytest.raises(StorageError, match="there is no catalog"), following(location):
        pass


@pytest.mark.parametrize("location", ["sqlite", "postgres"], indirect=True)
def test_renewals_of_the_lease_are_seen_without_reading_all(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def beat(n: int) -> Put:
        return Put(Lease(1, n, 5000, 100 + n).record())

    with Catalog.open(location, options=OPTIONS) as active, following(location) as follower:
        active.transact(table(10))
        active.transact([beat(1)])
        follower.refresh(taken)
        loads = []
        load = StashStore.load
        monkeypatch.setattr(StashStore, "load", lambda *a: loads.append(a) or load(*a))
        for n in range(2, 5):
            active.transact([beat(n)])
            if n != 3:
                assert follower.refresh(taken) is not None
                assert content(follower.state) == content(active.state)
        assert not loads
        active.transact([beat(5)])
        active.transact([run(11, 1)])
        follower.refresh(taken)
        assert content(follower.state) == content(active.state)
        assert loads


# ---- logs that are rolled up while they are followed


OFTEN = RollupPolicy(4, 4)


def log_of(memory: Memory, policy: RollupPolicy = OFTEN) -> LogStore:
    return LogStore(memory, "memory", None, LogOptions(policy=policy, background=False))


def applied(loaded: StoredCatalog, writes: Writes) -> StoredCatalog:
    rows = {(c, k): v for c, k, v in loaded.rows}
    for target in writes.deletes:
        rows.pop(target, None)
    rows |= {(c, k): v for c, k, v in writes.puts}
    return StoredCatalog(dict(writes.config or {}), tuple((c, k, v) for (c, k), v in rows.items()))


def same(one: StoredCatalog, other: StoredCatalog) -> bool:
    return set(one.rows) == set(other.rows) and one.config == other.config


@pytest.mark.parametrize("every", [1, 2, 3, 5, 7, 11, 50])
def test_a_follower_that_falls_behind_a_rollup_misses_nothing(every: int) -> None:
    memory = Memory()
    writer = log_of(memory)
    writer.open(FORMAT_VERSION, MIGRATIONS)
    follower = LogFollower(log_of(memory))
    seen = follower.start()
    for n in range(100):
        deletes = (("setting", str(n - 7)),) if n % 3 else ()
        writer.append(Writes((("setting", str(n), f"v{n}"), ("setting", "x", str(n))), deletes), n)
        if n % every == 0:
            found = follower.look()
            assert found is not None
            seen = applied(seen, found)
            assert same(seen, writer.load(FORMAT_VERSION))
    assert len([p for p in memory.objects if p.startswith("log/")]) < 60, "nothing was rolled up"


def test_an_error_half_way_loses_nothing() -> None:
    memory = Memory()
    writer = log_of(memory)
    writer.open(FORMAT_VERSION, MIGRATIONS)
    store = log_of(memory)
    follower = LogFollower(store)
    seen = follower.start()
    for n in range(3):
        writer.append(Writes((("setting", str(n), f"v{n}"),)), n)
    read, calls = store.read_batch, []

    def failing(at: tuple[int, int]) -> object:
        calls.append(at)
        if len(calls) == 2:
            raise StorageError("injected")
        return read(at)

    store.read_batch = failing  # type: ignore[method-assign, assignment]
    first = follower.look()
    assert first is not None
    seen = applied(seen, first)
    second = follower.look()
    assert second is not None
    assert same(applied(seen, second), writer.load(FORMAT_VERSION))


def test_a_batch_that_does_not_follow_hides_none_before_it() -> None:
    memory = Memory()
    writer = log_of(memory, RollupPolicy(100, 100))
    writer.open(FORMAT_VERSION, MIGRATIONS)
    store = log_of(memory)
    follower = LogFollower(store)
    seen = follower.start()
    for n in range(2):
        writer.append(Writes((("setting", str(n), f"v{n}"),)), n)
    writer.append(Writes((("setting", "0", "again"),)), 2)
    read, whole = store.read_batch, writer.load(FORMAT_VERSION)
    calls: list[tuple[int, int]] = []

    def mixed(at: tuple[int, int]) -> object:
        calls.append(at)
        found = read(at)
        return replace(found, before="x") if found is not None and len(calls) == 3 else found

    store.read_batch = mixed  # type: ignore[method-assign, assignment]
    first = follower.look()
    assert first is not None and not first.deletes
    seen = applied(seen, first)
    second = follower.look()
    assert second is not None
    assert same(applied(seen, second), whole)


def test_a_batch_under_a_name_that_was_rolled_up_is_none_of_the_log() -> None:
    """An opener that was stopped before its put finds the name free, because its batch has been deleted."""
    memory = Memory()
    writer = log_of(memory, RollupPolicy(1000, 4))
    writer.open(FORMAT_VERSION, MIGRATIONS)
    follower = LogFollower(log_of(memory))
    seen = follower.start()
    late = log_of(memory)
    name, opening = "", b""
    put = memory.put

    def held_back(path: str, data: bytes, *, create: bool) -> None:
        nonlocal name, opening
        name, opening = path, bytes(data)
        raise OSError("held back")

    memory.put = held_back  # type: ignore[method-assign, assignment]
    with pytest.raises(StorageError):
        late.open(FORMAT_VERSION, MIGRATIONS)
    memory.put = put  # type: ignore[method-assign]
    for n in range(10):
        writer.append(Writes((("setting", str(n), f"v{n}"),)), n)
    writer.roll_up()
    memory.put(name, opening, create=True)
    found = follower.look()
    assert found is not None
    assert same(applied(seen, found), writer.load(FORMAT_VERSION))


def test_every_kind_of_record_has_a_key_that_can_be_read_back() -> None:
    for record in (
        ObjectRecord(1, TableContent(), "public", "t"), JobRecord(1, "g", "created"), state_table(2, 1),
        RunRecord(RunRef(2, "2/a:b.run", 5, 1, 1, 1, 1, 0, 0), 0, 0), RemapRecord(3, 4, {}), PositionRecord(1, 2, 3),
        SettingRecord("a:b", "x"), SourceRecord(7),
    ):  # fmt: skip
        assert parse_key(record.COLLECTION, key_text(record.key)) == record.key
    assert parse_key("event", "12") == 12
