"""Secrets as the catalog stores them: encrypted by a key that is not in it (AES-256-GCM).

What is stored says which key it needs, and is bound to whose it is: bytes that were put under another name, in another
record or in another database do not open. Keys are 32 bytes in base64; the first one encrypts, all of them decrypt.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Final

from headrace.common.lazy_dataclass import dataclass
from headrace.errors import CorruptObject, InvalidParameter, OperationalError

_CIPHER: Final = "AES-256-GCM"
_KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
NEW_KEY: Final = "openssl rand -base64 32 makes one"
_HOW: Final = f"set HEADRACE_SECRET_KEYS, or HEADRACE_SECRET_KEYS_FILE; a key is 32 bytes in base64: {NEW_KEY}"


@dataclass(frozen=True)
class Identity:
    """The owner of a sealed value: the value opens under this identity alone."""

    database_id: int
    object_id: int
    schema: str
    name: str

    @property
    def associated(self) -> bytes:
        """What the ciphertext is bound to."""
        parts = ["headrace secret", self.database_id, self.object_id, self.schema, self.name]
        return json.dumps(parts, separators=(",", ":")).encode()


@dataclass(frozen=True)
class Keys:
    """The keys that this process knows, by their ids; the first one encrypts."""

    known: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    @classmethod
    def read(cls, text: str | None, file: Path | None) -> Keys:
        """Keys from a setting, then those of a file; separated by commas or lines, `#` begins a comment.

        Raises `InvalidParameter` for what is no key, or a file that cannot be read; never with a key in it.
        """
        texts = [("secret_keys", text)] if text else []
        if file is not None:
            try:
                texts.append((str(file), file.read_text("utf-8")))
            except (OSError, UnicodeDecodeError) as error:
                why = error.strerror if isinstance(error, OSError) else "it is no text"
                raise InvalidParameter(f"the file of the secrets' keys {file} cannot be read: {why}") from None
        found: dict[str, bytes] = {}
        for where, content in texts:
            lines = [line.partition("#")[0] for line in content.splitlines()]
            words = [w.strip() for line in lines for w in line.split(",") if w.strip()]
            for number, word in enumerate(words, 1):
                key = _key(word, f"key {number} of {where}")
                found.setdefault(key_id(key), key)
        return cls(found)

    @property
    def first(self) -> tuple[str, bytes]:
        """The key that encrypts, with its id. Raises `InvalidParameter` if there is none."""
        if not self.known:
            raise InvalidParameter("there is no key to encrypt secrets with", hint=_HOW)
        return next(iter(self.known.items()))


def _key(text: str, what: str) -> bytes:
    try:
        key = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != _KEY_BYTES:
        raise InvalidParameter(f"{what} is not {_KEY_BYTES} bytes in base64", hint=NEW_KEY)
    return key


def key_id(key: bytes) -> str:
    """What tells keys apart, without telling anything of them."""
    return hashlib.sha256(b"headrace key id" + key).hexdigest()[:16]


def seal(value: str, whose: Identity, keys: Keys) -> dict[str, Any]:
    """A value as it is stored. Raises `InvalidParameter` without a key, or without the library."""
    name, key = keys.first
    nonce = os.urandom(_NONCE_BYTES)
    sealed = nonce + _cipher(key).encrypt(nonce, value.encode(), whose.associated)
    return {"cipher": _CIPHER, "key_id": name, "sealed": base64.b64encode(sealed).decode("ascii")}


def unseal(stored: Mapping[str, Any], whose: Identity, keys: Keys) -> str:
    """The value. Raises `InvalidParameter` without its key, `CorruptObject` for bytes that were not made for it."""
    label = f'secret "{whose.schema}.{whose.name}"'
    wrong = f"{label} cannot be decrypted: what is stored"
    try:
        cipher, name = str(stored["cipher"]), str(stored["key_id"])
        sealed = base64.b64decode(stored["sealed"], validate=True)
    except (KeyError, TypeError, ValueError):
        raise CorruptObject(f"{wrong} is no ciphertext", hint=_AGAIN) from None
    if cipher != _CIPHER:
        raise OperationalError(f"{label} is encrypted by {cipher}", hint="start a newer headrace")
    if not keys.known:
        raise InvalidParameter(f"{label} cannot be decrypted: no key is configured, it needs {name}", hint=_HOW)
    if name not in keys.known:
        known = ", ".join(keys.known)
        raise InvalidParameter(
            f"{label} cannot be decrypted: it needs key {name}, configured are {known}",
            hint="add that key behind the others, or give the secret another value with ALTER SECRET",
        )
    library = _cipher(keys.known[name])
    try:
        return str(library.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], whose.associated).decode())
    except Exception:  # InvalidTag; ValueError for what is too short
        raise CorruptObject(f"{wrong} was not made for it, or has changed since", hint=_AGAIN) from None


_AGAIN: Final = "restore the catalog, or give the secret its value again with ALTER SECRET"


def _cipher(key: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise InvalidParameter(
            "secrets need the package cryptography, which is not installed", hint='pip install "headrace[secrets]"'
        ) from None
    return AESGCM(key)


def resealed(stored: Mapping[str, Any], whose: Identity, keys: Keys) -> dict[str, Any] | None:
    """The same value under the first key; None if it is under that already. Raises as `seal` and `unseal`."""
    if stored.get("key_id") == keys.first[0]:
        return None
    return seal(unseal(stored, whose, keys), whose, keys)
