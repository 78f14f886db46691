"""Tables that follow one of PostgreSQL get the columns that come there, while all that reads them goes on."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pytest
from bank import TOTAL, Bank

from headrace.coordinator.coordinator import Coordinator
from headrace.coordinator.ddl.succeeding import Check
from headrace.errors import DependentObjectsExist, EpochTooOld, HeadraceError, QueryCanceled, SnapshotUnavailable
from headrace.session.database import Database
from headrace.session.session import Session
from postgres import Postgres
from support import eventually

ADDED = "ALTER TABLE ann ADD kind text DEFAULT 'old', ADD note text"


def jobs(bank: Bank) -> set[str]:
    """The names of all jobs, without the number of the bank."""
    return {name.replace(f"{bank.number}", "#") for (name,) in bank.rows("SELECT name FROM headrace_catalog.jobs")}


def is_as_there(bank: Bank, columns: str, name: str = "ann") -> bool:
    return bank.rows(f"SELECT {columns} FROM {name}#") == sorted(bank.ask(f"SELECT {columns} FROM {name}"))


def own(bank: Bank, table: str, more: str = "") -> str:
    """A table with a slot of its own."""
    options = bank.options().replace(bank.slot, f"{bank.slot}_{table}")
    return f"CREATE TABLE {table}# (id int PRIMARY KEY, amount bigint) WITH ({options}, table.name = '{table}'{more})"


def test_a_table_gets_columns_with_their_values(logical: Postgres, database: Database) -> None:
    """Also those that the log does not tell: the default of a column for rows that were there before it."""
    bank = Bank(logical, database)
    bank.follow("ann")
    bank.sql("CREATE MATERIALIZED VIEW sums# AS SELECT count(*) AS n, sum(amount) AS s FROM ann#")
    bank.sql("CREATE VIEW plain# AS SELECT * FROM ann#; COMMENT ON MATERIALIZED VIEW ann# IS 'hers'")
    with bank.busy() as moved:
        bank.there.execute(ADDED, "UPDATE ann SET note = 'n' WHERE id = 3")
        text = '"kind" character varying, "note" character varying'
        result = bank.sql("ALTER TABLE ann# REFRESH SCHEMA")
        assert (result.tag, result.notices) == ("ALTER TABLE", [f'table "ann{bank.number}" has new columns: {text}'])
        assert bank.sql("ALTER TABLE ann# REFRESH SCHEMA").notices == ["there are no new columns"]
        before = moved()
        bank.there.execute("UPDATE ann SET kind = 'new' WHERE id = 1", "INSERT INTO ann VALUES (50, 0, 'x', 'y')")
        eventually(lambda: moved() > before + 20)
    eventually(lambda: is_as_there(bank, "id, amount, kind, note"))
    eventually(lambda: bank.rows("SELECT n, s FROM sums#") == bank.ask("SELECT count(*), sum(amount) FROM ann"))
    assert bank.rows("SELECT * FROM plain#") == sorted(bank.ask("SELECT id, amount FROM ann"))
    both = "SELECT p.id, t.kind FROM plain# p JOIN ann# t ON t.id = p.id"
    assert bank.rows(both) == sorted(bank.ask("SELECT id, kind FROM ann"))
    bank.sql("CREATE MATERIALIZED VIEW kinds# AS SELECT kind, count(*) AS n FROM ann# GROUP BY kind")
    assert bank.rows("SELECT kind, n FROM kinds#") == sorted(bank.ask("SELECT kind, count(*) FROM ann GROUP BY kind"))
    assert bank.rows(f"SELECT obj_description('ann{bank.number}'::regclass)") == [("hers",)]
    bank.drop()


def test_what_a_table_was_goes_with_the_last_that_reads_it(logical: Postgres, database: Database) -> None:
    bank = Bank(logical, database)
    bank.follow("ann")
    bank.there.execute("ALTER TABLE ann ADD a int DEFAULT 1")
    bank.sql("ALTER TABLE ann# REFRESH SCHEMA")
    assert jobs(bank) == {"ann#"}, "nothing has read it"
    for view in ("one", "two"):
        bank.sql(f"CREATE MATERIALIZED VIEW {view}# AS SELECT id, a FROM ann#")
    bank.there.execute("ALTER TABLE ann ADD b int DEFAULT 2")
    bank.sql("ALTER TABLE ann# REFRESH SCHEMA")
    bank.sql("CREATE MATERIALIZED VIEW three# AS SELECT id, a, b FROM ann#")
    bank.there.execute("ALTER TABLE ann ADD c int DEFAULT 3")
    bank.sql("ALTER TABLE ann# REFRESH SCHEMA")
    bank.there.execute("INSERT INTO ann VALUES (99, 1, 2, 3, 4)")
    eventually(lambda: is_as_there(bank, "id, a, b, c"))
    for view, columns in (("one", "id, a"), ("two", "id, a"), ("three", "id, a, b")):
        eventually(
            lambda v=view, c=columns: bank.rows(f"SELECT * FROM {v}#") == sorted(bank.ask(f"SELECT {c} FROM ann"))
        )
    assert len(jobs(bank)) == 6
    slots = bank.rows("SELECT tables FROM headrace_catalog.replication_slots WHERE source = 'pg#'")
    assert slots == [(f"ann{bank.number}",)]
    assert bank.rows("SHOW TABLES") == [], "they are no tables of anybody's"
    shown = {name for (name,) in bank.rows("SHOW MATERIALIZED VIEWS")}
    assert shown == {f"{name}{bank.number}" for name in ("ann", "one", "two", "three")}
    upstreams = bank.rows("SELECT DISTINCT upstreams FROM headrace_catalog.jobs WHERE name NOT LIKE 'ann%'")
    assert upstreams == [(f"ann{bank.number}",)]
    with pytest.raises(DependentObjectsExist) as caught:
        bank.sql("DROP TABLE ann#")
    assert (caught.value.detail or "").count(f"depends on materialized view ann{bank.number}") == 3
    bank.sql("DROP MATERIALIZED VIEW one#")
    assert len(jobs(bank)) == 5
    bank.sql("DROP MATERIALIZED VIEW two#")
    assert len(jobs(bank)) == 3
    bank.sql("DROP TABLE ann# CASCADE")
    assert jobs(bank) == set()
    assert bank.ask("SELECT tablename FROM pg_publication_tables") == []
    bank.drop()


def said(session: Session, text: str) -> list[Any]:
    """The rows of the last statement."""
    return [result.rows() for result in session.execute(text)][-1]


def test_a_view_and_the_table_are_of_one_moment(logical: Postgres, database: Database) -> None:
    """I1: what reads the table as it was is at each epoch what the table is."""
    bank = Bank(logical, database)
    bank.follow("ann")
    bank.follow("bob")
    view = "SELECT sum(amount) AS s FROM (SELECT amount FROM ann# UNION ALL SELECT amount FROM bob#) AS b"
    bank.sql(f"CREATE MATERIALIZED VIEW whole# AS {view}")
    looks = ["SELECT s FROM whole#", "SELECT sum(amount) FROM ann#", "SELECT sum(amount) FROM bob#"]
    session = database.session()

    def look() -> set[int]:
        """What is seen in one snapshot, if there is one of all of them."""
        list(session.execute("BEGIN"))
        try:
            found = [int(said(session, text.replace("#", f"{bank.number}"))[0][0]) for text in looks]
        except (SnapshotUnavailable, EpochTooOld):
            return set()
        finally:
            list(session.execute("ROLLBACK"))
        assert found[0] == found[1] + found[2] == TOTAL
        return {found[1]}

    with bank.busy():
        bank.there.execute("ALTER TABLE ann ADD kind text DEFAULT 'k'", "ALTER TABLE bob ADD kind text DEFAULT 'k'")
        done: list[Any] = []
        thread = threading.Thread(target=lambda: done.append(bank.sql("ALTER SOURCE pg# REFRESH SCHEMA").notices))
        thread.start()
        while thread.is_alive():
            look()
            thread.join(0.2)
        assert len(done[0]) == 2
        seen = look()
        eventually(lambda: seen.update(look()) or len(seen) > 5)
    session.close()
    eventually(lambda: is_as_there(bank, "id, amount, kind") and is_as_there(bank, "id, amount, kind", "bob"))
    bank.drop()


def test_indexes_subscriptions_and_sinks_go_on(logical: Postgres, database: Database) -> None:
    bank = Bank(logical, database)
    bank.follow("ann")
    bank.sql("CREATE TABLE big# (amount bigint PRIMARY KEY, name text); INSERT INTO big# VALUES (100, 'C'), (7, 'VII')")
    bank.sql("CREATE INDEX by_amount# ON ann# (amount) INCLUDE (id); CREATE INDEX unused# ON ann# (id)")
    bank.sql("CREATE MATERIALIZED VIEW named# AS SELECT b.name, a.id FROM big# b JOIN ann# a ON a.amount = b.amount")
    bank.sql("CREATE SUBSCRIPTION log# FROM ann# WITH (retention = '1 day')")
    bank.sql("CREATE TABLE copy# (id int PRIMARY KEY, amount bigint); CREATE SINK into# INTO copy# FROM ann#")
    bank.there.execute(ADDED)
    session = database.session()
    try:
        said(session, f"DECLARE c SUBSCRIPTION CURSOR FOR log{bank.number}")
        bank.sql("ALTER TABLE ann# REFRESH SCHEMA")
        bank.there.execute("UPDATE ann SET amount = 7, kind = 'new' WHERE id = 1", "DELETE FROM ann WHERE id = 2")
        eventually(lambda: is_as_there(bank, "id, amount, kind, note"))
        named = "SELECT b.name, a.id FROM big# b JOIN ann# a ON a.amount = b.amount"
        eventually(lambda: bank.rows("SELECT name, id FROM named#") == bank.rows(named))
        eventually(lambda: bank.rows("SELECT id, amount FROM copy#") == sorted(bank.ask("SELECT id, amount FROM ann")))
        changes: list[Any] = []

        def followed() -> bool:
            changes.extend(row[:3] for row in said(session, "FETCH 10 FROM c"))
            return len(changes) >= 3

        eventually(followed)
        wanted = [(1, 7, "Insert"), (1, 100, "Delete"), (2, 100, "Delete")]
        assert sorted(changes) == wanted
    finally:
        session.close()
    shown = "SELECT name, relation FROM headrace_catalog.{} WHERE {} ORDER BY 1"
    number = bank.number
    on_table = bank.rows(shown.format("indexes", "NOT automatic"))
    assert on_table == [(f"by_amount{number}", f"ann{number}"), (f"unused{number}", f"ann{number}")]
    assert bank.rows("SELECT used_by FROM headrace_catalog.indexes WHERE automatic") == [(f"named{number}",)]
    assert bank.rows(shown.format("subscriptions", "true")) == [(f"log{number}", f"ann{number}")]
    assert bank.rows("SELECT id, kind FROM ann# WHERE amount = 7") == [(1, "new")]
    bank.sql("DROP SUBSCRIPTION log#; DROP SINK into#; DROP MATERIALIZED VIEW named#")
    assert bank.rows("SELECT name FROM headrace_catalog.indexes WHERE automatic") == []
    assert jobs(bank) == {"ann#", "by_amount#", "unused#"}
    bank.sql("DROP TABLE copy#; DROP TABLE big#")
    bank.drop()


def test_a_table_with_a_slot_of_its_own_shares_it_then(logical: Postgres, database: Database) -> None:
    bank = Bank(logical, database)
    bank.drop()
    bank.sql(own(bank, "ann", ", source_rate_limit = 100000"))
    bank.sql("CREATE MATERIALIZED VIEW sums# AS SELECT count(*) AS n, sum(amount) AS s FROM ann#")
    bank.there.execute("UPDATE ann SET amount = 3 WHERE id = 3")
    with bank.busy():
        bank.there.execute(ADDED, "UPDATE ann SET note = 'n' WHERE id = 3")
        bank.sql("ALTER TABLE ann# ADD COLUMN note text")
        for _ in range(20):
            ((n, s), (wanted_n, wanted_s)) = bank.rows(
                "SELECT n, s FROM sums# UNION ALL SELECT count(*), sum(amount) FROM ann#"
            )
            assert (n, s) == (wanted_n, wanted_s), "of one moment"
    bank.sql("ALTER TABLE ann# REFRESH SCHEMA")
    eventually(lambda: is_as_there(bank, "id, amount, note, kind"))
    eventually(lambda: bank.rows("SELECT n, s FROM sums#") == bank.ask("SELECT count(*), sum(amount) FROM ann"))
    assert [
        c
        for (c,) in bank.rows(
            f"SELECT column_name FROM information_schema.columns WHERE table_name = 'ann{bank.number}'"
        )
    ] == ["amount", "id", "kind", "note"]
    slots = bank.rows("SELECT source, slot FROM headrace_catalog.replication_slots WHERE source LIKE 'ann#%'")
    assert slots == [(f"ann{bank.number}$slot", f"{bank.slot}_ann")]
    bank.sql("ALTER MATERIALIZED VIEW ann# SET (source_rate_limit = 50000)")
    assert bank.rows("SHOW SOURCES") == []
    bank.sql("DROP TABLE ann# CASCADE")
    assert bank.ask("SELECT slot_name FROM pg_replication_slots") == []
    assert bank.ask("SELECT pubname FROM pg_publication") == []
    assert bank.rows("SELECT name FROM headrace_catalog.sources") == []


def test_a_paused_table_holds_what_reads_it(logical: Postgres, database: Database) -> None:
    bank = Bank(logical, database)
    bank.follow("ann")
    bank.sql("CREATE MATERIALIZED VIEW sums# AS SELECT sum(amount) AS s FROM ann#")
    bank.there.execute("ALTER TABLE ann ADD kind text")
    bank.sql("ALTER MATERIALIZED VIEW ann# PAUSE")
    with pytest.raises(HeadraceError, match="does not run"):
        bank.sql("ALTER TABLE ann# REFRESH SCHEMA")
    bank.sql("ALTER MATERIALIZED VIEW ann# RESUME; ALTER TABLE ann# REFRESH SCHEMA")
    bank.sql("ALTER MATERIALIZED VIEW ann# PAUSE")
    status = bank.rows("SELECT name, status FROM headrace_catalog.jobs")
    assert [s for name, s in status if name.startswith(f"ann{bank.number}")] == ["paused", "paused"]
    bank.sql("ALTER MATERIALIZED VIEW ann# RESUME; CREATE ROLE heir#; ALTER MATERIALIZED VIEW ann# OWNER TO heir#")
    owners = {o.owner for o in database.catalog.state.objects.values() if o.name.startswith(f"ann{bank.number}")}
    assert len(owners) == 1 and owners != {0}
    bank.sql("DROP TABLE ann# CASCADE; DROP ROLE heir#")
    bank.drop()


def test_tables_of_a_group_go_on_in_step(logical: Postgres, database: Database) -> None:
    bank = Bank(logical, database)
    bank.sql(
        "CREATE TABLE ann# (id int PRIMARY KEY, amount bigint) FROM pg# TABLE 'ann' WITH (checkpoint_group = 'g#')"
    )
    bank.sql("CREATE MATERIALIZED VIEW sums# WITH (checkpoint_group = 'g#') AS SELECT sum(amount) AS s FROM ann#")
    bank.there.execute(ADDED, "UPDATE ann SET amount = 1 WHERE id = 1")
    bank.sql("ALTER TABLE ann# REFRESH SCHEMA")
    with bank.busy():
        for _ in range(10):
            ((s, t),) = bank.rows("SELECT s, (SELECT sum(amount) FROM ann#) FROM sums#")
            assert s == t
    assert bank.rows("SELECT count(*) FROM headrace_catalog.jobs WHERE checkpoint_group = 'g#'") == [(3,)]
    eventually(lambda: is_as_there(bank, "id, amount, kind, note"))
    bank.drop()


def given_up(check: Check) -> bool:
    try:
        check()
    except QueryCanceled:
        return True
    return False


def test_a_statement_that_is_cancelled_when_it_has_succeeded_leaves_nothing(
    logical: Postgres, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    bank = Bank(logical, database)
    bank.follow("ann")
    bank.there.execute(ADDED)
    succeed, session = Coordinator.succeed, database.session()

    def cancelled(self: Coordinator, new: int, old: int, indexes: Mapping[int, int], check: Check) -> None:
        succeed(self, new, old, indexes, check)
        session.cancel()
        eventually(lambda: given_up(check))

    monkeypatch.setattr(Coordinator, "succeed", cancelled)
    with pytest.raises(QueryCanceled):
        said(session, f"ALTER TABLE ann{bank.number} REFRESH SCHEMA")
    session.close()
    assert jobs(bank) == {"ann#"} and bank.rows("SELECT count(kind) FROM ann#") == bank.ask("SELECT count(*) FROM ann")
    bank.drop()


def test_one_statement_adds_columns_at_a_time(
    logical: Postgres, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    bank = Bank(logical, database)
    bank.follow("ann")
    bank.follow("bob")
    bank.there.execute("ALTER TABLE ann ADD kind text DEFAULT 'k'", "ALTER TABLE bob ADD kind text DEFAULT 'k'")
    succeed, filled, goes_on, errors = Coordinator.succeed, threading.Event(), threading.Event(), list[Any]()

    def late(self: Coordinator, new: int, old: int, indexes: Mapping[int, int], check: Check) -> None:
        filled.set()
        assert goes_on.wait(60)
        succeed(self, new, old, indexes, check)

    monkeypatch.setattr(Coordinator, "succeed", late)
    session = database.session()
    thread = threading.Thread(target=said, args=(session, f"ALTER TABLE bob{bank.number} REFRESH SCHEMA"))
    thread.start()
    assert filled.wait(60)
    try:
        for text in ("ALTER SOURCE pg# REFRESH SCHEMA", "ALTER TABLE bob# ADD COLUMN kind text"):
            with pytest.raises(HeadraceError, match=rf'added to "bob{bank.number}" by another statement') as caught:
                bank.sql(text)
            errors.append(caught.value.sqlstate)
    finally:
        goes_on.set()
        thread.join()
        session.close()
    assert errors == ["55006"] * 2
    ann = next(o for o in database.catalog.state.objects.values() if o.name == f"ann{bank.number}")
    columns = [c.name for c in ann.columns]
    assert columns == ["id", "amount"], "nothing has been done to the others"
    notices = bank.sql("ALTER SOURCE pg# REFRESH SCHEMA").notices
    assert sorted(str(n).split()[0] for n in notices) == ["table", "there"]
    assert bank.rows("SELECT count(kind) FROM bob#") == bank.ask("SELECT count(*) FROM bob")
    bank.drop()


def test_what_is_refused(logical: Postgres, database: Database) -> None:
    bank = Bank(logical, database)
    bank.follow("ann")
    bank.sql("CREATE MATERIALIZED VIEW seen# AS SELECT id FROM ann#; CREATE TABLE plain# (id int)")
    bank.there.execute(
        "ALTER TABLE ann ADD kind text, ADD list int[], ADD twice bigint GENERATED ALWAYS AS (amount * 2) STORED"
    )
    before = sorted(o.name for o in database.catalog.state.objects.values())
    for text, said in (
        ("ALTER TABLE ann# ADD COLUMN nowhere int", 'has no column "nowhere"'),
        ("ALTER TABLE ann# ADD COLUMN twice bigint", 'has no column "twice"'),
        ("ALTER TABLE ann# ADD COLUMN amount bigint", "already exists"),
        ("ALTER TABLE ann# ADD COLUMN kind text DEFAULT 'x'", "DEFAULT, NOT NULL"),
        ("ALTER TABLE ann# ADD COLUMN kind text NOT NULL", "DEFAULT, NOT NULL"),
        ("ALTER TABLE ann# ADD COLUMN kind text, ADD COLUMN kind text", "more than once"),
        ("ALTER TABLE ann# ADD COLUMN list int", "is an array"),
        ("ALTER TABLE ann# ADD COLUMN kind jsonb", "of a connector"),
        ("ALTER TABLE ann# DROP COLUMN amount", "not supported"),
        ("ALTER MATERIALIZED VIEW seen# REFRESH SCHEMA", "REFRESH SCHEMA"),
        ("ALTER TABLE plain# REFRESH SCHEMA", "REFRESH SCHEMA"),
        ("ALTER SOURCE ann# REFRESH SCHEMA", "is not a source"),
        ("ALTER TABLE none# REFRESH SCHEMA", "does not exist"),
    ):
        with pytest.raises(HeadraceError, match=said):
            bank.sql(text)
    assert bank.sql("ALTER TABLE IF EXISTS none# ADD COLUMN a int").notices != []
    assert sorted(o.name for o in database.catalog.state.objects.values()) == before, "nothing is left"
    bank.sql("ALTER TABLE ann# REFRESH SCHEMA")
    former = next(o.name for o in database.catalog.state.objects.values() if o.name.startswith(f"ann{bank.number}$"))
    for text in (f'DROP MATERIALIZED VIEW "{former}" CASCADE', f'ALTER MATERIALIZED VIEW "{former}" PAUSE'):
        with pytest.raises(HeadraceError, match="was before it got columns"):
            bank.sql(text)
    bank.there.execute("UPDATE ann SET list = '{1,2}' WHERE id = 1")
    eventually(lambda: bank.rows("SELECT count(list) FROM ann#") == [(1,)])
    bank.there.execute("ALTER TABLE ann DROP COLUMN list, ADD other int", "UPDATE ann SET amount = 1 WHERE id = 1")
    errors = "SELECT error FROM headrace_catalog.{} WHERE error IS NOT NULL"
    eventually(lambda: "list" in str([bank.rows(errors.format(name)) for name in ("sources", "jobs")]))
    with pytest.raises(HeadraceError, match="list"):
        bank.sql("ALTER TABLE ann# REFRESH SCHEMA")
    bank.sql("DROP TABLE ann# CASCADE; DROP TABLE plain#")
    bank.drop()
