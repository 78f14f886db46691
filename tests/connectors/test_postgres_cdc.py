"""The postgres-cdc source against a server with logical replication: content, and then whole transactions."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from headrace.common.columns import Column
from headrace.connectors.base import EMPTIED, PART, Admission, Binding, Offsets, ReadTask, Source
from headrace.connectors.postgres import content_parts, fetching, unchanged
from headrace.connectors.postgres.cdc import PostgresCdcSource
from headrace.connectors.postgres.rows_there import RowsThere, UnderWay
from headrace.connectors.postgres.slot_table import SlotTable
from headrace.connectors.postgres.tables import table_file
from headrace.connectors.sources import open_source
from headrace.errors import NotSupported, SourceError
from postgres import NoPostgres, Postgres, cdc_options, postgres_server

COLUMNS = [Column("id", "int", False), Column("v", "string"), Column("_op", "string"), Column("_at", "bigint")]
_numbers = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    try:
        # A standby that never comes is waited for by nobody but who asks for that.
        standby = {"synchronous_standby_names": "nobody", "synchronous_commit": "local"}
        options = {"wal_level": "logical", "fsync": "off", "max_replication_slots": "200", **standby}
        with postgres_server(options) as found:
            yield found
    except NoPostgres as error:
        pytest.skip(str(error))


class Followed:
    """A table and its source, with a reader that takes in what is bound as a view would."""

    def __init__(self, server: Postgres, columns: str = "id int PRIMARY KEY, v text") -> None:
        self.server, self.table = server, f"t{next(_numbers)}"
        server.execute(f"CREATE TABLE {self.table} ({columns})")
        self.options = cdc_options(server, self.table)
        self.columns = COLUMNS
        self.source = self.open()
        self.at: Offsets = {}
        self.kept: dict[int, dict[str, Any]] = {}

    def open(self, **more: str) -> Source:
        return open_source({**self.options, **more}, self.columns)

    def run(self, *statements: str) -> None:
        self.server.execute(*(s.replace("#", self.table) for s in statements))

    def bind(self, rows: int | None = None, size: int | None = None) -> Binding:
        return self.source.latest_offsets(self.at, Admission(rows, size), 0)

    def read(self, from_: Offsets, to: Offsets) -> list[dict[str, Any]]:
        tasks = self.source.plan(from_, to, 4)
        found: list[dict[str, Any]] = []
        for task in tasks:
            if EMPTIED not in task:
                found += [row for made in self.source.read(task) for row in made.batch.to_pylist()]
            elif task[PART][0] == 0:  # as a stage does, which has the rows
                held = pa.RecordBatch.from_pydict({"id": pa.array(sorted(self.rows()), pa.int32())})
                found += self.source.gone(held, task).batch.to_pylist()
        return found

    def take(self, rows: int | None = None, size: int | None = None) -> int:
        """Bind, read twice, keep, commit."""
        bound = self.bind(rows, size)
        found = self.read(self.at, bound.offsets)
        if self.at:
            assert str(self.read(self.at, bound.offsets)) == str(found)
        for row in found:
            if row["_at"] >= self.kept.get(row["id"], row)["_at"]:
                self.kept[row["id"]] = row
        self.at = bound.offsets
        self.source.acknowledge(self.at)
        return len(found)

    def rows(self) -> dict[int, Any]:
        return {i: row["v"] for i, row in self.kept.items() if row["_op"] != "delete"}

    def truth(self) -> dict[int, Any]:
        with self.server.connect() as connection:
            return dict(connection.execute(f"SELECT id, v FROM {self.table}").fetchall())


def test_content_and_then_changes(server: Postgres) -> None:
    followed = Followed(server)
    followed.run("INSERT INTO # VALUES (1, 'a'), (2, 'b''\"\\'), (3, NULL)")
    followed.take()
    assert followed.rows() == followed.truth()
    followed.run("UPDATE # SET v = 'A' WHERE id = 1", "DELETE FROM # WHERE id = 2", "INSERT INTO # VALUES (4, '')")
    followed.take()
    assert followed.rows() == followed.truth()
    followed.run("UPDATE # SET id = 10 WHERE id = 1", "UPDATE # SET v = id WHERE id > 2")
    assert followed.take() > 0
    assert followed.rows() == followed.truth()
    assert followed.take() == 0


def test_what_happens_between_slot_and_content_counts_once(server: Postgres) -> None:
    followed = Followed(server)
    followed.run("INSERT INTO # SELECT i, 'old' FROM generate_series(1, 20) AS g(i)")
    first = followed.bind()
    followed.run("UPDATE # SET v = 'new' WHERE id <= 5", "DELETE FROM # WHERE id = 6", "INSERT INTO # VALUES (21, 'x')")
    followed.at = {}
    bound = followed.read({}, first.offsets)
    followed.kept = {row["id"]: row for row in bound}
    followed.at = first.offsets
    assert followed.rows() == followed.truth()
    assert followed.bind().offsets == first.offsets  # first the content has to be taken in
    followed.source.acknowledge(first.offsets)
    followed.run("UPDATE # SET v = 'newest' WHERE id = 1", "DELETE FROM # WHERE id = 21")
    followed.take()
    assert followed.rows() == followed.truth()


def test_content_is_read_by_several_tasks(server: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content_parts, "LEAST_BYTES", 2 * 8192)
    followed = Followed(server)
    followed.run("INSERT INTO # SELECT i, repeat('x', 500) FROM generate_series(1, 300) AS g(i)")
    first = followed.bind().offsets
    assert not followed.source.whole(first)
    tasks = followed.source.plan({}, first, 4)
    assert len(tasks) == 4 and len(followed.source.plan({}, first, 100)) == first["size"] // (2 * 8192)

    def ids(task: ReadTask) -> list[int]:
        return [row["id"] for made in followed.source.read(task) for row in made.batch.to_pylist()]

    assert sorted(i for task in tasks for i in ids(task)) == [*range(1, 301)]
    followed.run("DELETE FROM # WHERE id <= 100", "INSERT INTO # VALUES (301, 'y')",
                 "UPDATE # SET v = 'z' WHERE id = 300")  # fmt: skip
    assert 301 in ids(tasks[3]), "behind the blocks that there were"
    followed.run("VACUUM FULL #")
    assert sorted(ids(tasks[3])) == [*range(101, 302)], "rows have moved: all"
    followed.kept = {row["id"]: row for task in tasks for made in followed.source.read(task)
                     for row in made.batch.to_pylist()}  # fmt: skip
    followed.at = first
    followed.source.acknowledge(first)
    followed.take()
    assert followed.rows() == followed.truth()
    followed.take()
    assert followed.source.whole(followed.at)


def test_how_much_content_there_is_is_known_before_anybody_has_counted(server: Postgres) -> None:
    followed = Followed(server)
    followed.run("INSERT INTO # SELECT i, repeat('x', 100) FROM generate_series(1, 20000) AS g(i)")
    rows = followed.bind().rows
    assert rows is not None and 5_000 < rows < 80_000
    followed.run("ANALYZE #")
    with server.connect() as connection:
        guessed = table_file(connection, followed.table).rows
    assert 19_000 < guessed < 21_000


def test_transactions_are_whole_and_in_order(server: Postgres) -> None:
    followed = Followed(server)
    followed.take()
    with server.connect(autocommit=False) as open_one:
        open_one.execute(f"INSERT INTO {followed.table} SELECT i, 'one' FROM generate_series(1, 500) AS g(i)")
        followed.run("INSERT INTO # VALUES (1000, 'other')")
        followed.take()
        assert followed.rows() == {1000: "other"}
        open_one.execute(f"UPDATE {followed.table} SET v = 'two' WHERE id <= 250")
        open_one.commit()
    followed.run("DELETE FROM # WHERE id > 400 AND id < 1000")
    followed.take(rows=10)  # fewer than the transaction has
    assert len(followed.rows()) == 501
    followed.take(rows=10)
    assert followed.rows() == followed.truth()


def test_as_many_transactions_are_bound_as_bytes_allow(server: Postgres) -> None:
    """Whole ones, at least one; what is left is told, and comes next, though it be of other tables."""
    followed = Followed(server)
    followed.take()
    followed.take()  # what has happened meanwhile is bound whole
    for i in range(0, 30, 3):
        followed.run(f"INSERT INTO # SELECT i, repeat('x', 1000) FROM generate_series({i}, {i + 2}) AS g(i)")
    took = []
    while followed.take(size=8_000):
        took.append(len(followed.rows()))
    assert took == [6, 12, 18, 24, 30] and followed.rows() == followed.truth()
    assert not followed.bind(size=8_000).behind
    followed.run("INSERT INTO # SELECT i, repeat('y', 1000) FROM generate_series(100, 149) AS g(i)")
    followed.run("TRUNCATE #", "INSERT INTO # VALUES (1, 'last')")
    assert followed.bind(size=8_000).behind and followed.bind(rows=10, size=1 << 30).behind
    assert followed.take(size=8_000) == 50 and len(followed.rows()) == 80
    while followed.take(size=60):
        pass
    assert followed.rows() == followed.truth() == {1: "last"}


def test_content_says_how_much_it_is_with_what_is_stored_out_of_line(server: Postgres) -> None:
    followed = Followed(server)
    followed.run("ALTER TABLE # ALTER v SET STORAGE EXTERNAL",
                 "INSERT INTO # SELECT i, repeat(md5(i::text), 5000) FROM generate_series(1, 60) AS g(i)")  # fmt: skip
    first = followed.bind().offsets
    size, rows = followed.source.bytes_between({}, first), followed.source.rows_between({}, first)
    assert size is not None and 60 * 160_000 < size < 2 * 60 * 160_000 and rows is not None
    assert followed.source.bytes_between(first, first) is None
    assert len(followed.source.plan({}, first, 10)) == 1, "a block of it, of which the rows are wide"
    followed.take()
    assert followed.rows() == followed.truth()


def test_a_new_process_goes_on_where_the_last_has_committed(server: Postgres) -> None:
    followed = Followed(server)
    followed.run("INSERT INTO # VALUES (1, 'a')")
    followed.take()
    followed.run("INSERT INTO # VALUES (2, 'b')")
    lost = followed.bind()  # bound, and nothing read
    followed.source = followed.open()
    followed.source.acknowledge(followed.at)
    followed.run("INSERT INTO # VALUES (3, 'c')")
    before = followed.at
    followed.at = lost.offsets
    assert followed.bind().offsets == lost.offsets, "first what is bound has to be taken in"
    assert [r["id"] for r in followed.read(before, lost.offsets)] == [2]
    followed.source.acknowledge(lost.offsets)
    again = followed.bind()
    assert [r["id"] for r in followed.read(lost.offsets, again.offsets)] == [3]


def test_types(server: Postgres) -> None:
    followed = Followed(server, "id int PRIMARY KEY, b bool, n numeric(20,3), d float8, ts timestamp, tz timestamptz, "
                                "da date, by bytea, j jsonb, u uuid")  # fmt: skip
    kinds = {"b": "boolean", "n": "decimal(20,3)", "d": "double", "ts": "timestamp_ntz", "tz": "timestamp",
             "da": "date", "by": "binary", "j": "string", "u": "string"}  # fmt: skip
    followed.columns = [COLUMNS[0], *(Column(n, k) for n, k in kinds.items()), *COLUMNS[2:]]
    followed.source = followed.open()
    values = """true, 12.5, 'NaN', '2024-02-29 12:00:00.000001', '2024-02-29 12:00:00+02', '1999-01-01', '\\x00ff',
                '{"a": 1}', '00000000-0000-0000-0000-000000000001'"""
    followed.run(f"INSERT INTO # VALUES (1, {values})", "INSERT INTO # VALUES (2)")
    followed.take()
    followed.run(
        f"INSERT INTO # VALUES (3, {values})", "INSERT INTO # VALUES (4)", "UPDATE # SET b = false WHERE id = 4"
    )
    followed.take()

    def plain(i: int) -> list[str]:
        return [str(followed.kept[i][name]) for name in kinds]

    assert plain(1) == plain(3)
    assert plain(1)[:4] == ["True", "12.500", "nan", "2024-02-29 12:00:00.000001"]
    assert plain(1)[4].startswith("2024-02-29 10:00:00") and followed.kept[1]["by"] == b"\x00\xff"
    assert plain(2) == ["None"] * 9 and plain(4) == ["False", *["None"] * 8]


ARRAYS = {
    "i": ("int[]", "array<int>", "'{1,NULL,3}'", [1, None, 3]),
    "s": ("text[]", "array<string>", "ARRAY['a,b', NULL, 'NULL', '\"\\', '']", ["a,b", None, "NULL", '"\\', ""]),
    "g": ("int[][]", "array<array<int>>", "'{{1,2},{3,4}}'", [[1, 2], [3, 4]]),
    "n": ("numeric(6,2)[]", "array<decimal(6,2)>", "'{1.5}'", [Decimal("1.50")]),
    "b": ("bool[]", "array<boolean>", "'{t,f}'", [True, False]),
    "y": ("bytea[]", "array<binary>", "ARRAY['\\x00ff'::bytea]", [b"\x00\xff"]),
    "d": ("timestamp[]", "array<timestamp_ntz>", "ARRAY[timestamp '2024-02-29 01:02:03']",
          [datetime(2024, 2, 29, 1, 2, 3)]),
    "z": ("timestamptz[]", "array<timestamp>", "ARRAY[timestamptz '2024-02-29 01:02:03+01']",
          [datetime(2024, 2, 29, 0, 2, 3, tzinfo=UTC)]),
    "e": ("mood[]", "array<string>", "'{sad}'", ["sad"]),
    "o": ("positive", "int", "5", 5),
    "l": ("positives", "array<int>", "'{5}'", [5]),
    "m": ("mood", "string", "'ok'", "ok"),
    "r": ("int4range", "string", "'[1,3)'", "[1,3)"),
    "c": ("pair", "string", "ROW(1,'x y')", '(1,"x y")'),
    "x": ("xml", "string", "'<a/>'", "<a/>"),
    "t": ("bit(3)", "string", "'101'", "101"),
    "p": ("inet", "string", "'10.0.0.1/8'", "10.0.0.1/8"),
    "q": ("box[]", "string", "'{(1,1),(0,0);(2,2),(1,1)}'", "{(1,1),(0,0);(2,2),(1,1)}"),
    "u": ("money", "string", "12.5", "$12.50"),
}  # fmt: skip
"""Name -> type there, type here, value there, value here."""


def test_types_that_are_arrays_domains_or_text(server: Postgres) -> None:
    server.execute("CREATE TYPE mood AS ENUM ('sad', 'ok')", "CREATE DOMAIN positive AS int CHECK (VALUE > 0)",
                   "CREATE DOMAIN positives AS int[]", "CREATE TYPE pair AS (a int, b text)")  # fmt: skip
    followed = Followed(server, "id int PRIMARY KEY, " + ", ".join(f"{n} {k}" for n, (k, *_) in ARRAYS.items()))
    inferred = SlotTable.infer_columns(followed.options)
    assert {c.name: c.type for c in inferred} == {"id": "int"} | {n: kind for n, (_, kind, *_) in ARRAYS.items()}
    followed.columns = [*inferred, *COLUMNS[2:]]
    followed.source = followed.open()
    followed.source.start_offsets()
    values = ", ".join(value for _, _, value, _ in ARRAYS.values())
    followed.run(f"INSERT INTO # VALUES (1, {values})")
    followed.take()
    followed.run(f"INSERT INTO # VALUES (2, {values})", "INSERT INTO # VALUES (3)")
    followed.take()
    for i in (1, 2):
        assert {n: followed.kept[i][n] for n in ARRAYS} == {n: found for n, (*_, found) in ARRAYS.items()}
    assert {followed.kept[3][n] for n in ARRAYS} == {None}


def test_types_of_extensions(server: Postgres) -> None:
    """`citext` as a key, whose values are the same in capitals, and `hstore`: text here, as they are written there."""
    try:
        server.execute("CREATE EXTENSION IF NOT EXISTS citext; CREATE EXTENSION IF NOT EXISTS hstore")
    except psycopg.errors.FeatureNotSupported as error:
        pytest.skip(str(error))
    followed = Followed(server, "id citext PRIMARY KEY, v hstore, l citext[], h hstore[]")
    inferred = SlotTable.infer_columns(followed.options)
    kinds = {"id": "string", "v": "string", "l": "array<string>", "h": "array<string>"}
    assert {c.name: c.type for c in inferred} == kinds
    followed.columns = [*inferred, *COLUMNS[2:]]
    followed.source = followed.open()
    followed.source.start_offsets()
    followed.source.claim()
    values = """'a=>1, "b c"=>NULL, q=>"\\"x\\\\"', '{A,"b,C",NULL}', ARRAY['a=>1,b=>2'::hstore, NULL]"""
    followed.run(f"INSERT INTO # VALUES ('Ann', {values})")
    followed.take()
    followed.run(f"INSERT INTO # VALUES ('Bob', {values}), ('carl', NULL, NULL, NULL)")
    followed.take()

    def there() -> dict[str, Any]:
        with server.connect() as c:
            rows = c.execute(f"SELECT id, v::text, l::text[], h::text[] FROM {followed.table}").fetchall()
        return {row[0]: row[1:] for row in rows}

    def here() -> dict[str, Any]:
        kept = {str(key): row for key, row in followed.kept.items() if row["_op"] != "delete"}
        return {key: (row["v"], row["l"], row["h"]) for key, row in kept.items()}

    assert here() == there() and set(here()) == {"Ann", "Bob", "carl"}
    followed.run("UPDATE # SET id = 'ANN' WHERE id = 'ann'", "UPDATE # SET v = v || 'n=>2' WHERE id = 'BOB'",
                 "DELETE FROM # WHERE id = 'CARL'")  # fmt: skip
    followed.take()
    assert here() == there() and set(here()) == {"ANN", "Bob"}, "the old spelling is gone"


@pytest.mark.parametrize(
    ("column", "declared", "said"),
    [
        ("int[]", "int", "is an array of int4"),
        ("int", "array<int>", "is no array: its type is int4"),
        ("box[]", "array<string>", "no comma"),
        ("int GENERATED ALWAYS AS (id + 1) STORED", "int", "is generated"),
    ],
)
def test_columns_that_are_none_of_their_type_are_refused(
    server: Postgres, column: str, declared: str, said: str
) -> None:
    followed = Followed(server, f"id int PRIMARY KEY, v {column}")
    followed.columns = [COLUMNS[0], Column("v", declared), *COLUMNS[2:]]
    with pytest.raises(SourceError, match=f'the column "v" of public.t.* {said}'):
        followed.open().start_offsets()


@pytest.mark.parametrize(
    ("column", "declared", "value", "said"),
    [
        ("date", "date", "infinity", "not a date"),
        ("timestamp", "timestamp_ntz", "-infinity", "not a timestamp"),
        ("timestamptz", "timestamp", "infinity", "not a timestamp"),
        ("date", "date", "0044-03-15 BC", "not a date"),
        ("numeric", "decimal(38,10)", "NaN", "does not fit"),
        ("int[]", "array<int>", "{{1},{2}}", "more dimensions"),
        ("int[]", "array<int>", "[2:3]={1,2}", "not numbered from 1"),
    ],
)
def test_values_that_have_no_counterpart_are_told(
    server: Postgres, column: str, declared: str, value: str, said: str
) -> None:
    followed = Followed(server, f"id int PRIMARY KEY, v {column}")
    followed.columns = [COLUMNS[0], Column("v", declared), *COLUMNS[2:]]
    followed.source = followed.open(on_error="null")
    followed.run(f"INSERT INTO # VALUES (1, '{value}'), (2, NULL)")
    first = followed.bind()
    failing = followed.open()
    with pytest.raises(SourceError, match=rf"public.t\d*, in its content, row id = 1, column v: .*{said}.*as text"):
        [*failing.read(failing.plan({}, first.offsets, 1)[0])]
    followed.take()
    followed.run(f"INSERT INTO # VALUES (3, '{value}')")
    second = followed.bind()
    with pytest.raises(SourceError, match=rf"public.t\d*, at [0-9A-F]+/[0-9A-F]+, row id = 3, column v: .*{said}"):
        [*failing.read(failing.plan(first.offsets, second.offsets, 1)[0])]
    followed.take()
    assert followed.rows() == {1: None, 2: None, 3: None}


class Wide(Followed):
    """A table with values that are stored out of line, whose reader finds the rows that it holds."""

    def __init__(self, server: Postgres, key: str = "int", kind: str = "int") -> None:
        super().__init__(server, f"id {key} PRIMARY KEY, v text, w int, n text")
        self.columns = [Column("id", kind, False), COLUMNS[1], Column("w", "int"), Column("n", "string"), *COLUMNS[2:]]
        self.run(*(f"ALTER TABLE # ALTER {name} SET STORAGE EXTERNAL" for name in ("v", "n")))
        self.source = self.open()

    def open(self, **more: str) -> Source:
        source = super().open(**more)
        source.held = self.held
        return source

    def held(self, keys: pa.RecordBatch) -> pa.RecordBatch:
        found = [self.kept[key] for key in keys.column("id").to_pylist() if key in self.kept]
        # As where hashes are equal, and all rows are kept.
        older = [row | {"v": None, "n": "of before", "_op": "upsert", "_at": -1} for row in found]
        return pa.RecordBatch.from_pylist([*older, *found, *older], schema=self.source.schema)

    def take_content(self, bound: Any) -> None:
        """Read what there was before anything that the first binding has."""
        self.kept, self.at = {row["id"]: row for row in self.read({}, bound)}, bound

    def rows(self) -> dict[int, Any]:
        return {i: (row["v"], row["w"], row["n"]) for i, row in self.kept.items() if row["_op"] != "delete"}

    def truth(self) -> dict[int, Any]:
        with self.server.connect() as connection:
            rows = connection.execute(f"SELECT id, v, w, n FROM {self.table}").fetchall()
        return {row[0]: row[1:] for row in rows}


def test_values_that_are_left_out_are_what_they_were(server: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "FETCH_ROWS", 5)
    monkeypatch.setattr(unchanged, "FILLED_AT_ONCE", 2)
    chance, followed, long = random.Random(5), Wide(server), itertools.count()

    def value() -> str:
        number = next(long)
        return chance.choice(("NULL", f"'{number}'", f"repeat('{number} ', 2000)"))

    def some(*kinds: str) -> str:
        a, b = chance.sample(range(12), 2)
        made = {
            "insert": f"INSERT INTO # VALUES ({a}, {value()}, 0, {value()}) ON CONFLICT DO NOTHING",
            "small": f"UPDATE # SET w = w + 1 WHERE id IN ({a}, {b})",
            "all": "UPDATE # SET w = w + 1",
            "large": f"UPDATE # SET v = {value()} WHERE id = {a}",
            "key": f"UPDATE # SET id = {b} WHERE id = {a} AND NOT EXISTS (SELECT FROM # WHERE id = {b})",
            "away": f"UPDATE # SET id = id + {b + 12} WHERE id = {a} AND NOT EXISTS (SELECT FROM # WHERE id > 11)",
            "back": f"UPDATE # SET id = {a} WHERE id > 11 AND NOT EXISTS (SELECT FROM # WHERE id = {a})",
            "delete": f"DELETE FROM # WHERE id = {a}",
            "again": f"WITH gone AS (DELETE FROM # WHERE id = {a} RETURNING *) SELECT FROM gone; "
                     f"INSERT INTO # VALUES ({a}, {value()}, 0, {value()}) ON CONFLICT DO NOTHING",
            "truncate": "TRUNCATE #",
        }  # fmt: skip
        return made[chance.choice(kinds or (*[k for k in made if k != "truncate"],))]

    followed.run(*(some("insert") for _ in range(10)))
    first = followed.bind()
    followed.run(*(some() for _ in range(20)))  # some of it is in the content, and rows are not that were deleted
    followed.kept = {row["id"]: row for row in followed.read({}, first.offsets)}
    followed.at = first.offsets
    followed.source.acknowledge(first.offsets)
    for round_ in range(25):
        for _ in range(chance.randrange(1, 6)):
            kinds = ("truncate", "insert") if round_ % 8 == 7 else ()
            followed.run(f"BEGIN; {'; '.join(some(*kinds) for _ in range(chance.randrange(1, 8)))}; COMMIT")
        followed.take(chance.choice((None, None, 3)))
        if chance.random() < 0.3:
            followed.source = followed.open()
            followed.source.acknowledge(followed.at)
    while followed.take():
        pass
    assert followed.rows() == followed.truth()


def test_a_row_that_moves_while_content_is_read_in_parts_is_not_lost(
    server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No part has it, and its change leaves out a value: that is in PostgreSQL still."""
    monkeypatch.setattr(content_parts, "LEAST_BYTES", 8192)
    followed = Wide(server)
    followed.run("INSERT INTO # SELECT i, 'v', 0, repeat('long', 1000) FROM generate_series(1, 1000) AS g(i)")
    first = followed.bind().offsets
    earlier, later = followed.source.plan({}, first, 2)
    found = [row for made in followed.source.read(earlier) for row in made.batch.to_pylist()]
    followed.run("DELETE FROM # WHERE id <= 200", "VACUUM #", "UPDATE # SET w = w + 1 WHERE id BETWEEN 700 AND 720")
    with server.connect() as c:
        moved = f"SELECT count(*) FROM {followed.table} WHERE ctid < '({earlier['blocks'][1]},0)' AND id >= 700"
        assert c.execute(moved).fetchone() == (21,)
    found += [row for made in followed.source.read(later) for row in made.batch.to_pylist()]
    followed.run("UPDATE # SET id = 2000 WHERE id = 701", "DELETE FROM # WHERE id = 702")
    followed.kept, followed.at = {row["id"]: row for row in found}, first
    assert not {*range(700, 721)} & followed.kept.keys()
    followed.source.acknowledge(first)
    followed.take()
    assert followed.rows() == followed.truth()


def in_no_part(server: Postgres, monkeypatch: pytest.MonkeyPatch, on_error: str) -> Wide:
    """A table with a row that no part of its content has, since it has moved or had an error, and that changed then."""
    if on_error == "fail":
        monkeypatch.setattr(content_parts, "LEAST_BYTES", 8192)
    followed = Wide(server)
    followed.source = followed.open(on_error=on_error)
    followed.run("INSERT INTO # VALUES (5, 'v', 0, repeat('long', 9000))",
                 "INSERT INTO # SELECT i, 'v', 0, 'n' FROM generate_series(100, 1000) AS g(i)",
                 "DELETE FROM # WHERE id > 5")  # fmt: skip
    followed.at = followed.bind().offsets
    followed.source.acknowledge(followed.at)
    followed.run("UPDATE # SET w = 1")
    return followed


@pytest.mark.parametrize(
    "later", ["UPDATE # SET n = 'later'", "DELETE FROM #", "UPDATE # SET id = 9, n = 'n'", "SELECT"]
)
@pytest.mark.parametrize("on_error", ["fail", "skip"])
def test_nobody_sees_values_of_later_than_the_rest(
    server: Postgres, monkeypatch: pytest.MonkeyPatch, later: str, on_error: str
) -> None:
    """What is asked for in PostgreSQL is of the moment when it is asked: of no binding that was made before."""
    followed = in_no_part(server, monkeypatch, on_error)
    followed.bind()
    bound = followed.bind().offsets
    followed.run(later)
    followed.kept |= {row["id"]: row for row in followed.read(followed.at, bound)}
    followed.at = bound
    assert not followed.source.whole(bound)
    assert followed.bind().offsets == bound, "first it is taken in"
    followed.source.acknowledge(bound)
    followed.take()
    assert followed.source.whole(followed.at) and followed.rows() == followed.truth()


def test_a_row_that_has_got_another_key_when_it_is_asked_for_is_asked_for_by_that(server: Postgres) -> None:
    """Its next change leaves the value out, too, and another row has its key by then."""
    followed = Wide(server)
    followed.source = followed.open(on_error="skip")
    followed.run("INSERT INTO # VALUES (5, 'v', 0, repeat('long', 9000))")
    followed.at = followed.bind().offsets  # and nobody has the row: as if it had been at fault
    followed.source.acknowledge(followed.at)
    followed.run("UPDATE # SET w = 1")
    bound = followed.bind().offsets
    followed.run("UPDATE # SET id = 9", "INSERT INTO # VALUES (5, 'w', 0, repeat('other', 9000))")
    found = followed.read(followed.at, bound)
    assert [(row["id"], row["_op"], row["n"]) for row in found] == [(5, "upsert", "long" * 9000)]
    followed.kept, followed.at = {row["id"]: row for row in found}, bound
    followed.source.acknowledge(bound)
    followed.take()
    assert followed.source.whole(followed.at) and followed.rows() == followed.truth()


def test_a_row_is_followed_while_it_is_asked_for(server: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets another key between two questions, and another row has the one that it had; in the end it stays."""
    followed = Wide(server)
    followed.source = followed.open(on_error="skip")
    followed.run("INSERT INTO # VALUES (5, 'v', 0, repeat('long', 9000))")
    followed.at = followed.bind().offsets
    followed.source.acknowledge(followed.at)
    followed.run("UPDATE # SET w = 1")
    bound = followed.bind().offsets
    asked: list[str] = []
    texts = RowsThere.texts

    def moving(there: RowsThere, key: Sequence[str]) -> dict[str, pa.Array] | None:
        asked.append(key[0])
        if len(asked) < 4:
            followed.run(f"UPDATE # SET id = id + 1 WHERE id = {key[0]}",
                         f"INSERT INTO # VALUES ({key[0]}, 'w', 0, 'other')")  # fmt: skip
        return texts(there, key)

    monkeypatch.setattr(RowsThere, "texts", moving)
    found = followed.read(followed.at, bound)
    assert asked == ["5", "6", "7", "8"]
    assert [(row["id"], row["_op"], row["n"]) for row in found] == [(5, "upsert", "long" * 9000)]
    followed.kept, followed.at = {row["id"]: row for row in found}, bound
    followed.source.acknowledge(bound)
    followed.take()
    assert followed.rows() == followed.truth()


@pytest.mark.parametrize("change", ["UPDATE # SET id = 11", "UPDATE # SET n = 'n'", "DELETE FROM #", "TRUNCATE #"])
@pytest.mark.parametrize("on_error", ["fail", "skip", "null"])
def test_a_row_that_changes_whenever_it_is_asked_for_is_seen_as_it_was(
    server: Postgres, monkeypatch: pytest.MonkeyPatch, change: str, on_error: str
) -> None:
    followed = in_no_part(server, monkeypatch, on_error)
    bound = followed.bind().offsets
    followed.run("UPDATE # SET id = 9")
    followed.kept = {row["id"]: row for row in followed.read(followed.at, bound)}
    followed.at = bound
    followed.source.acknowledge(bound)
    second, then = followed.bind().offsets, followed.truth()
    followed.run(change)
    followed.kept |= {row["id"]: row for row in followed.read(bound, second)}
    assert followed.source.whole(second) and followed.rows() == then == {9: ("v", 1, "long" * 9000)}


@pytest.mark.parametrize("change", [
    "UPDATE # SET w = w + 1", "UPDATE # SET id = 11", "UPDATE # SET n = 'n'", "DELETE FROM #", "TRUNCATE #"
])  # fmt: skip
def test_a_row_at_fault_that_changes_all_the_time_holds_nothing_up(server: Postgres, change: str) -> None:
    """It is left out, until an update says all of it."""
    followed = Wide(server)
    followed.columns = [followed.columns[0], Column("v", "int"), *followed.columns[2:]]
    followed.source = followed.open(on_error="skip")
    followed.run("INSERT INTO # VALUES (1, 'x', 1, repeat('long', 5000)), (2, '2', 1, repeat('long', 5000))")
    followed.take()
    followed.run("UPDATE # SET w = 2")
    followed.take()
    followed.run("UPDATE # SET w = 3")
    bound = followed.bind().offsets
    followed.run(change.replace("#", "# WHERE id = 1") if change.startswith("DELETE") else change + (
        "" if change.startswith("TRUNCATE") else " WHERE id = 1"))  # fmt: skip
    followed.kept |= {row["id"]: row for row in followed.read(followed.at, bound)}
    assert followed.source.whole(bound) and followed.rows() == {2: (2, 3, "long" * 5000)}
    followed.at = bound
    followed.source.acknowledge(bound)
    followed.run("INSERT INTO # VALUES (1, '1', 4, 'n') ON CONFLICT (id) DO UPDATE SET v = '1', w = 4, n = 'n'")
    followed.take()
    assert followed.rows()[1] == (1, 4, "n")


@pytest.mark.parametrize("seed", range(6))
def test_rows_that_are_lost_while_content_is_read_come_back_whatever_changes(
    server: Postgres, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Any of them may change before, while and after it is asked for, and swap its key: it settles, and is exact."""
    chance, long = random.Random(seed), itertools.count()
    monkeypatch.setattr(unchanged, "FILLED_AT_ONCE", chance.choice((1, 2, 32)))
    monkeypatch.setattr(content_parts, "LEAST_BYTES", 1)
    followed = Wide(server)
    followed.source = followed.open(on_error=chance.choice(("skip", "null", "fail")))

    def value() -> str:
        number = next(long)
        return chance.choice(("NULL", f"'{number}'", f"repeat('{number} ', 2000)", f"repeat('{number} ', 2000)"))

    def some() -> str:
        a, b = chance.sample(range(8), 2)
        insert = f"INSERT INTO # VALUES ({a}, {value()}, 0, {value()}) ON CONFLICT DO NOTHING"
        swap = (f"SET id = {new} WHERE id = {old}" for old, new in ((a, 99), (b, a), (99, b)))
        return chance.choice((
            insert, f"UPDATE # SET w = w + 1 WHERE id IN ({a}, {b})", "UPDATE # SET w = w + 1",
            f"UPDATE # SET v = {value()} WHERE id = {a}", "; ".join(f"UPDATE # {each}" for each in swap),
            f"UPDATE # SET id = {b} WHERE id = {a} AND NOT EXISTS (SELECT FROM # WHERE id = {b})",
            f"DELETE FROM # WHERE id = {a}", f"DELETE FROM # WHERE id = {a}; {insert}",
        )) if chance.random() > 0.03 else "TRUNCATE #"  # fmt: skip

    def change(most: int = 5) -> None:
        for _ in range(chance.randrange(most)):
            followed.run(f"BEGIN; {'; '.join(some() for _ in range(chance.randrange(1, 4)))}; COMMIT")

    def take(to: Offsets) -> None:
        for row in followed.read(followed.at, to):
            if row["_at"] >= followed.kept.get(row["id"], row)["_at"]:
                followed.kept[row["id"]] = row
        followed.at = to
        followed.source.acknowledge(to)

    texts, budget = RowsThere.texts, iter(range(6))

    def moving(there: RowsThere, key: Sequence[str]) -> dict[str, pa.Array] | None:
        if next(budget, None) is not None:
            change(2)
        return texts(there, key)

    followed.run("INSERT INTO # SELECT i, repeat(i || 'v', 1500), 0, repeat(i || 'n', 1500) FROM generate_series(0, 7) "
                 "AS g(i)",
                 "INSERT INTO # SELECT i, 'v', 0, 'n' FROM generate_series(100, 1000) AS g(i)",
                 "DELETE FROM # WHERE id >= 100")  # fmt: skip
    first = followed.bind().offsets
    change()
    followed.take_content(first)
    for i in [i for i in followed.kept if chance.random() < 0.5]:
        del followed.kept[i]  # as if it had moved between two parts
        followed.run(f"UPDATE # SET w = w + 1 WHERE id = {i}")
    followed.source.acknowledge(first)
    change()
    second = followed.bind().offsets
    change()
    monkeypatch.setattr(RowsThere, "texts", moving)
    take(second)
    assert not followed.source.whole(second)
    change()
    third, then = followed.bind().offsets, followed.truth()
    change()
    take(third)
    assert followed.source.whole(third) and followed.rows() == then
    while followed.take():
        pass
    assert followed.rows() == followed.truth()


SWAP = "UPDATE # SET id = 3 WHERE id = 1", "UPDATE # SET id = 1 WHERE id = 2", "UPDATE # SET id = 2 WHERE id = 3"


@pytest.mark.parametrize("moment", [0, 1, 2, 3])
@pytest.mark.parametrize("on_error", ["fail", "skip"])
def test_rows_swap_their_keys_while_content_is_read(server: Postgres, moment: int, on_error: str) -> None:
    """Whatever the moment of the content is: what is held under a key may be the one or the other."""
    followed = Wide(server)
    followed.source = followed.open(on_error=on_error)
    followed.run("INSERT INTO # VALUES (1, 'a', 1, repeat('a', 9000)), (2, 'b', 2, repeat('b', 9000))")
    first = followed.bind().offsets
    followed.run(*SWAP[:moment])
    followed.take_content(first)
    followed.run(*SWAP[moment:], "UPDATE # SET w = w + 10")
    followed.source.acknowledge(first)
    followed.take()
    assert followed.rows() == followed.truth() == {1: ("b", 12, "b" * 9000), 2: ("a", 11, "a" * 9000)}


def test_a_row_gets_a_key_that_two_others_had_while_content_is_read(server: Postgres) -> None:
    followed = Wide(server)
    followed.run("INSERT INTO # VALUES (5, 'v', 0, repeat('five', 1000)), (6, 'x', 0, repeat('six', 1000))")
    first = followed.bind().offsets
    followed.run("DELETE FROM # WHERE id = 6", "UPDATE # SET id = 6", "INSERT INTO # VALUES (5, 'w', 0, 'n')")
    followed.take_content(first)
    followed.source.acknowledge(first)
    followed.take()
    assert followed.rows() == followed.truth()


def test_rows_that_swap_their_keys_and_change_at_once_are_never_wrong(server: Postgres) -> None:
    """Nobody can tell them apart: that is said, in place of a value."""
    followed = Wide(server)
    followed.run("INSERT INTO # VALUES (1, 'a', 1, repeat('a', 9000)), (2, 'b', 2, repeat('b', 9000))")
    first = followed.bind().offsets
    followed.run(*SWAP)
    followed.take_content(first)
    followed.source.acknowledge(first)
    bound = followed.bind().offsets
    followed.run("UPDATE # SET n = 'of later'")
    with pytest.raises(SourceError, match="nobody knows any more"):
        followed.read(first, bound)


def test_who_is_asked_must_have_seen_what_the_log_tells(server: Postgres) -> None:
    """A transaction that waits for a standby is in the log, and whoever asks has each row by its key of before."""
    followed = Wide(server)
    followed.run("INSERT INTO # VALUES (1, 'a', 1, repeat('a', 9000)), (2, 'b', 2, repeat('b', 9000))")
    first = followed.bind().offsets
    followed.take_content(first)
    followed.source.acknowledge(first)
    swap = f"BEGIN; {'; '.join(SWAP)}; UPDATE # SET w = w + 10; COMMIT".replace("#", followed.table)
    with server.connect() as c, server.connect(options="-c synchronous_commit=on") as waiting:
        commits = threading.Thread(target=waiting.execute, args=(swap,))
        commits.start()
        while c.execute("SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep'").fetchone() is None:
            assert commits.is_alive()
        try:
            bound = followed.bind().offsets
            with pytest.raises(SourceError, match="cannot be seen"):
                followed.read(first, bound)
        finally:
            waiting.cancel()  # to wait: it is committed
            commits.join()
    followed.kept |= {row["id"]: row for row in followed.read(first, bound)}
    assert followed.rows() == followed.truth() == {1: ("b", 12, "b" * 9000), 2: ("a", 11, "a" * 9000)}


def test_numbers_of_transactions_go_round() -> None:
    under_way = UnderWay(frozenset({2**32 - 2}), 3)
    assert [under_way.has(n) for n in (2**32 - 3, 2**32 - 2, 2**32 - 1, 0, 2, 3, 4)] == [
        False, True, False, False, False, True, True
    ]  # fmt: skip


def test_content_of_one_moment_is_seen_with_what_comes_next(server: Postgres) -> None:
    followed = Wide(server)
    followed.run("INSERT INTO # VALUES (5, 'v', 0, 'n')")
    followed.take()
    assert not followed.source.whole(followed.at)
    followed.take()
    assert followed.source.whole(followed.at)


def test_a_row_gets_another_key_while_content_is_read(server: Postgres) -> None:
    followed = Wide(server)
    followed.run("INSERT INTO # VALUES (5, 'v', 0, repeat('long', 1000))")
    first = followed.bind().offsets
    followed.run("UPDATE # SET w = 1", "UPDATE # SET w = 2", "UPDATE # SET id = 6")
    followed.take_content(first)
    followed.source.acknowledge(first)
    bound, then = followed.bind().offsets, followed.truth()
    followed.run("UPDATE # SET n = 'of later than all that is bound'")
    followed.kept |= {row["id"]: row for row in followed.read(first, bound)}
    assert followed.rows() == then == {6: ("v", 2, "long" * 1000)}


@pytest.mark.parametrize("before", [True, False])
def test_another_row_gets_a_key_while_content_is_read(server: Postgres, before: bool) -> None:
    """A row that is held under the key that one had before is another one, or is that one."""
    followed = Wide(server)
    followed.run("INSERT INTO # VALUES (5, 'v', 0, repeat('five', 1000))")
    first = followed.bind().offsets
    changes = "UPDATE # SET id = 6, w = 1", "INSERT INTO # VALUES (5, 'w', 0, 'n')"
    if before:
        followed.run(*changes)
    else:
        followed.run("INSERT INTO # VALUES (6, 'x', 0, repeat('six', 1000))")
    followed.take_content(first)
    if not before:
        followed.run("DELETE FROM # WHERE id = 6", *changes)
    followed.source.acknowledge(first)
    bound, then = followed.bind().offsets, followed.truth()
    if before:  # else it is asked for, as it might be the one
        followed.run("UPDATE # SET n = 'of later than all that is bound'")
    followed.kept |= {row["id"]: row for row in followed.read(first, bound)}
    assert followed.rows() == then == {5: ("w", 0, "n"), 6: ("v", 1, "five" * 1000)}


@pytest.mark.parametrize(
    ("key", "kind", "before", "after"),
    [("real", "float", "0.1", "0.2"), ("real", "double", "0.1", "0.2"), ("real", "decimal(3,1)", "0.1", "0.2"),
     ("char(3)", "string", "a", "b"),
     ("timestamp", "timestamp_ntz", "2024-02-29", "2024-03-01"), ("bytea", "binary", "\\x00", "\\xff")],
)  # fmt: skip
def test_a_row_is_asked_for_by_its_key_as_it_stands_there(
    server: Postgres, key: str, kind: str, before: str, after: str
) -> None:
    """Its value here may be of a type that PostgreSQL compares otherwise (`real` with `float8`)."""
    followed = Wide(server, key, kind)
    followed.source = followed.open(on_error="skip")
    followed.run(f"INSERT INTO # VALUES ('{before}', 'v', 0, repeat('long', 1000))")
    first = followed.bind().offsets
    followed.run("UPDATE # SET w = 1", f"UPDATE # SET id = '{after}'")
    followed.at = first  # and no part of the content has it
    followed.source.acknowledge(first)
    followed.take()
    assert [*followed.rows().values()] == [*followed.truth().values()] == [("v", 1, "long" * 1000)]


def test_a_row_that_was_left_out_stays_so_where_nobody_knows_all_of_it(server: Postgres) -> None:
    followed = Wide(server)
    followed.columns = [followed.columns[0], Column("v", "int"), *followed.columns[2:]]
    followed.source = followed.open(on_error="skip")
    followed.run("INSERT INTO # VALUES (1, 'x', 1, repeat('long', 5000)), (2, '2', 1, repeat('long', 5000))")
    followed.take()
    followed.run("UPDATE # SET w = 2")
    followed.take()
    followed.run("UPDATE # SET w = 3")
    followed.take()
    followed.run("UPDATE # SET w = 3, v = '1' WHERE id = 1", "UPDATE # SET w = 3 WHERE id = 2")
    assert followed.take() == 1
    assert followed.rows() == {2: (2, 3, "long" * 5000)}


def test_values_out_of_line(server: Postgres) -> None:
    followed = Followed(server, "id int PRIMARY KEY, v text, w int")
    followed.run("ALTER TABLE # ALTER v SET STORAGE EXTERNAL", "INSERT INTO # VALUES (1, repeat('long', 5000), 1)")
    followed.take()
    followed.run("INSERT INTO # VALUES (2, 'x', 1)", "UPDATE # SET w = 2 WHERE id = 1")
    with pytest.raises(SourceError, match='does not say what "v" of'):
        followed.take()
    whole = Followed(server, "id int PRIMARY KEY, v text, w int")
    whole.run("ALTER TABLE # ALTER v SET STORAGE EXTERNAL", "ALTER TABLE # REPLICA IDENTITY FULL",
              "INSERT INTO # VALUES (1, repeat('long', 5000), 1)")  # fmt: skip
    whole.take()
    whole.run("UPDATE # SET w = 2 WHERE id = 1", "UPDATE # SET id = 5", "INSERT INTO # VALUES (6, 'y', 1)")
    whole.take()
    assert whole.rows() == whole.truth()


def test_truncations(server: Postgres) -> None:
    followed = Followed(server)
    followed.run("INSERT INTO # VALUES (1, 'a'), (2, 'b')")
    first = followed.bind()
    followed.run("TRUNCATE #", "INSERT INTO # VALUES (2, 'c'), (3, 'd')")
    found = followed.read({}, first.offsets)
    assert sorted(row["id"] for row in found) == [2, 3], "the content is read behind the truncation"
    followed.kept, followed.at = {row["id"]: row for row in found}, first.offsets
    followed.source.acknowledge(followed.at)
    followed.take()
    assert followed.rows() == followed.truth() == {2: "c", 3: "d"}
    followed.run("INSERT INTO # VALUES (4, 'e')", "TRUNCATE # RESTART IDENTITY CASCADE")
    followed.take()
    assert followed.rows() == {}
    with server.connect(autocommit=False) as c:
        c.execute(f"INSERT INTO {followed.table} VALUES (5, 'x'), (6, 'x')")
        c.execute("SAVEPOINT s")
        c.execute(f"TRUNCATE {followed.table}")
        c.execute("ROLLBACK TO s")
        c.commit()
    followed.take()
    assert followed.rows() == followed.truth() == {5: "x", 6: "x"}
    with server.connect(autocommit=False) as c:
        c.execute(f"INSERT INTO {followed.table} VALUES (7, 'y')")
        c.execute(f"TRUNCATE {followed.table}")
        c.execute(f"INSERT INTO {followed.table} VALUES (6, 'z')")
        c.commit()
    followed.take(rows=1)
    assert followed.rows() == followed.truth() == {6: "z"}
    before = followed.at
    followed.run("INSERT INTO # VALUES (8, 'a')")
    followed.take()
    assert followed.at[EMPTIED] == before[EMPTIED] and not any(EMPTIED in t for t in followed.source.plan(
        before, followed.at, 4)), "each truncation is taken in once"  # fmt: skip


def test_what_cannot_be_followed_is_told(server: Postgres) -> None:
    renamed = Followed(server)
    renamed.take()
    renamed.run("ALTER TABLE # RENAME v TO w", "INSERT INTO # VALUES (1, 'a')")
    with pytest.raises(SourceError, match='has no column "v" any more'):
        renamed.take()
    stolen = Followed(server)
    stolen.take()
    stolen.run("INSERT INTO # VALUES (1, 'a')")
    server.execute(f"SELECT pg_replication_slot_advance('{stolen.options['slot.name']}', pg_current_wal_lsn())")
    with pytest.raises(SourceError, match="somebody else has read"):
        stolen.take()
    stolen.source.discard()
    with pytest.raises(SourceError, match="does not have the replication slot"):
        stolen.take()
    with server.connect() as connection:
        left = connection.execute("SELECT slot_name FROM pg_replication_slots UNION SELECT pubname FROM pg_publication")
        assert (stolen.options["slot.name"],) not in left.fetchall()


def test_columns_that_change_there_are_told(server: Postgres) -> None:
    followed = Followed(server, "id int PRIMARY KEY, v varchar(5), other int, total int GENERATED ALWAYS AS (2) STORED")
    followed.run("ALTER TABLE # ADD gone int", "ALTER TABLE # DROP gone")
    followed.take()
    followed.run("ALTER TABLE # ADD more text", "ALTER TABLE # ADD twice int GENERATED ALWAYS AS (id * 2) STORED",
                 "ALTER TABLE # ALTER v TYPE varchar(9)", "INSERT INTO # VALUES (1, 'a')")  # fmt: skip
    followed.take()
    assert followed.rows() == followed.truth() and followed.bind().added == ("more",)
    followed.run("ALTER TABLE # DROP other", "ALTER TABLE # ALTER v TYPE text")
    assert followed.bind().added == ("more",), "what is not declared here does not matter"
    followed.run("ALTER TABLE # ALTER v TYPE bytea USING v::bytea")
    with pytest.raises(SourceError, match=r'"v" of public.t.* in PostgreSQL is of another type') as told:
        followed.bind()
    assert "create it again" in str(told.value.hint)
    followed.at = {name: value for name, value in followed.at.items() if name != "columns"}  # one of before
    assert followed.bind().added == ()


@pytest.mark.parametrize(
    ("before", "now", "alike"),
    [
        ("int", "bigint", True), ("bigint", "smallint", True), ("int", "numeric", False), ("text", "varchar(3)", True),
        ("numeric(10,2)", "numeric(12,2)", True), ("numeric(10,2)", "numeric(12,1)", False),
        ("numeric", "numeric(12,1)", False), ("numeric(12,1)", "numeric", True), ("numeric(5,1)", "text", True),
        ("float4", "float8", False), ("timestamptz", "timestamp", False), ("char(5)", "text", False),
        ("boolean", "text", False), ("int[]", "bigint[]", False), ("timestamp(3)", "timestamp(0)", False),
    ],
)  # fmt: skip
def test_types_as_which_values_are_written_as_before(server: Postgres, before: str, now: str, alike: bool) -> None:
    followed = Followed(server, f"id int PRIMARY KEY, v {before}")
    followed.columns = [COLUMNS[0], Column("v", "array<int>" if "[]" in before else "string"), *COLUMNS[2:]]
    followed.source = followed.open()
    followed.take()
    followed.run(f"ALTER TABLE # ALTER v TYPE {now} USING v::{now}")
    if alike:
        followed.bind()
        return
    with pytest.raises(SourceError, match="of another type"):
        followed.bind()


def test_another_table_of_the_name_is_told(server: Postgres) -> None:
    followed = Followed(server)
    followed.take()
    followed.run("ALTER TABLE # RENAME TO #_old")
    with pytest.raises(SourceError, match="not the one any more"):
        followed.bind()
    followed.run("CREATE TABLE # (id int PRIMARY KEY, v text)")
    server.execute(f"ALTER PUBLICATION {followed.options['publication.name']} ADD TABLE {followed.table}")
    with pytest.raises(SourceError, match="not the one any more"):
        followed.bind()
    followed.run("DROP TABLE #", "INSERT INTO #_old VALUES (1, 'a')", "ALTER TABLE #_old RENAME TO #")
    followed.take()
    assert followed.rows() == {1: "a"}, "what was changed under another name, too"


def test_a_publication_that_leaves_something_out_is_told(server: Postgres) -> None:
    followed = Followed(server)
    followed.take()
    name = followed.options["publication.name"]
    for change, back, text in (
        (
            "SET (publish = 'insert, update')",
            "SET (publish = 'insert, update, delete, truncate')",
            "leaves out changes",
        ),
        ("SET TABLE # WHERE (id > 5)", "SET TABLE #", "leaves out changes"),
        ("DROP TABLE #", "ADD TABLE #", "does not have the table"),
    ):
        followed.run(f"ALTER PUBLICATION {name} {change}")
        with pytest.raises(SourceError, match=text):
            followed.bind()
        followed.run(f"ALTER PUBLICATION {name} {back}")
        followed.bind()


@pytest.mark.parametrize(
    ("columns", "more"),
    [
        ("id int, v text", ""),
        ("id int, v text PRIMARY KEY", ""),
        ("id int, v text, PRIMARY KEY (id, v)", ""),
        ("id int PRIMARY KEY DEFERRABLE, v text", ""),
        ("id int NOT NULL UNIQUE, v text", ""),
        ("id int UNIQUE, v text", "ALTER TABLE # REPLICA IDENTITY FULL"),
        ("id int NOT NULL, v text", "ALTER TABLE # REPLICA IDENTITY FULL"),
        ("id int PRIMARY KEY, v text", "ALTER TABLE # REPLICA IDENTITY NOTHING"),
    ],
)
def test_what_is_no_key_there_is_refused(server: Postgres, columns: str, more: str) -> None:
    followed = Followed(server, columns)
    if more:
        followed.run(more)
    with pytest.raises(SourceError, match=r"\(id\) is no key of the table"):
        followed.source.claim()


@pytest.mark.parametrize(
    ("without", "back"),
    [
        (
            "ALTER TABLE # DROP CONSTRAINT #_pkey; INSERT INTO # VALUES (3, 'once'), (3, 'twice')",
            "DELETE FROM # WHERE v = 'twice'; ALTER TABLE # ADD PRIMARY KEY (id)",
        ),
        (
            "ALTER TABLE # REPLICA IDENTITY NOTHING; INSERT INTO # VALUES (3, 'once')",
            "ALTER TABLE # REPLICA IDENTITY DEFAULT",
        ),
    ],
)
def test_a_key_that_was_none_for_a_while_is_told(server: Postgres, without: str, back: str) -> None:
    """It is one again by the next look: then the deletion of one of two rows would be one of both."""
    followed = Followed(server)
    followed.take()
    followed.run(*without.split("; "), "ALTER TABLE # REPLICA IDENTITY FULL", *back.split("; "))
    with pytest.raises(SourceError, match="was no key of it that changes told"):
        followed.take()


def test_a_key_that_is_made_anew_is_the_key(server: Postgres) -> None:
    followed = Followed(server)
    followed.run("INSERT INTO # VALUES (1, 'a')")
    followed.take()
    followed.run("UPDATE # SET v = 'b'", "ALTER TABLE # DROP CONSTRAINT #_pkey", "ALTER TABLE # ADD PRIMARY KEY (id)",
                 "UPDATE # SET id = 2")  # fmt: skip
    followed.take()
    assert followed.rows() == followed.truth()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("PARTITION BY RANGE (id)", "is partitioned, and what is done to a partition as a whole is not told"),
        ("; CREATE TABLE child# () INHERITS (#)", "other tables inherit from"),
    ],
)
def test_tables_with_rows_of_others_are_refused(server: Postgres, more: str, said: str) -> None:
    followed = Followed(server)
    followed.run("DROP TABLE #", f"CREATE TABLE # (id int PRIMARY KEY, v text) {more}",
                 "CREATE PUBLICATION of_# FOR TABLE # WITH (publish_via_partition_root = true)")  # fmt: skip
    with pytest.raises(SourceError, match=said):
        followed.open(**{"publication.name": f"of_{followed.table}"}).claim()
    followed.run("DROP PUBLICATION of_#")


def test_keys_that_are_taken(server: Postgres) -> None:
    for columns, more in (
        ("id int NOT NULL UNIQUE, v text", "ALTER TABLE # REPLICA IDENTITY USING INDEX #_id_key"),
        ("id int NOT NULL UNIQUE, v text", "ALTER TABLE # REPLICA IDENTITY FULL"),
        ("id int NOT NULL, v text", "CREATE UNIQUE INDEX ON # (id) INCLUDE (v); ALTER TABLE # REPLICA IDENTITY FULL"),
    ):
        followed = Followed(server, columns)
        followed.run(*more.split("; "))
        followed.source.claim()


def test_a_slot_that_is_there_already_is_somebody_elses(server: Postgres) -> None:
    followed = Followed(server)
    server.execute("SELECT pg_create_logical_replication_slot('theirs', 'pgoutput')")
    with pytest.raises(SourceError, match="there is a replication slot theirs"):
        followed.open(**{"slot.name": "theirs"}).claim()
    server.execute("SELECT pg_drop_replication_slot('theirs')")


def test_the_slot_moves_with_the_reader(server: Postgres) -> None:
    followed = Followed(server)
    followed.take()

    def confirmed() -> int:
        sql = "SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = %s"
        with server.connect() as connection:
            return int(connection.execute(sql, [followed.options["slot.name"]]).fetchone()[0])  # type: ignore[index]

    followed.run("INSERT INTO # VALUES (1, 'a')")
    before = confirmed()
    bound = followed.bind()
    followed.bind()
    assert confirmed() == before < bound.offsets["lsn"]
    followed.take()
    followed.bind()
    assert confirmed() == followed.at["lsn"]


def test_refused(server: Postgres) -> None:
    followed = Followed(server)
    with pytest.raises(SourceError, match="there is no table public"):
        followed.open(**{"table.name": "nowhere"}).start_offsets()
    with pytest.raises(SourceError, match="PostgreSQL at"):
        followed.open(port="1").start_offsets()
    with pytest.raises(NotSupported):
        type(followed.source).added_columns({})
    followed.columns = [*COLUMNS, Column("more", "int")]
    with pytest.raises(SourceError, match='has no column "more"') as caught:
        followed.open().start_offsets()
    assert caught.value.hint == 'it has "id", "v"'


def test_a_column_is_told_by_the_name_that_it_has_there(server: Postgres) -> None:
    """Names without quotes have small letters here, and those of other programs' tables often have not."""
    followed = Followed(server, '"Id" int PRIMARY KEY, v text')
    with pytest.raises(SourceError, match='has no column "id"') as caught:
        followed.open().start_offsets()
    assert caught.value.hint == 'it has "Id": declare it as it is spelled there, in quotes'


def test_a_row_at_fault_is_told_by_its_whole_key(server: Postgres) -> None:
    followed = Followed(server, "id int, w text, v numeric, PRIMARY KEY (id, w)")
    followed.columns = [COLUMNS[0], Column("w", "string", False), Column("v", "decimal(38,10)"), *COLUMNS[2:]]
    followed.source = followed.open()
    followed.run("INSERT INTO # VALUES (1, 'a', 1), (1, 'b', 'Infinity')")
    found = followed.bind()
    with pytest.raises(SourceError, match=r"row id = 1 and w = b, column v: .* \(declared as text") as caught:
        followed.read({}, found.offsets)
    assert "ALTER TABLE t" in f"{caught.value.hint}"


def test_content_and_changes_say_the_same(server: Postgres) -> None:
    followed = Followed(server, "id int PRIMARY KEY, v char(4), w inet, x bool")
    followed.columns = [*COLUMNS[:2], Column("w", "string"), Column("x", "boolean"), *COLUMNS[2:]]
    followed.source = followed.open()
    followed.run("INSERT INTO # VALUES (1, 'a', '10.0.0.1', true), (2, 'b ', '10.0.0.2', false)")
    followed.take()
    before = {i: (row["v"], row["w"], row["x"]) for i, row in followed.kept.items()}
    assert before == {1: ("a   ", "10.0.0.1", True), 2: ("b   ", "10.0.0.2", False)}
    followed.run("UPDATE # SET id = id")
    assert followed.take() == 2
    assert before == {i: (row["v"], row["w"], row["x"]) for i, row in followed.kept.items()}


@pytest.mark.parametrize(("on_error", "found"), [("fail", None), ("skip", None), ("null", {"id": [7], "n": [None]})])
def test_a_value_that_is_asked_for_is_at_fault_as_any_other(on_error: str, found: dict[str, Any] | None) -> None:
    options = {
        "connector": "postgres-cdc", "hostname": "localhost", "username": "ann", "database.name": "there",
        "table.name": "t", "on_error": on_error,
    }  # fmt: skip
    columns = [Column("id", "int", False), Column("n", "int")]
    source = PostgresCdcSource(PostgresCdcSource.settled(options), columns)
    there = {"id": pa.array(["7"]), "n": pa.array(["99999999999"])}
    if on_error == "fail":
        with pytest.raises(SourceError, match="99999999999"):
            source._made_there(there)
        return
    made = source._made_there(there)
    assert found == (None if made is None else {name: made[name].to_pylist() for name in ("id", "n")})
