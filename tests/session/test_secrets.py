"""Secrets in SQL: made, used by sources, altered, dropped; their values are nowhere to be seen."""

from __future__ import annotations

import base64
import io
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from pyspark.sql import SparkSession

from headrace.common import loggers
from headrace.config import Settings
from headrace.errors import HeadraceError
from headrace.session import log_output
from headrace.session.database import Database, connect
from headrace.shell.interactive import _Discreet
from headrace.sql.parser import parse
from support import eventually

KEY, OTHER = (base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2))
SEED, NEW_SEED = "918273645", "546372819"
SOURCE = "WITH (connector = 'datagen', number_of_rows = 200, rows_per_second = 'unlimited', seed = {})"
DAYS = 86_400_000


def settings(folder: Path, keys: str | None = KEY) -> Settings:
    return Settings(
        data_dir=folder, run_fsync=False, catalog_commit_sync=False, barrier_interval_ms=100, secret_keys=keys,
        log_level="debug",
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("secrets")


@pytest.fixture(scope="module")
def database(spark: SparkSession, folder: Path) -> Iterator[Database]:
    with connect(folder, spark=spark, settings=settings(folder)) as found:
        yield found


def refused(database: Database, sql: str) -> str:
    with pytest.raises(HeadraceError) as caught:
        database.sql(sql)
    error = caught.value
    text = f"{error.sqlstate} {error} {error.detail} {error.hint}"
    assert "hunter2" not in text and SEED not in text
    return text


def rows(database: Database, sql: str) -> list[tuple[object, ...]]:
    return sorted(database.sql(sql).rows())


def plaintext_in(folder: Path, *values: str) -> list[str]:
    """The files in which one of the values stands."""
    found = []
    for path in folder.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            found += [str(path) for v in values if v.encode() in data or base64.b64encode(v.encode()) in data]
    return found


def test_a_source_uses_a_secret(database: Database, folder: Path) -> None:
    database.sql(f"CREATE SECRET seed WITH (backend = 'meta') AS '{SEED}'")
    database.sql(f"CREATE SOURCE hidden (a int, b varchar) {SOURCE.format('secret seed')}")
    database.sql(f"CREATE SOURCE plain (a int, b varchar) {SOURCE.format('7')}")
    database.sql("CREATE MATERIALIZED VIEW v AS SELECT a, b FROM hidden")
    eventually(lambda: database.sql("SELECT count(*) FROM v").rows() == [(200,)])
    assert rows(database, "SELECT a, b FROM v") == rows(database, "SELECT a, b FROM hidden")
    assert rows(database, "SELECT a, b FROM v") != rows(database, "SELECT a, b FROM plain")
    assert database.sql("SHOW SECRETS").rows() == [("seed",)]
    shown = [
        "SHOW CREATE SECRET seed", "SHOW CREATE SOURCE hidden", "SHOW PARAMETERS", "SHOW JOBS", "SHOW SOURCES",
        "SELECT * FROM headrace_catalog.secrets", "SELECT * FROM headrace_catalog.sources",
        "SELECT * FROM headrace_catalog.events", "SELECT * FROM rw_catalog.rw_secrets",
        "SELECT * FROM rw_catalog.rw_sources", "EXPLAIN SELECT * FROM hidden", "SELECT * FROM pg_stat_activity",
        "EXPLAIN CREATE MATERIALIZED VIEW w AS SELECT * FROM hidden", "SELECT * FROM pg_foreign_server",
        "SELECT relname FROM pg_class", "DESCRIBE hidden",
    ]  # fmt: skip
    for sql in shown:
        assert SEED not in str(database.sql(sql).rows()) and KEY not in str(database.sql(sql).rows()), sql
    assert database.sql("SHOW CREATE SECRET seed").rows()[0][1].endswith("AS '***'")
    assert "seed = secret seed" in database.sql("SHOW CREATE SOURCE hidden").rows()[0][1]
    assert database.sql("SELECT name, used_by FROM headrace_catalog.secrets").rows() == [("seed", "hidden")]
    assert plaintext_in(folder, SEED, KEY) == []


def test_in_use_it_cannot_be_dropped(database: Database) -> None:
    assert refused(database, "DROP SECRET seed").startswith("2BP01")
    assert refused(database, "DROP TABLE seed").startswith("42809")
    assert refused(database, "DROP SECRET missing").startswith("42704")
    wrong = [
        "SELECT * FROM seed", "CREATE INDEX i ON seed (a)", "CREATE VIEW w AS SELECT * FROM seed",
        "CREATE SINK s FROM seed WITH (connector = 'blackhole')", "ALTER TABLE seed SET SCHEMA other",
    ]  # fmt: skip
    for sql in wrong:
        assert refused(database, sql).startswith("42809"), sql
    for sql in ("INSERT INTO seed VALUES (1)", "DELETE FROM seed", "DESCRIBE seed"):
        refused(database, sql)
    assert refused(database, "CREATE SECRET seed AS 'hunter2'").startswith("42710")
    assert database.sql("DROP SECRET IF EXISTS missing").notices == ['secret "missing" does not exist, skipping']
    assert database.sql("CREATE SECRET IF NOT EXISTS seed AS 'hunter2'").notices
    database.sql("CREATE SECRET spare AS 'hunter2'; DROP SECRET spare")


def test_what_is_refused(database: Database, folder: Path) -> None:
    source = "CREATE SOURCE x (a int) WITH (connector = 'datagen', {})"
    assert refused(database, source.format("seed = secret missing")).startswith("42704")
    assert refused(database, source.format("seed = secret hidden")).startswith("42809")
    assert "cannot be a secret" in refused(database, source.format("splits = secret seed"))
    assert "cannot be a secret" in refused(database, "CREATE SOURCE x WITH (connector = 'files', path = secret seed)")
    assert "cannot be a secret" in refused(
        database, "CREATE SINK x FROM v WITH (connector = 'blackhole', p = secret seed)"
    )
    assert refused(database, "CREATE SECRET x WITH (backend = 'hashicorp_vault') AS 'hunter2'").startswith("0A000")
    assert refused(database, "EXPLAIN CREATE SECRET x AS 'hunter2'").startswith("0A000")
    assert refused(database, "PREPARE p AS CREATE SECRET x AS 'hunter2'").startswith("42601")
    assert refused(database, "CREATE SECRET x 'hunter2'").startswith("42601")
    assert refused(database, "CREATE SECRET x AS 'hunter2").startswith("42601")
    assert refused(database, "ALTER SECRET missing AS 'hunter2'").startswith("42704")
    assert refused(database, "ALTER SECRET hidden AS 'hunter2'").startswith("42809")
    assert refused(database, "CREATE SECRET missing.x AS 'hunter2'").startswith("3F000")
    session = database.session()
    with pytest.raises(HeadraceError, match="a parameter as the value of a secret is not supported"):
        session.prepare("CREATE SECRET x AS $1")
    prepared = session.prepare("CREATE SECRET described AS 'hunter2'")
    assert prepared.columns is None and prepared.parameter_types == []
    assert prepared.execute([]).tag == "CREATE SECRET"
    list(session.execute("DROP SECRET described; BEGIN READ ONLY"))
    for sql in ("CREATE SECRET x AS 'hunter2'", "ALTER SECRET seed AS 'hunter2'", "DROP SECRET seed"):
        with pytest.raises(HeadraceError, match=r"cannot execute .* in a read-only transaction"):
            list(session.execute(sql))
        list(session.execute("ROLLBACK; BEGIN READ ONLY"))
    session.close()
    assert plaintext_in(folder, "hunter2") == []


def test_a_wrong_value_is_told_without_it(database: Database) -> None:
    database.sql("CREATE SECRET no_number AS 'hunter2'")
    text = refused(database, "CREATE SOURCE x (a int) WITH (connector = 'datagen', seed = secret no_number)")
    assert text.startswith("22023 option seed must be a whole number, not '***'")
    database.sql("DROP SECRET no_number")


def test_another_value_counts_at_once(database: Database, folder: Path) -> None:
    """A source whose secret is altered to nonsense fails without saying it, and recovers with the next value."""
    unlimited = SOURCE.format("secret turning").replace("number_of_rows = 200, ", "").replace("'unlimited'", "100")
    database.sql(f"CREATE SECRET turning AS '{SEED}'; CREATE SOURCE turned (a int) {unlimited}")
    database.sql("CREATE MATERIALIZED VIEW turns AS SELECT count(*) AS n FROM turned")
    database.sql("ALTER SECRET turning AS 'hunter2 is no number'")
    failing = "SELECT error FROM headrace_catalog.sources WHERE name = 'turned'"
    eventually(lambda: database.sql(failing).rows()[0][0] is not None)
    assert database.sql(failing).rows() == [("option seed must be a whole number, not '***'",)]
    database.sql(f"ALTER SECRET turning AS '{NEW_SEED}'")
    eventually(lambda: database.sql(failing).rows() == [(None,)])
    events = [r[0] for r in database.sql("SELECT message FROM headrace_catalog.events").rows()]
    assert 'secret "turning" was given another value' in events
    assert plaintext_in(folder, SEED, NEW_SEED, "hunter2") == []
    database.sql("DROP SECRET turning CASCADE")
    assert "turned" not in [r[0] for r in database.sql("SHOW SOURCES").rows()]


def test_a_start_without_the_key(spark: SparkSession, tmp_path: Path) -> None:
    """What needs the key fails and says which; all else works. With the key again all does."""
    with connect(tmp_path, spark=spark, settings=settings(tmp_path)) as database:
        database.sql(f"CREATE SECRET seed AS '{SEED}'; CREATE SOURCE s (a int) {SOURCE.format('secret seed')}")
        database.sql("CREATE MATERIALIZED VIEW v AS SELECT a FROM s")
        eventually(lambda: database.sql("SELECT count(*) FROM v").rows() == [(200,)])
        before = rows(database, "SELECT a FROM v")
    for keys, said in ((None, "no key is configured, it needs"), (OTHER, "it needs key")):
        with connect(tmp_path, spark=spark, settings=settings(tmp_path, keys)) as database:
            error = "SELECT error FROM headrace_catalog.sources"
            eventually(lambda error=error, database=database: database.sql(error).rows()[0][0] is not None)
            assert said in str(database.sql(error).rows()[0][0])
            assert rows(database, "SELECT a FROM v") == before
            assert said in refused(database, "SELECT a FROM s")
            if keys is None:
                assert refused(database, "CREATE SECRET x AS 'hunter2'").startswith("22023 there is no key")
    with connect(tmp_path, spark=spark, settings=settings(tmp_path, f"{OTHER},{KEY}")) as database:
        assert rows(database, "SELECT a FROM s") == before


def test_a_stored_value_that_was_changed_is_not_used(spark: SparkSession, tmp_path: Path) -> None:
    with connect(tmp_path, spark=spark, settings=settings(tmp_path)) as database:
        database.sql(
            f"CREATE SECRET one AS '1'; CREATE SECRET two AS '2'; CREATE SOURCE s (a int) {SOURCE.format('secret one')}"
        )
    with sqlite3.connect(tmp_path / "catalog.db") as file:
        found = dict(
            file.execute("SELECT key, value FROM record WHERE collection = 'object' AND value LIKE '%sealed%'")
        )
        (first, one), (_, two) = sorted(found.items(), key=lambda row: int(row[0]))
        sealed = [text[text.index('"sealed":"') :] for text in (one, two)]
        file.execute("UPDATE record SET value = ? WHERE collection = 'object' AND key = ?",
                     (one.replace(sealed[0], sealed[1]), first))  # fmt: skip
    with connect(tmp_path, spark=spark, settings=settings(tmp_path)) as database:
        assert refused(database, "SELECT a FROM s").startswith('XX001 secret "public.one" cannot be decrypted')


def test_logs_show_no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(log_output.sys, "stderr", out)
    try:
        log_output.log_to_stderr("info")
        value = "hunter" + "2"
        try:
            raise ValueError("unexpected " + value[:1])
        except ValueError as error:
            structlog.get_logger("x").error("statement failed unexpectedly", exc_info=error)
        assert "ValueError: unexpected h" in out.getvalue() and value not in out.getvalue()
    finally:
        structlog.reset_defaults()
        monkeypatch.setattr(loggers, "_show", None)


def test_the_log_has_no_lines_that_strangers_make_up(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(log_output.sys, "stderr", out)
    try:
        log_output.log_to_stderr("info")
        log = structlog.get_logger("x")
        log.warning("client turned away", user="a\n2026-01-01 [error] the disk is full", peer="\x1b]0;b\x9b")
    finally:
        structlog.reset_defaults()
        monkeypatch.setattr(loggers, "_show", None)
    text = out.getvalue()
    assert "[error]" in text and "\x1b" not in text and "\x9b" not in text
    assert text.count("\n") == 1


def test_the_history_of_the_shell_leaves_them_out(tmp_path: Path) -> None:
    history = _Discreet(str(tmp_path / "history"))
    for text in ("SELECT 1;", "create /* x */ secret a AS 'hunter2';", "ALTER SECRET a\nAS 'hunter2';"):
        history.append_string(text)
    assert "hunter2" in "".join(history.get_strings())
    assert "SELECT 1" in (tmp_path / "history").read_text() and "hunter2" not in (tmp_path / "history").read_text()


def test_statements_do_not_show_it() -> None:
    for sql in ("CREATE SECRET a AS 'hunter2'", "ALTER SECRET a AS 'hunter2'", "EXPLAIN CREATE SECRET a AS 'hunter2'"):
        assert "hunter2" not in repr(parse(sql)) + parse(sql)[0].text
