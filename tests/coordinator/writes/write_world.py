"""Tables of numbers and texts over a coordinator without Spark, for tests of the way in."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from fake_database import Database

from headrace.catalog.contents import TableContent
from headrace.catalog.records import ObjectRecord
from headrace.common.columns import Column, arrow_schema, arrow_type
from headrace.coordinator import TableChange
from headrace.coordinator.writes.layout import RowLayout
from headrace.coordinator.writes.requests import Request, RowWrite, WriteResult
from headrace.coordinator.writes.transaction import WriteTransaction
from headrace.coordinator.writes.writer import Writer
from headrace.coordinator.writes.written_rows import Effect, Lookup, RowOperation, append_rows, change_row, insert_rows
from headrace.state.arrangement import Arrangement
from headrace.state.schema import TableSchema
from support import WAIT_S, eventually

COLUMNS = (Column("id", "int"), Column("v", "bigint"))
Row = tuple[Any, ...]
WEIGHT = ((pa.field("__w", pa.int64(), nullable=False), "add"),)


def layout_of(columns: dict[str, str], key: tuple[str, ...] = ()) -> RowLayout:
    fields = {name: pa.field(name, arrow_type(kind)) for name, kind in columns.items()}
    first = key or tuple(columns)
    rest = tuple(f for n, f in fields.items() if n not in first)
    schema = TableSchema(tuple(fields[n] for n in first), rest, WEIGHT)
    record = ObjectRecord(1, TableContent(), "public", "t", tuple(Column(*c) for c in columns.items()), primary_key=key)
    return RowLayout(record, schema)


class Tables(Database):
    """A database whose tables have a number `id`, by default their key, and a number `v`."""

    @property
    def writer(self) -> Writer:
        return self.c.writer

    def numbers(self, name: str, *, key: bool = True, columns: tuple[Column, ...] = COLUMNS, **content: Any) -> int:
        return self.c.create_relation(
            ObjectRecord(0, TableContent(**content), "public", name, columns, primary_key=("id",) if key else ())
        )

    def content(self, table: int) -> list[Row]:
        """All rows as a new reader sees them."""
        with self.c.snapshot([table], timeout_s=WAIT_S) as snapshot:
            shown = snapshot.tables[table]
            return self.rows_of(shown.schema, shown.refs, shown.as_of)

    def seen(self, work: WriteTransaction, table: int) -> list[Row]:
        """All rows as a transaction sees them."""
        epoch = work.fix()
        with self.c.snapshot([table], at=epoch, timeout_s=WAIT_S) as snapshot:
            shown = snapshot.tables[table]
            return self.rows_of(shown.schema, [*shown.refs, *work.own_runs(table)], shown.as_of)

    def rows_of(self, schema: Any, refs: Any, as_of: int) -> list[Row]:
        found: Counter[Row] = Counter()
        for batch in Arrangement(schema, refs, self.core.storage.root, as_of=as_of).scan():
            for row in batch.select(["id", "v", "__w"]).to_pylist():
                found[row["id"], row["v"]] += row["__w"]
        assert all(n > 0 for n in found.values()), found
        return sorted(found.elements())

    def put(self, table: int, *rows: Row) -> WriteResult:
        """Insert rows, over those with their keys."""
        return self.c.commit(RowWrite(inserts(table, *rows)))

    def held_back(self) -> Any:
        """Nothing is committed inside the block."""
        return self.writer.paused()

    def start(self, *requests: Request) -> list[Future[WriteResult]]:
        return [self.writer.submit(request) for request in requests]

    def together(self, *requests: Request) -> list[WriteResult | BaseException]:
        """Let requests be one group; their results or errors."""
        with self.held_back():
            futures = self.start(*requests)
        return [f.exception(WAIT_S) or f.result() for f in futures]

    @contextmanager
    def transaction(self, *gated: int) -> Iterator[WriteTransaction]:
        with self.c.transaction(gated) as work:
            yield work


def batch(*rows: Row) -> pa.RecordBatch:
    schema = arrow_schema(COLUMNS)
    return pa.RecordBatch.from_arrays(
        [pa.array([r[i] for r in rows], schema.field(i).type) for i in (0, 1)], schema=schema
    )


def change(inserts: Sequence[Row] = (), deletes: Sequence[Row] = (), ignore: bool = False) -> TableChange:
    return TableChange(
        batch(*inserts) if inserts else None, batch(*deletes) if deletes else None, "ignore" if ignore else "overwrite"
    )


def inserts(table: int, *rows: Row, ignore: bool = False) -> RowOperation:
    keys = tuple(row[:1] for row in rows)
    return RowOperation(table, keys, insert_rows(rows, keys, ignore=ignore))


def appends(table: int, *rows: Row) -> RowOperation:
    return RowOperation(table, (), append_rows(rows))


def sets(table: int, key: int, to: Callable[[int], int | None]) -> RowOperation:
    """`to` makes the new value of the old one; None for none."""

    def changed(row: Row) -> Row | None:
        value = to(row[1])
        return None if value is None else (key, value)

    return RowOperation(table, ((key,),), change_row((key,), lambda row: True, changed))


def failing(table: int, key: int, error: Exception) -> RowOperation:
    def run(lookup: Lookup) -> Effect:
        lookup((key,))
        raise error

    return RowOperation(table, ((key,),), run)


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Do something at once in several threads; the first error is raised."""
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


def until_queued(db: Tables, count: int) -> None:
    eventually(lambda: len(db.writer._queue) == count, f"{count} requests to wait")
