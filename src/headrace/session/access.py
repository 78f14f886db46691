"""Who may connect from where, and how they prove who they are: rules as in PostgreSQL's `pg_hba.conf`. No I/O.

    host     all  all   loopback     trust
    hostssl  all  all   10.0.0.0/8   scram-sha-256
    host     all  all   all          reject

The first rule that fits decides; where none fits the client is turned away.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final, Literal, TypeAlias, cast, get_args

from headrace.common.lazy_dataclass import dataclass
from headrace.config import Settings
from headrace.errors import InvalidParameter

Method: TypeAlias = Literal["trust", "scram-sha-256", "cert", "reject"]
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
_KINDS: Final = {"host": (False, True), "hostssl": (True,), "hostnossl": (False,)}
_LOOPBACK: Final = (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128"))
_LINE: Final = re.compile(r'(?:"[^"\n]*"|[^;\n"])+|"')
_FIELD: Final = re.compile(r'(?:"[^"]*"|[^\s"#])+|"')
_NAME: Final = re.compile(r'"[^"]*"|[^,"]+')
"""Quotes make a name of what would be a word of the rules, and may hold blanks, commas and ends of lines' marks."""
_SAME_USER: Final = "sameuser"
_OTHER_WORDS: Final = ("samerole", "samegroup", "replication")
"""Words of PostgreSQL's rules for databases that mean something else there than a name."""
_HINT: Final = (
    "host|hostssl|hostnossl  DATABASE  USER  ADDRESS  trust|scram-sha-256|cert|reject; rules end at a line or ;"
)


@dataclass(frozen=True, slots=True)
class Caller:
    """What is known of a client before it has said anything that it has to prove."""

    user: str
    database: str
    address: str
    """As the socket has it; empty where there is none, as in tests: that is this machine."""
    encrypted: bool = False


@dataclass(frozen=True, slots=True)
class AccessRule:
    """A line of the rules: whom it fits, and how they prove who they are."""

    encrypted: tuple[bool, ...]
    databases: tuple[str, ...] | None
    """None: all."""
    users: tuple[str, ...] | None
    networks: tuple[Network, ...] | None
    method: Method
    same_user: bool = False
    """A database that is called as the user is fits, too."""

    def fits(self, caller: Caller) -> bool:
        """Whether it is about this client."""
        return (
            caller.encrypted in self.encrypted
            and (self.databases is None or self._fits_database(caller))
            and (self.users is None or caller.user in self.users)
            and (self.networks is None or _within(caller.address, self.networks))
        )

    def _fits_database(self, caller: Caller) -> bool:
        assert self.databases is not None
        return caller.database in self.databases or (self.same_user and caller.database == caller.user)


@dataclass(frozen=True, slots=True)
class Rules:
    """All rules in their order; the first one that fits decides."""

    rules: tuple[AccessRule, ...]

    @classmethod
    def parse(cls, text: str) -> Rules:
        """Raises `InvalidParameter`."""
        lines = [_fields(line) for line in _LINE.findall(text)]
        return cls(tuple(_rule(fields) for fields in lines if fields))

    def method(self, caller: Caller) -> Method | None:
        """How the client is to prove who it is; None where no rule fits."""
        return next((rule.method for rule in self.rules if rule.fits(caller)), None)

    @property
    def trusts_strangers(self) -> bool:
        """Whether a rule lets somebody in from elsewhere who proves nothing."""
        return any(
            rule.method == "trust" and (rule.networks is None or not all(map(_is_loopback, rule.networks)))
            for rule in self.rules
        )

    @property
    def needs_certificates(self) -> bool:
        """Whether clients are to show a certificate."""
        return any(rule.method == "cert" for rule in self.rules)


def check_rules(text: str, settings: Settings) -> None:
    """Raise `InvalidParameter` for what are no rules, and for rules that ask for what a process cannot have."""
    if Rules.parse(text).needs_certificates and settings.tls_client_ca_file is None:
        raise InvalidParameter(
            "auth_rules asks clients for certificates, which needs tls_client_ca_file",
            hint="Name the file with the authorities of the clients' certificates.",
        )


def is_loopback(host: str) -> bool:
    """Whether who listens at this address is reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _fields(line: str) -> list[str]:
    """Split a line at blanks outside of quotes, up to its comment. Raises `InvalidParameter`."""
    fields: list[str] = []
    rest = line.strip()
    while rest and not rest.startswith("#"):
        found = _FIELD.match(rest)
        if found is None or found[0] == '"':
            raise InvalidParameter(f"auth_rules has a quote without an end: {line.strip()!r}", hint=_HINT)
        fields.append(found[0])
        rest = rest[found.end() :].lstrip()
    return fields


def _rule(words: list[str]) -> AccessRule:
    line = " ".join(words)
    if len(words) == 6:  # address and mask, as two words
        words = [*words[:3], f"{words[3]}/{words[4]}", words[5]]
    if len(words) != 5:
        raise InvalidParameter(f"cannot read the rule {line!r} of auth_rules", hint=_HINT)
    kind, databases, users, address, method = words
    if kind not in _KINDS:
        raise InvalidParameter(f"cannot read the rule {line!r} of auth_rules: {kind!r} is no kind of line", hint=_HINT)
    if method not in get_args(Method):
        raise InvalidParameter(f"cannot read the rule {line!r} of auth_rules: no method {method!r}", hint=_HINT)
    if method == "cert" and kind != "hostssl":
        raise InvalidParameter(f"the rule {line!r} of auth_rules needs hostssl: certificates come with TLS", hint=_HINT)
    words_of_databases = _bare(databases)
    if wrong := [word for word in _OTHER_WORDS if word in words_of_databases]:
        hint = "Name databases and users, or quote the word where a database is called so."
        raise InvalidParameter(f"the rule {line!r} of auth_rules cannot say {wrong[0]}", hint=hint)
    return AccessRule(
        _KINDS[kind], _names(databases, but=_SAME_USER), _names(users), _networks(address, line), cast(Method, method),
        _SAME_USER in words_of_databases,
    )  # fmt: skip


def _bare(text: str) -> list[str]:
    """Return the parts of a list that are not quoted."""
    return [part for part in _NAME.findall(text) if not part.startswith('"')]


def _names(text: str, but: str = "") -> tuple[str, ...] | None:
    """Return the names of a list without the word `but`; None for all. Raises `InvalidParameter`."""
    bare = _bare(text)
    if any(name.startswith(("+", "/", "@")) for name in bare):
        raise InvalidParameter(f"auth_rules cannot name {text!r}: groups, patterns and files are not supported")
    if "all" in bare:
        return None
    return tuple(part.strip('"') for part in _NAME.findall(text) if part != but)


def _networks(text: str, line: str) -> tuple[Network, ...] | None:
    if text == "all":
        return None
    if text == "loopback":
        return _LOOPBACK
    try:
        return (ipaddress.ip_network(text),)
    except ValueError as error:
        raise InvalidParameter(f"cannot read the rule {line!r} of auth_rules: {error}", hint=_HINT) from None


def _within(address: str, networks: tuple[Network, ...]) -> bool:
    if not address:
        return any(map(_is_loopback, networks))
    try:
        found = ipaddress.ip_address(address.split("%")[0])
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return any(found.version == n.version and found in n for n in networks)


def _is_loopback(network: Network) -> bool:
    return network.is_loopback
