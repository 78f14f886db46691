"""A catalog in a file that somebody else holds, or on a full disk: a bounded wait, an error, nothing twice."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from headrace.catalog.catalog import Catalog
from headrace.catalog.edits import AddEvent
from headrace.catalog.places import PlaceOptions
from headrace.errors import DiskFull, StorageError

IMPATIENT = PlaceOptions(full_sync=False, busy_timeout_ms=50)


def write(catalog: Catalog, name: str, size: int = 0) -> None:
    catalog.transact([AddEvent("k", None, name, "x" * size)])


def written(catalog: Catalog) -> list[str]:
    return [e.message for e in reversed(catalog.state.newest_events(100))]


def test_a_file_that_another_process_holds(tmp_path: Path) -> None:
    """I10: who waits in vain is told so, and what was not written is not there later."""
    path = tmp_path / "catalog.db"
    with Catalog.open(path, options=IMPATIENT) as catalog:
        write(catalog, "a")
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageError, match="does not answer") as silent:
            write(catalog, "b")
        assert "database is locked" in str(silent.value.detail)
        with pytest.raises(StorageError, match="database is locked"):
            Catalog.open(path, options=IMPATIENT)
        holder.execute("ROLLBACK")
        holder.close()
        assert written(catalog) == ["a"]
        write(catalog, "c")
        assert written(catalog) == ["a", "c"]
    with Catalog.open(path) as again:
        assert written(again) == ["a", "c"]


def test_a_full_disk(tmp_path: Path) -> None:
    """XC-8: an error that says so, nothing of the transaction; goes on when there is room."""
    path = tmp_path / "catalog.db"
    with Catalog.open(path, options=IMPATIENT) as catalog:
        write(catalog, "a")
        store: Any = catalog._store
        store._tables._appender.execute("PRAGMA max_page_count = 1")
        with pytest.raises(DiskFull, match="disk is full") as full:
            write(catalog, "b", 1 << 20)
        assert full.value.sqlstate == "53100"
        assert written(catalog) == ["a"]  # the connection that could not grow is not used any more
        write(catalog, "c", 1 << 20)
        assert written(catalog) == ["a", "c"]
    with Catalog.open(path) as again:
        assert written(again) == ["a", "c"]
