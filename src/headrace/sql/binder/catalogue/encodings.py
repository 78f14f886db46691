"""Functions between texts and bytes: what the bytes of a text are, and the text of bytes."""

from __future__ import annotations

from typing import Final

_NAME: Final = "lower(regexp_replace({1}, '[^a-zA-Z0-9]', ''))"
"""An encoding, as PostgreSQL compares their names."""


def _raised(state: str, message: str, kind: str) -> str:
    return f"CAST(raise_error(concat('headrace.errors.DataError: [{state}] ', {message})) AS {kind})"


_UNKNOWN: Final = "'the encoding \"', {1}, '\" is not supported: UTF8 is'"
_FORM: Final = "'the encoding \"', {1}, '\" is not supported: hex and base64 are'"
_INVALID: Final = _raised("22021", "'invalid byte sequence for encoding \"UTF8\": 0x', lower(hex({0}))", "STRING")
_WHOLE: Final = "replace(base64({0}), concat(chr(13), chr(10)), '')"
"""Spark may put lines of its own into it."""
_BROKEN: Final = f"regexp_replace({_WHOLE}, '({'.' * 75}[^=])', concat('$1', chr(10)))"
"""In lines of 76 characters, each with its end but for one that padding ends."""

ENCODINGS: Final = f"""
convert_from(bytea, text) -> text : CASE WHEN {{0}} IS NULL OR {{1}} IS NULL THEN CAST(NULL AS STRING) WHEN {_NAME} NOT IN ('utf8', 'unicode') THEN {_raised("0A000", _UNKNOWN, "STRING")} WHEN contains({{0}}, X'00') OR NOT is_valid_utf8(CAST({{0}} AS STRING)) THEN {_INVALID} ELSE CAST({{0}} AS STRING) END
convert_to(text, text) -> bytea : CASE WHEN {{0}} IS NULL OR {{1}} IS NULL THEN CAST(NULL AS BINARY) WHEN {_NAME} NOT IN ('utf8', 'unicode') THEN {_raised("0A000", _UNKNOWN, "BINARY")} ELSE CAST({{0}} AS BINARY) END
encode(bytea, text) -> text : CASE WHEN {{0}} IS NULL OR {{1}} IS NULL THEN CAST(NULL AS STRING) WHEN lower({{1}}) = 'hex' THEN lower(hex({{0}})) WHEN lower({{1}}) = 'base64' THEN {_BROKEN} ELSE {_raised("0A000", _FORM, "STRING")} END
"""
