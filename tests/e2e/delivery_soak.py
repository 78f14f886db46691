"""Exactly once, from source to target, while everything on the way is killed.

`python tests/e2e/delivery_soak.py [--minutes 60] [--seed 7]`

One server takes in a topic of Kafka, written in transactions of which some are aborted, and a table of PostgreSQL whose
transactions move amounts between rows, so that all amounts together are always nothing. It delivers them, and views of
them, to a topic, to another PostgreSQL, to files, and to Iceberg and Delta tables. A seeded schedule kills the server
(at random, and at its named fault points), its Java, its Python workers, the broker and both PostgreSQL servers, and
stops the target for a while.

Meanwhile somebody outside reads the target: of a key no older value follows a newer one, and amounts add up to nothing
in every snapshot. After each round everything is started, writers pause, and what the targets hold must be what the
sources hold: nothing lost, nothing doubled, nothing out of order within a key.
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
from collections.abc import Callable, Iterator
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
    """Reads the target all the time; keeps the first thing that must not be."""

    def __init__(self, target: Postgres) -> None:
        self.target, self.wrong, self.looks = target, "", 0
        self._newest = Counter[int]()
        threading.Thread(target=self._loop, daemon=True).start()

    def _loop(self) -> None:
        while not self.wrong:
            with suppress(psycopg.Error), self.target.connect(connect_timeout=10) as connection:
                self._look(connection)
            time.sleep(0.2)

    def _look(self, connection: psycopg.Connection[Any]) -> None:
        (amount,) = connection.execute("SELECT coalesce(sum(v), 0) FROM moves").fetchone()  # type: ignore[misc]
        if amount:
            self.wrong = f"half of a transaction in the target: the amounts add up to {amount}"
        for key, number in connection.execute("SELECT k, n FROM newest").fetchall():
            if number < self._newest[key]:
                self.wrong = f"key {key} went back from {self._newest[key]} to {number} in the target"
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
                   f"warehouse.path = 'file://{self.lake}', database.name = 'n', table.name = 'moves', "
                   "create_table_if_not_exists = true, primary_key = 'id'")  # fmt: skip
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
            f"CREATE SINK to_iceberg FROM moves WITH ({iceberg}, compact_files = 4, commit_checkpoint_interval = 2)",
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
            self.server.start()

    def _kill_server(self) -> None:
        self.server.kill()
        self.server.start()

    def _kill_at(self, chance: random.Random) -> None:
        """It ends at a point some time after its start, maybe before it is ready, and is started again then."""
        self.server.kill()
        faults = f"{chance.choice(POINTS)}=kill@{chance.randrange(2, 6)}"
        self.server.start(faults, wait=False)
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
        self._settles("the topic", {k: (n, counts[k]) for k, n in newest.items()}, self._in_topic)
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
        found = DeltaTable(self.lake / "delta").to_pyarrow_table()
        return Counter(zip(found.column("k").to_pylist(), found.column("n").to_pylist()))

    def _in_iceberg(self) -> object:
        table = load_catalog("default", type="sql", uri=f"sqlite:///{self.lake}/catalog.db").load_table("n.moves")
        rows = table.scan().to_arrow().to_pylist()
        for snapshot in table.snapshots()[-20:]:
            amount = sum(table.scan(snapshot_id=snapshot.snapshot_id).to_arrow().column("v").to_pylist())
            if amount:
                raise Wrong(f"half of a transaction in snapshot {snapshot.snapshot_id} of Iceberg: {amount}")
        if len({row["id"] for row in rows}) < len(rows):
            raise Wrong(f"a key is there twice in Iceberg: {rows}")
        return {row["id"]: row["v"] for row in rows}

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
        watcher = Watcher(found.target)
        found.writers.start()
        number = 0
        while time.monotonic() < until:
            number += 1
            ends = min(time.monotonic() + ROUND_S, until)
            while time.monotonic() < ends and not watcher.wrong:
                time.sleep(chance.uniform(*PAUSES_S))
                found.revive()
                found.disturb(chance)
            found.writers.pause()
            seen = found.check()
            if watcher.wrong:
                raise Wrong(watcher.wrong)
            say(f"round {number}: {seen}, {found.writers.transactions} transactions, {watcher.looks} looks, "
                f"{sum(found.kills.values())} kills {dict(found.kills)}")  # fmt: skip
            found.writers.resume()
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
