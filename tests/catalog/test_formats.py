"""Catalogs as older versions left them, kept as bytes: each format opens, and is migrated once."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import psycopg
import pytest
from backends import new_database

from headrace.catalog.catalog import Catalog, read_config
from headrace.catalog.contents import MaterializedViewContent, SchemaContent, TableContent
from headrace.catalog.edits import DATABASE_KEY, FENCING_KEY, FORMAT_VERSION_KEY, SEQUENCE_KEY, SetConfig
from headrace.catalog.records import RECORD_TYPES
from headrace.catalog.store import FORMAT_VERSION
from postgres import Postgres

FROZEN = Path(__file__).parent / "frozen"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return Path(shutil.copy(FROZEN / "format1.db", tmp_path / "catalog.db"))


def check(catalog: Catalog) -> None:
    """What was put into it by the program of format 1."""
    state = catalog.state
    assert {r.COLLECTION for r in state.records()} == {*RECORD_TYPES} - {"source", "leaving"}
    made = state.objects_of(SchemaContent, TableContent, MaterializedViewContent)
    assert [o.name for o in made] == ["public", "t", "v"]
    assert state.objects[2].options == {"retention": "1"} and state.objects[2].content.more == {"x": [1, None]}
    assert [(t.committed_epoch, t.safe_epoch, t.watermark) for t in state.tables_of(3)] == [(7, 3, None), (7, 0, 50)]
    assert [(r.ref.path, r.ref.k_min, r.level) for r in state.runs_of(10)] == [("3/a.run", -5, 1)]
    assert state.offsets_at(2, 5) is not None and state.position(3, 2) is not None
    assert [(e.message, e.at_ms) for e in state.newest_events(9)] == [("made", 1_700_000_000_000)]
    assert state.last_epoch == 9


def test_format_1_in_a_file(old: Path) -> None:
    """CM-25: migrated once; the config is readable before and is what it was but for what the migration adds."""
    before = read_config(old)
    assert before[FORMAT_VERSION_KEY] == 1
    with Catalog.open(old) as catalog:
        check(catalog)
        after = dict(catalog.state.config)
        assert after[FORMAT_VERSION_KEY] == FORMAT_VERSION and after[DATABASE_KEY]
        changed = {FORMAT_VERSION_KEY, DATABASE_KEY, FENCING_KEY, SEQUENCE_KEY}
        assert {k: v for k, v in after.items() if k not in changed} == {
            k: v for k, v in before.items() if k not in changed
        }
        assert after[FENCING_KEY] == before[FENCING_KEY] + 1
        catalog.transact([SetConfig("more", 1)])
    with Catalog.open(old) as catalog:
        check(catalog)
        assert catalog.state.config[DATABASE_KEY] == after[DATABASE_KEY]


def test_format_1_read_only_is_left_as_it_is(old: Path) -> None:
    with Catalog.open(old, read_only=True) as catalog:
        check(catalog)
    with sqlite3.connect(old) as now, sqlite3.connect(FROZEN / "format1.db") as frozen:
        assert list(now.iterdump()) == list(frozen.iterdump())


def test_format_1_in_postgres(old: Path, postgres: Postgres) -> None:
    url = new_database(postgres)
    with sqlite3.connect(old) as file, psycopg.connect(url) as server:
        server.execute("CREATE TABLE config (key text PRIMARY KEY, value bigint NOT NULL)")
        server.execute("CREATE TABLE record (collection text, key text, value text, PRIMARY KEY (collection, key))")
        for row in file.execute("SELECT key, value FROM config"):
            server.execute("INSERT INTO config VALUES (%s, %s)", row)
        for row in file.execute("SELECT collection, key, value FROM record"):
            server.execute("INSERT INTO record VALUES (%s, %s, %s)", row)
    for _ in range(2):
        with Catalog.open(url) as catalog:
            check(catalog)
            assert catalog.state.config[FORMAT_VERSION_KEY] == FORMAT_VERSION


def test_format_2_in_a_log(tmp_path: Path) -> None:
    """Batches and a rollup of the first version that had logs."""
    shutil.copytree(FROZEN / "format2", tmp_path / "log")
    with Catalog.open(f"file://{tmp_path}/log") as catalog:
        check(catalog)
        assert catalog.state.settings["before rollup"].value == "1"
        assert catalog.state.settings["after rollup"].value == "2"
        assert catalog.state.config["big"] == 7
