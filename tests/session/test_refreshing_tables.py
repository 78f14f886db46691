"""Tables that follow one of PostgreSQL get the columns that come there, while all that reads them goes on."""

from __future__ import annotations

from headrace.session.database import Database
from postgres import Postgres
from support import eventually
from test_shared_source import Bank


def test_a_table_gets_columns_with_their_values(logical: Postgres, database: Database) -> None:
    bank = Bank(logical, database)
    bank.follow("ann")
    bank.sql("CREATE MATERIALIZED VIEW sums# AS SELECT count(*) AS n, sum(amount) AS s FROM ann#")
    bank.sql("CREATE VIEW plain# AS SELECT * FROM ann#")
    with bank.busy() as moved:
        bank.there.execute("ALTER TABLE ann ADD kind text DEFAULT 'old', ADD note text", "UPDATE ann SET note = 'n' WHERE id = 3")
        result = bank.sql("ALTER TABLE ann# REFRESH SCHEMA")
        assert result.notices == [f'table "ann{bank.number}" has new columns: "kind" text, "note" text']
        before = moved()
        bank.there.execute("UPDATE ann SET kind = 'new' WHERE id = 1", "INSERT INTO ann VALUES (50, 0, 'x', 'y')")
        eventually(lambda: moved() > before + 20)
    there = "SELECT id, amount, kind, note FROM ann"
    eventually(lambda: bank.rows("SELECT id, amount, kind, note FROM ann#") == sorted(bank.ask(there)))
    eventually(lambda: bank.rows("SELECT n, s FROM sums#") == bank.ask("SELECT count(*), sum(amount) FROM ann"))
    assert bank.rows("SELECT * FROM plain#") == sorted(bank.ask("SELECT id, amount FROM ann"))
    bank.sql("CREATE MATERIALIZED VIEW kinds# AS SELECT kind, count(*) AS n FROM ann# GROUP BY kind")
    assert bank.rows("SELECT kind, n FROM kinds#") == sorted(bank.ask("SELECT kind, count(*) FROM ann GROUP BY kind"))
    bank.sql("DROP MATERIALIZED VIEW sums#")
    assert bank.rows("SELECT name FROM headrace_catalog.jobs") == []
    bank.drop()
