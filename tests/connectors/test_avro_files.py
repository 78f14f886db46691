"""Avro's files as rows: every compression, pieces of blocks, limits, types, and what is damaged."""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from headrace.common.columns import Column
from headrace.connectors.base import Admission, Offsets, Source
from headrace.connectors.files.avro_files import AvroFile
from headrace.connectors.sources import infer_columns, open_source
from headrace.errors import NotSupported, SourceError
from object_server import S3Server

SCHEMA = {"type": "record", "name": "Row", "fields": [
    {"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]},
]}  # fmt: skip
COLUMNS = [Column("id", "bigint"), Column("name", "string")]
_SYNC = bytes(range(16))


def number(value: int) -> bytes:
    value, found = value << 1 if value >= 0 else (~value << 1) | 1, b""
    while value > 0x7F:
        found, value = found + bytes([value & 0x7F | 0x80]), value >> 7
    return found + bytes([value])


def container(blocks: list[tuple[int, bytes]], codec: str, schema: Any = SCHEMA) -> bytes:
    """A file of blocks as they are stored."""
    meta = {"avro.schema": json.dumps(schema).encode(), "avro.codec": codec.encode()}
    items = b"".join(number(len(n)) + n.encode() + number(len(v)) + v for n, v in meta.items())
    head = b"Obj\x01" + number(len(meta)) + items + number(0) + _SYNC
    return head + b"".join(number(rows) + number(len(data)) + data + _SYNC for rows, data in blocks)


def records(ids: range, schema: Any = SCHEMA) -> bytes:
    out = io.BytesIO()
    for i, name in expected(ids):
        fastavro.schemaless_writer(out, fastavro.parse_schema(schema), {"id": i, "name": name})
    return out.getvalue()


def snappy(data: bytes) -> bytes:
    packed: bytes = pa.compress(data, codec="snappy", asbytes=True)
    return packed + zlib.crc32(data).to_bytes(4, "big")


PACKED = {"snappy": snappy, "zstandard": lambda data: pa.compress(data, codec="zstd", asbytes=True)}
"""What the library that writes the others would need more packages for."""


def write(path: Path, ids: range, codec: str = "deflate", interval: int = 200) -> None:
    if codec in PACKED:
        parts = [range(i, min(i + 10, ids.stop)) for i in range(ids.start, ids.stop, 10)]
        path.write_bytes(container([(len(part), PACKED[codec](records(part))) for part in parts], codec))
        return
    rows = ({"id": i, "name": name} for i, name in expected(ids))
    with path.open("wb") as file:
        fastavro.writer(file, fastavro.parse_schema(SCHEMA), rows, codec=codec, sync_interval=interval)


def source(path: Path | str, columns: list[Column] | None = None, **options: str) -> Source:
    return open_source({"connector": "files", "path": str(path), **options}, columns or COLUMNS)


def rows(found: Source, low: Offsets, high: Offsets, parallelism: int = 1) -> list[tuple[Any, ...]]:
    tasks = found.plan(low, high, parallelism)
    return [tuple(row.values()) for task in tasks for made in found.read(task) for row in made.batch.to_pylist()]


def expected(ids: range) -> list[tuple[int, str | None]]:
    return [(i, None if i % 5 == 0 else f"n{i}") for i in ids]


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy", "zstandard", "bzip2", "xz"])
def test_every_compression(tmp_path: Path, codec: str) -> None:
    write(tmp_path / "a.avro", range(100), codec)
    found = source(tmp_path)
    offsets: Offsets = {}
    bounds = [offsets]
    while (bound := found.latest_offsets(bounds[-1], Admission(37), 0)).rows:
        bounds.append(bound.offsets)
    assert [len(rows(found, low, high)) for low, high in pairwise(bounds)] == [37, 37, 26]
    assert rows(found, {}, bounds[-1]) == expected(range(100))
    assert rows(found, bounds[1], bounds[2]) == expected(range(37, 74))
    assert infer_columns({"connector": "files", "path": str(tmp_path)}) == COLUMNS


def test_a_large_file_is_read_by_several_tasks(tmp_path: Path) -> None:
    write(tmp_path / "a.avro", range(20_000), interval=4000)
    found = source(tmp_path)
    bound = found.latest_offsets({}, Admission(), 0)
    assert bound.rows == 20_000 and len(found.plan({}, bound.offsets, 8)) == 8
    assert rows(found, {}, bound.offsets, 8) == expected(range(20_000))


def test_objects(s3: S3Server, tmp_path: Path) -> None:
    write(tmp_path / "a.avro", range(5000))
    s3.put("avro/a.avro", (tmp_path / "a.avro").read_bytes())
    found = source(f"s3://{s3.bucket}/avro/", **s3.options)
    bound = found.latest_offsets({}, Admission(), 0)
    assert len(found.plan({}, bound.offsets, 8)) == 1, "what comes before a piece would be read again for each"
    assert rows(found, {}, bound.offsets, 8) == expected(range(5000))


def test_types(tmp_path: Path) -> None:
    moment = datetime(2024, 2, 29, 12, 0, 0, 1, UTC)
    kinds: Mapping[str, tuple[Any, str, Any]] = {
        "b": ("boolean", "boolean", True), "f": ("double", "double", 1.5), "y": ("bytes", "binary", b"\x00\xff"),
        "d": ({"type": "int", "logicalType": "date"}, "date", date(2024, 2, 29)),
        "t": ({"type": "long", "logicalType": "timestamp-micros"}, "timestamp", moment),
        "n": ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, "decimal(9,2)", Decimal("1.25")),
        "e": ({"type": "enum", "name": "E", "symbols": ["X", "Y"]}, "string", "Y"),
        "a": ({"type": "array", "items": "int"}, "array<int>", [1, 2]),
        "r": ({"type": "record", "name": "R", "fields": [{"name": "x", "type": "int"}]}, "struct<x:int>", {"x": 7}),
    }  # fmt: skip
    schema = {"type": "record", "name": "T", "fields": [{"name": n, "type": k} for n, (k, _, _) in kinds.items()]}
    with (tmp_path / "a.avro").open("wb") as file:
        fastavro.writer(file, fastavro.parse_schema(schema), [{n: v for n, (_, _, v) in kinds.items()}])
    columns = infer_columns({"connector": "files", "path": str(tmp_path)})
    assert {c.name: c.type for c in columns} == {n: kind for n, (_, kind, _) in kinds.items()}
    found = source(tmp_path, columns)
    high = found.latest_offsets({}, Admission(), 0).offsets
    assert rows(found, {}, high) == [tuple(v for _, _, v in kinds.values())]


def test_values_at_fault_are_told_by_row(tmp_path: Path) -> None:
    write(tmp_path / "a.avro", range(30))
    found = source(tmp_path, [Column("id", "smallint"), Column("name", "bigint")], on_error="skip")
    high = found.latest_offsets({}, Admission(), 0).offsets
    (task,) = found.plan({}, high, 1)
    made = [*found.read(task)]
    assert sum(m.batch.num_rows for m in made) == 6 and sum(m.error_count for m in made) == 24
    assert (made[0].errors[0].position, made[0].errors[0].column) == (2, "name")
    with pytest.raises(SourceError, match=r"a\.avro has no column more"):
        rows(source(tmp_path, [Column("more", "int")]), {}, high)


WHOLE = container([(10, records(range(10))), (10, records(range(10, 20)))], "null")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "ends too early"),
        (b"PAR1" + WHOLE[4:], "does not begin as one"),
        (WHOLE[:-1], "ends too early"),
        (WHOLE[:-40], "ends too early"),
        (WHOLE[:-16] + b"x" * 16, "does not end where it says"),
        (container([(3, b"")], "null"), "EOFError"),
        (container([(1, records(range(2)))], "null"), "more than its records"),
        (container([(2, records(range(1)))], "null"), "whole Avro file"),
        (container([(-1, b"")], "null"), "damaged"),
        (container([(1, snappy(records(range(1)))[:-1] + b"?")], "snappy"), "checksum"),
        (container([(1, b"\xff\xff\xff\xff\x0fxxxx")], "snappy"), "too large"),
        (container([(1, b"none")], "deflate"), "whole Avro file"),
        (container([], "null", {"type": "string"}), "values of another type"),
    ],
)
def test_what_is_damaged_is_told(tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / "a.avro").write_bytes(data)
    found = source(tmp_path)
    with pytest.raises(SourceError, match=f"a\\.avro .*({said})"):
        high = found.latest_offsets({}, Admission(), 0).offsets
        rows(found, {}, high)
        rows(found, {}, {p: s | {"row": 1} for p, s in high.items()})


def test_a_compression_that_is_not_known() -> None:
    with pytest.raises(NotSupported, match="the compression lzo"):
        AvroFile("a.avro", io.BytesIO(container([], "lzo")))
