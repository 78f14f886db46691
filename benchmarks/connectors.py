"""What goes in and out, beside the plain program that does the same by itself.

`python benchmarks/connectors.py [kafka] [avro] [protobuf] [latency] [postgres] [lake] [lake-sources] [--rows 500000]
[--peers]`, all by default:

kafka     JSON records of a topic with two partitions into an aggregate, beside a consumer that parses them, Structured
          Streaming and Flink (with `--peers`, in virtual environments of their own under `build/`)
avro      the same with records in Avro, with a schema registry
protobuf  the same with records in Protobuf; beside the plain consumer only
latency   from a record's production to its result in another topic, at 1,000 rows a second: source, view and sink
postgres  the content of a table beside `COPY TO STDOUT`; then transactions by logical replication beside
          `pg_recvlogical`; and a sink's upserts beside `COPY FROM`
lake      an epoch of appends to Iceberg and Delta beside the same rows as Parquet by pyarrow
lake-sources  the content of Iceberg and Delta tables into an aggregate, and what is appended to them after, beside
          pyiceberg and pyarrow that read the same

The broker and the server run on this machine, too. Processor seconds are those of the program that reads: its own
process for the plain one, this process with Spark and its workers for headrace.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import bench
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from kafka_records import SCHEMA, Encode, encodings, read_plainly
from lake_reading import lake_reading

import headrace
from headrace.common.columns import Column
from headrace.connectors.sinks import SinkPosition, open_sink
from kafka import Kafka, kafka_server
from postgres import HOST, Postgres, binaries, postgres_server
from registries import jars
from schema_registry import schema_registry

WAIT_S = 600
RATE = 1_000
LATENCY_S = 60
TICK_MS = 100
TRANSACTION_ROWS = 100
COLUMNS = (Column("id", "bigint"), Column("customer", "string"), Column("amount", "double"))


def timed(work: Callable[[], object]) -> float:
    """Seconds that it takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def until(condition: Callable[[], bool], pause_s: float = 0.02) -> None:
    """Wait until it holds."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(pause_s)


def count_of(db: headrace.Database, relation: str, column: str = "count(*)") -> int:
    """A number that a query finds."""
    return int(db.sql(f"SELECT coalesce(sum(x), 0) FROM (SELECT {column} AS x FROM {relation}) AS q").rows()[0][0])


# ---- Kafka


def fill(kafka: Kafka, topic: str, rows: int, encode: Encode) -> int:
    """Records in two partitions; their bytes."""
    kafka.topic(topic, 2)
    producer, size = kafka.producer(**{"linger.ms": 20, "queue.buffering.max.messages": 1_000_000}), 0
    for i in range(rows):
        record = {"id": i, "customer": f"customer-{i % 1000}", "amount": i / 7, "page": f"/shop/{i % 50}", "ok": True}
        data = encode(record)
        producer.produce(topic, data, partition=i % 2)
        size += len(data)
        if i % 10_000 == 0:
            producer.poll(0)
    producer.flush(60)
    return size


BUILD = Path(__file__).parent.parent / "build"
PEERS = {
    "stream": (
        "pyspark==4.1.1",
        ("org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.1", "org.apache.spark:spark-avro_2.13:4.1.1"),
    ),
    "flink": (
        "apache-flink>=2.2,<2.3",
        ("org.apache.flink:flink-sql-connector-kafka:5.0.0-2.2",
         "org.apache.flink:flink-sql-avro-confluent-registry:2.1.0"),
    ),
}  # fmt: skip
"""The package of each, and its connectors: the newest for which Maven Central has all."""


def peer(name: str, servers: str, topics: list[str], registry: str) -> tuple[float, float]:
    """Seconds and processor seconds in which another engine reads the last of these topics."""
    package, connectors = PEERS[name]
    python = BUILD / f"kafka-{name}" / "bin" / "python"
    if not python.exists():
        print(f"installing {package} into {python.parent.parent} ...", flush=True)
        subprocess.run([sys.executable, "-m", "venv", python.parent.parent], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", package], check=True)
    connector = ",".join(connectors)
    if name == "flink":
        connector = ";".join(f"file://{jar}" for c in connectors for jar in jars(c).glob("flink-sql-*.jar"))
    with tempfile.TemporaryDirectory(prefix="headrace-peer-") as folder:
        job = Path(folder) / "job.json"
        found = {"servers": servers, "topics": topics, "jars": connector, "checkpoints": folder, "registry": registry}
        job.write_text(json.dumps({**found, "schema": json.dumps(SCHEMA)}))
        command = [python, Path(__file__).with_name("kafka_peers.py"), name, job]
        said = subprocess.run(command, capture_output=True, text=True, check=False)
    if said.returncode:
        raise RuntimeError(f"{name}: {said.stderr[-4000:]}")
    found = json.loads(said.stdout.splitlines()[-1])
    return found["s"], found["cpu_s"]


def kafka_rows(spark: SparkSession, rows: int, peers: bool, case: str) -> list[list[str]]:
    """Rows a second, and by processor second, of all."""
    with ExitStack() as stack:
        kafka = stack.enter_context(kafka_server())
        db = stack.enter_context(bench.database(spark, barrier_interval_ms=TICK_MS))
        encoding = encodings(stack.enter_context(schema_registry()))[case]()
        fill(kafka, "warm", 200_000, encoding.encode)
        size = fill(kafka, "clicks", rows, encoding.encode)
        plain_s, plain_cpu_s = read_plainly(encoding, kafka.servers, "clicks", rows)
        for topic, wanted in (("warm", 200_000), ("clicks", rows)):
            options = f"connector = 'kafka', topic = '{topic}', properties.bootstrap.server = '{kafka.servers}'"
            used = sum(bench.cpu_s(spark))
            started = time.perf_counter()
            db.sql(
                f"CREATE SOURCE s_{topic} (id bigint, customer text, amount double precision, page text, ok boolean) "
                f"WITH ({options}) FORMAT PLAIN ENCODE {encoding.clause}"
            )
            db.sql(f"CREATE MATERIALIZED VIEW v_{topic} AS SELECT customer, count(*) AS n, sum(amount) AS total "
                   f"FROM s_{topic} GROUP BY customer")  # fmt: skip
            until(lambda topic=topic, wanted=wanted: count_of(db, f"v_{topic}", "n") == wanted)  # type: ignore[misc]
            ours_s, ours_cpu_s = time.perf_counter() - started, sum(bench.cpu_s(spark)) - used
        others = {
            name: peer(name, kafka.servers, ["warm", "clicks"], encoding.registry)
            for name in PEERS if peers and case != "protobuf"
        }  # fmt: skip
    found = [
        _line(f"Kafka, {encoding.name} to an aggregate, rows/s", rows / ours_s, rows / plain_s),
        _line("the same in MB/s", size / ours_s / 1e6, size / plain_s / 1e6),
        _line("the same in rows by processor second", rows / ours_cpu_s, rows / plain_cpu_s),
    ]
    for name, (s, cpu_s) in others.items():
        found.append(_line(f"the same beside {name}, rows/s", rows / ours_s, rows / s))
        found.append(_line(f"the same beside {name} by processor second", rows / ours_cpu_s, rows / cpu_s))
    return found


def latency(spark: SparkSession) -> list[list[str]]:
    """Milliseconds from a record to its result."""
    taken: list[float] = []
    with kafka_server() as kafka, bench.database(spark, barrier_interval_ms=TICK_MS) as db:
        kafka.topic("in", 2)
        kafka.topic("out", 2)
        of = f"connector = 'kafka', properties.bootstrap.server = '{kafka.servers}', topic ="
        db.sql(f"CREATE SOURCE s (id bigint, sent double precision) WITH ({of} 'in') FORMAT PLAIN ENCODE JSON")
        db.sql("CREATE MATERIALIZED VIEW v AS SELECT id, sent FROM s WHERE id >= 0")
        db.sql(f"CREATE SINK o FROM v WITH ({of} 'out') FORMAT PLAIN ENCODE JSON")
        over = threading.Event()
        reader = threading.Thread(target=_read, args=(kafka, over, taken), daemon=True)
        reader.start()
        producer = kafka.producer()
        for i in range(RATE * LATENCY_S):
            producer.produce("in", json.dumps({"id": i, "sent": time.time()}), partition=i % 2)
            if i % 10 == 9:
                producer.flush(10)
                time.sleep(max(0.0, 10 / RATE - 0.001))
        until(lambda: len(taken) >= RATE * LATENCY_S)
        over.set()
        reader.join()
    calm = np.array(taken[len(taken) // 2 :]) * 1e3  # Java has compiled what is used all the time by then
    p50, p99 = np.quantile(calm, [0.5, 0.99])
    return [["Kafka to Kafka at 1,000 rows/s, p50 and p99 in ms", f"{p50:,.0f}", f"{p99:,.0f}", ""]]


def _read(kafka: Kafka, over: threading.Event, taken: list[float]) -> None:
    from confluent_kafka import Consumer

    config = {"bootstrap.servers": kafka.servers, "group.id": "latency", "auto.offset.reset": "earliest",
              "isolation.level": "read_committed"}  # fmt: skip
    consumer = Consumer(config)
    consumer.subscribe(["out"])
    while not over.is_set():
        for message in consumer.consume(1_000, 0.1):
            if message.error() is None:
                taken.append(time.time() - json.loads(message.value())["sent"])
    consumer.close()


# ---- PostgreSQL


def postgres_rows(spark: SparkSession, rows: int) -> list[list[str]]:
    """Rows a second of a table's content, of its changes, and of a sink."""
    with postgres_server({"wal_level": "logical"}) as server, bench.database(spark, barrier_interval_ms=TICK_MS) as db:
        shop = server.new_database("shop")
        shop.execute(
            "CREATE TABLE t (id bigint PRIMARY KEY, customer text, amount float8)",
            f"INSERT INTO t SELECT i, 'customer-' || i % 1000, i / 7.0 FROM generate_series(1, {rows}) g(i)",
            "CREATE TABLE warm (LIKE t INCLUDING ALL)",
            "INSERT INTO warm SELECT * FROM t LIMIT 1000",
        )
        for name in ("warm", "t"):
            into = "" if name == "t" else " LIMIT 1000"
            copy_s = timed(lambda into=into: _copy_out(shop, f"SELECT * FROM t{into}"))  # type: ignore[misc]
            wanted = rows if name == "t" else 1000
            ours_s = timed(lambda name=name, wanted=wanted: _follow(db, shop, name, wanted))  # type: ignore[misc]
        found = [_line("PostgreSQL, content of a table, rows/s (COPY TO)", rows / ours_s, rows / copy_s)]
        found.append(_replication(db, shop, rows // 5))
        found.append(_into_postgres(shop, rows // 5))
    return found


def _follow(db: headrace.Database, shop: Postgres, name: str, wanted: int) -> None:
    db.sql(
        f"CREATE TABLE {name} (id bigint PRIMARY KEY, customer text, amount double precision) WITH ("
        f"connector = 'postgres-cdc', hostname = '{HOST}', port = {shop.port}, username = 'root', "
        f"database.name = '{shop.dbname}', table.name = '{name}')"
    )
    until(lambda: count_of(db, name) == wanted)


def _copy_out(shop: Postgres, query: str) -> None:
    with shop.connect() as connection, connection.cursor() as cursor, cursor.copy(f"COPY ({query}) TO STDOUT") as copy:
        for _ in copy:
            pass


def _replication(db: headrace.Database, shop: Postgres, changes: int) -> list[str]:
    """Transactions that are there already when both begin to read them."""
    shop.execute("CREATE PUBLICATION plain FOR TABLE t",
                 "SELECT pg_create_logical_replication_slot('plain', 'pgoutput')")  # fmt: skip
    (before,) = db.sql("SELECT sum(amount) FROM t").rows()[0]
    db.sql("ALTER MATERIALIZED VIEW t PAUSE")
    with shop.connect() as connection:
        for start in range(1, changes, TRANSACTION_ROWS):
            connection.execute(
                f"UPDATE t SET amount = amount + 1 WHERE id >= {start} AND id < {start + TRANSACTION_ROWS}"
            )
        (end,) = connection.execute("SELECT pg_current_wal_lsn()").fetchone()  # type: ignore[misc]
    place = ["-h", HOST, "-p", str(shop.port), "-U", "root", "-d", shop.dbname]
    what = ["-S", "plain", "-o", "proto_version=1", "-o", "publication_names=plain", "--endpos", str(end)]
    command = [str(binaries() / "pg_recvlogical"), *place, *what, "--start", "-n", "-f", os.devnull]
    plain_s = timed(lambda: subprocess.run(command, check=True, capture_output=True))
    started = time.perf_counter()
    db.sql("ALTER MATERIALIZED VIEW t RESUME")
    until(lambda: abs(db.sql("SELECT sum(amount) FROM t").rows()[0][0] - before - changes) < 0.5)
    ours_s = time.perf_counter() - started
    return _line("PostgreSQL, updates by replication, rows/s (pg_recvlogical)", changes / ours_s, changes / plain_s)


def rows_of(count: int, weight: bool = True) -> Iterator[pa.RecordBatch]:
    """Batches with the columns of a sink."""
    for start in range(0, count, 50_000):
        ids = np.arange(start, min(start + 50_000, count))
        arrays = [pa.array(ids), pa.array([f"customer-{i % 1000}" for i in ids]), pa.array(ids / 7)]
        more = [pa.array(np.ones(len(ids), dtype=np.int64))] if weight else []
        yield pa.RecordBatch.from_arrays([*arrays, *more], names=[*(c.name for c in COLUMNS), *["__w"][: len(more)]])


def _into_postgres(shop: Postgres, rows: int) -> list[str]:
    for name in ("sunk", "copied"):
        shop.execute(f"CREATE TABLE {name} (id bigint PRIMARY KEY, customer text, amount float8)")
    options = {"connector": "postgres", "host": HOST, "port": str(shop.port), "user": "root", "database": shop.dbname,
               "table": "sunk", "primary_key": "id"}  # fmt: skip
    sink = open_sink(options, COLUMNS)
    sink.reach()
    batches = list(rows_of(rows))
    ours_s = timed(lambda: sink.write(SinkPosition("bench", 0, 1, 0, "a"), iter(batches)))
    lines = "".join(f"{i}\tcustomer-{i % 1000}\t{i / 7}\n" for i in range(rows)).encode()

    def copy() -> None:
        with shop.connect() as connection, connection.cursor() as cursor, cursor.copy("COPY copied FROM STDIN") as into:
            into.write(lines)

    return _line("PostgreSQL, upserts of a sink, rows/s (COPY FROM)", rows / ours_s, rows / timed(copy))


# ---- lakes


def lake_rows(rows: int) -> list[list[str]]:
    """Rows a second of one epoch of appends."""
    batches, found = list(rows_of(rows)), []
    plain = pa.Table.from_batches(list(rows_of(rows, weight=False)))
    with tempfile.TemporaryDirectory(prefix="headrace-lake-") as folder:
        plain_s = min(timed(lambda: pq.write_table(plain, f"{folder}/p.parquet", compression="zstd")) for _ in range(3))
        for kind, place in {
            "iceberg": {"catalog.type": "sql", "catalog.uri": f"sqlite:///{folder}/c.db", "database.name": "n",
                        "warehouse.path": f"file://{folder}", "table.name": "t"},
            "deltalake": {"location": f"{folder}/d"},
        }.items():  # fmt: skip
            options = {"connector": kind, "type": "append-only", "create_table_if_not_exists": "true", **place}
            sink = open_sink(options, COLUMNS)
            sink.reach()
            took = [_epoch_s(sink, number, batches) for number in range(1, 4)]
            found.append(_line(f"{kind}, an epoch of appends, rows/s (Parquet)", rows / min(took), rows / plain_s))
    return found


def _epoch_s(sink: Any, number: int, batches: list[pa.RecordBatch]) -> float:
    return timed(lambda: sink.write(SinkPosition("bench", number - 1, number, 0, "a"), iter(batches)))


def _line(name: str, ours: float, plain: float) -> list[str]:
    return [name, f"{ours:,.0f}", f"{plain:,.0f}", f"{ours / plain:.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help="kafka, avro, protobuf, latency, postgres, lake, lake-sources")
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--peers", action="store_true", help="Kafka beside Structured Streaming and Flink, too")
    options = parser.parse_args()
    spark = bench.session()
    cases: dict[str, Callable[[], list[list[str]]]] = {
        **{case: partial(kafka_rows, spark, options.rows, options.peers, case)
           for case in ("kafka", "avro", "protobuf")},
        "latency": lambda: latency(spark),
        "postgres": lambda: postgres_rows(spark, options.rows), "lake": lambda: lake_rows(options.rows),
        "lake-sources": lambda: [_line(*f) for f in lake_reading(spark, options.rows, COLUMNS, rows_of)],
    }  # fmt: skip
    lines = [line for name in options.cases or cases for line in cases[name]()]
    bench.show("In and out, beside the plain program", ["", "headrace", "plain", "ratio"], lines)
    spark.stop()


if __name__ == "__main__":
    main()
