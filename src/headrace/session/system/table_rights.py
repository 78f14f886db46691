"""What has been granted on relations, as `information_schema` shows it, and what will be, as `pg_default_acl` does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from headrace.catalog.records import ObjectRecord
from headrace.session.context import Context
from headrace.session.rights import CLASSES, EVERYBODY, PRIVILEGES, Rights, default_grants, grants_of, role_name
from headrace.session.stored_roles import Role, all_roles, record_of
from headrace.session.system.pg_catalog import namespaces, relations
from headrace.session.system.system_relations import Rows, define

_WORDS: Final = {letter: word for word, letter in PRIVILEGES.items()}
_OBJECT_TYPES: Final = {"relation": "r", "function": "f", "schema": "n"}


def _has(rights: Rights, number: int) -> bool:
    """Whether the rights of a role are among those of the role that asks; 0 is the one that is always there."""
    return rights.superuser or (number != 0 and number in rights.inherited)


def _grants(context: Context, record: ObjectRecord) -> Iterator[dict[str, str]]:
    """A row for each privilege on a relation, for whoever granted or has it, as PostgreSQL restricts them."""
    state, rights = context.catalog.state, context.rights
    owner = role_name(state, record.owner)
    held = [(record.owner, CLASSES["relation"], True)]
    held += [(int(key), letters, False) for key, letters in grants_of(record).items()]
    for number, letters, grantable in held:
        public = not grantable and number == EVERYBODY
        if not public and not grantable and number not in state.objects:
            continue
        name = "PUBLIC" if public else role_name(state, number)
        if not (public or _has(rights, number) or _has(rights, record.owner)):
            continue
        for letter in letters:
            yield {
                "grantor": owner, "grantee": name, "table_schema": record.schema, "table_name": record.name,
                "privilege_type": _WORDS[letter], "is_grantable": "YES" if grantable else "NO",
                "with_hierarchy": "YES" if letter == "r" else "NO",
            }  # fmt: skip


def _table_privileges(context: Context) -> Rows:
    for record in relations(context):
        if record.content.granted_as == "relation":
            yield from _grants(context, record)


def _role_grants(context: Context) -> Rows:
    return [row for row in _table_privileges(context) if row["grantee"] != "PUBLIC"]


def _column_privileges(context: Context) -> Rows:
    """Privileges are on whole relations, and those that there are on columns are on all of them."""
    for record in relations(context):
        if record.content.granted_as == "relation":
            for row in _grants(context, record):
                if row["privilege_type"] != "DELETE":
                    yield from ({**row, "column_name": column.name} for column in record.columns)


def _enabled_roles(context: Context) -> Rows:
    rights, roles = context.rights, all_roles(context.catalog.state)
    return [{"role_name": r.name} for oid, r in roles.items() if _has(rights, oid) or _has(rights, -oid)]


def _defaults(context: Context) -> Rows:
    state, schemas = context.catalog.state, namespaces(context)
    for oid, role in all_roles(state).items():
        record = record_of(state, role.name)
        grants = () if record is None else Role.of(record).defaults
        for schema, kind in dict.fromkeys((grant.schema, grant.kind) for grant in grants):
            found = {} if schema else {int(k): v for k, v in default_grants(kind, "").items()}
            found |= {g.grantee: g.letters for g in grants if (g.schema, g.kind) == (schema, kind)}
            if not schema:  # what the owner has anyway is said where all is said
                found = {record.id if record is not None else 0: CLASSES[kind], **found}
            yield {
                "oid": oid * 100 + len(kind) + schemas.get(schema, 0), "defaclrole": oid,
                "defaclnamespace": schemas.get(schema, 0), "defaclobjtype": _OBJECT_TYPES[kind],
                "defaclacl": [
                    f"{'' if number == EVERYBODY else role_name(state, number)}={letters}/{role.name}"
                    for number, letters in found.items() if letters
                ],
            }  # fmt: skip


def load() -> None:
    """Define the relations."""
    on_table = "grantor name, grantee name, table_catalog name, table_schema name, table_name name"
    columns = f"{on_table}, privilege_type varchar, is_grantable varchar, with_hierarchy varchar"
    for name, rows in (("table_privileges", _table_privileges), ("role_table_grants", _role_grants)):
        define("information_schema", name, columns, rows, table_catalog="dev")
    of_columns = f"{on_table}, column_name name, privilege_type varchar, is_grantable varchar"
    for name in ("column_privileges", "role_column_grants"):
        define("information_schema", name, of_columns, _column_privileges, table_catalog="dev")
    define("information_schema", "enabled_roles", "role_name name", _enabled_roles)
    define(
        "pg_catalog", "pg_default_acl",
        "oid oid, defaclrole oid, defaclnamespace oid, defaclobjtype char, defaclacl array<aclitem>", _defaults,
    )  # fmt: skip
