"""A database refuses to look for its state anywhere but where it is."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_database import Database

from headrace import cli
from headrace.catalog.catalog import Catalog
from headrace.catalog.edits import Delete
from headrace.config import Settings
from headrace.coordinator.ddl.location import LOCATION, state_location
from headrace.coordinator.upkeep.owner import OWNER
from headrace.errors import InvalidParameter


def _location(**settings: Any) -> str:
    return state_location(Settings(**settings))


def test_one_spelling_for_each_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, other = tmp_path / "data", tmp_path / "other"
    assert _location(data_dir=data) == _location(data_dir=data, state_url=f"{data}/x/../state/") == "state"
    assert _location(data_dir=data, state_url=(data / "state").as_uri()) == "state"
    assert _location(data_dir=data, state_url=str(data)) == "."
    assert _location(data_dir=data, state_url=str(other)) == _location(data_dir=data, state_url=other.as_uri())
    assert _location(data_dir=data, state_url=str(other)) == str(other)
    monkeypatch.chdir(tmp_path)
    assert _location(data_dir="data", state_url="other") == str(other)
    assert _location(data_dir="data", state_url=str(data / "state")) == "state"


def test_links_are_followed_where_they_lead_elsewhere(tmp_path: Path) -> None:
    data, disk, link = tmp_path / "data", tmp_path / "disk", tmp_path / "link"
    for folder in (data, disk):
        folder.mkdir()
    link.symlink_to(disk)
    (data / "state").symlink_to(disk)
    assert _location(data_dir=data, state_url=str(link)) == str(disk)
    assert _location(data_dir=data) == "state"
    assert _location(data_dir=data, state_url=f"{tmp_path}/data/state/deep") == "state/deep"


def test_with_the_catalog_elsewhere_the_state_does_not_move_with_it(tmp_path: Path) -> None:
    assert _location(data_dir=tmp_path, catalog_url="postgresql://h/d") == str(tmp_path / "state")


def test_object_stores_without_credentials_and_options(tmp_path: Path) -> None:
    for url in ("s3://b/p", "s3://b/p/", "s3://key:secret@b/p?region=x"):
        assert _location(data_dir=tmp_path, state_url=url, state_options={"endpoint": "http://e"}) == "s3://b/p"
    assert _location(data_dir=tmp_path, state_url="gs://b") == "gs://b"
    assert _location(data_dir=tmp_path, state_url="s3://b/q") != "s3://b/p"


def test_another_place_is_refused(tmp_path: Path) -> None:
    """Both places are named, nothing is touched, and the right one still opens."""
    data, other = tmp_path / "data", tmp_path / "other"
    db = Database(data)
    t = db.table()
    db.insert(t, 1)
    db.close()
    for wrong in (str(other), "s3://bucket/prefix"):
        with pytest.raises(InvalidParameter) as caught:
            Database(data, state_url=wrong)
        assert str(data / "state") in caught.value.message and wrong in caught.value.message
        assert caught.value.sqlstate == "22023" and "HEADRACE_STATE_MOVED=true" in (caught.value.hint or "")
    assert not other.exists()
    db = Database(data, state_url=str(data / "state"))
    assert db.read(t) == [[1]] and db.events("state_moved") == []
    db.close()


def test_the_data_directory_can_be_moved_and_so_can_the_state(tmp_path: Path) -> None:
    data, moved, other = tmp_path / "data", tmp_path / "moved", tmp_path / "other"
    db = Database(data)
    t = db.table()
    db.insert(t, 1)
    db.close()
    shutil.move(data, moved)
    db = Database(moved)
    assert db.read(t) == [[1]]
    db.close()
    shutil.move(moved / "state", other)
    db = Database(moved, state_url=str(other), state_moved=True)
    assert db.read(t) == [[1]] and str(other) in db.events("state_moved")[0]
    db.close()
    with pytest.raises(InvalidParameter, match=str(other)):
        Database(moved)
    db = Database(moved, state_url=str(other))
    assert db.read(t) == [[1]] and len(db.events("state_moved")) == 1
    db.close()


def test_a_catalog_that_does_not_know_yet_learns_it(tmp_path: Path) -> None:
    db = Database(tmp_path)
    db.close()
    with Catalog.open(db.settings.catalog_location) as catalog:
        assert catalog.state.settings[LOCATION].value == "state"
        catalog.transact([Delete("setting", LOCATION), Delete("setting", OWNER)])
    db = Database(tmp_path, state_url=str(tmp_path / "elsewhere"))
    assert db.catalog.state.settings[LOCATION].value == "elsewhere" and db.events("state_moved") == []
    db.close()


def test_the_state_commands_refuse_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`gc` in a wrong place would delete what belongs to another database."""
    data, other = tmp_path / "data", tmp_path / "other"
    Database(data).close()
    for command in (["verify"], ["gc"], ["gc", "--dry-run"]):
        arguments = ["headrace", "state", *command, "--data", str(data), "--state", str(other)]
        monkeypatch.setattr(sys, "argv", arguments)
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == 1 and str(data / "state") in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["headrace", "state", "verify", "--data", str(data)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
