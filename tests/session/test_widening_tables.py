"""Tables of Kafka get columns, with the values that records have, while all that reads them goes on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count as counting
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headrace.catalog.records import ObjectRecord
from headrace.common.faults import arm, disarm_all
from headrace.config import Settings
from headrace.coordinator.coordinator import Coordinator
from headrace.errors import HeadraceError
from headrace.session.context import Context
from headrace.session.database import Database, connect
from headrace.session.execution import widening
from headrace.session.execution.refilling import new_table
from headrace.sql.statements import ColumnDef
from kafka import Kafka
from schema_registry import framed, schema_registry
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
    made = topic.sql("ALTER TABLE # ADD COLUMN IF NOT EXISTS who int, ADD COLUMN IF NOT EXISTS at int")
    assert made.notices == [f'column "who" of relation "{topic.name}" already exists, skipping']
    assert topic.rows("SELECT id, who, at FROM #") == [(1, "ann", None), (3, "cid", None), (4, "dan", None)]
    topic.drop()


@pytest.mark.parametrize("setting", ["query_epoch", "query_consistency"])
def test_what_a_session_wants_to_see_does_not_matter(database: Database, kafka: Kafka, setting: str) -> None:
    """Whether no row is lost is looked at as of now."""
    topic = Topic(kafka, database)
    topic.put(1, '{"id": 1, "v": 10, "who": "ann"}')
    eventually(lambda: topic.rows("SELECT * FROM #") == [(1, 10)])
    epoch = max(job.committed_epoch for job in database.coordinator.jobs())
    topic.put(2, '{"id": 2, "v": 20, "who": "bob"}')
    eventually(lambda: len(topic.rows("SELECT * FROM #")) == 2)
    with closing(database.session()) as session:
        value = epoch if setting == "query_epoch" else "'global'"
        for text in (f"SET {setting} = {value}", f"ALTER TABLE {topic.name} ADD COLUMN who text"):
            list(session.execute(text))
    assert topic.rows("SELECT * FROM #") == [(1, 10, "ann"), (2, 20, "bob")]
    topic.drop()


def test_a_table_takes_new_columns_of_its_schema(database: Database, kafka: Kafka) -> None:
    """Of a registry: with a key that records delete, and rows of schemas before and after."""
    name = kafka.topic(f"wide{next(_numbers)}")
    fields: list[dict[str, Any]] = [{"name": "id", "type": "long"}, {"name": "v", "type": "long"}]
    key = {"type": "record", "name": "Key", "fields": fields[:1]}

    def sql(text: str) -> Any:
        return database.sql(text.replace("#", name))

    with schema_registry() as registry:
        of_key = registry.add(f"{name}-key", key)

        def send(id: int, **more: Any) -> None:
            schema = {"type": "record", "name": "Row", "fields": [*fields]}
            number = registry.add(f"{name}-value", schema)
            value = framed(number, schema, {"id": id, **more}) if more else None
            kafka.send(name, value, key=framed(of_key, key, {"id": id}))

        send(1, v=10)
        send(2, v=20)
        sql(
            "CREATE TABLE # (id bigint PRIMARY KEY) WITH (connector = 'kafka', topic = '#', "
            f"properties.bootstrap.server = '{kafka.servers}') "
            f"FORMAT UPSERT ENCODE AVRO (schema.registry = '{registry.url}')"
        )
        sql("CREATE MATERIALIZED VIEW #_n AS SELECT count(*) AS n FROM #")
        fields.append({"name": "who", "type": ["null", "string"]})
        send(3, v=30, who="cid")
        send(2)
        told = sql("ALTER TABLE # REFRESH SCHEMA").notices
        assert told == [f'table "{name}" has new columns: "v" bigint, "who" character varying']
        eventually(lambda: sql("SELECT * FROM # ORDER BY id").rows() == [(1, 10, None), (3, 30, "cid")])
        assert sql("ALTER TABLE # REFRESH SCHEMA").notices == ["there are no new columns"]
        send(1)
        eventually(lambda: sql("SELECT n FROM #_n").rows() == sql("SELECT count(*) FROM #").rows() == [(1,)])
        sql("DROP TABLE # CASCADE")


def source_of(topic: Topic) -> ObjectRecord:
    found = topic.database.catalog.state.object_named("public", f"{topic.name}$changes")
    assert found is not None
    return found


def test_what_comes_to_nothing_leaves_nothing(database: Database, kafka: Kafka) -> None:
    """A value at fault in a new column, or a failure at the end: the table is as it was, and may be asked again."""
    topic = Topic(kafka, database)
    topic.put(1, '{"id": 1, "v": 10, "who": "ann"}')
    topic.sql("CREATE MATERIALIZED VIEW #_n AS SELECT count(*) AS n FROM #")
    eventually(lambda: topic.rows("SELECT n FROM #_n") == [(1,)])
    before = {o.name for o in database.catalog.state.objects.values()}, source_of(topic).columns
    with pytest.raises(HeadraceError, match="column who"):
        topic.sql("ALTER TABLE # ADD COLUMN who int")
    arm("columns.commit.before", "fail")
    try:
        with pytest.raises(HeadraceError, match=r"columns\.commit\.before"):
            topic.sql("ALTER TABLE # ADD COLUMN who text, ADD COLUMN other int")
    finally:
        disarm_all()
    assert ({o.name for o in database.catalog.state.objects.values()}, source_of(topic).columns) == before
    for text, said in (
        ("ADD COLUMN v int", "already exists"),
        ("ADD COLUMN _headrace_position int", "already exists"),
        ("ADD COLUMN x int NOT NULL", "DEFAULT, NOT NULL"),
        ("REFRESH SCHEMA", "nobody says what fields"),
    ):
        with pytest.raises(HeadraceError, match=said):
            topic.sql(f"ALTER TABLE # {text}")
    topic.sql("ALTER TABLE # ADD COLUMN who text")
    assert topic.rows("SELECT * FROM #") == [(1, 10, "ann")]
    topic.drop()


def test_rows_that_could_get_lost_are_told(database: Database, kafka: Kafka) -> None:
    topic = Topic(kafka, database, "v int")
    topic.send('{"v": 1}', '{"v": 2}')
    eventually(lambda: topic.rows("SELECT v FROM #") == [(1,), (2,)])
    before = source_of(topic).columns
    from confluent_kafka import TopicPartition

    admin = kafka.admin()  # what is asked of one that is gone has no answer
    for answer in admin.delete_records([TopicPartition(topic.name, 0, 1)]).values():
        answer.result(30)
    topic.send('{"v": 3}')
    eventually(lambda: topic.rows("SELECT v FROM #") == [(1,), (2,), (3,)], "what was read stays")
    with pytest.raises(HeadraceError, match="does not have the records any more"):
        topic.sql("ALTER TABLE # ADD COLUMN who text")
    assert topic.rows("SELECT * FROM #") == [(1,), (2,), (3,)] and source_of(topic).columns == before
    topic.drop()
    topic.sql(
        f"CREATE TABLE # (v int) WITH (connector = 'kafka', topic = '#', on_error = 'skip', "
        f"properties.bootstrap.server = '{kafka.servers}') FORMAT PLAIN ENCODE JSON"
    )
    with pytest.raises(HeadraceError, match="leaves out rows"):
        topic.sql("ALTER TABLE # ADD COLUMN who text")
    topic.drop()


def test_columns_that_are_not_null_are_no_key(database: Database, kafka: Kafka) -> None:
    """A table without a key keeps all rows, whatever its columns are."""
    topic = Topic(kafka, database, "id int NOT NULL, v int")
    topic.send('{"id": 1, "v": 10, "who": "ann"}', '{"id": 2, "v": 20}')
    eventually(lambda: topic.rows("SELECT * FROM #") == [(1, 10), (2, 20)])
    topic.sql("ALTER TABLE # ADD COLUMN who text")
    topic.send('{"id": 1, "v": 10, "who": "ann"}', '{"id": 1, "v": 11}')
    wanted = [(1, 10, "ann"), (1, 10, "ann"), (1, 11, None), (2, 20, None)]
    eventually(lambda: topic.rows("SELECT * FROM #") == wanted)
    topic.drop()


def test_what_was_there_before_does_not_read_a_value_at_fault(database: Database, kafka: Kafka) -> None:
    """In a new column: it stops, or loses the row, for nobody who does not know the column."""
    for policy in ("fail", "skip"):
        name = kafka.topic(f"wide{next(_numbers)}")
        database.sql(
            f"CREATE SOURCE {name} (id int) WITH (connector = 'kafka', topic = '{name}', on_error = '{policy}', "
            f"properties.bootstrap.server = '{kafka.servers}') FORMAT PLAIN ENCODE JSON"
        )
        database.sql(f"CREATE MATERIALIZED VIEW {name}_n AS SELECT id FROM {name}")
        kafka.send(name, '{"id": 1, "who": "ann"}')
        eventually(lambda n=name: database.sql(f"SELECT id FROM {n}_n").rows() == [(1,)])
        database.sql(f"ALTER SOURCE {name} ADD COLUMN who int")
        kafka.send(name, '{"id": 2, "who": "bob"}', '{"id": 3, "who": 3}')
        eventually(lambda n=name: sorted(database.sql(f"SELECT id FROM {n}_n").rows()) == [(1,), (2,), (3,)], policy)
        if policy == "skip":
            database.sql(f"CREATE MATERIALIZED VIEW {name}_w AS SELECT id, who FROM {name}")
            assert database.sql(f"SELECT * FROM {name}_w").rows() == [(3, 3)]
        database.sql(f"DROP SOURCE {name} CASCADE")


def test_columns_that_were_looked_for_before_others_came(database: Database, kafka: Kafka) -> None:
    """Of two statements the second one does not think that its column is there, nor takes the first one's away."""
    topic = Topic(kafka, database)
    topic.sql(
        "CREATE MATERIALIZED VIEW #_n AS SELECT count(*) AS n FROM #; "
        "CREATE SOURCE #_s (id int) WITH (connector = 'kafka', topic = '#', "
        f"properties.bootstrap.server = '{kafka.servers}') FORMAT PLAIN ENCODE JSON"
    )
    state = database.catalog.state
    source, table = (state.object_named("public", name) for name in (f"{topic.name}_s", topic.name))
    assert source is not None and table is not None
    hidden = source_of(topic)
    with closing(database.session()) as session:
        for what in ("SOURCE #_s", "TABLE #"):
            topic.sql(f"ALTER {what} ADD COLUMN who text")
        with pytest.raises(HeadraceError, match="by another statement meanwhile"):
            widening.widen_source(session.context, source, [ColumnDef("who", "int")])
        with pytest.raises(HeadraceError, match="by another statement meanwhile"):
            widening.widen_table(session.context, table, hidden, "ALTER", [ColumnDef("at", "int")])
    assert [c.name for c in source_of(topic).columns][-1] == "who"
    topic.sql("DROP SOURCE #_s")
    topic.drop()


def test_a_table_is_dropped_while_it_gets_columns(database: Database, kafka: Kafka) -> None:
    """What is being filled over the same source goes with it."""
    topic = Topic(kafka, database)
    table, source = database.catalog.state.object_named("public", topic.name), source_of(topic)
    assert table is not None
    with closing(database.session()) as session:
        new_table(session.context, table, source, ["id"], "ALTER")
    topic.sql("DROP TABLE #")
    assert [o for o in database.catalog.state.objects.values() if o.name.startswith(topic.name)] == []


def test_two_at_once(database: Database, kafka: Kafka) -> None:
    """One has its column, and the other one is told or has its own, too."""
    topic = Topic(kafka, database)
    topic.put(1, '{"id": 1, "v": 10, "a": 1, "b": 2}')
    sessions = {name: database.session() for name in "ab"}
    done: dict[str, str] = {}

    def add(name: str) -> None:
        try:
            list(sessions[name].execute(f"ALTER TABLE {topic.name} ADD COLUMN {name} int"))
            done[name] = ""
        except HeadraceError as error:
            done[name] = str(error)

    threads = [threading.Thread(target=add, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for session in sessions.values():
        session.close()
    had = [name for name in "ab" if not done[name]]
    assert had and all("are being added" in said or "meanwhile" in said for said in done.values() if said), done
    for name in set("ab") - {*had}:
        topic.sql(f"ALTER TABLE # ADD COLUMN {name} int")
    assert topic.rows("SELECT id, v, a, b FROM #") == [(1, 10, 1, 2)]
    assert len(source_of(topic).columns) == 6
    topic.drop()


def test_a_table_that_is_paused_meanwhile_stays_so(
    database: Database, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nobody waits for Spark who keeps others from defining anything."""
    topic = Topic(kafka, database)
    topic.put(1, '{"id": 1, "v": 10, "who": "ann"}')
    topic.sql("CREATE MATERIALIZED VIEW #_n AS SELECT count(*) AS n FROM #")
    before = {o.name for o in database.catalog.state.objects.values()}
    check, defining, held = widening._check_rows, Coordinator.defining, [False]

    def paused(*given: Any) -> None:
        check(*given)
        topic.sql("ALTER MATERIALIZED VIEW # PAUSE")

    @contextmanager
    def noted(coordinator: Coordinator) -> Iterator[None]:
        with defining(coordinator):
            held[0] = True
            yield
        held[0] = False

    wait = Context.wait_for_views

    def waited(context: Context) -> None:
        assert not held[0]
        wait(context)

    monkeypatch.setattr(widening, "_check_rows", paused)
    monkeypatch.setattr(Coordinator, "defining", noted)
    monkeypatch.setattr(Context, "wait_for_views", waited)
    with pytest.raises(HeadraceError, match="was paused while columns were added"):
        topic.sql("ALTER TABLE # ADD COLUMN who text")
    monkeypatch.undo()
    assert {o.name for o in database.catalog.state.objects.values()} == before
    assert topic.rows("SELECT status FROM headrace_catalog.jobs WHERE name = '#'") == [("paused",)]
    topic.sql("ALTER MATERIALIZED VIEW # RESUME; ALTER TABLE # ADD COLUMN who text")
    assert topic.rows("SELECT * FROM #") == [(1, 10, "ann")]
    topic.drop()


def test_an_index_that_is_paused_stays_so(database: Database, kafka: Kafka) -> None:
    topic = Topic(kafka, database)
    topic.put(1, '{"id": 1, "v": 10, "who": "ann"}')
    topic.sql("CREATE INDEX #_i ON # (v); CREATE INDEX #_j ON # (v); ALTER INDEX #_i PAUSE")
    topic.sql("ALTER TABLE # ADD COLUMN who text")
    jobs = "SELECT status FROM headrace_catalog.jobs WHERE name IN ('#_i', '#_j') ORDER BY name"
    assert topic.sql(jobs).rows() == [("paused",), ("running",)]
    topic.put(2, '{"id": 2, "v": 10, "who": "bob"}')
    eventually(lambda: topic.rows("SELECT * FROM #") == [(1, 10, "ann"), (2, 10, "bob")])
    topic.sql("ALTER INDEX #_i RESUME")
    assert topic.sql(jobs).rows() == [("running",), ("running",)]
    topic.drop()


COMPACTING = {
    "cleanup_policy": "compact", "segment_ms": "200", "min_cleanable_dirty_ratio": "0.01",
    "max_compaction_lag_ms": "200",
}  # fmt: skip


def test_rows_that_compaction_has_taken_are_told(database: Database, kafka: Kafka) -> None:
    """Reading again would not fail: rows of a table without a key are counted. With a key nothing is lost."""
    topic = Topic(kafka, database, "id int, v int", **COMPACTING)
    topic.put(1, '{"id": 1, "v": 1}')
    eventually(lambda: topic.rows("SELECT v FROM #") == [(1,)])
    topic.put(1, '{"id": 1, "v": 2}')
    eventually(lambda: topic.rows("SELECT v FROM #") == [(1,), (2,)])

    def compacted() -> bool:
        topic.put(0, '{"id": 0, "v": 0}')
        return all(b'"v": 1' not in record.value() for record in kafka.records(topic.name))

    eventually(compacted, "compaction")
    with pytest.raises(HeadraceError, match="come of what can be read by now"):
        topic.sql("ALTER TABLE # ADD COLUMN who text")
    assert {(1,), (2,)} <= {*topic.rows("SELECT v FROM #")} and len(source_of(topic).columns) == 2
    topic.drop()
    topic.create("id int PRIMARY KEY, v int")
    topic.sql("ALTER TABLE # ADD COLUMN who text")
    assert topic.rows("SELECT * FROM #") == [(0, 0, None), (1, 2, None)]
    topic.drop()


def test_older_rows_that_compaction_brings_back_are_told(database: Database, kafka: Kafka) -> None:
    """The key of the table is another one than that of the records: as many rows as before, and an older one."""
    topic = Topic(kafka, database, "id int PRIMARY KEY, v int, m map(varchar, int)", **COMPACTING)
    topic.send('{"id": 1, "v": 1}', key='{"k": "a"}')
    topic.send('{"id": 1, "v": 2}', key='{"k": "b"}')
    eventually(lambda: topic.rows("SELECT id, v FROM #") == [(1, 2)])
    topic.send('{"id": 5, "v": 5}', key='{"k": "b"}')
    eventually(lambda: topic.rows("SELECT id, v FROM #") == [(1, 2), (5, 5)])

    def compacted() -> bool:
        topic.send('{"id": 5, "v": 5}', key='{"k": "c"}')
        return all(b'"v": 2' not in record.value() for record in kafka.records(topic.name))

    eventually(compacted, "compaction")
    before = source_of(topic).columns
    with pytest.raises(HeadraceError, match="has 2 rows, and 1 come otherwise by now"):
        topic.sql("ALTER TABLE # ADD COLUMN who text")
    assert topic.rows("SELECT id, v FROM #") == [(1, 2), (5, 5)] and source_of(topic).columns == before
    topic.drop()
