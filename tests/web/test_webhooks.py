"""Requests to tables over real HTTP: what they are answered, what the tables have then, what keeps the server well."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from structlog.testing import capture_logs

from certificates import Authority
from clients import run
from headrace.config import Settings
from headrace.errors import HeadraceError, OperationalError, ShuttingDown
from headrace.server.server import ServerThread
from headrace.server.tls import Certificates
from headrace.session.database import Database, connect
from headrace.web import http_server as web
from headrace.web.http_server import WebhookServer, serve_webhooks
from headrace.web.receiver import Receiver
from support import WAIT_S, eventually

KEY = "A" * 43 + "="
SECRET = "open sesame"
SIGNED = (
    "WITH (connector = 'webhook') VALIDATE SECRET s AS "
    "secure_compare(headers->>'x-signature', 'sha256=' || encode(hmac(s, payload, 'sha256'), 'hex'))"
)
JSON = {"Content-Type": "application/json"}
HEAD = b"POST /webhook/dev/public/t HTTP/1.1\r\nHost: localhost:4560\r\nContent-Type: application/json\r\n"
Answer = tuple[int, dict[str, Any]]


class Scene:
    """A database, and servers in front of it."""

    def __init__(self, database: Database, stack: ExitStack) -> None:
        self.database, self._stack = database, stack
        self.server = self.serve()

    def serve(self, certificates: Certificates | None = None, **settings: Any) -> ServerThread[WebhookServer]:
        chosen = self.database.settings.replaced(**{"webhook_port": 0, **settings})
        return self._stack.enter_context(serve_webhooks(self.database.instance, chosen, certificates))

    def sql(self, *statements: str) -> list[Any]:
        found = [self.database.sql(sql) for sql in statements]
        return [tuple(row) for row in found[-1].rows()] if found[-1].columns else []

    def post(self, table: str, body: Any, headers: Mapping[str, str] = JSON, **options: Any) -> Answer:
        return post(self.server.port, f"/webhook/dev/public/{table}", body, headers, **options)[:2]


def text_of(body: Any) -> bytes:
    return body if isinstance(body, bytes) else json.dumps(body).encode()


def post(port: int, path: str, body: Any, headers: Mapping[str, str] = JSON, method: str = "POST") -> tuple[Any, ...]:
    """A request on a connection of its own: status, object, headers."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)) as line:
        line.request(method, path, text_of(body), dict(headers))
        answer = line.getresponse()
        return answer.status, json.loads(answer.read()), dict(answer.getheaders())


def signed(body: Any, secret: str = SECRET) -> dict[str, str]:
    code = hmac.new(secret.encode(), text_of(body), hashlib.sha256).hexdigest()
    return {**JSON, "X-Signature": f"sha256={code}"}


@pytest.fixture(scope="module")
def database(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    settings = Settings(run_fsync=False, catalog_commit_sync=False, barrier_interval_ms=100, secret_keys=KEY)
    with connect(tmp_path_factory.mktemp("web"), spark=spark, settings=settings) as made:
        made.sql(f"CREATE SECRET s WITH (backend = 'meta') AS '{SECRET}'")
        yield made


@pytest.fixture
def scene(database: Database) -> Iterator[Scene]:
    with ExitStack() as stack:
        made = Scene(database, stack)
        yield made
    for row in database.sql("SELECT name FROM rw_catalog.rw_tables").rows():
        database.sql(f'DROP TABLE "{row[0]}" CASCADE')


# ---- rows


def test_a_signed_request_is_in_the_table_when_it_is_answered(scene: Scene) -> None:
    scene.sql(f"CREATE TABLE t (id int PRIMARY KEY, name text, at timestamptz, amount numeric(10, 2)) {SIGNED}")
    body = [{"id": 1, "name": "ann", "at": "2024-05-01T12:00:00Z", "amount": 1.5}, {"id": 2, "more": {}}]
    assert scene.post("t", body, signed(body)) == (200, {"rows": 2})
    assert scene.sql("SELECT id, name, amount::text FROM t ORDER BY id") == [(1, "ann", "1.50"), (2, None, None)]
    assert scene.post("t", body, signed(body)) == (200, {"rows": 2}), "a client that repeats itself"
    assert scene.sql("SELECT count(*) FROM t") == [(2,)]
    scene.sql("INSERT INTO t VALUES (3, 'by hand')", "DELETE FROM t WHERE id = 1")
    assert scene.sql("SELECT id FROM t ORDER BY id") == [(2,), (3,)]


def test_documents_of_jsonb_and_lines(scene: Scene) -> None:
    scene.sql(
        "CREATE TABLE events (data jsonb) WITH (connector = 'webhook') VALIDATE SECRET s AS "
        "secure_compare(headers->>'x-signature', 'sha256=' || encode(hmac(s, data, 'sha256'), 'hex'))",
        "CREATE TABLE batched (data jsonb) WITH (connector = 'webhook', is_batched = true)",
        "CREATE MATERIALIZED VIEW kinds AS SELECT data->>'kind' AS kind, count(*) AS n FROM events GROUP BY 1",
    )
    for kind in ("a", "b", "a"):
        body = {"kind": kind, "n": 1.50}
        assert scene.post("events", body, signed(body)) == (200, {"rows": 1})
    assert scene.sql("FLUSH", "SELECT kind, n FROM kinds ORDER BY kind") == [("a", 2), ("b", 1)]
    assert scene.post("batched", b'{"x": 1}\n[2]\n') == (200, {"rows": 2})
    lines = {"Content-Type": "application/x-ndjson; charset=utf-8"}
    two = b'{"kind": "c"}\n{"kind": "d"}'
    assert scene.post("events", two, {**signed(two), **lines}) == (200, {"rows": 2})
    assert scene.sql("SELECT data->>'x' FROM batched WHERE data->>'x' IS NOT NULL") == [("1",)]


def test_keys_defaults_of_conflicts_and_watermarks(scene: Scene) -> None:
    plain = "WITH (connector = 'webhook')"
    scene.sql(
        f"CREATE TABLE kept (k text PRIMARY KEY, v int) ON CONFLICT IGNORE {plain}",
        f"CREATE TABLE docs (k double precision PRIMARY KEY, j jsonb) {plain}",
        f"CREATE TABLE log (at timestamp, WATERMARK FOR at AS at - INTERVAL '1 minute') APPEND ONLY {plain}",
    )
    assert scene.post("kept", [{"k": "a", "v": 1}, {"k": "a", "v": 2}]) == (200, {"rows": 1})
    assert scene.post("kept", {"k": "a", "v": 3}) == (200, {"rows": 0})
    assert scene.sql("SELECT k, v FROM kept") == [("a", 1)]
    for value in (1, 2):
        assert scene.post("docs", {"k": 0.5, "j": {"v": value}}) == (200, {"rows": 1})
    assert scene.sql("SELECT k, j->>'v' FROM docs") == [(0.5, "2")]
    assert scene.post("log", {"at": "2024-05-01T12:00:00"}) == (200, {"rows": 1})
    assert scene.post("log", [{"at": "2024-05-01T11:00:00"}, {"at": "2024-05-01T12:01:00"}]) == (
        200,
        {"rows": 1, "late": 1},
    )
    assert scene.sql("SELECT count(*) FROM log") == [(2,)]


def test_many_rows_in_a_request(scene: Scene) -> None:
    scene.sql(f"CREATE TABLE t (id int PRIMARY KEY, v int) {SIGNED}", f"CREATE TABLE u (id int) {SIGNED}")
    body = [{"id": i % 2000, "v": i} for i in range(3000)]
    assert scene.post("t", body, signed(body)) == (200, {"rows": 2000}), "of two with one key the last one counts"
    assert scene.sql("SELECT count(*), min(v), max(v) FROM t") == [(2000, 1000, 2999)]
    assert scene.post("u", body, signed(body)) == (200, {"rows": 3000})
    few = [*body[:3], {"id": 0, "v": -1}]
    assert scene.post("t", few, signed(few)) == (200, {"rows": 3})
    assert scene.sql("SELECT v FROM t WHERE id < 3 ORDER BY id") == [(-1,), (1,), (2,)]


def test_many_at_once_are_committed_in_groups(scene: Scene) -> None:
    scene.sql(f"CREATE TABLE t (id int PRIMARY KEY, who int) {SIGNED}")
    clients, each = 8, 25
    writer = scene.database.instance.coordinator.writer
    before, begun = writer.groups, threading.Barrier(clients)

    def client(number: int) -> None:
        begun.wait(WAIT_S)
        with closing(http.client.HTTPConnection("127.0.0.1", scene.server.port, timeout=WAIT_S)) as line:
            for i in range(each):
                body = {"id": number * 1000 + i, "who": number}
                line.request("POST", "/webhook/dev/public/t", text_of(body), signed(body))
                answer = line.getresponse()
                assert (answer.status, json.loads(answer.read())) == (200, {"rows": 1})

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(client, range(clients)))
    assert scene.sql("SELECT count(*), count(DISTINCT who) FROM t") == [(clients * each, clients)]
    assert writer.groups - before < clients * each, "no two of them were committed together"


def test_requests_that_wait_for_each_other_are_one_group(scene: Scene) -> None:
    scene.sql(f"CREATE TABLE t (id int PRIMARY KEY) {SIGNED}")
    writer = scene.database.instance.coordinator.writer
    with ThreadPoolExecutor(10) as pool:
        with writer.paused():
            before = writer.groups
            sent = [pool.submit(scene.post, "t", {"id": i}, signed({"id": i})) for i in range(10)]
            eventually(lambda: scene.server.server._under_way == 10 and len(writer._queue) == 10)
        assert {s.result(WAIT_S)[0] for s in sent} == {200}
    assert writer.groups == before + 1


# ---- who may not


def test_wrong_signatures(scene: Scene) -> None:
    scene.sql(f"CREATE TABLE t (id int) {SIGNED}")
    body, good = {"id": 1}, signed({"id": 1})
    wrong = (JSON, signed({"id": 2}), signed(body, "other"), good | {"X-Signature": good["X-Signature"].upper()})
    for headers in wrong:
        status, said = scene.post("t", body, headers)
        assert status == 401 and said == {"error": "the header x-signature is not what VALIDATE wants"}
    assert scene.post("t", b"{", JSON)[0] == 401, "who may not send learns nothing of what is wrong"
    assert scene.sql("SELECT count(*) FROM t") == [(0,)]
    assert scene.post("t", body, good)[0] == 200
    scene.sql("ALTER SECRET s AS 'another'")
    try:
        assert scene.post("t", body, good)[0] == 401
        assert scene.post("t", body, signed(body, "another"))[0] == 200
    finally:
        scene.sql(f"ALTER SECRET s AS '{SECRET}'")


def test_a_table_without_validate_is_for_this_machine(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.sql("CREATE TABLE t (id int) WITH (connector = 'webhook')")
    assert scene.post("t", {"id": 1})[0] == 200
    monkeypatch.setattr("headrace.web.local.is_loopback", lambda address: False)
    status, said = scene.post("t", {"id": 1})
    assert status == 401 and "no VALIDATE" in said["error"]


def test_pages_in_browsers_write_to_no_table_without_validate(scene: Scene) -> None:
    scene.sql("CREATE TABLE t (id int) WITH (connector = 'webhook')", f"CREATE TABLE u (id int) {SIGNED}")
    for more in ({"Origin": "https://example.org"}, {"Origin": "null"}, {"Sec-Fetch-Site": "same-origin"}):
        assert scene.post("t", {"id": 1}, JSON | more)[0] == 401
        assert scene.post("u", {"id": 1}, signed({"id": 1}) | more)[0] == 200, "that has a proof"
    for host in ("example.org", "example.org:4560", "127.0.0.1.example.org", "", "10.0.0.1", "[::2]", "localhost.x"):
        status, said = scene.post("t", {"id": 1}, JSON | {"Host": host})
        assert status == 401 and "localhost" in said["error"]
        assert scene.post("u", {"id": 1}, signed({"id": 1}) | {"Host": host})[0] == 200
    for host in ("localhost", "LOCALHOST:80", "127.0.0.2:4560", "[::1]:4560", "[::1]"):
        assert scene.post("t", {"id": 1}, JSON | {"Host": host})[0] == 200
    assert scene.post("t", {"id": 1}, {})[0] == 415, "a page can send a body without a type"
    bare = {"X-Signature": signed({"id": 1})["X-Signature"]}
    assert scene.post("u", {"id": 1}, bare)[0] == 200
    assert scene.sql("SELECT count(*) FROM t") == [(5,)]


def test_urls_live_and_end_with_their_tables(scene: Scene) -> None:
    hook = "WITH (connector = 'webhook')"
    scene.sql("CREATE TABLE plain (id int)", f'CREATE TABLE "Odd name/é" (id int) {hook}')
    assert scene.post("Odd%20name%2F%C3%A9?source=x", {"id": 1}) == (200, {"rows": 1})
    elsewhere = (
        "/", "/webhook/dev/public/none", "/webhook/dev/public/plain", "/webhook/dev/other/t", "/webhook/x/public/t",
        "/webhook/dev/public/Odd%20name", "/webhook/dev/public", "//webhook/dev/public/t",
    )  # fmt: skip
    for path in elsewhere:
        assert post(scene.server.port, path, {"id": 1})[0] == 404, path
    assert scene.post("t", {"id": 1})[0] == 404
    scene.sql(f"CREATE TABLE t (id int) {hook}")
    assert scene.post("t", {"id": 1})[0] == 200
    scene.sql("DROP TABLE t")
    assert scene.post("t", {"id": 1})[0] == 404


def test_a_table_that_is_dropped_while_rows_wait(scene: Scene) -> None:
    scene.sql("CREATE TABLE t (id int PRIMARY KEY) WITH (connector = 'webhook')")
    coordinator = scene.database.instance.coordinator
    table = scene.database.instance.catalog.image.object_named("public", "t")
    assert table is not None
    with ThreadPoolExecutor(1) as pool:
        with coordinator.writer.gate([table.id]):
            sent = pool.submit(scene.post, "t", {"id": 1})
            eventually(lambda: len(coordinator.writer._queue) == 1)
            coordinator.drop([table.id])
        assert sent.result(WAIT_S)[0] == 404


# ---- what is no request that is taken


def test_answers_to_what_is_not_taken(scene: Scene) -> None:
    scene.sql("CREATE TABLE t (id int PRIMARY KEY, v int NOT NULL) WITH (connector = 'webhook')")
    path, port = "/webhook/dev/public/t", scene.server.port
    status, said = scene.post("t", [{"id": 1, "v": 1}, {"id": 2, "v": "x"}])
    assert status == 400
    assert said == {"error": "not a whole number (column is int)", "record": 2, "column": "v", "value": "x"}
    assert scene.post("t", {"v": 1})[1]["error"] == 'null value in column "id" violates not-null constraint'
    assert scene.post("t", b"{")[1]["record"] == 1
    assert scene.sql("SELECT count(*) FROM t") == [(0,)], "all of a request or nothing"
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin-1"):
        assert scene.post("t", {"id": 1, "v": 1}, {"Content-Type": kind})[0] == 415
    assert scene.post("t", b"x", JSON | {"Content-Encoding": "gzip"})[0] == 415
    for method in ("GET", "PUT", "DELETE"):
        status, _, headers = post(port, path, b"", JSON, method)
        assert (status, headers["Allow"]) == (405, "POST")
    assert scene.post("t", {"id": 1, "v": 1}, {"Content-Type": "application/vnd.x+json"})[0] == 200


def raw(port: int, data: bytes) -> bytes:
    """All that is answered to some bytes, until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", port), WAIT_S) as line:
        line.sendall(data)
        found = b""
        while more := line.recv(65536):
            found += more
        return found


def test_sizes_have_bounds(scene: Scene) -> None:
    scene.sql("CREATE TABLE t (name text) WITH (connector = 'webhook')")
    port = scene.serve(webhook_body_kb=4).port
    fitting, path = {"name": "x" * 4000}, "/webhook/dev/public/t"
    assert post(port, path, fitting)[0] == 200
    assert post(port, path, {"name": "x" * 5000})[0] == 413
    assert raw(port, HEAD + b"Content-Length: 99999999999\r\n\r\n").startswith(b"HTTP/1.1 413 "), (
        "before any of it comes"
    )
    chunks = (
        b"Transfer-Encoding: chunked\r\n\r\n" + b"1000\r\n" + b" " * 4096 + b"\r\n" + b"10\r\n" + b" " * 16 + b"\r\n"
    )
    assert raw(port, HEAD + chunks).startswith(b"HTTP/1.1 413 ")
    assert raw(port, HEAD + b"X-Long: " + b"x" * 40_000).startswith(b"HTTP/1.1 431 ")
    assert raw(port, b"hello\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert scene.sql("SELECT count(*) FROM t") == [(1,)]


def test_expect_and_pipelines(scene: Scene) -> None:
    scene.sql("CREATE TABLE t (id int) WITH (connector = 'webhook')")
    with socket.create_connection(("127.0.0.1", scene.server.port), WAIT_S) as line:
        line.sendall(HEAD + b"Content-Length: 9\r\nExpect: 100-continue\r\n\r\n")
        assert line.recv(65536).startswith(b"HTTP/1.1 100 ")
        line.sendall(b'{"id": 1}')
        assert line.recv(65536).startswith(b"HTTP/1.1 200 ")
    two = HEAD + b'Content-Length: 9\r\n\r\n{"id": 2}'
    assert raw(scene.server.port, two + two.replace(b"Host", b"Connection: close\r\nHost")).count(b"HTTP/1.1 200") == 2
    assert scene.sql("SELECT count(*) FROM t") == [(3,)]


def test_slow_clients_are_cut(scene: Scene) -> None:
    scene.sql("CREATE TABLE t (id int) WITH (connector = 'webhook')")
    port = scene.serve(webhook_timeout_ms=200).port
    assert raw(port, b"") == b"", "who says nothing is sent away"
    assert raw(port, HEAD).startswith(b"HTTP/1.1 408 ")
    assert raw(port, HEAD + b'Content-Length: 9\r\n\r\n{"id"').startswith(b"HTTP/1.1 408 ")
    assert scene.sql("SELECT count(*) FROM t") == [(0,)]


# ---- too much, and the end


def test_a_flood_is_told_to_come_again(scene: Scene) -> None:
    scene.sql(f"CREATE TABLE t (id int PRIMARY KEY) {SIGNED}", f"CREATE TABLE u (id int PRIMARY KEY) {SIGNED}")
    server = scene.serve(webhook_requests=2)
    writer = scene.database.instance.coordinator.writer
    path = "/webhook/dev/public/"
    with ThreadPoolExecutor(2) as pool:
        with writer.paused():
            waiting = [pool.submit(post, server.port, path + name, {"id": 0}, signed({"id": 0})) for name in "tu"]
            eventually(lambda: len(writer._queue) == 2)
            for i in range(2, 8):
                status, said, headers = post(server.port, path + "t", {"id": i}, signed({"id": i}))
                assert status == 429 and headers["Retry-After"] == "1" and "webhook_requests" in said["error"]
            assert raw(server.port, HEAD + b"Content-Length: 9\r\n\r\n").startswith(b"HTTP/1.1 429 "), (
                "before its body comes"
            )
        assert [w.result(WAIT_S)[0] for w in waiting] == [200, 200]
    assert post(server.port, path + "t", {"id": 9}, signed({"id": 9}))[0] == 200
    assert scene.sql("SELECT id FROM t ORDER BY id") == [(0,), (9,)]


def test_a_table_that_is_locked_leaves_room_for_others(scene: Scene) -> None:
    hook = "(id int PRIMARY KEY) WITH (connector = 'webhook')"
    scene.sql(f"CREATE TABLE t {hook}", f"CREATE TABLE u {hook}")
    server, coordinator = scene.serve(webhook_requests=6), scene.database.instance.coordinator
    table = scene.database.instance.catalog.image.object_named("public", "t")
    assert table is not None
    path = "/webhook/dev/public/"
    with ThreadPoolExecutor(6) as pool:
        with coordinator.writer.gate([table.id]):
            sent = [pool.submit(post, server.port, path + "t", {"id": i}) for i in range(6)]
            eventually(lambda: sum(one.done() for one in sent) == 3 and len(coordinator.writer._queue) == 3)
            assert post(server.port, path + "u", {"id": 1})[0] == 200
            status, said, _ = post(server.port, path + "t", {"id": 9})
            assert status == 429 and "half of webhook_requests" in said["error"]
        assert sorted(one.result(WAIT_S)[0] for one in sent) == [200] * 3 + [429] * 3
    assert post(server.port, path + "t", {"id": 9})[0] == 200


def test_connections_are_bounded(scene: Scene) -> None:
    scene.sql("CREATE TABLE t (id int) WITH (connector = 'webhook')")
    server = scene.serve(webhook_requests=1)
    with ExitStack() as stack:
        for _ in range(web.CONNECTIONS_PER_REQUEST):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), WAIT_S))
        eventually(lambda: len(server.server._connections) == web.CONNECTIONS_PER_REQUEST)
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            post(server.port, "/webhook/dev/public/t", {"id": 1})
    eventually(lambda: not server.server._connections)
    assert post(server.port, "/webhook/dev/public/t", {"id": 1})[0] == 200


def test_rows_that_wait_for_too_long_are_given_up(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.sql("CREATE TABLE t (id int PRIMARY KEY) WITH (connector = 'webhook')")
    monkeypatch.setattr(web, "WAIT_S", 0.05)
    coordinator = scene.database.instance.coordinator
    table = scene.database.instance.catalog.image.object_named("public", "t")
    assert table is not None
    with coordinator.writer.gate([table.id]):
        status, said = scene.post("t", {"id": 1})
        assert status == 503 and "takes no rows at the moment" in said["error"]
    assert scene.sql("SELECT count(*) FROM t") == [(0,)]
    assert scene.post("t", {"id": 1})[0] == 200


def test_failures_do_not_flood_the_log(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.sql("CREATE TABLE t (id int) WITH (connector = 'webhook')")
    monkeypatch.setattr("headrace.web.receiver.rows_of", lambda *_, **__: 1 // 0)
    with capture_logs() as logs:
        for _ in range(20):
            assert scene.post("t", {"id": 1})[0] == 500
    assert 1 <= len([one for one in logs if one["event"] == "a request failed"]) < 10


@pytest.mark.parametrize(
    ("broken", "status"), [(ShuttingDown("it ends"), 503), (OperationalError("the disk"), 503), (KeyError("x"), 500)]
)
def test_a_database_that_takes_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, broken: Exception, status: int
) -> None:
    scene.sql("CREATE TABLE t (id int) WITH (connector = 'webhook')")

    def fail(*_: object) -> None:
        raise broken

    monkeypatch.setattr(scene.database.instance.coordinator.writer, "submit", fail)
    found, said, headers = post(scene.server.port, "/webhook/dev/public/t", {"id": 1})
    assert found == status and (status == 500 or (said["error"] == str(broken) and headers["Retry-After"] == "1"))
    monkeypatch.undo()
    assert scene.post("t", {"id": 1})[0] == 200


def test_a_standby_takes_nothing(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.errors import ReadOnlyTransaction

    scene.sql("CREATE TABLE t (id int) WITH (connector = 'webhook')")

    def refuse(what: str) -> None:
        raise ReadOnlyTransaction(f"cannot execute {what} in a read-only transaction")

    monkeypatch.setattr(scene.database.instance.coordinator, "refuse_writes", refuse)
    assert scene.post("t", {"id": 1}) == (503, {"error": "the server cannot write at present"}), "no more to strangers"


def test_what_is_under_way_when_the_server_stops_is_answered(scene: Scene) -> None:
    scene.sql("CREATE TABLE t (id int PRIMARY KEY) WITH (connector = 'webhook')")
    server, path = scene.serve(), "/webhook/dev/public/t"
    writer = scene.database.instance.coordinator.writer
    idle = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WAIT_S)
    idle.request("POST", path, b'{"id": 0}', JSON)
    assert idle.getresponse().read() == b'{"rows": 1}\n'
    with ThreadPoolExecutor(2) as pool:
        with writer.paused():
            sent = pool.submit(post, server.port, path, {"id": 1})
            eventually(lambda: server.server._under_way == 1)
            stopped = pool.submit(server.stop)
            eventually(lambda: server.server._stopping)
            idle.request("POST", path, b'{"id": 2}', JSON)
            late = idle.getresponse()
            assert late.status == 503 and late.headers["Connection"] == "close"
        assert sent.result(WAIT_S)[0] == 200
        stopped.result(WAIT_S)
    idle.close()
    with pytest.raises(ConnectionRefusedError):
        post(server.port, path, {"id": 3})
    assert scene.sql("SELECT id FROM t ORDER BY id") == [(0,), (1,)]


def test_what_waits_when_the_server_has_waited_long_enough_is_given_up(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scene.sql("CREATE TABLE t (id int PRIMARY KEY) WITH (connector = 'webhook')")
    monkeypatch.setattr(web, "GRACE_S", 0.3)
    server, coordinator = scene.serve(), scene.database.instance.coordinator
    table = scene.database.instance.catalog.image.object_named("public", "t")
    assert table is not None
    with ThreadPoolExecutor(1) as pool, capture_logs() as logs, coordinator.writer.gate([table.id]):
        sent = pool.submit(post, server.port, "/webhook/dev/public/t", {"id": 1})
        eventually(lambda: len(coordinator.writer._queue) == 1)
        server.stop()
        status, said, _ = sent.result(WAIT_S)
        assert status == 503 and said["error"] == "the server is shutting down"
    scene.sql("INSERT INTO t VALUES (2)")
    assert scene.sql("SELECT id FROM t") == [(2,)]
    assert not caplog.records and not logs


def test_a_body_that_is_read_while_the_server_stops_comes_to_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scene.sql("CREATE TABLE t (id int PRIMARY KEY) WITH (connector = 'webhook')")
    monkeypatch.setattr(web, "GRACE_S", 0.2)
    reading, stopped, over = threading.Event(), threading.Event(), threading.Event()
    take = Receiver.take

    def slow(self: Receiver, head: Any, body: bytes) -> Any:
        reading.set()
        assert stopped.wait(WAIT_S)
        try:
            return take(self, head, body)
        finally:
            over.set()

    monkeypatch.setattr(Receiver, "take", slow)
    server = scene.serve()
    with ThreadPoolExecutor(1) as pool, capture_logs() as logs:
        sent = pool.submit(post, server.port, "/webhook/dev/public/t", {"id": 1})
        assert reading.wait(WAIT_S)
        server.stop()
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            sent.result(WAIT_S)
        stopped.set()
        assert over.wait(WAIT_S)
    scene.sql("INSERT INTO t VALUES (2)")
    assert scene.sql("SELECT id FROM t") == [(2,)]
    assert not caplog.records and not logs


def test_encrypted_lines_and_a_new_certificate(scene: Scene, tmp_path: Path) -> None:
    scene.sql("CREATE TABLE t (id int) WITH (connector = 'webhook')")
    authority = Authority(tmp_path)
    pair = authority.pair("server")
    server = scene.serve(Certificates(pair.certificate, pair.key))
    trusting = ssl.create_default_context(cafile=str(authority.file))

    def shown() -> bytes | None:
        line = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=WAIT_S, context=trusting)
        with closing(line):
            line.request("POST", "/webhook/dev/public/t", b'{"id": 1}', JSON)
            assert line.getresponse().status == 200
            return line.sock.getpeercert(True)

    first = shown()
    other = authority.pair("other")
    pair.certificate.write_bytes(other.certificate.read_bytes())
    pair.key.write_bytes(other.key.read_bytes())
    assert shown() not in (None, first)
    assert raw(server.port, b"POST / HTTP/1.1\r\n\r\n") == b"", "nothing in plain text"


def test_connections_that_have_not_agreed_on_tls_count(scene: Scene, tmp_path: Path) -> None:
    pair = Authority(tmp_path).pair("server")
    server = scene.serve(Certificates(pair.certificate, pair.key), webhook_requests=1)
    with ExitStack() as stack:
        lines = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), WAIT_S))
            for _ in range(web.CONNECTIONS_PER_REQUEST + 5)
        ]
        for line in lines[web.CONNECTIONS_PER_REQUEST :]:
            assert line.recv(1) == b"", "closed without a word of TLS"
        assert len(server.server._connections) == web.CONNECTIONS_PER_REQUEST
        server.stop()
        for line in lines[: web.CONNECTIONS_PER_REQUEST]:
            assert line.recv(1) == b""


def test_certificates_of_clients_are_not_asked_for(scene: Scene, tmp_path: Path) -> None:
    scene.sql("CREATE TABLE t (id int) WITH (connector = 'webhook')")
    (tmp_path / "other").mkdir()
    authority, stranger = Authority(tmp_path), Authority(tmp_path / "other").pair("stranger")
    pair = authority.pair("server")
    server = scene.serve(Certificates(pair.certificate, pair.key, authority.file))
    trusting = ssl.create_default_context(cafile=str(authority.file))
    trusting.load_cert_chain(stranger.certificate, stranger.key)
    with closing(http.client.HTTPSConnection("127.0.0.1", server.port, timeout=WAIT_S, context=trusting)) as line:
        line.request("POST", "/webhook/dev/public/t", b'{"id": 1}', JSON)
        assert line.getresponse().status == 200


def test_an_address_that_is_taken(scene: Scene) -> None:
    with pytest.raises(OperationalError, match=r"cannot take webhooks on 127\.0\.0\.1:"):
        scene.serve(webhook_port=scene.server.port)


# ---- definitions


def refused(scene: Scene, sql: str) -> str:
    with pytest.raises(HeadraceError) as caught:
        scene.sql(sql)
    return caught.value.message


def test_definitions_that_are_refused(scene: Scene) -> None:
    hook, proof = "WITH (connector = 'webhook')", "VALIDATE SECRET s AS secure_compare(headers->>'x', s)"
    scene.sql("CREATE TABLE other (a int)")
    cases: dict[str, str] = {
        f"CREATE TABLE t (a int) {proof}": "VALIDATE of a table",
        f"CREATE TABLE t (a int DEFAULT 1) {hook}": "DEFAULT",
        f"CREATE TABLE t {hook} AS SELECT 1 AS a": "AS of a table",
        f"CREATE TABLE t {hook}": "without columns",
        f"CREATE TABLE t (a interval) {hook}": "interval",
        "CREATE TABLE t (a int) WITH (connector = 'webhook', on_error = 'skip')": "on_error",
        "CREATE TABLE t (a int) WITH (connector = 'webhook', parallelism = 2)": "parallelism",
        "CREATE TABLE t (a int) WITH (connector = 'webhook', is_batched = SECRET s)": "cannot be a secret",
        "CREATE TABLE t (a int) WITH (connector = 'webhook', is_batched = maybe)": "true or false",
        "CREATE TABLE t (a int) WITH (connector = 'webhook', validate.secret = SECRET s)": "cannot be a secret",
        f"CREATE TABLE t (a int) {hook} FORMAT PLAIN ENCODE JSON": "unknown option",
        f"CREATE TABLE t (a int) {hook} {proof.replace('s AS', 'none AS').replace(', s)', ', none)')}": "none",
        f"CREATE TABLE t (a int) {hook} {proof.replace('s AS', 'other AS').replace(', s)', ', other)')}": "other",
        "CREATE SOURCE t (a int) WITH (connector = 'webhook')": "connector",
    }
    for sql, message in cases.items():
        assert message in refused(scene, sql), sql
    scene.sql("CREATE SECRET nothing WITH (backend = 'meta') AS ''")
    of_nothing = proof.replace("s AS", "nothing AS").replace(", s)", ", nothing)")
    assert "empty secret" in refused(scene, f"CREATE TABLE t (a int) {hook} {of_nothing}")
    scene.sql("DROP SECRET nothing")
    scene.sql(f"CREATE TABLE t (a int) {hook} {proof}")
    assert "depend" in refused(scene, "DROP SECRET s")
    ((_, shown),) = scene.sql("SHOW CREATE TABLE t")
    assert shown.endswith(proof)


def test_it_acts_as_the_owner_and_needs_nobodys_rights(scene: Scene) -> None:
    scene.sql("CREATE ROLE hooks LOGIN", "GRANT CREATE ON SCHEMA public TO hooks", "GRANT USAGE ON SECRET s TO hooks")
    try:
        with closing(scene.database.instance.session(user="hooks")) as session:
            run(session, f"CREATE TABLE mine (id int) {SIGNED}")
        assert scene.post("mine", {"id": 1}, signed({"id": 1})) == (200, {"rows": 1})
        scene.sql("DROP TABLE mine")
    finally:
        scene.sql("REVOKE ALL ON SCHEMA public FROM hooks", "REVOKE ALL ON SECRET s FROM hooks", "DROP ROLE hooks")


def test_a_start_again_keeps_the_url(spark: SparkSession, tmp_path: Path) -> None:
    settings = Settings(secret_keys=KEY)
    for i in range(2):
        with connect(tmp_path, spark=spark, settings=settings) as database, ExitStack() as stack:
            if i == 0:
                database.sql(f"CREATE SECRET s WITH (backend = 'meta') AS '{SECRET}'")
                database.sql(f"CREATE TABLE t (id int) {SIGNED}")
            scene = Scene(database, stack)
            assert scene.post("t", {"id": i}, signed({"id": i})) == (200, {"rows": 1})
            assert scene.sql("SELECT count(*) FROM t") == [(i + 1,)]


def test_a_fault_of_the_server_is_one_request_s(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.sql("CREATE TABLE t (id int) WITH (connector = 'webhook')")
    refusal: Callable[..., Any] = Receiver.refusal
    calls = iter([True])

    def once(self: Receiver, head: Any) -> Any:
        if next(calls, False):
            raise RuntimeError("a fault")
        return refusal(self, head)

    monkeypatch.setattr(Receiver, "refusal", once)
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        scene.post("t", {"id": 1})
    assert scene.post("t", {"id": 1})[0] == 200
