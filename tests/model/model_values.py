"""Column types, the values that are worth trying in them, and how these are written in SQL."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from headrace.common.columns import split_top_level

NAN, INF = math.nan, math.inf

# Few values for each type: so that keys meet, rows repeat, and deletions find something.
_POOLS: dict[str, list[Any]] = {
    "tinyint": [0, 1, -1, 127, -128],
    "smallint": [0, 1, 300, 32767, -32768],
    "int": [0, 1, -1, 2**31 - 1, -(2**31)],
    "bigint": [0, 1, 2**63 - 1, -(2**63), 2**53 + 1],
    "float": [0.0, -0.0, 1.5, NAN, INF, -INF],
    "double": [0.0, -0.0, 0.1, NAN, INF, -INF, 5e-324, 1.7e308],
    "boolean": [True, False],
    "string": ["", "a", "A", "ä", "a\u0308", "日本", "\U0001f600", "\x00", "line\nbreak", "it's", "a\\b", " "],
    "binary": [b"", b"\x00", b"\xff\xfe", b"a", b"it's"],
    "date": [dt.date(1970, 1, 1), dt.date(1582, 10, 4), dt.date(2024, 2, 29), dt.date(9999, 12, 31), dt.date(1, 1, 1)],
    "timestamp": [
        dt.datetime(1970, 1, 1, tzinfo=dt.UTC),
        dt.datetime(2024, 3, 31, 1, 30, 0, 1, tzinfo=dt.UTC),
        dt.datetime(1900, 1, 1, 0, 0, 0, 999999, tzinfo=dt.UTC),
        dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC),
    ],
    "timestamp_ntz": [dt.datetime(1970, 1, 1), dt.datetime(2024, 3, 31, 2, 30), dt.datetime(1, 1, 1, 0, 0, 0, 1)],
    "decimal(7,2)": [Decimal("0.00"), Decimal("1.50"), Decimal("-99999.99"), Decimal("99999.99")],
    "decimal(38,10)": [Decimal("0E-10"), Decimal("1.0000000001"), Decimal("-9999999999999999999999999999.9999999999")],
}
_NESTED = [
    "array<int>",
    "array<double>",
    "array<string>",
    "struct<a:int,b:string>",
    "struct<a:double,b:array<decimal(7,2)>>",
    "array<struct<a:date,b:float>>",
]

# Values whose sums are exact in every order, so that a sum of doubles has one right answer.
_NUMBERS: dict[str, list[Any]] = {
    "tinyint": [-2, 0, 1, 3, 100],
    "smallint": [-2, 0, 1, 1000],
    "int": [-2, 0, 1, 3, 2**31 - 1, -(2**31)],
    "bigint": [-2, 0, 1, 2**40, -(2**40), 2**60],
    "float": [-1.5, -0.0, 0.0, 0.25, 2.0, 1024.0, NAN, INF, -INF],
    "double": [-1.5, -0.0, 0.0, 0.25, 2.0, 2.0**30, NAN, INF, -INF],
    "decimal(7,2)": [Decimal("-1.50"), Decimal("0.00"), Decimal("0.01"), Decimal("99999.99")],
    "decimal(18,4)": [Decimal("-1.5000"), Decimal("0.0001"), Decimal("99999999999999.9999")],
    "decimal(30,10)": [Decimal("-1.5"), Decimal("0.0000000001"), Decimal("12345678901234567890.0123456789")],
}

NUMBER_TYPES = sorted(_NUMBERS)
ALL_TYPES = [*sorted(_POOLS), *_NESTED]
SMALL_KEY = [0, 1, 2]


def values(kind: str, *, nullable: bool = True) -> st.SearchStrategy[Any]:
    """Any value of a type, often the same."""
    base: st.SearchStrategy[Any]
    if kind.startswith("array<"):
        base = st.lists(values(kind[6:-1]), max_size=2)
    elif kind.startswith("struct<"):
        fields = dict(part.split(":", 1) for part in split_top_level(kind[7:-1]))
        base = st.fixed_dictionaries({name: values(k) for name, k in fields.items()})
    else:
        base = st.sampled_from(_POOLS[kind])
        if kind == "string":
            base = st.one_of(base, base, base, st.text(max_size=3).filter(_encodes))
    return st.one_of(base, base, base, st.none()) if nullable else base


def numbers(kind: str) -> st.SearchStrategy[Any]:
    """Values of a type of numbers that may be added up."""
    return st.sampled_from([*_NUMBERS[kind], *_NUMBERS[kind], None])


def finite_numbers(kind: str) -> st.SearchStrategy[Any]:
    """The same without NaN and infinities."""
    found = [v for v in _NUMBERS[kind] if not isinstance(v, float) or math.isfinite(v)]
    return st.sampled_from([*found, None])


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def literal(value: Any, kind: str) -> str:
    """The value as a Spark SQL expression."""
    if value is None:
        return "NULL"
    if kind.startswith("array<"):
        return f"CAST(array({', '.join(literal(v, kind[6:-1]) for v in value)}) AS {kind})"
    if kind.startswith("struct<"):
        fields = dict(part.split(":", 1) for part in split_top_level(kind[7:-1]))
        inner = ", ".join(f"'{n}', {literal(value[n], k)}" for n, k in fields.items())
        return f"CAST(named_struct({inner}) AS {kind})"
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, str):
        return "decode(X'" + value.encode().hex() + "', 'UTF-8')" if not _plain(value) else f"'{value}'"
    if isinstance(value, bool):
        return str(value).lower()
    return f"CAST('{value}' AS {kind})"


def _plain(text: str) -> bool:
    return text.isascii() and text.isprintable() and "'" not in text and "\\" not in text
