"""The gate: finds out who a client is before it gets a session. One client's login is a state machine without I/O."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import field
from typing import Final

from headrace.common.lazy_dataclass import dataclass
from headrace.common.scram import BOUND_MECHANISM, MECHANISM, MalformedExchange, NotProved, ServerExchange, Verifier
from headrace.config import DEFAULT_RULES
from headrace.errors import HeadraceError
from headrace.server import backend
from headrace.server.backend import BackendMessage
from headrace.server.guesses import Guesses
from headrace.server.wire import MessageReader, ProtocolViolation
from headrace.session.access import Caller, Rules
from headrace.session.stored_roles import Role

_REFUSED: Final = "28000"


@dataclass(frozen=True, slots=True)
class ClientSocket:
    """What the socket tells of a client: its address, and whether the line is encrypted."""

    address: str = ""
    encrypted: bool = False
    certificate_name: str | None = None
    """The common name of the client's certificate, which was verified; None if it has shown none."""
    binding: bytes | None = field(default=None, repr=False)
    """The hash of the server's certificate, to which a password's proof is bound; None if that cannot be had."""


def _note_nothing(event: str, **said: str | int | None) -> None:
    """What a gate without an audit log tells."""


class AccessGate:
    """The rules and roles as of now, by which clients are let in."""

    def __init__(
        self,
        rules: Callable[[], Rules] = lambda: Rules.parse(DEFAULT_RULES),
        role: Callable[[str], Role | None] = Role,
        *,
        requires_tls: bool = False,
        mock_key: bytes | None = None,
        guesses: Guesses | None = None,
        note: Callable[..., None] | None = None,
    ) -> None:
        """`role` finds one by its name. `mock_key` makes up salts for who does not exist; by default a new one.
        Without `guesses` anybody may fail as often as they like. `note` is told who came
        and went."""
        self.rules = rules
        self.role = role
        self.requires_tls = requires_tls
        self.mock_key = mock_key or secrets.token_bytes(32)
        self.guesses = guesses or Guesses(lambda: 0)
        self.note = note or _note_nothing

    def login(self, user: str, database: str, wire: ClientSocket) -> Login:
        """The login of a client. Raises `HeadraceError` (28000) for one that is turned away unheard."""
        if self.requires_tls and not wire.encrypted:
            raise HeadraceError(
                "this server takes encrypted connections only", sqlstate=_REFUSED, hint="connect with sslmode=require"
            )
        method = self.rules().method(Caller(user, database, wire.address, wire.encrypted))
        if method is None or method == "reject":
            how = "with" if wire.encrypted else "without"
            text = f'no rule lets user "{user}" in from {wire.address or "here"} {how} encryption'
            raise HeadraceError(
                text if method is None else f"{text}: one refuses it",
                sqlstate=_REFUSED,
                hint="auth_rules of the server says who may connect from where.",
            )
        login = Login(self, user, wire)
        if method == "scram-sha-256":
            self.guesses.check(wire.address)
            login.ask()
        elif method == "cert":
            login.certified()
        else:
            login.trusted()
        return login


class Login:
    """One client's way in. Once `done` it is known who it is."""

    def __init__(self, gate: AccessGate, user: str, wire: ClientSocket) -> None:
        self._gate, self._user, self._wire = gate, user, wire
        self._exchange: ServerExchange | None = None
        self._heard_first = False
        self.done = False
        self.to_send: list[BackendMessage] = []
        """What the client is to be told now."""

    def trusted(self) -> None:
        """No proof is asked for."""
        self._admit(self._gate.role(self._user))

    def certified(self) -> None:
        """The certificate's name has to be the user's."""
        if self._wire.certificate_name != self._user:
            raise HeadraceError(
                f'certificate authentication failed for user "{self._user}"',
                sqlstate=_REFUSED,
                hint="The client has to show a certificate whose common name is the user's name.",
            )
        self._admit(self._gate.role(self._user))

    def ask(self) -> None:
        """Ask for the proof of a password. Who does not exist is asked the same."""
        role = self._gate.role(self._user)
        verifier = None if role is None or not role.password else Verifier.parse(role.password)
        if verifier is None:
            verifier = Verifier.mock(self._user, self._gate.mock_key)
        binding = self._wire.binding
        self._exchange = ServerExchange(verifier, binding)
        offered = (BOUND_MECHANISM, MECHANISM) if binding else (MECHANISM,)
        self.to_send = [backend.AuthenticationSasl(offered)]

    def answer(self, body: bytes) -> None:
        """The client has sent a message of the exchange. Raises `HeadraceError`, which ends the connection."""
        if self._exchange is None or self.done:
            raise ProtocolViolation("unexpected password message")
        try:
            if not self._heard_first:
                self._heard_first = True
                mechanism, first = _initial(body)
                self.to_send = [backend.AuthenticationSaslContinue(self._exchange.first(mechanism, first))]
                return
            self._gate.guesses.check(self._wire.address)  # others may have failed since this one was asked
            last = self._exchange.final(body)
        except MalformedExchange as error:
            raise ProtocolViolation(error.message) from error
        except NotProved as error:
            self._gate.guesses.note(self._wire.address)
            raise self._failed(error) from error
        self._admit(self._gate.role(self._user))
        self.to_send = [backend.AuthenticationSaslFinal(last)]

    def _failed(self, error: NotProved) -> HeadraceError:
        text = f'password authentication failed for user "{self._user}"'
        return HeadraceError(text if error.sqlstate == NotProved.sqlstate else error.message, sqlstate=error.sqlstate)

    def _admit(self, role: Role | None) -> None:
        if role is None:
            raise HeadraceError(f'role "{self._user}" does not exist', sqlstate=_REFUSED)
        role.check_login()
        self.done = True


def _initial(body: bytes) -> tuple[str, bytes]:
    """Mechanism and first message of a SASLInitialResponse."""
    reader = MessageReader(body)
    mechanism, first = reader.cstring(), reader.value()
    reader.end()
    return mechanism, first or b""
