"""Roles: made, changed, dropped; their passwords shown nowhere; who is who that connects."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from clients import run
from headrace.catalog.contents import RoleContent, SecretContent, TableContent
from headrace.catalog.records import ObjectRecord, decode, encode
from headrace.common.scram import ClientExchange, ServerExchange, Verifier
from headrace.errors import (
    DependentObjectsExist,
    DuplicateObject,
    HeadraceError,
    InvalidDatetime,
    InvalidParameter,
    NotSupported,
    SyntaxFault,
    TransactionError,
    UndefinedObject,
)
from headrace.session.audit import masked
from headrace.session.database import Database
from headrace.session.session import Session
from headrace.session.stored_roles import Role
from headrace.sql.parser import parse_one
from headrace.sql.secrets import may_hold_a_secret


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    yield database.session()
    made = [record.id for record in database.catalog.state.objects_of(RoleContent)]
    if made:
        database.coordinator.drop(made)


def knows(role: Role | None, password: str) -> bool:
    """Whether the password proves that somebody is the role."""
    verifier = None if role is None or role.password is None else Verifier.parse(role.password)
    if verifier is None:
        return False
    client, server = ClientExchange(password), ServerExchange(verifier, None)
    try:
        client.check(server.final(client.final(server.first(client.mechanism, client.first()))))
    except HeadraceError:
        return False
    return True


def test_as_long_as_there_is_no_role_everybody_may_use_any_name(database: Database, session: Session) -> None:
    assert database.instance.role("anybody") == Role("anybody") and not database.instance.has_passwords
    run(session, "CREATE ROLE anna LOGIN SUPERUSER PASSWORD 'open sesame'")
    assert database.instance.role("anybody") is None and database.instance.role("root") == Role("root")
    anna = database.instance.role("anna")
    assert knows(anna, "open sesame") and not knows(anna, "close sesame")
    assert database.instance.has_passwords


def test_what_a_role_may_have(database: Database, session: Session) -> None:
    run(session, "CREATE USER anna WITH SUPERUSER INHERIT CONNECTION LIMIT 3 PASSWORD NULL")
    assert database.instance.role("anna") == Role("anna", connection_limit=3)
    run(session, "CREATE ROLE bert SUPERUSER VALID UNTIL '2000-01-01'")
    assert database.instance.role("bert") == Role("bert", can_login=False, valid_until_ms=946_684_800_000)
    run(session, "ALTER USER bert LOGIN PASSWORD 'x'")
    assert database.instance.role("bert") == Role("bert", valid_until_ms=946_684_800_000), "its password has ended"
    run(session, "SET TIME ZONE '+02'")
    run(session, "ALTER ROLE bert VALID UNTIL '2999-01-01 00:00:00'")
    run(session, "RESET TIME ZONE")
    assert (found := database.instance.role("bert")) is not None and found.valid_until_ms == 32_472_136_800_000
    run(session, "ALTER ROLE bert VALID UNTIL '2999-01-01 00:00:00+02'")
    assert knows(database.instance.role("bert"), "x")
    run(session, "ALTER ROLE bert VALID UNTIL 'infinity' NOLOGIN CONNECTION LIMIT -1")
    found = database.instance.role("bert")
    assert found is not None and found.valid_until_ms is None and not found.can_login
    run(session, f"ALTER ROLE bert ENCRYPTED PASSWORD '{Verifier.of('y').text}' LOGIN")
    assert knows(database.instance.role("bert"), "y") and not knows(database.instance.role("bert"), "x")
    run(session, "ALTER ROLE bert RENAME TO carl")
    assert database.instance.role("bert") is None and knows(database.instance.role("carl"), "y")
    run(session, "DROP ROLE anna, carl")
    assert not database.catalog.state.objects_of(RoleContent)


def test_of_two_changes_at_once_both_hold(
    database: Database, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(session, "CREATE ROLE anna LOGIN SUPERUSER")
    coordinator, other = database.coordinator, database.session()
    alter = coordinator.alter_objects

    def overtaken(*arguments: Any) -> None:
        monkeypatch.setattr(coordinator, "alter_objects", alter)
        run(other, "ALTER ROLE anna NOLOGIN")
        alter(*arguments)

    monkeypatch.setattr(coordinator, "alter_objects", overtaken)
    run(session, "ALTER ROLE anna CONNECTION LIMIT 5")
    assert database.instance.role("anna") == Role("anna", can_login=False, connection_limit=5)


def test_root_gets_a_password_without_being_made(database: Database, session: Session) -> None:
    run(session, "ALTER ROLE root PASSWORD 'x'")
    assert knows(database.instance.role("root"), "x")
    run(session, "ALTER ROLE root PASSWORD 'y'")
    assert knows(database.instance.role("root"), "y")
    assert [r[0] for r in run(session, "SELECT rolname FROM pg_roles WHERE NOT rolname LIKE 'pg%'")] == ["root"]
    run(session, "ALTER ROLE root PASSWORD NULL")
    assert not database.instance.has_passwords


def test_system_relations_show_roles_and_no_passwords(session: Session) -> None:
    run(session, "CREATE ROLE anna LOGIN SUPERUSER CONNECTION LIMIT 2 PASSWORD 'x'", "CREATE ROLE staff SUPERUSER")
    found = run(session, "SELECT rolname, rolcanlogin, rolconnlimit, rolpassword FROM pg_roles WHERE rolcanlogin "
                "OR rolname = 'staff' ORDER BY rolname")  # fmt: skip
    assert found == [("anna", True, 2, "********"), ("root", True, -1, "********"), ("staff", False, -1, "********")]
    assert [r[0] for r in run(session, "SELECT usename FROM pg_user ORDER BY 1")] == ["anna", "root"]


def test_a_session_knows_whose_it_is(database: Database, session: Session) -> None:
    run(session, "CREATE ROLE anna LOGIN SUPERUSER")
    own = database.session(user="anna")
    assert run(own, "SELECT current_user, session_user") == [("anna", "anna")]
    assert run(own, "SHOW session_authorization") == [("anna",)]
    assert run(session, "SELECT current_user") == [("root",)]
    with pytest.raises(TransactionError, match="current user cannot be dropped"):
        run(own, "DROP ROLE anna")


@pytest.mark.parametrize(
    ("sql", "error"),
    [
        ("CREATE ROLE anna REPLICATION", NotSupported), ("CREATE ROLE anna SUPERUSER NOSUPERUSER", SyntaxFault),
        ("CREATE ROLE anna SUPERUSER IN ROLE staff", UndefinedObject), ("CREATE ROLE public SUPERUSER", NotSupported),
        ("CREATE ROLE pg_x SUPERUSER", NotSupported), ("CREATE ROLE anna SUPERUSER PASSWORD ''", InvalidParameter),
        ("CREATE ROLE anna SUPERUSER PASSWORD 'SCRAM-SHA-256$1:x'", InvalidParameter),
        ("CREATE ROLE anna SUPERUSER LOGIN NOLOGIN", SyntaxFault),
        ("CREATE ROLE anna SUPERUSER PASSWORD 5", SyntaxFault),
        ("CREATE ROLE anna SUPERUSER VALID UNTIL 'soon'", InvalidDatetime),
        ("CREATE ROLE root SUPERUSER", DuplicateObject), ("ALTER ROLE nobody LOGIN", UndefinedObject),
        ("ALTER ROLE root RENAME TO other", InvalidParameter), ("ALTER ROLE root SET timezone = 'UTC'", NotSupported),
        ("ALTER ROLE root NOSUPERUSER", InvalidParameter), ("DROP ROLE nobody", UndefinedObject),
        ("DROP ROLE root", DependentObjectsExist), ("CREATE SCHEMA pg_authid", InvalidParameter),
        ("SELECT * FROM pg_authid.root", HeadraceError),
        ("ALTER SYSTEM SET auth_rules = 'nonsense'", InvalidParameter),
        ("ALTER SYSTEM SET auth_rules = 'hostssl all all all cert'", InvalidParameter),
    ],
)  # fmt: skip
def test_what_is_refused(database: Database, session: Session, sql: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        run(session, sql)
    assert not database.catalog.state.objects_of(RoleContent)


def test_notices_and_names(database: Database, session: Session) -> None:
    [result] = session.execute("DROP ROLE IF EXISTS nobody")
    assert [n.message for n in result.notices] == ['role "nobody" does not exist, skipping']
    run(session, 'CREATE ROLE "A b" SUPERUSER', "CREATE TABLE roles_t (a int)")
    assert database.instance.role("A b") is not None
    with pytest.raises(DuplicateObject):
        run(session, 'CREATE ROLE "A b" SUPERUSER')
    names = {r[0] for r in run(session, "SELECT relname FROM pg_class")}
    assert "roles_t" in names and "A b" not in names
    run(session, "DROP TABLE roles_t")


@pytest.mark.parametrize(
    "sql",
    ["CREATE /* a /* b */ c */ SECRET x", "create -- '\n user", "SELECT '/*'; CREATE /* */ SECRET x",
     r"SELECT E'\'/*'; ALTER" "\nROLE x", "SELECT $$ -- $$; CREATE OR/**/REPLACE SECRET x", "CREATE/*x*/USER",
     'SELECT 1 AS "--"; ALTER ROLE anna PASSWORD',
     'SELECT 1 AS "/*"; CREATE SECRET x', """SELECT 1 AS "it's"; CREATE /* x */ SECRET y""",
     "SELECT $1$2; CREATE /* x */ SECRET y", "SELECT 1--'\n; CREATE /* ' */ SECRET x"],
)  # fmt: skip
def test_comments_and_strings_hide_no_statement_with_a_secret(sql: str) -> None:
    assert may_hold_a_secret(sql)


@pytest.mark.parametrize("sql", ["SELECT 'CREATE' -- SECRET", "CREATE /* SECRET */ TABLE x", "ALTER TABLE users"])
def test_other_statements_hold_no_secret(sql: str) -> None:
    assert not may_hold_a_secret(sql)


@pytest.mark.parametrize(
    "piece", ["CREATE/*", "CREATE--", "CREATE ", "'", "$a$", "/*", "E'\\", "pwd", "a", '"', "://a:"]
)
def test_hostile_texts_are_read_once(piece: str) -> None:
    """A megabyte of each: a reader that begins anew in each place would need hours."""
    text = piece * (1_000_000 // len(piece)) + "*/ x"
    assert may_hold_a_secret(text) == piece.endswith("/*")
    assert len(masked(text)) < 20_000


def test_passwords_are_shown_nowhere(database: Database, session: Session) -> None:
    word = "sesame-4711"
    for sql in (f"CREATE ROLE anna LOGIN SUPERUSER PASSWORD '{word}'", f"ALTER USER anna PASSWORD '{word}'"):
        assert may_hold_a_secret(sql)
        statement = parse_one(sql)
        assert word not in repr(statement) and word not in statement.text + statement.parsed
        run(session, sql)
    stored = "".join(encode(record) for record in database.catalog.image.records())
    assert word not in stored
    with pytest.raises(SyntaxFault) as caught:
        parse_one(f"CREATE ROLE anna SUPERUSER PASSWORD {word}")
    assert "sesame" not in str(caught.value) + str(caught.value.hint)


def test_a_program_that_knows_no_roles_refuses_them() -> None:
    record = ObjectRecord(7, Role("anna").content, "pg_authid", "anna")
    assert json.loads(encode(record))["v"] == 3
    assert decode("object", "7", encode(record)) == record
    assert json.loads(encode(ObjectRecord(8, TableContent(), "public", "t")))["v"] == 1
    assert json.loads(encode(ObjectRecord(9, SecretContent(), "public", "s")))["v"] == 2
