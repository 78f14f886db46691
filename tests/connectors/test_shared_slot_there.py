"""A slot of several tables and a real PostgreSQL: transactions that outlast what begins, limits, names, children."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from datetime import date
from itertools import pairwise

import numpy as np
import pytest

from headrace.common.columns import Column
from headrace.connectors.base import SHARED_BY, Admission, FollowingTable, Offsets
from headrace.connectors.postgres.slot import PostgresSlot
from headrace.connectors.postgres.slot_table import SlotTable
from headrace.connectors.postgres.slots import end_of_log, is_written
from headrace.errors import SourceError
from postgres import HOST, Postgres

COLUMNS = [Column("id", "int", False), Column("v", "bigint", True), Column("_o", "string", True),
           Column("_p", "bigint", True)]  # fmt: skip
_numbers = itertools.count()


class Follow:
    """A slot and its tables, ticked by hand; what is bound is taken in at once."""

    columns: Sequence[Column] = COLUMNS

    def __init__(self, logical: Postgres, *tables: str, before: str = "SELECT", **more: str) -> None:
        self.there = logical.new_database(f"shared_there{next(_numbers)}")
        name = f"s_{self.there.dbname}"
        self.options: Mapping[str, str] = {
            "connector": "postgres-cdc", "hostname": HOST, "port": str(self.there.port), "username": "root",
            "database.name": self.there.dbname, "slot.name": name, "publication.name": name, **more,
        }  # fmt: skip
        for table in tables:
            self.there.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v bigint)")
        self.there.execute(before.replace("#", name))
        self.source = PostgresSlot(self.options, [])
        self.source.claim()
        self.after: Offsets = {}
        self.most_bytes: int | None = None
        self.bound: dict[str, Offsets] = {}
        self.rows: dict[str, set[int]] = {}
        self.read: dict[str, list[dict[str, object]]] = {}
        self.added: dict[str, tuple[str, ...]] = {}

    def table(self, name: str) -> SlotTable:
        return SlotTable(self.of(name), self.columns)

    def of(self, name: str) -> dict[str, str]:
        told = {"schema.name": "public", "table.name": name, SHARED_BY: "1"}
        return {**self.options, **told, "include.operation": "_o", "include.position": "_p"}

    def add(self, name: str) -> None:
        self.bound[name], self.rows[name], self.read[name] = {}, set(), []

    def tick(self, times: int = 1) -> None:
        names = sorted(self.bound)
        for _ in range(times):
            found = self.source.latest_together(
                self.after,
                {i: FollowingTable(self.of(n), ("id",), self.bound[n], self.bound[n] or None,
                                   tuple(c.name for c in self.columns[:-2]))
                 for i, n in enumerate(names)},
                Admission(1_000_000, self.most_bytes),
            )  # fmt: skip
            self.after, self.added = found.offsets, {names[i]: more for i, more in found.added.items() if more}
            for i, binding in found.tables.items():
                name, source = names[i], self.table(names[i])
                for task in source.plan(self.bound[name], binding.offsets, 1):
                    for batch in source.read(task):
                        self.read[name] += batch.batch.to_pylist()
                self.rows[name] |= {int(str(row["id"])) for row in self.read[name]}
                self.bound[name] = binding.offsets


def test_a_table_waits_for_what_began_while_it_was_published(logical: Postgres) -> None:
    f = Follow(logical, "a", "b")
    f.table("a").claim()
    f.add("a")
    f.tick(5)
    with f.there.connect(autocommit=False) as publishes, f.there.connect(autocommit=False) as writes:
        publishes.execute(f"ALTER PUBLICATION {f.options['publication.name']} ADD TABLE b")
        writes.execute("INSERT INTO b VALUES (1, 1)")  # the newest of all numbers
        publishes.commit()
        f.add("b")
        f.tick(4)
        assert not f.bound["b"], "it would begin without what is not committed, and was written before it was published"
        writes.commit()
    for i in range(6):
        f.there.execute(f"INSERT INTO a VALUES ({i}, 1)")
        f.tick()
    assert f.rows["b"] == {1} and f.rows["a"] == set(range(6))
    f.source.discard()


def test_what_a_limit_has_cut_is_gone_beyond(logical: Postgres) -> None:
    f = Follow(logical, "a", "noise", before="CREATE PUBLICATION # FOR ALL TABLES", max_rows_per_epoch="20")
    f.add("a")
    f.tick(5)
    with f.there.connect() as c:
        for i in range(60):
            c.execute("INSERT INTO noise VALUES (%s, 1)", (i,))
        c.execute("INSERT INTO a VALUES (1, 1)")
    f.tick(12)
    assert f.rows["a"] == {1}
    f.source.discard()


def test_no_more_of_the_log_is_bound_than_bytes_allow(logical: Postgres) -> None:
    """Whole transactions, of all tables together, and always one; held back or not by a table that does not get on."""
    f = Follow(logical, "a", "b")
    for name in ("a", "b"):
        f.table(name).claim()
        f.add(name)
    f.tick(6)
    f.most_bytes = 1_000
    with f.there.connect() as c:
        for i in range(8):
            c.execute(f"INSERT INTO a SELECT n, 1 FROM generate_series({10 * i}, {10 * i + 4}) AS n")
            c.execute(f"INSERT INTO b SELECT n, 1 FROM generate_series({10 * i}, {10 * i + 4}) AS n")
        c.execute("INSERT INTO b SELECT n, 1 FROM generate_series(1000, 1200) AS n")
    counts = []
    while len(f.rows["b"]) < 241:
        f.tick()
        counts.append((len(f.rows["a"]), len(f.rows["b"])))
        assert len(counts) < 30
    steps = [(0, 0), *dict.fromkeys(counts)]
    assert len(steps) >= 5 and all(b - a <= 15 for (a, _), (b, _) in pairwise(steps)), "bit by bit"
    assert steps[-2][1] <= 40 and counts[-1] == (40, 241), "a large transaction comes alone, and whole"
    f.source.discard()


@pytest.mark.parametrize("name", ["MyPub", "my pub", "a,b", 'a"b'])
def test_a_publication_may_have_any_name(logical: Postgres, name: str) -> None:
    f = Follow(logical, "a", **{"publication.name": name})
    f.table("a").claim()
    f.add("a")
    f.tick(4)
    f.there.execute("INSERT INTO a VALUES (1, 1)")
    f.tick(2)
    assert f.rows["a"] == {1}
    f.source.discard()


def test_values_are_spelled_as_ever_whatever_the_server_has_set(logical: Postgres) -> None:
    """Those of the content, and those that are seen when changes are bound."""
    f = Follow(logical)
    told = {"d": "DateStyle TO 'German'", "b": "bytea_output TO 'escape'", "f": "extra_float_digits TO -3",
            "i": "IntervalStyle TO 'iso_8601'", "g": "extra_float_digits TO -3"}  # fmt: skip
    f.there.execute(
        *(f"ALTER DATABASE {f.there.dbname} SET {setting}" for setting in dict.fromkeys(told.values())),
        "CREATE TABLE a (id int PRIMARY KEY, d date, b bytea, f float8, i interval, g real)",
    )
    kinds = {"d": "date", "b": "binary", "f": "double", "i": "string", "g": "float"}
    f.columns = [COLUMNS[0], *(Column(name, kind) for name, kind in kinds.items()), *COLUMNS[2:]]
    f.table("a").claim()
    f.add("a")
    values = "'2024-02-01', '\\x00ff', 0.1::float8 + 0.2, '1 day 2 hours', 1.2345678"
    f.there.execute(f"INSERT INTO a VALUES (1, {values})")
    f.tick(5)
    f.there.execute(f"INSERT INTO a VALUES (2, {values})")
    f.tick(2)
    assert f.rows["a"] == {1, 2}
    wanted = (date(2024, 2, 1), b"\x00\xff", 0.1 + 0.2, "1 day 02:00:00", float(np.float32(1.2345678)))
    assert {tuple(row[name] for name in kinds) for row in f.read["a"]} == {wanted}
    f.source.discard()


def test_a_table_with_children_is_refused(logical: Postgres) -> None:
    f = Follow(logical, "a", before="CREATE TABLE kid (PRIMARY KEY (id)) INHERITS (a)")
    with pytest.raises(SourceError, match="inherit from"):
        f.table("a").claim()
    f.table("kid").claim()
    f.source.discard()


def test_columns_that_change_there_are_told(logical: Postgres) -> None:
    f = Follow(logical, "a", "b")
    for name in ("a", "b"):
        f.table(name).claim()
        f.add(name)
    f.tick(5)
    assert f.added == {}
    f.there.execute("ALTER TABLE b ADD more text DEFAULT 'x'", "ALTER TABLE a ALTER v TYPE int",
                    "INSERT INTO a VALUES (1, 1)")  # fmt: skip
    f.tick(3)
    assert f.added == {"b": ("more",)} and f.rows["a"] == {1}
    f.there.execute("ALTER TABLE b DROP more", "ALTER TABLE b DROP v", "ALTER TABLE b ADD v bigint")
    with pytest.raises(SourceError, match=r'column "v" of public.b in PostgreSQL was dropped and added again'):
        f.tick(2)
    f.source.discard()


def test_a_log_that_ends_with_a_page_is_not_waited_for(logical: Postgres) -> None:
    """The next record's place is behind a header that nobody writes before there is a next record."""
    full = 0
    with logical.connect() as c:
        for further in range(64):
            room = c.execute("SELECT 8192 - (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint % 8192").fetchone()[0]
            c.execute("SELECT pg_logical_emit_message(true, 'x', repeat('y', %s))", [max(1, room - 60 - further)])
            end, written = c.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn, "
                                     "pg_current_wal_flush_lsn() - '0/0'::pg_lsn").fetchone()  # fmt: skip
            full += end > written
            assert end_of_log(c) in (end, written)
    assert full


def test_what_of_the_log_is_written() -> None:
    page = 8192
    assert is_written(5 * page + 24, 5 * page, page) and is_written(5 * page + 40, 5 * page, page)
    assert is_written(5 * page, 5 * page, page) and is_written(5 * page, 6 * page, page)
    assert not is_written(5 * page + 48, 5 * page, page), "a record of the page is missing"
    assert not is_written(5 * page + 24, 5 * page - 8, page) and not is_written(1024 + 40, 1024, page)
