"""Plans that a server keeps for the next one: used where nothing has changed, found out where something has."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from spark_database import ACCOUNTS, LOG
from spark_database import Database as OnSpark

import headrace
from headrace.catalog.contents import FunctionContent, IndexContent, ViewContent
from headrace.catalog.edits import Put
from headrace.coordinator.ddl.lasting import identity_of
from headrace.dataflow.kept_plans import Kept, Outline, PlanFiles, programs
from headrace.errors import JobFailed
from headrace.plan.planner import Planner, ViewPlan
from headrace.plan.watermark_rules import NO_EVENT_TIME
from support import WAIT_S, eventually


class Database(OnSpark):
    """One that keeps plans, and knows how many views it has planned."""

    def __init__(self, spark: SparkSession, folder: Path, programs: str):
        self.counting = Counting(spark)
        super().__init__(spark, folder, self.counting, PlanFiles(folder / "plans", programs))


class Counting(Planner):
    """Counts its plans, and can be made to give others."""

    planned = 0
    otherwise: Callable[[ViewPlan], ViewPlan] = staticmethod(lambda plan: plan)

    def plan(self, *given: Any, **named: Any) -> ViewPlan:
        self.planned += 1
        return Counting.otherwise(super().plan(*given, **named))


@contextmanager
def opened(spark: SparkSession, folder: Path, programs: str = "these") -> Iterator[Database]:
    db = Database(spark, folder, programs)
    try:
        yield db
    finally:
        db.close()


@pytest.fixture
def folder(spark: SparkSession, tmp_path: Path) -> Path:
    """A database with a table, 1, and two views: sums by owner, and a join of these with another table."""
    with opened(spark, tmp_path) as db:
        accounts, log = db.table("accounts", ACCOUNTS, ("id",)), db.table("log", LOG)
        db.write(accounts, [(1, "ann", 100), (2, "bob", 50)])
        db.write(log, [("ann", 3)])
        sums = db.view("sums", f"SELECT owner, sum(amount) + 1 AS total FROM r{accounts} GROUP BY owner")
        db.view("joined", f"SELECT owner, total, n FROM r{sums} JOIN r{log} ON owner = word")
        db.c.flush(WAIT_S)
        db.write(accounts, [(3, "ann", 1)])
        db.c.flush(WAIT_S)
        db.write(log, [("bob", 4)])
        db.c.flush(WAIT_S)
        assert db.read(*ids(db)) == [Counter({("ann", 102): 1, ("bob", 51): 1}),
                                     Counter({("ann", 102, 3): 1, ("bob", 51, 4): 1})]  # fmt: skip
    return tmp_path


def ids(db: Database) -> list[int]:
    """The views."""
    return sorted(j.id for j in db.c.jobs())


def check_goes_on(db: Database) -> None:
    """Whatever its views were planned by, they are what their queries say."""
    state = db.catalog.state
    accounts, log = (next(o.id for o in state.objects.values() if o.name == n) for n in ("accounts", "log"))
    ((first, *rest), *_) = sorted(db.read(accounts)[0])
    db.write(accounts, [(first + 10, "bob", 9)], [(first, *rest)])
    db.c.flush(WAIT_S)  # one side of the join after the other: both at once are Spark's to bring together
    db.write(log, [("ann", 5)])
    db.c.flush(WAIT_S)
    found, joined = db.read(*ids(db))
    held = db.read(accounts)[0]
    expected: Counter[str] = Counter()
    for (_, owner, amount), n in held.items():
        expected[owner] += amount * n
    assert found == Counter({(owner, total + 1): 1 for owner, total in expected.items()})
    assert joined == Counter({(owner, total, n): w * m for (owner, total), w in found.items()
                              for (word, n), m in db.read(log)[0].items() if word == owner})  # fmt: skip


def test_a_restart_plans_nothing_that_was_kept(spark: SparkSession, folder: Path) -> None:
    """Nor does what the views take in then need their plans."""
    with opened(spark, folder) as db:
        check_goes_on(db)
        assert db.counting.planned == 0
        assert {j.status for j in db.c.jobs()} == {"running"}


def test_other_programs_plan_anew(spark: SparkSession, folder: Path) -> None:
    """What they keep then is theirs: the old ones plan anew in turn."""
    for by, planned in (("others", 2), ("others", 0), ("these", 2)):
        with opened(spark, folder, by) as db:
            check_goes_on(db)
            assert db.counting.planned == planned


@pytest.mark.parametrize("spoil", [
    lambda text: b"", lambda text: text[:-9], lambda text: text[:-9] + b"x" * 9,
    lambda text: text.replace(b"\n", b"", 1),
])  # fmt: skip
def test_a_file_that_is_not_whole_counts_for_nothing(
    spark: SparkSession, folder: Path, spoil: Callable[[bytes], bytes]
) -> None:
    for path in (folder / "plans").iterdir():
        path.write_bytes(spoil(path.read_bytes()))
    with opened(spark, folder) as db:
        check_goes_on(db)
        assert db.counting.planned == 2


def test_a_form_that_was_not_kept_is_planned_when_it_is_needed(spark: SparkSession, folder: Path) -> None:
    """With two tasks there is a shuffle, which is Spark's."""
    with opened(spark, folder) as db:
        jobs = [db.c._core.live.graph.jobs[i] for i in ids(db)]
        for job in jobs:
            runner: Any = job.runner
            runner.prepare(2, None)
        assert db.counting.planned == 2
        check_goes_on(db)
        assert db.counting.planned == 2


def other(plan: ViewPlan) -> ViewPlan:
    return replace(plan, fingerprint="another")


def test_a_plan_that_is_made_late_and_is_another_one_runs_nothing(
    spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told; the next start, which finds nothing kept, quarantines the view."""
    with opened(spark, folder) as db:
        monkeypatch.setattr(Counting, "otherwise", staticmethod(other))
        runner: Any = db.c._core.live.graph.jobs[ids(db)[0]].runner
        with pytest.raises(JobFailed, match="is not the one that its state was made by"):
            runner.prepare(2, None)
    with opened(spark, folder) as db:
        db.c.flush(WAIT_S)
        assert [j.status for j in db.c.jobs()] == ["quarantined", "running"]


def test_what_is_dropped_is_not_kept(spark: SparkSession, folder: Path) -> None:
    """What is left of a server that was killed before it could remove it, the next one removes."""
    with opened(spark, folder) as db:
        sums, joined = ids(db)
        db.c.drop([joined])
        assert [p.name for p in (folder / "plans").iterdir()] == [f"{sums}.plan"]
        (folder / "plans" / f"{joined}.plan").write_bytes(b"left")
        (folder / "plans" / f"{sums}.new").write_bytes(b"half")
    with opened(spark, folder) as db:
        eventually(lambda: [p.name for p in (folder / "plans").iterdir()] == [f"{sums}.plan"], "the rest to be gone")


def test_what_a_plan_follows_from_is_in_its_identity(spark: SparkSession, folder: Path) -> None:
    with opened(spark, folder) as db:
        state = db.catalog.state
        sums, joined = ids(db)
        accounts = next(o for o in state.objects.values() if o.name == "accounts")

        def identity(i: int, **job: Any) -> str | None:
            with db.catalog.reading() as now:
                tables = [t.operator for t in now.tables_of(i)]
                return identity_of(now, now.objects[i], replace(now.jobs[i], **job), tables)

        before = identity(sums), identity(joined)
        assert None not in before and before[0] != before[1]
        assert identity(sums, committed_epoch=7, status="paused", group="another") == before[0]
        assert identity(sums, options={"on_error": "null"}) != before[0]
        assert identity(sums, plan=replace(state.jobs[sums].plan, fingerprint="x")) != before[0]
        db.catalog.transact([Put(replace(accounts, owner=4711))])
        assert (identity(sums), identity(joined)) == before
        index = replace(accounts, id=10_000, name="i", content=IndexContent(on=accounts.id, key=("owner",)))
        db.catalog.transact([Put(index)])
        assert identity(sums) != before[0] and identity(joined) == before[1]
        again = identity(sums)
        db.catalog.transact(
            [Put(replace(accounts, columns=(*accounts.columns[:-1], replace(accounts.columns[-1], type="int"))))]
        )
        assert identity(sums) != again


def test_what_calls_functions_of_users_is_not_kept(spark: SparkSession, folder: Path) -> None:
    with opened(spark, folder) as db:
        state = db.catalog.state
        sums = ids(db)[0]
        record, job = state.objects[sums], state.jobs[sums]
        content = FunctionContent(
            language="python", source="def f(): return 1", pickle=None, form="scalar", names=(), arguments=(),
            returns="int", columns=(), vectorized="", strict=False, deterministic=True,
        )  # fmt: skip
        function = replace(record, id=10_000, name="f", content=content, depends_on=())
        calling = replace(record, depends_on=(*record.depends_on, function.id))
        assert identity_of(state, calling, job, []) is not None
        db.catalog.transact([Put(function)])
        assert identity_of(db.catalog.state, calling, job, []) is None
        view = replace(record, id=10_001, name="plain", content=ViewContent("SELECT f()"), depends_on=(function.id,))
        above = replace(
            view, id=10_002, name="above", content=ViewContent("SELECT * FROM plain"), depends_on=(view.id,)
        )
        db.catalog.transact([Put(view), Put(above)])
        through = replace(record, depends_on=(*record.depends_on, above.id))
        assert identity_of(db.catalog.state, through, job, []) is None


def test_programs_are_known_by_their_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of the same version; without files nothing is known of them, and nothing is kept."""
    source = tmp_path / "a.py"
    source.write_text("a = 1")
    monkeypatch.setattr(headrace, "__file__", str(tmp_path / "__init__.py"))
    before = programs({})
    assert programs({}) == before != programs({"spark.sql.x": "1"})
    times = source.stat()
    source.write_text("a = 2")
    os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert programs({}) != before
    source.unlink()
    with pytest.raises(FileNotFoundError):
        programs({})
    kept = Kept(Outline({}, (), NO_EVENT_TIME, False, frozenset(), frozenset(), frozenset()), {})
    files = PlanFiles(tmp_path / "plans", before)
    files.keep(1, "x", kept)
    assert files.find(1, "x") == kept and files.find(1, "y") is None and files.find(2, "x") is None
