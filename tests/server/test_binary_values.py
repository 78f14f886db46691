from __future__ import annotations

import datetime as dt
import struct
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.common.columns import arrow_type
from headrace.errors import InvalidText, NotSupported
from headrace.server.binary import _ARRAYS, _DECODERS, numeric_bytes, parameter_text, render_binary
from headrace.sql.text_values import parse_text
from headrace.sql.type_names import pg_type, render_text

naive = st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31))
VALUES = {
    "smallint": st.integers(-(2**15), 2**15 - 1),
    "int": st.integers(-(2**31), 2**31 - 1),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "boolean": st.booleans(),
    "string": st.text(st.characters(exclude_categories=["Cs"])),
    "binary": st.binary(),
    "date": st.dates(),
    "timestamp_ntz": naive,
    "timestamp": naive.map(lambda v: v.replace(tzinfo=dt.UTC)),
    "decimal(20,4)": st.decimals(-(10**15), 10**15, places=4, allow_nan=False),
    "decimal(38,10)": st.decimals(-(10**20), 10**20, places=10, allow_nan=False),
    "decimal(5,0)": st.integers(-99999, 99999).map(Decimal),
}


@pytest.mark.parametrize("type", VALUES)
@settings(deadline=None)
@given(data=st.data())
def test_binary_and_text_say_the_same(type, data):
    values = data.draw(st.lists(st.none() | VALUES[type], max_size=5))
    array = pa.array(values, arrow_type(type))
    oid = pg_type(type).oid
    back = [None if v is None else parameter_text(v, oid).encode() for v in render_binary(array, type)]
    text = render_text(array, type)
    if type.startswith(("timestamp", "decimal")):
        assert [_value(v) for v in back] == [_value(v) for v in text]
    else:
        assert back == text


def _value(text: bytes | None):
    if text is None:
        return None
    return dt.datetime.fromisoformat(text.decode()) if b":" in text else Decimal(text.decode())


@settings(deadline=None)
@given(st.floats(allow_nan=False))
def test_floats(value):
    (data,) = render_binary(pa.array([value], pa.float64()), "double")
    assert data == struct.pack("!d", value)
    assert float(parameter_text(data, 701)) == value


def test_tinyint_is_sent_as_the_int2_that_is_announced():
    assert render_binary(pa.array([-5, None], pa.int8()), "tinyint") == [b"\xff\xfb", None]


@pytest.mark.parametrize(
    ("number", "scale", "expected"),
    [
        ("0", 2, "0000 0000 0000 0002"),
        ("12345.67", 2, "0003 0001 0000 0002 0001 0929 1a2c"),
        ("-0.0001", 4, "0001 ffff 4000 0004 0001"),
        ("10000", 0, "0001 0001 0000 0000 0001"),
        ("1.500", None, "0002 0000 0000 0001 0001 1388"),
    ],
)
def test_numeric_digits(number, scale, expected):
    assert numeric_bytes(Decimal(number), scale) == bytes.fromhex(expected)


def test_arrays_records_and_intervals():
    (data,) = render_binary(pa.array([[1, None]], pa.list_(pa.int32())), "array<int>")
    assert data == struct.pack("!iiiiiiii", 1, 1, 23, 2, 1, 4, 1, -1)
    (data,) = render_binary(pa.array([[]], pa.list_(pa.int32())), "array<int>")
    assert data == struct.pack("!iii", 0, 0, 23)
    (data,) = render_binary(
        pa.array([{"a": 1, "b": None}], arrow_type("struct<a:int,b:string>")), "struct<a:int,b:string>"
    )
    assert data == struct.pack("!iiiiii", 2, 23, 4, 1, 25, -1)
    (data,) = render_binary(pa.array([dt.timedelta(days=-1, seconds=-3)], pa.duration("us")), "interval day to second")
    assert data == struct.pack("!qii", -3_000_000, -1, 0)


def test_nested_arrays_have_one_size_for_each_dimension():
    kind = pa.list_(pa.list_(pa.int64()))
    (data,) = render_binary(pa.array([[[1], [2]]], kind), "array<array<bigint>>")
    assert data[:28] == struct.pack("!iiiiiii", 2, 0, 20, 2, 1, 1, 1)
    with pytest.raises(NotSupported, match="ragged"):
        render_binary(pa.array([[[1], [2, 3]]], kind), "array<array<bigint>>")


@pytest.mark.parametrize(
    ("type", "value"),
    [
        ("array<int>", [1, None, -3]), ("array<int>", []), ("array<string>", ["a", "", None, "NULL", 'x"\\,{} y']),
        ("array<array<bigint>>", [[1, 2], [3, None]]), ("array<double>", [1.5, -0.25]),
        ("array<boolean>", [True, False]),
        ("array<date>", [dt.date(2024, 2, 3)]), ("array<decimal(10,2)>", [Decimal("1.50"), None]),
        ("array<binary>", [b"\0\xff"]), ("array<timestamp_ntz>", [dt.datetime(2024, 2, 3, 4, 5, 6, 7)]),
    ],
)  # fmt: skip
def test_arrays_go_both_ways(type, value):
    (data,) = render_binary(pa.array([value], arrow_type(type)), type)
    assert parse_text(parameter_text(data, pg_type(type).oid), type) == value


@settings(deadline=None)
@given(st.sampled_from(sorted([*_DECODERS, *_ARRAYS])), st.binary(max_size=40))
def test_random_bytes_are_a_value_or_an_error(oid, data):
    try:
        assert isinstance(parameter_text(data, oid), str)
    except InvalidText as error:
        assert error.sqlstate == "22P03"


def test_unknown_types_have_no_binary_parameters():
    with pytest.raises(NotSupported, match="OID 600"):
        parameter_text(b"", 600)
