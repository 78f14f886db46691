"""CREATE, ALTER and DROP ROLE (or USER): statements whose text is shown to nobody, since it may have a password."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Any, Final

from headrace.errors import InvalidDatetime
from headrace.sql import statements as st
from headrace.sql.grants import listed_roles, role_name
from headrace.sql.secrets import HIDDEN, spelled
from headrace.sql.starts import starts
from headrace.sql.token_cursor import Cursor

_WORDS: Final[dict[str, tuple[str, object] | None]] = {
    "LOGIN": ("can_login", True), "NOLOGIN": ("can_login", False),
    "SUPERUSER": ("superuser", True), "NOSUPERUSER": ("superuser", False),
    "CREATEDB": ("create_db", True), "NOCREATEDB": ("create_db", False),
    "CREATEROLE": ("create_role", True), "NOCREATEROLE": ("create_role", False),
    "INHERIT": ("inherit", True), "NOINHERIT": ("inherit", False),
    "NOREPLICATION": None, "NOBYPASSRLS": None,  # as every role
}  # fmt: skip
_REFUSED: Final = ("REPLICATION", "BYPASSRLS", "ROLE", "USER", "ADMIN", "SYSID")


def create_role(cursor: Cursor, *, user: bool) -> st.Statement:
    """Read a statement after `CREATE ROLE`, or `CREATE USER`, which may log in."""
    name = _name(cursor)
    options = _options(cursor, new=True)
    kind = "USER" if user else "ROLE"
    given = {"can_login": user, "superuser": False, **options}
    return st.CreateRole(name, given, text=f"CREATE {kind} {_shown(name, options)}")


def alter_role(cursor: Cursor) -> st.Statement:
    """Read a statement after `ALTER ROLE` or `ALTER USER`."""
    name = role_name(cursor)
    if cursor.match("RENAME", "TO"):
        target = _name(cursor)
        cursor.expect_end()
        return st.AlterRole(name, {}, target, text=f"ALTER ROLE {spelled(name)} RENAME TO {spelled(target)}")
    for action in ("SET", "RESET", "IN DATABASE"):
        if cursor.peek(*action.split()):
            cursor.refuse(f"ALTER ROLE ... {action}", "ALTER SYSTEM SET changes a parameter for all.")
    options = _options(cursor)
    return st.AlterRole(name, options, text=f"ALTER ROLE {_shown(name, options)}")


def drop_role(cursor: Cursor) -> st.Statement:
    """Read a statement after `DROP ROLE` or `DROP USER`."""
    exists = cursor.match("IF", "EXISTS")
    names = [_name(cursor)]
    while cursor.match(","):
        names.append(_name(cursor))
    cursor.expect_end()
    return st.DropRole(tuple(names), exists)


def _name(cursor: Cursor) -> str:
    name = cursor.identifier()
    if name in ("public", "none", "current_user", "session_user", "current_role") or name.startswith("pg_"):
        cursor.at -= 1
        cursor.refuse(f'the reserved name "{name}" for a role')
    return name


def _options(cursor: Cursor, *, new: bool = False) -> dict[str, object]:
    found: dict[str, object] = {}
    cursor.match("WITH")
    while cursor.token is not None:
        if new and (cursor.match("IN", "ROLE") or cursor.match("IN", "GROUP")):
            option: tuple[str, object] | None = "in_roles", listed_roles(cursor)
        else:
            option = _option(cursor)
        if option is not None and option[0] in found:
            cursor.fail()  # conflicting or redundant
        if option is not None:
            found[option[0]] = option[1]
    return found


def _option(cursor: Cursor) -> tuple[str, object] | None:
    for word in _REFUSED:
        if cursor.peek(word):
            cursor.refuse(f"{word} of a role", "GRANT makes members." if word in ("ROLE", "USER", "ADMIN") else None)
    for word, meaning in _WORDS.items():
        if cursor.match(word):
            return meaning
    if cursor.match("CONNECTION", "LIMIT"):
        text = ("-" if cursor.match("-") else "") + cursor.word()
        if not text.removeprefix("-").isdecimal() or not -1 <= int(text) < 1 << 31:
            cursor.refuse(f"a connection limit of {text}")
        return "connection_limit", int(text)
    if cursor.match("VALID", "UNTIL"):
        return "valid_until_ms", _moment(cursor.string())
    cursor.match("ENCRYPTED")
    cursor.expect("PASSWORD")
    return "password", None if cursor.match("NULL") else cursor.string()


def _moment(text: str) -> datetime | None:
    """A time; without an offset it is one of the session's zone."""
    if text == "infinity":
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise InvalidDatetime(f'invalid input syntax for type timestamp with time zone: "{text}"') from None


def _shown(name: str, options: dict[str, Any]) -> str:
    """The statement's text after its kind, with the password hidden."""
    words = [spelled(name)]
    given = {meaning for meaning in options.items() if meaning[0] not in ("password", "in_roles")}
    words += [word for word, meaning in _WORDS.items() if meaning in given]
    if "password" in options:
        words.append("PASSWORD NULL" if options["password"] is None else f"PASSWORD {HIDDEN}")
    if "connection_limit" in options:
        words.append(f"CONNECTION LIMIT {options['connection_limit']}")
    if "in_roles" in options:
        words.append("IN ROLE " + ", ".join(map(spelled, options["in_roles"])))
    return " ".join(words)


STARTS = (
    starts(partial(create_role, user=False), "CREATE ROLE"),
    starts(partial(create_role, user=True), "CREATE USER"),
    starts(alter_role, "ALTER ROLE", "ALTER USER"),
    starts(drop_role, "DROP ROLE", "DROP USER"),
)
