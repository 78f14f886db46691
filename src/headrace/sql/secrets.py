"""CREATE SECRET and ALTER SECRET: statements whose text is shown to nobody, since it has the value."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sqlglot.tokenizer_core import TokenType

from headrace.errors import NotSupported, SyntaxFault
from headrace.sql import statements as st
from headrace.sql.starts import starts
from headrace.sql.token_cursor import Cursor

HIDDEN: Final = "'***'"
"""What stands for the value in all that is kept of a statement."""
# What these patterns match is never given back: time grows with the length of a text, whoever has made it up.
STRING: Final = (
    r"(?:[Ee]'(?:[^'\\]|\\.|'')*+(?:'|\Z)|(?:[BbXxNn]|[Uu]&)?'(?:[^']|'')*+(?:'|\Z)"
    r"|(?<![\w$])\$(?P<tag>(?:[^\W\d]\w*+)?+)\$(?:(?!\$(?P=tag)\$).)*+(?:\$(?P=tag)\$|\Z))"
)
"""A pattern of string literals in all their forms; one that nobody has ended goes to the end."""
_COMMENT: Final = re.compile(
    rf"""--[^\n]*+|/\*(?:(?!\*/).)*+(?:\*/|\Z)|(?P<quoted>{STRING}|"(?:[^"]|"")*+(?:"|\Z))""", re.DOTALL
)
_GAP: Final = r"(?:\s|\*/)++"
_NAMED: Final = re.compile(rf"\b(?:CREATE|ALTER){_GAP}(?:OR{_GAP}REPLACE{_GAP})?+(?:SECRET|ROLE|USER)\b", re.IGNORECASE)

_PLAIN: Final = re.compile(r"[a-z_][a-z0-9_]*")


def may_hold_a_secret(text: str) -> bool:
    """Whether a script, as typed, may have the value of a secret or a password in it."""
    # As it is, too: what is taken for a comment here may be none where PostgreSQL's words end elsewhere.
    return any(_NAMED.search(one) is not None for one in (text, _COMMENT.sub(_within, text)))


def _within(found: re.Match[str]) -> str:
    """What is quoted as it is, a comment as a space; one that holds another one, whose end is not sought, as what it
    may stand in front of."""
    return found["quoted"] or (" CREATE SECRET " if "/*" in found[0][2:] else " ")


@contextmanager
def unquoted() -> Iterator[None]:
    """Errors of parsing inside the block say where they are, and not what stands there."""
    try:
        yield
    except SyntaxFault as error:
        raise SyntaxFault(
            "syntax error in a statement on a secret or a role",
            hint="CREATE SECRET name WITH (backend = 'meta') AS '...', ALTER SECRET name AS '...', "
            "CREATE ROLE name LOGIN SUPERUSER PASSWORD '...'",
            position=error.position,
        ) from None


def create_secret(cursor: Cursor) -> st.Statement:
    """Read a statement after `CREATE SECRET`."""
    exists, name = cursor.match("IF", "NOT", "EXISTS"), cursor.table_name()
    _backend(cursor)
    value = _value(cursor)
    shown = f"CREATE SECRET {_spelled(name)} WITH (backend = 'meta') AS {HIDDEN}"
    return st.CreateSecret(name, value, exists, text=shown)


def alter_secret(cursor: Cursor) -> st.Statement:
    """Read a statement after `ALTER SECRET`."""
    exists, name = cursor.match("IF", "EXISTS"), cursor.table_name()
    for action in ("RENAME", "OWNER", "SET"):
        if cursor.peek(action):
            cursor.refuse(f"ALTER SECRET ... {action}", "DROP it and create another one.")
    _backend(cursor)
    return st.AlterSecret(name, _value(cursor), exists, text=f"ALTER SECRET {_spelled(name)} AS {HIDDEN}")


def _backend(cursor: Cursor) -> None:
    """Read `WITH (backend = 'meta')`, which is all there is."""
    if not cursor.match("WITH"):
        return
    cursor.expect("(")
    while not cursor.match(")"):
        option = cursor.string() if cursor.is_string() else cursor.identifier()
        cursor.expect("=")
        value = cursor.string() if cursor.is_string() else cursor.identifier()
        if option.lower() != "backend":
            raise NotSupported(f'the option "{option}" of a secret', hint="the only one is backend")
        if value.lower() != "meta":
            raise NotSupported(
                "secrets in another backend than meta", hint="backend = 'meta' keeps them in the catalog, encrypted"
            )
        if not cursor.match(","):
            cursor.expect(")")
            return


def _value(cursor: Cursor) -> str:
    cursor.expect("AS")
    if cursor.token is not None and cursor.token.token_type == TokenType.PARAMETER:
        cursor.refuse("a parameter as the value of a secret", "Write the value as a string literal.")
    value = cursor.string()
    cursor.expect_end()
    return value


def _spelled(name: st.TableName) -> str:
    return ".".join(spelled(part) for part in (name.schema, name.name) if part is not None)


def spelled(name: str) -> str:
    """A name as it is written."""
    return name if _PLAIN.fullmatch(name) else '"' + name.replace('"', '""') + '"'


STARTS = (starts(create_secret, "CREATE SECRET"), starts(alter_secret, "ALTER SECRET"))
