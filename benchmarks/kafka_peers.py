"""Structured Streaming's and Flink's side of `connectors.py`: run by it in a virtual environment of each one's own.

`python kafka_peers.py stream|flink JOB.json`, where the file names `servers`, the `topics` to read one after the other
(the first warms Java up), the `jars` of the connectors (`stream`: coordinates, fetched by Spark), a folder for
`checkpoints`, and for records in Avro instead of JSON the `schema` and where its `registry` is. Prints one JSON line
for the last topic: seconds and processor seconds of the whole of its processes.

Both parse the same records and keep `count(*)` and `sum(amount)` by customer, two tasks side by side, state in
RocksDB, and drop what comes out.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

SCHEMA = "id bigint, customer string, amount double, page string, ok boolean"


def tree_cpu_s() -> float:
    """Processor seconds of this process and all below it, those that have ended included."""
    ticks, parents = dict[int, int](), dict[int, int]()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            ticks[int(path.parent.name)] = sum(map(int, fields[11:15]))
            parents[int(path.parent.name)] = int(fields[1])

    def of(process: int) -> int:
        return ticks.get(process, 0) + sum(of(p) for p, parent in parents.items() if parent == process)

    return of(os.getpid()) / os.sysconf("SC_CLK_TCK")


def stream(job: dict[str, Any]) -> Callable[[str], float]:
    """What reads a topic with Structured Streaming."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F
    from pyspark.sql.avro.functions import from_avro

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.jars.packages", job["jars"]).config("spark.driver.memory", "6g")
    builder = builder.config("spark.sql.shuffle.partitions", "2")
    builder = builder.config("spark.sql.streaming.stateStore.providerClass",
                             "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")  # fmt: skip
    spark = builder.getOrCreate()

    def read(topic: str) -> float:
        options = {"kafka.bootstrap.servers": job["servers"], "subscribe": topic, "startingOffsets": "earliest"}
        started = time.perf_counter()
        records = spark.readStream.format("kafka").options(**options).load()
        if job["registry"]:
            row = from_avro(F.expr("substring(value, 6)"), job["schema"])  # behind the frame
        else:
            row = F.from_json(F.col("value").cast("string"), SCHEMA)
        rows = records.select(row.alias("r")).select("r.*")
        totals = rows.groupBy("customer").agg(F.count("*"), F.sum("amount"))
        writer = totals.writeStream.format("noop").outputMode("update").trigger(availableNow=True)
        writer.option("checkpointLocation", f"{job['checkpoints']}/{topic}").start().awaitTermination()
        return time.perf_counter() - started

    return read


def flink(job: dict[str, Any]) -> Callable[[str], float]:
    """What reads a topic with Flink SQL."""
    from nexmark_flink import environment

    env = environment(job["checkpoints"])
    env.get_config().set("pipeline.jars", job["jars"])

    def read(topic: str) -> float:
        options = {
            "connector": "kafka", "topic": topic, "properties.bootstrap.servers": job["servers"],
            "scan.startup.mode": "earliest-offset", "scan.bounded.mode": "latest-offset",
            "properties.group.id": "flink",
        }  # fmt: skip
        if job["registry"]:
            options |= {"format": "avro-confluent", "avro-confluent.url": job["registry"]}
        else:
            options["format"] = "json"
        listed = ", ".join(f"'{key}' = '{value}'" for key, value in options.items())
        env.execute_sql(f"CREATE TEMPORARY TABLE {topic} ({SCHEMA}) WITH ({listed})")
        env.execute_sql(
            f"CREATE TEMPORARY TABLE out_{topic} (customer STRING, n BIGINT, total DOUBLE) "
            "WITH ('connector' = 'blackhole')"
        )
        started = time.perf_counter()
        env.execute_sql(
            f"INSERT INTO out_{topic} SELECT customer, count(*), sum(amount) FROM {topic} GROUP BY customer"
        ).wait()
        return time.perf_counter() - started

    return read


def main() -> None:
    job = json.loads(Path(sys.argv[2]).read_text())
    read = {"stream": stream, "flink": flink}[sys.argv[1]](job)
    for topic in job["topics"]:
        used = tree_cpu_s()
        seconds = read(topic)
        used = tree_cpu_s() - used
    print(json.dumps({"s": seconds, "cpu_s": used}), flush=True)


if __name__ == "__main__":
    main()
