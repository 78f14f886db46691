"""Requests to a real server: the example of the manual, and kills between the write and the answer."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from server import Server
from support import WAIT_S

PAGE = Path(__file__).parents[2] / "docs" / "connectors" / "webhook.md"
SETTINGS = {"HEADRACE_WEBHOOK_PORT": "0", "HEADRACE_SECRET_KEYS": "A" * 43 + "="}
LISTENS = re.compile(r"webhooks are taken on http://127\.0\.0\.1:(\d+)/webhook/")


def port_of(server: Server) -> int:
    found = LISTENS.search(server.log_text())
    assert found is not None, server.log_text()[-2000:]
    return int(found[1])


def post(server: Server, body: Any) -> tuple[int, Any]:
    """A signed request to the table `payments` of the manual's example."""
    data = json.dumps(body).encode()
    headers = {"X-Signature": "sha256=" + hmac.new(b"TEST_WEBHOOK", data, hashlib.sha256).hexdigest()}
    with closing(http.client.HTTPConnection("127.0.0.1", port_of(server), timeout=WAIT_S)) as line:
        line.request("POST", "/webhook/dev/public/payments", data, headers)
        answer = line.getresponse()
        return answer.status, json.loads(answer.read())


def example(language: str) -> str:
    return PAGE.read_text().partition(f"```{language}\n")[2].partition("```")[0]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    found = Server(tmp_path_factory.mktemp("webhooks"), settings=SETTINGS)
    try:
        found.start()
        found.execute(*(sql for sql in example("sql").split(";\n") if sql.strip()))
        yield found
    finally:
        found.close()


@pytest.mark.timeout(600)
def test_the_example_of_the_manual(server: Server) -> None:
    script = example("sh").replace(":4560/", f":{port_of(server)}/")
    done = subprocess.run(["bash", "-ec", script], capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert json.loads(done.stdout) == {"rows": 1}
    server.flush()
    assert [(c, str(n)) for c, n in server.rows("SELECT customer, total FROM spent")] == [("ann", "12.50")]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("point", "there"), [("table.commit.after", True), ("table.commit.before", False)])
def test_killed_between_the_write_and_the_answer(server: Server, point: str, there: bool) -> None:
    """What was answered is there; what was not may be, and is there once when the client has repeated itself."""
    before = server.rows("SELECT count(*) FROM payments")[0][0]
    answered, lost = ({"id": before * 10 + i, "customer": "bob", "amount": 1} for i in (101, 102))
    assert post(server, answered) == (200, {"rows": 1})
    server.kill()
    server.start(f"{point}=kill@1")
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        post(server, lost)
    assert server.wait_exit() == -9
    server.start()
    ids = {row[0] for row in server.rows("SELECT id FROM payments")}
    assert answered["id"] in ids and (lost["id"] in ids) == there
    assert post(server, lost) == (200, {"rows": 1})
    assert server.rows("SELECT count(*) FROM payments") == [(before + 2,)]


@pytest.mark.timeout(600)
def test_the_server_stops_in_order(server: Server) -> None:
    assert post(server, {"id": 7, "customer": "eve", "amount": 1})[0] == 200
    assert server.stop() == 0
    server.start()
    assert server.rows("SELECT customer FROM payments WHERE id = 7") == [("eve",)]
