"""Certificates of the server: read again when their files change, so that new ones need no restart."""

from __future__ import annotations

import hashlib
import ssl
import threading
from dataclasses import field
from pathlib import Path
from typing import Any, Final

from headrace.common.lazy_dataclass import dataclass
from headrace.common.loggers import get_logger
from headrace.errors import InvalidParameter

_log = get_logger("headrace.server")
HANDSHAKE_S: Final = 30.0
"""Seconds in which a client has to agree on TLS."""
_END: Final = "-----END CERTIFICATE-----"


@dataclass(frozen=True, slots=True)
class LoadedCertificates:
    """What the certificate files have come to: the context for new connections, and its channel binding."""

    context: ssl.SSLContext
    unasking: ssl.SSLContext
    """The same for a port whose clients prove in another way who they are: asks for no certificate of theirs."""
    binding: bytes | None = field(repr=False)
    """`tls-server-end-point` of RFC 5929: the certificate's hash; None where that cannot be told."""


class Certificates:
    """A certificate with its key, and whose clients' certificates are believed. Thread-safe."""

    def __init__(self, certificate: Path, key: Path, clients: Path | None = None) -> None:
        """`clients` has the authorities of clients' certificates. Raises `InvalidParameter` if a file is no good."""
        self._files = tuple(file for file in (certificate, key, clients) if file is not None)
        self._certificate, self._key, self._clients = certificate, key, clients
        self._lock = threading.Lock()
        try:
            self._stamp = self._stamps()
            self._loaded = self._load()
        except (OSError, ValueError) as error:  # an SSLError is an OSError
            raise InvalidParameter(
                f"TLS cannot be offered: {_reason(error)}",
                detail=", ".join(map(str, self._files)),
                hint="tls_cert_file and tls_key_file name files in PEM form that belong together.",
            ) from error

    def now(self) -> LoadedCertificates:
        """As the files are now; as they were if they cannot be read, which is logged once."""
        with self._lock:
            try:
                stamp = self._stamps()
                if stamp != self._stamp:
                    self._stamp = stamp
                    self._loaded = self._load()
                    _log.info("certificates were read again")
            except (OSError, ValueError) as error:
                _log.error("certificates cannot be read again, those from before stay", error=_reason(error))
            return self._loaded

    def _stamps(self) -> tuple[tuple[int, int, int], ...]:
        found = [file.stat() for file in self._files]
        return tuple((s.st_mtime_ns, s.st_size, s.st_ino) for s in found)

    def _load(self) -> LoadedCertificates:
        context, unasking = self._context(), self._context()
        if self._clients is not None:
            context.load_verify_locations(self._clients)
            context.verify_mode = ssl.CERT_OPTIONAL  # which rules ask for it is known later
        return LoadedCertificates(context, unasking, end_point(self._certificate.read_text()))

    def _context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self._certificate, self._key, password=_no_password)
        return context


def end_point(pem: str) -> bytes | None:
    """The hash of the first certificate in a text, to which proofs are bound; None without the extra `secrets`."""
    try:
        from cryptography import x509
    except ImportError:
        return None
    der = ssl.PEM_cert_to_DER_cert(pem[pem.index("-----BEGIN CERTIFICATE") : pem.index(_END) + len(_END)])
    algorithm = x509.load_der_x509_certificate(der).signature_hash_algorithm
    if algorithm is None:
        return None
    return hashlib.new("sha256" if algorithm.name in ("md5", "sha1") else algorithm.name, der).digest()


def common_name(certificate: Any) -> str | None:
    """Whose a client's certificate is, as `ssl.SSLSocket.getpeercert` gives it; None if it has shown none."""
    for part in (certificate or {}).get("subject", ()):
        for name, value in part:
            if name == "commonName":
                return str(value)
    return None


def _no_password() -> bytes:
    raise ValueError("the key is encrypted; a server cannot ask for its password")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or str(error)
    return f"{error.strerror}: {error.filename}" if isinstance(error, OSError) and error.strerror else str(error)
