"""Secrets: encrypted in the catalog, decrypted when a connector is opened, and known to this process alone.

An object of kind `secret` holds a ciphertext, the id of its key, and nothing else of the value; the associated data
are the ids of the database and of the object, schema and name. An object whose options have secrets names them by id
in `secrets`, apart from `options`, and depends on them; such records are of version 2, which older programs refuse.
`Vault` remembers a value as long as the ciphertext stays the same. Whatever opens a connector gives it a function
that returns the values of now: `ConfidentialSource` opens its connector again when they change, and replaces them in
all that it raises, in the server as in the tasks. Tasks get them as a local property of their own, encrypted by a key
that the stages of the job have in them: properties are in Spark's event log, the code of stages is not.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace

from headrace.catalog.catalog import Catalog
from headrace.catalog.contents import SecretContent
from headrace.catalog.edits import DATABASE_KEY, AddEvent, Edit, Put
from headrace.catalog.records import LeavingRecord, ObjectRecord
from headrace.catalog.sealing import Identity, Keys, resealed, seal, unseal
from headrace.catalog.state import CatalogState
from headrace.config import Settings
from headrace.connectors.base import Source
from headrace.connectors.sources import Secrets, open_source
from headrace.errors import UndefinedObject


def keys_of(settings: Settings) -> Keys:
    """The keys that the settings name. Raises `InvalidParameter`."""
    given = settings.secret_keys
    return Keys.read(given, settings.secret_keys_file)


def identity(record: ObjectRecord, state: CatalogState) -> Identity:
    """What a secret's ciphertext is bound to."""
    return Identity(state.config.get(DATABASE_KEY, 0), record.id, record.schema, record.name)


def sealed_record(record: ObjectRecord, value: str, state: CatalogState, keys: Keys) -> ObjectRecord:
    """A secret's record with a value. Raises `InvalidParameter` without a key."""
    content = replace(record.content_as(SecretContent), **seal(value, identity(record, state), keys))
    return replace(record, content=content)


def reencrypted(state: CatalogState, keys: Keys) -> list[ObjectRecord | LeavingRecord]:
    """What holds secrets that are not encrypted by the first key, with them encrypted by it. Raises as `unseal` does.

    These are the secrets themselves, and notes of dropped sources that keep what they need to let go.
    """
    found: list[ObjectRecord | LeavingRecord] = []
    for record in state.objects_of(SecretContent):
        anew = _reencrypted(state, record, keys)
        if anew is not record:
            found.append(anew)
    for left in state.leaving.values():
        secrets = tuple(_reencrypted(state, secret_as_of_now(state, s), keys) for s in left.secrets)
        if secrets != left.secrets:
            found.append(replace(left, secrets=secrets))
    return found


def _reencrypted(state: CatalogState, secret: ObjectRecord, keys: Keys) -> ObjectRecord:
    """The secret by the first key; the same object if it is that already."""
    anew = resealed(secret.content.to_json(), identity(secret, state), keys)
    return secret if anew is None else replace(secret, content=replace(secret.content_as(SecretContent), **anew))


def secret_as_of_now(state: CatalogState, secret: ObjectRecord) -> ObjectRecord:
    """A secret that may have been given another value since, or be gone: then as it was."""
    found = state.objects.get(secret.id)
    return found if found is not None and isinstance(found.content, SecretContent) else secret


def all_secrets(state: CatalogState) -> list[ObjectRecord]:
    """All secrets: those that are there, and those that were dropped and are needed to let go of something."""
    left = {s.id: s for record in state.leaving.values() for s in record.secrets if s.id not in state.objects}
    return [*state.objects_of(SecretContent), *left.values()]


def reencrypt(catalog: Catalog, keys: Keys) -> int:
    """Encrypt all secrets by the first key, in one transaction; how many were not."""
    state = catalog.state
    changed = sum(s.content_as(SecretContent).key_id != keys.first[0] for s in all_secrets(state))
    found = reencrypted(state, keys)
    if found:
        text = f"{changed} secrets were encrypted by key {keys.first[0]}"
        edits: list[Edit] = [*(Put(record) for record in found), AddEvent("secrets_reencrypted", None, text)]
        catalog.transact(edits)
    return changed


class Vault:
    """Knows the values of secrets, decrypted once for each ciphertext. Thread-safe."""

    def __init__(self, catalog: Catalog, settings: Settings) -> None:
        """Raises `InvalidParameter` for settings that name no keys, or a file that cannot be read."""
        self._catalog, self._settings = catalog, settings
        keys_of(settings)
        self._lock = threading.Lock()
        self._known: dict[int, tuple[SecretContent, str]] = {}
        """Secret -> what is stored, and the value of that."""

    @property
    def keys(self) -> Keys:
        """The keys, read anew. Raises `InvalidParameter`."""
        return keys_of(self._settings)

    def value(self, secret_id: int) -> str:
        """The value of a secret as of now. Raises `UndefinedObject`, and as `unseal` does."""
        state = self._catalog.image
        record = state.objects.get(secret_id)
        if record is None or not isinstance(record.content, SecretContent):
            raise UndefinedObject(f"there is no secret {secret_id}")
        with self._lock:
            known = self._known.get(secret_id)
            if known is None or known[0] != record.content:
                known = (record.content, unseal(record.content.to_json(), identity(record, state), self.keys))
                self._known[secret_id] = known
            return known[1]

    def values(self, secrets: Mapping[str, int]) -> dict[str, str]:
        """Option -> value. Raises as `value` does."""
        return {option: self.value(secret_id) for option, secret_id in secrets.items()}

    def former(self, secrets: Sequence[ObjectRecord]) -> dict[int, str]:
        """The values of secrets that may be gone, by their ids: of now, or as they were. Raises as `unseal` does."""
        state = self._catalog.image
        known = [secret_as_of_now(state, s) for s in secrets]
        return {s.id: unseal(s.content.to_json(), identity(s, state), self.keys) for s in known}

    def of(self, secrets: Mapping[str, int]) -> Secrets | None:
        """The same as a function that is asked for the values of now; None if there are none."""
        return (lambda: self.values(secrets)) if secrets else None

    def open(self, record: ObjectRecord) -> Source:
        """A source's connector. Raises `InvalidParameter`, `SourceError`, and as `unseal` does."""
        return open_source(record.options, record.columns, self.of(record.secrets))

    def forget(self, ids: Sequence[int]) -> None:
        """Forgets secrets that were dropped."""
        with self._lock:
            for secret_id in ids:
                self._known.pop(secret_id, None)
