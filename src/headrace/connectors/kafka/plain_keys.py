"""Keys that are encoded otherwise than the values: `KEY ENCODE TEXT`, `BYTES` and `JSON`, as others write them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headrace.common.columns import Column
from headrace.connectors import json_out
from headrace.connectors.kafka.envelopes import Form, Json, Record, Row
from headrace.errors import InvalidParameter, NotSupported, SinkError


class KeyForm(Protocol):
    """How keys are written: what of `Form` is of keys."""

    def key(self, row: Row) -> bytes:
        """See `Form`."""

    def shown(self, key: bytes) -> str:
        """See `Form`."""


class _Bare:
    """One column, without quotes: its text, or its bytes. NULL has neither, and a record without a key has no row."""

    def __init__(self, name: str) -> None:
        self._name = name

    def key(self, row: Row) -> bytes:
        """See `Form`. Raises `SinkError` for NULL."""
        value = row[self._name]
        if value is None:
            raise SinkError(
                f'a row has NULL in "{self._name}", which KEY ENCODE TEXT and BYTES cannot write',
                hint="KEY ENCODE JSON can; or leave these rows out of the sink",
            )
        return value if isinstance(value, bytes) else json_out.bare(value)

    def shown(self, key: bytes) -> str:
        """See `Form`."""
        return key.decode(errors="replace")


class WithKeys:
    """Rows in one form, their keys in another: see `Form`."""

    def __init__(self, keys: KeyForm, values: Form) -> None:
        self._values = values
        self.key, self.shown = keys.key, keys.shown
        self.value = values.value

    def record(self, key: bytes | None, value: bytes | None) -> Record:
        """See `Form`."""
        return key, self._values.record(None, value)[1]

    def change(self, key: bytes, before: bytes | None, after: bytes | None, op: str) -> Record:
        """Is never asked for: `key_form` refuses Debezium's format, whose keys have an envelope."""
        raise AssertionError(op)


def key_form(encoding: str, format: str, names: Sequence[str], columns: Sequence[Column]) -> KeyForm:
    """How keys of these columns are written. Raises `InvalidParameter`, `NotSupported` where they cannot be."""
    said = f"KEY ENCODE {encoding.upper()}"
    if format == "debezium":
        raise NotSupported(f"{said} with FORMAT DEBEZIUM", hint="its keys are encoded as its values are")
    if not names:
        raise InvalidParameter(f"{said} needs the option primary_key", hint="name the columns that make the key")
    if encoding == "json":
        return Json(names)
    if len(names) > 1:
        raise InvalidParameter(
            f"{said} needs one column as the primary_key, not {', '.join(names)}", hint="KEY ENCODE JSON takes several"
        )
    kind = next(column.type for column in columns if column.name == names[0])
    if (kind == "binary") != (encoding == "bytes") or "<" in kind:
        wanted = "bytea" if encoding == "bytes" else "a text, a number, a boolean or a time"
        raise InvalidParameter(f'{said} needs a column that is {wanted}, which "{names[0]}" is not')
    return _Bare(names[0])
