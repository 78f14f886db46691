"""What roles may do: over every kind of statement, through views, by grants, memberships, ownership and defaults."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from pyspark.sql import SparkSession
from samples import DROP, SAMPLES, SETUP

from clients import run
from headrace.catalog.contents import TableContent
from headrace.catalog.records import ObjectRecord, decode, encode
from headrace.config import Settings
from headrace.connectors.base import Binding
from headrace.connectors.datagen import DatagenSource
from headrace.errors import (
    DependentObjectsExist,
    HeadraceError,
    InsufficientPrivilege,
    InvalidParameter,
    NotSupported,
    SourceError,
    StatementError,
    UndefinedObject,
    UndefinedTable,
)
from headrace.session.database import Database, connect
from headrace.session.execution.handler import Needs
from headrace.session.handlers import HANDLERS
from headrace.session.rights import Rights
from headrace.session.session import Session
from headrace.session.stored_roles import Role
from headrace.session.system.system_relations import _RELATIONS
from headrace.sql import statements as st
from support import eventually


@pytest.fixture(scope="module")
def database(spark: SparkSession) -> Iterator[Database]:
    settings = Settings(run_fsync=False, catalog_commit_sync=False, barrier_interval_ms=200, secret_keys="A" * 43 + "=")
    with connect(spark=spark, settings=settings) as found:
        yield found


@pytest.fixture
def root(database: Database) -> Iterator[Session]:
    session = database.session()
    run(session, "CREATE ROLE anna LOGIN", "CREATE ROLE bert LOGIN")
    yield session
    run(session, "DROP OWNED BY anna CASCADE", "DROP OWNED BY bert CASCADE")
    made = [o.id for o in database.catalog.state.objects.values() if o.kind == "role" or o.name == "public"]
    database.coordinator.drop(made)
    session.close()


def denied(session: Session, sql: str) -> str:
    with pytest.raises(InsufficientPrivilege) as caught:
        run(session, sql)
    assert caught.value.sqlstate == "42501"
    return caught.value.message


DENIED = {
    Needs.READ: "permission denied for ",
    Needs.WRITE: "permission denied for table ",
    Needs.CREATE: "permission denied for schema public",
    Needs.OWNER: "must be owner of ",
    Needs.ROLES: "permission denied to ([a-z ]*role|create schema|alter a superuser|change default privileges)",
    Needs.FILES: "permission denied to COPY to files",
    Needs.PROGRAM: "permission denied to create a function",
    Needs.SUPERUSER: "permission denied to (set parameters|let a standby)",
}
"""What a role is told that has not the right which a statement declares; it says which one was asked for."""
PUBLIC = re.compile(
    r"SELECT 1 AS|VALUES|SELECT \* FROM headrace_catalog.jobs|SELECT relname|SELECT version|"
    r"SET ROLE NONE|RESET SESSION AUTHORIZATION|KILL 0"
)
"""What shows the statement's own values or what everybody sees, as in PostgreSQL, and what is about nobody else."""


def test_who_has_no_rights_may_do_nothing_at_all(database: Database, root: Session) -> None:
    """Each sample of each kind of statement is refused, and changes nothing."""
    run(root, *SETUP.split(";\n"), "CREATE SECRET kinds_x WITH (backend = 'meta') AS 'x'")
    anna = database.session(user="anna")
    before = dict(database.catalog.state.objects)
    try:
        for kind, samples in SAMPLES.items():
            for sql in samples:
                needs = HANDLERS[kind].needs
                if needs in (Needs.NOTHING, Needs.STATEMENT) or PUBLIC.match(sql):
                    continue
                try:
                    run(anna, sql)
                except InsufficientPrivilege as error:
                    assert re.match(DENIED[needs], error.message), f"{sql}: {error.message}"
                    continue
                except (NotSupported, UndefinedObject, UndefinedTable) as error:
                    assert kind in (st.AlterColumns, st.ReassignOwned, st.DropOwned, st.CancelJobs, st.Promote), error
                    continue
                except HeadraceError as error:
                    raise AssertionError(f"{sql}: {error.sqlstate} {error.message}") from error
                assert sql.startswith("DROP ROLE IF EXISTS"), f"{sql} was done"
        assert dict(database.catalog.state.objects) == before
    finally:
        anna.close()
        run(root, *DROP.split(";"), "DROP SECRET kinds_x")


def test_copying_takes_the_rights_of_select_and_insert(database: Database, root: Session) -> None:
    run(root, "CREATE TABLE copied (a int)", "INSERT INTO copied VALUES (1)")
    anna = database.session(user="anna")
    for sql in ("COPY copied TO STDOUT", "COPY copied (nope) TO STDOUT", "COPY (SELECT a FROM copied) TO STDOUT",
                "COPY copied FROM STDIN", "DECLARE c CURSOR WITH HOLD FOR SELECT a FROM copied"):  # fmt: skip
        assert denied(anna, sql) == "permission denied for table copied"
    run(root, "GRANT SELECT ON copied TO anna")
    assert run(anna, "COPY copied TO STDOUT") == [(1,)]
    denied(anna, "COPY copied FROM STDIN")
    run(root, "GRANT INSERT ON copied TO anna")
    run(anna, "COPY copied FROM STDIN")
    anna.close()
    run(root, "DROP TABLE copied")


def test_reading_takes_select_and_the_use_of_the_schema(database: Database, root: Session) -> None:
    run(root, "CREATE SCHEMA s", "CREATE TABLE s.t (a int PRIMARY KEY, b text)", "INSERT INTO s.t VALUES (1, 'x')")
    anna = database.session(user="anna")
    assert denied(anna, "SELECT * FROM s.t") == "permission denied for schema s"
    run(root, "GRANT USAGE ON SCHEMA s TO anna")
    assert denied(anna, "SELECT a FROM s.t WHERE a = 1") == "permission denied for table t"
    assert denied(anna, "SELECT 1 WHERE EXISTS (SELECT 1 FROM s.t)") == "permission denied for table t"
    assert denied(anna, "EXPLAIN SELECT * FROM s.t") == "permission denied for table t"
    with pytest.raises(InsufficientPrivilege):
        anna.prepare("SELECT b FROM s.t WHERE a = $1")
    run(root, "GRANT SELECT ON s.t TO anna")
    assert run(anna, "SELECT * FROM s.t") == [(1, "x")]
    prepared = anna.prepare("SELECT b FROM s.t WHERE a = $1")
    assert prepared.execute(["1"]).rows() == [("x",)]
    run(root, "REVOKE ALL ON s.t FROM anna")
    with pytest.raises(InsufficientPrivilege):
        prepared.execute(["1"])
    run(root, "GRANT SELECT ON ALL TABLES IN SCHEMA s TO PUBLIC")
    assert run(anna, "SELECT b FROM s.t") == [("x",)]
    run(root, "REVOKE USAGE ON SCHEMA s FROM anna")
    denied(anna, "SELECT b FROM s.t")
    run(root, "DROP SCHEMA s CASCADE")


def test_each_kind_of_write_is_a_right_of_its_own(database: Database, root: Session) -> None:
    run(root, "CREATE TABLE t (a int PRIMARY KEY, b text)", "INSERT INTO t VALUES (1, 'x')")
    anna = database.session(user="anna")
    for sql in ("INSERT INTO t VALUES (2, 'y')", "UPDATE t SET b = 'z' WHERE a = 1", "DELETE FROM t WHERE a = 1",
                "UPDATE t SET b = b || 'z'", "DELETE FROM t", "INSERT INTO t SELECT 7, 'x'"):  # fmt: skip
        assert denied(anna, sql) == "permission denied for table t"
    run(root, "GRANT INSERT ON t TO anna")
    run(anna, "INSERT INTO t VALUES (2, 'y')", "INSERT INTO t SELECT 3, 'q'")
    denied(anna, "INSERT INTO t VALUES (4, 'y') RETURNING a")
    denied(anna, "INSERT INTO t SELECT a + 10, b FROM t")
    run(root, "GRANT UPDATE, DELETE ON TABLE t TO anna")
    denied(anna, "UPDATE t SET b = 'z' WHERE a = 1")  # the condition would tell what is there
    run(root, "GRANT SELECT ON t TO anna")
    run(anna, "UPDATE t SET b = 'z' WHERE a = 1", "DELETE FROM t WHERE a = 2")
    assert run(anna, "SELECT a, b FROM t ORDER BY a") == [(1, "z"), (3, "q")]
    denied(anna, "DROP TABLE t")
    denied(anna, "CREATE INDEX i ON t (b)")
    denied(anna, "ALTER TABLE t OWNER TO anna")
    denied(anna, "GRANT SELECT ON t TO bert")
    run(root, "DROP TABLE t")


def test_a_plan_that_was_kept_is_not_run_without_the_right(database: Database, root: Session) -> None:
    run(root, "CREATE TABLE t (a int PRIMARY KEY, b text)", "GRANT INSERT ON t TO anna")
    anna = database.session(user="anna")
    prepared = anna.prepare("INSERT INTO t VALUES ($1, $2)")
    prepared.execute(["1", "x"])
    for number in (2, 3, 4):
        run(anna, f"INSERT INTO t VALUES ({number}, 'x')")
    assert anna.knows_text("INSERT INTO t VALUES (5, 'x')")
    run(root, "REVOKE INSERT ON t FROM anna")
    assert not anna.knows_text("INSERT INTO t VALUES (5, 'x')") and not prepared.is_quick
    denied(anna, "INSERT INTO t VALUES (5, 'x')")
    with pytest.raises(InsufficientPrivilege):
        prepared.execute(["6", "x"])
    assert run(root, "SELECT count(*) FROM t") == [(4,)]
    run(root, "DROP TABLE t")


def test_a_plan_that_another_role_has_made_is_not_run_without_the_right(database: Database, root: Session) -> None:
    run(root, "CREATE TABLE t (a int PRIMARY KEY, b text)", "INSERT INTO t VALUES (1, 'x')")
    prepared, text = "SELECT b FROM t WHERE a = $1", "SELECT b FROM t WHERE a = {}"

    def plan() -> None:
        assert root.prepare(prepared).execute(["1"]).rows() == [("x",)]
        for number in (1, 2, 3):
            run(root, text.format(number))

    plan()
    anna = database.session(user="anna")
    assert anna.known_statement(prepared, []) is None and not anna.knows_text(text.format(4))
    denied(anna, text.format(4))
    with pytest.raises(InsufficientPrivilege):
        anna.prepare(prepared)
    run(root, "GRANT SELECT ON t TO anna")
    plan()
    assert anna.known_statement(prepared, []) is not None and anna.knows_text(text.format(4))
    assert anna.prepare(prepared).execute(["1"]).rows() == run(anna, text.format(1)) == [("x",)]
    run(root, "REVOKE SELECT ON t FROM anna")
    plan()
    assert anna.known_statement(prepared, []) is None and not anna.knows_text(text.format(4))
    denied(anna, text.format(1))
    run(root, "DROP TABLE t")


def test_a_view_reads_with_its_owners_rights(database: Database, root: Session) -> None:
    run(root, "CREATE TABLE t (a int, b text)", "INSERT INTO t VALUES (1, 'secret')",
        "CREATE VIEW v AS SELECT a FROM t",
        "GRANT SELECT ON v TO anna", "GRANT CREATE ON SCHEMA public TO bert")  # fmt: skip
    anna, bert = database.session(user="anna"), database.session(user="bert")
    assert run(anna, "SELECT * FROM v") == [(1,)]
    denied(anna, "SELECT b FROM t")
    denied(bert, "CREATE VIEW w AS SELECT b FROM t")
    denied(bert, "CREATE MATERIALIZED VIEW m AS SELECT b FROM t")
    denied(bert, "CREATE TABLE copy AS SELECT b FROM t")
    run(root, "GRANT SELECT ON t TO bert")
    run(bert, "CREATE VIEW w AS SELECT b FROM t", "CREATE MATERIALIZED VIEW m AS SELECT b FROM t",
        "GRANT SELECT ON w, m TO anna")  # fmt: skip
    assert run(anna, "SELECT * FROM w") == run(anna, "SELECT * FROM m") == [("secret",)]
    run(root, "REVOKE SELECT ON t FROM bert")
    denied(anna, "SELECT * FROM w")  # its owner may not any more
    denied(root, "SELECT * FROM w")
    assert run(anna, "SELECT * FROM m") == [("secret",)]  # it has been computed
    denied(anna, "SELECT * FROM headrace_internal.state_tables")
    denied(anna, "SELECT * FROM headrace_catalog.row_errors")
    run(root, "DROP TABLE t CASCADE")


def test_who_makes_something_owns_it(database: Database, root: Session) -> None:
    anna = database.session(user="anna")
    assert denied(anna, "CREATE TABLE t (a int)") == "permission denied for schema public"
    run(root, "GRANT CREATE ON SCHEMA public TO anna")
    run(anna, "CREATE TABLE t (a int)", "INSERT INTO t VALUES (1)", "GRANT SELECT ON t TO bert")
    assert run(anna, "SELECT relowner::text = (SELECT oid::text FROM pg_roles WHERE rolname = 'anna') FROM pg_class "
               "WHERE relname = 't'") == [(True,)]  # fmt: skip
    bert = database.session(user="bert")
    assert run(bert, "SELECT * FROM t") == [(1,)]
    assert denied(bert, "DROP TABLE t") == "must be owner of table t"
    with pytest.raises(DependentObjectsExist, match='role "anna" cannot be dropped') as caught:
        run(root, "DROP ROLE anna")
    assert "owner of table t" in str(caught.value.detail)
    run(root, "ALTER TABLE t OWNER TO bert")
    denied(anna, "SELECT * FROM t")
    run(bert, "INSERT INTO t VALUES (2)")
    run(root, "REASSIGN OWNED BY bert TO root", "DROP OWNED BY anna, bert", "DROP ROLE anna, bert")
    assert run(root, "SELECT count(*) FROM t") == [(2,)]
    run(root, "DROP TABLE t", "CREATE ROLE anna", "CREATE ROLE bert")


def test_rights_come_with_memberships_unless_they_are_not_inherited(database: Database, root: Session) -> None:
    run(root, "CREATE ROLE readers", "CREATE ROLE staff", "CREATE TABLE t (a int)", "GRANT SELECT ON t TO readers",
        "GRANT readers TO staff", "GRANT staff TO anna, bert", "ALTER ROLE bert NOINHERIT")  # fmt: skip
    anna, bert = database.session(user="anna"), database.session(user="bert")
    assert run(anna, "SELECT * FROM t") == []
    denied(bert, "SELECT * FROM t")
    run(bert, "SET ROLE readers")
    assert run(bert, "SELECT current_user, session_user") == [("readers", "bert")]
    assert run(bert, "SELECT * FROM t") == []
    run(bert, "RESET ROLE")
    denied(bert, "SELECT * FROM t")
    assert denied(bert, "SET ROLE anna") == 'permission denied to set role "anna"'
    assert denied(bert, "SET SESSION AUTHORIZATION anna") == "permission denied to set session authorization"
    with pytest.raises(StatementError, match="is a member of role") as caught:
        run(root, "GRANT anna TO readers")
    assert caught.value.sqlstate == "0LP01"
    denied(anna, "GRANT readers TO bert")
    run(root, "GRANT readers TO anna WITH ADMIN OPTION")
    run(anna, "GRANT readers TO bert")
    run(root, "REVOKE staff FROM anna, bert")
    assert run(anna, "SELECT * FROM t") == []
    run(root, "DROP TABLE t", "DROP ROLE readers, staff")


def test_a_superuser_becomes_others_and_itself_again(database: Database, root: Session) -> None:
    run(root, "CREATE TABLE t (a int)")
    session = database.session()
    run(session, "SET SESSION AUTHORIZATION anna")
    assert run(session, "SELECT current_user, session_user") == [("anna", "anna")]
    assert session.parameters["is_superuser"] == "off" and session.parameters["session_authorization"] == "anna"
    denied(session, "SELECT * FROM t")
    run(session, "RESET ALL")
    denied(session, "SELECT * FROM t")
    run(session, "DISCARD ALL")
    assert session.parameters["is_superuser"] == "on" and run(session, "SELECT * FROM t") == []
    run(session, "BEGIN", "SET LOCAL ROLE bert")
    denied(session, "SELECT * FROM t")
    run(session, "ROLLBACK")
    assert run(session, "SELECT * FROM t") == []
    for sql in ("SET role = 'bert'", "SET session_authorization = 'bert'", "SET is_superuser = on"):
        with pytest.raises(InvalidParameter, match="cannot be changed"):
            run(session, sql)
    run(root, "DROP TABLE t")


def test_defaults_are_granted_on_what_is_made_afterwards(database: Database, root: Session) -> None:
    run(root, "CREATE TABLE before (a int)", "CREATE SCHEMA s", "GRANT USAGE ON SCHEMA s TO PUBLIC",
        "ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO anna",
        "ALTER DEFAULT PRIVILEGES IN SCHEMA s GRANT INSERT ON TABLES TO bert",
        "CREATE TABLE after (a int)", "CREATE TABLE s.after (a int)")  # fmt: skip
    anna, bert = database.session(user="anna"), database.session(user="bert")
    denied(anna, "SELECT * FROM before")
    assert run(anna, "SELECT * FROM after") == run(anna, "SELECT * FROM s.after") == []
    denied(bert, "INSERT INTO after VALUES (1)")
    run(bert, "INSERT INTO s.after VALUES (1)")
    run(root, "ALTER DEFAULT PRIVILEGES REVOKE SELECT ON TABLES FROM anna", "CREATE TABLE later (a int)")
    denied(anna, "SELECT * FROM later")
    run(root, "DROP TABLE before, after, later", "DROP SCHEMA s CASCADE")


def test_code_files_secrets_and_the_system_take_rights_of_their_own(database: Database, root: Session) -> None:
    run(root, "GRANT CREATE ON SCHEMA public TO anna", "CREATE SECRET key WITH (backend = 'meta') AS 'hunter2'")
    anna = database.session(user="anna")
    code = "CREATE FUNCTION f(x int) RETURNS int LANGUAGE python AS 'return x'"
    files = "CREATE SOURCE f (a int) WITH (connector = 'file', path = '/etc', format = 'csv')"
    sink = "CREATE SINK s AS SELECT 1 AS a WITH (connector = 'file', path = '/tmp/x')"
    assert denied(anna, code).startswith("permission denied to create a function")
    assert denied(anna, files).startswith("permission denied to create a source")
    assert denied(anna, sink).startswith("permission denied to create a sink")
    datagen = "CREATE SOURCE d (k int) WITH (connector = 'datagen', rows_per_second = secret key)"
    assert denied(anna, datagen) == "permission denied for secret key"
    assert denied(anna, "ALTER SECRET key AS 'x'") == "must be owner of secret key"
    assert denied(anna, "ALTER SYSTEM SET max_result_rows = 5").startswith("permission denied to set parameters")
    run(root, "GRANT pg_execute_server_program TO anna")
    run(anna, code)
    bert = database.session(user="bert")
    assert run(bert, "SELECT f(1)") == [(1,)]
    run(root, "REVOKE EXECUTE ON FUNCTION f(int) FROM PUBLIC")
    assert denied(bert, "SELECT f(1)") == "permission denied for function f"
    run(root, "REVOKE pg_execute_server_program FROM anna", "DROP FUNCTION f", "DROP SECRET key")


def test_roles_are_commented_on_by_those_who_may_alter_them(database: Database, root: Session) -> None:
    run(root, "COMMENT ON ROLE anna IS 'makes reports'", "COMMENT ON ROLE bert IS 'reads them'",
        "COMMENT ON ROLE bert IS NULL")  # fmt: skip
    described = "SELECT rolname, shobj_description(oid, 'pg_authid') FROM pg_roles WHERE rolname IN ('anna', 'bert')"
    assert sorted(run(root, described)) == [("anna", "makes reports"), ("bert", None)]
    assert run(root, "SELECT count(*) FROM pg_description d JOIN pg_roles r ON r.oid = d.objoid") == [(0,)]
    bert = database.session(user="bert")
    assert denied(bert, "COMMENT ON ROLE anna IS 'mine'") == "permission denied to alter role"
    with pytest.raises(UndefinedObject, match='role "nobody" does not exist'):
        run(root, "COMMENT ON ROLE nobody IS 'x'")
    with pytest.raises(NotSupported, match='a comment on the role "root"'):
        run(root, "COMMENT ON ROLE root IS 'x'")
    bert.close()


def test_nobody_reads_a_password_anywhere(database: Database, root: Session) -> None:
    """Neither in a system relation nor in what is shown of whatever has it; and who may not use it, does not."""
    word = "Hunter2-is-nowhere"
    run(root, "CREATE TABLE told (a int)", f"CREATE SECRET hidden AS '{word}'",
        "CREATE CONNECTION held WITH (type = 'postgres', host = 'h', user = 'u', password = SECRET hidden, "
        "database = 'd')", f"ALTER ROLE bert PASSWORD '{word}'",
        "CREATE SUBSCRIPTION told_log FROM told WITH (retention = '1 h')",
        "CREATE TABLE hooked (j jsonb) WITH (connector = 'webhook') VALIDATE SECRET hidden AS "
        "secure_compare(headers ->> 'authorization', hidden)", "COMMENT ON CONNECTION held IS 'for reports'",
        "GRANT CREATE ON SCHEMA public TO anna")  # fmt: skip
    anna = database.session(user="anna")
    for session in (root, anna):
        for schema, name in sorted(_RELATIONS):
            with suppress(InsufficientPrivilege):
                assert word not in str(run(session, f"SELECT * FROM {schema}.{name}")), name
        for sql in ("SHOW CREATE CONNECTION held", "SHOW CREATE TABLE hooked", "SHOW CREATE SECRET hidden",
                    "SHOW CREATE SUBSCRIPTION told_log", "SHOW PROCESSLIST", "SHOW SECRETS"):  # fmt: skip
            with suppress(InsufficientPrivilege):
                assert word not in str(run(session, sql)), sql
    for sql in (
        "DROP CONNECTION held", "ALTER CONNECTION held OWNER TO anna", "COMMENT ON CONNECTION held IS 'mine'",
        "ALTER SECRET hidden AS 'mine'", "DROP SUBSCRIPTION told_log",
        "DECLARE c SUBSCRIPTION CURSOR FOR told_log FULL",
        "ALTER SUBSCRIPTION told_log SET (retention = '9 days')",
        "CREATE SUBSCRIPTION own FROM told WITH (retention = '1 h')",
        "CREATE CONNECTION own WITH (type = 'postgres', host = 'h', user = 'u', password = SECRET hidden, "
        "database = 'd')",
        "CREATE TABLE own (j jsonb) WITH (connector = 'webhook') VALIDATE SECRET hidden AS "
        "secure_compare(headers ->> 'authorization', hidden)",
    ):  # fmt: skip
        denied(anna, sql)
    run(root, "GRANT SELECT ON told TO anna")
    run(anna, "DECLARE c SUBSCRIPTION CURSOR FOR told_log FULL")
    run(root, "REVOKE SELECT ON told FROM anna")
    denied(anna, "FETCH 1 FROM c")
    with pytest.raises(InvalidParameter, match="has a password in its URL"):
        run(root, f"CREATE CONNECTION open WITH (type = 'iceberg', catalog.type = 'rest', catalog.uri = "
                  f"'https://u:{word}@h', warehouse.path = 'x')")  # fmt: skip
    anna.close()
    run(root, "DROP SUBSCRIPTION told_log", "DROP TABLE told, hooked", "DROP CONNECTION held", "DROP SECRET hidden")


def test_roles_are_made_and_changed_by_those_who_may(database: Database, root: Session) -> None:
    anna = database.session(user="anna")
    assert denied(anna, "CREATE ROLE carl") == "permission denied to create role"
    denied(anna, "ALTER ROLE anna SUPERUSER")
    denied(anna, "ALTER ROLE root PASSWORD 'mine'")
    denied(anna, "DROP ROLE bert")
    run(anna, "ALTER ROLE CURRENT_USER PASSWORD 'sesame'")
    run(root, "ALTER ROLE anna CREATEROLE")
    denied(anna, "CREATE ROLE carl SUPERUSER")
    denied(anna, "CREATE ROLE carl CREATEDB")
    denied(anna, "CREATE ROLE carl IN ROLE pg_execute_server_program")
    denied(anna, "ALTER ROLE bert PASSWORD 'mine'")
    run(anna, "CREATE ROLE carl LOGIN PASSWORD 'x'", "ALTER ROLE carl NOLOGIN", "GRANT carl TO bert", "DROP ROLE carl")
    denied(anna, "GRANT pg_read_all_data TO bert")
    with pytest.raises(NotSupported):
        run(root, "GRANT root TO anna")
    with pytest.raises(InvalidParameter):
        run(root, "ALTER ROLE root NOSUPERUSER")


def test_all_data_is_read_and_written_by_the_roles_for_that(database: Database, root: Session) -> None:
    run(root, "CREATE SCHEMA s", "CREATE TABLE s.t (a int)", "GRANT pg_read_all_data TO anna",
        "GRANT pg_write_all_data TO bert")  # fmt: skip
    anna, bert = database.session(user="anna"), database.session(user="bert")
    run(bert, "INSERT INTO s.t VALUES (1)")
    assert run(anna, "SELECT * FROM s.t") == [(1,)]
    denied(anna, "INSERT INTO s.t VALUES (2)")
    denied(bert, "SELECT * FROM s.t")
    run(root, "DROP SCHEMA s CASCADE")


def test_clients_see_who_may_what(database: Database, root: Session) -> None:
    run(root, "CREATE TABLE t (a int)", "GRANT SELECT, INSERT ON t TO anna", "GRANT SELECT ON t TO PUBLIC")
    assert run(root, "SELECT relacl FROM pg_class WHERE relname = 't'") == [
        (["root=arwd/root", "anna=ar/root", "=r/root"],)
    ]
    anna = database.session(user="anna")
    asked = ("'t', 'INSERT'", "'t', 'DELETE'", "'bert', 't', 'SELECT'")
    calls = ", ".join(f"has_table_privilege({arguments})" for arguments in asked)
    assert run(anna, f"SELECT {calls}") == [(True, False, True)]
    assert run(anna, "SELECT has_schema_privilege('public', 'USAGE'), pg_has_role('bert', 'MEMBER')") == [(True, False)]
    rows = run(root, "SELECT rolname, rolsuper FROM pg_roles WHERE rolname IN ('anna', 'root') ORDER BY 1")
    assert rows == [("anna", False), ("root", True)]
    run(root, "DROP TABLE t")


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("GRANT SELECT (a) ON t TO anna", "a privilege on columns"),
        ("GRANT SELECT ON t TO anna WITH GRANT OPTION", "WITH GRANT OPTION"),
        ("GRANT CONNECT ON DATABASE dev TO anna", "the privilege CONNECT"),
        ("GRANT CREATE ON DATABASE dev TO anna", "a privilege on a database"),
        ("GRANT TRUNCATE ON t TO anna", "the privilege TRUNCATE"),
        ("GRANT USAGE ON LANGUAGE python TO anna", "a privilege on a language"),
    ],
)
def test_what_is_not_offered_is_refused(root: Session, sql: str, said: str) -> None:
    with pytest.raises(NotSupported, match=re.escape(said)):
        run(root, sql)


def test_a_privilege_that_there_is_not_on_an_object_is_refused(root: Session) -> None:
    run(root, "CREATE TABLE t (a int)")
    with pytest.raises(StatementError) as caught:
        run(root, "GRANT EXECUTE ON t TO anna")
    assert caught.value.sqlstate == "0LP01"
    with pytest.raises(UndefinedObject, match='role "nobody" does not exist'):
        run(root, "GRANT SELECT ON t TO nobody")
    run(root, "DROP TABLE t")


def test_a_role_that_is_dropped_has_no_rights_left(database: Database, root: Session) -> None:
    anna = database.session(user="anna")
    run(anna, "SELECT 1")
    run(root, "DROP ROLE anna")
    with pytest.raises(UndefinedObject, match='role "anna" does not exist'):
        run(anna, "SELECT * FROM pg_class")
    run(root, "CREATE ROLE anna SUPERUSER")  # another one of that name
    with pytest.raises(UndefinedObject, match='role "anna" does not exist'):
        run(anna, "SELECT * FROM pg_class")
    run(root, "DROP ROLE anna, bert")  # so that there is none at all
    with pytest.raises(UndefinedObject, match='role "anna" does not exist'):
        run(anna, "CREATE TABLE t (a int)")
    with pytest.raises(UndefinedObject):
        Rights.of(database.catalog.state, 123456).require_superuser("do this")
    run(root, "CREATE ROLE anna", "CREATE ROLE bert")


def test_what_has_to_do_with_rights_is_refused_by_older_programs() -> None:
    plain = ObjectRecord(1, TableContent(), "public", "t")
    assert '"v":1' in encode(plain) and "owner" not in encode(plain) and "grants" not in encode(plain)
    for record in (
        ObjectRecord(1, TableContent(), "public", "t", owner=5),
        ObjectRecord(1, TableContent(), "public", "t", grants={}),
        ObjectRecord(1, Role("r", superuser=False).content, "pg_authid", "r"),
    ):
        assert '"v":4' in encode(record)
        assert decode("object", "1", encode(record)) == record
    older = ObjectRecord(1, Role("r").content, "pg_authid", "r")
    assert '"v":3' in encode(older) and Role.of(older).superuser


def test_comments_are_refused_by_older_programs() -> None:
    record = ObjectRecord(1, TableContent(), "public", "t", comments={"": "x", "a": "y"})
    assert '"v":8' in encode(record) and decode("object", "1", encode(record)) == record
    assert "comments" not in encode(ObjectRecord(1, TableContent(), "public", "t"))


def test_what_failed_is_told_to_who_may_see_the_rows(database: Database, root: Session) -> None:
    """An error of a view has values of rows in it: they are in no list, notice or error of who may not see them."""
    run(root, "CREATE TABLE texts (a int PRIMARY KEY, t text)", "INSERT INTO texts VALUES (1, '5')",
        "CREATE MATERIALIZED VIEW numbers AS SELECT a, t::int AS n FROM texts", "CREATE ROLE watcher LOGIN",
        "GRANT pg_monitor TO watcher", "GRANT SELECT ON numbers TO anna, watcher",
        "INSERT INTO texts VALUES (2, 'confidential')")  # fmt: skip
    anna, watcher = database.session(user="anna"), database.session(user="watcher")

    def told(session: Session, sql: str) -> str:
        try:
            results = [(r.rows(), [n.message for n in r.notices]) for r in session.execute(sql)]
        except HeadraceError as error:
            return f"{error.message} {error.detail} {error.hint}"
        return str(results)

    eventually(lambda: "confidential" in told(root, "SHOW JOBS"), "the view to fail")
    asked = ["FLUSH", "WAIT", "SHOW JOBS", "SHOW PROGRESS", "SELECT * FROM headrace_catalog.jobs",
             "SELECT * FROM numbers", "SELECT * FROM headrace_catalog.barriers",
             "SELECT * FROM headrace_catalog.progress",
             "SET query_consistency = 'global'; SELECT * FROM numbers"]  # fmt: skip
    for sql in asked:
        assert "confidential" not in told(anna, sql), sql
    assert "is failing" in told(anna, "FLUSH") and "is failing" in told(anna, "SELECT * FROM numbers")
    for session in (root, watcher):
        for sql in ("FLUSH", "SELECT * FROM numbers", "SELECT error FROM headrace_catalog.jobs"):
            assert "confidential" in told(session, sql), sql
    run(root, "DELETE FROM texts WHERE a = 2", "FLUSH", "DROP MATERIALIZED VIEW numbers", "DROP TABLE texts")
    for session in (anna, watcher):
        session.close()
    run(root, "DROP ROLE watcher")


@pytest.mark.parametrize("kind", ["source", "table"])
def test_why_a_source_cannot_be_read_is_told_to_its_owner(
    database: Database, root: Session, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Who owns a view over it sees that it is so: the error may have values of rows that the view does not show.

    The source of a table with a connector is hidden, and goes by the name of the table.
    """
    run(root, f"CREATE {kind} away_{kind} (a int) WITH (connector = 'datagen', rows_per_second = '1')",
        f"CREATE MATERIALIZED VIEW of_it_{kind} AS SELECT count(*) AS n FROM away_{kind}",
        f"ALTER MATERIALIZED VIEW of_it_{kind} OWNER TO anna")  # fmt: skip

    def failing(*given: Any) -> Binding:
        raise SourceError("confidential", detail="confidential, too")

    monkeypatch.setattr(DatagenSource, "latest_offsets", failing)
    anna = database.session(user="anna")

    def told(session: Session) -> tuple[Any, ...]:
        (row,) = (r for r in next(iter(session.execute("SHOW JOBS"))).rows() if r[1] == f"of_it_{kind}")
        sql = f"SELECT error FROM headrace_catalog.jobs WHERE name = 'of_it_{kind}'"
        (error,) = next(iter(session.execute(sql))).rows()
        return (row[2], row[4], row[5], *error)

    eventually(lambda: told(root)[1] is not None, "the source to fail")
    whole = f'{kind} "away_{kind}": confidential'
    assert told(root) == ("running", whole, "confidential, too", whole)
    hidden = f'{kind} "away_{kind}": <insufficient privilege>'
    assert told(anna) == ("running", hidden, hidden, hidden)

    def warned(session: Session, statement: str = "FLUSH") -> list[tuple[str, str, str]]:
        found = next(iter(session.execute(statement))).notices
        return [(n.message, n.severity, n.sqlstate) for n in found]

    text = f'{kind} "away_{kind}" cannot be read'
    assert warned(root) == warned(root, "WAIT") == [(f"{text}: confidential", "WARNING", "HR010")]
    assert warned(anna) == [(text, "WARNING", "HR010")]
    if kind == "source":
        run(root, "ALTER SOURCE away_source PAUSE")
        eventually(lambda: told(root) == ("running", None, None, None), "what nobody looks at not to be told")
        assert warned(root) == []
    anna.close()
    monkeypatch.undo()
