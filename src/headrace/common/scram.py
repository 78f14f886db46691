"""SCRAM-SHA-256, both sides, without I/O: a password is proved without being sent, and the server keeps none.

RFC 5802 and RFC 7677; the binding to the line's TLS is `tls-server-end-point` of RFC 5929. As PostgreSQL does it: the
user is the one of the start-up packet, whatever the exchange says; a password that SASLprep refuses is used as it is.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
import stringprep
import unicodedata
from dataclasses import field
from typing import Final

from headrace.common.lazy_dataclass import dataclass
from headrace.errors import HeadraceError

MECHANISM: Final = "SCRAM-SHA-256"
BOUND_MECHANISM: Final = "SCRAM-SHA-256-PLUS"
"""The same, bound to the certificate of the line's TLS."""
ITERATIONS: Final = 4096
_MOST_ITERATIONS: Final = 10_000_000
"""More would let a server keep its client busy for minutes."""
_SALT_BYTES, _NONCE_BYTES = 16, 18
_BINDING: Final = "tls-server-end-point"
_VERIFIER: Final = re.compile(r"SCRAM-SHA-256\$(\d{1,9}):([A-Za-z0-9+/=]+)\$([A-Za-z0-9+/=]+):([A-Za-z0-9+/=]+)")
_NONCE: Final = re.compile(r"[!-+\--~]+")
_PROHIBITED = (
    stringprep.in_table_c12, stringprep.in_table_c21_c22, stringprep.in_table_c3, stringprep.in_table_c4,
    stringprep.in_table_c5, stringprep.in_table_c6, stringprep.in_table_c7, stringprep.in_table_c8,
    stringprep.in_table_c9, stringprep.in_table_a1,
)  # fmt: skip


class MalformedExchange(HeadraceError):
    """Raised for a message that breaks the rules of the exchange."""

    sqlstate = "08P01"


class NotProved(HeadraceError):
    """The other side does not know the password, or somebody stands between the two."""

    sqlstate = "28P01"


def prepared(password: str) -> str:
    """The password by SASLprep (RFC 4013), or as it is where that is not defined for it."""
    kept = "".join(" " if stringprep.in_table_c12(c) else c for c in password if not stringprep.in_table_b1(c))
    text = unicodedata.normalize("NFKC", kept)
    if not text or any(table(c) for c in text for table in _PROHIBITED):
        return password
    if any(stringprep.in_table_d1(c) for c in text):
        ends = stringprep.in_table_d1(text[0]) and stringprep.in_table_d1(text[-1])
        if not ends or any(stringprep.in_table_d2(c) for c in text):
            return password
    return text


@dataclass(frozen=True, slots=True)
class Verifier:
    """What a server keeps of a password: enough to check it, not enough to log in elsewhere with it."""

    iterations: int
    salt: bytes
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    @classmethod
    def of(cls, password: str, salt: bytes | None = None, iterations: int = ITERATIONS) -> Verifier:
        """Of a password; with a new random salt if none is given."""
        salt = secrets.token_bytes(_SALT_BYTES) if salt is None else salt
        salted = _salted(password, salt, iterations)
        return cls(iterations, salt, _hash(_mac(salted, b"Client Key")), _mac(salted, b"Server Key"))

    @classmethod
    def parse(cls, text: str) -> Verifier | None:
        """The inverse of `text`, which is how PostgreSQL writes it, too; None if it is none."""
        found = _VERIFIER.fullmatch(text)
        if found is None:
            return None
        try:
            salt, stored, server = (base64.b64decode(part, validate=True) for part in found.groups()[1:])
        except ValueError:
            return None
        sound = len(stored) == len(server) == hashlib.sha256().digest_size and 0 < int(found[1]) <= _MOST_ITERATIONS
        return cls(int(found[1]), salt, stored, server) if sound else None

    @property
    def text(self) -> str:
        """The verifier as text, as the catalog keeps it."""
        salt, stored, server = map(_base64, (self.salt, self.stored_key, self.server_key))
        return f"{MECHANISM}${self.iterations}:{salt}${stored}:{server}"

    @classmethod
    def mock(cls, user: str, key: bytes) -> Verifier:
        """What a user that does not exist is asked for, so that nobody learns who exists. No password fits it."""
        salt = _mac(key, user.encode("utf-8", "surrogatepass"))[:_SALT_BYTES]
        return cls(ITERATIONS, salt, secrets.token_bytes(32), secrets.token_bytes(32))


class ServerExchange:
    """The server's side of one login: call `first`, then `final`."""

    def __init__(self, verifier: Verifier, binding: bytes | None, nonce: str | None = None) -> None:
        """`binding` is the hash of the line's certificate where the bound mechanism is offered."""
        self._verifier, self._binding = verifier, binding
        self._nonce = nonce or _base64(secrets.token_bytes(_NONCE_BYTES))
        self._header = self._heard = self._said = ""

    def first(self, mechanism: str, message: bytes) -> bytes:
        """The answer to the client's first message. Raises `MalformedExchange`, `NotProved`."""
        if mechanism not in ((MECHANISM, BOUND_MECHANISM) if self._binding else (MECHANISM,)):
            raise MalformedExchange("the client chose a SASL mechanism that was not offered")
        flag, name, bare = _split(_ascii(message), 3)
        self._check_flag(mechanism, flag)
        if name:
            raise MalformedExchange("the client wants to act for another user, which is not supported")
        attributes = bare.split(",")
        if len(attributes) < 2 or attributes[0][:2] != "n=":
            raise MalformedExchange("malformed SCRAM message: no user")
        if len(attributes) > 2:
            raise MalformedExchange("the client requires an extension of SCRAM that is not supported")
        self._header, self._heard = f"{flag},{name},", bare
        self._nonce = _nonce(attributes[1]) + self._nonce
        self._said = f"r={self._nonce},s={_base64(self._verifier.salt)},i={self._verifier.iterations}"
        return self._said.encode()

    def _check_flag(self, mechanism: str, flag: str) -> None:
        if mechanism == BOUND_MECHANISM:
            if flag != f"p={_BINDING}":
                raise MalformedExchange(f"only {_BINDING} binds a SCRAM exchange to the line")
        elif flag == "y" and self._binding:
            # Somebody between the two has taken the bound mechanism from the list that was offered.
            raise NotProved("SCRAM channel binding negotiation failed: the client was not told of it", sqlstate="28000")
        elif flag not in ("n", "y"):
            raise MalformedExchange("malformed SCRAM message: channel binding without a mechanism for it")

    def final(self, message: bytes) -> bytes:
        """The server's proof, once the client has proved that it knows the password.

        Raises `MalformedExchange`, `NotProved`.
        """
        bound, nonce, proof = _split(_ascii(message), 3)
        if bound[:2] != "c=" or proof[:2] != "p=":
            raise MalformedExchange("malformed SCRAM message: no proof")
        wanted = self._header.encode() + (self._binding or b"" if self._header[:1] == "p" else b"")
        if _decoded(bound[2:]) != wanted:
            raise NotProved("SCRAM channel binding check failed", sqlstate="28000")
        if _nonce(nonce) != self._nonce:
            raise MalformedExchange("malformed SCRAM message: another nonce")
        signed = f"{self._heard},{self._said},{bound},{nonce}".encode()
        given, signature = _decoded(proof[2:]), _mac(self._verifier.stored_key, signed)
        if len(given) != len(signature):
            raise MalformedExchange("malformed SCRAM message: the proof has a wrong length")
        if not hmac.compare_digest(_hash(_xor(given, signature)), self._verifier.stored_key):
            raise NotProved("the password is wrong")
        return b"v=" + base64.b64encode(_mac(self._verifier.server_key, signed))


class ClientExchange:
    """The client's side of one login: call `first`, `final`, then `check`."""

    def __init__(self, password: str, binding: bytes | None = None, nonce: str | None = None) -> None:
        """`binding` is the hash of the server's certificate for the bound mechanism."""
        self._password, self._binding = password, binding
        self._header = f"p={_BINDING},," if binding else "n,,"
        self._nonce = nonce or _base64(secrets.token_bytes(_NONCE_BYTES))
        self._signature = b""

    @property
    def mechanism(self) -> str:
        """What to ask the server for."""
        return BOUND_MECHANISM if self._binding else MECHANISM

    def first(self) -> bytes:
        """The first message."""
        return f"{self._header}n=,r={self._nonce}".encode()

    def final(self, message: bytes) -> bytes:
        """The proof, in answer to the server's first message. Raises `MalformedExchange`."""
        said = _ascii(message)
        nonce, salt, count = _split(said, 3)
        if not _nonce(nonce).startswith(self._nonce) or salt[:2] != "s=" or not re.fullmatch(r"i=\d{1,9}", count):
            raise MalformedExchange("malformed SCRAM message of the server")
        iterations = int(count[2:])
        if not 0 < iterations <= _MOST_ITERATIONS:
            raise MalformedExchange(f"the server wants {iterations} iterations")
        salted = _salted(self._password, _decoded(salt[2:]), iterations)
        key = _mac(salted, b"Client Key")
        last = f"c={_base64(self._header.encode() + (self._binding or b''))},{nonce}"
        signed = f"n=,r={self._nonce},{said},{last}".encode()
        self._signature = _mac(_mac(salted, b"Server Key"), signed)
        return f"{last},p={_base64(_xor(key, _mac(_hash(key), signed)))}".encode()

    def check(self, message: bytes) -> None:
        """Make sure that the server knows the password, too. Raises `NotProved`."""
        if not hmac.compare_digest(message, b"v=" + base64.b64encode(self._signature)):
            raise NotProved("the server does not know the password either: it is not the one it says it is")


def _salted(password: str, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac("sha256", prepared(password).encode("utf-8", "surrogateescape"), salt, iterations)


def _mac(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "sha256")


def _hash(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise MalformedExchange("malformed SCRAM message: no base64") from None


def _ascii(message: bytes) -> str:
    try:
        return message.decode("utf-8")
    except UnicodeDecodeError:
        raise MalformedExchange("malformed SCRAM message: no UTF-8") from None


def _split(text: str, count: int) -> list[str]:
    parts = text.split(",", count - 1)
    if len(parts) < count:
        raise MalformedExchange("malformed SCRAM message: something is missing")
    return parts


def _nonce(attribute: str) -> str:
    if attribute[:2] != "r=" or not _NONCE.fullmatch(attribute[2:]):
        raise MalformedExchange("malformed SCRAM message: no nonce")
    return attribute[2:]
