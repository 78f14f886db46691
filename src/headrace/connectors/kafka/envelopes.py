"""Changes as records of a topic: rows that are added, a table's rows by key, or Debezium's before and after."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from headrace.connectors import json_out
from headrace.connectors.refusals import Op, Refusal
from headrace.connectors.sinks import WEIGHT_COLUMN, not_told_apart

Row = dict[str, Any]
Record = tuple[bytes | None, bytes | None]
"""Key and value."""


class RecordChange(NamedTuple):
    """What becomes of a row, as its form has written it; of one that is only added nothing was before."""

    key: bytes | None
    before: bytes | None
    after: bytes | None

    @property
    def refused_as(self) -> tuple[Op, bytes | None, bytes | None]:
        """What is left out where its record is refused: the row that comes, or the going of the one before."""
        return ("delete", self.key, self.before) if self.after is None else ("insert", self.key, self.after)


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


def changes(
    format: str, batches: Iterable[pa.RecordBatch], names: Sequence[str], key: Sequence[str], form: Form
) -> Iterator[RecordChange]:
    """What an epoch comes to: of the format `plain` every row as often as it is added, else one change for a key."""
    return (_added if format == "plain" else _changed)(batches, names, key, form)


def record(format: str, change: RecordChange, form: Form) -> Record:
    """A change as a record: the row or none (`plain`, `upsert`), or before and after and `op`: c, u or d."""
    which, before, after = change
    if format != "debezium" or which is None:
        return form.record(which, after)
    return form.change(which, before, after, "c" if before is None else "d" if after is None else "u")


def named(
    format: str, refused: Mapping[RecordChange, str], batches: Iterable[pa.RecordBatch], names: Sequence[str],
    key: Sequence[str], form: Form,
) -> Iterator[Refusal]:  # fmt: skip
    """The rows of changes that are refused, with the reasons: of the format `plain` each as often as it is added."""
    left = {change.refused_as: why for change, why in refused.items()}
    for row, weight in _rows(batches, names):
        op: Op = "insert" if weight > 0 else "delete"
        change = (op, form.key(row) if key else None, form.value(row))
        if change in left:
            times, why = (weight, left[change]) if format == "plain" else (1, left.pop(change))
            yield from [Refusal(op, json_out.text(row).decode(), why)] * times


def _added(
    batches: Iterable[pa.RecordBatch], names: Sequence[str], key: Sequence[str], form: Form
) -> Iterator[RecordChange]:  # fmt: skip
    for row, weight in _rows(batches, names):
        yield from [RecordChange(form.key(row) if key else None, None, form.value(row))] * weight


def _changed(
    batches: Iterable[pa.RecordBatch], names: Sequence[str], key: Sequence[str], form: Form
) -> Iterator[RecordChange]:  # fmt: skip
    """The changes of an epoch as a whole: what has come and gone within it is none."""
    net: dict[bytes, dict[bytes, int]] = {}
    for row, weight in _rows(batches, names):
        rows, text = net.setdefault(form.key(row), {}), form.value(row)
        rows[text] = rows.get(text, 0) + weight
    for which, rows in net.items():
        gone, come = ([text for text, weight in rows.items() if weight * sign > 0] for sign in (-1, 1))
        if len(come) > 1 or any(rows[text] > 1 for text in come):
            raise not_told_apart(key, form.shown(which))
        if gone or come:
            yield RecordChange(which, gone[0] if gone else None, come[0] if come else None)


def _rows(batches: Iterable[pa.RecordBatch], names: Sequence[str]) -> Iterator[tuple[Row, int]]:
    for batch in batches:
        weights = batch.column(WEIGHT_COLUMN).to_pylist()
        yield from zip(json_out.objects(batch.select(list(names))), weights)
