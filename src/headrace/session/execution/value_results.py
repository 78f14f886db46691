"""Results that are made of Python values: those of SHOW, DESCRIBE, EXPLAIN and the like."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import pyarrow as pa

from headrace.common.columns import arrow_type
from headrace.session.context import Context
from headrace.session.execution.handler import Columns, Types
from headrace.session.result import Result, ResultColumn
from headrace.sql import statements as st

Heads: TypeAlias = Sequence[tuple[str, str]]
"""Names and Spark types of the columns of a result."""
Rows: TypeAlias = Sequence[Sequence[object]]


def result_columns(heads: Heads) -> list[ResultColumn]:
    """The columns of a result that has these heads."""
    return [ResultColumn(*head) for head in heads]


def rows_result(tag: str, heads: Heads, rows: Rows) -> Result:
    """A result of Python values."""
    arrays = [pa.array([row[i] for row in rows], arrow_type(kind)) for i, (_, kind) in enumerate(heads)]
    batch = pa.RecordBatch.from_arrays(arrays, names=[name for name, _ in heads])
    return Result(tag, result_columns(heads), iter([batch]))


def having(heads: Heads) -> Callable[[Context, st.Statement, Types], Columns]:
    """The description of a kind of statement whose results all have these heads."""
    columns = result_columns(heads)
    return lambda context, statement, types: list(columns)
