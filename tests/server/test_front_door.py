"""Who is let in, by real clients: passwords, certificates, rules, encrypted lines; and who stands in between."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
import structlog
from memory_session import Database

import clients
from headrace.common.scram import Verifier
from headrace.config import Settings
from headrace.errors import HeadraceError, InvalidParameter
from headrace.server import PgClient, ServerThread, run_server_in_thread
from headrace.server.backend import AuthenticationOk, BackendDecoder, Report
from headrace.server.connection import Connection
from headrace.server.door import certificates_of, gate_of, warning_of
from headrace.server.frontend import Opaque, Query, SslRequest, Startup
from headrace.server.gate import AccessGate, ClientSocket
from headrace.server.guesses import Guesses
from headrace.server.simple_client import ConnectionLost, PasswordNeeded, ServerError
from headrace.server.tls import Certificates, end_point
from headrace.server.wire import cstring, int32, value
from headrace.session.access import Caller, Rules
from headrace.session.stored_roles import Role
from support import WAIT_S, eventually

pytest.importorskip("cryptography")
from certificates import Authority, Pair

ROLES = {
    "root": Role("root"),
    "anna": Role("anna", password=Verifier.of("open sesame").text),
    "limited": Role("limited", password=Verifier.of("x").text, connection_limit=1),
    "locked": Role("locked", can_login=False, password=Verifier.of("x").text),
}
SCRAM = "host all all all scram-sha-256"
Served = Callable[..., ServerThread]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.pair("server")


@pytest.fixture
def served(database: Database) -> Iterator[Served]:
    """Starts servers with rules."""
    with ExitStack() as stack:

        def serve(rules: str, **options: Any) -> ServerThread:
            requires_tls = options.pop("requires_tls", False)
            gate = AccessGate(lambda: Rules.parse(rules), ROLES.get, requires_tls=requires_tls)
            return stack.enter_context(run_server_in_thread(database.session, gate=gate, **options))

        yield serve


def connect(server: ServerThread, user: str = "anna", **options: Any) -> psycopg.Connection[Any]:
    return clients.connect(server, user, **options)


def answers(connection: AbstractContextManager[psycopg.Connection[Any]]) -> bool:
    with connection as line:
        return line.execute("select 1").fetchall() == [(1,)]


def refused(server: ServerThread, user: str = "anna", **options: Any) -> str:
    """What a client is told that is not let in."""
    with pytest.raises(psycopg.OperationalError) as caught:
        connect(server, user, **options).close()
    return str(caught.value)


# ---- passwords


def test_a_password_is_needed_and_is_enough(served: Served) -> None:
    server = served(SCRAM)
    assert answers(connect(server, password="open sesame"))
    assert 'password authentication failed for user "anna"' in refused(server, password="close sesame")
    assert "no password supplied" in refused(server)


def test_who_does_not_exist_is_told_the_same(served: Served) -> None:
    server = served(SCRAM)
    told = refused(server, "nobody", password="x")
    assert told.replace("nobody", "anna") == refused(server, password="x")
    assert 'password authentication failed for user "root"' in refused(server, "root", password="x")


def test_passwords_can_be_guessed_only_so_often(database: Database) -> None:
    """From one address, whoever one says to be; also where many have been asked before one of them fails."""
    settings = [Settings(auth_rules=SCRAM, failed_logins_per_minute=2)]
    gate = gate_of(lambda: settings[0], ROLES.get)
    with run_server_in_thread(database.session, gate=gate) as server:
        assert "password authentication failed" in refused(server, password="x")
        assert answers(connect(server, password="open sesame"))
        assert "password authentication failed" in refused(server, "nobody", password="x")
        assert "too many failed logins from 127.0.0.1" in refused(server, password="open sesame")
        settings[0] = Settings(auth_rules=SCRAM, failed_logins_per_minute=3)
        assert answers(connect(server, password="open sesame"))
        settings[0] = Settings(auth_rules="host all all all trust", failed_logins_per_minute=1)
        assert answers(connect(server))
    early, first = AccessGate(lambda: Rules.parse(SCRAM), ROLES.get, guesses=Guesses(lambda: 1)), "n,,n=anna,r=abc"
    login = early.login("anna", "dev", ClientSocket("10.0.0.1"))
    login.answer(b"SCRAM-SHA-256\0" + len(first).to_bytes(4, "big") + first.encode())
    early.guesses.note("10.0.0.1")
    with pytest.raises(HeadraceError, match="too many failed logins"):
        login.answer(b"c=biws,r=abc,p=AAAA")


def test_guesses_are_counted_by_address_for_a_minute() -> None:
    now = [0.0]
    guesses = Guesses(lambda: 2, lambda: now[0])

    def is_heard(address: str) -> bool:
        try:
            guesses.check(address)
        except HeadraceError as error:
            assert error.sqlstate == "28000"
            return False
        return True

    for at_s, address in ((0, "1.2.3.4"), (30, "::ffff:1.2.3.4"), (31, "2001:db8::1"), (32, "2001:db8::ffff:2%eth0")):
        now[0] = at_s
        guesses.note(address)
    assert not is_heard("1.2.3.4") and not is_heard("2001:db8::3")
    assert is_heard("1.2.3.5") and is_heard("2001:db8:0:1::1") and is_heard("")
    now[0] = 61.0
    assert is_heard("1.2.3.4") and not is_heard("2001:db8::3")
    now[0] = 200.0
    assert is_heard("2001:db8::3")
    for i in range(12_000):
        guesses.note(f"10.0.{i >> 8}.{i & 255}")
    assert len(guesses._failed) == 10_000
    unlimited = Guesses(lambda: 0)
    unlimited.note("1.2.3.4")
    assert not unlimited._failed


def test_who_does_not_exist_is_asked_the_same_by_every_server_and_after_a_restart() -> None:
    def asked(key: bytes) -> str:
        gate = AccessGate(lambda: Rules.parse(SCRAM), ROLES.get, mock_key=key)
        login = gate.login("nobody", "dev", ClientSocket())
        login.answer(cstring("SCRAM-SHA-256") + value(b"n,,n=,r=a"))
        return login.to_send[0].encode().split(b",")[1].decode()

    assert asked(b"key") == asked(b"key") != asked(b"other")


def test_who_may_not_log_in_is_told_after_the_proof_only(served: Served) -> None:
    server = served(SCRAM)
    assert "password authentication failed" in refused(server, "locked", password="wrong")
    assert "is not permitted to log in" in refused(server, "locked", password="x")


@pytest.fixture
def plain_log() -> Iterator[None]:
    """Messages are printed, whatever others have made of it."""
    config = structlog.get_config()
    structlog.reset_defaults()
    yield
    structlog.configure(**config)


@pytest.mark.usefixtures("plain_log")
def test_the_log_says_who_was_turned_away(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    server = served(SCRAM)
    refused(server, password="close sesame")
    lines: list[str] = []

    def is_told() -> bool:
        lines.extend(capsys.readouterr())
        return "client turned away" in "".join(lines)

    eventually(is_told, "the log, which is written after the client has been told")
    told = "".join(lines)
    assert "user=anna" in told and "127.0.0.1" in told and "sesame" not in told


def test_no_session_is_opened_before_the_proof(served: Served, database: Database) -> None:
    server = served(SCRAM)
    refused(server, password="wrong")
    with socket.create_connection(("127.0.0.1", server.port), WAIT_S) as line:
        line.sendall(Startup({"user": "anna", "database": "dev"}).encode() + Query("select 1").encode())
        assert b"message before start-up" in _all(line)
    assert database.opened == 0


def test_a_role_has_a_limit_of_its_own(served: Served) -> None:
    server = served(SCRAM)
    with connect(server, "limited", password="x"):
        assert 'too many connections for role "limited"' in refused(server, "limited", password="x")
        assert answers(connect(server, password="open sesame"))
    eventually(lambda: _lets_in(server, "limited", "x"), "the role's connection to be given up")


def _lets_in(server: ServerThread, user: str, password: str) -> bool:
    try:
        return answers(connect(server, user, password=password))
    except psycopg.OperationalError:
        return False


def test_asyncpg_and_the_own_client_prove_passwords(served: Served) -> None:
    import asyncpg

    server = served(SCRAM)

    async def ask() -> int:
        line = await asyncpg.connect(
            host="127.0.0.1", port=server.port, user="anna", database="dev", password="open sesame"
        )
        try:
            return int(await line.fetchval("select 1"))
        finally:
            await line.close()

    assert asyncio.run(ask()) == 1
    with PgClient("127.0.0.1", server.port, user="anna", password="open sesame") as client:
        assert [list(reply.rows) for reply in client.query("select 1")] == [[(b"1",)]]
    with pytest.raises(PasswordNeeded):
        PgClient("127.0.0.1", server.port, user="anna")
    with pytest.raises(ServerError, match="password authentication failed"):
        PgClient("127.0.0.1", server.port, user="anna", password="x")


@pytest.mark.skipif(shutil.which("psql") is None, reason="psql is not installed")
def test_psql(served: Served, pair: Pair, authority: Authority) -> None:
    server = served(SCRAM, certificates=Certificates(pair.certificate, pair.key))
    address = f"host=127.0.0.1 port={server.port} user=anna dbname=dev"

    def run(options: str, password: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["psql", "-X", "-At", "-c", "select 1", f"{address} {options}"], env={**os.environ, "PGPASSWORD": password},
            capture_output=True, text=True, timeout=WAIT_S, check=False,
        )  # fmt: skip

    strict = f"sslmode=verify-full sslrootcert={authority.file} channel_binding=require"
    done = run(strict, "open sesame")
    assert done.stdout == "1\n", done.stderr
    done = run(strict, "wrong")
    assert done.returncode == 2 and "password authentication failed" in done.stderr


# ---- rules


@pytest.mark.parametrize(
    ("rules", "user", "told"),
    [
        ("", "root", 'no rule lets user "root" in from 127.0.0.1 without encryption'),
        ("host all anna all trust", "root", "no rule lets"),
        ("host all all 10.0.0.0/8 trust", "root", "no rule lets"),
        ("hostssl all all all trust", "root", "no rule lets"),
        ("host other all all trust", "root", "no rule lets"),
        ("host all root loopback reject; host all all all trust", "root", "one refuses it"),
        ("host all all loopback trust", "nobody", 'role "nobody" does not exist'),
        ("host all all loopback trust", "locked", "is not permitted to log in"),
    ],
)
def test_who_is_turned_away(served: Served, rules: str, user: str, told: str) -> None:
    assert told in refused(served(rules), user)


@pytest.mark.parametrize(
    "rules", ["host all all loopback trust", "host dev root,anna 127.0.0.0 255.0.0.0 trust # all of us\n",
              "hostnossl all all 127.0.0.1 trust", "host all nobody all reject\nhost all all all trust"],
)  # fmt: skip
def test_who_is_trusted(served: Served, rules: str) -> None:
    assert answers(connect(served(rules), "root"))


@pytest.mark.parametrize(
    "rules", ["host all all trust", "local all all trust", "host all all all md5", "host all all all cert",
              "host all +staff all trust", "host all all 300.0.0.0/8 trust", "host all all 10.0.0.1/8 trust"],
)  # fmt: skip
def test_rules_that_are_none(rules: str) -> None:
    with pytest.raises(InvalidParameter):
        Rules.parse(rules)


def test_what_the_settings_say_is_checked_at_the_start(tmp_path: Path, pair: Pair) -> None:
    for settings in (
        Settings(tls="required"), Settings(tls_cert_file=pair.certificate),
        Settings(tls_client_ca_file=pair.certificate),
        Settings(tls_cert_file=pair.key, tls_key_file=pair.key),
        Settings(tls_cert_file=tmp_path / "none", tls_key_file=pair.key),
    ):  # fmt: skip
        with pytest.raises(InvalidParameter):
            certificates_of(settings)
    with pytest.raises(InvalidParameter, match="tls_client_ca_file"):
        gate_of(lambda: Settings(auth_rules="hostssl all all all cert"), ROLES.get)
    assert certificates_of(Settings()) is None
    assert certificates_of(Settings(tls="off", tls_cert_file=pair.certificate)) is None
    assert certificates_of(Settings(tls_cert_file=pair.certificate, tls_key_file=pair.key)) is not None


def test_whoever_opens_the_port_is_told() -> None:
    trusting = Settings(auth_rules="host all all all trust")
    assert warning_of(trusting, "127.0.0.1", False) is None
    assert "without a password" in (warning_of(trusting, "0.0.0.0", True) or "")
    assert "no role has a password" in (warning_of(Settings(), "0.0.0.0", False) or "")
    assert warning_of(Settings(), "0.0.0.0", True) is None


def test_rules_hold_as_they_are_now(database: Database) -> None:
    settings = [Settings(auth_rules="host all all all reject")]
    gate = gate_of(lambda: settings[0], ROLES.get)
    with run_server_in_thread(database.session, gate=gate) as server:
        assert "one refuses it" in refused(server)
        settings[0] = Settings(auth_rules="host all all all trust")
        assert answers(connect(server))


# ---- encrypted lines


def test_the_line_is_encrypted_if_the_client_wants_it(served: Served, pair: Pair, authority: Authority) -> None:
    server = served(SCRAM, certificates=Certificates(pair.certificate, pair.key))
    strict = {"sslmode": "verify-full", "sslrootcert": str(authority.file), "channel_binding": "require"}
    for options in ({"sslmode": "disable"}, {"sslmode": "require"}, strict):
        with connect(server, password="open sesame", **options) as line:
            assert line.pgconn.ssl_in_use == (options["sslmode"] != "disable")
            assert answers(line)
    assert "password authentication failed" in refused(server, password="x", **strict)
    with PgClient(
        "127.0.0.1", server.port, user="anna", password="open sesame", encryption="verify-full",
        root_certificate=str(authority.file),
    ) as client:  # fmt: skip
        assert [list(reply.rows) for reply in client.query("select 1")] == [[(b"1",)]]
    with pytest.raises(ConnectionLost, match="cannot encrypt"):
        PgClient("127.0.0.1", server.port, user="anna", password="open sesame", encryption="verify-full")


def test_large_values_go_both_ways_encrypted(served: Served, pair: Pair) -> None:
    server = served("host all all all trust", certificates=Certificates(pair.certificate, pair.key))
    text = "ä" * 3_000_000
    with connect(server, sslmode="require") as line:
        assert line.execute("select %s::text", [text]).fetchall() == [(text,)]
        assert len(line.execute("select generate_series(1, 200000)").fetchall()) == 200_000


def test_a_server_may_insist(served: Served, pair: Pair) -> None:
    server = served("host all all all trust", certificates=Certificates(pair.certificate, pair.key), requires_tls=True)
    assert "encrypted connections only" in refused(server, sslmode="disable")
    assert answers(connect(server, sslmode="require"))


def test_a_client_that_insists_is_not_served_in_plain_text(served: Served) -> None:
    server = served("host all all all trust")
    assert "does not support SSL" in refused(server, sslmode="require")
    with pytest.raises(ConnectionLost, match="does not offer TLS"):
        PgClient("127.0.0.1", server.port, encryption="require")


def test_certificates_say_who_a_client_is(served: Served, pair: Pair, authority: Authority) -> None:
    server = served("hostssl all all all cert", certificates=Certificates(pair.certificate, pair.key, authority.file))
    anna, other = authority.pair("anna"), authority.pair("other")

    def shown(files: Pair) -> dict[str, str]:
        return {"sslmode": "require", "sslcert": str(files.certificate), "sslkey": str(files.key)}

    assert answers(connect(server, **shown(anna)))
    assert "certificate authentication failed" in refused(server, **shown(other))
    assert "certificate authentication failed" in refused(server, sslmode="require")
    assert 'role "other" does not exist' in refused(server, "other", **shown(other))
    assert "no rule lets" in refused(server, sslmode="disable")


def test_a_certificate_needs_no_guessing(database: Database, pair: Pair, authority: Authority) -> None:
    """Who guesses passwords keeps nobody with the same address out who shows a certificate."""
    rules = "hostssl all anna all cert\n" + SCRAM
    settings = Settings(
        auth_rules=rules, failed_logins_per_minute=1, tls_cert_file=pair.certificate, tls_key_file=pair.key,
        tls_client_ca_file=authority.file,
    )  # fmt: skip
    gate, certificates = gate_of(lambda: settings, ROLES.get), certificates_of(settings)
    with run_server_in_thread(database.session, gate=gate, certificates=certificates) as server:
        assert "password authentication failed" in refused(server, "root", password="x", sslmode="require")
        assert "too many failed logins" in refused(server, "root", password="x", sslmode="require")
        assert answers(connect(server, sslmode="require", **_files(authority.pair("anna"))))


def test_a_strangers_certificate_is_not_believed(
    served: Served, pair: Pair, authority: Authority, tmp_path: Path
) -> None:
    server = served("hostssl all all all cert", certificates=Certificates(pair.certificate, pair.key, authority.file))
    forged = Authority(tmp_path).pair("anna")
    with pytest.raises(psycopg.OperationalError):
        connect(server, sslmode="require", sslcert=str(forged.certificate), sslkey=str(forged.key)).close()
    assert answers(connect(server, sslmode="require", **_files(authority.pair("anna"))))


def _files(files: Pair) -> dict[str, str]:
    return {"sslcert": str(files.certificate), "sslkey": str(files.key)}


def test_new_certificates_need_no_restart(served: Served, authority: Authority, tmp_path: Path) -> None:
    one, two = authority.pair("one"), authority.pair("two")
    used = Pair(tmp_path / "cert.pem", tmp_path / "key.pem")

    def use(files: Pair) -> None:
        for new, file in ((files.certificate, used.certificate), (files.key, used.key)):
            temporary = file.with_suffix(".new")
            shutil.copy(new, temporary)
            temporary.replace(file)

    use(one)
    server = served("host all all all trust", certificates=Certificates(used.certificate, used.key))
    with connect(server, sslmode="require") as old:
        assert _served_name(server) == _hash(one)
        use(two)
        assert _served_name(server) == _hash(two)
        used.certificate.write_text("nonsense")
        assert _served_name(server) == _hash(two), "what cannot be read changes nothing"
        assert answers(old)


def _hash(files: Pair) -> bytes | None:
    return end_point(files.certificate.read_text())


def _served_name(server: ServerThread) -> bytes | None:
    """The hash of the certificate that a new line is encrypted with."""
    with socket.create_connection(("127.0.0.1", server.port), WAIT_S) as line:
        line.sendall(SslRequest().encode())
        assert line.recv(1) == b"S"
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with context.wrap_socket(line) as encrypted:
            return end_point(ssl.DER_cert_to_PEM_cert(encrypted.getpeercert(binary_form=True) or b""))


# ---- somebody in between


def test_what_is_slipped_in_before_the_handshake_does_not_count(served: Served, pair: Pair, database: Database) -> None:
    """Nothing that came in plain text is taken for something that TLS has brought."""
    server = served("host all all all trust", certificates=Certificates(pair.certificate, pair.key))
    for slipped in (Startup({"user": "root", "database": "dev"}).encode(), b"\0", SslRequest().encode()):
        with socket.create_connection(("127.0.0.1", server.port), WAIT_S) as line:
            line.sendall(SslRequest().encode() + slipped)
            assert _all(line)[:1] != b"S"
    assert database.opened == 0
    assert answers(connect(server, sslmode="require"))


def test_a_handshake_that_is_none_ends_that_line_alone(served: Served, pair: Pair) -> None:
    server = served("host all all all trust", certificates=Certificates(pair.certificate, pair.key))
    with socket.create_connection(("127.0.0.1", server.port), WAIT_S) as line:
        line.sendall(SslRequest().encode())
        assert line.recv(1) == b"S"
        line.sendall(os.urandom(3000))
        _all(line)
    assert answers(connect(server, sslmode="require"))


def test_who_does_not_say_who_it_is_is_dropped(served: Served, pair: Pair) -> None:
    server = served(SCRAM, certificates=Certificates(pair.certificate, pair.key), startup_timeout_s=0.3)
    for first in (b"", SslRequest().encode(), Startup({"user": "anna", "database": "dev"}).encode()):
        with socket.create_connection(("127.0.0.1", server.port), WAIT_S) as line:
            line.sendall(first)
            _all(line)  # comes to an end


def test_who_is_not_known_sends_nothing_long(served: Served) -> None:
    server = served(SCRAM)
    with socket.create_connection(("127.0.0.1", server.port), WAIT_S) as line:
        line.sendall(Startup({"user": "anna", "database": "dev"}).encode() + b"Q" + int32(50 << 20))
        assert b"invalid message length" in _all(line)


def test_lines_that_say_nothing_are_bounded(served: Served) -> None:
    server = served("host all all all trust", max_connections=1)
    with ExitStack() as stack:
        lines = [stack.enter_context(socket.create_connection(("127.0.0.1", server.port), WAIT_S)) for _ in range(110)]
        eventually(lambda: len(server.server._peers) == 102, "the lines to be taken")
        assert _all(lines[-1]) == b""
    eventually(lambda: _lets_in(server, "root", ""), "the lines to be given up")


# ---- the state machine alone


class Line:
    """A connection whose bytes go nowhere."""

    def __init__(self, rules: str, wire: ClientSocket | None = None) -> None:
        self.opened: list[str] = []
        self.connection = Connection(self._open, 1, b"1234", gate=AccessGate(lambda: Rules.parse(rules), ROLES.get))
        self.connection.wire = wire or ClientSocket()

    def _open(self, parameters: dict[str, str]) -> Any:
        self.opened.append(parameters["user"])
        return Database().session(parameters)

    def say(self, *messages: Any) -> list[Any]:
        data = b"".join(d for d in self.connection.receive(messages) if isinstance(d, bytes))
        return list(BackendDecoder().feed(data))


ANNA = Startup({"user": "anna", "database": "dev"})


@pytest.mark.parametrize(
    "messages",
    [
        [Opaque("p", b"")], [Opaque("p", cstring("SCRAM-SHA-256") + value(None))],
        [Opaque("p", cstring("SCRAM-SHA-256") + value(b"n,,n=,r=a") + b"more")], [Opaque("p", b"\xff" * 100)],
        [Opaque("p", cstring("SCRAM-SHA-256") + value(b"n,,n=,r=a")), Opaque("p", b"c=biws,r=a,p=AAAA")],
        [Query("select 1")], [ANNA], [Opaque("d", b"x")], [Opaque("F", b"x")],
    ],
)  # fmt: skip
def test_no_way_in_but_the_proof(messages: list[Any]) -> None:
    line = Line(SCRAM)
    answered = line.say(ANNA, *messages)
    assert isinstance(answered[-1], Report) and answered[-1].fields["S"] == "FATAL"
    assert line.connection.closed and not line.opened
    assert not any(isinstance(message, AuthenticationOk) for message in answered)


def test_the_bound_mechanism_is_offered_where_it_can_be_had() -> None:
    line = Line(SCRAM, ClientSocket("127.0.0.1", True, None, b"hash"))
    [asked] = line.say(ANNA)
    assert asked.mechanisms == ("SCRAM-SHA-256-PLUS", "SCRAM-SHA-256")
    [asked] = Line(SCRAM).say(ANNA)
    assert asked.mechanisms == ("SCRAM-SHA-256",)


def test_a_second_password_message_after_the_login_is_refused() -> None:
    line = Line("host all all all trust")
    line.say(ANNA)
    assert line.opened == ["anna"]
    assert line.say(Opaque("p", b"x"))[0].fields["M"] == "unexpected password message"


def test_addresses_as_sockets_have_them() -> None:
    rules = Rules.parse("host all all 10.0.0.0/8 trust; host all all fe80::/10 trust; host all all loopback trust")
    from headrace.session.access import Caller

    caller = Caller("anna", "dev", "")
    for address in ("10.1.2.3", "::ffff:10.1.2.3", "fe80::1%eth0", "::1", "127.0.0.9", ""):
        assert rules.method(replace(caller, address=address)) == "trust", address
    for address in ("11.0.0.1", "2001:db8::1", "::ffff:11.0.0.1", "nonsense"):
        assert rules.method(replace(caller, address=address)) is None, address


def _all(line: socket.socket) -> bytes:
    parts = []
    try:
        while data := line.recv(65536):
            parts.append(data)
    except ConnectionResetError:
        pass
    return b"".join(parts)


@pytest.mark.parametrize(
    ("databases", "users", "user", "database", "fits"),
    [
        ("sameuser", "all", "anna", "anna", True),
        ("sameuser", "all", "anna", "sameuser", False),
        ('"sameuser"', "all", "anna", "sameuser", True),
        ('"sameuser"', "all", "anna", "anna", False),
        ("dev,sameuser", "all", "anna", "dev", True),
        ('"all"', "all", "anna", "dev", False),
        ('"all"', "all", "anna", "all", True),
        ("all", '"all"', "anna", "dev", False),
        ("all", '"all"', "all", "dev", True),
        ('"my db"', "anna", "anna", "my db", True),
        ('"a#b","c;d"', "anna", "anna", "c;d", True),
        ('"+staff"', "all", "anna", "+staff", True),
    ],
)
def test_words_of_rules_are_names_in_quotes(databases: str, users: str, user: str, database: str, fits: bool) -> None:
    """As in PostgreSQL's pg_hba.conf."""
    rules = Rules.parse(f"host {databases} {users} loopback trust; host all all all reject # the rest")
    assert rules.method(Caller(user, database, "127.0.0.1")) == ("trust" if fits else "reject")


@pytest.mark.parametrize("databases", ["samerole", "dev,samegroup", "replication", '"dev'])
def test_words_of_rules_that_are_not_understood(databases: str) -> None:
    """Otherwise whoever names a database so is believed."""
    with pytest.raises(InvalidParameter, match="auth_rules"):
        Rules.parse(f"host {databases} all loopback trust")
