"""CREATE, ALTER and DROP ROLE."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from headrace.catalog.records import ObjectRecord
from headrace.common.scram import Verifier
from headrace.common.zones import Zone
from headrace.errors import (
    DependentObjectsExist,
    DuplicateObject,
    InsufficientPrivilege,
    InvalidDatetime,
    InvalidParameter,
    NotSupported,
    TransactionError,
    UndefinedObject,
)
from headrace.session.context import Context
from headrace.session.execution.grants import check_droppable, granted_role, require_admin, role_meant
from headrace.session.execution.handler import Handler, Needs
from headrace.session.result import Notice, Result
from headrace.session.stored_roles import ROLES_SCHEMA, ROOT, Role, record_of
from headrace.sql import statements as st

_GIVEN_BY_HOLDERS = {"superuser": "SUPERUSER", "create_role": "CREATEROLE", "create_db": "CREATEDB"}


def create_role(context: Context, statement: st.CreateRole) -> Result:
    """CREATE ROLE and CREATE USER. Who may and is no superuser gets the new role's ADMIN OPTION."""
    rights = context.rights
    if not rights.superuser:
        if not rights.role.create_role:
            raise InsufficientPrivilege("permission denied to create role", hint="CREATEROLE permits it.")
        _check_given(context, statement.options)
    if record_of(context.catalog.state, statement.name) is not None or statement.name == ROOT:
        raise DuplicateObject(f'role "{statement.name}" already exists')
    options = dict(statement.options)
    groups = options.pop("in_roles", ())
    members_of = {granted_role(context, name): False for name in groups}
    role = replace(_changed(Role(statement.name), options, context.zone), member_of=members_of)
    _create(context, role)
    if not rights.superuser:
        _let_in(context, rights.role_id, statement.name)
    return Result(statement.tag)


def _let_in(context: Context, maker: int, name: str) -> None:
    """Make a role a member of the one that it has made, with the right to let others in."""
    made = record_of(context.catalog.state, name)
    assert made is not None
    number = made.id

    def change(record: ObjectRecord) -> ObjectRecord:
        role = Role.of(record)
        return replace(record, content=replace(role, member_of={**role.member_of, number: True}).content)

    context.coordinator.alter_objects([maker], change, "has made a role")


def _check_given(context: Context, options: Mapping[str, object]) -> None:
    """Raise `InsufficientPrivilege` for what only those may give who have it."""
    own = context.rights.role
    for name, word in _GIVEN_BY_HOLDERS.items():
        if options.get(name) and not getattr(own, name):
            raise InsufficientPrivilege(f"permission denied to give a role {word}", hint="Only who has it may give it.")


def alter_role(context: Context, statement: st.AlterRole) -> Result:
    """ALTER ROLE and ALTER USER: who is connected stays so."""
    state, name = context.catalog.state, role_meant(context, statement.name)
    record = record_of(state, name)
    if record is None and name != ROOT:
        raise UndefinedObject(f'role "{name}" does not exist')
    _check_alteration(context, name, record, statement)
    if record is None and statement.target is None:  # it is there without having been made
        _create(context, _changed(Role(ROOT), statement.options, context.zone))
        return Result(statement.tag)
    if statement.target is not None:
        if name in (ROOT, context.user, context.role):
            raise InvalidParameter(
                f'role "{name}" cannot be renamed', detail="it is the one that is always there or yours"
            )
        if record_of(state, statement.target) is not None or statement.target == ROOT:
            raise DuplicateObject(f'role "{statement.target}" already exists')
    assert record is not None

    def altered(found: ObjectRecord) -> ObjectRecord:
        role = _changed(Role.of(found), statement.options, context.zone)
        return replace(found, name=statement.target or found.name, content=role.content)

    context.coordinator.alter_objects([record.id], altered, "was changed")
    return Result(statement.tag)


def role_to_alter(context: Context, name: str) -> ObjectRecord:
    """What is stored of a role. Raises `UndefinedObject`, and `InsufficientPrivilege` for who may not alter it."""
    record = record_of(context.catalog.state, name)
    if record is None and name != ROOT:
        raise UndefinedObject(f'role "{name}" does not exist')
    _check_alteration(context, name, record, st.AlterRole(name, {}))
    if record is None:
        raise NotSupported(
            f'a comment on the role "{ROOT}" as long as it is as it was made',
            hint=f"ALTER ROLE {ROOT} PASSWORD '...' first; from then on only roles that have been made may connect.",
        )
    return record


def _check_alteration(context: Context, name: str, record: ObjectRecord | None, statement: st.AlterRole) -> None:
    """Raise `InsufficientPrivilege` for who may not: everybody may change the own password."""
    rights, options = context.rights, statement.options
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
    require_admin(context, record, "alter")
    _check_given(context, options)


def drop_role(context: Context, statement: st.DropRole) -> Result:
    """DROP ROLE and DROP USER."""
    state, notices, found = context.catalog.state, [], []
    if not (context.rights.superuser or context.rights.role.create_role):
        raise InsufficientPrivilege("permission denied to drop role", hint="CREATEROLE permits it.")
    for name in dict.fromkeys(statement.names):
        if name == ROOT:
            raise DependentObjectsExist(f'cannot drop role "{ROOT}" because it is required by the database system')
        if name in (context.user, context.role):
            raise TransactionError("current user cannot be dropped", sqlstate="55006")
        record = record_of(state, name)
        if record is None and not statement.if_exists:
            raise UndefinedObject(f'role "{name}" does not exist')
        if record is None:
            notices.append(Notice(f'role "{name}" does not exist, skipping'))
            continue
        if Role.of(record).superuser:
            context.rights.require_superuser("drop a superuser")
        require_admin(context, record, "drop")
        check_droppable(context, record)
        found.append(record.id)
    if found:
        context.coordinator.drop(found)
    return Result(statement.tag, notices=notices)


def _create(context: Context, role: Role) -> None:
    record = ObjectRecord(0, role.content, ROLES_SCHEMA, role.name, created_ms=context.clock.now_ms())
    context.coordinator.create_relation(record)


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
    Handler(st.CreateRole, create_role, needs=Needs.ROLES),
    Handler(st.AlterRole, alter_role, needs=Needs.ROLES),
    Handler(st.DropRole, drop_role, needs=Needs.ROLES),
)
