"""What tasks of COPY write is what the source reads, and a folder is whole or not there."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import pytest

from headrace.common.columns import Column, arrow_schema
from headrace.connectors.base import Admission
from headrace.connectors.files import folders
from headrace.connectors.files.folders import Folder, LocalFolder, WrittenFile, folder_at
from headrace.connectors.sources import open_source
from headrace.dataflow.operators.copy_write import WriteFile
from headrace.errors import DuplicateObject, InvalidParameter, SinkError
from object_server import S3Server

COLUMNS = (
    Column("id", "int"), Column("name", "string"), Column("price", "decimal(10,2)"), Column("at", "timestamp"),
    Column("day", "date"), Column("ok", "boolean"), Column("f", "double"), Column("raw", "binary"),
)  # fmt: skip
ONE, OTHER, THIRD = "1" * 16, "2" * 16, "3" * 16


def row(i: int) -> dict[str, Any]:
    name = None if i % 7 == 0 else "" if i % 5 == 0 else f'a "{i}",\n'
    at = datetime(2024, 1, 1, 0, 0, 0, 250_000, tzinfo=UTC)
    return {
        "id": i, "name": name, "price": Decimal(i) / 4, "at": at, "day": date(2024, 1, 1), "ok": i % 2 == 0,
        "f": i / 3, "raw": bytes([i % 256, 255]),
    }  # fmt: skip


@pytest.fixture(params=["directory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Mapping[str, str]]:
    """A folder that is not there yet, and the options of its store."""
    if request.param == "directory":
        return str(tmp_path / "out"), {}
    s3: S3Server = request.getfixturevalue("s3")
    return f"s3://{s3.bucket}/{tmp_path.name}", s3.options


@pytest.mark.parametrize("form", ["parquet", "csv", "json"])
def test_what_is_written_is_read(place: tuple[str, Mapping[str, str]], form: str) -> None:
    at, options = place
    rows = [row(i) for i in range(500)]
    batch = pa.RecordBatch.from_pylist(rows, schema=arrow_schema(COLUMNS))
    berlin = pa.timestamp("us", "Europe/Berlin")  # Spark labels times with the session's zone
    batch = batch.set_column(3, pa.field("at", berlin), batch.column(3).cast(berlin))
    folder = folder_at(at, options, ONE)
    write = pickle.loads(pickle.dumps(WriteFile(COLUMNS, folder, ONE, form, "zstd", False, ",")))
    folder.claim()
    parts = ([], [batch.slice(0, 200), batch.slice(200)], [])
    files = [write.run(partition, "7", iter(batches)) for partition, batches in enumerate(parts)]
    assert files[0].rows == 0 and files[1].rows == 500 and files[2] is None, "the first tells the columns"
    folder.commit(files[:2])
    layout = {"header": "false", "multiline": "true", "format": form}
    source = open_source({"connector": "files", "path": at, **layout, **options}, COLUMNS)
    end = source.latest_offsets({}, Admission(), 0).offsets
    found = [r for task in source.plan({}, end, 4) for made in source.read(task) for r in made.batch.to_pylist()]
    assert sorted(found, key=lambda r: r["id"]) == rows


def stored(folder: Folder, tmp_path: Path, *names: str) -> list[WrittenFile]:
    for name in names:
        (tmp_path / "x").write_bytes(b"rows\n")
        with (tmp_path / "x").open("rb") as file:
            folder.put(name, file)
    return [WrittenFile(name, 1, 5) for name in names]


def names_in(folder: Any) -> list[str]:
    if isinstance(folder, LocalFolder):
        return sorted(p.name for p in Path(folder.path).iterdir())
    return sorted(name for name, size in folder._bucket.names() if size)


def test_one_of_two_and_none_of_a_task_that_nobody_counts(place: tuple[str, Mapping[str, str]], tmp_path: Path) -> None:
    at, options = place
    one, other = folder_at(at, options, ONE), folder_at(at, options, OTHER)
    one.claim()
    other.claim()
    kept, _ = stored(one, tmp_path, f"part-0-{ONE}-1.csv", f"part-0-{ONE}-0.csv")
    late = stored(other, tmp_path, f"part-0-{OTHER}-1.csv")
    one.commit([kept])
    with pytest.raises(DuplicateObject, match="is not empty"):
        other.commit(late)
    other.give_up()
    assert names_in(one) == [folders.MANIFEST, kept.name]
    with pytest.raises(DuplicateObject, match="is not empty"):
        folder_at(at, options, THIRD).claim()


def test_what_a_statement_that_has_not_ended_has_left_is_told(s3: S3Server, tmp_path: Path) -> None:
    at = f"s3://{s3.bucket}/{tmp_path.name}"
    folder = folder_at(at, s3.options, ONE)
    folder.claim()
    left = stored(folder, tmp_path, f"part-00000-{ONE}-1.csv")
    path = f"{at}/{left[0].name}"
    assert folders.half_written([path, f"{at}/other.csv"], s3.options) == [at]
    with pytest.raises(DuplicateObject, match="of a COPY that has not ended") as told:
        folder_at(at, s3.options, OTHER).claim()
    assert left[0].name in str(told.value.hint)
    folder.commit(left)
    assert folders.half_written([path], s3.options) == []
    with pytest.raises(DuplicateObject, match="is not empty"):
        folder_at(at, s3.options, OTHER).claim()


def test_a_file_that_the_server_does_not_see(place: tuple[str, Mapping[str, str]]) -> None:
    folder = folder_at(place[0], place[1], ONE)
    folder.claim()
    with pytest.raises(SinkError, match=r"not all files|does not see all files"):
        folder.commit([WrittenFile("part-none.csv", 1, 5)])


def test_a_task_that_is_late_does_not_bring_a_folder_back(tmp_path: Path) -> None:
    folder = folder_at(str(tmp_path / "out"), {}, ONE)
    folder.claim()
    folder.give_up()
    with pytest.raises(SinkError, match="cannot be written"), (tmp_path / "x").open("w+b") as file:
        folder.put("part-0.csv", file)
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_secrets_are_said_nowhere(s3: S3Server) -> None:
    keys = {"s3.access.key": "a", "s3.secret.key": "hush"}
    folder = folder_at("s3://nobody/x", {**s3.options, **keys}, ONE)
    assert "hush" not in repr(WriteFile(COLUMNS, folder, ONE, "csv", "zstd", False, ",", ("hush",)))
    with pytest.raises(SinkError, match="s3://nobody/x cannot be written"):
        folder.claim()


@pytest.mark.parametrize("at", ["s3://", "x/y", "/tmp/x.parquet", "ftp://h/x", "/"])
def test_places_that_are_no_folders(at: str) -> None:
    with pytest.raises(InvalidParameter):
        folder_at(at, {}, ONE)


def test_a_manifest_whose_answer_is_lost(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked for; and where that cannot be done either, nothing that it names is removed."""
    put, get = obstore.put, obstore.get
    lost = [True, True]

    def answer_lost(store: Any, key: str, data: Any, **more: Any) -> None:
        put(store, key, data, **more)
        if key.endswith(folders.MANIFEST) and lost:
            raise obstore.exceptions.GenericError("the connection was reset")

    def unreachable(store: Any, key: str, **more: Any) -> Any:
        if key.endswith(folders.MANIFEST) and len(lost) > 1:
            raise obstore.exceptions.GenericError("no route")
        return get(store, key, **more)

    monkeypatch.setattr(obstore, "put", answer_lost)
    monkeypatch.setattr(obstore, "get", unreachable)
    for number, fails in (("a", True), ("b", False)):
        folder = folder_at(f"s3://{s3.bucket}/{tmp_path.name}-{number}", s3.options, ONE)
        folder.claim()
        files = stored(folder, tmp_path, f"part-0-{ONE}-1.csv")
        if fails:
            with pytest.raises(SinkError, match="no route"):
                folder.commit(files)
            lost.pop()
            folder.give_up()
        else:
            folder.commit(files)
        assert names_in(folder) == [folders.MANIFEST, files[0].name]


def test_a_task_that_is_late_leaves_nothing(place: tuple[str, Mapping[str, str]], tmp_path: Path) -> None:
    at, options = place
    folder = folder_at(at, options, ONE)
    folder.claim()
    stored(folder, tmp_path, f"part-0-{ONE}-1.csv")
    folder.give_up()
    with pytest.raises(SinkError):
        stored(folder, tmp_path, f"part-1-{ONE}-1.csv")
    folder_at(at, options, OTHER).claim()


def test_places_that_are_no_folder() -> None:
    with pytest.raises(InvalidParameter):
        folder_at(",s3://b/x", {}, ONE)
