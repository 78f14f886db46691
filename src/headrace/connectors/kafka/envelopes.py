"""Changes as records of a topic: rows that are added, a table's rows by key, or Debezium's before and after."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from headrace.connectors import json_out
from headrace.connectors.sinks import WEIGHT_COLUMN
from headrace.errors import SinkError

Row = dict[str, Any]
Record = tuple[Row | None, Row | None]
"""Key and value."""


def plain(batches: Iterable[pa.RecordBatch], names: Sequence[str], key: Sequence[str]) -> Iterator[Record]:
    """Every row as often as it is added; without a key unless there are columns of one."""
    for row, weight in _rows(batches, names):
        for _ in range(weight):
            yield _picked(row, key) if key else None, row


def upserts(batches: Iterable[pa.RecordBatch], names: Sequence[str], key: Sequence[str]) -> Iterator[Record]:
    """For each key that has changed its row as it is now, or none."""
    for which, _, after in _changes(batches, names, key):
        yield which, after


def debezium(batches: Iterable[pa.RecordBatch], names: Sequence[str], key: Sequence[str]) -> Iterator[Record]:
    """For each key that has changed its row before and after, and `op`: c, u or d."""
    for which, before, after in _changes(batches, names, key):
        op = "c" if before is None else "d" if after is None else "u"
        yield {"payload": which}, {"payload": {"before": before, "after": after, "op": op}}


def _changes(
    batches: Iterable[pa.RecordBatch], names: Sequence[str], key: Sequence[str]
) -> Iterator[tuple[Row, Row | None, Row | None]]:
    """(key, row before, row after) of an epoch as a whole: what has come and gone within it is no change."""
    net: dict[bytes, dict[bytes, list[Any]]] = {}
    for row, weight in _rows(batches, names):
        rows = net.setdefault(json_out.text(_picked(row, key)), {})
        found = rows.setdefault(json_out.text(row), [row, 0])
        found[1] += weight
    for rows in net.values():
        gone, come = ([f for f in rows.values() if f[1] * sign > 0] for sign in (-1, 1))
        if len(come) > 1 or any(weight > 1 for _, weight in come):
            raise SinkError(
                f"the option primary_key ({', '.join(key)}) does not tell the rows of the sink apart: "
                f"{_picked(come[0][0], key)} stands for several",
                hint="create the sink with the columns that do",
            )
        if gone or come:
            before, after = (found[0][0] if found else None for found in (gone, come))
            yield _picked(after or before or {}, key), before, after


def _rows(batches: Iterable[pa.RecordBatch], names: Sequence[str]) -> Iterator[tuple[Row, int]]:
    for batch in batches:
        weights = batch.column(WEIGHT_COLUMN).to_pylist()
        yield from zip(json_out.objects(batch.select(list(names))), weights)


def _picked(row: Row, names: Sequence[str]) -> Row:
    return {name: row[name] for name in names}
