"""Records of Kafka taken whole, of which a view picks what it wants, and headers as text."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from headrace.config import Settings
from headrace.session.database import connect
from kafka import Kafka
from support import eventually


def test_a_payload_is_taken_apart_by_a_view(spark: SparkSession, kafka: Kafka, tmp_path: Path) -> None:
    topic = kafka.topic("whole", 1)
    kafka.send(topic, '{"page": "a", "n": [1, 2]}', '{"page": "b"}', key="k", headers=[("h", b"x")])
    settings = Settings(data_dir=tmp_path, run_fsync=False, catalog_commit_sync=False, barrier_interval_ms=100)
    where = f"connector = 'kafka', topic = '{topic}', properties.bootstrap.server = '{kafka.servers}'"
    with connect(tmp_path, spark=spark, settings=settings) as database:
        database.sql(
            f"CREATE SOURCE raw INCLUDE payload INCLUDE header 'h' varchar AS h WITH ({where}) FORMAT PLAIN ENCODE JSON"
        )
        database.sql("CREATE MATERIALIZED VIEW pages AS SELECT payload::jsonb ->> 'page' AS page, h FROM raw")
        database.sql(
            f"CREATE TABLE t (PRIMARY KEY (k)) INCLUDE key AS k INCLUDE payload AS p WITH ({where}) "
            "FORMAT UPSERT ENCODE JSON"
        )
        eventually(lambda: database.sql("SELECT count(*) FROM pages").rows() == [(2,)])
        assert database.sql("SELECT page, h FROM pages ORDER BY page").rows() == [("a", "x"), ("b", "x")]
        eventually(lambda: database.sql("SELECT k, p FROM t").rows() == [(b"k", '{"page": "b"}')])
        database.sql("ALTER TABLE t ADD COLUMN page text")
        assert database.sql("SELECT page, p FROM t").rows() == [("b", '{"page": "b"}')]
        kafka.send(topic, None, key="k")
        eventually(lambda: database.sql("SELECT * FROM t").rows() == [])
        asked = "SELECT count(*), count(payload) FROM raw"
        database.sql("ALTER SOURCE raw SET on_error = 'null'")
        eventually(lambda: database.sql("SELECT count(*) FROM pages").rows() == [(3,)])
        assert database.sql(asked).rows() == [(3, 2)]
