"""The server's front door, made of the settings: who is let in, and what encrypts the line."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

from headrace.config import Settings
from headrace.errors import InvalidParameter
from headrace.server.gate import AccessGate
from headrace.server.guesses import Guesses
from headrace.server.tls import Certificates
from headrace.session.access import Rules, check_rules, is_loopback
from headrace.session.stored_roles import Role

if TYPE_CHECKING:
    from headrace.session.audit import AuditLog

_parse = lru_cache(maxsize=16)(Rules.parse)


def certificates_of(settings: Settings) -> Certificates | None:
    """What the line is encrypted with; None for nothing. Raises `InvalidParameter`."""
    certificate, key = settings.tls_cert_file, settings.tls_key_file
    if settings.tls == "off":
        return None
    if certificate is None or key is None:
        given = (certificate, key, settings.tls_client_ca_file)
        if settings.tls == "required" or any(file is not None for file in given):
            raise InvalidParameter(
                f"tls is {settings.tls}, which needs both tls_cert_file and tls_key_file",
                hint="openssl req -x509 -newkey rsa:2048 -nodes -days 365 -subj /CN=$(hostname) -keyout key.pem "
                "-out cert.pem makes a pair.",
            )
        return None
    return Certificates(certificate, key, settings.tls_client_ca_file)


def gate_of(
    settings: Callable[[], Settings], role: Callable[[str], Role | None], mock_key: bytes | None = None,
    audit: AuditLog | None = None,
) -> AccessGate:  # fmt: skip
    """Rules and roles as of now; `settings` are asked again for each client. Raises `InvalidParameter`."""
    first = settings()
    check_rules(first.auth_rules, first)

    def most_failures() -> int:
        now_settings = settings()
        return now_settings.failed_logins_per_minute

    return AccessGate(
        lambda: _parse(settings().auth_rules), role, requires_tls=first.tls == "required", mock_key=mock_key,
        guesses=Guesses(most_failures), note=None if audit is None else audit.note,
    )  # fmt: skip


def warning_of(settings: Settings, host: str, has_password: bool) -> str | None:
    """What whoever opens the port at this address should know; None for nothing."""
    if is_loopback(host):
        return None
    if _parse(settings.auth_rules).trusts_strangers:
        return f"auth_rules lets clients from elsewhere in without a password: whoever reaches {host} can change all"
    if not has_password:
        return (
            "nobody from elsewhere can connect yet: no role has a password "
            "(CREATE ROLE name LOGIN SUPERUSER PASSWORD '...')"
        )
    return None
