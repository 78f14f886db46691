"""One transaction against others: its snapshot, its own writes, its savepoints, and what it must not commit over."""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from write_world import Tables, appends, batch, change, inserts, sets

from headrace.catalog.contents import DeclaredWatermark
from headrace.common.columns import Column, arrow_schema
from headrace.coordinator import TableChange
from headrace.coordinator.writes import transaction
from headrace.coordinator.writes.requests import RowWrite, Written
from headrace.coordinator.writes.transaction import WriteTransaction
from headrace.errors import QueryCanceled, SerializationFailure, StorageError
from headrace.session.session import Session
from headrace.state.arrangement import Arrangement
from headrace.state.kernels import consolidate
from headrace.state.run import Section, write_run
from headrace.state.table_changes import stored_rows
from homes import Home
from support import WAIT_S, eventually


def refused(db: Tables, work: WriteTransaction) -> bool:
    try:
        work.commit()
    except SerializationFailure:
        return True
    return False


# ---- its own writes

NAMES = itertools.count()
STEP = some.one_of(
    some.tuples(some.just("insert"), some.integers(0, 3), some.integers(0, 9)),
    some.tuples(some.just("ignore"), some.integers(0, 3), some.integers(0, 9)),
    some.tuples(some.just("batch"), some.integers(0, 3), some.integers(0, 9)),
    some.tuples(some.just("remove"), some.integers(0, 3), some.just(0)),
    some.tuples(some.just("add"), some.integers(0, 3), some.integers(0, 3)),
    some.tuples(some.just("run"), some.integers(4, 9), some.integers(0, 3)),
    some.tuples(some.just("mark"), some.just(0), some.just(0)),
    some.tuples(some.just("back"), some.integers(0, 3), some.just(0)),
)


class Played:
    """A transaction and the dict that it ought to be."""

    def __init__(self, db: Tables, work: WriteTransaction, table: int, rows: dict[int, int]):
        self.db, self.work, self.table, self.rows = db, work, table, dict(rows)
        self.marks: list[tuple[Any, dict[int, int]]] = [(work.mark(), dict(rows))]

    def step(self, kind: str, key: int, value: int) -> None:
        rows, work, table = self.rows, self.work, self.table
        if kind == "insert":
            rows[key] = value
            work.run(inserts(table, (key, value)))
        elif kind == "ignore":
            found = work.run(inserts(table, (key, value), ignore=True))
            assert found.inserted == (key not in rows)
            rows.setdefault(key, value)
        elif kind == "batch":
            work.change(table, change([(key, value)]))
            rows[key] = value
        elif kind == "remove":
            assert work.change(table, change(deletes=[(key, 0)])).deleted == (key in rows)
            rows.pop(key, None)
        elif kind == "add":
            found = work.run(sets(table, key, lambda v: v + value if value else None))
            assert found.deleted == (key in rows)
            if key in rows and value:
                rows[key] += value
            else:
                rows.pop(key, None)
        elif kind == "run" and key not in rows:
            work.add_runs(table, written(self.db, work, table, (key, value)))
            rows[key] = value
        elif kind == "mark":
            self.marks.append((work.mark(), dict(rows)))
        elif kind == "back":
            del self.marks[max(1, len(self.marks) - key) :]
            mark, before = self.marks[-1]
            work.go_back(mark)
            self.rows = dict(before)


def written(db: Tables, work: WriteTransaction, table: int, *rows: tuple[int, int]) -> Written:
    """Runs as Spark's tasks write them."""
    view = work.view(table)
    state = consolidate(stored_rows(view.schema, batch(*rows), 1), view.schema)
    sections = [Section(view.table_id, view.schema, [state], view.epoch)]
    refs = write_run(db.core.storage.root, f"{view.prefix}.run", sections, fsync=False)
    return Written(tuple(refs), len(rows), 0)


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(some.dictionaries(some.integers(0, 3), some.integers(0, 9)), some.lists(STEP, max_size=10), some.booleans())
def test_a_transaction_sees_its_own_writes(
    shared: Tables, start: dict[int, int], steps: list[tuple[str, int, int]], often: bool
) -> None:
    """Row operations, batches, runs and savepoints in any order; nobody sees anything of it before the commit."""
    table = shared.numbers(f"own{next(NAMES)}")
    if start:
        shared.c.write(table, change(list(start.items())))
    with shared.transaction() as work:
        played = Played(shared, work, table, start)
        for step in steps:
            played.step(*step)
            if often:
                assert shared.seen(work, table) == sorted(played.rows.items())
        assert shared.seen(work, table) == sorted(played.rows.items())
        assert shared.content(table) == sorted(start.items())
        work.commit()
    assert shared.content(table) == sorted(played.rows.items())
    shared.c.drop([table])


def test_without_a_key_too(db: Tables) -> None:
    t = db.numbers("t", key=False)
    db.c.write(t, change([(1, 1), (1, 1)]))
    with db.transaction() as work:
        work.run(appends(t, (1, 1), (2, 2)))
        assert work.change(t, change(deletes=[(1, 1), (1, 1), (3, 3)])).deleted == 2
        mark = work.mark()
        assert work.change(t, change(deletes=[(1, 1), (1, 1)])).deleted == 1
        assert db.seen(work, t) == [(2, 2)]
        work.go_back(mark)
        work.commit()
    assert db.content(t) == [(1, 1), (2, 2)]


def test_an_empty_transaction_is_no_commit(db: Tables) -> None:
    t = db.numbers("t")
    with db.transaction() as work:
        work.fix()
        work.note_tables([t])
        db.put(t, (1, 1))
        assert work.commit() is None and not work.changed, "who only reads is never refused"


def test_the_transaction_is_one_epoch_over_all_tables(db: Tables) -> None:
    tables = [db.numbers(f"t{i}") for i in range(3)]
    with db.transaction() as work:
        for t in tables:
            work.run(inserts(t, (1, t)))
        outcome = work.commit()
    assert outcome is not None
    assert {r.epoch_lo for r in runs(db, tables)} == {outcome.epoch}


def runs(db: Tables, tables: list[int]) -> list[Any]:
    return [r.ref for t in tables for r in db.catalog.state.runs_of(db.core.live.graph.relations[t].state_table)]


# ---- conflicts


def test_a_lost_update_is_refused(db: Tables) -> None:
    t = db.numbers("t")
    db.put(t, (1, 1), (2, 2))
    for other, wanted in ((1, True), (2, False)):
        with db.transaction() as work:
            work.run(sets(t, 1, lambda v: v + 1))
            db.c.commit(RowWrite(sets(t, other, lambda v: v + 10)))
            assert refused(db, work) is wanted
    assert db.content(t) == [(1, 12), (2, 12)]


def test_a_row_changed_since_the_snapshot_is_not_even_shown(db: Tables) -> None:
    t = db.numbers("t")
    db.put(t, (1, 1))
    with db.transaction() as work:
        work.fix()
        db.put(t, (1, 5))
        with pytest.raises(SerializationFailure):
            work.run(sets(t, 1, lambda v: v))


def test_rows_are_looked_up_as_of_the_snapshot(db: Tables) -> None:
    """Before the history knows of a change the state may have it."""
    t = db.numbers("t")
    db.put(t, (1, 1))
    with db.transaction() as work:
        since = work.fix()
        db.put(t, (1, 5))
        db.writer.tables._rows.forget(t)
        db.writer.tables.history.forget(t)  # as in the moment between the catalog's commit and the note of it
        relation = db.writer.tables.table(t)
        with ExitStack() as held:
            refs = db.writer.tables.pinned(relation, held)
            found = db.writer.tables.rows_unchanged(relation, db.writer.tables.layout(t), refs, [(1,)], since)
        assert found[(1,)].row == (1, 1)


def test_reads_of_own_changes_write_each_of_them_a_few_times(
    db: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """And see all of them, also after a savepoint, and after a read that has failed."""
    t = db.numbers("t")
    db.put(t, *((i, 0) for i in range(50)))
    written: list[int] = []
    write = transaction.write_run

    def counted(root: Any, path: str, sections: Any, **options: Any) -> Any:
        written.append(sum(batch.num_rows for section in sections for batch in section.batches))
        if len(written) == 77:
            raise StorageError("no answer")
        return write(root, path, sections, **options)

    monkeypatch.setattr(transaction, "write_run", counted)
    wanted = dict.fromkeys(range(50), 0)
    with db.transaction() as work:
        for step in range(200):
            if step == 120:
                mark, before = work.mark(), dict(wanted)
            if step == 150:
                work.go_back(mark)
                wanted = before
            if step % 3:
                work.run(sets(t, step % 50, lambda v: v + 1))
                wanted[step % 50] += 1
            else:
                work.change(t, change([(1000 + step, step)]))
                wanted[1000 + step] = step
            try:
                runs = work.own_runs(t)
            except StorageError:
                runs = work.own_runs(t)
            assert len(runs) <= 12
            if step % 20 == 0:
                assert db.seen(work, t) == sorted(wanted.items())
        assert db.seen(work, t) == sorted(wanted.items())
        work.commit()
    assert db.content(t) == sorted(wanted.items())
    assert sum(written) < 200 * 20, "not all of them every time"


def test_write_skew_by_key_and_by_table(db: Tables) -> None:
    """Two doctors on call: each sees the other there and leaves."""
    for whole in (False, True):
        t = db.numbers(f"t{whole}")
        db.put(t, (1, 1), (2, 1))
        with db.transaction() as one, db.transaction() as two:
            for work, own, other in ((one, 1, 2), (two, 2, 1)):
                work.fix()
                if whole:
                    work.note_tables([t])
                else:
                    work.note_keys(t, [(other,)])
                work.run(sets(t, own, lambda v: 0))
            assert [refused(db, one), refused(db, two)] == [False, True]
        assert db.content(t) == [(1, 0), (2, 1)]


def test_write_skew_within_a_group(db: Tables) -> None:
    """The same where both commits are of one group."""
    t, empty = db.numbers("t"), db.numbers("empty", key=False)
    db.put(t, (1, 1), (2, 1))
    with db.transaction() as one, db.transaction() as two, db.transaction() as three:
        for work, own, other in ((one, 1, 2), (two, 2, 1)):
            work.fix()
            work.note_keys(t, [(other,)])
            work.run(sets(t, own, lambda v: 0))
        three.fix()
        three.note_tables([empty])
        three.run(inserts(t, (3, 3)))
        requests = [work.request() for work in (one, two, three)]
        found = db.together(RowWrite(appends(empty, (9, 9))), *(r for r in requests if r is not None))
    assert isinstance(found[2], SerializationFailure) and isinstance(found[3], SerializationFailure)
    assert db.content(t) == [(1, 0), (2, 1)]


def test_a_phantom_by_key(db: Tables) -> None:
    """A key that was looked up in vain is taken by somebody else."""
    t = db.numbers("t")
    with db.transaction() as one, db.transaction() as two:
        for work in (one, two):
            assert work.run(inserts(t, (1, 1), ignore=True)).inserted == 1
        one.commit()
        assert refused(db, two)


def test_a_phantom_in_a_table(db: Tables) -> None:
    t, sums = db.numbers("t", key=False), db.numbers("sums")
    with db.transaction() as work:
        work.fix()
        work.note_tables([t])
        work.run(inserts(sums, (1, 0)))
        db.c.write(t, change([(1, 1)]))
        assert refused(db, work)


def test_a_batch_reads_the_keys_that_it_meets(db: Tables) -> None:
    t = db.numbers("t")
    db.put(t, (1, 1), (2, 2))
    with db.transaction() as work:
        work.change(t, change([(1, 5)]))
        db.put(t, (1, 7))
        assert refused(db, work)
    with db.transaction() as work:
        work.change(t, change([(1, 5)]))
        db.put(t, (2, 7))
        assert not refused(db, work)
    assert db.content(t) == [(1, 5), (2, 7)]


def test_what_is_deferred_meets_the_newest_rows(db: Tables) -> None:
    t = db.numbers("t")
    db.put(t, (1, 1))
    with db.transaction() as work:
        work.defer(t, change([(1, 5), (2, 5)], ignore=True))
        db.put(t, (2, 2))
        outcome = work.commit()
    assert outcome is not None and outcome.inserted == 0 and db.content(t) == [(1, 1), (2, 2)]


def test_own_runs_are_those_of_the_commit(db: Tables) -> None:
    t = db.numbers("t")
    db.put(t, (1, 1))
    with db.transaction() as work:
        work.add_runs(t, written(db, work, t, (2, 2), (3, 3)))
        assert work.run(sets(t, 2, lambda v: v + 1)).affected == [(2, 3)]
        outcome = work.commit()
    assert outcome is not None and outcome.inserted == 2
    assert db.content(t) == [(1, 1), (2, 3), (3, 3)]


def test_a_gated_transaction_is_not_overtaken(db: Tables) -> None:
    t = db.numbers("t")
    db.put(t, (1, 1))
    with db.transaction(t) as work:
        work.run(sets(t, 1, lambda v: v + 1))
        future = db.writer.submit(RowWrite(sets(t, 1, lambda v: v * 10)))
        work.commit()
    assert future.result(WAIT_S) and db.content(t) == [(1, 20)]


# ---- its end


def test_what_a_submitted_commit_needs_is_kept(db: Tables) -> None:
    """A client that goes away while its COMMIT waits: the runs that were written for it are not vacuum's."""
    t = db.numbers("t")
    with db.writer.gate([t]):
        with db.transaction() as work:
            work.add_runs(t, written(db, work, t, (1, 1)))
            request = work.submit()
            assert request is not None
        assert any(p.startswith(f"{t}/t") for p in db.core.storage.pins.prefixes())
        assert not request.done.done()
    assert request.done.result(WAIT_S) and db.content(t) == [(1, 1)]
    eventually(lambda: not db.core.storage.pins.prefixes(), "everything to be let go of")


def test_a_cancelled_commit_lets_go_of_all(db: Tables) -> None:
    t = db.numbers("t")

    def cancelled() -> None:
        raise QueryCanceled("enough")

    with db.writer.gate([t]), db.transaction() as work:
        work.add_runs(t, written(db, work, t, (1, 1)))
        with pytest.raises(QueryCanceled):
            work.commit(cancelled)
    assert not db.core.storage.pins.prefixes() and db.content(t) == []


# ---- watermarks

TIMED = (Column("id", "int"), Column("at", "timestamp"))


def timed(*rows: tuple[int, int]) -> TableChange:
    """Rows of a number and a time in seconds."""
    times = pa.array(np.array([at for _, at in rows]) * 1_000_000, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    ids = pa.array([i for i, _ in rows], pa.int32())
    return TableChange(pa.RecordBatch.from_arrays([ids, times], schema=arrow_schema(TIMED)))


def ids_of(db: Tables, table: int) -> list[int]:
    with db.c.snapshot([table], timeout_s=WAIT_S) as snapshot:
        shown = snapshot.tables[table]
        found = [b.column("id").to_pylist() for b in Arrangement(shown.schema, shown.refs, db.core.storage.root).scan()]
    return sorted(i for part in found for i in part)


def test_late_rows_of_a_transaction_are_left_out(db: Tables) -> None:
    """What is late is decided at the commit, by the watermark before it."""
    t = db.numbers("t", columns=TIMED, watermark=DeclaredWatermark(column="at", delay_ms=0), append_only=True)
    db.c.write(t, timed((1, 100)))
    with db.transaction() as work:
        work.change(t, timed((2, 150)))
        work.change(t, timed((3, 120)))
        work.change(t, timed((4, 50)))
        outcome = work.commit()
    assert outcome is not None and (outcome.inserted, outcome.late) == (2, 1)
    assert ids_of(db, t) == [1, 2, 3]
    with db.transaction() as work:
        work.change(t, timed((5, 160)))
        assert db.c.write(t, timed((6, 200))).late == 0
        late = work.commit()
    assert late is not None and late.late == 1 and ids_of(db, t) == [1, 2, 3, 6]


def test_the_client_is_told_of_late_rows_at_the_commit(db: Tables) -> None:
    t = db.numbers("t", columns=TIMED, watermark=DeclaredWatermark(column="at", delay_ms=0), append_only=True)
    db.c.write(t, timed((1, 100)))
    session = Session(Home(db.c, db.catalog, db.settings))
    for quickly in (False, True):
        for least, wanted in (("notice", 1), ("warning", 0)):
            session.context.variables.set("client_min_messages", least)
            list(session.execute("BEGIN"))
            assert session.context.transaction is not None
            session.context.transaction.work.change(t, timed((2, 50), (3, 100)))
            if quickly:
                started: Any = session.start_text("COMMIT")
                started.ready.exception(WAIT_S)
                result = started.finish()
            else:
                (result,) = session.execute("COMMIT")
            assert [n.message.split(":")[0] for n in result.notices] == ["1 rows were left out"] * wanted
    session.close()
