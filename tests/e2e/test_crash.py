"""A server killed at any moment, and at every named one: nothing acknowledged is lost, every view is exact."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headrace.catalog.catalog import Catalog
from server import Server, differences
from support import WAIT_S, eventually

OWNERS = ("ann", "bob", "cy", "dee", "eve")
WORDS = ("x", "yy", "zzz")
VIEWS = {
    "totals": "SELECT owner, count(*) AS n, sum(amount) AS total FROM accounts GROUP BY owner",
    "joined": "SELECT a.owner, l.word, count(*) AS c, sum(a.amount * l.n) AS s "
    "FROM accounts a JOIN log l ON a.id % 5 = l.n GROUP BY a.owner, l.word",
    "best": "SELECT owner, id, amount FROM (SELECT owner, id, amount, row_number() OVER "
    "(PARTITION BY owner ORDER BY amount DESC, id) AS r FROM accounts) q WHERE r <= 3",
    "shares": "SELECT b.owner, b.id, b.amount, t.total FROM best b JOIN totals t ON b.owner = t.owner",
    "ticks_by_k": "SELECT k, count(*) AS c, sum(v) AS s, min(v) AS low FROM ticks GROUP BY k",
    "lines_by_k": "SELECT l.k, a.owner, count(*) AS c, sum(l.v) AS s FROM lines l LEFT JOIN accounts a ON l.k = a.id "
    "GROUP BY l.k, a.owner",
}
# The view on views in terms of what is below them.
SHARES = (
    f"SELECT b.owner, b.id, b.amount, t.total FROM ({VIEWS['best']}) b JOIN ({VIEWS['totals']}) t ON b.owner = t.owner"
)

Rows = Counter[tuple[Any, ...]]


class Writer(threading.Thread):
    """Writes to one table, one statement after another, and knows what it must hold.

    A statement that was under way when the connection broke may or may not have happened.
    """

    def __init__(self, server: Server, table: str, seed: int, rows: Rows):
        super().__init__(name=f"writer-{table}", daemon=True)
        self.table = table
        self.rows = rows
        self.maybe: Rows | None = None
        self.acknowledged = 0
        self.failure: BaseException | None = None
        self._server = server
        self._random = random.Random(seed)
        self._ending = threading.Event()

    def run(self) -> None:
        try:
            with self._server.connect() as connection:
                while not self._ending.is_set():
                    sql, after = self._accounts() if self.table == "accounts" else self._log()
                    self.maybe = after
                    try:
                        connection.execute(sql)
                    except psycopg.errors.SystemError:
                        self.maybe = None  # Spark was lost: the statement has not happened
                        continue
                    self.rows, self.maybe = after, None
                    self.acknowledged += 1
        except psycopg.OperationalError as error:
            if error.sqlstate not in (None, "57P01"):
                self.failure = error
        except BaseException as error:
            self.failure = error

    def finish(self) -> None:
        """Wait until the statement under way has ended, one way or the other."""
        self._ending.set()
        self.join(WAIT_S)
        assert not self.is_alive() and self.failure is None, self.failure

    def settle(self, found: Rows) -> None:
        """What the table holds now is what was acknowledged, with or without the statement under way."""
        if found != self.rows:
            lost, new = list((self.rows - found).items()), list((found - self.rows).items())
            assert found == self.maybe, f"{self.table}: lost {lost[:5]}, too many {new[:5]}"
        self.rows, self.maybe = found, None

    def _accounts(self) -> tuple[str, Rows]:
        pick, rows = self._random, dict.fromkeys(self.rows, 1)
        known = {row[0]: row for row in rows}
        kind = pick.random()
        if kind < 0.6 or len(known) < 5:
            for _ in range(pick.randint(1, 20)):
                key = pick.randrange(300)
                known[key] = (key, pick.choice(OWNERS), pick.randrange(-50, 1000))
            changed = [row for row in known.values() if row not in rows] or list(known.values())[:1]
            values = ", ".join(f"({i}, '{owner}', {amount})" for i, owner, amount in changed)
            return f"INSERT INTO accounts VALUES {values}", Counter(known.values())
        owner, edge = pick.choice(OWNERS), pick.randrange(300)
        if kind < 0.8:
            by = pick.randrange(-100, 100)
            after = ((i, o, a + by if o == owner and i < edge else a) for i, o, a in known.values())
            return f"UPDATE accounts SET amount = amount + {by} WHERE owner = '{owner}' AND id < {edge}", Counter(after)
        after = (row for row in known.values() if not (row[1] == owner and row[0] > edge))
        return f"DELETE FROM accounts WHERE owner = '{owner}' AND id > {edge}", Counter(after)

    def _log(self) -> tuple[str, Rows]:
        pick = self._random
        if pick.random() < 0.75 or not self.rows:
            new = [(pick.choice(WORDS), pick.randrange(5)) for _ in range(pick.randint(1, 5))]
            return f"INSERT INTO log VALUES {', '.join(map(str, new))}", self.rows + Counter(new)
        word, n = pick.choice(list(self.rows))
        after = Counter({row: count for row, count in self.rows.items() if row != (word, n)})
        return f"DELETE FROM log WHERE word = '{word}' AND n = {n}", after


class Scene:
    """One database under load, over many lives of its server."""

    def __init__(self, folder: Path, seed: int):
        self.server = Server(folder)
        self.random = random.Random(seed)
        self.rows: dict[str, Rows] = {"accounts": Counter(), "log": Counter()}
        self.writers: list[Writer] = []
        self.acknowledged = 0
        self._files = folder / "lines"
        self._file_count = 0
        self._armed = ""

    def create(self) -> None:
        """The first life: tables, sources and views."""
        self._files.mkdir()
        self.server.start()
        self.server.execute(
            "CREATE TABLE accounts (id int PRIMARY KEY, owner text, amount bigint)",
            "CREATE TABLE log (word text, n int)",
            "CREATE SOURCE ticks (k int, v int) WITH (connector = 'datagen', rows_per_second = '500', "
            "fields.k.min = '0', fields.k.max = '7', fields.v.min = '0', fields.v.max = '1000')",
            f"CREATE SOURCE lines (k int, v int) WITH (connector = 'files', path = '{self._files}', format = 'csv')",
            *(f"CREATE MATERIALIZED VIEW {name} AS {query}" for name, query in VIEWS.items()),
            "CREATE SINK gone FROM totals WITH (connector = 'blackhole')",
        )

    def begin_load(self) -> None:
        self.writers = [
            Writer(self.server, table, self.random.randrange(1 << 30), rows) for table, rows in self.rows.items()
        ]
        for writer in self.writers:
            writer.start()

    def add_file(self) -> None:
        """A new file for the source, there at once with all its lines."""
        self._file_count += 1
        hidden = self._files / f".{self._file_count}.tmp"
        lines = (f"{self.random.randrange(300)},{self.random.randrange(100)}" for _ in range(50))
        hidden.write_text("k,v\n" + "\n".join(lines) + "\n")
        hidden.rename(self._files / f"{self._file_count}.csv")

    def end_load(self) -> None:
        for writer in self.writers:
            writer.finish()

    def check_tables(self) -> None:
        """Tables hold what was acknowledged."""
        for writer in self.writers:
            writer.settle(Counter(self.server.rows(f"SELECT * FROM {writer.table}")))
            self.rows[writer.table] = writer.rows
            self.acknowledged += writer.acknowledged
        self.writers = []

    def check_views(self) -> None:
        """Views are what their queries say, computed anew in the same snapshot."""
        found = [differences(self.server, name, query) for name, query in VIEWS.items()]
        found.append(differences(self.server, "shares", SHARES))
        assert [text for text in found if text is not None] == []

    def check_end(self) -> None:
        """After everything has been taken in."""
        self.server.flush()
        self.check_tables()
        self.check_views()
        statuses = {row[1]: row[2] for row in self.server.rows("SHOW JOBS")}
        assert statuses == dict.fromkeys((*VIEWS, "gone"), "running")
        assert sum(r[0] for r in self.server.rows("SELECT c FROM lines_by_k")) == 50 * self._file_count

    def restart(self, faults: str = "") -> None:
        """A new server on what the last one has left: the tables hold what was acknowledged."""
        self._armed = faults
        self.server.start(faults)
        try:
            self.check_tables()
        except psycopg.OperationalError:
            # Views that catch up pass fault points, too.
            assert faults and self.server.wait_exit() == -9
            self.restart()

    def load_and_kill(self, after_s: float, whole_group: bool = True, next_faults: str = "") -> None:
        """Load for a while, and SIGKILL under load."""
        self.begin_load()
        self.add_file()
        threading.Event().wait(after_s)
        self.server.kill(whole_group)
        self.end_load()
        self.restart(next_faults)

    def load_until_killed(self, next_faults: str = "") -> None:
        """Load until the server kills itself at the fault point that it was started with."""
        if not self._armed:
            return self.load_and_kill(1.0, next_faults=next_faults)
        self.begin_load()
        self.add_file()
        assert self.server.wait_exit() == -9
        self.end_load()
        self.restart(next_faults)

    def check_live(self) -> None:
        """Also while writes go on, a read of several relations is one snapshot."""
        self.begin_load()
        self.add_file()
        self.check_views()
        self.end_load()

    def computes(self) -> bool:
        """Whether queries are run that need Spark."""
        try:
            return len(self.server.rows("SELECT sum(n) FROM log")) == 1
        except psycopg.errors.SystemError:
            return False

    def acknowledged_so_far(self) -> int:
        """Statements of the writers of this life that have succeeded."""
        return sum(writer.acknowledged for writer in self.writers)

    def objects(self) -> set[str]:
        """Every object of the state, by its name."""
        root = self.server.data / "state"
        found = (Path(folder, name) for folder, _, names in os.walk(root) for name in names)  # folders may go meanwhile
        return {path.relative_to(root).as_posix() for path in found if path.suffix in (".run", ".tmp")}

    def check_garbage(self, old: set[str]) -> None:
        """Of objects that were there long ago only those are left that the catalog refers to. Stops the server.

        And every byte of the state is found to be sound.
        """
        # Not at once: what was merged away just now goes with the vacuum after the next.
        eventually(lambda: not (old & self.objects()) - self.referenced(), "vacuum")
        assert self.server.stop() == 0
        command = [sys.executable, "-m", "headrace.cli", "state", "verify", "--data", str(self.server.data)]
        verified = subprocess.run(command, capture_output=True, text=True)
        assert verified.returncode == 0, verified.stdout[-2000:] + verified.stderr[-2000:]
        assert self.referenced() <= self.objects()

    def referenced(self) -> set[str]:
        """Every object that the catalog refers to."""
        with Catalog.open(str(self.server.data / "catalog.db"), read_only=True) as catalog:
            return {run.ref.path for run in catalog.state.runs.values()}


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path, seed=20_130_101)
    try:
        made.create()
        yield made
    finally:
        made.server.close()


@pytest.mark.timeout(1200)
def test_killed_at_random_moments_and_at_the_commit(scene: Scene) -> None:
    """PC-5, PC-12, CK-10, CK-11: nothing acknowledged is lost, nothing is applied twice, no file stays behind.

    In one life tasks die as well, before and after they have written: their epochs are run again.
    """
    scene.load_and_kill(
        scene.random.uniform(1.0, 4.0), whole_group=False,
        next_faults="task.before_upload=kill@2,task.after_upload=kill@3,commit.before=kill@20",
    )  # fmt: skip
    scene.load_until_killed("commit.after=kill@15")
    scene.load_until_killed()
    old = scene.objects()
    assert scene.acknowledged > 10
    kinds = [kind for (kind,) in scene.server.rows("SELECT kind FROM headrace_catalog.events")]
    assert "job_failed" in kinds  # whether it recovered before the server was killed as well is a matter of luck
    scene.check_live()
    scene.check_end()
    scene.check_garbage(old)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_killed_ten_times(scene: Scene) -> None:
    """PC-5, PC-46, XC-1: ten crashes under load on one database."""
    for number in range(10):
        scene.load_and_kill(scene.random.uniform(0.2, 5.0), whole_group=number % 2 == 0)
    assert scene.acknowledged > 20
    scene.check_live()
    scene.check_end()
    scene.check_garbage(set())


EVERY_POINT = (
    "barrier.bind.after=kill@20",
    "commit.acked=kill@30",
    "commit.before=kill@30",
    "commit.after=kill@25",
    "commit.notified=kill@30",
    "table.commit.before=kill@15",
    "table.commit.after=kill@15",
    "catalog.commit.before=kill@60",
    "catalog.commit.after=kill@61",
    "compaction.merge.after=kill@5",
    "compaction.commit.after=kill@5",
    "vacuum.delete.before=kill@4",
    "vacuum.delete.after=kill@4",
)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_killed_at_every_fault_point(scene: Scene) -> None:
    """FS-4, CK-13, CK-10, CK-11, PC-5: a crash of the coordinator at each step of its work."""
    scene.load_and_kill(1.0, next_faults=EVERY_POINT[0])
    for following in (*EVERY_POINT[1:], ""):
        scene.load_until_killed(following)
    scene.check_end()
    scene.server.kill()
    scene.restart("sink.commit.before=kill@2,sink.commit.after=kill@4,task.spool.before=kill@20")
    scene.load_and_kill(5.0)  # in this life workers die, too
    scene.check_end()
    for faults in ("catalog.fence.before=kill", "catalog.fence.after=kill"):
        scene.server.kill()
        assert scene.server.start(faults, wait=False).wait_exit(120) == -9
        scene.restart()
    scene.server.kill()
    scene.restart("backfill.done.before=kill")
    query = "SELECT owner, max(amount) AS most FROM accounts GROUP BY owner"
    with pytest.raises(psycopg.OperationalError):
        scene.server.execute(f"CREATE MATERIALIZED VIEW late AS {query}")
    assert scene.server.wait_exit() == -9
    scene.restart()
    eventually(lambda: ("late", "running") in [(r[1], r[2]) for r in scene.server.rows("SHOW JOBS")], "the late view")
    assert differences(scene.server, "late", query) is None
    scene.server.execute("DROP MATERIALIZED VIEW late")
    scene.check_end()
    scene.check_garbage(set())


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_killed_while_a_view_is_created(scene: Scene) -> None:
    """PC-23, PC-25, LS-17: killed between slices, and after several: it goes on where it was, and is exact."""
    values = ", ".join(f"({n}, '{OWNERS[n % 5]}', {n % 90})" for n in range(100_000, 100_400))
    query = "SELECT owner, max(amount) AS most FROM accounts WHERE id >= 100000 GROUP BY owner"
    scene.server.execute(f"INSERT INTO accounts (id, owner, amount) VALUES {values}")
    for number, point in enumerate(("backfill.slice.after=kill@3", "backfill.slice.before=kill@5")):
        scene.server.kill()
        scene.restart(point)
        made = f"CREATE MATERIALIZED VIEW late{number} WITH (checkpoint_group = 'late') AS {query}"
        with pytest.raises(psycopg.OperationalError):
            scene.server.execute(made)
        assert scene.server.wait_exit() == -9
        scene.restart()

        def running(name: str = f"late{number}") -> bool:
            return (name, "running") in [(r[1], r[2]) for r in scene.server.rows("SHOW JOBS")]

        eventually(running, "the late view")
        assert differences(scene.server, f"late{number}", query) is None
    scene.server.execute("DROP MATERIALIZED VIEW late0; DROP MATERIALIZED VIEW late1")


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_spark_is_killed_again_and_again(scene: Scene) -> None:
    """PC-42, PC-44: also while it starts, and while views are planned; the server and the writers' connections stay."""
    served, killed = scene.server.process_id, set[int]()
    scene.begin_load()
    for number in range(4):
        scene.add_file()
        eventually(scene.computes, "Spark")
        threading.Event().wait(scene.random.uniform(0.5, 6.0))
        for _ in range(1 + number % 2):  # the second one while it starts
            eventually(lambda: scene.server.java_process() not in (None, *killed), "another JVM")
            java = scene.server.java_process()
            assert java is not None
            threading.Event().wait(scene.random.uniform(0.0, 3.0) if number % 2 else 0.0)
            os.kill(java, signal.SIGKILL)
            killed.add(java)
    scene.end_load()
    assert scene.acknowledged_so_far() > 0
    scene.check_end()
    assert scene.server.process_id == served and scene.server.exit_code() is None
    events = scene.server.rows("SELECT kind, message FROM headrace_catalog.events")
    assert [e for e in events if e[0] in ("job_failed", "job_quarantined")] == []
    scene.check_garbage(set())
