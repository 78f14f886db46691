"""Connections: which options they have, and what an object that names one may say beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.connectors.connection_options import TYPES, GivenOptions, check, connects, joined
from headrace.connectors.sources import connector_names
from headrace.errors import InvalidParameter

PAGE = Path(__file__).parents[2] / "docs" / "connectors" / "connections.md"
KAFKA = {"properties.bootstrap.server": "b:9092", "properties.linger.ms": "5"}
SERVER = {"host": "db", "user": "me", "database": "shop"}


@pytest.mark.parametrize("kind", TYPES)
def test_the_page_has_the_options_of_each_type(kind: str) -> None:
    _, found, rest = PAGE.read_text().partition(f"<!-- {kind} options -->\n")
    assert found and rest.startswith(connects(kind).declared.table() + "\n")


@pytest.mark.parametrize(
    ("kind", "options", "secrets", "message"),
    [
        ("ftp", {}, {}, "option type of a connection must be one of http, iceberg, kafka, postgres, s3, not 'ftp'"),
        ("kafka", {}, {}, "option properties.bootstrap.server is required"),
        ("kafka", {**KAFKA, "topic": "t"}, {}, "option topic is none of a connection of type kafka"),
        ("kafka", {**KAFKA, "connector": "kafka"}, {}, "option connector is none of a connection"),
        ("kafka", {**KAFKA, "properties.sasl.kerberos.kinit.cmd": "rm"}, {}, "cannot be set"),
        ("kafka", {**KAFKA, "properties.sasl.password": "open"}, {}, "has to be a secret"),
        ("postgres", {"host": "db", "database": "shop"}, {}, "option user is required"),
        ("postgres", {**SERVER, "port": "none"}, {}, "option port must be a whole number"),
        ("postgres", {**SERVER, "password": "open"}, {}, "has to be a secret"),
        ("postgres", {"host": "db", "database": "shop"}, {"user": "x"}, "cannot be a secret"),
        ("s3", {"s3.secret.key": "open"}, {}, "has to be a secret"),
        ("iceberg", {"catalog.type": "rest"}, {}, "option catalog.uri is required"),
        ("iceberg", {"catalog.type": "rest", "catalog.uri": "https://me:open@h"}, {}, "has a password in its URL"),
        ("iceberg", {"catalog.type": "rest", "catalog.uri": "https://h/?access_token=a"}, {}, "has a password in its"),
    ],
)
def test_what_no_connection_has(kind: str, options: dict[str, str], secrets: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidParameter, match=message):
        check(kind, options, secrets)


def test_what_connections_have() -> None:
    check("kafka", KAFKA, {"properties.sasl.password": "x"})
    check("postgres", SERVER, {"password": "x"})
    check("s3", {}, {"s3.secret.key": "x"})
    check("iceberg", {"catalog.type": "sql"}, {"catalog.uri": "postgresql+psycopg://me:x@h/d"})


def test_an_object_has_its_own_options_and_those_of_the_connection() -> None:
    own = GivenOptions({"connector": "postgres-cdc", "table.name": "t"})
    found = joined("c", "postgres", GivenOptions(SERVER, {"password": 7}), own)
    assert found.secrets == {"password": 7}
    assert found.options == {**own.options, "hostname": "db", "username": "me", "database.name": "shop"}
    tuned = joined("c", "kafka", GivenOptions(KAFKA), GivenOptions({"connector": "kafka", "properties.client.id": "x"}))
    assert tuned.options == {"connector": "kafka", "properties.client.id": "x", **KAFKA}
    same = GivenOptions({"connector": "kafka", "properties.bootstrap.server": "b:9092"})
    assert joined("c", "kafka", GivenOptions(KAFKA), same).options == {"connector": "kafka", **KAFKA}


@pytest.mark.parametrize(
    ("kind", "connection", "own", "message"),
    [
        (
            "kafka",
            GivenOptions(KAFKA),
            GivenOptions({"connector": "kafka", "properties.linger.ms": "6"}),
            "given twice",
        ),
        (
            "kafka",
            GivenOptions(KAFKA),
            GivenOptions({"connector": "kafka", "properties.bootstrap.server": "evil"}),
            "given twice",
        ),
        (
            "kafka",
            GivenOptions(KAFKA),
            GivenOptions({"connector": "kafka", "properties.bootstrap.servers": "evil"}),
            "for connection",
        ),
        (
            "kafka",
            GivenOptions(KAFKA),
            GivenOptions({"connector": "kafka"}, {"properties.sasl.username": 3}),
            "for connection",
        ),
        (
            "postgres",
            GivenOptions(SERVER),
            GivenOptions({"connector": "postgres", "port": "1"}),
            "says where to connect or as whom",
        ),
        (
            "postgres",
            GivenOptions(SERVER),
            GivenOptions({"connector": "postgres-cdc", "port": "1"}),
            "says where to connect",
        ),
        (
            "postgres",
            GivenOptions(SERVER),
            GivenOptions({"connector": "postgres-cdc", "ssl.mode": "disable"}),
            "says where to",
        ),
        (
            "postgres",
            GivenOptions(SERVER, {"password": 7}),
            GivenOptions({"connector": "postgres"}, {"password": 8}),
            "given twice",
        ),
        (
            "postgres",
            GivenOptions(SERVER, {"password": 7}),
            GivenOptions({"connector": "postgres", "password": "7"}),
            "given twice",
        ),
        (
            "postgres",
            GivenOptions(SERVER),
            GivenOptions({"connector": "kafka"}),
            "of type postgres, which is not for connector kafka",
        ),
        ("postgres", GivenOptions(SERVER), GivenOptions({}), "not for connector .none is given."),
    ],
)
def test_what_an_object_must_not_say_beside_a_connection(
    kind: str, connection: GivenOptions, own: GivenOptions, message: str
) -> None:
    with pytest.raises(InvalidParameter, match=message):
        joined("c", kind, connection, own)


@pytest.mark.parametrize("kind", TYPES)
def test_each_type_is_for_connectors_that_there_are(kind: str) -> None:
    from headrace.connectors.sinks import _SINKS

    found = connects(kind)
    assert set(found.connectors) <= {*connector_names(), *_SINKS}
    names = {o.name for o in found.declared.options}
    assert all(set(spelled) <= names for spelled in found.connectors.values())
