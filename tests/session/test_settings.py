"""No setting without a reader, and what the settings of queries do."""

from __future__ import annotations

import ast
import errno
import json
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import headrace
from headrace.common import loggers
from headrace.config import Settings, describe_settings, unknown_variables
from headrace.dataflow.spark import _OWN, _with_further, refuse_own
from headrace.errors import HeadraceError, InvalidParameter, QueryCanceled
from headrace.plan.catalyst.bridge import PLANNING_CONF
from headrace.session import log_output
from headrace.session.database import Database, connect
from headrace.session.turns import Turns
from headrace.session.variables import VARIABLES, Variables, defaults_of, table
from support import WAIT_S, eventually

ROOT = Path(headrace.__file__).parent
DOCS = ROOT.parents[1] / "docs" / "operations.md"


def trees() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(ROOT.rglob("*.py")):
        yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text())


def test_every_setting_is_read() -> None:
    read = {
        node.attr
        for path, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and (
            ast.unparse(node.value).endswith(("settings", "settings()"))
            or (path == "config.py" and ast.unparse(node.value) == "self")
        )
    }
    through_sessions = {v.setting for v in VARIABLES.values()}
    assert set(Settings.FIELDS) - read - through_sessions == set()


def test_every_variable_of_a_session_is_read() -> None:
    named = {
        node.value.lower()
        for path, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and path != "session/variables.py"
    } | {"search_path"}
    told = {name.lower() for name in Variables().reported()}
    unread = {n for n, v in VARIABLES.items() if n not in named | told and not v.fixed and choices(n)}
    assert unread - {n for n, v in VARIABLES.items() if v.inert} == set()


def choices(name: str) -> bool:
    """Whether a variable has more than one value."""
    check = VARIABLES[name].check
    if check is None:
        return True
    for word in ("on", "off", "hex", "escape", "postgres", "iso_8601", "0", "1", "serializable", "5s"):
        try:
            if check(word) != VARIABLES[name].default:
                return True
        except ValueError:
            continue
    return False


def test_the_documentation_lists_every_setting() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (?:`(.*?)`)? ?\| (.*) \|$", DOCS.read_text(), re.MULTILINE)
    described = [(s.name, s.default, s.meaning) for s in describe_settings()]
    assert [row for row in rows if row[0] in Settings.FIELDS] == described


def test_the_documentation_lists_every_variable_of_a_session() -> None:
    _, found, rest = DOCS.with_name("sql.md").read_text().partition("<!-- settings of a session -->\n\n")
    assert found and rest.startswith(table() + "\n"), table()


def test_sessions_begin_with_the_limits_of_the_server() -> None:
    settings = Settings(statement_timeout_ms=5, idle_session_timeout_ms=6)
    assert defaults_of(settings) == {
        "statement_timeout": "5",
        "idle_session_timeout": "6",
        "transaction_timeout": "86400000",
        "idle_in_transaction_session_timeout": "3600000",
    }


def test_variables_that_are_no_settings_are_told() -> None:
    found = {"HEADRACE_RETENTON_MS": "1", "HEADRACE_PORT": "1", "HEADRACE_FAULTS": "", "PATH": "x"}
    assert unknown_variables(found) == ["HEADRACE_RETENTON_MS"]


def test_passwords_are_not_shown() -> None:
    settings = Settings(catalog_url="postgresql://me:secret@host:5432/db", spark_conf={"spark.a": "b"})
    shown = {s.name: s.value for s in describe_settings(settings)}
    assert shown["catalog_url"] == "postgresql://me:***@host:5432/db"
    assert json.loads(shown["spark_conf"]) == {"spark.a": "b"}


# ---- system parameters


def rows(database: Database, sql: str) -> list[tuple[object, ...]]:
    return database.sql(sql).rows()


def test_alter_system_and_show_parameters(database: Database) -> None:
    assert rows(database, "SHOW PARAMETERS LIKE 'max_result_rows'")[0][:4] == ("max_result_rows", "0", "0", "YES")
    database.sql("ALTER SYSTEM SET max_result_rows TO 2")
    try:
        assert rows(database, "SHOW PARAMETERS LIKE 'max_result_rows'")[0][1] == "2"
        assert rows(database, "VALUES (1), (2)") == [(1,), (2,)]
        with pytest.raises(HeadraceError, match="more than 2 rows") as raised:
            rows(database, "VALUES (1), (2), (3)")
        assert raised.value.sqlstate == "54000"
    finally:
        database.sql("ALTER SYSTEM RESET max_result_rows")
    assert len(rows(database, "VALUES (1), (2), (3)")) == 3
    for sql, state in (
        ("ALTER SYSTEM SET nonsense = 1", "42704"),
        ("ALTER SYSTEM SET port = 1", "22023"),
        ("ALTER SYSTEM RESET port", "22023"),
        ("ALTER SYSTEM SET max_result_rows = 'many'", "22023"),
        ("ALTER SYSTEM SET max_result_rows = -1", "22023"),
        ("BEGIN; ALTER SYSTEM SET max_result_rows = 1", "25001"),
    ):
        with pytest.raises(HeadraceError) as raised:
            database.sql(sql)
        assert raised.value.sqlstate == state
        database.sql("ROLLBACK")
    assert rows(database, "SHOW PARAMETERS LIKE 'max_result_rows'")[0][1] == "0"


def test_parameters_reach_the_coordinator_and_hold_over_restarts(spark: object, tmp_path: Path) -> None:
    settings = Settings(run_fsync=False, catalog_commit_sync=False)
    with connect(tmp_path, spark=spark, settings=settings) as first:  # type: ignore[arg-type]
        first.sql("ALTER SYSTEM SET retention_ms = 5000; ALTER SYSTEM SET statement_timeout_ms = '7000'")
        first.sql("ALTER SYSTEM SET lag_notice_ms = 1; ALTER SYSTEM SET lag_notice_ms = DEFAULT")
        assert first.coordinator._core.runtime.settings.retention_ms == 5000
        assert first.session().context.variables.get("statement_timeout") == "7000"
    with connect(tmp_path, spark=spark, settings=settings) as second:  # type: ignore[arg-type]
        assert second.coordinator._core.runtime.settings.retention_ms == 5000
        assert second.settings.lag_notice_ms == 60_000
        second.sql("ALTER SYSTEM RESET ALL")
    with connect(tmp_path, spark=spark, settings=settings) as third:  # type: ignore[arg-type]
        assert third.coordinator._core.runtime.settings.retention_ms == 600_000


def test_results_come_in_batches(database: Database) -> None:
    database.sql("ALTER SYSTEM SET result_batch_rows = 3")
    try:
        (result,) = database.session().execute("SELECT * FROM generate_series(1, 10)")
        assert [batch.num_rows <= 3 for batch in result.batches].count(True) >= 4
    finally:
        database.sql("ALTER SYSTEM RESET ALL")


def test_queries_wait_their_turn(database: Database) -> None:
    database.sql("ALTER SYSTEM SET max_concurrent_queries = 1")
    session, waiting = database.session(), database.session()
    ended: list[BaseException] = []

    def query() -> None:
        try:
            next(waiting.execute("SELECT * FROM generate_series(1, 3)")).table()
        except BaseException as error:
            ended.append(error)

    try:
        with database.instance.turns.one(session.context.check):
            thread = threading.Thread(target=query)
            thread.start()
            eventually(lambda: database.instance.turns.waiting, "the query to wait")
            waiting.cancel()
            thread.join(WAIT_S)
        assert [type(e) for e in ended] == [QueryCanceled]
        query()
        assert len(ended) == 1
    finally:
        database.sql("ALTER SYSTEM RESET ALL")


def test_turns_come_in_order() -> None:
    turns, order = Turns(2), []
    gate = threading.Event()

    def go(name: int) -> None:
        with turns.one(lambda: None):
            order.append(name)
            assert gate.wait(WAIT_S)

    threads = []
    for i in range(5):
        threads.append(threading.Thread(target=go, args=(i,)))
        threads[-1].start()
        eventually(lambda n=i: len(order) + turns.waiting == n + 1)
    assert sorted(order) == [0, 1]
    turns.resize(3)
    eventually(lambda: len(order) == 3)
    assert order[2] == 2
    gate.set()
    for thread in threads:
        thread.join(WAIT_S)
    assert sorted(order) == [0, 1, 2, 3, 4]


# ---- settings of the process


def test_properties_of_spark() -> None:
    assert set(PLANNING_CONF) <= set(_OWN)
    for name in (*_OWN, "log4j.x"):
        with pytest.raises(InvalidParameter):
            refuse_own({name: "x"})
    further = {"spark.ui.enabled": "true", "spark.driver.extraJavaOptions": "-Dmine=1"}
    refuse_own(further)
    found = _with_further({"spark.ui.enabled": "false", "spark.driver.extraJavaOptions": "-Dours=1"}, further)
    assert found == {"spark.ui.enabled": "true", "spark.driver.extraJavaOptions": "-Dours=1 -Dmine=1"}


def test_properties_are_for_a_spark_of_our_own(spark: object) -> None:
    with pytest.raises(InvalidParameter, match="spark_conf"):
        connect(spark=spark, settings=Settings(spark_conf={"spark.a": "b"}))  # type: ignore[arg-type]


def test_messages_below_the_level_are_not_logged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import structlog

    monkeypatch.setattr(loggers, "_show", None)
    config = structlog.get_config()
    log = structlog.get_logger("headrace.test")
    try:
        log_output.log_to_stderr("warning")
        log.info("not this")
        log.warning("but this")
        loggers.set_level("info")
        log.info("and this")
    finally:
        structlog.configure(**config)
    assert re.findall(r"(\w+ this)", capsys.readouterr().err) == ["but this", "and this"]


def test_messages_are_shown_from_the_level_of_now_once_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever shows them is loaded no sooner, and by one of those who log at once, for whom the others wait."""
    shown: list[str] = []
    monkeypatch.setattr(loggers, "_show", None)
    monkeypatch.setattr(loggers, "_level", None)
    entered, go_on, logged = threading.Event(), threading.Event(), threading.Event()

    def show(level: str) -> None:
        shown.append(level)
        entered.set()
        assert go_on.wait(WAIT_S)

    loggers.shown_later(show, "info")
    loggers.set_level("error")
    assert shown == []

    def log() -> None:
        loggers.get_logger("headrace.test").debug("quiet")
        logged.set()

    threads = [threading.Thread(target=log) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert entered.wait(WAIT_S) and not logged.is_set()
    go_on.set()
    for thread in threads:
        thread.join(WAIT_S)
    assert shown == ["error"]
    loggers.set_level("warning")
    assert shown == ["error", "warning"]


def test_what_cannot_be_loaded_to_show_messages_fails_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first message may be that no file can be opened any more. The next one finds out whether it is still so."""
    shown: list[str] = []
    monkeypatch.setattr(loggers, "_show", None)
    monkeypatch.setattr(loggers, "_level", None)

    def show(level: str) -> None:
        shown.append(level)
        if len(shown) == 1:
            raise OSError(errno.EMFILE, "Too many open files")

    log = loggers.get_logger("headrace.test")
    loggers.shown_later(show, "info")
    log.error("it failed", what="a\nb")
    assert capsys.readouterr().err == "[error] 'it failed' what='a\\nb'\n" and shown == ["info"]
    monkeypatch.setattr(loggers, "_show", lambda level: shown[99])
    log.debug("no matter")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(loggers, "_show", show)
    log.debug("no matter")
    assert shown == ["info", "info"]


def test_what_logs_while_messages_are_made_ready_does_not_wait_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as what is thrown away then."""
    shown: list[str] = []
    monkeypatch.setattr(loggers, "_show", None)
    monkeypatch.setattr(loggers, "_level", None)

    def show(level: str) -> None:
        shown.append(level)
        loggers.get_logger("headrace.other").debug("within")

    loggers.shown_later(show, "info")
    thread = threading.Thread(target=lambda: loggers.get_logger("headrace.test").debug("quiet"), daemon=True)
    thread.start()
    thread.join(WAIT_S)
    assert not thread.is_alive() and shown == ["info"]


@pytest.mark.parametrize("gone", ["full", "closed", "narrow"])
def test_a_message_that_cannot_be_written_fails_nothing(monkeypatch: pytest.MonkeyPatch, gone: str) -> None:
    """A thread that logs a failure has to go on, most of all when the disk is full."""
    import structlog

    config = structlog.get_config()
    with open("/dev/full" if gone == "full" else os.devnull, "w", encoding="ascii") as file:
        monkeypatch.setattr(sys, "stderr", file)
        monkeypatch.setattr(loggers, "_show", None)
        if gone == "closed":
            file.close()
        try:
            log_output.log_to_stderr("info")
            structlog.get_logger("headrace.test").error("no space left", what="caf\u00e9")
        finally:
            structlog.configure(**config)
            with suppress(OSError):
                file.close()


# ---- variables of a session


def test_a_transaction_is_made_read_only_by_its_variable(database: Database) -> None:
    session = database.session()
    database.sql("CREATE TABLE IF NOT EXISTS read_only_t (a int)")
    for _ in session.execute("BEGIN; SET transaction_read_only = on"):
        pass
    assert [r.rows() for r in session.execute("SHOW transaction_read_only")] == [[("on",)]]
    with pytest.raises(HeadraceError, match="cannot execute INSERT in a read-only transaction"):
        list(session.execute("INSERT INTO read_only_t VALUES (1)"))


def test_notices_below_the_level_are_not_sent(database: Database) -> None:
    session = database.session()
    sql = "CREATE TABLE IF NOT EXISTS noticed (a int)"
    list(session.execute(sql))
    assert [len(r.notices) for r in session.execute(sql)] == [1]
    list(session.execute("SET client_min_messages = warning"))
    assert [len(r.notices) for r in session.execute(sql)] == [0]
    with pytest.raises(InvalidParameter):
        list(session.execute("SET extra_float_digits = 0"))
