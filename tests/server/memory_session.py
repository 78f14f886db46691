"""A session that keeps its tables in memory: small SQL, real values, real cancellation."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headrace.common.columns import arrow_type
from headrace.common.zones import UTC, Zone
from headrace.errors import (
    DivisionByZero,
    HeadraceError,
    NotSupported,
    QueryCanceled,
    SyntaxFault,
    TransactionError,
    UndefinedTable,
)
from headrace.session.named import ByName
from headrace.session.open_cursors import OpenCursor
from headrace.session.result import IdleLimit, Notice, Result, ResultColumn
from headrace.sql import statements as st
from headrace.sql.copying import CopyFormat
from headrace.sql.datatypes import parse_type
from headrace.sql.parser import parse_one
from headrace.sql.text_values import parse_text

ITEM = re.compile(
    r"\s*(?:\$(?P<n>\d+)|'(?P<text>(?:[^']|'')*)'|(?P<null>null)|(?P<bool>true|false)|(?P<number>-?\d+(?:\.\d+)?))"
    r"(?:::(?P<type>[a-z_]\w*(?: precision)?(?:\(\d+,\d+\))?(?:\[\])*))?(?:\s+as\s+(?P<name>\w+))?\s*(?P<end>,|$)",
    re.IGNORECASE,
)


@dataclass
class Item:
    name: str
    type: str
    parameter: int | None
    text: str | None


@dataclass
class Database:
    """What the sessions share, and what tests look at."""

    tables: dict[str, tuple[list[ResultColumn], list[tuple[object, ...]]]] = field(default_factory=dict)
    opened: int = 0
    closed: int = 0
    cancelled: int = 0
    produced: int = 0
    idle_limit: IdleLimit | None = None
    send_limit_s: float | None = None
    follows_for_ever: bool = False
    """Whether what follows a table goes on until it is cancelled."""
    expired: list[str] = field(default_factory=list)
    let_go: list[str] = field(default_factory=list)
    """Names of the threads that ended a stream of rows."""
    waiting: threading.Event = field(default_factory=threading.Event)
    all_closed: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Connections come and go in threads of their own."""
    sessions: list[MemorySession] = field(default_factory=list)
    """Those that are open."""

    def session(self, parameters: dict[str, str]) -> MemorySession:
        if parameters.get("database") == "missing":
            raise UndefinedTable('database "missing" does not exist', sqlstate="3D000", hint="Use dev.")
        with self.lock:
            self.opened += 1
            self.all_closed.clear()
            made = MemorySession(self, parameters)
            self.sessions.append(made)
        return made


class MemorySession:
    def __init__(self, database: Database, parameters: dict[str, str]):
        self.database = database
        self.transaction_status = "I"
        self.statements = ByName("prepared statement", "26000", "42P05")
        self.find_portal = None
        self.drop_portals = lambda since: None
        self.savepoints_made = 0
        self.client = ""
        self.sends_until_s = None
        self.stopped = lambda: None
        self.number = database.opened
        self.cursors = ByName("cursor", "34000", "42P03")
        self.parameters = {"server_version": "13.14.0", "application_name": parameters.get("application_name", "")}
        self._cancel = threading.Event()

    def greeting(self) -> list[Notice]:
        return []

    def idle_limit(self) -> IdleLimit | None:
        return self.database.idle_limit

    @property
    def send_limit_s(self) -> float | None:
        return self.database.send_limit_s

    def expired(self, error: HeadraceError) -> None:
        self.database.expired.append(error.message)

    def failed(self) -> None:
        if self.transaction_status == "T":
            self.transaction_status = "E"

    def begin_request(self) -> None:
        self._cancel.clear()

    def execute(self, sql: str) -> Iterator[Result]:
        for statement in split(sql):
            yield self._run(statement, [])

    def prepare(self, sql: str, parameter_types: Sequence[str | None] = ()) -> MemoryPrepared:
        statements = split(sql)
        if len(statements) != 1:
            raise SyntaxFault("cannot insert multiple commands into a prepared statement")
        return MemoryPrepared(self, statements[0], parameter_types)

    def cancel(self) -> None:
        with self.database.lock:
            self.database.cancelled += 1
        self._cancel.set()
        self.stopped()

    def close(self) -> None:
        with self.database.lock:
            self.database.closed += 1
            self.database.sessions.remove(self)
            if self.database.closed == self.database.opened:
                self.database.all_closed.set()

    def _run(self, sql: str, parameters: Sequence[str | None], types: Sequence[str | None] = ()) -> Result:
        try:
            if self._cancel.is_set():
                raise QueryCanceled("canceling statement due to user request")
            if self.transaction_status == "E" and not re.match(r"rollback|commit", sql, re.I):
                raise TransactionError("current transaction is aborted", sqlstate="25P02")
            return self._statement(sql, parameters, types)
        except (IndexError, ValueError) as error:  # odd statements are no concern of this session
            raise SyntaxFault(str(error)) from None
        except BaseException:
            if self.transaction_status == "T":
                self.transaction_status = "E"
            raise

    def _statement(self, sql: str, parameters: Sequence[str | None], types: Sequence[str | None]) -> Result:
        word = sql.split(None, 1)[0].lower()
        if word in ("begin", "commit", "rollback"):
            self.transaction_status = "T" if word == "begin" else "I"
            if word != "begin":
                self._end_cursors(rolled_back=word == "rollback")
                self.drop_portals(0)
            return Result(word.upper())
        if found := re.fullmatch(r"copy \(subscribe (\w+)\) to stdout", sql, re.I):
            columns, rows = self._table(found[1])
            return Result("COPY", columns, self._followed(columns, rows), copy=CopyFormat(), follows=True)
        if word in ("declare", "fetch", "move", "close"):
            return self._cursor(sql)
        if found := re.fullmatch(r"notify '(.*)'", sql, re.I):
            return Result("NOTIFY", notices=[Notice(found[1])])
        if found := re.fullmatch(r"set (\w+) = '(.*)'", sql, re.I):
            self.parameters = {**self.parameters, found[1]: found[2]}
            return Result("SET")
        if re.fullmatch(r"crash", sql, re.I):
            raise RuntimeError("something broke")
        if found := re.fullmatch(r"create table (\w+) \((.*)\)", sql, re.I):
            pairs = (part.split(None, 1) for part in found[2].split(","))
            self.database.tables[found[1]] = ([ResultColumn(n, parse_type(t)) for n, t in pairs], [])
            return Result("CREATE_TABLE")
        if found := re.fullmatch(r"insert into (\w+) values \((.*)\)", sql, re.I):
            return self._insert(found[1], found[2], parameters)
        if word == "select":
            return self._select(sql, parameters, types)
        if found := re.fullmatch(r"copy (\w+) (from stdin|to stdout)(?: (csv|binary))?", sql, re.I):
            columns, rows = self._table(found[1])
            how = CopyFormat("csv", ",", "") if found[3] == "csv" else CopyFormat(found[3] or "text")
            if found[2].lower() == "from stdin":
                return Result("COPY", sink=MemorySink(self, found[1], how))
            return Result("COPY", columns, iter([batch(columns, rows)] if rows else ()), copy=how)
        raise SyntaxFault(f'syntax error at or near "{word}"', position=1, hint="See the manual.", detail="No rule.")

    def _cursor(self, sql: str) -> Result:
        statement: Any = parse_one(sql)
        if isinstance(statement, st.DeclareCursor):
            if self.transaction_status == "I" and not statement.hold:
                raise TransactionError("DECLARE CURSOR can only be used in transaction blocks", sqlstate="25P01")
            self.cursors.require_free(statement.name)
            rows = self._select(sql[sql.lower().index("select") :], [], [])
            cursor = OpenCursor(statement, rows, 1 << 20, 0)
            if self.transaction_status == "I":
                cursor.hold()
            self.cursors.put(statement.name, cursor)
            return Result(statement.tag)
        if isinstance(statement, st.CloseCursor):
            names = self.cursors.clear() if statement.name is None else [self.cursors.get(statement.name)]
            for each in names:
                each.close()
            if statement.name is not None:
                self.cursors.pop(statement.name)
            return Result(statement.tag)
        cursor = self._open_cursor(statement.name)
        rows = cursor.fetch(statement.direction, statement.count)
        if statement.moves:
            return Result(statement.counted(sum(batch.num_rows for batch in rows)))
        return Result(statement.tag, cursor.columns, iter(list(rows)), binary=cursor.binary)

    def _end_cursors(self, *, rolled_back: bool) -> None:
        for cursor in self.cursors.pop_those(lambda c: not c.held and (rolled_back or not c.holds)):
            cursor.close()
        for cursor in self.cursors.all():
            cursor.hold()

    def _open_cursor(self, name: str) -> Any:
        portal = None if self.cursors.has(name) or self.find_portal is None else self.find_portal(name)
        return self.cursors.get(name) if portal is None else portal

    def _followed(
        self, columns: list[ResultColumn], rows: list[tuple[object, ...]]
    ) -> Iterator[pa.RecordBatch]:  # fmt: skip
        """The rows that there are; then, unless it ends, nothing until it is cancelled."""
        try:
            if rows:
                yield batch(columns, rows)
            while self.database.follows_for_ever:
                if self._cancel.wait(0.01):
                    raise QueryCanceled("canceling statement due to user request")
                yield batch(columns, [])
        finally:
            self.database.let_go.append(threading.current_thread().name)

    def _insert(self, name: str, values: str, parameters: Sequence[str | None]) -> Result:
        columns, rows = self._table(name)
        texts = [parameters[i.parameter] if i.parameter is not None else i.text for i in items(values, [])]
        pairs = zip(texts, columns, strict=True)
        rows.append(tuple(None if text is None else parse_text(text, column.type) for text, column in pairs))
        return Result("INSERT 0 1")

    def _table(self, name: str) -> tuple[list[ResultColumn], list[tuple[object, ...]]]:
        if name not in self.database.tables:
            raise UndefinedTable(f'relation "{name}" does not exist', position=15)
        return self.database.tables[name]

    def columns(self, sql: str, types: Sequence[str | None]) -> list[ResultColumn] | None:
        if sql.lower().startswith("fetch"):
            return list(self._open_cursor(getattr(parse_one(sql), "name", "")).columns)
        if not sql.lower().startswith("select"):
            return None
        if re.match(r"select (generate_series|pg_sleep|1/0|wide)\b", sql, re.I):
            return [ResultColumn("generate_series", "bigint")] if "generate" in sql else [ResultColumn("x", "string")]
        if found := re.fullmatch(r"select \* from (\w+)", sql, re.I):
            return self._table(found[1])[0]
        return [ResultColumn(i.name, i.type) for i in items(sql[len("select") :], types)]

    def _select(self, sql: str, parameters: Sequence[str | None], types: Sequence[str | None]) -> Result:
        columns = self.columns(sql, types)
        assert columns is not None
        if found := re.fullmatch(r"select generate_series\((\d+), *(\d+|\$1)\)", sql, re.I):
            last = int(parameters[0] or 0) if found[2] == "$1" else int(found[2])
            return Result("SELECT", columns, self._series(int(found[1]), last))
        if found := re.fullmatch(r"select wide\((\d+), *(\d+)\)", sql, re.I):
            return Result("SELECT", columns, self._wide(int(found[1]), int(found[2])))
        if re.match(r"select 1/0", sql, re.I):
            return Result("SELECT", columns, self._divide())
        if re.match(r"select pg_sleep", sql, re.I):
            self.database.waiting.set()
            if self._cancel.wait(600):
                raise QueryCanceled("canceling statement due to user request")
        if found := re.fullmatch(r"select \* from (\w+)", sql, re.I):
            return Result("SELECT", columns, iter([batch(columns, self._table(found[1])[1])]))
        if columns[0].name == "x" and "sleep" in sql:
            return Result("SELECT", columns, iter([batch(columns, [("",)])]))
        row = []
        for item in items(sql[len("select") :], types):
            text = parameters[item.parameter] if item.parameter is not None else item.text
            row.append(None if text is None else parse_text(text, item.type))
        return Result("SELECT", columns, iter([batch(columns, [tuple(row)])]))

    def _series(self, first: int, last: int) -> Iterator[pa.RecordBatch]:
        try:
            for start in range(first, last + 1, 10_000):
                if self._cancel.is_set():
                    raise QueryCanceled("canceling statement due to user request")
                numbers = pa.array(range(start, min(start + 10_000, last + 1)), pa.int64())
                self.database.produced += len(numbers)
                yield pa.record_batch([numbers], names=["generate_series"])
        finally:
            self.database.let_go.append(threading.current_thread().name)

    def _wide(self, count: int, width: int) -> Iterator[pa.RecordBatch]:
        for _ in range(count):
            if self._cancel.is_set():
                raise QueryCanceled("canceling statement due to user request")
            self.database.produced += 1
            yield pa.record_batch([pa.array(["x" * width])], names=["x"])

    def _divide(self) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch([pa.array(["fine"])], names=["x"])
        raise DivisionByZero("division by zero")


class MemorySink:
    """Where the rows of COPY go."""

    required: frozenset[str] = frozenset()
    zone: Zone = UTC

    def __init__(self, session: MemorySession, relation: str, form: CopyFormat):
        self.format, self.relation = form, relation
        self.columns, self._rows = session._table(relation)
        self._session = session
        self._taken: list[tuple[object, ...]] = []

    @contextmanager
    def guarded(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            if self._session.transaction_status == "T":
                self._session.transaction_status = "E"
            raise

    def take(self, rows: pa.RecordBatch) -> None:
        self._taken += zip(*(column.to_pylist() for column in rows.columns))

    def finish(self) -> Result:
        self._rows += self._taken
        return Result(f"COPY {len(self._taken)}")

    def close(self) -> None:
        self._taken = []


class MemoryPrepared:
    def __init__(self, session: MemorySession, sql: str, types: Sequence[str | None]):
        self._session = session
        self._sql = sql
        count = max([int(n) for n in re.findall(r"\$(\d+)", sql)], default=0)
        given = [*types, *[None] * count][:count]
        casts = {
            int(n) - 1: parse_type(t) for n, t in re.findall(r"\$(\d+)::([a-z_]\w*(?:\(\d+,\d+\))?(?:\[\])*)", sql)
        }
        self.parameter_types = [given[i] or casts.get(i) or "string" for i in range(count)]
        self.columns = session.columns(sql, self.parameter_types)
        if session.transaction_status != "E" and sql.lower().startswith("copyright"):
            raise NotSupported("no")

    def execute(self, parameters: Sequence[str | None]) -> Result:
        return self._session._run(self._sql, parameters, self.parameter_types)


def split(sql: str) -> list[str]:
    """Statements at semicolons that stand outside of quotes."""
    parts = re.findall(r"(?:'[^']*'|[^;'])+", sql)
    return [part.strip() for part in parts if part.strip()]


def items(text: str, types: Sequence[str | None]) -> list[Item]:
    found, at = [], 0
    while at < len(text):
        match = ITEM.match(text, at)
        if match is None:
            raise SyntaxFault(f'syntax error at or near "{text[at:].strip()}"', position=8 + at)
        parameter = int(match["n"]) - 1 if match["n"] else None
        guess = "boolean" if match["bool"] else "string"
        if match["number"]:
            guess = "double" if "." in match["number"] else "int"
        if parameter is not None and parameter < len(types):
            guess = types[parameter] or guess
        kind = parse_type(match["type"]) if match["type"] else guess
        literal = match["text"].replace("''", "'") if match["text"] is not None else match["number"] or match["bool"]
        found.append(Item(match["name"] or "?column?", kind, parameter, None if match["null"] else literal))
        at = match.end()
    return found


def batch(columns: list[ResultColumn], rows: list[tuple[object, ...]]) -> pa.RecordBatch:
    arrays = [pa.array([row[i] for row in rows], arrow_type(c.type)) for i, c in enumerate(columns)]
    return pa.RecordBatch.from_arrays(arrays, names=[c.name for c in columns])
