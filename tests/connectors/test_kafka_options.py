"""The configuration of Kafka's clients: what can be set is what only says where and how to connect."""

from __future__ import annotations

import pytest

from headrace.connectors.kafka.options import SINK, SOURCE, properties
from headrace.errors import InvalidParameter

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
    names = ("security.protocol", "sasl.mechanism", "sasl.username", "sasl.password", "ssl.ca.location",
             "socket.timeout.ms", "fetch.wait.max.ms")  # fmt: skip
    found = properties(SOURCE, {**SERVER, **{f"properties.{name}": "1" for name in names}})
    assert found["bootstrap.servers"] == "localhost:1" and found["sasl.mechanisms"] == "1"
