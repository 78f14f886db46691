"""A session: statements in, results out, with settings and a transaction of its own.

A transaction reads one snapshot, fixed by its first read. Its INSERT, UPDATE and DELETE are kept until COMMIT: its own
reads don't see them. CREATE, DROP and ALTER take effect at once, and ROLLBACK does not take them back.
"""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from headrace.catalog.records import ObjectRecord
from headrace.coordinator.query_epochs import Consistency, Floors, Monotonic
from headrace.coordinator.reads import ReadOptions
from headrace.errors import (
    DivisionByZero,
    HeadraceError,
    NotSupported,
    QueryCanceled,
    ReadOnlyTransaction,
    ShuttingDown,
    TransactionError,
    UndefinedColumn,
    UndefinedFunction,
    UndefinedTable,
)
from headrace.plan.failures import translate
from headrace.session.engine import Jobs
from headrace.session.execution import ddl, dml, routines, show
from headrace.session.execution.select import select
from headrace.session.names import Names
from headrace.session.parts import parts_of
from headrace.session.prepared import PreparedStatement, prepare
from headrace.session.result import Notice, Result
from headrace.session.system.functions import localize
from headrace.session.variables import Variables, duration_ms
from headrace.sql import statements as st
from headrace.sql.dialect import tokenize
from headrace.sql.parser import parse
from headrace.sql.query import Query

if TYPE_CHECKING:
    from headrace.coordinator.changes import TableChange
    from headrace.coordinator.reads import Snapshot
    from headrace.coordinator.tables import WriteResult
    from headrace.plan.planner import Planner
    from headrace.session.database import Database

_WAIT_SLICE_S = 0.1
_WAIT_LIMIT_S = 24 * 3600.0
_numbers = itertools.count(1)
_ALWAYS = (st.Commit, st.Rollback, st.Empty)
_SAVEPOINT_TAGS = {"set": "SAVEPOINT", "release": "RELEASE", "rollback": "ROLLBACK"}
_WRITES = (st.Insert, st.Update, st.Delete, st.CreateTable, st.CreateSource, st.CreateView, st.CreateSchema,
           st.CreateFunction, st.CreateMaterializedView, st.Drop, st.AlterJob)  # fmt: skip


@dataclass
class Transaction:
    """What an open transaction has seen and wants to write."""

    read_only: bool = False
    epoch: int | None = None
    changes: list[tuple[ObjectRecord, TableChange]] = field(default_factory=list)
    savepoints: list[tuple[str, int]] = field(default_factory=list)
    """Names, and how many changes there were."""
    failed: bool = False
    shown: Mapping[int, int] = field(default_factory=dict)
    """Up to which epochs relations had been shown when it fixed its own."""
    release: Callable[[], None] = lambda: None
    """Let go of the epoch."""


class Session:
    """One client's session. One thread at a time, `cancel` excepted."""

    system_schemas = ("pg_catalog", "information_schema", "headrace_catalog", "headrace_internal", "rw_catalog")

    def __init__(self, database: Database, settings: Mapping[str, str] | None = None):
        self.database = database
        self.number: int = next(_numbers)
        timeout = str(database.settings.statement_timeout_ms)
        self.variables = Variables(**{"statement_timeout": timeout, **(settings or {})})
        self.jobs = Jobs(database.keeper, f"headrace-session-{self.number}", self.check)
        self.labels: dict[str, object] = {}
        """Added to the payload of every object that the session creates."""
        self._transaction: Transaction | None = None
        self._cancelled: str | None = None
        self._closed = False
        self._last_write = 0
        self._floors = Floors()

    # ---- what servers use

    @property
    def transaction_status(self) -> str:
        """`I` idle, `T` in a transaction, `E` in a failed one."""
        if self._transaction is None:
            return "I"
        return "E" if self._transaction.failed else "T"

    @property
    def parameters(self) -> Mapping[str, str]:
        """Settings that a client is told when it connects."""
        return self.variables.reported()

    def execute(self, sql: str) -> Iterator[Result]:
        """Run a script; one result for each statement, when it is asked for."""
        with self._failing():
            statements = parse(sql)
        for statement in statements:
            if not isinstance(statement, st.Empty):
                yield self.run(statement)

    def prepare(self, sql: str, parameter_types: Sequence[str | None] = ()) -> PreparedStatement:
        """Parse one statement and find the types of its parameters and of its result."""
        self._cancelled = None
        with self._failing(), self._limited():
            self._require_open()
            return prepare(self, sql, parameter_types)

    def cancel(self) -> None:
        """Stop what runs, from another thread."""
        self._stop("canceling statement due to user request")

    def close(self) -> None:
        """Give up an open transaction, and what runs."""
        self._end_transaction()
        if not self._closed:
            self._closed = True
            self.database.forget(self)

    # ---- running

    def run(self, statement: st.Statement) -> Result:
        """Run one statement."""
        self._cancelled = None
        with self._failing(statement):
            self._admit(statement)
            with self._limited():
                return self._dispatch(statement)

    def _admit(self, statement: st.Statement) -> None:
        self._require_open()
        transaction = self._transaction
        goes_on = isinstance(statement, _ALWAYS) or _rolls_back(statement)
        if transaction is not None and transaction.failed and not goes_on:
            raise TransactionError(
                "current transaction is aborted, commands ignored until end of transaction block", sqlstate="25P02"
            )
        read_only = transaction.read_only if transaction else self.variables.is_on("default_transaction_read_only")
        if read_only and isinstance(statement, _WRITES):
            raise ReadOnlyTransaction("cannot execute this statement in a read-only transaction")

    def _require_open(self) -> None:
        if self._closed:
            raise ShuttingDown("the session is closed")
        self.database.check()

    def _dispatch(self, statement: st.Statement) -> Result:
        if isinstance(statement, st.Select):
            return select(self, statement.query)
        run = _RUN.get(type(statement))
        if run is None:
            words = re.findall("[A-Z][a-z]+", type(statement).__name__)
            raise NotSupported(f"{' '.join(words).upper()} is not supported yet", hint="docs/sql.md lists what is")
        return run(self, statement)

    @contextmanager
    def _failing(self, statement: st.Statement | None = None) -> Iterator[None]:
        """Errors inside the block are headrace's, say where in the statement, and fail the transaction."""
        spark = self.database.spark
        try:
            yield
        except BaseException as error:
            if self._transaction is not None:
                self._transaction.failed = True
            if not isinstance(error, Exception):
                raise
            found = self.database.keeper.explained(translate(error), spark)
            reason = self._cancelled
            if reason is not None and not isinstance(found, QueryCanceled):
                found = QueryCanceled(reason)
            if statement is not None:
                found = located(found, statement)
            if found is error:
                raise
            raise found from error

    @contextmanager
    def _limited(self) -> Iterator[None]:
        """Apply `statement_timeout`."""
        limit_ms = duration_ms(self.variables.get("statement_timeout"))
        timer = None
        if limit_ms:
            timer = threading.Timer(limit_ms / 1000, self._stop, ("canceling statement due to statement timeout",))
            timer.daemon = True
            timer.start()
        try:
            yield
            self.check()
        finally:
            if timer is not None:
                timer.cancel()

    def _stop(self, reason: str) -> None:
        self._cancelled = reason
        self.jobs.cancel()

    def check(self) -> None:
        """Raise `QueryCanceled` if the running statement was cancelled."""
        if self._cancelled is not None:
            raise QueryCanceled(self._cancelled)

    def wait(self, step: Callable[[], object]) -> None:
        """Run `step` in a thread of its own, so that waiting for it can be cancelled."""
        done = threading.Event()
        failures: list[BaseException] = []

        def run() -> None:
            try:
                step()
            except BaseException as error:
                failures.append(error)
            finally:
                done.set()

        threading.Thread(target=run, name=f"headrace-wait-{self.number}", daemon=True).start()
        while not done.wait(_WAIT_SLICE_S):
            self.check()
        if failures:
            raise failures[0]

    # ---- what the kinds of statements share

    def wait_for_spark(self) -> None:
        """Return once Spark runs: it may have ended, and be starting again. Raises `QueryCanceled`, `SparkLost`."""
        self.database.keeper.wait_ready(self.check)

    @property
    def planner(self) -> Planner:
        """The database's planner, once Spark runs."""
        self.wait_for_spark()
        return self.database.planner

    def names(self) -> Names:
        """Look-up of names along the search path."""
        return Names(self.database.catalog, self.variables.search_path())

    def localized(self, query: Query) -> Query:
        """The query with functions and casts that only the session or the catalog can answer replaced."""
        return localize(self, query)

    def snapshot(self, relations: Sequence[int], at: int | None) -> AbstractContextManager[Snapshot]:
        """A snapshot of relations: at an epoch that is asked for, that of the transaction, or the newest."""
        return self._snapshot(relations, at)

    @contextmanager
    def _snapshot(self, relations: Sequence[int], at: int | None) -> Iterator[Snapshot]:
        options = self._read_options(at)
        transaction = self._transaction if options.at is None else None
        with self.database.coordinator.snapshot(list(relations), options=options) as snapshot:
            if transaction is not None and transaction.epoch is None:
                transaction.epoch, transaction.shown = snapshot.epoch, snapshot.shown
                transaction.release = self.database.coordinator.hold(snapshot.epoch)
            yield snapshot

    def _read_options(self, at: int | None) -> ReadOptions:
        """How the session's settings, its transaction and its writes let a read choose its epoch."""
        v, transaction = self.variables, self._transaction
        at = at or int(v.get("query_epoch") or 0) or None
        if at is not None:
            return ReadOptions(at=at, check=self.check)
        fixed = None if transaction is None else transaction.epoch
        consistency = cast(Consistency, v.get("query_consistency"))
        if transaction is not None and consistency == "latest":
            # A transaction reads one snapshot.
            consistency = "snapshot"
        return ReadOptions(
            consistency=consistency,
            monotonic=cast(Monotonic, v.get("monotonic_reads")),
            exactly=fixed,
            shown={} if transaction is None else transaction.shown,
            at_least=self._last_write if v.is_on("read_your_writes") else 0,
            session=self._floors,
            align=transaction is not None and fixed is None,
            check=self.check,
        )

    def write(self, record: ObjectRecord, change: TableChange) -> WriteResult | None:
        """Write to a table: now, or at COMMIT; then what came of it is not known yet."""
        if change.inserts is None and change.deletes is None:
            return None
        if self._transaction is not None:
            self._transaction.changes.append((record, change))
            return None
        self.check()
        written = self.database.coordinator.write(record.id, change)
        self._last_write = written.epoch
        self._implicit_flush()
        return written

    def _implicit_flush(self) -> None:
        if self.variables.is_on("rw_implicit_flush"):
            self.flush()

    def flush(self) -> None:
        """Wait until every view has what was written before."""
        self.wait(lambda: self.database.coordinator.flush(_WAIT_LIMIT_S))

    # ---- transactions and settings

    def begin(self, statement: st.Begin) -> Result:
        """BEGIN."""
        if self._transaction is not None:
            return Result("BEGIN", notices=[Notice("there is already a transaction in progress", "WARNING", "25001")])
        read_only = statement.read_only
        if read_only is None:
            read_only = self.variables.is_on("default_transaction_read_only")
        self._transaction = Transaction(read_only)
        return Result("BEGIN")

    def commit(self, statement: st.Statement) -> Result:
        """COMMIT: what was written takes effect, table by table; a failed transaction is rolled back."""
        transaction = self._end_transaction()
        if transaction is None:
            return Result("COMMIT", notices=[Notice("there is no transaction in progress", "WARNING", "25P01")])
        if transaction.failed:
            return Result("ROLLBACK")
        for record, change in transaction.changes:
            self._last_write = self.database.coordinator.write(record.id, change).epoch
        if transaction.changes:
            self._implicit_flush()
        return Result("COMMIT")

    def _end_transaction(self) -> Transaction | None:
        transaction, self._transaction = self._transaction, None
        self.variables.end_transaction()
        if transaction is not None:
            transaction.release()
        return transaction

    def rollback(self, statement: st.Statement) -> Result:
        """ROLLBACK: what was to be written is forgotten."""
        transaction = self._end_transaction()
        if transaction is None:
            return Result("ROLLBACK", notices=[Notice("there is no transaction in progress", "WARNING", "25P01")])
        return Result("ROLLBACK")

    def savepoint(self, statement: st.Savepoint) -> Result:
        """SAVEPOINT, RELEASE and ROLLBACK TO."""
        transaction, tag = self._transaction, _SAVEPOINT_TAGS[statement.action]
        if transaction is None:
            raise TransactionError(f"{tag} can only be used in transaction blocks", sqlstate="25P01")
        if statement.action == "set":
            transaction.savepoints.append((statement.name, len(transaction.changes)))
            return Result(tag)
        at = next((i for i, s in reversed([*enumerate(transaction.savepoints)]) if s[0] == statement.name), None)
        if at is None:
            raise TransactionError(f'savepoint "{statement.name}" does not exist', sqlstate="3B001")
        if statement.action == "rollback":
            del transaction.changes[transaction.savepoints[at][1] :]
            transaction.failed = False
            at += 1
        del transaction.savepoints[at:]
        return Result(tag)

    def set_transaction(self, statement: st.SetTransaction) -> Result:
        """SET TRANSACTION."""
        if statement.session:
            if statement.read_only is not None:
                self.variables.set("default_transaction_read_only", "on" if statement.read_only else "off")
        elif self._transaction is not None and statement.read_only is not None:
            self._transaction.read_only = statement.read_only
        return Result("SET")

    def set_variable(self, statement: st.SetVariable) -> Result:
        """SET."""
        if statement.local and self._transaction is None:
            warning = Notice("SET LOCAL can only be used in transaction blocks", "WARNING", "25P01")
            return Result("SET", notices=[warning])
        self.variables.set(statement.name, statement.value, local=statement.local)
        return Result("SET")

    def reset(self, statement: st.ResetVariable) -> Result:
        """RESET."""
        if statement.name is None:
            self.variables.reset()
        else:
            self.variables.set(statement.name, None)
        return Result("RESET")

    def discard(self, statement: st.Discard) -> Result:
        """DISCARD."""
        if statement.what == "all":
            if self._transaction is not None:
                raise TransactionError("DISCARD ALL cannot run inside a transaction block", sqlstate="25001")
            self.variables.reset()
        return Result(f"DISCARD {statement.what.upper()}")

    def flush_statement(self, statement: st.Statement) -> Result:
        """FLUSH and WAIT."""
        self.flush()
        return Result("FLUSH" if isinstance(statement, st.Flush) else "WAIT")

    def cancel_jobs(self, statement: st.CancelJobs) -> Result:
        """CANCEL JOBS: drop views that are still being created."""
        state = self.database.catalog.state
        for job_id in statement.ids:
            job = state.jobs.get(job_id)
            if job is None or job.status == "created" or job.exact:
                raise UndefinedTable(f"there is no job {job_id} that is being created", sqlstate="42704")
        parts = parts_of(state, statement.ids)
        self.database.coordinator.drop([*statement.ids, *(o.id for o in parts if o.id not in statement.ids)])
        return show.rows_result("CANCEL JOBS", [("Id", "bigint")], [[i] for i in statement.ids])


_RUN: dict[type[st.Statement], Callable[..., Result]] = {
    st.Empty: lambda session, statement: Result(""),
    st.Insert: dml.insert,
    st.Update: dml.update,
    st.Delete: dml.delete,
    st.CreateTable: ddl.create_table,
    st.CreateSource: ddl.create_source,
    st.CreateView: ddl.create_view,
    st.CreateMaterializedView: ddl.create_materialized_view,
    st.CreateSink: ddl.create_sink,
    st.CreateSchema: ddl.create_schema,
    st.CreateFunction: routines.create_function,
    st.Drop: ddl.drop,
    st.AlterJob: ddl.alter,
    st.Show: show.show,
    st.Describe: show.describe,
    st.Explain: show.explain,
    st.Begin: Session.begin,
    st.Commit: Session.commit,
    st.Rollback: Session.rollback,
    st.Savepoint: Session.savepoint,
    st.SetTransaction: Session.set_transaction,
    st.SetVariable: Session.set_variable,
    st.ResetVariable: Session.reset,
    st.Discard: Session.discard,
    st.Flush: Session.flush_statement,
    st.Wait: Session.flush_statement,
    st.CancelJobs: Session.cancel_jobs,
}

_SUBJECT = re.compile(r'(?:relation|column|table|view|source|function) "([^"]+)"')
_SPARK_COLUMN = re.compile(
    r"(?:with name|column or function|field) `([^`]+)`(?:\.`([^`]+)`)?.*cannot be resolved", re.DOTALL
)
_SPARK_FUNCTION = re.compile(r"Cannot resolve routine (`\S+`) on search path")
_SUGGESTED = re.compile(r"Did you mean one of the following\? \[(.*?)\]")


def _rolls_back(statement: st.Statement) -> bool:
    return isinstance(statement, st.Savepoint) and statement.action == "rollback"


def located(error: HeadraceError, statement: st.Statement) -> HeadraceError:
    """The error in PostgreSQL's words where they are known, with its position in the script."""
    if error.position is not None and statement.position > 1 and error.position <= len(statement.text):
        return error
    if isinstance(error, DivisionByZero):
        return DivisionByZero("division by zero", hint=error.hint, detail=error.detail)
    if isinstance(error, UndefinedColumn):
        error = _undefined_column(error)
    if isinstance(error, UndefinedFunction):
        error = _undefined_function(error)
    if error.position is None and isinstance(error, (UndefinedTable, UndefinedColumn, UndefinedFunction)):
        subject = _SUBJECT.search(error.message)
        if subject is not None:
            at = _position(statement.text, subject[1].rsplit(".", 1)[-1])
            error.position = at + statement.position - 1 if at is not None else None
    return error


def _undefined_column(error: UndefinedColumn) -> UndefinedColumn:
    found = _SPARK_COLUMN.search(error.message)
    if found is None:
        return error
    name = ".".join(part for part in found.groups() if part)
    suggested = _SUGGESTED.search(error.message)
    hint = None
    if suggested is not None:
        choices = [part.split(".")[-1].strip(" `") for part in suggested[1].split(",")]
        hint = "Perhaps you meant " + " or ".join(f'"{c}"' for c in dict.fromkeys(choices) if c) + "."
    return UndefinedColumn(f'column "{name}" does not exist', hint=hint)


def _undefined_function(error: UndefinedFunction) -> UndefinedFunction:
    found = _SPARK_FUNCTION.search(error.message)
    if found is None:
        return error
    return UndefinedFunction(f'function "{found[1].replace("`", "")}" does not exist', hint=error.hint)


def _position(text: str, name: str) -> int | None:
    for token in tokenize(text):
        if token.text == name or token.text.lower() == name:
            return int(token.start) + 1
    return None
