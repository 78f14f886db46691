"""Values of this database's own types as they leave it, and what no target can take."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from headrace.common import span, time_of_day
from headrace.common.columns import Column, arrow_schema, arrow_type
from headrace.common.jsonb import document
from headrace.connectors import json_out
from headrace.connectors.kafka.envelopes import Json, changes, record
from headrace.connectors.leaving import outside
from headrace.connectors.postgres.rows import copied
from headrace.connectors.sinks import SinkPosition, open_sink
from headrace.errors import NotSupported, SinkError

COLUMNS = (
    Column("id", "int"), Column("j", document.SPARK_TYPE), Column("i", span.SPARK_TYPE),
    Column("t", time_of_day.SPARK_TYPE),
)  # fmt: skip
DOCUMENT = '{"a": [1.50, "x"]}'
ROWS: list[dict[str, Any]] = [
    {"id": 1, "j": document.stored(document.read(DOCUMENT)), "i": span.stored((14, 3, 1_500_000)),
     "t": time_of_day.stored(3_600_000_000)},
    {"id": 2, "j": None, "i": None, "t": None},
]  # fmt: skip


def leaving() -> pa.RecordBatch:
    """What a sink gets of the rows, the first of them twice."""
    schema = arrow_schema(COLUMNS)
    arrays, fields = outside([pa.array([r[f.name] for r in ROWS], f.type) for f in schema], COLUMNS)
    schema = pa.schema([*fields, pa.field("__w", pa.int64())])
    return pa.RecordBatch.from_arrays([*arrays, pa.array([2, 1])], schema=schema)


def files(folder: Path, kind: str) -> Path:
    options = {"connector": "files", "type": "append-only", "path": str(folder), "format": kind}
    open_sink(options, COLUMNS).write(SinkPosition("d", 0, 1, 0, "a"), iter([leaving()]))
    (found,) = folder.iterdir()
    return found


def test_files(tmp_path: Path) -> None:
    for kind in ("parquet", "csv", "json"):
        (tmp_path / kind).mkdir()
    texts = {"j": DOCUMENT, "i": "1 year 2 mons 3 days 00:00:01.5", "t": "01:00:00"}
    table = pyarrow.parquet.read_table(files(tmp_path / "parquet", "parquet")).to_pylist()
    assert table == [{"id": 1, **texts}] * 2 + [{"id": 2, "j": None, "i": None, "t": None}]
    assert '"1 year 2 mons 3 days 00:00:01.5"' in files(tmp_path / "csv", "csv").read_text()
    lines = files(tmp_path / "json", "json").read_text().splitlines()
    assert '"j":{"a": [1.50, "x"]}' in lines[0], "a document is one, to the last digit"
    assert [json.loads(line) for line in lines[1:]] == [
        {"id": 1, **texts, "j": {"a": [1.5, "x"]}}, {"id": 2, "j": None, "i": None, "t": None}
    ]  # fmt: skip


def test_records_and_lines_of_copy() -> None:
    form = Json(["id", "j"])
    change, *_ = changes("plain", [leaving()], [c.name for c in COLUMNS], ["id", "j"], form)
    key, value = record("plain", change, form)
    assert key == b'{"id":1,"j":{"a": [1.50, "x"]}}' and value is not None and b'"t":"01:00:00"' in value
    (line, *_) = copied(leaving()).decode().splitlines()
    assert line == '"1","{""a"": [1.50, ""x""]}","1 year 2 mons 3 days 00:00:01.5","01:00:00","2"'


def test_inside_of_other_types_they_are_refused() -> None:
    options = {"connector": "files", "type": "append-only", "path": "/tmp/x"}
    for kind in (f"array<{document.SPARK_TYPE}>", f"struct<a:{span.SPARK_TYPE}>"):
        with pytest.raises(NotSupported, match="inside of another type"):
            open_sink(options, [Column("a", kind)])
    for kind in ("array<int>", "struct<a:int>", "map<string,int>"):
        with pytest.raises(NotSupported, match="in CSV"):
            open_sink({**options, "format": "csv"}, [Column("a", kind)])


def test_maps_and_decimals_however_deep() -> None:
    kind = arrow_type("array<struct<m:map<date,decimal(30,2)>>>")
    batch = pa.RecordBatch.from_arrays(
        [pa.array([[{"m": [(18262, Decimal("12345678901234567890123456.70"))]}, None]], kind)], names=["a"]
    )
    assert (
        json_out.text(json_out.objects(batch)[0])
        == b'{"a":[{"m":{"2020-01-01":"12345678901234567890123456.70"}},null]}'
    )
    assert copied(batch) == b'"[{""m"":{""2020-01-01"":12345678901234567890123456.70}},null]"\n'


def test_a_time_that_json_cannot_spell_is_told() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([1 << 62], pa.timestamp("us"))], names=["t"])
    with pytest.raises(SinkError, match="cannot be written as JSON"):
        json_out.objects(batch)


def test_a_file_that_is_there_has_its_name_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"connector": "files", "type": "append-only", "path": str(tmp_path)}
    position, sync, synced = SinkPosition("d", 0, 1, 0, "a"), os.fsync, list[int]()
    open_sink(options, COLUMNS).write(position, iter([leaving()]))

    def noted(handle: int) -> None:
        synced.append(handle)
        sync(handle)

    monkeypatch.setattr(os, "fsync", noted)

    def none() -> Iterator[pa.RecordBatch]:
        raise AssertionError("it is there")
        yield

    assert open_sink(options, COLUMNS).write(position, none()) == 0 and synced
