"""COPY FROM STDIN: bytes to rows in Arrow's columns, bounded in memory, with errors that say where."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NoReturn, Protocol

import pyarrow as pa

from headrace.common.columns import arrow_type
from headrace.errors import HeadraceError, NotNullViolation
from headrace.server.copy_binary import BinaryReader
from headrace.server.copy_text import Records, TextReader, shown
from headrace.session.result import CopySink, Result
from headrace.sql.text_columns import BadValue, column_of


class _Reader(Protocol):
    @property
    def line(self) -> int: ...

    def feed(self, data: bytes) -> Iterator[pa.RecordBatch]: ...

    def finish(self) -> Iterator[pa.RecordBatch]: ...


class CopyIn:
    """What a client sends to a sink. Whatever raises has told the session, which counts the statement as failed."""

    def __init__(self, sink: CopySink) -> None:
        self.sink = sink
        self._reader: _Reader = BinaryReader(sink.columns) if sink.format.form == "binary" else _Texts(sink)

    def feed(self, data: bytes) -> None:
        """Take in bytes."""
        with self.sink.guarded():
            self._take(self._reader.feed(data))

    def finish(self) -> Result:
        """All of it is there: write it."""
        with self.sink.guarded():
            self._take(self._reader.finish())
            return self.sink.finish()

    def fail(self, error: HeadraceError) -> NoReturn:
        """Raise an error, as that of the statement."""
        with self.sink.guarded():
            error.context = f"COPY {self.sink.relation}, line {self._reader.line + 1}"
            raise error
        raise AssertionError("unreachable")

    def _take(self, batches: Iterator[pa.RecordBatch]) -> None:
        try:
            for batch in batches:
                self.sink.take(batch)
        except HeadraceError as error:
            if error.context is not None:
                error.context = f"COPY {self.sink.relation}, {error.context}"
            raise


class _Texts:
    """Rows of text and CSV."""

    def __init__(self, sink: CopySink) -> None:
        self._columns = sink.columns
        self._zone = sink.zone
        self._required = sink.required
        self._relation = sink.relation
        self._reader = TextReader(sink.format, [c.name for c in sink.columns])

    @property
    def line(self) -> int:
        return self._reader.line

    def feed(self, data: bytes) -> Iterator[pa.RecordBatch]:
        for records in self._reader.feed(data):
            yield self._batch(records)

    def finish(self) -> Iterator[pa.RecordBatch]:
        for records in self._reader.finish():
            yield self._batch(records)

    def _batch(self, records: Records) -> pa.RecordBatch:
        """The rows as values. Raises the error of the first row that has one, and of its first column."""
        texts = list(zip(*records.rows, strict=True)) or [()] * len(self._columns)
        arrays: list[pa.Array] = []
        wrong: tuple[int, int, BadValue] | None = None
        for number, (column, values) in enumerate(zip(self._columns, texts, strict=True)):
            try:
                arrays.append(column_of(values, column.type, self._zone))
            except BadValue as error:
                wrong = min(wrong or (error.row, number, error), (error.row, number, error), key=lambda w: w[:2])
                arrays.append(pa.nulls(0, arrow_type(column.type)))
        missing = self._first_null(texts, len(records.rows) if wrong is None else wrong[0])
        if missing is not None:
            row, name = missing
            raise self._null(records, row, name)
        if wrong is not None:
            row, number, found = wrong
            raise self._bad(records, texts[number][row], row, number, found)
        for number, value in enumerate(records.partial):
            try:
                column_of([value], self._columns[number].type, self._zone)
            except BadValue as error:
                raise self._bad(records, value, len(records.rows), number, error) from None
        return pa.RecordBatch.from_arrays(arrays, names=[f"c{i}" for i in range(len(arrays))])

    def _first_null(self, texts: Sequence[Sequence[str | None]], rows: int) -> tuple[int, str] | None:
        """The first of some rows that lacks a value which it must have, and the column's name."""
        found = [
            (values.index(None), column.name)
            for column, values in zip(self._columns, texts)
            if column.name in self._required and None in values
        ]
        at = min(found, key=lambda one: one[0], default=None)
        return at if at is not None and at[0] < rows else None

    def _null(self, records: Records, row: int, name: str) -> HeadraceError:
        values = ", ".join("null" if v is None else v for v in records.rows[row])
        error = NotNullViolation(
            f'null value in column "{name}" of relation "{self._relation}" violates not-null constraint',
            detail=f"Failing row contains ({values}).",
        )
        error.context = f'line {records.lines[row]}: "{shown(records.raws[row])}"'
        error.about = {"table": self._relation, "column": name}
        return error

    def _bad(self, records: Records, value: str | None, row: int, number: int, found: BadValue) -> HeadraceError:
        name = self._columns[number].name
        found.error.context = f'line {records.lines[row]}, column {name}: "{shown(value or "")}"'
        return found.error
