from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as hs

from headrace.common import zones
from headrace.common.columns import arrow_type
from headrace.errors import (
    DatatypeMismatch,
    InvalidDatetime,
    InvalidText,
    NotSupported,
    NumericOutOfRange,
    UndefinedObject,
)
from headrace.sql.datatypes import parse_type
from headrace.sql.dml import DEFAULT
from headrace.sql.intervals import parse_interval
from headrace.sql.parser import parse_one
from headrace.sql.statements import Insert
from headrace.sql.text_values import parse_text
from headrace.sql.type_names import PgType, pg_type, pg_type_text, render_text, spark_type_of_oid, typmod

UTC = dt.UTC


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("int", "int"), ("int4", "int"), ("bigint", "bigint"), ("smallint", "smallint"), ("real", "float"),
        ("double precision", "double"), ("float8", "double"), ("float4", "float"), ("boolean", "boolean"),
        ("bool", "boolean"), ("varchar(10)", "string"), ("character varying", "string"), ("text", "string"),
        ("bytea", "binary"), ("date", "date"), ("timestamp", "timestamp_ntz"), ("timestamptz", "timestamp"),
        ("timestamp with time zone", "timestamp"), ("timestamp without time zone", "timestamp_ntz"),
        ("numeric", "decimal(38,10)"), ("numeric(5,2)", "decimal(5,2)"), ("decimal(7)", "decimal(7,0)"),
        ("int[]", "array<int>"), ("text[][]", "array<array<string>>"), ("json", "string"),
        ("jsonb", "struct<hr_key:binary,hr_jsonb:string>"),
        ("interval", "struct<hr_months:int,hr_days:int,hr_micros:bigint>"),
        ("struct<a int, b varchar>", "struct<a:int,b:string>"),
    ],
)  # fmt: skip
def test_type_names(text: str, expected: str) -> None:
    assert parse_type(text) == expected
    assert parse_type(pg_type_text(expected)) == expected


def test_type_refusals() -> None:
    with pytest.raises(UndefinedObject):
        parse_type("nonsense")
    with pytest.raises(NotSupported):
        parse_type("numeric(60,2)")


def test_oids() -> None:
    assert pg_type("int") == PgType("int4", 23, 4)
    assert pg_type("array<bigint>") == PgType("_int8", 1016, -1)
    assert pg_type("timestamp").oid == 1184 and pg_type("timestamp_ntz").oid == 1114
    assert spark_type_of_oid(1184) == "timestamp" and spark_type_of_oid(1007) == "array<int>"
    assert spark_type_of_oid(0) is None and spark_type_of_oid(705) is None
    assert typmod("decimal(10,2)") == 655366 and typmod("decimal(38,10)") == -1 and typmod("int") == -1


@pytest.mark.parametrize(
    ("type", "values", "expected"),
    [
        ("int", [1, None, -5], ["1", None, "-5"]),
        ("boolean", [True, False, None], ["t", "f", None]),
        ("string", ["a", "", None, "é"], ["a", "", None, "é"]),
        ("double", [1.0, 0.1, 1e20, 1e-5, 123456789012345.0, 1e15, -0.0, float("nan"), float("inf"), -float("inf")],
         ["1", "0.1", "1e+20", "1e-05", "123456789012345", "1e+15", "-0", "NaN", "Infinity", "-Infinity"]),
        ("float", [1.5, 0.1, 1e6, 123456.0], ["1.5", "0.1", "1e+06", "123456"]),
        ("date", [dt.date(2020, 1, 2)], ["2020-01-02"]),
        ("timestamp_ntz", [dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 1, 1, 2, 3, 120000), None],
         ["2020-01-01 00:00:00", "2020-01-01 01:02:03.12", None]),
        ("timestamp", [dt.datetime(2020, 1, 1, 10, tzinfo=UTC)], ["2020-01-01 10:00:00+00"]),
        ("binary", [b"\xca\xfe", b""], ["\\xcafe", "\\x"]),
        ("decimal(10,2)", [Decimal("1.50"), Decimal("0.00")], ["1.50", "0.00"]),
        ("decimal(38,10)", [Decimal("1.5"), Decimal("100"), Decimal("0.0000000001")], ["1.5", "100", "0.0000000001"]),
        ("array<int>", [[1, 2, None], []], ["{1,2,NULL}", "{}"]),
        ("array<string>", [["a b", "", "null", 'q"x', "b\\s", "c,d", "ok"]],
         ['{"a b","","null","q\\"x","b\\\\s","c,d",ok}']),
        ("array<array<int>>", [[[1], [2, 3]]], ["{{1},{2,3}}"]),
        ("array<timestamp_ntz>", [[dt.datetime(2020, 1, 1)]], ['{"2020-01-01 00:00:00"}']),
        ("struct<a:int,b:string>", [{"a": 1, "b": "a b"}, {"a": None, "b": 'x"y'}, {"a": 1, "b": ""}],
         ['(1,"a b")', '(,"x""y")', '(1,"")']),
        ("map<string,int>", [[("k", 1)]], ['{"k": 1}']),
    ],
)  # fmt: skip
def test_render(type: str, values: list[object], expected: list[str | None]) -> None:
    rendered = render_text(pa.array(values, arrow_type(type)), type)
    assert [None if v is None else v.decode() for v in rendered] == expected


@given(hs.lists(hs.one_of(hs.none(), hs.lists(hs.one_of(hs.none(), hs.text(max_size=8)), max_size=4))))
def test_arrays_read_back(values: list[list[str | None] | None]) -> None:
    rendered = render_text(pa.array(values, pa.list_(pa.string())), "array<string>")
    for value, text in zip(values, rendered, strict=True):
        assert (None if text is None else parse_text(text.decode(), "array<string>")) == value


@given(hs.floats(allow_nan=False))
def test_floats_read_back(value: float) -> None:
    text = render_text(pa.array([value]), "double")[0]
    assert text is not None and float(text) == value


@given(hs.datetimes(min_value=dt.datetime(1, 1, 1), max_value=dt.datetime(9999, 12, 31)))
def test_timestamps_read_back(value: dt.datetime) -> None:
    text = render_text(pa.array([value], pa.timestamp("us")), "timestamp_ntz")[0]
    assert text is not None and parse_text(text.decode(), "timestamp_ntz") == value


def rows(values: str, *types: str) -> list[list[object]] | None:
    statement = parse_one(f"INSERT INTO t VALUES {values}")
    assert isinstance(statement, Insert)
    return statement.literal_rows(types, zones.UTC)


def test_literal_rows() -> None:
    assert rows("(1, 'x'), (-2, NULL), (DEFAULT, 3)", "int", "string") == [[1, "x"], [-2, None], [DEFAULT, "3"]]
    assert rows("('5', 1.005, 2)", "bigint", "decimal(10,2)", "double") == [[5, Decimal("1.01"), 2.0]]
    assert rows("(true, 't', 2.5)", "boolean", "boolean", "int") == [[True, True, 3]]
    assert rows("('2020-01-02', '2020-01-02 03:04', '2020-01-02 03:04+02')", "date", "timestamp_ntz", "timestamp") == [
        [dt.date(2020, 1, 2), dt.datetime(2020, 1, 2, 3, 4), dt.datetime(2020, 1, 2, 1, 4, tzinfo=UTC)]
    ]
    assert rows(
        "(timestamp '2020-01-02', '1'::int, array[1, NULL], '{2,3}')",
        "timestamp",
        "bigint",
        "array<int>",
        "array<bigint>",
    ) == [[dt.datetime(2020, 1, 2, tzinfo=UTC), 1, [1, None], [2, 3]]]
    assert rows("('\\x0aff', array['a', 'b'], ROW(1, 'z'))", "binary", "array<string>", "struct<a:int,b:string>") == [
        [b"\n\xff", ["a", "b"], {"a": 1, "b": "z"}]
    ]
    assert rows("(1 + 1)", "int") is None
    assert rows("(now())", "timestamp") is None
    assert rows("(e'a\\nb')", "string") == [["a\nb"]]


@pytest.mark.parametrize(
    ("values", "type", "error", "message"),
    [
        ("('x')", "int", InvalidText, 'invalid input syntax for type integer: "x"'),
        ("(3000000000)", "int", NumericOutOfRange, "out of range for type integer"),
        ("('99999')", "smallint", NumericOutOfRange, "out of range for type smallint"),
        ("('maybe')", "boolean", InvalidText, "invalid input syntax for type boolean"),
        ("('2020-13-01')", "date", InvalidDatetime, "date/time field value out of range"),
        ("('soon')", "timestamp", InvalidDatetime, "invalid input syntax for type timestamp with time zone"),
        ("(123.456)", "decimal(4,2)", NumericOutOfRange, "numeric field overflow"),
        ("('{1,2')", "array<int>", InvalidText, "malformed array literal"),
        ("(true)", "int", DatatypeMismatch, "cannot be stored as integer"),
        ("(5)", "date", DatatypeMismatch, "cannot be stored as date"),
        ("('1e999')", "double", NumericOutOfRange, "out of range for type double precision"),
    ],
)
def test_literal_errors(values: str, type: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message.replace("(", r"\(")):
        rows(values, type)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 day 2 hours", (0, 1, 7_200_000_000)),
        ("1 year 2 mons -3 days", (14, -3, 0)),
        ("01:30:00.5", (0, 0, 5_400_500_000)),
        ("1.5 hours", (0, 0, 5_400_000_000)),
        ("1 week ago", (0, -7, 0)),
        ("90", (0, 0, 90_000_000)),
    ],
)
def test_intervals(text: str, expected: tuple[int, int, int]) -> None:
    assert parse_interval(text) == expected


def test_bad_interval() -> None:
    with pytest.raises(InvalidDatetime):
        parse_interval("1 fortnight")


@pytest.mark.parametrize("name", ["serial", "bigserial", "smallserial"])
def test_integers_that_would_have_to_count_are_refused(name: str) -> None:
    """Rows would have null where their numbers are left to the database."""
    with pytest.raises(NotSupported, match="there are no sequences"):
        parse_type(name)
