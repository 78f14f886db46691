"""ALTER SOURCE over a broker: paused and resumed, at another rate; what is behind, here and by Kafka's own tools."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headrace.config import Settings
from headrace.errors import HeadraceError
from headrace.session.database import Database, connect
from kafka import Kafka
from schema_registry import SchemaRegistry, framed, schema_registry
from support import eventually


def settings(folder: Path) -> Settings:
    return Settings(data_dir=folder, run_fsync=False, catalog_commit_sync=False, barrier_interval_ms=100)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("altered")


@pytest.fixture(scope="module")
def database(spark: SparkSession, folder: Path) -> Iterator[Database]:
    with connect(folder, spark=spark, settings=settings(folder)) as found:
        yield found


def made(database: Database, kafka: Kafka, topic: str, more: str = "") -> None:
    """A source and a view of the number of its rows, both named after a topic."""
    database.sql(
        f"CREATE SOURCE {topic} (a int) WITH (connector = 'kafka', topic = '{topic}', "
        f"properties.bootstrap.server = '{kafka.servers}'{more}) FORMAT PLAIN ENCODE JSON; "
        f"CREATE MATERIALIZED VIEW {topic}_n AS SELECT count(*) AS n FROM {topic}"
    )


def numbers(count: int) -> list[str]:
    return [f'{{"a": {i}}}' for i in range(count)]


def count(database: Database, topic: str) -> Any:
    return database.sql(f"SELECT n FROM {topic}_n").rows()[0][0]


def shown(database: Database, topic: str, columns: str) -> Any:
    return database.sql(f"SELECT {columns} FROM headrace_catalog.sources WHERE name = '{topic}'").rows()[0]


def ticks(database: Database, more: int = 3) -> None:
    """Wait until some ticks have been made."""
    before = database.sql("SELECT max(current_epoch) FROM headrace_catalog.epochs").rows()[0][0]
    for _ in range(more):
        database.flush()
    assert database.sql("SELECT max(current_epoch) FROM headrace_catalog.epochs").rows()[0][0] > before


def test_a_paused_source_takes_nothing_in(database: Database, kafka: Kafka) -> None:
    topic = kafka.topic("paused", 2)
    made(database, kafka, topic)
    kafka.send(topic, *numbers(5))
    eventually(lambda: count(database, topic) == 5)
    assert shown(database, topic, "paused") == (False,)
    assert database.sql(f"ALTER SOURCE {topic} PAUSE").tag == "ALTER SOURCE"
    database.sql(f"ALTER SOURCE {topic} PAUSE")
    ticks(database)
    kafka.send(topic, *numbers(7))
    ticks(database)
    assert count(database, topic) == 5
    assert shown(database, topic, "paused, rows_behind") == (True, None), "nobody looks how many have come"
    splits = f"SELECT rows_behind FROM headrace_catalog.source_splits WHERE source = '{topic}'"
    assert database.sql(splits).rows() == [(None,), (None,)]
    database.sql(f"CREATE MATERIALIZED VIEW {topic}_later AS SELECT sum(a) AS a FROM {topic}")
    assert database.sql(f"SELECT a FROM {topic}_later").rows() == [(10,)], "what is bound can be read"
    database.sql(f"ALTER SOURCE {topic} RESUME")
    eventually(lambda: count(database, topic) == 12)
    eventually(lambda: shown(database, topic, "paused, rows_behind, error") == (False, 0, None))


def test_a_source_that_was_never_read_can_be_paused(database: Database, kafka: Kafka) -> None:
    topic = kafka.topic("unread")
    kafka.send(topic, *numbers(2))
    database.sql(
        f"CREATE SOURCE {topic} (a int) WITH (connector = 'kafka', topic = '{topic}', "
        f"properties.bootstrap.server = '{kafka.servers}') FORMAT PLAIN ENCODE JSON; ALTER SOURCE {topic} PAUSE"
    )
    assert database.sql(f"SELECT count(*) FROM {topic}").rows() == [(0,)]
    database.sql(f"CREATE MATERIALIZED VIEW {topic}_n AS SELECT count(*) AS n FROM {topic}")
    assert count(database, topic) == 0
    database.sql(f"ALTER SOURCE {topic} RESUME")
    eventually(lambda: count(database, topic) == 2)


def test_the_rate_is_altered_while_it_is_read(database: Database, kafka: Kafka) -> None:
    topic = kafka.topic("slowed", 2)
    made(database, kafka, topic, ", source_rate_limit = 1")
    for partition in (0, 1):
        kafka.send(topic, *numbers(1500), partition=partition)
    eventually(lambda: count(database, topic) >= 2)
    held, behind = count(database, topic), shown(database, topic, "rows_behind")[0]
    assert held < 3000 and behind > 0
    splits = database.sql(
        f"SELECT split, rows_behind FROM headrace_catalog.source_splits WHERE source = '{topic}' ORDER BY split"
    ).rows()
    assert [split for split, _ in splits] == ["0", "1"]
    assert all(n is not None and n > 0 for _, n in splits)
    database.sql(f"ALTER SOURCE {topic} SET source_rate_limit = 0")
    ticks(database)
    stopped = count(database, topic)
    ticks(database)
    assert count(database, topic) == stopped
    database.sql(f"ALTER SOURCE {topic} SET (source_rate_limit = DEFAULT, max_rows_per_epoch = 2)")
    eventually(lambda: count(database, topic) > stopped)
    assert count(database, topic) < 3000
    database.sql(f"ALTER SOURCE {topic} SET max_rows_per_epoch = DEFAULT")
    eventually(lambda: count(database, topic) == 3000)


def test_what_cannot_be_altered(database: Database, kafka: Kafka) -> None:
    topic = kafka.topic("fixed")
    made(database, kafka, topic)
    with pytest.raises(HeadraceError, match="another value of the option topic of a source"):
        database.sql(f"ALTER SOURCE {topic} SET (topic = 'other')")
    with pytest.raises(HeadraceError, match="source_rate_limit"):
        database.sql(f"ALTER SOURCE {topic} SET source_rate_limit = 'fast'")
    with pytest.raises(HeadraceError, match="max_rows_per_epoch"):
        database.sql(f"ALTER SOURCE {topic} SET max_rows_per_epoch = 0")
    with pytest.raises(HeadraceError, match="is not a source"):
        database.sql(f"ALTER SOURCE {topic}_n PAUSE")
    with pytest.raises(HeadraceError, match="source_rate_limit"):
        database.sql(
            f"CREATE SOURCE {topic}_wrong (a int) WITH (connector = 'kafka', topic = '{topic}', source_rate_limit = "
            f"'x', properties.bootstrap.server = '{kafka.servers}') FORMAT PLAIN ENCODE JSON"
        )


def test_a_query_sees_all_of_a_source_that_nobody_reads(database: Database, kafka: Kafka) -> None:
    topic = kafka.topic("looked_at", 2)
    database.sql(
        f"CREATE SOURCE {topic} (a int) WITH (connector = 'kafka', topic = '{topic}', "
        f"properties.bootstrap.server = '{kafka.servers}') FORMAT PLAIN ENCODE JSON"
    )

    def found() -> Any:
        return database.sql(f"SELECT count(*), max(a) FROM {topic}").rows()

    kafka.send(topic, *numbers(5000))
    assert found() == [(5000, 4999)]
    kafka.send(topic, '{"a": 7000}')
    assert found() == [(5001, 7000)]
    database.sql(f"ALTER SOURCE {topic} PAUSE")
    kafka.send(topic, '{"a": 7001}')
    assert found() == [(5001, 7000)]
    database.sql(f"ALTER SOURCE {topic} RESUME")
    database.sql(f"CREATE MATERIALIZED VIEW {topic}_n AS SELECT count(*) AS n FROM {topic}")
    eventually(lambda: count(database, topic) == 5002)


def test_a_table_that_is_fed_has_a_rate(database: Database, kafka: Kafka) -> None:
    topic = kafka.topic("fed_slowly")
    database.sql(
        f"CREATE TABLE {topic} (a int PRIMARY KEY) WITH (connector = 'kafka', topic = '{topic}', "
        f"source_rate_limit = 0, properties.bootstrap.server = '{kafka.servers}') FORMAT PLAIN ENCODE JSON; "
        f"CREATE MATERIALIZED VIEW {topic}_n AS SELECT count(*) AS n FROM {topic}"
    )
    kafka.send(topic, *numbers(20))
    ticks(database)
    database.sql(f"ALTER MATERIALIZED VIEW {topic} SET source_rate_limit = DEFAULT")
    eventually(lambda: count(database, topic) == 20)
    database.sql(f"ALTER TABLE {topic} SET source_rate_limit = 0")
    kafka.send(topic, '{"a": 1000}')
    ticks(database)
    database.sql(f"ALTER TABLE {topic} PAUSE; ALTER TABLE {topic} SET source_rate_limit TO DEFAULT")
    ticks(database)
    assert count(database, topic) == 20
    database.sql(f"ALTER TABLE {topic} RESUME")
    eventually(lambda: count(database, topic) == 21)
    with pytest.raises(HeadraceError, match="is not a table") as caught:
        database.sql(f"ALTER TABLE {topic}_n PAUSE")
    assert caught.value.hint == "It is a materialized view."


def test_what_all_views_have_taken_in_is_committed(database: Database, kafka: Kafka) -> None:
    from confluent_kafka import ConsumerGroupTopicPartitions

    topic = kafka.topic("watched", 2)
    made(database, kafka, topic, ", group.id = 'headrace-watched'")
    kafka.send(topic, *numbers(50))
    admin = kafka.admin()

    def committed() -> int:
        asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("headrace-watched")])
        found = asked["headrace-watched"].result(60).topic_partitions
        return sum(at.offset for at in found if at.topic == topic)

    eventually(lambda: count(database, topic) == 50)
    eventually(lambda: committed() == 50)
    database.sql(f"ALTER MATERIALIZED VIEW {topic}_n PAUSE")
    kafka.send(topic, *numbers(8))
    ticks(database)
    assert committed() == 50, "what is bound and not taken in is behind"
    database.sql(f"ALTER SOURCE {topic} PAUSE")
    kafka.send(topic, *numbers(2))
    database.sql(f"ALTER MATERIALIZED VIEW {topic}_n RESUME")
    eventually(lambda: committed() == 58, "what is taken in while the source is paused to be told")
    assert shown(database, topic, "paused, error") == (True, None)
    database.sql(f"ALTER SOURCE {topic} RESUME")
    eventually(lambda: committed() == 60)


def test_a_restart_keeps_what_was_altered(spark: SparkSession, kafka: Kafka, tmp_path: Path) -> None:
    topic = kafka.topic("kept")
    with connect(tmp_path, spark=spark, settings=settings(tmp_path)) as first:
        made(first, kafka, topic)
        kafka.send(topic, *numbers(3))
        eventually(lambda: count(first, topic) == 3)
        first.sql(f"ALTER SOURCE {topic} PAUSE")
    kafka.send(topic, *numbers(3))
    with connect(tmp_path, spark=spark, settings=settings(tmp_path)) as second:
        ticks(second)
        assert count(second, topic) == 3 and shown(second, topic, "paused") == (True,)
        second.sql(f"ALTER SOURCE {topic} RESUME")
        eventually(lambda: count(second, topic) == 6)


class Events:
    """A topic of records in Avro, of which the writer has one field after the other."""

    def __init__(self, kafka: Kafka, registry: SchemaRegistry, topic: str) -> None:
        self.kafka, self.registry, self.topic = kafka, registry, kafka.topic(topic)
        self.fields: list[dict[str, Any]] = [{"name": "id", "type": "long"}]
        self.sql = (
            f"CREATE SOURCE {topic} WITH (connector = 'kafka', topic = '{topic}', properties.bootstrap.server = "
            f"'{kafka.servers}') FORMAT PLAIN ENCODE AVRO (schema.registry = '{registry.url}')"
        )
        self.register()

    def register(self, *more: dict[str, Any]) -> None:
        self.fields += more
        self.schema = {"type": "record", "name": "Event", "fields": [*self.fields]}
        self.number = self.registry.add(f"{self.topic}-value", self.schema)

    def send(self, *values: dict[str, Any]) -> None:
        self.kafka.send(self.topic, *(framed(self.number, self.schema, value) for value in values))


def columns_shown(database: Database, topic: str) -> list[Any]:
    sql = f"SELECT column_name, data_type FROM information_schema.columns WHERE table_name = '{topic}' ORDER BY 1"
    return database.sql(sql).rows()


def test_a_source_takes_new_columns_of_its_schema(spark: SparkSession, kafka: Kafka, tmp_path: Path) -> None:
    with schema_registry() as registry:
        events = Events(kafka, registry, "widened")
        with connect(tmp_path, spark=spark, settings=settings(tmp_path)) as first:
            first.sql(events.sql)
            first.sql("CREATE MATERIALIZED VIEW widened_n AS SELECT count(*) AS n FROM widened")
            first.sql("CREATE MATERIALIZED VIEW widened_all AS SELECT * FROM widened")
            first.sql("CREATE VIEW widened_plain AS SELECT * FROM widened")
            events.send({"id": 1})
            eventually(lambda: count(first, "widened") == 1)
            assert first.sql("ALTER SOURCE widened REFRESH SCHEMA").notices == ["there are no new columns"]
            events.register({"name": "who", "type": ["null", "string"]}, {"name": "at", "type": "int"})
            events.send({"id": 2, "who": "ann", "at": 7})
            result = first.sql("ALTER SOURCE widened REFRESH SCHEMA")
            assert result.tag == "ALTER SOURCE"
            assert result.notices == ['source "widened" has new columns: "who" character varying, "at" integer']
            wanted = [("at", "integer"), ("id", "bigint"), ("who", "text")]
            assert columns_shown(first, "widened") == wanted
            first.sql("CREATE MATERIALIZED VIEW widened_who AS SELECT id, who, at FROM widened")
            rows = [(1, None, None), (2, "ann", 7)]
            eventually(lambda: first.sql("SELECT * FROM widened_who ORDER BY id").rows() == rows)
            eventually(lambda: first.sql("SELECT * FROM widened_all ORDER BY id").rows() == [(1,), (2,)])
            assert first.sql("SELECT * FROM widened_plain ORDER BY id").rows() == [(1,), (2,)]
        events.send({"id": 3, "who": None, "at": 8})
        with connect(tmp_path, spark=spark, settings=settings(tmp_path)) as second:
            assert columns_shown(second, "widened") == wanted
            eventually(lambda: count(second, "widened") == 3)
            rows.append((3, None, 8))
            eventually(lambda: second.sql("SELECT * FROM widened_who ORDER BY id").rows() == rows)
            eventually(lambda: second.sql("SELECT * FROM widened_all ORDER BY id").rows() == [(1,), (2,), (3,)])


def test_what_a_schema_cannot_be_refreshed_of(database: Database, kafka: Kafka) -> None:
    with schema_registry() as registry:
        events = Events(kafka, registry, "retyped")
        database.sql(events.sql)
        events.fields[0] = {"name": "id", "type": "string"}
        events.register()
        with pytest.raises(HeadraceError, match='"id" of source "retyped" is bigint, and in the schema by now'):
            database.sql("ALTER SOURCE retyped REFRESH SCHEMA")
        registry.fails = 500
        with pytest.raises(HeadraceError, match="schema registry"):
            database.sql("ALTER SOURCE retyped REFRESH SCHEMA")
        registry.fails = 0
        table = events.sql.replace("SOURCE retyped", "TABLE retyped_t (id bigint PRIMARY KEY)")
        database.sql(table.replace("PLAIN", "UPSERT"))
        with pytest.raises(HeadraceError, match='"id" of table "retyped_t" is bigint, and in the schema'):
            database.sql("ALTER TABLE retyped_t REFRESH SCHEMA")
        with pytest.raises(HeadraceError, match='no column "who"'):
            database.sql("ALTER TABLE retyped_t ADD COLUMN who text")
        plain = kafka.topic("unrefreshed")
        made(database, kafka, plain)
        for text in (f"ALTER SOURCE {plain} REFRESH SCHEMA", f"ALTER MATERIALIZED VIEW {plain}_n REFRESH SCHEMA"):
            with pytest.raises(HeadraceError, match=r"REFRESH SCHEMA") as caught:
                database.sql(text)
            assert caught.value.sqlstate == "0A000"
        database.sql("DROP TABLE retyped_t; DROP SOURCE retyped")


def test_a_source_of_json_gets_the_columns_that_are_asked_for(database: Database, kafka: Kafka) -> None:
    topic = kafka.topic("asked")
    made(database, kafka, topic)
    kafka.send(topic, '{"a": 1, "b": {"c": 2}}', '{"a": 2}')
    eventually(lambda: count(database, topic) == 2)
    assert database.sql(f"ALTER SOURCE {topic} ADD COLUMN b text, ADD d int").tag == "ALTER SOURCE"
    database.sql(f"CREATE MATERIALIZED VIEW {topic}_b AS SELECT a, b, d FROM {topic}")
    assert database.sql(f"SELECT * FROM {topic}_b ORDER BY a").rows() == [(1, '{"c":2}', None), (2, None, None)]
    kafka.send(topic, '{"a": 3, "d": 4}')
    eventually(lambda: database.sql(f"SELECT b, d FROM {topic}_b WHERE a = 3").rows() == [(None, 4)])
    for text, said in (
        ("ADD COLUMN a int", "already exists"),
        ("ADD COLUMN x int, ADD COLUMN x int", "more than once"),
        ("ADD COLUMN x int DEFAULT 1", "DEFAULT, NOT NULL"),
        ("ADD COLUMN x jsonb", "of a connector"),
        ("DROP COLUMN a", "not supported"),
    ):
        with pytest.raises(HeadraceError, match=said):
            database.sql(f"ALTER SOURCE {topic} {text}")
    csv = f"CREATE SOURCE {topic}_csv (a int) WITH (connector = 'kafka', topic = '{topic}', properties.bootstrap.server"
    database.sql(f"{csv} = '{kafka.servers}') FORMAT PLAIN ENCODE CSV (delimiter = ',')")
    with pytest.raises(HeadraceError, match="not supported"):
        database.sql(f"ALTER SOURCE {topic}_csv ADD COLUMN b int")


def test_files_have_columns_that_came_later(database: Database, tmp_path: Path) -> None:
    """Of a source and of a table, whose views go on; by the newest file."""
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "1.json").write_text('{"id": 1}\n{"id": 2}\n')
    way = f"WITH (connector = 'files', path = '{folder}') FORMAT PLAIN ENCODE JSON"
    database.sql(f"CREATE SOURCE later_s (id int) {way}; CREATE TABLE later_t (id int) {way}")
    for name in ("later_s", "later_t"):
        database.sql(f"CREATE MATERIALIZED VIEW {name}_n AS SELECT * FROM {name}")
    assert database.sql("ALTER SOURCE later_s REFRESH SCHEMA").notices == ["there are no new columns"]
    (folder / "2.json").write_text('{"id": 3, "who": "cid", "n": 5}\n')
    text = '"who" character varying, "n" bigint'
    assert database.sql("ALTER SOURCE later_s REFRESH SCHEMA").notices == [f'source "later_s" has new columns: {text}']
    database.sql("ALTER TABLE later_t ADD COLUMN n int")
    database.sql("CREATE MATERIALIZED VIEW later_w AS SELECT who, n, id FROM later_s")
    eventually(lambda: sorted(database.sql("SELECT id, n FROM later_t").rows()) == [(1, None), (2, None), (3, 5)])
    eventually(lambda: sorted(database.sql("SELECT id, who FROM later_w").rows())[2:] == [(3, "cid")])
    (folder / "3.json").write_text('{"id": 4}\n{"id": 5, "n": 6}\n')
    eventually(lambda: sorted(database.sql("SELECT id, n FROM later_t").rows())[3:] == [(4, None), (5, 6)])
    for name in ("later_s_n", "later_t_n"):
        eventually(lambda n=name: sorted(database.sql(f"SELECT * FROM {n}").rows()) == [(i,) for i in range(1, 6)])
    with pytest.raises(HeadraceError, match='no column "none"'):
        database.sql("ALTER SOURCE later_s ADD COLUMN none int")
    database.sql("DROP SOURCE later_s CASCADE; DROP TABLE later_t CASCADE")
