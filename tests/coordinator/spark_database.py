"""A coordinator over real Spark, and what a session would do with it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from headrace.catalog.catalog import Catalog
from headrace.catalog.contents import MaterializedViewContent, SourceContent, TableContent
from headrace.catalog.records import ObjectRecord
from headrace.common.columns import Column, arrow_schema
from headrace.config import Settings
from headrace.coordinator import Coordinator, TableChange
from headrace.dataflow.kept_plans import PlanFiles
from headrace.plan.planner import Planner
from headrace.state.arrangement import Arrangement
from support import WAIT_S

ACCOUNTS = (Column("id", "int", False), Column("owner", "string"), Column("amount", "bigint"))
LOG = (Column("word", "string"), Column("n", "int"))
EVENTS = (Column("k", "int"), Column("v", "int"))


class Database:
    """A coordinator on a directory, and what a session would do with it."""

    def __init__(
        self, spark: SparkSession, folder: Path, planner: Planner | None = None, plans: PlanFiles | None = None,
        *, before_spark: bool = False, **settings: Any,
    ):  # fmt: skip
        """With `before_spark` it begins as if none had started: `spark_comes` brings it."""
        self.settings = Settings(
            data_dir=folder, barrier_interval_ms=100, run_fsync=False, catalog_commit_sync=False, parallelism=2,
            **settings,
        )  # fmt: skip
        self.catalog = Catalog.open(self.settings.catalog_location, full_sync=False)
        self.planner = planner or Planner(spark)
        self.c = Coordinator(self.settings, self.catalog, self.planner, plans=plans)
        self._spark = spark
        if before_spark:
            self.c.expect_spark()
        self.c.start()

    def spark_comes(self) -> None:
        """It has started."""
        self.c.renew(lambda: self.planner.renew(self._spark))

    def close(self) -> None:
        self.c.stop()
        self.catalog.close()

    def table(self, name: str, columns: tuple[Column, ...], key: tuple[str, ...] = ()) -> int:
        return self.c.create_relation(ObjectRecord(0, TableContent(), "public", name, columns, primary_key=key))

    def source(self, name: str, columns: tuple[Column, ...], options: dict[str, str]) -> int:
        return self.c.create_relation(ObjectRecord(0, SourceContent(), "public", name, columns, options=options))

    def view(self, name: str, sql: str) -> int:
        record = ObjectRecord(0, MaterializedViewContent(spark_sql=sql), "public", name, definition=sql)
        made = self.c.create_view(record, self.planner.plan(sql))
        self.c.wait_created(made, WAIT_S)
        return made

    def write(self, table: int, inserts: list[tuple[Any, ...]], deletes: list[tuple[Any, ...]] = ()) -> Any:
        columns = self.catalog.state.objects[table].columns
        change = TableChange(rows(columns, inserts), rows(columns, deletes))
        return self.c.write(table, change)

    def read(self, *ids: int) -> list[Counter[tuple[Any, ...]]]:
        with self.c.snapshot(ids) as snapshot:
            return [self._rows(snapshot.tables[i]) for i in ids]

    def _rows(self, table: Any) -> Counter[tuple[Any, ...]]:
        found: Counter[tuple[Any, ...]] = Counter()
        arrangement = Arrangement(table.schema, table.refs, self.settings.data_dir / "state", as_of=table.as_of)
        for batch in arrangement.scan():
            weights = np.asarray(batch.column("__w"))
            assert (weights > 0).all()
            columns = [batch.column(c.name).to_pylist() for c in table.columns]
            for row, weight in zip(zip(*columns), weights.tolist()):
                found[row] += weight
        return found


def rows(columns: tuple[Column, ...], data: list[tuple[Any, ...]]) -> pa.RecordBatch | None:
    if not data:
        return None
    schema = arrow_schema(columns)
    return pa.RecordBatch.from_arrays(
        [pa.array([r[i] for r in data], f.type) for i, f in enumerate(schema)], schema=schema
    )
