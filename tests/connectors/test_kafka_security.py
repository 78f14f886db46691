"""TLS and SASL against a real broker: who comes in, who does not, and what they are told."""

from __future__ import annotations

import base64
import contextlib
import json
import threading
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from certificates import Authority
from headrace.common.columns import Column
from headrace.connectors.base import Admission, Source
from headrace.connectors.sinks import open_sink
from headrace.connectors.sources import open_source
from headrace.errors import InvalidParameter, SinkError, SourceError
from kafka import HOST, Kafka, NoKafka, kafka_server

COLUMNS = [Column("a", "int")]
_LISTENERS = {"TLS": "SSL", "USERS": "SASL_SSL", "TOKENS": "SASL_PLAINTEXT"}
_MODULES = "org.apache.kafka.common.security"


class TokenEndpoint(BaseHTTPRequestHandler):
    """Gives whoever knows the secret a token that nobody has signed, as a broker takes it that is told to."""

    def do_POST(self) -> None:
        asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
        known = base64.b64decode(self.headers["Authorization"].removeprefix("Basic ")).decode()
        assert parse_qs(asked)["grant_type"] == ["client_credentials"]
        if known == "shop:token-secret":
            now = int(time.time())
            parts = ({"alg": "none", "typ": "JWT"}, {"sub": "shop", "iat": now, "exp": now + 300})
            token = ".".join(base64.urlsafe_b64encode(json.dumps(p).encode()).decode().rstrip("=") for p in parts) + "."
            self._answer(200, {"access_token": token, "token_type": "bearer", "expires_in": 300})
        else:
            self._answer(401, {"error": "invalid_client"})

    def _answer(self, status: int, body: Mapping[str, object]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadingHTTPServer((HOST, 0), TokenEndpoint)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://{HOST}:{server.server_port}/token"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def secured(authority: Authority) -> Iterator[Kafka]:
    """A broker with TLS, with users over TLS, and with tokens, beside its listener in plain text."""
    from confluent_kafka.admin import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

    pair = authority.pair("broker")
    keys = authority.file.parent / "broker-both.pem"
    keys.write_text(pair.key.read_text() + pair.certificate.read_text())
    plain = 'username="broker" password="none" user_ann="ann-secret"'
    settings = {
        "ssl.keystore.type": "PEM", "ssl.keystore.location": str(keys),
        "ssl.truststore.type": "PEM", "ssl.truststore.location": str(authority.file),
        "listener.name.tls.ssl.client.auth": "required",
        "listener.name.users.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.users.plain.sasl.jaas.config": f"{_MODULES}.plain.PlainLoginModule required {plain};",
        "listener.name.users.scram-sha-256.sasl.jaas.config": f"{_MODULES}.scram.ScramLoginModule required;",
        "listener.name.users.scram-sha-512.sasl.jaas.config": f"{_MODULES}.scram.ScramLoginModule required;",
        "listener.name.tokens.sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.tokens.oauthbearer.sasl.jaas.config":
            f'{_MODULES}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";',
    }  # fmt: skip
    pytest.importorskip("confluent_kafka")
    with contextlib.ExitStack() as ends:
        try:
            server = ends.enter_context(kafka_server(settings, _LISTENERS))
        except NoKafka as error:
            pytest.skip(str(error))
        admin = server.admin()
        for kind in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):  # one at once is all a broker takes
            added = UserScramCredentialUpsertion("bob", ScramCredentialInfo(kind, 4096), b"bob-secret")
            admin.alter_user_scram_credentials([added])["bob"].result(30)
        server.topic("safe")
        server.send("safe", '{"a": 1}', '{"a": 2}')
        yield server


def source(secured: Kafka, listener: str, options: Mapping[str, str]) -> Source:
    where = {"properties.bootstrap.server": f"{HOST}:{secured.beside[listener]}"}
    named = {f"properties.{name}": value for name, value in options.items()}
    return open_source({"connector": "kafka", "topic": "safe", **where, **named}, COLUMNS)


def values(found: Source) -> list[int]:
    bound = found.latest_offsets(found.start_offsets(), Admission(), 0)
    return [r["a"] for t in found.plan({}, bound.offsets, 1) for made in found.read(t) for r in made.batch.to_pylist()]


def user(authority: Authority, mechanism: str, name: str, password: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_SSL", "ssl.ca.location": str(authority.file), "sasl.mechanism": mechanism,
        "sasl.username": name, "sasl.password": password,
    }  # fmt: skip


def tokens(endpoint: str, secret: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": "shop", "sasl.oauthbearer.client.secret": secret,
        "sasl.oauthbearer.token.endpoint.url": endpoint,
    }  # fmt: skip


def test_certificates_of_both_sides(secured: Kafka, authority: Authority) -> None:
    pair = authority.pair("client")
    mine = {"ssl.certificate.location": str(pair.certificate), "ssl.key.location": str(pair.key)}
    known = {"security.protocol": "SSL", "ssl.ca.location": str(authority.file)}
    assert values(source(secured, "TLS", {**known, **mine})) == [1, 2]
    texts = {
        "ssl.ca.pem": authority.file.read_text(), "ssl.certificate.pem": pair.certificate.read_text(),
        "ssl.key.pem": pair.key.read_text(), "security.protocol": "SSL",
    }  # fmt: skip
    assert values(source(secured, "TLS", texts)) == [1, 2]
    with pytest.raises(SourceError, match=r"(?i)ssl"):
        values(source(secured, "TLS", known))


def test_a_broker_that_is_not_known(secured: Kafka, authority: Authority, tmp_path: Path) -> None:
    given = user(authority, "PLAIN", "ann", "ann-secret")
    with pytest.raises(SourceError, match="certificate"):
        values(source(secured, "USERS", {**given, "ssl.ca.location": str(Authority(tmp_path).file)}))


@pytest.mark.parametrize(
    ("mechanism", "name"),
    [("PLAIN", "ann"), ("SCRAM-SHA-256", "bob"), pytest.param("SCRAM-SHA-512", "bob", marks=pytest.mark.soak)],
)
def test_users(secured: Kafka, authority: Authority, mechanism: str, name: str) -> None:
    assert values(source(secured, "USERS", user(authority, mechanism, name, f"{name}-secret"))) == [1, 2]
    with pytest.raises(SourceError, match=r"(?i)authentication") as told:
        values(source(secured, "USERS", user(authority, mechanism, name, "guessed-wrong")))
    assert "guessed-wrong" not in str(told.value)


def test_tokens(secured: Kafka, endpoint: str) -> None:
    assert values(source(secured, "TOKENS", tokens(endpoint, "token-secret"))) == [1, 2]
    with pytest.raises(SourceError, match=r"(?i)token|oauth"):
        values(source(secured, "TOKENS", tokens(endpoint, "wrong")))


def test_a_sink_comes_in_the_same_way(secured: Kafka, authority: Authority) -> None:
    given = user(authority, "SCRAM-SHA-512", "bob", "bob-secret")
    named = {f"properties.{name}": value for name, value in given.items()}
    where = {"properties.bootstrap.server": f"{HOST}:{secured.beside['USERS']}"}
    sink = open_sink({"connector": "kafka", "topic": "safe", "type": "append-only", **where, **named}, COLUMNS)
    sink.reach()
    wrong = {**named, "properties.sasl.password": "guessed-wrong"}
    with pytest.raises(SinkError, match=r"(?i)authentication"):
        open_sink({"connector": "kafka", "topic": "safe", "type": "append-only", **where, **wrong}, COLUMNS).reach()


def test_what_cannot_be_had(secured: Kafka) -> None:
    with pytest.raises(InvalidParameter, match="GSSAPI"):
        source(secured, "USERS", {"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"})
    with pytest.raises(InvalidParameter, match="oidc"):
        source(secured, "TOKENS", {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"})
