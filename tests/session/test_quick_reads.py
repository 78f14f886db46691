"""Reads that the server process answers itself give what Spark gives, of the same snapshot, and wait for nobody."""

from __future__ import annotations

import random
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as hst

from headrace.coordinator.reads import LATER
from headrace.errors import HeadraceError, InsufficientPrivilege, UndefinedTable
from headrace.server import ServerThread
from headrace.server.readers.followed import Followed
from headrace.server.readers.news import KnownStatement, SessionRest, pieces_of, rest_bytes
from headrace.server.readers.own_answers import Answers, whole_messages
from headrace.server.readers.own_reads import OwnRead
from headrace.server.readers.publisher import NewsLine, Publisher
from headrace.server.readers.reading_board import ReadingBoard
from headrace.session import session as sessions
from headrace.session.database import Database
from headrace.session.execution import select
from headrace.session.prepared import PreparedRead, WantedRow, look_up
from headrace.session.session import Session
from headrace.session.shared_reads import SharedReads

TYPES = {
    "i": ("int", ["0", "1", "-1", "7", "2147483647", "-2147483648"]),
    "b": ("bigint", ["0", "5", "-3", "9223372036854775807", "-9223372036854775808"]),
    "s": ("smallint", ["0", "2", "-32768", "32767"]),
    "t": ("text", ["''", "'a'", "'Abc'", "'ä'", "'a%'", "'10'", "'\uffff'", "'😀'"]),
    "o": ("boolean", ["true", "false"]),
    "d": ("date", ["'2024-02-29'", "'1969-12-31'", "'0001-01-01'"]),
    "m": ("timestamp", ["'2024-02-29 12:00:00.123456'", "'1969-12-31 23:59:59'"]),
    "z": ("timestamptz", ["'2024-02-29 12:00:00+01'", "'1970-01-01 00:00:00Z'"]),
    "n": ("numeric(10,2)", ["0", "1.25", "-99999999.99", "2.50"]),
    "f": ("double precision", ["0", "'-0'", "1.5", "'NaN'", "'Infinity'", "1e300", "-2.25"]),
}  # fmt: skip
NUMBERS, SIGNS = ("i", "b", "s"), ("=", "<>", "<", "<=", ">", ">=")


class Expressions:
    """Random expressions over some columns."""

    def __init__(self, pick: random.Random, columns: list[str]) -> None:
        self.pick = pick
        self.columns = columns

    def of(self, kind: str, depth: int) -> str:
        """An expression of the type of a column."""
        own = [c for c in self.columns if c[0] == kind]
        choice = self.pick.random()
        if depth == 0 or choice < 0.3:
            return self.pick.choice(own) if own and self.pick.random() < 0.8 else self.literal(kind)
        if choice < 0.45:
            return f"CASE WHEN {self.condition(depth - 1)} THEN {self.of(kind, depth - 1)} ELSE {self.of(kind, 0)} END"
        if choice < 0.55:
            return f"coalesce({self.of(kind, depth - 1)}, {self.of(kind, 0)})"
        if kind in NUMBERS:
            a, b = self.of(kind, depth - 1), self.of(self.pick.choice(NUMBERS), 0)
            given = [f"({a}) {self.pick.choice('+-*')} ({b})", f"({a}) / 3", f"({a}) % 4::{TYPES[kind][0]}", f"-({a})"]
            return f"({self.pick.choice(given)})::{TYPES[kind][0]}"
        if kind == "t":
            a = self.of("t", depth - 1)
            return self.pick.choice(
                [f"lower({a})", f"upper({a})", f"{a} || {self.of('t', 0)}", f"({self.of('i', 0)})::text"]
            )
        if kind in ("n", "f"):
            return f"({self.of(kind, depth - 1)} {self.pick.choice('+-*')} {self.of(kind, 0)})"
        return self.condition(depth - 1) if kind == "o" else self.of(kind, 0)

    def literal(self, kind: str) -> str:
        name, values = TYPES[kind]
        return f"CAST({self.pick.choice(values)} AS {name})" if self.pick.random() < 0.95 else f"CAST(NULL AS {name})"

    def condition(self, depth: int) -> str:
        choice, kind = self.pick.random(), self.pick.choice([*TYPES])
        value = self.of(kind, max(depth - 1, 0))
        if depth > 0 and choice < 0.2:
            return f"({self.condition(depth - 1)}) {self.pick.choice(['AND', 'OR'])} ({self.condition(depth - 1)})"
        if depth > 0 and choice < 0.25:
            return f"NOT ({self.condition(depth - 1)})"
        if choice < 0.35:
            return f"{value} IS {self.pick.choice(['', 'NOT '])}NULL"
        if choice < 0.42:
            return f"{value} IS {self.pick.choice(['', 'NOT '])}DISTINCT FROM {self.of(kind, 0)}"
        if choice < 0.5 and kind not in ("o", "f", "n"):
            listed = ", ".join(self.literal(kind) for _ in range(3))
            return f"{value} {self.pick.choice(['', 'NOT '])}IN ({listed})"
        if choice < 0.58:
            return (
                f"{self.of('t', 0)} {self.pick.choice(['', 'NOT '])}LIKE {self.pick.choice(['a%', '_', '%b%', ''])!r}"
            )
        if choice < 0.63 and kind not in ("o", "t"):
            return f"{value} BETWEEN {self.of(kind, 0)} AND {self.of(kind, 0)}"
        if choice < 0.68:
            return f"length({self.of('t', 0)}) > {self.pick.choice([0, 1, 2])}"
        sign = self.pick.choice(SIGNS) if kind != "o" else self.pick.choice(SIGNS[:2])
        return f"{value} {sign} {self.of(kind, 0)}"


class Reads:
    """Random queries over a random table, or over a view of it."""

    def __init__(self, pick: random.Random, name: str) -> None:
        self.pick = pick
        self.name = name
        self.columns = [f"{pick.choice([*TYPES])}{n}" for n in range(pick.randint(2, 6))]
        self.key = pick.sample(["i", "t", "d"], pick.randint(1, 2)) if pick.random() < 0.7 else []
        self.columns += [f"{kind}9" for kind in self.key]
        self.expressions = Expressions(pick, self.columns)

    def ddl(self) -> str:
        columns = ", ".join(f"{c} {TYPES[c[0]][0]}" for c in self.columns)
        key = f", PRIMARY KEY ({', '.join(f'{k}9' for k in self.key)})" if self.key else ""
        return f"CREATE TABLE {self.name} ({columns}{key})"

    def value(self, column: str) -> str:
        null = not column.endswith("9") or not self.key
        return "NULL" if null and self.pick.random() < 0.2 else self.pick.choice(TYPES[column[0]][1])

    def insert(self, rows: int) -> str:
        listed = ", ".join(f"({', '.join(self.value(c) for c in self.columns)})" for _ in range(rows))
        return f"INSERT INTO {self.name} VALUES {listed}"

    def change(self) -> str:
        column = self.columns[0]
        if self.pick.random() < 0.4:
            return f"DELETE FROM {self.name} WHERE {column} = {self.expressions.literal(column[0])}"
        if self.pick.random() < 0.5 or column.endswith("9"):
            return self.insert(3)
        return f"UPDATE {self.name} SET {column} = {self.value(column)} WHERE {self.columns[-1]} IS NOT NULL"

    def totals(self) -> str:
        given = [f"{self.pick.choice(['count', 'min', 'max'])}({self.expressions.of(k, 1)})" for k in "ibtdm"]
        given += ["count(*)", "sum(i0)" if "i0" in self.columns else "sum(1)", "count(*) + 1"]
        return ", ".join(self.pick.sample(given, 3))

    def groups(self) -> str:
        """A query of groups, or of different rows."""
        pick, made = self.pick, self.expressions
        keys = [made.of(pick.choice("ibstodmzn"), pick.choice([0, 0, 1])) for _ in range(pick.randint(1, 2))]
        keys = [key if not key.startswith("CAST") else pick.choice(self.columns) for key in keys]
        if pick.random() < 0.25:
            return f"SELECT DISTINCT {', '.join(keys)} FROM {self.name}"
        number, kind = pick.choice(NUMBERS), pick.choice("ibstodmzn")
        totals = [
            self.totals(), f"avg({made.of(number, 0)})", f"sum({made.of('n', 0)})", f"avg({made.of('n', 0)})",
            f"sum({made.of('s', 0)})", f"bool_and({made.condition(1)})", f"bool_or({made.of('o', 0)})",
            f"count(DISTINCT {made.of(kind, 0)})", f"max({made.of('n', 0)})",
            f"count(*) FILTER (WHERE {made.condition(1)})",
            f"min({made.of('t', 1)}) FILTER (WHERE {made.condition(0)})",
        ]  # fmt: skip
        text = f"SELECT {', '.join([*keys, *pick.sample(totals, 2)])} FROM {self.name}"
        if pick.random() < 0.3:
            text += f" WHERE {made.condition(1)}"
        if pick.random() < 0.85:
            text += f" GROUP BY {', '.join(keys)}"
        else:
            text = f"SELECT {', '.join(pick.sample(totals, 2))} FROM {self.name}"
        return text + pick.choice(["", "", f" HAVING count(*) > {pick.choice([0, 1])}", " HAVING max(1) IS NOT NULL"])

    def query(self) -> tuple[str, bool]:
        """A query, and whether its rows have an order."""
        pick, made = self.pick, self.expressions
        if pick.random() < 0.35:
            return self.groups(), False
        if pick.random() < 0.15:
            return f"SELECT {self.totals()} FROM {self.name} WHERE {made.condition(1)}", False
        outputs = [made.of(pick.choice([*TYPES]), 2) for _ in range(pick.randint(1, 3))]
        text = f"SELECT {', '.join(outputs)} FROM {self.name}"
        if pick.random() < 0.3:
            text = f"SELECT * FROM {self.name} t"
        parts = [made.condition(2)] if pick.random() < 0.5 else []
        if self.key and pick.random() < 0.5:
            parts += [f"{k}9 = {made.literal(k)}" for k in self.key]
        pick.shuffle(parts)
        if parts:
            text += " WHERE " + " AND ".join(f"({part})" for part in parts)
        sortable = [c for c in self.columns if c[0] not in "nf"]
        if not self.key or len(sortable) < len(self.columns) or pick.random() < 0.5:
            return text, False
        order = pick.sample(sortable, len(sortable))
        text += " ORDER BY " + ", ".join(
            f"{c} {pick.choice(['ASC', 'DESC'])} {pick.choice(['', 'NULLS FIRST', 'NULLS LAST'])}" for c in order
        )
        return text + pick.choice(["", " LIMIT 2", " LIMIT 3 OFFSET 1", " OFFSET 2", " LIMIT 0"]), True


def rows(session: Session, sql: str) -> Any:
    """The rows as text, which tells -0 from 0 and has NaN equal itself; or the SQLSTATE of what goes wrong."""
    try:
        *_, last = session.execute(sql)
        table = last.table()
        return [c.type for c in last.columns or ()], list(map(str, zip(*(map(str, c) for c in table.columns))))
    except HeadraceError as error:
        return error.sqlstate


def rows_at_once(session: Session, sql: str) -> list[str] | None:
    """The rows as they are found on the event loop; None where they are not."""
    try:
        prepared = session.prepare(sql)
    except HeadraceError:
        return None
    if not prepared.is_quick or (found := prepared.start([])) is None:
        return None
    return list(map(str, zip(*(map(str, c) for c in found.table().columns))))  # type: ignore[union-attr]


@contextmanager
def without(session: Session) -> Iterator[None]:
    """Let Spark answer everything inside the block."""
    session.context.variables.set("enable_quick_reads", "off")
    try:
        yield
    finally:
        session.context.variables.set("enable_quick_reads", "on")


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    made = database.session()
    yield made
    made.close()


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each read that has a plan, whether it was answered here."""
    found: list[bool] = []
    original = select.read

    def spy(*given: Any) -> Any:
        made = original(*given)
        found.append(made is not None)
        return made

    monkeypatch.setattr(select, "read", spy)
    return found


class Beside:
    """What a reading process answers, without one: it is told the news and the plans, and has nothing else."""

    def __init__(self, database: Database) -> None:
        self.coordinator = database.instance.coordinator
        self.board = ReadingBoard.create(1)
        self.ends = socket.socketpair()
        for end in self.ends:
            end.setblocking(False)
        self.publisher = Publisher(self.coordinator, database.catalog, self.board)
        self.publisher.join(NewsLine(self.ends[0], lambda: None, lambda: None))
        self.followed = Followed(self.board, 0, self.ends[1])
        self.shared_reads = SharedReads(1 << 20, 1)
        self.answered = 0

    def rows(self, session: Session, sql: str) -> list[str] | None:
        """The rows; None where the server is to answer."""
        try:
            prepared = session.prepare(sql)
        except HeadraceError:
            return None
        given = prepared.plan_beside() if isinstance(prepared, PreparedRead) else None
        meaning = None if given is None else self.publisher.grant(given.relations, given.objects)
        if given is None or meaning is None:
            return None
        self.publisher.vouch()
        zone = session.context.zone
        known = KnownStatement(replace(given.plan), (), zone, zone, meaning, 1, given.rows_at_most)
        (rest,) = pieces_of(bytearray(rest_bytes(SessionRest(0, True, session.context.last_write, 1, {"s": known}))))
        assert isinstance(rest, SessionRest)
        told = rest.statements["s"]
        assert told is not None and self.followed.current() and told.meaning == self.followed.meaning
        answers = Answers(self.followed, whole_messages(), self.shared_reads, lambda: None)
        try:
            found = answers._found(told, [], rest.at_least)
            batches = found.rows() if isinstance(found, OwnRead) else None if found is None else list(found.batches)
        except Exception:  # of whatever kind: the server answers
            return None
        if batches is None:
            return None
        self.answered += 1
        return [row for batch in batches for row in map(str, zip(*(map(str, c) for c in batch.columns)))]

    def close(self) -> None:
        self.coordinator.read_beside(Nobody())
        for end in self.ends:
            end.close()


class Nobody:
    """In the place of a publisher."""

    def begin(self, complete: int) -> None: ...

    def completing(self, epoch: int) -> AbstractContextManager[None]:
        return nullcontext()

    def showing(self, change: object, state: object) -> AbstractContextManager[None]:
        return nullcontext()

    def shown(self) -> dict[int, int]:
        return {}


@pytest.fixture
def beside(database: Database) -> Iterator[Beside]:
    made = Beside(database)
    yield made
    made.close()


def compare(session: Session, beside: Beside, sql: str, ordered: bool) -> None:
    fast = rows(session, sql)
    others = [rows_at_once(session, sql), beside.rows(session, sql)]
    with without(session):
        slow = rows(session, sql)
    for other in others:
        if other is not None:
            assert isinstance(fast, tuple), (sql, fast, other)
            assert (Counter(other), other)[ordered] == (Counter(fast[1]), fast[1])[ordered], sql
    if isinstance(fast, tuple) and isinstance(slow, tuple) and not ordered:
        fast, slow = (fast[0], Counter(fast[1])), (slow[0], Counter(slow[1]))
    assert fast == slow, sql


def test_reads_give_what_spark_gives(
    database: Database, session: Session, beside: Beside, answered: list[bool]
) -> None:  # fmt: skip
    """In the server and in a reading process, over random tables, indexes and expressions."""
    planned: list[int] = []

    @settings(max_examples=6)
    @given(hst.integers(0, 2**32))
    def examples(seed: int) -> None:
        made = Reads(random.Random(seed), "random_rows")
        for sql in (made.ddl(), made.insert(12), made.change(), made.insert(4), made.change()):
            database.sql(sql)
        try:
            for _ in range(6):
                compare(session, beside, *made.query())
        finally:
            database.sql("DROP TABLE random_rows")
        planned.append(len(answered))

    examples()
    assert sum(answered) > len(planned) * 2, "most of them were for Spark"
    assert beside.answered > len(planned) * 2, "most of them were for the server"


@pytest.fixture
def accounts(database: Database) -> Iterator[Database]:
    database.sql("CREATE TABLE accounts (id int PRIMARY KEY, v bigint, note text)")
    database.sql("INSERT INTO accounts VALUES (1, 10, 'a'), (2, 20, NULL), (3, NULL, 'c')")
    yield database
    database.sql("DROP TABLE IF EXISTS accounts CASCADE")


def read(session: Session, sql: str, *values: str | None) -> list[tuple[Any, ...]]:
    prepared = session.prepare(sql)
    assert isinstance(prepared, PreparedRead) and prepared.is_quick
    found = prepared.start(values)
    assert found is not None
    return found.rows()  # type: ignore[union-attr]


def test_a_row_by_its_key_is_read_at_once(accounts: Database, session: Session) -> None:
    by_key = "SELECT v, note FROM accounts WHERE id = $1"
    assert read(session, by_key, "1") == [(10, "a")]
    assert read(session, by_key, "7") == read(session, by_key, None) == read(session, by_key, "2147483647") == []
    assert read(session, "SELECT v FROM accounts WHERE id = $1::bigint", "5000000000") == []
    assert read(session, "SELECT v + $2::int FROM accounts WHERE id = $1 AND note IS NULL", "2", "5") == [(25,)]
    assert read(session, "SELECT v FROM accounts WHERE id = 1 AND v > $1 LIMIT $2", "11", "3") == []
    accounts.sql("UPDATE accounts SET v = v + 1 WHERE id = 1; DELETE FROM accounts WHERE id = 2")
    assert read(session, by_key, "1") == [(11, "a")] and read(session, by_key, "2") == []
    assert read(session, "SELECT $1::int + 1 AS n", "41") == [(42,)]


def test_what_has_no_value_is_told_by_spark(accounts: Database, session: Session) -> None:
    prepared = session.prepare("SELECT $1::int + 1")
    assert prepared.start(["2147483647"]) is None
    for text, state in (("2147483647", "22003"), ("x", "22P02")):
        with pytest.raises(HeadraceError) as error:
            prepared.execute([text]).rows()
        assert error.value.sqlstate == state


def test_a_transaction_reads_what_it_has_written(accounts: Database, session: Session) -> None:
    prepared = session.prepare("SELECT v FROM accounts WHERE id = $1")
    other = accounts.session()
    list(session.execute("BEGIN"))
    assert not prepared.is_quick and prepared.execute(["1"]).rows() == [(10,)]
    list(session.execute("UPDATE accounts SET v = 0 WHERE id = 1"))
    list(other.execute("UPDATE accounts SET v = 99 WHERE id = 2"))
    assert prepared.execute(["1"]).rows() == [(0,)] and prepared.execute(["2"]).rows() == [(20,)]
    assert read(other, "SELECT v FROM accounts WHERE id = $1", "1") == [(10,)]
    list(session.execute("ROLLBACK"))
    assert prepared.is_quick and prepared.execute(["2"]).rows() == [(99,)]
    other.close()


def test_small_tables_and_views_are_read_in_memory_as_long_as_nothing_changes(
    accounts: Database, session: Session
) -> None:
    accounts.sql("CREATE MATERIALIZED VIEW doubled AS SELECT id, 2 * v AS v FROM accounts")
    for name, low, high in (("accounts", 10, 50), ("doubled", 20, 100)):
        prepared = session.prepare(f"SELECT id, v FROM {name} WHERE v > $1 ORDER BY v DESC LIMIT $2")
        assert not prepared.is_quick, "nobody has read it"
        assert prepared.execute(["0", "1"]).rows() == [(2, 2 * low)]
        assert prepared.is_quick and prepared.start([str(low), "9"]).rows() == [(2, 2 * low)]  # type: ignore[union-attr]
        assert read(session, f"SELECT count(*), min(v) FROM {name} WHERE id < $1", "3") == [(2, low)]
        accounts.sql("UPDATE accounts SET v = 50 WHERE id = 3; FLUSH")
        assert prepared.start(["0", "1"]) is None, "it has changed"
        assert prepared.execute(["0", "1"]).rows() == [(3, high)]
        assert prepared.start(["0", "1"]).rows() == [(3, high)]  # type: ignore[union-attr]
        list(session.execute("BEGIN; UPDATE accounts SET v = 60 WHERE id = 3"))
        if name == "accounts":
            assert not prepared.is_quick and prepared.execute(["0", "1"]).rows() == [(3, 60)]
        list(session.execute("ROLLBACK"))
        accounts.sql("UPDATE accounts SET v = NULL WHERE id = 3; FLUSH")
    accounts.sql("DROP MATERIALIZED VIEW doubled")


def test_groups_are_found_without_spark(accounts: Database, session: Session) -> None:
    accounts.sql("INSERT INTO accounts VALUES (4, 10, 'a'), (5, 20, 'b')")
    turns = accounts.instance.turns
    turns.resize(0)
    try:
        for sql, expected in (
            ("SELECT v, count(*), sum(id) FROM accounts GROUP BY v ORDER BY v", [(10, 2, 5), (20, 2, 7), (None, 1, 3)]),
            ("SELECT note, avg(v) FROM accounts WHERE v = 10 GROUP BY note", [("a", 10)]),
            ("SELECT v % 3 AS r, max(note) FROM accounts GROUP BY v % 3 HAVING count(*) > 1 ORDER BY r",
             [(1, "a"), (2, "b")]),
            ("SELECT DISTINCT v FROM accounts ORDER BY v DESC NULLS LAST LIMIT 2", [(20,), (10,)]),
            ("SELECT v, count(DISTINCT note) FILTER (WHERE id < 5) "
             "FROM accounts GROUP BY v ORDER BY 2, 1 LIMIT 1 OFFSET 1",
             [(10, 1)]),
            ("SELECT count(*) FROM accounts HAVING max(id) > 7", []),
            ("SELECT sum(v), bool_and(v > 5), count(*) FROM accounts WHERE id > 9", [(None, None, 0)]),
            ("SELECT v FROM accounts WHERE id > 9 GROUP BY v", []),
        ):  # fmt: skip
            *_, result = session.execute(sql)
            assert result.rows() == expected, sql
    finally:
        turns.resize(accounts.settings.max_concurrent_queries)


def test_reads_as_of_a_time_are_not_answered_from_the_newest_rows(accounts: Database, session: Session) -> None:
    epoch = accounts.coordinator.current_epoch()
    accounts.sql("UPDATE accounts SET v = 77 WHERE id = 1")
    prepared = session.prepare("SELECT v FROM accounts WHERE id = $1")
    list(session.execute(f"SET query_epoch = {epoch}"))
    assert not prepared.is_quick and prepared.execute(["1"]).rows() == [(10,)]
    list(session.execute("SET query_epoch = 0; SET query_consistency = 'global'"))
    assert not prepared.is_quick and prepared.execute(["1"]).rows() == [(77,)]
    list(session.execute("SET query_consistency = 'snapshot'"))
    timed = session.prepare(f"SELECT v FROM accounts FOR SYSTEM_TIME AS OF {epoch} WHERE id = $1")
    assert not timed.is_quick and timed.execute(["1"]).rows() == [(10,)]


def test_rights_are_looked_at_each_time(accounts: Database) -> None:
    accounts.sql("CREATE ROLE reader; GRANT SELECT ON accounts TO reader")
    session = accounts.session(user="reader")
    prepared = session.prepare("SELECT v FROM accounts WHERE id = $1")
    assert prepared.is_quick and prepared.execute(["1"]).rows() == [(10,)]
    accounts.sql("REVOKE SELECT ON accounts FROM reader")
    assert not prepared.is_quick
    with pytest.raises(InsufficientPrivilege):
        prepared.execute(["1"])
    with pytest.raises(InsufficientPrivilege):
        list(session.execute("SELECT v FROM accounts WHERE id = 1"))
    session.close()
    accounts.sql("DROP OWNED BY reader; DROP ROLE reader")


def test_a_plan_goes_with_its_table(accounts: Database, session: Session) -> None:
    prepared = session.prepare("SELECT v FROM accounts WHERE id = $1")
    accounts.sql("DROP TABLE accounts")
    assert not prepared.is_quick
    with pytest.raises(UndefinedTable):
        prepared.execute(["1"])
    accounts.sql(
        "CREATE TABLE accounts (id int PRIMARY KEY, v bigint, note text); INSERT INTO accounts VALUES (1, 5, '')"
    )
    assert prepared.execute(["1"]).rows() == [(5,)] and prepared.is_quick
    accounts.sql("DROP TABLE accounts; CREATE TABLE accounts (id int PRIMARY KEY, v text, note text)")
    assert not prepared.is_quick and prepared.execute(["1"]).columns[0].type == "string"  # type: ignore[index]
    assert not prepared.is_quick, "the client was told of a bigint"


def test_nothing_waits_for_a_slow_statement(accounts: Database, session: Session) -> None:
    """There is no turn for anybody who needs Spark."""
    turns = accounts.instance.turns
    turns.resize(0)
    try:
        for sql in (
            "SELECT v FROM accounts WHERE id = 1", "SELECT id, upper(note) FROM accounts WHERE v > 15 ORDER BY 1",
            "SELECT count(*) FROM accounts WHERE note LIKE '%a%'", "SELECT 1 + 1, 'a' || 'b'",
        ):  # fmt: skip
            assert len(rows(session, sql)[1]) == 1
    finally:
        turns.resize(accounts.settings.max_concurrent_queries)


def test_texts_that_differ_in_numbers_share_a_plan(accounts: Database, session: Session) -> None:
    def text(make: Callable[[int], str], *numbers: int) -> list[Any]:
        return [rows(session, make(n))[1] for n in numbers]

    by_key = [(lambda n: f"SELECT v FROM accounts WHERE id = {n}"), 1, 2, 1]
    assert text(*by_key) == [["('10',)"], ["('20',)"], ["('10',)"]]  # type: ignore[arg-type]
    assert session.knows_text("SELECT v FROM accounts WHERE id = 123") and not session.knows_text("SELECT 1.5")
    started = session.start_text("SELECT v FROM accounts WHERE id = 2")
    assert started is not None and started.rows() == [(20,)]  # type: ignore[union-attr]
    by_place = [(lambda n: f"SELECT id, v FROM accounts ORDER BY {n} DESC NULLS LAST LIMIT 1"), 1, 2, 1, 2]
    first, second, *again = text(*by_place)  # type: ignore[arg-type]
    assert first != second and again == [first, second]
    assert text(lambda n: f"SELECT {n} FROM accounts LIMIT 1", 4, 5, 6) == [["('4',)"], ["('5',)"], ["('6',)"]]


def test_sessions_share_plans(accounts: Database, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared, text = "SELECT v, $2::text FROM accounts WHERE id = $1", "SELECT v, 'a' FROM accounts WHERE id = {}"
    session.prepare(prepared)
    for number in (1, 2):
        rows(session, text.format(number))
    other, elsewhere = accounts.session(), accounts.session()
    rows(elsewhere, "SET search_path = nowhere")
    with monkeypatch.context() as patched:
        patched.setattr(sessions, "prepare", lambda *_: pytest.fail("it is planned again"))
        assert other.prepare(prepared).execute(["2", "x"]).rows() == [(20, "x")]
    started = other.start_text(text.format(1))
    assert started is not None and started.rows() == [(10, "a")]  # type: ignore[union-attr]
    assert other.known_statement(prepared, ["bigint"]) is None, "it is another one with another type"
    assert elsewhere.known_statement(prepared, []) is None and not elsewhere.knows_text(text.format(1))
    accounts.sql("CREATE TABLE one_more (a int)")
    assert accounts.session().known_statement(prepared, []) is None, "it may mean something else"
    accounts.sql("DROP TABLE one_more")


def test_a_number_is_no_parameter_where_it_is_a_place(accounts: Database, session: Session) -> None:
    """Also where somebody has prepared the text that is left when the number is lifted out."""
    for types in ([], ["int"]):
        session.prepare("SELECT id, v FROM accounts ORDER BY $1 DESC LIMIT 9", types)
    for other in (session, accounts.session()):
        for place in (1, 2, 1, 2):
            (result,) = other.execute(f"SELECT id, v FROM accounts ORDER BY {place} DESC LIMIT 9")
            values = [row[place - 1] for row in result.rows()]
            known = [v for v in values if v is not None]
            assert len(known) > 1 and values == [None] * (len(values) - len(known)) + sorted(known, reverse=True)  # type: ignore[type-var]


def test_over_the_wire(accounts: Database, server: ServerThread) -> None:
    with psycopg.connect(host="127.0.0.1", port=server.port, user="root", dbname="dev", autocommit=True) as client:
        for binary in (False, True):
            cursor = client.cursor(binary=binary)
            for _ in range(8):  # psycopg prepares what it has sent five times
                assert cursor.execute("SELECT id, v, note FROM accounts WHERE id = %s", (1,)).fetchall() == [
                    (1, 10, "a")
                ]
                assert cursor.execute("SELECT v FROM accounts WHERE id = %s", (9,)).fetchall() == []
                assert cursor.execute("SELECT %s::int + 1", (1,)).fetchall() == [(2,)]
                cursor.execute("SELECT %s::int + 1", (1,), prepare=False)
            with pytest.raises(psycopg.errors.NumericValueOutOfRange):
                cursor.execute("SELECT %s::int + 1", (2**31 - 1,))
        with client.transaction():
            client.execute("UPDATE accounts SET v = 0 WHERE id = 1")
            assert client.execute("SELECT v FROM accounts WHERE id = %s", (1,)).fetchone() == (0,)
        with client.pipeline():
            found = [client.execute("SELECT note FROM accounts WHERE id = %s", (i,)) for i in (1, 2, 3)]
        assert [cursor.fetchone() for cursor in found] == [("a",), (None,), ("c",)]


def test_rows_that_many_sessions_want_are_looked_up_together(accounts: Database, session: Session) -> None:
    others = [accounts.session() for _ in range(4)]
    sql = "SELECT v, upper(note) FROM accounts WHERE id = $1 AND v < 100"
    prepared = [s.prepare(sql) for s in (session, *others)]
    wanted = [
        begun for statement, key in zip(prepared, ("1", "2", "9", "1", "2"), strict=True)
        if isinstance(begun := statement.begin([key]), WantedRow)  # type: ignore[union-attr]
    ]  # fmt: skip
    assert len(wanted) == 5
    asked: list[int] = []
    coordinator, look = accounts.instance.coordinator, accounts.instance.coordinator.rows_now
    coordinator.rows_now = lambda table, keys: asked.append(len(keys)) or look(table, keys)  # type: ignore[method-assign]
    try:
        rows = look_up(wanted)
    finally:
        del coordinator.rows_now
    assert asked == [5], "at once"
    found = [want.read.result(row).rows() for want, row in zip(wanted, rows, strict=True)]  # type: ignore[arg-type]
    assert found == [[(10, "A")], [(20, None)], [], [(10, "A")], [(20, None)]]
    others[0].prepare("UPDATE accounts SET v = v + 1 WHERE id = 1").execute([])
    assert others[1].prepare("SELECT max(v) FROM accounts WHERE id < 2").execute([]).rows() == [(11,)]
    again = [statement.begin(["1"]) for statement in prepared]  # type: ignore[union-attr]
    assert [row[1] for row in look_up(again)] == [11] * 5, "it is newer than what others were shown"  # type: ignore[arg-type, index]
    accounts.sql("DROP TABLE accounts")
    assert look_up(wanted) == [LATER] * 5
    for s in others:
        s.close()


def test_reads_that_come_together_over_the_wire(accounts: Database, server: ServerThread) -> None:
    """Each client finds what it has written itself, and nobody goes back behind what anybody was shown."""
    at = {"host": "127.0.0.1", "port": server.port, "user": "root", "dbname": "dev", "autocommit": True}
    shown, lock, wrong = [0], threading.Lock(), []

    def read(number: int) -> None:
        sql = "SELECT v FROM accounts WHERE id = "
        with psycopg.connect(**at, prepare_threshold=(0, None)[number % 2]) as client:  # type: ignore[arg-type]
            cursor = (psycopg.ClientCursor if number % 3 == 0 else psycopg.Cursor)(client)
            cursor.execute("INSERT INTO accounts VALUES (%s, 0, '')", (100 + number,))
            for n in range(40):
                with lock:
                    known = shown[0]
                (v,) = cursor.execute(f"{sql}%s", (1,)).fetchone() or (None,)
                with lock:
                    shown[0] = max(shown[0], v or 0)
                cursor.execute("UPDATE accounts SET v = %s WHERE id = %s", (n, 100 + number))
                own = cursor.execute(f"{sql}%s", (100 + number,)).fetchall()
                if v is None or v < known or own != [(n,)] or cursor.execute(f"{sql}%s", (-n,)).fetchall():
                    wrong.append((number, n, v, known, own))
                if number == 0:
                    cursor.execute("UPDATE accounts SET v = v + 1 WHERE id = 1")

    threads = [threading.Thread(target=read, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and shown[0] > 10


def test_explain_says_which_way_is_taken(accounts: Database, session: Session) -> None:
    def lines(sql: str) -> list[str]:
        (result,) = session.execute(f"EXPLAIN {sql}")
        return [str(line) for (line,) in result.rows()]

    assert lines("SELECT v FROM accounts WHERE id = 1 AND note <> ''") == [
        "Row of accounts by its primary key, looked up by the server process", "  Key: id = 1",
        "  Filter: (note <> '')",
    ]  # fmt: skip
    assert lines("SELECT 1 + 1") == ["Values, computed by the server process"]
    assert lines("SELECT v FROM accounts ORDER BY v LIMIT 2")[1:] == ["  Sort: v ASC NULLS LAST", "  Limit: 2"]
    assert "Spark" not in lines("SELECT v FROM accounts")[0] and "mapInArrow" not in "".join(lines("SELECT 1"))
    assert lines("SELECT v, count(DISTINCT note) FROM accounts GROUP BY v HAVING max(id) > 1")[1:] == [
        "  Group by: v", "  Aggregate: count(DISTINCT note)", "  Aggregate: max(id)", "  Having: (max(id) > 1)",
    ]  # fmt: skip
    with without(session):
        assert "accounts" not in lines("SELECT v FROM accounts WHERE id = 1")[0]


def test_reads_beside_commits_show_what_is_committed_and_never_go_back(accounts: Database, session: Session) -> None:
    prepared, general = session.prepare("SELECT v FROM accounts WHERE id = $1"), accounts.session()
    highest = session.prepare("SELECT max(v) FROM accounts WHERE id < 2")
    committed, done = [10], threading.Event()

    def write() -> None:
        writer = accounts.session()
        update = writer.prepare("UPDATE accounts SET v = $1 WHERE id = 1")
        for n in range(11, 211):
            update.execute([str(n)])
            committed[0] = n
        writer.close()
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    shown, at_once, i = 0, 0, 0
    while not done.is_set():
        known, i = committed[0], i + 1
        if i % 3 == 0:
            for start in (lambda: highest.execute([]), lambda: highest.start([]) if highest.is_quick else None):
                known = committed[0]
                in_memory = start()
                for (v,) in [] if in_memory is None else in_memory.rows():  # type: ignore[union-attr]
                    assert v >= max(known, shown)
                    shown = v
            known = committed[0]
        found = prepared.start(["1"]) if i % 4 else None
        if found is None:  # the way of reads that may wait
            (found,) = general.execute("SELECT v + 0 FROM accounts WHERE id = 1")
        else:
            at_once += 1
        ((v,),) = found.rows()  # type: ignore[union-attr]
        assert v >= max(known, shown)
        shown = v
    thread.join()
    assert at_once and prepared.execute(["1"]).rows() == [(210,)]
    assert highest.execute([]).rows() == highest.start([]).rows() == [(210,)]  # type: ignore[union-attr]
    general.close()
