"""GRANT, REVOKE, ALTER DEFAULT PRIVILEGES, OWNED BY, ALTER ... OWNER TO and SET ROLE."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from headrace.catalog.contents import DefaultGrant, RoleContent, SchemaContent
from headrace.catalog.records import ObjectRecord
from headrace.coordinator.decide.former import formers_of
from headrace.errors import (
    DependentObjectsExist,
    InsufficientPrivilege,
    NotSupported,
    StatementError,
    UndefinedObject,
    UndefinedTable,
    WrongObjectType,
)
from headrace.session.context import Context
from headrace.session.execution.dropping import drop_records
from headrace.session.execution.handler import Handler, Needs
from headrace.session.execution.owning import ordered
from headrace.session.hidden_views import is_part, parts_of
from headrace.session.names import label, names_of
from headrace.session.result import Notice, Result
from headrace.session.rights import CLASSES, EVERYBODY, PRIVILEGES, Rights, default_grants, grants_of
from headrace.session.stored_roles import PREDEFINED, ROLES_SCHEMA, ROOT, Role, record_of
from headrace.sql import statements as st

_CURRENT = ("CURRENT_USER", "CURRENT_ROLE")


# ---- which roles


def role_meant(context: Context, name: str) -> str:
    """The name of a role that a statement names, perhaps as `CURRENT_USER`."""
    if name in _CURRENT:
        return context.role
    return context.user if name == "SESSION_USER" else name


def role_id(context: Context, name: str) -> int:
    """The id of a role that owns or is granted something; 0 for the one that is always there.

    Raises `UndefinedObject`.
    """
    name = role_meant(context, name)
    if name == ROOT:
        return 0
    record = record_of(context.catalog.state, name)
    if record is None:
        raise UndefinedObject(f'role "{name}" does not exist')
    return record.id


def stored_role(context: Context, name: str) -> ObjectRecord:
    """What is stored of a role; of the one that is always there it is made now if need be. Raises `UndefinedObject`."""
    name = role_meant(context, name)
    record = record_of(context.catalog.state, name)
    if record is None and name == ROOT:
        context.rights.require_superuser(f"change role {ROOT}")
        made = ObjectRecord(0, Role(ROOT).content, ROLES_SCHEMA, ROOT, created_ms=context.clock.now_ms())
        context.coordinator.create_relation(made)
        record = record_of(context.catalog.state, name)
    if record is None:
        raise UndefinedObject(f'role "{name}" does not exist')
    return record


def _grantees(context: Context, names: Iterable[str]) -> list[str]:
    """The keys of grantees; the role that is always there needs no grant."""
    found = []
    for name in names:
        if name == "public":
            found.append(str(EVERYBODY))
        elif number := role_id(context, name):
            found.append(str(number))
    return found


# ---- privileges


def grant(context: Context, statement: st.Grant) -> Result:
    """GRANT and REVOKE of privileges."""
    letters = _letters(statement.privileges, statement.kind)
    records = list(_objects(context, statement))
    for record in records:
        context.rights.require_owner(record)
    grantees = _grantees(context, statement.grantees)

    def change(record: ObjectRecord) -> ObjectRecord:
        return replace(record, grants=_changed(grants_of(record), grantees, letters, statement.revoked))

    if records:
        context.coordinator.alter_objects([r.id for r in records], change, _said(context, statement))
    return Result(statement.tag)


def _said(context: Context, statement: st.Statement) -> str:
    """What the event says that has been done: by whom, and in which words."""
    return f"was changed by {context.role}: {statement.text}"


def _letters(privileges: Sequence[str], kind: str) -> str:
    """A letter for each privilege. Raises `StatementError` (0LP01) for one that objects of the class do not have."""
    if not privileges:
        return CLASSES[kind]
    for word in privileges:
        if PRIVILEGES[word] not in CLASSES[kind]:
            raise StatementError(f"invalid privilege type {word} for {kind}", sqlstate="0LP01")
    return "".join(PRIVILEGES[word] for word in privileges)


def _changed(grants: Mapping[str, str], grantees: Iterable[str], letters: str, revoked: bool) -> dict[str, str]:
    found = dict(grants)
    for grantee in grantees:
        had = set(found.pop(grantee, ""))
        left = had - set(letters) if revoked else had | set(letters)
        if left:
            found[grantee] = ordered(left)
    return found


def _objects(context: Context, statement: st.Grant) -> Iterable[ObjectRecord]:
    """What is granted."""
    if statement.schemas:
        yield from _all_in(context, statement)
        return
    for name in statement.names:
        if statement.kind == "schema":
            yield schema_record(context, name.name)
            continue
        record = names_of(context).find(name)
        if record is None:
            raise _missing(statement.kind, name)
        if record.content.granted_as != statement.kind:
            raise WrongObjectType(f'"{name}" is a {record.kind_name}, not a {statement.kind}')
        yield record


def _all_in(context: Context, statement: st.Grant) -> Iterable[ObjectRecord]:
    state = context.catalog.state
    for schema in statement.schemas:
        if schema != "public":
            schema_record(context, schema)
    for record in state.objects.values():
        of_class = record.content.granted_as == statement.kind
        meant = record.schema in statement.schemas and of_class and not is_part(record)
        if meant and (statement.only is None or record.kind == statement.only):
            yield record


def _missing(kind: str, name: st.TableName) -> StatementError:
    if kind == "relation":
        return UndefinedTable(f'relation "{name}" does not exist')
    return UndefinedObject(f'{kind} "{name}" does not exist')


def schema_record(context: Context, name: str) -> ObjectRecord:
    """A schema; of `public`, which is always there, something is stored from now on. Raises `UndefinedObject`."""
    state = context.catalog.state
    record = state.object_named("", name)
    if record is None and name == "public":
        context.rights.require_superuser("grant on schema public")
        made = context.coordinator.create_relation(ObjectRecord(0, SchemaContent(), "", name))
        return context.catalog.state.objects[made]
    if record is None:
        raise UndefinedObject(f'schema "{name}" does not exist', sqlstate="3F000")
    return record


# ---- default privileges


def alter_default_privileges(context: Context, statement: st.AlterDefaultPrivileges) -> Result:
    """ALTER DEFAULT PRIVILEGES: what is granted on what a role will make."""
    letters = _letters(statement.privileges, statement.kind)
    for schema in statement.schemas:
        if schema != "public":
            schema_record(context, schema)
    records = [stored_role(context, name) for name in statement.roles or ("CURRENT_USER",)]
    for record in records:
        _require_settable(context, record, "change default privileges of")
    grantees = [int(g) for g in _grantees(context, statement.grantees)]

    def change(record: ObjectRecord) -> ObjectRecord:
        role = Role.of(record)
        found = {grant[:3]: grant.letters for grant in role.defaults}
        for schema in statement.schemas or ("",):
            for grantee in grantees:
                key = schema, statement.kind, grantee
                had = set(found.get(key, "" if schema else default_grants(statement.kind, "").get(str(grantee), "")))
                found[key] = ordered(had - set(letters) if statement.revoked else had | set(letters))
        defaults = tuple(DefaultGrant(*key, letters) for key, letters in found.items())
        return replace(record, content=replace(role, defaults=defaults).content)

    context.coordinator.alter_objects([r.id for r in records], change, _said(context, statement))
    return Result(statement.tag)


# ---- memberships


def grant_role(context: Context, statement: st.GrantRole) -> Result:
    """GRANT and REVOKE of roles."""
    ids = {name: granted_role(context, name) for name in statement.roles}
    members = [stored_role(context, name) for name in statement.members]
    state, notices = context.catalog.state, []
    for member in members:
        for name, number in ids.items():
            if not statement.revoked and member.id in Rights.of(state, number).settable if number > 0 else False:
                raise StatementError(f'role "{name}" is a member of role "{member.name}"', sqlstate="0LP01")
            is_member = number in Role.of(member).member_of
            if statement.revoked and not is_member:
                notices.append(Notice(f'role "{member.name}" is not a member of role "{name}"', "WARNING", "01000"))

    def change(record: ObjectRecord) -> ObjectRecord:
        role = Role.of(record)
        found = dict(role.member_of)
        for number in ids.values():
            if not statement.revoked:
                found[number] = statement.admin or found.get(number, False)
            elif statement.admin and number in found:
                found[number] = False
            elif not statement.admin:
                found.pop(number, None)
        return replace(record, content=replace(role, member_of=found).content)

    context.coordinator.alter_objects([m.id for m in members], change, _said(context, statement))
    return Result(statement.tag, notices=notices)


def granted_role(context: Context, name: str) -> int:
    """The id of a role that is to be granted. Raises `InsufficientPrivilege` for who may not let others in."""
    rights = context.rights
    if name in PREDEFINED:
        rights.require_superuser(f"grant role {name}")
        return PREDEFINED[name]
    if role_meant(context, name) == ROOT:
        raise NotSupported(f"members of {ROOT}", hint="ALTER ROLE ... SUPERUSER lets a role do everything.")
    record = stored_role(context, name)
    if Role.of(record).superuser:
        rights.require_superuser(f"grant the superuser {record.name}")
    require_admin(context, record, "grant")
    return record.id


def require_admin(context: Context, record: ObjectRecord, action: str) -> None:
    """Raise `InsufficientPrivilege` for who may not let others into a role, or change it."""
    rights = context.rights
    own = rights.role.member_of
    if not rights.superuser and not own.get(record.id, False):
        raise InsufficientPrivilege(
            f"permission denied to {action} role", hint=f'It takes the ADMIN OPTION on role "{record.name}".'
        )


# ---- owners


def _require_settable(context: Context, record: ObjectRecord, action: str) -> None:
    rights = context.rights
    if not rights.superuser and record.id not in rights.settable:
        raise InsufficientPrivilege(
            f'permission denied to {action} role "{record.name}"', hint="Only its members may, and superusers."
        )


def give(context: Context, record: ObjectRecord, target: str) -> None:
    """Let an object that the session owns belong to another role."""
    rights, owner = context.rights, role_id(context, target)
    if not rights.superuser:
        if owner not in rights.settable:
            raise InsufficientPrivilege(f'must be able to SET ROLE "{target}"')
        if record.schema:
            Rights.of(context.catalog.state, owner).require_in("C", record.schema)
    _give(context, [record], owner)


def _give(context: Context, records: Sequence[ObjectRecord], owner: int) -> None:
    """Let objects, and the hidden ones that they are made of, belong to another role."""
    state = context.catalog.state
    known = [*records, *(former for r in records for former in formers_of(state, r.id))]
    ids = list(dict.fromkeys(r.id for r in [*known, *parts_of(state, [r.id for r in known])]))
    change = lambda record: replace(record, owner=owner)  # noqa: E731
    context.coordinator.alter_objects(ids, change, "belongs to another role")


def _owned_by(context: Context, names: Sequence[str]) -> tuple[list[ObjectRecord], list[ObjectRecord]]:
    """Roles, and what they own."""
    roles = []
    for name in names:
        if role_id(context, name) == 0:
            raise DependentObjectsExist(f'objects of role "{ROOT}" are required by the database system')
        roles.append(stored_role(context, name))
        _require_settable(context, roles[-1], "reassign or drop objects of")
    ids = {role.id for role in roles}
    return roles, [o for o in context.catalog.state.objects.values() if o.owner in ids]


def reassign_owned(context: Context, statement: st.ReassignOwned) -> Result:
    """REASSIGN OWNED."""
    _, records = _owned_by(context, statement.roles)
    target = role_id(context, statement.target)
    if not context.rights.superuser and target not in context.rights.settable:
        raise InsufficientPrivilege("permission denied to reassign objects")
    if records:
        _give(context, records, target)
    return Result(statement.tag)


def drop_owned(context: Context, statement: st.DropOwned) -> Result:
    """DROP OWNED: drop what roles own, and take back what has been granted to them."""
    roles, records = _owned_by(context, statement.roles)
    notices = drop_records(context, [r for r in records if not is_part(r)], cascade=statement.cascade)
    keys = {str(role.id) for role in roles}
    granted = [o.id for o in context.catalog.state.objects.values() if keys & set(o.grants or ())]

    def change(record: ObjectRecord) -> ObjectRecord:
        return replace(record, grants={k: v for k, v in grants_of(record).items() if k not in keys})

    if granted:
        context.coordinator.alter_objects(granted, change, "is granted no more")
    return Result(statement.tag, notices=notices)


def check_droppable(context: Context, role: ObjectRecord) -> None:
    """Raise `DependentObjectsExist` for a role that owns something, or has been granted something."""
    lines = []
    for record in context.catalog.state.objects.values():
        if record.owner == role.id:
            lines.append(f"owner of {record.kind_name} {label(record)}")
        elif str(role.id) in (record.grants or ()):
            lines.append(f"privileges for {record.kind_name} {label(record)}")
    if lines:
        raise DependentObjectsExist(
            f'role "{role.name}" cannot be dropped because some objects depend on it',
            detail="\n".join(lines[:20]),
            hint="REASSIGN OWNED gives its objects to another role, DROP OWNED takes back what it was granted.",
        )


# ---- who the session is


def set_role(context: Context, statement: st.SetRole) -> Result:
    """SET ROLE and SET SESSION AUTHORIZATION."""
    if statement.local and context.transaction is None:
        return Result(
            statement.tag, notices=[Notice("SET LOCAL can only be used in transaction blocks", "WARNING", "25P01")]
        )
    name = None if statement.name is None else role_meant(context, statement.name)
    if name is not None and name != context.authenticated:
        _check_becoming(context, name, statement.session)
    if statement.session:
        context.become(name, None)
    else:
        context.become(context.user, name, local=statement.local)
    return Result(statement.tag)


def _check_becoming(context: Context, name: str, authorization: bool) -> None:
    state = context.catalog.state
    record = record_of(state, name)
    if record is None and name != ROOT and state.objects_of(RoleContent):
        raise UndefinedObject(f'role "{name}" does not exist')
    first = Rights(state, context.authenticated if authorization else context.user)
    if first.superuser or (not authorization and name == context.user):
        return
    if authorization:
        raise InsufficientPrivilege("permission denied to set session authorization")
    if record is None or record.id not in first.settable:
        raise InsufficientPrivilege(f'permission denied to set role "{name}"')


HANDLERS: Final = (
    Handler(st.Grant, grant, needs=Needs.OWNER),
    Handler(st.GrantRole, grant_role, needs=Needs.ROLES),
    Handler(st.AlterDefaultPrivileges, alter_default_privileges, needs=Needs.ROLES),
    Handler(st.ReassignOwned, reassign_owned, needs=Needs.ROLES),
    Handler(st.DropOwned, drop_owned, needs=Needs.ROLES),
    Handler(
        st.SetRole,
        set_role,
        outside=lambda statement: "SET SESSION AUTHORIZATION" if statement.session else None,
        audited=True,
        needs=Needs.ROLES,
    ),
)
