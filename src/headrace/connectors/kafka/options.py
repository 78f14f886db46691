"""The options of the connector `kafka`, and the configuration of its clients that they make."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from headrace.connectors.base import DRIFT, IDLE
from headrace.connectors.connection_options import Connects
from headrace.connectors.declared import DeclaredOptions, Option, needed_module
from headrace.connectors.kafka.registry import MESSAGE
from headrace.connectors.kafka.registry import OPTIONS as REGISTRY_OPTIONS
from headrace.errors import HeadraceError, InvalidParameter

DELIMITER = "encode.delimiter"
KEY_ENCODE = "key.encode"
ANSWER_S = 10.0
"""How long a broker has for an answer."""
PAUSE_S = 0.2
EARLIEST, LATEST, TIMESTAMP, OFFSETS = "earliest", "latest", "timestamp", "offsets"

_BROKER = (Option("topic", "The topic.", required=True),)
_PROPERTIES = (
    "Passed on to librdkafka: `properties.bootstrap.server` (needed), `properties.security.protocol`, "
    "`properties.sasl.mechanism`, `properties.ssl.ca.location` and others of those that only say where and how to "
    "connect."
)

SOURCE = DeclaredOptions(
    (
        *_BROKER,
        Option("format", "Of records: `FORMAT PLAIN`, `UPSERT` or `DEBEZIUM`.", default="plain",
               choices=("plain", "upsert", "debezium")),
        Option("encode", "Of values, and of keys that are read: `ENCODE JSON`, `AVRO`, `PROTOBUF`, `CSV` or `BYTES`.",
               default="json", choices=("json", "avro", "protobuf", "csv", "bytes")),
        *REGISTRY_OPTIONS,
        Option(MESSAGE, "Of `ENCODE PROTOBUF (message = ...)`: what every record is; without it each names its own."),
        Option(DELIMITER, "Of `ENCODE CSV (delimiter = ...)`: one character, or `\\t`.", default=","),
        Option("encode.without_header", "Of `ENCODE CSV`: a record is a row, and none names columns.", default="true",
               choices=("true",)),
        Option("scan.startup.mode", "Where a partition begins that is there when the source is first read.",
               default=EARLIEST, choices=(EARLIEST, LATEST, TIMESTAMP, OFFSETS)),
        Option("scan.startup.timestamp.millis",
               "Of the mode `timestamp`, which it makes the default: milliseconds since 1970.", "number"),
        Option("group.id", "A consumer group without members: its committed offsets show Kafka's tools what all views "
               "have taken in. The role needs the right to read it. Nothing is read by them, and they stay."),
        Option("scan.startup.offsets",
               "Of the mode `offsets`, which it makes the default: `0:1200,1:1350`; others begin at their start."),
        IDLE,
        DRIFT,
    ),
    "properties.", _PROPERTIES, secret_prefix=True,
)  # fmt: skip

SINK = DeclaredOptions(
    (
        *_BROKER,
        Option("format", "`FORMAT PLAIN` (rows that are added), `UPSERT` (no value is a deletion) or `DEBEZIUM`.",
               default="plain", choices=("plain", "upsert", "debezium")),
        Option("encode", "Of keys and values: `ENCODE JSON` or `AVRO`.", default="json", choices=("json", "avro")),
        Option(KEY_ENCODE, "Of keys, where it is not that of values: `KEY ENCODE TEXT`, `BYTES` or `JSON`.",
               choices=("text", "bytes", "json")),
        *REGISTRY_OPTIONS,
    ),
    "properties.", _PROPERTIES, secret_prefix=True,
)  # fmt: skip

_OWN = {
    "group.id", "enable.auto.commit", "enable.auto.offset.store", "auto.offset.reset", "isolation.level",
    "enable.partition.eof", "transactional.id", "enable.idempotence", "acks",
}  # fmt: skip
"""What a user cannot set, since exactly once stands on it."""
_TUNING = {
    "client.id", "client.rack", "metadata.max.age.ms", "connections.max.idle.ms", "message.max.bytes",
    "receive.message.max.bytes", "max.partition.fetch.bytes", "check.crcs", "partitioner", "linger.ms",
    "message.timeout.ms", "request.timeout.ms", "retry.backoff.ms", "retry.backoff.max.ms",
}  # fmt: skip
"""What says nothing of where a broker is, nor of who comes."""
_PASSED = _TUNING | {
    "bootstrap.servers", "client.dns.lookup", "security.protocol", "sasl.mechanisms", "sasl.username", "sasl.password",
    "sasl.oauthbearer.method", "sasl.oauthbearer.client.id", "sasl.oauthbearer.client.secret", "sasl.oauthbearer.scope",
    "sasl.oauthbearer.extensions", "sasl.oauthbearer.token.endpoint.url", "https.ca.location", "https.ca.pem",
    "enable.ssl.certificate.verification",
    "ssl.endpoint.identification.algorithm", "ssl.ca.location", "ssl.ca.pem", "ssl.certificate.location",
    "ssl.certificate.pem", "ssl.key.location", "ssl.key.pem", "ssl.key.password", "ssl.keystore.location",
    "ssl.keystore.password", "ssl.crl.location", "ssl.cipher.suites", "ssl.curves.list", "ssl.sigalgs.list",
}  # fmt: skip
_PASSED_PREFIXES = (
    "socket.", "reconnect.", "topic.metadata.", "broker.address.", "api.version.", "fetch.", "queued.", "compression.",
    "batch.", "queue.buffering.",
)  # fmt: skip
"""What a user can set. Others may load libraries, run commands (as `sasl.kerberos.*` does) or take Python's objects."""
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_SPELLINGS = {"bootstrap.server": "bootstrap.servers", "sasl.mechanism": "sasl.mechanisms"}

T = TypeVar("T")


def properties(declared: DeclaredOptions, options: Mapping[str, str]) -> dict[str, Any]:
    """The configuration of a client. Raises `InvalidParameter`."""
    found: dict[str, Any] = {_SPELLINGS.get(n, n): value for n, value in declared.passed_on(options).items()}
    if "bootstrap.servers" not in found:
        raise InvalidParameter(
            "option properties.bootstrap.server is required for connector kafka", hint="host:port,host:port"
        )
    for name in sorted(_OWN & set(found)):
        raise InvalidParameter(f"option properties.{name} cannot be set: headrace does so itself")
    for name in sorted(found):
        if (name not in _PASSED and not name.startswith(_PASSED_PREFIXES)) or name.endswith("_cb"):
            raise InvalidParameter(
                f"option properties.{name} cannot be set: it is none of those that only say where and how to connect"
            )
    _check_mechanism(found)
    return {"client.id": "headrace", "log_level": 0, "socket.timeout.ms": round(ANSWER_S * 1000), **found}


def _check_mechanism(found: Mapping[str, str]) -> None:
    """Raise `InvalidParameter` for a way to log in that cannot be had."""
    if not found.get("security.protocol", "").lower().startswith("sasl_"):
        return
    mechanism = found.get("sasl.mechanisms", "GSSAPI").upper()
    if mechanism not in _MECHANISMS:
        raise InvalidParameter(
            f"properties.sasl.mechanism {mechanism} cannot be had: the client is not built with it",
            hint=f"one of {', '.join(_MECHANISMS)}",
        )
    if mechanism == "OAUTHBEARER" and found.get("sasl.oauthbearer.method", "").lower() != "oidc":
        raise InvalidParameter(
            "properties.sasl.mechanism OAUTHBEARER needs properties.sasl.oauthbearer.method = 'oidc'",
            hint="with sasl.oauthbearer.token.endpoint.url, client.id and client.secret: where tokens are, for whom",
        )


_SERVERS = DeclaredOptions((), "properties.", _PROPERTIES, secret_prefix=True)
CONNECTION = Connects(
    _SERVERS,
    {"kafka": {}},
    check=lambda options: properties(_SERVERS, options),
    tunes=lambda name: name.removeprefix("properties.") in _TUNING,
)


class ClientError(Protocol):
    """An error of the client."""

    def code(self) -> int: ...
    def str(self) -> str: ...


class Heard:
    """What a client has said of why it gets nowhere: its `error_cb`. It knows no client, which would not end then."""

    def __init__(self) -> None:
        self.newest = ""

    def __call__(self, error: ClientError) -> None:
        """Note what the client says."""
        kafka = needed_module("confluent_kafka", "kafka")
        if error.code() != kafka.KafkaError._ALL_BROKERS_DOWN:
            self.newest = error.str()


class Complaints:
    """What a client says of why it gets nowhere: its answers only say that time is up, or that nobody answers.

    The client is made with `heard` as its `error_cb`.
    """

    def __init__(self) -> None:
        self.heard = Heard()
        self._serve: Callable[[float], object] | None = None

    def of(self, client: T) -> T:
        """The client itself, which is asked for them from now on."""
        self._serve = client.poll  # type: ignore[attr-defined]
        return client

    def told(self) -> str:
        """The newest, for an error's detail; nothing where there is none."""
        if self._serve is not None:
            self._serve(0.0)
        return self.heard.newest


def asked(what: str, error: type[HeadraceError], call: Callable[[], T], complaints: Complaints | None = None) -> T:
    """What a call of the client returns; its errors as `error`, those of its configuration as `InvalidParameter`."""
    kafka = needed_module("confluent_kafka", "kafka")
    until_s = time.monotonic() + ANSWER_S
    while True:
        try:
            return call()
        except kafka.KafkaException as failure:
            found = failure.args[0] if failure.args else failure
            if not _passes(kafka, found) or time.monotonic() > until_s:
                raise _told(kafka, what, error, found, complaints) from failure
            time.sleep(PAUSE_S)


@contextmanager
def told(what: str, error: type[HeadraceError]) -> Iterator[None]:
    """The client's errors inside the block as `asked` tells them; nothing is tried again."""
    kafka = needed_module("confluent_kafka", "kafka")
    try:
        yield
    except kafka.KafkaException as failure:
        raise _told(kafka, what, error, failure.args[0] if failure.args else failure) from failure


def _passes(kafka: Any, found: Any) -> bool:
    """Whether a failure is one of a broker that is still finding out what it is there for."""
    error = kafka.KafkaError
    passing = (error.NOT_COORDINATOR, error.COORDINATOR_NOT_AVAILABLE, error.COORDINATOR_LOAD_IN_PROGRESS)
    return isinstance(found, error) and found.code() in passing


def _told(
    kafka: Any, what: str, error: type[HeadraceError], found: Any, complaints: Complaints | None = None
) -> HeadraceError:
    if not isinstance(found, kafka.KafkaError):
        return error(f"{what}: {found}")
    if found.code() == kafka.KafkaError._INVALID_ARG:
        return InvalidParameter(f"{what}: {found.str()}", hint="see librdkafka's CONFIGURATION.md")
    unreached = (kafka.KafkaError._TIMED_OUT, kafka.KafkaError._TRANSPORT, kafka.KafkaError._ALL_BROKERS_DOWN)
    why = complaints.told() if complaints is not None and found.code() in unreached else ""
    return error(f"{what}: {why or found.str()}")
