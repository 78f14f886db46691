"""COPY: rows in, all of them one change, and rows out.

What a client sends is set aside first, in memory while it is little and then in a file of the spool; it is written when
all of it is there, as an INSERT would be. So nobody waits for a client that is slow, a transaction of its own can be
tried again, and what was sent in vain has left nothing.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Final

import pyarrow as pa

from headrace.catalog.contents import TableContent
from headrace.catalog.records import ObjectRecord
from headrace.common.columns import Column, arrow_schema
from headrace.common.identifiers import quoted_name
from headrace.coordinator.decide.watermarks import declared
from headrace.coordinator.writes.requests import WriteResult
from headrace.errors import InvalidParameter, UndefinedColumn, WrongObjectType
from headrace.session.context import Context
from headrace.session.execution.defaults import default_values, left_out, refuse_of_each_row
from headrace.session.execution.handler import Handler, InScript, Needs
from headrace.session.execution.in_transaction import Written, late_rows, run_writing
from headrace.session.execution.large_writes import insert_here
from headrace.session.execution.select import select
from headrace.session.execution.write_targets import check_not_null, is_required, target_columns, target_table
from headrace.session.names import label, names_of
from headrace.session.result import Result, ResultColumn
from headrace.session.transactions import Transaction
from headrace.sql import statements as st
from headrace.sql.copying import CopyFormat
from headrace.sql.parser import parse_query
from headrace.sql.query import Query
from headrace.sql.statements import TableName
from headrace.state.spool import RowsFile, read_rows
from headrace.state.table_changes import TableChange

HELD_BYTES: Final = 16 << 20
"""Bytes of rows that are held in memory."""


def copy_to(context: Context, statement: st.CopyTo) -> Result:
    """COPY TO STDOUT: the rows of a query, to be sent in their own format."""
    query, known, relation = statement.query, None, None
    if query is None:
        assert statement.table is not None
        query, record = query_of(context, statement.table, statement.columns)
        known, relation = [c.name for c in record.columns], label(record)
    result = select(context, query)
    names = [c.name for c in result.columns or ()]
    check_lists(statement.format, names, names if known is None else known, relation)
    return Result(statement.tag, result.columns, result.batches, result.notices, copy=statement.format)


def query_of(context: Context, name: TableName, columns: Sequence[str]) -> tuple[Query, ObjectRecord]:
    """The query for the rows of a table or view, and its record. Raises `WrongObjectType`, `InsufficientPrivilege`."""
    record = names_of(context).get(name)
    if not record.content.keeps_rows:
        raise WrongObjectType(
            f'cannot copy from {record.kind_name} "{label(record)}"', hint="Try the COPY (SELECT ...) TO variant."
        )
    context.rights.require("r", record)
    named = ", ".join(quoted_name(c.name) for c in target_columns(record, columns))
    table = quoted_name(*filter(None, (name.schema, name.name)))
    return parse_query(f"SELECT {named} FROM {table}"), record


def copy_from(context: Context, statement: st.CopyFrom) -> Result:
    """COPY FROM STDIN: where the rows go."""
    record = target_table(context, statement)
    columns = target_columns(record, statement.columns)
    check_lists(statement.format, [c.name for c in columns], [c.name for c in record.columns], label(record))
    return Result(statement.tag, sink=_Sink(context, statement, record, columns))


def check_lists(form: CopyFormat, copied: Sequence[str], known: Sequence[str], relation: str | None = None) -> None:
    """Raise `UndefinedColumn` or `InvalidParameter` for an option with a column that is not known, or not copied."""
    for option, listed in (
        ("FORCE_QUOTE", form.force_quote), ("FORCE_NOT_NULL", form.force_not_null), ("FORCE_NULL", form.force_null)
    ):  # fmt: skip
        for name in listed:
            if name == "*":
                continue
            if name not in known:
                where = "" if relation is None else f' of relation "{relation}"'
                raise UndefinedColumn(f'column "{name}"{where} does not exist')
            if name not in copied:
                raise InvalidParameter(f'{option} column "{name}" not referenced by COPY', sqlstate="42P10")


class _Sink:
    """See `CopySink`."""

    def __init__(self, context: Context, statement: st.CopyFrom, record: ObjectRecord, targets: list[Column]) -> None:
        self._context = context
        self._statement = statement
        self._record = record
        self.format = statement.format
        self.relation = record.name
        self.zone = context.zone
        self.columns = [ResultColumn(c.name, c.type) for c in targets]
        given = {c.name for c in targets}
        self.required = frozenset(c.name for c in record.columns if c.name in given and is_required(record, c))
        refuse_of_each_row(context, record, left_out(record, targets), "COPY")
        self._defaults = default_values(context, record, left_out(record, targets))
        self._schema = arrow_schema([Column(c.name, c.type) for c in record.columns])
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._path: Path | None = None
        self._file: RowsFile | None = None

    def guarded(self) -> AbstractContextManager[None]:
        """See `CopySink`."""
        return self._context.runner.going_on(self._statement)

    def take(self, rows: pa.RecordBatch) -> None:
        """See `CopySink`."""
        by_name = dict(zip((c.name for c in self.columns), rows.columns))
        by_name |= {name: pa.repeat(value[0], rows.num_rows) for name, value in self._defaults.items()}
        batch = pa.RecordBatch.from_arrays([by_name[f.name] for f in self._schema], schema=self._schema)
        check_not_null(self._record, pa.Table.from_batches([batch]))
        self._held.append(batch)
        self._held_bytes += batch.nbytes
        if self._held_bytes > HELD_BYTES:
            self._set_aside()

    def _set_aside(self) -> None:
        if self._file is None:
            folder = self._context.settings.spool_location
            folder.mkdir(parents=True, exist_ok=True)
            handle, path = tempfile.mkstemp(".rows", "copy-", folder)
            os.close(handle)
            self._path = Path(path)
            self._file = RowsFile(self._path, self._schema)
        for batch in self._held:
            self._file.append(batch)
        self._held, self._held_bytes = [], 0

    def finish(self) -> Result:
        """See `CopySink`."""
        try:
            if self._file is None:
                return run_writing(self._context, self._little)
            self._set_aside()
            self._file.close()
            return run_writing(self._context, self._much)
        finally:
            self.close()

    def _ignores(self) -> bool:
        return self._record.content_as(TableContent).on_conflict == "ignore"

    def _little(self, transaction: Transaction) -> tuple[Result, Written | None]:
        """Write rows that are in memory."""
        table = pa.Table.from_batches(self._held, self._schema).combine_chunks()
        return self._changed(transaction, [b for b in table.to_batches() if b.num_rows])

    def _much(self, transaction: Transaction) -> tuple[Result, Written | None]:
        """Write rows that are in a file; a table with a watermark has to look at them all together."""
        assert self._path is not None
        batches = read_rows(self._path)
        if declared(self._record) is not None:
            return self._changed(transaction, batches)
        written = insert_here(self._context, transaction, self._record, batches, ignore=self._ignores())
        return Result(self._statement.counted(written.inserted)), None

    def _changed(
        self, transaction: Transaction, batches: Iterator[pa.RecordBatch] | list[pa.RecordBatch]
    ) -> tuple[Result, Written | None]:
        ignore, result, inserted = self._ignores(), Result(self._statement.tag), 0
        for batch in batches:
            change = TableChange(batch, None, "ignore" if ignore else "overwrite")
            if transaction.implicit:
                transaction.work.defer(self._record.id, change)
                inserted += batch.num_rows
            else:
                delta = transaction.work.change(self._record.id, change)
                inserted += delta.inserted if ignore else batch.num_rows
        result.tag = self._statement.counted(inserted)

        def tell(outcome: WriteResult) -> None:
            if ignore or outcome.late:
                result.tag = self._statement.counted(outcome.inserted)
            result.notices += late_rows(outcome)

        return result, tell

    def close(self) -> None:
        """See `CopySink`."""
        self._held, self._held_bytes = [], 0
        file, self._file = self._file, None
        if file is not None:
            with suppress(Exception):  # what is in it is not wanted any more
                file.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)


HANDLERS: Final = (
    Handler(st.CopyFrom, copy_from, script=InScript.OPENS, needs=Needs.WRITE),
    Handler(st.CopyTo, copy_to, needs=Needs.READ),
)
