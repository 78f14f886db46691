"""Values of columns that an INSERT or a COPY leaves out. Those that are no literals are computed by one query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from headrace.catalog.contents import TableContent
from headrace.catalog.records import ObjectRecord
from headrace.common.columns import Column, arrow_type
from headrace.session.context import Context
from headrace.session.defined import declared_zone
from headrace.session.execution.assignment import assigned
from headrace.session.execution.kernel_queries import AssignedQuery, rows_of
from headrace.session.execution.simple import constant_value
from headrace.session.names import BoundQuery, names_of
from headrace.session.system.asking_functions import localize
from headrace.sql.parser import parse_query


def left_out(record: ObjectRecord, given: Sequence[Column]) -> list[Column]:
    """The columns of a table that are not among the given ones."""
    names = {column.name for column in given}
    return [column for column in record.columns if column.name not in names]


def default_values(context: Context, record: ObjectRecord, columns: Sequence[Column]) -> Mapping[str, pa.Array]:
    """The value of each of these columns that its default gives, as an array of one."""
    texts, zone = record.content_as(TableContent).defaults, declared_zone(record)
    found: dict[str, object] = {}
    asking: list[Column] = []
    for column in columns:
        text = texts.get(column.name)
        known, found[column.name] = (True, None) if text is None else constant_value(text, column.type, zone)
        if not known:
            asking.append(column)
    if asking:
        wanted = AssignedQuery(
            _bound(context, record, [texts[c.name] for c in asking]), asking,
            lambda heads, inner: assigned(heads, inner, asking, zone),
        )  # fmt: skip
        row = rows_of(context, wanted)
        found |= {column.name: row.column(i)[0].as_py() for i, column in enumerate(asking)}
    return {column.name: pa.array([found[column.name]], arrow_type(column.type)) for column in columns}


def _bound(context: Context, record: ObjectRecord, texts: Sequence[str]) -> BoundQuery:
    """The query for some defaults, in the time zone in which they were declared."""
    query = localize(context, parse_query(f"SELECT {', '.join(texts)}"))
    return BoundQuery(query, replace(names_of(context), zone=declared_zone(record)))
