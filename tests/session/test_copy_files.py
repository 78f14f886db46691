"""COPY to and from files and object stores: what is there when it is done, and that nothing is where it is not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import fastavro
import pyarrow.parquet
import pytest

from headrace.connectors.files import folders
from headrace.errors import DuplicateObject, HeadraceError, InsufficientPrivilege
from headrace.session.database import Database
from headrace.session.session import Session
from object_server import S3Server

COLUMNS = (
    "(id int PRIMARY KEY, name text, price numeric(10,2), at timestamptz, day date, ok boolean, f double precision)"
)


@pytest.fixture(scope="module")
def items(database: Database) -> Iterator[Database]:
    database.sql(f"CREATE TABLE items {COLUMNS}")
    database.sql(
        "INSERT INTO items SELECT i, CASE WHEN i % 7 = 0 THEN NULL WHEN i % 5 = 0 THEN '' "
        "ELSE 'a \"' || i || E'\",\\n' END, i / 4.0, timestamptz '2024-01-01 00:00:00.25Z' + i * interval '1 hour', "
        "date '2024-01-01' + i, i % 2 = 0, i / 3.0::float FROM generate_series(1, 500) AS g(i)"
    )
    yield database


@pytest.fixture
def options(database: Database, s3: S3Server) -> Iterator[str]:
    """Of the store; Spark's workers were started before there were keys in the environment."""
    database.sql("CREATE SECRET store_key AS 'test'")
    given = "".join(f", {name} '{value}'" for name, value in {**s3.options, "s3.access.key": "test"}.items())
    yield f"{given}, s3.secret.key SECRET store_key"
    database.sql("DROP SECRET store_key")


def tags(session: Session, sql: str) -> list[str]:
    return [result.tag for result in session.execute(sql)]


def same(database: Database, one: str, other: str) -> bool:
    left = (f"SELECT * FROM {one} EXCEPT SELECT * FROM {other}", f"SELECT * FROM {other} EXCEPT SELECT * FROM {one}")
    return not any(database.sql(sql).rows() for sql in left)


@pytest.mark.parametrize("form", ["parquet", "csv", "json"])
@pytest.mark.parametrize("place", ["directory", "s3"])
def test_there_and_back(items: Database, tmp_path: Path, s3: S3Server, options: str, form: str, place: str) -> None:
    at, more = (str(tmp_path / "out"), "") if place == "directory" else (f"s3://{s3.bucket}/back/{form}", options)
    packed = {"csv": ", compression gzip", "json": ", compression zstd"}.get(form, "") if place == "directory" else ""
    assert items.sql(f"COPY items TO '{at}' (FORMAT {form}{packed}{more})").tag == "COPY 500"
    back = f"back_{place}_{form}"
    items.sql(f"CREATE TABLE {back} {COLUMNS}")
    assert items.sql(f"COPY {back} FROM '{at}' WITH (FORMAT {form}{more})").tag == "COPY 500"
    assert same(items, "items", back)
    with pytest.raises(DuplicateObject, match="is not empty"):
        items.sql(f"COPY items TO '{at}' (FORMAT {form}{more})")
    if place == "directory":
        found = json.loads((tmp_path / "out" / folders.MANIFEST).read_text())
        assert found["rows"] == 500 == sum(f["rows"] for f in found["files"])
        names = {f["name"]: f["bytes"] for f in found["files"]}
        assert names == {p.name: p.stat().st_size for p in (tmp_path / "out").iterdir() if p.name != folders.MANIFEST}
        assert {p.suffix for p in tmp_path.glob("out/part*")} == {{"csv": ".gz", "json": ".zst"}.get(form, ".parquet")}
        assert [p.name for p in tmp_path.iterdir()] == ["out"], "nothing is left beside it"


def test_a_query_and_some_columns(items: Database, tmp_path: Path) -> None:
    sql = f"COPY (SELECT id, price * 2 AS twice FROM items WHERE id <= 3) TO 'file://{tmp_path}/q' (FORMAT PARQUET)"
    assert items.sql(sql).tag == "COPY 3"
    rows = [r for p in (tmp_path / "q").glob("*.parquet") for r in pyarrow.parquet.read_table(p).to_pylist()]
    assert sorted((r["id"], r["twice"]) for r in rows) == [(i, Decimal(i) / 2) for i in (1, 2, 3)]
    items.sql("CREATE TABLE picked (id int, twice numeric(10,2), more text DEFAULT 'x')")
    assert items.sql(f"COPY picked (id, twice) FROM '{tmp_path}/q/*.parquet'").tag == "COPY 3"
    assert sorted(items.sql("SELECT id, more FROM picked").rows()) == [(1, "x"), (2, "x"), (3, "x")]
    assert (
        items.sql(f"COPY (SELECT id FROM items WHERE id < 0) TO '{tmp_path}/none' (FORMAT csv, HEADER)").tag == "COPY 0"
    )
    (file,) = (tmp_path / "none").glob("*.csv")
    assert file.read_text() == '"id"\n'


def test_avro_files_are_copied_in(items: Database, tmp_path: Path) -> None:
    schema = {
        "type": "record",
        "name": "Row",
        "fields": [{"name": "name", "type": "string"}, {"name": "id", "type": "long"}],
    }
    with (tmp_path / "a.avro").open("wb") as file:
        fastavro.writer(file, schema, [{"id": i, "name": f"n{i}"} for i in range(3)], codec="deflate")
    items.sql("CREATE TABLE from_avro (id int, name text)")
    assert items.sql(f"COPY from_avro FROM '{tmp_path}' (FORMAT avro)").tag == "COPY 3"
    assert sorted(items.sql("SELECT * FROM from_avro").rows()) == [(0, "n0"), (1, "n1"), (2, "n2")]
    with pytest.raises(HeadraceError, match="avro"):
        items.sql(f"COPY from_avro TO '{tmp_path}/out' (FORMAT avro)")


def test_a_transaction_takes_it_back(items: Database, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('1,"two\nlines"\n2,\n3,""\n')
    items.sql("CREATE TABLE taken (id int, name text)")
    session = items.session()
    assert tags(session, f"BEGIN; COPY taken FROM '{tmp_path}'; ROLLBACK") == ["BEGIN", "COPY 3", "ROLLBACK"]
    session.close()
    assert items.sql("SELECT * FROM taken").rows() == []
    items.sql(f"COPY taken FROM '{tmp_path}/a.csv' (FORMAT csv)")
    assert sorted(items.sql("SELECT * FROM taken").rows()) == [(1, "two\nlines"), (2, None), (3, "")]


def test_what_does_not_fit_writes_nothing(items: Database, tmp_path: Path) -> None:
    items.sql("CREATE TABLE strict (id int PRIMARY KEY, name text NOT NULL)")
    (tmp_path / "a.json").write_text('{"id": 1, "name": "a"}\n{"id": 2}\n')
    with pytest.raises(HeadraceError, match='null value in column "name"'):
        items.sql(f"COPY strict FROM '{tmp_path}'")
    (tmp_path / "a.json").write_text('{"id": 1, "name": "a"}\n{"id": "x", "name": "b"}\n')
    with pytest.raises(HeadraceError, match=r"a\.json, line 2, column id") as caught:
        items.sql(f"COPY strict FROM '{tmp_path}'")
    assert caught.value.hint == "mend the file: either all of its rows are copied or none", (
        "there is no source to alter"
    )
    assert items.sql("SELECT * FROM strict").rows() == []
    with pytest.raises(HeadraceError, match="there is no file to copy") as caught:
        items.sql(f"COPY strict FROM '{tmp_path}/*.parquet'")
    assert caught.value.sqlstate == "58P01"


@pytest.mark.parametrize("form", ["", "FORMAT json, "])
def test_an_option_that_no_file_has_is_refused(items: Database, tmp_path: Path, form: str) -> None:
    items.sql("CREATE TABLE IF NOT EXISTS mixed (id int)")
    (tmp_path / "a.json").write_text('{"id": 900}\n')
    with pytest.raises(HeadraceError, match="option header is for csv, not for json"):
        items.sql(f"COPY mixed FROM '{tmp_path}' ({form}header true)")
    (tmp_path / "b.csv").write_text("id\n901\n")
    if not form:
        items.sql(f"COPY mixed FROM '{tmp_path}' (header true)")
        assert items.sql("SELECT * FROM mixed ORDER BY id").rows() == [(900,), (901,)]


def test_a_query_that_fails_leaves_nothing(items: Database, tmp_path: Path, s3: S3Server, options: str) -> None:
    for at, more in ((str(tmp_path / "out"), ""), (f"s3://{s3.bucket}/failed", options)):
        with pytest.raises(HeadraceError, match="division by zero"):
            items.sql(f"COPY (SELECT 1 / (id - 250) FROM items) TO '{at}' (FORMAT csv{more})")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(HeadraceError, match="there is no file to copy"):
        items.sql(f"COPY items FROM 's3://{s3.bucket}/failed/' (FORMAT csv{options})")


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("COPY items TO '/tmp/x'", "option format is required"),
        ("COPY items TO '/tmp/x' (FORMAT binary)", "option format must be one of parquet, json, csv"),
        (
            "COPY items TO '/tmp/x' (FORMAT csv, compression snappy)",
            "compression = 'snappy' is for parquet, not for csv",
        ),
        ("COPY items TO '/tmp/x.csv' (FORMAT csv)", "COPY writes no single file"),
        ("COPY items TO 'x' (FORMAT csv)", "relative path not allowed"),
        ("COPY items FROM 'x' (FORMAT csv)", "relative path not allowed"),
        ("COPY items TO '/tmp/x' (FORMAT csv, colour red)", 'option "colour" of COPY is not known'),
        ("COPY items FROM '/tmp/x' (FORMAT csv, replay_column at)", 'option "replay_column" of COPY is not known'),
        ("COPY items FROM '/tmp/x' (FORMAT csv) WHERE id > 1", "WHERE in COPY FROM"),
        ("COPY items TO 's3://b/x' (FORMAT csv, s3.secret.key 'open')", "has to be a secret"),
        ("COPY items FROM 's3://b/x' (FORMAT csv, s3.secret.key 'open')", "has to be a secret"),
        ("COPY items TO 's3://b/x' (FORMAT csv, s3.secret.key SECRET none)", 'secret "none" does not exist'),
        ("COPY (SELECT 1 AS a, 2 AS a) TO '/tmp/x' (FORMAT json)", 'column "a" specified more than once'),
        ("COPY (SELECT array[1] AS a) TO '/tmp/x' (FORMAT csv)", "in CSV"),
        ("COPY (SELECT 1) FROM '/tmp/x' (FORMAT csv)", "goes TO a place"),
        ("COPY items TO '/tmp/x' (FORMAT csv, FORMAT json)", "a second value for the option format"),
        ("COPY items FROM PROGRAM 'ls'", "a program of the server"),
        ("COPY (SELECT * FROM pg_class) TO '/tmp/x' (FORMAT csv)", "system catalogs"),
    ],
)
def test_what_is_refused(items: Database, sql: str, message: str) -> None:
    with pytest.raises(HeadraceError, match=message):
        items.sql(sql)


def test_files_take_rights_of_their_own(items: Database, tmp_path: Path) -> None:
    items.sql("CREATE ROLE copier LOGIN; GRANT ALL ON items TO copier")
    session = items.session(user="copier")
    for sql, role in (
        (f"COPY items TO '{tmp_path}/o' (FORMAT csv)", "pg_write_server_files"),
        (f"COPY items FROM '{tmp_path}' (FORMAT csv)", "pg_read_server_files"),
    ):
        with pytest.raises(InsufficientPrivilege, match="permission denied to COPY") as caught:
            tags(session, sql)
        assert role in (caught.value.hint or "")
    items.sql("GRANT pg_write_server_files, pg_read_server_files TO copier")
    assert tags(session, f"COPY items TO '{tmp_path}/o' (FORMAT csv)") == ["COPY 500"]
    session.close()
