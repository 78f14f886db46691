"""Exactly once, from source to target, while everything on the way is killed.

`python tests/e2e/delivery_soak.py [--minutes 60] [--seed 7]`

One server takes in a topic of Kafka, written in transactions of which some are aborted, and a table of PostgreSQL whose
transactions move amounts between rows, so that all amounts together are always nothing. It delivers them, and views of
them, to a topic, to another PostgreSQL, to files, and to Iceberg and Delta tables. A seeded schedule kills the server
(at random, and at its named fault points), its Java, its Python workers, the broker and both PostgreSQL servers, and
stops the target for a while.

Meanwhile somebody outside reads the target, and somebody else the server's own views, over all of its lives: of a key
no older value follows a newer one, and amounts add up to nothing in every snapshot. After each round everything is
started, writers pause, and what the targets and the views hold must be what the sources hold: nothing lost, nothing
doubled, nothing out of order within a key. Of the lake's tables all snapshots since the last round are looked at, and
those that put files together have changed no row. Nothing may have failed by an error of the program itself.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

import psycopg
import pyarrow.parquet
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from kafka import Kafka, kafka_server
from postgres import HOST, Postgres, postgres_server
from server import Server
from support import eventually

KEYS, PARTITIONS, ROWS = 24, 3, 10
ROUND_S = 120.0
SETTLE_S = 600.0
PAUSES_S = (2.0, 20.0)
"""Between two kills."""
POINTS = (
    "sink.bind.after", "sink.commit.before", "sink.commit.after", "barrier.bind.after", "commit.before",
    "commit.acked", "commit.after", "catalog.commit.before", "catalog.commit.after",
    "lake.compact.before", "lake.compact.written", "lake.compact.after",
)  # fmt: skip

OWN_ERRORS = ("AssertionError", "AttributeError", "KeyError", "TypeError", "UnboundLocalError")
"""What only a mistake of the program raises."""


class Wrong(AssertionError):
    """What must never be seen."""


class Writers:
    """Two threads that write to the sources until they are told to stop, whatever dies under them."""

    def __init__(self, kafka: Kafka, source: Postgres, seed: int) -> None:
        self.kafka, self.source, self._random = kafka, source, random.Random(seed)
        self.acknowledged = Counter[int]()
        """Key -> the newest number of a transaction that is known to be committed."""
        self.transactions = 0
        self._numbers = Counter[int]()
        self._pause, self._over = threading.Event(), threading.Event()
        self._idle = [threading.Event(), threading.Event()]
        work = ((self._produce, 0), (self._move, 1))
        self._threads = [threading.Thread(target=self._loop, args=args, daemon=True) for args in work]
        self._producer: Any = None

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def pause(self) -> None:
        """Wait until neither has anything under way."""
        self._pause.set()
        for idle in self._idle:
            idle.wait()

    def resume(self) -> None:
        self._pause.clear()

    def end(self) -> None:
        self._over.set()
        self._pause.clear()

    def _loop(self, once: Callable[[], None], number: int) -> None:
        while not self._over.is_set():
            if self._pause.is_set():
                self._idle[number].set()
                time.sleep(0.05)
                continue
            self._idle[number].clear()
            try:
                once()
            except Exception:  # whoever it wrote to has died
                self._producer = None if number == 0 else self._producer
                time.sleep(0.5)

    def _produce(self) -> None:
        if self._producer is None:
            made = self.kafka.producer(**{"transactional.id": "soak", "transaction.timeout.ms": 20_000})
            made.init_transactions(20)
            self._producer = made
        aborts, written = self._random.random() < 0.15, Counter[int]()
        self._producer.begin_transaction()
        for _ in range(self._random.randrange(1, 40)):
            key = self._random.randrange(KEYS)
            self._numbers[key] += 1  # of an aborted one they are never seen, and there are gaps
            written[key] = self._numbers[key]
            record = json.dumps({"k": key, "n": self._numbers[key]})
            self._producer.produce("events", record, partition=key % PARTITIONS)
        if aborts:
            self._producer.abort_transaction(20)
            return
        self._producer.commit_transaction(20)
        self.acknowledged |= written
        self.transactions += 1
        time.sleep(self._random.uniform(0.01, 0.15))

    def _move(self) -> None:
        one, other = self._random.sample(range(ROWS), 2)
        by = self._random.randrange(1, 100)
        with self.source.connect(autocommit=False, connect_timeout=10) as connection:
            for _ in range(self._random.randrange(1, 4)):
                connection.execute("UPDATE moves SET v = v - %s WHERE id = %s", [by, one])
                connection.execute("UPDATE moves SET v = v + %s WHERE id = %s", [by, other])
            if self._random.random() < 0.1:
                connection.rollback()
        time.sleep(self._random.uniform(0.01, 0.2))


class Watcher:
    """Reads `moves` and `newest` somewhere all the time; keeps the first thing that must not be."""

    def __init__(self, where: str, connect: Callable[[], psycopg.Connection[Any]], amounts: Sequence[str]) -> None:
        """`amounts` are queries that find nothing, or 0, whenever they are asked."""
        self.where, self.wrong, self.looks = where, "", 0
        self._connect, self._amounts = connect, amounts
        self._newest = Counter[int]()
        self._until_now = 0
        threading.Thread(target=self._loop, daemon=True).start()

    def check(self) -> None:
        """Raise `Wrong` for what has been seen, or if nothing has been since the last call."""
        if self.wrong:
            raise Wrong(self.wrong)
        if self.looks == self._until_now:
            raise Wrong(f"nobody could read {self.where}")
        self._until_now = self.looks

    def _loop(self) -> None:
        while not self.wrong:
            try:
                with suppress(psycopg.Error), self._connect() as connection:
                    self._look(connection)
            except Exception as error:
                self.wrong = f"reading {self.where}: {error!r}"
            time.sleep(0.2)

    def _look(self, connection: psycopg.Connection[Any]) -> None:
        for query in self._amounts:
            if any(amount for (amount,) in connection.execute(query).fetchall()):
                self.wrong = f"half of a transaction in {self.where}: {query} finds something"
        for key, number in connection.execute("SELECT k, n FROM newest").fetchall():
            if number < self._newest[key]:
                self.wrong = f"key {key} went back from {self._newest[key]} to {number} in {self.where}"
            self._newest[key] = number
        self.looks += 1


class Scene:
    """The sources, the server, the targets."""

    def __init__(self, folder: Path, kafka: Kafka, source: Postgres, target: Postgres, seed: int) -> None:
        self.folder, self.kafka, self.lake, self.files = folder, kafka, folder / "lake", folder / "files"
        self.servers = (source, target)
        self.source, self.target = source.new_database("shop"), target.new_database("kept")
        self.server = Server(folder)
        self.writers = Writers(kafka, self.source, seed)
        self.kills = Counter[str]()
        self.compacted = Counter[str]()
        """How often small files were put together, by connector."""
        self._armed = ""
        """The point at which the server is to end."""
        self._untried: list[str] = []
        """The points that come before any of them does again."""
        self._looked_at = Counter[str]()
        """How many snapshots of a table have been looked at."""

    def create(self) -> None:
        self.lake.mkdir()
        self.source.execute(
            "CREATE TABLE moves (id int PRIMARY KEY, v bigint)",
            f"INSERT INTO moves SELECT i, 0 FROM generate_series(0, {ROWS - 1}) AS g(i)",
        )
        self.target.execute(
            "CREATE TABLE moves (id int PRIMARY KEY, v bigint)", "CREATE TABLE log (k int, n bigint)",
            "CREATE TABLE newest (k int PRIMARY KEY, n bigint, c bigint)",
        )  # fmt: skip
        self.kafka.topic("events", PARTITIONS)
        self.kafka.topic("newest")
        topic = f"connector = 'kafka', properties.bootstrap.server = '{self.kafka.servers}'"
        cdc = (f"connector = 'postgres-cdc', hostname = '{HOST}', port = {self.source.port}, username = 'root', "
               f"database.name = '{self.source.dbname}', table.name = 'moves'")  # fmt: skip
        into = (f"connector = 'postgres', host = '{HOST}', port = {self.target.port}, user = 'root', "
                f"database = '{self.target.dbname}'")  # fmt: skip
        iceberg = (f"connector = 'iceberg', catalog.type = 'sql', catalog.uri = 'sqlite:///{self.lake}/catalog.db', "
                   f"warehouse.path = 'file://{self.lake}', database.name = 'n', "
                   "create_table_if_not_exists = true, commit_checkpoint_interval = 2, compact_files = 4")  # fmt: skip
        delta = f"connector = 'deltalake', location = '{self.lake}/delta', create_table_if_not_exists = true"
        self.server.start()
        self.server.execute(
            f"CREATE SOURCE events (k int, n bigint) WITH ({topic}, topic = 'events') FORMAT PLAIN ENCODE JSON",
            f"CREATE TABLE moves (id int PRIMARY KEY, v bigint) WITH ({cdc})",
            "CREATE MATERIALIZED VIEW newest AS SELECT k, max(n) AS n, count(*) AS c FROM events GROUP BY k",
            "CREATE MATERIALIZED VIEW balance AS SELECT sum(v) AS v FROM moves",
            f"CREATE SINK to_topic FROM newest WITH ({topic}, topic = 'newest', primary_key = 'k') "
            "FORMAT UPSERT ENCODE JSON",
            f"CREATE SINK to_newest FROM newest WITH ({into}, table = 'newest', primary_key = 'k')",
            f"CREATE SINK to_log FROM events WITH ({into}, table = 'log', type = 'append-only')",
            f"CREATE SINK to_moves FROM moves WITH ({into}, table = 'moves', primary_key = 'id')",
            f"CREATE SINK to_files FROM events WITH (connector = 'files', path = '{self.files}', type = 'append-only')",
            f"CREATE SINK to_iceberg FROM moves WITH ({iceberg}, table.name = 'moves', primary_key = 'id')",
            f"CREATE SINK to_iceberg_log FROM events WITH ({iceberg}, table.name = 'log', type = 'append-only')",
            f"CREATE SINK to_delta FROM events WITH ({delta}, type = 'append-only', compact_files = 8)",
        )

    # ---- what happens

    def disturb(self, chance: random.Random) -> None:
        """One of the things that go wrong."""
        actions = {
            "server": self._kill_server, "server at a point": lambda: self._kill_at(chance),
            "java": self._kill_java, "worker": lambda: self._kill_worker(chance), "broker": self._kill_broker,
            "source": lambda: self._restart(self.servers[0]), "target": lambda: self._restart(self.servers[1]),
            "target stops": lambda: self._freeze(self.servers[1], chance.uniform(1, 8)),
        }  # fmt: skip
        name = chance.choices([*actions], weights=[2, 4, 2, 3, 1, 1, 1, 1])[0]
        say(f"kills: {name}")
        actions[name]()
        self.kills[name] += 1

    def revive(self) -> None:
        """Start the server if it has ended."""
        if self.server.exit_code() is not None:
            self.kills[f"ended at {self._armed}"] += 1
            self._armed = "no point"
            self.server.start()

    def _kill_server(self) -> None:
        self.server.kill()
        self._armed = "no point"
        self.server.start()

    def _kill_at(self, chance: random.Random) -> None:
        """It ends at a point some time after its start, maybe before it is ready, and is started again then."""
        self.server.kill()
        if not self._untried:
            self._untried = chance.sample(POINTS, len(POINTS))
        self._armed = self._untried.pop()
        say(f"at {self._armed}")
        self.server.start(f"{self._armed}=kill@{chance.randrange(2, 6)}", wait=False)
        eventually(lambda: self.server.ready() or self.server.exit_code() is not None, "the server", SETTLE_S)

    def _kill_java(self) -> None:
        found = self.server.java_process()
        if found is not None:
            os.kill(found, signal.SIGKILL)

    def _kill_worker(self, chance: random.Random) -> None:
        listed = subprocess.run(["ps", "-eo", "pid=,pgid=,args="], capture_output=True, text=True, check=True).stdout
        lines = [line.split(None, 2) for line in listed.splitlines()]
        workers = [int(pid) for pid, group, args in lines if group == str(self.server.process_id) and "daemon" in args]
        if workers:
            with suppress(ProcessLookupError):
                os.kill(chance.choice(workers), signal.SIGKILL)

    def _kill_broker(self) -> None:
        self.kafka.kill()
        time.sleep(1)
        self.kafka.start()

    def _restart(self, postgres: Postgres) -> None:
        postgres.kill()
        time.sleep(1)
        postgres.start()

    def _freeze(self, postgres: Postgres, seconds: float) -> None:
        first = int((postgres.data / "postmaster.pid").read_text().split()[0])
        listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(first)], capture_output=True, text=True, check=False)
        processes = [first, *map(int, listed.stdout.split())]
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for process in processes:
                with suppress(ProcessLookupError):
                    os.kill(process, number)
            if number == signal.SIGSTOP:
                time.sleep(seconds)

    # ---- what must be

    def check(self) -> dict[str, int]:
        """With everything up and nobody writing: all targets hold what the sources hold. Raises `Wrong`."""
        records = [json.loads(m.value()) for m in self.kafka.records("events")]
        written = Counter((r["k"], r["n"]) for r in records)
        newest = {key: max(n for k, n in written if k == key) for key in {k for k, _ in written}}
        counts = Counter(k for k, _ in written.elements())
        lost = {k: n for k, n in self.writers.acknowledged.items() if newest.get(k, 0) < n}
        if lost:
            raise Wrong(f"the broker has lost {lost}")
        with self.source.connect() as connection:
            moves = dict(connection.execute("SELECT id, v FROM moves").fetchall())
        self._settles("the log", written, self._in_log)
        self._settles("the newest of each key", {k: (n, counts[k]) for k, n in newest.items()}, self._in_newest)
        self._settles("the amounts", moves, self._in_moves)
        self._settles("the files", written, self._in_files)
        self._settles("the Delta table", written, self._in_delta)
        self._settles("the Iceberg table", moves, self._in_iceberg)
        self._settles("the Iceberg log", written, self._in_iceberg_log)
        self._settles("the topic", {k: (n, counts[k]) for k, n in newest.items()}, self._in_topic)
        self._settles("the views", ({k: (n, counts[k]) for k, n in newest.items()}, moves, 0), self._in_views)
        self._settles("the events", None, self._look_for_errors)
        return {"records": sum(written.values()), "keys": len(newest)}

    def _settles(self, what: str, wanted: object, look: Callable[[], object]) -> None:
        until, found = time.monotonic() + SETTLE_S, None
        while time.monotonic() < until:
            self.revive()
            with suppress(psycopg.Error, OSError):
                found = look()
                if found == wanted:
                    return
            time.sleep(1)
        raise Wrong(f"{what}: {difference(wanted, found)}")

    def _rows(self, sql: str) -> list[tuple[Any, ...]]:
        with self.target.connect() as connection:
            return connection.execute(sql).fetchall()

    def _in_log(self) -> object:
        return Counter((k, n) for k, n in self._rows("SELECT k, n FROM log"))

    def _in_newest(self) -> object:
        return {k: (n, c) for k, n, c in self._rows("SELECT k, n, c FROM newest")}

    def _in_moves(self) -> object:
        return dict(self._rows("SELECT id, v FROM moves"))

    def _in_files(self) -> object:
        found = [pyarrow.parquet.read_table(path) for path in self.files.glob("[!.]*.parquet")]
        return Counter(pair for t in found for pair in zip(t.column("k").to_pylist(), t.column("n").to_pylist()))

    def _in_delta(self) -> object:
        table = DeltaTable(self.lake / "delta")
        commits = sorted(table.history(), key=lambda commit: commit["version"])
        for commit in commits[self._looked_at["deltalake"] :]:
            if commit["operation"] == "OPTIMIZE":
                before, after = (self._delta_at(commit["version"] - back) for back in (1, 0))
                self._put_together("deltalake", before, after)
        self._looked_at["deltalake"] = len(commits)
        return self._delta_at(table.version())

    def _delta_at(self, version: int) -> Counter[tuple[int, int]]:
        found = DeltaTable(self.lake / "delta", version).to_pyarrow_table()
        return Counter(zip(found.column("k").to_pylist(), found.column("n").to_pylist()))

    def _put_together(self, connector: str, before: Counter[Any], after: Counter[Any]) -> None:
        if before != after:
            raise Wrong(f"files of {connector} were put together wrongly: {difference(before, after)}")
        self.compacted[connector] += 1

    def _iceberg(self, name: str) -> Any:
        return load_catalog("default", type="sql", uri=f"sqlite:///{self.lake}/catalog.db").load_table(f"n.{name}")

    def _in_iceberg(self) -> object:
        table = self._iceberg("moves")
        snapshots = table.snapshots()
        for snapshot in snapshots[self._looked_at["moves"] :]:
            rows = _pairs(table, "id", "v", snapshot.snapshot_id)
            if amount := sum(v for _, v in rows.elements()):
                raise Wrong(f"half of a transaction in snapshot {snapshot.snapshot_id} of Iceberg: {amount}")
            if len({key for key, _ in rows}) < rows.total():
                raise Wrong(f"a key is there twice in snapshot {snapshot.snapshot_id} of Iceberg: {rows}")
        self._check_replaced(table, "id", "v", snapshots[self._looked_at["moves"] :])
        self._looked_at["moves"] = len(snapshots)
        return dict(_pairs(table, "id", "v", table.current_snapshot().snapshot_id).elements())

    def _in_iceberg_log(self) -> object:
        table = self._iceberg("log")
        snapshots = table.snapshots()
        self._check_replaced(table, "k", "n", snapshots[self._looked_at["log"] :])
        self._looked_at["log"] = len(snapshots)
        return _pairs(table, "k", "n", table.current_snapshot().snapshot_id)

    def _check_replaced(self, table: Any, key: str, value: str, snapshots: Sequence[Any]) -> None:
        for snapshot in snapshots:
            if snapshot.summary.operation.value == "replace":
                ids = snapshot.parent_snapshot_id, snapshot.snapshot_id
                self._put_together("iceberg", *(_pairs(table, key, value, i) for i in ids))

    def _in_topic(self) -> object:
        """The newest of each key; of a key no value may follow a newer one, nor the same one twice."""
        found: dict[int, tuple[int, int]] = {}
        for message in self.kafka.records("newest"):
            value = json.loads(message.value())
            pair = value["n"], value["c"]
            if pair <= found.get(value["k"], (0, 0)):
                raise Wrong(f"key {value['k']} in the topic: {pair} after {found[value['k']]}")
            found[value["k"]] = pair
        return found

    def _in_views(self) -> object:
        """`newest`, `moves` and `balance`, in one snapshot of the server."""
        with self.server.connect(autocommit=False) as connection:
            newest = {k: (n, c) for k, n, c in connection.execute("SELECT k, n, c FROM newest").fetchall()}
            moves = dict(connection.execute("SELECT id, v FROM moves").fetchall())
            (balance,) = connection.execute("SELECT v FROM balance").fetchone()  # type: ignore[misc]
        return newest, moves, balance

    def _look_for_errors(self) -> None:
        """What the server's events tell; what is killed may fail, but not by an error of the program."""
        told = self.server.rows("SELECT kind, message, detail FROM headrace_catalog.events")
        for kind, message, detail in told:
            if any(name in f"{message} {detail}" for name in OWN_ERRORS):
                raise Wrong(f"event {kind}: {message} {detail}")
        say(f"events: {dict(Counter(kind for kind, _, _ in told))}")


def _pairs(table: Any, key: str, value: str, snapshot: int) -> Counter[tuple[int, int]]:
    """The rows of an Iceberg table."""
    found = table.scan(snapshot_id=snapshot).to_arrow()
    return Counter(zip(found.column(key).to_pylist(), found.column(value).to_pylist()))


def difference(wanted: Any, found: Any) -> str:
    """A few of what is missing and of what is too much."""
    if isinstance(wanted, Counter) and isinstance(found, Counter):
        return f"missing {list((wanted - found).items())[:5]}, too much {list((found - wanted).items())[:5]}"
    return f"{found} instead of {wanted}"[:2000]


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


@contextmanager
def scene(folder: Path, seed: int) -> Iterator[Scene]:
    """Everything started, nothing written yet."""
    logical, plain = {"wal_level": "logical"}, {"fsync": "off"}
    with kafka_server() as kafka, postgres_server(logical) as source, postgres_server(plain) as target:
        found = Scene(folder, kafka, source, target, seed)
        try:
            found.create()
            yield found
        finally:
            found.writers.end()
            found.server.close()


def run(folder: Path, minutes: float, seed: int) -> Counter[str]:
    """Rounds of kills until the time is over; the kills by kind. Raises `Wrong`."""
    chance, until = random.Random(seed), time.monotonic() + minutes * 60
    with scene(folder, seed) as found:
        amounts = "SELECT coalesce(sum(v), 0) FROM moves"
        watchers = [
            Watcher("the target", lambda: found.target.connect(connect_timeout=10), [amounts]),
            Watcher("the server", found.server.connect, [amounts, "SELECT v FROM balance"]),
        ]
        found.writers.start()
        number = 0
        while time.monotonic() < until:
            number += 1
            ends = min(time.monotonic() + ROUND_S, until)
            while time.monotonic() < ends and not any(w.wrong for w in watchers):
                time.sleep(chance.uniform(*PAUSES_S))
                found.revive()
                found.disturb(chance)
            found.writers.pause()
            seen = found.check()
            for watcher in watchers:
                watcher.check()
            say(f"round {number}: {seen}, {found.writers.transactions} transactions, "
                f"{[w.looks for w in watchers]} looks, put together {dict(found.compacted)}, "
                f"{sum(found.kills.values())} kills {dict(found.kills)}")  # fmt: skip
            found.writers.resume()
        if len(found.compacted) < 2:
            raise Wrong(f"small files were put together by {[*found.compacted]} only")
        return found.kills


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="headrace-delivery-"))
    say(f"seed {options.seed}, in {folder}")
    try:
        kills = run(folder, options.minutes, options.seed)
    except BaseException:
        say(f"what there was is kept in {folder}")
        raise
    shutil.rmtree(folder, ignore_errors=True)
    say(f"nothing lost, doubled or out of order: {sum(kills.values())} kills")


if __name__ == "__main__":
    main()
