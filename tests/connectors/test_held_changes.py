"""An epoch's changes that do not fit in memory: held in pieces, on the disk."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.connectors import held_changes as module
from headrace.connectors.held_changes import HeldChanges
from headrace.connectors.http import ordering
from headrace.connectors.http.ordering import SortedLines
from headrace.errors import DiskFull
from headrace.state.spool import RowsFile


def batches(count: int, rows: int) -> Iterator[pa.RecordBatch]:
    """Each key comes in every batch."""
    for number in range(count):
        yield pa.RecordBatch.from_pydict({"k": [f"key {i}" for i in range(rows)], "v": [number] * rows})


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 10_000)
    monkeypatch.setattr(ordering, "SORTED_BYTES", 1_000)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("key", [(), ("k",)])
def test_all_changes_are_there_as_often_as_they_are_asked_for(tmp_path: Path, key: tuple[str, ...]) -> None:
    wanted = Counter((r["k"], r["v"]) for b in batches(20, 300) for r in b.to_pylist())
    with HeldChanges.of(batches(20, 300), tmp_path / "task", key) as held:
        assert held.rows == 6000
        for _ in range(2):
            pieces = [Counter((r["k"], r["v"]) for b in piece for r in b.to_pylist()) for piece in held.pieces()]
            assert len(pieces) > 5 and all(pieces) and sum(pieces, Counter()) == wanted
        if key:
            keys = [{k for k, _ in piece} for piece in pieces]
            assert sum(map(len, keys)) == len(set().union(*keys)) == 300
        else:
            assert [b.column("v")[0].as_py() for b in held] == sorted(b.column("v")[0].as_py() for b in held)
        assert list((tmp_path / "task").iterdir())
    assert not list((tmp_path / "task").iterdir())


@pytest.mark.usefixtures("small")
def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    appended = RowsFile.append

    def full(file: RowsFile, batch: pa.RecordBatch) -> None:
        appended(file, batch)
        with module.storage_errors("spooling", "x"):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(RowsFile, "append", full)
    with pytest.raises(DiskFull):
        HeldChanges.of(batches(20, 300), tmp_path, ("k",))
    assert not list(tmp_path.iterdir())


def test_what_fits_stays_in_memory(tmp_path: Path) -> None:
    with HeldChanges.of(batches(3, 10), tmp_path, ("k",)) as held:
        assert len(list(held.pieces())) == 1 and not list(tmp_path.iterdir())
    with HeldChanges(tmp_path) as held:
        assert not list(held.pieces())


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("count", [0, 3, 5000])
def test_lines_are_sorted_however_many_there_are(tmp_path: Path, count: int) -> None:
    lines = [b'{"id":%d}' % (i * 7919 % 4999) for i in range(count)]
    with SortedLines(lines, tmp_path / "task") as found:
        assert list(found) == sorted(lines)
