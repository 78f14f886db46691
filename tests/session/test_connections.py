"""CREATE CONNECTION: made, used by sources and sinks, granted, dropped, and found again by the next start."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from clients import refused
from headrace.config import Settings
from headrace.errors import HeadraceError
from headrace.session.database import Database, connect
from headrace.session.stored_roles import ROOT_OID
from object_server import S3Server
from postgres import HOST, Postgres
from support import eventually

PAGE = Path(__file__).parents[2] / "docs" / "connectors" / "connections.md"
KEY = base64.b64encode(bytes([3]) * 32).decode()


def settings(folder: Path) -> Settings:
    return Settings(
        data_dir=folder, run_fsync=False, catalog_commit_sync=False, barrier_interval_ms=100, secret_keys=KEY
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("connections")


@pytest.fixture(scope="module")
def database(spark: SparkSession, folder: Path) -> Iterator[Database]:
    with connect(folder, spark=spark, settings=settings(folder)) as found:
        yield found


def test_the_example_of_the_page(database: Database, logical: Postgres) -> None:
    shop = logical.new_database("shop")
    shop.execute(
        "CREATE TABLE visits (id int PRIMARY KEY, page text, ms bigint)",
        "CREATE TABLE slowest (page text PRIMARY KEY, ms bigint)",
        "INSERT INTO visits VALUES (1, '/', 5), (2, '/', 7)",
    )
    (example,) = re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)
    database.sql(example.replace("'localhost'", f"'{HOST}'").replace("5432", str(shop.port)))

    def there() -> list[tuple[object, ...]]:
        with shop.connect() as connection:
            return connection.execute("SELECT * FROM slowest ORDER BY 1").fetchall()

    eventually(lambda: there() == [("/", 7)])
    shop.execute("INSERT INTO visits VALUES (3, '/cart', 1); DELETE FROM visits WHERE id = 2")
    eventually(lambda: there() == [("/", 5), ("/cart", 1)])

    port = f"port = {shop.port}"
    shown = "database = shop, host = 127.0.0.1, password = SECRET shop_password, " + port + ", user = root"
    assert database.sql("SHOW CONNECTIONS").rows() == [("shop", "postgres", shown)]
    assert database.sql("SHOW CONNECTIONS LIKE 'x%'").rows() == []
    ((name, text),) = database.sql("SHOW CREATE CONNECTION shop").rows()
    assert name == "shop" and "password = SECRET shop_password" in text and "sesame" not in text
    assert "connection = shop" in database.sql("SHOW CREATE SINK slowest_out").rows()[0][1]
    users = "SELECT type, options, used_by FROM headrace_catalog.connections"
    (found,) = database.sql(users).rows()
    assert found == ("postgres", "database, host, password, port, user", "visits$changes, slowest_out")
    assert database.sql("SELECT name, type_, owner FROM rw_catalog.rw_connections").rows() == [
        ("shop", "postgres", ROOT_OID)
    ]
    assert "shop" not in [r[0] for r in database.sql("SELECT relname FROM pg_class").rows()]
    assert "used_by" in str(database.sql("SELECT used_by FROM headrace_catalog.secrets").columns)

    assert refused(database, "DROP CONNECTION shop").startswith("2BP01 cannot drop connection shop")
    assert refused(database, "DROP SECRET shop_password").startswith("2BP01")
    assert refused(database, "DROP TABLE shop").startswith("42809")
    assert refused(database, "SELECT * FROM shop").startswith("42809 cannot read from connection")
    database.sql("DROP SINK slowest_out; DROP MATERIALIZED VIEW slowest; DROP MATERIALIZED VIEW visits")
    database.sql("DROP CONNECTION shop; DROP SECRET shop_password")
    assert database.sql("SHOW CONNECTIONS").rows() == []


def test_it_is_there_after_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    """The catalog of the next start has it, and what was built on it goes on."""
    out = tmp_path / "out"
    with connect(tmp_path / "db", spark=spark, settings=settings(tmp_path / "db")) as database:
        database.sql("CREATE SECRET key AS 'hunter2'; CREATE SCHEMA lakes")
        database.sql("CREATE CONNECTION lakes.store WITH (type = 's3', s3.region = 'eu', s3.secret.key = SECRET key)")
        database.sql("CREATE TABLE t (id int PRIMARY KEY)")
        database.sql(f"CREATE SINK t_out FROM t WITH (connector = 'deltalake', connection = lakes.store, "
                     f"location = '{out}', create_table_if_not_exists = true, primary_key = 'id')")  # fmt: skip
        assert database.sql("CREATE CONNECTION IF NOT EXISTS lakes.store WITH (type = 's3')").notices
        assert refused(database, "CREATE CONNECTION lakes.store WITH (type = 's3')").startswith("42710 connection")
        assert database.sql("SHOW CONNECTIONS FROM lakes").rows() == [
            ("store", "s3", "s3.region = eu, s3.secret.key = SECRET key")
        ]
    with connect(tmp_path / "db", spark=spark, settings=settings(tmp_path / "db")) as database:
        database.sql("INSERT INTO t VALUES (1), (2)")
        eventually(lambda: sorted(DeltaTable(out).to_pyarrow_table().column("id").to_pylist()) == [1, 2])
        assert refused(database, "DROP SCHEMA lakes").startswith("2BP01")
        database.sql("DROP CONNECTION lakes.store CASCADE")
        assert database.sql("SHOW SINKS").rows() == []
        database.sql("DROP SECRET key")


def test_what_is_refused(database: Database) -> None:
    database.sql("CREATE SECRET word AS 'hunter2'; CREATE TABLE r (id int PRIMARY KEY)")
    database.sql("CREATE CONNECTION broker WITH (type = 'kafka', properties.bootstrap.server = 'localhost:1')")
    sink = "CREATE SINK x FROM r WITH (connector = '{}', connection = {}, {})"
    for sql, text in (
        ("CREATE CONNECTION x WITH (host = 'a')", "22023 a connection needs the option type"),
        ("CREATE CONNECTION x WITH (type = 'privatelink')", "22023 option type of a connection must be one of"),
        ("CREATE CONNECTION x WITH (type = 'postgres', user = 'a', database = 'b', port = 'c')", "22023 option port"),
        ("CREATE CONNECTION x WITH (type = 's3', connection = broker)", "0A000"),
        ("CREATE CONNECTION x WITH (type = 's3', s3.region = SECRET word)", "22023 option s3.region"),
        ("CREATE CONNECTION word WITH (type = 's3')", "42710"),
        ("CREATE CONNECTION none.x WITH (type = 's3')", "3F000"),
        ("CREATE CONNECTION x", "42601"),
        ("DROP CONNECTION x", '42704 connection "x" does not exist'),
        ("DROP CONNECTION r", "42809"),
        (sink.format("kafka", "x", "topic = 'a'"), '42704 connection "x" does not exist'),
        (sink.format("kafka", "r", "topic = 'a'"), '42809 "r" is a table, not a connection'),
        (sink.format("postgres", "broker", "a = 1"), '22023 connection "broker" is of type kafka'),
        (sink.format("blackhole", "broker", "a = 1"), "22023 connection"),
        (sink.format("kafka", "broker", "properties.bootstrap.server = 'b'"), "22023 option properties.bootstrap"),
        (sink.format("kafka", "broker", "connection = broker"), "0A000"),
        ("CREATE TABLE x (a int) WITH (connection = broker)", "0A000 a secret or connection of a table"),
        ("CREATE TABLE x (a int) WITH (seed = SECRET word)", "0A000 a secret or connection of a table"),
        ("CREATE SOURCE x (a int) WITH (connector = 'kafka') FORMAT PLAIN ENCODE AVRO (connection = broker)",
         "0A000 a connection in FORMAT"),
        ("ALTER CONNECTION broker RENAME TO other", "0A000"),
    ):  # fmt: skip
        assert refused(database, sql).startswith(text), (sql, refused(database, sql))
    assert database.sql("DROP CONNECTION IF EXISTS x").notices == ['connection "x" does not exist, skipping']
    database.sql("DROP CONNECTION broker; DROP TABLE r; DROP SECRET word")


def test_a_wrong_value_of_a_secret_is_told_without_it(database: Database) -> None:
    database.sql("CREATE SECRET uri AS ''")
    text = refused(
        database, "CREATE CONNECTION x WITH (type = 'iceberg', catalog.type = 'sql', catalog.uri = SECRET uri)"
    )
    assert text.startswith("22023 option catalog.uri is required")
    database.sql("DROP SECRET uri")


def test_who_may_use_one(database: Database) -> None:
    root = database.session()
    for sql in (
        "CREATE ROLE anna LOGIN", "GRANT CREATE ON SCHEMA public TO anna", "GRANT pg_write_server_files TO anna",
        "CREATE SECRET word AS 'hunter2'", "CREATE TABLE u (id int PRIMARY KEY)", "GRANT SELECT ON u TO anna",
        "CREATE CONNECTION store WITH (type = 's3', s3.secret.key = SECRET word)",
    ):  # fmt: skip
        list(root.execute(sql))
    anna = database.session(user="anna")

    def denied(sql: str) -> str:
        with pytest.raises(HeadraceError) as caught:
            list(anna.execute(sql))
        return f"{caught.value.sqlstate} {caught.value.message}"

    options = "connector = 'deltalake', connection = store, location = '/none', primary_key = 'id'"
    sink = f"CREATE SINK no FROM u WITH ({options})"
    assert denied(sink) == "42501 permission denied for connection store"
    assert denied(f"EXPLAIN {sink}") == "42501 permission denied for connection store"
    assert denied("DROP CONNECTION store") == "42501 must be owner of connection store"
    assert denied("CREATE CONNECTION x WITH (type = 's3', s3.secret.key = SECRET word)").startswith("42501 permission")
    list(root.execute("GRANT USAGE ON CONNECTION store TO anna"))
    assert denied(sink).startswith("22023 there is no Delta table /none")
    list(root.execute("REVOKE ALL ON ALL CONNECTIONS IN SCHEMA public FROM anna"))
    assert denied(sink).startswith("42501")
    with pytest.raises(HeadraceError, match="invalid privilege type SELECT for connection"):
        list(root.execute("GRANT SELECT ON CONNECTION store TO anna"))
    list(root.execute("ALTER CONNECTION store OWNER TO anna"))
    assert denied(sink).startswith("22023 there is no Delta table /none")
    list(anna.execute("DROP CONNECTION store"))
    for sql in ("DROP OWNED BY anna", "REVOKE pg_write_server_files FROM anna", "DROP ROLE anna", "DROP SECRET word",
                "DROP TABLE u"):  # fmt: skip
        list(root.execute(sql))
    anna.close()
    root.close()


def test_statements_that_were_written_for_risingwave(database: Database, s3: S3Server, logical: Postgres) -> None:
    shop = logical.new_database("written_for_others")
    shop.execute("CREATE TABLE paid (id int PRIMARY KEY, cents bigint)")
    s3.put("others/a.csv", b"1,5\n2,7\n")
    s3.put("others/deep/b.csv", b"3,9\n")
    database.sql(f"""
        CREATE SECRET others_key AS 'test';
        CREATE SOURCE others (id int, cents bigint) WITH (
            connector = 's3', s3.region_name = 'us-east-1', s3.bucket_name = '{s3.bucket}',
            s3.endpoint_url = '{s3.endpoint}', s3.credentials.access = SECRET others_key,
            s3.credentials.secret = SECRET others_key,
            match_pattern = 'others/*.csv'
        ) FORMAT PLAIN ENCODE CSV (without_header = 'true', delimiter = ',');
        CREATE MATERIALIZED VIEW others_seen AS SELECT * FROM others;
        CREATE SINK others_out FROM others_seen WITH (
            connector = 's3', s3.region_name = 'us-east-1', s3.bucket_name = '{s3.bucket}',
            s3.endpoint_url = '{s3.endpoint}', s3.credentials.access = SECRET others_key,
            s3.credentials.secret = SECRET others_key,
            s3.path = 'others_out', type = 'append-only'
        ) FORMAT PLAIN ENCODE JSON;
        CREATE SINK others_paid FROM others_seen WITH (
            connector = 'jdbc', jdbc.url = 'jdbc:postgresql://{HOST}:{shop.port}/{shop.dbname}?user=root',
            table.name = 'paid', type = 'upsert', primary_key = 'id'
        )
    """)  # fmt: skip

    def paid() -> list[tuple[object, ...]]:
        with shop.connect() as connection:
            return connection.execute("SELECT * FROM paid ORDER BY 1").fetchall()

    eventually(lambda: paid() == [(1, 5), (2, 7), (3, 9)])
    database.sql(f"""
        CREATE SOURCE others_back (id int, cents bigint) WITH (
            connector = 'files', path = 's3://{s3.bucket}/others_out/',
            s3.endpoint = '{s3.endpoint}', s3.region = 'us-east-1', s3.access.key = SECRET others_key,
            s3.secret.key = SECRET others_key
        ) FORMAT PLAIN ENCODE JSON
    """)
    eventually(lambda: database.sql("SELECT sum(cents) FROM others_back").rows() == [(21,)])
    shown = database.sql("SHOW CREATE SINK others_paid").rows()[0][1]
    assert "'jdbc'" in shown and "jdbc.url" in shown
