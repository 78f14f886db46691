"""`has_table_privilege` and the like: what a role may do, asked in a query."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import exp

from headrace.catalog.records import ObjectRecord
from headrace.errors import InvalidParameter, NotSupported, UndefinedObject, UndefinedTable
from headrace.session.rights import PRIVILEGES, Rights
from headrace.session.roles import PREDEFINED, ROOT, record_of
from headrace.sql.statements import TableName

if TYPE_CHECKING:
    from headrace.session.session import Session


def answered(session: Session, node: exp.Expr) -> exp.Expr:
    """The answer to a call, as a literal. A superuser may do everything, whatever the arguments are.

    Raises `NotSupported` for arguments that are no literals, where that matters.
    """
    name, arguments = node.name.lower(), list(node.expressions)
    texts = [_literal(a) for a in arguments]
    rights: Rights | None = session.rights
    if len(arguments) > 2:  # the first one says whose; where that is no literal it cannot be told here
        rights = None if texts[0] is None else _of_role(session, texts[0])
    if rights is not None and rights.superuser:
        return exp.true()
    if rights is None or None in texts:
        raise NotSupported(f"{name} of arguments that are no literals", hint="Ask a superuser, or give names.")
    return exp.Boolean(this=_holds(session, rights, name, str(texts[-2]), str(texts[-1])))


def _literal(node: exp.Expr) -> str | None:
    while isinstance(node, (exp.Cast, exp.Paren)):
        node = node.this
    return node.name if isinstance(node, exp.Literal) else None


def _of_role(session: Session, name: str) -> Rights:
    state = session.rights.state
    if name != ROOT and record_of(state, name) is None and name != session.role:
        raise UndefinedObject(f'role "{name}" does not exist')
    return Rights(state, name)


def _holds(session: Session, rights: Rights, function: str, subject: str, wanted: str) -> bool:
    """Whether any of the privileges is held, of which the last argument is a list."""
    if function == "pg_has_role":
        record = record_of(rights.state, subject)
        number = PREDEFINED.get(subject) if record is None else record.id
        if number is None:
            raise UndefinedObject(f'role "{subject}" does not exist')
        return number in (rights.inherited if wanted.upper() == "USAGE" else rights.settable)
    letters = [_letter(word) for word in wanted.split(",")]
    if function == "has_schema_privilege":
        return any(rights.may_in(letter, subject) for letter in letters)
    record = _object(session, subject)
    return any(rights.may(letter, record) for letter in letters)


def _letter(word: str) -> str:
    found = PRIVILEGES.get(word.strip().upper())
    if found is None:
        raise InvalidParameter(f'unrecognized privilege type: "{word.strip()}"')
    return found


def _object(session: Session, text: str) -> ObjectRecord:
    if text.isdecimal() and int(text) in session.rights.state.objects:
        return session.rights.state.objects[int(text)]
    parts = [part.strip('"') for part in text.split("(")[0].split(".")]
    found = session.names().find(TableName(parts[0] if len(parts) > 1 else None, parts[-1]))
    if found is None:
        raise UndefinedTable(f'relation "{text}" does not exist')
    return found
