"""COPY's formats and options: each text means here what it means to PostgreSQL, which is asked the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from headrace.common.zones import UTC
from headrace.errors import HeadraceError
from headrace.server.copy_in import CopyIn
from headrace.server.copy_out import CopyOut, copy_data
from headrace.session.execution.copying import check_lists
from headrace.session.result import Result, ResultColumn
from headrace.sql import statements as st
from headrace.sql.copying import CopyFormat
from headrace.sql.parser import parse_one
from postgres import Postgres
from support import examples

COLUMNS = {"a": "int", "b": "string", "d": "double", "e": "date"}
TABLE = "CREATE TABLE c (a int NOT NULL, b text, d float8, e date)"
Outcome = tuple[Any, ...]


class Sink:
    """Rows in memory."""

    relation = "c"
    required = frozenset(("a",))
    zone = UTC

    def __init__(self, form: CopyFormat, names: Sequence[str], types: dict[str, str]) -> None:
        self.format = form
        self.columns = [ResultColumn(name, types[name]) for name in names]
        self.rows: list[tuple[Any, ...]] = []

    def guarded(self) -> AbstractContextManager[None]:
        return nullcontext()

    def take(self, rows: pa.RecordBatch) -> None:
        self.rows += zip(*(column.to_pylist() for column in rows.columns))

    def finish(self) -> Result:
        return Result(f"COPY {len(self.rows)}")

    def close(self) -> None:
        pass


def here(sql: str, data: bytes, pieces: int = 0, types: dict[str, str] = COLUMNS) -> Outcome:
    """What COPY FROM comes to: its tag and its rows, or its error."""
    try:
        statement = parse_one(sql)
        assert isinstance(statement, st.CopyFrom)
        names = statement.columns or tuple(types)
        sink = Sink(statement.format, names, types)
        rows = CopyIn(sink)
        for piece in pieced(data, pieces):
            rows.feed(piece)
        tag = rows.finish().tag
    except HeadraceError as error:
        return error.sqlstate, error.message, error.context
    return tag, sorted(repr(tuple(dict(zip(names, row)).get(name) for name in types)) for row in sink.rows)


def pieced(data: bytes, pieces: int) -> Iterator[bytes]:
    step = pieces or max(len(data), 1)
    for at in range(0, len(data), step):
        yield data[at : at + step]


def there(connection: psycopg.Connection[Any], sql: str, data: bytes) -> Outcome:
    """The same by PostgreSQL."""
    try:
        cursor = connection.cursor()
        with cursor.copy(sql) as copy:
            copy.write(data)
        return cursor.statusmessage, sorted(map(repr, connection.execute("SELECT * FROM c").fetchall()))
    except psycopg.Error as error:
        return error.diag.sqlstate, error.diag.message_primary, error.diag.context
    finally:
        connection.execute("DELETE FROM c")


@pytest.fixture(scope="module")
def other(postgres: Postgres) -> Iterator[psycopg.Connection[Any]]:
    with postgres.connect() as connection:
        connection.execute(TABLE)
        yield connection


TEXTS = [
    b"",
    b"1\tx\t1.5\t2024-01-02\n",
    b"1\tx\t1.5\t2024-01-02",
    b"1\tx\t1.5\t2024-01-02\n2\ty\t2\t2024-01-03\n",
    b"1\tx\t1.5\t2024-01-02\r\n2\ty\t2\t2024-01-03\r\n",
    b"1\tx\t1.5\t2024-01-02\r2\ty\t2\t2024-01-03\r",
    b"1\tx\t1.5\t2024-01-02\n2\ty\t2\t2024-01-03\r\n",
    b"1\tx\t1.5\t2024-01-02\r\n2\ty\t2\t2024-01-03\n",
    b"1\tx\t1.5\t2024-01-02\r2\ty\t2\t2024-01-03\n",
    b"\\N\t\\N\t\\N\t\\N\n",
    b"1\t\\\\N\t1\t\\N\n",
    b"1\ta\\tb\\nc\\rd\\be\\ff\\vg\\qh\\\\i\t1\t\\N\n",
    b"1\t\\101\\x41\\x4g\\1018\\xg\t1\t\\N\n",
    b"1\t\\303\\244\\xc3\\xa4\t1\t\\N\n",
    b"1\t\\303\t1\t\\N\n",
    b"1\ta\\000b\t1\t\\N\n",
    b"1\ta\\\nb\t1\t\\N\n",
    b"1\ta\\\tb\t1\t\\N\n",
    b"1\ta\t1\t\\N\n\\.\n",
    b"1\ta\t1\t\\N\n\\.\nrubbish\n",
    b"1\ta\t1\t\\N\n\\.",
    b"1\ta\t1\t\\N\n\\.x\n",
    b"1\ta\t1\t\\N\\.\n",
    b"1\ta\t1\t\\N\r\n\\.\n",
    b"1\ta\t1\t\\N\r\n\\.\r\n",
    b"1\ta\n",
    b"1\ta\t1\t2024-01-01\textra\n",
    b"\n",
    b"1\tx\t1\t\\N\n\n2\tx\t1\t\\N\n",
    b"one\tx\t1.5\t2024-01-02\n",
    b"1\tx\t1\t\\N\n2\tx\tmuch\t\\N\n3\n",
    b"1\tx\t1\t\\N\n99999999999\tx\t1\tnone\n",
    b" 7 \t x \t 1e3 \t 2024-01-02 \n",
    b"+7\tx\tNaN\t2024-1-2\n",
    b"0x1F\tx\t1\t\\N\n",
    b"1\tx\tInfinity\t\\N\n2\tx\t-inf\t\\N\n",
    b"1\tx\t1e400\t\\N\n",
    b"1\t\xc3\xa4\t1\t\\N\n2\t\xff\t1\t\\N\n",
    b"1\ta\0b\t1\t\\N\n",
    b"1\t" + b"long" * 40 + b"\t1\n",
    b"x" * 150 + b"\ta\t1\t\\N\n",
]  # fmt: skip
CSVS = [
    b"1,x,1.5,2024-01-02\n",
    b"1,x,1.5,2024-01-02\r\n2,y,1,2024-01-03\r\n",
    b"1,x,1.5,2024-01-02\n2,y,1,2024-01-03\r\n",
    b"1,x,1.5,2024-01-02\r\n2,y,1,2024-01-03\n",
    b',"",1,\n,,,\n',
    b'1,"a ""b"" c",1,\n',
    b'1,"a,b\nc",1,\nx,,,\n',
    b'1,"a\r\nb",1,\r\nx,,,\r\n',
    b'1,a"b,c"d,1,\n',
    b'1,""a,1,\n',
    b'1,"a"b"c",1,\n',
    b'1,"open,1,\n2,x,1,\n',
    b'1,a\\,1,\n',
    b'1,a,1,\n\\.\n2,b,1,\n',
    b'1,a,1,\n\\.x,b,1,\n',
    b'1,a,1\n',
    b'1,a,1,,\n',
    b'"1","a","1","2024-01-01"\n',
    b'1,a\rb,1,\n',
    b'1, " a " ,1,\n',
    b'\n',
    b'1,a,1,\n\\.',
    b'1,a,1,\r\n\\.\n',
    b'1,\xc3\xa4,1,\n2,"\xff",1,\n',
]  # fmt: skip


@pytest.mark.parametrize("pieces", [0, 1, 7])
def test_text_means_what_it_means_to_postgres(
    other: psycopg.Connection[Any], pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if pieces:
        monkeypatch.setattr("headrace.server.copy_text.CHUNK_BYTES", pieces)
    for data in TEXTS:
        assert here("COPY c FROM STDIN", data, pieces) == there(other, "COPY c FROM STDIN", data), data


@pytest.mark.parametrize("pieces", [0, 1, 7])
@pytest.mark.parametrize("how", ["", ", ESCAPE '\\'", ", NULL 'x'", ", FORCE_NULL (b, d, e)", ", FORCE_NOT_NULL (b)"])
def test_csv_means_what_it_means_to_postgres(
    other: psycopg.Connection[Any], how: str, pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if pieces:
        monkeypatch.setattr("headrace.server.copy_text.CHUNK_BYTES", pieces)
    sql = f"COPY c FROM STDIN (FORMAT csv{how})"
    for data in [*CSVS, b'1,"a\\"b",1,\n', b'1,"a\\\\",1,\n', b'1,"a\\b",1,\n']:
        assert here(sql, data, pieces) == there(other, sql, data), data


@pytest.mark.parametrize("sql", [
    "COPY c FROM STDIN (FORMAT csv, HEADER)",
    "COPY c FROM STDIN (FORMAT csv, HEADER match)",
    "COPY c (b, a) FROM STDIN (FORMAT csv, HEADER match)",
    "COPY c FROM STDIN (FORMAT csv, HEADER false)",
    "COPY c FROM STDIN (HEADER match, DELIMITER ',')",
    "COPY c (a) FROM STDIN CSV HEADER",
])  # fmt: skip
def test_headers(other: psycopg.Connection[Any], sql: str) -> None:
    for data in (b"a,b,d,e\n1,x,1,\n", b"b,a\nx,1\n", b"a,b,,e\n", b"a,b,x,e\n", b"a\n1\n", b"a,b,d,e\n", b"", b"\n"):
        assert here(sql, data) == there(other, sql, data), data


BAD = [
    "COPY c FROM STDIN (FORMAT xml)", "COPY c FROM STDIN (FOO)", "COPY c FROM STDIN (FORMAT csv, FORMAT csv)",
    "COPY c FROM STDIN (DELIMITER 'ab')", "COPY c FROM STDIN (DELIMITER 'ä')", "COPY c FROM STDIN (DELIMITER E'\\n')",
    "COPY c FROM STDIN (DELIMITER 'a')", "COPY c FROM STDIN (DELIMITER '.')", "COPY c FROM STDIN (NULL E'\\n')",
    "COPY c FROM STDIN (QUOTE '\"')", "COPY c FROM STDIN (ESCAPE '\"')", "COPY c FROM STDIN (FORMAT csv, QUOTE ',')",
    "COPY c FROM STDIN (FORMAT csv, QUOTE 'ab')", "COPY c FROM STDIN (FORMAT csv, ESCAPE 'ab')",
    "COPY c FROM STDIN (FORMAT csv, FORCE_QUOTE (a))", "COPY c TO STDOUT (FORMAT csv, FORCE_NULL (a))",
    "COPY c TO STDOUT (FORMAT csv, FORCE_NOT_NULL (a))", "COPY c FROM STDIN (FORCE_NULL (a))",
    "COPY c FROM STDIN (FORMAT csv, FORCE_NULL (nope))", "COPY c TO STDOUT (FORMAT csv, FORCE_QUOTE (nope))",
    "COPY c FROM STDIN (FORMAT csv, NULL 'a,b')", "COPY c FROM STDIN (FORMAT csv, NULL 'a\"b')",
    "COPY c FROM STDIN (FORMAT binary, DELIMITER ',')", "COPY c FROM STDIN (FORMAT binary, NULL '')",
    "COPY c FROM STDIN (FORMAT binary, HEADER)", "COPY c TO STDOUT (HEADER match)", "COPY c FROM STDIN (HEADER 3)",
    "COPY c FROM STDIN (FORMAT csv, FORCE_NULL 'a')", "COPY FROM",
    "COPY c (a) FROM STDIN (FORMAT csv, FORCE_NULL (b))", "COPY c (a) TO STDOUT (FORMAT csv, FORCE_QUOTE (b))",
]  # fmt: skip


def test_options_are_checked_as_by_postgres(other: psycopg.Connection[Any]) -> None:
    for sql in BAD:
        with pytest.raises(HeadraceError) as own:
            statement = parse_one(sql)
            assert isinstance(statement, (st.CopyFrom, st.CopyTo))
            check_lists(statement.format, list(statement.columns or COLUMNS), list(COLUMNS), "c")
        with pytest.raises(psycopg.Error) as wanted, other.cursor().copy(sql):
            pass
        diag = wanted.value.diag
        assert (own.value.sqlstate, own.value.message) == (diag.sqlstate, diag.message_primary), sql
        position = None if diag.statement_position is None else int(diag.statement_position)
        assert own.value.position == position, sql


ROWS: list[tuple[Any, ...]] = [
    (1, "x", 1.5, "2024-01-02"), (2, None, None, None), (3, "", 0.0, None), (7, "ä€", float("inf"), "0001-01-01"),
    (4, "tab\tnl\ncr\rback\\slash\"quote,comma'; \b\f\v", float("nan"), None), (5, "\\.", 1e100, None),
    (6, "\\N", -0.1, None), (8, "nil", 1e-5, None),
]  # fmt: skip


@pytest.mark.parametrize("how", [
    "", "(FORMAT csv)", "(FORMAT csv, HEADER)", "(HEADER)", "(FORMAT csv, FORCE_QUOTE *)",
    "(FORMAT csv, FORCE_QUOTE (b))", "(FORMAT csv, ESCAPE '\\', NULL 'nil')", "(DELIMITER ',', NULL '')",
    "(FORMAT csv, DELIMITER ';', QUOTE '|')", "(FORMAT binary)",
])  # fmt: skip
def test_what_comes_out_is_what_postgres_sends(other: psycopg.Connection[Any], how: str) -> None:
    other.cursor().executemany("INSERT INTO c VALUES (%s, %s, %s, %s)", ROWS)
    try:
        for what in ("c", "c (b)", "c (d, b)", "(SELECT b, a FROM c WHERE a > 100)"):
            if what == "c (d, b)" and "FORCE_QUOTE" in how:
                continue
            sql = f"COPY {what} TO STDOUT {how}"
            with other.cursor().copy(sql) as copy:
                wanted = [bytes(row) for row in copy]
            assert sent(sql) == wanted, sql
            assert sent(sql, times=20, by=CopyOut.messages) == sent(sql, times=20, by=one_by_one), sql
    finally:
        other.execute("DELETE FROM c")


def one_by_one(out: CopyOut, batch: pa.RecordBatch) -> list[bytes]:
    """Whole messages of rows."""
    return copy_data(out.rows(batch))


def sent(
    sql: str, times: int = 1, by: Callable[[CopyOut, pa.RecordBatch], Iterable[bytes | memoryview]] | None = None
) -> list[bytes]:
    """The messages of COPY TO; all in one where they are made in blocks."""
    statement = parse_one(sql)
    assert isinstance(statement, st.CopyTo)
    names = ("b", "a") if statement.query is not None else statement.columns or tuple(COLUMNS)
    rows = [] if statement.query is not None else ROWS
    out = CopyOut(statement.format, [ResultColumn(name, COLUMNS[name]) for name in names])
    kinds = {"a": pa.int32(), "b": pa.string(), "d": pa.float64(), "e": pa.date32()}
    columns = {name: [row[i] for row in rows] for i, name in enumerate(COLUMNS)}
    arrays = [
        pa.array(columns[n], pa.string()).cast(kinds[n]) if n == "e" else pa.array(columns[n], kinds[n]) for n in names
    ]
    batch = pa.RecordBatch.from_arrays(arrays, names=list(names))
    if by is None:
        return [*out.head(), *out.rows(batch), *out.end()]
    many = pa.concat_batches([batch] * times)
    return [b"".join(by(out, part)) for part in (many, many.slice(5, 100), many.slice(0, 0))]


@settings(max_examples=examples(60), deadline=None)
@given(data=some.lists(some.sampled_from(
    [b"1", b"2", b"x", b"\t", b"\n", b"\r", b"\\", b"\\N", b".", b'"', b",", b"\\.", b"\r\n", b"\\x41", b"\\7", b" "]
), max_size=25))  # fmt: skip
def test_random_data_mean_what_they_mean_to_postgres(postgres: Postgres, data: list[bytes]) -> None:
    types = {"a": "string", "b": "string"}
    with postgres.connect() as connection:
        connection.execute("CREATE TEMP TABLE c (a text NOT NULL, b text)")
        for how in ("", "(FORMAT csv)", "(FORMAT csv, ESCAPE '\\')"):
            sql = f"COPY c FROM STDIN {how}"
            for pieces in (0, 1):
                assert here(sql, b"".join(data), pieces, types) == there(connection, sql, b"".join(data)), sql
