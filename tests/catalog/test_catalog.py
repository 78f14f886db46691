"""Conformance of the catalog backends: every test runs on each of them."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from headrace.catalog.catalog import Catalog, read_config
from headrace.catalog.contents import SourceContent, TableContent
from headrace.catalog.edits import (
    FENCING_KEY,
    FORMAT_VERSION_KEY,
    SEQUENCE_KEY,
    AddEvent,
    CommitTable,
    Delete,
    Edit,
    EditRejected,
    Put,
    RaiseWatermark,
    SetConfig,
)
from headrace.catalog.places import canonical, open_store
from headrace.catalog.records import (
    JobRecord,
    ObjectRecord,
    Record,
    RemapRecord,
    SettingRecord,
    StateTableRecord,
    encode,
)
from headrace.catalog.stash import StashStore
from headrace.catalog.stash_server import ServerTables, server_engine
from headrace.catalog.state import Change
from headrace.catalog.store import FORMAT_VERSION, OutcomeUnknown, StoredCatalog, Writes
from headrace.common.clock import ManualClock
from headrace.common.faults import arm, disarm_all
from headrace.errors import Fenced, InvalidParameter, OperationalError, ReadOnlyTransaction, StorageError
from support import WAIT_S

SETUP: list[Edit] = [
    Put(ObjectRecord(1, TableContent(), "public", "t")),
    Put(JobRecord(1, "g", "created")),
    *(Put(StateTableRecord(i, 1, "op", "", (), (), ())) for i in (10, 11)),
]


def setting(value: str) -> Put:
    return Put(SettingRecord("s", value))


def content(catalog: Catalog) -> tuple[list[Record], dict[str, int]]:
    config = {k: v for k, v in catalog.image.config.items() if k != FENCING_KEY}
    return sorted(catalog.image.records(), key=encode), config


def test_everything_committed_is_there_after_a_restart(location: str) -> None:
    with Catalog.open(location, clock=ManualClock(5)) as catalog:
        assert catalog.transact(SETUP) == 1
        assert catalog.transact([CommitTable(10, 7), AddEvent("k", 1, "m"), SetConfig("big", (1 << 64) - 1)]) == 2
        catalog.transact([setting("x"), Put(SettingRecord("gone", ""))])
        catalog.transact([Delete("setting", "gone"), setting("y")])
        before = content(catalog)
        assert catalog.state.state_tables[10].committed_epoch == catalog.state.last_epoch == 7
    with Catalog.open(location) as catalog:
        assert content(catalog) == before
        assert (catalog.sequence, catalog.state.config["big"], catalog.state.events[1].at_ms) == (4, (1 << 64) - 1, 5)


class Disturbed(int):
    """An epoch: something happens while a search compares it for the first time."""

    def __new__(cls, value: int, happens: Callable[[], object]) -> "Disturbed":
        made = super().__new__(cls, value)
        made.happens = happens
        return made

    happens: Callable[[], object] | None

    def __lt__(self, other: int) -> bool:
        happens, self.happens = self.happens, None
        if happens is not None:
            happens()
        return int(self) < int(other)


def test_bindings_that_are_pruned_during_a_search_do_not_mislead_it(location: str) -> None:
    with Catalog.open(location) as catalog:
        catalog.transact([Put(ObjectRecord(1, SourceContent(), "public", "s"))])
        for epoch in range(1, 17):
            catalog.transact([Put(RemapRecord(1, epoch, {"0": epoch}))])

        def prune() -> None:
            catalog.transact([Delete("remap", r.key) for r in catalog.state.stale_remaps(1, 12)])

        found = catalog.state.offsets_at(1, Disturbed(14, prune))
        assert found == RemapRecord(1, 14, {"0": 14})
        assert [r.epoch for r in catalog.state.all_remaps(1)] == [12, 13, 14, 15, 16]


def test_what_was_handed_out_never_changes(location: str) -> None:
    """A search that began before a transaction ends as if there were none: no half of it, nothing torn."""
    with Catalog.open(location) as catalog:
        catalog.transact([*SETUP, Put(RemapRecord(1, 5, {}))])
        with catalog.reading() as inside:
            handed_out = (catalog.state, catalog.image, inside)
        before, names = sorted(map(repr, inside.records())), [iter(s.objects.values()) for s in handed_out]
        catalog.transact([Put(ObjectRecord(n, TableContent(), "public", f"t{n}")) for n in range(20, 600)])
        catalog.transact([Put(RemapRecord(1, 6, {})), Delete("remap", (1, 5)), AddEvent("k", None, ""), setting("x")])
        for state, objects in zip(handed_out, names, strict=True):
            assert [o.name for o in objects] == ["t"] and sorted(map(repr, state.records())) == before
            assert (state.newest_events(1), state.config[SEQUENCE_KEY]) == ((), 1)
            with pytest.raises(RuntimeError):
                state.apply(Change((), (), {}))
        assert (catalog.sequence, len(catalog.state.objects)) == (3, 581)


def test_a_watermark_survives_a_restart(location: str) -> None:
    """LS-24: what a state table's rows have expired by is durable with its epoch, and never goes back afterwards."""
    expiring = StateTableRecord(12, 1, "op", "", (), (), (), expires="at")
    with Catalog.open(location) as catalog:
        catalog.transact([*SETUP, Put(expiring)])
        catalog.transact([CommitTable(12, 7, watermark=100)])
        catalog.transact([RaiseWatermark(12, 150)])
    for expected in (150, 175):
        with Catalog.open(location) as catalog:
            assert catalog.state.state_tables[12].watermark == expected
            for back in (
                RaiseWatermark(12, expected - 1),
                CommitTable(12, 1000, watermark=expected - 1),
                Put(expiring),
            ):
                with pytest.raises(EditRejected):
                    catalog.transact([back])
            catalog.transact([RaiseWatermark(12, 175)])
            assert catalog.state.state_tables[12] == replace(expiring, committed_epoch=7, watermark=175)


def test_each_open_raises_the_token(location: str) -> None:
    """CM-1: strictly, over restarts too."""
    tokens = []
    for _ in range(3):
        with Catalog.open(location) as catalog:
            tokens.append(catalog.token)
            assert read_config(location)[FENCING_KEY] == catalog.token
    first, second = Catalog.open(location), Catalog.open(location)
    tokens += [first.token, second.token]
    first.close()
    second.close()
    assert tokens == [1, 2, 3, 4, 5]


def _read_block(catalog: Catalog) -> None:
    with catalog.reading():
        pass


OPERATIONS: dict[str, Callable[[Catalog], object]] = {
    "state": lambda c: c.state,
    "reading": _read_block,
    "transact": lambda c: c.transact([setting("late")]),
    "transact nothing": lambda c: c.transact([]),
    "checkpoint commit": lambda c: c.transact([CommitTable(10, 99)]),
    "allocate_ids": lambda c: c.allocate_ids(1),
    "store.verify": lambda c: c._store.verify(),
    "store.sequence": lambda c: c._store.sequence(),
    "store.load": lambda c: c._store.load(FORMAT_VERSION),
    "store.append": lambda c: c._store.append(Writes(puts=(("setting", "s", "{}"),)), c.sequence),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_after_another_open_every_operation_fails(location: str, operation: str) -> None:
    """CM-2, CM-30, I9: the error names both tokens, and nothing of it takes effect."""
    with Catalog.open(location) as old:
        old.transact(SETUP)
        OPERATIONS["state"](old)
        with Catalog.open(location) as new:
            before = content(new)
            for _ in range(2):
                with pytest.raises(Fenced, match=r"token 1\b.*\b2$") as failure:
                    OPERATIONS[operation](old)
                assert failure.value.sqlstate == "57P01"
            assert content(new) == before
            new.transact([setting("new")])
    with Catalog.open(location) as later:
        assert later.state.settings["s"].value == "new"
        assert later.state.state_tables[10].committed_epoch == 0


@pytest.mark.parametrize("point", ["catalog.commit.before", "catalog.commit.after"])
def test_a_write_in_flight_while_another_opens(location: str, point: str) -> None:
    """CM-3: it has committed before the fence and the opener sees it, or it is refused."""
    old = Catalog.open(location)
    arm(point, "hang")
    outcome: list[int | Exception] = []

    def write() -> None:
        try:
            outcome.append(old.transact([setting("in flight")]))
        except Fenced as error:
            outcome.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    opened: list[Catalog] = []
    opener = threading.Thread(target=lambda: opened.append(Catalog.open(location)))
    opener.start()
    opener.join(0.2)
    disarm_all()
    writer.join(WAIT_S)
    opener.join(WAIT_S)
    (new,) = opened
    arrived = "s" in new.state.settings
    assert arrived == (outcome == [1])
    assert arrived or isinstance(outcome[0], Fenced)
    with pytest.raises(Fenced):
        old.transact([setting("late")])
    new.close()
    old.close()


def test_simultaneous_openers(location: str) -> None:
    """CM-7: all get different tokens, and the highest alone is usable."""
    opened: list[Catalog] = []
    threads = [threading.Thread(target=lambda: opened.append(_open_until_it_works(location))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    newest = max(opened, key=lambda c: c.token or 0)
    assert len({c.token for c in opened}) == 4
    newest.transact([setting("x")])
    for other in opened:
        if other is not newest:
            with pytest.raises(Fenced):
                other.transact([setting("y")])
        other.close()


def _open_until_it_works(location: str) -> Catalog:
    while True:
        try:
            return Catalog.open(location)
        except (Fenced, StorageError):
            continue


def test_a_failed_open_leaves_the_owner_working(location: str) -> None:
    """CM-5."""
    with Catalog.open(location) as owner:
        arm("catalog.fence.before", "fail")
        with pytest.raises(StorageError):
            Catalog.open(location)
        owner.transact([setting("still here")])


def test_older_software_refuses_a_newer_format_before_fencing(location: str) -> None:
    """CM-26: the running owner goes on, nothing is changed."""
    newer = Catalog.over(open_store(location), format_version=FORMAT_VERSION + 1)
    newer.transact([setting("x")])
    before = read_config(location)
    with pytest.raises(OperationalError, match=f"format {FORMAT_VERSION + 1}.*up to {FORMAT_VERSION}"):
        Catalog.open(location)
    with pytest.raises(OperationalError, match="format"):
        Catalog.open(location, read_only=True)
    assert read_config(location) == before
    newer.transact([setting("y")])
    newer.close()


def _upgrade(to: str) -> Callable[[StoredCatalog], Writes]:
    return lambda loaded: Writes(puts=tuple((c, k, v.replace('"old', f'"{to}-old')) for c, k, v in loaded.rows))


def test_format_migrations_run_once_in_order_and_go_on_after_a_crash(location: str) -> None:
    """CM-25."""
    with Catalog.open(location) as catalog:
        catalog.transact([setting("old")])
    now = FORMAT_VERSION
    steps = {now: _upgrade("two"), now + 1: lambda loaded: _upgrade("three")(loaded)}
    arm("catalog.migrate.step", "fail", nth=2)
    with pytest.raises(StorageError):
        Catalog.over(open_store(location), format_version=now + 2, migrations=steps)
    assert read_config(location)[FORMAT_VERSION_KEY] == now + 1
    for _ in range(2):
        with Catalog.over(open_store(location), format_version=now + 2, migrations=steps) as catalog:
            assert catalog.state.settings["s"].value == "two-old"
            assert catalog.state.config[FORMAT_VERSION_KEY] == now + 2


def test_read_only_open_fences_nobody_and_writes_nothing(location: str) -> None:
    """CM-8."""
    with pytest.raises(StorageError, match="no catalog"):
        Catalog.open(location, read_only=True)
    assert read_config(location) == {}
    with Catalog.open(location) as owner:
        owner.transact(SETUP)
        before = read_config(location)
        with Catalog.open(location, read_only=True) as reader:
            assert reader.token is None
            assert content(reader) == content(owner)
            assert reader.state.jobs[1].group == "g"
            for write in (lambda: reader.transact([setting("x")]), lambda: reader.allocate_ids(1)):
                with pytest.raises(ReadOnlyTransaction):
                    write()
        assert read_config(location) == before
        owner.transact([setting("x")])


def test_a_rejected_transaction_leaves_nothing(location: str) -> None:
    """CM-27, PC-3, PC-4: all or nothing."""
    with Catalog.open(location) as catalog:
        catalog.transact([*SETUP, setting("old")])
        catalog.transact([CommitTable(10, 5)])
        before = content(catalog)
        for bad in (CommitTable(10, 5), CommitTable(12, 9), CommitTable(11, 9)):
            with pytest.raises(EditRejected):
                catalog.transact([setting("new"), CommitTable(11, 8), bad])
            assert content(catalog) == before
    with Catalog.open(location) as catalog:
        assert content(catalog) == before


def test_a_failed_commit_leaves_nothing_and_can_be_repeated(location: str) -> None:
    """CM-27."""
    with Catalog.open(location) as catalog:
        arm("catalog.commit.before", "fail", nth=1)
        with pytest.raises(StorageError, match=r"catalog\.commit\.before"):
            catalog.transact([setting("x")])
        assert "s" not in catalog.state.settings
        assert catalog.transact([setting("x")]) == 1


def test_a_lost_acknowledgement_is_resolved_by_reading_back(location: str) -> None:
    """I10: the edit is applied exactly once, and the caller learns that it was."""
    with Catalog.open(location) as catalog:
        arm("catalog.commit.after", "fail", nth=1)
        assert catalog.transact([AddEvent("k", None, "once")]) == 1
        assert catalog.transact([AddEvent("k", None, "twice")]) == 2
        assert [e.message for e in catalog.state.newest_events(9)] == ["twice", "once"]
        before = content(catalog)
    with Catalog.open(location) as catalog:
        assert content(catalog) == before


@pytest.mark.parametrize("point", ["catalog.commit.before", "catalog.commit.after"])
def test_an_unknown_outcome_is_learned_by_the_next_operation(
    location: str, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PC-45, I10: the store did not answer; what became of the commit is known before anything else happens."""
    with Catalog.open(location) as catalog:
        arm(point, "fail", nth=1)
        with monkeypatch.context() as broken:
            broken.setattr(catalog._store, "sequence", _no_answer)
            with pytest.raises(OutcomeUnknown):
                catalog.transact([setting("x")])
        assert ("s" in catalog.state.settings) == (point == "catalog.commit.after")
        catalog.transact([setting("y")])
        before = content(catalog)
    with Catalog.open(location) as catalog:
        assert content(catalog) == before


def _no_answer() -> int:
    raise StorageError("no answer")


CRASHING = """
import sys
from headrace.catalog.catalog import Catalog
from headrace.catalog.edits import CommitTable, Put
from headrace.catalog.records import SettingRecord
with Catalog.open(sys.argv[1]) as catalog:
    catalog.transact([CommitTable(10, 5), CommitTable(11, 5), Put(SettingRecord("s", "x"))])
"""


@pytest.mark.parametrize(
    ("point", "arrives"),
    [
        ("catalog.fence.before", False),
        ("catalog.fence.after", False),
        ("catalog.initialize.before", False),
        ("catalog.commit.before", False),
        ("catalog.commit.after", True),
    ],
)
def test_a_killed_process_leaves_all_or_nothing(location: str, point: str, arrives: bool) -> None:
    """PC-5, CM-4: old epochs before the commit, new ones after it; the next token is higher in any case."""
    with Catalog.open(location) as catalog:
        catalog.transact(SETUP)
    environment = {**os.environ, "HEADRACE_FAULTS": f"{point}=kill"}
    done = subprocess.run([sys.executable, "-c", CRASHING, location], env=environment, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    token = read_config(location)[FENCING_KEY]
    assert token == (1 if point == "catalog.fence.before" else 2)
    with Catalog.open(location) as catalog:
        assert catalog.token == token + 1
        epochs = {t.committed_epoch for t in catalog.state.tables_of(1)}
        assert epochs == ({5} if arrives else {0})
        assert ("s" in catalog.state.settings) == arrives


def test_killed_while_initialising_an_empty_catalog(location: str) -> None:
    environment = {**os.environ, "HEADRACE_FAULTS": "catalog.initialize.before=kill"}
    subprocess.run([sys.executable, "-c", CRASHING, location], env=environment, capture_output=True)
    assert FORMAT_VERSION_KEY not in read_config(location)
    with Catalog.open(location) as catalog:
        assert catalog.token == 2
        assert catalog.transact(SETUP) == 1


def test_ids_are_given_out_once(location: str) -> None:
    with Catalog.open(location) as catalog:
        assert [list(catalog.allocate_ids()), list(catalog.allocate_ids(3))] == [[1], [2, 3, 4]]
        with pytest.raises(ValueError):
            catalog.allocate_ids(0)
    with Catalog.open(location) as catalog:
        assert list(catalog.allocate_ids(2)) == [5, 6]


def test_concurrent_transactions_are_serialised(location: str) -> None:
    with Catalog.open(location) as catalog:
        ids: list[int] = []

        def work(name: str) -> None:
            for i in range(10):
                catalog.transact([Put(SettingRecord(f"{name}{i}", name))])
                ids.extend(catalog.allocate_ids(2))

        threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        assert sorted(ids) == list(range(1, 81))
        assert (catalog.sequence, len(catalog.state.settings)) == (80, 40)


def test_a_reading_block_sees_whole_transactions(location: str) -> None:
    """PC-2: all tables of one commit become visible together."""
    with Catalog.open(location) as catalog:
        catalog.transact(SETUP)
        done = threading.Event()

        def commit() -> None:
            try:
                for epoch in range(1, 60):
                    catalog.transact([CommitTable(10, epoch), CommitTable(11, epoch)])
            finally:
                done.set()

        writer = threading.Thread(target=commit)
        writer.start()
        while not done.is_set():
            with catalog.reading() as state:
                assert len({t.committed_epoch for t in state.state_tables.values()}) == 1
        writer.join()


def test_no_transaction_inside_a_reading_block(location: str) -> None:
    with Catalog.open(location) as catalog:
        with catalog.reading() as outer, catalog.reading() as inner:
            assert outer is inner
            with pytest.raises(RuntimeError):
                catalog.transact([setting("x")])
        catalog.transact([setting("x")])


def test_a_reading_block_stays_as_it_is_while_an_outcome_is_unknown(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks in it again sees the same, and does not wait for a lock whose holder waits for the block."""
    with Catalog.open(location) as catalog:

        def commit() -> None:
            arm("catalog.commit.after", "fail", nth=1)
            with monkeypatch.context() as broken:
                broken.setattr(catalog._store, "sequence", _no_answer)
                with pytest.raises(OutcomeUnknown):
                    catalog.transact([setting("x")])

        with catalog.reading() as outer:
            writer = threading.Thread(target=commit)
            writer.start()
            writer.join()
            with catalog.reading() as inner:
                assert inner is outer and catalog.state is outer and "s" not in outer.settings
        assert "s" in catalog.state.settings


def test_a_closed_handle_says_so(location: str) -> None:
    catalog = Catalog.open(location)
    catalog.close()
    catalog.close()
    for name in ("state", "reading", "transact", "allocate_ids"):
        with pytest.raises(StorageError, match="closed"):
            OPERATIONS[name](catalog)
    Catalog.open(location).close()


def test_config_can_be_read_without_opening(location: str) -> None:
    """CM-23: fences nobody."""
    with Catalog.open(location) as owner:
        owner.transact([SetConfig("generation", 1)])
        config = read_config(location)
        assert (config["generation"], config[SEQUENCE_KEY], config[FORMAT_VERSION_KEY]) == (1, 1, FORMAT_VERSION)
        owner.transact([setting("x")])


def test_locations(tmp_path: Path) -> None:
    odd = tmp_path / "sp ace#?%41" / "catalog.db"
    with Catalog.open(odd) as catalog:
        catalog.transact([setting("x")])
    assert odd.is_file()
    with Catalog.open(f"sqlite:///{tmp_path}/url.db"):
        assert (tmp_path / "url.db").is_file()
    with Catalog.open(canonical(odd)) as catalog:
        assert [record.value for record in catalog.state.settings.values()] == ["x"]
    options = f"sqlite:///{tmp_path}/url.db?timeout=5"  # which mean nothing, and are no part of a name
    for bad in ("mysql://h/d", "sqlite://", "sqlite:///", "sqlite://host/x.db", "not a url://", options):
        with pytest.raises(InvalidParameter):
            Catalog.open(bad)
    (tmp_path / "junk.db").write_bytes(b"junk" * 1000)
    with pytest.raises(StorageError, match=r"junk\.db"):
        Catalog.open(tmp_path / "junk.db")


@pytest.mark.parametrize(("sqlstate", "told"), [("42501", True), ("42883", True), ("57P01", False), (None, False)])
def test_where_a_catalog_on_a_server_is(monkeypatch: pytest.MonkeyPatch, sqlstate: str | None, told: bool) -> None:
    """A server that does not say which it is is one thing, one that does not answer another: no other place."""

    class Refused(Exception):
        pass

    class Server:
        def execute(self, statement: Any) -> Any:
            if "pg_control_system" in str(statement):
                error = Refused("no")
                error.sqlstate = sqlstate  # type: ignore[attr-defined]
                raise sa.exc.DBAPIError("SELECT", {}, error)
            return self

        def one(self) -> tuple[str, str]:
            return "d", "7"

    tables = ServerTables(server_engine("postgresql://nobody@nowhere.invalid/d"))
    store = StashStore(tables, "d")
    monkeypatch.setattr(tables, "_connected", lambda: contextlib.nullcontext(Server()))
    if told:
        assert store.place() == "database d (7) of the PostgreSQL system unknown"
    else:
        with pytest.raises(StorageError):
            store.place()
