"""Records of CSV: a row each, columns at once and one by one the same, what is wrong with which."""

from __future__ import annotations

import csv
import io
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.common.columns import Column
from headrace.connectors.kafka import csv_records
from headrace.connectors.kafka.csv_records import csv_rows
from headrace.connectors.kafka.message_rows import RecordShape
from headrace.errors import InvalidParameter, NotSupported, SourceError
from kafka import Kafka

COLUMNS = [Column("a", "int"), Column("b", "string"), Column("c", "decimal(10,2)")]


def message(value: bytes | None) -> Any:
    return SimpleNamespace(value=lambda: value, key=lambda: None, offset=lambda: 0)


def written(fields: list[str]) -> bytes:
    out = io.StringIO()
    csv.writer(out).writerow(fields)
    return out.getvalue()[:-2].encode()


TEXTS = st.text(st.sampled_from('ab1,"\n\r\t é€'), max_size=6)


@given(st.lists(st.one_of(st.tuples(TEXTS, TEXTS).map(list), st.lists(TEXTS, max_size=4)), max_size=12))
def test_whatever_is_written_reads_back_or_is_at_fault(rows: list[list[str]]) -> None:
    columns = [Column("a", "string"), Column("b", "string")]
    batch, faults = csv_rows([written(row) for row in rows], columns, ",")
    wrong = {row for row, *_ in faults}
    assert wrong == {i for i, row in enumerate(rows) if len(row) != 2}
    assert [[r["a"], r["b"]] for i, r in enumerate(batch.to_pylist()) if i not in wrong] == [
        row for row in rows if len(row) == 2
    ]


@given(st.lists(st.text(st.sampled_from('ab1,.-\n" é'), max_size=9).map(str.encode), max_size=20))
def test_columns_at_once_are_those_of_records_one_by_one(records: list[bytes]) -> None:
    batch, faults = csv_rows(records, COLUMNS, ",")
    for i, record in enumerate(records):
        one, wrong = csv_rows([record, b'"'], COLUMNS, ",")  # the second is never plain
        assert one.slice(0, 1).to_pylist() == batch.slice(i, 1).to_pylist()
        assert sorted((c, v, m) for row, c, v, m in wrong if row == 0) == sorted(
            (c, v, m) for row, c, v, m in faults if row == i
        )


def test_plain_records_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_records, "_one_by_one", None)
    batch, faults = csv_rows([b"1,x,2.50", b",,", b"3, y ,"], COLUMNS, ",")
    assert faults == []
    assert [(r["a"], r["b"], str(r["c"])) for r in batch.to_pylist()] == [
        (1, "x", "2.50"), (None, "", "None"), (3, " y ", "None")
    ]  # fmt: skip


def test_what_is_wrong_is_told() -> None:
    shape = RecordShape.of("t", "plain", "csv", COLUMNS, {"encode.delimiter": "\\t"})
    good = message(b'1\t"a ""b"""\t2')
    for bad, told in (
        (b"1\tx", "2 fields, where there are 3 columns"), (b"1\tx\t2\n3\ty\t4", "2 lines of CSV"), (b"", "0 lines"),
        (b'1\t"x\t2', "end of data"), (b"\xff\t\t", "utf-8"), (None, "without value"), (b"x\ty\t2", "column a"),
    ):  # fmt: skip
        with pytest.raises(SourceError, match=told):
            shape.rows([good, message(bad)], 0, "fail")
        found = shape.rows([good, message(bad)], 0, "skip")
        assert [r["b"] for r in found.batch.to_pylist()] == ['a "b"'] and found.error_count == 1
    assert shape.rows([message(b"x\ty\t2")], 0, "null").batch.to_pylist()[0]["a"] is None


def test_what_cannot_be() -> None:
    with pytest.raises(NotSupported, match="CSV with FORMAT UPSERT"):
        RecordShape.of("t", "upsert", "csv", COLUMNS, {})
    for wrong in ("", ";;", '"', "\n", "é"):
        with pytest.raises(InvalidParameter, match="delimiter"):
            RecordShape.of("t", "plain", "csv", COLUMNS, {"encode.delimiter": wrong})


def test_a_topic_of_csv(kafka: Kafka) -> None:
    from headrace.connectors.base import Admission
    from headrace.connectors.sources import open_source

    topic = kafka.topic("of_csv")
    kafka.send(topic, "1;x;2.5", '2;"y;z";', key="k")
    options = {"connector": "kafka", "topic": topic, "properties.bootstrap.server": kafka.servers, "encode": "csv"}
    given = {**options, "encode.delimiter": ";", "encode.without_header": "true", "include.key": "k"}
    found = open_source(given, [*COLUMNS, Column("k", "binary")])
    bound = found.latest_offsets(found.start_offsets(), Admission(), 0)
    (task,) = found.plan({}, bound.offsets, 1)
    rows = [row for made in found.read(task) for row in made.batch.to_pylist()]
    assert [(r["a"], r["b"], r["k"]) for r in rows] == [(1, "x", b"k"), (2, "y;z", b"k")]
    with pytest.raises(InvalidParameter, match="delimiter is for ENCODE CSV"):
        open_source({**given, "encode": "json"}, COLUMNS)
    with pytest.raises(InvalidParameter, match="without_header"):
        open_source({**given, "encode.without_header": "false"}, COLUMNS)
