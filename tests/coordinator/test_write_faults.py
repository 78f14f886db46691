"""Writes where something goes wrong, or a value is not what Python takes it for."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fake_database import Database, rows

from headrace.catalog.catalog import Catalog
from headrace.catalog.contents import TableContent
from headrace.catalog.records import ObjectRecord
from headrace.common.columns import Column
from headrace.coordinator import TableChange
from headrace.coordinator.writes import requests, transaction
from headrace.coordinator.writes.history import ReadSet
from headrace.coordinator.writes.requests import Deferred, RowWrite, TransactionCommit
from headrace.coordinator.writes.written_rows import RowChanges, RowOperation, append_rows, change_row, insert_rows
from headrace.errors import HeadraceError, StorageError
from headrace.state.arrangement import Arrangement
from support import WAIT_S


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    made = Database(tmp_path)
    yield made
    made.close()


def keyed(db: Database, kind: str) -> int:
    """A table with a key and a value."""
    columns = (Column("k", "bigint"), Column("v", kind))
    return db.c.create_relation(ObjectRecord(0, TableContent(), "public", "kv", columns, primary_key=("k",)))


def put(table: int, k: int, value: Any) -> RowWrite:
    return RowWrite(RowOperation(table, ((k,),), insert_rows([(k, value)], [(k,)], ignore=False)))


def update(table: int, k: int, value: Any) -> RowWrite:
    return RowWrite(RowOperation(table, ((k,),), change_row((k,), lambda _: True, lambda row: (row[0], value))))


def stored(db: Database, table: int) -> list[tuple[Any, ...]]:
    """All rows with their weights, as integers where Python has no object for a value."""
    with db.c.snapshot([table], timeout_s=WAIT_S) as snapshot:
        t = snapshot.tables[table]
        found = []
        for batch in Arrangement(t.schema, t.refs, db.core.storage.root, as_of=t.as_of).scan():
            values = batch.column("v")
            if pa.types.is_temporal(values.type):
                values = values.cast(pa.int32())
            found += zip(batch.column("k").to_pylist(), values.to_pylist(), batch.column("__w").to_pylist())
        return sorted(found)


def test_zero_below_zero_is_another_value(db: Database) -> None:
    t = keyed(db, "double")
    db.c.commit(put(t, 1, 0.0))
    db.c.commit(update(t, 1, -0.0))
    ((_, value, _),) = stored(db, t)
    assert math.copysign(1, value) == -1
    db.c.commit(update(t, 1, 5.0))
    assert stored(db, t) == [(1, 5.0, 1)]


def test_a_row_with_a_far_time_is_changed_like_any_other(db: Database) -> None:
    t = keyed(db, "date")
    far = pa.RecordBatch.from_arrays([pa.array([1, 2]), pa.array([2932897, 5], pa.date32())], names=["k", "v"])
    db.c.write(t, TableChange(far))
    with db.c.writer.paused():  # both come into one group
        wanted = update(t, 1, None), update(t, 2, None)
        for request in wanted:
            db.c.writer.submit(request)
    assert [request.done.result(WAIT_S).deleted for request in wanted] == [1, 1]
    assert stored(db, t) == [(1, None, 1), (2, None, 1)]


def test_a_transaction_of_which_a_part_cannot_be_planned_leaves_nothing(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    t, other = db.table("t"), db.table("other")
    added = RowChanges()
    added.added.append((7,))
    plan = requests.TableGroup.plan

    def failing(group: Any, change: TableChange) -> Any:
        if group.relation.id == other:
            raise StorageError("the disk does not answer")
        return plan(group, change)

    monkeypatch.setattr(requests.TableGroup, "plan", failing)
    with db.c.writer.paused():  # another one's changes of the same group stay
        beside = RowWrite(RowOperation(t, (), append_rows([(1,)])))
        both = TransactionCommit(
            db.c.current_epoch(),
            ReadSet(),
            {t: [added, Deferred(TableChange(rows(8)))], other: [Deferred(TableChange(rows(9)))]},
        )
        db.c.writer.submit(beside)
        db.c.writer.submit(both)
    assert beside.done.result(WAIT_S).inserted == 1
    with pytest.raises(StorageError):
        both.done.result(WAIT_S)
    assert db.read(t, other) == [[1], []]


def test_a_commit_whose_answer_is_lost_in_an_unexpected_way(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    t = db.table()
    v = db.view("v", t)
    db.c.flush(WAIT_S)
    append = db.catalog._store.append

    def lost(*args: Any) -> None:
        append(*args)
        monkeypatch.setattr(db.catalog._store, "append", append)
        raise RuntimeError("nobody knows this error")

    monkeypatch.setattr(db.catalog._store, "append", lost)
    assert db.insert(t, 5)
    db.c.flush(WAIT_S)
    assert db.read(t, v) == [[5], [5]]


def test_nothing_is_written_for_whom_no_thread_could_be_started(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    t = db.table()

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            db.c.writer.submit(RowWrite(RowOperation(t, (), append_rows([(1,)]))))
    db.insert(t, 2)
    assert db.read(t) == [[2]]
    assert db.c.writer.submit(RowWrite(RowOperation(t, (), append_rows([(3,)])))).result(WAIT_S).inserted == 1


def test_a_row_that_is_just_being_committed_is_not_seen_by_an_older_transaction(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    t = keyed(db, "bigint")
    db.c.commit(put(t, 1, 10))
    db.c.writer.tables._rows.forget(t)
    seen: list[Any] = []
    transact = Catalog.transact

    def between(catalog: Catalog, edits: Any) -> int:
        found = transact(catalog, edits)
        if not seen:
            seen.append(None)  # the catalog has it, the history not yet
            look = change_row((1,), lambda row: bool(seen.append(row)), lambda row: row)
            work.run(RowOperation(t, ((1,),), look))
        return found

    with db.c.transaction() as work:
        work.fix()
        db.insert(db.table("u"), 1)
        with monkeypatch.context() as patched:
            patched.setattr(Catalog, "transact", between)
            db.c.commit(RowWrite(RowOperation(t, ((1,),), insert_rows([(1, 11)], [(1,)], ignore=False))))
        assert seen[1:] == [(1, 10)]
        with pytest.raises(HeadraceError, match="could not serialize"):
            work.run(RowOperation(t, ((1,),), change_row((1,), lambda _: True, lambda row: row)))


def test_rows_that_a_transaction_changed_in_two_ways_are_found_as_they_are(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking rows up in a transaction converts what it has changed before once, not for every look-up again."""
    t = keyed(db, "bigint")
    converted: list[int] = []
    delta = transaction.row_delta
    monkeypatch.setattr(
        transaction, "row_delta", lambda layout, changes: (converted.append(len(changes)), delta(layout, changes))[1]
    )

    def add(key: int) -> list[Any]:
        change = change_row((key,), lambda _: True, lambda row: (row[0], row[1] + 1))
        return [row[1] for row in work.run(RowOperation(t, ((key,),), change)).affected]

    with db.c.transaction() as work:
        work.run(put(t, 1, 10).operation)
        batch = pa.RecordBatch.from_arrays([pa.array([1, 2]), pa.array([20, 30])], names=["k", "v"])
        work.change(t, TableChange(batch))
        converted.clear()
        mark = work.mark()
        assert [add(1), add(2), add(1), add(3)] == [[21], [31], [22], []]
        work.mark()
        assert [add(1), add(2)] == [[23], [32]]
        assert converted == [1]
        work.go_back(mark)
        assert add(1) == [21]
        work.commit()
    assert stored(db, t) == [(1, 21, 1), (2, 30, 1)]
