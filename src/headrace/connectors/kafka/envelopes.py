"""Changes as records of a topic: rows that are added, a table's rows by key, or Debezium's before and after."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from headrace.connectors import json_out
from headrace.connectors.sinks import WEIGHT_COLUMN, not_told_apart

Row = dict[str, Any]
Record = tuple[bytes | None, bytes | None]
"""Key and value."""


def plain(batches: Iterable[pa.RecordBatch], names: Sequence[str], key: Sequence[str]) -> Iterator[Record]:
    """Every row as often as it is added; without a key unless there are columns of one."""
    for row, weight in _rows(batches, names):
        record = json_out.text(_picked(row, key)) if key else None, json_out.text(row)
        for _ in range(weight):
            yield record


def upserts(batches: Iterable[pa.RecordBatch], names: Sequence[str], key: Sequence[str]) -> Iterator[Record]:
    """For each key that has changed its row as it is now, or none."""
    for which, _, after in _changes(batches, names, key):
        yield which, after


def debezium(batches: Iterable[pa.RecordBatch], names: Sequence[str], key: Sequence[str]) -> Iterator[Record]:
    """For each key that has changed its row before and after, and `op`: c, u or d."""
    for which, before, after in _changes(batches, names, key):
        op = b"c" if before is None else b"d" if after is None else b"u"
        payload = b'{"before":%b,"after":%b,"op":"%b"}' % (before or b"null", after or b"null", op)
        yield b'{"payload":%b}' % which, b'{"payload":%b}' % payload


def _changes(
    batches: Iterable[pa.RecordBatch], names: Sequence[str], key: Sequence[str]
) -> Iterator[tuple[bytes, bytes | None, bytes | None]]:
    """(key, row before, row after) of an epoch as a whole: what has come and gone within it is no change."""
    net: dict[bytes, dict[bytes, int]] = {}
    for row, weight in _rows(batches, names):
        rows, text = net.setdefault(json_out.text(_picked(row, key)), {}), json_out.text(row)
        rows[text] = rows.get(text, 0) + weight
    for which, rows in net.items():
        gone, come = ([text for text, weight in rows.items() if weight * sign > 0] for sign in (-1, 1))
        if len(come) > 1 or any(rows[text] > 1 for text in come):
            raise not_told_apart(key, which.decode())
        if gone or come:
            yield which, gone[0] if gone else None, come[0] if come else None


def _rows(batches: Iterable[pa.RecordBatch], names: Sequence[str]) -> Iterator[tuple[Row, int]]:
    for batch in batches:
        weights = batch.column(WEIGHT_COLUMN).to_pylist()
        yield from zip(json_out.objects(batch.select(list(names))), weights)


def _picked(row: Row, names: Sequence[str]) -> Row:
    return {name: row[name] for name in names}
