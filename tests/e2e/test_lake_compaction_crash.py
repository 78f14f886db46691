"""Small files of lake tables are put together while servers and workers die, and others write to the same tables.

Whoever reads the tables finds each row once, in every snapshot that there has been; one that puts files together has
the rows of the one before it.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog
from pyiceberg.expressions import GreaterThanOrEqual

from server import Server
from support import eventually

SCHEMA = pa.schema([("id", pa.int32()), ("v", pa.int32())])
THEIRS = 1_000_000
"""From this id on rows are somebody else's."""
OF_WORKERS = ("lake.compact.before", "lake.compact.written", "lake.compact.after")
OF_SERVER = ("sink.bind.after", "commit.before", "commit.after")
Rows = Counter[tuple[int, int]]


def counted(table: pa.Table) -> Rows:
    return Counter(zip(table.column("id").to_pylist(), table.column("v").to_pylist()))


class IcebergTable:
    """One table of a catalog, as its package sees it."""

    connector = "iceberg"

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name

    def options(self) -> str:
        place = f"catalog.uri = 'sqlite:///{self.folder}/catalog.db', warehouse.path = 'file://{self.folder}'"
        return f"connector = 'iceberg', catalog.type = 'sql', {place}, database.name = 'n', table.name = '{self.name}'"

    @property
    def table(self) -> Any:
        return load_catalog("default", type="sql", uri=f"sqlite:///{self.folder}/catalog.db").load_table(
            f"n.{self.name}"
        )

    def append(self, rows: pa.Table) -> None:
        self.table.append(rows)

    def drop_theirs(self, least: int) -> None:
        self.table.delete(GreaterThanOrEqual("id", least))

    def rows(self) -> Rows:
        return counted(self.table.scan().to_arrow())

    def put_together(self) -> Iterator[tuple[Rows, Rows]]:
        """The rows before and after each time."""
        table = self.table
        for snapshot in table.snapshots():
            if snapshot.summary.operation.value == "replace":
                before, after = (
                    table.scan(snapshot_id=i).to_arrow() for i in (snapshot.parent_snapshot_id, snapshot.snapshot_id)
                )
                yield counted(before), counted(after)


class DeltaLakeTable:
    """One table in a folder, as its package sees it."""

    connector = "deltalake"

    def __init__(self, folder: Path, name: str) -> None:
        self.location = str(folder / name)

    def options(self) -> str:
        return f"connector = 'deltalake', location = '{self.location}'"

    def append(self, rows: pa.Table) -> None:
        write_deltalake(self.location, rows, mode="append")

    def drop_theirs(self, least: int) -> None:
        DeltaTable(self.location).delete(f"id >= {least}")

    def rows(self) -> Rows:
        return counted(DeltaTable(self.location).to_pyarrow_table())

    def put_together(self) -> Iterator[tuple[Rows, Rows]]:
        """The rows before and after each time."""
        for commit in DeltaTable(self.location).history():
            if commit["operation"] == "OPTIMIZE":
                version = commit["version"]
                before, after = (DeltaTable(self.location, v).to_pyarrow_table() for v in (version - 1, version))
                yield counted(before), counted(after)


LakeTable = IcebergTable | DeltaLakeTable


class Other:
    """Somebody who writes to a table, and reads it, all the time."""

    def __init__(self, table: LakeTable, unique: bool, seed: int) -> None:
        self.table, self.theirs, self.wrong = table, Rows(), ""
        self._unique, self._random, self._over = unique, random.Random(seed), threading.Event()
        self._thread: threading.Thread | None = None
        self._next = THEIRS

    def begin(self) -> None:
        self._over.clear()
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Wait until it rests."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _loop(self) -> None:
        while not self._over.wait(self._random.uniform(0.2, 1.0)):
            with suppress(Exception):  # another commit came first, or the catalog is held: then it counts for nothing
                self._write()
            with suppress(OSError):
                self._look(self.table.rows())

    def _write(self) -> None:
        if self._random.random() < 0.25:
            least = self._next - self._random.randrange(1, 3)
            self.table.drop_theirs(least)
            self.theirs = Rows({row: n for row, n in self.theirs.items() if row[0] < least})
            return
        self._next += 1
        self.table.append(pa.table({"id": [self._next], "v": [0]}, schema=SCHEMA))
        self.theirs[self._next, 0] += 1

    def _look(self, found: Rows) -> None:
        ids = Counter(row[0] for row in found.elements())
        if self._unique and max(ids.values(), default=0) > 1:
            self.wrong = f"a key is there twice: {[row for row in found if ids[row[0]] > 1]}"
        if Rows({row: n for row, n in found.items() if row[0] >= THEIRS}) != self.theirs:
            self.wrong = "a row of somebody else's has gone, or has come back"


class Scene:
    """A table and a log, each delivered to a table of each kind to which others write, too."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.server, self.lake, self.random = Server(folder), folder / "lake", random.Random(seed)
        self.lake.mkdir()
        self.kept = [IcebergTable(self.lake, "kept"), DeltaLakeTable(self.lake, "kept")]
        self.log = [IcebergTable(self.lake, "log"), DeltaLakeTable(self.lake, "log")]
        self.others = [Other(t, t in self.kept, self.random.randrange(1 << 30)) for t in (*self.kept, *self.log)]
        self.sent = 0

    def create(self) -> None:
        made = "create_table_if_not_exists = true, compact_files = 3"
        self.server.start()
        self.server.execute(
            "CREATE TABLE kept (id int PRIMARY KEY, v int)",
            "CREATE TABLE log (id int, v int) APPEND ONLY",
            *(f"CREATE SINK kept_{t.connector} FROM kept WITH ({t.options()}, {made}, primary_key = 'id')"
              for t in self.kept),
            *(f"CREATE SINK log_{t.connector} FROM log WITH ({t.options()}, {made}, type = 'append-only', "
              "commit_checkpoint_interval = 2)" for t in self.log),
            *(f"CREATE SOURCE back_{t.connector} (id int, v int) WITH ({t.options()}, refresh.interval = '100ms')"
              for t in self.log),
            *(f"CREATE MATERIALIZED VIEW seen_{t.connector} AS SELECT id, count(*) AS n FROM back_{t.connector} "
              "GROUP BY id" for t in self.log),
        )  # fmt: skip
        self.server.stop()

    def change(self) -> bool:
        """One change of each table; False if the server has died."""
        self.sent += 1
        try:
            with self.server.connect() as connection:
                connection.execute(
                    f"INSERT INTO kept VALUES ({self.sent}, 0), ({self.random.randrange(9)}, {self.sent})"
                )
                connection.execute(f"DELETE FROM kept WHERE id = {self.random.randrange(20)}")
                connection.execute(f"INSERT INTO log VALUES ({self.sent}, {self.sent})")
        except psycopg.OperationalError:
            return False
        return True

    def disturb(self, faults: str, changes: int) -> None:
        """Change rows while others write, too, until the server has died, or so often; then it is killed."""
        self.server.start(faults, wait=False)
        eventually(lambda: self.server.ready() or self.server.exit_code() is not None)
        for other in self.others:
            other.begin()
        for _ in range(changes):
            if self.server.exit_code() is not None or not self.change():
                break
        self.server.kill()
        for other in self.others:
            other.end()

    def check(self) -> None:
        """Each table has the rows of all, and always had."""
        self.server.start()
        eventually(lambda: self.change() and self._all_put_together(), "files put together")
        for other in self.others:
            assert not other.wrong, f"{other.table.connector}: {other.wrong}"
            self._settles(other)
        for table in self.log:
            ids = Counter(row[0] for row in table.rows().elements())
            self._reads_back(table, ids)
        for other in self.others:
            assert all(before == after for before, after in other.table.put_together())
        self.server.stop()

    def _all_put_together(self) -> bool:
        return all(any(True for _ in other.table.put_together()) for other in self.others)

    def _settles(self, other: Other) -> None:
        name = "kept" if other.table in self.kept else "log"
        wanted = Rows(self.server.rows(f"SELECT id, v FROM {name}")) + other.theirs
        eventually(lambda: other.table.rows() == wanted, f"the table {name} of {other.table.connector}")

    def _reads_back(self, table: LakeTable, ids: Counter[int]) -> None:
        view = f"seen_{table.connector}"
        eventually(lambda: dict(self.server.rows(f"SELECT id, n FROM {view}")) == ids, view)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    made = Scene(tmp_path_factory.mktemp("compaction"), 7)
    try:
        made.create()
        yield made
    finally:
        for other in made.others:
            other.end()
        made.server.close()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("points", [OF_WORKERS, *(pytest.param((p,), marks=pytest.mark.soak) for p in OF_SERVER)])
def test_killed_at(scene: Scene, points: tuple[str, ...]) -> None:
    nth = 5 if points[0] in OF_SERVER else 1
    scene.disturb(",".join(f"{point}=kill@{nth + i}" for i, point in enumerate(points)), 12)
    scene.check()


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_killed_at_random(scene: Scene) -> None:
    for _ in range(12):
        faults = f"{scene.random.choice(OF_WORKERS + OF_SERVER)}=kill@{scene.random.randrange(1, 6)}"
        scene.disturb(scene.random.choice(["", faults]), scene.random.randrange(3, 20))
        scene.check()
