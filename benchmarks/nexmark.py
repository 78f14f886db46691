"""Nexmark q0 to q22: events/s and epochs, beside Structured Streaming, Flink and one-shot Spark batch, same events.

`python benchmarks/nexmark.py [--events 1000000] [--epoch 100000] [--queries q0,q5] [--without stream,batch] [--flink]`

sink    a sink with the connector blackhole: all state and checkpoints, rows dropped
view    the same query as a materialized view
stream  Structured Streaming with RocksDB: what it accepts of the same SQL, one epoch's events in every micro-batch,
        rows dropped
batch   Spark over all events at once, rows dropped: the limit
flink   with `--flink`: Flink SQL in a virtual environment of its own (`build/flink`, made when it is first asked for),
        RocksDB, a checkpoint every second, rows dropped; its time for reading and parsing CSV files is taken off

All others read the same Parquet files, so that no engine pays for making the events; with `--generated` sink and view
read the nexmark source, which makes them.

Start-up is left out everywhere: the first `--warm-up` epochs (micro-batches) are not counted, nor the first of two runs
of a batch; Flink's JVM has run a query before. The table is printed and written to `benchmarks/results/`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import bench
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from nexmark_queries import LOOKED_UP, QUERIES, SIDE_INPUT_ROWS, SPARKS_OWN
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import headrace
from headrace.catalog.contents import SourceContent
from headrace.common.columns import Column
from headrace.connectors.sources import infer_columns, open_source
from headrace.sql.parser import parse_query
from headrace.sql.statements import TableName

KINDS = ("person", "auction", "bid")
PEERS = ("stream", "flink", "batch")
ROW_GROUP = 50_000
"""Rows of a row group in Parquet files, so that two readers can share a file."""
ROUND = 50
"""Of so many events in a row ..."""
SHARES = {"person": 1, "auction": 3, "bid": 46}
"""... so many are of each kind."""
ENGINES = ("sink", "view", "stream", "batch")
_REFUSED = (AnalysisException,)
_SIDE = {"key": np.arange(SIDE_INPUT_ROWS), "value": np.array([f"side {k}" for k in range(SIDE_INPUT_ROWS)])}


@dataclass
class Figures:
    """What one engine did with one query; without epochs it refused the query."""

    events: int = 0
    epochs_s: list[float] = field(default_factory=list)
    note: str = ""

    @property
    def rate(self) -> float:
        """Events per second."""
        return self.events / sum(self.epochs_s)

    def percentile_ms(self, q: float) -> float:
        """A percentile of the epochs' durations."""
        return float(np.percentile(self.epochs_s, q)) * 1e3


@dataclass(frozen=True)
class Plan:
    """How many events, and how many of them in an epoch."""

    events: int
    epoch: int
    generated: bool = False
    warm_up: int = 1
    """Epochs that are not counted."""

    def options(self, kind: str) -> dict[str, str]:
        """The source's options."""
        return {
            "connector": "nexmark", "table_type": kind, "event_num": str(self.events), "rows_per_second": "unlimited",
            "max_rows_per_epoch": str(self.epoch),
        }  # fmt: skip


def columns() -> dict[str, list[Column]]:
    """The columns of all inputs as the peers read them: Structured Streaming's event times have a time zone."""
    found: dict[str, list[Column]] = {}
    for kind in KINDS:
        own = infer_columns({"connector": "nexmark", "table_type": kind})
        found[kind] = [Column(c.name, c.type.replace("timestamp_ntz", "timestamp")) for c in own]
    return {**found, "side_input": [Column("key", "bigint"), Column("value", "string")]}


def spark_sql(name: str) -> str:
    """A query as Spark runs it."""
    if name in SPARKS_OWN:
        return SPARKS_OWN[name]
    schema = {TableName(None, t): {c.name: c.type for c in cs} for t, cs in columns().items()}
    return parse_query(QUERIES[name]).to_spark(lambda table: f"`{table.name}`", schema)


def maintained(spark: SparkSession, name: str, plan: Plan, files: Files, sink: bool) -> Figures:
    """The query as a sink or a view; an epoch lasts from the tick that binds its events to its commit."""
    with bench.database(spark, checkpoint_interval_ms=0) as db:
        for kind in KINDS:
            given = plan.options(kind) if plan.generated else files.options(kind)
            options = ", ".join(f"{k} = '{v}'" for k, v in given.items())
            db.sql(f"CREATE SOURCE {kind} WITH ({options})")
        db.sql("CREATE TABLE side_input (key bigint PRIMARY KEY, value text)")
        bench.write(db, "side_input", _SIDE)
        query = LOOKED_UP.get(name, QUERIES[name])
        if sink:
            db.sql(f"CREATE SINK result AS {query} WITH (connector = 'blackhole')")
        else:
            db.sql(f"CREATE MATERIALIZED VIEW result AS {query}")
        figures = Figures()
        taken = _bound(db)
        while taken < plan.events:
            started = time.perf_counter()
            db.flush()
            took_s = time.perf_counter() - started
            before, taken = taken, _bound(db)
            if before >= plan.epoch * plan.warm_up:
                figures.epochs_s.append(took_s)
                figures.events += taken - before
        rows = db.sql("SELECT rows_out FROM headrace_catalog.jobs WHERE name = 'result'").rows()[0][0]
        figures.note = f"{rows:,} rows out"
        return figures


def _bound(db: headrace.Database) -> int:
    """How far into the stream of events the sources are bound."""
    state = db.catalog.state
    found = 0
    for source in state.objects_of(SourceContent):
        if (newest := state.newest_remap(source.id)) is not None:
            files = [o for o in newest.offsets.values() if isinstance(o, dict)]
            rows = sum(o["row"] for o in files)
            found = max(found, rows * ROUND // SHARES[source.name] if files else int(newest.offsets.get("0", 0)))
    return found


class Files:
    """The events as Parquet files, one of each kind for every epoch."""

    def __init__(self, plan: Plan):
        assert plan.epoch % ROUND == 0 and plan.events % plan.epoch == 0, "every file holds a whole epoch"
        self.plan = plan
        self.root = Path(tempfile.mkdtemp(prefix="headrace-nexmark-"))
        for kind in KINDS:
            (self.root / kind).mkdir()
            source = open_source(plan.options(kind), infer_columns(plan.options(kind)))
            for i, start in enumerate(range(0, plan.events, plan.epoch)):
                task = {"start": start, "stop": min(plan.events, start + plan.epoch)}
                rows = pa.Table.from_batches([b.batch for b in source.read(task)], schema=source.schema)
                path = self.root / kind / f"{i:05d}.parquet"
                pq.write_table(rows, path, compression="none", row_group_size=ROW_GROUP)
                # Structured Streaming takes the oldest files first.
                os.utime(path, (1_700_000_000 + i, 1_700_000_000 + i))

    def options(self, kind: str) -> dict[str, str]:
        """Those of a source that takes in one file for each epoch."""
        rows = self.plan.epoch * SHARES[kind] // ROUND
        return {"connector": "files", "path": str(self.root / kind), "max_rows_per_epoch": str(rows)}

    def schema(self, kind: str) -> str:
        """For Spark's readers."""
        return ", ".join(f"{c.name} {c.type}" for c in columns()[kind])

    def as_csv(self) -> dict[str, Any]:
        """The same events as CSV files: for each table its folder and columns."""
        made = {}
        for kind in KINDS:
            folder = self.root / f"{kind}-csv"
            folder.mkdir()
            for path in sorted((self.root / kind).iterdir()):
                rows = pq.read_table(path)
                for i, field_ in enumerate(rows.schema):
                    if pa.types.is_timestamp(field_.type):
                        rows = rows.set_column(i, field_.name, rows.column(i).cast(pa.timestamp("ms"), safe=False))
                pa.csv.write_csv(rows, folder / f"{path.stem}.csv", pa.csv.WriteOptions(include_header=False))
            made[kind] = {"folder": str(folder), "columns": [(c.name, c.type) for c in columns()[kind]]}
        folder = self.root / "side-csv"
        folder.mkdir()
        pa.csv.write_csv(pa.table(_SIDE), folder / "0.csv", pa.csv.WriteOptions(include_header=False))
        side = [(c.name, c.type) for c in columns()["side_input"]]
        return {**made, "side_input": {"folder": str(folder), "columns": side}}

    def close(self) -> None:
        """Remove them."""
        shutil.rmtree(self.root, ignore_errors=True)


def _session(spark: SparkSession) -> SparkSession:
    session = spark.newSession()
    for key, value in {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.sql.streaming.numRecentProgressUpdates": "10000",
        "spark.sql.streaming.pollingDelay": "10ms",
    }.items():
        session.conf.set(key, value)
    side = pa.table({k: pa.array(v) for k, v in _SIDE.items()})
    session.createDataFrame(side).createOrReplaceTempView("side_input")
    return session


def streamed(spark: SparkSession, name: str, plan: Plan, files: Files) -> Figures:
    """Structured Streaming, in the first output mode that it accepts for the query."""
    session = _session(spark)
    for kind in KINDS:
        reader = session.readStream.schema(files.schema(kind)).option("maxFilesPerTrigger", 1)
        stream = reader.parquet(str(files.root / kind)).withWatermark("date_time", "4 seconds")
        stream.createOrReplaceTempView(kind)
    why = ""
    for mode in ("append", "update"):
        checkpoint = tempfile.mkdtemp(prefix="headrace-peer-")
        query: Any = None
        try:
            writer = session.sql(spark_sql(name)).writeStream.format("noop").outputMode(mode)
            query = writer.option("checkpointLocation", checkpoint).start()
            query.processAllAvailable()
            durations = [p["durationMs"] for p in query.recentProgress if p["numInputRows"] > 0]
            epochs = [d["triggerExecution"] / 1000 for d in durations][plan.warm_up :]
            return Figures(plan.events - plan.epoch * plan.warm_up, epochs, f"{mode} mode")
        except _REFUSED as error:
            why = str(error).splitlines()[0]
        finally:
            if query is not None:
                query.stop()
            shutil.rmtree(checkpoint, ignore_errors=True)
    return Figures(note=f"refused: {why[:100]}")


def batched(spark: SparkSession, name: str, plan: Plan, files: Files) -> Figures:
    """Spark batch, the second of two runs."""
    session = _session(spark)
    for kind in KINDS:
        session.read.schema(files.schema(kind)).parquet(str(files.root / kind)).createOrReplaceTempView(kind)
    seconds = []
    for _ in range(2):
        started = time.perf_counter()
        session.sql(spark_sql(name)).write.format("noop").mode("overwrite").save()
        seconds.append(time.perf_counter() - started)
    return Figures(plan.events, seconds[1:])


FLINK_MOST = 2_200_000
"""Events per second that are believed of Flink: taking off the time for parsing leaves next to nothing of queries that
do little else, and this is what it was seen to do with q0 on such a machine when its input cost nothing."""
FLINK = Path(__file__).parent.parent / "build" / "flink"


def flinked(names: Sequence[str], plan: Plan, files: Files) -> Iterator[tuple[str, Figures]]:
    """Flink, one query after the other."""
    python = FLINK / "bin" / "python"
    if not python.exists():
        print(f"installing Flink into {FLINK} ...", flush=True)
        subprocess.run([sys.executable, "-m", "venv", FLINK], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "apache-flink>=2.3,<2.4"], check=True)
    tables = files.as_csv()
    queries = {n: {"sql": QUERIES[n], "reads": _reads(QUERIES[n], tables)} for n in names}
    job = files.root / "flink.json"
    job.write_text(json.dumps({"tables": tables, "queries": queries, "checkpoints": str(files.root / "checkpoints")}))
    command = [python, Path(__file__).with_name("nexmark_flink.py"), job]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            made = json.loads(line)
            if "refused" in made:
                yield made["query"], Figures(note=f"refused: {made['refused']}")
            else:
                seconds = max(made["ms"] - made["scan_ms"], plan.events / FLINK_MOST * 1000) / 1000
                note = f"{made['ms']:,.0f} ms, of which {made['scan_ms']:,.0f} for reading"
                yield made["query"], Figures(plan.events, [seconds], note)


def _reads(sql: str, tables: dict[str, Any]) -> dict[str, list[str]]:
    """The columns that a query reads, by table: all that have a name that occurs in it."""
    found = {}
    for name, table in tables.items():
        if re.search(rf"(FROM|JOIN|TUMBLE\(|HOP\(|SESSION\() *{name}\b", sql):
            columns = [c for c, _ in table["columns"] if "*" in sql.replace("(*)", "") or re.search(rf"\b{c}\b", sql)]
            found[name] = columns
    return found


Found = dict[str, dict[str, Figures]]
"""Figures by query and engine."""


def measure(spark: SparkSession, names: list[str], engines: list[str], plan: Plan, found: Found) -> None:
    """Add all figures to `found`."""
    files = Files(plan)
    try:
        if "flink" in engines:
            for name, figures in flinked(names, plan, files):
                found[name] = {"flink": figures}
                print(f"{name}: flink {_rate(figures)}", flush=True)
            engines = [e for e in engines if e != "flink"]
        for name in names:
            made = found.setdefault(name, {})
            for engine in engines:
                try:
                    if engine in ("sink", "view"):
                        made[engine] = maintained(spark, name, plan, files, engine == "sink")
                    else:
                        run = streamed if engine == "stream" else batched
                        made[engine] = run(spark, name, plan, files)
                except Exception as error:  # the other queries are measured all the same
                    made[engine] = Figures(note=f"failed: {str(error).splitlines()[0][:100]}")
            print(f"{name}: " + ", ".join(f"{e} {_rate(f)}" for e, f in made.items()), flush=True)
    finally:
        files.close()


def _rate(figures: Figures | None) -> str:
    if figures is None:
        return ""
    return f"{figures.rate:,.0f}" if figures.epochs_s else figures.note.partition(":")[0]


def _ratio(made: dict[str, Figures], other: str) -> float | None:
    ours, theirs = made.get("sink"), made.get(other)
    if ours is None or theirs is None or not ours.epochs_s or not theirs.epochs_s:
        return None
    return ours.rate / theirs.rate


def _epochs(figures: Figures | None) -> str:
    if figures is None or not figures.epochs_s:
        return ""
    return f"{figures.percentile_ms(50):,.0f} / {figures.percentile_ms(99):,.0f}"


HEADER = [
    "query", "sink ev/s", "p50 / p99 ms", "view ev/s", "p50 / p99 ms", "stream ev/s", "flink ev/s", "batch ev/s",
    "/ stream", "/ flink", "/ batch",
]  # fmt: skip


def table(found: Found) -> list[list[str]]:
    """The figures as rows of text, with the geometric means of the ratios at the end."""
    rows = []
    for name, made in found.items():
        ratios = [_ratio(made, other) for other in PEERS]
        cells = [_rate(made.get("sink")), _epochs(made.get("sink")), _rate(made.get("view")), _epochs(made.get("view"))]
        cells += [_rate(made.get(other)) for other in PEERS]
        rows.append([name, *cells, *("" if r is None else f"{r:.2f}" for r in ratios)])
    means = []
    for other in PEERS:
        known = [r for made in found.values() if (r := _ratio(made, other)) is not None]
        means.append(f"{np.exp(np.mean(np.log(known))):.2f}" if known else "")
    return [*rows, ["geometric mean", *[""] * (len(HEADER) - 1 - len(PEERS)), *means]]


def write(found: Found, plan: Plan) -> Path:
    """The table as a Markdown file."""
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    now = datetime.now(UTC)
    path = folder / f"nexmark-{now:%Y%m%d-%H%M}.md"
    load = os.getloadavg()[2]
    lines = [
        f"# Nexmark, {plan.events:,} events in epochs of {plan.epoch:,}",
        "",
        f"{now:%Y-%m-%d %H:%M} UTC, {os.cpu_count()} cores, load average of the last 15 minutes {load:.1f}, "
        f"Python {sys.version.split()[0]}. `nexmark.py` says what the columns mean; the ratios are those of `sink`.",
        "",
        "| " + " | ".join(HEADER) + " |",
        "|" + " --- |" * len(HEADER),
        *("| " + " | ".join(row) + " |" for row in table(found)),
        "",
        *(f"- {q} {e}: {f.note}" for q, made in found.items() for e, f in made.items() if f.note and e != "view"),
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--epoch", type=int, default=100_000)
    parser.add_argument("--warm-up", type=int, default=1, help="epochs that are not counted")
    parser.add_argument("--queries", default=",".join(QUERIES))
    parser.add_argument("--without", default="")
    parser.add_argument("--flink", action="store_true", help="beside Flink, too")
    parser.add_argument("--generated", action="store_true", help="sink and view read the nexmark source")
    options = parser.parse_args()
    plan = Plan(options.events, options.epoch, options.generated, options.warm_up)
    spark = bench.session()
    found: Found = {}
    engines = [
        e for e in (*ENGINES, "flink") if e not in options.without.split(",") and (e != "flink" or options.flink)
    ]
    with suppress(KeyboardInterrupt):  # what has been measured by then is shown
        measure(spark, options.queries.split(","), engines, plan, found)
    spark.stop()
    bench.show(f"Nexmark, {plan.events:,} events in epochs of {plan.epoch:,}", HEADER, table(found))
    print(write(found, plan))


if __name__ == "__main__":
    main()
