"""Tables of Kafka get columns, with the values that records have, while all that reads them goes on."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count as counting
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headrace.config import Settings
from headrace.session.database import Database, connect
from kafka import Kafka
from support import eventually

_numbers = counting(1)


def settings(folder: Path) -> Settings:
    return Settings(data_dir=folder, run_fsync=False, catalog_commit_sync=False, barrier_interval_ms=100)


@pytest.fixture(scope="module")
def database(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    folder = tmp_path_factory.mktemp("widened")
    with connect(folder, spark=spark, settings=settings(folder)) as found:
        yield found


class Topic:
    """A topic of objects, and the table of it."""

    def __init__(self, kafka: Kafka, database: Database, columns: str = "id int PRIMARY KEY, v int", **more: str):
        self.kafka, self.database = kafka, database
        self.name = kafka.topic(f"wide{next(_numbers)}", **more)
        self.create(columns)

    def create(self, columns: str) -> None:
        form = "UPSERT" if "PRIMARY KEY" in columns else "PLAIN"
        self.sql(
            f"CREATE TABLE # ({columns}) WITH (connector = 'kafka', topic = '#', "
            f"properties.bootstrap.server = '{self.kafka.servers}') FORMAT {form} ENCODE JSON"
        )

    def sql(self, text: str) -> Any:
        return self.database.sql(text.replace("#", self.name))

    def rows(self, text: str) -> list[Any]:
        return sorted(self.sql(text).rows(), key=str)

    def send(self, *values: str | None, key: str | None = None) -> None:
        self.kafka.send(self.name, *values, key=key)

    def put(self, key: int, value: str | None) -> None:
        self.send(value, key=f'{{"id": {key}}}')

    def drop(self) -> None:
        self.sql("DROP TABLE # CASCADE")
        left = {o.name for o in self.database.catalog.state.objects.values() if o.name.startswith(self.name)}
        assert left == set()


def test_a_table_by_key_gets_a_column_with_its_values(database: Database, kafka: Kafka) -> None:
    topic = Topic(kafka, database)
    topic.sql("CREATE MATERIALIZED VIEW #_n AS SELECT count(*) AS n, sum(v) AS s FROM #")
    topic.sql("CREATE MATERIALIZED VIEW #_all AS SELECT * FROM #; CREATE VIEW #_plain AS SELECT * FROM #")
    topic.put(1, '{"id": 1, "v": 10, "who": "ann"}')
    topic.put(2, '{"id": 2, "v": 20, "who": "bob"}')
    topic.put(2, None)
    topic.put(3, '{"id": 3, "v": 30}')
    eventually(lambda: topic.rows("SELECT n, s FROM #_n") == [(2, 40)])
    assert topic.sql("ALTER TABLE # ADD COLUMN who text").tag == "ALTER TABLE"
    assert topic.rows("SELECT * FROM #") == [(1, 10, "ann"), (3, 30, None)]
    topic.put(3, '{"id": 3, "v": 31, "who": "cid"}')
    topic.put(4, '{"id": 4, "v": 40, "who": "dan"}')
    wanted = [(1, 10, "ann"), (3, 31, "cid"), (4, 40, "dan")]
    eventually(lambda: topic.rows("SELECT * FROM #") == wanted)
    eventually(lambda: topic.rows("SELECT n, s FROM #_n") == [(3, 81)])
    for view in ("#_all", "#_plain"):
        eventually(lambda v=view: topic.rows(f"SELECT * FROM {v}") == [row[:2] for row in wanted])
    topic.sql("ALTER TABLE # ADD COLUMN at int")
    assert topic.rows("SELECT id, who, at FROM #") == [(1, "ann", None), (3, "cid", None), (4, "dan", None)]
    topic.drop()
