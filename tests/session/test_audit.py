"""The audit log: its lines, its file, and that nothing is missing or given away."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from clients import connect as connected
from headrace.config import Settings
from headrace.errors import HeadraceError, InvalidParameter
from headrace.server import ServerThread, run_server_in_thread
from headrace.server.door import gate_of
from headrace.session.audit import AuditLog, masked
from headrace.session.database import Database, connect
from headrace.session.handlers import HANDLERS
from headrace.sql import statements as st
from support import eventually

KEY = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


@pytest.fixture
def database(spark: SparkSession, tmp_path: Path, log: Path) -> Iterator[Database]:
    settings = Settings(audit_log=log, secret_keys=KEY, auth_rules="host all all loopback scram-sha-256")
    with connect(tmp_path / "db", spark=spark, settings=settings) as found:
        yield found


@pytest.fixture
def server(database: Database) -> Iterator[ServerThread]:
    database.sql("CREATE ROLE anna LOGIN PASSWORD 'open sesame'")
    instance = database.instance
    gate = gate_of(lambda: instance.settings, instance.role, instance.mock_key, instance.audit)
    with run_server_in_thread(instance.client_session, gate=gate) as found:
        yield found


def test_who_comes_what_is_defined_and_what_is_denied(database: Database, server: ServerThread, log: Path) -> None:
    with connected(server, "anna", password="open sesame", application_name="shop") as anna:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            anna.execute("CREATE TABLE mine (a int)")
        anna.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError):
        connected(server, "anna", password="guess")
    eventually(lambda: len(lines(log)) >= 5, "the logout to be noted")
    found = {(line["event"], line.get("command"), line.get("sqlstate")): line for line in lines(log)}
    made = found["statement", "CREATE ROLE", "00000"]
    assert made["user"] == "root" and "client" not in made
    login = found["login", None, None]
    assert (login["user"], login["client"], login["application"]) == ("anna", "127.0.0.1", "shop")
    assert found["logout", None, None]["connection"] == login["connection"]
    failed = found["login_failed", None, "28P01"]
    assert failed["user"] == "anna" and "password authentication failed" in failed["message"]
    denied = [line for line in lines(log) if line.get("sqlstate") == "42501"]
    assert login["session"] == found["logout", None, None]["session"] == denied[0]["session"]
    assert [(line["command"], line["user"], line["client"]) for line in denied] == [
        ("CREATE TABLE", "anna", "127.0.0.1")
    ]
    assert not any(line.get("command") == "SELECT" for line in lines(log)), "what anybody may do is not noted"


def test_no_secret_is_in_it(database: Database, server: ServerThread, log: Path) -> None:
    database.sql("CREATE SECRET word WITH (backend = 'meta') AS 'hunter2'")
    database.sql("ALTER ROLE anna PASSWORD 'hunter3'")
    with pytest.raises(HeadraceError):
        database.sql("CREATE SECRET word WITH (backend = 'meta') AS 'hunter4'")
    text = log.read_text()
    assert "hunter" not in text and "sesame" not in text and text.count("***") >= 3


def test_a_denied_query_and_another_role_are_noted(database: Database, log: Path) -> None:
    for sql in ("CREATE ROLE bert LOGIN", "CREATE TABLE t (a int)", "SET ROLE bert"):
        database.sql(sql)
    with pytest.raises(HeadraceError, match="permission denied"):
        database.sql("SELECT * FROM t")
    database.sql("PREPARE a AS SELECT 1")
    with pytest.raises(HeadraceError, match="permission denied"):
        database.sql("PREPARE p AS SELECT * FROM t")
    database.sql("RESET ROLE")
    assert sum(line["sqlstate"] == "42501" for line in lines(log)) == 2, "each is noted once"
    found = [(line["command"], line.get("role"), line["sqlstate"]) for line in lines(log)]
    assert ("SELECT", "bert", "42501") in found and ("CREATE TABLE", None, "00000") in found
    assert [f for f in found if f[0] == "SET ROLE"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("CREATE SOURCE s (a int) WITH (x.sasl.password='geheim', y = 'it''s secret', z='b')",
         "CREATE SOURCE s (a int) WITH (x.sasl.password='***', y = 'it''s secret', z='b')"),
        ("COPY t FROM 's3://u:geheim@b/x' WITH (secret_key 'geheim')",
         "COPY t FROM 's3://u:***@b/x' WITH (secret_key '***')"),
        ("ALTER SYSTEM SET secret_keys TO 'geheim'", "ALTER SYSTEM SET secret_keys TO '***'"),
        ("CREATE SINK x WITH (jdbc.url='postgresql://h/d?user=a&password=geheim')",
         "CREATE SINK x WITH (jdbc.url='postgresql://h/d?user=a&password=***')"),
        ('WITH ("aws.secret" $$geheim$$, s3.secret.key = E\'geheim\')',
         'WITH ("aws.secret" \'***\', s3.secret.key = \'***\')'),
        ("-- it's\nCREATE USER a PASSWORD 'geheim'", "-- it'***'"),
        ("SELECT 'secret' /* it's */, 'plain'", "SELECT 'secret' /* it's */, 'plain'"),
        ("x" * 20_000, "x" * 16_384 + "..."),
        ("x" * 16_370 + " s3://u:geheim@h/db", "x" * 16_370 + " s3://u:***..."),
        ("cannot reach url=https://h/p?token=geheim&a=b", "cannot reach url=https://h/p?token=***&a=b"),
        ("'user=u|password=geheim'", "'user=u|password=***'"),
        ("'dsn=password=geheim'", "'dsn=password=***'"),
        ("user%20password=geheim 2token=geheim", "user%20password=*** 2token=***"),
        ("x 1password='geheim', \u00e9_password='geheim'", "x 1password='***', \u00e9_password='***'"),
        ("SELECT a--it's\n, .password='geheim'", "SELECT a--it's\n, .password='***'"),
        ("password = U&'geheim', /* password = 'y' */ z", "password = '***', /* password = 'y' */ z"),
        ("password/* a */ = -- b\n 'geheim'", "password/* a */ = -- b\n '***'"),
        ("password = passwort, x = 'y'", "password = ***, x = 'y'"),
    ],
)  # fmt: skip
def test_what_is_called_a_secret_is_masked(text: str, shown: str) -> None:
    assert masked(text) == shown


def test_a_line_that_was_cut_short_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, write, room = AuditLog(tmp_path / "audit.jsonl", lambda: 0), os.write, [7]

    def filling(file: int, data: bytes) -> int:
        if not room:
            raise OSError(28, "No space left on device")
        return write(file, data[: room.pop()])

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", filling)
        log.note("one")
    log.note("two")
    log.close()
    cut, whole = (tmp_path / "audit.jsonl").read_text().splitlines()
    assert len(cut) == 7 and json.loads(whole)["event"] == "two" and json.loads(whole)["lost"] == 1


def test_it_says_what_the_client_is_told(database: Database, log: Path) -> None:
    with pytest.raises(HeadraceError) as caught:
        database.sql("CREATE MATERIALIZED VIEW v AS SELECT nothing FROM nowhere")
    (line,) = (line for line in lines(log) if line["command"] == "CREATE MATERIALIZED VIEW")
    assert (line["sqlstate"], line["message"]) == (caught.value.sqlstate, caught.value.message)


def test_every_definition_is_noted() -> None:
    noted = {kind for kind, handler in HANDLERS.items() if handler.is_audited}
    assert {st.Grant, st.CreateRole, st.AlterSystem, st.SetRole, st.Kill, st.CopyToFiles, st.CopyFromFiles} <= noted
    assert not noted & {st.Select, st.Insert, st.Update, st.Delete, st.Show, st.Commit}


def test_a_file_that_is_renamed_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path, lambda: 0)
    log.note("one", user="a\nb")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.rename(tmp_path / "old")
    log.note("two")
    log.close()
    assert lines(tmp_path / "old") == [{"at": "1970-01-01T00:00:00.000+00:00", "event": "one", "user": "a\nb"}]
    assert [line["event"] for line in lines(path)] == ["two"]


def test_what_cannot_be_written_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = AuditLog(tmp_path / "audit.jsonl", lambda: 0)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        log.note("one")
        log.note("two")
    log.note("three")
    log.close()
    assert [(line["event"], line.get("lost")) for line in lines(tmp_path / "audit.jsonl")] == [("three", 2)]


def test_a_file_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match="cannot be written: No such file or directory"):
        AuditLog(tmp_path / "nowhere" / "audit.jsonl", lambda: 0)
