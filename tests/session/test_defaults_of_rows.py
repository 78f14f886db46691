"""Defaults that have another value for each row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headrace.config import Settings
from headrace.errors import NotSupported
from headrace.session.database import Database, connect


@pytest.fixture(scope="module")
def database(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    folder: Path = tmp_path_factory.mktemp("defaults")
    with connect(folder, spark=spark, settings=Settings(data_dir=folder)) as found:
        found.sql("CREATE TABLE u (id text DEFAULT gen_random_uuid() PRIMARY KEY, x float8 DEFAULT random(), a int)")
        yield found


@pytest.mark.parametrize(
    "insert",
    [
        "INSERT INTO u (a) VALUES (1), (2), (3)",
        "INSERT INTO u VALUES (DEFAULT, DEFAULT, 1), (DEFAULT, 0.5, 2), ('one', DEFAULT, 3)",
        "INSERT INTO u (a) SELECT g FROM generate_series(1, 3) AS g(g)",
        "INSERT INTO u (a) SELECT a FROM (VALUES (1), (2), (3)) AS v(a) WHERE a > 0 RETURNING id",
        "INSERT INTO u (a) VALUES (1), (2), (3) ON CONFLICT (id) DO UPDATE SET a = excluded.a",
    ],
)
def test_each_row_gets_its_own(database: Database, insert: str) -> None:
    database.sql("DELETE FROM u")
    database.sql(insert)
    assert database.sql("SELECT count(*), count(DISTINCT id), count(DISTINCT x) FROM u").rows() == [(3, 3, 3)]


@pytest.mark.parametrize(("kind", "different"), [("VOLATILE", 3), ("IMMUTABLE", 1)])
def test_a_function_of_the_user_is_asked_for_each_row_if_it_is_volatile(
    database: Database, kind: str, different: int
) -> None:
    database.sql(
        "CREATE FUNCTION token(a int) RETURNS text LANGUAGE python "
        f"{kind} AS $$\nimport uuid\ndef token(a):\n    return str(uuid.uuid4())\n$$; "
        "CREATE TABLE called (a int, id text DEFAULT token(1))"
    )
    counted = "SELECT count(*), count(DISTINCT id) FROM called"
    for insert in (
        "INSERT INTO called (a) VALUES (1), (2), (3)",
        "INSERT INTO called (a) SELECT g FROM generate_series(1, 3) AS g(g)",
    ):
        database.sql(f"DELETE FROM called; {insert}")
        assert database.sql(counted).rows() == [(3, different)], insert
    database.sql("DROP TABLE called; DROP FUNCTION token")


def test_an_insert_of_no_rows_asks_for_none(database: Database) -> None:
    database.sql("DELETE FROM u")
    database.sql("INSERT INTO u (a) SELECT 1 WHERE false")
    assert database.sql("SELECT count(*) FROM u").rows() == [(0,)]


def test_files_that_leave_such_a_column_out_are_refused(database: Database, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("1\n2\n")
    with pytest.raises(NotSupported, match='the column "id", whose default has another value for each row'):
        database.sql(f"COPY u (a) FROM '{tmp_path / 'rows.csv'}' (FORMAT csv)")
