"""The examples on the manual's pages on connectors do what the pages say."""

from __future__ import annotations

import gzip
import re
from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path

import pyarrow.parquet
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from headrace.catalog.contents import SourceContent
from headrace.errors import HeadraceError
from headrace.session.database import Database
from kafka import Kafka
from object_server import S3Server
from postgres import HOST, Postgres
from receiver import receiving
from schema_registry import framed, schema_registry
from support import eventually

AT = "2024-05-01T12:00:00.000000Z"
PAGES = Path(__file__).parents[2] / "docs" / "connectors"


def example(page: str, number: int, replaced: Mapping[str, str]) -> str:
    """The n-th example of a page, with the places of this test."""
    found = re.findall(r"```sql\n(.*?)```", (PAGES / f"{page}.md").read_text(), re.DOTALL)[number]
    for old, new in replaced.items():
        assert old in found, old
        found = found.replace(old, new)
    return str(found)


def test_postgres(database: Database, postgres: Postgres) -> None:
    shop = postgres.new_database("shop")
    shop.execute("CREATE TABLE revenue (customer text PRIMARY KEY, total numeric(20,2))")
    database.sql(example("postgres", 0, {"'localhost'": f"'{HOST}'", "5432": str(shop.port)}))
    database.flush()
    with shop.connect() as connection:
        rows = connection.execute("SELECT customer, total::text FROM revenue ORDER BY 1").fetchall()
    assert rows == [("ann", "11.50"), ("bob", "3.00")]


def test_postgres_cdc(database: Database, logical: Postgres) -> None:
    shop = logical.new_database("shop")
    shop.execute("CREATE TABLE orders (id int PRIMARY KEY, customer text, amount numeric(10,2), more int)")
    shop.execute("INSERT INTO orders VALUES (1, 'ann', 10), (2, 'bob', 5)")
    database.sql(example("postgres", 1, {"'localhost'": f"'{HOST}'", "5432": str(shop.port)}))

    def total() -> list[tuple[str, str]]:
        rows = database.sql("SELECT customer, total FROM by_customer ORDER BY 1").rows()
        return [(customer, str(amount)) for customer, amount in rows]

    eventually(lambda: total() == [("ann", "10.00"), ("bob", "5.00")])
    with shop.connect(autocommit=False) as connection:
        connection.execute("UPDATE orders SET amount = 20 WHERE id = 1")
        connection.execute("DELETE FROM orders WHERE id = 2")
        connection.execute("INSERT INTO orders VALUES (3, 'cy', 1)")
        connection.commit()
    found: list[object] = []

    def moved() -> bool:
        found.append(total())
        return found[-1] == [("ann", "20.00"), ("cy", "1.00")]

    eventually(moved)
    assert all(f == found[0] for f in found[:-1]), "nobody sees half of a transaction"
    database.sql("DROP MATERIALIZED VIEW by_customer; DROP MATERIALIZED VIEW followed")
    with shop.connect() as connection:
        assert connection.execute("SELECT FROM pg_replication_slots").fetchall() == []
        assert connection.execute("SELECT FROM pg_publication").fetchall() == []


def test_postgres_several_tables(database: Database, logical: Postgres) -> None:
    shop = logical.new_database("shops")
    shop.execute(
        "CREATE TABLE customers (id int PRIMARY KEY, name text)", "INSERT INTO customers VALUES (1, 'ann'), (2, 'bob')",
        "CREATE TABLE bills (id int PRIMARY KEY, customer int, amount numeric(10,2))",
        "INSERT INTO bills VALUES (1, 1, 5)",
    )  # fmt: skip
    places = {"'localhost'": f"'{HOST}'", "5432": str(shop.port), "'shop'": "'shops'"}
    database.sql(example("postgres", 2, places))

    def owed() -> list[tuple[str, str]]:
        return [(name, str(amount)) for name, amount in database.sql("SELECT name, amount FROM owed ORDER BY 1").rows()]

    assert owed() == [("ann", "5.00")]
    with shop.connect(autocommit=False) as connection:
        connection.execute("UPDATE customers SET name = 'Ann' WHERE id = 1")
        connection.execute("INSERT INTO bills VALUES (2, 1, 7), (3, 2, 1)")
        connection.commit()
    found: list[object] = []

    def moved() -> bool:
        found.append(owed())
        return found[-1] == [("Ann", "12.00"), ("bob", "1.00")]

    eventually(moved)
    assert all(f == found[0] for f in found[:-1]), "nobody sees half of a transaction"
    shown = "SELECT source, slot, publication, tables, lag_bytes >= 0 FROM headrace_catalog.replication_slots"
    assert database.sql(shown).rows() == [("pg", "shop_slot", "shop_publication", "bills, customers", True)]
    database.sql("DROP SOURCE pg CASCADE")
    with shop.connect() as connection:
        assert connection.execute("SELECT FROM pg_replication_slots").fetchall() == []
        assert connection.execute("SELECT FROM pg_publication").fetchall() == []


def test_files(database: Database, tmp_path: Path) -> None:
    names = {"clicks_out": "files_out", "TABLE clicks": "TABLE fc", "FROM clicks": "FROM fc", "INTO clicks": "INTO fc"}
    database.sql(example("files", 1, {"/tmp/clicks": str(tmp_path), **names}))
    database.flush()
    (file,) = tmp_path.iterdir()
    assert sorted(pyarrow.parquet.read_table(file).column("page").to_pylist()) == ["/", "/cart"]


def test_files_in_a_store(database: Database, s3: S3Server) -> None:
    database.sql(
        "CREATE TABLE fu (at timestamp, page text) APPEND ONLY; INSERT INTO fu VALUES (NULL, 'ä'), (NULL, '/')"
    )
    database.sql("CREATE SECRET clicks_key AS 'test'")
    options = "".join(f", {name} = '{value}'" for name, value in {**s3.options, "s3.access.key": "test"}.items())
    options += ", s3.secret.key = SECRET clicks_key"
    place = {"s3://shop": f"s3://{s3.bucket}", ", s3.region = 'eu-central-1'": options, "FROM clicks": "FROM fu"}
    database.sql(example("files", 2, place))
    database.sql("INSERT INTO fu VALUES (NULL, 'new')")
    database.flush()
    database.sql("CREATE TABLE came_back (at timestamp, page text)")
    database.sql(f"COPY came_back FROM 's3://{s3.bucket}/clicks' (FORMAT json{options.replace(' = ', ' ')})")
    assert database.sql("SELECT page FROM came_back ORDER BY 1").rows() == [("/",), ("new",), ("ä",)]
    gone = place | {"s3://shop": "s3://nobodys", "SINK clicks_up": "SINK gone"}
    with pytest.raises(HeadraceError, match="s3://nobodys/clicks cannot be written"):
        database.sql(example("files", 2, gone))
    with pytest.raises(HeadraceError, match=r"option s3\.secret\.key has to be a secret"):
        open_key = place | {", s3.region = 'eu-central-1'": ", s3.secret.key = 'open'", "SINK clicks_up": "SINK open"}
        database.sql(example("files", 2, open_key))


def test_copy(database: Database, tmp_path: Path) -> None:
    names = {"TABLE fares": "TABLE copied_fares", "FROM fares": "FROM copied_fares", "INTO fares": "INTO copied_fares"}
    database.sql(example("files", 3, {"/tmp/fares": str(tmp_path / "fares"), **names}))
    assert database.sql("SELECT count(*), min(fare) FROM high_fares").rows() == [(600, Decimal("100.25"))]


def test_objects(database: Database, s3: S3Server) -> None:
    s3.put("visits/2024/a.json", b'{"at": "2024-05-01 12:00:00", "page": "/"}\n{"page": "/cart"}\n')
    database.sql("CREATE SECRET visits_key AS 'test'")
    options = "".join(f", {name} = '{value}'" for name, value in {**s3.options, "s3.access.key": "test"}.items())
    options += ", s3.secret.key = SECRET visits_key"
    place = {"s3://shop": f"s3://{s3.bucket}", ", s3.region = 'eu-central-1'": options, "'5s'": "'100ms'"}
    database.sql(example("files", 0, place))
    eventually(lambda: database.sql("SELECT * FROM per_page ORDER BY 1").rows() == [("/", 1), ("/cart", 1)])
    s3.put("visits/2025/b.json.gz", gzip.compress(b'{"page": "/"}\n'))
    eventually(lambda: database.sql("SELECT * FROM per_page ORDER BY 1").rows() == [("/", 2), ("/cart", 1)])
    with pytest.raises(HeadraceError, match=r"option s3\.secret\.key has to be a secret"):
        database.sql(
            "CREATE SOURCE open (a int) WITH (connector = 'files', path = 's3://b/x/', s3.secret.key = 'open')"
        )


def test_kafka_source(database: Database, kafka: Kafka) -> None:
    kafka.topic("clicks", 2)
    kafka.send("clicks", '{"page": "/", "ms": 5}', '{"page": "/", "ms": 7}', '{"page": "/cart", "ms": 1}', key="ann")
    database.sql(example("kafka", 0, {"localhost:9092": kafka.servers}))
    wanted = [("/", 2, 7), ("/cart", 1, 1)]
    eventually(lambda: database.sql("SELECT * FROM pages ORDER BY page").rows() == wanted)
    kafka.send("clicks", '{"page": "/", "ms": 9}')
    eventually(lambda: database.sql("SELECT n, slowest FROM pages WHERE page = '/'").rows() == [(3, 9)])
    visitors = database.sql("SELECT visitor, count(*), count(at) FROM clicks GROUP BY visitor").rows()
    assert sorted(visitors, key=str) == [(None, 1, 1), (b"ann", 3, 3)]


def test_kafka_watermark(database: Database, kafka: Kafka) -> None:
    kafka.topic("views", 2)
    times = ["10:00:05", "10:00:50", "10:01:10", "10:02:00"]
    kafka.send("views", *(f'{{"page": "/", "t": "2024-05-01 {at}"}}' for at in times), partition=0)
    statement = example("kafka", 1, {"localhost:9092": kafka.servers, "'10 s'": "'1 s'"})
    database.sql(statement)
    eventually(lambda: database.sql("SELECT n FROM minutes ORDER BY window_start").rows() == [(2,)])


def test_kafka_table(database: Database, kafka: Kafka) -> None:
    kafka.topic("customers")
    kafka.send(
        "customers",
        '{"before": null, "after": {"id": 1, "name": "ann"}, "op": "r"}',
        '{"before": null, "after": {"id": 2, "name": "bob"}, "op": "c"}',
        '{"before": {"id": 1, "name": "ann"}, "after": null, "op": "d"}',
    )
    database.sql(example("kafka", 2, {"localhost:9092": kafka.servers}))
    eventually(lambda: database.sql("SELECT * FROM customers").rows() == [(2, "bob")])


def test_kafka_avro(database: Database, kafka: Kafka) -> None:
    amount = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
    fields = [{"name": "customer", "type": ["null", "string"]}, {"name": "amount", "type": amount}]
    schema = {"type": "record", "name": "Payment", "fields": fields}
    kafka.topic("payments", 2)
    with schema_registry() as registry:
        number = registry.add("payments-value", schema)
        values = [{"customer": who, "amount": Decimal(n)} for who, n in (("ann", 1), ("ann", 2), (None, 5))]
        kafka.send("payments", *(framed(number, schema, value) for value in values))
        database.sql(example("kafka", 3, {"localhost:9092": kafka.servers, "http://localhost:8081": registry.url}))
        wanted = [("ann", Decimal("3.00")), (None, Decimal("5.00"))]
        eventually(lambda: database.sql("SELECT * FROM paid ORDER BY customer").rows() == wanted)
        database.sql("DROP MATERIALIZED VIEW paid; DROP SOURCE payments")


def test_kafka_protobuf(database: Database, kafka: Kafka) -> None:
    text = """syntax = "proto3"; package shop; enum Status { SENT = 0; THERE = 1; }
    message Shipment { int64 id = 1; Status status = 2; map<string, double> weights = 3; }"""
    kafka.topic("shipments", 2)
    with schema_registry() as registry:
        number = registry.add("shipments-value", text, schemaType="PROTOBUF")
        frame = b"\0" + number.to_bytes(4, "big") + b"\0"
        kafka.send("shipments", frame + b"\x08\x01", frame + b"\x08\x02\x10\x01", frame + b"\x08\x03")
        database.sql(example("kafka", 4, {"localhost:9092": kafka.servers, "http://localhost:8081": registry.url}))
        eventually(lambda: database.sql("SELECT * FROM shipped ORDER BY n").rows() == [("THERE", 1), ("SENT", 2)])
        assert database.sql("SELECT id FROM shipments WHERE weights IS NULL").rows() == []
        database.sql("DROP MATERIALIZED VIEW shipped; DROP SOURCE shipments")


def test_kafka_sink(database: Database, kafka: Kafka) -> None:
    kafka.topic("prices")
    database.sql(example("kafka", 5, {"localhost:9092": kafka.servers}))
    database.flush()
    database.sql("UPDATE items SET price = 4 WHERE id = 1; DELETE FROM items WHERE id = 2")
    database.flush()
    found = {m.key(): m.value() for m in kafka.records("prices")}
    assert found == {b'{"id":1}': b'{"id":1,"price":"4.00"}', b'{"id":2}': None}


@pytest.mark.parametrize("format", ["upsert", "debezium"])
def test_a_table_over_kafka_and_back(database: Database, kafka: Kafka, format: str) -> None:
    """What one database delivers another takes in: here one table is both ends."""
    topic = kafka.topic(f"there-{format}", 2)
    of = f"connector = 'kafka', topic = '{topic}', properties.bootstrap.server = '{kafka.servers}'"
    way, there, back = f"FORMAT {format.upper()} ENCODE JSON", f"there_{format}", f"back_{format}"
    columns = "(id int PRIMARY KEY, name text NOT NULL, price numeric(10,2), at timestamptz)"
    database.sql(f"CREATE TABLE {there} {columns}")
    database.sql(f"INSERT INTO {there} SELECT i, 'n' || i, i, timestamptz '2024-01-01 00:00:00Z' "
                 "FROM generate_series(1, 50) AS g(i)")  # fmt: skip
    database.sql(f"CREATE SINK {there}_out FROM {there} WITH ({of}, primary_key = 'id') {way}")
    database.sql(f"CREATE TABLE {back} {columns} WITH ({of}) {way}")
    assert f"{back}$changes" not in [r[0] for r in database.sql("SHOW SOURCES").rows()]

    def same() -> bool:
        both = (
            f"SELECT * FROM {there} EXCEPT SELECT * FROM {back}",
            f"SELECT * FROM {back} EXCEPT SELECT * FROM {there}",
        )
        return not any(database.sql(sql).rows() for sql in both)

    eventually(same)
    database.sql(f"UPDATE {there} SET price = price * 2 WHERE id % 3 = 0; DELETE FROM {there} WHERE id % 5 = 0")
    database.flush()
    eventually(same)
    assert len(database.sql(f"SELECT * FROM {back}").rows()) == 40
    database.sql(f"DROP SINK {there}_out; DROP MATERIALIZED VIEW {back}")
    assert not [r for r in database.catalog.state.objects_of(SourceContent) if r.name == f"{back}$changes"]


def test_a_table_that_is_not_made_leaves_no_slot(database: Database, logical: Postgres) -> None:
    there = logical.new_database("unmade")
    there.execute("CREATE TABLE wrong (id int PRIMARY KEY, v text)", "INSERT INTO wrong VALUES (1, 'no number')")
    options = (
        f"WITH (connector = 'postgres-cdc', hostname = '{HOST}', port = {there.port}, username = 'root', "
        "database.name = 'unmade', table.name = 'wrong')"
    )
    for kind in ("jsonb", "interval", "time"):
        with pytest.raises(HeadraceError, match=f'"v" of type {kind}'):
            database.sql(f"CREATE TABLE wrong (id int PRIMARY KEY, v {kind}) {options}")
    with pytest.raises(HeadraceError, match="has to be a secret"):
        database.sql(f"CREATE TABLE wrong (id int PRIMARY KEY, v text) {options[:-1]}, password = 'open')")

    def slots() -> list[object]:
        with there.connect() as connection:
            return connection.execute("SELECT FROM pg_replication_slots WHERE database = 'unmade'").fetchall()

    database.sql("SET background_ddl = true")
    try:
        database.sql(f"CREATE TABLE wrong (id int PRIMARY KEY, v int) {options}")
    finally:
        database.sql("SET background_ddl = false")
    eventually(slots)
    ((job,),) = database.sql("SELECT id FROM headrace_catalog.jobs WHERE name = 'wrong'").rows()
    database.sql(f"CANCEL JOBS {job}")
    assert not slots()
    assert not [r for r in database.catalog.state.objects_of(SourceContent) if r.name.startswith("wrong")]


def test_tables_that_are_not_fed(database: Database, kafka: Kafka) -> None:
    topic = kafka.topic("refused")
    of = f"WITH (connector = 'kafka', topic = '{topic}', properties.bootstrap.server = '{kafka.servers}')"
    for sql, text in (
        (f"CREATE TABLE no (a int) {of} FORMAT UPSERT ENCODE JSON", "FORMAT UPSERT without a primary key"),
        (f"CREATE TABLE no (a int, PRIMARY KEY (b)) {of} FORMAT UPSERT ENCODE JSON", '"b" named in key does not exist'),
        (f"CREATE TABLE no (a int DEFAULT 1) {of}", "DEFAULT in a table with a connector"),
    ):
        with pytest.raises(HeadraceError, match=text):
            database.sql(sql)
    assert not [r for r in database.catalog.state.objects_of(SourceContent) if r.name.startswith("no")]
    database.sql(f"CREATE TABLE appended (a int) {of} FORMAT PLAIN ENCODE JSON")
    kafka.send(topic, '{"a": 1}', '{"a": 1}')
    eventually(lambda: database.sql("SELECT a FROM appended").rows() == [(1,), (1,)])
    with pytest.raises(HeadraceError):
        database.sql("INSERT INTO appended VALUES (1)")


def test_http(database: Database) -> None:
    """Without the secret, for which this database has no key."""
    with receiving() as receiver:
        text = example("http", 0, {"'http://localhost:8080/alarms'": f"'{receiver.url}'"})
        text = text.replace(re.findall(r"CREATE SECRET.*?;\n", text)[0], "").replace(
            "header.authorization = SECRET pager,", ""
        )
        database.sql(text)
        database.flush()
        assert receiver.upserted("id") == Counter([(1, "high", AT), (2, "low", AT.replace("00.0", "01.0"))])
        database.sql("UPDATE alarms SET level = 'low' WHERE id = 1; DELETE FROM alarms WHERE id = 2")
        eventually(lambda: receiver.upserted("id") == Counter([(1, "low", AT)]))
        receiver.answers = [(400, {})]
        database.sql("INSERT INTO alarms VALUES (3, 'high', NULL)")
        eventually(lambda: len(receiver.upserted("id")) == 2)  # it is tried again
        database.sql("DROP SINK alarms_out")


def test_tables(database: Database) -> None:
    """The example's tables have names of this page's own here."""
    names = {"orders": "into_orders", "refunds": "into_refunds"}
    database.sql(re.sub(r"\b(orders|refunds)\b(?!')", lambda m: names[m[1]], example("tables", 0, {})))
    eventually(lambda: sorted(database.sql("SELECT * FROM debts").rows()) == [("ann", 6), ("bob", 3)])
    assert database.sql("SELECT total FROM balances WHERE origin = 'refunds'").rows() == [(-4,)]
    database.sql("DELETE FROM into_orders WHERE id = 2")
    eventually(lambda: database.sql("SELECT * FROM debts").rows() == [("ann", 6)])
    database.sql("DROP TABLE balances CASCADE; DROP TABLE into_orders; DROP TABLE into_refunds")


def test_iceberg(database: Database, tmp_path: Path) -> None:
    database.sql(example("iceberg", 1, {"/tmp/lake": str(tmp_path)}))
    database.flush()
    catalog = load_catalog("default", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db")
    rows = catalog.load_table("shop.paid").scan().to_arrow().to_pylist()
    assert sorted((r["customer"], str(r["total"])) for r in rows) == [("ann", "11.50"), ("bob", "3.00")]


def test_deltalake(database: Database, tmp_path: Path) -> None:
    database.sql(example("deltalake", 1, {"/tmp/fares": str(tmp_path / "t")}))
    database.flush()
    rows = DeltaTable(tmp_path / "t").to_pyarrow_table().to_pylist()
    assert sorted((r["customer"], str(r["total"])) for r in rows) == [("ann", "11.50"), ("bob", "3.00")]


@pytest.mark.parametrize(
    "options",
    [
        "connector = 'deltalake', location = 's3://b/t', s3.access.key = 'a', s3.secret.key = 'open'",
        "connector = 'iceberg', catalog.type = 'rest', catalog.uri = 'https://x', catalog.token = 'open', "
        "database.name = 'n', table.name = 't'",
    ],
)
def test_keys_of_lakes_are_secrets(database: Database, options: str) -> None:
    database.sql("CREATE TABLE IF NOT EXISTS unkept (id int PRIMARY KEY)")
    with pytest.raises(HeadraceError, match="has to be a secret"):
        database.sql(f"CREATE SINK unkept_out FROM unkept WITH ({options}, primary_key = 'id')")
