"""Statements of PostgreSQL and RisingWave that there are not, by their first words, and what to do instead."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from headrace.sql.starts import Start, starts
from headrace.sql.statements import Statement
from headrace.sql.token_cursor import Cursor

_CHANGES: Final = (
    "COPY (SUBSCRIBE t) TO STDOUT, or FETCH of a subscription cursor, tell what changes: docs/subscriptions.md."
)
_RIGHTS: Final = "Rights are granted on whole relations: make a view of the rows, and grant that."
_EXTENSIONS: Final = "What there is beside tables is built in, or made as functions in Python: CREATE FUNCTION."
_FUNCTIONS: Final = "CREATE FUNCTION ... LANGUAGE python makes functions, which are called in a SELECT."
_SOURCES: Final = "CREATE SOURCE and CREATE CONNECTION reach other systems."
_CHECKS: Final = "A materialized view can show the rows that break a rule."
_ONE_DATABASE: Final = "There is one database, dev; schemas divide it: CREATE SCHEMA."
_TYPES: Final = "docs/sql.md lists the types that there are."
_DERIVED: Final = "Rows are derived by a materialized view, or by a sink into a table."
_FOLLOWED: Final = f"Others follow changes by a sink or a subscription. {_CHANGES}"

REFUSED: Final[Mapping[str, str]] = {
    "LISTEN": _CHANGES, "NOTIFY": f"INSERT into a table that others follow. {_CHANGES}",
    "LOCK": "Transactions are serializable without: one that another gets in the way of fails with 40001.",
    "CALL": "Functions are called in a SELECT.", "DO": "Programs run outside of the server, or as functions in Python.",
    "MERGE": "INSERT replaces the row of a key that is there; UPDATE ... FROM and DELETE ... USING do the rest.",
    "REFRESH": "Views follow what they read by themselves; FLUSH waits for them.",
    "CHECKPOINT": "FLUSH waits until all that was written is in every view.",
    "SECURITY LABEL": "Roles and grants say who may what: docs/operations.md.",
    "USE": "There is one database, dev; SET search_path chooses schemas.",
    "LOAD": _EXTENSIONS, "IMPORT FOREIGN SCHEMA": _SOURCES,
    **{f"{verb} EXTENSION": _EXTENSIONS for verb in ("CREATE", "ALTER", "DROP")},
    **{f"{verb} DOMAIN": _TYPES for verb in ("CREATE", "ALTER", "DROP")},
    **{f"{verb} TYPE": _TYPES for verb in ("CREATE", "ALTER", "DROP")},
    **{f"{verb} SEQUENCE": "Clients make numbers, or keys of several columns." for verb in ("CREATE", "ALTER", "DROP")},
    **{f"{verb} TRIGGER": _DERIVED for verb in ("CREATE", "ALTER", "DROP")},
    **{f"{verb} EVENT TRIGGER": "Audit events tell of definitions: docs/operations.md."
       for verb in ("CREATE", "ALTER", "DROP")},
    **{f"{verb} RULE": _DERIVED for verb in ("CREATE", "ALTER", "DROP")},
    **{f"{verb} POLICY": _RIGHTS for verb in ("CREATE", "ALTER", "DROP")},
    **{f"{verb} PUBLICATION": _FOLLOWED for verb in ("CREATE", "ALTER", "DROP")},
    **{f"{verb} DATABASE": _ONE_DATABASE for verb in ("CREATE", "ALTER", "DROP")},
    **{f"{verb} TABLESPACE": "The settings say where the state lies: docs/operations.md."
       for verb in ("CREATE", "ALTER", "DROP")},
    **{f"{verb} {what}": _FUNCTIONS for verb in ("CREATE", "ALTER", "DROP")
       for what in ("PROCEDURE", "LANGUAGE", "OPERATOR", "CAST", "TRANSFORM")},
    **{f"{verb} {what}": 'Text is compared by code point, as with COLLATE "C".' for verb in ("CREATE", "ALTER", "DROP")
       for what in ("COLLATION", "CONVERSION", "TEXT SEARCH")},
    **{f"{verb} {what}": _SOURCES for verb in ("CREATE", "ALTER", "DROP")
       for what in ("SERVER", "FOREIGN TABLE", "FOREIGN DATA WRAPPER", "USER MAPPING")},
    **{f"{verb} {what}": "Runs are counted and compacted by themselves." for verb in ("CREATE", "ALTER", "DROP")
       for what in ("STATISTICS", "ACCESS METHOD")},
    "CREATE UNLOGGED": "Every table survives a crash: CREATE TABLE.",
    "CREATE UNIQUE INDEX": f"A primary key is the only thing that is unique. {_CHECKS}",
}  # fmt: skip


def _refuse(words: str, cursor: Cursor) -> Statement:
    cursor.refuse(words, REFUSED[words])


REFUSALS: Final[tuple[Start, ...]] = tuple(starts(partial(_refuse, words), words, whole=True) for words in REFUSED)
