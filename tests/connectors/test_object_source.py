"""The files source on object stores: what is listed, what is read, and what is said where it is not what it was."""

from __future__ import annotations

import gzip
import itertools
import json
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cloud_servers import BUCKET, google
from headrace.common.columns import Column
from headrace.connectors.base import Admission, Binding, Offsets, Source
from headrace.connectors.files import clients as object_store
from headrace.connectors.files import object_files as object_files
from headrace.connectors.files import source as files
from headrace.connectors.files.object_files import _pattern
from headrace.connectors.files.options import location
from headrace.connectors.sources import infer_columns, open_source
from headrace.errors import InvalidParameter, SourceError
from object_server import S3Server, call

COLUMNS = [Column("id", "bigint", False), Column("name", "string")]
_folders = itertools.count(1)


class Folder:
    """A folder of the server that nobody else uses."""

    def __init__(self, server: S3Server) -> None:
        self.server, self.key = server, f"objects/{next(_folders)}"
        self.url = f"s3://{server.bucket}/{self.key}"

    def put(self, name: str, data: bytes) -> None:
        self.server.put(f"{self.key}/{name}", data)

    def source(self, item: str = "", **options: str) -> Source:
        options = {name.replace("__", "."): value for name, value in options.items()}
        path = {"path": f"{self.url}{item}", **self.server.options}
        return open_source({"connector": "files", **path, **options}, COLUMNS)


@pytest.fixture
def folder(s3: S3Server) -> Folder:
    return Folder(s3)


def text(kind: str, numbers: range) -> bytes:
    if kind == "parquet":
        sink = pa.BufferOutputStream()
        pq.write_table(
            pa.table({"id": list(numbers), "name": [f"n{i}" for i in numbers]}),
            sink,
            row_group_size=max(70, len(numbers) // 20),
        )
        return bytes(sink.getvalue())
    if kind == "json":
        return "".join(json.dumps({"id": i, "name": f"n{i}"}) + "\n" for i in numbers).encode()
    return ("id,name\n" + "".join(f"{i},n{i}\n" for i in numbers)).encode()


def packed(name: str, data: bytes) -> bytes:
    if name.endswith(".zst"):
        return bytes(pa.compress(data, "zstd", asbytes=True))
    return gzip.compress(data) if name.endswith(".gz") else data


def bind(source: Source, after: Offsets, rows: int | None = None, now_ms: int = 0) -> Binding:
    return source.latest_offsets(json.loads(json.dumps(after)), Admission(rows), now_ms)


def ids(source: Source, from_: Offsets, to: Offsets, parts: int = 3) -> list[int]:
    tasks = json.loads(json.dumps(source.plan(from_, to, parts)))
    return sorted(i for task in tasks for made in source.read(task) for i in made.batch.column("id").to_pylist())


def everything(source: Source) -> list[int]:
    return ids(source, {}, bind(source, {}).offsets)


@pytest.mark.parametrize("name", ["a.csv", "a.json", "a.parquet", "a.csv.gz", "a.json.zst", "a.csv.zst"])
def test_rows_of_every_format(folder: Folder, name: str) -> None:
    folder.put(name, packed(name, text(name.split(".")[1], range(1000))))
    assert everything(folder.source()) == list(range(1000))
    assert everything(folder.source(f"/{name}")) == list(range(1000))
    options = {"connector": "files", "path": folder.url, **folder.server.options}
    assert [c.name for c in infer_columns(options)] == ["id", "name"]


@pytest.mark.parametrize("name", ["a.csv", "a.json", "a.parquet"])
def test_a_large_object_is_cut_and_read_once(folder: Folder, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MIN_PIECE_BYTES", 1)
    folder.put(name, text(name.split(".")[1], range(20_000)))
    source, marks = folder.source(), [{}]
    while len(marks) == 1 or marks[-1] != marks[-2]:
        marks.append(bind(source, marks[-1], 7_000).offsets)
    parts = [ids(folder.source(), a, b, 4) for a, b in pairwise(marks)]
    assert Counter(i for part in parts for i in part) == Counter(range(20_000)) and len(parts) >= 4
    assert ids(source, {}, marks[-1], 7) == list(range(20_000))


def test_the_server_reads_little_of_what_it_binds(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of compressed objects either: they are whole, since they are there."""
    for name in ("a.csv.gz", "b.json.zst", "c.parquet", "d.json"):
        folder.put(name, packed(name, text(name.split(".")[1], range(60_000))))
    asked: list[tuple[str, int]] = []
    get = object_files.ObjectPlace.get

    def counted(place: Any, seen: Any, start: int, stop: int) -> Any:
        asked.append((place.key, stop - start))
        return get(place, seen, start, stop)

    monkeypatch.setattr(object_files.ObjectPlace, "get", counted)
    binding = bind(folder.source(), {})
    assert len(asked) == 4 and all(size <= object_files.FIRST_BYTES for _, size in asked)
    assert binding.rows is not None and 0.2 < binding.rows / 240_000 < 5


def test_what_a_folder_and_a_glob_stand_for(folder: Folder) -> None:
    names = ("a.csv", "x/b.csv", "x/y/c.csv", "_tmp/d.csv", "x/_e.csv", "x/.f.csv", "z/notes.txt", "b b.csv")
    for n, name in enumerate(names):
        folder.put(name, text("csv", range(n, n + 1)))
    folder.put("x/y/", b"")

    def found(item: str) -> list[int]:
        return everything(folder.source(item))

    assert found("") == found("/") == [0, 1, 2, 7]
    assert found("/*.csv") == [0, 7] and found("/x/**") == [1, 2]
    assert found("/**") == found("/**/*.csv") == [0, 1, 2, 7], "what somebody is still writing is left alone"
    assert found("/[ab]*.csv") == [0, 7] and found("/[!a]*.csv") == [7] and found("/?.csv") == [0]
    assert found("/b b.csv") == [7] and found("/nothing/") == []


def test_two_stars_and_brackets() -> None:
    assert _pattern("s3://b/x/**/y/*.csv").matches("s3://b/x/y/a.csv")
    assert _pattern("s3://b/x/**/y/*.csv").matches("s3://b/x/1/2/y/a.csv")
    assert not _pattern("s3://b/x/**/y/*.csv").matches("s3://b/x/.1/y/a.csv")
    assert not _pattern("s3://b/x/**").matches("s3://b/x/_temporary/0/a.csv")
    assert not _pattern("s3://b/x/*.csv").matches("s3://b/x/y/a.csv")
    assert not _pattern("s3://b/x").matches("s3://b/x/_delta_log/a.json")


def test_new_objects_come_after_those_that_were_there(folder: Folder) -> None:
    source = folder.source(refresh__interval="5s")
    folder.put("m.csv", text("csv", range(3)))
    first = bind(source, {})
    folder.put("a.csv", text("csv", range(3, 5)))
    assert bind(source, first.offsets, now_ms=4_999).offsets == first.offsets, "it is not listed again yet"
    second = bind(source, first.offsets, now_ms=5_000)
    assert ids(source, first.offsets, second.offsets) == [3, 4] and not second.finished
    assert [entry["n"] for entry in second.offsets.values()] == [0, 1]
    assert bind(folder.source(), first.offsets).offsets == second.offsets, "whoever comes later lists first"


def test_single_objects_are_an_end(folder: Folder) -> None:
    folder.put("a.csv", text("csv", range(3)))
    end = bind(folder.source("/a.csv"), {})
    assert end.finished
    assert not bind(folder.source(), {}).finished
    folder.server.delete(f"{folder.key}/a.csv")
    assert bind(folder.source("/a.csv"), end.offsets).finished, "it was taken in"


def test_many_new_objects_are_bound_in_portions(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_files.ObjectFiles, "most_new", 3)
    for n in range(8):
        folder.put(f"{n}.csv", text("csv", range(n, n + 1)))
    source, marks, behind = folder.source(), [{}], True
    while behind:
        binding = bind(source, marks[-1])
        marks.append(binding.offsets)
        behind = binding.behind
    assert [len(mark) for mark in marks] == [0, 3, 6, 8]
    assert [len(ids(source, a, b)) for a, b in pairwise(marks)] == [3, 3, 2]


def test_a_listing_is_bounded(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_files, "MOST_OBJECTS", 2)
    for n in range(3):
        folder.put(f"{n}.csv", text("csv", range(1)))
    with pytest.raises(SourceError, match=f"more than 2 objects below {folder.url}"):
        bind(folder.source(), {})


@pytest.mark.parametrize("name", ["a.csv", "a.json", "a.parquet", "a.csv.gz", "a.csv.zst"])
def test_an_object_that_is_replaced_or_gone_is_told(folder: Folder, name: str) -> None:
    kind = name.split(".")[1]
    folder.put(name, packed(name, text(kind, range(20))))
    source = folder.source()
    end = bind(source, {}).offsets
    folder.put(name, packed(name, text(kind, range(1, 21))))  # as long as before, perhaps
    for reader in (source, folder.source()):
        with pytest.raises(SourceError, match=rf"{folder.url}/{name} has changed since it was taken in"):
            ids(reader, {}, end)
    with pytest.raises(SourceError, match="has changed since it was taken in"):
        bind(folder.source(), end)
    folder.server.delete(f"{folder.key}/{name}")
    with pytest.raises(
        SourceError, match=rf"{folder.url}/{name} of the source cannot be read: there is no such object"
    ):
        ids(folder.source(), {}, end)
    assert bind(folder.source(), end).offsets == end, "it was taken in"


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_an_object_that_is_replaced_while_it_is_read(
    folder: Folder, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_files, "_LARGEST_BYTES", 1 << 10)
    monkeypatch.setattr(object_files, "FIRST_BYTES", 1 << 10)
    folder.put(f"a.{kind}", text(kind, range(30_000)))
    source = folder.source()
    (task,) = source.plan({}, bind(source, {}).offsets, 1)
    get, calls = object_files.ObjectPlace.get, itertools.count()

    def late(place: Any, seen: Any, start: int, stop: int) -> Any:
        if next(calls) == 5:
            folder.put(f"a.{kind}", text(kind, range(1, 30_001)))
        return get(place, seen, start, stop)

    monkeypatch.setattr(object_files.ObjectPlace, "get", late)
    with pytest.raises(SourceError, match="has changed since it was taken in"):
        list(source.read(task))


def test_a_server_that_does_not_compare_is_seen_through(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.put("a.csv", text("csv", range(20)))
    source = folder.source()
    end = bind(source, {}).offsets
    folder.put("a.csv", text("csv", range(1, 21)))
    get = object_files.ObjectPlace.get
    monkeypatch.setattr(
        object_files.ObjectPlace, "get", lambda p, seen, a, b: get(p, object_files.ContentMark(seen.size, 0), a, b)
    )  # fmt: skip
    with pytest.raises(SourceError, match="has changed since it was taken in"):
        ids(source, {}, end)


@pytest.mark.parametrize("name", ["a.csv.gz", "a.csv.zst"])
def test_compressed_data_that_is_cut_off_or_none(folder: Folder, name: str) -> None:
    whole = packed(name, text("csv", range(60_000)))
    for bad in (whole[:-100], text("csv", range(100))):
        folder.put(name, bad)
        with pytest.raises(SourceError, match=f"{name} is not a whole"):
            everything(folder.source())


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.csv.zst"])
def test_lines_at_fault_are_named(folder: Folder, name: str) -> None:
    lines = text("csv", range(100)).replace(b"\n50,", b"\nx,")
    folder.put(name, packed(name, lines))
    with pytest.raises(SourceError, match=rf"{name}, line 52, column id"):
        everything(folder.source())
    assert len(everything(folder.source(on_error="skip"))) == 99


def test_keys_are_secrets(s3: S3Server, folder: Folder) -> None:
    folder.put("a.csv", text("csv", range(3)))
    options = {"connector": "files", "path": folder.url, **s3.options, "s3.access.key": "test"}
    source = open_source(options, COLUMNS, lambda: {"s3.secret.key": "hush"})
    assert everything(source) == [0, 1, 2]
    assert "hush" not in json.dumps(source.plan({}, bind(source, {}).offsets, 1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "ftp://b/x"}, "ftp:// is not known"),
        ({"path": "s3://b/x, /tmp"}, "files of one kind of store"),
        ({"path": "s3://b/x, gs://b/x"}, "files of one kind of store"),
        ({"path": "s3://"}, "names no bucket"),
        ({"path": "s3://b*/x"}, "names no bucket"),
        ({"path": "s3://b/[z-a].csv"}, "is no pattern"),
        ({"path": "/tmp", "s3.region": "r"}, "option s3.region needs a path in an object store"),
        ({"path": "gs://b/x", "s3.region": "r"}, "option s3.region has no meaning for gs://"),
        ({"path": "/tmp", "refresh.interval": "1s"}, "option refresh.interval needs a path in an object store"),
        ({"path": "s3://b/x", "store.anonymous": "maybe"}, "option store.anonymous must be true or false"),
        ({"path": "gs://b/x", "gcs.credential": "no JSON"}, "cannot open gs://b"),
    ],
)
def test_options_that_cannot_be(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidParameter, match=message):
        open_source({"connector": "files", **options}, COLUMNS)


def test_a_bucket_that_is_not_there_and_a_server_that_does_not_answer(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SourceError, match=r"s3://nobody/x/ cannot be read.*404"):
        bind(open_source({"connector": "files", "path": "s3://nobody/x/", **s3.options}, COLUMNS), {})
    monkeypatch.setattr(object_store, "_RETRIES", 0)
    options = {"connector": "files", "path": "s3://b/x/", **s3.options, "s3.endpoint": "http://127.0.0.1:1"}
    with pytest.raises(SourceError, match="s3://b/x/ cannot be read"):
        bind(open_source(options, COLUMNS), {})


@pytest.fixture(scope="module")
def cloud() -> Iterator[str]:
    """The URL of a folder of Google's, and where it is served."""
    with google():
        yield f"gs://{BUCKET}/folder"


def test_google(cloud: str) -> None:
    import os

    endpoint = json.loads(os.environ["GOOGLE_SERVICE_ACCOUNT_KEY"])["gcs_base_url"]
    key = os.environ["GOOGLE_SERVICE_ACCOUNT_KEY"]
    options = {"connector": "files", "path": cloud, "gcs.endpoint": endpoint}
    call(f"{endpoint}/{BUCKET}/folder/a.csv", "PUT", text("csv", range(3)))
    source = open_source(options, COLUMNS, lambda: {"gcs.credential": key})
    end = bind(source, {}).offsets
    assert ids(source, {}, end) == [0, 1, 2]
    call(f"{endpoint}/{BUCKET}/folder/a.csv", "PUT", text("csv", range(1, 4)))
    with pytest.raises(SourceError, match=r"a\.csv has changed since it was taken in"):
        ids(source, {}, end)


def test_file_urls_are_paths(tmp_path: Any) -> None:
    (tmp_path / "a b.csv").write_bytes(text("csv", range(3)))
    found = location({"connector": "files", "path": f"file://{tmp_path}/a%20b.csv"})
    assert found.paths == [str(tmp_path / "a b.csv")] and not found.store.remote
