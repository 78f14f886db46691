"""Values as texts: also those for which Python has no object."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from headrace.common.texts import text_of


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (None, pa.int32(), None),
        (True, pa.bool_(), "true"),
        (b"\xff", pa.binary(), "ff"),
        (0, pa.timestamp("us"), "1970-01-01 00:00:00"),
        (2**63 - 1, pa.timestamp("us"), "+294247-01-10T04:00:54.775807"),
        (-(2**63) + 1, pa.timestamp("us", "UTC"), "-290308-12-21T19:59:05.224193"),
        (-62135596800000001, pa.timestamp("us", "UTC"), "0000-12-31T23:59:59.999999"),
        (2**31 - 1, pa.date32(), "+5881580-07-11"),
        (-(2**31), pa.date32(), "-5877641-06-23"),
        (253402300800000000, pa.timestamp("us"), "+10000-01-01T00:00:00.000000"),
    ],
)
def test_of_any_value(value: Any, kind: pa.DataType, text: str | None) -> None:
    integers = pa.types.is_timestamp(kind) or pa.types.is_date(kind)
    stored = pa.int32() if pa.types.is_date(kind) else pa.int64()
    array = pa.array([value], stored).view(kind) if integers and value is not None else pa.array([value], kind)
    assert text_of(array[0]) == text


def test_of_what_is_no_text() -> None:
    broken = pa.array([b"a\xff"], pa.binary()).view(pa.string())
    assert text_of(broken[0]) == "a�"
    inside = pa.array([{"t": 2**62}], pa.struct([("t", pa.int64())])).cast(pa.struct([("t", pa.timestamp("us"))]))
    assert text_of(inside[0]) == "<struct<t: timestamp[us]>>"
