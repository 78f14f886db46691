"""Plans that a server keeps for the next one: used where nothing has changed, found out where something has."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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
from headrace.dataflow.kept_plans import Kept, LastingPlan, Outline, PlanFiles, programs
from headrace.errors import NotPlannable, UndefinedObject, UndefinedTable
from headrace.plan.planner import Planner, ViewPlan
from headrace.plan.watermark_rules import NO_EVENT_TIME
from support import WAIT_S, eventually


class Database(OnSpark):
    """One that keeps plans, and knows how many views it has planned."""

    def __init__(self, spark: SparkSession, folder: Path, programs: str, before_spark: bool):
        self.counting = Counting(None if before_spark else spark)
        files = PlanFiles(folder / "plans", lambda: programs)
        super().__init__(spark, folder, self.counting, files, before_spark=before_spark)


class Counting(Planner):
    """Counts its plans, and can be made to give others."""

    planned = 0
    otherwise: Callable[[ViewPlan], ViewPlan] = staticmethod(lambda plan: plan)

    def plan(self, *given: Any, **named: Any) -> ViewPlan:
        self.planned += 1
        return Counting.otherwise(super().plan(*given, **named))


@contextmanager
def opened(
    spark: SparkSession, folder: Path, programs: str = "these", *, before_spark: bool = False
) -> Iterator[Database]:
    db = Database(spark, folder, programs, before_spark)
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


def named(db: Database) -> dict[str, int]:
    """Its relations."""
    return {o.name: o.id for o in db.catalog.state.objects.values()}


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


def test_views_go_on_before_there_is_a_spark(spark: SparkSession, folder: Path) -> None:
    """And after it has come, from where they are then."""
    with opened(spark, folder, before_spark=True) as db:
        check_goes_on(db)
        assert {j.status for j in db.c.jobs()} == {"running"} and db.c.runs_all()
        db.spark_comes()
        check_goes_on(db)
        assert db.counting.planned == 0
        assert {j.failures for j in db.c.jobs()} == {0}
    with opened(spark, folder) as db:
        check_goes_on(db)


def test_what_cannot_be_done_without_spark_waits_for_it(spark: SparkSession, folder: Path) -> None:
    """Rows of both sides of the join are brought together by a shuffle. It is no failure, and holds up nobody else."""
    with opened(spark, folder, before_spark=True) as db:
        accounts, log = (tables[n] for tables in [named(db)] for n in ("accounts", "log"))
        sums, joined = ids(db)
        eventually(db.c.runs_all, "kept plans to be taken up")
        db.c.alter_job(joined, paused=True)
        db.write(log, [("ann", 9)])
        db.write(accounts, [(7, "ann", 1)])
        db.c.flush(WAIT_S)
        db.c.alter_job(joined, paused=False)
        eventually(lambda: not db.c.runs_all(), "the join to wait for Spark")
        db.write(accounts, [(8, "ann", 1)])
        eventually(lambda: db.read(sums)[0]["ann", 104], "the sums to go on")
        db.spark_comes()
        db.c.flush(WAIT_S)
        assert db.read(joined)[0] == Counter({("ann", 104, 3): 1, ("ann", 104, 9): 1, ("bob", 51, 4): 1})
        assert {j.failures for j in db.c.jobs()} == {0}


def test_what_is_dropped_while_kept_plans_are_taken_up_holds_up_nothing(
    spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(spark, folder, "others", before_spark=True) as db:  # nothing of it is taken up by itself
        eventually(lambda: not _takes_up(), "kept plans to be looked at")
        planning = db.c._parts.planning
        sums, joined = ids(db)
        looked = planning._kept_of

        def dropping(job: Any) -> Kept | None:
            with suppress(UndefinedObject, UndefinedTable):
                db.c.drop([joined, sums])
            return looked(job)

        monkeypatch.setattr(planning, "_kept_of", dropping)
        planning.take_kept()
        assert db.c.jobs() == [] and db.c.runs_all()
        db.c.flush(WAIT_S)


@pytest.mark.parametrize("programs", ["these", "others"])
def test_what_may_be_outdated_is_not_used_before_spark(spark: SparkSession, folder: Path, programs: str) -> None:
    if programs == "these":
        for path in (folder / "plans").iterdir():
            path.write_bytes(path.read_bytes()[:-9] + b"x" * 9)
    with opened(spark, folder, programs, before_spark=True) as db:
        db.write(named(db)["accounts"], [(7, "ann", 1)])
        eventually(lambda: not _takes_up(), "kept plans to be looked at")
        assert {j.status for j in db.c.jobs()} == {"starting"} and not db.c.runs_all()
        db.spark_comes()
        check_goes_on(db)
        assert db.counting.planned == 2


def _takes_up() -> bool:
    return any(thread.name == "headrace-kept plans" for thread in threading.enumerate())


def test_spark_that_comes_while_an_epoch_runs_runs_it_again(
    spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was begun without it commits nothing, and is nobody's failure."""
    monkeypatch.setenv("HEADRACE_FAULTS", "task.before_upload=hang")
    with opened(spark, folder, before_spark=True) as db:
        graph = db.c._core.live.graph
        sums, _ = ids(db)
        db.write(named(db)["accounts"], [(7, "ann", 1)])
        eventually(lambda: graph.jobs[sums].activity.attempt, "an epoch to run")
        monkeypatch.setenv("HEADRACE_FAULTS", "")
        db.spark_comes()
        db.c.flush(WAIT_S)
        assert db.read(sums)[0] == Counter({("ann", 103): 1, ("bob", 51): 1})
        assert {j.failures for j in db.c.jobs()} == {0}


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
        with pytest.raises(NotPlannable, match="is not the one that its state was made by"):
            runner.prepare(2, None)
    with opened(spark, folder) as db:
        db.c.flush(WAIT_S)
        assert [j.status for j in db.c.jobs()] == ["quarantined", "running"]


def test_a_plan_that_is_made_late_and_is_another_one_stops_its_view_alone(
    spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others of its checkpoint group go on at once, also those that ran as one Spark job with it."""
    with opened(spark, folder) as db:
        sums, log = ids(db)[0], next(o.id for o in db.catalog.state.objects.values() if o.name == "log")
        words = db.view("words", f"SELECT word, count(*) AS n FROM r{log} GROUP BY word")
        for view in (sums, words):
            db.c.alter_job(view, options={"checkpoint_group": "g"})
        graph = db.c._core.live.graph
        eventually(lambda: all(graph.jobs[i].joined for i in (sums, words)), "both to move in step")
        db.c.flush(WAIT_S)
    with opened(spark, folder) as db:
        accounts = next(o.id for o in db.catalog.state.objects.values() if o.name == "accounts")
        monkeypatch.setattr(LastingPlan, "stages", lambda self, form: None)  # as if no epoch had had this form before
        monkeypatch.setattr(
            Counting, "otherwise", staticmethod(lambda plan: other(plan) if plan.upstreams == (accounts,) else plan)
        )
        db.c.flush(WAIT_S)
        before = db.read(sums)
        db.write(accounts, [(7, "eve", 5)])
        db.write(log, [("eve", 5)])
        db.c.flush(WAIT_S)
        found = {j.id: j.status for j in db.c.jobs()}
        assert (found[sums], found[words]) == ("quarantined", "running")
        assert db.read(sums) == before and db.read(words)[0]["eve", 1] == 1
    monkeypatch.undo()
    with opened(spark, folder) as db:  # which plans it as before: it takes in what it has missed
        db.c.flush(WAIT_S)
        assert {j.status for j in db.c.jobs()} == {"running"}
        assert db.read(sums)[0]["eve", 6] == 1


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


@pytest.mark.parametrize("what", ["file", "folder", "link"])
def test_what_others_may_have_written_is_not_unpickled(tmp_path: Path, what: str) -> None:
    """It is as if nothing was kept: the view is planned, and its plan kept anew for this user alone."""
    files = PlanFiles(tmp_path / "plans", lambda: "these")
    outline = Outline({}, (), NO_EVENT_TIME, False, frozenset(), frozenset(), frozenset())
    files.keep(1, "identity", "properties", Kept(outline, {}))
    path = tmp_path / "plans" / "1.plan"
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
    assert files.find(1, "identity", None) is not None
    if what == "link":
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    else:
        (path if what == "file" else path.parent).chmod(0o777)
    assert files.find(1, "identity", None) is None
    path.parent.chmod(0o700)
    files.keep(1, "identity", "properties", Kept(outline, {}))
    assert files.find(1, "identity", None) is not None and path.stat().st_mode & 0o777 == 0o600


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
    files = PlanFiles(tmp_path / "plans", lambda: before)
    files.keep(1, "x", "p", kept)
    assert files.find(1, "x", "p") == files.find(1, "x", None) == kept
    assert [files.find(1, "y", "p"), files.find(1, "y", None), files.find(1, "x", "q"), files.find(2, "x", "p")] == [
        None
    ] * 4


def test_programs_are_known_by_what_gives_spark_properties(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans are used before there is a Spark that could tell them."""
    before = programs({})
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    moved = programs({})
    (tmp_path / "spark-defaults.conf").write_text("spark.sql.ansi.enabled false")
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "")
    told = programs({})
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--conf spark.sql.x=1 pyspark-shell")
    assert len({before, moved, told, programs({})}) == 4
