"""How a request proves that it comes from who may send: a header has the secret, or a signature of the body by it."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Final

from headrace.common.lazy_dataclass import dataclass

PREFIX: Final = "validate."
"""How the options of a table begin that say it."""
SECRET: Final = PREFIX + "secret"
"""The option whose value the secret is."""
DIGESTS: Final = ("sha1", "sha256", "sha512")
ENCODINGS: Final = ("hex", "base64")


@dataclass(frozen=True)
class Validation:
    """A comparison of a header with what it must be: `prefix`, and behind it the secret or a signature."""

    header: str
    """The header's name, in lower case."""
    prefix: str = ""
    digest: str = ""
    """The hash function of the body's HMAC; empty: the header has the secret itself."""
    encoding: str = ""
    """How the HMAC is written."""

    def options(self) -> dict[str, str]:
        """As options of the table."""
        return {PREFIX + name: value for name, value in asdict(self).items()}

    @staticmethod
    def of(options: Mapping[str, str]) -> Validation | None:
        """That of a table's options; None if it has none."""
        found = {k.removeprefix(PREFIX): v for k, v in options.items() if k.startswith(PREFIX)}
        return Validation(**found) if found else None

    def expected(self, body: bytes, secret: str) -> bytes:
        """What the header must be."""
        key, prefix = secret.encode(), self.prefix.encode()
        if not self.digest:
            return prefix + key
        code = hmac.digest(key, body, self.digest)
        return prefix + (code.hex().encode() if self.encoding == "hex" else base64.b64encode(code))

    def accepts(self, headers: Sequence[tuple[str, str]], body: bytes, secret: str) -> bool:
        """Whether a request has the header, once, as it must be; takes as long whatever is wrong with its value.

        Names of headers are in lower case. An empty secret proves nothing: everybody can sign by it.
        """
        given = [value for name, value in headers if name == self.header]
        same = hmac.compare_digest((given or [""])[0].encode("latin-1"), self.expected(body, secret))
        return same and len(given) == 1 and bool(secret)
