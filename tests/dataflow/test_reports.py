"""What tasks report of themselves: never waiting, never failing, whatever becomes of the listener."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from headrace.dataflow.operators import task_progress
from headrace.dataflow.operators.task_progress import MOST_PENDING, RETRY_S, ProgressStream, Reports, connection


@dataclass
class Stage:
    label: str = "0.1"
    partition: int = 2
    attempt_number: int = 0
    rows_in: int = 0
    rows_out: int = 0


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def address(listener: socket.socket, token: str = "secret") -> str:
    host, port = listener.getsockname()
    return f"{host}:{port}/{token}"


def lines(peer: socket.socket, count: int) -> list[dict[str, Any]]:
    with peer.makefile("rb") as file:
        return [json.loads(file.readline()) for _ in range(count)]


def test_a_task_tells_its_life(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Started, rows so far, acknowledged, each with attempt, epoch, operator, task; first of all the token."""
    monkeypatch.setattr(task_progress, "INTERVAL_S", 0.0)
    task = Stage()
    with Reports(address(listener), "5-1-9", 77, [task]) as reports:
        task.rows_in = 10
        reports.look()
        task.rows_out = 3
        reports.acknowledged()
    with pytest.raises(ZeroDivisionError), Reports(address(listener), "5-1-10", 78, [task, Stage("view")]):
        raise ZeroDivisionError("division by zero")
    peer, _ = listener.accept()
    hello, started, rows, ack, *second = lines(peer, 8)
    assert hello == {"token": "secret"}
    common = {"attempt": "5-1-9", "epoch": 77, "operator": "0.1", "task": 2, "try": 0}
    assert started == {**common, "kind": "started", "in": 0, "out": 0}
    assert rows == {**common, "kind": "progress", "in": 10, "out": 0}
    assert ack == {**common, "kind": "ack", "in": 10, "out": 3}
    assert [(e["kind"], e["operator"]) for e in second] == [
        ("started", "0.1"), ("started", "view"), ("decline", "0.1"), ("decline", "view")
    ]  # fmt: skip
    assert second[-1]["reason"] == "ZeroDivisionError: division by zero"
    connection(address(listener)).close()
    peer.close()


def test_rows_are_reported_now_and_then_only(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_progress, "INTERVAL_S", 3600.0)
    with Reports(address(listener), "5-1-9", 77, [Stage()]) as reports:
        for _ in range(1000):
            reports.look()
        reports.acknowledged()
    peer, _ = listener.accept()
    connection(address(listener)).close()
    with peer, peer.makefile("rb") as file:
        assert [json.loads(line).get("kind") for line in file] == [None, "started", "ack"]


def test_a_process_keeps_one_connection(listener: socket.socket) -> None:
    first = connection(address(listener))
    assert connection(address(listener)) is first
    assert connection(address(listener, "of the next server")) is not first


def test_a_listener_that_takes_nothing_is_not_waited_for(listener: socket.socket) -> None:
    """What it does not take is kept up to a bound, then left out, whole lines at a time; later it goes on."""
    made = ProgressStream(address(listener))
    event = {"kind": "progress", "filler": "x" * 1000}
    for _ in range(20_000):
        made.send([event])
    assert len(made._pending) <= MOST_PENDING
    peer, _ = listener.accept()
    seen: list[Any] = []

    def read() -> None:
        with peer.makefile("rb") as file:
            seen.extend(json.loads(line) for line in file)

    reader = threading.Thread(target=read)
    reader.start()
    while made._pending:
        made.send([])
    made.send([{"kind": "ack"}])
    while made._pending:
        made.send([])
    made.close()
    reader.join()
    peer.close()
    assert seen[0] == {"token": "secret"} and seen[-1] == {"kind": "ack"}
    assert set(map(str, seen[1:-1])) == {str(event)} and len(seen) < 20_000


def test_a_listener_that_is_gone_is_tried_again_after_a_while(listener: socket.socket) -> None:
    now = [100.0]
    made = ProgressStream(address(listener), lambda: now[0])
    made.send([{"n": 1}])
    peer, _ = listener.accept()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    peer.close()
    while made._socket is not None:
        made.send([{"n": 2}])
    made.send([{"n": 3}])
    assert made._socket is None, "not at once"
    now[0] += RETRY_S
    made.send([{"n": 4}])
    peer, _ = listener.accept()
    assert lines(peer, 2) == [{"token": "secret"}, {"n": 4}]
    made.close()
    peer.close()


def test_threads_share_it(listener: socket.socket) -> None:
    """Where tasks are threads of one process, each line still comes whole and none of them fails."""
    made = ProgressStream(address(listener))
    threads = [threading.Thread(target=lambda: [made.send([{"n": n}]) for n in range(500)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    peer, _ = listener.accept()
    for thread in threads:
        thread.join()
    assert made._socket is not None
    while made._pending:
        made.send([])
    made.close()
    with peer, peer.makefile("rb") as file:
        _, *found = [json.loads(line)["n"] if i else None for i, line in enumerate(file)]
    assert sorted(found) == sorted([*range(500)] * 4)


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        nobody = address(server)
    for where in (nobody, ""):
        with Reports(where, "5-1-9", 77, [Stage()]) as reports:
            for _ in range(100):
                reports.look()
            reports.acknowledged()
