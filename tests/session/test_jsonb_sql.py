"""`jsonb` in a whole database: columns, changes, views, parameters and the wire."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from clients import check_views_follow
from headrace.errors import DataError, NotSupported
from headrace.server import ServerThread
from headrace.session.database import Database

ROWS = """
(1, '{"b": 1.0, "a": [1, 2, {"x": "y"}], "k": "p"}'), (2, '{"b": 1, "k": "q"}'), (3, NULL), (4, '[3, 1]'),
(5, '{"k": "p", "b": 1}'), (6, '{"b": 1.00, "k": "q"}')
"""


@pytest.fixture
def table(database: Database) -> Any:
    database.sql("CREATE TABLE documents (id int PRIMARY KEY, j jsonb DEFAULT '{\"d\":  [1]}')")
    database.sql(f"INSERT INTO documents VALUES {ROWS}")
    yield database
    database.sql("DROP TABLE documents CASCADE")


def test_documents_are_stored_normalised(table: Database) -> None:
    table.sql("INSERT INTO documents (id) VALUES (7)")
    table.sql("INSERT INTO documents SELECT 8, to_jsonb('x'::text)")
    assert table.sql("SELECT j FROM documents WHERE id IN (1, 7, 8) ORDER BY id").rows() == [
        ('{"a": [1, 2, {"x": "y"}], "b": 1.0, "k": "p"}',), ('{"d": [1]}',), ('"x"',),
    ]  # fmt: skip
    with pytest.raises(DataError) as found:
        table.sql("INSERT INTO documents VALUES (9, '{')")
    assert found.value.sqlstate == "22P02"


def test_documents_are_changed_by_what_is_in_them(table: Database) -> None:
    table.sql("UPDATE documents SET j = jsonb_set(j, '{b}', '2') || '{\"n\": true}' WHERE j @> '{\"k\": \"p\"}'")
    assert table.sql("SELECT j FROM documents WHERE id = 5").rows() == [('{"b": 2, "k": "p", "n": true}',)]
    table.sql("DELETE FROM documents WHERE j ? 'n' OR j = '[3, 1.0]'")
    assert table.sql("SELECT id FROM documents ORDER BY id").rows() == [(2,), (3,), (6,)]


VIEWS = {
    "parts": "SELECT id, j ->> 'k' AS k, (j -> 'b')::numeric AS b, jsonb_typeof(j) AS t FROM documents",
    "grouped": "SELECT j -> 'b' AS b, count(*) AS n, jsonb_agg(id ORDER BY id) AS ids FROM documents GROUP BY j -> 'b'",
    "distinct_ones": "SELECT DISTINCT j - 'a' AS j FROM documents",
    "joined": "SELECT a.id AS a, b.id AS b FROM documents AS a JOIN documents AS b ON a.j -> 'k' = b.j -> 'k'",
    "elements": "SELECT id, e FROM documents, jsonb_array_elements(CASE jsonb_typeof(j) WHEN 'array' THEN j END) AS e",
    "first_ones": "SELECT id, j FROM documents ORDER BY j DESC, id LIMIT 2",
}


def test_views_follow_changes(table: Database) -> None:
    """After inserts, updates and deletes each view has what its query has."""
    changes = (
        "SELECT 1",
        "UPDATE documents SET j = j || '{\"b\": 5}' WHERE id IN (1, 2)",
        "DELETE FROM documents WHERE id = 6; INSERT INTO documents VALUES (9, '[1, {\"z\": 0}]'), (10, '{\"b\": 5.0}')",
        "UPDATE documents SET j = NULL WHERE id = 4; DELETE FROM documents WHERE id = 10",
    )
    check_views_follow(table, VIEWS, changes)


def test_what_cannot_be_is_refused(table: Database) -> None:
    for statement in (
        "CREATE TABLE keyed (j jsonb PRIMARY KEY)", "CREATE INDEX by_document ON documents (j)",
        "SELECT 1 FROM documents AS a LEFT JOIN documents AS b ON a.j || b.j = '{}'",
        "SELECT ARRAY['1', '2']::text[]::jsonb[]", "SELECT jsonb_agg(DISTINCT j) FROM documents",
    ):  # fmt: skip
        with pytest.raises(NotSupported) as found:
            table.sql(statement)
        assert "Spark" not in str(found.value) and "UDF" not in str(found.value)


@pytest.mark.parametrize("binary", [False, True])
def test_documents_over_the_wire(table: Database, server: ServerThread, binary: bool) -> None:
    with psycopg.connect(host="127.0.0.1", port=server.port, user="root", dbname="dev", autocommit=True) as connection:
        cursor = connection.cursor(binary=binary)
        cursor.execute("INSERT INTO documents VALUES (20, %b)" if binary else "INSERT INTO documents VALUES (20, %t)",
                       [Jsonb({"z": 1, "a": [1.5, None]})])  # fmt: skip
        cursor.execute(
            "SELECT j, j -> 'a', ARRAY[j -> 'z'] FROM documents WHERE j = %s", [Jsonb({"a": [1.50, None], "z": 1})]
        )
        assert cursor.fetchall() == [({"a": [1.5, None], "z": 1}, [1.5, None], [1])]
        assert [column.type_code for column in cursor.description or ()] == [3802, 3802, 3807]


def test_zeros_of_exponents_are_bounded_on_every_way_in(table: Database, server: ServerThread) -> None:
    """Literals, parameters, casts in the server and in Spark, and COPY refuse the same document."""
    many = "[" + ", ".join(["1e999"] * 50) + "]"
    table.sql("CREATE TABLE texts (id int PRIMARY KEY, t text)")
    table.sql(f"INSERT INTO texts VALUES (1, '{many}')")
    ways: tuple[tuple[str, tuple[str, ...]], ...] = (
        (f"SELECT '{many}'::jsonb", ()),
        (f"INSERT INTO documents VALUES (30, '{many}')", ()),
        ("INSERT INTO documents VALUES (30, %s)", (many,)),
        ("SELECT %s::jsonb", (many,)),
        ("SELECT t::jsonb FROM texts", ()),
        ("SELECT t::jsonb, count(*) FROM texts GROUP BY t", ()),
        ("UPDATE documents SET j = t::jsonb FROM texts WHERE documents.id = 1", ()),
    )
    try:
        with psycopg.connect(
            host="127.0.0.1", port=server.port, user="root", dbname="dev", autocommit=True
        ) as connection:
            for statement, parameters in ways:
                with pytest.raises(psycopg.errors.ProgramLimitExceeded, match="too many zeros"):
                    connection.execute(statement, parameters)
            with (
                pytest.raises(psycopg.errors.ProgramLimitExceeded, match="too many zeros"),
                connection.cursor().copy("COPY documents FROM STDIN") as copy,
            ):
                copy.write_row((30, many))
            assert connection.execute("SELECT count(*) FROM documents WHERE id = 30").fetchall() == [(0,)]
    finally:
        table.sql("DROP TABLE texts")
