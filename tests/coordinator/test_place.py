"""Where the catalog is, by settings and by command: followed, moved, refused; what `headrace catalog` prints."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import threading
from pathlib import Path

import pytest
from fake_database import Database

from headrace.catalog.catalog import Catalog, read_config
from headrace.catalog.contents import TableContent
from headrace.catalog.edits import Delete, Put
from headrace.catalog.records import JobRecord, ObjectRecord, SettingRecord
from headrace.cli import app
from headrace.config import Settings
from headrace.coordinator.ddl.location import LOCATION, location_edits
from headrace.coordinator.ddl.place import look_up, move_catalog, open_catalog
from headrace.errors import Fenced, InvalidParameter, OperationalError


def settings(data: Path, **given: object) -> Settings:
    return Settings(data_dir=data, catalog_commit_sync=False, catalog_lease_ms=0, **given)


def opened(data: Path, **given: object) -> tuple[Catalog, Settings, list[str]]:
    told: list[str] = []
    catalog, found = open_catalog(settings(data, **given), told.append)
    catalog.transact(location_edits(found, catalog.state))
    return catalog, found, told


def ended(*arguments: object) -> tuple[int, str]:
    """The exit code of a command and what it prints."""
    code, printed = 0, io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            app.run([*map(str, arguments)])
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
    return code, printed.getvalue()


def run(*arguments: object) -> str:
    code, printed = ended(*arguments)
    assert code == 0, printed
    return printed


def test_configuration_moves_the_catalog_and_the_old_place_follows(tmp_path: Path) -> None:
    data, url = tmp_path / "data", f"file://{tmp_path}/log"
    catalog, _, told = opened(data)
    catalog.transact([Put(SettingRecord("a", "1"))])
    assert told == [] and catalog.state.settings[LOCATION].value == "state"
    moved, found, told = opened(data, catalog_url=url)
    assert told[-1] == f"the catalog is in {url} now" and "copying 2 records" in told
    assert (moved.location, found.catalog_url) == (url, url)
    assert moved.state.settings[LOCATION].value == str(data / "state")
    with pytest.raises(Fenced):
        catalog.state
    followed, found, told = opened(data)
    assert found.catalog_url == url
    assert told == [f"the catalog in sqlite:///{data}/catalog.db has moved to {url}, which is used"]
    followed.transact([Put(SettingRecord("b", "2"))])
    back, found, told = opened(data, catalog_from=url)
    assert found.catalog_url is None and told[-1] == f"the catalog is in sqlite:///{data}/catalog.db now"
    assert {"a", "b"} <= set(back.state.settings) and back.state.settings[LOCATION].value == "state"
    back.close()
    # Once is enough: the same settings find it moved.
    again, _, told = opened(data, catalog_from=url)
    assert told == []
    again.close()


def test_a_new_database_without_anything_in_its_directory(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/log"
    catalog, _, told = opened(tmp_path / "data", catalog_url=url)
    assert told == [] and not (tmp_path / "data" / "catalog.db").exists()
    catalog.transact([Put(SettingRecord("a", "1"))])
    other, found, _ = opened(tmp_path / "elsewhere", catalog_url=url, state_url=str(tmp_path / "data" / "state"))
    assert "a" in other.state.settings and found.catalog_url == url


def test_a_directory_of_another_database_is_refused(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/log"
    opened(tmp_path / "one", catalog_url=url)[0].close()
    opened(tmp_path / "two")[0].close()
    before = read_config(url), read_config(tmp_path / "two" / "catalog.db")
    with pytest.raises(InvalidParameter, match="another database"):
        opened(tmp_path / "two", catalog_url=url)
    assert (read_config(url), read_config(tmp_path / "two" / "catalog.db")) == before


def test_a_backup_of_the_old_place_does_not_replace_the_truth(tmp_path: Path) -> None:
    data, url = tmp_path / "data", f"file://{tmp_path}/log"
    opened(data)[0].close()
    backup = (data / "catalog.db").read_bytes()
    catalog, _, _ = opened(data, catalog_url=url)
    catalog.transact([Put(SettingRecord("a", "1"))])
    catalog.close()
    for leftover in data.glob("catalog.db-*"):
        leftover.unlink()
    (data / "catalog.db").write_bytes(backup)
    with pytest.raises(InvalidParameter, match="both are in use"):
        opened(data, catalog_url=url)
    (data / "catalog.db").unlink()
    catalog, _, _ = opened(data, catalog_url=url)
    assert "a" in catalog.state.settings


def test_a_state_in_another_place_is_refused_after_a_move_too(tmp_path: Path) -> None:
    data, url = tmp_path / "data", f"file://{tmp_path}/log"
    opened(data)[0].close()
    move_catalog(settings(data), str(data / "catalog.db"), url, lambda text: None)
    with pytest.raises(InvalidParameter, match=str(data / "state")):
        opened(tmp_path / "other", catalog_url=url)
    opened(data, catalog_url=url)[0].close()


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CATALOG_LEASE_MS", "0")
    data, url = tmp_path / "data", f"file://{tmp_path}/log"
    catalog, _, _ = opened(data)
    catalog.transact([Put(ObjectRecord(1, TableContent(), "public", "t"))])
    catalog.close()
    own = f"sqlite:///{data}/catalog.db"
    before = read_config(data / "catalog.db")
    assert "in use" in run("catalog", "status", "--data", data)
    assert run("catalog", "migrate", "--data", data, "--to", url, "--dry-run").splitlines() == [
        f"would move 2 records from {own} to {url}"
    ]
    assert read_config(data / "catalog.db") == before
    assert f"moved 2 records from {own} to {url}" in run("catalog", "migrate", "--data", data, "--to", url)
    assert "already" in run("catalog", "migrate", "--data", data, "--to", url)
    status = run("catalog", "status", "--data", data)
    assert f"moved to {url}" in status and "in use" in status and "2 records (1 object, 1 setting)" in status
    for where in (["--data", data], ["--data", data, "--catalog", url]):
        lines = [json.loads(line) for line in run("catalog", "dump", *where).splitlines()]
        assert [line["collection"] for line in lines] == ["config", "object", "setting"]
        assert "0 problems" in run("catalog", "verify", *where)
    assert "0 problems" in run("state", "verify", "--data", data)
    assert f"to {own}" in run("catalog", "rollback", "--data", data)
    with look_up(settings(data))[0] as found:
        assert found.location == str(data / "catalog.db")


def test_the_state_knows_its_database_after_a_move(tmp_path: Path) -> None:
    """The mark in the state names the catalog's place: one that moved here is no copy, one that was copied is."""
    db = Database(tmp_path)
    db.insert(db.table(), 1)
    db.close()
    url, other = f"file://{tmp_path}/log", f"file://{tmp_path}/other"
    for at in (url, other):
        move_catalog(db.settings, db.settings.catalog_location, at, lambda text: None)
        db = Database(tmp_path, catalog_url=at)
        assert db.c.vacuum() == 0 and not db.events("vacuum_halted")
        db.close()
    shutil.copytree(tmp_path / "other", tmp_path / "copy")
    with pytest.raises(InvalidParameter, match="looks like a copy"):
        Database(tmp_path, catalog_url=f"file://{tmp_path}/copy")
    assert not [t.name for t in threading.enumerate() if t.name == "headrace-lease"], "it renews no lease"


def test_a_shadow_by_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And `verify` compares."""
    url = f"file://{tmp_path}/log"
    catalog, _, told = opened(tmp_path / "data", catalog_shadow=url)
    catalog.transact([Put(SettingRecord("a", "1"))])
    catalog.close()
    assert told == []
    catalog, _, _ = opened(tmp_path / "data")
    catalog.transact([Put(SettingRecord("b", "2"))])
    catalog.close()
    monkeypatch.setenv("HEADRACE_CATALOG_SHADOW", url)
    code, printed = ended("catalog", "verify", "--data", tmp_path / "data")
    assert code == 1 and "WRONG: setting/b: " in printed
    # At the next start with it the shadow gets what it has missed.
    catalog, _, told = opened(tmp_path / "data", catalog_shadow=url)
    catalog.close()
    assert told == []
    assert "0 problems" in run("catalog", "verify", "--data", tmp_path / "data")


def test_verify_finds_what_is_wrong(tmp_path: Path) -> None:
    catalog, _, _ = opened(tmp_path)
    catalog.transact([Put(ObjectRecord(1, TableContent(), "public", "t")), Put(JobRecord(1, "g", "created"))])
    row = ("job", "7", '{"v":2,"id":7,"group":"g","status":"created","exact":[]}')
    from headrace.catalog.store import Writes

    catalog._store.append(Writes(puts=(row,)), catalog.sequence)
    catalog.close()
    code, printed = ended("catalog", "verify", "--data", tmp_path)
    assert code == 1 and "WRONG: job 7 is of an object that does not exist" in printed


def test_the_other_place_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CM-22: rolled back only with --force, which says what it means."""
    monkeypatch.setenv("HEADRACE_CATALOG_LEASE_MS", "0")
    data = tmp_path / "data"
    opened(data)[0].close()
    run("catalog", "migrate", "--data", data, "--to", f"file://{tmp_path}/log")
    (tmp_path / "log").rename(tmp_path / "gone")
    with pytest.raises(OperationalError):
        opened(data)
    with pytest.raises(OperationalError):
        run("catalog", "rollback", "--data", data)
    assert ended("catalog", "status", "--data", data)[0] == 1
    assert "is lost" in run("catalog", "rollback", "--data", data, "--force")
    catalog, _, _ = opened(data)
    catalog.transact([Delete("setting", LOCATION)])
