"""What holds for every kind of statement, whatever it does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from samples import DROP, PREPARED, SAMPLES, SETUP, kinds, samples

from headrace.errors import HeadraceError, SinkError
from headrace.session.database import Database
from headrace.session.session import Session
from headrace.sql import statements as st
from headrace.sql.parser import parse_one


@pytest.fixture(scope="module")
def kinds_db(database: Database) -> Iterator[Database]:
    database.sql(SETUP)
    yield database
    database.sql(DROP)


@pytest.fixture
def session(kinds_db: Database) -> Iterator[Session]:
    found = kinds_db.session()
    run(found, PREPARED)
    yield found
    found.close()


def run(session: Session, sql: str) -> str:
    """The SQLSTATE of a script's first error, empty where it has none."""
    try:
        for result in session.execute(sql):
            result.table()
    except HeadraceError as error:
        return error.sqlstate
    return ""


def test_every_kind_has_a_sample() -> None:
    assert kinds() == set(SAMPLES)
    for kind, texts in SAMPLES.items():
        assert all(type(parse_one(sql)) is kind for sql in texts)


def test_a_kind_must_say_whether_it_writes() -> None:
    with pytest.raises(TypeError):
        type("Silent", (st.Statement,), {})


@pytest.mark.parametrize("sql", samples())
def test_a_read_only_transaction_writes_nothing(kinds_db: Database, session: Session, sql: str) -> None:
    objects = dict(kinds_db.catalog.state.objects)
    jobs = {i: job.status for i, job in kinds_db.catalog.state.jobs.items()}
    rows = kinds_db.sql("SELECT * FROM kinds_t").rows()
    assert run(session, "BEGIN READ ONLY") == ""
    state = run(session, sql)
    run(session, "COMMIT")
    assert kinds_db.catalog.state.objects == objects
    assert {i: job.status for i, job in kinds_db.catalog.state.jobs.items()} == jobs
    assert kinds_db.sql("SELECT * FROM kinds_t").rows() == rows
    statement = parse_one(sql)
    assert (state == "25006") == (statement.writes or isinstance(statement, st.Execute)), state


@pytest.mark.parametrize("sql", [sql for kind, texts in SAMPLES.items() if not kind.writes for sql in texts])
def test_columns_are_described_as_they_come(session: Session, sql: str) -> None:
    compare(session, sql)


@pytest.mark.parametrize("sql", [sql for kind in (st.Insert, st.Update, st.Delete) for sql in SAMPLES[kind]])
def test_columns_that_writes_return_are_described_as_they_come(session: Session, sql: str) -> None:
    run(session, "BEGIN")
    compare(session, sql)
    run(session, "ROLLBACK")


def compare(session: Session, sql: str) -> None:
    prepared = session.prepare(sql)
    try:
        result = prepared.execute([])
    except HeadraceError as error:
        assert error.sqlstate in ("0A000", "25P01", "55000", SinkError.sqlstate)
        return
    assert prepared.columns == (None if result.copy is not None else result.columns)
    if result.columns is not None:
        assert [c.name for c in result.columns] == result.table().column_names
