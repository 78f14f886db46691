"""The catalog by itself, on each backend, beside a bare write to the same.

`python benchmarks/catalog.py [commit] [open] [amplification] [move] [takeover] [memory]`, all by default:

commit         a transaction of two records, beside a bare INSERT and COMMIT, or a bare put where there is no object;
               and transactions per second of ten threads at once
open           opening a catalog of 10^5 records
amplification  bytes written for a transaction, and for many with rollups
move           moving 10^5 records from each backend to each other one
takeover       from the start of an opener to its first commit, while another one works; and of two servers, from
               SIGKILL of the active one to the first write that its standby has acknowledged
memory         of a catalog of 1,000 views and 10^6 runs, measured at a tenth of it

PostgreSQL is a server of its own, on this machine; the object store is one too (`dev` extra). Both sides of a
comparison write in turn.
"""

from __future__ import annotations

import gc
import shutil
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
import tracemalloc
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from rich.console import Console
from rich.table import Table

_TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(_TESTS), str(_TESTS / "state"), str(_TESTS / "e2e")]

from failover import Pair  # noqa: E402

from headrace.catalog.catalog import Catalog  # noqa: E402
from headrace.catalog.contents import MaterializedViewContent  # noqa: E402
from headrace.catalog.directory import Directory  # noqa: E402
from headrace.catalog.edits import Edit, Put  # noqa: E402
from headrace.catalog.moving import Places, move  # noqa: E402
from headrace.catalog.places import PlaceOptions  # noqa: E402
from headrace.catalog.records import JobRecord, ObjectRecord, RunRecord, SettingRecord, StateTableRecord  # noqa: E402
from headrace.state.schema import RunRef  # noqa: E402
from headrace.state.transport import open_transport  # noqa: E402
from object_server import s3_server  # noqa: E402
from postgres import postgres_server  # noqa: E402

COMMITS, WARM_UP = 2_000, 50
THREADS = 10
RECORDS = 100_000
VALUE = "x" * 100


class Backends:
    """An empty place of each kind, and a bare write to each."""

    def __init__(self, folder: Path, postgres: Any, s3: Any) -> None:
        self._folder, self._postgres, self._s3 = folder, postgres, s3
        self._store = {"endpoint": s3.endpoint, "allow_http": "true", "region": "us-east-1"}
        self.options = PlaceOptions(object_options=self._store)
        self.kinds = ("sqlite", "postgres", "directory", "s3")

    def empty(self, kind: str) -> str:
        name = f"b{uuid.uuid4().hex}"
        if kind == "postgres":
            self._postgres.execute(f"CREATE DATABASE {name}")
            return f"postgresql://root@127.0.0.1:{self._postgres.port}/{name}"
        return {
            "sqlite": f"sqlite:///{self._folder}/{name}.db", "directory": f"file://{self._folder}/{name}",
            "s3": f"s3://{self._s3.bucket}/{name}",
        }[kind]  # fmt: skip

    @contextmanager
    def open(self, at: str) -> Iterator[Catalog]:
        with Catalog.open(at, options=self.options) as catalog:
            yield catalog

    def bare(self, kind: str) -> Callable[[int], None]:
        """A durable write of as many bytes, without a catalog."""
        if kind == "sqlite":
            file = sqlite3.connect(self._folder / f"{uuid.uuid4().hex}.db", isolation_level=None)
            for sql in ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL", "CREATE TABLE t (k int, v text)"):
                file.execute(sql)

            def insert(n: int) -> None:
                file.execute("BEGIN IMMEDIATE")
                file.execute("INSERT INTO t VALUES (?, ?), (?, ?)", (n, VALUE, -n, VALUE))
                file.execute("COMMIT")

            return insert
        if kind == "postgres":
            server = psycopg.connect(self.empty("postgres"))
            server.execute("CREATE TABLE t (k int, v text)")
            server.commit()

            def insert_into(n: int) -> None:
                server.execute("INSERT INTO t VALUES (%s, %s), (%s, %s)", (n, VALUE, -n, VALUE))
                server.commit()

            return insert_into
        data = VALUE.encode() * 5
        at = self.empty(kind)
        transport: Any = Directory(at.removeprefix("file://")) if kind == "directory" else None
        transport = transport or open_transport(at, self._store, 30_000)
        return lambda n: transport.put(f"{n:012d}", data, create=True)


@contextmanager
def backends() -> Iterator[Backends]:
    folder = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        yield Backends(folder, stack.enter_context(postgres_server(parent=None)), stack.enter_context(s3_server()))


def edits(n: int) -> list[Edit]:
    return [Put(SettingRecord(f"a{n % 50}", VALUE)), Put(SettingRecord(f"b{n % 50}", VALUE))]


def timed(call: Callable[[], object]) -> float:
    since_s = time.perf_counter()
    call()
    return (time.perf_counter() - since_s) * 1000


def percentiles(times_ms: Sequence[float]) -> tuple[float, float]:
    ordered = sorted(times_ms)
    return statistics.median(ordered), ordered[int(len(ordered) * 0.99)]


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    table = Table(title=title)
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*(f"{v:.2f}" if isinstance(v, float) else str(v) for v in row))
    Console(width=140).print(table)


def commit(places: Backends) -> None:
    rows = []
    for kind in places.kinds:
        bare = places.bare(kind)
        ours: list[float] = []
        theirs: list[float] = []
        at = places.empty(kind)
        with places.open(at) as catalog:
            for n in range(1, COMMITS + WARM_UP + 1):
                ours.append(timed(partial(catalog.transact, edits(n))))
                theirs.append(timed(partial(bare, n)))
            (o50, o99), (t50, t99) = percentiles(ours[WARM_UP:]), percentiles(theirs[WARM_UP:])
            rows.append([kind, o50, o99, t50, t99, o50 / t50, o99 / t99, _at_once(catalog)])
    names = ("backend", "p50 ms", "p99 ms", "bare p50", "bare p99", "ratio p50", "ratio p99", "per s, 10 threads")
    show("a commit of two records", names, rows)


def _at_once(catalog: Catalog) -> float:
    each = COMMITS // THREADS

    def work() -> None:
        for n in range(each):
            catalog.transact(edits(n))

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    took_ms = timed(lambda: ([t.start() for t in threads], [t.join() for t in threads]))
    return THREADS * each / took_ms * 1000


def fill(catalog: Catalog, records: int) -> None:
    """Views with state tables and their runs."""
    views, per_view = max(1, records // 1000), 997
    for view in range(1, views + 1):
        made: list[Edit] = [
            Put(ObjectRecord(view, MaterializedViewContent(), "public", f"v{view}", definition="SELECT 1")),
            Put(JobRecord(view, f"g{view}", "created")), Put(StateTableRecord(view, view, "0/state", "", (), (), ())),
        ]  # fmt: skip
        for n in range(per_view):
            ref = RunRef(
                view, f"{view}/{n}-{uuid.uuid4().hex}.run", 64, 100_000, 1000, n + 1, n + 1, -(1 << 60), 1 << 60
            )
            made.append(Put(RunRecord(ref, 0, 1)))
        catalog.transact(made)


def opening(places: Backends) -> None:
    rows = []
    for kind in places.kinds:
        at = places.empty(kind)
        with places.open(at) as catalog:
            fill(catalog, RECORDS)
        times = []
        for _ in range(3):
            since_s = time.perf_counter()
            with places.open(at):
                times.append((time.perf_counter() - since_s) * 1000)
        rows.append([kind, statistics.median(times)])
    show(f"opening {RECORDS} records", ("backend", "ms"), rows)


def amplification(places: Backends) -> None:
    class Counting(Directory):
        written = puts = 0

        def put(self, path: str, data: Any, *, create: bool) -> None:
            super().put(path, data, create=create)
            self.written, self.puts = self.written + len(data), self.puts + 1

    from headrace.catalog.log_store import LogOptions, LogStore

    rows = []
    for records in (0, 10_000):
        folder = Counting(places.empty("directory").removeprefix("file://"), sync=False)
        with Catalog.over(LogStore(folder, "d", None, LogOptions(background=False))) as catalog:
            if records:
                fill(catalog, records)
                catalog._store.roll_up()  # type: ignore[attr-defined]
            folder.written = folder.puts = 0
            catalog.transact(edits(0))
            one = folder.written
            folder.written = folder.puts = 0
            many = 20_000
            for n in range(many):
                catalog.transact(edits(n))
            left = sum(o.size for o in folder.list(""))
            rows.append([
                records, one, many, folder.written / many, folder.written / many / one, folder.puts - many,
                folder.written / many * 1e6 / 1e9, left / 1e6,
            ])  # fmt: skip
    names = (
        "records before", "bytes of a commit", "commits", "bytes each, with rollups", "amplification", "rollups",
        "a million commits, GB", "left, MB",
    )  # fmt: skip
    show("bytes written to a log of objects", names, rows)


def moving(places: Backends) -> None:
    rows = []
    for source in places.kinds:
        at = places.empty(source)
        with places.open(at) as catalog:
            fill(catalog, RECORDS)
        cells: list[object] = [source]
        for target in places.kinds:
            if target == source:
                cells.append("")
                continue
            to = places.empty(target)
            there = Places(places.options)
            away_ms, back_ms = timed(partial(move, at, to, there)), timed(partial(move, to, at, there))
            cells.append(f"{away_ms:.0f} / {back_ms:.0f}")
        rows.append(cells)
    show(f"moving {RECORDS} records there and back, ms", ("from", *places.kinds), rows)


def takeover(places: Backends) -> None:
    rows = []
    for kind in places.kinds:
        at, times = places.empty(kind), []
        for n in range(5):
            owner = Catalog.open(at, options=places.options)
            owner.transact(edits(n))
            since_s = time.perf_counter()
            with places.open(at) as next_owner:
                next_owner.transact(edits(n))
                times.append((time.perf_counter() - since_s) * 1000)
            owner.close()
        rows.append([kind, statistics.median(times), max(times)])
    show(
        "taking a catalog over from an owner that works, with its first commit", ("backend", "median ms", "most"), rows
    )
    servers(places)


KILLS, LEASES_MS = 3, (5_000, 2_000)


def servers(places: Backends) -> None:
    """Two `headrace serve`, of which the active one is killed again and again; state in a directory."""
    rows = []
    for lease_ms in LEASES_MS:
        folder = Path(places.empty("directory").removeprefix("file://"))
        folder.mkdir(parents=True)
        pair = Pair(folder, places.empty("postgres"), str(folder / "state"), {"HEADRACE_LEASE_MS": str(lease_ms)})
        try:
            pair.start()
            times = sorted(one_kill(pair, number) for number in range(KILLS))
        finally:
            pair.close()
        rows.append([lease_ms, statistics.median(times), times[0], times[-1]])
    names = ("lease, ms", "median, s", "least", "most")
    show(f"from SIGKILL to the first write acknowledged by the standby, {KILLS} times", names, rows)


def one_kill(pair: Pair, number: int) -> float:
    with pair.connected() as connection:
        connection.execute("INSERT INTO entries VALUES (%s, 1, 1)", [number])
    pair.active.kill()
    since_s = time.perf_counter()
    pair.swap()
    with pair.connected() as connection:  # asks both servers until one takes writes
        connection.execute("INSERT INTO entries VALUES (%s, 2, 2)", [-1 - number])
    taken_s = time.perf_counter() - since_s
    pair.restart()
    return taken_s


def memory(places: Backends) -> None:
    at = places.empty("sqlite")
    with places.open(at) as catalog:
        fill(catalog, RECORDS)
    gc.collect()
    tracemalloc.start()
    with places.open(at) as catalog:
        gc.collect()
        held, peak = tracemalloc.get_traced_memory()
        runs = len(catalog.image.runs)
    tracemalloc.stop()
    rows = [[runs, held / 1e6, held / runs, peak / 1e6, held / runs * 1e6 / 1e9]]
    show("memory", ("runs", "held, MB", "bytes per run", "peak while opening, MB", "10^6 runs, GB"), rows)


CASES: dict[str, Callable[[Backends], None]] = {
    "commit": commit, "open": opening, "amplification": amplification, "move": moving, "takeover": takeover,
    "memory": memory,
}  # fmt: skip


def main() -> None:
    with backends() as places:
        for name in sys.argv[1:] or CASES:
            CASES[name](places)


if __name__ == "__main__":
    main()
