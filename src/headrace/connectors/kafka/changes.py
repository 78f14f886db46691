"""Records that are changes of a table: by key (`FORMAT UPSERT`), or with before and after (`FORMAT DEBEZIUM`)."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any, Final

UPSERT: Final = "upsert"
DELETE: Final = "delete"
"""What a record does to its key."""
Row = dict[str, Any]
Fault = tuple[int, str | None, str, str]
"""(row, column, value, message)"""


def upserted(message: Any) -> bytes:
    """The object of which a row is made: the value; of a deletion the key, if that is one."""
    value, key = message.value(), message.key()
    if value is not None:
        return bytes(value)
    return bytes(key) if key is not None and key.lstrip()[:1] == b"{" else b"{}"


def debezium(value: bytes) -> tuple[Row, str, tuple[str, str]]:
    """The row that a change is about, what it does to it, and what is wrong: (value, message), empty if nothing is."""
    try:
        found = json.loads(value, parse_float=Decimal)
        row, operation = changed(found["payload"] if isinstance(found, dict) and "payload" in found else found)
    except (ValueError, RecursionError) as error:
        return {}, UPSERT, (value.decode(errors="replace"), str(error))
    return row, operation, ("", "")


def changed(payload: Any) -> tuple[Row, str]:
    """The row that a change of Debezium's is about, and what it does to it. Raises `ValueError`."""
    if not isinstance(payload, dict) or "op" not in payload:
        raise ValueError("not a change of Debezium's: it has no op")
    operation = payload["op"]
    if operation not in ("c", "r", "u", "d"):
        raise ValueError(f"the operation {operation!r} is not supported")
    row = payload.get("before" if operation == "d" else "after")
    if not isinstance(row, dict):
        missing = "before" if operation == "d" else "after"
        raise ValueError(f"the operation {operation!r} without the row {missing} it")
    return row, DELETE if operation == "d" else UPSERT
