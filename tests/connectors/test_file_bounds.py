"""What binding files must not do: wait, read it all, go round in circles, or hold a record without end in memory."""

import gzip
import os
import socket
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from headrace.common.columns import Column
from headrace.connectors.base import Admission, Offsets, Source
from headrace.connectors.files import lines as file_lines
from headrace.connectors.files import source as files
from headrace.connectors.files.file_listing import FileState
from headrace.connectors.files.store_access import matching
from headrace.connectors.sources import infer_columns, open_source
from headrace.errors import SourceError
from support import WAIT_S

COLUMNS = [Column("id", "bigint"), Column("name", "string")]


def source(path: Path | str, **options: str) -> Source:
    return open_source({"connector": "files", "path": str(path), **options}, COLUMNS)


def bound(src: Source, after: Offsets | None = None, most: int | None = None) -> Offsets:
    return src.latest_offsets(after or {}, Admission(most), 0).offsets


def ids(src: Source, after: Offsets, to: Offsets, parallelism: int = 3) -> list[int]:
    found = (b.batch for task in src.plan(after, to, parallelism) for b in src.read(task))
    return [i for batch in found for i in batch.column("id").to_pylist()]


def returns_in_time(call: Callable[[], Any]) -> Any:
    """What a call returns or raises; it is given up if it waits for ever."""
    answer: Future[Any] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:
            answer.set_exception(error)

    Thread(target=run, daemon=True).start()
    return answer.result(WAIT_S)


def bytes_read() -> int:
    """What this process has asked its files for so far."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["rchar"])


# ---- what is no file


def odd_things(folder: Path) -> list[Path]:
    """One of each kind of thing that has a name and is no file."""
    os.mkfifo(folder / "pipe.csv")
    (folder / "dangling.csv").symlink_to(folder / "nowhere.csv")
    (folder / "circle.csv").symlink_to(folder / "circle.csv")
    (folder / "device.csv").symlink_to("/dev/zero")
    (folder / "folder.csv").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket.csv"))
    return sorted(folder.iterdir())


@pytest.mark.parametrize("pattern", ["", "*.csv", "**/*.csv", "**"])
def test_what_is_no_file_is_left_alone(tmp_path, pattern):
    odd_things(tmp_path)
    (tmp_path / "a.csv").write_text("id,name\n1,a\n")
    src = source(tmp_path / pattern if pattern else tmp_path)
    end = returns_in_time(lambda: bound(src))
    assert list(end) == [str(tmp_path / "a.csv")] and ids(src, {}, end) == [1]


def test_what_is_no_file_is_refused_by_name(tmp_path):
    for path in odd_things(tmp_path):
        if path.is_dir():
            continue
        options = {"connector": "files", "path": str(path)}
        with pytest.raises(SourceError, match=path.name):
            returns_in_time(lambda p=path: bound(source(p)))
        with pytest.raises(SourceError, match=path.name):
            returns_in_time(lambda o=options: infer_columns(o))


@pytest.mark.parametrize("kind", ["csv", "json", "parquet", "csv.gz"])
def test_a_file_that_becomes_a_pipe_is_not_waited_for(tmp_path, kind):
    path = tmp_path / f"a.{kind}"
    text = b'{"id":1}\n'
    path.write_bytes(gzip.compress(text) if kind == "csv.gz" else text)
    src = source(path, header="false")
    seen = path.stat()
    entry = {"n": 0, "size": seen.st_size, "mtime_ns": seen.st_mtime_ns, "row": 0, "byte": 0, "done": False}
    path.unlink()
    os.mkfifo(path)
    task = {"pieces": [{"path": str(path), "file": entry, "start": 0, "stop": 9}]}
    with pytest.raises(SourceError, match="not a regular file"):
        returns_in_time(lambda: list(src.read(task)))
    with pytest.raises(SourceError, match="not a regular file"):
        returns_in_time(lambda: bound(src, {str(path): entry}))


def test_a_folder_that_cannot_be_listed_is_named(tmp_path, monkeypatch):
    def refuse(path: str) -> list[str]:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "listdir", refuse)
    for path in (tmp_path, tmp_path / "**" / "*.csv"):
        with pytest.raises(SourceError, match=f"{tmp_path.name}.* cannot be read: Permission denied"):
            bound(source(path))


def test_folders_that_contain_themselves_are_walked_once(tmp_path):
    inner = tmp_path / "one" / "two"
    inner.mkdir(parents=True)
    (inner / "a.csv").write_text("id,name\n1,a\n")
    for name in "abcdef":  # six ways round at each turn: followed, they would never end
        (inner / name).symlink_to(tmp_path)
    (tmp_path / "aside").symlink_to(tmp_path / "one")
    src = source(tmp_path / "**" / "*.csv")
    end = returns_in_time(lambda: bound(src))
    assert sorted(end) == [str(tmp_path / "aside" / "two" / "a.csv"), str(inner / "a.csv")]


def test_links_among_folders_are_followed_once_each(tmp_path):
    """By every way without a circle there would be two thousand paths to six files."""
    folders = [tmp_path / name for name in "abcdef"]
    for folder in folders:
        folder.mkdir()
        (folder / "x.csv").write_text("id,name\n1,a\n")
        for other in folders:
            if other != folder:
                (folder / f"to_{other.name}").symlink_to(other)
    found = set(matching(str(tmp_path / "**" / "*.csv")))
    assert {str(folder / "x.csv") for folder in folders} <= found and len(found) == 2 * len(folders)


def test_very_deep_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    depth = 1200
    try:
        for _ in range(depth):
            os.mkdir("a")
            os.chdir("a")
        Path("x.csv").write_text("id,name\n")
        assert list(matching(str(tmp_path / "**" / "*.csv"))) == [str(tmp_path) + "/a" * depth + "/x.csv"]
    finally:  # Whatever happens: what tidies up after the tests is recursive, and fails for good on such a depth.
        with suppress(FileNotFoundError):
            os.unlink("x.csv")
        while Path.cwd() != tmp_path:
            os.chdir("..")
            os.rmdir("a")


def test_what_two_stars_match(tmp_path):
    for name in ("a.csv", "x/b.csv", "x/y/c.csv", ".hidden/d.csv", "x/_e.csv", "z/y/f.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text("id,name\n")

    def found(pattern: str) -> set[str]:
        return {os.path.relpath(path, tmp_path) for path in bound(source(tmp_path / pattern))}

    assert found("**/*.csv") == found("**") == {"a.csv", "x/b.csv", "x/y/c.csv", "z/y/f.csv"}
    assert found("**/y/*.csv") == found("**/**/y/**/*.csv") == {"x/y/c.csv", "z/y/f.csv"}
    assert found("x/**/*.csv") == found("[x]/**") == {"x/b.csv", "x/y/c.csv"}


# ---- what is not read


@pytest.mark.parametrize("multiline", ["true", "false"])
def test_binding_does_not_read_the_text(tmp_path, multiline):
    lines = 400_000
    (tmp_path / "a.csv").write_text("id,name\n" + "".join(f"{i},{'x' * (i % 13)}\n" for i in range(lines)))
    (tmp_path / "b.json").write_text("".join(f'{{"id": {lines + i}}}\n' for i in range(lines)))
    src = source(tmp_path, multiline=multiline)
    before = bytes_read()
    binding = src.latest_offsets({}, Admission(None), 0)
    assert bytes_read() - before < 1 << 20, "it was read to be bound"
    assert binding.rows is not None and 0.8 < binding.rows / (2 * lines) < 1.2
    assert Counter(ids(src, {}, binding.offsets)) == Counter(range(2 * lines))


def test_a_limit_cuts_a_large_file_without_reading_it(tmp_path):
    lines, most = 300_000, 70_000
    (tmp_path / "a.csv").write_text("id,name\n" + "".join(f"{i},{'x' * (i % 13)}\n" for i in range(lines)))
    src = source(tmp_path)
    marks: list[Offsets] = [{}]
    before = bytes_read()
    while len(marks) == 1 or marks[-1] != marks[-2]:
        marks.append(bound(src, marks[-1], most))
    assert bytes_read() - before < 2 << 20, "it was read to be bound"
    parts = [sorted(ids(src, a, b)) for a, b in pairwise(marks)]
    assert [i for part in parts for i in part] == list(range(lines)), "each row once, in the order of the file"
    assert len(parts) > 4 and all(len(part) < 1.2 * most for part in parts)
    assert parts == [sorted(ids(src, a, b, 1)) for a, b in pairwise(marks)]


@pytest.mark.parametrize(("name", "break_"), [("a.csv.gz", "x"), ("a.csv", "\n")])
def test_a_limit_is_exact_where_the_text_is_looked_through(tmp_path, name, break_):
    lines, most = 30_000, 7_000
    text = "id,name\n" + "".join(f'{i},"a{break_}b"\n' for i in range(lines))
    (tmp_path / name).write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    src = source(tmp_path, multiline="true")
    marks: list[Offsets] = [{}]
    while len(marks) == 1 or marks[-1] != marks[-2]:
        marks.append(bound(src, marks[-1], most))
    assert [len(ids(src, a, b)) for a, b in pairwise(marks)] == [most, most, most, most, 2_000, 0]


def test_a_compressed_file_that_is_not_whole_is_not_bound(tmp_path):
    path = tmp_path / "a.csv.gz"
    whole = gzip.compress(b"id,name\n" + b"".join(b"%d,a\n" % i for i in range(10_000)))
    path.write_bytes(whole[:-100])
    with pytest.raises(SourceError, match="not a whole gzip file"):
        bound(source(tmp_path))
    path.write_bytes(whole)
    src = source(tmp_path)
    assert len(ids(src, {}, bound(src))) == 10_000


@pytest.mark.parametrize("name", ["a.csv", "a.json", "a.csv.gz"])
def test_a_file_that_grows_gives_the_same_rows_or_none(tmp_path, monkeypatch, name):
    """I12: between binding and reading, and while it is read, in the last piece or before it."""
    monkeypatch.setattr(file_lines, "CHUNK_BYTES", 64)
    monkeypatch.setattr(files, "MIN_PIECE_BYTES", 1)
    make = '{{"id": {0}}}\n' if "json" in name else "{0},n\n"
    path, text = tmp_path / name, "".join(make.format(i) for i in range(100)).encode()
    path.write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    src = source(tmp_path, header="false")
    end = bound(src)
    assert ids(src, {}, end, 4) == list(range(100))
    for task in src.plan({}, end, 4):
        reading = src.read(task)
        next(reading)
        with path.open("ab") as file:
            file.write(make.format(100).encode())
        with pytest.raises(SourceError, match="has changed since it was taken in"):
            list(reading)
        with pytest.raises(SourceError, match="has changed since it was taken in"):
            list(src.read(task))
        seen = end[str(path)]
        path.write_bytes(gzip.compress(text) if name.endswith("gz") else text)
        os.utime(path, ns=(seen["mtime_ns"], seen["mtime_ns"]))
        assert ids(src, {}, end, 4) == list(range(100))
    with path.open("ab") as file:
        file.write(b"100,")
    with pytest.raises(SourceError, match="has changed since it was taken in"):
        bound(src, end)


# ---- errors still say which line


def test_lines_are_counted_from_the_beginning_of_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MIN_PIECE_BYTES", 1)
    lines, wrong = 60_000, (2, 31_000, 31_001, 59_999)
    text = "id,name\n" + "".join(f"{'x' if i in wrong else i},n\n" for i in range(lines))
    (tmp_path / "a.csv").write_text(text)
    src = source(tmp_path, on_error="skip")
    marks: list[Offsets] = [{}]
    while len(marks) == 1 or marks[-1] != marks[-2]:
        marks.append(bound(src, marks[-1], 17_000))
    tasks = [task for a, b in pairwise(marks) for task in src.plan(a, b, 3)]
    for order in (tasks, tasks[::-1]):
        found = [e.position for task in order for batch in src.read(task) for e in batch.errors]
        assert sorted(found) == [i + 2 for i in wrong]


@pytest.mark.parametrize("kind", ["csv", "csv.gz"])
def test_the_lines_of_a_file_are_counted_once_in_whatever_order(tmp_path, monkeypatch, kind):
    """Pieces that come from the last to the first do not each read all that is before them."""
    monkeypatch.setattr(file_lines, "CHUNK_BYTES", 1 << 10)
    pieces, text = 100, b"".join(b"%05d,n\n" % i for i in range(20_000))
    path = tmp_path / f"a.{kind}"
    path.write_bytes(gzip.compress(text) if kind == "csv.gz" else text)
    found = os.stat(path)
    state = FileState(str(path), 0, found.st_size, found.st_mtime_ns)
    taken = []

    def chunks(*given: Any) -> Any:
        for data, ends in file_lines_chunks(*given):
            taken.append(len(data))
            yield data, ends

    file_lines_chunks = file_lines.record_chunks
    monkeypatch.setattr(file_lines, "record_chunks", chunks)
    each = len(text) // pieces
    for n in [*range(pieces, 0, -1), *range(0, pieces, 7)]:
        assert file_lines.records_before(state, n * each, False) == n * each // 8
    assert sum(taken) < 3 * len(text)
    monkeypatch.setattr(file_lines, "_MARKS", 16)
    for n in range(pieces):
        assert file_lines.records_before(state, n * each, False) == n * each // 8


# ---- records without end


@pytest.mark.parametrize("kind", ["csv", "json", "csv.gz"])
def test_a_record_without_end_is_refused(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(file_lines, "MAX_RECORD_BYTES", 1 << 20)
    monkeypatch.setattr(file_lines, "CHUNK_BYTES", 1 << 16)
    path = tmp_path / f"a.{kind}"
    text = (b'{"id":1}\n{"id":2}\n' if kind == "json" else b"id,name\n1,a\n") + b"x" * (3 << 20)
    path.write_bytes(gzip.compress(text) if kind == "csv.gz" else text)
    src = source(path)
    with pytest.raises(SourceError, match=f"file {path} has a record of more than 1 MiB"):
        list(ids(src, {}, bound(src), 1))
    with pytest.raises(SourceError, match=f"file {path} has a record of more than 1 MiB"):
        ids(src, {}, bound(src, most=2), 1)
        bound(src, bound(src, most=2), most=1)


def test_a_header_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(file_lines, "MAX_RECORD_BYTES", 1 << 20)
    monkeypatch.setattr(file_lines, "CHUNK_BYTES", 1 << 16)
    path = tmp_path / "a.csv"
    with path.open("wb") as sparse:
        sparse.truncate(1 << 33)
    src = source(path)
    end = bound(src)
    with pytest.raises(SourceError, match="a record of more than 1 MiB"):
        ids(src, {}, end, 1)
    with pytest.raises(SourceError, match="a record of more than 1 MiB"):
        infer_columns({"connector": "files", "path": str(path)})
