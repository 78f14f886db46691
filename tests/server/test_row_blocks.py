"""Rows made by columns are the bytes that rows made one by one are."""

from __future__ import annotations

import datetime as dt
import math
import random
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.common.columns import arrow_type
from headrace.common.zones import UTC, zone_of_setting
from headrace.server.binary import _encoder, column_binary
from headrace.server.copy_out import CopyOut, copy_data
from headrace.server.message_blocks import FEW_ROWS
from headrace.server.row_messages import data_rows, row_blocks
from headrace.session.result import ResultColumn
from headrace.sql.copying import CopyFormat
from headrace.sql.render import column_text, float_text, render_text, renderer
from support import examples

VALUES: dict[str, list[Any]] = {
    "smallint": [0, -1, 32767], "int": [0, 7, -(2**31)], "bigint": [2**63 - 1, -(2**63), 5],
    "boolean": [True, False], "string": ["", "a", "ä😀", '\\N"\t,', "x" * 255, "x" * 300, "x" * 70_000],
    "binary": [b"", b"\x00\xff"],
    "double": [0.0, -0.0, 1.5, math.inf, math.nan, 1e300, 5e-324, 123456.75], "float": [1.5, -2.25, 0.0],
    "date": [dt.date(2024, 2, 29), dt.date(1969, 12, 31), dt.date(1, 1, 1)],
    "timestamp_ntz": [dt.datetime(2024, 2, 29, 12, 0, 0, 120000), dt.datetime(1969, 12, 31, 23, 59, 59)],
    "timestamp": [dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC), dt.datetime(1901, 1, 1, 0, 0, 1, 5, tzinfo=dt.UTC)],
    "decimal(10,2)": [Decimal("1.50"), Decimal("-99999999.99"), Decimal("0.00")],
    "decimal(38,10)": [Decimal(0), Decimal("-1E-10"), Decimal("100"), Decimal("1.5"), Decimal("1E+27")],
    "array<int>": [[1, None, 3], []],
}  # fmt: skip


@pytest.mark.parametrize("form", [0, 1])
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
def test_blocks_are_the_rows_one_after_another(form: int, zone: str) -> None:
    pick = random.Random(form)
    columns = [ResultColumn(f"c{i}", kind) for i, kind in enumerate(VALUES)]
    made = [pa.array([pick.choice([*VALUES[c.type], None]) for _ in range(1_000)], arrow_type(c.type)) for c in columns]
    batch = pa.RecordBatch.from_arrays(made, names=[c.name for c in columns])
    for start, length in ((0, 1_000), (3, 500), (990, 10), (0, 0)):
        part = batch.slice(start, length)
        expected = b"".join(data_rows(part, columns, (form,), zone_of_setting(zone)))
        assert b"".join(row_blocks(part, columns, (form,), zone_of_setting(zone))) == expected
    for i, column in enumerate(columns):  # each by itself, without nulls
        only = pa.RecordBatch.from_arrays([made[i].drop_null()], names=["c"])
        assert b"".join(row_blocks(only, [column], (form,))) == b"".join(data_rows(only, [column], (form,)))


@settings(max_examples=examples(150), deadline=None)
@given(st.data())
def test_any_columns_in_any_format_are_rows_one_after_another(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.tuples(st.sampled_from(list(VALUES)), st.booleans(), st.integers(0, 1)), min_size=1))
    pick, count = random.Random(data.draw(st.integers(0, 99))), data.draw(st.integers(FEW_ROWS, 300))
    columns = [ResultColumn(f"c{i}", kind) for i, (kind, _, _) in enumerate(kinds)]
    made = []
    for kind, nullable, _ in kinds:
        values = [v for v in VALUES[kind] if v != "x" * 70_000] + [None] * nullable
        made.append(pa.array([pick.choice(values) for _ in range(count)], arrow_type(kind)))
    start = data.draw(st.integers(0, count))
    batch = pa.RecordBatch.from_arrays(made, names=[c.name for c in columns]).slice(start)
    formats = [form for _, _, form in kinds]
    assert b"".join(row_blocks(batch, columns, formats)) == b"".join(data_rows(batch, columns, formats))
    for how in (CopyFormat("binary"), CopyFormat(), CopyFormat(null="", delimiter=","), CopyFormat("csv", ",", "")):
        many, single = CopyOut(how, columns), CopyOut(how, columns)
        assert b"".join(many.messages(batch)) == b"".join(copy_data(single.rows(batch))), how


FLOATS = [
    0.0,
    -0.0,
    1e-4,
    9.9e-5,
    1e10,
    9999999999.5,
    999999.5,
    1e6,
    1e15,
    math.inf,
    -math.inf,
    math.nan,
    5e-324,
    1 / 3,
]
DECIMALS = {
    "decimal(18,4)": ["0", "-0.0001", "99999999999999.9999", "-12.3400", "10000", "0.1"],
    "decimal(38,10)": ["0", "-0.0000000001", "0.0000001", "9999999999999999999999999999", "12.5", "-10000.0001",
                       "922337203.6854775807"],
    "decimal(18,18)": ["0", "0.000000000000000001", "-0.999999999999999999", "0.1"],
    "decimal(38,0)": ["0", "-99999999999999999999999999999999999999", "10000", "123456789"],
    "decimal(20,1)": ["0", "-922337203685477580.8", "922337203685477580.7", "922337203685477580.8"],
    "decimal(5,5)": ["0.00001", "-0.99999", "0"],
    "decimal(30,20)": ["0", "0.00000000000000000001", "1234567890.5"],
}  # fmt: skip


@pytest.mark.parametrize("kind", ["float", "double", *DECIMALS])
def test_numbers_are_what_they_are_by_themselves(kind: str) -> None:
    """What is made by columns is for each value what is made of it alone: without what may be kept out of its way."""
    pick = random.Random(kind)
    if kind in DECIMALS:
        own = [Decimal(text) for text in DECIMALS[kind]]
        scale = int(kind.partition(",")[2][:-1])
        digits = int(kind.partition("(")[2].partition(",")[0])
        numbers: list[Any] = own + [
            Decimal(pick.randint(-(10**n) + 1, 10**n - 1)).scaleb(-scale, Context(prec=50))
            for n in range(1, digits + 1) for _ in range(40)
        ]  # fmt: skip
    else:
        numbers = FLOATS + [pick.uniform(-9, 9) * 10.0**e for e in range(-12, 20) for _ in range(40)]
        numbers += [round(n, 2) for n in numbers if math.isfinite(n)]
    array = pa.array([*numbers, None], arrow_type(kind))
    render, encode = renderer(kind, zone_of_setting("UTC")), _encoder(kind)
    for part in (array, array.slice(3, 7), pa.concat_arrays([array, array]).slice(len(numbers))):
        values = part.to_pylist()
        texts = [None if v is None else render(v).encode() for v in values]
        assert column_text(part, kind).to_pylist() == texts == render_text(part, kind)
        assert column_binary(part, kind).to_pylist() == [None if v is None else encode(v) for v in values]


def test_rows_without_columns() -> None:
    batch = pa.RecordBatch.from_struct_array(pa.array([{}] * 100, pa.struct([])))
    assert b"".join(row_blocks(batch, [], ())) == b"".join(data_rows(batch, [], ()))


def test_the_text_of_a_double_reads_back_and_is_the_shortest() -> None:
    pick = random.Random(7)
    for _ in range(3_000):
        value = pick.choice(
            [pick.random(), pick.uniform(-1e16, 1e16), pick.randrange(10**17) / 100, 10.0 ** pick.randint(-6, 18)]
        )
        text = float_text(value)
        assert float(text) == value
        if "e" not in text:
            assert text == str(np.format_float_positional(np.float64(value), unique=True, trim="-"))


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(st.none() | st.dates(), max_size=6), st.lists(st.none() | st.integers(0, 20), max_size=120),
    st.lists(st.none() | st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2100, 1, 1)), max_size=9), st.booleans(),
)  # fmt: skip
def test_days_and_moments_are_written_as_one_by_one(
    far: list[dt.date | None], near: list[int | None], moments: list[dt.datetime | None], odd: bool
) -> None:
    """Days that are close to each other are looked up; fractions without a zero at their end are left as they are."""
    close = [None if days is None else dt.date(1969, 12, 25) + dt.timedelta(days) for days in near]
    if odd:
        moments = [None if m is None else m.replace(microsecond=m.microsecond // 10 * 10 + 7) for m in moments]
    for kind, values in (("date", far), ("date", close), ("timestamp_ntz", moments)):
        render = renderer(kind, UTC)
        found = column_text(pa.array([None, *values], arrow_type(kind)).slice(1), kind).to_pylist()
        assert found == [None if value is None else render(value).encode() for value in values]
