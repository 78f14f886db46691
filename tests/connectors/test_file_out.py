"""What files that are written say, where Arrow's own writers would fail or say something else."""

from __future__ import annotations

import errno
import io
import os
import uuid
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.common.columns import Column
from headrace.connectors.files.clients import Bucket
from headrace.connectors.files.out import check_format, compression_of, ending, file_writer
from headrace.connectors.sinks import SinkPosition, open_sink
from headrace.errors import DiskFull, InvalidParameter, NotSupported, SinkError
from object_server import S3Server


def test_bytes_in_csv_need_not_be_text() -> None:
    out, columns = io.BytesIO(), [Column("id", "int"), Column("raw", "binary")]
    writer = file_writer(out, columns, "csv", "none")
    rows = [pa.array([1, 2], pa.int32()), pa.array([b"\xff\x00", None], pa.binary())]
    writer.write(pa.RecordBatch.from_arrays(rows, names=["id", "raw"]))
    writer.close()
    assert out.getvalue() == b'"id","raw"\n1,"\\xff00"\n2,\n'


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told as what it is, and the epoch is delivered once there is room again."""
    options = {"connector": "files", "path": str(tmp_path / "out"), "type": "append-only"}
    sink = open_sink(options, [Column("a", "int")])
    sink.reach()
    batch = pa.RecordBatch.from_pydict({"a": pa.array([1, 2], pa.int32()), "__w": pa.array([1, 1])})

    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch, pytest.raises(DiskFull, match="No space left on device"):
        patch.setattr(os, "fsync", full)
        sink.write(SinkPosition("d", 0, 1, 0, "a"), iter([batch]))
    assert not [*(tmp_path / "out").iterdir()]
    assert sink.write(SinkPosition("d", 0, 1, 0, "b"), iter([batch])) == 2


def test_csv_has_no_nested_values() -> None:
    check_format([Column("a", "array<int>")], "json")
    with pytest.raises(NotSupported, match='"a" of type array<int> in CSV'):
        check_format([Column("a", "array<int>")], "csv")


def test_a_null_alone_in_a_line_of_csv_would_be_no_row() -> None:
    writer = file_writer(io.BytesIO(), [Column("a", "int")], "csv", "none")
    writer.write(pa.RecordBatch.from_arrays([pa.array([1], pa.int32())], names=["a"]))
    with pytest.raises(NotSupported, match="NULL in CSV of one column"):
        writer.write(pa.RecordBatch.from_arrays([pa.array([None], pa.int32())], names=["a"]))


@pytest.mark.parametrize("format", ["csv", "json"])
@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_files_of_text_are_compressed_as_a_whole(format: str, compression: str) -> None:
    plain, packed = io.BytesIO(), io.BytesIO()
    rows = pa.RecordBatch.from_arrays([pa.array([*range(1000)], pa.int32())], names=["a"])
    for file, how in ((plain, "none"), (packed, compression)):
        writer = file_writer(file, [Column("a", "int")], format, how)
        writer.write(rows)
        writer.write(rows)
        writer.close()
    assert not packed.closed and len(packed.getvalue()) < len(plain.getvalue())
    unpacked = pa.CompressedInputStream(pa.BufferReader(packed.getvalue()), compression).read()
    assert unpacked == plain.getvalue()


def test_what_counts_where_no_compression_is_said() -> None:
    assert compression_of({"format": "parquet", "compression": None}) == "zstd"
    assert ending("csv", compression_of({"format": "csv", "compression": None})) == ".csv"
    assert ending("csv", "gzip") == ".csv.gz" and ending("parquet", "gzip") == ".parquet"
    with pytest.raises(InvalidParameter, match="'snappy' is for parquet, not for json"):
        options = {"connector": "files", "path": "/x", "type": "append-only", "format": "json", "compression": "snappy"}
        open_sink(options, [Column("a", "int")])


@pytest.mark.parametrize("place", ["directory", "store"])
def test_an_epoch_that_an_older_program_wrote_is_there(
    place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """It wrote plain text, under the name of that, and its commit was lost: the option counts later."""
    options = {"connector": "files", "path": str(tmp_path / "out"), "type": "append-only", "format": "json"}
    if place == "store":
        server: S3Server = request.getfixturevalue("s3")
        options |= {"path": f"s3://{server.bucket}/{uuid.uuid4().hex}", **server.options}
    batch = pa.RecordBatch.from_pydict({"a": pa.array([1], pa.int32()), "__w": pa.array([1])})
    older, newer = (open_sink({**options, **more}, [Column("a", "int")]) for more in ({}, {"compression": "gzip"}))
    older.reach()
    assert older.write(SinkPosition("d", 0, 1, 0, "a"), iter([batch])) == 1
    assert newer.write(SinkPosition("d", 0, 1, 0, "b"), iter([batch])) == 0
    assert newer.write(SinkPosition("d", 1, 2, 0, "c"), iter([batch])) == 1
    bucket = Bucket.at(options["path"], options, SinkError) if place == "store" else None
    names = [p.name for p in (tmp_path / "out").iterdir()] if bucket is None else [name for name, _ in bucket.names()]
    assert sorted(name.partition(".")[2] for name in names) == ["json", "json.gz"]
