"""Values of columns that an INSERT or a COPY leaves out: of one statement they are all of one time, as in PostgreSQL.

Defaults that are no literals are computed by one query. Beside a query that asks for the time itself they are computed
by that query, since each query has a time of its own.
"""

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
from headrace.session.execution.select import describe
from headrace.session.execution.simple import constant_value
from headrace.session.names import BoundQuery, Target, names_of
from headrace.session.system.asking_functions import localize
from headrace.sql.parser import parse_query
from headrace.sql.query import Query


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


def timed_with(record: ObjectRecord, columns: Sequence[Column], query: Query) -> list[Column]:
    """Those of the columns whose defaults are to be computed with a query, of whose time they are."""
    if not query.uses_now():
        return []
    texts, zone = record.content_as(TableContent).defaults, declared_zone(record)
    return [c for c in columns if c.name in texts and not constant_value(texts[c.name], c.type, zone)[0]]


def beside(context: Context, record: ObjectRecord, columns: Sequence[Column], rows: str) -> str:
    """Spark SQL of rows with the defaults of these columns behind their own."""
    if not columns:
        return rows
    texts, zone = record.content_as(TableContent).defaults, declared_zone(record)
    items = []
    for i, column in enumerate(columns):
        bound = _bound(context, record, [texts[column.name]])
        items.append(f"({assigned(describe(context, bound), bound.spark(_no_leaf), [column], zone)}) AS `d{i}`")
    return f"SELECT *, {', '.join(items)} FROM ({rows})"


def _bound(context: Context, record: ObjectRecord, texts: Sequence[str]) -> BoundQuery:
    """The query for some defaults, in the time zone in which they were declared."""
    query = localize(context, parse_query(f"SELECT {', '.join(texts)}"))
    return BoundQuery(query, replace(names_of(context), zone=declared_zone(record)))


def _no_leaf(target: Target) -> str:
    raise AssertionError(f"a default reads {target}")
