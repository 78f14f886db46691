"""What holds for every kind of statement, whatever it does."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from samples import DROP, PREPARED, SAMPLES, SETUP, kinds, samples

from headrace import session as session_package
from headrace.errors import HeadraceError, SinkError, SourceError
from headrace.session.database import Database
from headrace.session.execution.handler import nothing
from headrace.session.handlers import HANDLERS, by_kind
from headrace.session.session import Session
from headrace.sql import statements as st
from headrace.sql.parser import parse_one

SESSION = Path(session_package.__file__).parent
ROW_CHANGES = (st.Insert, st.Update, st.Delete)
DEFINING = [kind for kind in SAMPLES if kind.writes and kind not in ROW_CHANGES]


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


def test_every_kind_has_one_handler() -> None:
    assert HANDLERS.keys() == kinds()
    assert {k for k, handler in HANDLERS.items() if handler.plan is not nothing} == {k for k in kinds() if k.preparable}
    with pytest.raises(ValueError, match="Flush has two handlers"):
        by_kind(iter([HANDLERS[st.Wait], HANDLERS[st.Flush], HANDLERS[st.Flush]]))


ASKED = {
    "session.py": ["Empty"],  # a script is more than one statement without those
    "execution/row_writes.py": ["Insert", "Update"],  # of the three that change rows
    "pipelines/pipeline_graph.py": ["CreateTable", "CreateSource"],  # of the two that a pipeline declares
}
"""Which modules ask for the class of a statement."""


def test_only_handlers_ask_for_the_class_of_a_statement() -> None:
    """What depends on the kind of statement stands in its handler: whoever adds a kind finds it there."""
    names = {kind.__name__ for kind in kinds()}
    found: dict[str, list[str]] = {}
    for path in sorted(SESSION.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
                asked = [node.args[1]]
            elif isinstance(node, ast.Dict):
                asked = [key for key in node.keys if key is not None]
            elif isinstance(node, ast.Compare):
                asked = node.comparators
            else:
                continue
            inner = [n for part in asked for n in ast.walk(part) if isinstance(n, ast.Attribute)]
            of_kinds = [n.attr for n in inner if n.attr in names and ast.unparse(n.value) == "st"]
            if of_kinds:
                found.setdefault(path.relative_to(SESSION).as_posix(), []).extend(of_kinds)
    assert found == ASKED


@pytest.mark.parametrize("kind", [st.Kill, st.Unlisten, st.Discard, st.CancelJobs, st.AlterSystem, st.Deallocate])
def test_a_statement_stands_in_three_files(kind: type[st.Statement]) -> None:
    """Its record, its reader, and the module that carries it out: docs/EXTENDING.md counts them."""
    name = re.compile(rf"\bst\.{kind.__name__}\b|^class {kind.__name__}\b", re.MULTILINE)
    found = [path.relative_to(SESSION.parent) for path in SESSION.parent.rglob("*.py") if name.search(path.read_text())]
    assert len(found) == 3, found
    assert Path("sql/statements.py") in found
    assert {path.parts[0] for path in found} == {"sql", "session"}


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


@pytest.mark.parametrize("sql", samples())
def test_a_failed_transaction_only_ends(session: Session, sql: str) -> None:
    assert run(session, "BEGIN") == ""
    assert run(session, "SELECT nothing_like_that") == "42703"
    assert (run(session, sql) == "25P02") == (type(parse_one(sql)) not in (st.Commit, st.Rollback))
    run(session, "ROLLBACK")


@pytest.mark.parametrize("sql", [sql for kind, texts in SAMPLES.items() if not kind.writes for sql in texts])
def test_columns_are_described_as_they_come(session: Session, sql: str) -> None:
    compare(session, sql)


@pytest.mark.parametrize("sql", [sql for kind in ROW_CHANGES for sql in SAMPLES[kind]])
def test_columns_that_writes_return_are_described_as_they_come(session: Session, sql: str) -> None:
    run(session, "BEGIN")
    compare(session, sql)
    run(session, "ROLLBACK")


@pytest.mark.parametrize("sql", [sql for kind in DEFINING for sql in SAMPLES[kind]])
def test_columns_of_definitions_are_described_as_they_come(kinds_db: Database, session: Session, sql: str) -> None:
    compare(session, sql, "42704", "42501", "2BP01", SourceError.sqlstate)  # a view is built on kinds_t
    restore(session, sql)


def told(session: Session, sql: str) -> str | None:
    """What a client is told of a statement; None where it is refused."""
    tag = None
    try:
        for result in session.execute(sql):
            if result.sink is not None:
                result = result.sink.finish()
            result.table()
            tag = result.tag
    except HeadraceError:
        pass
    return tag


MORE_TAGS = """
    BEGIN; SAVEPOINT s; RELEASE s; SAVEPOINT s; ROLLBACK TO s; ROLLBACK; SET TRANSACTION READ ONLY; DISCARD ALL;
    PREPARE kinds_q AS SELECT 1; DEALLOCATE kinds_q; BEGIN; DECLARE kinds_e CURSOR FOR SELECT a FROM kinds_t;
    MOVE ALL FROM kinds_e; CLOSE kinds_e; COMMIT; CREATE TABLE IF NOT EXISTS kinds_t (a int);
    CREATE AGGREGATE kinds_g(x int) RETURNS int LANGUAGE python AS 'return len(x)'; DROP FUNCTION IF EXISTS kinds_g;
    DROP VIEW IF EXISTS nothing_there; ALTER SECRET IF EXISTS nothing_there AS 'x'; CREATE SCHEMA kinds_n;
    DROP SCHEMA kinds_n; SET LOCAL ROLE root
"""
"""Statements whose tags depend on more than their kind."""


@pytest.mark.parametrize("sql", [*samples(), *(s.strip() for s in MORE_TAGS.split(";"))])
def test_a_client_is_told_what_the_record_declares(kinds_db: Database, session: Session, sql: str) -> None:
    statement = parse_one(sql)
    if statement.writes or isinstance(statement, st.Commit):
        run(session, "BEGIN")
    tag = told(session, sql)
    run(session, "ROLLBACK")
    restore(session, sql)
    if tag is not None and not isinstance(statement, st.Execute):  # which is told as what it executes
        declared, number = re.escape(statement.tag), r"( \d+)?" if statement.counts else ""
        assert re.fullmatch(declared + number, tag), tag


def test_no_tag_stands_anywhere_else() -> None:
    """A result is made with the tag of its statement, so that a kind's tag is found at its record."""
    found = []
    for path in sorted(SESSION.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("Result", "RowResult", "rows_result"):
                first = node.args[0] if node.args else ast.Constant("")
                told_here = [n.value for n in ast.walk(first) if isinstance(n, ast.Constant)]
                found += [(path.name, tag) for tag in told_here if isinstance(tag, str) and re.search("[A-Z]", tag)]
    assert found == []


def restore(session: Session, sql: str) -> None:
    """Put back what a definition among the samples has made or dropped."""
    session.context.become(None, None)
    made = re.match(r"CREATE ([A-Z ]+) new\b", sql)
    assert made is None or run(session, f"DROP {made[1]} IF EXISTS new") == ""
    run(session, "CREATE TABLE IF NOT EXISTS kinds_log (a int, at timestamp) APPEND ONLY")
    run(session, "ALTER MATERIALIZED VIEW kinds_v RESUME")


def compare(session: Session, sql: str, *refused: str) -> None:
    prepared = session.prepare(sql)
    try:
        result = prepared.execute([])
    except HeadraceError as error:
        assert error.sqlstate in ("0A000", "25P01", "55000", SinkError.sqlstate, *refused)
        return
    assert prepared.columns == (None if result.copy is not None else result.columns)
    if result.columns is not None:
        assert [c.name for c in result.columns] == result.table().column_names
