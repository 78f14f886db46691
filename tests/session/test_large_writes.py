"""Writes that Spark's tasks compute come to the same as those that go through the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace.dataflow.operators import table_write
from headrace.errors import HeadraceError, NotNullViolation
from headrace.session.database import Database
from headrace.session.execution import dml, large_writes
from headrace.session.session import Session

SETUP = """
    CREATE TABLE {t}_k (id int PRIMARY KEY, n bigint DEFAULT 7, t text NOT NULL, p numeric(10,2) DEFAULT 1.5);
    CREATE TABLE {t}_c (t text PRIMARY KEY, n int) ON CONFLICT IGNORE;
    CREATE TABLE {t}_r (n int, t text NOT NULL);
    CREATE TABLE {t}_f (id int, n int);
    INSERT INTO {t}_k SELECT id, id % 10, 't' || id, NULL FROM generate_series(1, 300) AS g(id);
    INSERT INTO {t}_c SELECT 't' || id, id FROM generate_series(1, 50) AS g(id);
    INSERT INTO {t}_r SELECT id % 7, 'r' || id % 3 FROM generate_series(1, 300) AS g(id);
    INSERT INTO {t}_f SELECT id % 100, id FROM generate_series(51, 250) AS g(id);
"""
STATEMENTS = """
UPDATE {t}_k SET n = n + 1, t = t || '!' WHERE id % 3 = 0
UPDATE {t}_k SET id = id + 1
UPDATE {t}_k SET id = id + 300 WHERE id % 2 = 0
UPDATE {t}_k SET id = -id, n = id
UPDATE {t}_k SET n = DEFAULT, p = DEFAULT WHERE id < 20
UPDATE {t}_k SET n = NULL WHERE n = 3
UPDATE {t}_k SET t = NULL WHERE id = 299
UPDATE {t}_k SET n = 1 WHERE false
UPDATE {t}_k k SET n = 1000 FROM {t}_f f WHERE f.id = k.id
UPDATE {t}_r SET n = n + 1 WHERE t = 'r1'
UPDATE {t}_r SET n = 9223372036854775807 WHERE n = 1
UPDATE {t}_r SET t = 'r0'
DELETE FROM {t}_r WHERE n > 3
DELETE FROM {t}_r
DELETE FROM {t}_k WHERE id IN (SELECT id FROM {t}_f)
DELETE FROM {t}_k k USING {t}_f f WHERE k.id = f.id
DELETE FROM {t}_k WHERE n = (SELECT max(n) FROM {t}_k)
INSERT INTO {t}_k SELECT id + 250, 5, 'new' FROM {t}_k
INSERT INTO {t}_k (t, id) SELECT t, id + 200 FROM {t}_k ON CONFLICT DO NOTHING
INSERT INTO {t}_c SELECT 't' || n, n FROM {t}_f
INSERT INTO {t}_r SELECT n, t FROM {t}_r
INSERT INTO {t}_r (t) SELECT t FROM {t}_r WHERE n = 1
INSERT INTO {t}_k (id) SELECT id + 500 FROM {t}_k
INSERT INTO {t}_k SELECT id, n FROM {t}_k
INSERT INTO {t}_k (id, t) SELECT id FROM {t}_k
INSERT INTO {t}_r SELECT n, t, 1 FROM {t}_r
INSERT INTO {t}_r SELECT n * 1000000000, t FROM {t}_r
INSERT INTO {t}_r SELECT 1, 'x' WHERE false
""".strip().splitlines()
TABLES = ("k", "c", "r", "f")


@pytest.fixture(scope="module")
def session(database: Database) -> Iterator[Session]:
    made = database.session()
    yield made
    made.close()


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several chunks in a task, several tasks in a write."""
    made = table_write.WriteChanges

    def chunked(*arguments: Any) -> Any:
        return made(*arguments, chunk_rows=7)

    monkeypatch.setattr(large_writes, "WriteChanges", chunked)


def rows(session: Session, sql: str) -> list[Any]:
    *_, last = session.execute(sql)
    return sorted(map(repr, (tuple(row.values()) for row in last.table().to_pylist())))


def outcome(session: Session, sql: str) -> str:
    try:
        *_, last = session.execute(sql)
        return last.tag
    except HeadraceError as error:
        list(session.execute("ROLLBACK"))
        return error.sqlstate


def counted(large: list[str], name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*arguments: Any, **named: Any) -> Any:
        large.append(name)
        return function(*arguments, **named)

    return run


@pytest.mark.timeout(900)
def test_large_writes_are_those_of_the_server(
    session: Session, monkeypatch: pytest.MonkeyPatch, small_chunks: None
) -> None:
    """Each statement on top of those before it, on two sets of tables: rows, tags and errors are the same."""
    names = ("large", "small")
    for name in names:
        list(session.execute(SETUP.format(t=name)))
    large: list[str] = []
    for kind in ("insert_large", "update_large", "delete_large"):
        monkeypatch.setattr(dml, kind, counted(large, kind, getattr(dml, kind)))
    for sql in STATEMENTS:
        monkeypatch.setattr(dml, "ROWS_AT_MOST", -1)
        list(session.execute("BEGIN"))
        before = len(large)
        found = outcome(session, sql.format(t="large"))
        # What names one row by its key is looked up, however large the table is.
        assert len(large) > before or found[0].isdigit() or "WHERE id = " in sql, sql
        shown = {t: rows(session, f"SELECT * FROM large_{t}") for t in TABLES} if session.context.transaction else {}
        if session.context.transaction is not None:
            list(session.execute("COMMIT"))
        monkeypatch.setattr(dml, "ROWS_AT_MOST", 1 << 60)
        text = sql.format(t="small")
        wanted = outcome(session, text + " RETURNING *" if text.startswith("INSERT") else text)
        assert found == wanted, sql
        for table in TABLES:
            content = rows(session, f"SELECT * FROM large_{table}")
            assert content == rows(session, f"SELECT * FROM small_{table}"), (sql, table)
            assert not shown or shown[table] == content, "the transaction has seen its own writes"
    assert {"insert_large", "update_large", "delete_large"} == set(large)


def test_a_missing_value_is_told_with_its_row(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    list(session.execute("CREATE TABLE told (b text NOT NULL, id int PRIMARY KEY, n numeric(10,2))"))
    list(session.execute("INSERT INTO told VALUES ('x', 1, 2.5), ('y', 2, NULL)"))
    for most in (-1, 1 << 60):
        monkeypatch.setattr(dml, "ROWS_AT_MOST", most)
        for sql in (
            "UPDATE told SET b = NULL WHERE id > 1",
            "INSERT INTO told (id, n, b) SELECT id + 9, n, CASE WHEN id > 1 THEN NULL ELSE b END FROM told",
        ):
            with pytest.raises(NotNullViolation) as raised:
                list(session.execute(sql))
            told.append((raised.value.message, raised.value.detail))
    message = 'null value in column "b" of relation "told" violates not-null constraint'
    assert (
        told
        == [(message, "Failing row contains (null, 2, null)."), (message, "Failing row contains (null, 11, null).")] * 2
    )


def test_views_follow_large_writes_exactly(
    session: Session, monkeypatch: pytest.MonkeyPatch, small_chunks: None
) -> None:
    monkeypatch.setattr(dml, "ROWS_AT_MOST", -1)
    session_sql = "SELECT n % 3 AS g, count(*) AS c, sum(n) AS s, min(t) AS low FROM viewed GROUP BY n % 3"
    list(session.execute(
        "CREATE TABLE viewed (id int PRIMARY KEY, n bigint, t text);"
        f"CREATE MATERIALIZED VIEW v_viewed AS {session_sql};"
        "INSERT INTO viewed SELECT id, id, 't' || id FROM generate_series(1, 200) AS g(id);"
        "UPDATE viewed SET n = n * 2 WHERE id % 2 = 0; UPDATE viewed SET id = id + 100;"
        "DELETE FROM viewed WHERE n % 5 = 0; FLUSH"
    ))  # fmt: skip
    found = rows(session, "SELECT * FROM v_viewed")
    assert found == rows(session, session_sql) and len(found) == 3


def test_a_task_that_fails_leaves_nothing(
    session: Session, database: Database, monkeypatch: pytest.MonkeyPatch, small_chunks: None
) -> None:
    monkeypatch.setattr(dml, "ROWS_AT_MOST", -1)
    list(session.execute(
        "CREATE TABLE failing (id int PRIMARY KEY, n int);"
        "INSERT INTO failing SELECT id, id FROM generate_series(1, 200) AS g(id)"
    ))  # fmt: skip
    before = rows(session, "SELECT * FROM failing")
    runs = len(database.catalog.state.runs)
    assert outcome(session, "UPDATE failing SET n = 1 / (id - 150), id = id + 1") == "22012"
    assert outcome(session, "INSERT INTO failing SELECT id + 1000, 1 / (id - 150) FROM failing") == "22012"
    assert rows(session, "SELECT * FROM failing") == before
    assert len(database.catalog.state.runs) <= runs
    assert outcome(session, "UPDATE failing SET n = 0") == "UPDATE 200"


def test_large_writes_conflict_like_others(
    session: Session, database: Database, monkeypatch: pytest.MonkeyPatch, small_chunks: None
) -> None:
    """What a large write has read as a whole must not have changed; a statement by itself is run again."""
    list(session.execute("CREATE TABLE pair (id int PRIMARY KEY, n int); INSERT INTO pair VALUES (1, 1), (2, 2)"))
    monkeypatch.setattr(dml, "ROWS_AT_MOST", -1)
    other = database.session()
    list(session.execute("BEGIN; UPDATE pair SET n = n + 1"))
    list(other.execute("UPDATE pair SET n = 10 WHERE id = 1"))
    assert outcome(session, "COMMIT") == "40001"
    assert rows(session, "SELECT * FROM pair") == ["(1, 10)", "(2, 2)"]
    once: list[int] = []
    compute = dml.update_large

    def interrupted(*arguments: Any, **named: Any) -> Any:
        written = compute(*arguments, **named)
        if not once:
            once.append(1)
            list(other.execute("UPDATE pair SET n = 20 WHERE id = 1"))
        return written

    monkeypatch.setattr(dml, "update_large", interrupted)
    assert outcome(session, "UPDATE pair SET n = n + 1") == "UPDATE 2"
    assert rows(session, "SELECT * FROM pair") == ["(1, 21)", "(2, 3)"]
    other.close()


def test_rows_of_one_table_go_past_java_unless_a_kernel_is_in_doubt(
    session: Session, database: Database, monkeypatch: pytest.MonkeyPatch, small_chunks: None
) -> None:
    """With the multiplicity of rows, the transaction's own among them; an error is Spark's, and leaves nothing."""
    by_kernels: list[bool] = []
    way = large_writes._written_by_kernels

    def watched(*arguments: Any) -> Any:
        found = way(*arguments)
        by_kernels.append(found is not None)
        return found

    monkeypatch.setattr(large_writes, "_written_by_kernels", watched)
    list(session.execute(
        "CREATE TABLE given (n bigint, t text); CREATE TABLE taken (t text, n bigint NOT NULL, d int DEFAULT 4);"
        "INSERT INTO given SELECT id % 50, 't' || id % 3 FROM generate_series(1, 300) AS g(id)"
    ))  # fmt: skip
    by_kernels.clear()
    list(session.execute("BEGIN; INSERT INTO given VALUES (1000, NULL)"))
    assert outcome(session, "INSERT INTO taken (n, t) SELECT n + 1, t FROM given WHERE n > 20") == "INSERT 0 175"
    list(session.execute("COMMIT"))
    assert by_kernels == [True]
    assert rows(session, "SELECT * FROM taken") == rows(session, "SELECT t, n + 1 AS n, 4 AS d FROM given WHERE n > 20")
    runs = len(database.catalog.state.runs)
    assert outcome(session, "INSERT INTO taken SELECT t, n * 9223372036854775807 FROM given") == "22003"
    assert outcome(session, "INSERT INTO taken SELECT t, NULL FROM given") == "23502"
    assert by_kernels == [True, False, False]
    assert len(database.catalog.state.runs) <= runs
    assert outcome(session, "INSERT INTO taken SELECT t, count(*) FROM given GROUP BY t") == "INSERT 0 4"
