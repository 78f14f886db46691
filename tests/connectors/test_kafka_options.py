"""Kafka's clients: what can be set is what only says where and how to connect; how long they are waited for."""

from __future__ import annotations

import time

import pytest

from headrace.connectors.kafka import producing
from headrace.connectors.kafka.options import SINK, SOURCE, Complaints, properties
from headrace.errors import InvalidParameter, SinkError

SERVER = {"properties.bootstrap.server": "localhost:1"}


@pytest.mark.parametrize(
    "name",
    ["plugin.library.paths", "ssl.engine.location", "ssl.providers", "ssl.engine.id", "sasl.kerberos.kinit.cmd",
     "sasl.kerberos.principal", "logger", "error_cb", "socket.connect_cb", "oauth_cb", "debug", "log_level", "opaque",
     "builtin.features", "unheard.of"],
)  # fmt: skip
def test_what_could_run_code_is_refused(name: str) -> None:
    for declared in (SOURCE, SINK):
        with pytest.raises(InvalidParameter, match="cannot be set"):
            properties(declared, {**SERVER, f"properties.{name}": "/tmp/x"})


def test_where_and_how_to_connect_can_be_said() -> None:
    names = ("sasl.mechanism", "sasl.username", "sasl.password", "ssl.ca.location",
             "socket.timeout.ms", "fetch.wait.max.ms")  # fmt: skip
    found = properties(SOURCE, {**SERVER, **{f"properties.{name}": "1" for name in names}})
    assert found["bootstrap.servers"] == "localhost:1" and found["sasl.mechanisms"] == "1"


class Slow:
    """A client that gets rid of a record now and then, or of none."""

    def __init__(self, left: int, every: int) -> None:
        self.left, self._every, self._asked = left, every, 0

    def __len__(self) -> int:
        return self.left

    def poll(self, _: float) -> None:
        """Tell of nothing."""

    def flush(self, timeout_s: float) -> int:
        time.sleep(timeout_s / 100)
        self._asked += 1
        if self._every and self._asked % self._every == 0:
            self.left -= 1
        return self.left

    def begin_transaction(self) -> None:
        """Begin."""


@pytest.mark.parametrize("every", [0, 5])
def test_who_takes_no_records_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    """As long as it takes some it is: however long all of them take."""
    monkeypatch.setattr(producing, "PATIENCE_S", 0.2)
    monkeypatch.setattr(producing, "_topic_id", lambda *_: "another")
    complaints = Complaints()
    complaints.heard.newest = "Connection refused"
    producer = producing.SinkProducer(
        "Kafka", "t", Slow(60, every), None, "id", None, 0, producing.Undelivered(), complaints
    )
    producer.begin()
    wanted = "was deleted and made again" if every else "Kafka takes no records: Connection refused"
    with pytest.raises(SinkError, match=wanted):
        producer.commit(1)
