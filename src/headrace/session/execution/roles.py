"""CREATE, ALTER and DROP ROLE."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace.catalog.records import ObjectRecord
from headrace.common.scram import Verifier
from headrace.errors import DependentObjectsExist, DuplicateObject, InvalidParameter, TransactionError, UndefinedObject
from headrace.session.result import Notice, Result
from headrace.session.roles import ROLES_SCHEMA, ROOT, Role, record_of
from headrace.sql import statements as st

if TYPE_CHECKING:
    from headrace.session.session import Session


def create_role(session: Session, statement: st.CreateRole) -> Result:
    """CREATE ROLE and CREATE USER."""
    if record_of(session.database.catalog.state, statement.name) is not None or statement.name == ROOT:
        raise DuplicateObject(f'role "{statement.name}" already exists')
    _create(session, _changed(Role(statement.name), statement.options))
    return Result("CREATE ROLE")


def alter_role(session: Session, statement: st.AlterRole) -> Result:
    """ALTER ROLE and ALTER USER: who is connected stays so."""
    state, name = session.database.catalog.state, statement.name
    record = record_of(state, name)
    if record is None and name == ROOT and statement.target is None:  # it is there without having been made
        _create(session, _changed(Role(ROOT), statement.options))
        return Result("ALTER ROLE")
    if record is None and name != ROOT:
        raise UndefinedObject(f'role "{name}" does not exist')
    if statement.target is not None:
        if name == ROOT or name == session.user:
            raise InvalidParameter(
                f'role "{name}" cannot be renamed', detail="it is the one that is always there or yours"
            )
        if record_of(state, statement.target) is not None or statement.target == ROOT:
            raise DuplicateObject(f'role "{statement.target}" already exists')
    assert record is not None

    def altered(found: ObjectRecord) -> ObjectRecord:
        role = _changed(Role.of(found), statement.options)
        return replace(found, name=statement.target or found.name, payload=role.payload)

    session.database.coordinator.alter_object(record.id, altered, "was changed")
    return Result("ALTER ROLE")


def drop_role(session: Session, statement: st.DropRole) -> Result:
    """DROP ROLE and DROP USER."""
    state, notices, found = session.database.catalog.state, [], []
    for name in dict.fromkeys(statement.names):
        if name == ROOT:
            raise DependentObjectsExist(f'cannot drop role "{ROOT}" because it is required by the database system')
        if name == session.user:
            raise TransactionError("current user cannot be dropped", sqlstate="55006")
        record = record_of(state, name)
        if record is None and not statement.if_exists:
            raise UndefinedObject(f'role "{name}" does not exist')
        if record is None:
            notices.append(Notice(f'role "{name}" does not exist, skipping'))
        else:
            found.append(record.id)
    if found:
        session.database.coordinator.drop(found)
    return Result("DROP ROLE", notices=notices)


def _create(session: Session, role: Role) -> None:
    record = ObjectRecord(
        0, "role", ROLES_SCHEMA, role.name, payload=role.payload, created_ms=session.database.now_ms()
    )
    session.database.coordinator.create_relation(record)


def _changed(role: Role, options: Mapping[str, Any]) -> Role:
    if options.get("password") is None:
        return replace(role, **options)
    return replace(role, **{**options, "password": _verifier(options["password"])})


def _verifier(password: str) -> str:
    """What is stored of a password, which may be given as that already. Raises `InvalidParameter`."""
    if Verifier.parse(password) is not None:
        return password
    if not password:
        raise InvalidParameter("the password is empty", hint="PASSWORD NULL is none.")
    if password.startswith(("md5", "SCRAM-SHA-256$")) and (password.startswith("S") or len(password) == 35):
        raise InvalidParameter(
            "this is no SCRAM-SHA-256 verifier", hint="Give the password itself, or a whole verifier."
        )
    return Verifier.of(password).text
