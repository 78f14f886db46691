"""A server whose catalog and state are in a bucket: another machine goes on with nothing but the two URLs."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import pq

from headrace.state.transport import open_transport
from object_server import S3Server, s3_server
from server import Server
from support import WAIT_S, eventually

KEY = base64.b64encode(b"k" * 32).decode()
SEED = "918273645"


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    pytest.importorskip("moto", reason="the S3 server is moto's, of the dev extra")
    with s3_server() as server:
        yield server


class Bucket:
    """Where the catalog and the state are, and what reaches it."""

    def __init__(self, server: S3Server) -> None:
        self._url = f"s3://{server.bucket}/{uuid.uuid4().hex}"
        self._options = {"endpoint": server.endpoint, "allow_http": "true", "region": "us-east-1"}
        self.place = ("--catalog", f"{self._url}/catalog", "--state", f"{self._url}/state")
        self.settings = {"HEADRACE_STATE_OPTIONS": json.dumps(self._options), "HEADRACE_SECRET_KEYS": KEY}

    def contents(self) -> Iterator[tuple[str, bytes]]:
        transport = open_transport(self._url, self._options, 30_000)
        for found in transport.list(""):
            yield found.path, bytes(transport.get(found.path, 0, found.size))


def ask(server: Server, sql: str) -> list[tuple[Any, ...]]:
    with server.connect() as connection:
        return sorted(connection.execute(sql).fetchall())


def traced(server: Server, log: Path, statements: list[str]) -> None:
    """Run statements, whatever comes of them, with all messages of the server in a file."""
    with log.open("w") as sink, server.connect() as connection:
        connection.pgconn.trace(sink.fileno())
        connection.pgconn.set_trace_flags(pq.Trace.SUPPRESS_TIMESTAMPS)
        for sql in statements:
            try:
                connection.execute(sql)
            except psycopg.Error:
                connection.rollback()
        connection.pgconn.untrace()


def headrace(bucket: Bucket, *arguments: str) -> str:
    import os

    done = subprocess.run(
        [sys.executable, "-m", "headrace.cli", *arguments], capture_output=True, text=True, timeout=WAIT_S, check=True,
        env={**os.environ, **bucket.settings},
    )  # fmt: skip
    return done.stdout + done.stderr


def test_another_machine_goes_on(s3: S3Server, tmp_path: Path) -> None:
    """Written, killed, its disk lost: a server with the same two URLs has all that was acknowledged, to the row.

    The values of secrets are in no object of the bucket, in no file, and in no message.
    """
    bucket = Bucket(s3)
    events = tmp_path / "one" / "events"
    events.mkdir(parents=True)
    event_log = {"enabled": "true", "dir": f"file://{events}", "compress": "false"}
    spied = {f"spark.eventLog.{name}": value for name, value in event_log.items()}
    spied_on = {**bucket.settings, "HEADRACE_SPARK_CONF": json.dumps(spied)}
    first = Server(tmp_path / "one", settings=spied_on, place=bucket.place)
    source = "WITH (connector = 'datagen', number_of_rows = 300, rows_per_second = 'unlimited', seed = secret seed)"
    view = "CREATE MATERIALIZED VIEW {} AS SELECT k, count(*) AS n, sum(v) AS s FROM {} GROUP BY k"
    acknowledged = []
    try:
        first.start()
        traced(first, tmp_path / "trace", [
            f"CREATE SECRET seed WITH (backend = 'meta') AS '{SEED}'", f"CREATE SECRET seed AS '{SEED}'",
            f"CREATE SECRET wrong '{SEED}'", f"CREATE SECRET wrong AS '{SEED}", f"ALTER SECRET missing AS '{SEED}'",
            f"CREATE SOURCE hidden (k int, v bigint) {source}", "SHOW CREATE SECRET seed", "SHOW SECRETS",
            "SHOW CREATE SOURCE hidden", "SHOW PARAMETERS", "SELECT * FROM headrace_catalog.secrets",
            "SELECT * FROM headrace_catalog.events", "SELECT * FROM headrace_catalog.sources",
            "EXPLAIN SELECT * FROM hidden", "SELECT * FROM rw_catalog.rw_sources", "SHOW ALL",
        ])  # fmt: skip
        with first.connect() as connection:
            connection.execute("CREATE TABLE t (k int, v bigint)")
            connection.execute(view.format("by_table", "t"))
            connection.execute(view.format("by_source", "hidden"))
            for n in range(40):
                connection.execute(f"INSERT INTO t VALUES ({n % 7}, {n}), ({n % 3}, {10 * n})")
                acknowledged += [(n % 7, n), (n % 3, 10 * n)]
        eventually(lambda: ask(first, "SELECT sum(n) FROM by_source") == [(300,)])
        assert KEY.encode() not in Path(f"/proc/{first.java_process()}/environ").read_bytes()
        by_source = ask(first, "SELECT k, n, s FROM by_source")
        first.kill()
        log = first.log_text()
    finally:
        first.close()
    texts = [(str(path), path.read_bytes()) for path in (tmp_path / "one").rglob("*") if path.is_file()]
    assert any("events" in name and b"headrace.secret." in data for name, data in texts)
    shutil.rmtree(tmp_path / "one")
    second = Server(tmp_path / "two", settings=bucket.settings, place=bucket.place)
    (tmp_path / "two").mkdir()
    try:
        second.start()
        assert ask(second, "SELECT k, v FROM t") == sorted(acknowledged)
        ask(second, "SELECT 1")
        with second.connect() as connection:
            connection.execute("INSERT INTO t VALUES (100, 1)")
            connection.execute("FLUSH")
        acknowledged.append((100, 1))
        sums = {k: [v for key, v in acknowledged if key == k] for k, _ in acknowledged}
        assert ask(second, "SELECT k, n, s FROM by_table") == sorted((k, len(v), sum(v)) for k, v in sums.items())
        assert ask(second, "SELECT k, n, s FROM by_source") == by_source
        assert ask(second, "SELECT k, count(*), sum(v) FROM hidden GROUP BY k") == by_source
        assert second.stop() == 0
        log += second.log_text()
    finally:
        second.close()
    dump = headrace(bucket, "catalog", "dump", "--data", str(tmp_path / "none"), *bucket.place[:2])
    assert '"kind":"secret"' in dump and '"sealed":"***"' in dump
    sent = [line for line in (tmp_path / "trace").read_text().splitlines() if line.startswith("B")]
    assert len(sent) > 40
    nowhere = [SEED.encode(), KEY.encode(), base64.b64encode(SEED.encode())]
    texts += [*bucket.contents(), ("log", log.encode()), ("dump", dump.encode()), ("sent", "\n".join(sent).encode())]
    texts += [(str(path), path.read_bytes()) for path in (tmp_path / "two").rglob("*") if path.is_file()]
    assert [name for name, data in texts for text in nowhere if text in data] == []
    assert any(b"sealed" in data for name, data in texts if name.startswith("catalog/"))
