"""A table's content by rows that PostgreSQL writes, beside the values that it puts out one by one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.connectors.postgres import fetching
from headrace.connectors.postgres.fetching import columns_of, content, declare, fetched, short_ranges
from headrace.errors import SourceError
from postgres import NoPostgres, Postgres, postgres_server

PIECES = ["", " ", ",", '"', '""', "\\", "\\\\", "\\.", "(", ")", "\n", "\r", "\r\n", "\t", "\v", "a", "NULL", "null",
          "\ufeff", "\u00a0", "\u2028", "é", "😀", "0", "\x01", "()", '")', "{}", "'", ";"]  # fmt: skip
VALUES = {
    "char(4)": ["'a'", "''"], "varchar(9)": ["'b '"], '"char"': ["'c'", "''"], "name": ["'d e'"],
    "bytea": ["''", "'\\x00ff0a225c'"], "bool": ["true", "false"],
    "numeric": ["'NaN'", "'Infinity'", "1.50", "-0.0", "1e40"],
    "float8": ["'NaN'", "'-Infinity'", "'-0'", "0.1", "1e300"],
    "float4": ["0.1", "16777217"], "timestamptz": ["'infinity'", "'2024-01-01 00:00:00.1+05:30'", "'0044-03-15 BC'"],
    "timestamp": ["'-infinity'", "'10000-01-01'"], "date": ["'infinity'", "'0044-03-15 BC'", "'2024-02-29'"],
    "time": ["'24:00'"], "timetz": ["'12:00+02'"], "interval": ["'1 year -2 days 03:04:05.6'", "'0'"],
    "json": ["'{\"a\" : \"\\\\\"}'"], "jsonb": ["'[1, \"\\n\", null]'"], "int[]": ["'{}'", "'{1,NULL}'"],
    "text[]": ["ARRAY['', NULL, '\"', '\\', 'a,b', '{}']"], "inet": ["'10.0.0.1'"], "cidr": ["'10.0.0.0/8'"],
    "point": ["'(1,2)'"], "int4range": ["'[1,3)'", "'empty'"], "uuid": ["'00000000-0000-0000-0000-000000000001'"],
    "tsvector": ["'a:1 b'"], "money": ["1.5"], "bit(3)": ["B'101'"],
}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    try:
        with postgres_server({"fsync": "off"}) as found:
            yield found
    except NoPostgres as error:
        pytest.skip(str(error))


def one_by_one(c: Any, table: str, names: list[str]) -> list[tuple[str | None, ...]]:
    """The texts that the values' types put out, and which the wire has."""
    found = c.execute(f"SELECT {', '.join(names)} FROM {table}", prepare=False).pgresult
    texts = ([found.get_value(i, j) for j in range(found.nfields)] for i in range(found.ntuples))
    return [tuple(None if text is None else text.decode() for text in row) for row in texts]


def by_columns(c: Any, table: str, names: list[str]) -> list[tuple[str | None, ...]]:
    return [row for columns in content(c, table, names) for row in zip(*(column.to_pylist() for column in columns))]


@pytest.mark.parametrize("seed", range(3))
def test_texts(server: Postgres, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "FETCH_ROWS", 700)
    monkeypatch.setattr(fetching, "BATCH_BYTES", 5_000)
    rng = random.Random(seed)

    def text() -> str | None:
        return None if rng.random() < 0.2 else "".join(rng.choices(PIECES, k=rng.randrange(4)))

    rows = [(text(), text(), text()) for _ in range(3_000)]
    with server.connect(autocommit=False) as c:
        c.execute('CREATE TEMPORARY TABLE t (a text, "b ""x" text, row text)')
        with c.cursor() as cursor, cursor.copy("COPY t FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)
        for names in (["a", '"b ""x"', "row"], ["row"], ["a", '"b ""x"']):
            assert by_columns(c, "t", names) == one_by_one(c, "t", names)
            c.execute("CLOSE headrace")
        assert sorted(map(str, rows)) == sorted(map(str, one_by_one(c, "t", ["a", '"b ""x"', "row"])))


def test_types(server: Postgres) -> None:
    names = [f"c{i}" for i in range(len(VALUES))]
    with server.connect(autocommit=False) as c:
        c.execute(f"CREATE TEMPORARY TABLE t ({', '.join(map(' '.join, zip(names, VALUES)))})")
        for n in range(6):
            row = [values[n] if n < len(values) else "NULL" for values in VALUES.values()]
            c.execute(f"INSERT INTO t VALUES ({', '.join(row)})")
        assert by_columns(c, "t", names) == one_by_one(c, "t", names)
        c.execute("CLOSE headrace")
        for name in names:
            assert by_columns(c, "t", [name]) == one_by_one(c, "t", [name])
            c.execute("CLOSE headrace")


def test_no_rows_and_long_ones(server: Postgres) -> None:
    with server.connect(autocommit=False) as c:
        c.execute("CREATE TEMPORARY TABLE t (id int, v text)")
        assert by_columns(c, "t", ["id"]) == []
        c.execute("CLOSE headrace")
        c.execute("INSERT INTO t SELECT i, repeat('x,', 4000000) FROM generate_series(1, 4) g(i)")
        found = list(content(c, "t", ["id", "v"]))
        assert [len(columns[0]) for columns in found] == [2, 2]
        assert {len(text) for columns in found for text in columns[1].to_pylist()} == {8_000_000}


def test_what_cannot_be_read() -> None:
    with pytest.raises(SourceError, match=r"PostgreSQL's rows cannot be read: .*UTF8"):
        columns_of([b"(1,\xff)"], 2)
    with pytest.raises(SourceError, match="PostgreSQL's rows cannot be read"):
        columns_of([b"(1,2,3)"], 2)
    with pytest.raises(SourceError, match="has sent 1 rows, which read as 2"):
        columns_of([b"(1,2\n3,4)"], 2)


def test_rows_are_taken_many_at_once(server: Postgres) -> None:
    with server.connect(autocommit=False) as c:
        declare(c, "SELECT int8send(i), 'x'::bytea FROM generate_series(1::bigint, 25000) g(i)")
        found = list(fetched(c, 2, binary=True))
    assert [len(values) for values, _ in found] == [10_000, 10_000, 5_000]
    assert [int.from_bytes(found[0][0][i]) for i in (0, 9_999)] == [1, 10_000]


def test_short_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "BATCH_BYTES", 3)
    assert list(short_ranges([b"a", b"bb", b"", b"c", b"dddd", b"e"])) == [(0, 3), (3, 4), (4, 5), (5, 6)]
    assert list(short_ranges([b"aaaa"])) == [(0, 1)]
