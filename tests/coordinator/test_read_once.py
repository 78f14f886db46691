"""What can only be read as a whole is read once: counted in row groups that are decoded, not in time."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as papq
import pytest
from fake_database import Database

from support import WAIT_S

ROWS = 40_000


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[int, int]]:
    """How often each row group is decoded, by the rows of its file and its number."""
    counts: Counter[tuple[int, int]] = Counter()
    original = papq.ParquetFile.iter_batches

    def counted(file: papq.ParquetFile, rows: int, groups: list[int], *rest: Any, **named: Any) -> Any:
        counts.update((file.metadata.num_rows, group) for group in groups)
        return original(file, rows, groups, *rest, **named)

    monkeypatch.setattr(papq.ParquetFile, "iter_batches", counted)
    return counts


def numbers(count: int) -> pa.Table:
    return pa.table({"n": pa.array(range(count), pa.int64())})


@pytest.mark.parametrize("group_rows", [ROWS, 10_000, 1_000])
@pytest.mark.parametrize("limit", [1_000_000, 10_000])
def test_each_row_group_of_a_file_is_decoded_once(
    tmp_path: Path, decoded: Counter[tuple[int, int]], group_rows: int, limit: int
) -> None:
    """Whatever is known of the width of rows, and however many steps the first epoch takes."""
    papq.write_table(numbers(ROWS), tmp_path / "rows.parquet", row_group_size=group_rows)
    db = Database(tmp_path / "db", backfill_slice_rows=limit, max_rows_per_epoch=max(limit, ROWS))
    try:
        source = db.source("s", connector="files", path=str(tmp_path / "rows.parquet"), format="parquet")
        view = db.view("v", source)
        db.c.flush(WAIT_S)
        assert db.read(view) == [list(range(ROWS))]
        assert decoded == Counter({(ROWS, group): 1 for group in range(ROWS // group_rows)})
        runs = len(db.runner_of(view).calls)
        assert runs <= -(-ROWS // max(limit, group_rows)) + 1, "and in no more steps than the limit makes of it"
    finally:
        db.close()


def test_an_epoch_ends_with_a_row_group(tmp_path: Path, decoded: Counter[tuple[int, int]]) -> None:
    """Where one ends within the limit; a row group that is larger is decoded for each epoch that has rows of it."""
    papq.write_table(numbers(ROWS), tmp_path / "rows.parquet", row_group_size=3_000)
    db = Database(tmp_path / "db")
    try:
        source = db.source(
            "s", connector="files", path=str(tmp_path / "rows.parquet"), format="parquet", max_rows_per_epoch="7000"
        )
        view = db.view("v", source)
        for _ in range(8):
            db.c.tick()
        db.c.flush(WAIT_S)
        assert db.read(view) == [list(range(ROWS))]
        assert set(decoded.values()) == {1}
        ends = [int(r.offsets[str(tmp_path / "rows.parquet")]["row"]) for r in db.catalog.state.all_remaps(source)]
        assert all(end % 3_000 == 0 for end in ends if end < ROWS)
    finally:
        db.close()


def test_each_row_group_of_a_delta_table_is_decoded_once(tmp_path: Path, decoded: Counter[tuple[int, int]]) -> None:
    deltalake = pytest.importorskip("deltalake")
    properties = deltalake.WriterProperties(max_row_group_size=10_000)
    deltalake.write_deltalake(tmp_path / "table", numbers(ROWS), writer_properties=properties)
    db = Database(tmp_path / "db", backfill_slice_rows=10_000)
    try:
        source = db.source("s", connector="deltalake", location=str(tmp_path / "table"))
        view = db.view("v", source)
        db.c.flush(WAIT_S)
        assert db.read(view) == [list(range(ROWS))]
        assert sum(decoded.values()) == len(decoded) == 4
    finally:
        db.close()
