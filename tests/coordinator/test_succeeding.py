"""Tables that get columns: the names change at once, nobody sees less by it, and a crash leaves one or the other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fake_database import COLUMNS, Database

from headrace.catalog.contents import IndexContent, MaterializedViewContent, SourceContent
from headrace.catalog.records import ObjectRecord
from headrace.common.faults import arm, disarm_all
from headrace.coordinator.decide.query_epochs import Floors
from headrace.coordinator.reads import ReadOptions
from headrace.errors import (
    DependentObjectsExist,
    Fenced,
    HeadraceError,
    SnapshotUnavailable,
    StatementError,
    StorageError,
    UndefinedTable,
)
from support import WAIT_S

OPTIONS = {"connector": "datagen", "rows_per_second": "1"}


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    found = Database(tmp_path)
    yield found
    disarm_all()
    found.close()


def fed(db: Database, name: str, table: int) -> int:
    """What a connector would feed: it has the rows of a table."""
    content = SourceContent(part=name)
    source = db.c.create_relation(ObjectRecord(0, content, "public", f"{name}$changes", COLUMNS, options=OPTIONS))
    record = ObjectRecord(0, MaterializedViewContent(spark_sql=f"{table}"), "public", name, depends_on=(source,))
    made = db.c.create_view(record, db.planner.plan(f"{table}"))  # type: ignore[arg-type]
    db.c.wait_created(made, WAIT_S)
    return made


def named(db: Database, name: str) -> int:
    found = db.catalog.state.object_named("public", name)
    assert found is not None
    return found.id


def succeed(db: Database, new: int, old: int, check: Callable[[], None] = lambda: None) -> None:
    db.c.succeed(new, old, {}, check)


def test_the_names_change_and_readers_go_on(db: Database) -> None:
    t = db.table("rows")
    old = fed(db, "t", t)
    reader = db.view("reader", old)
    db.insert(t, 1)
    new = fed(db, "t$refreshed", t)
    db.c.flush(WAIT_S)
    succeed(db, new, old)
    assert named(db, "t") == new and named(db, f"t${old}") == old
    db.insert(t, 2)
    db.c.flush(WAIT_S)
    assert db.read(reader, new, old) == [[1, 2]] * 3
    assert {j.name for j in db.c.jobs()} >= {"t", f"t${old}"}
    with pytest.raises(DependentObjectsExist):
        db.c.drop([new])
    source = db.catalog.state.objects[old].depends_on[0]
    db.c.drop([reader])
    assert old not in db.catalog.state.objects and source not in db.catalog.state.objects
    db.c.drop([new])


def test_who_has_seen_the_old_table_sees_no_less_of_the_new_one(db: Database) -> None:
    """I15: over a new table that is behind, in all sessions and in one, and where the old one is gone."""
    t = db.table("rows")
    old, other = fed(db, "t", t), Floors()
    keeper = db.view("keeper", old)
    new = fed(db, "t$refreshed", t)
    db.c.flush(WAIT_S)
    succeed(db, new, old)
    db.c.alter_job(new, paused=True)
    db.insert(t, 1)
    db.c.flush(WAIT_S)
    options = ReadOptions(session=other, monotonic="session", timeout_s=WAIT_S)
    with db.c.snapshot([old], options=options) as seen:
        assert db.values(seen.tables[old]) == [1]
    for monotonic in ("session", "strict"):
        with pytest.raises(SnapshotUnavailable):
            db.c.snapshot([new], options=replace(options, monotonic=monotonic))  # type: ignore[arg-type]
    db.c.drop([keeper])
    assert old not in db.catalog.state.objects
    with pytest.raises(SnapshotUnavailable):
        db.c.snapshot([new], timeout_s=WAIT_S)
    db.c.alter_job(new, paused=False)
    assert db.read(new) == [[1]]


def test_it_waits_for_a_table_that_is_behind(db: Database) -> None:
    t = db.table("rows")
    old = fed(db, "t", t)
    new = fed(db, "t$refreshed", t)
    db.c.flush(WAIT_S)
    db.hold(new)
    db.insert(t, 1)
    db.c._parts.ticker.tick()
    db.until_held(new)
    db.until(lambda: db.read(old) == [[1]])
    asked = threading.Event()
    thread = threading.Thread(target=succeed, args=(db, new, old, asked.set))
    thread.start()
    assert asked.wait(WAIT_S), "it waits"
    assert named(db, "t") == old
    db.runner_of(new).gate.set()
    thread.join(WAIT_S)
    assert named(db, "t") == new and db.read(new) == [[1]]


def test_who_waits_is_told_that_the_server_stops(db: Database) -> None:
    t = db.table("rows")
    old, new = fed(db, "t", t), fed(db, "t$refreshed", t)
    db.c.flush(WAIT_S)
    db.hold(new)
    db.insert(t, 1)
    db.c._parts.ticker.tick()
    db.until_held(new)
    db.until(lambda: db.read(old) == [[1]])
    asked, told = threading.Event(), list[HeadraceError]()

    def wait() -> None:
        try:
            succeed(db, new, old, asked.set)
        except HeadraceError as error:
            told.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    assert asked.wait(WAIT_S), "it waits"
    db.core.runtime.fatal(Fenced("another server has it"))
    thread.join(WAIT_S)
    assert isinstance(told[0], Fenced)


def test_one_that_is_gone_is_told(db: Database) -> None:
    t = db.table("rows")
    old, new = fed(db, "t", t), fed(db, "t$refreshed", t)
    db.c.drop([new])
    with pytest.raises(UndefinedTable):
        succeed(db, new, old)
    assert named(db, "t") == old


def test_one_that_got_columns_meanwhile_is_not_succeeded_again(db: Database) -> None:
    """Another statement would give the second one the hidden name of the first."""
    t = db.table("rows")
    old = fed(db, "t", t)
    db.view("keeper", old)
    new = fed(db, "t$refreshed", t)
    db.c.flush(WAIT_S)
    succeed(db, new, old)
    other = fed(db, "t$refreshed", t)
    db.c.flush(WAIT_S)
    with pytest.raises(StatementError, match='"t" has got columns by another statement meanwhile'):
        succeed(db, other, old)
    assert (named(db, "t"), named(db, f"t${old}"), named(db, "t$refreshed")) == (new, old, other)


def test_an_index_that_is_created_meanwhile_is_told(db: Database) -> None:
    """It would stay with what the table was before."""
    t = db.table("rows")
    old, new = fed(db, "t", t), fed(db, "t$refreshed", t)
    record = ObjectRecord(0, IndexContent(on=old, key=(COLUMNS[0].name,)), "public", "i", COLUMNS, depends_on=(old,))
    db.c.create_view(record, db.planner.plan(f"{old}"))  # type: ignore[arg-type]
    with pytest.raises(StatementError, match='index "i" was created on "t" while columns were added'):
        succeed(db, new, old)
    assert named(db, "t") == old


@pytest.mark.parametrize("point", ["columns.commit.before", "columns.commit.after"])
def test_a_restart_finds_one_or_the_other(tmp_path: Path, point: str) -> None:
    """I13: and what nothing reads any more, or can take no place any more, is gone."""
    db = Database(tmp_path)
    t = db.table("rows")
    old = fed(db, "t", t)
    db.insert(t, 1)
    new = fed(db, "t$refreshed", t)
    record = db.catalog.state.objects[db.catalog.state.objects[new].depends_on[0]]
    said = f"{db.catalog.state.objects[old].definition};\nALTER TABLE t REFRESH SCHEMA"
    db.c.alter_objects([record.id], lambda o: replace(o, definition=said), "is being filled")
    db.c.flush(WAIT_S)
    arm(point, "fail")
    with pytest.raises(StorageError):
        succeed(db, new, old)
    disarm_all()
    db.close()
    again = Database(tmp_path)
    try:
        again.until(lambda: len(again.catalog.state.jobs) == 2)
        wanted = new if point.endswith("after") else old
        assert named(again, "t") == wanted and again.read(wanted) == [[1]]
        assert {o.name for o in again.catalog.state.objects.values() if o.schema} == {"rows", "t", "t$changes"}
    finally:
        again.close()
