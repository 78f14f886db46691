"""Records of JSON parsed at once, beside the same ones parsed one by one."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.common.columns import Column
from headrace.connectors import json_in
from headrace.connectors.json_in import FEW, JsonRecords, json_rows, rows_at_once, rows_one_by_one
from headrace.connectors.parsed_values import objects_to_array
from headrace.connectors.spelling import SpelledKeys
from support import examples

KINDS = ["bigint", "int", "smallint", "double", "float", "string", "boolean", "decimal(10,2)", "decimal(38,10)", "date",
         "timestamp", "timestamp_ntz"]  # fmt: skip
NUMBERS = ["0", "-0", "-0.0", "0.0", "1", "-1", "1.0", "1e2", "1E-2", "-0e0", "1.005", "0.125",
           "12345678.905", "99999999.99", "99999999.995", "2147483647", "2147483648", "32768",
           "9223372036854775807", "9223372036854775808", "-9223372036854775808",
           "123456789012345678901234567890", "1e400", "-1e400", "1e-400", "16777217", "3.4e39", "0.1",
           "1" + "0" * 400, "1.7976931348623157e308", "2.2250738585072011e-308", "01", "1.", ".5", "+1",
           "- 1", "NaN", "Infinity", "-Infinity", "0x1", "1_000", "1e", "7.0000000001"]  # fmt: skip
TEXTS = ["", " ", "a", "é", "😀", "1", " 1", "1.5", "1_000", "true", "t", "NaN", "1e3", "2024-02-29", "2023-02-29",
         "0000-01-01", "0001-01-01", "9999-12-31", "1999-1-1", "20240101", "2024-W01-1", " 2024-01-01", "2024-01-01\n",
         "2024-01-01T00:00:00", "2024-01-01 23:59:59.999999", "2024-01-01T24:00:00", "2024-01-01T00:00:60",
         "2024-01-01T00:00:00Z", "2024-01-01T00:00:00z", "2024-01-01 12:00:00+05:30", "2024-01-01T00:00:00-23:59",
         "2024-01-01T00:00:00+24:00", "2024-01-01T00:00:00.1234567", "2024-01-01T00:00:00.1", "2024-01-01T00:00",
         "0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59-01:00", "2024-01-01T00:00:00,5", "2024-01-01T00:00:00+0100",
         "1677-01-01T00:00:00", "2262-12-31T00:00:00Z", "-0", "\u0000", "\\x00"]  # fmt: skip
RAW = ["null", "true", "false", "[]", "{}", '{"a":1}', "[1,[2]]", "tru", "", '"', "'a'", '"\\ud800"', '"\\udc00"',
       '"\\ud83d\\ude00"', '"\\u0000"', '"\\x"', '"\n"', '"\t"', "nul", "/**/1", "1,", '"a" "b"',
       "[" * 300 + "]" * 300]  # fmt: skip
NAMES = ["c", "ok", "größe", "k/k", 'k"', "k k"]
BYTES = [b'"\xff"', b'"\xc3\x28"', b'"\xed\xa0\x80"', b'"\xf4\x90\x80\x80"', b"\x00", b'"\x00"']


def as_rows(found: Any) -> Any:
    batch, faults = found
    batch.validate(full=True)
    return str(batch.to_pylist()), sorted(faults, key=lambda fault: fault[0])


def one_by_one(values: list[bytes], columns: list[Column]) -> Any:
    faults: list[Any] = []
    parts = [as_records([value]) for value in values]
    rows = [str(rows_one_by_one(part, i, columns, faults).to_pylist()[0]) for i, part in enumerate(parts)]
    return f"[{', '.join(rows)}]", faults


def as_records(values: list[bytes]) -> JsonRecords:
    lines = [value + b"\n" for value in values]
    ends = [sum(map(len, lines[: i + 1])) for i in range(len(lines))]
    return JsonRecords(b"".join(lines), *(np.array(x) for x in ([0, *ends[:-1]], ends)))


def a_value(rng: random.Random, kind: str) -> bytes:
    fitting = {"string": "t", "boolean": "r", "date": "t", "timestamp": "t", "timestamp_ntz": "t"}.get(kind, "n")
    which = fitting if rng.random() < 0.8 else rng.choice("ntrb")
    if which == "b":
        return rng.choice(BYTES)
    if which == "t":
        return json.dumps(rng.choice(TEXTS), ensure_ascii=rng.random() < 0.5).encode()
    return rng.choice(NUMBERS if which == "n" else RAW).encode()


def a_spelling(rng: random.Random, name: str) -> str:
    """Now and then a name differs from the column's in capitals alone, in some of which there is a pitfall."""
    others = [name.upper(), name.upper().replace("K", "\N{KELVIN SIGN}"), name.title()]
    return rng.choice(others) if rng.random() < 0.15 else name


def a_record(rng: random.Random, columns: list[Column]) -> bytes:
    fields = [(a_spelling(rng, c.name), a_value(rng, c.type)) for c in columns if rng.random() < 0.9]
    if rng.random() < 0.2:
        fields.append((rng.choice(["other", columns[0].name, "A"]), a_value(rng, "string")))
    rng.shuffle(fields)
    blank = rng.choice(["", "", " ", "\t", "\r", "\n"]).encode()
    keys = [json.dumps(name, ensure_ascii=rng.random() < 0.5).encode() for name, _ in fields]
    if rng.random() < 0.1:
        keys = [key.replace(b"K", b"\\u004b") for key in keys]
    behind = rng.choice([b"", b"", b" ", b"\n\t "])
    inside = b",".join(blank + key + behind + b":" + value for key, (_, value) in zip(keys, fields))
    before, after = (rng.choice([b"", b"", b"", b" ", b"{", b"}", b"{}", b"[", b",", b"\xef\xbb\xbf"])
                     if rng.random() < 0.1 else b"" for _ in range(2))  # fmt: skip
    return before + b"{" + inside + b"}" + after


@settings(max_examples=examples(600), deadline=None)
@given(st.randoms(use_true_random=False), st.lists(st.sampled_from(KINDS), min_size=1, max_size=3), st.integers(1, 5))
def test_many_at_once_as_one_by_one(rng: random.Random, kinds: list[str], count: int) -> None:
    columns = [Column(f"{rng.choice(NAMES)}{i}", kind) for i, kind in enumerate(kinds)]
    values = [a_record(rng, columns) for _ in range(count)]
    assert as_rows(json_rows(values, columns)) == one_by_one(values, columns)


@pytest.mark.parametrize("kind", KINDS)
def test_every_value_by_itself(kind: str) -> None:
    columns = [Column("a", kind)]
    raw = [*(n.encode() for n in NUMBERS + RAW), *(json.dumps(t).encode() for t in [*TEXTS, *NUMBERS]), *BYTES]
    for value in raw:
        for record in (b'{"a":' + value + b"}", b'{"b":' + value + b',"a":null}'):
            assert as_rows(json_rows([record], columns)) == one_by_one([record], columns), record


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.binary(max_size=12), min_size=1, max_size=4))
@example([b'{"a":1} {"a":2}', b'{"a":3}'])
@example([b'{"a":[{}', b'{"b":1}]}'])
@example([b'{"a":"}', b'{"}'])
def test_bytes_as_they_come(values: list[bytes]) -> None:
    columns = [Column("a", "bigint")]
    wrapped = [b"{" + value + b"}" for value in values]
    for records in (values, wrapped):
        assert as_rows(json_rows(records, columns)) == one_by_one(records, columns)


def test_plain_records_are_parsed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = [Column(f"c{i}", kind) for i, kind in enumerate(KINDS)]
    row = [1, 2, 3, 0.5, 1.25, "x", True, 1.5, "2.25", "2024-02-29", "2024-01-01T00:00:00Z", "2024-01-01 00:00:00.5"]
    records = [json.dumps(dict(zip((c.name for c in columns), row)) | {"more": [i]}).encode() for i in range(20 * FEW)]
    wanted = as_rows(json_rows([records[0]], columns))
    assert wanted == one_by_one([records[0]], columns)
    taken: list[int] = []
    alone = rows_one_by_one
    monkeypatch.setattr(json_in, "rows_one_by_one", lambda r, *more: taken.append(len(r)) or alone(r, *more))
    batch, faults = json_rows(records, columns)
    assert (batch.num_rows, faults, taken) == (20 * FEW, [], [])
    records[7] = b'{"c0":"seven"}'
    batch, faults = json_rows(records, columns)
    assert [(fault[0], fault[1]) for fault in faults] == [(7, "c0")]
    assert batch.num_rows == 20 * FEW and 0 < sum(taken) <= FEW
    assert batch.to_pylist()[7] == dict.fromkeys(batch.schema.names)
    assert str([batch.to_pylist()[-1]]) == wanted[0]


def test_deep_records_are_left_to_python() -> None:
    deep = b'{"a":1,"b":' + b"[" * 1_500 + b"]" * 1_500 + b"}"
    schema = json_in.nullable_schema([Column("a", "bigint")])
    assert rows_at_once(as_records([b'{"a":1}'] * 10), schema) is not None
    assert rows_at_once(as_records([b'{"a":1}', deep]), schema) is None


def test_objects_of_one_type_need_no_conversion() -> None:
    for kind, values in ((pa.string(), ["a", None, "\ud800", 1]),
                         (pa.int32(), [1, None, 2**40, True, 1.0]),
                         (pa.float64(), [1, 0.5, Decimal("0.1"), 10**400, "x", True]),
                         (pa.bool_(), [True, None, "yes", 1])):  # fmt: skip
        for mixed in (values, values[:2], *([value] for value in values)):
            array, bad = objects_to_array(mixed, kind)
            single = [objects_to_array([value, "?"], kind) for value in mixed]
            assert array.to_pylist() == [found.to_pylist()[0] for found, _ in single]
            assert [i for i, _ in bad] == [i for i, (_, wrong) in enumerate(single) if any(at == 0 for at, _ in wrong)]


@pytest.mark.parametrize("key", ["UserId", "USERID", "userid"])
def test_a_key_stands_for_the_column_that_it_differs_from_in_capitals_alone(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(json_in, "rows_one_by_one", lambda *_: pytest.fail("these records are plain"))
    records = [b'{"%s":%d,"more":{"a":"b"}}' % (key.encode(), i) for i in range(3)]
    batch, faults = json_rows([*records, b'{"other":1}'], [Column("userid", "bigint"), Column("gone", "string")])
    assert (batch.column(0).to_pylist(), batch.column(1).null_count, faults) == ([0, 1, 2, None], 4, [])


def test_a_long_text_of_letters_that_are_written_as_numbers_is_looked_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(json_in, "rows_one_by_one", lambda *_: pytest.fail("this record is plain"))
    text = "\u4e2d\u6587" * 500_000  # looked at from each letter to the end it would take an hour
    record = json.dumps({"text": text, "a": None}).encode()
    assert len(record) > 6_000_000
    batch, faults = json_rows([record], [Column(name, "string") for name in ("text", "a", "b", "c")])
    assert faults == [] and batch.to_pylist() == [{"text": text, "a": None, "b": None, "c": None}]


@pytest.mark.parametrize("key", [rb"\u0041b", rb"a\u0042", rb"\u0041\u0062", rb"A\u0062"])
@pytest.mark.parametrize("blank", [b"", b" ", b" \t"])
def test_a_key_may_have_letters_that_are_written_as_numbers(key: bytes, blank: bytes) -> None:
    record = b'{"x":"\\u4e2d\\u6587","%b"%b:1,"y":"\\u0041b"}' % (key, blank)
    batch, faults = json_rows([record] * 3, [Column("ab", "bigint"), Column("y", "string")])
    assert (batch.to_pylist(), faults) == ([{"ab": 1, "y": "Ab"}] * 3, [])


def test_its_own_spelling_comes_first_and_of_several_others_none_is_taken() -> None:
    columns = [Column("id", "bigint"), Column("r", "struct<a:int>")]
    batch, faults = json_rows([b'{"ID":1,"id":2}', b'{"ID":1,"Id":2}', b'{"Id":3,"R":{"A":4}}'], columns)
    assert [row["id"] for row in batch.to_pylist()] == [2, None, 3] and batch.to_pylist()[2]["r"] == {"a": 4}
    assert [(row, name, message) for row, name, _, message in faults] == [
        (1, None, "ID and Id differ from id in capitals alone")
    ]


@pytest.mark.parametrize("kind", ["struct<a:int,A:int>", "struct<A:int,a:int>"])
def test_a_field_that_is_there_stands_for_no_other(kind: str) -> None:
    batch, faults = json_rows([b'{"r":{"a":1}}', b'{"r":{"A":2}}'], [Column("r", kind)])
    assert [row["r"] for row in batch.to_pylist()] == [{"a": 1, "A": None}, {"a": None, "A": 2}]
    assert faults == []


@pytest.mark.parametrize(
    "record, name, wanted",
    [
        ('{"id": "ID", "Other": "Id"}', "id", "id"),
        ('{"other": "x\\"ID"}', "id", "id"),
        ('{"a": 1, "Id" \n: 2}', "id", "Id"),
        ('{"id": 1, "Id": 2}', "id", None),
        ('{"id": 1}', "Id", "id"),
        ('{"id": 1}', "ID", "id"),
        ('{"A:b": 1}', "a:b", "A:b"),
        ('{"\\u0049d": 1}', "id", None),
        ('{"\N{KELVIN SIGN}": 1}', "k", None),
        ('{"X": 1, "Ä": 1}', "ä", None),
    ],
)
def test_how_a_key_is_spelled_that_stands_for_a_column(record: str, name: str, wanted: str | None) -> None:
    assert SpelledKeys(record.encode()).of(name) == wanted
