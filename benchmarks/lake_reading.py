"""The lake sources of `connectors.py`: the content of an Iceberg and a Delta table, and what is appended to it after.

Beside each stands the plain reading of the same rows in this process: pyiceberg's scan, pyarrow for Delta's files and
for the files of the appended rows. Both add the rows up by customer.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import bench
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

import headrace
from headrace.common.columns import Column
from headrace.connectors.sinks import SinkPosition, open_sink

Batches = Callable[[int], Iterator[pa.RecordBatch]]
Figure = tuple[str, float, float]
"""A case; rows a second of headrace, and of the plain reading."""


def lake_reading(spark: SparkSession, rows: int, columns: tuple[Column, ...], batches: Batches) -> list[Figure]:
    """Each table is written in four commits; a quarter as much is appended once the view is there."""
    found: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="headrace-lake-") as folder, bench.database(spark) as db:
        for kind, place in _places(folder).items():
            options = {"connector": kind, "type": "append-only", "create_table_if_not_exists": "true", **place}
            sink = open_sink(options, columns)
            sink.reach()
            for number in range(4):
                sink.write(SinkPosition("bench", number, number + 1, 0, "a"), batches(rows // 4))
            before = _files(folder)
            plain_s = _timed(lambda kind=kind, folder=folder: _totals(_content(kind, folder)))  # type: ignore[misc]
            ours_s = _timed(lambda kind=kind, place=place: _view(db, kind, place, rows // 4 * 4))  # type: ignore[misc]
            found.append((f"{kind}, content to an aggregate, rows/s", rows / ours_s, rows / plain_s))
            sink.write(SinkPosition("bench", 4, 5, 0, "a"), batches(rows // 4))
            ours_s = _timed(lambda kind=kind: _until(db, kind, rows // 4 * 5))  # type: ignore[misc]
            new = sorted(_files(folder) - before)
            plain_s = _timed(lambda new=new: _totals(pa.concat_tables(map(pq.read_table, new))))  # type: ignore[misc]
            found.append((f"{kind}, appended rows to an aggregate, rows/s", rows / 4 / ours_s, rows / 4 / plain_s))
    return found


def _places(folder: str) -> dict[str, dict[str, str]]:
    return {
        "iceberg": {"catalog.type": "sql", "catalog.uri": f"sqlite:///{folder}/c.db", "database.name": "n",
                    "warehouse.path": f"file://{folder}", "table.name": "t"},
        "deltalake": {"location": f"{folder}/d"},
    }  # fmt: skip


def _view(db: headrace.Database, kind: str, place: Mapping[str, str], wanted: int) -> None:
    options = ", ".join(f"{name} = '{value}'" for name, value in {"connector": kind, **place}.items())
    db.sql(f"CREATE SOURCE s_{kind} (id bigint, customer text, amount double precision) WITH ({options})")
    db.sql(f"CREATE MATERIALIZED VIEW {kind} AS SELECT customer, count(*) AS n, sum(amount) AS total "
           f"FROM s_{kind} GROUP BY customer")  # fmt: skip
    _until(db, kind, wanted)


def _until(db: headrace.Database, kind: str, wanted: int) -> None:
    deadline = time.monotonic() + 600
    while db.sql(f"SELECT coalesce(sum(n), 0) FROM {kind}").rows()[0][0] != wanted:
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.02)


def _content(kind: str, folder: str) -> pa.Table:
    if kind == "iceberg":
        settings = {"type": "sql", "uri": f"sqlite:///{folder}/c.db", "warehouse": f"file://{folder}"}
        return load_catalog("default", **settings).load_table("n.t").scan().to_arrow()
    files = [path.removeprefix("file://") for path in DeltaTable(f"{folder}/d").file_uris()]
    return pa.concat_tables(map(pq.read_table, files))


def _totals(table: pa.Table) -> None:
    table.group_by("customer").aggregate([([], "count_all"), ("amount", "sum")])


def _files(folder: str) -> set[Path]:
    return set(Path(folder).rglob("*.parquet"))


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
