"""CREATE, ALTER and DROP ROLE."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from headrace.catalog.records import ObjectRecord
from headrace.common.scram import Verifier
from headrace.common.zones import Zone
from headrace.errors import (
    DependentObjectsExist,
    DuplicateObject,
    InsufficientPrivilege,
    InvalidDatetime,
    InvalidParameter,
    TransactionError,
    UndefinedObject,
)
from headrace.session.execution.grants import check_droppable, granted_role, require_admin, role_meant
from headrace.session.execution.handler import Handler
from headrace.session.result import Notice, Result
from headrace.session.roles import ROLES_SCHEMA, ROOT, Role, record_of
from headrace.sql import statements as st

if TYPE_CHECKING:
    from headrace.session.session import Session


_GIVEN_BY_HOLDERS = {"superuser": "SUPERUSER", "create_role": "CREATEROLE", "create_db": "CREATEDB"}


def create_role(session: Session, statement: st.CreateRole) -> Result:
    """CREATE ROLE and CREATE USER. Who may and is no superuser gets the new role's ADMIN OPTION."""
    rights = session.rights
    if not rights.superuser:
        if not rights.role.create_role:
            raise InsufficientPrivilege("permission denied to create role", hint="CREATEROLE permits it.")
        _check_given(session, statement.options)
    if record_of(session.database.catalog.state, statement.name) is not None or statement.name == ROOT:
        raise DuplicateObject(f'role "{statement.name}" already exists')
    options = dict(statement.options)
    groups = options.pop("in_roles", ())
    members_of = {granted_role(session, name): False for name in groups}
    role = replace(_changed(Role(statement.name), options, session.zone), member_of=members_of)
    _create(session, role)
    if not rights.superuser:
        _let_in(session, rights.role_id, statement.name)
    return Result("CREATE ROLE")


def _let_in(session: Session, maker: int, name: str) -> None:
    """Make a role a member of the one that it has made, with the right to let others in."""
    made = record_of(session.database.catalog.state, name)
    assert made is not None
    number = made.id

    def change(record: ObjectRecord) -> ObjectRecord:
        role = Role.of(record)
        return replace(record, content=replace(role, member_of={**role.member_of, number: True}).content)

    session.database.coordinator.alter_objects([maker], change, "has made a role")


def _check_given(session: Session, options: Mapping[str, Any]) -> None:
    """Raise `InsufficientPrivilege` for what only those may give who have it."""
    own = session.rights.role
    for name, word in _GIVEN_BY_HOLDERS.items():
        if options.get(name) and not getattr(own, name):
            raise InsufficientPrivilege(f"permission denied to give a role {word}", hint="Only who has it may give it.")


def alter_role(session: Session, statement: st.AlterRole) -> Result:
    """ALTER ROLE and ALTER USER: who is connected stays so."""
    state, name = session.database.catalog.state, role_meant(session, statement.name)
    record = record_of(state, name)
    if record is None and name != ROOT:
        raise UndefinedObject(f'role "{name}" does not exist')
    _check_alteration(session, name, record, statement)
    if record is None and statement.target is None:  # it is there without having been made
        _create(session, _changed(Role(ROOT), statement.options, session.zone))
        return Result("ALTER ROLE")
    if statement.target is not None:
        if name in (ROOT, session.user, session.role):
            raise InvalidParameter(
                f'role "{name}" cannot be renamed', detail="it is the one that is always there or yours"
            )
        if record_of(state, statement.target) is not None or statement.target == ROOT:
            raise DuplicateObject(f'role "{statement.target}" already exists')
    assert record is not None

    def altered(found: ObjectRecord) -> ObjectRecord:
        role = _changed(Role.of(found), statement.options, session.zone)
        return replace(found, name=statement.target or found.name, content=role.content)

    session.database.coordinator.alter_objects([record.id], altered, "was changed")
    return Result("ALTER ROLE")


def _check_alteration(session: Session, name: str, record: ObjectRecord | None, statement: st.AlterRole) -> None:
    """Raise `InsufficientPrivilege` for who may not: everybody may change the own password."""
    rights, options = session.rights, statement.options
    if name == ROOT and options.get("superuser") is False:
        raise InvalidParameter(f'role "{ROOT}" stays a superuser', detail="it is the one that is always there")
    if rights.superuser:
        return
    own_password = name == rights.name and set(options) == {"password"} and statement.target is None
    if own_password:
        return
    if record is None or Role.of(record).superuser:
        raise InsufficientPrivilege("permission denied to alter a superuser", hint="Only superusers may.")
    if not rights.role.create_role:
        raise InsufficientPrivilege("permission denied to alter role", hint="CREATEROLE permits it.")
    require_admin(session, record, "alter")
    _check_given(session, options)


def drop_role(session: Session, statement: st.DropRole) -> Result:
    """DROP ROLE and DROP USER."""
    state, notices, found = session.database.catalog.state, [], []
    if not (session.rights.superuser or session.rights.role.create_role):
        raise InsufficientPrivilege("permission denied to drop role", hint="CREATEROLE permits it.")
    for name in dict.fromkeys(statement.names):
        if name == ROOT:
            raise DependentObjectsExist(f'cannot drop role "{ROOT}" because it is required by the database system')
        if name in (session.user, session.role):
            raise TransactionError("current user cannot be dropped", sqlstate="55006")
        record = record_of(state, name)
        if record is None and not statement.if_exists:
            raise UndefinedObject(f'role "{name}" does not exist')
        if record is None:
            notices.append(Notice(f'role "{name}" does not exist, skipping'))
            continue
        if Role.of(record).superuser:
            session.rights.require_superuser("drop a superuser")
        require_admin(session, record, "drop")
        check_droppable(session, record)
        found.append(record.id)
    if found:
        session.database.coordinator.drop(found)
    return Result("DROP ROLE", notices=notices)


def _create(session: Session, role: Role) -> None:
    record = ObjectRecord(0, role.content, ROLES_SCHEMA, role.name, created_ms=session.database.now_ms())
    session.database.coordinator.create_relation(record)


def _changed(role: Role, options: Mapping[str, Any], zone: Zone) -> Role:
    ends = options.get("valid_until_ms")
    if isinstance(ends, datetime):
        try:
            moment = ends if ends.tzinfo else zone.moment(ends)
        except OverflowError:
            raise InvalidDatetime(f"date/time field value out of range: {ends}", sqlstate="22008") from None
        options = {**options, "valid_until_ms": int(moment.timestamp() * 1000)}
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


HANDLERS: Final = (
    Handler(st.CreateRole, create_role),
    Handler(st.AlterRole, alter_role),
    Handler(st.DropRole, drop_role),
)
