"""GRANT, REVOKE, ALTER DEFAULT PRIVILEGES, OWNED BY and SET ROLE."""

from __future__ import annotations

from typing import Final

from headrace.sql import statements as st
from headrace.sql.starts import starts
from headrace.sql.token_cursor import Cursor

_PRIVILEGES: Final = ("SELECT", "INSERT", "UPDATE", "DELETE", "USAGE", "CREATE", "EXECUTE")
_REFUSED: Final = (
    "TRUNCATE",
    "REFERENCES",
    "TRIGGER",
    "CONNECT",
    "TEMPORARY",
    "TEMP",
    "SET",
    "ALTER SYSTEM",
    "MAINTAIN",
)
_KINDS: Final = {
    "TABLE": "relation", "VIEW": "relation", "MATERIALIZED VIEW": "relation", "SOURCE": "relation",
    "SCHEMA": "schema", "FUNCTION": "function", "ROUTINE": "function", "SECRET": "secret",
    "CONNECTION": "connection",
}  # fmt: skip
_ALL: Final[dict[str, tuple[str, str | None]]] = {
    "TABLES": ("relation", None), "VIEWS": ("relation", "view"), "SOURCES": ("relation", "source"),
    "MATERIALIZED VIEWS": ("relation", "materialized_view"), "FUNCTIONS": ("function", None),
    "ROUTINES": ("function", None), "SECRETS": ("secret", None), "CONNECTIONS": ("connection", None),
}  # fmt: skip
_DEFAULTS: Final = {"TABLES": "relation", "FUNCTIONS": "function", "ROUTINES": "function", "SCHEMAS": "schema"}
_HINTS: Final = {
    "DATABASE": "auth_rules and LOGIN say who may connect, CREATEDB of a role who may make schemas.",
    "LANGUAGE": "Who is a member of pg_execute_server_program may create functions.",
    "SINK": "A sink is its owner's: ALTER SINK ... OWNER TO.",
}


def grant(cursor: Cursor) -> st.Statement:
    """Read a statement after `GRANT`."""
    return _of_roles(cursor, False) if _grants_roles(cursor) else _of_objects(cursor, False)


def revoke(cursor: Cursor) -> st.Statement:
    """Read a statement after `REVOKE`."""
    if cursor.peek("GRANT", "OPTION", "FOR"):
        cursor.refuse("GRANT OPTION", "Privileges are granted by an object's owner, and by superusers.")
    if cursor.match("ADMIN", "OPTION", "FOR"):
        return _of_roles(cursor, True, admin=True)
    return _of_roles(cursor, True) if _grants_roles(cursor) else _of_objects(cursor, True)


def _grants_roles(cursor: Cursor) -> bool:
    """Whether roles are granted, and not privileges on something."""
    start = cursor.at
    cursor.until("ON", "TO", "FROM")
    found = not cursor.peek("ON")
    cursor.at = start
    return found


def _of_roles(cursor: Cursor, revoked: bool, *, admin: bool = False) -> st.Statement:
    roles = listed_roles(cursor)
    cursor.expect("FROM" if revoked else "TO")
    members = listed_roles(cursor)
    if not revoked:
        admin = cursor.match("WITH", "ADMIN", "OPTION")
    _end(cursor, revoked)
    return st.GrantRole(roles, members, revoked, admin)


def _of_objects(cursor: Cursor, revoked: bool) -> st.Statement:
    privileges = _privileges(cursor)
    cursor.expect("ON")
    kind, only, names, schemas = _objects(cursor)
    grantees = _grantees(cursor, revoked)
    return st.Grant(privileges, kind, names, schemas, only, grantees, revoked)


def alter_default_privileges(cursor: Cursor) -> st.Statement:
    """Read a statement after `ALTER DEFAULT PRIVILEGES`."""
    roles = listed_roles(cursor) if cursor.match("FOR", "ROLE") or cursor.match("FOR", "USER") else ()
    schemas = _schemas(cursor) if cursor.match("IN", "SCHEMA") else ()
    revoked = cursor.match("REVOKE")
    if not revoked:
        cursor.expect("GRANT")
    privileges = _privileges(cursor)
    cursor.expect("ON")
    word = next((w for w in _DEFAULTS if cursor.match(w)), None)
    if word is None:
        cursor.refuse("this kind of objects in ALTER DEFAULT PRIVILEGES", "TABLES, FUNCTIONS and SCHEMAS have them.")
    if word == "SCHEMAS" and schemas:
        cursor.refuse("IN SCHEMA for schemas")
    grantees = _grantees(cursor, revoked)
    return st.AlterDefaultPrivileges(roles, schemas, privileges, _DEFAULTS[word], grantees, revoked)


def reassign_owned(cursor: Cursor) -> st.Statement:
    """Read a statement after `REASSIGN OWNED BY`."""
    roles = listed_roles(cursor)
    cursor.expect("TO")
    found = st.ReassignOwned(roles, role_name(cursor))
    cursor.expect_end()
    return found


def drop_owned(cursor: Cursor) -> st.Statement:
    """Read a statement after `DROP OWNED BY`."""
    roles = listed_roles(cursor)
    cascade = cursor.match("CASCADE")
    if not cascade:
        cursor.match("RESTRICT")
    cursor.expect_end()
    return st.DropOwned(roles, cascade)


def set_role(cursor: Cursor, *, local: bool) -> st.Statement | None:
    """Read the rest of `SET ROLE` or `SET SESSION AUTHORIZATION`; None for another `SET`."""
    session = cursor.match("SESSION", "AUTHORIZATION")
    if not session and (not cursor.peek("ROLE") or cursor.is_symbol("=", 1) or cursor.is_symbol("TO", 1)):
        return None
    if not session:
        cursor.expect("ROLE")
    if cursor.match("DEFAULT" if session else "NONE"):
        name = None
    else:
        name = cursor.string() if cursor.is_string() else role_name(cursor)
    cursor.expect_end()
    return st.SetRole(name, session, local)


def reset_role(cursor: Cursor) -> st.Statement | None:
    """Read the rest of `RESET ROLE` or `RESET SESSION AUTHORIZATION`; None for another `RESET`."""
    session = cursor.match("SESSION", "AUTHORIZATION")
    if not session and not cursor.match("ROLE"):
        return None
    cursor.expect_end()
    return st.SetRole(None, session)


def role_name(cursor: Cursor) -> str:
    """Read a role's name; `CURRENT_USER` and the like as PostgreSQL spells them."""
    for word in ("CURRENT_USER", "CURRENT_ROLE", "SESSION_USER"):
        if cursor.match(word):
            return word
    return cursor.identifier()


def listed_roles(cursor: Cursor) -> tuple[str, ...]:
    """Read names of roles, separated by commas."""
    found = [role_name(cursor)]
    while cursor.match(","):
        found.append(role_name(cursor))
    return tuple(found)


def _privileges(cursor: Cursor) -> tuple[str, ...]:
    """Read privileges; none of them stands for all."""
    if cursor.match("ALL"):
        cursor.match("PRIVILEGES")
        if cursor.is_symbol("("):
            cursor.refuse("a privilege on columns", "Make a view of those columns, and grant that.")
        return ()
    found = [_privilege(cursor)]
    while cursor.match(","):
        found.append(_privilege(cursor))
    return tuple(dict.fromkeys(found))


def _privilege(cursor: Cursor) -> str:
    for refused in _REFUSED:
        if cursor.peek(*refused.split()):
            cursor.refuse(f"the privilege {refused}")
    word = next((w for w in _PRIVILEGES if cursor.match(w)), None)
    if word is None:
        cursor.fail()
    if cursor.is_symbol("("):
        cursor.refuse("a privilege on columns", "Make a view of those columns, and grant that.")
    return word


def _objects(cursor: Cursor) -> tuple[str, str | None, tuple[st.TableName, ...], tuple[str, ...]]:
    """The class of the objects, the kind that they are restricted to, and their names or the schemas that have them."""
    for words, (all_of, only) in _ALL.items():
        if cursor.match("ALL", *words.split()):
            cursor.expect("IN", "SCHEMA")
            return all_of, only, (), _schemas(cursor)
    for word, hint in _HINTS.items():
        if cursor.peek(word) and not cursor.is_symbol(",", 1):
            cursor.refuse(f"a privilege on a {word.lower()}", hint)
    for word in ("SEQUENCE", "TYPE", "DOMAIN", "SUBSCRIPTION", "TABLESPACE", "PARAMETER", "PROCEDURE"):
        if cursor.peek(word) and not (cursor.is_symbol(",", 1) or cursor.is_symbol("TO", 1)):
            cursor.refuse(f"a privilege on a {word.lower()}")
    kind = next((found for words, found in _KINDS.items() if cursor.match(*words.split())), "relation")
    names = [_object(cursor, kind)]
    while cursor.match(","):
        names.append(_object(cursor, kind))
    return kind, None, tuple(names), ()


def _object(cursor: Cursor, kind: str) -> st.TableName:
    if kind == "schema":
        return st.TableName(None, cursor.identifier())
    name = cursor.table_name()
    if kind == "function" and cursor.match("("):  # there is one function of a name, whatever its types
        cursor.until(")")
        cursor.expect(")")
    return name


def _schemas(cursor: Cursor) -> tuple[str, ...]:
    found = [cursor.identifier()]
    while cursor.match(","):
        found.append(cursor.identifier())
    return tuple(found)


def _grantees(cursor: Cursor, revoked: bool) -> tuple[str, ...]:
    cursor.expect("FROM" if revoked else "TO")
    found: list[str] = []
    while not found or cursor.match(","):
        cursor.match("GROUP")
        found.append(role_name(cursor))
    if cursor.peek("WITH", "GRANT", "OPTION"):
        cursor.refuse("WITH GRANT OPTION", "Privileges are granted by an object's owner, and by superusers.")
    _end(cursor, revoked)
    return tuple(found)


def _end(cursor: Cursor, revoked: bool) -> None:
    if cursor.peek("GRANTED", "BY"):
        cursor.refuse("GRANTED BY")
    if revoked and not cursor.match("CASCADE"):  # nothing hangs on a privilege: only owners grant
        cursor.match("RESTRICT")
    cursor.expect_end()


STARTS = (
    starts(grant, "GRANT"),
    starts(revoke, "REVOKE"),
    starts(alter_default_privileges, "ALTER DEFAULT PRIVILEGES"),
    starts(reassign_owned, "REASSIGN OWNED BY"),
    starts(drop_owned, "DROP OWNED BY"),
)
