"""Several tables of PostgreSQL through one slot: no transaction is ever half seen, and nothing is lost or left."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from bank import ACCOUNTS, TOTAL, Bank

from headrace.errors import DependentObjectsExist, HeadraceError
from headrace.session.database import Database
from postgres import Postgres
from support import eventually

WHOLE = "SELECT (SELECT sum(amount) FROM ann#) + (SELECT sum(amount) FROM bob#)"


def test_a_transaction_over_two_tables_is_never_half_seen(logical: Postgres, database: Database) -> None:
    bank = Bank(logical, database)
    with bank.busy() as moved:
        bank.follow("ann")
        bank.sql("CREATE TABLE bob# (*) FROM pg# TABLE 'public.bob'")
        view = "SELECT sum(amount) AS s FROM (SELECT amount FROM ann# UNION ALL SELECT amount FROM bob#) AS b"
        bank.sql(f"CREATE MATERIALIZED VIEW whole# AS {view}")
        before, seen = moved(), set[str]()
        since_s = time.monotonic()
        while (passed_s := time.monotonic() - since_s) < 12 or (len(seen) <= 3 and passed_s < 120):
            for sampled in ("SELECT s FROM whole#", WHOLE):
                found = [int(row[0]) for row in bank.rows(sampled)]
                assert found == [TOTAL], sampled
            seen.add(str(bank.rows("SELECT id, amount FROM ann#")))
        assert moved() > before + 100 and len(seen) > 3, "there was something to be seen"
    eventually(lambda: bank.is_as_there("ann", "bob"))
    bank.drop()


def test_a_table_that_is_added_waits_for_transactions_and_loses_nothing(logical: Postgres, database: Database) -> None:
    bank = Bank(logical, database)
    bank.follow("ann")
    with bank.busy() as moved, bank.there.connect(autocommit=False) as early:
        early.execute("INSERT INTO bob VALUES (100, 7)")
        thread = threading.Thread(target=bank.follow, args=("bob",))
        thread.start()
        thread.join(5)
        assert thread.is_alive(), "what was done before the table was published must have ended"
        early.execute("INSERT INTO ann VALUES (100, -7)")
        early.commit()
        thread.join()
        before = moved()
        assert bank.rows("SELECT amount FROM bob# WHERE id = 100") == [(7,)]
        assert [int(row[0]) for row in bank.rows(WHOLE)] == [TOTAL]
        eventually(lambda: moved() > before + 50)
    eventually(lambda: bank.is_as_there("ann", "bob"))
    bank.drop()


def test_tables_come_and_go_and_nothing_is_left(logical: Postgres, database: Database) -> None:
    bank = Bank(logical, database)
    with bank.busy():
        bank.follow("ann")
        bank.follow("bob")
        bank.sql("CREATE TABLE twice# (*) FROM pg# TABLE 'bob'")
        bank.sql("CREATE MATERIALIZED VIEW both# AS SELECT a.id FROM ann# a JOIN bob# b ON a.id = b.id")
        with pytest.raises(DependentObjectsExist) as caught:
            bank.sql("DROP SOURCE pg#")
        assert "$changes" not in f"{caught.value.detail}" and f"depends on source pg{bank.number}" in (
            caught.value.detail or ""
        )
        bank.sql("DROP TABLE bob# CASCADE")
        published = "SELECT tablename FROM pg_publication_tables ORDER BY 1"
        assert bank.ask(published) == [("ann",), ("bob",)], "another table still needs it"
        bank.sql("DROP TABLE twice#")
        assert bank.ask(published) == [("ann",)]
        bank.follow("bob")
        assert [int(row[0]) for row in bank.rows(WHOLE)] == [TOTAL]
    eventually(lambda: bank.is_as_there("ann", "bob"))
    bank.drop()
    assert bank.sql("SHOW SOURCES").rows() == []


def standing(bank: Bank) -> dict[str, Any]:
    names = ("tables", "confirmed_lsn", "lag_bytes", "kept_bytes", "error")
    (row,) = bank.rows(f"SELECT {', '.join(names)} FROM headrace_catalog.replication_slots WHERE source = 'pg#'")
    return dict(zip(names, row))


def test_a_table_that_stands_still_holds_the_log_and_nobody_else(logical: Postgres, database: Database) -> None:
    bank = Bank(logical, database)
    bank.follow("ann")
    bank.follow("bob")
    bank.sql("ALTER MATERIALIZED VIEW ann# PAUSE")
    bank.there.execute("UPDATE ann SET amount = amount - 1", "UPDATE bob SET amount = amount + 1")
    eventually(lambda: bank.is_as_there("bob"))
    eventually(lambda: standing(bank)["lag_bytes"] > 0)
    held = standing(bank)
    assert held["tables"] == f"ann{bank.number}, bob{bank.number}" and held["error"] is None
    bank.there.execute("UPDATE bob SET amount = amount + 1")
    eventually(lambda: bank.is_as_there("bob"))
    assert standing(bank)["confirmed_lsn"] == held["confirmed_lsn"]
    bank.sql("ALTER MATERIALIZED VIEW ann# RESUME")
    eventually(lambda: bank.is_as_there("ann", "bob"))
    eventually(lambda: standing(bank)["confirmed_lsn"] != held["confirmed_lsn"])
    bank.drop()


def test_a_slot_that_is_gone_is_told_and_made_again_with_the_source(logical: Postgres, database: Database) -> None:
    bank = Bank(logical, database)
    bank.follow("ann")
    eventually(lambda: standing(bank)["error"] is None)

    def dropped() -> bool:
        try:
            bank.there.execute(f"SELECT pg_drop_replication_slot('{bank.slot}')")
        except Exception as error:
            assert "is active" in str(error)
            return False
        return True

    eventually(dropped)
    eventually(lambda: f"does not have the replication slot {bank.slot}" in (standing(bank)["error"] or ""))
    bank.drop()
    bank.sql(f"CREATE SOURCE pg# WITH ({bank.options()})")
    bank.follow("ann")
    assert bank.is_as_there("ann")
    bank.drop()


def test_a_publication_of_somebody_else_is_left_as_it_is(logical: Postgres, database: Database) -> None:
    bank = Bank(logical, database)
    bank.drop()
    bank.there.execute("CREATE PUBLICATION theirs FOR TABLE ann")
    bank.sql(f"CREATE SOURCE pg# WITH ({bank.options()}, publication.name = 'theirs')")
    bank.follow("ann")
    with pytest.raises(HeadraceError, match=r"the publication theirs .* does not have the table public\.bob") as caught:
        bank.follow("bob")
    assert "ALTER PUBLICATION theirs ADD TABLE public.bob" in (caught.value.hint or "")
    bank.there.execute("ALTER PUBLICATION theirs ADD TABLE public.bob")
    bank.follow("bob")
    assert bank.is_as_there("ann", "bob")
    bank.sql("DROP TABLE ann#")
    assert bank.ask("SELECT tablename FROM pg_publication_tables ORDER BY 1") == [("ann",), ("bob",)]
    bank.there.execute("ALTER PUBLICATION theirs DROP TABLE bob")
    eventually(lambda: "does not have the table public.bob" in (standing(bank)["error"] or ""))
    bank.sql("DROP SOURCE pg# CASCADE")
    assert bank.ask("SELECT pubname FROM pg_publication") == [("theirs",)]
    assert bank.ask(f"SELECT FROM pg_replication_slots WHERE slot_name = '{bank.slot}'") == []


def test_a_table_is_followed_whatever_its_name_is_there(logical: Postgres, database: Database) -> None:
    bank = Bank(logical, database)
    bank.follow("ann")
    with pytest.raises(HeadraceError, match="is read at the pace of source"):
        bank.sql("ALTER MATERIALIZED VIEW ann# SET source_rate_limit = 5")
    bank.there.execute("ALTER TABLE ann RENAME TO anna", "UPDATE anna SET amount = 5 WHERE id = 5")
    eventually(lambda: bank.rows("SELECT amount FROM ann# WHERE id = 5") == [(5,)])
    bank.there.execute("DROP TABLE anna")
    eventually(lambda: "is not there" in (standing(bank)["error"] or ""))
    bank.sql("DROP TABLE ann#")
    bank.follow("bob")
    assert bank.is_as_there("bob")
    bank.drop()


def test_a_table_that_lost_a_column_stops_alone(logical: Postgres, database: Database) -> None:
    bank = Bank(logical, database)
    bank.follow("ann")
    bank.follow("bob")
    bank.there.execute("ALTER TABLE ann RENAME amount TO sum", "UPDATE ann SET sum = 1 WHERE id = 1",
                       "UPDATE bob SET amount = 1 WHERE id = 1")  # fmt: skip
    eventually(lambda: bank.is_as_there("bob"))
    jobs = "SELECT error FROM headrace_catalog.jobs WHERE name = 'ann#'"
    eventually(lambda: 'no column "amount" any more' in str(bank.rows(jobs)))
    bank.there.execute("ALTER TABLE ann RENAME sum TO amount", "ALTER TABLE bob ADD more text, ADD again int")
    there = "SELECT columns_there FROM headrace_catalog.sources WHERE name = 'bob#$changes'"
    eventually(lambda: bank.rows(there) == [("more, again",)])
    bank.sql("DROP TABLE ann#")
    bank.follow("ann")
    bank.there.execute("INSERT INTO ann VALUES (100, 1)", "UPDATE bob SET amount = 2 WHERE id = 1")
    eventually(lambda: bank.is_as_there("ann", "bob"))
    bank.drop()


def test_what_an_update_leaves_out_is_what_the_table_has(logical: Postgres, database: Database) -> None:
    """Values that are stored out of line, and have not changed."""
    bank = Bank(logical, database)
    bank.there.execute(
        "CREATE TABLE wide (kind text, id bigint, v text, w int, PRIMARY KEY (kind, id))",
        "ALTER TABLE wide ALTER v SET STORAGE EXTERNAL",
        "INSERT INTO wide SELECT 'k' || i % 3, i, repeat(i || ' ', 2000), 0 FROM generate_series(1, 300) AS g(i)",
    )
    columns = "kind text, id bigint, v text, w int, PRIMARY KEY (kind, id)"
    bank.sql(f"CREATE TABLE wide# ({columns}) FROM pg# TABLE 'public.wide'")
    bank.sql("CREATE MATERIALIZED VIEW lengths# AS SELECT kind, sum(length(v)) AS n, sum(w) AS w FROM wide# GROUP BY 1")
    texts = "SELECT kind, id, md5(v), w FROM wide"
    sums = "SELECT kind, sum(length(v)), sum(w) FROM wide GROUP BY 1"

    def same() -> bool:
        return bank.rows("SELECT kind, id, md5(v), w FROM wide#") == sorted(bank.ask(texts)) and sorted(
            (k, int(n), int(w)) for k, n, w in bank.rows("SELECT kind, n, w FROM lengths#")
        ) == sorted((k, int(n), int(w)) for k, n, w in bank.ask(sums))

    eventually(same)
    bank.there.execute(
        "UPDATE wide SET w = w + 1 WHERE id % 2 = 0",
        "UPDATE wide SET id = id + 1000 WHERE id % 5 = 0",
        "BEGIN; DELETE FROM wide WHERE id = 3; INSERT INTO wide VALUES ('k0', 3, repeat('again ', 2000), 5); "
        "UPDATE wide SET w = w + 1 WHERE id = 3; UPDATE wide SET kind = 'moved' WHERE id = 3; COMMIT",
        "BEGIN; UPDATE wide SET v = repeat('other ', 2000) WHERE id = 4; UPDATE wide SET w = 9 WHERE id = 4; COMMIT",
    )
    eventually(same)
    bank.drop()


def test_a_truncation_empties_tables_with_its_transaction(logical: Postgres, database: Database) -> None:
    bank = Bank(logical, database)
    bank.follow("ann")
    bank.follow("bob")
    bank.sql("CREATE MATERIALIZED VIEW sum# AS SELECT count(*) AS n, sum(amount) AS s FROM ann#")
    seen = set()
    with bank.there.connect(autocommit=False) as c:
        c.execute("UPDATE ann SET amount = 7 WHERE id = 1")
        c.execute("TRUNCATE ann, bob RESTART IDENTITY CASCADE")
        c.execute(f"INSERT INTO bob SELECT i, {TOTAL // 4} FROM generate_series(18, 20) AS g(i)")
        c.execute("INSERT INTO ann SELECT * FROM bob WHERE id = 20")
        c.commit()

    def arrived() -> bool:
        seen.update(int(row[0]) for row in bank.rows(WHOLE))
        return bank.is_as_there("ann", "bob")

    eventually(arrived)
    assert seen == {TOTAL}, "nobody sees half of it"
    eventually(lambda: bank.rows("SELECT n, s FROM sum#") == [(1, TOTAL // 4)])
    bank.sql("ALTER MATERIALIZED VIEW ann# PAUSE")
    bank.there.execute("INSERT INTO ann VALUES (1, 1), (2, 2)", "TRUNCATE ann", "INSERT INTO ann VALUES (2, 3), (3, 3)",
                       "TRUNCATE ann, bob", "INSERT INTO ann VALUES (3, 4)")  # fmt: skip
    eventually(lambda: bank.is_as_there("bob"))
    bank.sql("ALTER MATERIALIZED VIEW ann# RESUME")
    eventually(lambda: bank.rows("SELECT n, s FROM sum#") == [(1, 4)])
    assert bank.is_as_there("ann")
    bank.there.execute("TRUNCATE ann")
    eventually(lambda: bank.rows("SELECT count(*) FROM ann#") == [(0,)])
    bank.drop()


def test_more_than_is_admitted_at_once_comes_bit_by_bit(logical: Postgres, database: Database) -> None:
    bank = Bank(logical, database, ", max_rows_per_epoch = 10")
    bank.follow("ann")
    bank.follow("bob")
    bank.sql("ALTER MATERIALIZED VIEW ann# PAUSE")
    with bank.there.connect() as connection:
        for i in range(60):  # more than one look takes in, of a table that takes in nothing
            connection.execute(f"UPDATE ann SET amount = {i}")
            connection.execute(f"UPDATE bob SET amount = amount + 1 WHERE id = {i % ACCOUNTS + 1}")
    eventually(lambda: bank.is_as_there("bob"))
    bank.sql("ALTER MATERIALIZED VIEW ann# RESUME")
    eventually(lambda: bank.is_as_there("ann"))
    bank.drop()


def test_a_key_that_changes_do_not_tell_any_more_is_told(logical: Postgres, database: Database) -> None:
    bank = Bank(logical, database)
    bank.follow("ann")
    bank.there.execute(
        "ALTER TABLE ann ALTER amount SET NOT NULL", "UPDATE ann SET amount = id",
        "CREATE UNIQUE INDEX i ON ann (amount)",
        "ALTER TABLE ann REPLICA IDENTITY USING INDEX i", "DELETE FROM ann WHERE id = 1",
    )  # fmt: skip
    eventually(lambda: "is no key of the table" in (standing(bank)["error"] or ""))
    bank.drop()


def test_only_the_owner_of_a_source_adds_tables(logical: Postgres, database: Database) -> None:
    bank = Bank(logical, database)
    bank.sql("CREATE USER clerk#; GRANT ALL ON SCHEMA public TO clerk#")
    bank.sql("GRANT pg_read_server_files TO clerk#; GRANT SELECT ON pg# TO clerk#; SET ROLE clerk#")
    try:
        with pytest.raises(HeadraceError, match="must be owner of"):
            bank.follow("ann")
        with pytest.raises(HeadraceError, match="must be owner of"):
            bank.sql("DROP SOURCE pg#")
    finally:
        bank.sql("RESET ROLE")
    bank.drop()


def test_what_a_table_is_made_of_is_read_by_it_alone(logical: Postgres, database: Database) -> None:
    """Another reader would begin with the content of now, and let go of what the table has still to take in."""
    bank = Bank(logical, database)
    bank.follow("ann")
    for text in ('SELECT count(*) FROM "ann#$changes"',
                 'CREATE MATERIALIZED VIEW spy AS SELECT count(*) AS n FROM "ann#$changes"'):  # fmt: skip
        with pytest.raises(HeadraceError, match="is what a table is made of"):
            bank.sql(text)
    bank.drop()


def test_what_is_refused(logical: Postgres, database: Database) -> None:
    bank = Bank(logical, database)
    for text, said in (
        ("SELECT * FROM pg#", "has no rows of its own"),
        ("CREATE MATERIALIZED VIEW no# AS SELECT 1 AS a FROM pg#", "has no rows of its own"),
        ("CREATE TABLE no# (*) FROM pg# TABLE 'public.nowhere'", "there is no table public.nowhere"),
        ("CREATE TABLE no# (amount bigint PRIMARY KEY) FROM pg# TABLE 'ann'", "is no key of the table"),
        ("CREATE TABLE no# (id int) FROM pg# TABLE 'ann'", "needs its primary key declared"),
        ("CREATE TABLE no# (id int PRIMARY KEY, x int) FROM pg# TABLE 'ann'", 'has no column "x"'),
        ("CREATE TABLE no# (*) FROM pg# TABLE 'ann' WITH (hostname = 'x')", "option hostname"),
        ("CREATE TABLE no# (*) INCLUDE timestamp AS at FROM pg# TABLE 'ann'", "INCLUDE timestamp of a table FROM"),
        ("CREATE TABLE no# (*) FROM headrace_catalog.jobs TABLE 'ann'", "does not exist"),
        (f"CREATE TABLE no# (id int PRIMARY KEY) WITH ({bank.options()})", "needs the option table.name"),
        (f"CREATE SOURCE no# WITH ({bank.options()})", "there is a replication slot"),
        (f"CREATE SOURCE no# (id int) WITH ({bank.options()})", "has no columns of its own"),
        (f"CREATE SOURCE no# WITH ({bank.options()}, include.source = '1')", "option include.source"),
    ):
        with pytest.raises(HeadraceError, match=said):
            bank.sql(text)
    assert bank.ask("SELECT FROM pg_publication_tables") == [] and bank.rows("SHOW TABLES") == []
    bank.drop()
