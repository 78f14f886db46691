"""Changes as records of a topic: rows that are added, a table's rows by key, or Debezium's before and after."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa

from headrace.connectors import json_out
from headrace.connectors.sinks import WEIGHT_COLUMN, not_told_apart

Row = dict[str, Any]
Record = tuple[bytes | None, bytes | None]
"""Key and value."""


class Form(Protocol):
    """How rows are written. What is equal is written the same."""

    def key(self, row: Row) -> bytes:
        """The columns of the primary key, of a row."""

    def value(self, row: Row) -> bytes:
        """A row."""

    def shown(self, key: bytes) -> str:
        """A key, for people."""

    def record(self, key: bytes | None, value: bytes | None) -> Record:
        """A record of a key and a row that were written, or of one of them."""

    def change(self, key: bytes, before: bytes | None, after: bytes | None, op: str) -> Record:
        """A record of a key, its row before and after."""


class Json:
    """Objects of JSON."""

    def __init__(self, names: Sequence[str]) -> None:
        """`names` are the columns of the primary key."""
        self._names = names

    def key(self, row: Row) -> bytes:
        """See `Form`."""
        return json_out.text({name: row[name] for name in self._names})

    def value(self, row: Row) -> bytes:
        """See `Form`."""
        return json_out.text(row)

    def shown(self, key: bytes) -> str:
        """See `Form`."""
        return key.decode()

    def record(self, key: bytes | None, value: bytes | None) -> Record:
        """See `Form`."""
        return key, value

    def change(self, key: bytes, before: bytes | None, after: bytes | None, op: str) -> Record:
        """See `Form`."""
        payload = b'{"before":%b,"after":%b,"op":"%b"}' % (before or b"null", after or b"null", op.encode())
        return b'{"payload":%b}' % key, b'{"payload":%b}' % payload


def plain(batches: Iterable[pa.RecordBatch], names: Sequence[str], key: Sequence[str], form: Form) -> Iterator[Record]:
    """Every row as often as it is added; without a key unless there are columns of one."""
    for row, weight in _rows(batches, names):
        record = form.record(form.key(row) if key else None, form.value(row))
        for _ in range(weight):
            yield record


def upserts(
    batches: Iterable[pa.RecordBatch], names: Sequence[str], key: Sequence[str], form: Form
) -> Iterator[Record]:  # fmt: skip
    """For each key that has changed its row as it is now, or none."""
    for which, _, after in _changes(batches, names, key, form):
        yield form.record(which, after)


def debezium(
    batches: Iterable[pa.RecordBatch], names: Sequence[str], key: Sequence[str], form: Form
) -> Iterator[Record]:  # fmt: skip
    """For each key that has changed its row before and after, and `op`: c, u or d."""
    for which, before, after in _changes(batches, names, key, form):
        yield form.change(which, before, after, "c" if before is None else "d" if after is None else "u")


def _changes(
    batches: Iterable[pa.RecordBatch], names: Sequence[str], key: Sequence[str], form: Form
) -> Iterator[tuple[bytes, bytes | None, bytes | None]]:
    """(key, row before, row after) of an epoch as a whole: what has come and gone within it is no change."""
    net: dict[bytes, dict[bytes, int]] = {}
    for row, weight in _rows(batches, names):
        rows, text = net.setdefault(form.key(row), {}), form.value(row)
        rows[text] = rows.get(text, 0) + weight
    for which, rows in net.items():
        gone, come = ([text for text, weight in rows.items() if weight * sign > 0] for sign in (-1, 1))
        if len(come) > 1 or any(rows[text] > 1 for text in come):
            raise not_told_apart(key, form.shown(which))
        if gone or come:
            yield which, gone[0] if gone else None, come[0] if come else None


def _rows(batches: Iterable[pa.RecordBatch], names: Sequence[str]) -> Iterator[tuple[Row, int]]:
    for batch in batches:
        weights = batch.column(WEIGHT_COLUMN).to_pylist()
        yield from zip(json_out.objects(batch.select(list(names))), weights)
