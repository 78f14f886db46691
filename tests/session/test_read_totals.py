"""Least and greatest values of groups, of every kind of value, without anything else."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.session.reading.read_totals import _TOTALS, RowGroups


@pytest.mark.parametrize("form", ["min({0})", "max({0})"])
@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int64(), [5, -(2**63), 2**63 - 1, 0]), (pa.int16(), [-32768, 3, 4, 32767]),
        (pa.date32(), [dt.date(1, 1, 1), dt.date(2024, 2, 29), dt.date(9999, 12, 31), dt.date(1970, 1, 1)]),
        (pa.timestamp("us"), [dt.datetime(1, 1, 1), dt.datetime(2024, 1, 1), dt.datetime(1969, 1, 1, 0, 0, 1), None]),
        (pa.timestamp("us", tz="UTC"), [0, 1, -5, 7]), (pa.string(), ["ä", "a", "", "b"]),
        (pa.bool_(), [True, False, True, True]),
    ],
)  # fmt: skip
def test_extremes_are_those_of_their_groups(form: str, kind: pa.DataType, values: list[Any]) -> None:
    """Three groups, of which one has no values; all rows as one; and no rows."""
    array = pa.array([v for v in values if v is not None], kind)
    given, of = array.to_pylist(), min if form.startswith("min") else max
    ids = np.array([0, 0, 2, 2][: len(given)])
    weights = np.ones(len(given), dtype=np.int64)
    found = _TOTALS[form](array, RowGroups(ids, 3, weights))
    assert found.type == kind and found.to_pylist() == [of(given[:2]), None, of(given[2:])]
    assert _TOTALS[form](array, RowGroups(ids * 0, 1, weights)).to_pylist() == [of(given)]
    assert _TOTALS[form](array.slice(0, 0), RowGroups(ids[:0], 1, weights[:0])).to_pylist() == [None]
