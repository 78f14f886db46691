"""What is stored of a secret: nothing of its value, and bound to whose it is."""

from __future__ import annotations

import base64
import json
import sqlite3
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from headrace.catalog.catalog import Catalog
from headrace.catalog.contents import SecretContent, SourceContent
from headrace.catalog.edits import Delete, Put
from headrace.catalog.moving import Places, move
from headrace.catalog.places import canonical
from headrace.catalog.records import LeavingRecord, ObjectRecord, decode, encode
from headrace.catalog.sealing import Identity, Keys, key_id, resealed, seal, unseal
from headrace.config import Settings
from headrace.coordinator.ddl.secrets import Vault, identity, reencrypt, reencrypted, sealed_record
from headrace.errors import CorruptObject, InvalidParameter, OperationalError
from headrace.shell.catalog_commands import CatalogShell

OLD, NEW = (base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2))
KEYS = Keys.read(OLD, None)
OWN = Identity(7, 3, "public", "password")


@given(some.text())
def test_what_is_sealed_opens_again(value: str) -> None:
    assert unseal(seal(value, OWN, KEYS), OWN, KEYS) == value


def test_the_same_value_is_never_the_same_bytes() -> None:
    assert seal("x", OWN, KEYS) != seal("x", OWN, KEYS)


@pytest.mark.parametrize("other", [
    replace(OWN, database_id=8), replace(OWN, object_id=4), replace(OWN, schema="s"), replace(OWN, name="p"),
])  # fmt: skip
def test_bytes_of_another_secret_are_refused(other: Identity) -> None:
    with pytest.raises(CorruptObject, match="was not made for it"):
        unseal(seal("hunter2", other, KEYS), OWN, KEYS)


@pytest.mark.parametrize("at", range(0, 35, 3))
def test_a_changed_byte_is_noticed(at: int) -> None:
    stored = seal("hunter2", OWN, KEYS)
    data = bytearray(base64.b64decode(stored["sealed"]))
    data[at] ^= 1
    for wrong in (bytes(data), bytes(data[:at])):
        with pytest.raises(CorruptObject, match=r"public\.password. cannot be decrypted"):
            unseal({**stored, "sealed": base64.b64encode(wrong).decode()}, OWN, KEYS)


def test_what_is_no_ciphertext_is_refused() -> None:
    for stored in ({}, {"cipher": "AES-256-GCM", "key_id": "x", "sealed": "%"}, {"cipher": "A", "key_id": "x"}):
        with pytest.raises(CorruptObject, match="no ciphertext"):
            unseal(stored, OWN, KEYS)
    with pytest.raises(OperationalError, match="is encrypted by ROT13"):
        unseal({**seal("x", OWN, KEYS), "cipher": "ROT13"}, OWN, KEYS)


def test_without_its_key() -> None:
    stored = seal("hunter2", OWN, KEYS)
    with pytest.raises(InvalidParameter, match="no key is configured") as none:
        unseal(stored, OWN, Keys())
    assert "HEADRACE_SECRET_KEYS" in str(none.value.hint)
    with pytest.raises(InvalidParameter, match=f"it needs key {stored['key_id']}, configured are"):
        unseal(stored, OWN, Keys.read(NEW, None))
    with pytest.raises(InvalidParameter, match="no key to encrypt"):
        seal("x", OWN, Keys())


def test_keys_of_a_setting_and_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# the keys\n{OLD}\n\n{NEW} # another\n")
    assert Keys.read(None, file).first[0] == key_id(bytes([1]) * 32)
    assert Keys.read(NEW, file).first[0] == key_id(bytes([2]) * 32)
    assert len(Keys.read(f"{NEW},{OLD}", file).known) == 2
    assert Keys.read("", None).known == {}
    assert OLD not in repr(Keys.read(OLD, None))
    for text in ("hunter2", f"{OLD},short", base64.b64encode(b"x" * 31).decode()):
        with pytest.raises(InvalidParameter, match=r"key [12] of secret_keys is not 32 bytes") as wrong:
            Keys.read(text, None)
        assert "hunter2" not in f"{wrong.value} {wrong.value.__cause__} {wrong.value.hint}"
    with pytest.raises(InvalidParameter, match="cannot be read"):
        Keys.read(None, tmp_path / "missing")
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidParameter, match="it is no text"):
        Keys.read(None, file)


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(InvalidParameter, match="the package cryptography") as missing:
        seal("x", OWN, KEYS)
    assert missing.value.hint == 'pip install "headrace[secrets]"'


def test_another_key_comes_first() -> None:
    both, stored = Keys.read(f"{NEW},{OLD}", None), seal("hunter2", OWN, KEYS)
    anew = resealed(stored, OWN, both)
    assert anew is not None and anew["key_id"] != stored["key_id"]
    assert unseal(anew, OWN, Keys.read(NEW, None)) == "hunter2"
    assert resealed(anew, OWN, both) is None


def secret(catalog: Catalog, number: int, value: str) -> ObjectRecord:
    record = ObjectRecord(number, SecretContent(), "public", f"s{number}", definition=f"CREATE SECRET s{number}")
    made = sealed_record(record, value, catalog.state, KEYS)
    catalog.transact([Put(made)])
    return made


def test_all_are_encrypted_anew_or_none(location: str) -> None:
    both = Keys.read(f"{NEW},{OLD}", None)
    with Catalog.open(location) as catalog:
        for number in (1, 2):
            secret(catalog, number, f"value {number}")
        with pytest.raises(InvalidParameter, match="needs key"):
            reencrypt(catalog, Keys.read(NEW, None))
        assert reencrypt(catalog, both) == 2
        assert reencrypt(catalog, both) == 0
    with Catalog.open(location) as catalog:
        assert reencrypted(catalog.state, Keys.read(NEW, None)) == []
        for record in catalog.state.objects_of(SecretContent):
            found = unseal(record.content.to_json(), identity(record, catalog.state), Keys.read(NEW, None))
            assert found == f"value {record.id}"


@pytest.mark.parametrize("target", ["sqlite", "directory", "postgres", "s3"])
def test_a_move_keeps_the_ciphertext(
    location: str, target: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from backends import empty_place

    to = empty_place(target, request, tmp_path / "there", monkeypatch)
    places = Places.known([location, to])
    with Catalog.open(location) as catalog:
        made = secret(catalog, 1, "hunter2")
    if canonical(location) != canonical(to):
        move(canonical(location), canonical(to), places)
    with Catalog.find(canonical(location), places) as catalog:
        there = catalog.state.objects[1]
        assert there == made
        assert unseal(there.content.to_json(), identity(there, catalog.state), KEYS) == "hunter2"


def test_swapped_records_are_noticed(tmp_path: Path) -> None:
    at = tmp_path / "catalog.db"
    with Catalog.open(at) as catalog:
        first, second = secret(catalog, 1, "one"), secret(catalog, 2, "two")
    with sqlite3.connect(at) as file:
        for record, other in ((first, second), (second, first)):
            text = encode(replace(record, content=other.content))
            file.execute("UPDATE record SET value = ? WHERE collection = 'object' AND key = ?", (text, str(record.id)))
    with Catalog.open(at) as catalog:
        for record in catalog.state.objects_of(SecretContent):
            with pytest.raises(CorruptObject, match="was not made for it"):
                unseal(record.content.to_json(), identity(record, catalog.state), KEYS)


def test_older_programs_refuse_what_has_to_do_with_secrets() -> None:
    plain = ObjectRecord(1, SourceContent(), "public", "s")
    assert plain.to_json()["v"] == 1 and "secrets" not in plain.to_json()
    for record in (ObjectRecord(2, SecretContent(), "public", "x"), replace(plain, secrets={"password": 2})):
        assert record.to_json()["v"] == 2
        assert decode("object", str(record.id), encode(record)) == record
    old = json.dumps({**plain.to_json(), "v": 1})
    assert decode("object", "1", old) == plain


def test_what_dropped_sources_need_to_let_go_is_encrypted_anew_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a secret that was dropped with them the note alone has what is stored; of another, it is what it is now."""

    def shell(keys: str) -> CatalogShell:
        return CatalogShell(Settings(data_dir=tmp_path, secret_keys=keys))

    with Catalog.open(tmp_path / "catalog.db") as catalog:
        gone, there = secret(catalog, 1, "gone"), secret(catalog, 2, "before")
        source = ObjectRecord(3, SourceContent(), "public", "s", secrets={"password": 1, "username": 2})
        catalog.transact([Put(LeavingRecord(source, (gone, there))), Delete("object", 1)])
        catalog.transact([Put(sealed_record(there, "after", catalog.state, KEYS))])
    shell(OLD).dump()
    assert (gone.content_as(SecretContent).sealed or "") not in capsys.readouterr().out
    assert not shell(NEW).verify()
    shell(f"{NEW},{OLD}").reencrypt()
    assert "2 of 2 secrets were encrypted anew" in capsys.readouterr().out
    assert shell(NEW).verify()
    with Catalog.open(tmp_path / "catalog.db") as catalog:
        (left,) = catalog.state.leaving.values()
        vault = Vault(catalog, Settings(data_dir=tmp_path, secret_keys=NEW))
        assert vault.former(left.secrets) == {1: "gone", 2: "after"}
        catalog.transact([Delete("object", 2)])
        assert vault.former(left.secrets) == {1: "gone", 2: "after"}
        assert reencrypted(catalog.state, Keys.read(NEW, None)) == []


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Dumps show no ciphertext, checks try the keys that there are, all are encrypted anew by the first one."""

    def shell(keys: str | None) -> CatalogShell:
        return CatalogShell(Settings(data_dir=tmp_path, secret_keys=keys))

    with Catalog.open(tmp_path / "catalog.db") as catalog:
        made = secret(catalog, 1, "hunter2")
    shell(None).dump()
    text = capsys.readouterr().out
    assert (
        '"sealed":"***"' in text and (made.content_as(SecretContent).sealed or "") not in text and "hunter2" not in text
    )
    assert shell(None).verify() and shell(OLD).verify()
    assert not shell(NEW).verify()
    assert "needs key" in capsys.readouterr().out
    with pytest.raises(InvalidParameter, match="no key to encrypt"):
        shell(None).reencrypt()
    shell(f"{NEW},{OLD}").reencrypt()
    assert capsys.readouterr().out.startswith("1 of 1 secrets were encrypted anew")
    assert shell(NEW).verify() and not shell(OLD).verify()


def test_keys_that_are_none_are_refused_at_the_start(tmp_path: Path) -> None:
    with Catalog.open(tmp_path / "catalog.db") as catalog:
        for wrong in (Settings(secret_keys="hunter2"), Settings(secret_keys_file=tmp_path / "missing")):
            with pytest.raises(InvalidParameter) as refused:
                Vault(catalog, wrong)
            assert "hunter2" not in str(refused.value)
