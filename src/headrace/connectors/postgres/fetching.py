"""What PostgreSQL has found, many rows at once: they wait in the server, and are taken from its answers as bytes.

A table's content comes as texts of whole rows (`ROW(...)::text`), which are nearly CSV, and which Arrow reads column by
column. The values in them are the texts that their types put out, which logical replication sends, too; a cast of each
value to `text` would not always be the same (`bpchar`, `inet`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from headrace.errors import SourceError

FETCH_ROWS = 10_000
BATCH_BYTES = 16 << 20
"""Rows are made columns together until they are as long; each may be up to a gigabyte by itself."""
_CURSOR = "headrace"


def declare(c: Any, query: str, values: Sequence[Any] = ()) -> None:
    """Have a query run, in the transaction that is open or begins with it."""
    c.cursor(name=_CURSOR).execute(query, values or None)


def fetched(c: Any, columns: int, binary: bool = False) -> Iterator[list[list[bytes]]]:
    """The columns of the rows of the query that was declared, which are not NULL; rows in batches of bounded size."""
    while True:
        result = c.execute(f"FETCH FORWARD {FETCH_ROWS} FROM {_CURSOR}", binary=binary, prepare=False).pgresult
        value, count = result.get_value, result.ntuples
        if not count:
            return
        found = [[value(i, column) for i in range(count)] for column in range(columns)]
        for first, stop in short_ranges(found[-1]):
            yield [column[first:stop] for column in found]


def short_ranges(values: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    """Ranges of values, each as long as `BATCH_BYTES` allow, or of a single one."""
    first, size = 0, 0
    for i, value in enumerate(values):
        size += len(value)
        if size > BATCH_BYTES and i > first:
            yield first, i
            first, size = i, len(value)
    yield first, len(values)


def content(
    c: Any, table: str, names: Sequence[str], where: str = "true", values: Sequence[object] = ()
) -> Iterator[list[pa.Array]]:
    """The columns `names` of a table, quoted as it is, as texts; `values` are those of the condition's parameters.

    Raises `SourceError` for what is not UTF-8.
    """
    declare(c, f"SELECT ROW({', '.join(names)})::text FROM {table} WHERE {where}", values)
    for (rows,) in fetched(c, 1):
        yield columns_of(rows, len(names))


def columns_of(rows: Sequence[bytes], width: int) -> list[pa.Array]:
    """The columns of rows as PostgreSQL writes them: NULL as nothing, quotes and backslashes twice, in parentheses.

    Nothing is NULL and a pair of quotes is the empty text. What has blanks, line breaks, parentheses, commas, quotes
    or backslashes is quoted: so that of a row which is not part of CSV stands at its ends only.
    """
    names = [str(i) for i in range(width)]
    # With a line of names before them: what looks like a byte order mark is left out where a text begins with it.
    data = b"\n".join([",".join(names).encode(), *(row[1:-1] for row in rows), b""])
    read = pyarrow.csv.ReadOptions(use_threads=False, block_size=len(data) + 1)
    parse = pyarrow.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False)
    convert = pyarrow.csv.ConvertOptions(
        column_types={name: pa.string() for name in names},
        null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False,
    )  # fmt: skip
    try:
        table = pyarrow.csv.read_csv(pa.BufferReader(data), read, parse, convert)
    except pa.ArrowInvalid as error:
        raise SourceError(f"PostgreSQL's rows cannot be read: {error}") from error
    if table.num_rows != len(rows):
        raise SourceError(f"PostgreSQL has sent {len(rows)} rows, which read as {table.num_rows}")
    columns = [column.combine_chunks() for column in table.columns]
    return [pc.replace_substring(c, "\\\\", "\\") for c in columns] if b"\\" in data else columns
