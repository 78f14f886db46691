"""What is no catalog, or none any more, in a file or in PostgreSQL: refused with what and where, untouched."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from backends import new_database

from headrace.catalog.catalog import Catalog, read_config
from headrace.catalog.edits import AddEvent
from headrace.catalog.moving import Places, move
from headrace.catalog.places import canonical
from headrace.errors import CorruptObject, HeadraceError, OperationalError, StorageError
from postgres import Postgres


def filled(path: Path, events: int = 200) -> Path:
    with Catalog.open(path) as catalog:
        for n in range(events):
            catalog.transact([AddEvent("k", None, f"{n}", "x" * 100)])
    return path


def refused(path: Path, match: str, error: type[HeadraceError] = CorruptObject) -> None:
    """Each way of opening it is refused, and changes nothing of it."""
    before = path.read_bytes()
    ways: list[Callable[[], object]] = [
        lambda: Catalog.open(path), lambda: Catalog.open(path, read_only=True),
        lambda: Catalog.find(canonical(path), Places()),
    ]  # fmt: skip
    for way in ways:
        with pytest.raises(error, match=match) as raised:
            way()
        assert path.name in raised.value.message or "catalog record" in raised.value.message, raised.value.message
    assert path.read_bytes() == before


def test_files_that_are_no_database(tmp_path: Path) -> None:
    for number, data in enumerate((b"PAR1" * 400, b"hello", b"SQLite format 3\x00" + b"\xff" * 5000)):
        path = tmp_path / f"{number}.db"
        path.write_bytes(data)
        refused(path, "cannot be read: ")
        with pytest.raises(CorruptObject):
            read_config(path)


def test_a_truncated_file(tmp_path: Path) -> None:
    path = filled(tmp_path / "catalog.db")
    whole = path.read_bytes()
    for share in (0.9, 0.5, 0.2):
        path.write_bytes(whole[: int(len(whole) * share)])
        refused(path, "malformed|cannot be read|not a database", StorageError)


def test_a_file_of_another_program(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE songs (title text)")
    refused(path, "holds no catalog of headrace: it has the tables songs")
    with pytest.raises(CorruptObject, match="songs"):
        move(canonical(filled(tmp_path / "own.db", 1)), canonical(path), Places())


@pytest.mark.parametrize(("tables", "match"), [
    (["config (key text, value bigint)"], "a table config, and not the other one"),
    (["record (collection text, key text, value text)"], "a table record, and not the other one"),
    (["config (name text)", "record (collection text, key text, value text)"], "config has the columns name"),
    (["config (key text, value bigint)", "record (id bigint)"], "record has the columns id"),
    (["config (key text, value bigint)", "record (collection text, key text, value text)"], "no fencing token"),
])  # fmt: skip
def test_tables_of_the_same_names(tables: list[str], match: str, tmp_path: Path, postgres: Postgres) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as file:
        for table in tables:
            file.execute(f"CREATE TABLE {table}")
    refused(path, match)
    url = new_database(postgres)
    with psycopg.connect(url) as server:
        for table in tables:
            server.execute(f"CREATE TABLE {table}")
    for read_only in (True, False):
        with pytest.raises(CorruptObject, match=match):
            Catalog.open(url, read_only=read_only)
    with pytest.raises(CorruptObject, match=match):
        read_config(url)
    with psycopg.connect(url) as server:
        names = server.execute("SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace "
                               "AND relkind = 'r'").fetchall()  # fmt: skip
        assert len(names) == len(tables)
        assert all(server.execute(f"SELECT count(*) FROM {n}").fetchone() == (0,) for (n,) in names)  # type: ignore[arg-type]


def test_another_database_of_the_server_may_hold_other_tables(postgres: Postgres) -> None:
    url = new_database(postgres)
    with psycopg.connect(url) as server:
        server.execute("CREATE TABLE songs (title text)")
    with Catalog.open(url) as catalog:
        assert catalog.token == 1


BROKEN = {
    "no JSON": ("event", "1", "{", CorruptObject, "catalog record event/1 cannot be read"),
    "no record": ("event", "1", '{"v":1,"message":1}', CorruptObject, "catalog record event/1 cannot be read"),
    "unknown collection": ("songs", "1", "{}", CorruptObject, 'unknown collection "songs"'),
    "newer record": ("event", "1", '{"v":99}', OperationalError, "catalog record event/1 has version 99"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_records_that_cannot_be_read_shut_out_nobody(how: str, tmp_path: Path, postgres: Postgres) -> None:
    """CM-5, CM-26: whoever has the catalog open goes on."""
    collection, key, text, error, match = BROKEN[how]
    sql = "INSERT INTO record VALUES ({0}, {0}, {0}) ON CONFLICT (collection, key) DO UPDATE SET value = excluded.value"
    url = new_database(postgres)
    for location in (str(tmp_path / "catalog.db"), url):
        with Catalog.open(location) as owner:
            owner.transact([AddEvent("k", None, "a")])
            if location == url:
                with psycopg.connect(url) as server:
                    server.execute(sql.format("%s"), (collection, key, text))  # type: ignore[arg-type]
            else:
                with sqlite3.connect(location) as file:
                    file.execute(sql.format("?"), (collection, key, text))
            before = read_config(location)
            for read_only in (True, False):
                with pytest.raises(error, match=match):
                    Catalog.open(location, read_only=read_only)
            assert read_config(location) == before
            owner.transact([AddEvent("k", None, "b")])


def test_config_entries_that_are_no_numbers(tmp_path: Path) -> None:
    path = filled(tmp_path / "catalog.db", 1)
    with sqlite3.connect(path) as file:
        file.execute("UPDATE config SET value = 'many' WHERE key = 'next_id'")
    refused(path, "config entry next_id of the catalog in .* is no number")


def test_records_in_a_log_that_cannot_be_read_shut_out_nobody(tmp_path: Path) -> None:
    """CM-26: its objects are whole, but a newer program wrote a record that this one does not know."""
    url = f"file://{tmp_path}/log"
    with Catalog.open(url) as owner:
        store = owner._store
        from headrace.catalog.store import Writes

        store.append(Writes((("event", "1", json.dumps({"v": 99})),)), owner.sequence)
        before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
        for read_only in (True, False):
            with pytest.raises(OperationalError, match="catalog record event/1 has version 99"):
                Catalog.open(url, read_only=read_only)
        assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before
        store.verify()


def test_a_move_replaces_records_that_cannot_be_read(tmp_path: Path) -> None:
    """CM-14: whatever is in the way; but what is to be moved is looked at before anybody is shut out."""
    here, there = tmp_path / "here.db", tmp_path / "there.db"
    filled(here, 3)
    move(canonical(here), canonical(there), Places())
    move(canonical(there), canonical(here), Places())
    with sqlite3.connect(there) as file:
        file.execute("INSERT INTO record VALUES ('songs', '1', '{')")
    move(canonical(here), canonical(there), Places())
    with Catalog.find(canonical(here), Places()) as catalog:
        assert catalog.location == str(there) and catalog.state.event_count == 3
        with sqlite3.connect(there) as file:
            file.execute("INSERT INTO record VALUES ('songs', '1', '{')")
        with pytest.raises(CorruptObject, match="songs"):
            move(canonical(there), canonical(here), Places())
        catalog.transact([AddEvent("k", None, "goes on")])
