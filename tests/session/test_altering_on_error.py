"""ALTER ... SET on_error of what failed at a value: what reads it goes on, as if it had been so from the beginning."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bank import Bank
from pyspark.sql import SparkSession

from headrace.config import Settings
from headrace.errors import HeadraceError
from headrace.session.database import Database, connect
from headrace.session.defined import as_created
from headrace.session.execution import refreshing
from kafka import Kafka
from lakes import DeltaLake
from postgres import Postgres
from support import eventually


def rows(database: Database, text: str) -> list[Any]:
    return sorted(database.sql(text).rows(), key=str)


def failing(database: Database, name: str) -> bool:
    found = database.sql(f"SELECT status, error FROM headrace_catalog.jobs WHERE name = '{name}'").rows()
    return bool(found) and found[0][0] == "failing" and found[0][1] is not None


VIEWS = {
    "all": "SELECT * FROM {}",
    "sum": "SELECT k, sum(a) AS s, count(*) AS n FROM {} GROUP BY k",
    "other": "SELECT b FROM {}",
    "n": "SELECT count(*) AS n FROM {}",
}
"""Queries of a source, of which some do not read what is at fault."""


def created(database: Database, source: str, prefix: str) -> None:
    for name, query in VIEWS.items():
        database.sql(f"CREATE MATERIALIZED VIEW {prefix}_{name} AS {query.format(source)}")


def alike(database: Database, *prefixes: str) -> bool:
    """Whether the views of several prefixes have the same rows, each."""
    return all(
        rows(database, f"SELECT * FROM {prefix}_{name}") == rows(database, f"SELECT * FROM {prefixes[0]}_{name}")
        for name in VIEWS for prefix in prefixes[1:]
    )  # fmt: skip


def text_of(folder: Path, policy: str = "fail") -> str:
    return f"WITH (connector = 'files', path = '{folder}', on_error = '{policy}') FORMAT PLAIN ENCODE JSON"


GOOD = '{"k": "x", "a": 1, "b": "p"}\n{"k": "y", "a": 2, "b": "q"}\n'
BAD = (
    '{"k": "x", "a": "no number", "b": "r"}\n{"k": null, "a": 5, "b": "s"}\n{"k": "y", "a": 6}\nno json\n'
    '{"k": "y", "a": {"c": 1}, "b": "t"}\n'
)


@pytest.mark.parametrize("policy", ["null", "skip"])
def test_views_of_files_go_on_as_if_it_had_been_so_all_along(database: Database, tmp_path: Path, policy: str) -> None:
    """Also the rows without a value of a NOT NULL column, and those of views that do not read what is at fault."""
    name, columns = f"f_{policy}", "(k text NOT NULL, a int, b text)"
    (tmp_path / "1.json").write_text(GOOD)
    database.sql(f"CREATE SOURCE {name} {columns} {text_of(tmp_path)}")
    created(database, name, name)
    (tmp_path / "2.json").write_text(BAD)
    eventually(lambda: failing(database, f"{name}_all"))
    assert rows(database, f"SELECT a FROM {name}_all") == [(1,), (2,)]
    (message,) = database.sql(f"SELECT error FROM headrace_catalog.jobs WHERE name = '{name}_all'").rows()[0]
    assert "no number" in message
    with pytest.raises(HeadraceError, match="no number") as caught:
        database.sql(f"SELECT * FROM {name}").rows()
    assert "ALTER SOURCE s SET on_error = 'null'" in f"{caught.value.hint}"
    assert database.sql(f"ALTER SOURCE {name} SET on_error = '{policy}'").tag == "ALTER SOURCE"
    eventually(lambda: not failing(database, f"{name}_all") and len(rows(database, f"SELECT * FROM {name}_all")) > 2)
    database.sql(f"CREATE SOURCE {name}_made {columns} {text_of(tmp_path, policy)}")
    created(database, f"{name}_made", f"{name}_made")
    created(database, name, f"{name}_later")
    eventually(lambda: alike(database, name, f"{name}_made", f"{name}_later"))
    (tmp_path / "3.json").write_text(BAD + GOOD)
    seen = 10 if policy == "null" else 6
    eventually(lambda: rows(database, f"SELECT n FROM {name}_n") == [(seen,)])
    eventually(lambda: alike(database, name, f"{name}_made", f"{name}_later"))
    assert rows(database, f"SELECT * FROM {name}") == rows(database, f"SELECT * FROM {name}_all")


def test_a_restart_finds_it_so(spark: SparkSession, tmp_path: Path) -> None:
    settings = Settings(run_fsync=False, catalog_commit_sync=False, barrier_interval_ms=100)
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "1.json").write_text(GOOD)
    with connect(tmp_path / "d", spark=spark, settings=settings) as first:
        first.sql(f"CREATE SOURCE s (k text NOT NULL, a int, b text) {text_of(folder)}")
        first.sql(f"CREATE TABLE t (k text, a int) {text_of(folder)}")
        created(first, "s", "s")
        (folder / "2.json").write_text(BAD)
        eventually(lambda: failing(first, "s_all") and failing(first, "t"))
        first.sql("ALTER SOURCE s SET on_error = 'null'; ALTER TABLE t SET on_error = 'null'")
    with connect(tmp_path / "d", spark=spark, settings=settings) as second:
        eventually(lambda: rows(second, "SELECT n FROM s_n") == [(5,)])
        eventually(lambda: rows(second, "SELECT count(*) FROM t") == [(7,)])
        created(second, "s", "later")
        eventually(lambda: alike(second, "s", "later"))


def test_what_is_refused(database: Database, tmp_path: Path) -> None:
    (tmp_path / "1.json").write_text(GOOD)
    database.sql(f"CREATE SOURCE r_s (k text, a int) {text_of(tmp_path)}")
    database.sql(f"CREATE TABLE r_t (k text, a int) {text_of(tmp_path)}")
    database.sql("ALTER SOURCE r_s SET on_error = 'fail'; ALTER TABLE r_t SET on_error = DEFAULT")
    for text, said, hint in (
        ("SOURCE r_s SET on_error = 'ignore'", "must be one of fail, null, skip", None),
        ("TABLE r_t SET on_error = 'skip'", "'skip' of table \"r_t\", which has been read with", "'null'"),
        ("TABLE r_t SET (on_error = 'null', source_rate_limit = 5)", "at once", "one ALTER for each"),
    ):
        with pytest.raises(HeadraceError, match=said) as caught:
            database.sql(f"ALTER {text}")
        assert hint is None or hint in f"{caught.value.hint}"
    database.sql("ALTER SOURCE r_s SET (on_error = 'null', source_rate_limit = 1000)")
    database.sql("ALTER SOURCE r_s SET on_error = 'null'; ALTER TABLE r_t SET on_error = 'null'")
    for what in ("SOURCE r_s SET on_error = 'fail'", "SOURCE r_s SET on_error = 'skip'", "TABLE r_t SET on_error = "
                 "DEFAULT"):  # fmt: skip
        with pytest.raises(HeadraceError, match="which has 'null'") as caught:
            database.sql(f"ALTER {what}")
        assert caught.value.sqlstate == "0A000" and "create another one" in f"{caught.value.hint}"


def test_of_two_at_once_one_holds(database: Database, tmp_path: Path) -> None:
    (tmp_path / "1.json").write_text(GOOD)
    database.sql(f"CREATE SOURCE both (k text, a int) {text_of(tmp_path)}")
    refused: list[str] = []

    def alter(policy: str) -> None:
        try:
            database.sql(f"ALTER SOURCE both SET on_error = '{policy}'")
        except HeadraceError as error:
            refused.append(error.message)

    threads = [threading.Thread(target=alter, args=(policy,)) for policy in ("null", "skip")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 1 and "would stay as they are" in refused[0]


def test_it_is_shown_as_it_is_now(database: Database, tmp_path: Path) -> None:
    """As statements that make another one of the kind, by whatever shows definitions."""
    (tmp_path / "1.json").write_text(GOOD)
    form = f"WITH (connector = 'files', path = '{tmp_path}', source_rate_limit = 500) FORMAT PLAIN ENCODE JSON"
    made = {"SOURCE": f'CREATE SOURCE "Shown" (k text, a int) {form}', "TABLE": f'CREATE TABLE "Kept" (k text) {form}'}

    def shown(kind: str, name: str) -> str:
        return str(database.sql(f'SHOW CREATE {kind} "{name}"').rows()[0][1])

    for kind, name in (("SOURCE", "Shown"), ("TABLE", "Kept")):
        database.sql(made[kind])
        assert shown(kind, name) == made[kind] == as_created(made[kind])
        database.sql(f"""ALTER {kind} "{name}" SET on_error = null; ALTER {kind} "{name}" SET source_rate_limit = 9""")
        text = shown(kind, name)
        rate, policy = (f'ALTER {kind} "{name}" SET ({o})' for o in ("source_rate_limit = '9'", "on_error = 'null'"))
        assert sorted(text.split(";\n")) == sorted([made[kind], rate, policy])
        assert as_created(text) == made[kind]
        database.sql(f'DROP {kind} "{name}"; {text}')
        assert shown(kind, name) == text
        database.sql(f'ALTER {kind} "{name}" SET source_rate_limit = 500')
        assert shown(kind, name) == f"{made[kind]};\n{policy}"
    database.sql('ALTER SOURCE "Shown" SET (source_rate_limit = DEFAULT, max_rows_per_epoch = 7)')
    text = shown("SOURCE", "Shown")
    assert "source_rate_limit = DEFAULT" in text and "max_rows_per_epoch = '7'" in text
    assert database.sql("SELECT definition FROM rw_catalog.rw_sources WHERE name = 'Shown'").rows() == [(text,)]


@pytest.mark.parametrize("policy", ["null", "skip"])
def test_views_of_a_lake(database: Database, tmp_path: Path, policy: str) -> None:
    lake, name = DeltaLake(tmp_path), f"l_{policy}"
    columns = "(id bigint, v text NOT NULL, p text)"
    views = {"all": "SELECT * FROM {}", "p": "SELECT p FROM {}", "n": "SELECT count(*) AS n FROM {}"}

    def made(source: str, prefix: str) -> None:
        for view, query in views.items():
            database.sql(f"CREATE MATERIALIZED VIEW {prefix}_{view} AS {query.format(source)}")

    def same(*prefixes: str) -> bool:
        return all(len({str(rows(database, f"SELECT * FROM {p}_{v}")) for p in prefixes}) == 1 for v in views)

    lake.append([(1, "x", "a")])
    database.sql(f"CREATE SOURCE {name} {columns} WITH ({lake.sql()})")
    made(name, name)
    lake.append([(2, "y", "b"), (3, None, "c")])
    eventually(lambda: all(failing(database, f"{name}_{view}") for view in views))
    database.sql(f"ALTER SOURCE {name} SET on_error = '{policy}'")
    eventually(lambda: rows(database, f"SELECT id FROM {name}_all") == [(1,), (2,)])
    database.sql(f"CREATE SOURCE {name}_made {columns} WITH ({lake.sql(on_error=policy)})")
    made(f"{name}_made", f"{name}_made")
    made(name, f"{name}_later")
    eventually(lambda: same(name, f"{name}_made", f"{name}_later"))
    lake.append([(4, "u", "d"), (5, None, "e")])
    lake.delete([1, 3])
    eventually(lambda: rows(database, f"SELECT p FROM {name}_p") == [("b",), ("d",)])
    eventually(lambda: same(name, f"{name}_made", f"{name}_later"))


def test_topics(database: Database, kafka: Kafka) -> None:
    topic = kafka.topic("poisoned", 1)
    way = f"WITH (connector = 'kafka', topic = '{topic}', properties.bootstrap.server = '{kafka.servers}'"
    form = ") FORMAT PLAIN ENCODE JSON"
    database.sql(f"CREATE SOURCE k_s (a int, b text) {way}{form}")
    database.sql(f"CREATE TABLE k_t (a int PRIMARY KEY, b text) {way}{form}")
    database.sql("CREATE MATERIALIZED VIEW k_b AS SELECT b FROM k_s")
    database.sql("CREATE MATERIALIZED VIEW k_n AS SELECT count(*) AS n FROM k_t")
    kafka.send(topic, '{"a": 1, "b": "x"}', '{"a": "one", "b": "y"}', '{"a": 2, "b": "z"}')
    eventually(lambda: failing(database, "k_b") and failing(database, "k_t"))
    database.sql("ALTER SOURCE k_s SET on_error = 'null'; ALTER TABLE k_t SET on_error = 'null'")
    eventually(lambda: rows(database, "SELECT b FROM k_b") == [("x",), ("y",), ("z",)])
    eventually(lambda: rows(database, "SELECT * FROM k_t") == [(1, "x"), (2, "z")])
    eventually(lambda: rows(database, "SELECT n FROM k_n") == [(2,)])
    kafka.send(topic, '{"a": {}, "b": "v"}', '{"a": 2, "b": "w"}')
    eventually(lambda: rows(database, "SELECT * FROM k_t") == [(1, "x"), (2, "w")])
    assert rows(database, "SELECT count(*) FROM k_s WHERE a IS NULL") == [(2,)]


def own(bank: Bank, table: str, columns: str) -> str:
    options = bank.options().replace(bank.slot, f"{bank.slot}_{table}")
    return f"CREATE TABLE {table}# ({columns}) WITH ({options}, table.name = '{table}')"


def poisoned(bank: Bank, table: str) -> Callable[[], bool]:
    return lambda: failing(bank.database, f"{table}{bank.number}")


@pytest.mark.parametrize("shared", [False, True])
def test_tables_of_postgres(logical: Postgres, database: Database, shared: bool) -> None:
    """Of a slot of its own, and of one of several; in the content, and in what changes."""
    bank = Bank(logical, database)
    bank.there.execute("CREATE TABLE nums (id int PRIMARY KEY, n numeric)", "INSERT INTO nums VALUES (1, 1.5)")
    columns = "id int PRIMARY KEY, n numeric(38, 10)"
    bank.sql(f"CREATE TABLE nums# ({columns}) FROM pg# TABLE 'nums'" if shared else own(bank, "nums", columns))
    bank.sql("CREATE MATERIALIZED VIEW n# AS SELECT count(*) AS n, count(n) AS m FROM nums#")
    bank.there.execute("INSERT INTO nums VALUES (2, 'NaN'), (3, 2)")
    eventually(poisoned(bank, "nums"))
    with pytest.raises(HeadraceError, match="each of its tables has its own") as caught:
        bank.sql("ALTER SOURCE pg# SET on_error = 'null'")
    assert "ALTER TABLE t" in f"{caught.value.hint}"
    bank.sql("ALTER TABLE nums# SET on_error = 'null'")
    eventually(lambda: bank.rows("SELECT id, n IS NULL FROM nums#") == [(1, False), (2, True), (3, False)])
    eventually(lambda: bank.rows("SELECT n, m FROM n#") == [(3, 2)])
    bank.there.execute("UPDATE nums SET n = 7 WHERE id = 2", "UPDATE nums SET n = 'NaN' WHERE id = 1")
    eventually(lambda: bank.rows("SELECT id, n IS NULL FROM nums#") == [(1, True), (2, False), (3, False)])
    if not shared:
        bank.sql("DROP TABLE nums# CASCADE")
    bank.drop()


def test_content_of_postgres_that_was_bound_with_fail(logical: Postgres, database: Database) -> None:
    """The table is not there yet: whoever creates it is told, and what waits for it meanwhile can be altered."""
    bank = Bank(logical, database)
    bank.there.execute("CREATE TABLE nums (id int PRIMARY KEY, n numeric)", "INSERT INTO nums VALUES (1, 'NaN')")
    text = "CREATE TABLE nums# (id int PRIMARY KEY, n numeric(38, 10)) FROM pg# TABLE 'nums'"
    with pytest.raises(HeadraceError, match="NaN"):
        bank.sql(text)
    bank.sql(f"{text} WITH (on_error = 'null')")
    assert bank.rows("SELECT * FROM nums#") == [(1, None)]
    bank.drop()


def test_a_table_of_postgres_that_got_columns(logical: Postgres, database: Database) -> None:
    """What was built on it before that goes on, too: the source of then has the policy as well."""
    bank = Bank(logical, database)
    bank.there.execute("CREATE TABLE nums (id int PRIMARY KEY, n numeric)", "INSERT INTO nums VALUES (1, 1.5)")
    bank.sql("CREATE TABLE nums# (id int PRIMARY KEY, n numeric(38, 10)) FROM pg# TABLE 'nums'")
    bank.sql("CREATE MATERIALIZED VIEW n# AS SELECT count(*) AS n, count(n) AS m FROM nums#")
    bank.there.execute("ALTER TABLE nums ADD more int")
    bank.sql("ALTER TABLE nums# ADD COLUMN more int")
    bank.there.execute("INSERT INTO nums VALUES (2, 'NaN', 5)")
    eventually(poisoned(bank, "nums"))
    bank.sql("ALTER TABLE nums# SET on_error = 'null'")
    eventually(lambda: bank.rows("SELECT id, more FROM nums#") == [(1, None), (2, 5)])
    eventually(lambda: bank.rows("SELECT n, m FROM n#") == [(2, 1)])
    bank.sql("DROP TABLE nums# CASCADE")
    bank.drop()


@pytest.mark.parametrize("shared", [False, True])
def test_while_a_table_gets_columns(
    logical: Postgres, database: Database, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    """What is filled beside it has the policy of then, and while it is filled there is no other one."""
    bank = Bank(logical, database)
    bank.there.execute("CREATE TABLE nums (id int PRIMARY KEY, n numeric)", "INSERT INTO nums VALUES (1, 1.5)")
    columns = "id int PRIMARY KEY, n numeric(38, 10)"
    bank.sql(f"CREATE TABLE nums# ({columns}) FROM pg# TABLE 'nums'" if shared else own(bank, "nums", columns))
    bank.there.execute("ALTER TABLE nums ADD more int")
    checked, filled, refused = refreshing._check_there, refreshing.new_table, list[str]()

    def alter() -> None:
        other = database.session()
        try:
            list(other.execute(f"ALTER TABLE nums{bank.number} SET on_error = 'null'"))
        except HeadraceError as error:
            refused.append(error.message)
        finally:
            other.close()

    monkeypatch.setattr(refreshing, "_check_there", lambda *given: (checked(*given), alter()))
    monkeypatch.setattr(refreshing, "new_table", lambda *given: (alter(), filled(*given))[1])
    bank.sql("ALTER TABLE nums# ADD COLUMN more int")
    assert refused == [f'columns are being added to "nums{bank.number}" by another statement']
    bank.there.execute("INSERT INTO nums VALUES (2, 'NaN', 5)")
    eventually(lambda: bank.rows("SELECT id, more FROM nums#") == [(1, None), (2, 5)])
    bank.sql("DROP TABLE nums# CASCADE")
    bank.drop()
