"""SCRAM against the RFC's own exchange, PostgreSQL's verifiers, and an attacker in between."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.common.scram import (
    BOUND_MECHANISM,
    MECHANISM,
    ClientExchange,
    MalformedExchange,
    NotProved,
    ServerExchange,
    Verifier,
    prepared,
)
from headrace.errors import HeadraceError

# RFC 7677, 3: user "user", password "pencil".
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT_NONCE, SERVER_NONCE = "rOprNGfwEbeRWgbNEkqO", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def exchange(client: ClientExchange, server: ServerExchange) -> None:
    client.check(server.final(client.final(server.first(client.mechanism, client.first()))))


def test_the_rfcs_exchange() -> None:
    server = ServerExchange(Verifier.of("pencil", SALT), None, SERVER_NONCE)
    assert server.first(MECHANISM, f"n,,n=user,r={CLIENT_NONCE}".encode()) == SERVER_FIRST
    assert server.final(CLIENT_FINAL) == SERVER_FINAL


@given(st.text(min_size=1), st.booleans())
def test_who_knows_the_password_is_let_in(password: str, bound: bool) -> None:
    binding = b"hash" if bound else None
    verifier = Verifier.of(password, iterations=2)
    assert Verifier.parse(verifier.text) == verifier
    exchange(ClientExchange(password, binding), ServerExchange(verifier, binding))


@given(st.text(min_size=1), st.text(min_size=1))
def test_who_does_not_is_not(password: str, other: str) -> None:
    server = ServerExchange(Verifier.of(password, iterations=2), None)
    client = ClientExchange(other)
    if prepared(password) == prepared(other):
        exchange(client, server)
    else:
        with pytest.raises(NotProved):
            exchange(client, server)


def test_a_verifier_as_postgresql_writes_it() -> None:
    text = (
        "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY="
        ":wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
    )
    assert Verifier.of("pencil", SALT).text == text
    exchange(ClientExchange("pencil"), ServerExchange(Verifier.parse(text) or pytest.fail(), None))


@pytest.mark.parametrize(
    "text", ["", "secret", "md5abc", "SCRAM-SHA-256$0:QQ==$QQ==:QQ==", "SCRAM-SHA-256$4096:QQ==$QQ==:QQ==",
             "SCRAM-SHA-256$999999999:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY="
             ":wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=", "SCRAM-SHA-256$4096:\u00e9$QQ==:QQ=="],
)  # fmt: skip
def test_what_is_no_verifier(text: str) -> None:
    assert Verifier.parse(text) is None


def test_nobody_learns_who_exists() -> None:
    """The same salt each time, as of a user that exists; and no password fits."""
    one, two = Verifier.mock("anna", b"key"), Verifier.mock("anna", b"key")
    assert one.salt == two.salt != Verifier.mock("bert", b"key").salt
    with pytest.raises(NotProved):
        exchange(ClientExchange(""), ServerExchange(one, None))


def test_a_downgrade_is_found_out() -> None:
    """The client could bind the exchange to its line and was not told that the server can."""
    server = ServerExchange(Verifier.of("x"), b"hash")
    with pytest.raises(NotProved, match="negotiation failed"):
        server.first(MECHANISM, b"y,,n=,r=abc")
    assert ServerExchange(Verifier.of("x"), None).first(MECHANISM, b"y,,n=,r=abc")


def test_another_ones_line_is_found_out() -> None:
    """Who stands between has another certificate than the server."""
    with pytest.raises(NotProved, match="binding check failed"):
        exchange(ClientExchange("x", b"attacker's"), ServerExchange(Verifier.of("x"), b"server's"))


def test_a_header_that_changes_is_found_out() -> None:
    client, server = ClientExchange("x"), ServerExchange(Verifier.of("x"), None)
    final = client.final(server.first(MECHANISM, client.first()))
    with pytest.raises(NotProved, match="binding check failed"):
        server.final(final.replace(b"c=biws", b"c=eSws"))


def test_a_server_that_does_not_know_the_password_is_found_out() -> None:
    client, server = ClientExchange("x"), ServerExchange(Verifier.of("x"), None)
    client.final(server.first(MECHANISM, client.first()))
    with pytest.raises(NotProved, match="not the one"):
        client.check(b"v=" + base64.b64encode(b"0" * 32))


@pytest.mark.parametrize(
    ("mechanism", "message"),
    [
        ("MD5", b"n,,n=,r=a"), (BOUND_MECHANISM, b"p=tls-server-end-point,,n=,r=a"), (MECHANISM, b""),
        (MECHANISM, b"n,,"), (MECHANISM, b"n,a=root,n=,r=a"), (MECHANISM, b"p=tls-unique,,n=,r=a"),
        (MECHANISM, b"n,,m=1,n=,r=a"), (MECHANISM, b"n,,n=,r="), (MECHANISM, b"n,,n=,r=a,m=x"), (MECHANISM, b"\xff"),
        (MECHANISM, b"n,,n=,x=a"),
    ],
)  # fmt: skip
def test_first_messages_that_are_none(mechanism: str, message: bytes) -> None:
    with pytest.raises(MalformedExchange):
        ServerExchange(Verifier.of("x", iterations=1), None).first(mechanism, message)


@given(st.binary(), st.binary())
def test_random_bytes_let_nobody_in(first: bytes, last: bytes) -> None:
    server = ServerExchange(Verifier.of("x", iterations=1), None)
    with pytest.raises(HeadraceError):
        server.first(MECHANISM, first)
        server.final(last)
    other = ServerExchange(Verifier.of("x", iterations=1), None)
    other.first(MECHANISM, b"n,,n=,r=a")
    with pytest.raises(HeadraceError):
        other.final(last)


@pytest.mark.parametrize("piece", ["c", "r", "p"])
def test_letters_beyond_ascii_are_malformed(piece: str) -> None:
    server = ServerExchange(Verifier.of("x", iterations=1), None)
    nonce = server.first(MECHANISM, b"n,,n=,r=a").decode().partition(",")[0]
    parts = {"c": "c=biws", "r": nonce, "p": "p=AAAA"}
    parts[piece] += "\u00e9"
    with pytest.raises(MalformedExchange):
        server.final(",".join(parts.values()).encode())


def test_a_server_that_wants_too_much_work_is_refused() -> None:
    client = ClientExchange("x", nonce="a")
    with pytest.raises(MalformedExchange, match="iterations"):
        client.final(b"r=ab,s=QQ==,i=999999999")


def test_passwords_are_prepared_as_saslprep_says() -> None:
    assert prepared("I\u00adX") == "IX"
    assert prepared("\u00aa") == "a"
    assert prepared("\u2168") == "IX"
    assert prepared("a\u00a0b") == "a b"
    assert prepared("\u0007") == "\u0007", "what is prohibited is used as it is"
    assert prepared("\u06271") == "\u06271"
