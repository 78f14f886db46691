"""Columns of text to columns of values: all at once where the text is plain, value by value where it is not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.common.columns import arrow_type
from headrace.common.zones import UTC, Zone
from headrace.errors import HeadraceError
from headrace.sql.text_values import parse_text

_DAY: Final = r"[12]\d\d\d-\d\d-\d\d"
_PLAIN: Final[dict[str, str]] = {
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), r"^-?[0-9]{1,19}$"),
    **dict.fromkeys(("float", "double"), r"^-?[0-9]{1,15}(\.[0-9]{1,15})?$"),
    "date": f"^{_DAY}$",
    "timestamp_ntz": rf"^{_DAY} \d\d:\d\d:\d\d(\.\d{{1,6}})?$",
    "timestamp": rf"^{_DAY} \d\d:\d\d:\d\d(\.\d{{1,6}})?(\+00)?$",
}
"""By type the text whose value Arrow reads as PostgreSQL does, as far as it takes it."""
_TRUTHS: Final = ("t", "f", "true", "false")
_ARE_TRUE: Final = (True, False, True, False)


class BadValue(Exception):
    """A value that is none of its type: where it stands in its column, and why."""

    def __init__(self, row: int, error: HeadraceError) -> None:
        super().__init__(row)
        self.row = row
        self.error = error


def column_of(texts: Sequence[str | None], type: str, zone: Zone = UTC) -> pa.Array:
    """The values of Spark type `type` that texts spell, moments read in a zone. Raises `BadValue`."""
    if type == "string":
        return pa.array(texts, pa.string())
    plain = _quickly(texts, type) if zone.is_utc or type != "timestamp" else None
    return _one_by_one(texts, type, zone) if plain is None else plain


def _quickly(texts: Sequence[str | None], type: str) -> pa.Array | None:
    """The same; None where any of the texts is not plain."""
    pattern = _decimal_pattern(type) if type.startswith("decimal(") else _PLAIN.get(type)
    if pattern is None and type != "boolean":
        return None
    column = pa.array(texts, pa.string())
    if type == "boolean":
        at = pc.index_in(column, pa.array(_TRUTHS))
        return pa.array(_ARE_TRUE).take(at) if at.null_count == column.null_count else None
    if not pc.all(pc.match_substring_regex(column, pattern)).as_py() and column.null_count < len(column):
        return None
    if type == "timestamp":
        column = pc.replace_substring_regex(column, r"\+00$", "")
    try:
        if type == "timestamp":
            return column.cast(pa.timestamp("us")).cast(arrow_type(type))
        return column.cast(arrow_type(type))
    except pa.ArrowInvalid:
        return None


def _decimal_pattern(type: str) -> str:
    precision, scale = (int(part) for part in type[len("decimal(") : -1].split(","))
    fraction = rf"(\.[0-9]{{1,{scale}}})?" if scale else ""
    return rf"^-?[0-9]{{1,{max(precision - scale, 1)}}}{fraction}$"


def _one_by_one(texts: Sequence[str | None], type: str, zone: Zone) -> pa.Array:
    values = []
    for row, text in enumerate(texts):
        try:
            values.append(None if text is None else parse_text(text, type, zone))
        except HeadraceError as error:
            raise BadValue(row, error) from None
    return pa.array(values, arrow_type(type))
