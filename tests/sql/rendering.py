"""Rows of a frame as PostgreSQL's text, and a table to ask."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headrace.sql.statements import TableName
from headrace.sql.type_names import render_text

SCHEMA = {
    TableName(None, "t"): {
        "a": "int",
        "b": "bigint",
        "s": "string",
        "d": "date",
        "ts": "timestamp_ntz",
        "tz": "timestamp",
        "f": "double",
        "n": "decimal(10,2)",
    },
    TableName(None, "u"): {"a": "int", "x": "string"},
}


T = """VALUES
 (1, 10L, 'one', DATE'2024-02-29', TIMESTAMP_NTZ'2024-02-29 13:45:10.5', TIMESTAMP'2024-02-29 13:45:10Z', 2.5D, 2.50),
 (2, 20L, 'two', DATE'2024-03-03', TIMESTAMP_NTZ'2024-03-03 00:30:00', TIMESTAMP'2024-03-03 00:30:00Z', 3.5D, -1.25),
 (3, NULL, NULL, DATE'2023-12-31', TIMESTAMP_NTZ'2023-12-31 23:59:59', TIMESTAMP'2023-12-31 23:59:59Z', 1D, 7.00)
 AS t(a, b, s, d, ts, tz, f, n)"""


def rename(name: TableName) -> str:
    return f"`hr_{name.name}`"


def rendered(frame: Any) -> list[tuple[str | None, ...]]:
    table: pa.Table = frame.toArrow()
    columns = [
        [None if v is None else v.decode() for v in render_text(table.column(i), field.dataType.simpleString())]
        for i, field in enumerate(frame.schema.fields)
    ]
    return list(zip(*columns, strict=True))
