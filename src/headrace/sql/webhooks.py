"""`VALIDATE SECRET s AS secure_compare(...)`: how requests to a table prove that they come from who may send.

RisingWave takes any expression there. Here it is one of a closed set, which is computed without Spark and takes as
long whatever is wrong with a request; everything else is refused where it stands.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NoReturn

from headrace.connectors.webhook.validation import DIGESTS, ENCODINGS, Validation
from headrace.sql.statements import TableName
from headrace.sql.token_cursor import Cursor

_HINT: Final = (
    "secure_compare(headers->>'name', ['prefix' ||] s) or "
    "secure_compare(headers->>'name', ['prefix' ||] encode(hmac(s, payload, 'sha256'), 'hex'))"
)
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""What the name of a header can be."""
_PAYLOAD: Final = "payload"


def read_validation(cursor: Cursor, columns: Sequence[str]) -> tuple[Validation, TableName]:
    """Read what follows `VALIDATE`: the comparison, and the secret's name.

    The body of a request is called `payload`, or as the table's column is where it has one only.
    """
    if cursor.peek("AS"):
        cursor.refuse("VALIDATE without a secret", "CREATE SECRET s AS '...'; and then VALIDATE SECRET s AS ...")
    cursor.expect("SECRET")
    secret = cursor.table_name()
    cursor.expect("AS")
    _expect(cursor, "secure_compare")
    _expect(cursor, "(")
    _expect(cursor, "headers")
    _expect(cursor, "->>")
    header = _header(cursor)
    _expect(cursor, ",")
    prefix = _prefix(cursor)
    digest, encoding = "", ""
    if cursor.peek("encode"):
        digest, encoding = _signature(cursor, secret, columns)
    else:
        _expect_secret(cursor, secret)
    _expect(cursor, ")")
    return Validation(header, prefix, digest, encoding), secret


def _header(cursor: Cursor) -> str:
    start, name = cursor.at, cursor.string() if cursor.is_string() else ""
    if _TOKEN.fullmatch(name) is None:
        cursor.at = start
        _refuse(cursor)
    return name.lower()


def _prefix(cursor: Cursor) -> str:
    found = ""
    while cursor.is_string():
        found += cursor.string()
        _expect(cursor, "||")
    return found


def _signature(cursor: Cursor, secret: TableName, columns: Sequence[str]) -> tuple[str, str]:
    """Read `encode(hmac(secret, payload, 'digest'), 'encoding')`."""
    _expect(cursor, "encode")
    _expect(cursor, "(")
    _expect(cursor, "hmac")
    _expect(cursor, "(")
    _expect_secret(cursor, secret)
    _expect(cursor, ",")
    names = (_PAYLOAD, *(columns if len(columns) == 1 else ()))
    if not any(cursor.match(name) for name in names):
        _refuse(cursor)
    _expect(cursor, ",")
    digest = _one_of(cursor, DIGESTS)
    _expect(cursor, ")")
    _expect(cursor, ",")
    encoding = _one_of(cursor, ENCODINGS)
    _expect(cursor, ")")
    return digest, encoding


def _expect(cursor: Cursor, word: str) -> None:
    if not cursor.match(word):
        _refuse(cursor)


def _expect_secret(cursor: Cursor, secret: TableName) -> None:
    """Read the name that stands behind VALIDATE SECRET, as it stands there."""
    start = cursor.at
    if cursor.token is None or cursor.is_string() or cursor.is_symbol(")") or cursor.table_name() != secret:
        cursor.at = min(start, len(cursor.tokens) - 1)
        _refuse(cursor)


def _one_of(cursor: Cursor, allowed: Sequence[str]) -> str:
    if not cursor.is_string():
        _refuse(cursor)
    start, text = cursor.at, cursor.string()
    if text not in allowed:
        cursor.at = start
        _refuse(cursor)
    return text


def _refuse(cursor: Cursor) -> NoReturn:
    if cursor.token is None:
        cursor.fail()
    cursor.refuse(f"what VALIDATE says at {cursor.text_of([cursor.token])}", _HINT)
