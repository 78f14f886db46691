"""ALTER ... RENAME TO: what reads a relation goes on, rights and comments stay, and texts say the new name."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from clients import run
from headrace.common.faults import arm, disarm_all
from headrace.config import Settings
from headrace.errors import HeadraceError
from headrace.session import names
from headrace.session.database import Database, connect
from headrace.session.execution import ddl, dml, dropping, replacing_tables, upkeep
from support import eventually


def opened(folder: Path, spark: SparkSession) -> Database:
    settings = Settings(data_dir=folder, run_fsync=False, catalog_commit_sync=False, barrier_interval_ms=100)
    return connect(folder, spark=spark, settings=settings)


@pytest.fixture(scope="module")
def database(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with opened(tmp_path_factory.mktemp("renamed"), spark) as found:
        yield found


def rows(database: Database, text: str) -> list[Any]:
    return sorted(database.sql(text).rows(), key=str)


def refused(database: Database, text: str) -> HeadraceError:
    with pytest.raises(HeadraceError) as failure:
        database.sql(text)
    return failure.value


def definition(database: Database, name: str) -> str:
    found = next(o for o in database.catalog.state.objects.values() if o.name == name)
    return found.definition


def test_what_reads_a_table_goes_on_and_names_it(spark: SparkSession, tmp_path: Path) -> None:
    with opened(tmp_path, spark) as database:
        database.sql(
            "CREATE TABLE a (k int PRIMARY KEY, v int); CREATE INDEX a_v ON a (v); INSERT INTO a VALUES (1, 10); "
            "CREATE MATERIALIZED VIEW m AS SELECT a.v, count(*) AS n FROM a GROUP BY a.v; "
            "CREATE VIEW p AS SELECT a.k, a.v FROM a WHERE v > 5; CREATE VIEW pp AS SELECT k FROM p; "
            "CREATE SUBSCRIPTION q FROM a WITH (retention = '1 day'); "
            "CREATE SINK s FROM a WITH (connector = 'blackhole'); "
            "COMMENT ON TABLE a IS 'about'; COMMENT ON COLUMN a.v IS 'a number'; CREATE ROLE reader; "
            "GRANT SELECT ON a TO reader"
        )
        before = {o.name: o for o in database.catalog.state.objects.values()}
        assert database.sql("ALTER TABLE a RENAME TO b").tag == "ALTER TABLE"
        after = {o.name: o for o in database.catalog.state.objects.values()}
        assert after["b"].id == before["a"].id and "a" not in after
        assert (after["b"].grants, after["b"].comments) == (before["a"].grants, before["a"].comments)
        assert definition(database, "b").startswith("CREATE TABLE b (k int")
        assert definition(database, "a_v") == "CREATE INDEX a_v ON b (v)"
        assert definition(database, "m").endswith("SELECT a.v, count(*) AS n FROM b AS a GROUP BY a.v")
        assert definition(database, "p") == "CREATE VIEW p AS SELECT a.k, a.v FROM b AS a WHERE v > 5"
        assert definition(database, "pp") == before["pp"].definition
        assert definition(database, "q").startswith("CREATE SUBSCRIPTION q FROM b WITH")
        assert definition(database, "s").startswith("CREATE SINK s FROM b WITH")
        assert refused(database, "SELECT * FROM a").sqlstate == "42P01"
        check(database, [1])
        # Another one may have the name now, and is no business of what read the first.
        database.sql("CREATE TABLE a (k int PRIMARY KEY, v int); INSERT INTO a VALUES (7, 70)")
        check(database, [1])
        database.sql("INSERT INTO b VALUES (2, 20); FLUSH")
        check(database, [1, 2])
    with opened(tmp_path, spark) as database:
        check(database, [1, 2])
        assert {s for _, s in database.sql("SELECT name, status FROM headrace_catalog.jobs").rows()} <= {"running"}
        database.sql("ALTER MATERIALIZED VIEW m RENAME TO mm; ALTER VIEW p RENAME TO p2; ALTER INDEX a_v RENAME TO i")
        database.sql("ALTER SINK s RENAME TO s2; INSERT INTO b VALUES (3, 30); FLUSH")
        assert rows(database, "SELECT v, n FROM mm") == [(10, 1), (20, 1), (30, 1)]
        assert rows(database, "SELECT k FROM pp") == [(1,), (2,), (3,)]
        assert definition(database, "pp").endswith("SELECT k FROM p2 AS p")
        database.sql("DROP TABLE b CASCADE; DROP TABLE a")
        kinds = {o.kind for o in database.catalog.state.objects.values()}
        assert kinds <= {"role", "schema"}


def check(database: Database, keys: list[int]) -> None:
    wanted = [(k,) for k in keys]
    assert rows(database, "SELECT k FROM b") == rows(database, "SELECT k FROM p") == wanted
    assert rows(database, "SELECT k FROM pp") == wanted
    assert rows(database, "SELECT v, n FROM m") == [(10 * k, 1) for k in keys]
    assert rows(database, "SELECT k FROM b WHERE v = 10") == [(1,)]


def test_what_a_name_may_not_be(database: Database) -> None:
    database.sql(
        "CREATE TABLE c (k int PRIMARY KEY); CREATE TABLE d (k int); CREATE VIEW cv AS SELECT * FROM c; "
        "CREATE MATERIALIZED VIEW cm AS SELECT * FROM c; CREATE INDEX ci ON c (k)"
    )
    for text, state in (
        ("ALTER TABLE c RENAME TO d", "42P07"), ("ALTER TABLE c RENAME TO c", "42P07"),
        ("ALTER TABLE nowhere RENAME TO e", "42P01"), ("ALTER VIEW c RENAME TO e", "42809"),
        ("ALTER INDEX c RENAME TO e", "42809"), ("ALTER MATERIALIZED VIEW cv RENAME TO e", "42809"),
        ("ALTER SOURCE c RENAME TO e", "42809"), ("ALTER SCHEMA public RENAME TO e", "0A000"),
        ("ALTER TABLE c RENAME COLUMN k TO l", "0A000"), ("ALTER TABLE c RENAME k TO l", "0A000"),
    ):  # fmt: skip
        assert refused(database, text).sqlstate == state, text
    told = database.sql("ALTER TABLE IF EXISTS nowhere RENAME TO e")
    assert "does not exist, skipping" in str(told.notices)
    database.sql("ALTER TABLE cv RENAME TO cv2; ALTER TABLE cm RENAME TO cm2; ALTER TABLE ci RENAME TO ci2")
    database.sql("DROP TABLE c CASCADE; DROP TABLE d")


def test_what_cannot_be_said_is_refused_and_changes_nothing(database: Database) -> None:
    database.sql(
        "CREATE SCHEMA x; CREATE TABLE public.e (k int); CREATE TABLE x.f (k int); INSERT INTO e VALUES (1); "
        "INSERT INTO x.f VALUES (2); CREATE VIEW whole AS SELECT public.e.k FROM public.e"
    )
    error = refused(database, "ALTER TABLE e RENAME TO g")
    assert error.sqlstate == "0A000" and 'view "whole"' in str(error.detail) and "drop" in str(error.hint)
    assert rows(database, "SELECT k FROM whole") == [(1,)]
    # A view that would find another relation on its way gets the schema's name.
    database.sql("SET search_path = x, public; CREATE VIEW v AS SELECT e.k FROM e; SET search_path = public")
    database.sql("ALTER TABLE x.f RENAME TO e")
    assert rows(database, "SELECT k FROM x.v") == [(1,)]
    assert definition(database, "v") == "CREATE VIEW v AS SELECT e.k FROM public.e"
    database.sql("DROP SCHEMA x CASCADE; DROP TABLE e CASCADE")


def test_rights(database: Database) -> None:
    database.sql("CREATE ROLE owner; CREATE ROLE other; CREATE TABLE h (k int); ALTER TABLE h OWNER TO owner")
    with closing(database.session(user="other")) as session:
        assert str(failure(session, "ALTER TABLE h RENAME TO i")) == "must be owner of table h"
    with closing(database.session(user="owner")) as session:
        assert str(failure(session, "ALTER TABLE h RENAME TO i")) == "permission denied for schema public"
        database.sql("GRANT CREATE ON SCHEMA public TO owner")
        run(session, "ALTER TABLE h RENAME TO i")
    database.sql("DROP TABLE i; REVOKE CREATE ON SCHEMA public FROM owner; DROP ROLE owner; DROP ROLE other")


def failure(session: Any, text: str) -> HeadraceError:
    with pytest.raises(HeadraceError) as found:
        run(session, text)
    assert found.value.sqlstate == "42501"
    return found.value


@pytest.mark.parametrize(("point", "there"), [("rename.before", "j"), ("rename.after", "l")])
def test_a_rename_that_fails_midway(spark: SparkSession, tmp_path: Path, point: str, there: str) -> None:
    with opened(tmp_path, spark) as database:
        database.sql("CREATE TABLE j (k int); INSERT INTO j VALUES (1); CREATE VIEW jv AS SELECT k FROM j")
        arm(point, "fail")
        try:
            with pytest.raises(Exception, match=point):
                database.sql("ALTER TABLE j RENAME TO l")
        finally:
            disarm_all()
        assert rows(database, f"SELECT k FROM {there}") == rows(database, "SELECT k FROM jv") == [(1,)]
    with opened(tmp_path, spark) as database:
        assert rows(database, f"SELECT k FROM {there}") == rows(database, "SELECT k FROM jv") == [(1,)]


def test_a_view_that_is_created_meanwhile(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    database.sql("CREATE TABLE o (k int); INSERT INTO o VALUES (1)")
    made = ddl.new_record

    def late(*arguments: Any) -> Any:
        monkeypatch.undo()
        with closing(database.session()) as other:
            run(other, "ALTER TABLE o RENAME TO r")
        return made(*arguments)

    monkeypatch.setattr(ddl, "new_record", late)
    error = refused(database, "CREATE MATERIALIZED VIEW om AS SELECT k FROM o")
    assert error.sqlstate == "55000" and "renamed" in error.message
    assert all(o.name != "om" for o in database.catalog.state.objects.values())
    database.sql("DROP TABLE r")


def swapped(database: Database) -> None:
    with closing(database.session()) as other:
        for text in ("ALTER TABLE first RENAME TO aside", "ALTER TABLE last RENAME TO first"):
            run(other, text)


def before(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, does: Callable[[], object]) -> None:
    """Do something once, before a function is called."""
    called = getattr(module, name)

    def late(*arguments: Any, **named: Any) -> Any:
        monkeypatch.undo()
        does()
        return called(*arguments, **named)

    monkeypatch.setattr(module, name, late)


@pytest.mark.parametrize("statement", ["UPDATE first SET v = v + 1 WHERE v > 0", "DELETE FROM first WHERE v > 0"])
def test_rows_are_changed_in_the_table_in_which_they_were_found(
    database: Database, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    """Another table gets the name between the look at the table and the look for its rows."""
    database.sql("CREATE TABLE first (k int PRIMARY KEY, v int); CREATE TABLE last (k int PRIMARY KEY, v int)")
    database.sql("INSERT INTO first VALUES (1, 10), (2, 20); INSERT INTO last VALUES (1, 100), (3, 300)")
    before(monkeypatch, dml, "key_wanted", lambda: swapped(database))
    error = refused(database, statement)
    assert error.sqlstate == "55000" and "renamed" in error.message
    assert rows(database, "SELECT k, v FROM aside") == [(1, 10), (2, 20)]
    assert rows(database, "SELECT k, v FROM first") == [(1, 100), (3, 300)]
    database.sql("DROP TABLE first; DROP TABLE aside")


def test_a_view_is_read_by_the_names_of_one_moment(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names in it change between the look at the view and the look at what it reads."""
    database.sql("CREATE TABLE first (k int); CREATE TABLE last (k int); INSERT INTO first VALUES (1)")
    database.sql("INSERT INTO last VALUES (3); CREATE VIEW above AS SELECT k FROM first")
    before(monkeypatch, names, "parse_query", lambda: swapped(database))
    assert rows(database, "SELECT count(*), min(k) FROM above") == [(1, 1)]
    assert rows(database, "SELECT k FROM first") == [(3,)]
    database.sql("DROP TABLE first; DROP TABLE aside CASCADE")


def test_truncate_takes_the_rows_of_the_table_that_it_was_allowed_to(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.sql("CREATE TABLE first (k int); CREATE TABLE last (k int); INSERT INTO first VALUES (1)")
    database.sql("INSERT INTO last VALUES (3)")
    before(monkeypatch, upkeep, "refuse_append_only", lambda: swapped(database))
    assert refused(database, "TRUNCATE first").sqlstate == "55000"
    assert rows(database, "SELECT k FROM aside") == [(1,)] and rows(database, "SELECT k FROM first") == [(3,)]
    database.sql("DROP TABLE first; DROP TABLE aside")


@pytest.mark.parametrize("statement", ["ADD w int DEFAULT 0", "ADD PRIMARY KEY (k)"])
def test_a_table_that_is_to_be_replaced_and_gets_another_name(
    database: Database, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    """Another one that has its name by then gives it no rows."""
    database.sql("CREATE TABLE first (k int, v int); CREATE TABLE last (k int, v int)")
    database.sql("INSERT INTO first VALUES (1, 10); INSERT INTO last VALUES (3, 300)")
    before(monkeypatch, replacing_tables, "name_while_filled", lambda: swapped(database))
    assert refused(database, f"ALTER TABLE first {statement}").sqlstate == "55000"
    assert rows(database, "SELECT * FROM aside") == [(1, 10)] and rows(database, "SELECT * FROM first") == [(3, 300)]
    assert not [o.name for o in database.catalog.state.objects.values() if "$" in o.name]
    database.sql("DROP TABLE first; DROP TABLE aside")


def test_what_has_another_name_is_not_dropped_by_the_old_one(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.sql("CREATE TABLE first (k int); CREATE TABLE last (k int); INSERT INTO first VALUES (1)")
    before(monkeypatch, dropping, "parts_of", lambda: swapped(database))
    assert refused(database, "DROP TABLE first").sqlstate == "55000"
    assert rows(database, "SELECT k FROM aside") == [(1,)] and rows(database, "SELECT k FROM first") == []
    database.sql("DROP TABLE first; DROP TABLE aside")


def test_the_rows_of_create_table_as_go_into_no_other_one(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    database.sql("CREATE TABLE last (k int)")
    before(monkeypatch, dml, "plan_rows", lambda: swapped(database))
    assert refused(database, "CREATE TABLE first AS SELECT 1 AS k").sqlstate == "55000"
    assert rows(database, "SELECT k FROM first") == [] and refused(database, "SELECT * FROM aside").sqlstate == "42P01"
    database.sql("DROP TABLE first")


def test_names_in_quotes_that_views_read(database: Database) -> None:
    database.sql('CREATE TABLE "a""b" (k int); INSERT INTO "a""b" VALUES (1); CREATE VIEW v AS SELECT k FROM "a""b"')
    for old, new in (('"a""b"', "c"), ("c", '"d""e"')):
        database.sql(f"ALTER TABLE {old} RENAME TO {new}")
        assert rows(database, "SELECT k FROM v") == [(1,)]
    database.sql('DROP TABLE "d""e" CASCADE')


def test_names_that_change_while_others_read_and_write(database: Database) -> None:
    """Two tables change names to and fro: a view over one never shows the other, nobody fails but by a name."""
    database.sql(
        "CREATE TABLE one (k int PRIMARY KEY, v int); CREATE TABLE two (k int PRIMARY KEY, v int); "
        "INSERT INTO one VALUES (1, 0); INSERT INTO two VALUES (2, 0); CREATE VIEW of_one AS SELECT one.k FROM one; "
        "CREATE MATERIALIZED VIEW m_one AS SELECT k, count(*) AS n FROM one GROUP BY k"
    )
    stop, failures = threading.Event(), list[BaseException]()

    def client(*statements: str) -> None:
        try:
            with closing(database.session()) as session:
                while not stop.is_set():
                    for text in statements:
                        try:
                            found = run(session, text)
                        except HeadraceError as error:
                            assert error.sqlstate in ("42P01", "40001"), (text, error.sqlstate, error.message)
                        else:
                            assert "of_one" not in text or found == [(1,)], found
        except BaseException as error:
            failures.append(error)

    threads = [
        threading.Thread(target=client, args=statements)
        for statements in (
            ("SELECT k FROM of_one", "SELECT k FROM of_one WHERE k < 10"),
            ("UPDATE one SET v = v + 1 WHERE k = 1", "UPDATE two SET v = v + 1 WHERE k = 2", "SELECT k, v FROM one"),
        )
    ]
    for thread in threads:
        thread.start()
    for _ in range(8):
        database.sql(
            "ALTER TABLE one RENAME TO aside; ALTER TABLE two RENAME TO one; ALTER TABLE aside RENAME TO two; "
            "ALTER TABLE two RENAME TO aside; ALTER TABLE one RENAME TO two; ALTER TABLE aside RENAME TO one"
        )
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures, failures
    assert rows(database, "SELECT k FROM of_one") == rows(database, "SELECT k FROM m_one") == [(1,)]
    assert rows(database, "SELECT k FROM one") == [(1,)] and rows(database, "SELECT k FROM two") == [(2,)]
    assert definition(database, "of_one") == "CREATE VIEW of_one AS SELECT one.k FROM one AS one"
    database.sql("DROP TABLE one CASCADE; DROP TABLE two")


def test_automatic_indexes_have_the_name(database: Database) -> None:
    database.sql(
        "CREATE TABLE ja (k int, v int); CREATE TABLE jb (k int, w int); SET default_checkpoint_group = 'jg'; "
        "CREATE MATERIALIZED VIEW j1 AS SELECT v, w FROM ja JOIN jb USING (k); "
        "CREATE MATERIALIZED VIEW j2 AS SELECT v + w AS s FROM ja JOIN jb USING (k)"
    )
    names = lambda: [o.name for o in database.catalog.state.objects.values() if o.name.startswith("auto")]  # noqa: E731
    assert "automatic ja(k) in jg" in names()
    database.sql("ALTER TABLE ja RENAME TO jc; INSERT INTO jc VALUES (1, 2); INSERT INTO jb VALUES (1, 3); FLUSH")
    assert "automatic jc(k) in jg" in names() and "automatic ja(k) in jg" not in names()
    assert rows(database, "SELECT s FROM j2") == [(5,)]
    database.sql("CREATE MATERIALIZED VIEW j3 AS SELECT v - w AS s FROM jc JOIN jb USING (k)")
    assert rows(database, "SELECT s FROM j3") == [(-1,)]
    database.sql("RESET default_checkpoint_group; DROP TABLE jc CASCADE; DROP TABLE jb CASCADE")


def test_a_table_with_a_connector_and_a_view_of_parts(spark: SparkSession, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    (there / "1.json").write_text('{"k": 1}\n')
    with opened(tmp_path / "data", spark) as database:
        database.sql(
            f"CREATE TABLE fed (k int) WITH (connector = 'files', path = '{there}') FORMAT PLAIN ENCODE JSON; "
            "CREATE TABLE w (k int, v int); INSERT INTO w VALUES (1, 5), (2, 6); "
            "SET streaming_enable_unaligned_join = on; "
            "CREATE MATERIALIZED VIEW parted AS SELECT sum(v) AS s FROM fed JOIN w USING (k)"
        )
        database.sql("ALTER TABLE fed RENAME TO eaten; ALTER MATERIALIZED VIEW parted RENAME TO whole")
        names = {o.name for o in database.catalog.state.objects.values()}
        assert {"eaten", "eaten$changes", "whole", "whole$join_1", "w"} <= names
        assert not any(name.startswith(("fed", "parted")) for name in names)
    (there / "2.json").write_text('{"k": 2}\n')
    with opened(tmp_path / "data", spark) as database:
        eventually(lambda: rows(database, "SELECT k FROM eaten") == [(1,), (2,)])
        eventually(lambda: rows(database, "SELECT s FROM whole") == [(11,)])
        assert {s for _, s in database.sql("SELECT name, status FROM headrace_catalog.jobs").rows()} <= {"running"}
        database.sql("DROP MATERIALIZED VIEW whole; DROP TABLE eaten; DROP TABLE w")
        assert {o.kind for o in database.catalog.state.objects.values()} <= {"role", "schema"}
