"""What becomes of rows that could not be understood: `on_error` = 'fail', 'null' or 'skip'."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

import numpy as np
import pyarrow as pa

from headrace.common.columns import Column
from headrace.common.lazy_dataclass import dataclass
from headrace.connectors.base import ReadBatch, RowError, Unit
from headrace.errors import SourceError

PAST_IT = "ALTER SOURCE s SET on_error = 'null' (of a table: ALTER TABLE t) goes on past it, with NULL for it"
"""What is hinted at where a source fails at a row."""
SAMPLES_PER_BATCH = 20
VALUE_SAMPLE_CHARS = 80


@dataclass
class ParsedRows:
    """Rows as parsed: NULL stands where a value could not be understood, a row of NULLs for a malformed record."""

    batch: pa.RecordBatch
    positions: np.ndarray
    """Position of each row in its split."""
    splits: Sequence[str]
    """The split of each row if `split_of` says so, else one for all."""
    split_of: np.ndarray | None = None
    errors: list[tuple[int, RowError]] = field(default_factory=list)
    """(index of the row in the batch, what is wrong with it)."""
    unit: Unit = "line"
    """What positions are."""

    def split(self, row: int) -> str:
        """The split that a row came from."""
        return self.splits[0 if self.split_of is None else int(self.split_of[row])]


def sample(value: object) -> str:
    """The text of a value at fault, shortened."""
    text = str(value)
    return text if len(text) <= VALUE_SAMPLE_CHARS else text[: VALUE_SAMPLE_CHARS - 1] + "…"


def apply_policy(parsed: ParsedRows, columns: Sequence[Column], on_error: str) -> ReadBatch:
    """The rows that remain, and their errors.

    'skip' drops a row with any error; 'null' keeps it, with NULL for what is wrong, unless the column is NOT NULL.
    Raises `SourceError` with the first error if `on_error` is 'fail'.
    """
    missing = _missing(parsed, columns)
    errors = sorted([*parsed.errors, *_null_errors(parsed, columns, missing)], key=lambda item: item[0])
    if not errors:
        return ReadBatch(parsed.batch)
    if on_error == "fail":
        raise SourceError(str(errors[0][1]), hint=PAST_IT)
    if on_error == "skip":
        drop = np.zeros(parsed.batch.num_rows, bool)
        drop[[row for row, _ in errors]] = True
    else:
        drop = missing
    batch = parsed.batch.filter(pa.array(~drop)) if drop.any() else parsed.batch
    return ReadBatch(batch, [error for _, error in errors[:SAMPLES_PER_BATCH]], len(errors))


def _missing(parsed: ParsedRows, columns: Sequence[Column]) -> np.ndarray:
    mask = np.zeros(parsed.batch.num_rows, bool)
    for i, column in enumerate(columns):
        if not column.nullable and parsed.batch.column(i).null_count:
            mask |= parsed.batch.column(i).is_null().to_numpy(zero_copy_only=False)
    return mask


def _null_errors(parsed: ParsedRows, columns: Sequence[Column], missing: np.ndarray) -> list[tuple[int, RowError]]:
    known = {row for row, _ in parsed.errors}
    found = []
    for row in np.flatnonzero(missing).tolist():
        if row not in known:
            wrong = (c for i, c in enumerate(columns) if not c.nullable and not parsed.batch.column(i)[row].is_valid)
            text = "NULL in a column that is NOT NULL"
            position = int(parsed.positions[row])
            found.append((row, RowError(parsed.split(row), position, next(wrong).name, "NULL", text, parsed.unit)))
    return found
